use std::path::PathBuf;

use half::f16;
use proptest::prelude::*;

use super::*;
use crate::graph::{Graph, cut, stage_xml};
use crate::manifest::SegmentKind;
use crate::testing::{GgufFile, Key, TinyArch, TinyConfig, tiny_gguf};
use crate::tokenizer::Tokenizer;

struct Bench {
    dir: tempfile::TempDir,
    store: Store,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("store")).unwrap();
        Self { dir, store }
    }

    fn write(&self, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join("tiny.gguf");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn import_bytes(&self, bytes: &[u8], weights: WeightMode) -> Result<ModelId, ImportError> {
        let options = ImportOptions {
            name: None,
            weights,
        };
        import_gguf(&self.write(bytes), &options, &self.store, &mut |_| true)
    }

    fn import(&self, file: &GgufFile, weights: WeightMode) -> Result<ModelId, ImportError> {
        self.import_bytes(&file.to_bytes(), weights)
    }
}

fn tiny(arch: TinyArch) -> (TinyConfig, GgufFile) {
    let config = TinyConfig {
        layers: 3,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        ffn: 96,
        arch,
        ..TinyConfig::default()
    };
    let file = tiny_gguf(&config);
    (config, file)
}

/// What a refused file is refused with; the store must be empty afterwards.
fn refusal(change: impl FnOnce(&mut GgufFile)) -> ImportError {
    let bench = Bench::new();
    let (_, mut file) = tiny(TinyArch::Llama);
    change(&mut file);
    let error = bench.import(&file, WeightMode::Int8).unwrap_err();
    assert!(bench.store.models().is_empty());
    assert!(!error.to_string().is_empty() && !error.hint().is_empty());
    error
}

#[test]
fn a_tiny_model_is_described_as_it_is() {
    for (arch, family, tied) in [
        (TinyArch::Llama, "llama", true),
        (TinyArch::Qwen2, "qwen2", false),
    ] {
        let bench = Bench::new();
        let (config, file) = tiny(arch);
        let id = bench.import(&file, WeightMode::Auto).unwrap();
        let manifest = bench.store.manifest(id).unwrap();
        assert_eq!(manifest.id(), id);
        assert_eq!(manifest.name, "tiny");
        assert_eq!(manifest.family, family);
        assert_eq!(manifest.weights, "int8");
        assert_eq!(manifest.layers, config.layers);
        assert_eq!((manifest.heads, manifest.kv_heads), (4, 2));
        assert_eq!((manifest.hidden, manifest.head_dim), (64, 16));
        assert_eq!(manifest.vocab, config.vocab);
        assert_eq!(manifest.tied_embedding, tied);
        assert_eq!(manifest.license.as_deref(), Some("apache-2.0"));
        assert_eq!(manifest.source.file, "tiny.gguf");
        assert_eq!(
            manifest.source.hash,
            crate::hash::Hash::of(&file.to_bytes())
        );
        assert_eq!(manifest.stop_ids, [272, 274]);
        let tokenizer = Tokenizer::of(&manifest, &bench.store.tokenizer(id).unwrap()).unwrap();
        let ids = tokenizer.encode("the cat<|im_end|>", true);
        assert_eq!(ids.last(), Some(&274));
        assert!(bench.store.held(id).unwrap().iter().all(|held| *held));
    }
}

#[test]
fn every_constant_of_an_f32_import_is_the_tensor_that_it_stands_for() {
    let bench = Bench::new();
    let (config, file) = tiny(TinyArch::Qwen2);
    let id = bench.import(&file, WeightMode::F32).unwrap();
    let manifest = bench.store.manifest(id).unwrap();
    let weights = std::fs::read(bench.store.weights_path(id).unwrap()).unwrap();
    assert_eq!(weights.len() as u64, manifest.weights_file_bytes());
    let graph = Graph::from_blob(&bench.store.graph(id).unwrap()).unwrap();
    graph.check_constants(&manifest, 0..config.layers).unwrap();
    let held: Vec<&[u8]> = graph
        .nodes
        .iter()
        .filter_map(|node| node.span)
        .map(|span| &weights[span.offset as usize..][..span.size as usize])
        .collect();
    let widened = |bytes: &[u8]| -> Vec<u8> {
        let halves = bytes.chunks_exact(2);
        halves
            .flat_map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32().to_le_bytes())
            .collect()
    };
    for part in ["attn_q", "attn_k", "attn_output", "ffn_down"] {
        for layer in 0..config.layers {
            let name = format!("blk.{layer}.{part}.weight");
            let expected = widened(file.tensor(&name).unwrap());
            assert!(held.contains(&&expected[..]), "{name} is not there");
        }
    }
    for name in ["blk.1.attn_q.bias", "output_norm.weight"] {
        assert!(held.contains(&file.tensor(name).unwrap()), "{name}");
    }
}

