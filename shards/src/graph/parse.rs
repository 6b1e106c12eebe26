//! Reads IR v11 text: the subset that this program writes.
//!
//! A graph may come from a peer, so nothing here trusts a number: ids, ports and edges are looked
//! up, counts are bounded, and a cycle is an error.

use std::collections::HashMap;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::{ElementType, Graph, GraphError, MAX_DIMENSIONS, MAX_NODES, Node, Port, Span, Wire};

const MAX_PORTS: usize = 64;
const MAX_EDGES: usize = MAX_NODES * 4;

/// A layer as it stands in the text, its wires not yet known.
struct Layer {
    id: u64,
    node: Node,
    input_ports: Vec<u64>,
    output_ports: Vec<u64>,
}

struct Edge {
    from: (u64, u64),
    to: (u64, u64),
}

pub fn graph(text: &str) -> Result<Graph, GraphError> {
    let mut reader = Reader::from_str(text);
    let mut name = None;
    let mut layers = Vec::new();
    let mut edges = Vec::new();
    loop {
        match reader.read_event().map_err(malformed)? {
            Event::Start(tag) => match tag.name().as_ref() {
                "net" if name.is_none() => name = Some(open_net(&tag)?),
                "layers" | "edges" if name.is_some() => {}
                "layer" if name.is_some() => {
                    if layers.len() == MAX_NODES {
                        return Err(GraphError::TooLarge("nodes"));
                    }
                    let layer = layer(&mut reader, &tag)?;
                    layers.push(layer);
                }
                "rt_info" | "meta_data" => {
                    reader.read_to_end(tag.name()).map_err(malformed)?;
                }
                other => return Err(unexpected(other)),
            },
            Event::Empty(tag) => match tag.name().as_ref() {
                "layer" if name.is_some() => layers.push(head(&tag)?),
                "edge" if name.is_some() => {
                    if edges.len() == MAX_EDGES {
                        return Err(GraphError::TooLarge("edges"));
                    }
                    edges.push(edge(&tag)?);
                }
                "rt_info" | "layers" | "edges" | "meta_data" => {}
                other => return Err(unexpected(other)),
            },
            Event::Eof => break,
            _ => {}
        }
    }
    let name = name.ok_or_else(|| GraphError::Malformed("there is no net".into()))?;
    connect(name, layers, edges)
}

fn open_net(tag: &BytesStart<'_>) -> Result<String, GraphError> {
    let version = attribute(tag, "version")?;
    if version != "11" {
        return Err(GraphError::Malformed(format!("the version is {version}")));
    }
    attribute(tag, "name")
}

fn head(tag: &BytesStart<'_>) -> Result<Layer, GraphError> {
    Ok(Layer {
        id: number(&attribute(tag, "id")?)?,
        node: Node {
            name: attribute(tag, "name")?,
            kind: attribute(tag, "type")?,
            opset: attribute(tag, "version")?,
            attributes: Vec::new(),
            span: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
        },
        input_ports: Vec::new(),
        output_ports: Vec::new(),
    })
}

