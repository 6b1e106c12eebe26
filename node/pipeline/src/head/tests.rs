use super::*;
use crate::{frame::Sample, sample::Sampling};

fn config() -> HeadConfig {
    HeadConfig {
        line: 1,
        epoch: 1,
        stages: 1,
        blocks: 8,
        context: 200,
        max_rows: 16,
        fixed_rows: None,
        max_in_flight: 1,
        hidden: HiddenType::None,
    }
}

fn head() -> Head {
    Head::new(config()).unwrap()
}

fn request(id: u64, prompt: u32, max_tokens: usize) -> Request {
    Request {
        id: RequestId(id),
        prompt: (0..prompt).collect(),
        sampling: Sampling::default(),
        max_tokens,
        stop_ids: vec![99],
        collect_logits: false,
    }
}

/// What a tail would answer to the frame: `token` for every sampled row.
fn answer(frame: &StepFrame, token: u32) -> SampledFrame {
    let mut answer = SampledFrame::default();
    (answer.line, answer.epoch, answer.step) = (frame.line, frame.epoch, frame.step);
    for part in frame.sequences() {
        for (row, index) in part.rows.iter().zip(0..) {
            if row.is_sampled() {
                let sample = Sample {
                    row: index,
                    position: row.position,
                    token,
                    logprob: -1.0,
                    top: &[],
                };
                answer.push(part.sequence, sample);
            }
        }
    }
    answer
}

/// Runs one frame; `None` when there is none.
fn step(head: &mut Head, token: u32) -> Option<StepFrame> {
    let frame = head.next_frame()?.clone();
    head.on_sampled(&answer(&frame, token)).unwrap();
    Some(frame)
}

fn events(head: &mut Head) -> Vec<HeadEvent> {
    std::iter::from_fn(|| head.poll_event()).collect()
}

fn finished(id: u64, reason: FinishReason) -> HeadEvent {
    HeadEvent::Finished {
        request: RequestId(id),
        reason,
    }
}

fn sizes(frame: &StepFrame) -> Vec<(u64, usize)> {
    frame
        .sequences()
        .map(|part| (part.sequence, part.rows.len()))
        .collect()
}

#[test]
fn an_answer_ends_at_its_length_and_gives_everything_back() {
    let mut head = head();
    head.submit(request(1, 20, 3)).unwrap();
    let frames: Vec<_> =
        std::iter::from_fn(|| step(&mut head, 7).map(|frame| sizes(&frame))).collect();
    assert_eq!(frames, [[(0, 16)], [(0, 4)], [(0, 1)], [(0, 1)]]);
    let tokens = |index| HeadEvent::Token {
        request: RequestId(1),
        index,
        token: 7,
        logprob: -1.0,
        top: vec![],
    };
    let expected = [
        tokens(0),
        tokens(1),
        tokens(2),
        finished(1, FinishReason::Length),
    ];
    assert_eq!(events(&mut head), expected);
    assert!(head.is_idle());
    assert_eq!(head.blocks_in_use(), 0);
}

#[test]
fn a_stop_token_ends_an_answer_and_is_not_part_of_it() {
    let mut head = head();
    head.submit(request(1, 3, 10)).unwrap();
    step(&mut head, 99);
    assert_eq!(events(&mut head), [finished(1, FinishReason::Stop)]);
    assert!(head.is_idle());
}

#[test]
fn the_context_ends_an_answer_as_length() {
    let mut head = head();
    head.submit(request(1, 198, usize::MAX)).unwrap();
    while step(&mut head, 7).is_some() {}
    let events = events(&mut head);
    assert_eq!(events.len(), 3);
    assert_eq!(events[2], finished(1, FinishReason::Length));
}

#[test]
fn what_can_never_be_served_is_refused_with_numbers() {
    let mut head = head();
    assert_eq!(head.submit(request(1, 0, 5)), Err(SubmitError::EmptyPrompt));
    let long = SubmitError::PromptTooLong {
        prompt: 200,
        context: 200,
    };
    assert_eq!(
        long.to_string(),
        "prompt of 200 tokens leaves no room in a context of 200"
    );
    assert_eq!(head.submit(request(1, 200, 5)), Err(long));
    let mut small = Head::new(HeadConfig {
        blocks: 2,
        ..config()
    })
    .unwrap();
    let never = SubmitError::NeverFits {
        needed: 66,
        available: 64,
    };
    assert_eq!(small.submit(request(1, 60, 7)), Err(never));
    assert_eq!(small.submit(request(1, 60, 5)), Ok(()));
    assert_eq!(
        small.submit(request(1, 60, 5)),
        Err(SubmitError::Duplicate(RequestId(1)))
    );
    let mut sampled = request(2, 5, 5);
    sampled.sampling.top_k = 5;
    assert!(matches!(
        small.submit(sampled),
        Err(SubmitError::Sampling(_))
    ));
    for id in 0..MAX_QUEUE as u64 - 1 {
        small.submit(request(100 + id, 1, 1)).unwrap();
    }
    let full = SubmitError::QueueFull { waiting: MAX_QUEUE };
    assert_eq!(small.submit(request(9999, 1, 1)), Err(full));
}