#[test]
fn llama_rows_are_put_in_the_order_that_the_graph_rotates() {
    let bench = Bench::new();
    let (config, file) = tiny(TinyArch::Llama);
    let id = bench.import(&file, WeightMode::F16).unwrap();
    let weights = std::fs::read(bench.store.weights_path(id).unwrap()).unwrap();
    let width = config.hidden as usize * 2;
    let key = file.tensor("blk.2.attn_k.weight").unwrap();
    let row = |index: usize| &key[index * width..][..width];
    let second_head: Vec<&[u8]> = (0..16).map(|out| row(16 + out % 8 * 2 + out / 8)).collect();
    let expected = second_head.concat();
    assert!(
        weights
            .windows(expected.len())
            .any(|window| window == expected)
    );
    let value = file.tensor("blk.2.attn_v.weight").unwrap();
    assert!(weights.windows(value.len()).any(|window| window == value));
}

#[test]
fn equal_files_give_equal_models_and_modes_give_different_ones() {
    let bench = Bench::new();
    let (_, file) = tiny(TinyArch::Llama);
    let modes = [
        WeightMode::Int4,
        WeightMode::Int8,
        WeightMode::F16,
        WeightMode::F32,
    ];
    let ids: Vec<_> = modes.map(|mode| bench.import(&file, mode).unwrap()).into();
    let again: Vec<_> = modes.map(|mode| bench.import(&file, mode).unwrap()).into();
    assert_eq!(ids, again);
    let mut sizes = ids.iter().map(|id| {
        let manifest = bench.store.manifest(*id).unwrap();
        manifest.weights_bytes(0..manifest.layers)
    });
    let sizes: [u64; 4] = std::array::from_fn(|_| sizes.next().unwrap());
    assert!(sizes.is_sorted());
    assert_eq!(bench.store.models().len(), 4);
}

#[test]
fn every_stage_has_exactly_its_inputs_and_only_constants_of_its_segments() {
    for arch in [TinyArch::Llama, TinyArch::Qwen2] {
        for mode in [WeightMode::Int4, WeightMode::F32] {
            let bench = Bench::new();
            let (config, file) = tiny(arch);
            let id = bench.import(&file, mode).unwrap();
            let manifest = bench.store.manifest(id).unwrap();
            let blob = bench.store.graph(id).unwrap();
            for first in 0..config.layers {
                for end in first + 1..=config.layers {
                    let xml = stage_xml(&manifest, &blob, first..end).unwrap();
                    let stage = Graph::from_xml(&xml).unwrap();
                    let entry = match first {
                        0 => "input_ids",
                        _ => "inputs_embeds",
                    };
                    let inputs = [entry, "attention_mask", "position_ids", "beam_idx"];
                    assert_eq!(stage.inputs(), inputs);
                    let exit = match end == config.layers {
                        true => "logits",
                        false => "hidden_states",
                    };
                    assert!(stage.tensor(exit).is_some());
                    let count = |kind: &str| {
                        let nodes = stage.nodes.iter();
                        nodes.filter(|node| node.kind == kind).count()
                    };
                    let layers = (end - first) as usize;
                    assert_eq!(count("ReadValue"), layers * 2);
                    assert_eq!(count("Assign"), layers * 2);
                    assert_eq!(count("ScaledDotProductAttention"), layers);
                    assert_eq!(count("Result"), 1);
                }
            }
        }
    }
}

#[test]
fn a_stage_that_would_need_another_stages_weights_is_refused() {
    let bench = Bench::new();
    let (_, file) = tiny(TinyArch::Llama);
    let id = bench.import(&file, WeightMode::F32).unwrap();
    let mut manifest = (*bench.store.manifest(id).unwrap()).clone();
    let blob = bench.store.graph(id).unwrap();
    let layer = manifest
        .segments
        .iter_mut()
        .find(|segment| segment.kind == SegmentKind::Layer(1))
        .unwrap();
    layer.size -= 64;
    assert!(stage_xml(&manifest, &blob, 0..1).is_ok());
    assert!(stage_xml(&manifest, &blob, 1..2).is_err());
}

