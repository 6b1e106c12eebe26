//! What a model is: its sizes, its segments and the hashes of everything that belongs to it.
//!
//! A manifest is canonical CBOR (RFC 8949, section 4.2.1: shortest forms, sorted keys); the BLAKE3
//! hash of those bytes is the model's id, so one model has one encoding. A manifest that comes from
//! a peer is checked as a whole by [`Manifest::decode`]: whoever holds a `Manifest` may index by it.
//!
//! Not here: where the bytes are kept (`store`), or what the graph computes (`graph`).

use std::ops::Range;

use ciborium::Value;
use serde::{Deserialize, Serialize};

use crate::hash::{Hash, ModelId};

/// The layout that this program writes and reads.
pub const FORMAT: u32 = 1;
/// A segment starts at a multiple of this in the weights file, so that it can be mapped alone.
pub const SEGMENT_ALIGNMENT: u64 = 4096;
/// Room for a long chat template and a thousand segments.
pub const MAX_MANIFEST_BYTES: usize = 1 << 20;
/// Several times the deepest published model.
pub const MAX_LAYERS: u32 = 1024;
const MAX_TEMPLATE_BYTES: usize = 512 << 10;
const MAX_TEXT_BYTES: usize = 1024;
const MAX_WIDTH: u32 = 1 << 20;
const MAX_VOCAB: u32 = 1 << 24;
const MAX_STOP_IDS: usize = 64;
/// Beyond any disk; keeps sums of sizes far from overflow.
const MAX_WEIGHTS_BYTES: u64 = 1 << 50;
/// The graph and the tokenizer are held in memory as a whole.
const MAX_BLOB_BYTES: u64 = 256 << 20;

/// Everything that is to be known about a model before its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// What people call it; not unique.
    pub name: String,
    /// The architecture: `llama` or `qwen2`.
    pub family: String,
    pub layers: u32,
    /// Width of a hidden state, in values.
    pub hidden: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub feed_forward: u32,
    pub vocab: u32,
    /// Longest sequence, in tokens.
    pub context: u32,
    /// Number of weights in the source file.
    pub parameters: u64,
    /// How weights are stored: `int4`, `int8`, `f16` or `f32`.
    pub weights: String,
    pub rope: Rope,
    /// Per layer, the number of positions attended to; 0 means all.
    pub sliding_windows: Vec<u32>,
    /// lm_head uses the embedding's matrix.
    pub tied_embedding: bool,
    /// Common, embedding, layers in order, head; ascending in the weights file.
    pub segments: Vec<Segment>,
    /// The whole-model graph, compressed.
    pub graph: Blob,
    /// The tokenizer as JSON.
    pub tokenizer: Blob,
    pub chat_template: Option<String>,
    pub bos_id: Option<u32>,
    pub eos_id: Option<u32>,
    /// Plain text is encoded with the bos token in front.
    pub add_bos: bool,
    /// Tokens that end an answer, ascending.
    pub stop_ids: Vec<u32>,
    pub license: Option<String>,
    pub source: Source,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    pub theta: f64,
    /// Positions are divided by this (linear scaling); 1 where there is none.
    pub scale: f64,
}

/// A run of the weights file that is moved and verified as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    pub name: String,
    pub kind: SegmentKind,
    /// Where it starts in the weights file; a multiple of [`SEGMENT_ALIGNMENT`].
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    pub hash: Hash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SegmentKind {
    /// Constants that every stage uses.
    Common,
    Embedding,
    Layer(u32),
    /// The final norm and, unless tied, lm_head.
    Head,
}

/// Bytes that are fetched as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    pub hash: Hash,
    /// Bytes.
    pub size: u64,
}

impl Blob {
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            hash: Hash::of(bytes),
            size: bytes.len() as u64,
        }
    }
}

/// The file that a model was imported from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// File name without its folder.
    pub file: String,
    pub hash: Hash,
}

/// Bytes that are not a manifest we can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("the manifest has {0} bytes, more than {MAX_MANIFEST_BYTES}")]
    TooLong(usize),
    #[error("the manifest is not readable: {0}")]
    Malformed(String),
    #[error("the manifest is not in canonical form")]
    NotCanonical,
    #[error("the manifest has format {0}, and this program reads format {FORMAT}")]
    Format(u32),
    #[error("the manifest contradicts itself: {0}")]
    Invalid(String),
}

