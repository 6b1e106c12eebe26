//! The tokenizer that a GGUF file describes, as a `tokenizers` file.
//!
//! GGUF names a pre-tokenizer instead of carrying its expressions; what the names mean is taken
//! from llama.cpp's `llama-vocab.cpp`, which defines them, and from the models' own tokenizer files.

use std::collections::HashSet;

use super::TokenizerError;
use super::json::{AddedToken, ByteLevel, Pattern, PreTokenizer, Split, Written, WrittenBpe};

/// What a GGUF file says about its tokenizer.
#[derive(Clone, Copy, Debug, Default)]
pub struct GgufVocabulary<'a> {
    /// `tokenizer.ggml.model`; only `gpt2` (byte-level BPE) is supported.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`; missing means `default`.
    pub pre: Option<&'a str>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: &'a [String],
    /// `tokenizer.ggml.merges`: pairs with one space between, by rank.
    pub merges: &'a [String],
    /// `tokenizer.ggml.token_type`, by id; empty when the file has none.
    pub token_types: &'a [i64],
    pub bos_id: Option<u32>,
    pub eos_id: Option<u32>,
    pub eot_id: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
}

/// Texts by which control tokens that end an answer are known where the file names only one.
const END_TEXTS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<EOT>",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenType {
    Normal,
    Control,
    UserDefined,
    /// Fills the vocabulary up; never made from text, and has no text.
    Unused,
}

struct Convention {
    /// Applied one after the other, each to the pieces that the one before left.
    splits: &'static [&'static str],
    /// A piece that is a token as a whole is that token, whatever the merges say.
    ignore_merges: bool,
    add_bos: bool,
}

/// GPT-2's own expression.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

fn convention(pre: &str) -> Option<Convention> {
    let splits: &'static [&'static str] = match pre {
        "gpt-2" => &[GPT2],
        "smollm" => &[r"\p{N}", GPT2],
        "qwen2" => &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        "llama-bpe" => &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        "default" => &[r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        _ => return None,
    };
    let llama = pre == "llama-bpe";
    Some(Convention {
        splits,
        ignore_merges: llama,
        add_bos: llama,
    })
}