fn layer(reader: &mut Reader<&[u8]>, tag: &BytesStart<'_>) -> Result<Layer, GraphError> {
    let mut layer = head(tag)?;
    let mut side = None;
    loop {
        let event = reader.read_event().map_err(malformed)?;
        let empty = matches!(event, Event::Empty(_));
        match event {
            Event::Start(tag) | Event::Empty(tag) => match (tag.name().as_ref(), side) {
                ("data", None) => data(&tag, &mut layer.node)?,
                ("input", None) if !empty => side = Some(Side::Input),
                ("output", None) if !empty => side = Some(Side::Output),
                ("input" | "output" | "rt_info", None) if empty => {}
                ("rt_info", _) => {
                    reader.read_to_end(tag.name()).map_err(malformed)?;
                }
                ("port", Some(side)) => {
                    if layer.input_ports.len() + layer.output_ports.len() == MAX_PORTS {
                        return Err(GraphError::TooLarge("ports at one node"));
                    }
                    let id = number(&attribute(&tag, "id")?)?;
                    match side {
                        Side::Input => layer.input_ports.push(id),
                        Side::Output => {
                            layer.output_ports.push(id);
                            layer.node.outputs.push(open_port(&tag)?);
                        }
                    }
                    if !empty {
                        let shape = shape(reader)?;
                        if side == Side::Output
                            && let Some(port) = layer.node.outputs.last_mut()
                        {
                            port.shape = shape;
                        }
                    }
                }
                (other, _) => return Err(unexpected(other)),
            },
            Event::End(tag) => match tag.name().as_ref() {
                "input" | "output" => side = None,
                "layer" => return Ok(layer),
                _ => {}
            },
            Event::Eof => return Err(GraphError::Malformed("it ends inside a layer".into())),
            _ => {}
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Input,
    Output,
}

fn data(tag: &BytesStart<'_>, node: &mut Node) -> Result<(), GraphError> {
    let mut offset = None;
    let mut size = None;
    for pair in tag.attributes() {
        let pair = pair.map_err(malformed)?;
        let value = unescaped(&pair.value)?;
        match (node.kind.as_str(), pair.key.as_ref()) {
            ("Const", "offset") => offset = Some(number(&value)?),
            ("Const", "size") => size = Some(number(&value)?),
            (_, key) => node.attributes.push((key.to_owned(), value)),
        }
    }
    node.span = match (offset, size) {
        (Some(offset), Some(size)) => Some(Span { offset, size }),
        (None, None) => None,
        _ => return Err(GraphError::Malformed("a constant has half a span".into())),
    };
    Ok(())
}

fn open_port(tag: &BytesStart<'_>) -> Result<Port, GraphError> {
    let precision = attribute(tag, "precision")?;
    let element = ElementType::ALL
        .into_iter()
        .find(|element| element.precision() == precision)
        .ok_or_else(|| GraphError::Malformed(format!("the type {precision} is unknown")))?;
    let names = optional(tag, "names")?.unwrap_or_default();
    let names = names.split(',').filter(|name| !name.is_empty());
    Ok(Port {
        element,
        shape: Vec::new(),
        names: names.map(str::to_owned).collect(),
    })
}

/// The dimensions up to the end of the port.
fn shape(reader: &mut Reader<&[u8]>) -> Result<Vec<i64>, GraphError> {
    let mut shape = Vec::new();
    loop {
        match reader.read_event().map_err(malformed)? {
            Event::Start(tag) if tag.name().as_ref() == "dim" => {
                if shape.len() == MAX_DIMENSIONS {
                    return Err(GraphError::TooLarge("dimensions"));
                }
                let text = reader.read_text(tag.name()).map_err(malformed)?;
                let size = text.trim().parse::<i64>();
                shape.push(
                    size.ok()
                        .filter(|size| *size >= -1)
                        .ok_or_else(|| GraphError::Malformed("a dimension is not a size".into()))?,
                );
            }
            Event::Start(tag) if tag.name().as_ref() == "rt_info" => {
                reader.read_to_end(tag.name()).map_err(malformed)?;
            }
            Event::End(tag) if tag.name().as_ref() == "port" => return Ok(shape),
            Event::Start(tag) | Event::Empty(tag) => return Err(unexpected(tag.name().as_ref())),
            Event::Eof => return Err(GraphError::Malformed("it ends inside a port".into())),
            _ => {}
        }
    }
}

fn edge(tag: &BytesStart<'_>) -> Result<Edge, GraphError> {
    let field = |name| number(&attribute(tag, name)?);
    Ok(Edge {
        from: (field("from-layer")?, field("from-port")?),
        to: (field("to-layer")?, field("to-port")?),
    })
}

/// Turns layers and edges into nodes and wires, in an order in which they can be computed.
fn connect(name: String, layers: Vec<Layer>, edges: Vec<Edge>) -> Result<Graph, GraphError> {
    let dangling = || GraphError::Malformed("an edge leads nowhere".into());
    let mut ids = HashMap::with_capacity(layers.len());
    for (index, layer) in layers.iter().enumerate() {
        if ids.insert(layer.id, index).is_some() {
            return Err(GraphError::Malformed(format!(
                "two layers have the id {}",
                layer.id
            )));
        }
    }
    let mut wires: Vec<Vec<Option<Wire>>> = layers
        .iter()
        .map(|layer| vec![None; layer.input_ports.len()])
        .collect();
    for edge in edges {
        let from = *ids.get(&edge.from.0).ok_or_else(dangling)?;
        let to = *ids.get(&edge.to.0).ok_or_else(dangling)?;
        let position = |ports: &[u64], id| ports.iter().position(|port| *port == id);
        let output = position(&layers[from].output_ports, edge.from.1).ok_or_else(dangling)?;
        let input = position(&layers[to].input_ports, edge.to.1).ok_or_else(dangling)?;
        let wire = Wire { node: from, output };
        if wires[to][input].replace(wire).is_some() {
            return Err(GraphError::Malformed("an input has two edges".into()));
        }
    }
    let wires: Vec<Vec<Wire>> = wires
        .into_iter()
        .map(|inputs| inputs.into_iter().collect::<Option<Vec<_>>>())
        .collect::<Option<_>>()
        .ok_or_else(|| GraphError::Malformed("an input has no edge".into()))?;
    let order = order(&wires)?;
    let mut place = vec![0; order.len()];
    for (new, old) in order.iter().enumerate() {
        place[*old] = new;
    }
    let mut layers: Vec<Option<Layer>> = layers.into_iter().map(Some).collect();
    let nodes = order
        .iter()
        .map(|old| {
            let layer = layers[*old].take().expect("every layer has one place");
            let inputs = wires[*old].iter().map(|wire| Wire {
                node: place[wire.node],
                output: wire.output,
            });
            Node {
                inputs: inputs.collect(),
                ..layer.node
            }
        })
        .collect();
    Ok(Graph { name, nodes })
}

/// Indices so that every node comes after its inputs; the order of the text where it allows that.
fn order(wires: &[Vec<Wire>]) -> Result<Vec<usize>, GraphError> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; wires.len()];
    let mut order = Vec::with_capacity(wires.len());
    let mut stack = Vec::new();
    for root in 0..wires.len() {
        stack.push((root, 0));
        while let Some((node, input)) = stack.pop() {
            match (marks[node], wires[node].get(input)) {
                (Mark::Done, _) => {}
                (_, Some(wire)) => {
                    marks[node] = Mark::Open;
                    stack.push((node, input + 1));
                    match marks[wire.node] {
                        Mark::New => stack.push((wire.node, 0)),
                        Mark::Done => {}
                        Mark::Open => {
                            return Err(GraphError::Malformed("it has a cycle".into()));
                        }
                    }
                }
                (_, None) => {
                    marks[node] = Mark::Done;
                    order.push(node);
                }
            }
        }
    }
    Ok(order)
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Result<String, GraphError> {
    optional(tag, name)?
        .ok_or_else(|| GraphError::Malformed(format!("a tag has no attribute '{name}'")))
}

fn optional(tag: &BytesStart<'_>, name: &str) -> Result<Option<String>, GraphError> {
    for pair in tag.attributes() {
        let pair = pair.map_err(malformed)?;
        if pair.key.as_ref() == name {
            return unescaped(&pair.value).map(Some);
        }
    }
    Ok(None)
}

fn unescaped(value: &str) -> Result<String, GraphError> {
    quick_xml::escape::unescape(value)
        .map(|text| text.into_owned())
        .map_err(malformed)
}

fn number(text: &str) -> Result<u64, GraphError> {
    text.parse().map_err(|_| {
        GraphError::Malformed(format!(
            "'{}' is not a number",
            text.chars().take(32).collect::<String>()
        ))
    })
}

fn unexpected(tag: &str) -> GraphError {
    GraphError::Malformed(format!("the tag '{tag}' is not expected"))
}

fn malformed(error: impl std::fmt::Display) -> GraphError {
    GraphError::Malformed(error.to_string())
}
