//! Gives every weight its place before any is read, and checks that the file has exactly the
//! tensors that the architecture uses.

use std::collections::{BTreeMap, BTreeSet};

use super::ImportError;
use super::architecture::{Architecture, Family, ROPE_FACTORS};
use super::gguf::Tensor;
use crate::graph::decoder::{LayerWeight, StoredMatrix, Weight, Weights};
use crate::graph::{Graph, Span};
use crate::manifest::{SEGMENT_ALIGNMENT, SegmentKind};
use crate::quant::{Storage, WeightMode};

/// A constant starts at a multiple of this, a cache line.
pub const CONSTANT_ALIGNMENT: u64 = 64;
/// While segments have no place yet, a span's offset is its segment's index times this.
const SEGMENT_STRIDE: u64 = 1 << 44;

/// Every segment of the weights file and where its bytes come from.
#[derive(Debug)]
pub struct Plan {
    pub segments: Vec<Segment>,
}

#[derive(Debug)]
pub struct Segment {
    pub kind: SegmentKind,
    /// Where it starts in the weights file.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// In the order of their places.
    pub items: Vec<Item>,
}

/// Bytes of a segment; offsets are relative to it.
#[derive(Debug)]
pub struct Item {
    pub offset: u64,
    pub source: ItemSource,
}

#[derive(Debug)]
pub enum ItemSource {
    Literal(Vec<u8>),
    /// A matrix, or a vector as a matrix of one column that is stored as f32. Scales and zero
    /// points follow the data, each at its alignment.
    Tensor {
        tensor: Tensor,
        rows: u64,
        width: u64,
        storage: Storage,
        order: RowOrder,
    },
}

/// The order in which a tensor's rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    AsStored,
    /// Within each head of this many rows, pairs (2i, 2i+1) become (i, i + half): the source rotates
    /// neighbours, the graph rotates halves.
    Deinterleave {
        head: u64,
    },
}

/// Collects places while the graph is written.
pub struct Layout<'a> {
    tensors: &'a BTreeMap<String, Tensor>,
    family: Family,
    head_dim: u64,
    mode: WeightMode,
    segments: Vec<Segment>,
    current: usize,
    literals: BTreeMap<Vec<u8>, Span>,
    matrices: BTreeMap<Weight, StoredMatrix>,
    used: BTreeSet<String>,
    /// The first thing that was wrong; the graph written after it is thrown away.
    error: Option<ImportError>,
}

const NOWHERE: Span = Span { offset: 0, size: 0 };

impl<'a> Layout<'a> {
    pub fn new(
        tensors: &'a BTreeMap<String, Tensor>,
        architecture: &Architecture,
        mode: WeightMode,
    ) -> Self {
        let layers = architecture.decoder.layers;
        let kinds = [SegmentKind::Common, SegmentKind::Embedding]
            .into_iter()
            .chain((0..layers).map(SegmentKind::Layer))
            .chain([SegmentKind::Head]);
        Self {
            tensors,
            family: architecture.family,
            head_dim: u64::from(architecture.decoder.head_dim),
            mode,
            segments: kinds
                .map(|kind| Segment {
                    kind,
                    offset: 0,
                    size: 0,
                    items: Vec::new(),
                })
                .collect(),
            current: 0,
            literals: BTreeMap::new(),
            matrices: BTreeMap::new(),
            used: BTreeSet::from([ROPE_FACTORS.to_owned()]),
            error: None,
        }
    }

    /// The plan, if the file has every tensor that is needed and no other.
    pub fn finish(mut self) -> Result<Plan, ImportError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if let Some(unused) = self.tensors.keys().find(|name| !self.used.contains(*name)) {
            return Err(ImportError::UnusedTensor(unused.clone()));
        }
        let mut end = 0u64;
        for segment in &mut self.segments {
            segment.offset = end.next_multiple_of(SEGMENT_ALIGNMENT);
            end = segment.offset + segment.size;
        }
        Ok(Plan {
            segments: self.segments,
        })
    }

    fn fail(&mut self, error: ImportError) {
        self.error.get_or_insert(error);
    }

    /// A tensor of this name and shape (innermost first), marked as used.
    fn take(&mut self, name: &str, shape: &[u64]) -> Option<Tensor> {
        let Some(tensor) = self.tensors.get(name) else {
            self.fail(ImportError::MissingTensor(name.to_owned()));
            return None;
        };
        if tensor.shape != shape {
            self.fail(ImportError::Shape {
                tensor: name.to_owned(),
                found: tensor.shape.clone(),
                expected: shape.to_vec(),
            });
            return None;
        }
        self.used.insert(name.to_owned());
        Some(tensor.clone())
    }

    /// Reserves a constant's place in a segment.
    fn reserve(&mut self, segment: usize, size: u64) -> Span {
        let end = &mut self.segments[segment].size;
        let offset = end.next_multiple_of(CONSTANT_ALIGNMENT);
        *end = offset + size;
        Span {
            offset: segment as u64 * SEGMENT_STRIDE + offset,
            size,
        }
    }

    fn add(&mut self, segment: usize, span: Span, source: ItemSource) {
        self.segments[segment].items.push(Item {
            offset: span.offset % SEGMENT_STRIDE,
            source,
        });
    }

    fn row_order(&self, weight: Weight) -> RowOrder {
        use LayerWeight::{Key, Query};
        match (self.family, weight) {
            (Family::Llama, Weight::Layer(_, Query | Key)) => RowOrder::Deinterleave {
                head: self.head_dim,
            },
            _ => RowOrder::AsStored,
        }
    }

    fn vector(&mut self, weight: Weight, name: &str, width: u32) -> Span {
        let Some(tensor) = self.take(name, &[u64::from(width)]) else {
            return NOWHERE;
        };
        let span = self.reserve(self.current, u64::from(width) * 4);
        let source = ItemSource::Tensor {
            tensor,
            rows: u64::from(width),
            width: 1,
            storage: Storage::F32,
            order: self.row_order(weight),
        };
        self.add(self.current, span, source);
        span
    }
}

