//! What a compiled stage runs: the fused operations that both speed and accuracy depend on, and
//! weights as narrow as they were stored.

mod support;

use std::collections::BTreeMap;
use std::ops::Range;

use skein_shards::quant::WeightMode;
use skein_shards::testing::{TinyArch, TinyConfig};
use support::models::Imported;
use support::workers::Worker;

fn count(counts: &BTreeMap<String, u32>, name: &str) -> u32 {
    counts.get(name).copied().unwrap_or(0)
}

/// Loads a stage and checks what it became. `narrow` is the element type that its matrices have.
fn check(model: &Imported, layers: Range<u32>, exact: bool, narrow: &str) {
    let mut spec = model.spec(layers.clone(), 1, 4);
    spec.exact = exact;
    let report = Worker::load(&spec).report();
    let ops = &report.runtime_ops;
    let place = format!("layers {layers:?}, exact {exact}, {narrow}: {report:?}");
    let depth = layers.len() as u32;
    let tail = u32::from(layers.end == model.manifest.layers);

    assert_eq!(count(ops, "RMS"), 2 * depth + tail, "{place}");
    assert_eq!(count(ops, "RoPE"), 2 * depth, "{place}");
    let attention = count(ops, "PagedAttention") + count(ops, "PagedAttentionExtension");
    assert_eq!(attention, depth, "{place}");

    let narrow_matrices = count(&report.weight_types, narrow);
    // Query, key, value, output, gate, up and down; some plugins store gate and up together.
    assert!(narrow_matrices >= 5 * depth, "{place}");
    let ends = u32::from(layers.start == 0) + tail;
    let wide: u32 = ["f32", "f16", "bf16"]
        .iter()
        .map(|name| count(&report.weight_types, name))
        .sum();
    assert_eq!(wide, 0, "{place}");
    if ends > 0 {
        assert!(
            count(&report.weight_types, "i8") + count(&report.weight_types, "u8") > 0,
            "{place}"
        );
    }
}

fn every_stage_is_fused(arch: TinyArch, weights: WeightMode, narrow: &str) {
    let config = TinyConfig {
        arch,
        hidden: 256,
        ffn: 512,
        ..TinyConfig::default()
    };
    let model = Imported::tiny(&config, weights);
    for exact in [false, true] {
        for layers in [0..4, 0..1, 1..3, 3..4] {
            check(&model, layers, exact, narrow);
        }
    }
}

#[test]
fn stages_of_a_llama_in_int8_run_fused_on_eight_bits() {
    every_stage_is_fused(TinyArch::Llama, WeightMode::Int8, "i8");
}

#[test]
fn stages_of_a_llama_in_int4_run_fused_on_four_bits() {
    every_stage_is_fused(TinyArch::Llama, WeightMode::Int4, "u4");
}

#[test]
fn stages_of_a_qwen2_in_int4_run_fused_on_four_bits() {
    every_stage_is_fused(TinyArch::Qwen2, WeightMode::Int4, "u4");
}

#[test]
fn the_default_model_runs_fused_in_both_narrow_modes() {
    for (weights, narrow) in [(WeightMode::Int8, "i8"), (WeightMode::Int4, "u4")] {
        let model = Imported::new(&support::smollm2(), weights);
        check(&model, 0..30, false, narrow);
    }
}
