//! Conversations to prompts.
//!
//! A template writes control tokens around what people said, and what people said must not become
//! control tokens. So before rendering, each control text inside a message is broken by a marker (a
//! code point that occurs nowhere else), as are the ends of a message that could complete one
//! together with the template's text. The template sees messages that are otherwise as they were
//! (it may trim, compare and split them); afterwards the control texts still whole are the
//! template's own, and the markers are dropped from the rest.

use serde::{Deserialize, Serialize};

use super::Tokenizer;
use super::control::{ControlTokens, Piece};

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    pub content: String,
}

/// A conversation that cannot become a prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    #[error("the model has no chat template")]
    NoTemplate,
    /// In the template's own words.
    #[error("the model's chat template does not take this conversation: {0}")]
    Refused(String),
    #[error("the model's chat template failed: {0}")]
    Failed(String),
}

impl Tokenizer {
    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The prompt as text. Encoding it with control tokens would let messages contain some:
    /// [`Tokenizer::encode_chat`] does not.
    pub fn render_chat(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let template = self.template.as_ref().ok_or(ChatError::NoTemplate)?;
        template.render(messages, add_generation_prompt)
    }

    /// The prompt's ids: the template's control tokens are control tokens, and what the messages
    /// say is text. No bos token but the template's own.
    pub fn encode_chat(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>, ChatError> {
        let template = self.template.as_ref().ok_or(ChatError::NoTemplate)?;
        let marker = unused_marker(messages).ok_or_else(|| {
            ChatError::Failed("the messages use every noncharacter of Unicode".to_owned())
        })?;
        let guarded: Vec<_> = messages
            .iter()
            .map(|message| Message {
                role: guard(&message.role, &self.control, marker),
                content: guard(&message.content, &self.control, marker),
            })
            .collect();
        let rendered = template.render(&guarded, add_generation_prompt)?;
        let mut ids = Vec::new();
        let mut plain = String::new();
        for piece in self.control.split(&rendered) {
            match piece {
                Piece::Text(text) => {
                    plain.clear();
                    plain.extend(text.chars().filter(|char| *char != marker));
                    self.encode_plain(&plain, &mut ids);
                }
                Piece::Token(id) => ids.push(id),
            }
        }
        Ok(ids)
    }
}

/// A code point that no message contains. Noncharacters are reserved for such internal use.
fn unused_marker(messages: &[Message]) -> Option<char> {
    ('\u{FDD0}'..='\u{FDEF}').find(|marker| {
        messages
            .iter()
            .all(|message| !message.content.contains(*marker) && !message.role.contains(*marker))
    })
}

/// `text` with no control text in it, nor a part of one at its ends.
fn guard(text: &str, control: &ControlTokens, marker: char) -> String {
    let mut guarded = String::with_capacity(text.len());
    let trimmed = text.trim();
    let start = text.len() - text.trim_start().len();
    guarded.push_str(&text[..start]);
    if control.texts().any(|token| begins_within(trimmed, token)) {
        guarded.push(marker);
    }
    let mut rest = trimmed;
    while let Some((at, token)) = first(rest, control) {
        let cut = at + token.chars().next().map_or(1, char::len_utf8);
        guarded.push_str(&rest[..cut]);
        guarded.push(marker);
        rest = &rest[cut..];
    }
    guarded.push_str(rest);
    if control.texts().any(|token| ends_within(trimmed, token)) {
        guarded.push(marker);
    }
    guarded.push_str(&text[start + trimmed.len()..]);
    guarded
}

/// The leftmost control text in `text`.
fn first<'a>(text: &str, control: &'a ControlTokens) -> Option<(usize, &'a str)> {
    control
        .texts()
        .filter_map(|token| text.find(token).map(|at| (at, token)))
        .min_by_key(|(at, _)| *at)
}

/// Whether `text` starts with the end of `token`, so that text before it could complete the token.
fn begins_within(text: &str, token: &str) -> bool {
    let mut suffixes = token.char_indices().skip(1).map(|(at, _)| &token[at..]);
    suffixes
        .any(|suffix| text.starts_with(suffix) || (!text.is_empty() && suffix.starts_with(text)))
}

/// Whether `text` ends with the beginning of `token`.
fn ends_within(text: &str, token: &str) -> bool {
    let mut prefixes = token.char_indices().skip(1).map(|(at, _)| &token[..at]);
    prefixes.any(|prefix| text.ends_with(prefix) || (!text.is_empty() && prefix.ends_with(text)))
}
