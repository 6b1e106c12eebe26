//! A paged stage computes what a plain decoder does, however its rows are cut into steps.

mod support;

use skein_engine::{EngineError, KvType, Numerics};
use skein_pipeline::engine::Engine;
use skein_shards::quant::WeightMode;
use support::{BLOCKS, LAYERS, Line, Tiny, VOCAB, distance, moves, rows, runtime, step, tokens};

/// f32 throughout; what remains is the order of additions.
const SAME: f32 = 2e-4;
/// Far above [`SAME`] and far below what a wrong slot or position changes.
const OTHER: f32 = 2e-2;

fn whole(tiny: &Tiny) -> Line {
    Line(vec![tiny.stage(0..LAYERS, Numerics::Exact)])
}

#[test]
fn decoding_token_by_token_gives_the_logits_of_a_prefill() {
    let tiny = Tiny::new(WeightMode::F32);
    let mut line = whole(&tiny);
    let text = tokens(1, 70);
    let prefill = line.run(&step(&[rows(&[0, 1, 2], 0, &text)]));
    let other = line.run(&step(&[rows(&[0, 1, 2], 0, &tokens(2, 70))]));
    assert!(
        distance(&prefill[69], &other[69]) > 1.0,
        "the tiny model ignores its input"
    );
    // Other blocks, out of order.
    for (position, &token) in text.iter().enumerate() {
        let logits = line.run(&step(&[rows(&[9, 4, 7], position, &[token])]));
        let difference = distance(&logits[0], &prefill[position]);
        assert!(difference < SAME, "position {position}: {difference}");
    }
}

#[test]
fn stages_of_one_to_four_layers_give_the_logits_of_the_whole_model() {
    let tiny = Tiny::new(WeightMode::Int8);
    let inputs = step(&[
        rows(&[3, 1], 0, &tokens(3, 40)),
        rows(&[0], 0, &tokens(4, 5)),
    ]);
    let wanted = whole(&tiny).run(&inputs);
    for cuts in [vec![0, 1, 4], vec![0, 2, 3, 4], vec![0, 1, 2, 3, 4]] {
        let stages = cuts
            .windows(2)
            .map(|cut| tiny.stage(cut[0]..cut[1], Numerics::Exact));
        let logits = Line(stages.collect()).run(&inputs);
        for (found, wanted) in logits.iter().zip(&wanted) {
            assert!(
                distance(found, wanted) < SAME,
                "{cuts:?}: {}",
                distance(found, wanted)
            );
        }
    }
}

#[test]
fn a_tree_gives_the_logits_of_its_chains_and_goes_on_from_moved_slots() {
    let tiny = Tiny::new(WeightMode::F32);
    let mut line = whole(&tiny);
    let prompt = tokens(5, 30);
    let next = tokens(6, 3);
    // Root a with children b and c, c's child d: slots 30 (a), 31 (b), 32 (c), 33 (d).
    let (a, b, c, d) = (11, 22, 33, 44);
    let start = |line: &mut Line| line.run(&step(&[rows(&[0, 1], 0, &prompt)]));

    start(&mut line);
    let short = line.run(&step(&[rows(&[0, 1], 30, &[a, b])]));
    let long = line.run(&step(&[rows(&[0, 1], 30, &[a, c, d])]));
    let wanted = line.run(&step(&[rows(&[0, 1], 33, &next)]));

    start(&mut line);
    let branches = rows(&[0, 1], 30, &[a, b, c, d]).tree(&[None, Some(0), Some(0), Some(2)]);
    let tree = line.run(&step(std::slice::from_ref(&branches)));
    for (row, chain) in [(0, &short[0]), (1, &short[1]), (2, &long[1]), (3, &long[2])] {
        assert!(
            distance(&tree[row], chain) < SAME,
            "row {row}: {}",
            distance(&tree[row], chain)
        );
    }

    let unmoved = line.run(&step(&[rows(&[0, 1], 33, &next)]));
    assert!(
        distance(&unmoved[0], &wanted[0]) > OTHER,
        "slots need no moving"
    );

    start(&mut line);
    line.run(&step(&[branches]));
    let mut going_on = step(&[rows(&[0, 1], 33, &next)]);
    going_on.moves = moves(&[(32, 31), (33, 32)]);
    let moved = line.run(&going_on);
    for (found, wanted) in moved.iter().zip(&wanted) {
        assert!(
            distance(found, wanted) < SAME,
            "{}",
            distance(found, wanted)
        );
    }
}

