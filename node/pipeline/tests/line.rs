//! A whole line in simulated time: whatever shares it, a request gets the tokens that it would get
//! alone on one stage.

use std::collections::BTreeMap;

use proptest::prelude::*;
use skein_pipeline::{
    FinishReason, Head, HeadConfig, Request, RequestId, Sampling, StageConfig, StageRunner,
    frame::HiddenType,
    testing::{
        FakeEngine, FakeModel, LineError, MutatingEngine, Mutation, Outcome, Script, SimulatedLine,
        Timing,
    },
};

const MODEL: FakeModel = FakeModel {
    layers: 6,
    hidden: 8,
    vocab: 64,
    seed: 1,
};
const CONTEXT: u32 = 96;

#[derive(Clone, Debug)]
struct Setup {
    stages: u32,
    blocks: u32,
    max_rows: usize,
    exact: bool,
    bf16: bool,
    extra_in_flight: usize,
    seed: u64,
}

fn alone() -> Setup {
    Setup {
        stages: 1,
        blocks: 3,
        max_rows: 8,
        exact: true,
        bf16: false,
        extra_in_flight: 0,
        seed: 0,
    }
}

fn head(setup: &Setup) -> Head {
    Head::new(HeadConfig {
        line: 9,
        epoch: 4,
        stages: setup.stages as usize,
        blocks: setup.blocks,
        context: CONTEXT,
        max_rows: setup.max_rows,
        fixed_rows: setup.exact.then_some(8),
        max_in_flight: setup.stages as usize + setup.extra_in_flight,
        hidden: match (setup.stages, setup.bf16) {
            (1, _) => HiddenType::None,
            (_, true) => HiddenType::BF16,
            (_, false) => HiddenType::F32,
        },
    })
    .unwrap()
}

fn engines(setup: &Setup) -> Vec<FakeEngine> {
    let cut = MODEL.cut(setup.stages).into_iter();
    cut.map(|layers| {
        FakeEngine::new(MODEL, layers, setup.blocks).with_exact_rows(setup.exact.then_some(8))
    })
    .collect()
}

fn runner<E: skein_pipeline::Engine>(setup: &Setup, stage: usize, engine: E) -> StageRunner<E> {
    let config = StageConfig {
        line: 9,
        blocks: setup.blocks,
        first: stage == 0,
        hidden: MODEL.hidden,
        vocab: MODEL.vocab,
        context: CONTEXT,
    };
    StageRunner::new(engine, config, stage + 1 == setup.stages as usize, true).unwrap()
}

fn line(setup: &Setup) -> SimulatedLine<StageRunner<FakeEngine>> {
    let links = engines(setup).into_iter().enumerate();
    let links = links
        .map(|(stage, engine)| runner(setup, stage, engine))
        .collect();
    SimulatedLine::new(head(setup), links, timing(setup.seed))
}

fn timing(seed: u64) -> Timing {
    Timing {
        seed,
        service: 5..20,
        delay: 1..30,
    }
}

fn request(id: u64, prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        id: RequestId(id),
        prompt,
        sampling: Sampling::default(),
        max_tokens,
        stop_ids: vec![],
        collect_logits: false,
    }
}

fn run_alone(request: &Request) -> Outcome {
    let script = Script {
        arrivals: vec![(0, request.clone())],
        ..Script::default()
    };
    line(&alone()).run(script).unwrap()
}

fn setups() -> impl Strategy<Value = Setup> {
    (
        1u32..4,
        3u32..9,
        2usize..20,
        any::<bool>(),
        any::<bool>(),
        0usize..3,
        any::<u64>(),
    )
        .prop_map(
            |(stages, blocks, max_rows, exact, bf16, extra_in_flight, seed)| Setup {
                stages,
                blocks,
                max_rows,
                exact,
                bf16,
                extra_in_flight,
                seed,
            },
        )
}

