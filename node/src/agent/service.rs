//! What the command line may ask of a running agent.

use skein_shards::hash::ModelId;

use super::devices::Machine;
use super::lines::{self, Want};
use super::{Agent, announce, ask, content};
use crate::control::{
    AddModel, AgentService, AskRequest, EventSink, LogitsRequest, LogitsSummary, PlanRequest,
    RuntimeReport, StageRequest, TokenizeRequest,
};
use crate::error::{Error, Result};
use crate::local;
use crate::objects;

/// The agent, as its control channel sees it.
pub struct Service(pub Agent);

impl AgentService for Service {
    async fn status(&self) -> Result<objects::Status> {
        let shared = &self.0;
        let (state, reason) = announce::state(shared);
        let devices = match &*shared
            .machine
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
        {
            Machine::Ready { devices, .. } => devices
                .iter()
                .map(|device| objects::Device {
                    id: device.id.clone(),
                    name: device.name.clone(),
                    memory_bytes: device.memory_bytes,
                    calibrated: device.bytes_per_s.is_some(),
                })
                .collect(),
            _ => Vec::new(),
        };
        let used = shared.store.used_bytes();
        Ok(objects::Status {
            peer: shared.peer.clone(),
            name: shared.name.clone(),
            state,
            reason,
            fleet: local::fleet::role(&shared.network.membership().read()),
            devices,
            memory: objects::Budget {
                cap: shared.memory.cap(),
                used: shared.memory.used(),
            },
            disk: objects::Budget {
                cap: shared
                    .store
                    .capacity()
                    .unwrap_or(used + announce::disk_free(shared)),
                used,
            },
            models: shared
                .store
                .models()
                .iter()
                .map(|model| objects::HeldModel {
                    id: model.id.to_string(),
                    name: model.manifest.name.clone(),
                    segments_held: model.held.iter().filter(|held| **held).count() as u32,
                    segments: model.held.len() as u32,
                })
                .collect(),
            lines: lines_of(shared),
            api: None,
        })
    }

    async fn peers(&self) -> Result<Vec<objects::Peer>> {
        Ok(self.0.peers().iter().map(peer_object).collect())
    }

    async fn stop(&self) -> Result<()> {
        self.0.stop.send_replace(true);
        Ok(())
    }

    async fn plan(&self, request: PlanRequest) -> Result<objects::Plan> {
        let shared = &self.0;
        let model = content::resolve(shared, &request.model)?;
        let manifest = content::manifest(shared, model, &[])
            .await
            .map_err(Error::failed)?;
        let context = lines::context_of(&manifest, request.ctx)?;
        let want = Want {
            model,
            nodes: request.nodes,
            context,
            exact: false,
            logits: false,
        };
        let plan = lines::plan(shared, &want, &manifest)?;
        let measured = plan
            .stages
            .iter()
            .all(|stage| stage.est_step_ms > 0.0 && stage.est_step_ms.is_finite());
        Ok(objects::Plan {
            model: model.to_string(),
            ctx: context,
            stages: plan
                .stages
                .iter()
                .map(|stage| objects::PlanStage {
                    peer: stage.peer.clone(),
                    name: stage.name.clone(),
                    device: stage.device.clone(),
                    layers: [stage.layers.start, stage.layers.end],
                    weights_bytes: stage.weights_bytes,
                    kv_bytes: stage.kv_bytes,
                    headroom_bytes: stage.headroom_bytes,
                    est_step_ms: Some(stage.est_step_ms).filter(|ms| ms.is_finite()),
                })
                .collect(),
            est_tokens_per_s: measured.then_some(plan.est_tokens_per_s),
            left_out: plan
                .left_out
                .iter()
                .map(|out| objects::LeftOut {
                    peer: out.peer.clone(),
                    name: out.name.clone(),
                    reason: out.reason.to_string(),
                })
                .collect(),
        })
    }

    async fn ask(&self, request: AskRequest, events: EventSink) -> Result<objects::Ask> {
        ask::ask(&self.0, request, events).await
    }

    async fn logits(&self, request: LogitsRequest, events: EventSink) -> Result<LogitsSummary> {
        ask::logits(&self.0, request, events).await
    }

    async fn stage(&self, request: StageRequest, events: EventSink) -> Result<objects::Stage> {
        super::rehearse::stage(&self.0, request, events).await
    }

    async fn model_add(&self, request: AddModel, events: EventSink) -> Result<objects::Model> {
        let added = local::models::add(self.0.store.clone(), request, events).await?;
        self.0.changed.notify_one();
        Ok(added)
    }

    async fn model_list(&self) -> Result<Vec<objects::Model>> {
        Ok(local::models::list(&self.0.store))
    }

    async fn model_show(&self, model: String) -> Result<objects::Model> {
        local::models::show(&self.0.store, &model)
    }

