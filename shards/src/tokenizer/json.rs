//! The parts of a Hugging Face `tokenizers` file that a byte-level BPE tokenizer has.
//!
//! What is written here loads in that library unchanged. Reading takes the same form back; a file
//! with other parts is refused.

use std::collections::HashMap;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use tokenizers::PreTokenizerWrapper;

/// A file as it is written; the vocabulary in the order of ids, so that equal input gives equal
/// bytes.
#[derive(Serialize)]
pub(super) struct Written<'a> {
    pub version: &'static str,
    pub truncation: (),
    pub padding: (),
    pub added_tokens: Vec<AddedToken>,
    pub normalizer: (),
    pub pre_tokenizer: PreTokenizer<'a>,
    pub post_processor: (),
    pub decoder: ByteLevel,
    pub model: WrittenBpe<'a>,
}

#[derive(Serialize)]
pub(super) struct WrittenBpe<'a> {
    pub r#type: &'static str,
    pub dropout: (),
    pub unk_token: (),
    pub continuing_subword_prefix: (),
    pub end_of_word_suffix: (),
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
    #[serde(serialize_with = "pairs_as_map")]
    pub vocab: Vec<(&'a str, u32)>,
    pub merges: Vec<(&'a str, &'a str)>,
}

/// A token that is looked for in the text before anything else is done to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AddedToken {
    pub id: u32,
    pub content: String,
    pub single_word: bool,
    pub lstrip: bool,
    pub rstrip: bool,
    pub normalized: bool,
    /// A control token.
    pub special: bool,
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum PreTokenizer<'a> {
    Sequence { pretokenizers: Vec<Split<'a>> },
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum Split<'a> {
    Split {
        pattern: Pattern<'a>,
        behavior: &'static str,
        invert: bool,
    },
    ByteLevel {
        add_prefix_space: bool,
        trim_offsets: bool,
        use_regex: bool,
    },
}

#[derive(Serialize)]
pub(super) enum Pattern<'a> {
    Regex(&'a str),
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type")]
pub(super) enum ByteLevel {
    ByteLevel {
        add_prefix_space: bool,
        trim_offsets: bool,
        use_regex: bool,
    },
}

/// A file as it is read.
#[derive(Deserialize)]
pub(super) struct Read {
    pub added_tokens: Vec<AddedToken>,
    pub normalizer: Option<serde::de::IgnoredAny>,
    pub pre_tokenizer: PreTokenizerWrapper,
    /// Says that the vocabulary is in the byte alphabet.
    #[serde(rename = "decoder")]
    pub _decoder: ByteLevel,
    pub model: ReadBpe,
}

#[derive(Deserialize)]
pub(super) struct ReadBpe {
    pub r#type: String,
    #[serde(default)]
    pub ignore_merges: bool,
    pub vocab: HashMap<String, u32>,
    pub merges: Vec<(String, String)>,
}

fn pairs_as_map<S: Serializer>(pairs: &[(&str, u32)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(pairs.len()))?;
    for (token, id) in pairs {
        map.serialize_entry(token, id)?;
    }
    map.end()
}
