//! The pipeline without its wires: head, stage and tail as state machines.
//!
//! Bytes and structures go in and come out; nothing here waits, opens, connects or reads a clock, so
//! that a test can drive a whole line in simulated time.

pub mod engine;
