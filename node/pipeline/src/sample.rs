//! From a row of logits to a token.
//!
//! Greedy at temperature 0; otherwise the largest of `logit / temperature + Gumbel`, see
//! [`crate::noise`]. Filters and penalties have their fields here and on the wire, and are refused
//! until they do something.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    frame::MAX_TOP,
    noise::{CLASS_BOUNDS, CLASSES, Noise},
};

/// How the tokens of a sequence are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Seed of the request's noise.
    pub seed: u64,
    /// Which of several answers to one request this is.
    pub choice: u32,
    /// 0 is greedy; finite, not negative.
    pub temperature: f32,
    /// Keep this many of the most probable tokens; 0 is all. Not honoured yet.
    pub top_k: u32,
    /// Keep the most probable tokens up to this mass; 1 is all. Not honoured yet.
    pub top_p: f32,
    /// Drop tokens below this fraction of the most probable one; 0 is none. Not honoured yet.
    pub min_p: f32,
    /// Divides the logits of tokens seen before; 1 is off. Not honoured yet.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens seen before; 0 is off. Not honoured yet.
    pub presence_penalty: f32,
    /// Subtracted once for each time a token was seen; 0 is off. Not honoured yet.
    pub frequency_penalty: f32,
    /// How many of the last tokens the penalties look at; 0 is all. Not honoured yet.
    pub penalty_window: u32,
    /// How many of the most probable tokens to report with each sample, at most [`MAX_TOP`].
    pub top: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            seed: 0,
            choice: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 0,
            top: 0,
        }
    }
}

/// Parameters that cannot be honoured.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum SamplingError {
    /// The temperature is negative, infinite or not a number.
    #[error("temperature {0} is not a finite number of at least 0")]
    Temperature(f32),
    /// The parameter is not honoured by this version.
    #[error("{0} is not supported yet")]
    Unsupported(&'static str),
    /// More alternatives than [`MAX_TOP`].
    #[error("{0} alternatives asked for, the limit is {MAX_TOP}")]
    Top(u32),
}

/// The logits of a row are not numbers to choose by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("logits are not finite")]
pub struct NotFinite;

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: u32,
    /// Its log-probability under the softmax of the logits, without temperature.
    pub logprob: f32,
}

impl Sampling {
    /// Checks that every parameter is in range and honoured.
    pub fn validate(&self) -> Result<(), SamplingError> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(SamplingError::Temperature(self.temperature));
        }
        let off = Self::default();
        let unsupported = [
            ("top_k", self.top_k == off.top_k),
            ("top_p", self.top_p == off.top_p),
            ("min_p", self.min_p == off.min_p),
            (
                "repetition_penalty",
                self.repetition_penalty == off.repetition_penalty,
            ),
            (
                "presence_penalty",
                self.presence_penalty == off.presence_penalty,
            ),
            (
                "frequency_penalty",
                self.frequency_penalty == off.frequency_penalty,
            ),
            ("penalty_window", self.penalty_window == off.penalty_window),
        ];
        if let Some((name, _)) = unsupported.iter().find(|(_, is_off)| !is_off) {
            return Err(SamplingError::Unsupported(name));
        }
        if self.top as usize > MAX_TOP {
            return Err(SamplingError::Top(self.top));
        }
        Ok(())
    }

    /// Chooses the token that will stand at `position` from the logits before it.
    ///
    /// Among equals the lowest id wins. Allocates nothing.
    pub fn choose(&self, logits: &[f32], position: u32) -> Result<Chosen, NotFinite> {
        let best = largest(logits)?;
        let token = if self.temperature == 0.0 {
            best
        } else {
            let noise = Noise::new(self.seed, self.choice, position);
            largest_with_noise(logits, self.temperature, best, noise)
        };
        let normaliser = log_sum_exp(logits, logits[best])?;
        Ok(Chosen {
            token: token as u32,
            logprob: logprob(logits[token], normaliser),
        })
    }

    /// Writes the `self.top` most probable tokens and their log-probabilities to the front of
    /// `list`, best first, and returns how many those are.
    pub fn most_probable(
        &self,
        logits: &[f32],
        list: &mut [(u32, f32); MAX_TOP],
    ) -> Result<usize, NotFinite> {
        let wanted = (self.top as usize).min(MAX_TOP).min(logits.len());
        if wanted == 0 {
            return Ok(0);
        }
        let mut found = 0;
        for (token, logit) in logits.iter().enumerate() {
            if found == wanted && *logit <= list[wanted - 1].1 {
                continue;
            }
            let at = list[..found].partition_point(|(_, other)| other >= logit);
            found = (found + 1).min(wanted);
            list[at..found].rotate_right(1);
            list[at] = (token as u32, *logit);
        }
        let normaliser = log_sum_exp(logits, list[0].1)?;
        for (_, value) in &mut list[..found] {
            *value = logprob(*value, normaliser);
        }
        Ok(found)
    }
}

