//! Turns blocks of GGUF's tensor types into f32, as the format's reference does.
//!
//! Each function takes one block and fills its values. Multiplications are in f32 in the reference's
//! order, so that results are equal to the last bit.

use half::{bf16, f16};
use rayon::prelude::*;

use super::TensorType;

/// Values that one task takes: enough to outweigh handing it over.
const TASK_VALUES: usize = 1 << 14;

/// Dequantises whole blocks; `out` has as many values as the blocks hold.
pub fn dequantise(kind: TensorType, blocks: &[u8], out: &mut [f32]) {
    let (values, bytes) = kind.block();
    debug_assert_eq!(blocks.len() / bytes * values, out.len());
    let block = match kind {
        TensorType::F32 => f32_block,
        TensorType::F16 => f16_block,
        TensorType::Bf16 => bf16_block,
        TensorType::Q4_0 => q4_0,
        TensorType::Q4_1 => q4_1,
        TensorType::Q5_0 => q5_0,
        TensorType::Q5_1 => q5_1,
        TensorType::Q8_0 => q8_0,
        TensorType::Q2K => q2_k,
        TensorType::Q3K => q3_k,
        TensorType::Q4K => q4_k,
        TensorType::Q5K => q5_k,
        TensorType::Q6K => q6_k,
        TensorType::Q8K => q8_k,
    };
    let run = TASK_VALUES / values;
    blocks
        .par_chunks(run * bytes)
        .zip(out.par_chunks_mut(run * values))
        .for_each(|(blocks, out)| {
            for (block_bytes, block_values) in
                blocks.chunks_exact(bytes).zip(out.chunks_exact_mut(values))
            {
                block(block_bytes, block_values);
            }
        });
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn f32_block(b: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
}

fn f16_block(b: &[u8], out: &mut [f32]) {
    out[0] = half_at(b, 0);
}

fn bf16_block(b: &[u8], out: &mut [f32]) {
    out[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32();
}

/// Scale, then 16 bytes: low nibbles are the first half, high nibbles the second.
fn q4_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, q) in b[2..].iter().enumerate() {
        out[i] = d * (f32::from(q & 15) - 8.0);
        out[i + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

fn q4_1(b: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (i, q) in b[4..].iter().enumerate() {
        out[i] = d * f32::from(q & 15) + m;
        out[i + 16] = d * f32::from(q >> 4) + m;
    }
}

/// As `q4_0`, with a fifth bit a value in a word of 32.
fn q5_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    let high = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
    for (i, q) in b[6..].iter().enumerate() {
        let (low, top) = five_bits(*q, high, i);
        out[i] = d * (f32::from(low) - 16.0);
        out[i + 16] = d * (f32::from(top) - 16.0);
    }
}

fn q5_1(b: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    for (i, q) in b[8..].iter().enumerate() {
        let (low, top) = five_bits(*q, high, i);
        out[i] = d * f32::from(low) + m;
        out[i + 16] = d * f32::from(top) + m;
    }
}

fn five_bits(nibbles: u8, high: u32, i: usize) -> (u8, u8) {
    let bit = |at: usize| ((high >> at) as u8 & 1) << 4;
    ((nibbles & 15) | bit(i), (nibbles >> 4) | bit(i + 16))
}

fn q8_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    for (value, q) in out.iter_mut().zip(&b[2..]) {
        *value = d * f32::from(*q as i8);
    }
}

/// 16 groups of 16 values: 4-bit scales and minima, then 2-bit values in planes of 32 bytes.
fn q2_k(b: &[u8], out: &mut [f32]) {
    let (scales, q) = (&b[..16], &b[16..80]);
    let (d, d_min) = (half_at(b, 80), half_at(b, 82));
    for (i, value) in out.iter_mut().enumerate() {
        let scale = scales[i / 16];
        let bits = (q[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3;
        *value = d * f32::from(scale & 15) * f32::from(bits) - d_min * f32::from(scale >> 4);
    }
}

/// As `q2_k` without minima; a mask gives the third bit and 12 bytes hold sixteen 6-bit scales.
fn q3_k(b: &[u8], out: &mut [f32]) {
    let (mask, q, packed) = (&b[..32], &b[32..96], &b[96..108]);
    let d = half_at(b, 108);
    let mut scales = [0f32; 16];
    for (i, scale) in scales.iter_mut().enumerate() {
        let low = (packed[i % 8] >> (i / 8 * 4)) & 15;
        let high = (packed[8 + i % 4] >> (i / 4 * 2)) & 3;
        *scale = d * (f32::from(low | (high << 4)) - 32.0);
    }
    for (i, value) in out.iter_mut().enumerate() {
        let low = (q[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3;
        let borrow = if (mask[i % 32] >> (i / 32)) & 1 == 1 {
            0.0
        } else {
            4.0
        };
        *value = scales[i / 16] * (f32::from(low) - borrow);
    }
}

/// Eight 6-bit scales and minima in 12 bytes, as `q4_k` and `q5_k` pack them.
fn scale_and_minimum(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, minimum) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let low = packed[group + 4];
        (
            (low & 15) | ((packed[group - 4] >> 6) << 4),
            (low >> 4) | ((packed[group] >> 6) << 4),
        )
    };
    (f32::from(scale), f32::from(minimum))
}

/// Eight groups of 32 values; a plane of 32 bytes holds two groups in its nibbles.
fn q4_k(b: &[u8], out: &mut [f32]) {
    let (d, d_min) = (half_at(b, 0), half_at(b, 2));
    let (packed, q) = (&b[4..16], &b[16..144]);
    for (group, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(packed, group);
        let (scale, minimum) = (d * scale, d_min * minimum);
        let plane = &q[group / 2 * 32..][..32];
        for (value, bits) in values.iter_mut().zip(plane) {
            *value = scale * f32::from((bits >> (group % 2 * 4)) & 15) - minimum;
        }
    }
}

/// As `q4_k`, with a plane of fifth bits in front: bit `group` of byte `i`.
fn q5_k(b: &[u8], out: &mut [f32]) {
    let (d, d_min) = (half_at(b, 0), half_at(b, 2));
    let (packed, high, q) = (&b[4..16], &b[16..48], &b[48..176]);
    for (group, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(packed, group);
        let (scale, minimum) = (d * scale, d_min * minimum);
        let plane = &q[group / 2 * 32..][..32];
        for (i, value) in values.iter_mut().enumerate() {
            let low = (plane[i] >> (group % 2 * 4)) & 15;
            let top = (high[i] >> group) & 1;
            *value = scale * f32::from(low | (top << 4)) - minimum;
        }
    }
}

/// Sixteen groups of 16 with 8-bit scales; low nibbles in planes of 64, top bits in planes of 32.
fn q6_k(b: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = half_at(b, 208);
    for (i, value) in out.iter_mut().enumerate() {
        let nibble = (low[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4)) & 15;
        let top = (high[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3;
        let scale = d * f32::from(scales[i / 16] as i8);
        *value = scale * (f32::from(nibble | (top << 4)) - 32.0);
    }
}

/// An f32 scale, 256 signed bytes, and sums that only dot products need.
fn q8_k(b: &[u8], out: &mut [f32]) {
    let d = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    for (value, q) in out.iter_mut().zip(&b[4..260]) {
        *value = d * f32::from(*q as i8);
    }
}
