//! Progress of long tasks, on stderr: bars on a terminal, nothing where nobody watches.

use std::collections::BTreeMap;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::{aside, line_map, printable};
use crate::control::Event;

/// Bars that are shown at once; a pull from many peers may report more tasks than a screen has
/// lines.
const MAX_BARS: usize = 16;

/// Shows the events of one request.
#[derive(Debug)]
pub struct Progress {
    bars: MultiProgress,
    tasks: BTreeMap<String, ProgressBar>,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Nothing shown yet.
    pub fn new() -> Self {
        Self {
            bars: MultiProgress::new(),
            tasks: BTreeMap::new(),
        }
    }

    /// Shows one event; the text of an answer and rows of logits are not its business.
    pub fn show(&mut self, event: &Event) {
        match event {
            Event::Progress {
                task,
                done,
                total,
                bytes,
            } => self.advance(task, *done, *total, *bytes),
            Event::Note { message } => self.say(&printable(message)),
            Event::Line { epoch, stages } => self.say(&line_map(*epoch, stages)),
            Event::Text { .. } | Event::Logits { .. } => {}
        }
    }

    /// Takes the bars away.
    pub fn finish(&mut self) {
        for bar in std::mem::take(&mut self.tasks).into_values() {
            bar.finish_and_clear();
        }
    }

    fn say(&self, text: &str) {
        self.bars.suspend(|| aside(text));
    }

    fn advance(&mut self, task: &str, done: u64, total: u64, bytes: bool) {
        if !self.tasks.contains_key(task) {
            if self.tasks.len() == MAX_BARS {
                return;
            }
            let bar = self.bars.add(ProgressBar::new(total));
            bar.set_style(style(total, bytes));
            bar.set_message(printable(task));
            self.tasks.insert(task.to_owned(), bar);
        }
        let Some(bar) = self.tasks.get(task) else {
            return;
        };
        if bar.length() != Some(total) {
            bar.set_length(total);
            bar.set_style(style(total, bytes));
        }
        bar.set_position(done);
        if total > 0 && done >= total {
            bar.finish_and_clear();
            self.tasks.remove(task);
        }
    }
}

fn style(total: u64, bytes: bool) -> ProgressStyle {
    let template = match (total, bytes) {
        (0, true) => "{spinner} {msg} {bytes}",
        (0, false) => "{spinner} {msg} {pos}",
        (_, true) => "{msg} [{bar:28}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        (_, false) => "{msg} [{bar:28}] {pos}/{len}",
    };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}