fn logprob(logit: f32, normaliser: f64) -> f32 {
    (f64::from(logit) - normaliser) as f32
}

/// Index of the largest logit, the lowest among equals.
fn largest(logits: &[f32]) -> Result<usize, NotFinite> {
    // Lane by lane for wide registers; a maximum does not depend on the order.
    let (groups, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for group in groups {
        for (lane, logit) in lanes.iter_mut().zip(group) {
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    let most = lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max);
    if !most.is_finite() {
        return Err(NotFinite);
    }
    logits
        .iter()
        .position(|logit| *logit == most)
        .ok_or(NotFinite)
}

fn largest_with_noise(logits: &[f32], temperature: f32, best: usize, noise: Noise) -> usize {
    let temperature = f64::from(temperature);
    let scaled = |token: usize| f64::from(logits[token]) / temperature;
    let mut winner = best;
    let mut score = scaled(best) + noise.gumbel(best as u32);
    let mut needed = needed_logits(score, temperature);
    for (token, logit) in logits.iter().enumerate() {
        let may_win = |class: usize| *logit >= needed[class];
        let Some(gumbel) = noise.gumbel_if(token as u32, may_win) else {
            continue;
        };
        let sum = scaled(token) + gumbel;
        if sum > score || (sum == score && token < winner) {
            score = sum;
            winner = token;
            needed = needed_logits(score, temperature);
        }
    }
    winner
}

/// For each class of noise, the logit below which no token can reach `score`.
///
/// Lower than exact by far more than the roundings here and in the sum, so that every token left out
/// would have lost.
fn needed_logits(score: f64, temperature: f64) -> [f32; CLASSES] {
    let mut needed = [0.0; CLASSES];
    for (needed, bound) in needed.iter_mut().zip(&CLASS_BOUNDS) {
        let exact = (score - bound) * temperature;
        let margin = (score.abs() + bound) * temperature * 1e-6;
        *needed = (exact - margin) as f32;
    }
    needed
}

/// `ln(sum(exp(logits)))`; `most` is the largest of them.
fn log_sum_exp(logits: &[f32], most: f32) -> Result<f64, NotFinite> {
    let mut sum = 0f64;
    // In f32 for a while, lane by lane for wide registers; the order of additions is written out and
    // therefore the same everywhere.
    for block in logits.chunks(64 * LANES) {
        let (groups, rest) = block.as_chunks::<LANES>();
        let mut lanes = [0f32; LANES];
        for group in groups {
            for (lane, logit) in lanes.iter_mut().zip(group) {
                *lane += exp_of_negative(logit - most);
            }
        }
        sum += lanes.iter().map(|lane| f64::from(*lane)).sum::<f64>();
        for logit in rest {
            sum += f64::from(exp_of_negative(logit - most));
        }
    }
    // The largest contributes 1, so anything else means that a logit was not a number.
    if sum >= 0.999 {
        Ok(f64::from(most) + libm::log(sum))
    } else {
        Err(NotFinite)
    }
}

const LANES: usize = 16;

/// `exp(x)` for `x <= 0`, within 3e-7 of it; 0 below -87, and NaN for NaN.
///
/// `exp(x) = 2^n · exp(r)` with `n` the nearest integer to `x / ln 2`; `exp(r)` by its Taylor series
/// to degree 6 (`|r| <= 0.347`: the first term left out is below 1.2e-7). Additions and
/// multiplications only, so that it is bit-identical everywhere and fits into wide registers.
fn exp_of_negative(x: f32) -> f32 {
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 · 2^23 rounds to an integer and leaves it in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    // Not `max`, which would lose a NaN.
    let bounded = if x < -87.0 { -87.0 } else { x };
    let rounded = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (bounded - n * LN2_HIGH) - n * LN2_LOW;
    let mut series = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + coefficient;
    }
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
    if x < -87.0 { 0.0 } else { series * power }
}

#[cfg(test)]
mod tests;