#[test]
fn no_tokens_asked_for_is_an_answer_of_no_tokens() {
    let mut head = head();
    head.submit(request(1, 5, 0)).unwrap();
    assert_eq!(events(&mut head), [finished(1, FinishReason::Length)]);
    assert!(head.is_idle() && head.next_frame().is_none());
}

#[test]
fn decoding_rows_come_first_and_prompts_share_what_is_left() {
    let mut head = head();
    head.submit(request(1, 2, 10)).unwrap();
    step(&mut head, 7);
    head.submit(request(2, 20, 10)).unwrap();
    head.submit(request(3, 3, 10)).unwrap();
    assert_eq!(sizes(&step(&mut head, 7).unwrap()), [(0, 1), (1, 15)]);
    assert_eq!(
        sizes(&step(&mut head, 7).unwrap()),
        [(0, 1), (1, 5), (2, 3)]
    );
    assert_eq!(
        sizes(&step(&mut head, 7).unwrap()),
        [(0, 1), (1, 1), (2, 1)]
    );
}

#[test]
fn more_decoders_than_rows_take_turns() {
    let mut head = Head::new(HeadConfig {
        max_rows: 2,
        ..config()
    })
    .unwrap();
    for id in 0..3 {
        head.submit(request(id, 1, 20)).unwrap();
    }
    while head.active.values().any(Sequence::prefills) || head.waiting() > 0 {
        step(&mut head, 7);
    }
    let mut steps = [0; 3];
    for _ in 0..15 {
        for (sequence, _) in sizes(&step(&mut head, 7).unwrap()) {
            steps[sequence as usize] += 1;
        }
    }
    assert_eq!(steps, [10, 10, 10]);
}

#[test]
fn decoders_that_fill_every_frame_do_not_keep_a_prompt_out() {
    for (max_rows, fixed_rows) in [(1, None), (2, None), (8, None), (2, Some(8)), (8, Some(8))] {
        let mut head = Head::new(HeadConfig {
            max_rows,
            fixed_rows,
            ..config()
        })
        .unwrap();
        for id in 0..6 {
            head.submit(request(id, 1, 30)).unwrap();
        }
        step(&mut head, 7);
        head.submit(request(9, 5, 1)).unwrap();
        let mut steps = 0;
        while !events(&mut head).contains(&finished(9, FinishReason::Length)) {
            step(&mut head, 7);
            steps += 1;
        }
        assert!(steps < 30, "{steps} steps at {max_rows} rows");
    }
}

#[test]
fn admission_is_in_order_and_reserves_the_worst_case() {
    let mut head = head();
    // Eight blocks: 5, then 4 that do not fit beside it, then 1 that would.
    head.submit(request(1, 100, 50)).unwrap();
    head.submit(request(2, 100, 20)).unwrap();
    head.submit(request(3, 5, 5)).unwrap();
    step(&mut head, 7);
    assert_eq!((head.running(), head.waiting()), (1, 2));
    head.cancel(RequestId(2));
    step(&mut head, 7);
    assert_eq!((head.running(), head.waiting()), (2, 0));
    assert_eq!(events(&mut head), [finished(2, FinishReason::Cancelled)]);
}

