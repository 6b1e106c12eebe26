//! `skein bench`: has its place, does nothing yet.

use std::path::PathBuf;

use crate::{
    error::{Error, Result},
    objects::Numerics,
};

/// Measure speed (does not exist yet)
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  skein bench decode --model smollm2-135m")]
pub struct BenchArgs {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// One step of one stage (does not exist yet)
    #[command(after_help = "Example:\n  skein bench step --model smollm2-135m")]
    Step(Flags),
    /// The way from one stage to the next (does not exist yet)
    #[command(after_help = "Example:\n  skein bench hop --model smollm2-135m --nodes 2")]
    Hop(Flags),
    /// Tokens a second (does not exist yet)
    #[command(after_help = "Example:\n  skein bench decode --model smollm2-135m --users 4")]
    Decode(Flags),
    /// Tokens a second over a slow network (does not exist yet)
    #[command(after_help = "Example:\n  skein bench wan --model smollm2-135m --delay 20")]
    Wan(Flags),
}

#[derive(Debug, clap::Args)]
struct Flags {
    /// Name, id or start of an id
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// A draft model, ngram, auto or off
    #[arg(long, value_name = "DRAFT")]
    draft: Option<String>,
    /// Stages
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Requests at once
    #[arg(long, value_name = "U")]
    users: Option<u32>,
    /// Tokens a request
    #[arg(long, value_name = "N")]
    tokens: Option<u32>,
    /// How often to measure
    #[arg(long, value_name = "R")]
    repeats: Option<u32>,
    /// How the arithmetic is done
    #[arg(long, value_name = "MODE", value_enum)]
    numerics: Option<Numerics>,
    /// Prompts, one a line
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Delay of each hop, in milliseconds
    #[arg(long, value_name = "MS")]
    delay: Option<f64>,
}

impl BenchArgs {
    pub(super) fn handle(self) -> Result<()> {
        let what = match self.what {
            None => "skein bench",
            Some(What::Step(_)) => "skein bench step",
            Some(What::Hop(_)) => "skein bench hop",
            Some(What::Decode(_)) => "skein bench decode",
            Some(What::Wan(_)) => "skein bench wan",
        };
        Err(Error::not_yet(what))
    }
}
