//! Trees and slot moves on hand-made frames: a tree gives what its chains give, and once the winning
//! branch's slots are moved, so does what follows.

use proptest::prelude::*;
use skein_pipeline::{
    Sampling, StageConfig, StageRunner,
    frame::{
        HiddenType, MessageKind, Messages, Move, NO_PARENT, Row, SampledFrame, SequenceBegin,
        SequenceRows, StepFrame,
    },
    testing::{FakeEngine, FakeModel, Mutation, Seeded},
};

const POOL: u32 = 8;
const BLOCKS: [u32; 3] = [6, 1, 3];

/// Stages that are fed by hand.
struct Line {
    stages: Vec<StageRunner<FakeEngine>>,
    step: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Sampled {
    token: u32,
    logprob: f32,
}

impl Line {
    fn new(stages: u32) -> Self {
        let model = FakeModel::default();
        let links = model.cut(stages).into_iter().map(|layers| {
            let config = StageConfig {
                line: 1,
                blocks: POOL,
                first: layers.start == 0,
                hidden: model.hidden,
                vocab: model.vocab,
                context: 96,
            };
            let last = layers.end == model.layers;
            StageRunner::new(FakeEngine::new(model, layers, POOL), config, last, false).unwrap()
        });
        Self {
            stages: links.collect(),
            step: 0,
        }
    }

    fn frame(&mut self, first_slot: u32, moves: &[Move], rows: &[Row]) -> StepFrame {
        let mut frame = StepFrame::default();
        (frame.line, frame.step, frame.hidden) = (1, self.step, HiddenType::BF16);
        self.step += 1;
        let begin = SequenceBegin {
            history: &[],
            sampling: Sampling::default(),
        };
        frame
            .push(SequenceRows {
                sequence: 1,
                first_slot,
                blocks: &BLOCKS,
                moves,
                rows,
                begin: (first_slot == 0).then_some(begin),
                end: false,
            })
            .unwrap();
        frame
    }

    /// Samples of every row, in order.
    fn run(&mut self, frame: &StepFrame) -> Result<Vec<Sampled>, String> {
        let mut payload = Vec::new();
        frame.encode(&mut payload);
        for stage in &mut self.stages {
            let mut out = Vec::new();
            stage
                .step(&payload, &mut out)
                .map_err(|error| error.to_string())?;
            let (kind, reply, _) = Messages::new(&out).next().unwrap().unwrap();
            payload = reply.to_vec();
            assert!(matches!(kind, MessageKind::Step | MessageKind::Sampled));
        }
        let mut answer = SampledFrame::default();
        answer.decode(&payload).unwrap();
        let samples = answer.sequences().flat_map(|part| part.samples());
        Ok(samples
            .map(|sample| Sampled {
                token: sample.token,
                logprob: sample.logprob,
            })
            .collect())
    }

    fn feed(&mut self, first: u32, moves: &[Move], rows: &[Row]) -> Vec<Sampled> {
        let frame = self.frame(first, moves, rows);
        self.run(&frame).unwrap()
    }
}

fn chain(first: u32, tokens: &[u32]) -> Vec<Row> {
    let rows = tokens.iter().enumerate().map(|(index, token)| Row {
        token: *token,
        position: first + index as u32,
        parent: index
            .checked_sub(1)
            .map_or(NO_PARENT, |parent| parent as u16),
        flags: Row::SAMPLE,
    });
    rows.collect()
}

/// A tree of `parents.len()` rows after `first` slots; entry `i` picks among the prefix and the rows
/// before `i`.
fn tree(first: u32, parents: &[u16], draws: &mut Seeded) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (index, pick) in parents.iter().enumerate() {
        let parent = (usize::from(*pick) % (index + 1)).checked_sub(1);
        rows.push(Row {
            token: draws.within(0..64) as u32,
            position: parent.map_or(first, |parent| rows[parent].position + 1),
            parent: parent.map_or(NO_PARENT, |parent| parent as u16),
            flags: Row::SAMPLE,
        });
    }
    rows
}

/// Indices of a row and its ancestors, from the root.
fn path(rows: &[Row], leaf: usize) -> Vec<usize> {
    let mut path = vec![leaf];
    while let Some(row) = path.last().map(|last| rows[*last])
        && row.parent != NO_PARENT
    {
        path.push(row.parent.into());
    }
    path.reverse();
    path
}