#[test]
fn a_cancelled_sequence_keeps_its_blocks_until_its_frames_are_back() {
    let mut head = Head::new(HeadConfig {
        max_in_flight: 3,
        ..config()
    })
    .unwrap();
    head.submit(request(1, 40, 5)).unwrap();
    let first = head.next_frame().unwrap().clone();
    let second = head.next_frame().unwrap().clone();
    head.cancel(RequestId(1));
    head.cancel(RequestId(1));
    head.cancel(RequestId(77));
    assert_eq!(events(&mut head), [finished(1, FinishReason::Cancelled)]);
    assert!(head.next_frame().is_none());
    assert_eq!(head.blocks_in_use(), 1);
    head.on_sampled(&answer(&first, 7)).unwrap();
    assert_eq!(head.blocks_in_use(), 1);
    assert!(!head.is_idle());
    head.on_sampled(&answer(&second, 7)).unwrap();
    assert_eq!(head.blocks_in_use(), 0);
    assert!(head.is_idle());
    // The name is free again, and the tail is told with the next frame.
    head.submit(request(1, 2, 1)).unwrap();
    let frame = step(&mut head, 7).unwrap();
    let ends: Vec<u64> = frame
        .sequences()
        .filter(|part| part.end)
        .map(|part| part.sequence)
        .collect();
    assert_eq!(ends, [0]);
}

#[test]
fn chunks_of_one_prompt_travel_together_and_decoding_waits_for_its_token() {
    let mut head = Head::new(HeadConfig {
        stages: 3,
        max_in_flight: 3,
        ..config()
    })
    .unwrap();
    head.submit(request(1, 40, 5)).unwrap();
    let frames: Vec<_> = std::iter::from_fn(|| head.next_frame().cloned()).collect();
    assert_eq!(
        frames.iter().map(sizes).collect::<Vec<_>>(),
        [[(0, 16)], [(0, 16)], [(0, 8)]]
    );
    for frame in &frames {
        head.on_sampled(&answer(frame, 7)).unwrap();
    }
    assert!(head.next_frame().is_some());
    assert!(head.next_frame().is_none());
}

#[test]
fn decoders_are_spread_over_the_stages() {
    let mut head = Head::new(HeadConfig {
        stages: 3,
        max_in_flight: 3,
        ..config()
    })
    .unwrap();
    for id in 0..6 {
        head.submit(request(id, 2, 10)).unwrap();
    }
    let prefill = head.next_frame().unwrap().clone();
    assert_eq!(sizes(&prefill).len(), 6);
    head.on_sampled(&answer(&prefill, 7)).unwrap();
    let frames: Vec<_> = std::iter::from_fn(|| head.next_frame().map(sizes)).collect();
    assert_eq!(
        frames,
        [[(0, 1), (1, 1)], [(2, 1), (3, 1)], [(4, 1), (5, 1)]]
    );
}

#[test]
fn exact_frames_have_two_rows_a_sequence_and_never_more_than_fixed() {
    let exact = HeadConfig {
        fixed_rows: Some(8),
        ..config()
    };
    let mut head = Head::new(exact).unwrap();
    head.submit(request(1, 9, 3)).unwrap();
    head.submit(request(2, 1, 3)).unwrap();
    let rows = |frame: &StepFrame, index: usize| {
        let part = frame.sequences().nth(index).unwrap();
        let sampled: Vec<usize> = (0..part.rows.len())
            .filter(|row| part.rows[*row].is_sampled())
            .collect();
        (part.first_slot, part.rows.len(), sampled)
    };
    let chunk = step(&mut head, 7).unwrap();
    assert_eq!(sizes(&chunk), [(0, 8)]);
    // One token is left of the prompt: the one before is fed again. The lone token gets a dummy.
    let rest = step(&mut head, 7).unwrap();
    assert_eq!(sizes(&rest), [(0, 2), (1, 2)]);
    assert_eq!(rows(&rest, 0), (7, 2, vec![1]));
    assert_eq!(rows(&rest, 1), (0, 2, vec![0]));
    // Decoding feeds the last token again, which puts the real token over the dummy.
    let decode = step(&mut head, 7).unwrap();
    assert_eq!(rows(&decode, 0), (8, 2, vec![1]));
    assert_eq!(rows(&decode, 1), (0, 2, vec![1]));
    let second = decode.sequences().nth(1).unwrap();
    assert_eq!((second.rows[0].token, second.rows[1].token), (0, 7));
}

#[test]
fn logits_of_every_position_are_asked_for_once() {
    let mut head = Head::new(HeadConfig {
        fixed_rows: Some(8),
        ..config()
    })
    .unwrap();
    head.submit(Request {
        collect_logits: true,
        ..request(1, 17, 0)
    })
    .unwrap();
    let mut positions = Vec::new();
    while let Some(frame) = step(&mut head, 99) {
        let asked = frame.rows().iter().filter(|row| row.wants_logits());
        positions.extend(asked.map(|row| row.position));
    }
    assert!(positions.iter().copied().eq(0..17));
    assert_eq!(events(&mut head), [finished(1, FinishReason::Length)]);
}

