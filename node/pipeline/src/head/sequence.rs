//! One request that runs.

use std::collections::VecDeque;

use super::{FinishReason, HeadEvent, Request};
use crate::{frame::Sample, kv::BlockTable};

pub(super) struct Sequence {
    pub request: Request,
    /// Prompt and answer so far.
    pub tokens: Vec<u32>,
    /// Tokens of the answer so far.
    pub answered: usize,
    /// Most tokens of the answer, the context considered.
    pub limit: usize,
    /// How many of `tokens` have been put into frames in this epoch.
    pub fed: usize,
    /// Frames in flight with rows of it.
    pub in_flight: usize,
    /// Grows with every part of a frame that anyone gets: who has waited longest.
    pub last_turn: u64,
    /// Whether the tail of this epoch knows it.
    pub begun: bool,
    /// Its last event is out; it waits for its frames.
    pub finished: bool,
    pub table: BlockTable,
}

impl Sequence {
    pub fn new(mut request: Request, limit: usize, table: BlockTable) -> Self {
        Self {
            tokens: std::mem::take(&mut request.prompt),
            request,
            answered: 0,
            limit,
            fed: 0,
            in_flight: 0,
            last_turn: 0,
            begun: false,
            finished: false,
            table,
        }
    }

    /// Tokens that have not been put into a frame.
    pub fn unfed(&self) -> usize {
        self.tokens.len() - self.fed
    }

    /// Whether one row continues it: all but its newest token is computed.
    pub fn decodes(&self) -> bool {
        !self.finished && self.fed > 0 && self.unfed() == 1 && self.answered > 0
    }

    /// Whether part of its tokens still has to be computed in chunks.
    pub fn prefills(&self) -> bool {
        !self.finished && self.unfed() > 0 && !self.decodes()
    }

    /// Forgets what was computed, for a new epoch.
    pub fn rewind(&mut self) {
        self.fed = 0;
        self.in_flight = 0;
        self.last_turn = 0;
        self.begun = false;
    }

    /// Takes the next token; returns why the answer ends, if it does.
    pub fn accept(
        &mut self,
        sample: Sample<'_>,
        events: &mut VecDeque<HeadEvent>,
    ) -> Option<FinishReason> {
        if self.finished {
            return None;
        }
        if self.answered == self.limit {
            return Some(FinishReason::Length);
        }
        if self.request.stop_ids.contains(&sample.token) {
            return Some(FinishReason::Stop);
        }
        events.push_back(HeadEvent::Token {
            request: self.request.id,
            index: self.answered,
            token: sample.token,
            logprob: sample.logprob,
            top: sample.top.to_vec(),
        });
        self.answered += 1;
        self.tokens.push(sample.token);
        (self.answered == self.limit).then_some(FinishReason::Length)
    }
}