#[test]
fn progress_reaches_its_total_and_can_stop_the_import() {
    let bench = Bench::new();
    let (_, file) = tiny(TinyArch::Llama);
    let path = bench.write(&file.to_bytes());
    let options = ImportOptions::default();
    let mut last = Progress { done: 0, total: 1 };
    import_gguf(&path, &options, &bench.store, &mut |progress| {
        assert!(progress.done >= last.done);
        last = progress;
        true
    })
    .unwrap();
    assert!(last.done <= last.total && last.done > last.total * 99 / 100);

    let bench = Bench::new();
    let path = bench.write(&file.to_bytes());
    let mut calls = 0;
    let result = import_gguf(&path, &options, &bench.store, &mut |_| {
        calls += 1;
        calls < 8
    });
    assert!(matches!(result, Err(ImportError::Cancelled)));
    assert!(bench.store.models().is_empty());
}

#[test]
fn other_architectures_are_refused_by_name() {
    let error = refusal(|file| file.set("general.architecture", Key::Text("mamba".into())));
    assert!(matches!(error, ImportError::Architecture(name) if name == "mamba"));
    let error = refusal(|file| file.remove("general.architecture"));
    assert!(matches!(error, ImportError::MissingKey(_)));
    let error = refusal(|file| file.set("llama.expert_count", Key::U32(8)));
    assert!(matches!(error, ImportError::MixtureOfExperts(8)));
    let error = refusal(|file| file.set("split.count", Key::U32(3)));
    assert!(matches!(error, ImportError::Split(3)));
}

#[test]
fn whatever_changes_the_result_is_honoured_or_refused() {
    let text = |text: &str| Key::Text(text.into());
    let error = refusal(|file| file.set("llama.rope.scaling.type", text("yarn")));
    assert!(matches!(error, ImportError::RopeScaling(kind) if kind == "yarn"));
    for (key, value) in [
        ("llama.rope.scaling.factor", Key::F32(4.0)),
        ("llama.rope.dimension_count", Key::U32(8)),
        ("llama.attention.sliding_window", Key::U32(64)),
        ("llama.attention.scale", Key::F32(0.5)),
        ("llama.logit_scale", Key::F32(2.0)),
        ("llama.attention.causal", Key::Bool(false)),
        ("llama.attention.key_length", Key::U32(8)),
        ("llama.attention.head_count_kv", Key::U32(3)),
        ("llama.attention.head_count", Key::U32(0)),
        ("llama.vocab_size", Key::U32(7)),
        ("general.type", text("adapter")),
    ] {
        let error = refusal(|file| file.set(key, value.clone()));
        let refused = matches!(
            error,
            ImportError::UnsupportedValue { .. } | ImportError::Shape { .. }
        );
        assert!(refused, "{key}: {error}");
    }
}

#[test]
fn linear_scaling_and_frequency_divisors_reach_the_graph() {
    let frequencies = |change: fn(&mut GgufFile)| {
        let (_, mut file) = tiny(TinyArch::Llama);
        change(&mut file);
        let mut gguf = Gguf::open(std::io::Cursor::new(file.to_bytes())).unwrap();
        let architecture = Architecture::read(&mut gguf).unwrap();
        architecture.decoder.inverse_frequencies
    };
    let plain = frequencies(|_| {});
    assert_eq!((plain.len(), plain[0]), (8, 1.0));
    let scaled = frequencies(|file| {
        file.set("llama.rope.scaling.type", Key::Text("linear".into()));
        file.set("llama.rope.scaling.factor", Key::F32(4.0));
    });
    assert!(plain.iter().zip(&scaled).all(|(a, b)| *a == *b * 4.0));
    let divided = frequencies(|file| file.add_f32("rope_freqs.weight", &[8], &[2.0; 8]));
    assert!(plain.iter().zip(&divided).all(|(a, b)| *a == *b * 2.0));
    let bench = Bench::new();
    let (_, mut file) = tiny(TinyArch::Llama);
    file.add_f32("rope_freqs.weight", &[8], &[2.0; 8]);
    assert!(bench.import(&file, WeightMode::Int8).is_ok());
}

