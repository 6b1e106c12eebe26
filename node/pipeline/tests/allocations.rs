//! A line in its stride allocates nothing: decoding, preparing, running, sampling, encoding.

#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ops::Range,
};

use skein_pipeline::{
    Engine, Sampling, StageConfig, StageRunner, StepInputs,
    frame::{HiddenType, MessageHeader, NO_PARENT, Row, SequenceBegin, SequenceRows, StepFrame},
    testing::{FakeEngine, FakeError, FakeModel},
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that is being torn down has no counter any more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches a
// thread-local cell without a destructor and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// An engine that answers from memory it has, so that only the pipeline is counted.
struct Constant {
    hidden: Vec<f32>,
    output: Vec<f32>,
}

impl Engine for Constant {
    type Error = FakeError;

    fn hidden(&self) -> usize {
        8
    }

    fn vocab(&self) -> usize {
        64
    }

    fn hidden_input(&mut self, rows: usize) -> Result<&mut [f32], FakeError> {
        Ok(&mut self.hidden[..rows * 8])
    }

    fn step(&mut self, inputs: &StepInputs) -> Result<&[f32], FakeError> {
        Ok(&self.output[..inputs.rows * 64])
    }
}

const CONTEXT: u32 = 512;

fn runner<E: Engine>(engine: E, first: bool, last: bool) -> StageRunner<E> {
    let config = StageConfig {
        line: 0,
        blocks: 64,
        first,
        hidden: 8,
        vocab: 64,
        context: CONTEXT,
    };
    StageRunner::new(engine, config, last, false).unwrap()
}

fn constant() -> Constant {
    Constant {
        hidden: vec![0.0; 4096],
        output: (0..4096).map(|index| (index % 61) as f32).collect(),
    }
}

/// A decode step of three sequences, one of them with a tree of rows.
fn write_step(frame: &mut StepFrame, step: u64, fixed_rows: u16) {
    frame.clear();
    (frame.step, frame.fixed_rows, frame.hidden) = (step, fixed_rows, HiddenType::BF16);
    let first = step as u32 * 2;
    let blocks: Vec<u32> = (0..48).collect();
    for sequence in 0..3u64 {
        let mut rows = [
            Row {
                token: 1,
                position: first,
                parent: NO_PARENT,
                flags: 0,
            },
            Row {
                token: 2,
                position: first + 1,
                parent: 0,
                flags: Row::SAMPLE,
            },
        ];
        if sequence == 2 {
            rows[1] = Row {
                parent: NO_PARENT,
                position: first,
                ..rows[1]
            };
        }
        let sampling = Sampling {
            temperature: 0.7,
            top: 3,
            ..Sampling::default()
        };
        frame
            .push(SequenceRows {
                sequence,
                first_slot: first,
                blocks: &blocks[sequence as usize * 16..][..16],
                moves: &[],
                rows: &rows,
                begin: (step == 0).then_some(SequenceBegin {
                    history: &[],
                    sampling,
                }),
                end: false,
            })
            .unwrap();
    }
}

/// Allocations in `steps` of two stages that pass encoded steps on.
fn run<A: Engine, B: Engine>(
    first: &mut StageRunner<A>,
    last: &mut StageRunner<B>,
    steps: Range<u64>,
    fixed_rows: u16,
) -> usize {
    let mut frame = StepFrame::default();
    let mut payload = Vec::new();
    let (mut hop, mut answer) = (Vec::with_capacity(1 << 16), Vec::with_capacity(1 << 16));
    let mut allocations = 0;
    for step in steps {
        write_step(&mut frame, step, fixed_rows);
        payload.clear();
        frame.encode(&mut payload);
        hop.clear();
        answer.clear();
        let before = ALLOCATIONS.get();
        first.step(&payload, &mut hop).unwrap();
        last.step(&hop[MessageHeader::SIZE..], &mut answer).unwrap();
        allocations += ALLOCATIONS.get() - before;
    }
    allocations
}

#[test]
fn steps_allocate_nothing_once_a_line_has_found_its_stride() {
    for fixed_rows in [0, 8] {
        let mut first = runner(constant(), true, false);
        let mut last = runner(constant(), false, true);
        assert!(run(&mut first, &mut last, 0..4, fixed_rows) > 0);
        assert_eq!(run(&mut first, &mut last, 4..250, fixed_rows), 0);

        let model = FakeModel::default();
        let mut first = runner(FakeEngine::new(model, 0..3, 64), true, false);
        let mut last = runner(FakeEngine::new(model, 3..6, 64), false, true);
        run(&mut first, &mut last, 0..4, fixed_rows);
        assert_eq!(run(&mut first, &mut last, 4..120, fixed_rows), 0);
    }
}
