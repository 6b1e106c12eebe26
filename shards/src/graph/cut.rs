//! Cuts a contiguous range of layers out of a whole-model graph.
//!
//! The walk starts at the stage's result and at the assignments of its own key and value variables,
//! and stops at the incoming hidden state, which becomes an input. Whatever else it reaches must
//! belong to the stage: an input that a stage may not have, or another layer's variable, shows that
//! the cut went through more than one tensor, and the graph is refused rather than cut wrongly.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{ElementType, Graph, GraphError, Node, Port, Wire};

/// Inputs of every stage beside its token ids or hidden states, in order.
const STEP_INPUTS: [&str; 3] = ["attention_mask", "position_ids", "beam_idx"];

/// Tensor name of the hidden state that enters `layer`.
pub fn hidden_name(layer: u32) -> String {
    format!("hidden.{layer}")
}

/// The graph of the stage with layers `range` of a model with `layers` layers.
///
/// Inputs: `input_ids` on the first stage, else `inputs_embeds` (`[batch, n, hidden]` f32), then
/// `attention_mask`, `position_ids` and `beam_idx`. Output: `logits` on the last stage, else
/// `hidden_states` (`[batch, n, hidden]` f32). Constants keep their spans.
pub fn cut(graph: &Graph, range: Range<u32>, layers: u32) -> Result<Graph, GraphError> {
    if range.is_empty() || range.end > layers {
        return Err(GraphError::Range { range, layers });
    }
    let find = |name: String| {
        let wire = graph.tensor(&name);
        wire.ok_or(GraphError::NoSuchTensor(name))
    };
    let entry = match range.start {
        0 => None,
        start => Some(find(hidden_name(start))?),
    };
    let (exit, exit_name) = if range.end == layers {
        (find("logits".into())?, "logits")
    } else {
        (find(hidden_name(range.end))?, "hidden_states")
    };

    let sinks = assigns(graph, &range)?;
    let kept = reachable(graph, entry, sinks.iter().copied().chain([exit.node]));
    check(graph, &kept, &range)?;
    if entry.is_some_and(|wire| graph.port(wire).element != ElementType::F32) {
        return Err(crosses(&range, "the hidden state is not f32".into()));
    }

    let mut stage = Stage {
        graph,
        entry: None,
        nodes: Vec::with_capacity(kept.len() + 4),
        place: BTreeMap::new(),
    };
    match entry {
        Some(hidden) => stage.enter(hidden)?,
        None => stage.parameter(&kept, "input_ids", &range)?,
    }
    for name in STEP_INPUTS {
        stage.parameter(&kept, name, &range)?;
    }
    for node in &kept {
        if graph.nodes[*node].kind != "Parameter" {
            stage.copy(*node);
        }
    }
    stage.result(exit, exit_name);
    Ok(Graph {
        name: format!("{}.{}-{}", graph.name, range.start, range.end),
        nodes: stage.nodes,
    })
}

/// The layer whose keys or values a variable holds.
fn variable_layer(node: &Node) -> Option<u32> {
    let (_, id) = node
        .attributes
        .iter()
        .find(|(key, _)| key == "variable_id")?;
    let digits = id.strip_prefix("past_key_values.")?.split('.').next()?;
    digits.parse().ok()
}

fn assigns(graph: &Graph, range: &Range<u32>) -> Result<BTreeSet<usize>, GraphError> {
    let mut sinks = BTreeSet::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if node.kind != "Assign" {
            continue;
        }
        match variable_layer(node) {
            Some(layer) if range.contains(&layer) => {
                sinks.insert(index);
            }
            Some(_) => {}
            None => {
                return Err(crosses(
                    range,
                    format!("'{}' belongs to no layer", node.name),
                ));
            }
        }
    }
    Ok(sinks)
}

/// Every node that the roots depend on, without what lies behind the entry.
fn reachable(
    graph: &Graph,
    entry: Option<Wire>,
    roots: impl Iterator<Item = usize>,
) -> BTreeSet<usize> {
    let mut kept = BTreeSet::new();
    let mut open: Vec<usize> = roots.collect();
    while let Some(node) = open.pop() {
        if kept.insert(node) {
            let inputs = graph.nodes[node].inputs.iter();
            open.extend(
                inputs
                    .filter(|wire| Some(**wire) != entry)
                    .map(|wire| wire.node),
            );
        }
    }
    kept
}

