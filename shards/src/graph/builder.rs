//! Puts a graph together, one operation at a time.
//!
//! Callers give each output's type and shape; nothing is inferred. Every use of a constant is a
//! node of its own, as the patterns that the runtime fuses expect; equal values share their bytes.

use super::decoder::Weights;
use super::{ElementType, Graph, Node, Port, Span, Wire};

pub struct Builder<'a, W: Weights> {
    pub weights: &'a mut W,
    graph: Graph,
    /// Put in front of node names, so that profiles can be read.
    pub scope: String,
}

impl<'a, W: Weights> Builder<'a, W> {
    pub fn new(name: &str, weights: &'a mut W) -> Self {
        Self {
            weights,
            graph: Graph {
                name: name.to_owned(),
                nodes: Vec::new(),
            },
            scope: String::new(),
        }
    }

    pub fn finish(self) -> Graph {
        self.graph
    }

    pub fn parameter(&mut self, name: &str, element: ElementType, rank: usize) -> Wire {
        let attributes = [
            ("shape", vec!["?"; rank].join(",")),
            ("element_type", element.name().to_owned()),
        ];
        let wire = self.op(
            "Parameter",
            "opset1",
            &attributes,
            &[],
            element,
            &vec![-1; rank],
        );
        self.graph.nodes[wire.node].name = name.to_owned();
        self.name(wire, name);
        wire
    }

    pub fn result(&mut self, wire: Wire, name: &str) {
        self.name(wire, name);
        let node = self.push("Result", "opset1", &[], &[wire]);
        self.graph.nodes[node].name = format!("Result_{name}");
    }

    /// Adds a tensor name to an output.
    pub fn name(&mut self, wire: Wire, name: &str) {
        self.graph.nodes[wire.node].outputs[wire.output]
            .names
            .push(name.to_owned());
    }

    pub fn shape(&self, wire: Wire) -> Vec<i64> {
        self.graph.port(wire).shape.clone()
    }

    pub fn element(&self, wire: Wire) -> ElementType {
        self.graph.port(wire).element
    }

    /// An operation with one output.
    pub fn op(
        &mut self,
        kind: &str,
        opset: &str,
        attributes: &[(&str, String)],
        inputs: &[Wire],
        element: ElementType,
        shape: &[i64],
    ) -> Wire {
        let node = self.push(kind, opset, attributes, inputs);
        self.graph.nodes[node].outputs.push(Port {
            element,
            shape: shape.to_vec(),
            names: Vec::new(),
        });
        Wire { node, output: 0 }
    }

