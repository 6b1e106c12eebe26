//! Numbers and ids as people read them.

use std::time::Duration;

/// Bytes with three figures and a binary unit.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // 999.5 would round to a fourth figure.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let places = match value {
        _ if unit == 0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.places$} {}", UNITS[unit])
}

/// A stretch of time in its largest unit.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{} s", trim(s)),
        s if s < 7_200.0 => format!("{} min", trim(s / 60.0)),
        s if s < 172_800.0 => format!("{} h", trim(s / 3_600.0)),
        s => format!("{} days", trim(s / 86_400.0)),
    }
}

fn trim(value: f64) -> String {
    format!("{value:.1}").trim_end_matches(".0").to_owned()
}

/// An id short enough for a table. Peer ids begin alike, so it is their end that tells them apart.
pub fn short(id: &str) -> String {
    const LENGTH: usize = 10;
    let id = printable(id);
    let count = id.chars().count();
    if count <= LENGTH + 2 {
        id
    } else if id.starts_with("12D3Koo") || id.starts_with("Qm") {
        format!("…{}", id.chars().skip(count - LENGTH).collect::<String>())
    } else {
        id.chars().take(LENGTH).collect()
    }
}

/// Text from elsewhere without what could steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_figures() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (1 << 20, "1.00 MiB"),
            (1023 << 20, "1.00 GiB"),
            (8 << 30, "8.00 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(duration(Duration::from_millis(20)), "20 ms");
        assert_eq!(duration(Duration::from_secs(60)), "60 s");
        assert_eq!(duration(Duration::from_secs(7 * 86_400)), "7 days");
    }

    #[test]
    fn ids_are_cut_where_they_tell_apart() {
        assert_eq!(short("12D3KooWAbcdefghijklmnopqrstuvwxyz"), "…qrstuvwxyz");
        assert_eq!(short(&"0123456789abcdef".repeat(4)), "0123456789");
        assert_eq!(short("short"), "short");
    }
}
