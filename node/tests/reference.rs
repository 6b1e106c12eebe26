//! SmolLM2 against an independent forward pass: the greedy tokens of four texts, and logits.
//!
//! `data/smollm2-greedy.json` has prompts, their greedy continuations with the margin to the
//! runner-up, and what `data/smollm2-logits.bin` holds, as little-endian f32: for every row of every
//! text each `stride`-th column of its logits, then the whole rows that `whole_rows` names.

mod support;

use std::fs;

use serde::Deserialize;
use skein_pipeline::frame::HiddenType;
use skein_pipeline::testing::{Script, SimulatedLine, Timing};
use skein_pipeline::{Head, HeadConfig, Request, RequestId, Sampling};
use skein_shards::quant::WeightMode;
use support::agents::{Place, list, number};
use support::models::Imported;
use support::workers::Worker;

const TOLERANCE: f32 = 2e-2;
/// Where the runner-up is closer, f32 arithmetic of another order may choose it.
const MARGIN: f32 = 0.05;
const LINE: u64 = 5;
const BLOCKS: u32 = 8;

#[derive(Deserialize)]
struct Golden {
    vocab: usize,
    stride: usize,
    cases: Vec<Case>,
    whole_rows: Vec<(String, usize)>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    prompt_ids: Vec<u32>,
    greedy: Vec<u32>,
    margin: Vec<f32>,
}

struct Reference {
    golden: Golden,
    values: Vec<f32>,
}

impl Case {
    fn ids(&self) -> Vec<u32> {
        [&self.prompt_ids[..], &self.greedy[..]].concat()
    }
}

impl Reference {
    fn read() -> Self {
        let golden: Golden =
            serde_json::from_slice(include_bytes!("data/smollm2-greedy.json")).unwrap();
        let bytes = include_bytes!("data/smollm2-logits.bin");
        let values: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
            .collect();
        let columns = golden.vocab.div_ceil(golden.stride);
        let rows: usize = golden.cases.iter().map(|case| case.ids().len()).sum();
        let wanted = rows * columns + golden.whole_rows.len() * golden.vocab;
        assert_eq!(values.len(), wanted);
        Self { golden, values }
    }

    /// Compares `[rows, vocab]` logits of a text with the reference.
    fn compare(&self, index: usize, logits: &[Vec<f32>], place: &str) {
        let case = &self.golden.cases[index];
        let place = format!("{}, {place}", case.name);
        assert_eq!(logits.len(), case.ids().len(), "{place}");
        for (step, (token, margin)) in case.greedy.iter().zip(&case.margin).enumerate() {
            let row = &logits[case.prompt_ids.len() - 1 + step];
            if *margin >= MARGIN {
                assert_eq!(argmax(row), *token as usize, "{place}, step {step}");
            }
        }
        let columns = self.golden.vocab.div_ceil(self.golden.stride);
        let before = self.golden.cases[..index].iter();
        let start: usize = before.map(|case| case.ids().len() * columns).sum();
        let mut worst = 0f32;
        for (row, values) in logits.iter().enumerate() {
            assert_eq!(values.len(), self.golden.vocab);
            let selected = values.iter().step_by(self.golden.stride);
            let reference = &self.values[start + row * columns..][..columns];
            worst = worst.max(distance(selected, reference));
        }
        let all: usize = self.golden.cases.iter().map(|case| case.ids().len()).sum();
        for (at, (name, row)) in self.golden.whole_rows.iter().enumerate() {
            if *name == case.name {
                let start = all * columns + at * self.golden.vocab;
                let reference = &self.values[start..][..self.golden.vocab];
                worst = worst.max(distance(logits[*row].iter(), reference));
            }
        }
        eprintln!("{place}: logits within {worst:.1e}");
        assert!(worst <= TOLERANCE, "{place}: logits are off by {worst}");
    }
}

fn argmax(row: &[f32]) -> usize {
    let best = row
        .iter()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.unwrap().0
}

