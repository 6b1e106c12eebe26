//! What a GGUF file says it is, checked against what can be run.
//!
//! The list of keys here is a list of refusals as much as of uses: a key that changes what the model
//! computes, and that we do not honour, must stop the import.

use std::io::{Read, Seek};

use super::ImportError;
use super::gguf::{Gguf, Metadata, Tensor, TensorType, Value};
use crate::graph::decoder::Decoder;
use crate::manifest::{MAX_LAYERS, Rope};
use crate::tokenizer::{GgufVocabulary, Tokenizer, TokenizerError};

/// The tensor with divisors of the rotary frequencies, where a model has one.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Llama,
    Qwen2,
}

impl Family {
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
        }
    }
}

/// A model that can be run, as far as its header tells.
#[derive(Clone, Debug)]
pub struct Architecture {
    pub family: Family,
    pub decoder: Decoder,
    pub parameters: u64,
    pub context: u32,
    pub rope: Rope,
    pub tokenizer: Vec<u8>,
    pub chat_template: Option<String>,
    pub bos_id: Option<u32>,
    pub eos_id: Option<u32>,
    pub add_bos: bool,
    pub stop_ids: Vec<u32>,
    pub license: Option<String>,
}

/// Keys under the architecture's name that scale or change something when they are not neutral.
const NEUTRAL: [(&str, f64); 8] = [
    ("attention.scale", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
];

impl Architecture {
    pub fn read<R: Read + Seek>(gguf: &mut Gguf<R>) -> Result<Self, ImportError> {
        let metadata = &gguf.metadata;
        let family = family(metadata)?;
        let keys = Keys {
            metadata,
            family: family.name(),
        };
        refuse_what_changes_the_result(&keys)?;

        let layers = keys.size("block_count", MAX_LAYERS)?;
        let hidden = keys.size("embedding_length", MAX_WIDTH)?;
        let feed_forward = keys.size("feed_forward_length", MAX_WIDTH)?;
        let heads = keys.size("attention.head_count", MAX_HEADS)?;
        let kv_heads = match keys.contains("attention.head_count_kv") {
            true => keys.size("attention.head_count_kv", MAX_HEADS)?,
            false => heads,
        };
        let head_dim = keys.or("attention.key_length", hidden / heads)?;
        for (key, must_be) in [
            ("attention.value_length", head_dim),
            ("rope.dimension_count", head_dim),
        ] {
            if keys.or(key, must_be)? != must_be {
                return Err(keys.unsupported(key));
            }
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.unsupported("attention.head_count_kv"));
        }
        if head_dim == 0 || head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(2) {
            return Err(keys.unsupported("attention.head_count"));
        }
        let epsilon = keys
            .float("attention.layer_norm_rms_epsilon")
            .ok_or_else(|| {
                ImportError::MissingKey(keys.full("attention.layer_norm_rms_epsilon"))
            })?;
        if !(epsilon > 0.0 && epsilon < 1.0) {
            return Err(keys.unsupported("attention.layer_norm_rms_epsilon"));
        }
        let rope = rope(&keys)?;
        let context = keys.size("context_length", u32::MAX)?;
        refuse_windows(&keys, context)?;

        let words = Words::read(metadata)?;
        let vocab = vocab(&keys, gguf.tensors.get("token_embd.weight"), words.vocab)?;
        let decoder = Decoder {
            name: metadata
                .string("general.name")
                .unwrap_or(family.name())
                .chars()
                .filter(|c| !c.is_control())
                .take(64)
                .collect(),
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            feed_forward,
            vocab,
            rms_epsilon: epsilon as f32,
            inverse_frequencies: inverse_frequencies(&rope, head_dim),
            tied_embedding: !gguf.tensors.contains_key("output.weight"),
        };
        let license = metadata.string("general.license").map(|text| {
            let kept: String = text.chars().take(MAX_LICENSE_CHARS).collect();
            kept
        });
        let mut architecture = Self {
            family,
            decoder,
            parameters: gguf.tensors.values().map(Tensor::values).sum(),
            context,
            rope,
            tokenizer: words.tokenizer,
            chat_template: words.chat_template,
            bos_id: words.bos_id,
            eos_id: words.eos_id,
            add_bos: words.add_bos,
            stop_ids: words.stop_ids,
            license,
        };
        architecture.divide_frequencies(gguf)?;
        Ok(architecture)
    }

    /// Applies the divisors that long-context models carry as a tensor.
    fn divide_frequencies<R: Read + Seek>(
        &mut self,
        gguf: &mut Gguf<R>,
    ) -> Result<(), ImportError> {
        let Some(tensor) = gguf.tensors.get(ROPE_FACTORS).cloned() else {
            return Ok(());
        };
        let frequencies = &mut self.decoder.inverse_frequencies;
        let expected = vec![frequencies.len() as u64];
        if tensor.shape != expected || tensor.kind != TensorType::F32 {
            return Err(ImportError::Shape {
                tensor: tensor.name,
                found: tensor.shape,
                expected,
            });
        }
        let mut factors = Vec::new();
        gguf.read_rows(&tensor, 0..1, &mut factors)?;
        for (frequency, factor) in frequencies.iter_mut().zip(factors) {
            if factor <= 0.0 {
                return Err(ImportError::OutOfRange(tensor.name, "a divisor"));
            }
            *frequency /= factor;
        }
        Ok(())
    }
}

