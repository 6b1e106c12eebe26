//! What a stage's graph became when it was compiled.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a stage's graph became when it was compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReport {
    /// Milliseconds of reading the graph, the passes and the compilation.
    pub compile_ms: u64,
    /// Bytes that the KV cache takes when it is full.
    pub kv_bytes: u64,
    /// Element types of keys and values on the device.
    pub kv_types: (String, String),
    /// KV slots of one block of the device.
    pub device_block_slots: u32,
    /// The names of the compiled graph's inputs.
    pub inputs: Vec<String>,
    /// Operations of the graph that runs, by type.
    pub runtime_ops: BTreeMap<String, u32>,
    /// Matrices and lookup tables of the graph that runs, by element type.
    pub weight_types: BTreeMap<String, u32>,
    /// The properties that change numbers or speed, as the device applied them.
    pub properties: BTreeMap<String, String>,
}

impl StageReport {
    /// Reads the bridge's lines; one that it does not know is left out.
    pub(crate) fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            match fields[..] {
                ["compile_ms", value] => report.compile_ms = value.parse().unwrap_or_default(),
                ["kv_bytes", value] => report.kv_bytes = value.parse().unwrap_or_default(),
                ["kv_type", key, value] => report.kv_types = (key.into(), value.into()),
                ["block_slots", value] => {
                    report.device_block_slots = value.parse().unwrap_or_default();
                }
                ["input", name] => report.inputs.push(name.into()),
                ["op", name, count] => {
                    report
                        .runtime_ops
                        .insert(name.into(), count.parse().unwrap_or_default());
                }
                ["weight", name, count] => {
                    report
                        .weight_types
                        .insert(name.into(), count.parse().unwrap_or_default());
                }
                ["property", name, value] => {
                    report.properties.insert(name.into(), value.into());
                }
                _ => {}
            }
        }
        report
    }
}
