//! How weights are stored: f32 rows in, packed integers (or halves) and their scales out.
//!
//! - `int8`: one f16 scale an output row, symmetric, values −127..=127.
//! - `int4`: groups of 128, 64 or 32 values of a row, each with an f16 scale and a zero point of
//!   four bits; a row whose width none of them divides is stored as `int8`.
//!
//! The forms are those that the runtime keeps compressed; the graph that undoes them is written in
//! `graph`. Rows are packed in parallel, and the result does not depend on the number of threads.

mod int4;

use std::fmt;
use std::str::FromStr;

use half::f16;
use rayon::prelude::*;

/// Models below this many weights are stored as int8 by `auto`: they are cheap, and int4 hurts them.
pub const AUTO_INT4_PARAMETERS: u64 = 1_000_000_000;
/// Group widths for int4, the best-measured first.
const GROUPS: [u32; 3] = [128, 64, 32];

/// What a person asks for with `--weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WeightMode {
    #[default]
    Auto,
    Int4,
    Int8,
    F16,
    F32,
}

impl WeightMode {
    /// Decides `auto` by the number of weights.
    pub fn resolve(self, parameters: u64) -> Self {
        match self {
            Self::Auto if parameters < AUTO_INT4_PARAMETERS => Self::Int8,
            Self::Auto => Self::Int4,
            decided => decided,
        }
    }

    /// How a matrix with rows of this width is stored. `ends` are the embedding and lm_head, which
    /// int4 would hurt most. `auto` must have been resolved, and counts as int8.
    pub fn storage(self, width: u32, ends: bool) -> Storage {
        match self {
            Self::F32 => Storage::F32,
            Self::F16 => Storage::F16,
            Self::Int4 if !ends => GROUPS
                .into_iter()
                .find(|group| width.is_multiple_of(*group))
                .map_or(Storage::Int8, |group| Storage::Int4 { group }),
            Self::Int4 | Self::Int8 | Self::Auto => Storage::Int8,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Int4 => "int4",
            Self::Int8 => "int8",
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }
}

impl fmt::Display for WeightMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no weight mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a weight mode; there are auto, int4, int8, f16 and f32")]
pub struct ParseWeightModeError(String);

impl FromStr for WeightMode {
    type Err = ParseWeightModeError;

    fn from_str(text: &str) -> Result<Self, ParseWeightModeError> {
        [Self::Auto, Self::Int4, Self::Int8, Self::F16, Self::F32]
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| ParseWeightModeError(text.to_owned()))
    }
}

/// How one matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    F32,
    F16,
    Int8,
    Int4 { group: u32 },
}

/// Bytes of the constants that a stored matrix consists of; 0 where it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub data: u64,
    pub scales: u64,
    pub zero_points: u64,
}

impl Storage {
    /// Sizes of a stored `[rows, width]` matrix.
    pub fn sizes(self, rows: u64, width: u64) -> Sizes {
        let values = rows * width;
        match self {
            Self::F32 => Sizes {
                data: values * 4,
                scales: 0,
                zero_points: 0,
            },
            Self::F16 => Sizes {
                data: values * 2,
                scales: 0,
                zero_points: 0,
            },
            Self::Int8 => Sizes {
                data: values,
                scales: rows * 2,
                zero_points: 0,
            },
            Self::Int4 { group } => {
                let groups = values / u64::from(group);
                Sizes {
                    data: values / 2,
                    scales: groups * 2,
                    zero_points: groups.div_ceil(2),
                }
            }
        }
    }
}

/// Rows in stored form; append the parts of consecutive runs of rows to get the whole matrix.
///
/// A run in int4 must have an even number of groups unless it is the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    pub data: Vec<u8>,
    pub scales: Vec<u8>,
    pub zero_points: Vec<u8>,
}

/// A value too large for the f16 that it, or its group's scale, has to be stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value is too large for f16")]
pub struct TooLargeForF16;

/// Packs `[rows, width]` finite values.
pub fn pack(storage: Storage, width: usize, values: &[f32]) -> Result<Packed, TooLargeForF16> {
    debug_assert_eq!(values.len() % width, 0);
    match storage {
        Storage::F32 => Ok(Packed {
            data: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            ..Packed::default()
        }),
        Storage::F16 => pack_f16(values),
        Storage::Int8 => pack_int8(width, values),
        Storage::Int4 { group } => int4::pack(group as usize, values),
    }
}

fn pack_f16(values: &[f32]) -> Result<Packed, TooLargeForF16> {
    let mut data = vec![0; values.len() * 2];
    for (bytes, value) in data.chunks_exact_mut(2).zip(values) {
        bytes.copy_from_slice(&finite_f16(*value)?.to_le_bytes());
    }
    Ok(Packed {
        data,
        ..Packed::default()
    })
}

