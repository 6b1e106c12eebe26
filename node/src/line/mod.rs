//! A line: the machines that carry one model together, from the offer to the last token.
//!
//! | module | what it holds |
//! |---|---|
//! | [`messages`] | the line protocol |
//! | [`build`] | the head's side: offer, commit, connect, watch |
//! | [`stage`] | a stage's side: reserve, prepare, serve |
//! | [`head`] | the loop that feeds requests through a line |
//! | [`inbox`] | the read half of a control stream |
//! | [`hops`], [`relay`] | streams that carry step frames |
//!
//! Deliberately not here: what a frame says (`skein_pipeline`) and who is in the line (`skein_planner`).

pub mod build;
pub mod head;
pub mod hops;
pub mod inbox;
pub mod messages;
pub mod relay;
pub mod stage;
