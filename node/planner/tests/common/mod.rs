//! Models and machines for the planner's tests, and its rules spelled out the slow way.
#![allow(dead_code, reason = "each test file uses its part")]

use std::ops::Range;

use skein_planner::choose::TOLERANCE_PERCENT;
use skein_planner::footprint::{Footprint, pull_bytes};
use skein_planner::pace::{HOP_FS, PULL_FS_PER_BYTE, fs_per_byte, rtt_fs};
use skein_planner::{Candidate, DeviceOffer, Held, ModelShape, Plan, Standing, Wish};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// A model of equal layers.
pub fn model(layers: usize, layer_mib: u64) -> ModelShape {
    ModelShape {
        layer_bytes: vec![layer_mib * MIB; layers],
        embedding_bytes: 100 * MIB,
        head_bytes: 100 * MIB,
        tied: false,
        common_bytes: 0,
        kv_bytes_per_token_per_layer: 1_024,
        hidden: 1_024,
        vocab: 32_000,
    }
}

/// A machine with one device of 20 GB/s, a millisecond away.
pub fn machine(peer: &str, memory_free: u64) -> Candidate {
    Candidate {
        peer: peer.to_owned(),
        name: format!("{peer}-name"),
        devices: vec![device("CPU", memory_free, 20)],
        memory_free,
        disk_free: 1_000 * GIB,
        standing: Standing::Available,
        rtt_ms: 1.0,
        held: Held::default(),
    }
}

pub fn device(id: &str, memory_free: u64, gigabytes_per_s: u64) -> DeviceOffer {
    DeviceOffer {
        id: id.to_owned(),
        class: "x86-64-avx2".to_owned(),
        memory_free,
        bytes_per_s: gigabytes_per_s * 1_000_000_000,
    }
}

/// The same machine with the given speed.
pub fn paced(mut candidate: Candidate, gigabytes_per_s: u64) -> Candidate {
    for device in &mut candidate.devices {
        device.bytes_per_s = gigabytes_per_s * 1_000_000_000;
    }
    candidate
}

pub fn wish(ctx: u32, nodes: Option<usize>, asker: &str) -> Wish {
    Wish {
        ctx,
        nodes,
        asker: asker.to_owned(),
    }
}

/// `(peer, first, end)` of each stage.
pub fn layout(plan: &Plan) -> Vec<(&str, u32, u32)> {
    plan.stages
        .iter()
        .map(|stage| (stage.peer.as_str(), stage.layers.start, stage.layers.end))
        .collect()
}

pub fn reason(plan: &Plan, peer: &str) -> String {
    plan.left_out
        .iter()
        .find(|out| out.peer == peer)
        .map(|out| out.reason.to_string())
        .unwrap_or_else(|| panic!("{peer} is not left out"))
}

/// A stage as `(candidate, device, layers)`.
pub type Stage = (usize, usize, Range<u32>);

/// The planner's published rules, by trying every line.
pub struct BruteForce<'a> {
    pub model: &'a ModelShape,
    pub candidates: &'a [Candidate],
    pub wish: &'a Wish,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    pub stages: usize,
    pub cost: u128,
    pub slowest: u128,
    pub asker_is_head: bool,
}

