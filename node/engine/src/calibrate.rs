//! How fast a device is: one small synthetic layer, timed for about a second.
//!
//! The planner needs two numbers of a device: how fast it reads weights (a step of few rows costs
//! that) and how fast it multiplies (a prefill costs that). Both are measured on int8 matrices.

use std::fmt::Write;
use std::time::{Duration, Instant};

use openvino::{Core, DeviceType, ElementType, InferRequest, RwPropertyKey, Shape, Tensor};
use serde::{Deserialize, Serialize};

use crate::devices::said;
use crate::error::EngineError;
use crate::runtime::Runtime;

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Bytes of int8 weights that a step of one row goes through in a second.
    pub bytes_per_s: f64,
    /// Multiplications and additions a second of a step of many rows.
    pub flops: f64,
}

/// Inputs and outputs of a matrix: that of a small model's feed-forward part.
const WIDTH: usize = 2048;
/// Matrices, one after the other: 64 MiB, more than most processors keep in their caches.
const MATRICES: usize = 16;
/// Where the scales lie, after the matrices, which share them.
const SCALES_AT: usize = MATRICES * WIDTH * WIDTH;
/// 2⁻¹⁰ as f16: keeps sixteen products of [`WIDTH`] int8 values within f32.
const SCALE: u16 = 0x1400;
/// Rows of the step that stands for a prefill.
const MANY_ROWS: usize = 64;
/// How long each of the two steps is repeated.
const TIME: Duration = Duration::from_millis(300);
/// Repetitions on a device that is slower than that.
const FEWEST_STEPS: usize = 3;

/// Measures `device`. Takes about a second, most of it at full load.
pub fn calibrate(_runtime: &Runtime, device: &str) -> Result<Calibration, EngineError> {
    let mut core = Core::new().map_err(said)?;
    // As a stage runs in `fast`. A device that has no such property is measured as it is.
    let group = RwPropertyKey::Other("DYNAMIC_QUANTIZATION_GROUP_SIZE".into());
    let _ = core.set_property(&DeviceType::from(device), &group, "128");
    let weights = weights()?;
    let model = core
        .read_model_from_buffer(graph().as_bytes(), Some(&weights))
        .map_err(said)?;
    let mut compiled = core
        .compile_model(&model, DeviceType::from(device))
        .map_err(said)?;
    let mut request = compiled.create_infer_request().map_err(said)?;
    let one = seconds_of_a_step(&mut request, 1)?;
    let many = seconds_of_a_step(&mut request, MANY_ROWS)?;
    let values = (MATRICES * WIDTH * WIDTH) as f64;
    Ok(Calibration {
        bytes_per_s: values / one,
        flops: 2.0 * values * MANY_ROWS as f64 / many,
    })
}

fn weights() -> Result<Tensor, EngineError> {
    let mut tensor = tensor(ElementType::U8, &[SCALES_AT + WIDTH * 2])?;
    let bytes = tensor.get_raw_data_mut().map_err(said)?;
    let (matrices, scales) = bytes.split_at_mut(SCALES_AT);
    // Any bytes but equal ones, so that no device finds a shortcut.
    for (index, byte) in matrices.iter_mut().enumerate() {
        *byte = (index.wrapping_mul(0x9E37_79B1) >> 16) as u8;
    }
    for scale in scales.chunks_exact_mut(2) {
        scale.copy_from_slice(&SCALE.to_le_bytes());
    }
    Ok(tensor)
}

fn seconds_of_a_step(request: &mut InferRequest, rows: usize) -> Result<f64, EngineError> {
    let mut input = tensor(ElementType::F32, &[rows, WIDTH])?;
    for (index, value) in input
        .get_data_mut::<f32>()
        .map_err(said)?
        .iter_mut()
        .enumerate()
    {
        *value = (index % 7) as f32 - 3.0;
    }
    request.set_input_tensor(&input).map_err(said)?;
    // The first step prepares kernels for this number of rows.
    request.infer().map_err(said)?;
    let start = Instant::now();
    let mut fastest = f64::INFINITY;
    let mut steps = 0;
    while steps < FEWEST_STEPS || start.elapsed() < TIME {
        let begin = Instant::now();
        request.infer().map_err(said)?;
        // The fastest one is the device's; the others had company.
        fastest = fastest.min(begin.elapsed().as_secs_f64());
        steps += 1;
    }
    Ok(fastest)
}

