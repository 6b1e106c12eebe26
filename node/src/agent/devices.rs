//! The OpenVINO runtime and the devices of this machine, found by a worker so that the agent never loads a driver.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Shared;
use crate::cli::values::DeviceChoice;
use crate::host;
use crate::worker::DeviceReport;

/// What is known of this machine's runtime.
#[derive(Debug, Clone, Default)]
pub enum Machine {
    /// Still looking.
    #[default]
    Starting,
    /// It cannot compute, but it can hold and serve segments.
    Without { reason: String },
    /// It can.
    Ready {
        runtime: RuntimeFiles,
        devices: Vec<DeviceReport>,
    },
}

/// Where the runtime and the files that workers share are.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeFiles {
    pub libs_dir: PathBuf,
    pub cache_dir: PathBuf,
    pub version: String,
}

/// What was measured once, kept in the home.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Calibrations {
    /// OpenVINO's version; another one is measured anew.
    version: String,
    devices: Vec<Calibration>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Calibration {
    id: String,
    name: String,
    bytes_per_s: f64,
}

/// Finds the runtime, fetching it where it is missing, and measures devices that were not measured yet.
pub async fn look(shared: &Shared) -> Machine {
    match find(shared).await {
        Ok((runtime, devices)) => Machine::Ready { runtime, devices },
        Err(reason) => Machine::Without { reason },
    }
}

async fn find(shared: &Shared) -> Result<(RuntimeFiles, Vec<DeviceReport>), String> {
    let env = skein_provide::Env::of_process();
    let cache_dir = env.cache_dir().map_err(|error| error.to_string())?;
    let found = tokio::task::spawn_blocking(move || {
        skein_provide::find_openvino(&env, &mut |announcement| {
            tracing::info!("{announcement}");
            anstream::eprintln!("{announcement}");
        })
    })
    .await
    .map_err(|error| error.to_string())?
    .map_err(|error| format!("it has no OpenVINO runtime: {error}"))?;
    let libs_dir = found.libs_dir;

    let executable = host::executable().map_err(|error| error.to_string())?;
    let mut report = host::probe(&executable, &libs_dir, &cache_dir, false)
        .await
        .map_err(|error| error.to_string())?;
    report
        .devices
        .retain(|device| wanted(&shared.options.devices, &device.id));
    if report.devices.is_empty() {
        return Err("it has none of the devices that its owner chose".into());
    }

    let file = shared.options.home.data_dir().join("calibration.json");
    let known: Calibrations = std::fs::read(&file)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .filter(|known: &Calibrations| known.version == report.version)
        .unwrap_or_default();
    let measured = |device: &DeviceReport| {
        let same = |known: &&Calibration| known.id == device.id && known.name == device.name;
        known
            .devices
            .iter()
            .find(same)
            .map(|known| known.bytes_per_s)
    };
    if report
        .devices
        .iter()
        .all(|device| measured(device).is_some())
    {
        for device in &mut report.devices {
            device.bytes_per_s = measured(device);
        }
    } else {
        let calibrated = host::probe(&executable, &libs_dir, &cache_dir, true)
            .await
            .map_err(|error| error.to_string())?;
        for device in &mut report.devices {
            let same = |other: &&DeviceReport| other.id == device.id;
            device.bytes_per_s = calibrated
                .devices
                .iter()
                .find(same)
                .and_then(|other| other.bytes_per_s);
        }
        save(&file, &report.version, &report.devices);
    }
    Ok((
        RuntimeFiles {
            libs_dir,
            cache_dir,
            version: report.version,
        },
        report.devices,
    ))
}

/// Whether the owner's choice covers a device. `auto` is the CPU: the GPU path has not been tried on a GPU yet.
fn wanted(choice: &[DeviceChoice], id: &str) -> bool {
    let auto = choice.is_empty() || choice.contains(&DeviceChoice::Auto);
    (auto && id == "CPU")
        || choice
            .iter()
            .any(|one| *one == DeviceChoice::Named(id.to_owned()))
}

fn save(file: &std::path::Path, version: &str, devices: &[DeviceReport]) {
    let known = Calibrations {
        version: version.to_owned(),
        devices: devices
            .iter()
            .filter_map(|device| {
                let bytes_per_s = device.bytes_per_s?;
                Some(Calibration {
                    id: device.id.clone(),
                    name: device.name.clone(),
                    bytes_per_s,
                })
            })
            .collect(),
    };
    // Losing it costs a second of measuring at the next start.
    let written = serde_json::to_vec_pretty(&known)
        .map_err(std::io::Error::other)
        .and_then(|bytes| {
            let draft = file.with_extension("json.new");
            std::fs::write(&draft, bytes)?;
            std::fs::rename(draft, file)
        });
    if let Err(error) = written {
        tracing::warn!(%error, "the devices' speed could not be kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_the_cpu_and_a_named_device_is_itself() {
        assert!(wanted(&[], "CPU") && !wanted(&[], "GPU"));
        assert!(wanted(&[DeviceChoice::Auto], "CPU"));
        assert!(wanted(&[DeviceChoice::Named("GPU.1".into())], "GPU.1"));
        assert!(!wanted(&[DeviceChoice::Named("GPU.1".into())], "CPU"));
    }
}
