//! Text to token ids and back, and conversations to prompts.
//!
//! A model's tokenizer is a Hugging Face `tokenizers` file (byte-level BPE), which an importer makes
//! from what its source says ([`GgufVocabulary::to_json`]). *Control tokens*, such as the end of a
//! turn, steer the model; their texts become tokens only where the caller says that the text may
//! contain them, so that nobody who types `<|im_end|>` ends a turn. User-defined tokens carry no
//! such power and are always recognised.
//!
//! Not here: sampling, and cutting a stream of tokens at character boundaries (`skein-pipeline`).

mod byte_level;
mod chat;
mod control;
mod gguf;
#[cfg(any(test, feature = "testing"))]
pub mod golden;
mod json;
mod template;

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Vocab};

pub use chat::{ChatError, Message};
pub use gguf::GgufVocabulary;

use crate::manifest::Manifest;
use byte_level::Alphabet;
use control::ControlTokens;
use template::Template;

/// Above any published vocabulary; bounds the tables that a file from a peer makes us keep.
const MAX_ID: u32 = 1 << 24;

/// A tokenizer that cannot be used, or a source that cannot be made into one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    #[error("its model is '{0}'")]
    Model(String),
    #[error("its pre-tokenizer is '{0}'")]
    PreTokenizer(String),
    #[error("{0}")]
    Vocabulary(String),
    #[error("the file is not readable: {0}")]
    Malformed(String),
    #[error("the chat template cannot be used: {0}")]
    Template(String),
}

/// A model's tokenizer with its chat template.
pub struct Tokenizer {
    /// Knows no control tokens, so it cannot make any.
    plain: tokenizers::Tokenizer,
    control: ControlTokens,
    texts: TokenBytes,
    template: Option<Template>,
}

impl Tokenizer {
    /// The tokenizer of a model in a store: its file, with the manifest's chat template and special
    /// tokens.
    pub fn of(manifest: &Manifest, json: &[u8]) -> Result<Self, TokenizerError> {
        Self::from_json(json)?.with_template(
            manifest.chat_template.as_deref(),
            manifest.bos_id,
            manifest.eos_id,
        )
    }

