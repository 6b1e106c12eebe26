//! Model files in, the canonical form out.
//!
//! An import has two parts. First everything is checked that can be without reading weights: the
//! architecture, every key that changes what is computed, every tensor's name, type and shape, and
//! the tokenizer; a file that would run wrongly is refused by name, and nothing has been written
//! yet. Then segment after segment is read, requantised and handed to the store, in runs of rows,
//! so that memory does not grow with the model.
//!
//! Nothing after this module knows what kind of file a model came from.

mod architecture;
mod error;
pub mod gguf;
mod layout;
mod stream;

use std::fs::File;
use std::path::Path;

use crate::graph::decoder;
use crate::hash::ModelId;
use crate::manifest::{self, Manifest, Source};
use crate::quant::WeightMode;
use crate::store::Store;
use architecture::Architecture;
pub use error::ImportError;
use gguf::Gguf;
use layout::Layout;

/// What may be chosen about an import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// What people will call the model; without it, the file's name without its ending.
    pub name: Option<String>,
    pub weights: WeightMode,
}

/// How far an import is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the source that have been dealt with; hashing the file counts as reading it once.
    pub done: u64,
    pub total: u64,
}

/// Imports a GGUF file into a store.
///
/// `progress` is called now and then; the import is given up when it returns false. On any error
/// nothing is left in the store.
pub fn import_gguf(
    path: &Path,
    options: &ImportOptions,
    store: &Store,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<ModelId, ImportError> {
    let file = File::open(path).map_err(ImportError::Read)?;
    let mut gguf = Gguf::open(file)?;
    let architecture = Architecture::read(&mut gguf)?;
    let mode = options.weights.resolve(architecture.parameters);
    let mut layout = Layout::new(&gguf.tensors, &architecture, mode);
    let mut graph = decoder::write(&architecture.decoder, &mut layout);
    let plan = layout.finish()?;
    plan.place(&mut graph);

    let total = stream::source_bytes(path)? + plan.source_bytes();
    let mut meter = stream::Meter::new(total, progress);
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let source = Source {
        hash: stream::hash_file(path, &mut meter)?,
        file: file_name.clone().into_owned(),
    };
    let mut import = store.begin_import()?;
    let segments = stream::write_segments(&mut gguf, &plan, &mut import, &mut meter)?;
    let decoder = &architecture.decoder;
    let manifest = Manifest {
        format: manifest::FORMAT,
        name: options.name.clone().unwrap_or_else(|| {
            let stem = path.file_stem().unwrap_or_default();
            stem.to_string_lossy().into_owned()
        }),
        family: architecture.family.name().to_owned(),
        layers: decoder.layers,
        hidden: decoder.hidden,
        heads: decoder.heads,
        kv_heads: decoder.kv_heads,
        head_dim: decoder.head_dim,
        feed_forward: decoder.feed_forward,
        vocab: decoder.vocab,
        context: architecture.context,
        parameters: architecture.parameters,
        weights: mode.name().to_owned(),
        rope: architecture.rope.clone(),
        sliding_windows: vec![0; decoder.layers as usize],
        tied_embedding: decoder.tied_embedding,
        segments,
        graph: import.graph(&graph.to_blob())?,
        tokenizer: import.tokenizer(&architecture.tokenizer)?,
        chat_template: architecture.chat_template.clone(),
        bos_id: architecture.bos_id,
        eos_id: architecture.eos_id,
        add_bos: architecture.add_bos,
        stop_ids: architecture.stop_ids.clone(),
        license: architecture.license.clone(),
        source,
    };
    Ok(import.finish(&manifest)?)
}

#[cfg(test)]
mod tests;
