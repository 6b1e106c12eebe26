//! Which line is wanted, why the other peers are out of it, and what is said when there is none.
//!
//! The rules, in this order:
//! 1. As few machines as fit, or exactly as many as were asked for.
//! 2. The cost of a line is the time of one token ([`crate::pace`]). Any line whose cost is
//!    within [`TOLERANCE_PERCENT`] of the lowest counts as equally fast: speeds are not known
//!    better than that, least of all when machines measured themselves while they were busy.
//! 3. Among those, one with the asker as its head.
//! 4. Among those, the one whose slowest stage is fastest, because several requests in flight
//!    go at the pace of the slowest stage. This is what shares the layers by speed.
//! 5. Among those, the lowest cost; then the order of peer ids, the asker first.
//!
//! Up to [`EXACT_CANDIDATES`] machines the answer is exact. Beyond that, the rules are applied
//! to a short list (the asker, the machines with the most memory, the fastest of the rest), then
//! to those with the most memory, and if no line of so few machines exists, one machine after
//! another, most memory first, takes as many layers as it can at an even pace.
//!
//! `missing_bytes` of a refusal is the smallest sum, over all lines that the wish permits, of the
//! bytes by which each stage exceeds what its machine has free. (Beyond [`EXACT_CANDIDATES`], over
//! those with the most memory.)

use std::ops::Range;

use crate::candidate::{Candidate, Standing};
use crate::footprint::{Footprint, pull_bytes};
use crate::model::ModelShape;
use crate::pace::as_ms;
use crate::plan::{LeftOut, Plan, PlannedStage, Reason, Refusal, Wish};
use crate::search::{Ground, Leg, Lines, Rules, memory_free};

/// Sets of so many machines are searched exhaustively.
pub const EXACT_CANDIDATES: usize = 12;
/// Lines whose cost differs by less count as equally fast.
pub const TOLERANCE_PERCENT: u128 = 25;
/// Deeper than any model there is; bounds the search's memory on a malformed manifest.
pub const MAX_LAYERS: usize = 256;

/// Finds who carries which layers.
pub fn plan(model: &ModelShape, candidates: &[Candidate], wish: &Wish) -> Result<Plan, Refusal> {
    check(model, wish)?;
    let order = in_order(candidates, wish);
    let (machines, mut left_out) = sort_out(&order);
    let wanted = wish.nodes.unwrap_or(1);
    if machines.len() < wanted {
        left_out.extend(machines.iter().map(|candidate| LeftOut {
            peer: candidate.peer.clone(),
            name: candidate.name.clone(),
            reason: Reason::NoLine,
        }));
        return Err(Refusal::TooFewPeers {
            wanted,
            usable: machines.len(),
            left_out: by_peer(left_out),
        });
    }
    let ground = Ground::new(model, wish.ctx, &wish.asker, &machines);
    match find_line(&ground, wish) {
        Some(found) => Ok(describe(&ground, found, left_out)),
        None => Err(does_not_fit(&ground, wish, left_out)),
    }
}

fn check(model: &ModelShape, wish: &Wish) -> Result<(), Refusal> {
    let total = model
        .layer_bytes
        .iter()
        .chain([
            &model.embedding_bytes,
            &model.head_bytes,
            &model.common_bytes,
        ])
        .try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
    match wish.nodes {
        _ if model.layer_bytes.is_empty() => Err(Refusal::Invalid("the model has no layers")),
        _ if model.layer_bytes.len() > MAX_LAYERS => {
            Err(Refusal::Invalid("the model has more than 256 layers"))
        }
        _ if total.is_none() => Err(Refusal::Invalid("the model's sizes overflow")),
        _ if wish.ctx == 0 => Err(Refusal::Invalid("a context of no tokens")),
        Some(0) => Err(Refusal::Invalid("a line of no machines")),
        Some(wanted) if wanted > model.layer_bytes.len() => Err(Refusal::TooManyStages {
            wanted,
            layers: model.layers(),
        }),
        _ => Ok(()),
    }
}

/// The asker first, then by peer id: this order decides between equals.
fn in_order<'a>(candidates: &'a [Candidate], wish: &Wish) -> Vec<&'a Candidate> {
    let mut order: Vec<&Candidate> = candidates.iter().collect();
    order.sort_by_key(|candidate| (candidate.peer != wish.asker, candidate.peer.as_str()));
    order.dedup_by_key(|candidate| candidate.peer.as_str());
    order
}

/// Those that may take part, and why the others may not.
fn sort_out<'a>(order: &[&'a Candidate]) -> (Vec<&'a Candidate>, Vec<LeftOut>) {
    let mut machines = Vec::new();
    let mut left_out = Vec::new();
    for candidate in order {
        let reason = match &candidate.standing {
            Standing::Unavailable { reason } => Reason::Unavailable {
                reason: reason.clone(),
            },
            Standing::OtherGeneration { theirs, ours } => Reason::OtherGeneration {
                theirs: *theirs,
                ours: *ours,
            },
            Standing::Available if candidate.devices.is_empty() => Reason::NoUsableDevice,
            Standing::Available => {
                machines.push(*candidate);
                continue;
            }
        };
        left_out.push(LeftOut {
            peer: candidate.peer.clone(),
            name: candidate.name.clone(),
            reason,
        });
    }
    (machines, left_out)
}

