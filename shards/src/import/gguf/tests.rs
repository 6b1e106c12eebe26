use std::io::Cursor;

use proptest::prelude::*;

use super::dequantise::dequantise;
use super::*;

/// A header with one F32 tensor `x` of shape [2, 3] and the keys that are given as encoded pairs.
fn file(keys: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(MAGIC);
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    bytes.extend(keys.concat());
    bytes.extend(text("x"));
    bytes.extend(2u32.to_le_bytes());
    bytes.extend(2u64.to_le_bytes());
    bytes.extend(3u64.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    for value in 0..6 {
        bytes.extend((value as f32).to_le_bytes());
    }
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name)[..], &kind.to_le_bytes(), value].concat()
}

fn open(bytes: &[u8]) -> Result<Gguf<Cursor<Vec<u8>>>, ImportError> {
    Gguf::open(Cursor::new(bytes.to_vec()))
}

#[test]
fn every_tensor_type_equals_the_reference_to_the_last_bit() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/dequantise");
    for kind in TensorType::ALL {
        let path = format!("{folder}/{}", kind.name().to_lowercase());
        let blocks = std::fs::read(format!("{path}.blocks")).unwrap();
        let expected: Vec<u32> = std::fs::read(format!("{path}.f32"))
            .unwrap()
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let mut values = vec![0.0; expected.len()];
        dequantise(kind, &blocks, &mut values);
        for (index, (value, expected)) in values.iter().zip(&expected).enumerate() {
            assert!(
                value.to_bits() == *expected || (*value == 0.0 && *expected << 1 == 0),
                "{} value {index}: {value} is not {}",
                kind.name(),
                f32::from_bits(*expected)
            );
        }
    }
}

#[test]
fn metadata_and_rows_are_read() {
    let list = [
        &8u32.to_le_bytes()[..],
        &2u64.to_le_bytes(),
        &text("a"),
        &text("b"),
    ]
    .concat();
    let bytes = file(&[
        key("n", 4, &7u32.to_le_bytes()),
        key("s", 8, &text("hello")),
        key("l", 9, &list),
        key("b", 7, &[1]),
    ]);
    let mut gguf = open(&bytes).unwrap();
    assert_eq!(gguf.metadata.u32("n"), Some(7));
    assert_eq!(gguf.metadata.string("s"), Some("hello"));
    assert_eq!(gguf.metadata.strings("l").unwrap(), ["a", "b"]);
    assert_eq!(gguf.metadata.bool("b"), Some(true));
    let tensor = gguf.tensors["x"].clone();
    let mut rows = Vec::new();
    gguf.read_rows(&tensor, 1..3, &mut rows).unwrap();
    assert_eq!(rows, [2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn what_is_not_gguf_is_said_so() {
    assert!(matches!(open(b""), Err(ImportError::NotGguf)));
    assert!(matches!(
        open(b"PK\x03\x04 and more"),
        Err(ImportError::NotGguf)
    ));
    let mut bytes = file(&[]);
    bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
    assert!(matches!(open(&bytes), Err(ImportError::Version(1))));
    bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert!(matches!(open(&bytes), Err(ImportError::BigEndian)));
}

#[test]
fn an_unreadable_tensor_type_is_refused_by_its_name() {
    let mut bytes = file(&[]);
    let at = bytes.len() - 24 - 32 + 1 + 8;
    let position = (0..bytes.len() - 4)
        .rev()
        .find(|at| bytes[*at..].starts_with(&3u64.to_le_bytes()))
        .unwrap_or(at)
        + 8;
    bytes[position] = 23;
    let Err(ImportError::TensorType { tensor, kind }) = open(&bytes) else {
        panic!("an IQ4_XS tensor was accepted");
    };
    assert_eq!((tensor.as_str(), kind.as_str()), ("x", "IQ4_XS"));
}

#[test]
fn a_file_that_ends_early_is_refused_wherever_it_ends() {
    let bytes = file(&[key("s", 8, &text("hello"))]);
    for length in 0..bytes.len() {
        assert!(
            open(&bytes[..length]).is_err(),
            "{length} bytes were accepted"
        );
    }
    assert!(open(&bytes).is_ok());
}

#[test]
fn impossible_lengths_reserve_nothing() {
    for huge in [u64::MAX, 1 << 62, 1 << 40] {
        let list = [&4u32.to_le_bytes()[..], &huge.to_le_bytes()].concat();
        assert!(open(&file(&[key("l", 9, &list)])).is_err());
        assert!(open(&file(&[key("s", 8, &huge.to_le_bytes())])).is_err());
        let mut bytes = file(&[]);
        bytes[8..16].copy_from_slice(&huge.to_le_bytes());
        assert!(open(&bytes).is_err());
    }
}

proptest! {
    #[test]
    fn a_changed_byte_never_panics(position in 0usize..160, value in any::<u8>()) {
        let mut bytes = file(&[key("s", 8, &text("hello")), key("n", 5, &[1, 2, 3, 4])]);
        let position = position % bytes.len();
        bytes[position] = value;
        if let Ok(mut gguf) = open(&bytes) {
            let tensors: Vec<_> = gguf.tensors.values().cloned().collect();
            for tensor in tensors {
                let rows = tensor.values() / tensor.width();
                let _ = gguf.read_rows(&tensor, 0..rows, &mut Vec::new());
            }
        }
    }

    #[test]
    fn garbage_after_the_magic_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = open(&[&MAGIC[..], &3u32.to_le_bytes(), &bytes].concat());
    }
}
