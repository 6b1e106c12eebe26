//! Checks the inputs of a step against each other and against the stage.
//!
//! OpenVINO trusts these lists: a wrong length or index reads or writes memory that is not its own,
//! or gives wrong numbers without an error. Everything that crosses the bridge passes here first.

use skein_pipeline::engine::{BLOCK_SLOTS, StepInputs};

/// Why a step was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// A list has the wrong length.
    #[error("{list} has {found} entries instead of {wanted}")]
    Length {
        /// The field of [`StepInputs`].
        list: &'static str,
        /// Its length.
        found: usize,
        /// The length that the other fields imply.
        wanted: usize,
    },
    /// A list of beginnings does not start at 0, or falls.
    #[error("{list} does not rise from 0")]
    Order {
        /// The field of [`StepInputs`].
        list: &'static str,
    },
    /// A value is out of its range.
    #[error("{list} has {found}, which must be at least 0 and below {limit}")]
    Range {
        /// The field of [`StepInputs`].
        list: &'static str,
        /// The value.
        found: i64,
        /// One more than the largest value that is accepted.
        limit: i64,
    },
    /// A sequence reaches beyond its blocks.
    #[error("sequence {sequence} of the step reaches slot {slots} with {blocks} blocks")]
    Blocks {
        /// Index within the step.
        sequence: usize,
        /// Slots after the step.
        slots: usize,
        /// Blocks of the sequence.
        blocks: usize,
    },
    /// The step has no rows.
    #[error("the step has no rows")]
    Empty,
    /// Hidden states of another number of rows were written, or none at all.
    #[error("hidden states were written for {found} rows instead of {wanted}")]
    Hidden {
        /// Rows that [`hidden_input`](skein_pipeline::engine::Engine::hidden_input) was asked for.
        found: usize,
        /// Rows of the step.
        wanted: usize,
    },
}

/// What a stage accepts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blocks of the pool, scratch block included.
    pub blocks: usize,
    /// Token ids are below this; `None` where tokens are not looked at.
    pub tokens: Option<usize>,
}

/// Checks every list. Costs one pass over them and allocates nothing.
pub fn check(inputs: &StepInputs, limits: Limits) -> Result<(), InputError> {
    let sequences = inputs.past_lens.len();
    if inputs.rows == 0 || sequences == 0 {
        return Err(InputError::Empty);
    }
    if let Some(tokens) = limits.tokens {
        length("token_ids", inputs.token_ids.len(), inputs.rows)?;
        within("token_ids", &inputs.token_ids, tokens)?;
    }
    length("position_ids", inputs.position_ids.len(), inputs.rows)?;
    within("position_ids", &inputs.position_ids, i32::MAX as usize)?;
    begins(
        "subsequence_begins",
        &inputs.subsequence_begins,
        sequences,
        inputs.rows,
    )?;
    let blocks = inputs.block_indices.len();
    begins(
        "block_indices_begins",
        &inputs.block_indices_begins,
        sequences,
        blocks,
    )?;
    within("block_indices", &inputs.block_indices, limits.blocks)?;
    within(
        "past_lens",
        &inputs.past_lens,
        limits.blocks * BLOCK_SLOTS as usize,
    )?;

    let mut longest = 0;
    for sequence in 0..sequences {
        let rows = span(&inputs.subsequence_begins, sequence);
        let slots = inputs.past_lens[sequence] as usize + rows;
        let blocks = span(&inputs.block_indices_begins, sequence);
        if rows == 0 {
            return Err(InputError::Empty);
        }
        if slots > blocks * BLOCK_SLOTS as usize {
            return Err(InputError::Blocks {
                sequence,
                slots,
                blocks,
            });
        }
        longest = longest.max(slots);
    }
    if inputs.max_context_len as usize != longest {
        return Err(InputError::Length {
            list: "max_context_len",
            found: inputs.max_context_len as usize,
            wanted: longest,
        });
    }
    check_bias(inputs, sequences)?;
    within("sampled_rows", &inputs.sampled_rows, inputs.rows)?;
    for slot in &inputs.moves {
        let limit = limits.blocks * BLOCK_SLOTS as usize;
        within("moves", &[i64::from(slot.from), i64::from(slot.to)], limit)?;
    }
    Ok(())
}