fn check(graph: &Graph, kept: &BTreeSet<usize>, range: &Range<u32>) -> Result<(), GraphError> {
    let mut variables = BTreeSet::new();
    let mut inputs = BTreeSet::new();
    for node in kept.iter().map(|index| &graph.nodes[*index]) {
        match node.kind.as_str() {
            "Parameter" => {
                let allowed = STEP_INPUTS.contains(&node.name.as_str())
                    || (range.start == 0 && node.name == "input_ids");
                if !allowed || !inputs.insert(&node.name) {
                    return Err(crosses(range, format!("the input '{}' remains", node.name)));
                }
            }
            "ReadValue" | "Assign" => match variable_layer(node) {
                Some(layer) if range.contains(&layer) => {
                    variables.insert((&node.kind, &node.attributes));
                }
                _ => {
                    return Err(crosses(
                        range,
                        format!("'{}' is of another layer", node.name),
                    ));
                }
            },
            "Result" => {
                return Err(crosses(range, "a result lies inside".into()));
            }
            _ => {}
        }
    }
    let (found, expected) = (variables.len(), range.len() * 4);
    if found != expected {
        let what = format!("{found} uses of keys and values remain instead of {expected}");
        return Err(crosses(range, what));
    }
    Ok(())
}

fn crosses(range: &Range<u32>, what: String) -> GraphError {
    GraphError::CrossesCut {
        range: range.clone(),
        what,
    }
}

/// A stage's graph under construction.
struct Stage<'a> {
    graph: &'a Graph,
    /// The whole graph's incoming hidden state, and the stage's.
    entry: Option<(Wire, Wire)>,
    nodes: Vec<Node>,
    /// From nodes of the whole graph to nodes of the stage.
    place: BTreeMap<usize, usize>,
}

impl Stage<'_> {
    /// The incoming hidden state: an input, and the node that gives it its width. The paged form
    /// forgets the widths of its inputs, and a norm is fused only where the width is known, so the
    /// whole graph has such a node before its first layer, and it is repeated here.
    fn enter(&mut self, hidden: Wire) -> Result<(), GraphError> {
        let port = self.graph.port(hidden);
        let shape = port.shape.iter().map(|size| match size {
            -1 => "?".to_owned(),
            size => size.to_string(),
        });
        let attributes = vec![
            ("shape".into(), shape.collect::<Vec<_>>().join(",")),
            ("element_type".into(), port.element.name().into()),
        ];
        self.nodes.push(Node {
            name: "inputs_embeds".into(),
            kind: "Parameter".into(),
            opset: "opset1".into(),
            attributes,
            span: None,
            inputs: Vec::new(),
            outputs: vec![Port {
                names: vec!["inputs_embeds".into()],
                ..port.clone()
            }],
        });
        let first = hidden_name(0);
        let shaped = self.graph.tensor(&first).map(|wire| wire.node);
        let (shaped, width) = shaped
            .map(|node| &self.graph.nodes[node])
            .filter(|node| node.kind == "Reshape" && node.outputs.len() == 1)
            .and_then(|node| Some((node, *node.inputs.get(1)?)))
            .filter(|(_, width)| self.graph.nodes[width.node].span.is_some())
            .filter(|(_, width)| self.graph.nodes[width.node].inputs.is_empty())
            .ok_or_else(|| GraphError::NoSuchTensor(format!("{first} with its width")))?;
        self.copy(width.node);
        let node = self.nodes.len();
        let source = Wire { node: 0, output: 0 };
        self.nodes.push(Node {
            name: "entry/Reshape".into(),
            inputs: vec![source, self.wire(width)],
            outputs: vec![port.clone()],
            ..shaped.clone()
        });
        self.entry = Some((hidden, Wire { node, output: 0 }));
        Ok(())
    }

    fn parameter(
        &mut self,
        kept: &BTreeSet<usize>,
        name: &str,
        range: &Range<u32>,
    ) -> Result<(), GraphError> {
        let node = kept.iter().copied().find(|index| {
            let node = &self.graph.nodes[*index];
            node.kind == "Parameter" && node.name == name
        });
        let node = node.ok_or_else(|| crosses(range, format!("the input '{name}' is not used")))?;
        self.copy(node);
        Ok(())
    }

    fn copy(&mut self, old: usize) {
        if self.place.contains_key(&old) {
            return;
        }
        let node = &self.graph.nodes[old];
        let inputs = node.inputs.iter().map(|wire| self.wire(*wire)).collect();
        self.place.insert(old, self.nodes.len());
        self.nodes.push(Node {
            inputs,
            ..node.clone()
        });
    }

    /// The stage's wire for one of the whole graph's; inputs are copied before their users.
    fn wire(&self, old: Wire) -> Wire {
        match self.entry {
            Some((hidden, entry)) if hidden == old => entry,
            _ => Wire {
                node: self.place[&old.node],
                output: old.output,
            },
        }
    }

    fn result(&mut self, exit: Wire, name: &str) {
        let wire = self.wire(exit);
        self.nodes[wire.node].outputs[wire.output].names = vec![name.to_owned()];
        self.nodes.push(Node {
            name: format!("Result_{name}"),
            kind: "Result".into(),
            opset: "opset1".into(),
            attributes: Vec::new(),
            span: None,
            inputs: vec![wire],
            outputs: Vec::new(),
        });
    }
}
