//! The state file: which models there are and what of each is held.
//!
//! It is written only after the data it speaks of is on disk. It can be lost without losing data:
//! the store then finds out again what is held by hashing it (see [`super::Store::open`]).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use super::error::StoreError;
use super::runs::Runs;
use crate::hash::{Hash, ModelId};

/// Model id → number of segments; there when the model's rows below are to be believed.
const MODELS: TableDefinition<&[u8], u32> = TableDefinition::new("models");
/// Model id and segment index → runs of held groups, as pairs of little-endian u64.
const HELD: TableDefinition<(&[u8], u32), &[u8]> = TableDefinition::new("held");

pub(crate) struct State(Database);

/// What opening the state file came to.
pub(crate) enum Opened {
    Ready(State),
    /// The file is there and cannot be used.
    Unusable(String),
}

impl State {
    pub fn open(path: &Path) -> Result<Opened, StoreError> {
        // A damaged file can make redb panic as well as fail; both mean "unusable" here.
        let opened = std::panic::catch_unwind(|| {
            let state = Self(Database::create(path)?);
            state.create_tables().map_err(|error| {
                DatabaseError::Storage(redb::StorageError::Corrupted(error.to_string()))
            })?;
            state.load().map_err(|error| {
                DatabaseError::Storage(redb::StorageError::Corrupted(error.to_string()))
            })?;
            Ok(state)
        });
        match opened {
            Ok(Ok(state)) => Ok(Opened::Ready(state)),
            Ok(Err(DatabaseError::Storage(redb::StorageError::Io(source))))
                if source.kind() != std::io::ErrorKind::InvalidData
                    && source.kind() != std::io::ErrorKind::UnexpectedEof =>
            {
                Err(StoreError::io(path)(source))
            }
            Ok(Err(error)) => Ok(Opened::Unusable(error.to_string())),
            Err(_) => Ok(Opened::Unusable("it is damaged".to_owned())),
        }
    }

    fn create_tables(&self) -> Result<(), StoreError> {
        let write = self.0.begin_write().map_err(StoreError::state)?;
        write.open_table(MODELS).map_err(StoreError::state)?;
        write.open_table(HELD).map_err(StoreError::state)?;
        write.commit().map_err(StoreError::state)
    }

    /// Every model and what is held of its segments.
    pub fn load(&self) -> Result<BTreeMap<ModelId, Vec<Runs>>, StoreError> {
        let read = self.0.begin_read().map_err(StoreError::state)?;
        let models = read.open_table(MODELS).map_err(StoreError::state)?;
        let held = read.open_table(HELD).map_err(StoreError::state)?;
        let mut loaded = BTreeMap::new();
        for row in models.iter().map_err(StoreError::state)? {
            let (key, segments) = row.map_err(StoreError::state)?;
            let Ok(id) = <[u8; 32]>::try_from(key.value()) else {
                continue;
            };
            let mut runs = Vec::new();
            for segment in 0..segments.value() {
                let row = held.get((&id[..], segment)).map_err(StoreError::state)?;
                runs.push(row.map_or_else(Runs::default, |row| decode(row.value())));
            }
            loaded.insert(ModelId(Hash(id)), runs);
        }
        Ok(loaded)
    }

    /// Writes what is held of `segments`, all or nothing, durably.
    pub fn put<'a>(
        &self,
        model: ModelId,
        count: usize,
        segments: impl IntoIterator<Item = (usize, &'a Runs)>,
    ) -> Result<(), StoreError> {
        let id = model.0.as_bytes();
        let write = self.0.begin_write().map_err(StoreError::state)?;
        {
            let mut models = write.open_table(MODELS).map_err(StoreError::state)?;
            models
                .insert(&id[..], count as u32)
                .map_err(StoreError::state)?;
            let mut held = write.open_table(HELD).map_err(StoreError::state)?;
            for (segment, runs) in segments {
                held.insert((&id[..], segment as u32), &encode(runs)[..])
                    .map_err(StoreError::state)?;
            }
        }
        write.commit().map_err(StoreError::state)
    }

    /// Forgets a model.
    pub fn remove(&self, model: ModelId) -> Result<(), StoreError> {
        let id = model.0.as_bytes();
        let write = self.0.begin_write().map_err(StoreError::state)?;
        {
            let mut models = write.open_table(MODELS).map_err(StoreError::state)?;
            models.remove(&id[..]).map_err(StoreError::state)?;
            let mut held = write.open_table(HELD).map_err(StoreError::state)?;
            held.retain_in((&id[..], 0)..=(&id[..], u32::MAX), |_, _| false)
                .map_err(StoreError::state)?;
        }
        write.commit().map_err(StoreError::state)
    }
}

fn encode(runs: &Runs) -> Vec<u8> {
    runs.iter()
        .flat_map(|run| [run.start, run.end])
        .flat_map(u64::to_le_bytes)
        .collect()
}

fn decode(bytes: &[u8]) -> Runs {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    bytes
        .chunks_exact(16)
        .map(|pair| -> Range<u64> { number(&pair[..8])..number(&pair[8..]) })
        .collect()
}