fn accept(first: u32, path: &[usize]) -> Vec<Move> {
    let moves = path.iter().enumerate().filter(|(to, from)| to != *from);
    moves
        .map(|(to, from)| Move {
            from_slot: first + *from as u32,
            to_slot: first + to as u32,
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_gives_what_its_chains_give_and_so_does_what_follows(
        stages in 1u32..4,
        prefix in 1u32..60,
        parents in prop::collection::vec(any::<u16>(), 1..12),
        leaf in any::<prop::sample::Index>(),
        seed in any::<u64>(),
    ) {
        let mut draws = Seeded(seed);
        let prompt: Vec<u32> = (0..prefix).map(|_| draws.within(0..64) as u32).collect();
        let rows = tree(prefix, &parents, &mut draws);
        let next = draws.within(0..64) as u32;

        let mut line = Line::new(stages);
        line.feed(0, &[], &chain(0, &prompt));
        let of_tree = line.feed(prefix, &[], &rows);
        for (index, sampled) in of_tree.iter().enumerate() {
            let tokens: Vec<u32> = path(&rows, index).iter().map(|row| rows[*row].token).collect();
            let mut alone = Line::new(1);
            alone.feed(0, &[], &chain(0, &prompt));
            let of_chain = alone.feed(prefix, &[], &chain(prefix, &tokens));
            prop_assert_eq!(of_chain.last(), Some(sampled));
        }

        let winner = path(&rows, leaf.index(rows.len()));
        let moves = accept(prefix, &winner);
        let after = prefix + winner.len() as u32;
        let continued = line.feed(after, &moves, &chain(after, &[next]));
        let mut whole = prompt;
        whole.extend(winner.iter().map(|row| rows[*row].token));
        whole.push(next);
        let of_chain = Line::new(1).feed(0, &[], &chain(0, &whole));
        prop_assert_eq!(continued.last(), of_chain.last());
        let tail = line.stages.last().and_then(StageRunner::tail).unwrap();
        prop_assert_eq!(tail.history(1), Some(&whole[..]));
    }
}

/// A prompt, a tree of two branches whose second wins, and a token after it; `spoil` may change the
/// tree's frame and the last one.
fn two_branches(spoil: impl Fn(&mut StepFrame)) -> Result<Vec<Sampled>, String> {
    let mut line = Line::new(2);
    line.feed(0, &[], &chain(0, &[9; 31]));
    let mut rows = chain(31, &[10, 11, 12, 13]);
    rows[2] = Row {
        parent: NO_PARENT,
        position: 31,
        ..rows[2]
    };
    rows[3] = Row {
        parent: 2,
        position: 32,
        ..rows[3]
    };
    let mut frame = line.frame(31, &[], &rows);
    spoil(&mut frame);
    let mut sampled = line.run(&frame)?;
    let mut last = line.frame(33, &accept(31, &[2, 3]), &chain(33, &[14]));
    spoil(&mut last);
    sampled.extend(line.run(&last)?);
    Ok(sampled)
}

#[test]
fn a_mistake_in_a_tree_or_its_moves_is_refused_or_changes_the_outcome() {
    let right = two_branches(|_| {}).unwrap();
    for mutation in [
        Mutation::ParentOffByOne,
        Mutation::MoveDropped,
        Mutation::SlotOffByOne,
        Mutation::PositionOffByOne,
        Mutation::BlockOffByOne,
        Mutation::TokenOffByOne,
    ] {
        let spoiled = two_branches(|frame| {
            mutation.apply_to_frame(frame, POOL).unwrap();
        });
        assert!(
            spoiled.is_err() || spoiled != Ok(right.clone()),
            "{mutation:?}"
        );
    }
    // Seen by nobody's check: only the tokens tell.
    for mutation in [
        Mutation::ParentOffByOne,
        Mutation::MoveDropped,
        Mutation::BlockOffByOne,
    ] {
        let spoiled = two_branches(|frame| {
            mutation.apply_to_frame(frame, POOL).unwrap();
        });
        assert!(spoiled.is_ok(), "{mutation:?}: {spoiled:?}");
    }
}

#[test]
fn moves_apply_in_their_order() {
    // Each move reads what the one before may have written: backwards they give another result.
    let run = |backwards: bool| {
        let mut line = Line::new(1);
        line.feed(0, &[], &chain(0, &[1, 2, 3, 4, 5, 6]));
        let mut moves = vec![
            Move {
                from_slot: 3,
                to_slot: 2,
            },
            Move {
                from_slot: 4,
                to_slot: 3,
            },
        ];
        if backwards {
            moves.reverse();
        }
        line.feed(4, &moves, &chain(4, &[7]))
    };
    assert_ne!(run(false), run(true));
}
