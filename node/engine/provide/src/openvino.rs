//! Where the OpenVINO runtime is.
//!
//! Exactly one version is accepted, since the bridge is compiled against its C++ interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::ProvideError;
use super::fetch::{self, Announcement, Package};
use super::place::Env;
use super::platform;

/// The only version that is accepted.
pub const VERSION: &str = "2026.4.1";

/// [`VERSION`] as the libraries' file names carry it.
const SUFFIX: &str = "2641";

const WHEEL: Package = Package {
    what: "OpenVINO 2026.4.1",
    requirement: "openvino==2026.4.1",
    options: &[
        "--implementation",
        "cp",
        "--abi",
        "cp312",
        "--python-version",
        "3.12",
        "--platform",
        "manylinux_2_28_x86_64",
    ],
    wheel_bytes: 59_144_434,
    wheel_sha256: Some("6b4375c17ddcac83a5180349e2e2bb811185c261066e2a920659892d58ef0e3b"),
    keep: &["openvino/libs/", "openvino/include/"],
    by_hand: "set OPENVINO_DIR to the openvino/ folder of an unpacked wheel of that version",
};

/// The wheel's folder in the cache; the hash in its name is the wheel's.
const ENTRY: &str = "openvino-2026.4.1-6b4375c17ddcac83";

/// Asks an interpreter for an installed package without importing it.
const INSTALLED: &str = r"
import importlib.metadata, importlib.util
print(importlib.metadata.version('openvino'))
print(list(importlib.util.find_spec('openvino').submodule_search_locations)[0])
";

/// An OpenVINO runtime of the right version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenVino {
    /// The folder with `libopenvino` and its plugins.
    pub libs_dir: PathBuf,
    /// The folder with `openvino/openvino.hpp`; only a build needs it.
    pub include_dir: Option<PathBuf>,
    /// How it was found.
    pub source: Source,
}

/// How an OpenVINO was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `OPENVINO_DIR`.
    Variable,
    /// An installed Python package.
    Python,
    /// The cache, where it may just have been fetched to.
    Cache,
}

impl OpenVino {
    /// The C++ library.
    pub fn library(&self) -> PathBuf {
        self.libs_dir.join(library_name("openvino"))
    }

    /// The library with the C interface.
    pub fn c_library(&self) -> PathBuf {
        self.libs_dir.join(library_name("openvino_c"))
    }
}

/// The file name of one of OpenVINO's libraries on this system, version included.
pub fn library_name(name: &str) -> String {
    if cfg!(target_os = "windows") {
        format!("{name}.dll")
    } else if cfg!(target_os = "macos") {
        format!("lib{name}.{SUFFIX}.dylib")
    } else {
        format!("lib{name}.so.{SUFFIX}")
    }
}

/// Finds the runtime, fetching it into the cache when it is nowhere else.
///
/// `announce` is called before a fetch, and only then.
pub fn find_openvino(
    env: &Env,
    announce: &mut dyn FnMut(&Announcement),
) -> Result<OpenVino, ProvideError> {
    if let Some(found) = locate_openvino(env)? {
        return Ok(found);
    }
    platform::check(WHEEL.what)?;
    let accept = |unpacked: &Path| {
        let folder = unpacked.join("openvino");
        match examine(&folder, Source::Cache) {
            Found::Right(_) => Ok(folder),
            _ => Err(ProvideError::Unpack {
                what: WHEEL.what,
                into: unpacked.to_path_buf(),
            }),
        }
    };
    let folder = fetch::entry(env, &WHEEL, Path::new(ENTRY), announce, &accept)?;
    Ok(in_folder(&folder, Source::Cache))
}

/// Finds the runtime where it already is; never fetches.
///
/// # Errors
/// `OPENVINO_DIR` is set and holds no runtime or one of another version.
pub fn locate_openvino(env: &Env) -> Result<Option<OpenVino>, ProvideError> {
    if let Some(dir) = &env.openvino_dir {
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
        return match examine(&dir, Source::Variable) {
            Found::Right(openvino) => Ok(Some(openvino)),
            Found::Other(found) => Err(ProvideError::WrongVersion {
                dir,
                found,
                wanted: VERSION,
            }),
            Found::Nothing => Err(ProvideError::NotOpenVino { dir }),
        };
    }
    if let Some(openvino) = installed_package(env) {
        return Ok(Some(openvino));
    }
    let Ok(cache) = env.cache_dir() else {
        return Ok(None);
    };
    match examine(&cache.join(ENTRY), Source::Cache) {
        Found::Right(openvino) => Ok(Some(openvino)),
        _ => Ok(None),
    }
}