/// OpenVINO does not check that each matrix is square.
fn check_bias(inputs: &StepInputs, sequences: usize) -> Result<(), InputError> {
    if inputs.qq_bias.is_empty() && inputs.qq_bias_begins.is_empty() {
        return Ok(());
    }
    begins(
        "qq_bias_begins",
        &inputs.qq_bias_begins,
        sequences,
        inputs.qq_bias.len(),
    )?;
    for sequence in 0..sequences {
        let rows = span(&inputs.subsequence_begins, sequence);
        length(
            "qq_bias",
            span(&inputs.qq_bias_begins, sequence),
            rows * rows,
        )?;
    }
    Ok(())
}

fn span(begins: &[i32], index: usize) -> usize {
    (begins[index + 1] - begins[index]) as usize
}

fn length(list: &'static str, found: usize, wanted: usize) -> Result<(), InputError> {
    if found == wanted {
        Ok(())
    } else {
        Err(InputError::Length {
            list,
            found,
            wanted,
        })
    }
}

fn within<T: Copy + Into<i64>>(
    list: &'static str,
    values: &[T],
    limit: usize,
) -> Result<(), InputError> {
    let limit = limit as i64;
    match values
        .iter()
        .map(|&value| value.into())
        .find(|value| !(0..limit).contains(value))
    {
        Some(found) => Err(InputError::Range { list, found, limit }),
        None => Ok(()),
    }
}

fn begins(
    list: &'static str,
    begins: &[i32],
    sequences: usize,
    end: usize,
) -> Result<(), InputError> {
    length(list, begins.len(), sequences + 1)?;
    if begins[0] != 0 || begins.windows(2).any(|pair| pair[0] > pair[1]) {
        return Err(InputError::Order { list });
    }
    length(list, begins[sequences] as usize, end)
}

#[cfg(test)]
mod tests {
    use skein_pipeline::engine::SlotMove;

    use super::*;

    const LIMITS: Limits = Limits {
        blocks: 3,
        tokens: Some(100),
    };

    /// Two sequences: three rows as a tree after 30 slots, and one row of a new one.
    fn step() -> StepInputs {
        StepInputs {
            token_ids: vec![1, 2, 3, 4],
            position_ids: vec![30, 31, 31, 0],
            past_lens: vec![30, 0],
            subsequence_begins: vec![0, 3, 4],
            block_indices: vec![0, 1, 2],
            block_indices_begins: vec![0, 2, 3],
            max_context_len: 33,
            qq_bias: vec![1, 0, 0, 1, 1, 0, 1, 0, 1, 1],
            qq_bias_begins: vec![0, 9, 10],
            sampled_rows: vec![2, 3],
            moves: vec![SlotMove { from: 95, to: 0 }],
            rows: 4,
            real_rows: 4,
            real_sampled: 2,
        }
    }

    #[test]
    fn a_step_that_fits_is_accepted() {
        assert_eq!(check(&step(), LIMITS), Ok(()));
    }

    #[test]
    fn every_list_that_contradicts_another_is_refused() {
        let wrong: [fn(&mut StepInputs); 16] = [
            |step| step.token_ids[1] = 100,
            |step| step.token_ids[1] = -1,
            |step| step.position_ids.truncate(3),
            |step| step.position_ids[0] = -1,
            |step| step.past_lens[0] = 62,
            |step| step.past_lens[1] = -1,
            |step| step.subsequence_begins[1] = 5,
            |step| step.subsequence_begins[1] = 0,
            |step| step.subsequence_begins[2] = 3,
            |step| step.block_indices[2] = 3,
            |step| step.block_indices_begins[1] = 1,
            |step| step.max_context_len = 34,
            |step| step.qq_bias_begins[1] = 8,
            |step| step.qq_bias.truncate(9),
            |step| step.sampled_rows[0] = 4,
            |step| step.moves[0].from = 96,
        ];
        for (index, spoil) in wrong.iter().enumerate() {
            let mut step = step();
            spoil(&mut step);
            assert!(check(&step, LIMITS).is_err(), "case {index} was accepted");
        }
    }

    #[test]
    fn an_empty_step_is_refused() {
        assert_eq!(
            check(&StepInputs::default(), LIMITS),
            Err(InputError::Empty)
        );
    }
}
