//! A model of pseudo-random bytes, for the tests of the store and of transfers.

use super::Store;
use crate::hash::{Hash, ModelId};
use crate::manifest::{Blob, FORMAT, Manifest, Rope, Segment, SegmentKind, Source};

pub(crate) const GRAPH: &[u8] = b"a graph";
pub(crate) const TOKENIZER: &[u8] = b"a tokenizer";

/// Segment `index` of the model that `seed` stands for.
pub(crate) fn data(seed: u64, index: usize, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.update(&index.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// Imports a model with segments of these sizes: common, embedding, layers and head.
pub(crate) fn import(store: &Store, name: &str, seed: u64, sizes: &[usize]) -> ModelId {
    let mut import = store.begin_import().unwrap();
    for (index, size) in sizes.iter().enumerate() {
        let mut segment = import.segment().unwrap();
        for piece in data(seed, index, *size).chunks(70_001) {
            segment.append(piece).unwrap();
        }
        segment.finish().unwrap();
    }
    let graph = import.graph(GRAPH).unwrap();
    let tokenizer = import.tokenizer(TOKENIZER).unwrap();
    let manifest = manifest(name, &import, graph, tokenizer);
    import.finish(&manifest).unwrap()
}

pub(crate) fn manifest(
    name: &str,
    import: &super::Import,
    graph: Blob,
    tokenizer: Blob,
) -> Manifest {
    let layers = import.segments().len() as u32 - 3;
    let kinds = [
        ("common".to_owned(), SegmentKind::Common),
        ("embedding".to_owned(), SegmentKind::Embedding),
    ]
    .into_iter()
    .chain((0..layers).map(|layer| (format!("layer.{layer}"), SegmentKind::Layer(layer))))
    .chain([("head".to_owned(), SegmentKind::Head)]);
    let segments = kinds
        .zip(import.segments())
        .map(|((name, kind), written)| Segment {
            name,
            kind,
            offset: written.offset,
            size: written.size,
            hash: written.hash,
        })
        .collect();
    Manifest {
        format: FORMAT,
        name: name.to_owned(),
        family: "llama".to_owned(),
        layers,
        hidden: 8,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        feed_forward: 16,
        vocab: 300,
        context: 128,
        parameters: 1,
        weights: "int8".to_owned(),
        rope: Rope {
            theta: 10_000.0,
            scale: 1.0,
        },
        sliding_windows: vec![0; layers as usize],
        tied_embedding: false,
        segments,
        graph,
        tokenizer,
        chat_template: None,
        bos_id: None,
        eos_id: None,
        add_bos: false,
        stop_ids: Vec::new(),
        license: None,
        source: Source {
            file: "test".to_owned(),
            hash: Hash::of(b"test"),
        },
    }
}

/// Changes one byte of a segment on disk.
pub(crate) fn flip(store: &Store, id: ModelId, segment: usize, position: u64) {
    let path = store.weights_path(id).unwrap();
    let offset = store.manifest(id).unwrap().segments[segment].offset + position;
    let mut byte = [0];
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    super::disk::read_exact_at(&file, offset, &mut byte).unwrap();
    byte[0] ^= 0x10;
    super::disk::write_all_at(&file, offset, &byte).unwrap();
}

/// A segment as it lies in the weights file.
pub(crate) fn on_disk(store: &Store, id: ModelId, segment: usize) -> Vec<u8> {
    let segment = &store.manifest(id).unwrap().segments[segment];
    let file = std::fs::File::open(store.weights_path(id).unwrap()).unwrap();
    let mut bytes = vec![0; segment.size as usize];
    super::disk::read_exact_at(&file, segment.offset, &mut bytes).unwrap();
    bytes
}
