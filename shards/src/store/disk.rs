//! Files at positions, and names that survive a power cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::error::StoreError;

/// The store's folder.
///
/// ```text
/// store.lock              held while the store is open; contains the holder's process id
/// state.redb              which models there are and which groups of each segment are held
/// models/<id>/manifest.cbor, graph.bin, tokenizer.json
/// models/<id>/weights.bin, outboard.bin     sparse; every segment at its canonical offset
/// import/<n>/             an import that has not finished; removed at the next open
/// trash/<n>/              a model being removed; removed at the next open
/// ```
#[derive(Clone, Debug)]
pub(crate) struct Layout(pub PathBuf);

impl Layout {
    pub fn lock(&self) -> PathBuf {
        self.0.join("store.lock")
    }

    pub fn state(&self) -> PathBuf {
        self.0.join("state.redb")
    }

    pub fn models(&self) -> PathBuf {
        self.0.join("models")
    }

    pub fn imports(&self) -> PathBuf {
        self.0.join("import")
    }

    pub fn trash(&self) -> PathBuf {
        self.0.join("trash")
    }
}

pub(crate) const MANIFEST: &str = "manifest.cbor";
pub(crate) const WEIGHTS: &str = "weights.bin";
pub(crate) const OUTBOARD: &str = "outboard.bin";

#[cfg(unix)]
pub(crate) fn read_at(file: &File, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, position)
}

#[cfg(unix)]
pub(crate) fn write_all_at(file: &File, position: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, position)
}

#[cfg(windows)]
pub(crate) fn read_at(file: &File, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, position)
}

#[cfg(windows)]
pub(crate) fn write_all_at(file: &File, mut position: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, position)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        position += written as u64;
        bytes = &bytes[written..];
    }
    Ok(())
}

pub(crate) fn read_exact_at(
    file: &File,
    mut position: u64,
    mut buffer: &mut [u8],
) -> io::Result<()> {
    while !buffer.is_empty() {
        match read_at(file, position, buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                position += read as u64;
                buffer = &mut buffer[read..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Opens `path` for reading and writing with at least `length` bytes, sparse where nothing was
/// written yet.
pub(crate) fn open_sparse(path: &Path, length: u64) -> Result<File, StoreError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(StoreError::io(path))?;
    let present = file.metadata().map_err(StoreError::io(path))?.len();
    if present < length {
        file.set_len(length).map_err(StoreError::io(path))?;
    }
    Ok(file)
}

/// Writes a whole file so that after a crash either all of it or nothing is there.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let partial = path.with_extension("part");
    let write = || -> io::Result<()> {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().map_err(StoreError::io(path))?;
    match path.parent() {
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}

/// Makes the names in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    if cfg!(unix) {
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(StoreError::io(dir))?;
    }
    Ok(())
}

/// Makes a folder with a new name below `parent`.
pub(crate) fn new_dir(parent: &Path) -> Result<PathBuf, StoreError> {
    for number in 0u64.. {
        let dir = parent.join(number.to_string());
        match fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(StoreError::io(&dir)(error)),
        }
    }
    unreachable!("folders do not use up all numbers")
}

/// Removes everything below `dir`, which is made if it is missing.
pub(crate) fn empty_dir(dir: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(StoreError::io(dir)(error));
        }
        _ => {}
    }
    fs::create_dir_all(dir).map_err(StoreError::io(dir))
}
