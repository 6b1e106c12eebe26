use super::*;
use crate::frame::{Move, NO_PARENT, SequenceBegin, chain_parent};

const VOCAB: usize = 4;

fn chain(first: u32, tokens: &[u32]) -> Vec<Row> {
    let rows = tokens.iter().enumerate().map(|(index, token)| Row {
        token: *token,
        position: first + index as u32,
        parent: chain_parent(index),
        flags: 0,
    });
    rows.collect()
}

fn part<'a>(first_slot: u32, rows: &'a [Row]) -> SequenceRows<'a> {
    SequenceRows {
        sequence: 1,
        first_slot,
        blocks: &[0, 1],
        moves: &[],
        rows,
        begin: None,
        end: false,
    }
}

fn begin(part: SequenceRows<'_>, sampling: Sampling) -> SequenceRows<'_> {
    let history = &[];
    SequenceRows {
        begin: Some(SequenceBegin { history, sampling }),
        ..part
    }
}

fn run(
    tail: &mut Tail,
    epoch: u64,
    parts: &[SequenceRows<'_>],
) -> Result<SampledFrame, FrameError> {
    let mut frame = StepFrame::default();
    frame.epoch = epoch;
    for part in parts {
        frame.push(*part)?;
    }
    let sampled = frame.rows().iter().filter(|row| row.is_sampled()).count();
    let logits: Vec<f32> = (0..sampled)
        .flat_map(|row| (0..VOCAB).map(move |token| if token == row % VOCAB { 1.0 } else { 0.0 }))
        .collect();
    let mut answer = SampledFrame::default();
    tail.sample(&frame, &logits, &mut answer)?;
    Ok(answer)
}

#[test]
fn the_history_follows_rows_rewinds_and_moves() {
    let mut tail = Tail::new(VOCAB, 64);
    let first = chain(0, &[10, 11, 12]);
    run(&mut tail, 0, &[begin(part(0, &first), Sampling::default())]).unwrap();
    assert_eq!(tail.history(1), Some(&[10, 11, 12][..]));
    // A draft of two that is refused, then another token in its place.
    run(&mut tail, 0, &[part(3, &chain(3, &[13, 14]))]).unwrap();
    run(&mut tail, 0, &[part(3, &chain(3, &[15]))]).unwrap();
    assert_eq!(tail.history(1), Some(&[10, 11, 12, 15][..]));
    // A tree with the branches 20 → 22 and 21; the first is accepted.
    let mut tree = chain(4, &[20, 21, 22]);
    tree[1] = Row {
        parent: NO_PARENT,
        position: 4,
        ..tree[1]
    };
    tree[2] = Row {
        parent: 0,
        position: 5,
        ..tree[2]
    };
    run(&mut tail, 0, &[part(4, &tree)]).unwrap();
    let moves = [Move {
        from_slot: 6,
        to_slot: 5,
    }];
    let next = chain(6, &[23]);
    run(
        &mut tail,
        0,
        &[SequenceRows {
            moves: &moves,
            ..part(6, &next)
        }],
    )
    .unwrap();
    assert_eq!(tail.history(1), Some(&[10, 11, 12, 15, 20, 22, 23][..]));
}

#[test]
fn samples_name_their_rows_and_positions_in_order() {
    let mut tail = Tail::new(VOCAB, 64);
    let mut one = chain(0, &[10, 11]);
    one[0].flags = Row::SAMPLE;
    one[1].flags = Row::SAMPLE;
    let mut other = chain(0, &[12]);
    other[0].flags = Row::SAMPLE;
    let sampling = Sampling {
        top: 2,
        ..Sampling::default()
    };
    let second = SequenceRows {
        sequence: 2,
        ..begin(part(0, &other), sampling)
    };
    let answer = run(
        &mut tail,
        0,
        &[begin(part(0, &one), Sampling::default()), second],
    )
    .unwrap();
    let all: Vec<_> = answer
        .sequences()
        .flat_map(|part| part.samples().map(move |sample| (part.sequence, sample)))
        .map(|(id, sample)| {
            (
                id,
                sample.row,
                sample.position,
                sample.token,
                sample.top.len(),
            )
        })
        .collect();
    assert_eq!(all, [(1, 0, 0, 0, 0), (1, 1, 1, 1, 0), (2, 0, 0, 2, 2)]);
}

#[test]
fn a_gap_an_unknown_sequence_and_too_few_logits_are_refused() {
    let mut tail = Tail::new(VOCAB, 64);
    let rows = chain(0, &[1]);
    assert!(run(&mut tail, 0, &[part(0, &rows)]).is_err());
    run(&mut tail, 0, &[begin(part(0, &rows), Sampling::default())]).unwrap();
    assert!(run(&mut tail, 0, &[part(2, &chain(2, &[1]))]).is_err());
    let mut frame = StepFrame::default();
    let mut sampled = rows.clone();
    sampled[0].flags = Row::SAMPLE;
    frame.push(part(1, &sampled)).unwrap();
    let refused = tail.sample(&frame, &[0.0; VOCAB - 1], &mut SampledFrame::default());
    assert_eq!(refused, Err(MISSING));
    let refused = tail.sample(&frame, &[f32::NAN; VOCAB], &mut SampledFrame::default());
    assert_eq!(refused, Err(FrameError::NotFinite { row: 0 }));
}

#[test]
fn sequences_are_forgotten_at_their_end_and_at_a_new_epoch() {
    let mut tail = Tail::new(VOCAB, 64);
    let rows = chain(0, &[1]);
    let start = begin(part(0, &rows), Sampling::default());
    run(
        &mut tail,
        0,
        &[
            start,
            SequenceRows {
                sequence: 2,
                ..start
            },
        ],
    )
    .unwrap();
    assert_eq!(tail.tracked(), 2);
    let end = SequenceRows {
        rows: &[],
        end: true,
        ..part(0, &rows)
    };
    run(&mut tail, 0, &[end, SequenceRows { sequence: 9, ..end }]).unwrap();
    assert_eq!((tail.tracked(), tail.history(1)), (1, None));
    run(&mut tail, 1, &[start]).unwrap();
    assert_eq!((tail.tracked(), tail.history(2)), (1, None));
}

#[test]
fn a_head_that_never_ends_its_sequences_is_stopped() {
    let mut tail = Tail::new(VOCAB, 1);
    let rows = chain(0, &[1]);
    let start = begin(part(0, &rows), Sampling::default());
    for sequence in 0..MAX_TRACKED as u64 {
        run(&mut tail, 0, &[SequenceRows { sequence, ..start }]).unwrap();
    }
    let refused = run(
        &mut tail,
        0,
        &[SequenceRows {
            sequence: u64::MAX,
            ..start
        }],
    );
    assert!(matches!(refused, Err(FrameError::TooMany { .. })));
}
