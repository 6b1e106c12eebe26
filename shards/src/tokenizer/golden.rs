//! Tokenisations and chat renderings from independent implementations, and the check against them.
//!
//! `tests/data/tokens.json` has both for two models; `tests/data/chats.json` has more renderings of
//! their templates, made with Python's jinja2 set up as `transformers` sets it up. The vocabularies
//! themselves are too large to keep here, so the tests that call [`check`] are those that have the
//! models.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Message, Tokenizer};

const TOKENS: &str = include_str!("../../tests/data/tokens.json");
const CHATS: &str = include_str!("../../tests/data/chats.json");

/// A model whose tokenizer and chat template are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    SmolLm2,
    /// The 0.5B and the 1.5B share a tokenizer.
    Qwen25Coder,
}

impl Model {
    fn key(self) -> &'static str {
        match self {
            Self::SmolLm2 => "smollm2-135m",
            Self::Qwen25Coder => "qwen2.5-coder-1.5b",
        }
    }
}

#[derive(Deserialize)]
struct Golden {
    tokens: Vec<Text>,
    chat: Vec<Chat>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Message>,
    #[serde(default = "generation_prompt")]
    add_generation_prompt: bool,
    text: String,
}

fn generation_prompt() -> bool {
    true
}

/// Compares a tokenizer with everything known about its model; the number of cases, or every
/// difference.
pub fn check(model: Model, tokenizer: &Tokenizer) -> Result<usize, String> {
    let mut tokens: BTreeMap<String, Golden> =
        serde_json::from_str(TOKENS).map_err(|error| error.to_string())?;
    let mut chats: BTreeMap<String, Vec<Chat>> =
        serde_json::from_str(CHATS).map_err(|error| error.to_string())?;
    let golden = tokens.remove(model.key()).ok_or("no such model")?;
    let mut conversations = golden.chat;
    conversations.extend(chats.remove(model.key()).ok_or("no such model")?);

    let mut wrong = Vec::new();
    let mut compare = |what: &str, found: String, expected: String| {
        if found != expected {
            wrong.push(format!("{what}\n  found    {found}\n  expected {expected}"));
        }
    };
    for case in &golden.tokens {
        let ids = tokenizer.encode(&case.text, true);
        compare(&case.text, format!("{ids:?}"), format!("{:?}", case.ids));
        compare(
            &case.text,
            tokenizer.decode(&case.ids, true),
            case.decoded.clone(),
        );
        let plain = tokenizer.encode(&case.text, false);
        compare(
            &case.text,
            tokenizer.decode(&plain, false),
            case.text.clone(),
        );
        let control = plain.iter().filter(|id| tokenizer.is_control(**id)).count();
        compare(
            "control tokens in plain text",
            control.to_string(),
            "0".into(),
        );
    }
    for case in &conversations {
        let what = format!("{:?}", case.messages);
        let rendered = tokenizer
            .render_chat(&case.messages, case.add_generation_prompt)
            .map_err(|error| error.to_string())?;
        compare(&what, rendered, case.text.clone());
        let ids = tokenizer
            .encode_chat(&case.messages, case.add_generation_prompt)
            .map_err(|error| error.to_string())?;
        compare(&what, tokenizer.decode(&ids, true), case.text.clone());
        // Both models write two control tokens a turn and one where an answer begins.
        let turns = case.text.matches("<|im_start|>").count();
        let typed: usize = case
            .messages
            .iter()
            .map(|message| message.content.matches("<|im_start|>").count())
            .sum();
        let expected = 2 * (turns - typed) - usize::from(case.add_generation_prompt);
        let control = ids.iter().filter(|id| tokenizer.is_control(**id)).count();
        compare(&what, control.to_string(), expected.to_string());
        if typed == 0 {
            let whole = tokenizer.encode(&case.text, true);
            compare(&what, format!("{ids:?}"), format!("{whole:?}"));
        }
    }
    if wrong.is_empty() {
        Ok(golden.tokens.len() + conversations.len())
    } else {
        Err(wrong.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::import::gguf::Gguf;
    use crate::tokenizer::GgufVocabulary;

    /// The tokenizer of the model file that `variable` names; without one the check is left to the
    /// tests that have the models.
    fn tokenizer(variable: &str) -> Option<Tokenizer> {
        let Some(path) = std::env::var_os(variable) else {
            eprintln!("skipped: {variable} names no model file");
            return None;
        };
        let file = Gguf::open(File::open(path).unwrap()).unwrap();
        let vocabulary = GgufVocabulary {
            model: file.metadata.string("tokenizer.ggml.model").unwrap(),
            pre: file.metadata.string("tokenizer.ggml.pre"),
            tokens: file.metadata.strings("tokenizer.ggml.tokens").unwrap(),
            merges: file.metadata.strings("tokenizer.ggml.merges").unwrap(),
            token_types: file.metadata.integers("tokenizer.ggml.token_type").unwrap(),
            bos_id: file.metadata.u32("tokenizer.ggml.bos_token_id"),
            eos_id: file.metadata.u32("tokenizer.ggml.eos_token_id"),
            ..GgufVocabulary::default()
        };
        assert_eq!(vocabulary.adds_bos(), Ok(false));
        let template = file.metadata.string("tokenizer.chat_template");
        let read = Tokenizer::from_json(&vocabulary.to_json().unwrap()).unwrap();
        let (bos, eos) = (vocabulary.bos_id, vocabulary.eos_id);
        Some(read.with_template(template, bos, eos).unwrap())
    }

    #[test]
    fn smollm2_agrees_with_independent_implementations() {
        if let Some(tokenizer) = tokenizer("SKEIN_TEST_GGUF_SMOLLM2") {
            assert_eq!(check(Model::SmolLm2, &tokenizer), Ok(23));
        }
    }

    #[test]
    fn qwen25_coder_agrees_with_independent_implementations() {
        if let Some(tokenizer) = tokenizer("SKEIN_TEST_GGUF_QWEN") {
            assert_eq!(check(Model::Qwen25Coder, &tokenizer), Ok(23));
        }
    }
}