#[test]
fn logits_reach_only_the_request_that_asked() {
    let mut head = head();
    head.submit(Request {
        collect_logits: true,
        ..request(1, 2, 1)
    })
    .unwrap();
    head.submit(request(2, 2, 1)).unwrap();
    let frame = head.next_frame().unwrap().clone();
    let mut chunk = LogitsChunk {
        line: 1,
        epoch: 1,
        vocab: 3,
        values: vec![1.0; 3],
        ..LogitsChunk::default()
    };
    for sequence in [0, 1, 55] {
        chunk.sequence = sequence;
        head.on_logits(&chunk).unwrap();
    }
    chunk.epoch = 0;
    assert!(matches!(
        head.on_logits(&chunk),
        Err(ProtocolError::Stale { .. })
    ));
    head.on_sampled(&answer(&frame, 7)).unwrap();
    let logits = |event: &HeadEvent| {
        matches!(
            event,
            HeadEvent::Logits {
                request: RequestId(1),
                ..
            }
        )
    };
    assert_eq!(
        events(&mut head)
            .iter()
            .filter(|event| logits(event))
            .count(),
        1
    );
}

#[test]
fn answers_that_fit_no_question_change_nothing() {
    let mut head = Head::new(HeadConfig {
        max_in_flight: 2,
        ..config()
    })
    .unwrap();
    head.submit(request(1, 20, 2)).unwrap();
    let first = head.next_frame().unwrap().clone();
    let second = head.next_frame().unwrap().clone();
    let good = answer(&first, 7);
    for spoil in [
        |answer: &mut SampledFrame| answer.line = 2,
        |answer: &mut SampledFrame| answer.epoch = 0,
    ] {
        let mut bad = good.clone();
        spoil(&mut bad);
        assert!(matches!(
            head.on_sampled(&bad),
            Err(ProtocolError::Stale { .. })
        ));
    }
    let early = head.on_sampled(&answer(&second, 7));
    assert_eq!(
        early,
        Err(ProtocolError::Step {
            got: 1,
            due: Some(0)
        })
    );
    let mut extra = good.clone();
    extra.push(
        0,
        Sample {
            row: 0,
            position: 0,
            token: 1,
            logprob: 0.0,
            top: &[],
        },
    );
    assert_eq!(
        head.on_sampled(&extra),
        Err(ProtocolError::Samples { step: 0 })
    );
    head.on_sampled(&good).unwrap();
    assert!(matches!(
        head.on_sampled(&good),
        Err(ProtocolError::Step { .. })
    ));
    let mut missing = SampledFrame::default();
    (missing.line, missing.epoch, missing.step) = (1, 1, 1);
    assert_eq!(
        head.on_sampled(&missing),
        Err(ProtocolError::Samples { step: 1 })
    );
    head.on_sampled(&answer(&second, 7)).unwrap();
    assert_eq!(events(&mut head).len(), 1);
}

#[test]
fn a_failed_line_ends_every_request_once() {
    let mut head = head();
    head.submit(request(1, 100, 50)).unwrap();
    head.submit(request(2, 100, 50)).unwrap();
    head.next_frame();
    head.fail();
    let mut ends = events(&mut head);
    ends.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(
        ends,
        [
            finished(1, FinishReason::Error),
            finished(2, FinishReason::Error)
        ]
    );
    assert!(head.is_idle());
    assert_eq!(head.blocks_in_use(), 0);
}

#[test]
fn configurations_that_cannot_run_are_refused() {
    for (what, bad) in [
        (
            "stages",
            HeadConfig {
                stages: 0,
                ..config()
            },
        ),
        (
            "blocks",
            HeadConfig {
                blocks: 1 << 20,
                ..config()
            },
        ),
        (
            "context",
            HeadConfig {
                context: 0,
                ..config()
            },
        ),
        (
            "max_rows",
            HeadConfig {
                max_rows: 1,
                fixed_rows: Some(8),
                ..config()
            },
        ),
        (
            "max_rows",
            HeadConfig {
                max_rows: 5000,
                ..config()
            },
        ),
        (
            "fixed_rows",
            HeadConfig {
                fixed_rows: Some(1),
                ..config()
            },
        ),
        (
            "fixed_rows",
            HeadConfig {
                fixed_rows: Some(33),
                ..config()
            },
        ),
        (
            "max_in_flight",
            HeadConfig {
                max_in_flight: 0,
                ..config()
            },
        ),
    ] {
        assert_eq!(Head::new(bad).err().map(|error| error.what), Some(what));
    }
}
