//! A tiny random-weight decoder in real OpenVINO stages, and steps to drive them with.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;

use skein_engine::{KvType, Numerics, Runtime, Stage, StageSpec};
use skein_pipeline::engine::{Engine, SlotMove, StepInputs};
use skein_provide::{Env, find_openvino};
use skein_shards::graph::decoder::{Decoder, LayerWeight, StoredMatrix, Weight, Weights, write};
use skein_shards::graph::{Graph, Span, cut};
use skein_shards::manifest::SegmentKind;
use skein_shards::quant::{WeightMode, pack};
use tempfile::TempDir;

pub const LAYERS: u32 = 4;
pub const HIDDEN: usize = 128;
pub const VOCAB: usize = 300;
/// Blocks of every stage's pool.
pub const BLOCKS: usize = 12;

/// OpenVINO, opened once for all tests of a binary.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let env = Env::of_process();
        let openvino = find_openvino(&env, &mut |what| eprintln!("{what}")).unwrap();
        Runtime::open(&openvino.libs_dir, &env.cache_dir().unwrap()).unwrap()
    })
}

/// The same pseudo-random values for the same seed, in −1..1.
pub fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// A whole model on disk, from which stages are cut.
pub struct Tiny {
    folder: TempDir,
    graph: Graph,
}

impl Tiny {
    pub fn new(mode: WeightMode) -> Self {
        let decoder = Decoder {
            name: "tiny".into(),
            layers: LAYERS,
            hidden: HIDDEN as u32,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            feed_forward: 256,
            vocab: VOCAB as u32,
            rms_epsilon: 1e-5,
            inverse_frequencies: (0..16)
                .map(|i| 1e4f32.powf(-f32::from(i as u8) / 16.0))
                .collect(),
            tied_embedding: false,
        };
        let mut weights = RandomWeights {
            mode,
            file: Vec::new(),
            literals: BTreeMap::new(),
        };
        let graph = write(&decoder, &mut weights);
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("weights.bin"), &weights.file).unwrap();
        Self { folder, graph }
    }

    /// Writes the graph of `layers` and says where, with the weights' file.
    pub fn files(&self, layers: Range<u32>) -> (PathBuf, PathBuf) {
        let xml = self
            .folder
            .path()
            .join(format!("{}-{}.xml", layers.start, layers.end));
        fs::write(&xml, cut(&self.graph, layers, LAYERS).unwrap().to_xml()).unwrap();
        (xml, self.folder.path().join("weights.bin"))
    }

    pub fn stage(&self, layers: Range<u32>, numerics: Numerics) -> Stage {
        self.stage_with(layers, numerics, |_| {}).unwrap()
    }

    /// A stage whose spec is changed before it is loaded.
    pub fn stage_with(
        &self,
        layers: Range<u32>,
        numerics: Numerics,
        change: impl FnOnce(&mut StageSpec<'_>),
    ) -> Result<Stage, skein_engine::EngineError> {
        let (xml, weights) = self.files(layers.clone());
        let mut spec = StageSpec {
            xml: &xml,
            weights: &weights,
            device: "CPU",
            numerics,
            blocks: BLOCKS,
            first: layers.start == 0,
            last: layers.end == LAYERS,
            hidden: HIDDEN,
            vocab: VOCAB,
            layers,
            kv: KvType::F16,
            threads: Some(1),
            dynamic_quantization_group: None,
            inference_precision: Some("f32".into()),
            sliding_windows: Vec::new(),
        };
        change(&mut spec);
        runtime().load(&spec)
    }
}

/// Writes random weights one after the other into a file in memory.
struct RandomWeights {
    mode: WeightMode,
    file: Vec<u8>,
    literals: BTreeMap<Vec<u8>, Span>,
}

impl RandomWeights {
    fn put(&mut self, bytes: &[u8]) -> Span {
        self.file.resize(self.file.len().next_multiple_of(64), 0);
        let offset = self.file.len() as u64;
        self.file.extend_from_slice(bytes);
        Span {
            offset,
            size: bytes.len() as u64,
        }
    }

    /// Seeded by the weight's place, so that every mode stores the same values.
    fn values(weight: Weight, count: usize, middle: f32, spread: f32) -> Vec<f32> {
        let place = match weight {
            Weight::Embedding => 1,
            Weight::FinalNorm => 2,
            Weight::Head => 3,
            Weight::Layer(layer, weight) => 10 + u64::from(layer) * 16 + weight as u64,
        };
        let mut noise = noise(place);
        (0..count).map(|_| middle + spread * noise()).collect()
    }
}

impl Weights for RandomWeights {
    fn enter(&mut self, _: SegmentKind) {}

    fn matrix(&mut self, weight: Weight, rows: u32, width: u32) -> StoredMatrix {
        let ends = matches!(weight, Weight::Embedding | Weight::Head);
        let storage = self.mode.storage(width, ends);
        // Large enough queries and keys that attention looks at single tokens.
        let spread = match weight {
            Weight::Embedding => 1.0,
            Weight::Layer(_, LayerWeight::Query | LayerWeight::Key) => 4.0 / (width as f32).sqrt(),
            _ => 2.0 / (width as f32).sqrt(),
        };
        let values = Self::values(weight, (rows * width) as usize, 0.0, spread);
        let packed = pack(storage, width as usize, &values).unwrap();
        StoredMatrix {
            storage,
            data: self.put(&packed.data),
            scales: self.put(&packed.scales),
            zero_points: self.put(&packed.zero_points),
        }
    }

    fn norm(&mut self, weight: Weight, width: u32) -> Span {
        let values = Self::values(weight, width as usize, 1.0, 0.2);
        self.put(
            &values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect::<Vec<u8>>(),
        )
    }

