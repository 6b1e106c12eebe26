//! Four bits a value in groups with a zero point.
//!
//! The group's whole range gives the integers, and for those the scale is the least-squares fit
//! Σxd/Σd² with d = q − z. Clipping the range makes the squared error smaller still and the model
//! worse: the outliers that it cuts off matter more than they weigh (Qwen2.5-Coder-1.5B in groups
//! of 128, KL against f32: whole range 0.063, fitted 0.060, clipped and fitted 0.075).

use half::f16;
use rayon::prelude::*;

use super::{Packed, TooLargeForF16, finite_f16, inverse};

const LARGEST: f32 = 15.0;
/// Groups that one task takes; even, so that zero points of tasks do not share a byte.
const TASK_GROUPS: usize = 128;

/// Packs groups of `group` values (an even number), which may span rows as they divide them.
pub fn pack(group: usize, values: &[f32]) -> Result<Packed, TooLargeForF16> {
    let groups = values.len() / group;
    let mut data = vec![0; values.len() / 2];
    let mut scales = vec![0; groups * 2];
    let mut zero_points = vec![0; groups.div_ceil(2)];
    data.par_chunks_mut(TASK_GROUPS * group / 2)
        .zip(scales.par_chunks_mut(TASK_GROUPS * 2))
        .zip(zero_points.par_chunks_mut(TASK_GROUPS / 2))
        .zip(values.par_chunks(TASK_GROUPS * group))
        .try_for_each(|(((data, scales), zero_points), values)| {
            for (index, values) in values.chunks_exact(group).enumerate() {
                let data = &mut data[index * group / 2..][..group / 2];
                let (scale, zero) = pack_group(values, data)?;
                scales[index * 2..][..2].copy_from_slice(&scale.to_le_bytes());
                zero_points[index / 2] |= zero << (index % 2 * 4);
            }
            Ok(())
        })?;
    Ok(Packed {
        data,
        scales,
        zero_points,
    })
}

fn pack_group(values: &[f32], data: &mut [u8]) -> Result<(f16, u8), TooLargeForF16> {
    let (low, high) = values
        .iter()
        .fold((0f32, 0f32), |(l, h), v| (l.min(*v), h.max(*v)));
    let mut whole = (high - low) / LARGEST;
    if finite_f16(whole)? == f16::ZERO {
        whole = 0.0;
    }
    let zero = (-low * inverse(whole)).round_ties_even();
    let scale = finite_f16(fitted_scale(values, whole, zero))?;
    let inverse = inverse(scale.to_f32());
    for (byte, pair) in data.iter_mut().zip(values.chunks_exact(2)) {
        let q = |value: f32| quantise(value, inverse, zero) as u8;
        *byte = q(pair[0]) | (q(pair[1]) << 4);
    }
    Ok((scale, zero as u8))
}

/// The best scale for the integers that `scale` and `zero` give.
fn fitted_scale(values: &[f32], scale: f32, zero: f32) -> f32 {
    // Lanes keep the sums independent, so that they are computed side by side.
    const LANES: usize = 8;
    let inverse = inverse(scale);
    let (mut products, mut squares) = ([0f32; LANES], [0f32; LANES]);
    for chunk in values.chunks_exact(LANES) {
        for lane in 0..LANES {
            let d = quantise(chunk[lane], inverse, zero) - zero;
            products[lane] += chunk[lane] * d;
            squares[lane] += d * d;
        }
    }
    let (product, square): (f32, f32) = (products.iter().sum(), squares.iter().sum());
    match square > 0.0 {
        true => product / square,
        false => scale,
    }
}

fn quantise(value: f32, inverse: f32, zero: f32) -> f32 {
    // Adding and taking away 1.5·2²³ rounds to the nearest whole number, ties to even, in two
    // instructions that every processor can do on several values at once.
    const ROUND: f32 = 12_582_912.0;
    ((value * inverse + zero).clamp(0.0, LARGEST) + ROUND) - ROUND
}
