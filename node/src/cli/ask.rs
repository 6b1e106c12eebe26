//! `skein ask`: one prompt, one answer.

use std::io::{IsTerminal, Read};

use super::{
    Context,
    context::interruptible,
    values::{self, Ids},
};
use crate::{
    control::{self, AskRequest, Command, Event, Prompt},
    error::{Error, Result},
    objects::{Ask, FinishReason, Numerics},
    output::{self, Progress},
};

/// The longest prompt from stdin, in bytes: with JSON's escapes it still fits into one request.
const MAX_STDIN: u64 = 1 << 20;

/// Ask a model
///
/// The answer streams to stdout. What you type is text: control tokens in it are spelled out, never
/// obeyed. Without PROMPT it is read from stdin, less one newline at its end.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  skein ask smollm2-135m 'What is a skein?'\n  \
                  skein ask smollm2-135m --raw --max-tokens 20 'Once upon a time'\n  \
                  git diff | skein ask qwen2.5-coder --system 'Review this change'"
)]
pub struct AskArgs {
    /// Name, id or start of an id
    #[arg(value_name = "MODEL")]
    model: String,
    /// What to ask
    prompt: Option<String>,
    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "ids"])]
    system: Option<String>,
    /// Continue the text as it stands, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// Continue these token ids as they stand
    #[arg(long, value_name = "1,2,3", conflicts_with_all = ["prompt", "raw"])]
    ids: Option<Ids>,
    /// Most tokens to make
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    max_tokens: u32,
    /// Go on past the end token
    #[arg(long)]
    ignore_eos: bool,
    /// Stop at this text (does not exist yet)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// 0 always takes the likeliest token; higher is more varied
    #[arg(long, value_name = "T", default_value = "0", value_parser = values::temperature, allow_negative_numbers = true)]
    temperature: f32,
    /// Sample among the likeliest tokens that make up P (does not exist yet)
    #[arg(long, value_name = "P", value_parser = values::probability)]
    top_p: Option<f32>,
    /// Sample among the K likeliest tokens (does not exist yet)
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Sample among tokens at least P times as likely as the likeliest (does not exist yet)
    #[arg(long, value_name = "P", value_parser = values::probability)]
    min_p: Option<f32>,
    /// Repeat the answer that had this seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Exactly N stages on N peers; the fewest that fit otherwise
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: Option<u32>,
    /// exact gives the same tokens however the model is split
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    numerics: Numerics,
    /// Draft tokens ahead: `off`, or what does not exist yet (`auto`, `ngram`, a model)
    #[arg(long, value_name = "DRAFT", default_value = "off")]
    draft: String,
    /// Context in tokens [default: 4096 or the model's limit, whichever is less]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ctx: Option<u32>,
}

impl AskArgs {
    pub(super) async fn handle(self, context: &Context) -> Result<()> {
        let request = self.request()?;
        let json = context.json;
        let mut progress = Progress::new();
        let mut answer = output::Stream::new();
        let asked = control::call(&context.home, Command::Ask(request), |event| {
            match &event {
                Event::Text { .. } if json => {}
                Event::Text { text, .. } => {
                    progress.finish();
                    answer.push(text)?;
                }
                other => progress.show(other),
            }
            Ok(())
        });
        let asked: Result<Ask> = interruptible(asked).await;
        progress.finish();
        answer.end();
        let asked = asked?;
        if json {
            output::json(&asked);
        } else {
            output::aside(&output::timing(&asked));
        }
        match asked.finish_reason {
            FinishReason::Stop | FinishReason::Length => Ok(()),
            FinishReason::Cancelled | FinishReason::Error if json => {
                // The object is on stdout already and says it; one object is all there may be.
                std::process::exit(i32::from(ended_badly(&asked).code.exit_status()))
            }
            _ => Err(ended_badly(&asked)),
        }
    }

    fn request(self) -> Result<AskRequest> {
        for (flag, given) in [
            ("--draft", self.draft != "off"),
            ("--stop", !self.stop.is_empty()),
            ("--top-k", self.top_k.is_some()),
            ("--top-p", self.top_p.is_some()),
            ("--min-p", self.min_p.is_some()),
        ] {
            if given {
                return Err(Error::not_yet(flag));
            }
        }
        let prompt = match (self.ids, self.prompt) {
            (Some(Ids(ids)), _) => Prompt::Ids { ids },
            (None, text) => {
                let text = text.map_or_else(read_prompt, Ok)?;
                if self.raw {
                    Prompt::Raw { text }
                } else {
                    Prompt::Chat {
                        system: self.system,
                        text,
                    }
                }
            }
        };
        Ok(AskRequest {
            model: self.model,
            prompt,
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            temperature: self.temperature,
            seed: self.seed,
            nodes: self.nodes,
            numerics: self.numerics,
            ctx: self.ctx,
        })
    }
}

fn ended_badly(asked: &Ask) -> Error {
    match asked.finish_reason {
        FinishReason::Cancelled => Error::interrupted(),
        _ => Error::failed(format_args!(
            "the answer is not whole: {}",
            asked.message.as_deref().unwrap_or("the line failed")
        ))
        .hint("ask again: a new line is built without the machine that left"),
    }
}

/// The prompt from stdin, where that is not a person's keyboard.
fn read_prompt() -> Result<String> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Error::usage("there is no prompt")
            .hint("write it after the model's name, or send it to stdin"));
    }
    let mut bytes = Vec::new();
    stdin.lock().take(MAX_STDIN + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_STDIN {
        return Err(Error::bad_input(format_args!(
            "the prompt is longer than {MAX_STDIN} bytes"
        )));
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|_| Error::bad_input("the prompt on stdin is not UTF-8 text"))?;
    if text.ends_with('\n') {
        text.pop();
    }
    if text.is_empty() {
        return Err(Error::usage("there is no prompt")
            .hint("write it after the model's name, or send it to stdin"));
    }
    Ok(text)
}
