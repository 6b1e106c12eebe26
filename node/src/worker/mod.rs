//! `skein worker`: one stage on one device. The only process that loads OpenVINO.
//!
//! It reads whole messages from stdin and writes whole messages to its real stdout: first `LOAD`, answered with
//! `LOADED` or `LOAD_FAILED`, then step frames. What a frame means is `skein_pipeline::runner`'s business. When stdin
//! ends, or the agent that started it is gone, the worker ends.

mod spec;
mod timed;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use skein_engine::{KvType, Numerics, Runtime, StageSpec};
use skein_pipeline::frame::{
    MAX_MESSAGE, MessageHeader, MessageKind, begin_message, encode_fault, end_message,
};
use skein_pipeline::runner::{RunError, StageRunner};
use skein_pipeline::stage::StageConfig;

pub use spec::{DeviceReport, LoadReport, LoadSpec, ProbeReport};

use crate::error::{Error, Result};
use crate::platform;
use crate::wire::{self, kind};
use timed::Timed;

/// A worker whose agent was killed notices within this time, also while it compiles.
const WATCH_PARENT_EVERY: Duration = Duration::from_millis(300);

/// Runs the worker's loop until its input ends.
pub fn serve() -> Result<()> {
    let mut output = platform::take_stdout()?;
    watch_parent();
    let mut input = io::stdin().lock();
    let mut payload = Vec::new();

    let Some(header) = read_message(&mut input, &mut payload)? else {
        return Ok(());
    };
    if header.kind != MessageKind::Load {
        return Err(Error::failed(
            "a worker is told what to load before anything else",
        ));
    }
    let spec: LoadSpec = wire::decode(&payload)
        .map_err(|error| Error::failed(format_args!("what to load is unreadable: {error}")))?;
    let mut runner = match load(&spec) {
        Ok((runner, report)) => {
            write_cbor(&mut output, kind::LOADED, &report)?;
            runner
        }
        Err(reason) => {
            write_raw(&mut output, kind::LOAD_FAILED, reason.as_bytes())?;
            return Err(Error::failed(reason));
        }
    };

    let mut out = Vec::new();
    while let Some(header) = read_message(&mut input, &mut payload)? {
        out.clear();
        let begun = Instant::now();
        let fault = match header.kind {
            MessageKind::Step => match runner.step(&payload, &mut out) {
                Ok(()) => None,
                Err(error) => Some(describe(&error)),
            },
            // An earlier stage failed: the tail's neighbour is the head, which has to know.
            MessageKind::Fault => {
                write_raw(&mut output, kind::FAULT, &payload)?;
                return Ok(());
            }
            other => Some(format!(
                "a message of kind {other:?} came where a step was expected"
            )),
        };
        if let Some(fault) = fault {
            out.clear();
            let start = begin_message(&mut out, MessageKind::Fault);
            encode_fault(
                &format!("layers {} to {}: {fault}", spec.layers.0, spec.layers.1),
                &mut out,
            );
            end_message(&mut out, start).map_err(Error::failed)?;
            output.write_all(&out)?;
            return Err(Error::failed(fault));
        }
        let all = begun.elapsed();
        output.write_all(&out)?;
        if spec.report_steps {
            eprintln!(
                "step {} took {} us, {} us of them in the engine",
                runner.step_number(),
                all.as_micros(),
                runner.engine().last_step.as_micros()
            );
        }
    }
    Ok(())
}

/// Prints what this machine can compute on, as JSON on stdout; with `calibrate`, how fast each device is.
pub fn probe(libs: &Path, cache: &Path, calibrate: bool) -> Result<()> {
    let mut output = platform::take_stdout()?;
    watch_parent();
    let runtime = Runtime::open(libs, cache).map_err(Error::failed)?;
    let mut devices = Vec::new();
    for device in runtime.devices().map_err(Error::failed)? {
        let bytes_per_s = if calibrate {
            // A device that cannot run the layer is listed without a speed.
            skein_engine::calibrate::calibrate(&runtime, &device.id)
                .ok()
                .map(|measured| measured.bytes_per_s)
        } else {
            None
        };
        devices.push(DeviceReport {
            id: device.id,
            name: device.name,
            memory_bytes: device.memory_bytes.unwrap_or_else(platform::total_memory),
            class: device.class,
            bytes_per_s,
        });
    }
    let report = ProbeReport {
        version: runtime.version(),
        devices,
    };
    serde_json::to_writer(&mut output, &report).map_err(Error::failed)?;
    Ok(())
}

