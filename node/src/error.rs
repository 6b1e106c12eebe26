//! What can go wrong, as people and scripts see it: a code, an exit status, a fact and a hint.
//!
//! The crates below have their own errors; this is the only one that crosses the control channel
//! and the only one that decides an exit status.

use std::{fmt, process::ExitCode};

use serde::{Deserialize, Serialize};

/// A result whose error can be shown to a person.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure it was. The names are part of the command line's contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Anything without a code of its own.
    Failed,
    /// The command line was wrong.
    Usage,
    /// A command or flag that has its place but does nothing yet.
    NotYet,
    /// No agent is running for this home.
    NoAgent,
    /// Membership or permission was refused.
    Refused,
    /// The model and its caches do not fit into the memory on offer.
    DoesNotFit,
    /// The model file cannot be used.
    BadModel,
    /// The input (a name, an id list, a chat file) cannot be used.
    BadInput,
    /// No such model.
    NotFound,
    /// The time allowed ran out.
    TimedOut,
    /// A person pressed Ctrl-C, or the asker went away.
    Interrupted,
}

impl Code {
    /// The exit status of a command that ends with this code.
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage | Self::NotYet => 2,
            Self::NoAgent => 3,
            Self::Refused => 4,
            Self::DoesNotFit => 5,
            Self::BadModel | Self::BadInput | Self::NotFound => 6,
            Self::TimedOut => 7,
            Self::Interrupted => 130,
        }
    }
}

/// A failure as it is told: a fact, and where there is one, a hint what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// The kind.
    pub code: Code,
    /// The fact, one sentence without a final stop.
    pub message: String,
    /// What the person can do, if we know.
    #[serde(default)]
    pub hint: Option<String>,
    /// With [`Code::DoesNotFit`]: how many bytes are missing across the machines on offer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_bytes: Option<u64>,
}

impl Error {
    /// An error without a hint.
    pub fn new(code: Code, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
            hint: None,
            missing_bytes: None,
        }
    }

    /// [`Code::Failed`].
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(Code::Failed, message)
    }

    /// [`Code::Usage`].
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Code::Usage, message)
    }

    /// [`Code::BadInput`].
    pub fn bad_input(message: impl fmt::Display) -> Self {
        Self::new(Code::BadInput, message)
    }

    /// [`Code::NotYet`] for a command or flag, by its name.
    pub fn not_yet(what: &str) -> Self {
        Self::new(
            Code::NotYet,
            format_args!("`{what}` does not exist yet in this version"),
        )
        .hint("see `skein --help` for what this version does")
    }

    /// [`Code::DoesNotFit`] with the bytes that are missing; the message should name them as well.
    pub fn does_not_fit(message: impl fmt::Display, missing_bytes: u64) -> Self {
        Self {
            missing_bytes: Some(missing_bytes),
            ..Self::new(Code::DoesNotFit, message)
        }
    }

    /// The asker went away or pressed Ctrl-C.
    pub fn interrupted() -> Self {
        Self::new(Code::Interrupted, "interrupted")
    }

    /// Adds what the person can do.
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// The exit status of a command that ends with this error.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code.exit_status())
    }

    /// `{"error": {"code", "message", "hint"}}`.
    pub fn object(&self) -> serde_json::Value {
        serde_json::json!({ "error": self })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(error) => error,
            Err(error) => Self::failed(format_args!("{error:#}")),
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::failed(error)
    }
}

/// Says what was being done when something failed.
pub trait Context<T> {
    /// Puts `doing` in front of the error's own words, as `doing: error`.
    fn context(self, doing: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Error::failed(format_args!("{doing}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_object_has_code_message_and_hint() {
        let object = Error::does_not_fit("short by 5 bytes", 5)
            .hint("add a machine")
            .object();
        assert_eq!(
            object,
            serde_json::json!({"error": {
                "code": "does_not_fit", "message": "short by 5 bytes",
                "hint": "add a machine", "missing_bytes": 5,
            }})
        );
    }

    #[test]
    fn an_error_keeps_its_code_through_anyhow() {
        let error: Error = anyhow::Error::from(Error::bad_input("no")).into();
        assert_eq!(error.code, Code::BadInput);
    }
}
