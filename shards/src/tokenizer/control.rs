//! Finding the texts of control tokens.

use std::collections::{BTreeMap, HashMap};

/// The control tokens of a vocabulary.
pub(super) struct ControlTokens {
    /// By first byte, longest first: the longest that matches at a place is the one meant.
    by_first: HashMap<u8, Vec<(String, u32)>>,
    by_id: BTreeMap<u32, String>,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Token(u32),
    Text(&'a str),
}

impl ControlTokens {
    pub fn new(tokens: impl IntoIterator<Item = (String, u32)>) -> Self {
        let mut by_first: HashMap<u8, Vec<(String, u32)>> = HashMap::new();
        let mut by_id = BTreeMap::new();
        for (text, id) in tokens {
            let Some(first) = text.bytes().next() else {
                continue;
            };
            by_id.insert(id, text.clone());
            by_first.entry(first).or_default().push((text, id));
        }
        for tokens in by_first.values_mut() {
            tokens.sort_by_key(|(text, id)| (std::cmp::Reverse(text.len()), *id));
        }
        Self { by_first, by_id }
    }

    pub fn text(&self, id: u32) -> Option<&str> {
        self.by_id.get(&id).map(String::as_str)
    }

    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.by_id.values().map(String::as_str)
    }

    /// The text cut at control tokens, leftmost and longest first.
    pub fn split<'a>(&self, text: &'a str) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let mut plain = 0;
        let mut at = 0;
        while at < text.len() {
            let Some((token, id)) = self.at(&text.as_bytes()[at..]) else {
                at += 1;
                continue;
            };
            if plain < at {
                pieces.push(Piece::Text(&text[plain..at]));
            }
            pieces.push(Piece::Token(id));
            at += token.len();
            plain = at;
        }
        if plain < text.len() {
            pieces.push(Piece::Text(&text[plain..]));
        }
        pieces
    }

    /// The longest control token that `bytes` starts with. It starts and ends at characters, since
    /// its own text does.
    fn at(&self, bytes: &[u8]) -> Option<(&str, u32)> {
        self.by_first
            .get(bytes.first()?)?
            .iter()
            .find(|(text, _)| bytes.starts_with(text.as_bytes()))
            .map(|(text, id)| (text.as_str(), *id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_at_the_leftmost_place_wins() {
        let tokens = [("<a>", 1), ("<a><b>", 2), ("<b>", 3), ("é>", 4)];
        let tokens = ControlTokens::new(tokens.map(|(text, id)| (text.to_owned(), id)));
        assert_eq!(
            tokens.split("x<a><b>é><a><<b>"),
            [
                Piece::Text("x"),
                Piece::Token(2),
                Piece::Token(4),
                Piece::Token(1),
                Piece::Text("<"),
                Piece::Token(3)
            ]
        );
        assert_eq!(tokens.split(""), []);
    }
}