/// A line, and the lines it was chosen from where all sets were searched.
struct Found {
    line: Vec<Leg>,
    lines: Option<Lines>,
}

fn find_line(ground: &Ground, wish: &Wish) -> Option<Found> {
    if ground.machines.len() <= EXACT_CANDIDATES {
        return exact_line(ground, wish);
    }
    let by_memory = by_memory(ground);
    [shortlist(ground, &by_memory), by_memory.clone()]
        .iter()
        .find_map(|list| exact_line_among(ground, wish, list))
        .or_else(|| greedy_line(ground, wish, &by_memory))
        .map(|line| Found { line, lines: None })
}

fn exact_line(ground: &Ground, wish: &Wish) -> Option<Found> {
    let most = ground.machines.len().min(ground.layers() as usize);
    let counts = match wish.nodes {
        Some(wanted) => wanted..wanted + 1,
        None => 1..most + 1,
    };
    counts.filter(|stages| *stages <= most).find_map(|stages| {
        let any = Rules {
            stages,
            step_fs: None,
            asker_is_head: false,
        };
        let lines = ground.search(any);
        let fastest = lines.best()?;
        let budget = ground.cost(&fastest) * (100 + TOLERANCE_PERCENT) / 100;
        let within = |rules: Rules| {
            let line = ground.search(rules).best()?;
            (ground.cost(&line) <= budget).then_some(line)
        };
        let headed = Rules {
            asker_is_head: true,
            ..any
        };
        let (rules, line) = match within(headed) {
            Some(line) => (headed, line),
            None => (any, fastest),
        };
        Some(Found {
            line: evenest(ground, line, |step_fs| {
                within(Rules {
                    step_fs: Some(step_fs),
                    ..rules
                })
            }),
            lines: Some(lines),
        })
    })
}

/// The line with the lowest limit on its slowest stage for which `attempt` finds one.
fn evenest(
    ground: &Ground,
    mut line: Vec<Leg>,
    attempt: impl Fn(u128) -> Option<Vec<Leg>>,
) -> Vec<Leg> {
    let limits = ground.step_times();
    let mut low = 0;
    let mut high = limits.len();
    while low < high {
        let middle = low + (high - low) / 2;
        match attempt(limits[middle]) {
            Some(found) => {
                line = found;
                high = middle;
            }
            None => low = middle + 1,
        }
    }
    line
}

/// Indices of all machines, the one with the most usable memory first.
fn by_memory(ground: &Ground) -> Vec<usize> {
    let most = |machine: usize| {
        let candidate = ground.machines[machine].candidate;
        (0..candidate.devices.len())
            .map(|device| memory_free(candidate, device))
            .max()
            .unwrap_or(0)
    };
    let mut order: Vec<usize> = (0..ground.machines.len()).collect();
    order.sort_by_key(|machine| (std::cmp::Reverse(most(*machine)), *machine));
    order
}

fn shortlist(ground: &Ground, by_memory: &[usize]) -> Vec<usize> {
    let speed = |machine: usize| {
        let devices = &ground.machines[machine].candidate.devices;
        devices.iter().map(|device| device.bytes_per_s).max()
    };
    let mut by_speed = by_memory.to_vec();
    by_speed.sort_by_key(|machine| (std::cmp::Reverse(speed(*machine)), *machine));
    let asker = (0..ground.machines.len()).filter(|machine| ground.machines[*machine].is_asker);
    let largest = by_memory.iter().copied().take(EXACT_CANDIDATES / 2);
    let mut list: Vec<usize> = Vec::with_capacity(EXACT_CANDIDATES);
    for machine in asker.chain(largest).chain(by_speed) {
        if list.len() < EXACT_CANDIDATES && !list.contains(&machine) {
            list.push(machine);
        }
    }
    list
}

fn exact_line_among(ground: &Ground, wish: &Wish, list: &[usize]) -> Option<Vec<Leg>> {
    let mut list: Vec<usize> = list.iter().copied().take(EXACT_CANDIDATES).collect();
    list.sort_unstable();
    let part = ground.part(&list);
    let mut line = exact_line(&part, wish)?.line;
    for leg in &mut line {
        leg.machine = list[leg.machine];
    }
    Some(line)
}

/// One machine after another takes what it can, at the evenest pace at which this works.
fn greedy_line(ground: &Ground, wish: &Wish, by_memory: &[usize]) -> Option<Vec<Leg>> {
    let order = match wish.nodes {
        Some(wanted) => &by_memory[..wanted],
        None => by_memory,
    };
    let walk = |limit: Option<u128>| walk(ground, order, wish.nodes.is_some(), limit);
    let line = walk(None)?;
    Some(evenest(ground, line, |step_fs| walk(Some(step_fs))))
}