impl GgufVocabulary<'_> {
    /// The `tokenizers` file, as JSON.
    pub fn to_json(&self) -> Result<Vec<u8>, TokenizerError> {
        let convention = self.convention()?;
        let types = self.types()?;
        self.check_ids()?;
        let of_type = |wanted: TokenType| {
            self.tokens
                .iter()
                .zip(&types)
                .enumerate()
                .filter(move |(_, (_, found))| **found == wanted)
                .map(|(id, (text, _))| (id as u32, text))
        };
        let added = |(id, text): (u32, &String), special: bool| AddedToken {
            id,
            content: text.clone(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special,
        };
        let mut added_tokens: Vec<_> = of_type(TokenType::Control)
            .map(|token| added(token, true))
            .chain(of_type(TokenType::UserDefined).map(|token| added(token, false)))
            .collect();
        added_tokens.sort_by_key(|token| token.id);
        let mut seen = HashSet::new();
        let mut vocab = Vec::with_capacity(self.tokens.len());
        for (id, (text, kind)) in self.tokens.iter().zip(&types).enumerate() {
            if *kind == TokenType::Unused {
                continue;
            }
            if text.is_empty() || !seen.insert(text.as_str()) {
                return Err(TokenizerError::Vocabulary(format!(
                    "token {id} is empty or has the text of another: {text:?}"
                )));
            }
            vocab.push((text.as_str(), id as u32));
        }
        let written = Written {
            version: "1.0",
            truncation: (),
            padding: (),
            added_tokens,
            normalizer: (),
            pre_tokenizer: pre_tokenizer(convention.splits),
            post_processor: (),
            decoder: ByteLevel::ByteLevel {
                add_prefix_space: false,
                trim_offsets: true,
                use_regex: false,
            },
            model: WrittenBpe {
                r#type: "BPE",
                dropout: (),
                unk_token: (),
                continuing_subword_prefix: (),
                end_of_word_suffix: (),
                fuse_unk: false,
                byte_fallback: false,
                ignore_merges: convention.ignore_merges,
                vocab,
                merges: self.merges(&seen)?,
            },
        };
        Ok(serde_json::to_vec(&written).expect("a tokenizer has only plain fields"))
    }

    /// Whether plain text gets the bos token in front: what the file says, else what is usual for
    /// its pre-tokenizer.
    pub fn adds_bos(&self) -> Result<bool, TokenizerError> {
        let usual = self.convention()?.add_bos;
        Ok(self.bos_id.is_some() && self.add_bos.unwrap_or(usual))
    }

    /// The tokens that end an answer, ascending: the ones that the file names, and control tokens
    /// with a text that is known to end a turn.
    pub fn stop_ids(&self) -> Result<Vec<u32>, TokenizerError> {
        let types = self.types()?;
        let known = self
            .tokens
            .iter()
            .zip(&types)
            .enumerate()
            .filter(|(_, (text, kind))| {
                **kind == TokenType::Control && END_TEXTS.contains(&text.as_str())
            })
            .map(|(id, _)| id as u32);
        let mut ids: Vec<_> = known.chain(self.eos_id).chain(self.eot_id).collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    fn convention(&self) -> Result<Convention, TokenizerError> {
        if self.model != "gpt2" {
            return Err(TokenizerError::Model(self.model.to_owned()));
        }
        let pre = self.pre.unwrap_or("default");
        convention(pre).ok_or_else(|| TokenizerError::PreTokenizer(pre.to_owned()))
    }

    fn types(&self) -> Result<Vec<TokenType>, TokenizerError> {
        if self.token_types.is_empty() {
            let named = [self.bos_id, self.eos_id, self.eot_id];
            let kind = |id| {
                if named.contains(&Some(id)) {
                    TokenType::Control
                } else {
                    TokenType::Normal
                }
            };
            return Ok((0..self.tokens.len() as u32).map(kind).collect());
        }
        if self.token_types.len() != self.tokens.len() {
            return Err(TokenizerError::Vocabulary(format!(
                "{} tokens have {} types",
                self.tokens.len(),
                self.token_types.len()
            )));
        }
        let kind = |(id, number): (usize, &i64)| match number {
            1 => Ok(TokenType::Normal),
            // The unknown token stands for text that has no tokens, which bytes always have.
            2 | 3 => Ok(TokenType::Control),
            4 => Ok(TokenType::UserDefined),
            5 => Ok(TokenType::Unused),
            _ => Err(TokenizerError::Vocabulary(format!(
                "token {id} has the type {number}"
            ))),
        };
        self.token_types.iter().enumerate().map(kind).collect()
    }

    fn check_ids(&self) -> Result<(), TokenizerError> {
        for id in [self.bos_id, self.eos_id, self.eot_id]
            .into_iter()
            .flatten()
        {
            if id as usize >= self.tokens.len() {
                return Err(TokenizerError::Vocabulary(format!(
                    "the special token {id} is outside the vocabulary"
                )));
            }
        }
        Ok(())
    }

    fn merges(&self, vocab: &HashSet<&str>) -> Result<Vec<(&str, &str)>, TokenizerError> {
        let mut joined = String::new();
        let mut merge = |line: &'_ str| -> bool {
            let Some((left, right)) = line.split_once(' ') else {
                return false;
            };
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            [left, right, &joined]
                .iter()
                .all(|part| vocab.contains(part))
        };
        let mut merges = Vec::with_capacity(self.merges.len());
        for line in self.merges {
            if !merge(line) {
                return Err(TokenizerError::Vocabulary(format!(
                    "the merge {line:?} is not of two tokens into a third"
                )));
            }
            merges.extend(line.split_once(' '));
        }
        Ok(merges)
    }
}

fn pre_tokenizer<'a>(splits: &[&'a str]) -> PreTokenizer<'a> {
    let mut pretokenizers: Vec<_> = splits
        .iter()
        .map(|expression| Split::Split {
            pattern: Pattern::Regex(expression),
            behavior: "Isolated",
            invert: false,
        })
        .collect();
    pretokenizers.push(Split::ByteLevel {
        add_prefix_space: false,
        trim_offsets: true,
        use_regex: false,
    });
    PreTokenizer::Sequence { pretokenizers }
}