impl Manifest {
    /// Canonical CBOR.
    pub fn encode(&self) -> Vec<u8> {
        let value = Value::serialized(self).expect("a manifest has only plain fields");
        canonical_bytes(value)
    }

    /// Reads and checks a manifest; what is returned is safe to index by.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLong(bytes.len()));
        }
        let malformed = |error: String| ManifestError::Malformed(error);
        let value: Value =
            ciborium::from_reader(bytes).map_err(|error| malformed(error.to_string()))?;
        if let Some(format) = value.as_map().and_then(|map| format_of(map))
            && format != FORMAT
        {
            return Err(ManifestError::Format(format));
        }
        if canonical_bytes(value.clone()) != bytes {
            return Err(ManifestError::NotCanonical);
        }
        let manifest: Self = value
            .deserialized()
            .map_err(|error| malformed(error.to_string()))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// The hash of [`Manifest::encode`].
    pub fn id(&self) -> ModelId {
        ModelId(Hash::of(&self.encode()))
    }

    /// Length of the weights file with every segment in place, in bytes.
    pub fn weights_file_bytes(&self) -> u64 {
        self.segments
            .last()
            .map_or(0, |last| last.offset + last.size)
    }

    /// Indices of the segments that a stage with these layers needs, ascending. An empty range
    /// needs none.
    pub fn segments_for(&self, layers: Range<u32>) -> Vec<usize> {
        if layers.is_empty() {
            return Vec::new();
        }
        let first = layers.start == 0;
        let last = layers.end >= self.layers;
        let needed = |segment: &&(usize, &Segment)| match segment.1.kind {
            SegmentKind::Common => true,
            SegmentKind::Embedding => first || (last && self.tied_embedding),
            SegmentKind::Layer(layer) => layers.contains(&layer),
            SegmentKind::Head => last,
        };
        let segments: Vec<_> = self.segments.iter().enumerate().collect();
        segments
            .iter()
            .filter(needed)
            .map(|(index, _)| *index)
            .collect()
    }

    /// Bytes of weights that a stage with these layers needs.
    pub fn weights_bytes(&self, layers: Range<u32>) -> u64 {
        self.segments_for(layers)
            .into_iter()
            .map(|index| self.segments[index].size)
            .sum()
    }

    /// Bytes of keys and values that a stage with these layers keeps for one token.
    pub fn kv_bytes_per_token(&self, layers: Range<u32>, bytes_per_value: u64) -> u64 {
        let layers = layers.end.min(self.layers).saturating_sub(layers.start);
        u64::from(layers)
            * 2
            * u64::from(self.kv_heads)
            * u64::from(self.head_dim)
            * bytes_per_value
    }

    /// Checks every promise that the fields make to each other.
    pub fn check(&self) -> Result<(), ManifestError> {
        if self.format != FORMAT {
            return Err(ManifestError::Format(self.format));
        }
        let demand = |holds: bool, what: &str| {
            holds
                .then_some(())
                .ok_or_else(|| ManifestError::Invalid(what.to_owned()))
        };
        let texts = [
            Some(&self.name),
            Some(&self.family),
            Some(&self.weights),
            Some(&self.source.file),
            self.license.as_ref(),
        ];
        demand(
            texts
                .into_iter()
                .flatten()
                .all(|text| text.len() <= MAX_TEXT_BYTES),
            "a text is too long",
        )?;
        demand(!self.name.is_empty(), "the name is empty")?;
        demand(
            self.chat_template
                .as_ref()
                .is_none_or(|template| template.len() <= MAX_TEMPLATE_BYTES),
            "the chat template is too long",
        )?;
        demand(
            (1..=MAX_LAYERS).contains(&self.layers),
            "the number of layers is out of range",
        )?;
        let widths = [
            self.hidden,
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.feed_forward,
        ];
        demand(
            widths.iter().all(|width| (1..=MAX_WIDTH).contains(width)),
            "a width is out of range",
        )?;
        demand(
            self.heads.is_multiple_of(self.kv_heads),
            "the query heads are no multiple of the key heads",
        )?;
        demand(
            (1..=MAX_VOCAB).contains(&self.vocab),
            "the vocabulary is out of range",
        )?;
        demand(self.context >= 1, "the context is empty")?;
        demand(
            ["int4", "int8", "f16", "f32"].contains(&self.weights.as_str()),
            "the weight mode is unknown",
        )?;
        demand(
            [self.rope.theta, self.rope.scale]
                .iter()
                .all(|value| value.is_finite() && *value > 0.0),
            "a rope parameter is not a positive number",
        )?;
        demand(
            self.sliding_windows.len() == self.layers as usize,
            "there is not one sliding window a layer",
        )?;
        let ids = self.stop_ids.iter().chain(&self.bos_id).chain(&self.eos_id);
        demand(
            ids.into_iter().all(|id| *id < self.vocab),
            "a token id is outside the vocabulary",
        )?;
        demand(
            self.stop_ids.len() <= MAX_STOP_IDS
                && self.stop_ids.windows(2).all(|pair| pair[0] < pair[1]),
            "the stop ids are not a short ascending list",
        )?;
        demand(
            self.bos_id.is_some() || !self.add_bos,
            "a bos token is to be added and there is none",
        )?;
        for blob in [self.graph, self.tokenizer] {
            demand(
                (1..=MAX_BLOB_BYTES).contains(&blob.size),
                "the graph or the tokenizer has an impossible size",
            )?;
        }
        self.check_segments(demand)
    }

    fn check_segments(
        &self,
        demand: impl Fn(bool, &str) -> Result<(), ManifestError>,
    ) -> Result<(), ManifestError> {
        let kinds = [SegmentKind::Common, SegmentKind::Embedding]
            .into_iter()
            .chain((0..self.layers).map(SegmentKind::Layer))
            .chain([SegmentKind::Head]);
        demand(
            kinds.eq(self.segments.iter().map(|segment| segment.kind)),
            "the segments are not common, embedding, every layer and head",
        )?;
        let mut end = 0;
        for segment in &self.segments {
            demand(
                !segment.name.is_empty()
                    && segment.name.len() <= 64
                    && segment
                        .name
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)),
                "a segment's name is not plain",
            )?;
            demand(
                segment.offset % SEGMENT_ALIGNMENT == 0 && segment.offset >= end,
                "segments overlap or are not aligned",
            )?;
            demand(
                segment.size >= 1
                    && segment.size <= MAX_WEIGHTS_BYTES
                    && segment.offset <= MAX_WEIGHTS_BYTES,
                "a segment has an impossible size",
            )?;
            end = segment.offset + segment.size;
        }
        let mut names: Vec<_> = self.segments.iter().map(|segment| &segment.name).collect();
        names.sort();
        demand(
            names.windows(2).all(|pair| pair[0] != pair[1]),
            "two segments share a name",
        )
    }
}

