//! What this machine has, and which machines compute alike.

use openvino::{Core, DeviceType, PropertyKey};
use serde::{Deserialize, Serialize};

use crate::error::EngineError;

/// A device that OpenVINO can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// As OpenVINO calls it: `CPU`, `GPU.0`, `NPU`.
    pub id: String,
    /// The vendor's name for it.
    pub name: String,
    /// Its memory in bytes; `None` where it uses the machine's and says no number.
    pub memory_bytes: Option<u64>,
    /// Devices of one class give the same bits in `exact`.
    pub class: String,
}

/// The devices of this machine, in OpenVINO's order. The library must be open.
pub(crate) fn list() -> Result<Vec<Device>, EngineError> {
    let core = Core::new().map_err(said)?;
    let devices = core.available_devices().map_err(said)?;
    Ok(devices
        .iter()
        .map(|device| describe(&core, device))
        .collect())
}

fn describe(core: &Core, device: &DeviceType<'_>) -> Device {
    let id = device.as_ref().to_owned();
    let property = |key: PropertyKey| core.get_property(device, &key).ok();
    let name = property(PropertyKey::DeviceFullName).unwrap_or_else(|| id.clone());
    let memory = id.split('.').next().and_then(|kind| match kind {
        "GPU" => property(PropertyKey::Other("GPU_DEVICE_TOTAL_MEM_SIZE".into())),
        "NPU" => property(PropertyKey::Other("NPU_DEVICE_TOTAL_MEM_SIZE".into())),
        _ => None,
    });
    Device {
        memory_bytes: memory.and_then(|text| text.trim().parse().ok()),
        class: class(&id, &name),
        id,
        name: name.trim().to_owned(),
    }
}

/// A processor's class is its vendor and the instructions that the kernels are chosen by; another
/// device's is its model.
fn class(id: &str, name: &str) -> String {
    if !id.starts_with("CPU") {
        let kind = id.split('.').next().unwrap_or(id);
        return format!(
            "{}/{}",
            kind.to_lowercase(),
            name.trim().to_lowercase().replace(' ', "-")
        );
    }
    let vendor = ["intel", "amd", "apple", "arm"]
        .into_iter()
        .find(|vendor| name.to_lowercase().contains(vendor))
        .unwrap_or("other");
    format!("{}/{vendor}/{}", std::env::consts::ARCH, instructions())
}

#[cfg(target_arch = "x86_64")]
fn instructions() -> String {
    use std::arch::is_x86_feature_detected as has;
    let mut level = if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
        "avx512".to_owned()
    } else if has!("avx2") && has!("fma") {
        "avx2".to_owned()
    } else {
        return "sse".into();
    };
    for (present, name) in [
        (has!("avx512vnni") || has!("avxvnni"), "-vnni"),
        (has!("avx512bf16"), "-bf16"),
        (has!("avx512fp16"), "-fp16"),
    ] {
        if present {
            level += name;
        }
    }
    level
}

#[cfg(not(target_arch = "x86_64"))]
fn instructions() -> String {
    "any".into()
}

pub(crate) fn said(error: impl std::fmt::Display) -> EngineError {
    EngineError::OpenVino(error.to_string())
}