#[test]
fn tensors_must_be_exactly_those_of_the_architecture() {
    let error = refusal(|file| file.add_f32("blk.1.attn_q_norm.weight", &[16], &[1.0; 16]));
    assert!(matches!(error, ImportError::UnusedTensor(name) if name == "blk.1.attn_q_norm.weight"));
    let error = refusal(|file| file.remove_tensor("blk.2.ffn_up.weight"));
    assert!(matches!(error, ImportError::MissingTensor(name) if name == "blk.2.ffn_up.weight"));
    let error = refusal(|file| file.add_f32("blk.0.attn_norm.weight", &[32], &[1.0; 32]));
    assert!(matches!(error, ImportError::Shape { .. }));
    let error = refusal(|file| file.add("blk.0.ffn_up.weight", &[64, 96], 20, vec![0; 3456]));
    assert!(matches!(error, ImportError::TensorType { kind, .. } if kind == "IQ4_NL"));
    let error = refusal(|file| file.set("llama.block_count", Key::U32(2)));
    assert!(matches!(error, ImportError::UnusedTensor(_)));
}

#[test]
fn values_that_are_no_numbers_are_refused() {
    let error = refusal(|file| {
        let mut values = [1.0; 64];
        values[3] = f32::NAN;
        file.add_f32("blk.0.attn_norm.weight", &[64], &values);
    });
    assert!(matches!(error, ImportError::NotFinite(name) if name == "blk.0.attn_norm.weight"));
    let error = refusal(|file| {
        file.add_f32("blk.0.ffn_up.weight", &[64, 96], &[1e9; 64 * 96]);
    });
    assert!(matches!(error, ImportError::OutOfRange(..)));
}

#[test]
fn unknown_tokenizers_are_refused() {
    let text = |text: &str| Key::Text(text.into());
    for (key, value) in [
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.pre", text("tekken")),
        ("tokenizer.chat_template", text("{% if %}")),
    ] {
        let error = refusal(|file| file.set(key, value.clone()));
        assert!(matches!(error, ImportError::Tokenizer(_)), "{key}: {error}");
    }
    let error = refusal(|file| file.remove("tokenizer.ggml.tokens"));
    assert!(matches!(error, ImportError::MissingKey(_)));
    let error = refusal(|file| {
        file.set("tokenizer.ggml.token_type", Key::I32s(vec![1; 256]));
        file.set("tokenizer.ggml.tokens", Key::Texts(vec!["a".into(); 256]));
    });
    assert!(matches!(
        error,
        ImportError::Tokenizer(_) | ImportError::Malformed(_)
    ));
}

#[test]
fn a_truncated_file_is_refused_before_anything_is_written() {
    let bench = Bench::new();
    let (_, file) = tiny(TinyArch::Llama);
    let bytes = file.to_bytes();
    for part in [1, 10, 50, 90, 99] {
        let cut = &bytes[..bytes.len() * part / 100];
        assert!(bench.import_bytes(cut, WeightMode::Int8).is_err());
    }
    let one_short = bench.import_bytes(&bytes[..bytes.len() - 1], WeightMode::Int8);
    assert!(matches!(one_short, Err(ImportError::Truncated(_))));
    assert!(matches!(
        bench.import_bytes(b"PK\x03\x04zip", WeightMode::Int8),
        Err(ImportError::NotGguf)
    ));
    assert!(bench.store.models().is_empty());
}

#[test]
fn an_edge_around_a_layer_makes_the_cut_impossible() {
    let bench = Bench::new();
    let (config, file) = tiny(TinyArch::Llama);
    let id = bench.import(&file, WeightMode::F32).unwrap();
    let mut graph = Graph::from_blob(&bench.store.graph(id).unwrap()).unwrap();
    assert!(cut(&graph, 2..3, config.layers).is_ok());
    let early = graph.tensor("hidden.1").unwrap();
    let late = graph.tensor("hidden.3").unwrap();
    graph.nodes[late.node].inputs[0] = early;
    assert!(cut(&graph, 0..3, config.layers).is_ok());
    let error = cut(&graph, 2..3, config.layers).unwrap_err();
    assert!(error.to_string().contains("2..3"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damage_anywhere_in_the_header_never_panics(
        changes in proptest::collection::vec((0usize..9000, any::<u8>()), 1..6)
    ) {
        let (_, file) = tiny(TinyArch::Qwen2);
        let mut bytes = file.to_bytes();
        for (position, value) in changes {
            bytes[position] = value;
        }
        if let Ok(mut gguf) = Gguf::open(std::io::Cursor::new(bytes))
            && let Ok(architecture) = Architecture::read(&mut gguf)
        {
            let mut layout = Layout::new(&gguf.tensors, &architecture, WeightMode::Int4);
            decoder::write(&architecture.decoder, &mut layout);
            let _ = layout.finish();
        }
    }
}
