//! The models in a store, as the command line speaks of them.

use std::time::{Duration, Instant};

use skein_shards::{
    hash::ModelId,
    import::{ImportError, ImportOptions, Progress, import_gguf},
    quant::WeightMode,
    store::{ModelSummary, Store, StoreError},
    tokenizer::{ChatError, Message, Tokenizer},
};

use super::blocking;
use crate::{
    control::{AddModel, ChatMessage, EventSink, TokenizeInput, TokenizeRequest},
    error::{Code, Error, Result},
    objects::{self, Weights},
};

/// How often a bar moves.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// Imports a model file; nothing is left of an import that fails or whose asker goes away.
pub async fn add(store: Store, request: AddModel, events: EventSink) -> Result<objects::Model> {
    // Dropping this future must end the import too: the sink closes, and the import looks there.
    blocking(move || {
        check_file(&request)?;
        let options = ImportOptions {
            name: request.name.clone(),
            weights: match request.weights {
                Weights::Auto => WeightMode::Auto,
                Weights::Int4 => WeightMode::Int4,
                Weights::Int8 => WeightMode::Int8,
                Weights::F16 => WeightMode::F16,
                Weights::F32 => WeightMode::F32,
            },
        };
        let file = request
            .path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let task = format!("importing {file}");
        let mut last: Option<Instant> = None;
        let mut progress = |at: Progress| {
            let due =
                at.done >= at.total || last.is_none_or(|last| last.elapsed() >= PROGRESS_EVERY);
            if due {
                last = Some(Instant::now());
                return events.progress(&task, at.done, at.total, true).is_ok();
            }
            !events.is_closed()
        };
        let id = import_gguf(&request.path, &options, &store, &mut progress)
            .map_err(|error| import_error(error, &request))?;
        show(&store, &id.to_string())
    })
    .await
}

/// The tokens of a text or a chat.
pub async fn tokenize(store: Store, request: TokenizeRequest) -> Result<objects::Tokenized> {
    blocking(move || {
        let tokenizer = tokenizer(&store, resolve(&store, &request.model)?)?;
        let (ids, text) = match request.input {
            TokenizeInput::Text(text) => (tokenizer.encode(&text, true), text),
            TokenizeInput::Chat(chat) => {
                let chat = messages(chat);
                let ids = tokenizer.encode_chat(&chat, true).map_err(chat_error)?;
                (ids, tokenizer.render_chat(&chat, true).map_err(chat_error)?)
            }
        };
        let tokens = ids.iter().map(|id| tokenizer.token_text(*id)).collect();
        Ok(objects::Tokenized { ids, tokens, text })
    })
    .await
}

/// A model's tokenizer with its chat template. Reads the disk.
pub fn tokenizer(store: &Store, model: ModelId) -> Result<Tokenizer> {
    let manifest = store.manifest(model).map_err(store_error)?;
    let json = store.tokenizer(model).map_err(store_error)?;
    Tokenizer::of(&manifest, &json).map_err(|error| {
        Error::new(
            Code::BadModel,
            format_args!("the tokenizer of {} cannot be used: {error}", manifest.name),
        )
    })
}

/// A chat as its template takes it.
pub fn messages(chat: Vec<ChatMessage>) -> Vec<Message> {
    let message = |message: ChatMessage| Message {
        role: message.role,
        content: message.content,
    };
    chat.into_iter().map(message).collect()
}

/// A chat's refusal in the command line's words.
pub fn chat_error(error: ChatError) -> Error {
    match error {
        ChatError::NoTemplate => {
            Error::bad_input(error).hint("send plain text: `skein ask --raw`, `--text`")
        }
        _ => Error::bad_input(error),
    }
}

/// Every model in the store, by name.
pub fn list(store: &Store) -> Vec<objects::Model> {
    let mut models: Vec<_> = store.models().iter().map(describe).collect();
    models.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    models
}

/// One model, by name, id or start of an id.
pub fn show(store: &Store, model: &str) -> Result<objects::Model> {
    Ok(describe(&find(store, model)?))
}