impl Weights for Layout<'_> {
    fn enter(&mut self, segment: SegmentKind) {
        let found = self.segments.iter().position(|other| other.kind == segment);
        self.current = found.expect("the layout has a segment for every layer");
    }

    fn matrix(&mut self, weight: Weight, rows: u32, width: u32) -> StoredMatrix {
        if let Some(stored) = self.matrices.get(&weight) {
            return *stored;
        }
        let ends = !matches!(weight, Weight::Layer(..));
        let storage = self.mode.storage(width, ends);
        let name = format!("{}.weight", source_name(weight));
        let (rows, width) = (u64::from(rows), u64::from(width));
        let Some(tensor) = self.take(&name, &[width, rows]) else {
            return StoredMatrix {
                storage,
                data: NOWHERE,
                scales: NOWHERE,
                zero_points: NOWHERE,
            };
        };
        let sizes = storage.sizes(rows, width);
        let segment = self.current;
        let data = self.reserve(segment, sizes.data);
        let mut more = |size| match size {
            0 => NOWHERE,
            size => self.reserve(segment, size),
        };
        let stored = StoredMatrix {
            storage,
            data,
            scales: more(sizes.scales),
            zero_points: more(sizes.zero_points),
        };
        let source = ItemSource::Tensor {
            tensor,
            rows,
            width,
            storage,
            order: self.row_order(weight),
        };
        self.add(segment, data, source);
        self.matrices.insert(weight, stored);
        stored
    }

    fn norm(&mut self, weight: Weight, width: u32) -> Span {
        self.vector(weight, &format!("{}.weight", source_name(weight)), width)
    }

    fn bias(&mut self, weight: Weight, width: u32) -> Option<Span> {
        let name = format!("{}.bias", source_name(weight));
        // The embedding has none, and as lm_head it is asked for once more.
        let exists = weight != Weight::Embedding && self.tensors.contains_key(&name);
        exists.then(|| self.vector(weight, &name, width))
    }

    fn literal(&mut self, bytes: &[u8]) -> Span {
        if let Some(span) = self.literals.get(bytes) {
            return *span;
        }
        let span = self.reserve(0, bytes.len() as u64);
        self.add(0, span, ItemSource::Literal(bytes.to_vec()));
        self.literals.insert(bytes.to_vec(), span);
        span
    }
}

impl Plan {
    /// Makes the spans of a graph that was written with this plan's layout final.
    pub fn place(&self, graph: &mut Graph) {
        for span in graph.nodes.iter_mut().filter_map(|node| node.span.as_mut()) {
            let segment = &self.segments[(span.offset / SEGMENT_STRIDE) as usize];
            span.offset = segment.offset + span.offset % SEGMENT_STRIDE;
        }
    }

    /// Bytes of tensors that will be read.
    pub fn source_bytes(&self) -> u64 {
        let items = self.segments.iter().flat_map(|segment| &segment.items);
        items
            .map(|item| match &item.source {
                ItemSource::Literal(_) => 0,
                ItemSource::Tensor { tensor, .. } => tensor.size,
            })
            .sum()
    }
}

/// The name of a weight's tensors in a GGUF file, without `.weight` or `.bias`.
fn source_name(weight: Weight) -> String {
    let (layer, weight) = match weight {
        Weight::Embedding => return "token_embd".to_owned(),
        Weight::FinalNorm => return "output_norm".to_owned(),
        Weight::Head => return "output".to_owned(),
        Weight::Layer(layer, weight) => (layer, weight),
    };
    let name = match weight {
        LayerWeight::AttentionNorm => "attn_norm",
        LayerWeight::Query => "attn_q",
        LayerWeight::Key => "attn_k",
        LayerWeight::Value => "attn_v",
        LayerWeight::Output => "attn_output",
        LayerWeight::FeedForwardNorm => "ffn_norm",
        LayerWeight::Gate => "ffn_gate",
        LayerWeight::Up => "ffn_up",
        LayerWeight::Down => "ffn_down",
    };
    format!("blk.{layer}.{name}")
}
