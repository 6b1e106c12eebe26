//! Models in stores of their own, and the stages cut from them.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skein::worker::LoadSpec;
use skein_shards::graph::stage_xml;
use skein_shards::hash::ModelId;
use skein_shards::import::{ImportOptions, import_gguf};
use skein_shards::manifest::Manifest;
use skein_shards::quant::WeightMode;
use skein_shards::store::Store;
use skein_shards::testing::{TinyConfig, write_tiny_gguf};

/// An imported model.
pub struct Imported {
    folder: tempfile::TempDir,
    store: Store,
    id: ModelId,
    pub manifest: Arc<Manifest>,
}

impl Imported {
    /// Imports a file.
    pub fn new(gguf: &Path, weights: WeightMode) -> Self {
        let folder = super::folder();
        let store = Store::open(folder.path().join("store")).unwrap();
        let options = ImportOptions {
            name: None,
            weights,
        };
        let id = import_gguf(gguf, &options, &store, &mut |_| true).unwrap();
        let manifest = store.manifest(id).unwrap();
        Self {
            folder,
            store,
            id,
            manifest,
        }
    }

    /// Imports a model of random weights.
    pub fn tiny(config: &TinyConfig, weights: WeightMode) -> Self {
        let folder = super::folder();
        let path = folder.path().join("tiny.gguf");
        write_tiny_gguf(&path, config).unwrap();
        Self::new(&path, weights)
    }

    /// About equal cuts.
    pub fn cut(&self, stages: u32) -> Vec<Range<u32>> {
        let layers = self.manifest.layers;
        (0..stages)
            .map(|stage| layers * stage / stages..layers * (stage + 1) / stages)
            .collect()
    }

    /// What a worker has to load for `layers`, in `exact` on the CPU with one thread.
    pub fn spec(&self, layers: Range<u32>, line: u64, blocks: u32) -> LoadSpec {
        let (libs_dir, cache_dir) = super::openvino();
        LoadSpec {
            libs_dir,
            cache_dir,
            graph: self.graph(layers.clone()),
            weights: self.store.weights_path(self.id).unwrap(),
            device: "CPU".into(),
            exact: true,
            blocks,
            first: layers.start == 0,
            last: layers.end == self.manifest.layers,
            hidden: self.manifest.hidden,
            vocab: self.manifest.vocab,
            layers: (layers.start, layers.end),
            threads: Some(1),
            sliding_windows: vec![0; layers.len()],
            dynamic_quantization_group: None,
            kv: None,
            inference_precision: None,
            context: self.manifest.context,
            line,
            allow_logits: true,
            report_steps: false,
        }
    }

    fn graph(&self, layers: Range<u32>) -> PathBuf {
        let name = format!("{}-{}.xml", layers.start, layers.end);
        let path = self.folder.path().join(name);
        if !path.exists() {
            let blob = self.store.graph(self.id).unwrap();
            fs::write(&path, stage_xml(&self.manifest, &blob, layers).unwrap()).unwrap();
        }
        path
    }
}
