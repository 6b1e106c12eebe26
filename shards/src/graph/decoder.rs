//! Writes the canonical whole-model graph of the decoder families `llama` and `qwen2`.
//!
//! Every form is one that the runtime's fusions know: RMS norm as x · (1/√(mean(x²)+ε)) · w, rotary
//! embedding as rotate-half with slices and a −1 of shape `[1,1,1,1]`, keys and values as
//! ReadValue → Gather(beam) → Concat → attention, compressed weights as Convert → (Subtract) →
//! Multiply → Convert. Batch and length are read off `position_ids`, the whole length off
//! `attention_mask`, so that no stage but the first has a use for `input_ids`.

use super::builder::Builder;
use super::{ElementType, Graph, Span, Wire, hidden_name};
use crate::manifest::SegmentKind;
use crate::quant::Storage;

/// The sizes and constants of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    pub name: String,
    pub layers: u32,
    pub hidden: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub feed_forward: u32,
    pub vocab: u32,
    pub rms_epsilon: f32,
    /// Angle per position of each pair of a head's values, `[head_dim / 2]`, scaling included.
    pub inverse_frequencies: Vec<f32>,
    /// lm_head is the embedding's matrix.
    pub tied_embedding: bool,
}

/// A weight by its place in the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    Embedding,
    FinalNorm,
    Head,
    Layer(u32, LayerWeight),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LayerWeight {
    AttentionNorm,
    Query,
    Key,
    Value,
    Output,
    FeedForwardNorm,
    Gate,
    Up,
    Down,
}

/// A matrix `[rows, width]` with a place in the weights file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredMatrix {
    pub storage: Storage,
    pub data: Span,
    /// Of no bytes where the storage has none; so are the zero points.
    pub scales: Span,
    pub zero_points: Span,
}

/// Gives every constant its place, in the order in which the graph uses them.
pub trait Weights {
    /// What follows belongs to this segment; literals always belong to the common one.
    fn enter(&mut self, segment: SegmentKind);
    /// A matrix that is asked for again has the place that it had.
    fn matrix(&mut self, weight: Weight, rows: u32, width: u32) -> StoredMatrix;
    /// The f32 values of a norm.
    fn norm(&mut self, weight: Weight, width: u32) -> Span;
    /// The f32 bias that goes with a matrix, if it has one.
    fn bias(&mut self, weight: Weight, width: u32) -> Option<Span>;
    /// Small bytes that are known already; equal bytes may share a place.
    fn literal(&mut self, bytes: &[u8]) -> Span;
}

/// Writes the graph: inputs `input_ids`, `attention_mask`, `position_ids` (`[batch, n]` i64) and
/// `beam_idx` (`[batch]` i32), output `logits` (`[batch, n, vocab]` f32).
pub fn write<W: Weights>(decoder: &Decoder, weights: &mut W) -> Graph {
    let mut b = Builder::new(&decoder.name, weights);
    let input_ids = b.parameter("input_ids", ElementType::I64, 2);
    let attention_mask = b.parameter("attention_mask", ElementType::I64, 2);
    let position_ids = b.parameter("position_ids", ElementType::I64, 2);
    let beam_idx = b.parameter("beam_idx", ElementType::I32, 1);

    b.weights.enter(SegmentKind::Embedding);
    let mut hidden = embedding(&mut b, decoder, input_ids);
    b.name(hidden, &hidden_name(0));

    let shape = b.shape_of(position_ids);
    let batch = b.size_of(shape, 0);
    let mask = mask(&mut b, attention_mask, shape);
    let (cos, sin) = rotary(&mut b, decoder, position_ids);
    let shared = Shared {
        batch,
        beam_idx,
        mask,
        cos,
        sin,
    };
    let mut assigns = Vec::new();
    for layer in 0..decoder.layers {
        b.weights.enter(SegmentKind::Layer(layer));
        b.scope = format!("layers.{layer}/");
        hidden = layer_of(&mut b, decoder, &shared, layer, hidden, &mut assigns);
        b.name(hidden, &hidden_name(layer + 1));
    }
    b.scope = String::new();

    b.weights.enter(SegmentKind::Head);
    let normed = rms(&mut b, decoder, Weight::FinalNorm, hidden);
    let head = match decoder.tied_embedding {
        true => Weight::Embedding,
        false => Weight::Head,
    };
    let logits = linear(&mut b, head, normed, decoder.vocab);
    for (id, value) in assigns {
        let shape = b.shape(value);
        let attributes = [("variable_id", id)];
        b.op(
            "Assign",
            "opset6",
            &attributes,
            &[value],
            ElementType::F32,
            &shape,
        );
    }
    b.result(logits, "logits");
    b.finish()
}

