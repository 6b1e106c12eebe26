//! Hidden states on the wire: f32, or bf16 rounded to nearest even.
//!
//! bf16 has the range of f32, which f16 has not: real models leave it.

use super::FrameError;

/// How hidden states travel between the stages of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum HiddenType {
    /// Not at all: the line has one stage.
    #[default]
    None = 0,
    /// Unchanged, for `exact`.
    F32 = 1,
    /// Rounded to bf16, for `fast`.
    BF16 = 2,
}

impl HiddenType {
    /// Bytes of one value.
    pub fn size(self) -> usize {
        match self {
            Self::None => 0,
            Self::F32 => 4,
            Self::BF16 => 2,
        }
    }

    /// Appends `states` (`[rows, width]`); refuses a value that is not finite, before or after
    /// rounding, and then leaves `out` longer than it was.
    pub(super) fn write(
        self,
        states: &[f32],
        width: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        let start = out.len();
        out.resize(start + states.len() * self.size(), 0);
        let target = &mut out[start..];
        match self {
            Self::None => return Err(FrameError::Malformed("a line of one stage has no hops")),
            Self::F32 => {
                for (bytes, value) in target.as_chunks_mut::<4>().0.iter_mut().zip(states) {
                    *bytes = value.to_le_bytes();
                }
                if let Some(index) = first_not_finite(states) {
                    return Err(FrameError::NotFinite { row: index / width });
                }
            }
            Self::BF16 => {
                let mut worst = 0u16;
                for (bytes, value) in target.as_chunks_mut::<2>().0.iter_mut().zip(states) {
                    let rounded = bf16_from_f32(*value);
                    worst = worst.max(rounded & 0x7FFF);
                    *bytes = rounded.to_le_bytes();
                }
                if worst >= 0x7F80 {
                    let index = states
                        .iter()
                        .position(|value| bf16_from_f32(*value) & 0x7FFF >= 0x7F80);
                    return Err(FrameError::NotFinite {
                        row: index.unwrap_or(0) / width,
                    });
                }
            }
        }
        Ok(())
    }

    /// Reads `payload` (`[rows, width]` of this type) into `states`; refuses values that are not
    /// finite and lengths that do not match.
    pub fn read(self, payload: &[u8], width: usize, states: &mut [f32]) -> Result<(), FrameError> {
        if payload.len() != states.len() * self.size() || self == Self::None {
            return Err(FrameError::Length {
                needed: (states.len() * self.size()) as u64,
                got: payload.len() as u64,
            });
        }
        match self {
            Self::None => {}
            Self::F32 => {
                for (value, bytes) in states.iter_mut().zip(payload.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Self::BF16 => {
                for (value, bytes) in states.iter_mut().zip(payload.as_chunks::<2>().0) {
                    *value = f32_from_bf16(u16::from_le_bytes(*bytes));
                }
            }
        }
        match first_not_finite(states) {
            Some(index) => Err(FrameError::NotFinite {
                row: index / width.max(1),
            }),
            None => Ok(()),
        }
    }
}

impl TryFrom<u8> for HiddenType {
    type Error = FrameError;

    fn try_from(value: u8) -> Result<Self, FrameError> {
        match value {
            0 => Ok(Self::None),
            1 => Ok(Self::F32),
            2 => Ok(Self::BF16),
            _ => Err(FrameError::Malformed("unknown type of hidden states")),
        }
    }
}

/// Nearest bf16, ties to even; a NaN stays one, a value past the range becomes infinite.
pub fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    // Rounding must not carry a NaN's payload over into an infinity.
    let quiet = (bits >> 16) as u16 | 0x0040;
    let rounded = ((u64::from(bits) + 0x7FFF + u64::from((bits >> 16) & 1)) >> 16) as u16;
    if value.is_nan() { quiet } else { rounded }
}

/// The same number as f32.
pub fn f32_from_bf16(value: u16) -> f32 {
    f32::from_bits(u32::from(value) << 16)
}

/// Index of the first value that is infinite or not a number.
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    // One pass without a branch a value, and a second one only when there is something to find.
    let worst = values.iter().fold(0u32, |worst, value| {
        worst.max(value.to_bits() & 0x7FFF_FFFF)
    });
    if worst < f32::INFINITY.to_bits() {
        return None;
    }
    values.iter().position(|value| !value.is_finite())
}
