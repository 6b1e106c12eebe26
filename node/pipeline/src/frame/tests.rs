use proptest::prelude::*;

use super::*;
use crate::sample::Sampling;

#[derive(Clone, Debug)]
struct Part {
    sequence: u64,
    first_slot: u32,
    blocks: Vec<u32>,
    moves: Vec<Move>,
    rows: Vec<Row>,
    begin: Option<(Vec<u32>, Sampling)>,
    end: bool,
}

fn part() -> impl Strategy<Value = Part> {
    let row = (any::<u32>(), any::<u32>(), any::<u16>(), 0u8..3).prop_map(
        |(token, position, parent, flags)| Row {
            token,
            position,
            parent,
            flags: [0, Row::SAMPLE, Row::SAMPLE | Row::LOGITS][usize::from(flags)],
        },
    );
    let one_move =
        (any::<u32>(), any::<u32>()).prop_map(|(from_slot, to_slot)| Move { from_slot, to_slot });
    let begin = prop::option::of((
        prop::collection::vec(any::<u32>(), 0..5),
        any::<u64>(),
        any::<u32>(),
        0.0f32..10.0,
        0u32..=MAX_TOP as u32,
    ));
    (
        any::<u64>(),
        any::<u32>(),
        prop::collection::vec(any::<u32>(), 0..6),
        prop::collection::vec(one_move, 0..3),
        prop::collection::vec(row, 1..6),
        begin,
        any::<bool>(),
    )
        .prop_map(|(sequence, first_slot, blocks, moves, rows, begin, end)| {
            let begin = begin.map(|(history, seed, choice, temperature, top)| {
                let sampling = Sampling {
                    seed,
                    choice,
                    temperature,
                    top,
                    ..Sampling::default()
                };
                (history, sampling)
            });
            Part {
                sequence,
                first_slot: begin
                    .as_ref()
                    .map_or(first_slot, |(history, _)| history.len() as u32),
                blocks,
                moves,
                rows,
                begin,
                end,
            }
        })
}

fn frame() -> impl Strategy<Value = StepFrame> {
    (
        any::<[u64; 3]>(),
        0u16..=MAX_FIXED_ROWS,
        prop_oneof![Just(HiddenType::F32), Just(HiddenType::BF16)],
        prop::collection::vec(part(), 1..5),
    )
        .prop_map(|([line, epoch, step], fixed_rows, hidden, parts)| {
            let mut frame = StepFrame {
                line,
                epoch,
                step,
                fixed_rows,
                hidden,
                ..Default::default()
            };
            for part in &parts {
                frame
                    .push(SequenceRows {
                        sequence: part.sequence,
                        first_slot: part.first_slot,
                        blocks: &part.blocks,
                        moves: &part.moves,
                        rows: &part.rows,
                        begin: part
                            .begin
                            .as_ref()
                            .map(|(history, sampling)| SequenceBegin {
                                history,
                                sampling: *sampling,
                            }),
                        end: part.end,
                    })
                    .unwrap();
            }
            frame
        })
}