fn load(
    spec: &LoadSpec,
) -> std::result::Result<(StageRunner<Timed<skein_engine::Stage>>, LoadReport), String> {
    let runtime =
        Runtime::open(&spec.libs_dir, &spec.cache_dir).map_err(|error| error.to_string())?;
    let kv = match spec.kv.as_deref() {
        None => KvType::default(),
        Some("f16") => KvType::F16,
        Some("bf16") => KvType::Bf16,
        Some("f32") => KvType::F32,
        Some("u8") => KvType::U8,
        Some(other) => return Err(format!("there is no KV type {other}")),
    };
    let stage = runtime
        .load(&StageSpec {
            xml: &spec.graph,
            weights: &spec.weights,
            device: &spec.device,
            numerics: if spec.exact {
                Numerics::Exact
            } else {
                Numerics::Fast
            },
            blocks: spec.blocks as usize,
            first: spec.first,
            last: spec.last,
            hidden: spec.hidden as usize,
            vocab: spec.vocab as usize,
            layers: spec.layers.0..spec.layers.1,
            kv,
            threads: spec.threads.map(|threads| threads as usize),
            dynamic_quantization_group: spec.dynamic_quantization_group,
            inference_precision: spec.inference_precision.clone(),
            sliding_windows: spec.sliding_windows.clone(),
        })
        .map_err(|error| error.to_string())?;
    let report = stage.report();
    let report = LoadReport {
        pid: std::process::id(),
        compile_ms: report.compile_ms,
        kv_bytes: report.kv_bytes,
        resident_bytes: platform::resident_bytes(std::process::id()).unwrap_or(0),
        inputs: report.inputs.clone(),
        runtime_ops: report.runtime_ops.clone(),
        weight_types: report.weight_types.clone(),
    };
    let config = StageConfig {
        line: spec.line,
        blocks: spec.blocks,
        first: spec.first,
        hidden: spec.hidden as usize,
        vocab: spec.vocab as usize,
        context: spec.context,
    };
    let runner = StageRunner::new(Timed::new(stage), config, spec.last, spec.allow_logits)
        .map_err(|error| error.to_string())?;
    Ok((runner, report))
}

/// Ends this process when its agent is gone without having closed the pipe, as when it was killed while this one
/// compiles and reads nothing.
fn watch_parent() {
    let Some(parent) = platform::parent_process() else {
        return;
    };
    let watch = move || {
        while platform::parent_process() == Some(parent) {
            std::thread::sleep(WATCH_PARENT_EVERY);
        }
        std::process::exit(0);
    };
    if let Err(error) = std::thread::Builder::new()
        .name("watch-parent".into())
        .spawn(watch)
    {
        tracing::warn!(%error, "this worker cannot watch its agent");
    }
}

/// Reads a message into `payload`, which is reused; `None` at the end of the input.
fn read_message(input: &mut impl Read, payload: &mut Vec<u8>) -> Result<Option<MessageHeader>> {
    let mut bytes = [0; MessageHeader::SIZE];
    match input.read_exact(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let header = MessageHeader::decode(bytes).map_err(Error::failed)?;
    debug_assert!(header.payload < MAX_MESSAGE);
    payload.resize(header.payload, 0);
    match input.read_exact(payload) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        other => {
            other?;
            Ok(Some(header))
        }
    }
}

fn write_cbor(output: &mut File, kind: u8, value: &impl serde::Serialize) -> Result<()> {
    let mut body = Vec::new();
    ciborium::into_writer(value, &mut body).map_err(Error::failed)?;
    write_raw(output, kind, &body)
}

fn write_raw(output: &mut File, kind: u8, body: &[u8]) -> Result<()> {
    let length = u32::try_from(body.len() + 1).map_err(Error::failed)?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(&[kind])?;
    output.write_all(body)?;
    Ok(())
}

/// A step's failure with its causes.
fn describe(error: &RunError<skein_engine::EngineError>) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}