fn tensor(element: ElementType, shape: &[usize]) -> Result<Tensor, EngineError> {
    let dimensions: Vec<i64> = shape.iter().map(|&dimension| dimension as i64).collect();
    Tensor::new(element, &Shape::new(&dimensions).map_err(said)?).map_err(said)
}

/// `x → matrix → … → matrix → y` as OpenVINO's IR; each matrix is int8 with an f32 scale a row, the
/// form that stays compressed on a device.
fn graph() -> String {
    let square = format!("<dim>{WIDTH}</dim><dim>{WIDTH}</dim>");
    let rows = format!("<dim>-1</dim><dim>{WIDTH}</dim>");
    let column = format!("<dim>{WIDTH}</dim><dim>1</dim>");
    let mut graph = Graph::default();
    let constant = |kind: &str, shape: &str, offset: usize, size: usize| {
        format!(r#"element_type="{kind}" shape="{shape}" offset="{offset}" size="{size}""#)
    };
    let input = format!(r#"shape="?,{WIDTH}" element_type="f32""#);
    let mut x = graph.layer("Parameter", &input, &[], Some(("FP32", &rows)));
    let scales = constant("f16", &format!("{WIDTH},1"), SCALES_AT, WIDTH * 2);
    for matrix in 0..MATRICES {
        let bytes = WIDTH * WIDTH;
        let weights = constant("i8", &format!("{WIDTH},{WIDTH}"), matrix * bytes, bytes);
        let weights = graph.layer("Const", &weights, &[], Some(("I8", &square)));
        let half = r#"destination_type="f16""#;
        let weights = graph.layer("Convert", half, &[weights], Some(("FP16", &square)));
        let scale = graph.layer("Const", &scales, &[], Some(("FP16", &column)));
        let broadcast = r#"auto_broadcast="numpy""#;
        let weights = graph.layer(
            "Multiply",
            broadcast,
            &[weights, scale],
            Some(("FP16", &square)),
        );
        let single = r#"destination_type="f32""#;
        let weights = graph.layer("Convert", single, &[weights], Some(("FP32", &square)));
        let transpose = r#"transpose_a="false" transpose_b="true""#;
        x = graph.layer("MatMul", transpose, &[x, weights], Some(("FP32", &rows)));
    }
    graph.layer("Result", "", &[x], None);
    let Graph { layers, edges, .. } = graph;
    format!(
        r#"<?xml version="1.0"?><net name="calibration" version="11"><layers>{layers}</layers><edges>{edges}</edges><rt_info/></net>"#
    )
}

/// A graph as text, layer by layer. A layer is named by its number and the port of its output.
#[derive(Default)]
struct Graph {
    layers: String,
    edges: String,
    count: usize,
    dimensions: Vec<String>,
}

impl Graph {
    fn layer(
        &mut self,
        kind: &str,
        data: &str,
        inputs: &[(usize, usize)],
        output: Option<(&str, &str)>,
    ) -> (usize, usize) {
        let id = self.count;
        self.count += 1;
        let mut ports = String::new();
        for (port, &(from, from_port)) in inputs.iter().enumerate() {
            let _ = write!(
                self.edges,
                r#"<edge from-layer="{from}" from-port="{from_port}" to-layer="{id}" to-port="{port}"/>"#
            );
            let _ = write!(
                ports,
                r#"<port id="{port}">{}</port>"#,
                self.dimensions[from]
            );
        }
        let inputs_text = if inputs.is_empty() {
            String::new()
        } else {
            format!("<input>{ports}</input>")
        };
        let out = inputs.len();
        let output_text = output.map_or(String::new(), |(precision, dimensions)| {
            format!(
                r#"<output><port id="{out}" precision="{precision}">{dimensions}</port></output>"#
            )
        });
        self.dimensions
            .push(output.map_or(String::new(), |(_, dimensions)| dimensions.to_owned()));
        let _ = write!(
            self.layers,
            r#"<layer id="{id}" name="{kind}_{id}" type="{kind}" version="opset1"><data {data}/>{inputs_text}{output_text}</layer>"#
        );
        (id, out)
    }
}
