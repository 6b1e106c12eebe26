//! The pipeline's properties over real workers: whatever shares a line, and however the model is cut,
//! a request gets the tokens that it would get alone on one stage; and a mistake in a frame shows.

mod support;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use skein_engine::{KvType, Numerics, Runtime, StageSpec};
use skein_pipeline::frame::HiddenType;
use skein_pipeline::testing::{
    LineError, MutatingEngine, Mutation, Outcome, Script, Seeded, SimulatedLine, Timing,
};
use skein_pipeline::{
    FinishReason, Head, HeadConfig, Request, RequestId, Sampling, StageConfig, StageRunner,
};
use skein_shards::quant::WeightMode;
use skein_shards::testing::{TinyArch, TinyConfig};
use support::models::Imported;
use support::workers::Worker;

const LINE: u64 = 9;
const CONTEXT: u32 = 96;
const BLOCKS: u32 = 9;
const VOCAB: u64 = 288;

/// Workers for one, two and three stages, loaded when first used and again after a fault.
struct Lines {
    model: Imported,
    workers: [Vec<Worker>; 3],
    epoch: u64,
}

impl Lines {
    fn new(arch: TinyArch) -> Self {
        let config = TinyConfig {
            layers: 6,
            hidden: 64,
            ffn: 128,
            context: CONTEXT,
            arch,
            ..TinyConfig::default()
        };
        Self {
            model: Imported::tiny(&config, WeightMode::F32),
            workers: [Vec::new(), Vec::new(), Vec::new()],
            epoch: 0,
        }
    }

    fn head(&mut self, stages: usize) -> Head {
        // A restart within a run takes the next epoch.
        self.epoch += 10;
        Head::new(HeadConfig {
            line: LINE,
            epoch: self.epoch,
            stages,
            blocks: BLOCKS,
            context: CONTEXT,
            max_rows: 8,
            fixed_rows: Some(8),
            max_in_flight: stages + 1,
            hidden: if stages == 1 {
                HiddenType::None
            } else {
                HiddenType::F32
            },
        })
        .unwrap()
    }

    /// A line in a new epoch, on the workers of the lines before.
    fn line(&mut self, stages: usize, seed: u64) -> SimulatedLine<Worker> {
        let ranges = self.model.cut(stages as u32);
        let workers = &mut self.workers[stages - 1];
        for (stage, range) in ranges.into_iter().enumerate() {
            if workers.get(stage).is_some_and(Worker::is_usable) {
                continue;
            }
            let worker = Worker::load(&self.model.spec(range, LINE, BLOCKS));
            if stage < workers.len() {
                workers[stage] = worker;
            } else {
                workers.push(worker);
            }
        }
        let workers = workers.clone();
        SimulatedLine::new(self.head(stages), workers, timing(seed))
    }

    fn alone(&mut self, request: &Request) -> Outcome {
        let script = Script {
            arrivals: vec![(0, request.clone())],
            ..Script::default()
        };
        self.line(1, 0).run(script).unwrap()
    }
}

fn timing(seed: u64) -> Timing {
    Timing {
        seed,
        service: 5..20,
        delay: 1..30,
    }
}

/// One to four requests of any kind, some cancelled, at times that make them share steps.
fn script(draws: &mut Seeded) -> Script {
    let count = draws.within(1..5);
    let arrivals = (1..=count)
        .map(|id| {
            let longest = [4, 60][draws.within(0..2) as usize];
            let length = draws.within(1..longest);
            let request = Request {
                id: RequestId(id),
                prompt: (0..length).map(|_| draws.within(0..VOCAB) as u32).collect(),
                sampling: Sampling {
                    temperature: [0.0, 1.0][draws.within(0..2) as usize],
                    seed: draws.bits(),
                    ..Sampling::default()
                },
                max_tokens: draws.within(1..30) as usize,
                stop_ids: vec![draws.within(0..VOCAB) as u32],
                collect_logits: draws.within(0..4) == 0,
            };
            (draws.within(0..600), request)
        })
        .collect();
    let cancels = (0..draws.within(0..2))
        .map(|_| (draws.within(0..1500), RequestId(draws.within(1..5))))
        .collect();
    let restarts = (0..draws.within(0..2))
        .map(|_| draws.within(0..900))
        .collect();
    Script {
        arrivals,
        cancels,
        restarts,
    }
}

fn every_request_gets_the_tokens_it_would_get_alone(arch: TinyArch, seeds: std::ops::Range<u64>) {
    let mut lines = Lines::new(arch);
    for seed in seeds {
        let mut draws = Seeded(seed);
        let script = script(&mut draws);
        let arrivals = script.arrivals.clone();
        for stages in 1..=3 {
            let mut line = lines.line(stages, seed);
            let outcome = line.run(script.clone()).unwrap();
            assert_eq!(line.head().blocks_in_use(), 0);
            for (_, request) in &arrivals {
                let answer = &outcome.answers[&request.id];
                let alone = &lines.alone(request).answers[&request.id];
                let place = format!("seed {seed}, {stages} stages, request {}", request.id.0);
                assert_eq!(answer.refused, None, "{place}");
                if answer.reason == Some(FinishReason::Cancelled) {
                    assert!(alone.tokens.starts_with(&answer.tokens), "{place}");
                    continue;
                }
                assert_eq!(answer.reason, alone.reason, "{place}");
                assert_eq!(answer.tokens, alone.tokens, "{place}");
                // Bit by bit, which is what `exact` means.
                assert_eq!(answer.logprobs, alone.logprobs, "{place}");
                assert_eq!(answer.logits, alone.logits, "{place}");
            }
        }
    }
}

