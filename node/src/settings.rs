//! How an agent's owner set it up: `settings.toml` in the home, overridden by flags.
//!
//! Nothing here is state: the agent only reads it.

use std::path::PathBuf;

use serde::Deserialize;

use crate::{
    cli::values::{self, DeviceChoice},
    error::{Code, Error, Result},
    paths::Home,
};

/// What `settings.toml` may say. Every field is optional; an unknown one is refused by name, so
/// that a slip of the pen is noticed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The machine's name in the fleet; its host name otherwise.
    pub name: Option<String>,
    /// Multiaddrs to listen on.
    pub listen: Vec<String>,
    /// Most memory to plan with, such as `"8GiB"`.
    pub memory: Option<String>,
    /// Most disk to fill, such as `"50GiB"`.
    pub disk: Option<String>,
    /// Threads a worker may use.
    pub threads: Option<usize>,
    /// Devices to use, such as `["CPU", "GPU.1"]`.
    pub devices: Vec<String>,
    /// Whether to look for peers on the local network.
    pub mdns: Option<bool>,
    /// How much to log.
    pub log: Option<String>,
    /// How `fast` stages compute, for measurements.
    pub tuning: Tuning,
}

/// What stages on this machine do differently in `fast`; every field left out keeps what ships.
///
/// Only for measurements: `exact` ignores it, plans reckon memory without it, and nobody else in a line hears of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// Element type of the KV cache.
    pub kv: Option<KvChoice>,
    /// Precision that the device computes with, weights aside.
    pub inference_precision: Option<PrecisionChoice>,
    /// Values of an activation that share one scale when it is quantised; 0 leaves activations alone.
    pub dynamic_quantization_group: Option<u32>,
}

/// Element types of the KV cache, by their names in a worker's load message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvChoice {
    F16,
    Bf16,
    F32,
    U8,
}

impl KvChoice {
    /// As a worker is told.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::U8 => "u8",
        }
    }
}

/// Precisions that a device can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionChoice {
    F16,
    Bf16,
    F32,
}

impl PrecisionChoice {
    /// As a worker is told.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }
}

impl Settings {
    /// Reads the home's settings; a home without any has the defaults.
    pub fn load(home: &Home) -> Result<Self> {
        let path = home.settings_file();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => {
                return Err(Error::failed(format_args!(
                    "cannot read {}: {error}",
                    path.display()
                )));
            }
        };
        toml::from_str(&text).map_err(|error| {
            Error::new(
                Code::BadInput,
                format_args!(
                    "{} is not a settings file: {}",
                    path.display(),
                    error.message()
                ),
            )
            .hint("docs/operating.md lists what it may say")
        })
    }
}

/// Everything an agent is started with, flags over settings over defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentOptions {
    /// Where it keeps its files.
    pub home: Home,
    /// The machine's name in the fleet.
    pub name: String,
    /// Multiaddrs to listen on; empty means the defaults of the fleet's transports.
    pub listen: Vec<String>,
    /// Most memory to plan with, in bytes; `None` leaves the agent to choose.
    pub memory: Option<u64>,
    /// Most disk to fill, in bytes; `None` leaves the agent to choose.
    pub disk: Option<u64>,
    /// Threads a worker may use; `None` leaves it to OpenVINO.
    pub threads: Option<usize>,
    /// Devices to use; empty or `auto` leaves the agent to choose.
    pub devices: Vec<DeviceChoice>,
    /// Whether to look for peers on the local network.
    pub mdns: bool,
    /// A level or a filter of `tracing`.
    pub log: String,
    /// Whether events go to stdout as JSON lines.
    pub json: bool,
    /// How `fast` stages compute, for measurements; there is no flag for it.
    pub tuning: Tuning,
}

/// What the flags of `skein agent` say; `None` and empty leave it to the settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentFlags {
    /// `--listen`.
    pub listen: Vec<String>,
    /// `--memory`.
    pub memory: Option<u64>,
    /// `--disk`.
    pub disk: Option<u64>,
    /// `--threads`.
    pub threads: Option<usize>,
    /// `--device`.
    pub devices: Vec<DeviceChoice>,
    /// `--no-mdns`.
    pub no_mdns: bool,
    /// `--log`.
    pub log: Option<String>,
    /// `--json`.
    pub json: bool,
}