const MAX_WIDTH: u32 = 1 << 20;
const MAX_HEADS: u32 = 1 << 12;
const MAX_HEAD_DIM: u32 = 1 << 10;
const MAX_LICENSE_CHARS: usize = 256;

/// The keys under an architecture's name.
struct Keys<'a> {
    metadata: &'a Metadata,
    family: &'static str,
}

impl Keys<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.family)
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.0.get(&self.full(key))
    }

    fn contains(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    fn float(&self, key: &str) -> Option<f64> {
        match self.value(key)? {
            Value::Float(value) => Some(*value),
            Value::Unsigned(value) => Some(*value as f64),
            Value::Signed(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// A size of at least one.
    fn size(&self, key: &str, limit: u32) -> Result<u32, ImportError> {
        let size = self.metadata.demand_u32(&self.full(key))?;
        match (1..=limit).contains(&size) {
            true => Ok(size),
            false => Err(self.unsupported(key)),
        }
    }

    fn or(&self, key: &str, default: u32) -> Result<u32, ImportError> {
        match self.contains(key) {
            true => self.metadata.demand_u32(&self.full(key)),
            false => Ok(default),
        }
    }

    fn unsupported(&self, key: &str) -> ImportError {
        ImportError::UnsupportedValue {
            key: self.full(key),
            value: self
                .value(key)
                .map_or_else(|| "missing".to_owned(), Value::describe),
        }
    }
}

fn family(metadata: &Metadata) -> Result<Family, ImportError> {
    let key = "general.architecture";
    let name = metadata
        .string(key)
        .ok_or_else(|| ImportError::MissingKey(key.to_owned()))?;
    if let Some(parts) = metadata.unsigned("split.count")
        && parts > 1
    {
        return Err(ImportError::Split(parts));
    }
    let experts = metadata.unsigned(&format!("{name}.expert_count"));
    if let Some(experts) = experts.filter(|experts| *experts > 0) {
        return Err(ImportError::MixtureOfExperts(experts));
    }
    [Family::Llama, Family::Qwen2]
        .into_iter()
        .find(|family| family.name() == name)
        .ok_or_else(|| ImportError::Architecture(name.chars().take(64).collect()))
}

fn refuse_what_changes_the_result(keys: &Keys<'_>) -> Result<(), ImportError> {
    for (key, neutral) in NEUTRAL {
        let harmless = match keys.value(key) {
            None => true,
            Some(_) => keys.float(key) == Some(neutral),
        };
        if !harmless {
            return Err(keys.unsupported(key));
        }
    }
    for (key, neutral) in [
        ("attention.causal", true),
        ("use_parallel_residual", false),
        ("swin_norm", false),
    ] {
        if let Some(value) = keys.value(key)
            && *value != Value::Bool(neutral)
        {
            return Err(keys.unsupported(key));
        }
    }
    let adapter = keys.metadata.string("general.type");
    if let Some(kind) = adapter.filter(|kind| *kind != "model") {
        return Err(ImportError::UnsupportedValue {
            key: "general.type".to_owned(),
            value: format!("'{}'", kind.chars().take(64).collect::<String>()),
        });
    }
    Ok(())
}

/// A window at least as long as the context never shortens anything.
fn refuse_windows(keys: &Keys<'_>, context: u32) -> Result<(), ImportError> {
    let key = "attention.sliding_window";
    match keys.contains(key) {
        true => {
            let window = keys.or(key, 0)?;
            match window == 0 || window >= context {
                true => Ok(()),
                false => Err(keys.unsupported(key)),
            }
        }
        false => Ok(()),
    }
}

fn rope(keys: &Keys<'_>) -> Result<Rope, ImportError> {
    let positive = |key: &str, default: f64| match keys.value(key) {
        None => Ok(default),
        Some(_) => keys
            .float(key)
            .filter(|value| value.is_finite() && *value > 0.0)
            .ok_or_else(|| keys.unsupported(key)),
    };
    let theta = positive("rope.freq_base", 10_000.0)?;
    let kind = match keys.value("rope.scaling.type") {
        None => None,
        Some(Value::String(kind)) => Some(kind.as_str()),
        Some(_) => return Err(keys.unsupported("rope.scaling.type")),
    };
    if positive("rope.scaling.attn_factor", 1.0)? != 1.0 {
        return Err(keys.unsupported("rope.scaling.attn_factor"));
    }
    // The older key means the linear kind by itself.
    let old = keys.contains("rope.scale_linear");
    let factor = match keys.value("rope.scaling.factor") {
        Some(Value::Float(0.0)) => 1.0,
        Some(_) => positive("rope.scaling.factor", 1.0)?,
        None => positive("rope.scale_linear", 1.0)?,
    };
    match kind {
        Some("linear") => Ok(Rope {
            theta,
            scale: factor,
        }),
        None if old => Ok(Rope {
            theta,
            scale: factor,
        }),
        None if factor == 1.0 => Ok(Rope { theta, scale: 1.0 }),
        None => Err(keys.unsupported("rope.scaling.factor")),
        Some("none") => Ok(Rope { theta, scale: 1.0 }),
        Some(other) => Err(ImportError::RopeScaling(other.chars().take(64).collect())),
    }
}

/// θ^(−2i/d) / scale, in f64 until the end.
fn inverse_frequencies(rope: &Rope, head_dim: u32) -> Vec<f32> {
    (0..head_dim / 2)
        .map(|pair| {
            let exponent = -2.0 * f64::from(pair) / f64::from(head_dim);
            (rope.theta.powf(exponent) / rope.scale) as f32
        })
        .collect()
}

fn vocab(keys: &Keys<'_>, embedding: Option<&Tensor>, tokens: usize) -> Result<u32, ImportError> {
    let name = "token_embd.weight";
    let embedding = embedding.ok_or_else(|| ImportError::MissingTensor(name.to_owned()))?;
    let rows = embedding.shape.get(1).copied().unwrap_or(1);
    let vocab = u32::try_from(rows).ok().filter(|rows| *rows <= MAX_VOCAB);
    match vocab {
        Some(vocab) if vocab as usize == tokens => {
            if keys.or("vocab_size", vocab)? != vocab {
                return Err(keys.unsupported("vocab_size"));
            }
            Ok(vocab)
        }
        _ => Err(ImportError::Malformed(format!(
            "there are {tokens} tokens and {rows} rows in '{name}'"
        ))),
    }
}

const MAX_VOCAB: u32 = 1 << 24;

/// The tokenizer and what goes with it.
struct Words {
    vocab: usize,
    tokenizer: Vec<u8>,
    chat_template: Option<String>,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
    add_bos: bool,
    stop_ids: Vec<u32>,
}

impl Words {
    fn read(metadata: &Metadata) -> Result<Self, ImportError> {
        let refused = |error: TokenizerError| ImportError::Tokenizer(error.to_string());
        let key = |key: &str| format!("tokenizer.ggml.{key}");
        let missing = |name: &str| ImportError::MissingKey(key(name));
        let vocabulary = GgufVocabulary {
            model: metadata
                .string(&key("model"))
                .ok_or_else(|| missing("model"))?,
            pre: metadata.string(&key("pre")),
            tokens: metadata
                .strings(&key("tokens"))
                .ok_or_else(|| missing("tokens"))?,
            merges: metadata.strings(&key("merges")).unwrap_or_default(),
            token_types: metadata.integers(&key("token_type")).unwrap_or_default(),
            bos_id: metadata.u32(&key("bos_token_id")),
            eos_id: metadata.u32(&key("eos_token_id")),
            eot_id: metadata.u32(&key("eot_token_id")),
            add_bos: metadata.bool(&key("add_bos_token")),
        };
        let tokenizer = vocabulary.to_json().map_err(refused)?;
        let chat_template = metadata.string("tokenizer.chat_template");
        Tokenizer::from_json(&tokenizer)
            .and_then(|read| {
                read.with_template(chat_template, vocabulary.bos_id, vocabulary.eos_id)
            })
            .map_err(refused)?;
        Ok(Self {
            vocab: vocabulary.tokens.len(),
            chat_template: chat_template.map(str::to_owned),
            bos_id: vocabulary.bos_id,
            eos_id: vocabulary.eos_id,
            add_bos: vocabulary.adds_bos().map_err(refused)?,
            stop_ids: vocabulary.stop_ids().map_err(refused)?,
            tokenizer,
        })
    }
}