#[test]
fn slots_move_between_blocks_for_every_movable_cache_type() {
    let tiny = Tiny::new(WeightMode::F32);
    let mut types = vec![KvType::F32, KvType::F16];
    if runtime().devices().unwrap()[0].class.contains("bf16") {
        types.push(KvType::Bf16);
    }
    for kv in types {
        let stage = tiny.stage_with(0..LAYERS, Numerics::Fast, |spec| {
            spec.kv = kv;
            // The processor's kernels take bf16 keys together with bf16 activations only.
            spec.inference_precision = (kv != KvType::Bf16).then(|| "f32".into());
            spec.dynamic_quantization_group = Some(0);
        });
        let mut line = Line(vec![stage.unwrap()]);
        let prompt = tokens(7, 20);
        line.run(&step(&[rows(&[2], 0, &prompt)]));
        let wanted = line.run(&step(&[rows(&[2], 20, &[9])]));
        let mut elsewhere = step(&[rows(&[5], 20, &[9])]);
        let all: Vec<(u32, u32)> = (0..20).map(|slot| (2 * 32 + slot, 5 * 32 + slot)).collect();
        elsewhere.moves = moves(&all);
        let found = line.run(&elsewhere);
        assert!(distance(&found[0], &wanted[0]) < SAME, "{kv:?}");
    }
}

#[test]
fn a_quantised_cache_refuses_moves() {
    let tiny = Tiny::new(WeightMode::F32);
    let spec = |spec: &mut skein_engine::StageSpec<'_>| spec.kv = KvType::U8;
    let mut stage = tiny.stage_with(0..LAYERS, Numerics::Fast, spec).unwrap();
    stage.step(&step(&[rows(&[0], 0, &[1, 2, 3])])).unwrap();
    let mut inputs = step(&[rows(&[0], 3, &[4])]);
    inputs.moves = moves(&[(0, 1)]);
    let error = stage.step(&inputs).unwrap_err().to_string();
    assert!(error.contains("cannot move slots"), "{error}");
}

#[test]
fn rewinding_a_sequence_forgets_what_came_after() {
    let tiny = Tiny::new(WeightMode::F32);
    let mut line = whole(&tiny);
    let text = tokens(8, 50);
    line.run(&step(&[rows(&[0, 1], 0, &text)]));
    let wanted = line.run(&step(&[rows(&[2, 3], 0, &[&text[..25], &[7, 8]].concat())]));
    let found = line.run(&step(&[rows(&[0, 1], 25, &[7, 8])]));
    assert!(distance(&found[1], &wanted[26]) < SAME);
}

#[test]
fn sequences_of_one_step_do_not_see_each_other() {
    let tiny = Tiny::new(WeightMode::F32);
    let mut line = whole(&tiny);
    let texts = [tokens(9, 33), tokens(10, 7), tokens(11, 1)];
    let blocks: [&[i32]; 3] = [&[4, 0], &[1], &[6]];
    let together: Vec<_> = (0..3).map(|i| rows(blocks[i], 0, &texts[i])).collect();
    let together = line.run(&step(&together));
    let alone: Vec<Vec<f32>> = (0..3)
        .flat_map(|i| line.run(&step(&[rows(blocks[i], 0, &texts[i])])))
        .collect();
    for (found, wanted) in together.iter().zip(&alone) {
        assert!(distance(found, wanted) < SAME);
    }
}

#[test]
fn a_last_stage_returns_the_sampled_rows_only() {
    let tiny = Tiny::new(WeightMode::F32);
    let mut line = whole(&tiny);
    let text = tokens(12, 9);
    let all = line.run(&step(&[rows(&[0], 0, &text)]));
    let mut some = rows(&[0], 0, &text);
    some.sample = vec![8, 3];
    let found = line.run(&step(&[some.clone()]));
    assert_eq!(found.len(), 2);
    assert!(distance(&found[0], &all[8]) < SAME && distance(&found[1], &all[3]) < SAME);
    some.sample.clear();
    assert!(line.run(&step(&[some])).is_empty());
}

#[test]
fn a_graph_of_another_kind_of_stage_is_refused_with_its_inputs() {
    let tiny = Tiny::new(WeightMode::F32);
    let refusal = |layers: std::ops::Range<u32>, first, last, count| {
        let loaded = tiny.stage_with(layers, Numerics::Exact, |spec| {
            spec.first = first;
            spec.last = last;
            spec.layers = 0..count;
        });
        loaded.map(|_| ()).unwrap_err().to_string()
    };
    let error = refusal(1..3, true, false, 2);
    assert!(
        error.contains("inputs_embeds") && error.contains("input_ids"),
        "{error}"
    );
    let error = refusal(1..3, false, false, 3);
    assert!(error.contains("key_cache.2, value_cache.2"), "{error}");
    let error = refusal(0..3, true, false, 2);
    assert!(error.contains("(key_cache.2, value_cache.2)"), "{error}");
}