/// What every layer reads.
struct Shared {
    batch: Wire,
    beam_idx: Wire,
    mask: Wire,
    cos: Wire,
    sin: Wire,
}

fn embedding<W: Weights>(b: &mut Builder<'_, W>, decoder: &Decoder, ids: Wire) -> Wire {
    let table = matrix(b, Weight::Embedding, decoder.vocab, decoder.hidden);
    let ids = b.convert(ids, ElementType::I32);
    let axis = b.i32(0);
    let width = i64::from(decoder.hidden);
    let shape = [-1, -1, width];
    let rows = b.gather(table, ids, axis, &shape);
    // A node that states the width of the hidden state, which every later stage repeats.
    b.reshape(rows, &[0, 0, width], true, &shape)
}

/// `[batch, 1, n, past + n]`: 0 where a row may attend, the least f16 where not.
fn mask<W: Weights>(b: &mut Builder<'_, W>, attention_mask: Wire, shape: Wire) -> Wire {
    let (i64_, bool_) = (ElementType::I64, ElementType::Bool);
    let range = |b: &mut Builder<'_, W>, from: Wire, to: Wire| {
        let step = b.i64(1);
        let attributes = [("output_type", "i64".to_owned())];
        b.op(
            "Range",
            "opset4",
            &attributes,
            &[from, to, step],
            i64_,
            &[-1],
        )
    };
    let mask_shape = b.shape_of(attention_mask);
    let total = b.size_of(mask_shape, 1);
    let zero = b.i64(0);
    let keys = range(b, zero, total);
    let keys = b.unsqueeze(keys, 0);
    let new = b.size_of(shape, 1);
    let past = b.binary("Subtract", total, new, &[]);
    let rows = range(b, past, total);
    let rows = b.unsqueeze(rows, 1);
    let numpy = [("auto_broadcast", "numpy".to_owned())];
    let causal = b.op(
        "LessEqual",
        "opset1",
        &numpy,
        &[keys, rows],
        bool_,
        &[-1, -1],
    );
    let causal = b.unsqueeze(causal, 0);
    let causal = b.unsqueeze(causal, 0);
    let present = b.convert(attention_mask, bool_);
    let present = b.unsqueeze(present, 1);
    let present = b.unsqueeze(present, 1);
    let shape = [-1, 1, -1, -1];
    let allowed = b.op(
        "LogicalAnd",
        "opset1",
        &numpy,
        &[causal, present],
        bool_,
        &shape,
    );
    let open = b.f32(0.0);
    let closed = b.f32(-65504.0);
    b.op(
        "Select",
        "opset1",
        &numpy,
        &[allowed, open, closed],
        ElementType::F32,
        &shape,
    )
}

/// Cosines and sines of every row's angles, `[batch, 1, n, head_dim]`.
fn rotary<W: Weights>(b: &mut Builder<'_, W>, decoder: &Decoder, positions: Wire) -> (Wire, Wire) {
    let half = i64::from(decoder.head_dim / 2);
    let positions = b.convert(positions, ElementType::F32);
    let positions = b.unsqueeze(positions, 2);
    let frequencies = b.f32s(&[1, 1, half], &decoder.inverse_frequencies);
    let angles = b.binary("Multiply", positions, frequencies, &[-1, -1, half]);
    let angles = b.concat(&[angles, angles], -1, &[-1, -1, half * 2]);
    let cos = b.unary("Cos", angles);
    let cos = b.unsqueeze(cos, 1);
    let sin = b.unary("Sin", angles);
    let sin = b.unsqueeze(sin, 1);
    (cos, sin)
}