impl AgentOptions {
    /// Flags over settings over defaults.
    pub fn resolve(home: Home, settings: Settings, flags: AgentFlags) -> Result<Self> {
        let size = |name: &str, flag: Option<u64>, text: Option<String>| match (flag, text) {
            (Some(bytes), _) => Ok(Some(bytes)),
            (None, None) => Ok(None),
            (None, Some(text)) => values::size(&text)
                .map(Some)
                .map_err(|reason| bad(&home, name, &reason)),
        };
        let memory = size("memory", flags.memory, settings.memory)?;
        let disk = size("disk", flags.disk, settings.disk)?;
        let devices = if flags.devices.is_empty() {
            let parse = |text: &String| {
                values::device(text).map_err(|reason| bad(&home, "devices", &reason))
            };
            settings
                .devices
                .iter()
                .map(parse)
                .collect::<Result<Vec<_>>>()?
        } else {
            flags.devices
        };
        if settings.threads == Some(0) {
            return Err(bad(&home, "threads", "must be at least 1"));
        }
        Ok(Self {
            name: settings.name.unwrap_or_else(host_name),
            listen: if flags.listen.is_empty() {
                settings.listen
            } else {
                flags.listen
            },
            memory,
            disk,
            threads: flags.threads.or(settings.threads),
            devices,
            mdns: !flags.no_mdns && settings.mdns.unwrap_or(true),
            log: flags.log.or(settings.log).unwrap_or_else(|| "info".into()),
            json: flags.json,
            tuning: settings.tuning,
            home,
        })
    }
}

fn bad(home: &Home, field: &str, reason: &str) -> Error {
    let file: PathBuf = home.settings_file();
    Error::bad_input(format_args!("`{field}` in {}: {reason}", file.display()))
}

/// The machine's own name, or a stand-in where it has none.
pub fn host_name() -> String {
    sysinfo::System::host_name()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "machine".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, Home) {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::resolve(Some(folder.path())).unwrap();
        (folder, home)
    }

    #[test]
    fn flags_win_over_settings_and_settings_over_defaults() {
        let (_folder, home) = home();
        std::fs::write(
            home.settings_file(),
            "memory = \"2GiB\"\ndisk = \"3GiB\"\nname = \"attic\"\nmdns = false\n",
        )
        .unwrap();
        let settings = Settings::load(&home).unwrap();
        let flags = AgentFlags {
            memory: Some(7),
            ..AgentFlags::default()
        };
        let options = AgentOptions::resolve(home, settings, flags).unwrap();
        assert_eq!(options.memory, Some(7));
        assert_eq!(options.disk, Some(3 << 30));
        assert_eq!(options.name, "attic");
        assert!(!options.mdns);
        assert_eq!(options.log, "info");
    }

    #[test]
    fn an_unknown_setting_is_refused_by_name() {
        let (_folder, home) = home();
        std::fs::write(home.settings_file(), "memmory = \"2GiB\"\n").unwrap();
        let error = Settings::load(&home).unwrap_err();
        assert_eq!(error.code, Code::BadInput);
        assert!(error.message.contains("memmory"), "{error}");
    }

    #[test]
    fn tuning_is_read_and_what_it_cannot_be_is_refused_by_name() {
        let (_folder, home) = home();
        let load = |text: &str| {
            std::fs::write(home.settings_file(), text).unwrap();
            Settings::load(&home)
        };
        let text = "[tuning]\nkv = \"u8\"\ninference_precision = \"f32\"\ndynamic_quantization_group = 0\n";
        let tuning = load(text).unwrap().tuning;
        assert_eq!(tuning.kv.map(KvChoice::name), Some("u8"));
        let precision = tuning.inference_precision;
        assert_eq!(precision.map(PrecisionChoice::name), Some("f32"));
        assert_eq!(tuning.dynamic_quantization_group, Some(0));
        for (text, named) in [
            ("[tuning]\nkv = \"u4\"\n", "u4"),
            ("[tuning]\ninference_precision = \"f8\"\n", "f8"),
            ("[tuning]\ndynamic_quantization_group = -1\n", "-1"),
            ("[tuning]\nstreams = 2\n", "streams"),
        ] {
            let error = load(text).unwrap_err();
            assert_eq!(error.code, Code::BadInput);
            assert!(error.message.contains(named), "{error}");
        }
    }

    #[test]
    fn a_home_without_settings_has_the_defaults() {
        let (_folder, home) = home();
        assert_eq!(Settings::load(&home).unwrap(), Settings::default());
    }
}