#[test]
fn a_sliding_window_that_the_graph_does_not_have_is_refused() {
    let tiny = Tiny::new(WeightMode::F32);
    let windows = |spec: &mut skein_engine::StageSpec<'_>| spec.sliding_windows = vec![0, 512];
    let error = tiny
        .stage_with(0..2, Numerics::Exact, windows)
        .map(|_| ())
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("sliding window of 0 instead of 512"),
        "{error}"
    );
}

#[test]
fn a_step_that_does_not_fit_is_refused_and_the_stage_lives_on() {
    let tiny = Tiny::new(WeightMode::F32);
    let mut stage = tiny.stage(0..LAYERS, Numerics::Exact);
    let mut wrong = step(&[rows(&[BLOCKS as i32 + 1], 0, &[1])]);
    assert!(matches!(stage.step(&wrong), Err(EngineError::Input(_))));
    wrong = step(&[rows(&[0], 0, &[VOCAB as i64])]);
    assert!(matches!(stage.step(&wrong), Err(EngineError::Input(_))));
    assert_eq!(
        stage.step(&step(&[rows(&[0], 0, &[1])])).unwrap().len(),
        VOCAB
    );

    let mut middle = tiny.stage(1..2, Numerics::Exact);
    let inputs = step(&[rows(&[0], 0, &[1, 2])]);
    assert!(
        middle.step(&inputs).is_err(),
        "no hidden states were written"
    );
    middle.hidden_input(3).unwrap().fill(0.5);
    assert!(
        middle.step(&inputs).is_err(),
        "hidden states of three rows for a step of two"
    );
    middle.hidden_input(2).unwrap().fill(0.5);
    assert_eq!(middle.step(&inputs).unwrap().len(), 2 * middle.hidden());
}

#[test]
fn fused_operations_and_compressed_weights_survive_the_compilation() {
    let tiny = Tiny::new(WeightMode::Int4);
    for (layers, numerics) in [
        (0..LAYERS, Numerics::Fast),
        (0..2, Numerics::Exact),
        (1..3, Numerics::Fast),
        (2..LAYERS, Numerics::Exact),
    ] {
        let count = layers.len() as u32;
        let last = layers.end == LAYERS;
        let stage = tiny.stage(layers.clone(), numerics);
        let report = stage.report();
        let ops = |name: &str| report.runtime_ops.get(name).copied().unwrap_or(0);
        assert_eq!(ops("PagedAttention"), count, "{layers:?}: {report:?}");
        assert_eq!(ops("RoPE"), 2 * count, "{layers:?}: {report:?}");
        assert_eq!(
            ops("RMS"),
            2 * count + u32::from(last),
            "{layers:?}: {report:?}"
        );
        let int4 = report.weight_types.get("u4").copied().unwrap_or(0);
        assert!(int4 > 0, "{layers:?}: {report:?}");
        let other = |name: &&String| !["u4", "i8"].contains(&name.as_str());
        assert_eq!(
            report.weight_types.keys().find(other),
            None,
            "{layers:?}: {report:?}"
        );
        let kv = if numerics == Numerics::Exact {
            ("f32", 4)
        } else {
            ("f16", 2)
        };
        assert_eq!(report.kv_types, (kv.0.into(), kv.0.into()));
        let slots = (BLOCKS as u64 + 1) * 32;
        assert_eq!(
            report.kv_bytes,
            slots * u64::from(count) * 2 * 2 * 32 * kv.1
        );
    }
}

#[test]
fn this_machine_has_a_processor_that_computes() {
    let devices = runtime().devices().unwrap();
    let cpu = devices.iter().find(|device| device.id == "CPU").unwrap();
    assert!(
        !cpu.name.is_empty() && cpu.class.split('/').count() == 3,
        "{cpu:?}"
    );
    let speed = skein_engine::calibrate::calibrate(runtime(), "CPU").unwrap();
    assert!(speed.bytes_per_s > 1e8 && speed.flops > 1e9, "{speed:?}");
    println!("{cpu:?} {speed:?}");
    assert!(runtime().version().starts_with("2026.4.1"));
}
