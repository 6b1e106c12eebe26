//! The best line over a set of machines, exactly.
//!
//! A dynamic programme over (set of machines in the line so far, layers covered so far): a
//! line that ends with machine `m` at layer `e` is a line of the others that ends at some
//! layer `s < e`, and a stage `[s, e)` on `m`. Because a stage's cost is linear in prefix sums
//! (but for the two ends) and because what fits shrinks with every layer added, the best `s` for
//! each `e` is a minimum over a sliding window, so one machine is added in time linear in the
//! layers: `2ⁿ · n · layers` altogether.
//!
//! Not in here: which line is wanted; see [`crate::choose`].

use std::collections::VecDeque;
use std::ops::Range;

use crate::candidate::Candidate;
use crate::footprint::{Footprint, pull_bytes};
use crate::model::ModelShape;
use crate::pace::{HOP_FS, PULL_FS_PER_BYTE, fs_per_byte, rtt_fs};

/// A machine as the search sees it.
#[derive(Debug, Clone)]
pub(crate) struct Machine<'a> {
    pub candidate: &'a Candidate,
    pub is_asker: bool,
    pub devices: Vec<Device>,
    /// Amortised pull of the layers `[0, l)`.
    pull: Vec<u128>,
}

#[derive(Debug, Clone)]
pub(crate) struct Device {
    fs_per_byte: u128,
    /// For each end `e` the smallest start `s` for which `[s, e)` fits; `e` where none does.
    first_fit: Vec<u32>,
}

/// One stage of a line that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leg {
    pub machine: usize,
    pub device: usize,
    pub layers: Range<u32>,
}

/// What a line must obey.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Exactly this many stages.
    pub stages: usize,
    /// No stage's step time exceeds this.
    pub step_fs: Option<u128>,
    pub asker_is_head: bool,
}

#[derive(Debug)]
pub(crate) struct Ground<'a> {
    pub model: &'a ModelShape,
    pub ctx: u32,
    pub machines: Vec<Machine<'a>>,
    /// Bytes read by the layers `[0, l)`.
    read: Vec<u64>,
}

