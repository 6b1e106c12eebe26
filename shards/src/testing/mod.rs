//! Small random-weight models for tests, as GGUF files.
//!
//! They go through the same import as real models, so whatever runs them runs everything but the
//! size. Their answers mean nothing, but depend on every token, position and weight.

mod gguf;

use std::io;
use std::path::Path;

pub use gguf::{GgufFile, Key};

/// The architecture of a tiny model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TinyArch {
    /// lm_head is tied to the embedding.
    Llama,
    /// With biases and a matrix for lm_head.
    Qwen2,
}

/// The sizes of a tiny model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TinyConfig {
    pub layers: u32,
    pub hidden: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub ffn: u32,
    /// At least [`TinyConfig::MIN_VOCAB`]; what is above is filled up with unused tokens.
    pub vocab: u32,
    pub context: u32,
    /// Equal seeds give equal files.
    pub seed: u64,
    pub arch: TinyArch,
}

impl TinyConfig {
    /// Bytes, a few merged tokens and three control tokens.
    pub const MIN_VOCAB: u32 = 256 + MERGES.len() as u32 + CONTROL.len() as u32;
}

impl Default for TinyConfig {
    fn default() -> Self {
        Self {
            layers: 4,
            hidden: 128,
            heads: 4,
            kv_heads: 2,
            ffn: 256,
            vocab: 288,
            context: 512,
            seed: 1,
            arch: TinyArch::Llama,
        }
    }
}

const MERGES: [(&str, &str); 16] = [
    ("Ġ", "t"),
    ("h", "e"),
    ("Ġ", "a"),
    ("i", "n"),
    ("Ġt", "he"),
    ("e", "r"),
    ("o", "n"),
    ("r", "e"),
    ("Ġ", "s"),
    ("a", "t"),
    ("o", "u"),
    ("Ġ", "w"),
    ("e", "n"),
    ("n", "d"),
    ("in", "g"),
    ("Ġa", "nd"),
];
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' \
    + message['content'] + '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Writes a random model to `path`.
pub fn write_tiny_gguf(path: &Path, config: &TinyConfig) -> io::Result<()> {
    std::fs::write(path, tiny_gguf(config).to_bytes())
}

/// A random model whose keys and tensors can still be changed.
pub fn tiny_gguf(config: &TinyConfig) -> GgufFile {
    assert!(
        config.vocab >= TinyConfig::MIN_VOCAB,
        "the vocabulary needs {} tokens",
        TinyConfig::MIN_VOCAB
    );
    let mut file = GgufFile::default();
    describe(&mut file, config);
    vocabulary(&mut file, config);
    weights(&mut file, config);
    file
}

fn describe(file: &mut GgufFile, config: &TinyConfig) {
    let (arch, pre) = match config.arch {
        TinyArch::Llama => ("llama", "smollm"),
        TinyArch::Qwen2 => ("qwen2", "qwen2"),
    };
    file.set("general.architecture", Key::Text(arch.into()));
    file.set("general.name", Key::Text(format!("tiny {arch}")));
    file.set("general.license", Key::Text("apache-2.0".into()));
    let sizes = [
        ("block_count", config.layers),
        ("context_length", config.context),
        ("embedding_length", config.hidden),
        ("feed_forward_length", config.ffn),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
    ];
    for (key, size) in sizes {
        file.set(&format!("{arch}.{key}"), Key::U32(size));
    }
    let floats = [
        ("rope.freq_base", 10_000.0),
        ("attention.layer_norm_rms_epsilon", 1e-5),
    ];
    for (key, value) in floats {
        file.set(&format!("{arch}.{key}"), Key::F32(value));
    }
    file.set("tokenizer.ggml.model", Key::Text("gpt2".into()));
    file.set("tokenizer.ggml.pre", Key::Text(pre.into()));
    file.set("tokenizer.ggml.add_bos_token", Key::Bool(false));
    file.set("tokenizer.chat_template", Key::Text(TEMPLATE.into()));
}

