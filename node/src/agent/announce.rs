//! What this machine tells the fleet about itself.

use std::time::Duration;

use skein_discovery::{AdvertBody, DeviceAdvert, HeldModel, LineAdvert};

use super::devices::Machine;
use super::{Agent, Shared};

/// Figures such as free disk drift; they are said anew this often even when nothing else changed.
const AT_LEAST_EVERY: Duration = Duration::from_secs(5);
/// Kept free on the disk whatever the owner's cap is.
const DISK_RESERVE: u64 = 1 << 30;

/// Publishes an advert whenever something changed, until the agent stops.
pub async fn keep_announcing(shared: Agent) {
    let mut stop = shared.stop.subscribe();
    loop {
        shared.network.publish(advert(&shared)).await;
        tokio::select! {
            () = shared.changed.notified() => {}
            () = tokio::time::sleep(AT_LEAST_EVERY) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// `available`, `working`, `starting` or `unavailable`, with a reason where there is one.
pub fn state(shared: &Shared) -> (String, Option<String>) {
    match &*shared
        .machine
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
    {
        Machine::Starting => ("starting".into(), None),
        Machine::Without { reason } => ("unavailable".into(), Some(reason.clone())),
        Machine::Ready { .. } => {
            let word = if shared.serving.all().is_empty() {
                "available"
            } else {
                "working"
            };
            (word.into(), None)
        }
    }
}

/// Bytes that may still be written into the store.
pub fn disk_free(shared: &Shared) -> u64 {
    let on_disk = crate::platform::disk_available(shared.store.dir())
        .unwrap_or(0)
        .saturating_sub(DISK_RESERVE);
    match shared.store.capacity() {
        Some(cap) => cap.saturating_sub(shared.store.used_bytes()).min(on_disk),
        None => on_disk,
    }
}

fn advert(shared: &Shared) -> AdvertBody {
    let (state, reason) = state(shared);
    let memory_free = shared.memory.free();
    let (devices, device_class) = match &*shared
        .machine
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
    {
        Machine::Ready { devices, .. } => (
            devices
                .iter()
                .map(|device| DeviceAdvert {
                    id: device.id.clone(),
                    name: device.name.clone(),
                    memory_bytes: device.memory_bytes,
                    memory_free: device.memory_bytes.min(memory_free),
                    bytes_per_s: device.bytes_per_s.unwrap_or(0.0),
                })
                .collect(),
            devices
                .first()
                .map(|device| device.class.clone())
                .unwrap_or_default(),
        ),
        _ => (Vec::new(), String::new()),
    };
    let held = shared
        .store
        .models()
        .iter()
        .map(|model| HeldModel {
            model: *model.id.hash().as_bytes(),
            name: model.manifest.name.clone(),
            segments: bitmap(&model.held),
            total: model.held.len() as u32,
        })
        .collect();
    let lines = super::lines::serving(shared)
        .iter()
        // A debug line is nobody else's.
        .filter(|line| !line.order.logits)
        .map(|line| LineAdvert {
            line: line.line,
            model: line.order.model,
            name: line.order.model_name.clone(),
            nodes: line.order.stages.len() as u32,
            numerics: if line.order.exact {
                "exact".into()
            } else {
                "fast".into()
            },
            context: line.order.context,
            state: "serving".into(),
            requests: line.requests() as u32,
        })
        .collect();
    AdvertBody {
        generation: skein_discovery::advert::GENERATION,
        name: shared.name.clone(),
        device_class,
        devices,
        memory_cap: shared.memory.cap(),
        memory_free,
        disk_free: disk_free(shared),
        held,
        lines,
        state,
        reason: reason.unwrap_or_default(),
    }
}

/// One bit a segment, lowest bit first.
fn bitmap(held: &[bool]) -> Vec<u8> {
    let mut bits = vec![0; held.len().div_ceil(8)];
    for (index, held) in held.iter().enumerate() {
        bits[index / 8] |= u8::from(*held) << (index % 8);
    }
    bits
}