impl<'a> Ground<'a> {
    /// `candidates` in the order that decides between equals.
    pub fn new(model: &'a ModelShape, ctx: u32, asker: &str, candidates: &[&'a Candidate]) -> Self {
        let read = prefix_sums(model.layer_bytes.iter().copied());
        let machines = candidates
            .iter()
            .map(|&candidate| Machine {
                candidate,
                is_asker: candidate.peer == asker,
                devices: (0..candidate.devices.len())
                    .map(|index| Device {
                        fs_per_byte: fs_per_byte(candidate.devices[index].bytes_per_s),
                        first_fit: first_fits(model, ctx, candidate, index),
                    })
                    .collect(),
                pull: pull_prefix(model, candidate),
            })
            .collect();
        Ground {
            model,
            ctx,
            machines,
            read,
        }
    }

    /// The same ground with only the machines at the indices `list`.
    pub fn part(&self, list: &[usize]) -> Ground<'a> {
        Ground {
            model: self.model,
            ctx: self.ctx,
            machines: list
                .iter()
                .map(|machine| self.machines[*machine].clone())
                .collect(),
            read: self.read.clone(),
        }
    }

    pub fn layers(&self) -> u32 {
        self.model.layers()
    }

    /// Compute time of one row in a stage.
    pub fn step_fs(&self, leg: &Leg) -> u128 {
        let device = &self.machines[leg.machine].devices[leg.device];
        let mut bytes =
            u128::from(self.read[leg.layers.end as usize] - self.read[leg.layers.start as usize]);
        if leg.layers.end == self.layers() {
            bytes += u128::from(self.model.tail_read_bytes());
        }
        bytes * device.fs_per_byte
    }

    /// Time of one token through a whole line, hops included.
    pub fn token_fs(&self, line: &[Leg]) -> u128 {
        line.iter()
            .map(|leg| self.step_fs(leg) + self.hop_fs(leg.machine, leg.layers.start, line.len()))
            .sum()
    }

    /// What the search minimises: [`Ground::token_fs`] and the spread-out pulls.
    pub fn cost(&self, line: &[Leg]) -> u128 {
        let pulls: u128 = line.iter().map(|leg| self.pull_cost(leg)).sum();
        self.token_fs(line) + pulls
    }

    fn pull_cost(&self, leg: &Leg) -> u128 {
        let held = &self.machines[leg.machine].candidate.held;
        u128::from(pull_bytes(self.model, &leg.layers, held)) * PULL_FS_PER_BYTE
    }

    fn hop_fs(&self, machine: usize, start: u32, stages: usize) -> u128 {
        let machine = &self.machines[machine];
        let rtt = rtt_fs(machine.candidate.rtt_ms);
        let mut hop = if stages > 1 { rtt + HOP_FS } else { 0 };
        if start == 0 && !machine.is_asker {
            hop += rtt / 2 + HOP_FS;
        }
        hop
    }

    /// Whether a stage has room.
    pub fn fits(&self, leg: &Leg) -> bool {
        let first =
            self.machines[leg.machine].devices[leg.device].first_fit[leg.layers.end as usize];
        first <= leg.layers.start && leg.layers.start < leg.layers.end
    }

    /// Whether a machine has room for any stage at all.
    pub fn can_take_a_stage(&self, machine: usize) -> bool {
        self.machines[machine]
            .devices
            .iter()
            .any(|device| (1..=self.layers()).any(|end| device.first_fit[end as usize] < end))
    }

    /// Every step time that a single stage can have, ascending.
    pub fn step_times(&self) -> Vec<u128> {
        let mut times: Vec<u128> = self.every_stage().map(|leg| self.step_fs(&leg)).collect();
        times.sort_unstable();
        times.dedup();
        times
    }

    fn every_stage(&self) -> impl Iterator<Item = Leg> + '_ {
        let fitting = move |machine: usize, device: usize, end: u32| {
            let first = self.machines[machine].devices[device].first_fit[end as usize];
            (first..end).map(move |start| Leg {
                machine,
                device,
                layers: start..end,
            })
        };
        (0..self.machines.len()).flat_map(move |machine| {
            (0..self.machines[machine].devices.len()).flat_map(move |device| {
                (1..=self.layers()).flat_map(move |end| fitting(machine, device, end))
            })
        })
    }

    /// The cheapest lines of every set of `rules.stages` machines.
    pub fn search(&self, rules: Rules) -> Lines {
        let width = self.layers() as usize + 1;
        let sets = 1usize << self.machines.len();
        let mut cells = vec![Cell::NONE; sets * width];
        cells[0].cost = 0;
        for set in 1..sets {
            if set.count_ones() as usize > rules.stages {
                continue;
            }
            let (earlier, row) = cells.split_at_mut(set * width);
            let row = &mut row[..width];
            // Descending, and only a strict gain replaces: among equals the line whose last
            // machine comes latest wins, so equals stand in the order of the candidates.
            for machine in (0..self.machines.len()).rev() {
                if set & (1 << machine) == 0 {
                    continue;
                }
                let without = set & !(1 << machine);
                let previous = &earlier[without * width..][..width];
                for device in 0..self.machines[machine].devices.len() {
                    self.append(machine, device, previous, row, rules);
                }
            }
        }
        Lines {
            cells,
            width,
            stages: rules.stages,
            machines: self.machines.len(),
        }
    }

    /// Relaxes `row` with lines of `previous` that go on with one stage on `machine`.
    fn append(
        &self,
        machine: usize,
        device: usize,
        previous: &[Cell],
        row: &mut [Cell],
        rules: Rules,
    ) {
        let layers = self.layers();
        let offer = &self.machines[machine].devices[device];
        let relax = |row: &mut [Cell], leg: Leg, total: i128| {
            let cell = &mut row[leg.layers.end as usize];
            if total < cell.cost {
                *cell = Cell {
                    cost: total,
                    start: leg.layers.start,
                    machine: machine as u32,
                    device: device as u32,
                };
            }
        };
        // Everything before the last layer: window minimum of (cost before − prefix at start).
        let prefix = |layer: u32| {
            signed(u128::from(self.read[layer as usize]) * offer.fs_per_byte)
                + signed(self.machines[machine].pull[layer as usize])
        };
        let mut window: VecDeque<(u32, i128)> = VecDeque::new();
        for end in 1..layers {
            let start = end - 1;
            if let Some(before) = previous[start as usize].cost()
                && let Some(fixed) = self.fixed_cost(machine, start, rules)
            {
                let key = before + fixed - prefix(start);
                while window.back().is_some_and(|(_, last)| *last > key) {
                    window.pop_back();
                }
                window.push_back((start, key));
            }
            let allowed = |start: u32| {
                start >= offer.first_fit[end as usize]
                    && rules.step_fs.is_none_or(|limit| {
                        let bytes = self.read[end as usize] - self.read[start as usize];
                        u128::from(bytes) * offer.fs_per_byte <= limit
                    })
            };
            while window.front().is_some_and(|(start, _)| !allowed(*start)) {
                window.pop_front();
            }
            if let Some(&(start, key)) = window.front() {
                let leg = Leg {
                    machine,
                    device,
                    layers: start..end,
                };
                relax(row, leg, key + prefix(end));
            }
        }
        // The tail holds more than its layers: each start by itself.
        for start in offer.first_fit[layers as usize]..layers {
            let leg = Leg {
                machine,
                device,
                layers: start..layers,
            };
            if let Some(before) = previous[start as usize].cost()
                && !(start == 0 && rules.asker_is_head && !self.machines[machine].is_asker)
                && rules
                    .step_fs
                    .is_none_or(|limit| self.step_fs(&leg) <= limit)
            {
                let own = self.step_fs(&leg)
                    + self.hop_fs(machine, start, rules.stages)
                    + self.pull_cost(&leg);
                relax(row, leg, before + signed(own));
            }
        }
    }

    /// What a stage that starts at `start` and is not the tail costs beyond its layers; `None`
    /// where the rules forbid it.
    fn fixed_cost(&self, machine: usize, start: u32, rules: Rules) -> Option<i128> {
        let this = &self.machines[machine];
        if start == 0 && rules.asker_is_head && !this.is_asker {
            return None;
        }
        let held = &this.candidate.held;
        let mut pulled: u128 = 0;
        if !held.common {
            pulled += u128::from(self.model.common_bytes);
        }
        if start == 0 && !held.embedding {
            pulled += u128::from(self.model.embedding_bytes);
        }
        let hop = self.hop_fs(machine, start, rules.stages);
        Some(signed(hop + pulled * PULL_FS_PER_BYTE))
    }

    /// The smallest sum of bytes by which the stages of a line exceed what is free, over all
    /// lines with a permitted number of stages, and that line's number of stages.
    pub fn least_shortfall(&self, permitted: Range<usize>) -> Option<(u64, usize)> {
        let width = self.layers() as usize + 1;
        let sets = 1usize << self.machines.len();
        let tables: Vec<Vec<u64>> = (0..self.machines.len())
            .map(|machine| self.shortfalls(machine))
            .collect();
        let mut least = vec![u64::MAX; sets * width];
        least[0] = 0;
        let mut best: Option<(u64, usize)> = None;
        for set in 1..sets {
            let stages = set.count_ones() as usize;
            if stages >= permitted.end {
                continue;
            }
            let (earlier, row) = least.split_at_mut(set * width);
            for (machine, table) in tables.iter().enumerate() {
                if set & (1 << machine) == 0 {
                    continue;
                }
                let previous = &earlier[(set & !(1 << machine)) * width..][..width];
                for start in 0..width - 1 {
                    if previous[start] == u64::MAX {
                        continue;
                    }
                    for end in start + 1..width {
                        let total = previous[start].saturating_add(table[start * width + end]);
                        row[end] = row[end].min(total);
                    }
                }
            }
            let whole = row[width - 1];
            if permitted.contains(&stages) && whole != u64::MAX {
                let found = (whole, stages);
                best = Some(best.map_or(found, |best| best.min(found)));
            }
        }
        best
    }

    fn shortfalls(&self, machine: usize) -> Vec<u64> {
        let width = self.layers() as usize + 1;
        let candidate = self.machines[machine].candidate;
        let mut table = vec![u64::MAX; width * width];
        for start in 0..self.layers() {
            for end in start + 1..=self.layers() {
                let layers = start..end;
                table[start as usize * width + end as usize] = (0..candidate.devices.len())
                    .map(|device| shortfall(self.model, self.ctx, candidate, device, &layers))
                    .min()
                    .unwrap_or(u64::MAX);
            }
        }
        table
    }
}