fn vocabulary(file: &mut GgufFile, config: &TinyConfig) {
    const NORMAL: i32 = 1;
    const CONTROL_TYPE: i32 = 3;
    const UNUSED: i32 = 5;
    let mut tokens: Vec<String> = byte_characters().map(String::from).collect();
    tokens.extend(MERGES.iter().map(|(a, b)| format!("{a}{b}")));
    let mut types = vec![NORMAL; tokens.len()];
    let first_control = tokens.len() as u32;
    tokens.extend(CONTROL.map(str::to_owned));
    types.resize(tokens.len(), CONTROL_TYPE);
    while tokens.len() < config.vocab as usize {
        tokens.push(format!("[UNUSED{}]", tokens.len()));
        types.push(UNUSED);
    }
    let merges = MERGES.iter().map(|(a, b)| format!("{a} {b}"));
    file.set("tokenizer.ggml.tokens", Key::Texts(tokens));
    file.set("tokenizer.ggml.token_type", Key::I32s(types));
    file.set("tokenizer.ggml.merges", Key::Texts(merges.collect()));
    file.set("tokenizer.ggml.bos_token_id", Key::U32(first_control));
    file.set("tokenizer.ggml.eos_token_id", Key::U32(first_control + 2));
}

/// The printable character that stands for each byte in byte-level BPE (GPT-2's table).
fn byte_characters() -> impl Iterator<Item = char> {
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    (0..256).filter_map(move |byte| {
        if printable(byte) {
            return char::from_u32(byte);
        }
        next += 1;
        char::from_u32(next - 1)
    })
}

fn weights(file: &mut GgufFile, config: &TinyConfig) {
    let mut noise = Noise(config.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let hidden = config.hidden as usize;
    let head_dim = hidden / config.heads as usize;
    let (q, kv) = (
        config.heads as usize * head_dim,
        config.kv_heads as usize * head_dim,
    );
    let (ffn, vocab) = (config.ffn as usize, config.vocab as usize);
    let qwen2 = config.arch == TinyArch::Qwen2;
    let mut matrix = |file: &mut GgufFile, name: &str, width: usize, rows: usize, gain: f32| {
        let scale = gain / (width as f32).sqrt();
        file.add_f16(name, width, &noise.values(width * rows, scale));
    };
    matrix(file, "token_embd.weight", hidden, vocab, 8.0);
    for layer in 0..config.layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        matrix(file, &name("attn_q"), hidden, q, 2.0);
        matrix(file, &name("attn_k"), hidden, kv, 2.0);
        matrix(file, &name("attn_v"), hidden, kv, 2.0);
        matrix(file, &name("attn_output"), q, hidden, 2.0);
        matrix(file, &name("ffn_gate"), hidden, ffn, 2.0);
        matrix(file, &name("ffn_up"), hidden, ffn, 2.0);
        matrix(file, &name("ffn_down"), ffn, hidden, 1.0);
    }
    if qwen2 {
        matrix(file, "output.weight", hidden, vocab, 2.0);
    }
    let mut vector = |file: &mut GgufFile, name: &str, width: usize, middle: f32| {
        let values = noise.values(width, 0.1);
        let values: Vec<f32> = values.into_iter().map(|value| middle + value).collect();
        file.add_f32(name, &[width as u64], &values);
    };
    for layer in 0..config.layers {
        vector(file, &format!("blk.{layer}.attn_norm.weight"), hidden, 1.0);
        vector(file, &format!("blk.{layer}.ffn_norm.weight"), hidden, 1.0);
        if qwen2 {
            vector(file, &format!("blk.{layer}.attn_q.bias"), q, 0.0);
            vector(file, &format!("blk.{layer}.attn_k.bias"), kv, 0.0);
            vector(file, &format!("blk.{layer}.attn_v.bias"), kv, 0.0);
        }
    }
    vector(file, "output_norm.weight", hidden, 1.0);
}

/// A xorshift generator; the values have about the spread of a normal distribution.
struct Noise(u64);

impl Noise {
    fn values(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count)
            .map(|_| {
                let sum: f32 = (0..3).map(|_| self.uniform()).sum();
                sum * 2.0 * scale
            })
            .collect()
    }

    /// Between −0.5 and 0.5.
    fn uniform(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 24) as f32 - 0.5
    }
}
