//! Writes a graph as IR v11 text.

use std::fmt::Write;

use quick_xml::escape::escape;

use super::{Graph, Port};

pub fn xml(graph: &Graph) -> String {
    let mut out = String::with_capacity(graph.nodes.len() * 512);
    document(graph, &mut out).expect("writing to a string does not fail");
    out
}

fn document(graph: &Graph, out: &mut String) -> std::fmt::Result {
    writeln!(out, "<?xml version=\"1.0\"?>")?;
    writeln!(
        out,
        "<net name=\"{}\" version=\"11\">",
        escape(&*graph.name)
    )?;
    writeln!(out, "\t<layers>")?;
    for id in 0..graph.nodes.len() {
        layer(graph, id, out)?;
    }
    writeln!(out, "\t</layers>")?;
    writeln!(out, "\t<edges>")?;
    for (to, node) in graph.nodes.iter().enumerate() {
        for (to_port, wire) in node.inputs.iter().enumerate() {
            let from_port = graph.nodes[wire.node].inputs.len() + wire.output;
            writeln!(
                out,
                "\t\t<edge from-layer=\"{}\" from-port=\"{from_port}\" to-layer=\"{to}\" to-port=\"{to_port}\" />",
                wire.node
            )?;
        }
    }
    writeln!(out, "\t</edges>")?;
    writeln!(out, "\t<rt_info />")?;
    writeln!(out, "</net>")
}

fn layer(graph: &Graph, id: usize, out: &mut String) -> std::fmt::Result {
    let node = &graph.nodes[id];
    write!(
        out,
        "\t\t<layer id=\"{id}\" name=\"{}\" type=\"{}\" version=\"{}\"",
        escape(&*node.name),
        escape(&*node.kind),
        escape(&*node.opset)
    )?;
    if node.kind == "Result"
        && let Some(wire) = node.inputs.first()
    {
        let names = graph.port(*wire).names.join(",");
        write!(out, " output_names=\"{}\"", escape(names))?;
    }
    writeln!(out, ">")?;
    if !node.attributes.is_empty() || node.span.is_some() {
        write!(out, "\t\t\t<data")?;
        for (key, value) in &node.attributes {
            write!(out, " {key}=\"{}\"", escape(&**value))?;
        }
        if let Some(span) = node.span {
            write!(out, " offset=\"{}\" size=\"{}\"", span.offset, span.size)?;
        }
        writeln!(out, " />")?;
    }
    if !node.inputs.is_empty() {
        writeln!(out, "\t\t\t<input>")?;
        for (index, wire) in node.inputs.iter().enumerate() {
            port(index, graph.port(*wire), false, out)?;
        }
        writeln!(out, "\t\t\t</input>")?;
    }
    if !node.outputs.is_empty() {
        writeln!(out, "\t\t\t<output>")?;
        for (index, output) in node.outputs.iter().enumerate() {
            port(node.inputs.len() + index, output, true, out)?;
        }
        writeln!(out, "\t\t\t</output>")?;
    }
    writeln!(out, "\t\t</layer>")
}

fn port(id: usize, port: &Port, names: bool, out: &mut String) -> std::fmt::Result {
    write!(
        out,
        "\t\t\t\t<port id=\"{id}\" precision=\"{}\"",
        port.element.precision()
    )?;
    if names && !port.names.is_empty() {
        write!(out, " names=\"{}\"", escape(port.names.join(",")))?;
    }
    if port.shape.is_empty() {
        return writeln!(out, " />");
    }
    writeln!(out, ">")?;
    for dimension in &port.shape {
        writeln!(out, "\t\t\t\t\t<dim>{dimension}</dim>")?;
    }
    writeln!(out, "\t\t\t\t</port>")
}
