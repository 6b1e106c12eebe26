//! What a line costs in time, in whole femtoseconds so that comparisons are exact.
//!
//! - A stage's *step time* is the bytes it reads for one token ([`ModelShape::read_bytes`])
//!   times the device's measured time per byte. Reading the KV cache is left out.
//! - A line of several machines is a loop (head, …, tail, head). With one round trip `r` per
//!   peer, measured from the asker, the way between two peers is taken as `(r₁ + r₂) / 4`, the
//!   way over the asker, so that each machine adds `r / 2` for each of its two ends, and
//!   [`HOP_FS`] for handling the frame. A line of one machine has no loop.
//! - A head that is not the asker adds half its round trip and one [`HOP_FS`], for the way of
//!   the tokens to the asker.
//! - A segment that has yet to be pulled adds [`PULL_FS_PER_BYTE`] a byte.
//!
//! [`ModelShape::read_bytes`]: crate::ModelShape::read_bytes

/// Femtoseconds of one millisecond.
const FS_PER_MS: f64 = 1e12;
const FS_PER_S: u64 = 1_000_000_000_000_000;

/// Handling of one frame at one machine outside compute: two sockets, two pipes.
pub const HOP_FS: u128 = 200_000_000_000;

/// Pulling a byte over a gigabit link takes 8 ns; spread over the 4,096 tokens that a line is
/// expected to produce at least, so that holding segments already decides between near equals.
pub const PULL_FS_PER_BYTE: u128 = 8_000_000 / 4_096;

/// Speed assumed of a device that was never measured: slower than any measured one, so that
/// it is used only where it is needed.
pub const UNMEASURED_BYTES_PER_S: u64 = 1_000_000_000;

/// A round trip longer than this counts as this: such a peer is the last choice anyway.
const LONGEST_RTT_MS: f64 = 60_000.0;

/// Femtoseconds a device takes per byte.
pub fn fs_per_byte(bytes_per_s: u64) -> u128 {
    let speed = if bytes_per_s == 0 {
        UNMEASURED_BYTES_PER_S
    } else {
        bytes_per_s
    };
    u128::from((FS_PER_S / speed).max(1))
}

/// A round trip in femtoseconds; anything that is no duration counts as the longest one.
pub fn rtt_fs(rtt_ms: f64) -> u128 {
    let valid = if rtt_ms.is_nan() || rtt_ms < 0.0 {
        LONGEST_RTT_MS
    } else {
        rtt_ms.min(LONGEST_RTT_MS)
    };
    (valid * FS_PER_MS).round() as u128
}

/// For people and for estimates.
pub fn as_ms(fs: u128) -> f64 {
    fs as f64 / FS_PER_MS
}
