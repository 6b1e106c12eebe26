//! The command line: one file per verb, each with its arguments and its own `handle`.
//!
//! Stdout is for data: with `--json` exactly one object or array (streams are JSON lines), without
//! it the answer for a person. Everything else goes to stderr. What the verbs mean is in
//! [`control`](crate::control) and [`local`](crate::local); here are only words.

mod agent;
mod ask;
mod bench;
mod context;
mod debug;
mod demo;
mod doctor;
mod fleet;
mod join;
mod model;
mod peers;
mod plan;
mod status;
mod stop;
pub mod values;
mod worker;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};

pub use agent::AgentArgs;
pub use context::Context;
pub use demo::DemoArgs;
pub use worker::WorkerArgs;

use crate::{
    error::{Error, Result},
    output,
    paths::{HOME_VARIABLE, Home},
};

/// How long tasks that were given up may take to end.
const TIDY_UP: Duration = Duration::from_secs(5);

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "skein",
    version,
    about = "Idle machines of a fleet carry a language model together that none could carry alone",
    after_help = "Examples:\n  skein demo                              three agents on this machine, one answer\n  \
                  skein agent                             run this machine's agent\n  \
                  skein ask smollm2-135m 'What is a skein?'\n\n\
                  Exit status: 0 done, 1 failed, 2 wrong usage, 3 no agent, 4 refused, 5 does not fit,\n\
                  6 bad model or input, 7 timed out, 130 interrupted",
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// What every command takes.
#[derive(Debug, Clone, clap::Args)]
struct Global {
    /// Keep this agent's files in DIR; the platform's folders otherwise
    #[arg(long, global = true, env = HOME_VARIABLE, hide_env_values = true, value_name = "DIR", help_heading = "Global options")]
    home: Option<PathBuf>,
    /// Print one JSON object on stdout, and nothing else there
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Agent(AgentArgs),
    Stop(stop::StopArgs),
    Status(status::StatusArgs),
    Peers(peers::PeersArgs),
    Doctor(doctor::DoctorArgs),
    Fleet(fleet::FleetArgs),
    Join(join::JoinArgs),
    Model(model::ModelArgs),
    Plan(plan::PlanArgs),
    Ask(ask::AskArgs),
    Demo(DemoArgs),
    Bench(bench::BenchArgs),
    Debug(debug::DebugArgs),
    Worker(WorkerArgs),
}

/// Reads the command line, does what it says and returns its exit status.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let json = cli.global.json;
    match execute(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if json {
                output::json(&error.object());
            } else {
                output::error(&error);
            }
            error.exit_code()
        }
    }
}

/// The definition of the command line, for tests and documentation.
pub fn definition() -> clap::Command {
    Cli::command()
}

fn execute(cli: Cli) -> Result<()> {
    // A worker is one stage and single-minded: it has neither a home nor a runtime of its own.
    if let Verb::Worker(arguments) = cli.verb {
        return arguments.handle();
    }
    let context = Context::new(Home::resolve(cli.global.home.as_deref())?, cli.global.json);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        match cli.verb {
            Verb::Agent(arguments) => arguments.handle(&context).await,
            Verb::Stop(arguments) => arguments.handle(&context).await,
            Verb::Status(arguments) => arguments.handle(&context).await,
            Verb::Peers(arguments) => arguments.handle(&context).await,
            Verb::Doctor(arguments) => arguments.handle(&context).await,
            Verb::Fleet(arguments) => arguments.handle(&context).await,
            Verb::Join(arguments) => arguments.handle(&context).await,
            Verb::Model(arguments) => arguments.handle(&context).await,
            Verb::Plan(arguments) => arguments.handle(&context).await,
            Verb::Ask(arguments) => arguments.handle(&context).await,
            Verb::Demo(arguments) => arguments.handle(&context).await,
            Verb::Bench(arguments) => arguments.handle(),
            Verb::Debug(arguments) => arguments.handle(&context).await,
            Verb::Worker(arguments) => arguments.handle(),
        }
    });
    // An interrupted import tidies up behind itself.
    runtime.shutdown_timeout(TIDY_UP);
    result
}

/// A command line that clap does not accept, or a request for help.
fn refuse(error: &clap::Error) -> ExitCode {
    let asked_for_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    let json = std::env::args_os()
        .skip(1)
        .take_while(|argument| argument != "--");
    if asked_for_help || !json.into_iter().any(|argument| argument == "--json") {
        let _ = error.print();
    } else {
        output::json(&usage(error).object());
    }
    ExitCode::from(if asked_for_help { 0 } else { 2 })
}

/// Clap's words as a fact and a hint.
fn usage(error: &clap::Error) -> Error {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Error::usage("a command is missing").hint("see `skein --help`");
    }
    let text = error.to_string();
    let fact = text.split("\n\n").next().unwrap_or(&text);
    let fact = fact.strip_prefix("error: ").unwrap_or(fact);
    let fact = fact.split_whitespace().collect::<Vec<_>>().join(" ");
    Error::usage(fact).hint("see `--help` of the command")
}