fn distance<'a>(ours: impl Iterator<Item = &'a f32>, reference: &[f32]) -> f32 {
    ours.zip(reference)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst, off| {
            if off.is_nan() {
                f32::INFINITY
            } else {
                worst.max(off)
            }
        })
}

#[test]
fn one_and_three_workers_agree_with_the_reference() {
    let reference = Reference::read();
    let model = Imported::new(&support::smollm2(), WeightMode::F32);
    for stages in [1, 3] {
        let workers: Vec<Worker> = model
            .cut(stages)
            .into_iter()
            .map(|layers| Worker::load(&model.spec(layers, LINE, BLOCKS)))
            .collect();
        let head = Head::new(HeadConfig {
            line: LINE,
            epoch: 1,
            stages: stages as usize,
            blocks: BLOCKS,
            context: 128,
            max_rows: 8,
            fixed_rows: Some(8),
            max_in_flight: stages as usize,
            hidden: if stages == 1 {
                HiddenType::None
            } else {
                HiddenType::F32
            },
        })
        .unwrap();
        let timing = Timing {
            seed: 0,
            service: 1..2,
            delay: 1..2,
        };
        // All four at once: they share steps.
        let requests = reference.golden.cases.iter().zip(0..);
        let arrivals = requests.map(|(case, id)| {
            let request = Request {
                id: RequestId(id),
                prompt: case.ids(),
                sampling: Sampling::default(),
                max_tokens: 0,
                stop_ids: vec![],
                collect_logits: true,
            };
            (0, request)
        });
        let script = Script {
            arrivals: arrivals.collect(),
            ..Script::default()
        };
        let outcome = SimulatedLine::new(head, workers, timing)
            .run(script)
            .unwrap();
        for index in 0..reference.golden.cases.len() {
            let answer = &outcome.answers[&RequestId(index as u64)];
            assert_eq!(answer.refused, None);
            let logits: Vec<Vec<f32>> = answer.logits.values().cloned().collect();
            reference.compare(index, &logits, &format!("{stages} stages"));
        }
    }
}

#[test]
fn two_agents_agree_with_the_reference() {
    let reference = Reference::read();
    let place = Place::new();
    let root = place.start("root", &["--allow-logits"]);
    root.done(&["fleet", "new", "reference"]);
    let invite = root.done(&["fleet", "invite"]);
    let member = place.start("member", &["--allow-logits"]);
    member.done(&["join", invite["invite"].as_str().unwrap()]);
    let file = support::smollm2();
    let model = root.done(&[
        "model",
        "add",
        file.to_str().unwrap(),
        "--weights",
        "f32",
        "--name",
        "smollm2",
    ]);
    root.sees(&[&member]);
    let out = place.path("logits.npy");
    for (index, case) in reference.golden.cases.iter().enumerate() {
        let ids: Vec<String> = case.ids().iter().map(u32::to_string).collect();
        let summary = root.done(&[
            "debug",
            "logits",
            "smollm2",
            "--ids",
            &ids.join(","),
            "--nodes",
            "2",
            "--out",
            out.to_str().unwrap(),
        ]);
        assert_eq!(summary["model"], model["id"]);
        let stages = list(&summary["pipeline"]);
        assert_eq!(stages.len(), 2);
        let peers: std::collections::BTreeSet<&str> = stages
            .iter()
            .map(|stage| stage["peer"].as_str().unwrap())
            .collect();
        assert_eq!(peers, [root.peer.as_str(), member.peer.as_str()].into());
        assert_eq!(
            number(&stages[0]["layers"][1]),
            number(&stages[1]["layers"][0])
        );
        let bytes = fs::read(&out).unwrap();
        let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        let values: Vec<f32> = bytes[header..]
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
            .collect();
        let rows: Vec<Vec<f32>> = values
            .chunks_exact(reference.golden.vocab)
            .map(<[f32]>::to_vec)
            .collect();
        reference.compare(index, &rows, "two agents");
    }
}