/// Removes a model and everything of it from this machine. The caller sees to it that no line uses
/// it.
pub async fn remove(store: Store, model: String) -> Result<objects::Removed> {
    blocking(move || {
        let found = find(&store, &model)?;
        let freed_bytes = store.remove(found.id).map_err(store_error)?;
        Ok(objects::Removed {
            id: found.id.to_string(),
            name: found.manifest.name.clone(),
            freed_bytes,
        })
    })
    .await
}

/// The model that a person means.
pub fn resolve(store: &Store, model: &str) -> Result<ModelId> {
    store.find(model).map_err(store_error)
}

/// A store's refusal in the command line's words.
pub fn store_error(error: StoreError) -> Error {
    match &error {
        StoreError::NotFound(_) => {
            Error::new(Code::NotFound, error).hint("`skein model ls` lists the models here")
        }
        StoreError::Ambiguous { .. } => {
            Error::new(Code::BadInput, error).hint("give more of the id")
        }
        StoreError::Locked { .. } => {
            Error::failed(error).hint("wait for it to end; only one process uses a store")
        }
        StoreError::NoSpace { .. } => Error::failed(error)
            .hint("remove a model with `skein model rm`, or raise the agent's --disk"),
        StoreError::DiskFull(_) => {
            Error::failed(error).hint("free some space, or remove a model with `skein model rm`")
        }
        _ => Error::failed(error),
    }
}

/// An import's refusal in the command line's words.
fn import_error(error: ImportError, request: &AddModel) -> Error {
    let hint = error.hint();
    match error {
        ImportError::Cancelled => Error::interrupted().hint(hint),
        ImportError::Store(error) => store_error(error),
        ImportError::Read(_) => {
            Error::bad_input(format_args!("{}: {error}", request.path.display())).hint(hint)
        }
        _ => Error::new(
            Code::BadModel,
            format_args!("{}: {error}", request.path.display()),
        )
        .hint(hint),
    }
}

/// What can be said of a file before it is opened.
fn check_file(request: &AddModel) -> Result<()> {
    let path = request.path.display();
    match std::fs::metadata(&request.path) {
        Ok(found) if found.is_dir() => Err(Error::new(
            Code::BadModel,
            format_args!("{path} is a folder"),
        )
        .hint("give a GGUF file; folders cannot be imported yet")),
        // Opening a pipe or a device could wait for ever.
        Ok(found) if !found.is_file() => Err(Error::new(
            Code::BadModel,
            format_args!("{path} is not a regular file"),
        )),
        Ok(_) => Ok(()),
        Err(error) => Err(
            Error::bad_input(format_args!("cannot read {path}: {error}"))
                .hint("check that the path is right and that you may read the file"),
        ),
    }?;
    match &request.name {
        Some(name) if name.trim().is_empty() || name.chars().any(char::is_control) => Err(
            Error::usage("a model's name cannot be empty or hold control characters"),
        ),
        _ => Ok(()),
    }
}

fn find(store: &Store, model: &str) -> Result<ModelSummary> {
    let id = resolve(store, model)?;
    let gone = || store_error(StoreError::NotFound(model.to_owned()));
    store
        .models()
        .into_iter()
        .find(|summary| summary.id == id)
        .ok_or_else(gone)
}

fn describe(summary: &ModelSummary) -> objects::Model {
    let manifest = &summary.manifest;
    objects::Model {
        id: summary.id.to_string(),
        name: manifest.name.clone(),
        family: manifest.family.clone(),
        layers: manifest.layers,
        hidden: manifest.hidden,
        vocab: manifest.vocab,
        context: manifest.context,
        weights: manifest.weights.clone(),
        bytes: manifest.segments.iter().map(|segment| segment.size).sum(),
        segments: manifest
            .segments
            .iter()
            .zip(&summary.held)
            .map(|(segment, held)| objects::Segment {
                name: segment.name.clone(),
                bytes: segment.size,
                hash: segment.hash.to_string(),
                held: *held,
            })
            .collect(),
        stop_ids: manifest.stop_ids.clone(),
        license: manifest.license.clone(),
        source: Some(manifest.source.file.clone()),
    }
}
