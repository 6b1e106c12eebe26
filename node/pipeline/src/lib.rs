//! The pipeline without its wires: head, stage and tail as state machines.
//!
//! A request becomes rows in frames ([`head`]), frames become a device's inputs ([`stage`],
//! [`engine`]), logits become tokens ([`tail`], [`sample`], [`noise`]), tokens' bytes become text
//! ([`text`]). Bytes and structures go in and come out. Nothing here waits, opens, connects or reads
//! a clock, so that a test drives a whole line in simulated time (feature `testing`).
//!
//! | module | one end | other end |
//! |---|---|---|
//! | [`frame`] | what travels, byte by byte | |
//! | [`head`] | requests, cancels, samples | step frames, events |
//! | [`kv`] | the head's block table | |
//! | [`stage`] | a step frame | an engine's inputs |
//! | [`engine`] | the trait that a device implements | |
//! | [`tail`] | a step frame and logits | samples |
//! | [`runner`] | a step's bytes | the bytes for the next stage, or the head |

pub mod engine;
pub mod frame;
pub mod head;
pub mod kv;
pub mod noise;
pub mod runner;
pub mod sample;
pub mod stage;
pub mod tail;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;

pub use engine::{BLOCK_SLOTS, Engine, SlotMove, StepInputs};
pub use head::{
    FinishReason, Head, HeadConfig, HeadConfigError, HeadEvent, ProtocolError, Request, RequestId,
    SubmitError,
};
pub use runner::{RunError, StageRunner};
pub use sample::{Sampling, SamplingError};
pub use stage::{Stage, StageConfig};
pub use tail::Tail;
pub use text::Utf8Assembler;
