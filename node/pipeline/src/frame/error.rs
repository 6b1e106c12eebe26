use thiserror::Error;

/// Why bytes are not a frame, or a frame cannot be run here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The bytes end early or go on too long.
    #[error("frame has {got} bytes, its header says {needed}")]
    Length {
        /// Bytes that the header asks for, as far as it could be read.
        needed: u64,
        /// Bytes there are.
        got: u64,
    },
    /// A count is over its limit.
    #[error("frame has {count} {what}, the limit is {limit}")]
    TooMany {
        /// What was counted.
        what: &'static str,
        /// How many there were.
        count: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A field has a value that no sender of this protocol writes.
    #[error("malformed frame: {0}")]
    Malformed(&'static str),
    /// A message kind that is not known.
    #[error("unknown message kind {0}")]
    Kind(u8),
    /// A hidden state is infinite or not a number.
    #[error("hidden state of row {row} is not finite")]
    NotFinite {
        /// First such row.
        row: usize,
    },
    /// The frame belongs to another line.
    #[error("frame of line {got:016x}, this is line {line:016x}")]
    Line {
        /// The line that the frame names.
        got: u64,
        /// The line that was set up here.
        line: u64,
    },
    /// The frame comes from before the fence.
    #[error("frame of epoch {got}, epoch {current} has begun")]
    StaleEpoch {
        /// Epoch of the frame.
        got: u64,
        /// Epoch in force.
        current: u64,
    },
    /// A step is missing or came twice.
    #[error("step {got} of epoch {epoch} arrived where step {expected} was due")]
    Step {
        /// Epoch of the frame.
        epoch: u64,
        /// Step of the frame.
        got: u64,
        /// Step that was due.
        expected: u64,
    },
    /// A sequence's rows, blocks or moves contradict each other or this stage.
    #[error("sequence {sequence}: {what} ({value}, limit {limit})")]
    Sequence {
        /// The sequence's id.
        sequence: u64,
        /// What is wrong.
        what: &'static str,
        /// The offending value.
        value: u64,
        /// What it must stay below, or should have been.
        limit: u64,
    },
}

/// `count` as a number of `what` if it is at most `limit`.
pub(super) fn bounded(what: &'static str, count: u64, limit: usize) -> Result<usize, FrameError> {
    if count > limit as u64 {
        return Err(FrameError::TooMany {
            what,
            count,
            limit: limit as u64,
        });
    }
    Ok(count as usize)
}
