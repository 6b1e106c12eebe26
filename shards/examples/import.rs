//! Imports a GGUF file and lays out what a stage needs as plain files, for experiments with the
//! runtime: `import MODEL.gguf MODE OUT [FIRST-END …]` writes `OUT/model.xml`, one
//! `OUT/stage_FIRST_END.xml` a range, and the weights file's name in a store under `OUT/store`.

use std::path::Path;

use anyhow::{Context, bail};
use skein_shards::graph::{Graph, stage_xml};
use skein_shards::import::{ImportOptions, import_gguf};
use skein_shards::store::Store;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, mode, out, ranges @ ..] = &arguments[..] else {
        bail!("usage: import MODEL.gguf MODE OUT [FIRST-END …]");
    };
    let out = Path::new(out);
    std::fs::create_dir_all(out)?;
    let store = Store::open(out.join("store"))?;
    let options = ImportOptions {
        name: None,
        weights: mode.parse()?,
    };
    let started = std::time::Instant::now();
    let id = import_gguf(Path::new(model), &options, &store, &mut |_| true)
        .map_err(|error| anyhow::anyhow!("{error}\nhint: {}", error.hint()))?;
    let manifest = store.manifest(id)?;
    let blob = store.graph(id)?;
    std::fs::write(out.join("model.xml"), Graph::from_blob(&blob)?.to_xml())?;
    for range in ranges {
        let (first, end) = range.split_once('-').context("a range is FIRST-END")?;
        let (first, end) = (first.parse()?, end.parse()?);
        let path = out.join(format!("stage_{first}_{end}.xml"));
        std::fs::write(path, stage_xml(&manifest, &blob, first..end)?)?;
    }
    std::fs::write(
        out.join("manifest.json"),
        serde_json::to_vec_pretty(&*manifest)?,
    )?;
    println!("{id} in {:?}", started.elapsed());
    println!("{}", store.weights_path(id)?.display());
    Ok(())
}