fn sampled() -> impl Strategy<Value = SampledFrame> {
    let sample = (
        any::<u16>(),
        any::<u32>(),
        any::<u32>(),
        -50f32..0.0,
        prop::collection::vec((any::<u32>(), -50f32..0.0), 0..4),
    );
    let sequence = prop::collection::vec(sample, 1..4);
    (any::<[u64; 3]>(), prop::collection::vec(sequence, 0..4)).prop_map(
        |([line, epoch, step], sequences)| {
            let mut frame = SampledFrame::default();
            (frame.line, frame.epoch, frame.step) = (line, epoch, step);
            for (sequence, samples) in (7u64..).zip(sequences) {
                for (row, position, token, logprob, top) in &samples {
                    let sample = Sample {
                        row: *row,
                        position: *position,
                        token: *token,
                        logprob: *logprob,
                        top,
                    };
                    frame.push(sequence, sample);
                }
            }
            frame
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_step_comes_back_as_it_was_sent(frame in frame(), width in 1usize..9) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let mut back = StepFrame::default();
        prop_assert_eq!(back.decode(&bytes), Ok(bytes.len()..bytes.len()));
        prop_assert_eq!(&back, &frame);
        prop_assert!(back.sequences().eq(frame.sequences()));

        let count = frame.rows().len() * width;
        let states: Vec<f32> = (0..count).map(|index| index as f32 - 3.0).collect();
        bytes.clear();
        frame.encode_with_hidden(&states, width, &mut bytes).unwrap();
        let payload = back.decode(&bytes).unwrap();
        prop_assert_eq!(back.hidden_width(), width);
        let mut read = vec![0.0; count];
        back.hidden.read(&bytes[payload], width, &mut read).unwrap();
        prop_assert_eq!(read, states);
    }

    #[test]
    fn every_truncation_and_every_extension_is_refused(frame in frame(), sampled in sampled()) {
        let mut bytes = Vec::new();
        let states = vec![1.0; frame.rows().len() * 2];
        frame.encode_with_hidden(&states, 2, &mut bytes).unwrap();
        let mut back = StepFrame::default();
        for end in 0..bytes.len() {
            prop_assert!(back.decode(&bytes[..end]).is_err());
            prop_assert_eq!(&back, &StepFrame::default());
        }
        bytes.push(0);
        prop_assert!(back.decode(&bytes).is_err());

        bytes.clear();
        sampled.encode(&mut bytes);
        let mut back = SampledFrame::default();
        for end in 0..bytes.len() {
            prop_assert!(back.decode(&bytes[..end]).is_err());
        }
        prop_assert_eq!(back.decode(&bytes), Ok(()));
        prop_assert_eq!(&back, &sampled);
        bytes.push(0);
        prop_assert!(back.decode(&bytes).is_err());
    }

    #[test]
    fn arbitrary_bytes_neither_panic_nor_reserve_more_than_they_are(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        check_bounded(&bytes);
    }

    #[test]
    fn damaged_frames_neither_panic_nor_reserve_more_than_they_are(
        frame in frame(),
        sampled in sampled(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for which in 0..2 {
            let mut bytes = Vec::new();
            if which == 0 { frame.encode(&mut bytes) } else { sampled.encode(&mut bytes) }
            for (index, value) in &damage {
                let at = index.index(bytes.len());
                bytes[at] = *value;
            }
            check_bounded(&bytes);
        }
    }
}

fn check_bounded(bytes: &[u8]) {
    let mut step = StepFrame::default();
    if let Ok(payload) = step.decode(bytes) {
        // What was accepted is exactly what would be sent.
        let mut again = Vec::new();
        step.encode_tables(step.hidden_width(), &mut again);
        again.extend_from_slice(&bytes[payload]);
        // Bytes that stand for a NaN may lose their payload nowhere: equality is bitwise.
        assert_eq!(again, bytes);
    }
    let reserved = step.rows.capacity() * 12
        + step.blocks.capacity() * 4
        + step.moves.capacity() * 8
        + step.history.capacity() * 4
        + step.sequences.capacity() * 32;
    assert!(reserved <= 2 * bytes.len() + 1024);
    let mut sampled = SampledFrame::default();
    let _ = sampled.decode(bytes);
    let _ = LogitsChunk::default().decode(bytes);
    let _ = decode_fault(bytes);
    for message in Messages::new(bytes) {
        let _ = message;
    }
}

#[test]
fn huge_counts_in_a_short_frame_are_refused_before_anything_is_reserved() {
    for field in (36..60).step_by(4) {
        let mut bytes = vec![0u8; 64];
        bytes[44] = 1;
        bytes[field..field + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut step = StepFrame::default();
        assert!(matches!(
            step.decode(&bytes),
            Err(FrameError::TooMany { .. })
        ));
        assert_eq!(
            step.rows.capacity() + step.blocks.capacity() + step.history.capacity(),
            0
        );
    }
    let mut bytes = vec![0u8; 64];
    bytes[28] = 1;
    bytes[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    bytes[44..48].copy_from_slice(&(MAX_ROWS as u32).to_le_bytes());
    assert!(matches!(
        StepFrame::default().decode(&bytes),
        Err(FrameError::Length { .. })
    ));
}

#[test]
fn a_frame_over_its_limits_cannot_be_built() {
    let mut frame = StepFrame::default();
    let row = Row {
        token: 0,
        position: 0,
        parent: NO_PARENT,
        flags: 0,
    };
    let rows = vec![row; MAX_ROWS];
    let blocks = vec![0; MAX_BLOCKS + 1];
    let part = SequenceRows {
        sequence: 1,
        first_slot: 0,
        blocks: &[],
        moves: &[],
        rows: &rows,
        begin: None,
        end: false,
    };
    frame.push(part).unwrap();
    assert!(
        frame
            .push(SequenceRows {
                rows: &rows[..1],
                ..part
            })
            .is_err()
    );
    let end = SequenceRows {
        rows: &[],
        end: true,
        ..part
    };
    assert!(
        frame
            .push(SequenceRows {
                blocks: &blocks,
                ..end
            })
            .is_err()
    );
    assert!(frame.push(SequenceRows { end: false, ..end }).is_err());
    for _ in 1..MAX_SEQUENCES {
        frame.push(end).unwrap();
    }
    assert!(frame.push(end).is_err());
    assert_eq!(frame.sequences().len(), MAX_SEQUENCES);
    assert_eq!(frame.rows().len(), MAX_ROWS);
}

#[test]
fn the_layout_is_the_documented_one() {
    let mut frame = StepFrame {
        line: 1,
        epoch: 2,
        step: 3,
        fixed_rows: 8,
        hidden: HiddenType::BF16,
        ..StepFrame::default()
    };
    frame
        .push(SequenceRows {
            sequence: 9,
            first_slot: 1,
            blocks: &[5],
            moves: &[Move {
                from_slot: 6,
                to_slot: 7,
            }],
            rows: &[Row {
                token: 10,
                position: 1,
                parent: NO_PARENT,
                flags: Row::SAMPLE,
            }],
            begin: Some(SequenceBegin {
                history: &[11],
                sampling: Sampling {
                    seed: 12,
                    temperature: 1.0,
                    ..Sampling::default()
                },
            }),
            end: true,
        })
        .unwrap();
    let mut bytes = Vec::new();
    frame
        .encode_with_hidden(&[1.0, -2.0], 2, &mut bytes)
        .unwrap();
    #[rustfmt::skip]
    let expected: Vec<u8> = [
        &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0][..],
        &[8, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0],
        &[1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        &[9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0],
        &[12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3F, 0, 0, 0, 0, 0, 0, 0x80, 0x3F],
        &[0, 0, 0, 0, 0, 0, 0x80, 0x3F, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 0],
        &[10, 0, 0, 0, 1, 0, 0, 0, 0xFF, 0xFF, 1, 0],
        &[5, 0, 0, 0],
        &[6, 0, 0, 0, 7, 0, 0, 0],
        &[11, 0, 0, 0],
        &[0x80, 0x3F, 0x00, 0xC0],
    ]
    .concat();
    assert_eq!(bytes, expected);
}

#[test]
fn rounding_to_bf16_is_to_nearest_even() {
    for (value, expected) in [
        (1.0f32, 0x3F80u16),
        (f32::from_bits(0x3F80_8000), 0x3F80),
        (f32::from_bits(0x3F80_8001), 0x3F81),
        (f32::from_bits(0x3F81_8000), 0x3F82),
        (-0.0, 0x8000),
        (103_795.0, 0x47CB),
        (f32::MAX, 0x7F80),
        (f32::INFINITY, 0x7F80),
    ] {
        assert_eq!(bf16_from_f32(value), expected, "{value}");
    }
    assert!(f32_from_bf16(bf16_from_f32(f32::NAN)).is_nan());
    for bits in 0..=u16::MAX {
        let value = f32_from_bf16(bits);
        assert!(value.is_nan() || bf16_from_f32(value) == bits);
    }
}

#[test]
fn states_that_are_not_finite_are_refused_on_both_sides() {
    let mut frame = StepFrame {
        hidden: HiddenType::F32,
        ..StepFrame::default()
    };
    let row = Row {
        token: 0,
        position: 0,
        parent: NO_PARENT,
        flags: 0,
    };
    let part = SequenceRows {
        sequence: 1,
        first_slot: 0,
        blocks: &[0],
        moves: &[],
        rows: &[row, row],
        begin: None,
        end: false,
    };
    frame.push(part).unwrap();
    for hidden in [HiddenType::F32, HiddenType::BF16] {
        frame.hidden = hidden;
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut out = vec![1, 2];
            let states = [0.0, 1.0, 2.0, bad];
            let refused = frame.encode_with_hidden(&states, 2, &mut out);
            assert_eq!(refused, Err(FrameError::NotFinite { row: 1 }));
            assert_eq!(out, [1, 2]);
        }
    }
    // Finite in f32, infinite once rounded.
    let refused = frame.encode_with_hidden(&[f32::MAX, 0.0, 0.0, 0.0], 2, &mut Vec::new());
    assert_eq!(refused, Err(FrameError::NotFinite { row: 0 }));
    let payload = [0x00, 0x00, 0x80, 0x7F];
    let refused = HiddenType::BF16.read(&payload, 1, &mut [0.0; 2]);
    assert_eq!(refused, Err(FrameError::NotFinite { row: 1 }));
}

#[test]
fn messages_carry_their_length_and_kind() {
    let mut out = Vec::new();
    let start = begin_message(&mut out, MessageKind::Fault);
    encode_fault("stage lost", &mut out);
    end_message(&mut out, start).unwrap();
    let start = begin_message(&mut out, MessageKind::Loaded);
    end_message(&mut out, start).unwrap();
    assert_eq!(&out[..5], &[11, 0, 0, 0, 4]);
    let header = MessageHeader::decode([11, 0, 0, 0, 4]).unwrap();
    assert_eq!(
        header,
        MessageHeader {
            kind: MessageKind::Fault,
            payload: 10
        }
    );
    assert_eq!(header.encode(), Ok([11, 0, 0, 0, 4]));
    let messages: Vec<_> = Messages::new(&out)
        .map(|message| message.unwrap())
        .collect();
    assert_eq!(messages.len(), 2);
    assert_eq!(decode_fault(messages[0].1), "stage lost");
    assert_eq!(messages[1].0, MessageKind::Loaded);
    assert!(MessageHeader::decode([0, 0, 0, 0, 4]).is_err());
    assert!(MessageHeader::decode([1, 0, 0, 0, 99]).is_err());
    assert!(MessageHeader::decode([0xFF, 0xFF, 0xFF, 0xFF, 1]).is_err());
    assert!(Messages::new(&out[..out.len() - 1]).any(|message| message.is_err()));
}

#[test]
fn a_long_fault_is_cut_at_a_character() {
    let mut out = Vec::new();
    encode_fault(&"é".repeat(MAX_FAULT), &mut out);
    assert_eq!(out.len(), MAX_FAULT);
    out.clear();
    encode_fault(&format!("a{}", "é".repeat(MAX_FAULT)), &mut out);
    assert_eq!(out.len(), MAX_FAULT - 1);
    assert!(String::from_utf8(out).is_ok());
}

#[test]
fn a_logits_chunk_comes_back_and_stays_inside_the_vocabulary() {
    let chunk = LogitsChunk {
        line: 1,
        epoch: 2,
        step: 3,
        sequence: 4,
        row: 5,
        position: 6,
        vocab: 10,
        offset: 8,
        values: vec![1.5, f32::MIN],
    };
    let mut bytes = Vec::new();
    chunk.encode(&mut bytes);
    let mut back = LogitsChunk::default();
    back.decode(&bytes).unwrap();
    assert_eq!(back, chunk);
    for end in 0..bytes.len() {
        assert!(back.decode(&bytes[..end]).is_err());
    }
    bytes[44] = 9;
    assert!(back.decode(&bytes).is_err());
}
