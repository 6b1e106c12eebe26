//! Noise that depends on nothing but what is sampled: seed, choice, position, token.
//!
//! A Gumbel variate `-ln(-ln u)` is added to each scaled logit and the largest sum wins, which draws
//! from the softmax (Gumbel 1954; the "Gumbel-max trick"). Because the variate is a pure function of
//! its key, it does not matter which machine samples, in which order, or whether a draft sampled the
//! position before: the same logits give the same token.
//!
//! Integers are mixed by the finaliser of SplitMix64 (Steele, Lea, Flood 2014); logarithms are
//! `libm`'s, compiled from Rust, so that every platform gets the same bits.

/// The noise of all tokens at one position of one choice of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    key: u64,
}

/// SplitMix64's increment: the golden ratio in 64 bits.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl Noise {
    /// Noise for the token that will stand at `position`.
    pub fn new(seed: u64, choice: u32, position: u32) -> Self {
        let place = (u64::from(choice) << 32) | u64::from(position);
        // Mixed once more, so that neighbouring positions do not share a SplitMix64 stream.
        let start = mix(seed.wrapping_add(GOLDEN));
        let key = mix(start.wrapping_add(place.wrapping_add(1).wrapping_mul(GOLDEN)));
        Self { key }
    }

    fn bits(self, token: u32) -> u64 {
        let count = u64::from(token) + 1;
        mix(self.key.wrapping_add(count.wrapping_mul(GOLDEN)))
    }

    /// The token's variate.
    pub fn gumbel(self, token: u32) -> f64 {
        gumbel(self.bits(token))
    }

    /// The token's variate if its class, from [`CLASS_BOUNDS`], is one that may still win; a class
    /// costs no logarithm.
    pub fn gumbel_if(self, token: u32, may_win: impl FnOnce(usize) -> bool) -> Option<f64> {
        let bits = self.bits(token);
        may_win(bits.leading_ones() as usize).then(|| gumbel(bits))
    }
}

/// What a variate cannot exceed, by the leading ones of its hash.
///
/// `-ln u >= 1 - u`, hence the variate is at most `-ln(1 - u)`; and with `k` leading ones `1 - u` is
/// at least `2^-(k + 1)`, which makes that `(k + 1) ln 2`.
pub static CLASS_BOUNDS: [f64; CLASSES] = {
    let mut bounds = [0.0; CLASSES];
    let mut ones = 0;
    while ones < CLASSES {
        bounds[ones] = (ones + 1) as f64 * std::f64::consts::LN_2;
        ones += 1;
    }
    bounds
};

/// Numbers of leading ones that 64 bits may have.
pub const CLASSES: usize = 65;

fn gumbel(bits: u64) -> f64 {
    // 52 bits and a half: strictly between 0 and 1, and exact.
    let uniform = ((bits >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64);
    -libm::log(-libm::log(uniform))
}

fn mix(mut bits: u64) -> u64 {
    bits ^= bits >> 30;
    bits = bits.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits ^= bits >> 27;
    bits = bits.wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests;
