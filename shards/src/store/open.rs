//! Opening a store, and finding out what is held when the state file cannot say.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::disk::{self, Layout};
use super::error::StoreError;
use super::models::{Entry, Models};
use super::runs::Runs;
use super::state::{Opened, State};
use super::verified::valid_groups;
use super::{Inner, Store, group_count};
use crate::hash::{Hash, ModelId};
use crate::manifest::{MAX_MANIFEST_BYTES, Manifest};

impl Store {
    /// Opens the store in `dir`, making it if it is not there.
    ///
    /// Only one process at a time may have a folder open; another gets [`StoreError::Locked`].
    /// What a killed import or removal left behind is cleared away. Where the state file is
    /// missing, damaged or silent about a model, the model's data is hashed to find out what is
    /// held, which takes as long as reading it; [`Store::notes`] then says so.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let layout = Layout(dir.into());
        fs::create_dir_all(&layout.0).map_err(StoreError::io(&layout.0))?;
        let lock = lock(&layout)?;
        disk::empty_dir(&layout.imports())?;
        disk::empty_dir(&layout.trash())?;
        let models = layout.models();
        fs::create_dir_all(&models).map_err(StoreError::io(&models))?;

        let mut notes = Vec::new();
        let state = open_state(&layout, &mut notes)?;
        let mut known = state.load()?;
        let mut entries = BTreeMap::new();
        for dir in subdirs(&models)? {
            let Some((id, manifest)) = read_manifest(&dir) else {
                notes.push(format!(
                    "{} has no readable manifest and is left alone: adding the model again makes \
                     its data usable, deleting the folder frees the space",
                    dir.display()
                ));
                continue;
            };
            let whole = is_whole(&dir, &manifest);
            let believed = known
                .remove(&id)
                .filter(|held| whole && held.len() == manifest.segments.len());
            let opened = match believed {
                Some(held) => Entry::open(&dir, manifest.clone(), clipped(held, &manifest)),
                None => recover(&dir, id, manifest, &state, &mut notes),
            };
            let entry = match opened {
                Ok(entry) => entry,
                // One model that cannot be read must not take the others with it.
                Err(error) => {
                    notes.push(format!("{} cannot be opened: {error}", dir.display()));
                    continue;
                }
            };
            entries.insert(id, entry);
        }
        for id in known.into_keys() {
            state.remove(id)?;
        }
        for note in &notes {
            tracing::warn!("{note}");
        }
        Ok(Self(Arc::new(Inner {
            layout,
            state,
            models: Mutex::new(Models {
                capacity: None,
                importing: 0,
                entries,
            }),
            commit: Mutex::new(()),
            notes,
            _lock: lock,
        })))
    }
}

fn lock(layout: &Layout) -> Result<File, StoreError> {
    let path = layout.lock();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(StoreError::io(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // Only for the message: some systems do not let us read a locked file.
            let _ = (&file).take(32).read_to_string(&mut text);
            return Err(StoreError::Locked {
                dir: layout.0.clone(),
                pid: text.trim().parse().ok(),
            });
        }
        Err(TryLockError::Error(error)) => return Err(StoreError::io(&path)(error)),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(StoreError::io(&path))?;
    Ok(file)
}

fn open_state(layout: &Layout, notes: &mut Vec<String>) -> Result<State, StoreError> {
    let path = layout.state();
    match State::open(&path)? {
        Opened::Ready(state) => return Ok(state),
        Opened::Unusable(why) => {
            let aside = path.with_extension("damaged");
            fs::rename(&path, &aside).map_err(StoreError::io(&path))?;
            notes.push(format!(
                "the state file could not be used ({why}) and was put aside as {}",
                aside.display()
            ));
        }
    }
    match State::open(&path)? {
        Opened::Ready(state) => Ok(state),
        Opened::Unusable(why) => Err(StoreError::State(why)),
    }
}

fn subdirs(parent: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut dirs = Vec::new();
    for item in fs::read_dir(parent).map_err(StoreError::io(parent))? {
        let path = item.map_err(StoreError::io(parent))?.path();
        if path.is_dir() {
            dirs.push(path);
        }
    }
    dirs.sort();
    Ok(dirs)
}

fn read_manifest(dir: &Path) -> Option<(ModelId, Manifest)> {
    let id: ModelId = dir.file_name()?.to_str()?.parse().ok()?;
    let mut bytes = Vec::new();
    let file = File::open(dir.join(disk::MANIFEST)).ok()?;
    file.take(MAX_MANIFEST_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .ok()?;
    if ModelId(Hash::of(&bytes)) != id {
        return None;
    }
    Some((id, Manifest::decode(&bytes).ok()?))
}

/// Whether the weights file can hold what the state file says is in it.
fn is_whole(dir: &Path, manifest: &Manifest) -> bool {
    fs::metadata(dir.join(disk::WEIGHTS))
        .is_ok_and(|file| file.len() >= manifest.weights_file_bytes())
        && dir.join(disk::OUTBOARD).is_file()
}

fn clipped(held: Vec<Runs>, manifest: &Manifest) -> Vec<Runs> {
    held.into_iter()
        .zip(&manifest.segments)
        .map(|(runs, segment)| runs.within(&(0..group_count(segment.size))))
        .collect()
}

fn recover(
    dir: &Path,
    id: ModelId,
    manifest: Manifest,
    state: &State,
    notes: &mut Vec<String>,
) -> Result<Entry, StoreError> {
    let name = manifest.name.clone();
    let segments = manifest.segments.len();
    let mut entry = Entry::open(dir, manifest, vec![Runs::default(); segments])?;
    entry.held = valid_groups(&entry)?;
    state.put(id, segments, entry.held.iter().enumerate())?;
    let whole = (0..segments)
        .filter(|segment| entry.segment_held(*segment))
        .count();
    notes.push(format!(
        "{name} ({}) was not in the state file; its data was verified anew: {whole} of {segments} \
         segments are whole",
        id.0.short()
    ));
    Ok(entry)
}
