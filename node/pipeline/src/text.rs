//! Characters from the bytes of tokens, never half of one.

/// Collects the bytes of consecutive tokens and gives out complete characters only.
///
/// What cannot become a character is replaced by U+FFFD exactly as [`String::from_utf8_lossy`] would
/// over all the bytes, wherever tokens happen to end.
#[derive(Clone, Debug, Default)]
pub struct Utf8Assembler {
    /// The beginning of a character: at most three bytes between calls.
    pending: Vec<u8>,
}

impl Utf8Assembler {
    /// An assembler that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of the next token; returns the characters that are complete now.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = &self.pending[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, tail) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(invalid) = error.error_len() else {
                        rest = tail;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &tail[invalid..];
                }
            }
        }
        let done = self.pending.len() - rest.len();
        self.pending.drain(..done);
        text
    }

    /// Ends the text: what is left of an incomplete character, replaced.
    pub fn flush(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_emoji_split_over_four_tokens_appears_once_and_whole() {
        let mut assembler = Utf8Assembler::new();
        let pieces: Vec<String> = "🪿".bytes().map(|byte| assembler.push(&[byte])).collect();
        assert_eq!(pieces, ["", "", "", "🪿"]);
        assert_eq!(assembler.flush(), "");
    }

    #[test]
    fn a_character_that_never_completes_is_replaced_at_the_end() {
        let mut assembler = Utf8Assembler::new();
        assert_eq!(assembler.push(&[b'a', 0xF0, 0x9F]), "a");
        assert_eq!(assembler.flush(), "\u{FFFD}");
        assert_eq!(assembler.push(b"b"), "b");
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_give_the_text_of_the_whole(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), Just(0xF0), Just(0x9F), Just(0x80), Just(0xE2)], 0..40),
            cuts in prop::collection::vec(0usize..40, 0..12),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let mut assembler = Utf8Assembler::new();
            let mut text = String::new();
            let mut start = 0;
            for cut in cuts {
                text += &assembler.push(&bytes[start..cut]);
                prop_assert!(assembler.pending.len() <= 3);
                start = cut;
            }
            text += &assembler.flush();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
