//! GPT-2's alphabet for bytes: every byte has one printable character that stands for it in a
//! vocabulary.
//!
//! The 188 bytes that are printable in Latin-1 stand for themselves; the rest take the characters
//! from U+0100 upwards, in order (Radford et al., 2019).

/// The character that stands for `byte`.
pub(super) fn char_of(byte: u8) -> char {
    if is_itself(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|other| !is_itself(*other)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Maps characters to bytes without searching.
pub(super) struct Alphabet([Option<u8>; SIZE]);

const SIZE: usize = 0x100 + 68;

impl Alphabet {
    pub fn new() -> Self {
        let mut bytes = [None; SIZE];
        for byte in 0..=u8::MAX {
            bytes[char_of(byte) as usize] = Some(byte);
        }
        Self(bytes)
    }

    /// The bytes that a token's text stands for; a character outside the alphabet stands for its
    /// own UTF-8.
    pub fn bytes(&self, text: &str, out: &mut Vec<u8>) {
        for char in text.chars() {
            match self.0.get(char as usize).copied().flatten() {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
}

fn is_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(0xAD), '\u{143}');
        let alphabet = Alphabet::new();
        for byte in 0..=u8::MAX {
            let mut out = Vec::new();
            alphabet.bytes(&char_of(byte).to_string(), &mut out);
            assert_eq!(out, [byte]);
        }
    }
}