    /// Reads a `tokenizers` file.
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        let mut read: json::Read = serde_json::from_slice(json)
            .map_err(|error| TokenizerError::Malformed(error.to_string()))?;
        if read.model.r#type != "BPE" || read.normalizer.is_some() {
            let what = "it is not byte-level BPE on plain text";
            return Err(TokenizerError::Malformed(what.to_owned()));
        }
        let texts = TokenBytes::new(&read)?;
        let (control, user_defined): (Vec<_>, Vec<_>) = read
            .added_tokens
            .into_iter()
            .partition(|token| token.special);
        for token in &control {
            read.model.vocab.remove(&token.content);
        }
        let malformed = |error: tokenizers::Error| TokenizerError::Malformed(error.to_string());
        let vocab: Vocab = read.model.vocab.into_iter().collect();
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, read.model.merges)
            .ignore_merges(read.model.ignore_merges)
            .build()
            .map_err(malformed)?;
        let mut plain = tokenizers::Tokenizer::new(bpe);
        plain.with_pre_tokenizer(Some(read.pre_tokenizer));
        let user_defined: Vec<_> = user_defined
            .into_iter()
            .map(|token| {
                if plain.token_to_id(&token.content) != Some(token.id) {
                    return Err(TokenizerError::Vocabulary(format!(
                        "the added token {:?} is not in the vocabulary as {}",
                        token.content, token.id
                    )));
                }
                Ok(tokenizers::AddedToken::from(token.content, false)
                    .single_word(token.single_word)
                    .lstrip(token.lstrip)
                    .rstrip(token.rstrip)
                    .normalized(token.normalized))
            })
            .collect::<Result<_, _>>()?;
        plain.add_tokens(user_defined).map_err(malformed)?;
        Ok(Self {
            plain,
            control: ControlTokens::new(control.into_iter().map(|token| (token.content, token.id))),
            texts,
            template: None,
        })
    }

    /// Adds a chat template, in the dialect of Jinja that `transformers` reads.
    pub fn with_template(
        mut self,
        source: Option<&str>,
        bos_id: Option<u32>,
        eos_id: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let text = |id: Option<u32>| id.map(|id| self.token_text(id)).unwrap_or_default();
        self.template = source
            .map(|source| Template::new(source, text(bos_id), text(eos_id)))
            .transpose()?;
        Ok(self)
    }

    /// Number of ids, which may include some that no token has.
    pub fn vocabulary(&self) -> usize {
        self.texts.ends.len()
    }

    /// The ids of `text`, without a bos token. With `control`, the texts of control tokens become
    /// those tokens; without, they are text like any other.
    pub fn encode(&self, text: &str, control: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        if !control {
            self.encode_plain(text, &mut ids);
            return ids;
        }
        for piece in self.control.split(text) {
            match piece {
                control::Piece::Token(id) => ids.push(id),
                control::Piece::Text(text) => self.encode_plain(text, &mut ids),
            }
        }
        ids
    }

    /// The bytes that a token adds to an answer: none for control tokens and ids without a token.
    /// A token may end in the middle of a character.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        if self.control.text(id).is_some() {
            return &[];
        }
        self.texts.of(id)
    }

    /// A token for people to read: control tokens by their text, parts of characters as U+FFFD.
    pub fn token_text(&self, id: u32) -> String {
        self.control.text(id).map_or_else(
            || String::from_utf8_lossy(self.texts.of(id)).into_owned(),
            str::to_owned,
        )
    }

    /// Whether the token steers the model instead of being text.
    pub fn is_control(&self, id: u32) -> bool {
        self.control.text(id).is_some()
    }

    /// The text of `ids`, with the texts of control tokens if `control`. Bytes that are no text
    /// become U+FFFD.
    pub fn decode(&self, ids: &[u32], control: bool) -> String {
        let mut bytes = Vec::new();
        for id in ids {
            match self.control.text(*id) {
                Some(text) if control => bytes.extend_from_slice(text.as_bytes()),
                Some(_) => {}
                None => bytes.extend_from_slice(self.texts.of(*id)),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        match self.plain.encode_fast(text, false) {
            Ok(encoding) => ids.extend_from_slice(encoding.get_ids()),
            // Splitting and merging valid text has no way to fail, but says it has.
            Err(error) => tracing::error!("text could not be tokenised: {error}"),
        }
    }
}

/// The bytes of every token, in one buffer.
struct TokenBytes {
    bytes: Vec<u8>,
    /// Where each token's bytes end; the token before ends where it begins.
    ends: Vec<u32>,
}

impl TokenBytes {
    fn new(read: &json::Read) -> Result<Self, TokenizerError> {
        let added: HashMap<u32, &str> = read
            .added_tokens
            .iter()
            .map(|token| (token.id, token.content.as_str()))
            .collect();
        let highest = read.model.vocab.values().chain(added.keys()).max();
        let highest = *highest.unwrap_or(&0);
        if highest >= MAX_ID {
            let what = format!("the id {highest} is out of range");
            return Err(TokenizerError::Vocabulary(what));
        }
        let mut tokens = vec![""; highest as usize + 1];
        for (text, id) in &read.model.vocab {
            tokens[*id as usize] = text;
        }
        let alphabet = Alphabet::new();
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(tokens.len());
        for (id, text) in tokens.into_iter().enumerate() {
            // Added tokens are written as they are, not in the byte alphabet.
            match added.get(&(id as u32)) {
                Some(text) => bytes.extend_from_slice(text.as_bytes()),
                None => alphabet.bytes(text, &mut bytes),
            }
            ends.push(bytes.len() as u32);
        }
        Ok(Self { bytes, ends })
    }

    fn of(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(end) = self.ends.get(id) else {
            return &[];
        };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..*end as usize]
    }
}

#[cfg(test)]
mod tests;
