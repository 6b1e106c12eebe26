//! Passed, skipped, failed. A skip is never a pass: it is printed with its reason and counted apart.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What became of one case.
#[derive(Debug)]
pub enum Outcome {
    /// With what was seen, in a few words.
    Passed(String),
    /// The case cannot run here.
    Skipped(String),
    Failed(anyhow::Error),
}

/// All cases of one check; printed as they end.
#[derive(Debug)]
pub struct Report {
    check: &'static str,
    passed: usize,
    skipped: usize,
    failed: usize,
    interrupted: bool,
}

impl Report {
    pub fn new(check: &'static str) -> Self {
        Report {
            check,
            passed: 0,
            skipped: 0,
            failed: 0,
            interrupted: false,
        }
    }

    /// A check of which nothing can run.
    pub fn without(check: &'static str, reason: &str) -> Self {
        let mut report = Report::new(check);
        report.case("all of it", || Outcome::Skipped(reason.to_owned()));
        report
    }

    /// Runs one case. A panic in it is not caught: it is a bug of the bench.
    pub fn case(&mut self, name: &str, run: impl FnOnce() -> Outcome) {
        let begun = Instant::now();
        let outcome = run();
        let took = Took(begun.elapsed());
        match outcome {
            Outcome::Passed(seen) => {
                self.passed += 1;
                say(format_args!(
                    "passed  {}: {name} ({took}): {seen}",
                    self.check
                ));
            }
            Outcome::Skipped(reason) => {
                self.skipped += 1;
                say(format_args!("SKIPPED {}: {name}: {reason}", self.check));
            }
            Outcome::Failed(error) => {
                self.failed += 1;
                say(format_args!(
                    "FAILED  {}: {name} ({took}): {error:#}",
                    self.check
                ));
            }
        }
    }

    /// No further case is going to run.
    #[cfg(target_os = "linux")]
    pub fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// Prints the totals; 0 unless something failed, 130 after Ctrl-C.
    pub fn finish(self) -> ExitCode {
        say(format_args!(
            "check {}: {} passed, {} failed, {} skipped",
            self.check, self.passed, self.failed, self.skipped
        ));
        match (self.interrupted, self.failed) {
            (true, _) => ExitCode::from(130),
            (false, 0) => ExitCode::SUCCESS,
            (false, _) => ExitCode::FAILURE,
        }
    }
}

impl From<anyhow::Result<String>> for Outcome {
    fn from(result: anyhow::Result<String>) -> Self {
        match result {
            Ok(seen) => Outcome::Passed(seen),
            Err(error) => Outcome::Failed(error),
        }
    }
}

/// A reader that went away must not keep the guards from running.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

struct Took(Duration);

impl std::fmt::Display for Took {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:.1} s", self.0.as_secs_f64())
    }
}
