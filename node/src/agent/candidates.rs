//! What peers advertise and the manifest says, as the planner wants it.

use std::collections::BTreeSet;

use skein_discovery::PeerEntry;
use skein_planner::{Candidate, DeviceOffer, Held, ModelShape, Standing};
use skein_shards::manifest::{Manifest, SegmentKind};

use super::Shared;
use super::devices::Machine;

/// Bytes of one KV value in either numerics.
pub fn kv_value_bytes(exact: bool) -> u64 {
    if exact { 4 } else { 2 }
}

/// The sizes of a model.
pub fn shape(manifest: &Manifest, exact: bool) -> ModelShape {
    let mut shape = ModelShape {
        layer_bytes: vec![0; manifest.layers as usize],
        embedding_bytes: 0,
        head_bytes: 0,
        tied: manifest.tied_embedding,
        common_bytes: 0,
        kv_bytes_per_token_per_layer: manifest.kv_bytes_per_token(0..1, kv_value_bytes(exact)),
        hidden: manifest.hidden,
        vocab: manifest.vocab,
    };
    for segment in &manifest.segments {
        match segment.kind {
            SegmentKind::Common => shape.common_bytes += segment.size,
            SegmentKind::Embedding => shape.embedding_bytes += segment.size,
            SegmentKind::Head => shape.head_bytes += segment.size,
            SegmentKind::Layer(layer) => {
                if let Some(bytes) = shape.layer_bytes.get_mut(layer as usize) {
                    *bytes += segment.size;
                }
            }
        }
    }
    shape
}

/// Which segments of a model are held, given one flag a segment.
pub fn held(manifest: &Manifest, holds: impl Fn(usize) -> bool) -> Held {
    let mut held = Held {
        common: false,
        embedding: false,
        layers: BTreeSet::new(),
        head: false,
    };
    for (index, segment) in manifest.segments.iter().enumerate() {
        if !holds(index) {
            continue;
        }
        match segment.kind {
            SegmentKind::Common => held.common = true,
            SegmentKind::Embedding => held.embedding = true,
            SegmentKind::Head => held.head = true,
            SegmentKind::Layer(layer) => {
                held.layers.insert(layer);
            }
        }
    }
    held
}

/// This machine and every member that was heard of lately.
pub fn all(shared: &Shared, model: [u8; 32], manifest: &Manifest) -> Vec<Candidate> {
    let mut candidates = vec![own(shared, model, manifest)];
    candidates.extend(
        shared
            .peers()
            .iter()
            .filter_map(|peer| other(peer, model, manifest)),
    );
    candidates
}

fn own(shared: &Shared, model: [u8; 32], manifest: &Manifest) -> Candidate {
    let devices = match &*shared
        .machine
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
    {
        Machine::Ready { devices, .. } => devices
            .iter()
            .map(|device| DeviceOffer {
                id: device.id.clone(),
                class: device.class.clone(),
                memory_free: device.memory_bytes.min(shared.memory.free()),
                bytes_per_s: device.bytes_per_s.unwrap_or(0.0) as u64,
            })
            .collect(),
        _ => Vec::new(),
    };
    let held_segments = shared
        .store
        .held(super::content::model_id(model))
        .unwrap_or_default();
    Candidate {
        peer: shared.peer.clone(),
        name: shared.name.clone(),
        devices,
        memory_free: shared.memory.free(),
        disk_free: super::announce::disk_free(shared),
        standing: match shared.unavailable() {
            Some(reason) => Standing::Unavailable { reason },
            None => Standing::Available,
        },
        rtt_ms: 0.0,
        held: held(manifest, |index| {
            held_segments.get(index).copied().unwrap_or(false)
        }),
    }
}

fn other(peer: &PeerEntry, model: [u8; 32], manifest: &Manifest) -> Option<Candidate> {
    let advert = &peer.advert.as_ref()?.body;
    let class = &advert.device_class;
    let standing = if advert.generation != skein_discovery::advert::GENERATION {
        Standing::OtherGeneration {
            theirs: advert.generation,
            ours: skein_discovery::advert::GENERATION,
        }
    } else if !peer.fresh || !peer.connected {
        Standing::Unavailable {
            reason: "not heard of lately".into(),
        }
    } else if advert.state != "available" && advert.state != "working" {
        let reason = if advert.reason.is_empty() {
            &advert.state
        } else {
            &advert.reason
        };
        Standing::Unavailable {
            reason: reason.clone(),
        }
    } else {
        Standing::Available
    };
    let model = advert.held.iter().find(|held| held.model == model);
    Some(Candidate {
        peer: peer.peer.to_string(),
        name: peer.name.clone(),
        devices: advert
            .devices
            .iter()
            .map(|device| DeviceOffer {
                id: device.id.clone(),
                class: class.clone(),
                memory_free: device.memory_free.min(advert.memory_free),
                bytes_per_s: device.bytes_per_s.clamp(0.0, 1e15) as u64,
            })
            .collect(),
        memory_free: advert.memory_free,
        disk_free: advert.disk_free,
        standing,
        rtt_ms: peer.rtt.map_or(0.0, |rtt| rtt.as_secs_f64() * 1e3),
        held: held(manifest, |index| {
            model.is_some_and(|model| model.holds(index as u32))
        }),
    })
}