fn pack_int8(width: usize, values: &[f32]) -> Result<Packed, TooLargeForF16> {
    let mut data = vec![0; values.len()];
    let scales = data
        .par_chunks_mut(width)
        .zip(values.par_chunks(width))
        .map(|(bytes, row)| {
            let largest = row.iter().fold(0f32, |m, v| m.max(v.abs()));
            let scale = finite_f16(largest / 127.0)?;
            let inverse = inverse(scale.to_f32());
            for (byte, value) in bytes.iter_mut().zip(row) {
                *byte = (value * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
            }
            Ok(scale)
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Packed {
        data,
        scales: scales.into_iter().flat_map(f16::to_le_bytes).collect(),
        zero_points: Vec::new(),
    })
}

fn finite_f16(value: f32) -> Result<f16, TooLargeForF16> {
    let half = f16::from_f32(value);
    half.is_finite().then_some(half).ok_or(TooLargeForF16)
}

/// 1/x, and 0 for 0: rows of zeros stay zeros.
fn inverse(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { 1.0 / value }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn noise(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed | 1;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count)
            .map(|_| uniform() + uniform() + uniform())
            .collect()
    }

    fn halves(bytes: &[u8]) -> Vec<f32> {
        bytes
            .chunks_exact(2)
            .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect()
    }

    fn unpack(storage: Storage, width: usize, packed: &Packed) -> Vec<f32> {
        let nibble = |bytes: &[u8], i: usize| f32::from((bytes[i / 2] >> (i % 2 * 4)) & 15);
        match storage {
            Storage::F32 => packed
                .data
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            Storage::F16 => halves(&packed.data),
            Storage::Int8 => {
                let scales = halves(&packed.scales);
                let value = |(i, byte): (usize, &u8)| f32::from(*byte as i8) * scales[i / width];
                packed.data.iter().enumerate().map(value).collect()
            }
            Storage::Int4 { group } => {
                let scales = halves(&packed.scales);
                (0..packed.data.len() * 2)
                    .map(|i| {
                        let at = i / group as usize;
                        (nibble(&packed.data, i) - nibble(&packed.zero_points, at)) * scales[at]
                    })
                    .collect()
            }
        }
    }

    fn relative_error(a: &[f32], b: &[f32]) -> f32 {
        let error: f32 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
        let size: f32 = a.iter().map(|a| a * a).sum();
        (error / size).sqrt()
    }

    #[test]
    fn what_is_packed_comes_back_within_the_modes_precision() {
        let values = noise(256 * 6, 5);
        for (storage, bound) in [
            (Storage::F32, 0.0),
            (Storage::F16, 5e-4),
            (Storage::Int8, 0.01),
            (Storage::Int4 { group: 32 }, 0.09),
            (Storage::Int4 { group: 64 }, 0.10),
            (Storage::Int4 { group: 128 }, 0.11),
        ] {
            let packed = pack(storage, 256, &values).unwrap();
            let sizes = storage.sizes(6, 256);
            assert_eq!(packed.data.len() as u64, sizes.data);
            assert_eq!(packed.scales.len() as u64, sizes.scales);
            assert_eq!(packed.zero_points.len() as u64, sizes.zero_points);
            let error = relative_error(&values, &unpack(storage, 256, &packed));
            assert!(error <= bound, "{storage:?}: {error}");
        }
    }

    #[test]
    fn constant_groups_and_zeros_survive() {
        for value in [0.0, 1.0, -0.25, 1e-9, -1e-38, f32::MIN_POSITIVE / 8.0] {
            for storage in [Storage::Int8, Storage::Int4 { group: 32 }] {
                let packed = pack(storage, 64, &[value; 128]).unwrap();
                let back = unpack(storage, 64, &packed);
                assert!(back.iter().all(|v| (v - value).abs() <= 5e-4), "{back:?}");
            }
        }
    }

    #[test]
    fn values_beyond_f16_are_refused_where_f16_is_needed() {
        assert!(pack(Storage::F16, 1, &[1e6]).is_err());
        assert!(pack(Storage::Int8, 1, &[1e7]).is_err());
        assert!(pack(Storage::Int4 { group: 32 }, 32, &[1e7; 32]).is_err());
        assert!(pack(Storage::F32, 1, &[1e7]).is_ok());
    }

    #[test]
    fn the_group_is_the_widest_that_divides_the_row() {
        let storage = |width| WeightMode::Int4.storage(width, false);
        assert_eq!(storage(1536), Storage::Int4 { group: 128 });
        assert_eq!(storage(576), Storage::Int4 { group: 64 });
        assert_eq!(storage(96), Storage::Int4 { group: 32 });
        assert_eq!(storage(100), Storage::Int8);
        assert_eq!(WeightMode::Int4.storage(1536, true), Storage::Int8);
    }

    #[test]
    fn auto_is_int8_for_small_models_and_int4_for_large_ones() {
        assert_eq!(WeightMode::Auto.resolve(135_000_000), WeightMode::Int8);
        assert_eq!(WeightMode::Auto.resolve(1_500_000_000), WeightMode::Int4);
        assert_eq!(WeightMode::F16.resolve(1), WeightMode::F16);
        assert!("int5".parse::<WeightMode>().is_err());
        assert_eq!("int4".parse(), Ok(WeightMode::Int4));
    }

    proptest! {
        #[test]
        fn a_fitted_scale_is_never_worse_than_plain_rounding(seed in any::<u64>()) {
            let values = noise(128, seed);
            let storage = Storage::Int4 { group: 128 };
            let packed = pack(storage, 128, &values).unwrap();
            let error = relative_error(&values, &unpack(storage, 128, &packed));
            let (low, high) = values.iter().fold((0f32, 0f32), |(l, h), v| (l.min(*v), h.max(*v)));
            let scale = (high - low) / 15.0;
            let zero = (-low / scale).round();
            let plain: Vec<f32> = values
                .iter()
                .map(|v| ((v / scale + zero).round().clamp(0.0, 15.0) - zero) * scale)
                .collect();
            prop_assert!(error <= relative_error(&values, &plain) * 1.002);
        }
    }
}
