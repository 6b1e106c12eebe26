//! An engine and how long its last step took; the pipeline itself reads no clock.

use std::time::{Duration, Instant};

use skein_pipeline::engine::{Engine, StepInputs};

/// Passes everything on to the engine inside.
pub struct Timed<E> {
    engine: E,
    /// Time that the last step spent in the engine.
    pub last_step: Duration,
}

impl<E> Timed<E> {
    pub fn new(engine: E) -> Self {
        Timed {
            engine,
            last_step: Duration::ZERO,
        }
    }
}

impl<E: Engine> Engine for Timed<E> {
    type Error = E::Error;

    fn hidden(&self) -> usize {
        self.engine.hidden()
    }

    fn vocab(&self) -> usize {
        self.engine.vocab()
    }

    fn hidden_input(&mut self, rows: usize) -> Result<&mut [f32], Self::Error> {
        self.engine.hidden_input(rows)
    }

    fn step(&mut self, inputs: &StepInputs) -> Result<&[f32], Self::Error> {
        let begun = Instant::now();
        let output = self.engine.step(inputs);
        self.last_step = begun.elapsed();
        output
    }
}