fn format_of(map: &[(Value, Value)]) -> Option<u32> {
    let (_, value) = map
        .iter()
        .find(|(key, _)| key.as_text() == Some("format"))?;
    u32::try_from(i128::from(value.as_integer()?)).ok()
}

/// Deterministic encoding: ciborium writes the shortest forms, so only the order of keys is left.
fn canonical_bytes(value: Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(&sorted(value), &mut bytes).expect("writing to memory does not fail");
    bytes
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Map(entries) => {
            let mut entries: Vec<_> = entries
                .into_iter()
                .map(|(key, value)| (canonical_bytes(key), sorted(value)))
                .collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            let decode = |key: Vec<u8>| {
                ciborium::from_reader(&key[..]).expect("a key that was just written is readable")
            };
            Value::Map(
                entries
                    .into_iter()
                    .map(|(key, value)| (decode(key), value))
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(layers: u32) -> Manifest {
        let kinds = [
            ("common".to_owned(), SegmentKind::Common),
            ("embedding".to_owned(), SegmentKind::Embedding),
        ]
        .into_iter()
        .chain((0..layers).map(|layer| (format!("layer.{layer}"), SegmentKind::Layer(layer))))
        .chain([("head".to_owned(), SegmentKind::Head)]);
        let segments = kinds
            .enumerate()
            .map(|(index, (name, kind))| Segment {
                hash: Hash::of(name.as_bytes()),
                name,
                kind,
                offset: index as u64 * SEGMENT_ALIGNMENT,
                size: 100 + index as u64,
            })
            .collect();
        Manifest {
            format: FORMAT,
            name: "sample".into(),
            family: "llama".into(),
            layers,
            hidden: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            feed_forward: 128,
            vocab: 300,
            context: 512,
            parameters: 1000,
            weights: "int8".into(),
            rope: Rope {
                theta: 10000.0,
                scale: 1.0,
            },
            sliding_windows: vec![0; layers as usize],
            tied_embedding: true,
            segments,
            graph: Blob::of(b"graph"),
            tokenizer: Blob::of(b"tokenizer"),
            chat_template: Some("{{ messages }}".into()),
            bos_id: Some(1),
            eos_id: Some(2),
            add_bos: true,
            stop_ids: vec![2, 7],
            license: None,
            source: Source {
                file: "sample.gguf".into(),
                hash: Hash::of(b"file"),
            },
        }
    }

    #[test]
    fn a_manifest_survives_its_encoding_and_keeps_its_id() {
        let manifest = sample(3);
        let bytes = manifest.encode();
        let back = Manifest::decode(&bytes).unwrap();
        assert_eq!(back, manifest);
        assert_eq!(back.id(), ModelId(Hash::of(&bytes)));
    }

    #[test]
    fn keys_are_in_canonical_order() {
        let bytes = sample(1).encode();
        let value: Value = ciborium::from_reader(&bytes[..]).unwrap();
        let keys: Vec<Vec<u8>> = value
            .as_map()
            .unwrap()
            .iter()
            .map(|(key, _)| canonical_bytes(key.clone()))
            .collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn another_order_of_keys_is_refused() {
        let mut bytes = Vec::new();
        ciborium::into_writer(&sample(1), &mut bytes).unwrap();
        assert_eq!(Manifest::decode(&bytes), Err(ManifestError::NotCanonical));
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let mut bytes = sample(1).encode();
        bytes.push(0);
        assert_eq!(Manifest::decode(&bytes), Err(ManifestError::NotCanonical));
    }

    #[test]
    fn a_later_format_is_refused_by_its_number() {
        let mut manifest = sample(1);
        manifest.format = 9;
        assert_eq!(
            Manifest::decode(&manifest.encode()),
            Err(ManifestError::Format(9))
        );
    }

    #[test]
    fn contradictions_are_refused() {
        type Change = fn(&mut Manifest);
        let changes: [Change; 9] = [
            |m| m.layers = 4,
            |m| m.kv_heads = 3,
            |m| m.stop_ids = vec![300],
            |m| m.stop_ids = vec![7, 2],
            |m| m.segments[1].offset = 10,
            |m| m.segments[1].size = 5000,
            |m| m.segments[1].name = "../escape".into(),
            |m| m.segments[3].offset = !4095,
            |m| m.rope.theta = f64::NAN,
        ];
        for change in changes {
            let mut manifest = sample(3);
            change(&mut manifest);
            assert!(matches!(
                Manifest::decode(&manifest.encode()),
                Err(ManifestError::Invalid(_))
            ));
        }
    }

    #[test]
    fn a_stage_needs_its_layers_and_the_ends_that_it_holds() {
        let mut manifest = sample(4);
        assert_eq!(manifest.segments_for(0..2), [0, 1, 2, 3]);
        assert_eq!(manifest.segments_for(1..3), [0, 3, 4]);
        assert_eq!(manifest.segments_for(2..4), [0, 1, 4, 5, 6]);
        assert_eq!(manifest.segments_for(0..4), [0, 1, 2, 3, 4, 5, 6]);
        assert!(manifest.segments_for(2..2).is_empty());
        manifest.tied_embedding = false;
        assert_eq!(manifest.segments_for(2..4), [0, 4, 5, 6]);
        assert_eq!(manifest.weights_bytes(1..2), 100 + 103);
        assert_eq!(manifest.kv_bytes_per_token(1..3, 2), 2 * 2 * 2 * 16 * 2);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Manifest::decode(&bytes);
        }

        #[test]
        fn a_flipped_byte_never_panics(position in 0usize..2000, value in any::<u8>()) {
            let mut bytes = sample(2).encode();
            let position = position % bytes.len();
            bytes[position] = value;
            if let Ok(manifest) = Manifest::decode(&bytes) {
                prop_assert_eq!(manifest.encode(), bytes);
            }
        }
    }
}