fn layer_of<W: Weights>(
    b: &mut Builder<'_, W>,
    decoder: &Decoder,
    shared: &Shared,
    layer: u32,
    hidden: Wire,
    assigns: &mut Vec<(String, Wire)>,
) -> Wire {
    let weight = |weight| Weight::Layer(layer, weight);
    let wide = [-1, -1, i64::from(decoder.hidden)];
    let normed = rms(b, decoder, weight(LayerWeight::AttentionNorm), hidden);
    let query = heads(
        b,
        decoder,
        weight(LayerWeight::Query),
        normed,
        decoder.heads,
    );
    let key = heads(
        b,
        decoder,
        weight(LayerWeight::Key),
        normed,
        decoder.kv_heads,
    );
    let value = heads(
        b,
        decoder,
        weight(LayerWeight::Value),
        normed,
        decoder.kv_heads,
    );
    let query = rotate(b, shared, query);
    let key = rotate(b, shared, key);
    let key = remember(b, decoder, shared, format!("{layer}.key"), key, assigns);
    let value = remember(b, decoder, shared, format!("{layer}.value"), value, assigns);
    let key = repeat(b, decoder, key);
    let value = repeat(b, decoder, value);
    let scale = b.f32(1.0 / (decoder.head_dim as f32).sqrt());
    let attributes = [("causal", "false".to_owned())];
    let shape = b.shape(query);
    let attended = b.op(
        "ScaledDotProductAttention",
        "opset13",
        &attributes,
        &[query, key, value, shared.mask, scale],
        ElementType::F32,
        &shape,
    );
    let attended = b.swap_middle(attended);
    let width = i64::from(decoder.heads * decoder.head_dim);
    let attended = b.reshape(attended, &[0, 0, width], true, &[-1, -1, width]);
    let attended = linear(b, weight(LayerWeight::Output), attended, decoder.hidden);
    let hidden = b.binary("Add", hidden, attended, &wide);

    let normed = rms(b, decoder, weight(LayerWeight::FeedForwardNorm), hidden);
    let inner = [-1, -1, i64::from(decoder.feed_forward)];
    let gate = linear(b, weight(LayerWeight::Gate), normed, decoder.feed_forward);
    let one = b.f32(1.0);
    let gate = b.op(
        "Swish",
        "opset4",
        &[],
        &[gate, one],
        ElementType::F32,
        &inner,
    );
    let up = linear(b, weight(LayerWeight::Up), normed, decoder.feed_forward);
    let product = b.binary("Multiply", gate, up, &inner);
    let down = linear(b, weight(LayerWeight::Down), product, decoder.hidden);
    b.binary("Add", hidden, down, &wide)
}

fn rms<W: Weights>(b: &mut Builder<'_, W>, decoder: &Decoder, weight: Weight, x: Wire) -> Wire {
    let wide = b.shape(x);
    let narrow = [wide[0], wide[1], 1];
    let one = b.f32(1.0);
    let two = b.f32(2.0);
    let squares = b.binary("Power", x, two, &wide);
    let axis = b.i64s(&[-1]);
    let keep = [("keep_dims", "true".to_owned())];
    let mean = b.op(
        "ReduceMean",
        "opset1",
        &keep,
        &[squares, axis],
        ElementType::F32,
        &narrow,
    );
    let epsilon = b.f32(decoder.rms_epsilon);
    let mean = b.binary("Add", mean, epsilon, &narrow);
    let root = b.unary("Sqrt", mean);
    let inverse = b.binary("Divide", one, root, &narrow);
    let normed = b.binary("Multiply", x, inverse, &wide);
    let span = b.weights.norm(weight, decoder.hidden);
    let gain = b.constant(ElementType::F32, &[1, 1, wide[2]], span);
    b.binary("Multiply", normed, gain, &wide)
}

/// A projection split into heads, `[batch, heads, n, head_dim]`.
fn heads<W: Weights>(
    b: &mut Builder<'_, W>,
    decoder: &Decoder,
    weight: Weight,
    x: Wire,
    heads: u32,
) -> Wire {
    let (heads, dim) = (i64::from(heads), i64::from(decoder.head_dim));
    let projected = linear(b, weight, x, (heads * dim) as u32);
    let split = b.reshape(projected, &[0, 0, heads, dim], true, &[-1, -1, heads, dim]);
    b.swap_middle(split)
}

fn rotate<W: Weights>(b: &mut Builder<'_, W>, shared: &Shared, x: Wire) -> Wire {
    let shape = b.shape(x);
    let half = shape[3] / 2;
    let halved = [shape[0], shape[1], shape[2], half];
    let slice = |b: &mut Builder<'_, W>, from: i64, to: i64| {
        let inputs = [
            x,
            b.i64s(&[from]),
            b.i64s(&[to]),
            b.i64s(&[1]),
            b.i64s(&[3]),
        ];
        b.op("Slice", "opset8", &[], &inputs, ElementType::F32, &halved)
    };
    let straight = b.binary("Multiply", x, shared.cos, &shape);
    let second = slice(b, half, i64::MAX);
    let minus = b.f32s(&[1, 1, 1, 1], &[-1.0]);
    let second = b.binary("Multiply", second, minus, &halved);
    let first = slice(b, 0, half);
    let turned = b.concat(&[second, first], -1, &shape);
    let turned = b.binary("Multiply", turned, shared.sin, &shape);
    b.binary("Add", straight, turned, &shape)
}