fn walk(ground: &Ground, order: &[usize], use_all: bool, limit: Option<u128>) -> Option<Vec<Leg>> {
    let mut line = Vec::new();
    let mut start = 0;
    for (place, machine) in order.iter().enumerate() {
        if start == ground.layers() {
            break;
        }
        let to_come = if use_all { order.len() - place - 1 } else { 0 };
        let latest = ground.layers().checked_sub(to_come as u32)?;
        let leg = (start + 1..=latest).rev().find_map(|end| {
            (0..ground.machines[*machine].devices.len())
                .map(|device| Leg {
                    machine: *machine,
                    device,
                    layers: start..end,
                })
                .filter(|leg| ground.fits(leg))
                .filter(|leg| limit.is_none_or(|limit| ground.step_fs(leg) <= limit))
                .min_by_key(|leg| ground.step_fs(leg))
        });
        match leg {
            Some(leg) => {
                start = leg.layers.end;
                line.push(leg);
            }
            None if use_all => return None,
            None => {}
        }
    }
    (start == ground.layers()).then_some(line)
}

fn describe(ground: &Ground, found: Found, mut left_out: Vec<LeftOut>) -> Plan {
    let stages = found.line.iter().map(|leg| stage(ground, leg)).collect();
    for machine in 0..ground.machines.len() {
        if !found.line.iter().any(|leg| leg.machine == machine) {
            let candidate = ground.machines[machine].candidate;
            left_out.push(LeftOut {
                peer: candidate.peer.clone(),
                name: candidate.name.clone(),
                reason: not_chosen(ground, &found, machine),
            });
        }
    }
    Plan {
        stages,
        est_tokens_per_s: 1_000.0 / as_ms(ground.token_fs(&found.line).max(1)),
        left_out: by_peer(left_out),
    }
}

fn stage(ground: &Ground, leg: &Leg) -> PlannedStage {
    let candidate = ground.machines[leg.machine].candidate;
    let footprint = Footprint::of(ground.model, &leg.layers, ground.ctx);
    PlannedStage {
        peer: candidate.peer.clone(),
        name: candidate.name.clone(),
        device: candidate.devices[leg.device].id.clone(),
        layers: leg.layers.clone(),
        weights_bytes: footprint.weights,
        kv_bytes: footprint.kv,
        working_bytes: footprint.working,
        headroom_bytes: footprint.headroom,
        est_step_ms: as_ms(ground.step_fs(leg)),
    }
}

fn not_chosen(ground: &Ground, found: &Found, machine: usize) -> Reason {
    if let Some(reason) = takes_no_stage(ground, machine) {
        return reason;
    }
    let without = ground.token_fs(&found.line);
    let with = found
        .lines
        .as_ref()
        .and_then(|lines| lines.best_with(machine))
        .map(|line| ground.token_fs(&line));
    match with {
        Some(with) if with > without => Reason::Slower {
            with_ms: as_ms(with),
            without_ms: as_ms(without),
        },
        _ => Reason::FewerMachinesSuffice {
            machines: found.line.len(),
        },
    }
}

/// Why a machine has no room for even the smallest stage.
fn takes_no_stage(ground: &Ground, machine: usize) -> Option<Reason> {
    if ground.can_take_a_stage(machine) {
        return None;
    }
    let candidate = ground.machines[machine].candidate;
    let single = |layer: u32| layer..layer + 1;
    let memory = |layers: Range<u32>| Footprint::of(ground.model, &layers, ground.ctx).total();
    let disk = |layers: Range<u32>| pull_bytes(ground.model, &layers, &candidate.held);
    let smallest = |size: &dyn Fn(Range<u32>) -> u64| {
        (0..ground.layers())
            .map(|layer| size(single(layer)))
            .min()
            .unwrap_or(0)
    };
    let needed = smallest(&memory);
    let free = (0..candidate.devices.len())
        .map(|device| memory_free(candidate, device))
        .max()
        .unwrap_or(0);
    Some(if free < needed {
        Reason::NotEnoughMemory { free, needed }
    } else {
        Reason::NotEnoughDisk {
            free: candidate.disk_free,
            needed: smallest(&disk),
        }
    })
}

fn does_not_fit(ground: &Ground, wish: &Wish, mut left_out: Vec<LeftOut>) -> Refusal {
    let usable = ground.machines.len();
    for machine in 0..usable {
        let candidate = ground.machines[machine].candidate;
        left_out.push(LeftOut {
            peer: candidate.peer.clone(),
            name: candidate.name.clone(),
            reason: takes_no_stage(ground, machine).unwrap_or(Reason::NoLine),
        });
    }
    let mut largest = by_memory(ground);
    largest.truncate(EXACT_CANDIDATES);
    largest.sort_unstable();
    let part = ground.part(&largest);
    let permitted = match wish.nodes {
        Some(wanted) => wanted.min(largest.len())..wanted + 1,
        None => 1..largest.len() + 1,
    };
    let (missing_bytes, machines) = part.least_shortfall(permitted).unwrap_or((u64::MAX, 0));
    Refusal::DoesNotFit {
        missing_bytes,
        machines,
        usable,
        left_out: by_peer(left_out),
    }
}

fn by_peer(mut left_out: Vec<LeftOut>) -> Vec<LeftOut> {
    left_out.sort_by(|one, other| one.peer.cmp(&other.peer));
    left_out
}
