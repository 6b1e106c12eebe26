//! Writes GGUF files, right ones and, for tests of refusals, wrong ones.

use half::f16;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
}

/// A GGUF file in the making.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufFile {
    keys: Vec<(String, Key)>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    name: String,
    shape: Vec<u64>,
    kind: u32,
    bytes: Vec<u8>,
}

const ALIGNMENT: usize = 32;

impl GgufFile {
    /// Adds a key, or changes one.
    pub fn set(&mut self, key: &str, value: Key) {
        self.remove(key);
        self.keys.push((key.to_owned(), value));
    }

    pub fn remove(&mut self, key: &str) {
        self.keys.retain(|(other, _)| other != key);
    }

    pub fn add_f32(&mut self, name: &str, shape: &[u64], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.add(name, shape, 0, bytes.collect());
    }

    /// A matrix of rows of `width` values.
    pub fn add_f16(&mut self, name: &str, width: usize, values: &[f32]) {
        let bytes = values
            .iter()
            .flat_map(|value| f16::from_f32(*value).to_le_bytes());
        let shape = [width as u64, (values.len() / width) as u64];
        self.add(name, &shape, 1, bytes.collect());
    }

    /// Adds a tensor, or changes one; `kind` is the type's number in the file format, and `shape`
    /// has the innermost dimension first.
    pub fn add(&mut self, name: &str, shape: &[u64], kind: u32, bytes: Vec<u8>) {
        self.remove_tensor(name);
        self.tensors.push(Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            kind,
            bytes,
        });
    }

    pub fn remove_tensor(&mut self, name: &str) {
        self.tensors.retain(|tensor| tensor.name != name);
    }

    /// The bytes of a tensor as they will be in the file.
    pub fn tensor(&self, name: &str) -> Option<&[u8]> {
        let mut tensors = self.tensors.iter();
        let found = tensors.find(|tensor| tensor.name == name)?;
        Some(&found.bytes)
    }

    /// The file, version 3.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            text(&mut out, key);
            value_of(&mut out, value);
        }
        let mut offset = 0usize;
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for dimension in &tensor.shape {
                out.extend(dimension.to_le_bytes());
            }
            out.extend(tensor.kind.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + tensor.bytes.len()).next_multiple_of(ALIGNMENT);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&tensor.bytes);
        }
        out
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn value_of(out: &mut Vec<u8>, value: &Key) {
    let list = |out: &mut Vec<u8>, kind: u32, count: usize| {
        out.extend(9u32.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
    };
    match value {
        Key::U32(value) => {
            out.extend(4u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        Key::F32(value) => {
            out.extend(6u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        Key::Bool(value) => {
            out.extend(7u32.to_le_bytes());
            out.push(u8::from(*value));
        }
        Key::Text(value) => {
            out.extend(8u32.to_le_bytes());
            text(out, value);
        }
        Key::Texts(values) => {
            list(out, 8, values.len());
            values.iter().for_each(|value| text(out, value));
        }
        Key::I32s(values) => {
            list(out, 5, values.len());
            values
                .iter()
                .for_each(|value| out.extend(value.to_le_bytes()));
        }
    }
}