    fn bias(&mut self, _: Weight, _: u32) -> Option<Span> {
        None
    }

    fn literal(&mut self, bytes: &[u8]) -> Span {
        if let Some(&span) = self.literals.get(bytes) {
            return span;
        }
        let span = self.put(bytes);
        self.literals.insert(bytes.to_vec(), span);
        span
    }
}

/// One sequence's part of a step.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    pub past: usize,
    pub tokens: Vec<i64>,
    pub blocks: Vec<i32>,
    /// Parent of each row within these rows; `None` is the committed prefix. Empty for a chain.
    pub parents: Vec<Option<usize>>,
    /// Rows to sample, among these.
    pub sample: Vec<usize>,
}

/// A sequence's rows in the blocks it owns, sampling every one.
pub fn rows(blocks: &[i32], past: usize, tokens: &[i64]) -> Rows {
    Rows {
        past,
        tokens: tokens.to_vec(),
        blocks: blocks.to_vec(),
        parents: Vec::new(),
        sample: (0..tokens.len()).collect(),
    }
}

impl Rows {
    pub fn tree(mut self, parents: &[Option<usize>]) -> Self {
        self.parents = parents.to_vec();
        self
    }

    fn parent(&self, row: usize) -> Option<usize> {
        if self.parents.is_empty() {
            row.checked_sub(1)
        } else {
            self.parents[row]
        }
    }

    fn ancestors(&self, row: usize) -> Vec<usize> {
        std::iter::successors(Some(row), |&row| self.parent(row)).collect()
    }
}

/// The step of these sequences.
pub fn step(sequences: &[Rows]) -> StepInputs {
    let mut inputs = StepInputs {
        subsequence_begins: vec![0],
        block_indices_begins: vec![0],
        ..StepInputs::default()
    };
    let tree = sequences
        .iter()
        .any(|sequence| !sequence.parents.is_empty());
    if tree {
        inputs.qq_bias_begins.push(0);
    }
    for sequence in sequences {
        let begin = inputs.token_ids.len();
        let count = sequence.tokens.len();
        for (row, &token) in sequence.tokens.iter().enumerate() {
            let ancestors = sequence.ancestors(row);
            inputs.token_ids.push(token);
            inputs
                .position_ids
                .push((sequence.past + ancestors.len() - 1) as i64);
            if tree {
                inputs
                    .qq_bias
                    .extend((0..count).map(|other| u8::from(ancestors.contains(&other))));
            }
        }
        if tree {
            inputs.qq_bias_begins.push(inputs.qq_bias.len() as i32);
        }
        inputs.past_lens.push(sequence.past as i32);
        inputs.subsequence_begins.push((begin + count) as i32);
        inputs.block_indices.extend(&sequence.blocks);
        inputs
            .block_indices_begins
            .push(inputs.block_indices.len() as i32);
        inputs.max_context_len = inputs.max_context_len.max((sequence.past + count) as i32);
        inputs
            .sampled_rows
            .extend(sequence.sample.iter().map(|row| (begin + row) as i64));
    }
    inputs.rows = inputs.token_ids.len();
    inputs.real_rows = inputs.rows;
    inputs.real_sampled = inputs.sampled_rows.len();
    inputs
}

/// Pads a step to `fixed` rows with a scratch sequence, and its sampled rows to `sampled`.
pub fn pad(mut inputs: StepInputs, fixed: usize, sampled: usize) -> StepInputs {
    let missing = fixed - inputs.rows;
    if missing > 0 {
        inputs.token_ids.extend(vec![0; missing]);
        inputs.position_ids.extend(0..missing as i64);
        inputs.past_lens.push(0);
        inputs.subsequence_begins.push(fixed as i32);
        inputs.block_indices.push(BLOCKS as i32);
        inputs
            .block_indices_begins
            .push(inputs.block_indices.len() as i32);
        inputs.max_context_len = inputs.max_context_len.max(missing as i32);
        if !inputs.qq_bias_begins.is_empty() {
            let chain = (0..missing * missing).map(|i| u8::from(i % missing <= i / missing));
            inputs.qq_bias.extend(chain);
            inputs.qq_bias_begins.push(inputs.qq_bias.len() as i32);
        }
    }
    inputs.rows = fixed;
    if inputs.sampled_rows.len() < sampled {
        inputs.sampled_rows.resize(sampled, 0);
    }
    inputs
}

pub fn moves(pairs: &[(u32, u32)]) -> Vec<SlotMove> {
    pairs
        .iter()
        .map(|&(from, to)| SlotMove { from, to })
        .collect()
}

/// A line of stages in one process.
pub struct Line(pub Vec<Stage>);

impl Line {
    /// One stage after the other; the logits of the sampled rows, row by row.
    pub fn run(&mut self, inputs: &StepInputs) -> Vec<Vec<f32>> {
        let mut hidden: Vec<f32> = Vec::new();
        for (index, stage) in self.0.iter_mut().enumerate() {
            if index > 0 {
                stage
                    .hidden_input(inputs.rows)
                    .unwrap()
                    .copy_from_slice(&hidden);
            }
            hidden = stage.step(inputs).unwrap().to_vec();
        }
        let real = inputs.real_sampled;
        hidden
            .chunks(VOCAB)
            .take(real)
            .map(<[f32]>::to_vec)
            .collect()
    }
}

/// The largest difference of two rows of logits.
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

/// `count` token ids.
pub fn tokens(seed: u64, count: usize) -> Vec<i64> {
    let mut noise = noise(seed);
    (0..count)
        .map(|_| ((noise() + 1.0) * 0.5 * (VOCAB as f32 - 1.0)) as i64)
        .collect()
}
