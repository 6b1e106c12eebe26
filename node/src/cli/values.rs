//! Values as people write them: sizes, durations, id lists, devices.
//!
//! Each parser returns the reason in words; clap puts the flag's name in front.

use std::{str::FromStr, time::Duration};

/// Most token ids on one command line; longer ones come from a file in a script's hands.
const MAX_IDS: usize = 1 << 17;

/// Bytes: `8GiB`, `1.5 GB`, `512M`, `4096`. A bare letter counts in powers of 1,024.
pub fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = (text[..split].trim_end(), &text[split..]);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => {
            return Err(format!(
                "`{unit}` is not a unit of size; write it like 8GiB or 500MB"
            ));
        }
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor),
        Err(_) => decimal(number)
            .map(|value| value * factor as f64)
            .filter(|v| *v < 2f64.powi(63))
            .map(|v| v as u64),
    };
    match bytes {
        Some(0) => Err("a size must be more than nothing".into()),
        Some(bytes) => Ok(bytes),
        None => Err("not a size; write it like 8GiB or 500MB".into()),
    }
}

/// A stretch of time: `7d`, `12h`, `30m`, `60s`, `500ms`; a bare number is in seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let seconds = match &text[split..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        "w" => 604_800.0,
        unit => {
            return Err(format!(
                "`{unit}` is not a unit of time; write it like 60s, 12h or 7d"
            ));
        }
    };
    let total = decimal(text[..split].trim_end()).map(|value| value * seconds);
    match total {
        Some(total) if total > 0.0 && total <= 100.0 * 365.0 * 86_400.0 => {
            Ok(Duration::from_secs_f64(total))
        }
        Some(_) => Err("must be more than nothing and less than a century".into()),
        None => Err("not a stretch of time; write it like 60s, 12h or 7d".into()),
    }
}

/// Digits with at most one point: no signs, exponents, `inf` or `nan`.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if plain { text.parse().ok() } else { None }
}

/// Token ids with commas between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

impl FromStr for Ids {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ids = text
            .split(',')
            .map(|id| {
                let id = id.trim();
                id.parse::<u32>()
                    .map_err(|_| format!("`{id}` is not a token id; write 1,2,3"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        if ids.len() > MAX_IDS {
            return Err(format!("{} ids are more than {MAX_IDS}", ids.len()));
        }
        Ok(Self(ids))
    }
}

/// A sampling temperature: 0 is greedy.
pub fn temperature(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        Ok(_) => Err("must be 0 (greedy) or more, and finite".into()),
        Err(_) => Err("not a number".into()),
    }
}

/// A probability between 0 and 1.
pub fn probability(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        Ok(_) => Err("must be between 0 and 1".into()),
        Err(_) => Err("not a number".into()),
    }
}

/// A device by OpenVINO's id, or `auto`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Left to the agent.
    Auto,
    /// One device.
    Named(String),
}

/// `CPU`, `GPU`, `GPU.1`, `NPU` or `auto`, in any case.
pub fn device(text: &str) -> Result<DeviceChoice, String> {
    let upper = text.to_ascii_uppercase();
    let (kind, index) = match upper.split_once('.') {
        Some((kind, index)) => (kind, Some(index)),
        None => (upper.as_str(), None),
    };
    let index_is_good = index
        .is_none_or(|i| !i.is_empty() && i.len() <= 3 && i.bytes().all(|b| b.is_ascii_digit()));
    match kind {
        "AUTO" if index.is_none() => Ok(DeviceChoice::Auto),
        "CPU" | "NPU" if index.is_none() => Ok(DeviceChoice::Named(upper)),
        "GPU" if index_is_good => Ok(DeviceChoice::Named(upper)),
        _ => Err("not a device; it is CPU, GPU, GPU.1, NPU or auto".into()),
    }
}

/// `FIRST..END`, half-open and not empty.
pub fn layers(text: &str) -> Result<std::ops::Range<u32>, String> {
    let range = text
        .split_once("..")
        .and_then(|(first, end)| Some(first.trim().parse().ok()?..end.trim().parse::<u32>().ok()?));
    match range {
        Some(range) if range.start < range.end => Ok(range),
        _ => Err("not a range of layers; write it like 10..20".into()),
    }
}

/// A multiaddr, by its look; the agent reads it in full.
pub fn multiaddr(text: &str) -> Result<String, String> {
    if text.starts_with('/') && text.len() > 1 && !text.contains(char::is_whitespace) {
        Ok(text.to_owned())
    } else {
        Err("not a multiaddr; write it like /ip4/0.0.0.0/tcp/4810".into())
    }
}

/// What `skein status --wait` waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// The agent has started.
    Ready,
    /// At least so many other members are in sight.
    Peers(usize),
    /// A line for this model takes requests.
    Serving(String),
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "ready" => Ok(Self::Ready),
            Some(("peers", count)) => count
                .parse()
                .map(Self::Peers)
                .map_err(|_| format!("`{count}` is not a number of peers")),
            Some(("serving", model)) if !model.is_empty() => Ok(Self::Serving(model.into())),
            _ => Err("it is ready, peers=N or serving=MODEL".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(size("8GiB"), Ok(8 << 30));
        assert_eq!(size("1.5 GiB"), Ok(3 << 29));
        assert_eq!(size("500MB"), Ok(500_000_000));
        assert_eq!(size("2g"), Ok(2 << 30));
        assert_eq!(size("4096"), Ok(4096));
        for bad in [
            "",
            "GiB",
            "-1GiB",
            "0",
            "8XiB",
            "1e9",
            "nan",
            "inf",
            "99999999999TiB",
            "1.2.3M",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("60"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "d", "-1s", "0s", "5y", "nans", "1e3s", "999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_temperatures_devices_and_waits_are_checked() {
        assert_eq!("1, 2,3".parse(), Ok(Ids(vec![1, 2, 3])));
        assert!("".parse::<Ids>().is_err() && "1,,2".parse::<Ids>().is_err());
        assert_eq!(temperature("0"), Ok(0.0));
        assert!(temperature("-0.1").is_err() && temperature("inf").is_err());
        assert!(temperature("nan").is_err());
        assert_eq!(device("gpu.1"), Ok(DeviceChoice::Named("GPU.1".into())));
        assert_eq!(device("auto"), Ok(DeviceChoice::Auto));
        assert!(device("TPU").is_err() && device("GPU.").is_err() && device("CPU.1").is_err());
        assert_eq!("peers=2".parse(), Ok(Wait::Peers(2)));
        assert_eq!("serving=m".parse(), Ok(Wait::Serving("m".into())));
        assert!("peers".parse::<Wait>().is_err() && "serving=".parse::<Wait>().is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in ".{0,24}") {
            let _ = (size(&text), duration(&text), text.parse::<Ids>(), device(&text));
            let _ = (temperature(&text), probability(&text), multiaddr(&text), text.parse::<Wait>());
        }
    }
}
