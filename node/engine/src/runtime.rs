//! OpenVINO, opened.

use std::path::Path;
use std::sync::Arc;

use skein_pipeline::engine::BLOCK_SLOTS;

use crate::bridge::{Bridge, RawProperty, RawSpec, RuntimeHandle, c_text};
use crate::devices::{self, Device};
use crate::error::EngineError;
use crate::library;
use crate::report::StageReport;
use crate::spec::StageSpec;
use crate::stage::Stage;

/// OpenVINO, opened in this process; it stays open until the process ends.
#[derive(Clone)]
pub struct Runtime {
    bridge: Bridge,
    handle: Arc<RuntimeHandle>,
}

impl Runtime {
    /// Opens the OpenVINO in the folder `libs`, and the bridge, which is kept in the folder `cache`.
    pub fn open(libs: &Path, cache: &Path) -> Result<Self, EngineError> {
        let bridge = library::open(libs, cache)?;
        Ok(Self {
            bridge,
            handle: Arc::new(RuntimeHandle::open(bridge)?),
        })
    }

    /// OpenVINO's version and build.
    pub fn version(&self) -> String {
        self.bridge.version()
    }

    /// The devices that OpenVINO can use here, in its order.
    pub fn devices(&self) -> Result<Vec<Device>, EngineError> {
        devices::list()
    }

    /// Compiles a stage and allocates its KV cache.
    ///
    /// # Errors
    /// The graph has another input list than a paged stage of this kind, another sliding window than
    /// the spec says, or does not compile.
    pub fn load(&self, spec: &StageSpec<'_>) -> Result<Stage, EngineError> {
        let windows = sliding_windows(spec)?;
        let path = |path: &Path| {
            let text = path.to_str().ok_or_else(|| {
                EngineError::Spec(format!("{} is not named in UTF-8", path.display()))
            })?;
            c_text(text)
        };
        let (xml, weights) = (path(spec.xml)?, path(spec.weights)?);
        let device = c_text(spec.device)?;
        let texts = spec
            .properties()
            .into_iter()
            .map(|(key, value)| Ok((c_text(key)?, c_text(&value)?)))
            .collect::<Result<Vec<_>, EngineError>>()?;
        let properties: Vec<RawProperty> = texts
            .iter()
            .map(|(key, value)| RawProperty {
                key: key.as_ptr(),
                value: value.as_ptr(),
            })
            .collect();
        let handle = self.handle.load(&RawSpec {
            xml: xml.as_ptr(),
            weights: weights.as_ptr(),
            device: device.as_ptr(),
            properties: properties.as_ptr(),
            property_count: properties.len(),
            blocks: spec.blocks as u64 + 1,
            block_slots: BLOCK_SLOTS,
            layers: windows.len() as u32,
            first: spec.first.into(),
            last: spec.last.into(),
            hidden: number("hidden", spec.hidden)?,
            vocab: number("vocab", spec.vocab)?,
            sliding_windows: windows.as_ptr(),
        })?;
        let report = StageReport::parse(&handle.report());
        Ok(Stage::new(handle, report, spec))
    }
}

fn sliding_windows(spec: &StageSpec<'_>) -> Result<Vec<u32>, EngineError> {
    let layers = spec.layers.len();
    if layers == 0 {
        return Err(EngineError::Spec("a stage needs at least one layer".into()));
    }
    if spec.sliding_windows.is_empty() {
        return Ok(vec![0; layers]);
    }
    if spec.sliding_windows.len() != layers {
        let found = spec.sliding_windows.len();
        let text = format!("{found} sliding windows are given for {layers} layers");
        return Err(EngineError::Spec(text));
    }
    Ok(spec.sliding_windows.clone())
}

fn number(name: &str, value: usize) -> Result<u32, EngineError> {
    match u32::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(EngineError::Spec(format!(
            "a stage cannot have {name} {value}"
        ))),
    }
}