    async fn model_remove(&self, model: String) -> Result<objects::Removed> {
        let id: ModelId = local::models::resolve(&self.0.store, &model)?;
        let heads = lines::serving(&self.0)
            .iter()
            .any(|line| line.order.model == *id.hash().as_bytes());
        if heads || self.0.serving.uses(id.hash().as_bytes()) {
            return Err(Error::failed(format_args!("a line uses {model} now"))
                .hint("wait until the line is idle and ends, or stop the agent"));
        }
        let removed = local::models::remove(self.0.store.clone(), model).await?;
        self.0.tokenizers.forget(id);
        let _ = tokio::fs::remove_dir_all(self.0.options.home.stages_dir().join(&removed.id)).await;
        self.0.changed.notify_one();
        Ok(removed)
    }

    async fn tokenize(&self, request: TokenizeRequest) -> Result<objects::Tokenized> {
        local::models::tokenize(self.0.store.clone(), request).await
    }

    async fn fleet_new(&self, name: Option<String>) -> Result<objects::FleetId> {
        let name = name.unwrap_or_else(|| self.0.name.clone());
        let made = local::fleet::found(self.0.network.membership(), &name, &self.0.name).await?;
        self.0.changed.notify_one();
        Ok(made)
    }

    async fn fleet_invite(&self, expires_s: u64, uses: u32) -> Result<objects::Invite> {
        let expires = local::fleet::unix_now().saturating_add(expires_s);
        let invite = self
            .0
            .network
            .invite(expires, uses)
            .await
            .map_err(local::fleet::invite_error)?;
        Ok(objects::Invite {
            invite: invite.to_string(),
            expires,
            uses,
        })
    }

    async fn join(&self, invite: String) -> Result<objects::Joined> {
        let joined = local::fleet::join(&self.0.network, &invite, &self.0.name).await?;
        self.0.changed.notify_one();
        Ok(joined)
    }

    async fn runtime(&self) -> Result<RuntimeReport> {
        let peers = self.0.peers();
        Ok(RuntimeReport {
            listening: self
                .0
                .network
                .addresses()
                .iter()
                .map(ToString::to_string)
                .collect(),
            reachable: Vec::new(),
            connected: peers.iter().filter(|peer| peer.connected).count() as u32,
        })
    }
}

/// The lines this machine heads, then those it carries a stage of.
fn lines_of(shared: &Agent) -> Vec<objects::Line> {
    let headed = lines::serving(shared);
    let mut all: Vec<objects::Line> = headed
        .iter()
        .map(|line| objects::Line {
            model: content::model_id(line.order.model).to_string(),
            epoch: line.epoch,
            state: objects::LineState::Serving,
            stages: lines::stages_of(line),
            requests: line.requests() as u32,
        })
        .collect();
    for served in shared.serving.all() {
        if headed.iter().any(|line| line.line == served.offer.line) {
            continue;
        }
        let offer = &served.offer;
        let resident = crate::platform::resident_bytes(served.report.worker_pid).unwrap_or(0);
        all.push(objects::Line {
            model: content::model_id(offer.model).to_string(),
            epoch: offer.epoch,
            state: objects::LineState::Serving,
            stages: vec![lines::stage_object(
                &shared.peer,
                &shared.name,
                offer.layers,
                &served.report,
                served.steps.load(std::sync::atomic::Ordering::Relaxed),
                resident,
            )],
            requests: 0,
        });
    }
    all
}

/// Where a peer can be reached, each place once: with or without its own id at the end it is the same.
fn addresses_of(peer: &skein_discovery::PeerEntry) -> Vec<String> {
    let own = format!("/p2p/{}", peer.peer);
    let places = peer.addresses.iter().map(|address| {
        let text = address.to_string();
        text.strip_suffix(&own).map_or(text.clone(), str::to_owned)
    });
    let mut seen = std::collections::BTreeSet::new();
    places
        .filter(|place| seen.insert(place.clone()))
        .map(|place| format!("{place}{own}"))
        .collect()
}

fn peer_object(peer: &skein_discovery::PeerEntry) -> objects::Peer {
    let advert = peer.advert.as_ref().map(|advert| &advert.body);
    let state = match advert {
        _ if !peer.connected => "offline".to_owned(),
        Some(advert) if peer.fresh => advert.state.clone(),
        _ => "unknown".to_owned(),
    };
    objects::Peer {
        peer: peer.peer.to_string(),
        name: peer.name.clone(),
        state,
        reason: advert
            .map(|advert| advert.reason.clone())
            .filter(|reason| !reason.is_empty()),
        rtt_ms: peer.rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
        addresses: addresses_of(peer),
        devices: advert
            .map(|advert| {
                let devices = advert.devices.iter();
                devices
                    .map(|device| objects::Device {
                        id: device.id.clone(),
                        name: device.name.clone(),
                        memory_bytes: device.memory_bytes,
                        calibrated: device.bytes_per_s > 0.0,
                    })
                    .collect()
            })
            .unwrap_or_default(),
        memory_free: advert.map_or(0, |advert| advert.memory_free),
        held: advert
            .map(|advert| {
                let held = advert.held.iter();
                held.map(|held| objects::HeldSegments {
                    model: content::model_id(held.model).to_string(),
                    segments: held.count(),
                })
                .collect()
            })
            .unwrap_or_default(),
        generation: advert.map_or(0, |advert| advert.generation),
        last_seen_s: peer.silent_for.as_secs_f64(),
    }
}