#[test]
fn every_request_to_a_llama_gets_the_tokens_it_would_get_alone_on_one_stage() {
    every_request_gets_the_tokens_it_would_get_alone(TinyArch::Llama, 0..6);
}

#[test]
fn every_request_to_a_qwen2_gets_the_tokens_it_would_get_alone_on_one_stage() {
    every_request_gets_the_tokens_it_would_get_alone(TinyArch::Qwen2, 6..9);
}

/// What the property above compares: tokens and, bit by bit, their log-probabilities.
fn compared(outcome: &Outcome) -> BTreeMap<RequestId, (&[u32], &[f32])> {
    let answers = outcome.answers.iter();
    answers
        .map(|(id, answer)| (*id, (&answer.tokens[..], &answer.logprobs[..])))
        .collect()
}

/// Three requests that share steps and blocks' neighbourhoods, hot enough that small changes show.
fn busy() -> Script {
    let prompt = |seed: u32, length: u32| (0..length).map(|i| (i * 37 + seed) % 280).collect();
    let request = |id: u64, prompt, max_tokens| Request {
        id: RequestId(id),
        prompt,
        sampling: Sampling {
            temperature: 1.0,
            seed: id,
            ..Sampling::default()
        },
        max_tokens,
        stop_ids: vec![],
        collect_logits: false,
    };
    Script {
        arrivals: vec![
            (0, request(1, prompt(3, 20), 30)),
            (40, request(2, prompt(11, 45), 20)),
            (90, request(3, prompt(5, 2), 40)),
        ],
        ..Script::default()
    }
}

#[test]
fn a_mistake_in_any_frame_is_refused_or_shows_over_real_workers_too() {
    let mut lines = Lines::new(TinyArch::Llama);
    for stages in 1..=3 {
        let healthy = lines.line(stages, 0).run(busy()).unwrap();
        for mutation in [
            Mutation::SlotOffByOne,
            Mutation::PositionOffByOne,
            Mutation::EpochOffByOne,
            Mutation::BlockOffByOne,
        ] {
            for hop in 0..stages {
                let mut line = lines.line(stages, 0).with_mutation(mutation, hop, 6);
                let run: Result<Outcome, LineError> = line.run(busy());
                let place = format!("{mutation:?} on hop {hop} of {stages}");
                if let Ok(outcome) = run {
                    assert!(outcome.mutated, "{place} was never made");
                    assert_ne!(compared(&outcome), compared(&healthy), "{place}");
                }
            }
        }
        // The workers that were led astray are as good as before.
        let again = lines.line(stages, 0).run(busy()).unwrap();
        assert_eq!(compared(&again), compared(&healthy));
    }
}

/// A stage in this process, so that its engine can be led astray behind the stage's checks.
fn runner(
    model: &Imported,
    layers: std::ops::Range<u32>,
    mutation: Mutation,
    healthy: usize,
) -> StageRunner<MutatingEngine<skein_engine::Stage>> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let spec = model.spec(layers.clone(), LINE, BLOCKS);
    let runtime = RUNTIME.get_or_init(|| Runtime::open(&spec.libs_dir, &spec.cache_dir).unwrap());
    let engine = runtime
        .load(&StageSpec {
            xml: &spec.graph,
            weights: &spec.weights,
            device: &spec.device,
            numerics: Numerics::Exact,
            blocks: BLOCKS as usize,
            first: spec.first,
            last: spec.last,
            hidden: spec.hidden as usize,
            vocab: spec.vocab as usize,
            layers,
            kv: KvType::default(),
            threads: Some(1),
            dynamic_quantization_group: None,
            inference_precision: None,
            sliding_windows: spec.sliding_windows.clone(),
        })
        .unwrap();
    let config = StageConfig {
        line: LINE,
        blocks: BLOCKS,
        first: spec.first,
        hidden: spec.hidden as usize,
        vocab: spec.vocab as usize,
        context: CONTEXT,
    };
    let engine = MutatingEngine::new(engine, mutation, healthy);
    StageRunner::new(engine, config, spec.last, true).unwrap()
}

#[test]
fn a_mistake_behind_every_check_shows_with_a_real_engine_too() {
    let mut lines = Lines::new(TinyArch::Llama);
    for stages in 1..=2 {
        let healthy = lines.line(stages, 0).run(busy()).unwrap();
        for mutation in [
            Mutation::SlotOffByOne,
            Mutation::PositionOffByOne,
            Mutation::BlockOffByOne,
        ] {
            for wrong in 0..stages {
                let ranges = lines.model.cut(stages as u32).into_iter().enumerate();
                let links = ranges.map(|(stage, range)| {
                    let healthy = if stage == wrong { 12 } else { usize::MAX };
                    runner(&lines.model, range, mutation, healthy)
                });
                let links = links.collect();
                let mut line = SimulatedLine::new(lines.head(stages), links, timing(0));
                let run = line.run(busy());
                let place = format!("{mutation:?} in stage {wrong} of {stages}");
                assert!(line.links()[wrong].engine().made(), "{place}");
                if let Ok(outcome) = run {
                    assert_ne!(compared(&outcome), compared(&healthy), "{place}");
                }
            }
        }
    }
}
