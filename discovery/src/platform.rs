//! Private files, written whole or not at all.
//!
//! The one place of this crate that knows about file permissions. No paths are decided here.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Tells apart temporary files written by one process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Replaces `path` with `bytes`. A crash leaves either the old file or the new one. Readable by its owner only.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = write_temporary(path, bytes)?;
    fs::rename(&temporary, path).inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    sync_folder(path)
}

/// Creates `path` with `bytes` unless it exists; `false` means that another file was there first and stays.
pub(crate) fn create_private(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let temporary = write_temporary(path, bytes)?;
    // A hard link fails where the name is taken, so two processes cannot both believe they created the file.
    let linked = fs::hard_link(&temporary, path);
    fs::remove_file(&temporary)?;
    match linked {
        Ok(()) => sync_folder(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        // Some file systems have no hard links; there only the check before the rename is left.
        Err(_) if path.exists() => Ok(false),
        Err(_) => write_private(path, bytes).map(|()| true),
    }
}

fn write_temporary(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_file_name(format!(".{name}.{}.{number}", std::process::id()));
    // A process with the same id may have died here earlier.
    let _ = fs::remove_file(&temporary);
    let mut file = private(OpenOptions::new().write(true).create_new(true)).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(temporary)
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

#[cfg(not(unix))]
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_created_file_is_private_and_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/key");
        assert!(create_private(&path, b"first").unwrap());
        assert!(!create_private(&path, b"second").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"first");
        write_private(&path, b"third").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(
                fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
    }
}