/// Bytes by which a stage exceeds what the device (or its pool) and the disk have free.
pub(crate) fn shortfall(
    model: &ModelShape,
    ctx: u32,
    candidate: &Candidate,
    device: usize,
    layers: &Range<u32>,
) -> u64 {
    let free = memory_free(candidate, device);
    let memory = Footprint::of(model, layers, ctx)
        .total()
        .saturating_sub(free);
    let disk = pull_bytes(model, layers, &candidate.held).saturating_sub(candidate.disk_free);
    memory.saturating_add(disk)
}

/// What a device can really use: its own memory, within the pool.
pub(crate) fn memory_free(candidate: &Candidate, device: usize) -> u64 {
    candidate.devices[device]
        .memory_free
        .min(candidate.memory_free)
}

/// The lines that a search found, by set of machines.
#[derive(Debug)]
pub(crate) struct Lines {
    cells: Vec<Cell>,
    width: usize,
    stages: usize,
    machines: usize,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    cost: i128,
    start: u32,
    machine: u32,
    device: u32,
}

impl Cell {
    const NONE: Cell = Cell {
        cost: i128::MAX,
        start: 0,
        machine: 0,
        device: 0,
    };

    fn cost(&self) -> Option<i128> {
        (self.cost != i128::MAX).then_some(self.cost)
    }
}

