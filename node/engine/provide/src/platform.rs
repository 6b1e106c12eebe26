//! What the pinned packages need of the system they run on.

use std::process::{Command, Stdio};

use super::error::ProvideError;

/// The oldest C library that the pinned OpenVINO package runs with.
const OLDEST_GLIBC: (u32, u32) = (2, 28);

/// Says whether the pinned OpenVINO package runs here, as far as can be told without it.
///
/// A C library whose version cannot be read is given the benefit of the doubt.
pub fn check(what: &'static str) -> Result<(), ProvideError> {
    let system = || format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH);
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(ProvideError::Platform {
            what,
            system: system(),
        });
    }
    if !cfg!(target_env = "gnu") {
        let system = format!("{} without glibc", system());
        return Err(ProvideError::Platform { what, system });
    }
    match glibc() {
        Some((text, version)) if version < OLDEST_GLIBC => Err(ProvideError::OldLibc {
            what,
            needed: "2.28",
            found: text,
        }),
        _ => Ok(()),
    }
}

fn glibc() -> Option<(String, (u32, u32))> {
    let output = Command::new("getconf")
        .arg("GNU_LIBC_VERSION")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    parse_glibc(&String::from_utf8_lossy(&output.stdout))
}

/// Reads `glibc 2.36`.
fn parse_glibc(line: &str) -> Option<(String, (u32, u32))> {
    let text = line.trim().strip_prefix("glibc ")?;
    let mut parts = text.split('.').map(|part| part.parse::<u32>().ok());
    Some((text.to_owned(), (parts.next()??, parts.next()??)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_c_librarys_version_is_read_as_numbers() {
        let version = |line| parse_glibc(line).map(|(_, version)| version);
        assert_eq!(version("glibc 2.36\n"), Some((2, 36)));
        assert!(version("glibc 2.5").unwrap() < OLDEST_GLIBC);
        assert_eq!(version("musl"), None);
        assert_eq!(version("glibc two"), None);
    }
}
