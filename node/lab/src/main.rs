//! `skein-lab`: the test bench. It drives real `skein` processes where ordinary tests cannot go:
//! across network namespaces with delay, jitter and loss, with files hidden from some of them.
//!
//! It knows Skein only from outside, through the command line's contract. A check that cannot run
//! here says `SKIPPED` and why, and counts as neither passed nor failed. Whatever the bench makes
//! (namespaces, processes, folders) goes away with it, also after a failure or Ctrl-C.
//!
//! - [`checks`]: what is checked, one module per name
//! - [`outcome`]: passed, skipped, failed, and the summary
//! - [`network`]: machines in namespaces around one switch
//! - [`switch`]: the learning switch and its links' delay, jitter, loss and rate
//! - [`namespace`]: one network namespace
//! - [`process`]: child processes that end with the bench
//! - [`skein`]: agents and commands
//! - [`echo`]: round trips without Skein
//! - [`measure`]: the tables of docs/performance.md
//! - [`interrupt`]: Ctrl-C and SIGTERM
//! - `platform`: the one system call without a safe wrapper

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

mod checks;
#[cfg(target_os = "linux")]
mod echo;
#[cfg(target_os = "linux")]
mod interrupt;
#[cfg(target_os = "linux")]
mod measure;
#[cfg(target_os = "linux")]
mod namespace;
#[cfg(target_os = "linux")]
mod network;
mod outcome;
#[cfg(target_os = "linux")]
mod platform;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod skein;
#[cfg(target_os = "linux")]
mod switch;

/// Test bench of Skein: real agents under conditions that ordinary tests cannot make
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  skein-lab check net --skein target/release/skein"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check something that needs root, a display or other software; says what it skipped and why
    Check {
        what: Check,
        /// The program under test [default: `skein` beside this program]
        #[arg(long, value_name = "PATH")]
        skein: Option<PathBuf>,
        /// A GGUF for the checks that need a model [default: the default model, if the cache has it]
        #[arg(long, value_name = "PATH")]
        model: Option<PathBuf>,
    },
    /// Measure something for the tables in docs/performance.md
    #[cfg(target_os = "linux")]
    #[command(subcommand)]
    Measure(Measure),
}

/// The checks there are.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Check {
    /// Agents in network namespaces, 20 ms apart
    Net,
    /// Tray and notifications on a desktop
    Desktop,
    /// Other people's clients against the API
    Clients,
}

/// The measurements there are.
#[cfg(target_os = "linux")]
#[derive(Debug, Subcommand)]
enum Measure {
    /// What each way to store and compute a model loses against a reference, and how long a step takes
    #[command(
        after_help = "Example:\n  skein-lab measure loss --model smollm2.gguf --weights int8,int4 --vary '' --vary kv=u8"
    )]
    Loss(measure::loss::Loss),
    /// What a step takes outside compute, for lines of one to N stages on loopback
    #[command(after_help = "Example:\n  skein-lab measure hop --model smollm2.gguf --nodes 3")]
    Hop(measure::hop::Hop),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Check { what, skein, model } => {
            let setup = checks::Setup { skein, model };
            let report = match what {
                Check::Net => checks::net(&setup),
                Check::Desktop => outcome::Report::without("desktop", "no such check yet"),
                Check::Clients => outcome::Report::without("clients", "no such check yet"),
            };
            report.finish()
        }
        #[cfg(target_os = "linux")]
        Command::Measure(what) => {
            let outcome = match &what {
                Measure::Loss(told) => measure::loss::measure(told),
                Measure::Hop(told) => measure::hop::measure(told),
            };
            match outcome {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("error: {error:#}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}
