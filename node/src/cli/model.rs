//! `skein model`: the models in this machine's store.

use std::path::{Path, PathBuf};

use super::Context;
use crate::{
    control::{AddModel, ChatMessage, Command, TokenizeInput, TokenizeRequest},
    error::{Error, Result},
    objects::{Model, Removed, Tokenized, Weights},
    output,
};

/// The largest chat file, in bytes: what fits into one request.
const MAX_CHAT_FILE: u64 = 2 << 20;

/// Import, list, show and remove models
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  skein model add smollm2-135m.gguf",
    arg_required_else_help = true
)]
pub struct ModelArgs {
    #[command(subcommand)]
    verb: ModelVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ModelVerb {
    /// Import a model file (GGUF) into the store
    #[command(
        after_help = "Example:\n  skein model add smollm2-135m.gguf --name smollm2 --weights int8"
    )]
    Add {
        /// The file
        path: PathBuf,
        /// What to call it; the file's own name otherwise
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// How to store the weights; auto is int8 below a billion parameters, int4 above
        #[arg(long, value_name = "MODE", value_enum, default_value_t)]
        weights: Weights,
    },
    /// List the models
    #[command(visible_alias = "list", after_help = "Example:\n  skein model ls")]
    Ls,
    /// Show one model and its segments
    #[command(after_help = "Example:\n  skein model show smollm2-135m")]
    Show {
        /// Name, id or start of an id
        #[arg(value_name = "MODEL")]
        model: String,
    },
    /// Remove a model from this machine
    #[command(after_help = "Example:\n  skein model rm smollm2-135m")]
    Rm {
        /// Name, id or start of an id
        #[arg(value_name = "MODEL")]
        model: String,
    },
    /// Show the tokens of a text or of a chat
    #[command(
        after_help = "Example:\n  skein model tokenize smollm2-135m --text 'Hello<|im_end|>'"
    )]
    Tokenize {
        /// Name, id or start of an id
        #[arg(value_name = "MODEL")]
        model: String,
        #[command(flatten)]
        input: TokenizeFlags,
    },
    /// Write a model as a folder (does not exist yet)
    #[command(after_help = "Example:\n  skein model export smollm2-135m ./folder")]
    Export {
        /// Name, id or start of an id
        #[arg(value_name = "MODEL")]
        model: String,
        /// Where to
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct TokenizeFlags {
    /// This text, in which control tokens count as such
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,
    /// The chat in FILE, a JSON list of {role, content}, with the generation prompt added
    #[arg(long, value_name = "FILE")]
    chat: Option<PathBuf>,
}

impl ModelArgs {
    pub(super) async fn handle(self, context: &Context) -> Result<()> {
        match self.verb {
            ModelVerb::Add {
                path,
                name,
                weights,
            } => {
                let path = std::path::absolute(path)?;
                let model: Model = context
                    .call(Command::ModelAdd(AddModel {
                        path,
                        name,
                        weights,
                    }))
                    .await?;
                context.show(&model, |model| {
                    format!(
                        "{} ({}): {} layers, {} in {} segments, weights {}",
                        model.name,
                        output::short(&model.id),
                        model.layers,
                        output::size(model.bytes),
                        model.segments.len(),
                        model.weights,
                    )
                });
            }
            ModelVerb::Ls => {
                let models: Vec<Model> = context.call(Command::ModelList).await?;
                context.show(&models, |models| output::models(models));
            }
            ModelVerb::Show { model } => {
                let model: Model = context.call(Command::ModelShow { model }).await?;
                context.show(&model, output::model);
            }
            ModelVerb::Rm { model } => {
                let removed: Removed = context.call(Command::ModelRemove { model }).await?;
                context.show(&removed, |removed| {
                    format!(
                        "{} is gone, {} freed",
                        removed.name,
                        output::size(removed.freed_bytes)
                    )
                });
            }
            ModelVerb::Tokenize { model, input } => {
                let input = match (input.text, input.chat) {
                    (Some(text), _) => TokenizeInput::Text(text),
                    (None, Some(file)) => TokenizeInput::Chat(read_chat(&file)?),
                    (None, None) => return Err(Error::usage("neither --text nor --chat is given")),
                };
                let tokens: Tokenized = context
                    .call(Command::Tokenize(TokenizeRequest { model, input }))
                    .await?;
                context.show(&tokens, output::tokens);
            }
            ModelVerb::Export { .. } => return Err(Error::not_yet("skein model export")),
        }
        Ok(())
    }
}

/// Reads a JSON list of `{role, content}`.
fn read_chat(file: &Path) -> Result<Vec<ChatMessage>> {
    let bad = |reason: &dyn std::fmt::Display| {
        Error::bad_input(format_args!("{} is not a chat: {reason}", file.display()))
            .hint(r#"it is a JSON list like [{"role": "user", "content": "Hello"}]"#)
    };
    let length = std::fs::metadata(file)
        .map_err(|error| Error::bad_input(format_args!("cannot read {}: {error}", file.display())))?
        .len();
    if length > MAX_CHAT_FILE {
        return Err(bad(&format_args!(
            "{length} bytes are more than {MAX_CHAT_FILE}"
        )));
    }
    let bytes = std::fs::read(file).map_err(|error| bad(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| bad(&error))
}
