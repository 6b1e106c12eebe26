use proptest::prelude::*;

use std::ops::Range;

use super::decoder::{Decoder, StoredMatrix, Weight, Weights, write};
use super::*;
use crate::manifest::SegmentKind;
use crate::quant::Storage;

/// Places constants one after the other.
struct Row {
    end: u64,
    storage: Storage,
    biases: bool,
}

impl Row {
    fn take(&mut self, size: u64) -> Span {
        self.end += size;
        Span {
            offset: self.end - size,
            size,
        }
    }
}

impl Weights for Row {
    fn enter(&mut self, _: SegmentKind) {}

    fn matrix(&mut self, _: Weight, rows: u32, width: u32) -> StoredMatrix {
        let sizes = self.storage.sizes(u64::from(rows), u64::from(width));
        StoredMatrix {
            storage: self.storage,
            data: self.take(sizes.data),
            scales: self.take(sizes.scales),
            zero_points: self.take(sizes.zero_points),
        }
    }

    fn norm(&mut self, _: Weight, width: u32) -> Span {
        self.take(u64::from(width) * 4)
    }

    fn bias(&mut self, _: Weight, width: u32) -> Option<Span> {
        self.biases.then(|| self.take(u64::from(width) * 4))
    }

    fn literal(&mut self, bytes: &[u8]) -> Span {
        self.take(bytes.len() as u64)
    }
}

fn graph(storage: Storage, kv_heads: u32) -> Graph {
    let decoder = Decoder {
        name: "a <small> \"model\" & more".into(),
        layers: 3,
        hidden: 64,
        heads: 4,
        kv_heads,
        head_dim: 16,
        feed_forward: 96,
        vocab: 300,
        rms_epsilon: 1e-5,
        inverse_frequencies: vec![1.0; 8],
        tied_embedding: false,
    };
    let mut row = Row {
        end: 0,
        storage,
        biases: kv_heads == 2,
    };
    write(&decoder, &mut row)
}

fn all() -> Vec<Graph> {
    let storages = [
        Storage::F32,
        Storage::F16,
        Storage::Int8,
        Storage::Int4 { group: 32 },
    ];
    let graphs = storages
        .into_iter()
        .flat_map(|s| [2, 4].map(|kv| graph(s, kv)));
    graphs.collect()
}

#[test]
fn a_graph_survives_its_text_and_its_blob() {
    for graph in all() {
        assert_eq!(Graph::from_xml(&graph.to_xml()).unwrap(), graph);
        assert_eq!(Graph::from_blob(&graph.to_blob()).unwrap(), graph);
        let stage = cut(&graph, 1..2, 3).unwrap();
        assert_eq!(Graph::from_xml(&stage.to_xml()).unwrap(), stage);
    }
}

#[test]
fn constants_keep_their_places_in_every_stage() {
    for graph in all() {
        let places = |graph: &Graph| -> Vec<(String, Span)> {
            let nodes = graph.nodes.iter();
            nodes
                .filter_map(|node| Some((node.name.clone(), node.span?)))
                .collect()
        };
        let whole = places(&graph);
        let stages = [cut(&graph, 0..1, 3), cut(&graph, 1..3, 3)];
        for place in stages.iter().flat_map(|s| places(s.as_ref().unwrap())) {
            assert!(whole.contains(&place));
        }
    }
}

#[test]
fn impossible_ranges_are_refused() {
    let graph = graph(Storage::F32, 2);
    for range in [0..0, Range { start: 2, end: 1 }, 1..4, 5..6] {
        assert!(matches!(
            cut(&graph, range, 3),
            Err(GraphError::Range { .. })
        ));
    }
    assert!(matches!(
        cut(&graph, 0..4, 5),
        Err(GraphError::NoSuchTensor(_))
    ));
}

#[test]
fn a_cycle_is_refused() {
    let mut graph = graph(Storage::F32, 2);
    let late = graph.tensor("hidden.2").unwrap();
    let early = graph.tensor("hidden.1").unwrap();
    graph.nodes[early.node].inputs[0] = late;
    let error = Graph::from_xml(&graph.to_xml()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the graph is not readable: it has a cycle"
    );
}

#[test]
fn layers_in_any_order_of_the_text_are_read() {
    let xml = r#"<?xml version="1.0"?><net name="n" version="11"><layers>
        <layer id="7" name="b" type="Cos" version="opset1">
          <input><port id="0" precision="FP32"><dim>-1</dim></port></input>
          <output><port id="1" precision="FP32"><dim>-1</dim></port></output></layer>
        <layer id="3" name="a" type="Parameter" version="opset1"><data shape="?" element_type="f32"/>
          <output><port id="0" precision="FP32" names="a"><dim>-1</dim></port></output></layer>
        </layers><edges><edge from-layer="3" from-port="0" to-layer="7" to-port="0"/></edges></net>"#;
    let graph = Graph::from_xml(xml).unwrap();
    let names: Vec<_> = graph.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(graph.inputs(), ["a"]);
}

#[test]
fn a_blob_that_swells_is_refused() {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    let spaces = vec![b' '; 1 << 20];
    for _ in 0..=MAX_XML_BYTES >> 20 {
        encoder.write_all(&spaces).unwrap();
    }
    let blob = encoder.finish().unwrap();
    assert_eq!(Graph::from_blob(&blob), Err(GraphError::TooLarge("bytes")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_damaged_graph_never_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)
    ) {
        let mut bytes = graph(Storage::Int8, 2).to_xml().into_bytes();
        for (position, value) in changes {
            let position = position.index(bytes.len());
            bytes[position] = value;
        }
        if let Ok(text) = String::from_utf8(bytes)
            && let Ok(graph) = Graph::from_xml(&text)
        {
            for range in [0..1, 1..2, 1..3, 0..3] {
                let _ = cut(&graph, range, 3);
            }
        }
    }

    #[test]
    fn edges_led_elsewhere_never_panic(
        node in any::<prop::sample::Index>(),
        input in any::<prop::sample::Index>(),
        target in any::<prop::sample::Index>(),
    ) {
        let mut graph = graph(Storage::F32, 2);
        let node = node.index(graph.nodes.len());
        let target = target.index(graph.nodes.len());
        if graph.nodes[node].inputs.is_empty() || graph.nodes[target].outputs.is_empty() {
            return Ok(());
        }
        let input = input.index(graph.nodes[node].inputs.len());
        graph.nodes[node].inputs[input] = Wire { node: target, output: 0 };
        if let Ok(graph) = Graph::from_xml(&graph.to_xml()) {
            for range in [0..1, 1..2, 2..3, 0..3] {
                let _ = cut(&graph, range, 3);
            }
        }
    }
}