impl Lines {
    /// The cheapest line of all.
    pub fn best(&self) -> Option<Vec<Leg>> {
        self.best_of(0)
    }

    /// The cheapest line that has a stage on `machine`.
    pub fn best_with(&self, machine: usize) -> Option<Vec<Leg>> {
        self.best_of(1 << machine)
    }

    fn best_of(&self, required: usize) -> Option<Vec<Leg>> {
        let whole = self.width - 1;
        (0..1usize << self.machines)
            .filter(|set| set & required == required && set.count_ones() as usize == self.stages)
            .filter_map(|set| Some((self.cells[set * self.width + whole].cost()?, set)))
            .min()
            .map(|(_, set)| self.trace(set))
    }

    fn trace(&self, mut set: usize) -> Vec<Leg> {
        let mut line = Vec::with_capacity(self.stages);
        let mut end = self.width - 1;
        while set != 0 {
            let cell = self.cells[set * self.width + end];
            line.push(Leg {
                machine: cell.machine as usize,
                device: cell.device as usize,
                layers: cell.start..end as u32,
            });
            end = cell.start as usize;
            set &= !(1 << cell.machine);
        }
        line.reverse();
        line
    }
}

fn first_fits(model: &ModelShape, ctx: u32, candidate: &Candidate, device: usize) -> Vec<u32> {
    let fits = |layers: Range<u32>| shortfall(model, ctx, candidate, device, &layers) == 0;
    let mut first = vec![0; model.layers() as usize + 1];
    let mut start = 0;
    for end in 1..=model.layers() {
        // What a stage takes never shrinks with a later end, so the start only moves forward.
        while start < end && !fits(start..end) {
            start += 1;
        }
        first[end as usize] = start;
    }
    first
}

fn pull_prefix(model: &ModelShape, candidate: &Candidate) -> Vec<u128> {
    let missing = model.layer_bytes.iter().zip(0u32..).map(|(bytes, layer)| {
        if candidate.held.layers.contains(&layer) {
            0
        } else {
            *bytes
        }
    });
    prefix_sums(missing)
        .into_iter()
        .map(|bytes| u128::from(bytes) * PULL_FS_PER_BYTE)
        .collect()
}

fn prefix_sums(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sums = vec![0];
    sums.extend(values.scan(0u64, |sum, value| {
        *sum += value;
        Some(*sum)
    }));
    sums
}

/// Costs are far below 2¹²⁷: at most 2⁶⁴ bytes times 10¹⁵ fs, and a few hops.
fn signed(cost: u128) -> i128 {
    cost as i128
}
