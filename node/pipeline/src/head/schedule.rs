//! The next frame: who is admitted, who gets rows.

use std::ops::Range;

use super::{Head, MAX_ACTIVE, Sequence};
use crate::frame::{
    MAX_SEQUENCES, Row, SampledFrame, SequenceBegin, SequenceRows, StepFrame, chain_parent,
};

/// A frame on its way.
pub(super) struct Flight {
    pub step: u64,
    pub parts: Vec<FlightPart>,
}

/// One sequence in a frame on its way.
pub(super) struct FlightPart {
    pub sequence: u64,
    first_slot: u32,
    /// Rows that are sampled.
    pub sampled: Range<u16>,
    /// Whether the last sample is the sequence's next token.
    pub continues: bool,
}

impl Flight {
    /// Whether `answer` has exactly the samples that the frame asked for.
    pub fn is_answered_by(&self, answer: &SampledFrame) -> bool {
        let mut answers = answer.sequences();
        let parts = self.parts.iter().filter(|part| !part.sampled.is_empty());
        let each = parts.into_iter().all(|part| {
            answers.next().is_some_and(|answer| {
                answer.sequence == part.sequence
                    && answer
                        .samples()
                        .map(|sample| (sample.row, sample.position))
                        .eq(part
                            .sampled
                            .clone()
                            .map(|row| (row, part.first_slot + u32::from(row))))
            })
        });
        each && answers.next().is_none()
    }
}

impl Head {
    /// The next frame to send to the first stage, or nothing: no rows are due, or enough frames are
    /// in flight. A frame that was returned counts as sent.
    pub fn next_frame(&mut self) -> Option<&StepFrame> {
        if self.in_flight.len() >= self.config.max_in_flight {
            return None;
        }
        self.admit();
        let most_rows = match self.config.fixed_rows {
            Some(fixed) => self.config.max_rows.min(fixed.into()),
            None => self.config.max_rows,
        };
        self.frame.clear();
        self.frame.line = self.config.line;
        self.frame.epoch = self.config.epoch;
        self.frame.step = self.next_step;
        self.frame.fixed_rows = self.config.fixed_rows.unwrap_or(0);
        self.frame.hidden = self.config.hidden;
        let mut parts = Vec::new();
        self.add_decodes(
            most_rows - self.rows_kept_for_prompts(most_rows),
            &mut parts,
        );
        self.add_prefills(most_rows, &mut parts);
        if parts.is_empty() {
            return None;
        }
        self.add_ends();
        self.in_flight.push_back(Flight {
            step: self.next_step,
            parts,
        });
        self.next_step += 1;
        Some(&self.frame)
    }

    /// Lets waiting requests in, strictly in order, as long as their worst case fits.
    fn admit(&mut self) {
        while self.active.len() < MAX_ACTIVE
            && let Some(request) = self.waiting.front()
        {
            let slots = self.slots_for(request);
            let Some(table) = self.pool.open(slots) else {
                return;
            };
            let Some(request) = self.waiting.pop_front() else {
                return;
            };
            let room = self.config.context as usize - request.prompt.len();
            let limit = request.max_tokens.min(room);
            self.active
                .insert(self.next_sequence, Sequence::new(request, limit, table));
            self.next_sequence += 1;
        }
    }

    /// Rows that decoding leaves to prompts while there are any, so that many decoders cannot keep a
    /// prompt out for good: a quarter, or where that is less than any sequence needs, all that one
    /// needs in every other frame.
    fn rows_kept_for_prompts(&self, most_rows: usize) -> usize {
        let needed = 1 + usize::from(self.config.fixed_rows.is_some());
        if !self.active.values().any(Sequence::prefills) {
            0
        } else if most_rows / 4 >= needed {
            most_rows / 4
        } else if self.next_step.is_multiple_of(2) {
            needed
        } else {
            0
        }
    }

