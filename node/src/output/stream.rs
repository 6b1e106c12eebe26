//! An answer as it comes.

use std::io::{self, IsTerminal, Write};

use crate::error::{Error, Result};

/// Writes pieces of an answer to stdout at once.
#[derive(Debug)]
pub struct Stream {
    terminal: bool,
    wrote: bool,
    at_line_start: bool,
}

impl Default for Stream {
    fn default() -> Self {
        Self::new()
    }
}

impl Stream {
    /// Nothing written yet.
    pub fn new() -> Self {
        Self {
            terminal: io::stdout().is_terminal(),
            wrote: false,
            at_line_start: true,
        }
    }

    /// Writes a piece. A reader that has gone ends the request.
    pub fn push(&mut self, text: &str) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.wrote = true;
        self.at_line_start = text.ends_with('\n');
        let mut out = io::stdout().lock();
        let written = if self.terminal {
            out.write_all(harmless(text).as_bytes())
        } else {
            out.write_all(text.as_bytes())
        };
        written
            .and_then(|()| out.flush())
            .map_err(|error| match error.kind() {
                io::ErrorKind::BrokenPipe => Error::interrupted(),
                _ => Error::failed(format_args!("cannot write to stdout: {error}")),
            })
    }

    /// Ends the last line.
    pub fn end(&mut self) {
        if self.wrote && !self.at_line_start {
            let mut out = io::stdout().lock();
            let _ = out.write_all(b"\n").and_then(|()| out.flush());
            self.at_line_start = true;
        }
    }
}

/// A model may write anything; a terminal must not obey it.
fn harmless(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && c != '\n' && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_a_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\n\tc\r"), "a\u{fffd}[2Jb\n\tc\u{fffd}");
    }
}
