//! What travels between head, stages and tail, byte by byte.
//!
//! Every number is little endian; every reserved byte is zero and refused otherwise. A codec writes
//! into a buffer that the caller reuses and reads into a structure that it reuses, so that a line in
//! its stride allocates nothing. Nothing here knows pools, epochs in force or devices: those are
//! [`crate::stage`]'s checks.
//!
//! # Message
//!
//! The same framing on a worker's pipes and on the step stream between agents.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | length of what follows (kind and payload), 1 to [`MAX_MESSAGE`] |
//! | 4 | 1 | kind, [`MessageKind`]: 1 step, 2 sampled, 3 logits chunk, 4 fault, 16 load, 17 loaded, 18 load failed |
//! | 5 | … | payload |
//!
//! # Step (kind 1)
//!
//! The head sends it to the first stage; every stage sends it on with its hidden states. The sizes of
//! all tables follow from the header, and a payload of any other length is refused.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | line, a random id |
//! | 8 | 8 | epoch |
//! | 16 | 8 | step, from 0, consecutive within an epoch |
//! | 24 | 2 | fixed rows: 0, or each stage pads its rows to a multiple of this (at most 32) |
//! | 26 | 2 | flags: bit 0, some row asks for its logits |
//! | 28 | 1 | how hidden states travel on this line: 0 not at all (one stage), 1 f32, 2 bf16 |
//! | 29 | 3 | zero |
//! | 32 | 4 | hidden width `h`: 0 from the head to the first stage, where no states trail the frame |
//! | 36 | 4 | `n` sequences, at most [`MAX_SEQUENCES`] |
//! | 40 | 4 | `g` of them begin here |
//! | 44 | 4 | `r` rows in all, 1 to [`MAX_ROWS`] |
//! | 48 | 4 | `b` block ids in all, at most [`MAX_FRAME_BLOCKS`] |
//! | 52 | 4 | `m` moves in all, at most [`MAX_MOVES`] |
//! | 56 | 4 | `t` history tokens in all, at most [`MAX_HISTORY`] |
//! | 60 | 4 | zero |
//! | 64 | 32 n | sequences |
//! | … | 56 g | sampling parameters of the sequences that begin, in order |
//! | … | 12 r | rows, sequence by sequence |
//! | … | 4 b | block ids (u32), sequence by sequence |
//! | … | 8 m | moves, sequence by sequence |
//! | … | 4 t | history tokens (u32), sequence by sequence |
//! | … | r·h·size | hidden states `[r, h]`, row by row, of the size that byte 28 says |
//!
//! Sequence, 32 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | sequence id |
//! | 8 | 4 | first slot: KV slots before this step; row `i` is written to slot `first + i` |
//! | 12 | 4 | rows (0 only when the sequence ends) |
//! | 16 | 4 | block ids: the whole table of the sequence, at most [`MAX_BLOCKS`]; slot `s` is in entry `s / 32` |
//! | 20 | 4 | moves |
//! | 24 | 4 | history tokens; 0 unless it begins, then as many as `first slot` |
//! | 28 | 1 | flags: bit 0, it begins here; bit 1, forget it after this step |
//! | 29 | 3 | zero |
//!
//! Sampling, 56 bytes: seed u64, choice u32, temperature f32, top_k u32, top_p f32, min_p f32,
//! repetition penalty f32, presence penalty f32, frequency penalty f32, penalty window u32, top (how
//! many alternatives to report, at most [`MAX_TOP`]) u32, 8 zero bytes.
//!
//! Row, 12 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | token |
//! | 4 | 4 | absolute position: that of its parent plus one, or `first slot` |
//! | 8 | 2 | parent: index of an earlier row of this sequence, or 0xFFFF for the committed prefix |
//! | 10 | 1 | flags: bit 0, sample here; bit 1, return the logits (only with bit 0) |
//! | 11 | 1 | zero |
//!
//! Move, 8 bytes: from slot u32, to slot u32, both counted from the sequence's start; a stage copies
//! the KV content in this order before it runs the rows.
//!
//! # Sampled (kind 2)
//!
//! The tail sends one for every step, also when nothing was sampled, straight to the head.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | line |
//! | 8 | 8 | epoch |
//! | 16 | 8 | step |
//! | 24 | 4 | `n` sequences with samples |
//! | 28 | 4 | `s` samples in all, at most [`MAX_ROWS`] |
//! | 32 | 4 | `a` alternatives in all, at most `s` times [`MAX_TOP`] |
//! | 36 | 4 | zero |
//! | 40 | 16 n | sequence id u64, samples u32, zero u32 |
//! | … | 16 s | row u16 (within its sequence), alternatives u16, position u32 (of the row), token u32, logprob f32 |
//! | … | 8 a | token u32, logprob f32, best first |
//!
//! # Logits chunk (kind 3, debug)
//!
//! Sent by the tail before the step's sampled frame, only where its owner allows it.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | line |
//! | 8 | 8 | epoch |
//! | 16 | 8 | step |
//! | 24 | 8 | sequence id |
//! | 32 | 4 | row (within its sequence) |
//! | 36 | 4 | position |
//! | 40 | 4 | vocabulary size |
//! | 44 | 4 | offset of the first value in the vocabulary |
//! | 48 | 4 | `v` values, 1 to [`MAX_CHUNK`] |
//! | 52 | 4 | zero |
//! | 56 | 4 v | values f32 |
//!
//! # Fault (kind 4)
//!
//! UTF-8 text for people, at most [`MAX_FAULT`] bytes; the line cannot go on.

