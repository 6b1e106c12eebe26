//! Skein, the product: the agent that runs on every machine of a fleet, and the command line that
//! talks to it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`agent`] | the daemon: network, store, lines, requests |
//! | [`line`] | the line protocol, the head's loop and the stage's side |
//! | [`host`], [`worker`] | the two ends of a worker process |
//! | [`wire`] | the envelope of every message |
//! | [`demo`] | a fleet on one machine |
//! | [`cli`] | the command line: one file per verb |
//! | [`control`] | the local channel between the command line and a running agent |
//! | [`local`] | what can be done with or without an agent: models, membership, the machine's check-up |
//! | [`objects`] | what `--json` prints |
//! | [`output`] | tables, progress bars and streamed text for people |
//! | [`paths`], [`settings`] | where an agent keeps its files, and how its owner set it up |
//! | [`error`] | error codes, exit codes, facts and hints |
//! | [`platform`] | what differs between operating systems |

pub mod agent;
pub mod cli;
pub mod control;
pub mod demo;
pub mod error;
pub mod host;
pub mod line;
pub mod local;
pub mod objects;
pub mod output;
pub mod paths;
pub mod platform;
pub mod settings;
pub mod wire;
pub mod worker;