fn requests() -> impl Strategy<Value = Vec<(u64, Request)>> {
    let one = (
        0u64..1500,
        prop_oneof![
            prop::collection::vec(0u32..64, 1..4),
            prop::collection::vec(0u32..64, 1..70),
        ],
        0usize..40,
        prop_oneof![Just(0.0f32), 0.2f32..2.0],
        any::<u64>(),
        prop::collection::vec(0u32..64, 0..3),
        any::<bool>(),
    );
    prop::collection::vec(one, 1..5).prop_map(|requests| {
        let requests = (1..).zip(requests);
        requests
            .map(
                |(id, (time, prompt, max_tokens, temperature, seed, stop_ids, collect_logits))| {
                    let sampling = Sampling {
                        temperature,
                        seed,
                        ..Sampling::default()
                    };
                    let plain = request(id, prompt, max_tokens);
                    (
                        time,
                        Request {
                            sampling,
                            stop_ids,
                            collect_logits,
                            ..plain
                        },
                    )
                },
            )
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_gets_the_tokens_it_would_get_alone(
        setup in setups(),
        arrivals in requests(),
        cancels in prop::collection::vec((0u64..3000, 1u64..5), 0..3),
        restarts in prop::collection::vec(0u64..2000, 0..2),
    ) {
        let mut line = line(&setup);
        let script = Script {
            arrivals: arrivals.clone(),
            cancels: cancels.iter().map(|(time, id)| (*time, RequestId(*id))).collect(),
            restarts,
        };
        let outcome = line.run(script).unwrap();

        prop_assert_eq!(line.head().blocks_in_use(), 0);
        let tail = line.links().last().and_then(StageRunner::tail).unwrap();
        prop_assert!(tail.tracked() <= arrivals.len());
        for sent in &outcome.sent {
            let rows: usize = sent.sequences.iter().map(|(_, rows)| rows).sum();
            let most = if setup.exact { setup.max_rows.min(8) } else { setup.max_rows };
            prop_assert!(rows <= most);
            prop_assert!(sent.in_flight <= setup.stages as usize + setup.extra_in_flight);
        }
        for (_, request) in arrivals {
            let answer = &outcome.answers[&request.id];
            let reference = &run_alone(&request).answers[&request.id];
            prop_assert_eq!(&answer.refused, &None);
            if answer.reason == Some(FinishReason::Cancelled) {
                prop_assert!(reference.tokens.starts_with(&answer.tokens));
                continue;
            }
            prop_assert_eq!(answer.reason, reference.reason);
            prop_assert_eq!(&answer.tokens, &reference.tokens);
            prop_assert_eq!(&answer.logprobs, &reference.logprobs);
            prop_assert_eq!(&answer.logits, &reference.logits);
            if request.collect_logits {
                let fed = (request.prompt.len() + answer.tokens.len()) as u32;
                // The last token is not fed when the length ends the answer.
                prop_assert!(answer.logits.len() as u32 + 1 >= fed);
                prop_assert!(answer.logits.keys().copied().eq(0..answer.logits.len() as u32));
            }
        }
    }
}

fn busy_script() -> Script {
    let prompt =
        |seed: u32, length: u32| (0..length).map(|index| (index * 7 + seed) % 64).collect();
    Script {
        arrivals: vec![
            (0, request(1, prompt(3, 20), 30)),
            (40, request(2, prompt(11, 45), 20)),
            (90, request(3, prompt(5, 2), 40)),
        ],
        ..Script::default()
    }
}

fn differs(healthy: &Outcome, run: Result<Outcome, LineError>) -> bool {
    run.map_or(true, |outcome| outcome.tokens() != healthy.tokens())
}

#[test]
fn a_mistake_in_any_frame_is_refused_or_changes_tokens() {
    let mut made = BTreeMap::new();
    for stages in 1..=3 {
        for exact in [false, true] {
            let setup = Setup {
                stages,
                blocks: 9,
                exact,
                ..alone()
            };
            let healthy = line(&setup).run(busy_script()).unwrap();
            for mutation in Mutation::ALL {
                for hop in 0..stages as usize {
                    for from_step in [1, 6, 13, 20] {
                        let mut line = line(&setup).with_mutation(mutation, hop, from_step);
                        let run = line.run(busy_script());
                        if run.as_ref().is_ok_and(|outcome| !outcome.mutated) {
                            continue;
                        }
                        *made.entry(mutation).or_insert(0) += 1;
                        // Only the first stage reads tokens; the tail keeps them for later.
                        if mutation == Mutation::TokenOffByOne && hop > 0 {
                            continue;
                        }
                        assert!(
                            differs(&healthy, run),
                            "{mutation:?} on hop {hop} of {stages} from step {from_step}, exact {exact}"
                        );
                    }
                }
            }
        }
    }
    // The head sends no moves yet; dropping one is tested on hand-made frames.
    let kinds: Vec<Mutation> = made.into_keys().collect();
    let expected = Mutation::ALL
        .into_iter()
        .filter(|one| *one != Mutation::MoveDropped);
    assert!(kinds.into_iter().eq(expected));
}

#[test]
fn a_mistake_behind_every_check_changes_tokens() {
    for stages in 1..=3 {
        let setup = Setup {
            stages,
            blocks: 9,
            exact: false,
            ..alone()
        };
        let healthy = line(&setup).run(busy_script()).unwrap();
        for mutation in [
            Mutation::SlotOffByOne,
            Mutation::PositionOffByOne,
            Mutation::BlockOffByOne,
        ] {
            for wrong in 0..stages as usize {
                for steps in [0, 5, 12] {
                    let links = engines(&setup)
                        .into_iter()
                        .enumerate()
                        .map(|(stage, engine)| {
                            let healthy = if stage == wrong { steps } else { usize::MAX };
                            let engine = MutatingEngine::new(engine, mutation, healthy);
                            runner(&setup, stage, engine)
                        });
                    let links = links.collect();
                    let mut line = SimulatedLine::new(head(&setup), links, timing(0));
                    let run = line.run(busy_script());
                    assert!(line.links()[wrong].engine().made());
                    assert!(
                        differs(&healthy, run),
                        "{mutation:?} in stage {wrong} of {stages}"
                    );
                }
            }
        }
    }
}

#[test]
fn three_requests_keep_three_stages_busy() {
    let setup = Setup {
        stages: 3,
        blocks: 20,
        max_rows: 64,
        exact: false,
        ..alone()
    };
    let run = |requests: u64| {
        let links = engines(&setup).into_iter().enumerate();
        let links = links
            .map(|(stage, engine)| runner(&setup, stage, engine))
            .collect();
        let timing = Timing {
            seed: 0,
            service: 10..11,
            delay: 1..2,
        };
        let mut line = SimulatedLine::new(head(&setup), links, timing);
        let arrivals = (0..requests)
            .map(|id| (0, request(id, vec![1, 2], 60)))
            .collect();
        line.run(Script {
            arrivals,
            ..Script::default()
        })
        .unwrap()
    };
    let one = run(1);
    let three = run(3);
    // One sequence leaves two of three stages idle; three of them take hardly longer.
    assert!(three.finished_at < one.finished_at * 12 / 10);
    assert!(three.sent.iter().filter(|sent| sent.in_flight == 3).count() > 100);
}

#[test]
fn a_long_prompt_delays_those_that_decode_by_a_chunk_a_frame() {
    let setup = Setup {
        blocks: 20,
        max_rows: 8,
        exact: false,
        ..alone()
    };
    let timing = Timing {
        seed: 0,
        service: 10..11,
        delay: 1..2,
    };
    let links = engines(&setup)
        .into_iter()
        .map(|engine| runner(&setup, 0, engine))
        .collect();
    let mut line = SimulatedLine::new(head(&setup), links, timing);
    let script = Script {
        arrivals: vec![
            (0, request(1, vec![1, 2], 50)),
            (100, request(2, vec![3; 80], 4)),
        ],
        ..Script::default()
    };
    let outcome = line.run(script).unwrap();
    let times = &outcome.answers[&RequestId(1)].times;
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max();
    // One step and two hops.
    assert_eq!(longest, Some(12));
    assert!(
        outcome
            .sent
            .iter()
            .any(|sent| sent.sequences == [(0, 1), (1, 7)])
    );
}

#[test]
fn logits_stay_where_the_owner_wants_them() {
    let setup = alone();
    let config = StageConfig {
        line: 9,
        blocks: setup.blocks,
        first: true,
        hidden: MODEL.hidden,
        vocab: MODEL.vocab,
        context: CONTEXT,
    };
    let engine = engines(&setup).remove(0);
    let link = StageRunner::new(engine, config, true, false).unwrap();
    let mut line = SimulatedLine::new(head(&setup), vec![link], timing(0));
    let debug = Request {
        collect_logits: true,
        ..request(1, vec![1, 2, 3], 1)
    };
    let refused = line.run(Script {
        arrivals: vec![(0, debug)],
        ..Script::default()
    });
    assert!(matches!(refused, Err(LineError::Stage { stage: 0, .. })));
}

#[test]
fn the_fake_model_is_the_same_however_it_is_cut_and_not_boring() {
    let request = request(1, vec![5, 6, 7], 40);
    let reference = run_alone(&request).tokens();
    let distinct: std::collections::BTreeSet<u32> =
        reference[&RequestId(1)].iter().copied().collect();
    assert!(distinct.len() > 15);
    for stages in 2..=3 {
        for bf16 in [false, true] {
            let mut line = line(&Setup {
                stages,
                bf16,
                ..alone()
            });
            let script = Script {
                arrivals: vec![(0, request.clone())],
                ..Script::default()
            };
            assert_eq!(line.run(script).unwrap().tokens(), reference);
        }
    }
}