mod bytes;
mod error;
mod hidden;
mod logits;
mod message;
mod sampled;
mod step;
mod step_codec;

pub(crate) use step::chain_parent;

pub use error::FrameError;
pub use hidden::{HiddenType, bf16_from_f32, f32_from_bf16, first_not_finite};
pub use logits::{LogitsChunk, decode_fault, encode_fault};
pub use message::{MessageHeader, MessageKind, Messages, begin_message, end_message};
pub use sampled::{Sample, SampledFrame, SampledSequence};
pub use step::{Move, NO_PARENT, Row, SequenceBegin, SequenceRows, StepFrame};

/// Largest message, kind included: 4,096 rows of 8,192 bf16 values, and half as much again.
pub const MAX_MESSAGE: usize = 96 << 20;
/// Most rows of a step: far past where a larger chunk makes prefill faster, and below a parent index.
pub const MAX_ROWS: usize = 4096;
/// Most sequences of a step: those that run, and those that end with it.
pub const MAX_SEQUENCES: usize = 256;
/// Most blocks of one sequence: 262,144 tokens, twice the longest context of the families we import.
pub const MAX_BLOCKS: usize = 8192;
/// Most block ids of a step over all sequences, which also bounds a pool: 256 KiB of ids.
pub const MAX_FRAME_BLOCKS: usize = 65_536;
/// Most slot moves of a step: one for every row that a tree of the step before may have had.
pub const MAX_MOVES: usize = MAX_ROWS;
/// Most history tokens of a step: one sequence of the longest kind.
pub const MAX_HISTORY: usize = MAX_BLOCKS * crate::engine::BLOCK_SLOTS as usize;
/// Most alternatives of one sample; APIs offer 20.
pub const MAX_TOP: usize = 32;
/// Most values of one logits chunk: 64 KiB, so that a debug frame never holds up a step for long.
pub const MAX_CHUNK: usize = 16_384;
/// Longest fault text, in bytes.
pub const MAX_FAULT: usize = 4096;
/// Largest `fixed_rows`: padding must fit into the one scratch block.
pub const MAX_FIXED_ROWS: u16 = crate::engine::BLOCK_SLOTS as u16;

#[cfg(test)]
mod tests;
