//! The last lines a worker wrote to stderr, kept to explain its end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::ChildStderr;
use tokio::task::JoinHandle;

/// Lines kept: enough for an exception and its cause.
const LINES: usize = 12;
/// A longer line is cut: a driver may dump binary.
const LINE_BYTES: u64 = 400;
/// The pipe drains at once when the process is gone; a grandchild may hold it open.
const DRAIN: Duration = Duration::from_millis(300);

/// Follows a worker's stderr in a task of its own.
#[derive(Debug)]
pub struct StderrTail {
    lines: Arc<Mutex<VecDeque<String>>>,
    task: JoinHandle<()>,
}

impl StderrTail {
    /// Starts reading.
    pub fn follow(errors: ChildStderr) -> Self {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let kept = lines.clone();
        let task = tokio::spawn(async move {
            let mut reader = BufReader::new(errors);
            let mut line = Vec::new();
            // A line that is too long is kept as several.
            while let Ok(read) = (&mut reader)
                .take(LINE_BYTES)
                .read_until(b'\n', &mut line)
                .await
            {
                if read == 0 {
                    break;
                }
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if text.is_empty() {
                    continue;
                }
                tracing::debug!(target: "skein::worker", "{text}");
                let mut kept = kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if kept.len() == LINES {
                    kept.pop_front();
                }
                kept.push_back(text);
            }
        });
        StderrTail { lines, task }
    }

    /// The lines so far, joined; waits briefly for the pipe to drain.
    pub async fn last_lines(&mut self) -> String {
        let _ = tokio::time::timeout(DRAIN, &mut self.task).await;
        let lines = self
            .lines
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        lines.iter().cloned().collect::<Vec<_>>().join(" | ")
    }
}

impl Drop for StderrTail {
    fn drop(&mut self) {
        self.task.abort();
    }
}
