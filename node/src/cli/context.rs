//! What every verb needs: the home, the way results are shown, and how commands are sent.

use std::future::Future;

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    control::{self, Command},
    error::{Error, Result},
    output::{self, Progress},
    paths::Home,
};

/// Shared by all verbs of one call.
#[derive(Debug)]
pub struct Context {
    /// Whose agent is meant.
    pub home: Home,
    /// Whether stdout is for a program.
    pub json: bool,
}

impl Context {
    pub(super) fn new(home: Home, json: bool) -> Self {
        Self { home, json }
    }

    /// Does a command through the agent, or here where that is possible; shows progress on stderr
    /// and gives up on Ctrl-C.
    pub async fn call<T: DeserializeOwned>(&self, command: Command) -> Result<T> {
        let mut progress = Progress::new();
        let result = interruptible(control::call(&self.home, command, |event| {
            progress.show(&event);
            Ok(())
        }))
        .await;
        progress.finish();
        result
    }

    /// Prints a result: as JSON, or in words for a person.
    pub fn show<T: Serialize>(&self, object: &T, words: impl FnOnce(&T) -> String) {
        if self.json {
            output::json(object);
        } else {
            output::text(&words(object));
        }
    }
}

/// Runs until done or Ctrl-C. What was running is dropped, which cancels it.
pub async fn interruptible<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        // First, so that the signal is caught before the work shows a sign of life.
        biased;
        signal = tokio::signal::ctrl_c() => {
            signal?;
            Err(Error::interrupted())
        }
        result = work => result,
    }
}
