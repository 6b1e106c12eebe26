//! What people see: tables and words on stdout, progress and asides on stderr.
//!
//! A reader that closes its end (`| head`) ends the output quietly; colours are dropped where they
//! do not belong (`anstream`).

mod log;
mod progress;
mod stream;
mod tables;
mod words;

use std::io::{self, Write};

pub use log::log_agent;
pub use progress::Progress;
pub use stream::Stream;
pub use tables::{demo, doctor, line_map, model, models, peers, plan, status, timing, tokens};
pub use words::{duration, printable, short, size};

use serde::Serialize;

use crate::error::Error;

/// One JSON object or array and a newline, on stdout.
pub fn json(object: &impl Serialize) {
    let mut text = serde_json::to_string(object)
        .unwrap_or_else(|error| Error::failed(error).object().to_string());
    text.push('\n');
    write(text.as_bytes());
}

/// Text for a person on stdout, with a newline at its end.
pub fn text(text: &str) {
    let mut out = anstream::stdout().lock();
    let ending = if text.ends_with('\n') { "" } else { "\n" };
    quietly(write!(out, "{text}{ending}").and_then(|()| out.flush()));
}

/// Text beside the data, on stderr.
pub fn aside(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// A fact and a hint, on stderr.
pub fn error(error: &Error) {
    let mut err = anstream::stderr().lock();
    let _ = writeln!(err, "\x1b[1;31merror:\x1b[0m {}", error.message);
    if let Some(hint) = &error.hint {
        let _ = writeln!(err, "\x1b[1;36mhint:\x1b[0m {hint}");
    }
}

fn write(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    quietly(out.write_all(bytes).and_then(|()| out.flush()));
}

/// A closed pipe is no failure; any other trouble with stdout cannot be told there.
fn quietly(result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        aside(&format!("cannot write to stdout: {error}"));
    }
}
