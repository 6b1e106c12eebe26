//! What a model computes: a dataflow graph in OpenVINO's IR v11, and the stages cut from it.
//!
//! A [`Graph`] is a list of nodes in an order in which they can be computed. Constants are not in
//! it: they name a [`Span`] of the model's weights file, and keep naming it in every stage, so that
//! a stage needs only the segments that its constants lie in.
//!
//! The canonical whole-model graph ([`decoder`]) names the hidden state before layer k `hidden.k`;
//! those edges, one tensor each, are the places where [`cut()`] may cut. Deliberately not here: running
//! a graph, paged attention (the engine adds it), and where weights come from (`import`).

mod builder;
mod cut;
pub mod decoder;
mod parse;
mod write;

use std::io::{Read, Write};
use std::ops::Range;

use crate::manifest::Manifest;

pub use cut::{cut, hidden_name};

/// Several times the graph of the deepest model known.
const MAX_NODES: usize = 1 << 19;
/// The text of a graph; a few megabytes in practice.
const MAX_XML_BYTES: u64 = 128 << 20;
const MAX_DIMENSIONS: usize = 8;

/// A dataflow graph; every node comes after those that it reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub name: String,
    pub nodes: Vec<Node>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique in its graph.
    pub name: String,
    /// The operation, such as `MatMul`.
    pub kind: String,
    /// The operation set that defines it, such as `opset1`.
    pub opset: String,
    /// In the order in which they are written; a constant's span is not among them.
    pub attributes: Vec<(String, String)>,
    /// Where a constant's value lies in the weights file.
    pub span: Option<Span>,
    pub inputs: Vec<Wire>,
    pub outputs: Vec<Port>,
}

/// An output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wire {
    /// Index of the node in its graph.
    pub node: usize,
    /// Index of the output at that node.
    pub output: usize,
}

/// What an output carries.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    pub element: ElementType,
    /// Sizes by dimension, −1 where they vary.
    pub shape: Vec<i64>,
    /// Tensor names by which others find this output.
    pub names: Vec<String>,
}

/// Bytes of the weights file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    Bool,
    F16,
    F32,
    I32,
    I64,
    I8,
    U4,
}

impl ElementType {
    const ALL: [Self; 7] = [
        Self::Bool,
        Self::F16,
        Self::F32,
        Self::I32,
        Self::I64,
        Self::I8,
        Self::U4,
    ];

    /// The name in a node's attributes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "boolean",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::I8 => "i8",
            Self::U4 => "u4",
        }
    }

    /// The name at a port.
    fn precision(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::F16 => "FP16",
            Self::F32 => "FP32",
            Self::I32 => "I32",
            Self::I64 => "I64",
            Self::I8 => "I8",
            Self::U4 => "U4",
        }
    }
}

/// A graph that cannot be read or cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    #[error("the graph is not readable: {0}")]
    Malformed(String),
    #[error("the graph has more {0} than this program reads")]
    TooLarge(&'static str),
    #[error("the layers {}..{} are not a part of {layers} layers", .range.start, .range.end)]
    Range { range: Range<u32>, layers: u32 },
    #[error("the graph has no tensor '{0}'")]
    NoSuchTensor(String),
    #[error("the layers {}..{} cannot be cut out: {what}", .range.start, .range.end)]
    CrossesCut { range: Range<u32>, what: String },
    #[error("the constant '{0}' lies outside the segments of its stage")]
    OutsideSegments(String),
}

impl Graph {
    /// IR v11 as text; the constants are in the weights file.
    pub fn to_xml(&self) -> String {
        write::xml(self)
    }

    /// Reads IR v11 whose operations and types are those of this program. Arbitrary input gives an
    /// error and never panics.
    pub fn from_xml(text: &str) -> Result<Self, GraphError> {
        if text.len() as u64 > MAX_XML_BYTES {
            return Err(GraphError::TooLarge("bytes"));
        }
        parse::graph(text)
    }

    /// The compressed form in which a model's graph is stored and sent.
    pub fn to_blob(&self) -> Vec<u8> {
        let mut encoder =
            flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder
            .write_all(self.to_xml().as_bytes())
            .and_then(|()| encoder.finish())
            .expect("writing to memory does not fail")
    }

    /// Reads what [`Graph::to_blob`] wrote.
    pub fn from_blob(blob: &[u8]) -> Result<Self, GraphError> {
        let mut text = String::new();
        flate2::read::ZlibDecoder::new(blob)
            .take(MAX_XML_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| GraphError::Malformed(error.to_string()))?;
        Self::from_xml(&text)
    }

    pub fn port(&self, wire: Wire) -> &Port {
        &self.nodes[wire.node].outputs[wire.output]
    }

    /// The output that carries this tensor name.
    pub fn tensor(&self, name: &str) -> Option<Wire> {
        let mut wires = self.nodes.iter().enumerate().flat_map(|(node, content)| {
            let outputs = content.outputs.iter().enumerate();
            outputs.map(move |(output, port)| (Wire { node, output }, port))
        });
        wires
            .find(|(_, port)| port.names.iter().any(|other| other == name))
            .map(|(wire, _)| wire)
    }

    /// Names of the graph's inputs, in order.
    pub fn inputs(&self) -> Vec<&str> {
        let parameters = self.nodes.iter().filter(|node| node.kind == "Parameter");
        parameters.map(|node| node.name.as_str()).collect()
    }

    /// Checks that every constant lies in a segment that a stage with these layers holds.
    pub fn check_constants(
        &self,
        manifest: &Manifest,
        layers: Range<u32>,
    ) -> Result<(), GraphError> {
        let held = manifest.segments_for(layers);
        for node in &self.nodes {
            let Some(span) = node.span else { continue };
            let inside = held.iter().any(|index| {
                let segment = &manifest.segments[*index];
                span.offset >= segment.offset
                    && span
                        .offset
                        .checked_add(span.size)
                        .is_some_and(|end| end <= segment.offset + segment.size)
            });
            if !inside {
                return Err(GraphError::OutsideSegments(node.name.clone()));
            }
        }
        Ok(())
    }
}

/// The IR text of the stage with these layers, from a model's manifest and its stored graph.
pub fn stage_xml(
    manifest: &Manifest,
    graph_blob: &[u8],
    layers: Range<u32>,
) -> Result<String, GraphError> {
    let graph = Graph::from_blob(graph_blob)?;
    let stage = cut(&graph, layers.clone(), manifest.layers)?;
    stage.check_constants(manifest, layers)?;
    Ok(stage.to_xml())
}

#[cfg(test)]
mod tests;
