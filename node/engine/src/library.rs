//! Opens OpenVINO by absolute path, then the bridge, which finds OpenVINO already there.
//!
//! The libraries stay open until the process ends: OpenVINO has threads of its own, and a worker is
//! one process for one stage.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::Library;
use skein_provide::openvino::library_name;

use crate::bridge::{ABI, Bridge};
use crate::error::EngineError;

/// The bridge, as the build script compiled it.
const BRIDGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bridge.bin"));

/// Opens `libopenvino`, `libopenvino_c` and the bridge, which is kept in `cache` by its hash.
pub fn open(libs: &Path, cache: &Path) -> Result<Bridge, EngineError> {
    let archive_tbb = libs.join("../../3rdparty/tbb/lib").join(TBB);
    if !libs.join(TBB).exists() && archive_tbb.exists() {
        // An archive keeps it elsewhere and expects a script to set the search path.
        open_for_all(&archive_tbb)?;
    }
    open_for_all(&libs.join(library_name("openvino")))?;
    let c_library = libs.join(library_name("openvino_c"));
    openvino_sys::library::load_from(&c_library).map_err(|reason| EngineError::Library {
        path: c_library,
        reason,
    })?;

    let path = unpacked_bridge(cache)?;
    let library = open_for_all(&path)?;
    // SAFETY: the library is the one compiled from this crate's bridge folder (its name and content
    // are checked by hash), so its functions have the types that `Bridge` declares.
    let bridge = unsafe { Bridge::of(library) };
    match bridge {
        Ok(bridge) if bridge.abi() == ABI => Ok(bridge),
        Ok(_) => Err(EngineError::Library {
            path,
            reason: "it is another version".into(),
        }),
        Err(error) => Err(EngineError::Library {
            path,
            reason: error.to_string(),
        }),
    }
}

#[cfg(target_os = "linux")]
const TBB: &str = "libtbb.so.12";
#[cfg(target_os = "macos")]
const TBB: &str = "libtbb.12.dylib";
#[cfg(target_os = "windows")]
const TBB: &str = "tbb12.dll";

/// Opens a library so that later ones see its symbols, and never closes it.
#[cfg(unix)]
fn open_for_all(path: &Path) -> Result<&'static Library, EngineError> {
    use libloading::os::unix::{Library as UnixLibrary, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: running the initialisers of OpenVINO, TBB and the bridge is what a worker is for; none
    // of them depends on this process's state, and the library is never closed.
    let library =
        unsafe { UnixLibrary::open(Some::<&OsStr>(path.as_ref()), RTLD_NOW | RTLD_GLOBAL) };
    keep(path, library.map(Library::from))
}

/// Opens a library together with its neighbours, and never closes it.
#[cfg(windows)]
fn open_for_all(path: &Path) -> Result<&'static Library, EngineError> {
    use libloading::os::windows::{LOAD_WITH_ALTERED_SEARCH_PATH, Library as WindowsLibrary};
    let name: &OsStr = path.as_ref();
    // SAFETY: as for the other systems; the flag makes the loader look beside the library first.
    let library = unsafe { WindowsLibrary::load_with_flags(name, LOAD_WITH_ALTERED_SEARCH_PATH) };
    keep(path, library.map(Library::from))
}

fn keep(
    path: &Path,
    library: Result<Library, libloading::Error>,
) -> Result<&'static Library, EngineError> {
    match library {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => Err(EngineError::Library {
            path: path.to_path_buf(),
            reason: error.to_string(),
        }),
    }
}

/// The bridge's file in the cache, written by rename unless it is there, whole.
fn unpacked_bridge(cache: &Path) -> Result<PathBuf, EngineError> {
    let hash = blake3::hash(BRIDGE).to_hex();
    let name = format!(
        "skein-bridge-{}{}",
        &hash[..16],
        std::env::consts::DLL_SUFFIX
    );
    let path = cache.join(name);
    if fs::read(&path).is_ok_and(|content| content == BRIDGE) {
        return Ok(path);
    }
    let unwritable = |path: &Path| {
        let path = path.to_path_buf();
        move |source| EngineError::Cache { path, source }
    };
    fs::create_dir_all(cache).map_err(unwritable(cache))?;
    // Another process or thread may be writing it too; the last rename wins with the same content.
    static WRITERS: AtomicU32 = AtomicU32::new(0);
    let writer = WRITERS.fetch_add(1, Ordering::Relaxed);
    let partial = path.with_extension(format!("partial-{}-{writer}", std::process::id()));
    fs::write(&partial, BRIDGE).map_err(unwritable(&partial))?;
    fs::rename(&partial, &path).map_err(unwritable(&path))?;
    Ok(path)
}