    /// Rows of sequences that decode, those first that have waited longest; no more than their share
    /// of the frames that the line can work on at once.
    fn add_decodes(&mut self, most_rows: usize, parts: &mut Vec<FlightPart>) {
        let mut decoding = 0usize;
        self.ready.clear();
        for (id, sequence) in &self.active {
            if sequence.finished || sequence.answered == 0 {
                continue;
            }
            decoding += 1;
            if sequence.decodes() && sequence.in_flight == 0 {
                self.ready.push((sequence.last_turn, *id));
            }
        }
        self.ready.sort_unstable();
        let share = decoding.div_ceil(self.config.stages.min(self.config.max_in_flight));
        for index in 0..self.ready.len().min(share) {
            let id = self.ready[index].1;
            if !self.add_rows(id, most_rows, parts) {
                return;
            }
        }
    }

    /// Chunks of sequences that prefill, in the order of admission, in what room is left.
    fn add_prefills(&mut self, most_rows: usize, parts: &mut Vec<FlightPart>) {
        self.ready.clear();
        let prefilling = self
            .active
            .iter()
            .filter(|(_, sequence)| sequence.prefills());
        self.ready.extend(prefilling.map(|(id, _)| (0, *id)));
        for index in 0..self.ready.len() {
            let id = self.ready[index].1;
            if !self.add_rows(id, most_rows, parts) {
                return;
            }
        }
    }

    /// Adds as many unfed tokens of a sequence as there is room for; false if there is none.
    fn add_rows(&mut self, id: u64, most_rows: usize, parts: &mut Vec<FlightPart>) -> bool {
        let room = most_rows - self.frame.rows().len();
        let exact = self.config.fixed_rows.is_some();
        if room < 1 + usize::from(exact) {
            return false;
        }
        let Some(sequence) = self.active.get_mut(&id) else {
            return true;
        };
        let count = sequence.unfed().min(room);
        // `exact` wants two rows at least: feed the token before again, or follow a lone first token
        // with a copy of it whose slot the next step overwrites.
        let again = usize::from(exact && count == 1 && sequence.fed > 0);
        let dummy = usize::from(exact && count == 1 && sequence.fed == 0);
        let first = sequence.fed - again;
        let end = sequence.fed + count;
        let complete = end == sequence.tokens.len();
        let collects = sequence.request.collect_logits;
        let sampled = if collects {
            again..again + count
        } else if complete {
            again + count - 1..again + count
        } else {
            0..0
        };
        self.rows.clear();
        for index in 0..again + count + dummy {
            let flags = match (sampled.contains(&index), collects) {
                (true, true) => Row::SAMPLE | Row::LOGITS,
                (true, false) => Row::SAMPLE,
                (false, _) => 0,
            };
            self.rows.push(Row {
                token: sequence.tokens[(first + index).min(end - 1)],
                position: (first + index) as u32,
                parent: chain_parent(index),
                flags,
            });
        }
        let grown = self.pool.grow(&mut sequence.table, first + self.rows.len());
        debug_assert!(grown, "admission reserved what a sequence may need");
        let pushed = self.frame.push(SequenceRows {
            sequence: id,
            first_slot: first as u32,
            blocks: sequence.table.blocks(),
            moves: &[],
            rows: &self.rows,
            begin: (!sequence.begun).then_some(SequenceBegin {
                history: &[],
                sampling: sequence.request.sampling,
            }),
            end: false,
        });
        debug_assert!(
            pushed.is_ok(),
            "the head's own limits are below the frame's"
        );
        if !grown || pushed.is_err() {
            return false;
        }
        sequence.begun = true;
        sequence.fed = end;
        sequence.in_flight += 1;
        sequence.last_turn = self.next_turn;
        self.next_turn += 1;
        parts.push(FlightPart {
            sequence: id,
            first_slot: first as u32,
            sampled: sampled.start as u16..sampled.end as u16,
            continues: complete,
        });
        true
    }

    /// Tells the tail which sequences to forget.
    fn add_ends(&mut self) {
        while self.frame.sequences().len() < MAX_SEQUENCES
            && let Some(sequence) = self.ended.pop_front()
        {
            let pushed = self.frame.push(SequenceRows {
                sequence,
                first_slot: 0,
                blocks: &[],
                moves: &[],
                rows: &[],
                begin: None,
                end: true,
            });
            debug_assert!(pushed.is_ok(), "an end takes no room but its own");
        }
    }
}
