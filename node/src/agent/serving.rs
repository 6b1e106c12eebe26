//! The stages that this machine carries now, for `status` and adverts.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use crate::line::messages::{Offer, StageReport};

/// Who is served. Cloning shares the table.
#[derive(Debug, Clone, Default)]
pub struct Serving(Arc<Mutex<BTreeMap<(u64, u32), Served>>>);

/// One stage.
#[derive(Debug, Clone)]
pub struct Served {
    pub offer: Offer,
    pub report: StageReport,
    /// Steps that the worker has taken.
    pub steps: Arc<AtomicU64>,
}

/// Takes the stage out of the table when dropped.
#[derive(Debug)]
pub struct ServingGuard {
    serving: Serving,
    key: (u64, u32),
    /// Where the steps are counted.
    pub steps: Arc<AtomicU64>,
}

impl Serving {
    /// Notes a stage until the guard is dropped.
    pub fn enter(&self, offer: &Offer, report: &StageReport) -> ServingGuard {
        let key = (offer.line, offer.stage);
        let steps: Arc<AtomicU64> = Arc::default();
        let served = Served {
            offer: offer.clone(),
            report: report.clone(),
            steps: steps.clone(),
        };
        self.lock().insert(key, served);
        ServingGuard {
            serving: self.clone(),
            key,
            steps,
        }
    }

    /// All stages, by line and position.
    pub fn all(&self) -> Vec<Served> {
        self.lock().values().cloned().collect()
    }

    /// Whether a stage of this model is loaded.
    pub fn uses(&self, model: &[u8; 32]) -> bool {
        self.lock()
            .values()
            .any(|served| served.offer.model == *model)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(u64, u32), Served>> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for ServingGuard {
    fn drop(&mut self) {
        self.serving.lock().remove(&self.key);
    }
}