/// The folder that a fetch would make; it need not exist. A build script watches it.
pub fn cache_entry(env: &Env) -> Result<PathBuf, ProvideError> {
    Ok(env.cache_dir()?.join(ENTRY))
}

/// What a fetch would announce.
pub fn announcement(env: &Env) -> Result<Announcement, ProvideError> {
    Ok(Announcement {
        what: WHEEL.what,
        bytes: WHEEL.wheel_bytes,
        from: "PyPI",
        into: env.cache_dir()?,
    })
}

enum Found {
    Right(OpenVino),
    Other(String),
    Nothing,
}

fn installed_package(env: &Env) -> Option<OpenVino> {
    let output = fetch::run(Command::new(&env.python).args(["-c", INSTALLED])).ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let (version, folder) = said.trim_end().split_once('\n')?;
    // A package says 2026.4.1 or, with its build, 2026.4.1-22982.
    let version = version.trim().split(['-', '+']).next()?;
    if !output.status.success() || version != VERSION {
        return None;
    }
    match examine(Path::new(folder.trim()), Source::Python) {
        Found::Right(openvino) => Some(openvino),
        _ => None,
    }
}

/// Looks at a wheel's `openvino/` folder or an archive's `runtime/` folder (or the archive itself).
fn examine(dir: &Path, source: Source) -> Found {
    let openvino = in_folder(dir, source);
    if ["openvino", "openvino_c"]
        .iter()
        .all(|name| openvino.libs_dir.join(library_name(name)).is_file())
    {
        // Windows' libraries carry no version in their names, the headers do.
        match openvino.include_dir.as_deref().and_then(header_version) {
            Some(version) if version != VERSION => return Found::Other(version),
            _ => return Found::Right(openvino),
        }
    }
    openvino
        .include_dir
        .as_deref()
        .and_then(header_version)
        .or_else(|| version_of_names(&openvino.libs_dir))
        .map_or(Found::Nothing, Found::Other)
}

fn in_folder(dir: &Path, source: Source) -> OpenVino {
    let runtime = if dir.join("runtime").is_dir() {
        dir.join("runtime")
    } else {
        dir.into()
    };
    let archive = if cfg!(target_os = "windows") {
        "bin/intel64/Release"
    } else if cfg!(target_os = "macos") {
        "lib/arm64/Release"
    } else {
        "lib/intel64"
    };
    let libs_dir = [runtime.join("libs"), runtime.join(archive)]
        .into_iter()
        .find(|candidate| candidate.is_dir())
        .unwrap_or_else(|| runtime.join("libs"));
    let include_dir = Some(runtime.join("include"))
        .filter(|include| include.join("openvino/openvino.hpp").is_file());
    OpenVino {
        libs_dir,
        include_dir,
        source,
    }
}

fn header_version(include: &Path) -> Option<String> {
    let header = fs::read_to_string(include.join("openvino/core/version.hpp")).ok()?;
    let number = |name: &str| {
        let line = header
            .lines()
            .find(|line| line.contains("#define") && line.contains(name))?;
        line.split_whitespace().last()?.parse::<u32>().ok()
    };
    let major = number("OPENVINO_VERSION_MAJOR")?;
    let minor = number("OPENVINO_VERSION_MINOR")?;
    let patch = number("OPENVINO_VERSION_PATCH")?;
    Some(format!("{major}.{minor}.{patch}"))
}

/// Reads 2025.3.0 from `libopenvino.so.2530`.
fn version_of_names(libs: &Path) -> Option<String> {
    let mut names: Vec<String> = fs::read_dir(libs)
        .ok()?
        .filter_map(|item| item.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("libopenvino."))
        .collect();
    names.sort();
    names.iter().find_map(|name| {
        let digits = name
            .split('.')
            .find(|part| part.len() >= 4 && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        let (year, rest) = digits.split_at(2);
        let (minor, patch) = rest.split_at(rest.len() - 1);
        Some(format!("20{year}.{minor}.{patch}"))
    })
}