    fn push(
        &mut self,
        kind: &str,
        opset: &str,
        attributes: &[(&str, String)],
        inputs: &[Wire],
    ) -> usize {
        let index = self.graph.nodes.len();
        let attributes = attributes
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()));
        self.graph.nodes.push(Node {
            name: format!("{}{kind}_{index}", self.scope),
            kind: kind.to_owned(),
            opset: opset.to_owned(),
            attributes: attributes.collect(),
            span: None,
            inputs: inputs.to_vec(),
            outputs: Vec::new(),
        });
        index
    }

    /// A constant whose bytes have a place already.
    pub fn constant(&mut self, element: ElementType, shape: &[i64], span: Span) -> Wire {
        let sizes: Vec<String> = shape.iter().map(i64::to_string).collect();
        let attributes = [
            ("element_type", element.name().to_owned()),
            ("shape", sizes.join(", ")),
        ];
        let wire = self.op("Const", "opset1", &attributes, &[], element, shape);
        self.graph.nodes[wire.node].span = Some(span);
        wire
    }

    pub fn f32s(&mut self, shape: &[i64], values: &[f32]) -> Wire {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let span = self.weights.literal(&bytes);
        self.constant(ElementType::F32, shape, span)
    }

    pub fn f32(&mut self, value: f32) -> Wire {
        self.f32s(&[], &[value])
    }

    pub fn i64(&mut self, value: i64) -> Wire {
        let span = self.weights.literal(&value.to_le_bytes());
        self.constant(ElementType::I64, &[], span)
    }

    pub fn i64s(&mut self, values: &[i64]) -> Wire {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let span = self.weights.literal(&bytes);
        self.constant(ElementType::I64, &[values.len() as i64], span)
    }

    pub fn i32(&mut self, value: i32) -> Wire {
        let span = self.weights.literal(&value.to_le_bytes());
        self.constant(ElementType::I32, &[], span)
    }

    pub fn convert(&mut self, input: Wire, element: ElementType) -> Wire {
        let shape = self.shape(input);
        let attributes = [("destination_type", element.name().to_owned())];
        self.op("Convert", "opset1", &attributes, &[input], element, &shape)
    }

    /// An elementwise operation of two inputs; the result has the first input's type.
    pub fn binary(&mut self, kind: &str, a: Wire, b: Wire, shape: &[i64]) -> Wire {
        let mut attributes = vec![("auto_broadcast", "numpy".to_owned())];
        if kind == "Divide" {
            attributes.push(("m_pythondiv", "true".to_owned()));
        }
        let element = self.element(a);
        self.op(kind, "opset1", &attributes, &[a, b], element, shape)
    }

    pub fn unary(&mut self, kind: &str, input: Wire) -> Wire {
        let (element, shape) = (self.element(input), self.shape(input));
        self.op(kind, "opset1", &[], &[input], element, &shape)
    }

    /// `kind` is `Reshape` with zeros that keep a dimension.
    pub fn reshape(
        &mut self,
        input: Wire,
        target: &[i64],
        zeros_keep: bool,
        shape: &[i64],
    ) -> Wire {
        let target = self.i64s(target);
        let attributes = [("special_zero", zeros_keep.to_string())];
        let element = self.element(input);
        self.op(
            "Reshape",
            "opset1",
            &attributes,
            &[input, target],
            element,
            shape,
        )
    }

    /// Swaps the second and third of four dimensions.
    pub fn swap_middle(&mut self, input: Wire) -> Wire {
        let shape = self.shape(input);
        let order = self.i64s(&[0, 2, 1, 3]);
        let element = self.element(input);
        let shape = [shape[0], shape[2], shape[1], shape[3]];
        self.op("Transpose", "opset1", &[], &[input, order], element, &shape)
    }

    pub fn unsqueeze(&mut self, input: Wire, axis: usize) -> Wire {
        let mut shape = self.shape(input);
        shape.insert(axis, 1);
        let element = self.element(input);
        let axis = self.i64(axis as i64);
        self.op("Unsqueeze", "opset1", &[], &[input, axis], element, &shape)
    }

    pub fn concat(&mut self, inputs: &[Wire], axis: i64, shape: &[i64]) -> Wire {
        let element = self.element(inputs[0]);
        let attributes = [("axis", axis.to_string())];
        self.op("Concat", "opset1", &attributes, inputs, element, shape)
    }

    /// Picks along axis 0.
    pub fn gather(&mut self, input: Wire, indices: Wire, axis: Wire, shape: &[i64]) -> Wire {
        let element = self.element(input);
        let attributes = [("batch_dims", "0".to_owned())];
        self.op(
            "Gather",
            "opset8",
            &attributes,
            &[input, indices, axis],
            element,
            shape,
        )
    }

    /// One size of a tensor, as a scalar.
    pub fn size_of(&mut self, shape: Wire, dimension: i64) -> Wire {
        let index = self.i64(dimension);
        let axis = self.i64(0);
        self.gather(shape, index, axis, &[])
    }

    pub fn shape_of(&mut self, input: Wire) -> Wire {
        let rank = self.shape(input).len() as i64;
        let attributes = [("output_type", "i64".to_owned())];
        self.op(
            "ShapeOf",
            "opset3",
            &attributes,
            &[input],
            ElementType::I64,
            &[rank],
        )
    }
}
