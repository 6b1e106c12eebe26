//! A fake engine and a line in simulated time, for tests of this and other crates.
//!
//! [`FakeEngine`] has a KV memory that really holds what was written, and its output depends on all
//! that it reads. [`SimulatedLine`] drives a head and any [`Link`]s through encoded bytes; a link is
//! a [`crate::StageRunner`] over any engine, or a process at the other end of a pipe. [`Mutation`]
//! corrupts frames or inputs, to show that a test would notice.

mod fake_engine;
mod line;
mod mutation;

pub use fake_engine::{FakeEngine, FakeError, FakeModel};
pub use line::{Answer, LineError, Link, Outcome, Script, Sent, SimulatedLine, Timing};
pub use mutation::{MutatingEngine, Mutation};

/// A small generator for tests whose choices must be the same everywhere (SplitMix64).
#[derive(Clone, Debug)]
pub struct Seeded(pub u64);

impl Seeded {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number in a range that is not empty.
    pub fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.bits() % (range.end - range.start)
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// Order matters: `fold(fold(a, b), c)` is not `fold(fold(a, c), b)`.
fn fold(state: u64, value: u64) -> u64 {
    mix(state.rotate_left(17).wrapping_mul(5) ^ mix(value.wrapping_add(0x9E37_79B9_7F4A_7C15)))
}
