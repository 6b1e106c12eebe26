//! A step in steady state allocates nothing in Rust.
#![allow(unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use skein_engine::Numerics;
use skein_pipeline::engine::Engine;
use skein_shards::quant::WeightMode;
use support::{LAYERS, Tiny, rows, step, tokens};

/// The system's allocator; counts what the current thread asks it for.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // The thread may be ending, when nobody counts any more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged.
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

#[test]
fn a_hundred_steps_of_two_stages_allocate_nothing_in_rust() {
    let tiny = Tiny::new(WeightMode::Int8);
    let mut first = tiny.stage(0..2, Numerics::Fast);
    let mut last = tiny.stage(2..LAYERS, Numerics::Fast);
    let steps: Vec<_> = (0..120)
        .map(|index| {
            let text = tokens(index as u64, 3);
            step(&[
                rows(&[0, 1, 2, 3], index, &text[..1]),
                rows(&[4, 5, 6, 7], index, &text[1..]),
            ])
        })
        .collect();
    let mut sum = 0.0;
    let mut before = 0;
    for (index, inputs) in steps.iter().enumerate() {
        if index == 20 {
            before = ALLOCATIONS.get();
        }
        let hidden = first.step(inputs).unwrap();
        last.hidden_input(inputs.rows)
            .unwrap()
            .copy_from_slice(hidden);
        sum += last.step(inputs).unwrap()[0];
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(before > 0 && sum.is_finite());
}
