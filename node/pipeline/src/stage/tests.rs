use super::*;
use crate::{
    frame::{Move, Row, SequenceBegin, chain_parent},
    sample::Sampling,
};

const LINE: u64 = 5;

fn stage() -> Stage {
    let config = StageConfig {
        line: LINE,
        blocks: 10,
        first: true,
        hidden: 8,
        vocab: 100,
        context: 300,
    };
    Stage::new(config).unwrap()
}

fn chain(first: u32, count: u32) -> Vec<Row> {
    (0..count)
        .map(|index| Row {
            token: index,
            position: first + index,
            parent: chain_parent(index as usize),
            flags: 0,
        })
        .collect()
}

fn part<'a>(first_slot: u32, blocks: &'a [u32], rows: &'a [Row]) -> SequenceRows<'a> {
    SequenceRows {
        sequence: 1,
        first_slot,
        blocks,
        moves: &[],
        rows,
        begin: None,
        end: false,
    }
}

fn frame(epoch: u64, step: u64, parts: &[SequenceRows<'_>]) -> StepFrame {
    let mut frame = StepFrame::default();
    frame.line = LINE;
    frame.epoch = epoch;
    frame.step = step;
    for part in parts {
        frame.push(*part).unwrap();
    }
    frame
}

fn prepare(parts: &[SequenceRows<'_>]) -> Result<StepInputs, FrameError> {
    let mut inputs = StepInputs::default();
    stage().prepare(&frame(1, 0, parts), &mut inputs)?;
    Ok(inputs)
}

#[test]
fn two_chains_become_one_ragged_batch() {
    let mut decode = chain(40, 1);
    decode[0].flags = Row::SAMPLE;
    let prefill = chain(0, 3);
    let inputs = prepare(&[part(40, &[7, 2], &decode), part(0, &[4, 9], &prefill)]).unwrap();
    let expected = StepInputs {
        token_ids: vec![0, 0, 1, 2],
        position_ids: vec![40, 0, 1, 2],
        past_lens: vec![40, 0],
        subsequence_begins: vec![0, 1, 4],
        block_indices: vec![7, 2, 4],
        block_indices_begins: vec![0, 2, 3],
        max_context_len: 41,
        sampled_rows: vec![0],
        rows: 4,
        real_rows: 4,
        real_sampled: 1,
        ..StepInputs::default()
    };
    assert_eq!(inputs, expected);
}

#[test]
fn a_tree_is_told_who_sees_whom_and_chains_beside_it_too() {
    // 0 ─┬─ 1 ── 3
    //    └─ 2
    let mut tree = chain(5, 4);
    tree[2] = Row {
        position: 6,
        parent: 0,
        ..tree[2]
    };
    tree[3] = Row {
        position: 7,
        parent: 1,
        ..tree[3]
    };
    let mut tall = frame(1, 0, &[part(5, &[1], &tree), part(0, &[2], &chain(0, 2))]);
    tall.fixed_rows = 8;
    let mut inputs = StepInputs::default();
    stage().prepare(&tall, &mut inputs).unwrap();
    #[rustfmt::skip]
    let expected = [
        1, 0, 0, 0,
        1, 1, 0, 0,
        1, 0, 1, 0,
        1, 1, 0, 1,
        // the chain
        1, 0,
        1, 1,
        // the scratch rows
        1, 0,
        1, 1,
    ];
    assert_eq!(inputs.qq_bias, expected);
    assert_eq!(inputs.qq_bias_begins, [0, 16, 20, 24]);
    assert_eq!(inputs.position_ids, [5, 6, 6, 7, 0, 1, 0, 1]);
}

#[test]
fn a_fixed_row_count_is_reached_with_the_scratch_block() {
    let mut rows = chain(30, 3);
    rows[2].flags = Row::SAMPLE;
    let mut exact = frame(1, 0, &[part(30, &[3, 4], &rows)]);
    exact.fixed_rows = 8;
    let mut inputs = StepInputs::default();
    stage().prepare(&exact, &mut inputs).unwrap();
    assert_eq!(
        (inputs.rows, inputs.real_rows, inputs.real_sampled),
        (8, 3, 1)
    );
    assert_eq!(inputs.subsequence_begins, [0, 3, 8]);
    assert_eq!(inputs.past_lens, [30, 0]);
    assert_eq!(inputs.block_indices, [3, 4, 10]);
    assert_eq!(inputs.position_ids[3..], [0, 1, 2, 3, 4]);
    assert_eq!(inputs.sampled_rows.len(), 8);
    assert_eq!(inputs.sampled_rows[0], 2);
    assert_eq!(inputs.max_context_len, 33);
    assert!(inputs.qq_bias.is_empty());

    // A multiple needs no scratch rows, and a step without samples gathers none.
    let mut full = frame(1, 0, &[part(0, &[0], &chain(0, 8))]);
    full.fixed_rows = 8;
    stage().prepare(&full, &mut inputs).unwrap();
    assert_eq!((inputs.rows, inputs.past_lens.len()), (8, 1));
    assert!(inputs.sampled_rows.is_empty());
}

#[test]
fn moves_are_absolute_and_in_order() {
    let moves = [
        Move {
            from_slot: 33,
            to_slot: 31,
        },
        Move {
            from_slot: 34,
            to_slot: 32,
        },
    ];
    let rows = chain(33, 1);
    let inputs = prepare(&[SequenceRows {
        moves: &moves,
        ..part(33, &[6, 2], &rows)
    }])
    .unwrap();
    let expected = [
        SlotMove {
            from: 2 * 32 + 1,
            to: 6 * 32 + 31,
        },
        SlotMove {
            from: 2 * 32 + 2,
            to: 2 * 32,
        },
    ];
    assert_eq!(inputs.moves, expected);
}

#[test]
fn a_sequence_that_only_ends_gives_the_engine_nothing() {
    let rows = chain(0, 2);
    let end = SequenceRows {
        sequence: 9,
        end: true,
        ..part(0, &[], &[])
    };
    let inputs = prepare(&[end, part(0, &[0], &rows)]).unwrap();
    assert_eq!(inputs.past_lens, [0]);
    assert_eq!(inputs.rows, 2);
}

#[test]
fn what_does_not_fit_this_stage_is_refused() {
    let refused = |parts: &[SequenceRows<'_>]| match prepare(parts) {
        Err(FrameError::Sequence { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let two = chain(0, 2);
    assert_eq!(refused(&[part(0, &[10], &two)]), "block outside the pool");
    assert_eq!(
        refused(&[part(31, &[1], &chain(31, 2))]),
        "rows beyond its blocks"
    );
    assert_eq!(refused(&[part(0, &[], &two)]), "rows beyond its blocks");
    assert_eq!(
        refused(&[part(1, &[1], &two)]),
        "position is not its parent's next"
    );
    let all = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    assert_eq!(
        refused(&[part(299, &all, &chain(299, 2))]),
        "position beyond the context"
    );
    let far = [Move {
        from_slot: 0,
        to_slot: 32,
    }];
    let moved = SequenceRows {
        moves: &far,
        ..part(0, &[1], &two)
    };
    assert_eq!(refused(&[moved]), "move beyond its blocks");
    for parent in [1, 2, 500] {
        let mut rows = two.clone();
        rows[1].parent = parent;
        assert_eq!(
            refused(&[part(0, &[1], &rows)]),
            "parent is not an earlier row"
        );
    }
    let mut rows = two.clone();
    rows[1].token = 100;
    assert_eq!(
        refused(&[part(0, &[1], &rows)]),
        "token outside the vocabulary"
    );
    rows[1] = Row {
        position: u32::MAX,
        ..two[1]
    };
    assert_eq!(
        refused(&[part(0, &[1], &rows)]),
        "position is not its parent's next"
    );
}

#[test]
fn blocks_may_be_shared_to_read_and_never_to_write() {
    let one = chain(32, 1);
    // Block 5 is full and read by both.
    assert!(prepare(&[part(32, &[5, 1], &one), part(32, &[5, 2], &one)]).is_ok());
    let what = "block is written by another";
    let refused = |parts: &[SequenceRows<'_>]| {
        assert!(
            matches!(prepare(parts), Err(FrameError::Sequence { what: found, .. }) if found == what)
        );
    };
    refused(&[part(32, &[5, 1], &one), part(32, &[2, 1], &one)]);
    refused(&[part(32, &[5, 1], &one), part(32, &[1, 2], &one)]);
    refused(&[part(32, &[1, 1], &one)]);
    let moves = [Move {
        from_slot: 32,
        to_slot: 0,
    }];
    let moved = SequenceRows {
        moves: &moves,
        ..part(32, &[5, 1], &one)
    };
    refused(&[moved, part(32, &[5, 2], &one)]);
}

#[test]
fn an_older_epoch_is_fenced_off_and_a_newer_one_starts_over() {
    let rows = chain(0, 1);
    let parts = [part(0, &[1], &rows)];
    let mut stage = stage();
    let mut inputs = StepInputs::default();
    let mut prepare = |epoch, step| stage.prepare(&frame(epoch, step, &parts), &mut inputs);
    assert!(matches!(
        prepare(3, 1),
        Err(FrameError::Step { expected: 0, .. })
    ));
    assert_eq!(prepare(3, 0), Ok(()));
    assert!(matches!(
        prepare(3, 0),
        Err(FrameError::Step { expected: 1, .. })
    ));
    assert!(matches!(
        prepare(3, 2),
        Err(FrameError::Step { expected: 1, .. })
    ));
    assert_eq!(prepare(3, 1), Ok(()));
    assert!(matches!(
        prepare(2, 2),
        Err(FrameError::StaleEpoch { current: 3, .. })
    ));
    assert!(matches!(
        prepare(4, 2),
        Err(FrameError::Step { expected: 0, .. })
    ));
    assert_eq!(prepare(3, 2), Ok(()));
    assert_eq!(prepare(7, 0), Ok(()));
    assert!(matches!(
        prepare(3, 3),
        Err(FrameError::StaleEpoch { current: 7, .. })
    ));
    assert_eq!(prepare(7, 1), Ok(()));
}

#[test]
fn a_refused_frame_changes_nothing() {
    let rows = chain(0, 1);
    let mut stage = stage();
    let mut inputs = StepInputs::default();
    assert!(
        stage
            .prepare(&frame(1, 0, &[part(0, &[10], &rows)]), &mut inputs)
            .is_err()
    );
    assert_eq!(
        stage.prepare(&frame(1, 0, &[part(0, &[9], &rows)]), &mut inputs),
        Ok(())
    );
}

#[test]
fn another_line_and_another_width_are_refused() {
    let rows = chain(0, 1);
    let mut inputs = StepInputs::default();
    let mut foreign = frame(1, 0, &[part(0, &[1], &rows)]);
    foreign.line = 6;
    assert!(matches!(
        stage().prepare(&foreign, &mut inputs),
        Err(FrameError::Line { .. })
    ));
    let mut later = stage();
    later.config.first = false;
    let plain = frame(1, 0, &[part(0, &[1], &rows)]);
    assert!(matches!(
        later.prepare(&plain, &mut inputs),
        Err(FrameError::Malformed(_))
    ));
    let empty = frame(1, 0, &[]);
    assert!(stage().prepare(&empty, &mut inputs).is_err());
}

#[test]
fn a_tree_whose_mask_would_be_huge_is_refused() {
    let config = StageConfig {
        blocks: 40,
        context: 2000,
        ..stage().config
    };
    let mut stage = Stage::new(config).unwrap();
    let mut rows = chain(0, 1100);
    for row in &mut rows {
        row.token = 0;
    }
    rows[1099] = Row {
        parent: NO_PARENT,
        position: 0,
        ..rows[1099]
    };
    let blocks: Vec<u32> = (0..40).collect();
    let begin = SequenceBegin {
        history: &[],
        sampling: Sampling::default(),
    };
    let wide = SequenceRows {
        begin: Some(begin),
        ..part(0, &blocks, &rows)
    };
    let refused = stage.prepare(&frame(1, 0, &[wide]), &mut StepInputs::default());
    assert!(matches!(refused, Err(FrameError::TooMany { .. })));
}