/// Appends to a layer's keys or values, `[batch, kv_heads, past + n, head_dim]`.
fn remember<W: Weights>(
    b: &mut Builder<'_, W>,
    decoder: &Decoder,
    shared: &Shared,
    what: String,
    new: Wire,
    assigns: &mut Vec<(String, Wire)>,
) -> Wire {
    let (kv_heads, dim) = (i64::from(decoder.kv_heads), i64::from(decoder.head_dim));
    let id = format!("past_key_values.{what}present.{what}");
    let shape = [-1, kv_heads, -1, dim];
    let zero = b.f32(0.0);
    let batch = b.unsqueeze(shared.batch, 0);
    let rest = b.i64s(&[kv_heads, 0, dim]);
    let empty = b.concat(&[batch, rest], 0, &[4]);
    let attributes = [("mode", "numpy".to_owned())];
    let empty = b.op(
        "Broadcast",
        "opset3",
        &attributes,
        &[zero, empty],
        ElementType::F32,
        &[-1, kv_heads, 0, dim],
    );
    let attributes = [
        ("variable_id", id.clone()),
        ("variable_type", "f32".to_owned()),
        ("variable_shape", format!("?,{kv_heads},?,{dim}")),
    ];
    let past = b.op(
        "ReadValue",
        "opset6",
        &attributes,
        &[empty],
        ElementType::F32,
        &shape,
    );
    let axis = b.i32(0);
    let past = b.gather(past, shared.beam_idx, axis, &shape);
    let all = b.concat(&[past, new], 2, &shape);
    assigns.push((id, all));
    all
}

/// Repeats each key head for the query heads that share it.
fn repeat<W: Weights>(b: &mut Builder<'_, W>, decoder: &Decoder, x: Wire) -> Wire {
    let (heads, kv_heads) = (i64::from(decoder.heads), i64::from(decoder.kv_heads));
    let (dim, times) = (i64::from(decoder.head_dim), heads / kv_heads);
    if times == 1 {
        return x;
    }
    let x = b.unsqueeze(x, 2);
    let target = b.i64s(&[1, 1, times, 1, 1]);
    let attributes = [("mode", "bidirectional".to_owned())];
    let x = b.op(
        "Broadcast",
        "opset3",
        &attributes,
        &[x, target],
        ElementType::F32,
        &[-1, kv_heads, times, -1, dim],
    );
    b.reshape(x, &[0, heads, -1, dim], true, &[-1, heads, -1, dim])
}

fn linear<W: Weights>(b: &mut Builder<'_, W>, weight: Weight, x: Wire, rows: u32) -> Wire {
    let width = b.shape(x)[2];
    let shape = [-1, -1, i64::from(rows)];
    let matrix = matrix(b, weight, rows, width as u32);
    let attributes = [
        ("transpose_a", "false".to_owned()),
        ("transpose_b", "true".to_owned()),
    ];
    let product = b.op(
        "MatMul",
        "opset1",
        &attributes,
        &[x, matrix],
        ElementType::F32,
        &shape,
    );
    match b.weights.bias(weight, rows) {
        None => product,
        Some(span) => {
            let bias = b.constant(ElementType::F32, &[1, 1, i64::from(rows)], span);
            b.binary("Add", product, bias, &shape)
        }
    }
}

/// A matrix `[rows, width]` as f32, from its stored form.
fn matrix<W: Weights>(b: &mut Builder<'_, W>, weight: Weight, rows: u32, width: u32) -> Wire {
    let stored = b.weights.matrix(weight, rows, width);
    let (rows, width) = (i64::from(rows), i64::from(width));
    let flat = [rows, width];
    let (f16, f32_) = (ElementType::F16, ElementType::F32);
    match stored.storage {
        Storage::F32 => b.constant(f32_, &flat, stored.data),
        Storage::F16 => {
            let data = b.constant(f16, &flat, stored.data);
            b.convert(data, f32_)
        }
        Storage::Int8 => {
            let data = b.constant(ElementType::I8, &flat, stored.data);
            let data = b.convert(data, f16);
            let scales = b.constant(f16, &[rows, 1], stored.scales);
            let data = b.binary("Multiply", data, scales, &flat);
            b.convert(data, f32_)
        }
        Storage::Int4 { group } => {
            let groups = width / i64::from(group);
            let grouped = [rows, groups, i64::from(group)];
            let data = b.constant(ElementType::U4, &grouped, stored.data);
            let data = b.convert(data, f16);
            let zeros = b.constant(ElementType::U4, &[rows, groups, 1], stored.zero_points);
            let zeros = b.convert(zeros, f16);
            let data = b.binary("Subtract", data, zeros, &grouped);
            let scales = b.constant(f16, &[rows, groups, 1], stored.scales);
            let data = b.binary("Multiply", data, scales, &grouped);
            let data = b.reshape(data, &flat, false, &flat);
            b.convert(data, f32_)
        }
    }
}