impl BruteForce<'_> {
    /// What the best line is like, or `None` where no line fits.
    pub fn verdict(&self) -> Option<Verdict> {
        let fitting: Vec<Vec<Stage>> = self
            .every_line()
            .into_iter()
            .filter(|line| line.iter().all(|stage| self.shortfall(stage) == 0))
            .collect();
        let stages = fitting.iter().map(Vec::len).min()?;
        let lines: Vec<Vec<Stage>> = fitting
            .into_iter()
            .filter(|line| line.len() == stages)
            .collect();
        let lowest = lines.iter().map(|line| self.cost(line)).min()?;
        let mut good: Vec<&Vec<Stage>> = lines
            .iter()
            .filter(|line| self.cost(line) <= lowest * (100 + TOLERANCE_PERCENT) / 100)
            .collect();
        if good.iter().any(|line| self.asker_is_head(line)) {
            good.retain(|line| self.asker_is_head(line));
        }
        let slowest = good.iter().map(|line| self.slowest(line)).min()?;
        good.retain(|line| self.slowest(line) == slowest);
        let cost = good.iter().map(|line| self.cost(line)).min()?;
        Some(Verdict {
            stages,
            cost,
            slowest,
            asker_is_head: self.asker_is_head(good[0]),
        })
    }

    /// What the planner's own line is like, by the same measures.
    pub fn judge(&self, plan: &Plan) -> Verdict {
        let line: Vec<Stage> = plan
            .stages
            .iter()
            .map(|stage| {
                let candidate = self
                    .candidates
                    .iter()
                    .position(|candidate| candidate.peer == stage.peer)
                    .expect("a stage on a candidate");
                let device = self.candidates[candidate]
                    .devices
                    .iter()
                    .position(|device| device.id == stage.device)
                    .expect("a stage on an offered device");
                (candidate, device, stage.layers.clone())
            })
            .collect();
        assert!(line.iter().all(|stage| self.shortfall(stage) == 0));
        Verdict {
            stages: line.len(),
            cost: self.cost(&line),
            slowest: self.slowest(&line),
            asker_is_head: self.asker_is_head(&line),
        }
    }

    /// The smallest sum of shortfalls over all permitted lines.
    pub fn missing(&self) -> Option<u64> {
        self.every_line()
            .iter()
            .map(|line| line.iter().map(|stage| self.shortfall(stage)).sum())
            .min()
    }

    fn every_line(&self) -> Vec<Vec<Stage>> {
        let mut lines = Vec::new();
        self.extend(&mut Vec::new(), &mut lines);
        if let Some(wanted) = self.wish.nodes {
            lines.retain(|line| line.len() == wanted);
        }
        lines
    }

    fn extend(&self, line: &mut Vec<Stage>, lines: &mut Vec<Vec<Stage>>) {
        let start = line.last().map_or(0, |(_, _, layers)| layers.end);
        if start == self.model.layers() {
            lines.push(line.clone());
            return;
        }
        for (index, candidate) in self.candidates.iter().enumerate() {
            if candidate.standing != Standing::Available
                || line.iter().any(|(used, _, _)| *used == index)
            {
                continue;
            }
            for device in 0..candidate.devices.len() {
                for end in start + 1..=self.model.layers() {
                    line.push((index, device, start..end));
                    self.extend(line, lines);
                    line.pop();
                }
            }
        }
    }

    fn shortfall(&self, (candidate, device, layers): &Stage) -> u64 {
        let candidate = &self.candidates[*candidate];
        let needed = Footprint::of(self.model, layers, self.wish.ctx).total();
        let free = candidate
            .memory_free
            .min(candidate.devices[*device].memory_free);
        let pulled = pull_bytes(self.model, layers, &candidate.held);
        needed.saturating_sub(free) + pulled.saturating_sub(candidate.disk_free)
    }

    fn step(&self, (candidate, device, layers): &Stage) -> u128 {
        let speed = self.candidates[*candidate].devices[*device].bytes_per_s;
        u128::from(self.model.read_bytes(layers)) * fs_per_byte(speed)
    }

    fn slowest(&self, line: &[Stage]) -> u128 {
        line.iter().map(|stage| self.step(stage)).max().unwrap_or(0)
    }

    fn asker_is_head(&self, line: &[Stage]) -> bool {
        self.candidates[line[0].0].peer == self.wish.asker
    }

    fn cost(&self, line: &[Stage]) -> u128 {
        let mut cost = 0;
        for stage in line {
            let candidate = &self.candidates[stage.0];
            let pulled = pull_bytes(self.model, &stage.2, &candidate.held);
            cost += self.step(stage) + u128::from(pulled) * PULL_FS_PER_BYTE;
            if line.len() > 1 {
                cost += rtt_fs(candidate.rtt_ms) + HOP_FS;
            }
        }
        if !self.asker_is_head(line) {
            cost += rtt_fs(self.candidates[line[0].0].rtt_ms) / 2 + HOP_FS;
        }
        cost
    }
}
