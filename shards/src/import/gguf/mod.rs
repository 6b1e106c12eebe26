//! Reads GGUF files of versions 2 and 3: the metadata, the tensor table, and rows of tensors as f32.
//!
//! The layout is that of the GGUF specification. Nothing is mapped into memory, every length is
//! checked against the file's size before anything is reserved for it, and a damaged file gives an
//! error. What a tensor means is not known here (`import`).

mod dequantise;
mod metadata;
mod tensor;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::Range;

pub use metadata::{Metadata, Value};
pub use tensor::{Tensor, TensorType};

use super::ImportError;

const MAGIC: [u8; 4] = *b"GGUF";
/// Several times the tensors of the deepest model known.
const MAX_TENSORS: u64 = 1 << 16;
/// Files in the wild have a few dozen keys.
const MAX_KEYS: u64 = 1 << 12;
const MAX_KEY_BYTES: u64 = 1 << 12;
/// A chat template is the longest text in practice.
const MAX_TEXT_BYTES: u64 = 4 << 20;
/// Several times the largest vocabulary known.
const MAX_ITEMS: u64 = 4 << 20;
const MAX_DIMENSIONS: u32 = 4;
/// Metadata and tensor table together.
const MAX_HEADER_BYTES: u64 = 512 << 20;
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;

/// An open model file whose header has been read and checked.
#[derive(Debug)]
pub struct Gguf<R> {
    reader: R,
    pub metadata: Metadata,
    /// By name.
    pub tensors: BTreeMap<String, Tensor>,
    scratch: Vec<u8>,
}

impl<R: Read + Seek> Gguf<R> {
    /// Reads the header. On success every tensor lies inside the file and has a readable type.
    pub fn open(mut reader: R) -> Result<Self, ImportError> {
        let length = reader.seek(SeekFrom::End(0)).map_err(ImportError::Read)?;
        reader.rewind().map_err(ImportError::Read)?;
        let mut header = Header {
            reader: BufReader::with_capacity(1 << 16, &mut reader),
            position: 0,
            length,
        };
        let (metadata, tensors) = header.read()?;
        Ok(Self {
            reader,
            metadata,
            tensors,
            scratch: Vec::new(),
        })
    }

    /// Reads rows of a tensor as f32, `[rows, width]`, replacing what `out` held.
    ///
    /// The rows must exist; memory is bounded by what is asked for.
    pub fn read_rows(
        &mut self,
        tensor: &Tensor,
        rows: Range<u64>,
        out: &mut Vec<f32>,
    ) -> Result<(), ImportError> {
        let row_bytes = tensor.row_bytes();
        let bytes = (rows.end - rows.start) * row_bytes;
        self.scratch.resize(bytes as usize, 0);
        self.reader
            .seek(SeekFrom::Start(tensor.offset + rows.start * row_bytes))
            .and_then(|_| self.reader.read_exact(&mut self.scratch))
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    ImportError::Truncated(format!("'{}' is not all there", tensor.name))
                }
                _ => ImportError::Read(error),
            })?;
        out.resize(((rows.end - rows.start) * tensor.width()) as usize, 0.0);
        dequantise::dequantise(tensor.kind, &self.scratch, out);
        if out.iter().all(|value| value.is_finite()) {
            Ok(())
        } else {
            Err(ImportError::NotFinite(tensor.name.clone()))
        }
    }
}

/// The part of the file before the tensors' data.
struct Header<R> {
    reader: R,
    position: u64,
    length: u64,
}

impl<R: Read> Header<R> {
    fn read(&mut self) -> Result<(Metadata, BTreeMap<String, Tensor>), ImportError> {
        if self.length < 4 {
            return Err(ImportError::NotGguf);
        }
        if self.array::<4>()? != MAGIC {
            return Err(ImportError::NotGguf);
        }
        let version = self.u32()?;
        match version {
            2 | 3 => {}
            _ if matches!(version.swap_bytes(), 1..=3) => return Err(ImportError::BigEndian),
            _ => return Err(ImportError::Version(version)),
        }
        let tensors = self.count("tensors", MAX_TENSORS, 24)?;
        let keys = self.count("keys", MAX_KEYS, 13)?;
        let mut metadata = Metadata::default();
        for _ in 0..keys {
            let key = self.text("key", MAX_KEY_BYTES)?;
            let value = self.value()?;
            if metadata.0.insert(key.clone(), value).is_some() {
                return Err(ImportError::Malformed(format!(
                    "the key '{key}' is there twice"
                )));
            }
        }
        let mut table = Vec::with_capacity(tensors as usize);
        for _ in 0..tensors {
            table.push(self.entry()?);
        }
        let tensors = self.place(&metadata, table)?;
        Ok((metadata, tensors))
    }

    /// One line of the tensor table; the offset is still relative to the data.
    fn entry(&mut self) -> Result<Tensor, ImportError> {
        let name = self.text("tensor name", MAX_KEY_BYTES)?;
        let dimensions = self.u32()?;
        if dimensions > MAX_DIMENSIONS {
            return Err(ImportError::Malformed(format!(
                "the tensor '{name}' has {dimensions} dimensions"
            )));
        }
        let shape = (0..dimensions)
            .map(|_| self.u64())
            .collect::<Result<Vec<_>, _>>()?;
        let id = self.u32()?;
        let offset = self.u64()?;
        let kind = TensorType::from_id(id).map_err(|kind| ImportError::TensorType {
            tensor: name.clone(),
            kind,
        })?;
        let (block_values, block_bytes) = kind.block();
        let width = shape.first().copied().unwrap_or(1);
        let size = shape
            .iter()
            .try_fold(1u64, |product, dimension| product.checked_mul(*dimension))
            .filter(|values| *values > 0 && width % block_values as u64 == 0)
            .and_then(|values| (values / block_values as u64).checked_mul(block_bytes as u64));
        let Some(size) = size else {
            return Err(ImportError::Malformed(format!(
                "the tensor '{name}' has the shape {shape:?}, which {} cannot have",
                kind.name()
            )));
        };
        Ok(Tensor {
            name,
            shape,
            kind,
            offset,
            size,
        })
    }

    /// Makes offsets absolute and checks that every tensor lies inside the file.
    fn place(
        &self,
        metadata: &Metadata,
        table: Vec<Tensor>,
    ) -> Result<BTreeMap<String, Tensor>, ImportError> {
        let alignment = metadata
            .unsigned("general.alignment")
            .unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            return Err(ImportError::Malformed(format!(
                "the alignment is {alignment}"
            )));
        }
        let data = self.position.next_multiple_of(alignment);
        let mut placed = BTreeMap::new();
        let mut starts = BTreeSet::new();
        for mut tensor in table {
            if tensor.offset % alignment != 0 || !starts.insert(tensor.offset) {
                return Err(ImportError::Malformed(format!(
                    "the tensor '{}' starts at {}",
                    tensor.name, tensor.offset
                )));
            }
            let end = data
                .checked_add(tensor.offset)
                .and_then(|start| start.checked_add(tensor.size));
            if end.is_none_or(|end| end > self.length) {
                return Err(ImportError::Truncated(format!(
                    "the tensor '{}' lies beyond the end at {} bytes",
                    tensor.name, self.length
                )));
            }
            tensor.offset += data;
            let name = tensor.name.clone();
            if placed.insert(name.clone(), tensor).is_some() {
                return Err(ImportError::Malformed(format!(
                    "the tensor '{name}' is there twice"
                )));
            }
        }
        Ok(placed)
    }

    fn value(&mut self) -> Result<Value, ImportError> {
        let kind = self.u32()?;
        Ok(match kind {
            0 => Value::Unsigned(u64::from(self.array::<1>()?[0])),
            1 => Value::Signed(i64::from(i8::from_le_bytes(self.array()?))),
            2 => Value::Unsigned(u64::from(u16::from_le_bytes(self.array()?))),
            3 => Value::Signed(i64::from(i16::from_le_bytes(self.array()?))),
            4 => Value::Unsigned(u64::from(self.u32()?)),
            5 => Value::Signed(i64::from(i32::from_le_bytes(self.array()?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array()?))),
            7 => Value::Bool(self.bool()?),
            8 => Value::String(self.text("text", MAX_TEXT_BYTES)?),
            9 => self.list()?,
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => {
                return Err(ImportError::Malformed(format!(
                    "a value has the unknown type {other}"
                )));
            }
        })
    }

    fn list(&mut self) -> Result<Value, ImportError> {
        let kind = self.u32()?;
        let smallest = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            other => {
                return Err(ImportError::Malformed(format!(
                    "a list has items of the unsupported type {other}"
                )));
            }
        };
        let count = self.count("items in a list", MAX_ITEMS, smallest)? as usize;
        Ok(match kind {
            6 => Value::Floats(self.items(count, |h| Ok(f32::from_le_bytes(h.array()?)))?),
            12 => Value::Floats(self.items(count, |h| Ok(f64::from_le_bytes(h.array()?) as f32))?),
            7 => Value::Bools(self.items(count, Self::bool)?),
            8 => Value::Strings(self.items(count, |h| h.text("text", MAX_TEXT_BYTES))?),
            0 => Value::Integers(self.items(count, |h| Ok(i64::from(h.array::<1>()?[0])))?),
            1 => Value::Integers(
                self.items(count, |h| Ok(i64::from(i8::from_le_bytes(h.array()?))))?,
            ),
            2 => Value::Integers(
                self.items(count, |h| Ok(i64::from(u16::from_le_bytes(h.array()?))))?,
            ),
            3 => Value::Integers(
                self.items(count, |h| Ok(i64::from(i16::from_le_bytes(h.array()?))))?,
            ),
            4 => Value::Integers(self.items(count, |h| Ok(i64::from(h.u32()?)))?),
            5 => Value::Integers(
                self.items(count, |h| Ok(i64::from(i32::from_le_bytes(h.array()?))))?,
            ),
            _ => Value::Integers(self.items(count, |h| Ok(i64::from_le_bytes(h.array()?)))?),
        })
    }

    fn items<T>(
        &mut self,
        count: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, ImportError>,
    ) -> Result<Vec<T>, ImportError> {
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// A number of things that take at least `smallest` bytes each.
    fn count(&mut self, what: &'static str, limit: u64, smallest: u64) -> Result<u64, ImportError> {
        let count = self.u64()?;
        if count > (self.length - self.position) / smallest {
            return Err(ImportError::Truncated(format!(
                "it announces {count} {what} and has not room for them"
            )));
        }
        if count > limit {
            return Err(ImportError::TooMuch { what, count, limit });
        }
        Ok(count)
    }

    fn text(&mut self, what: &'static str, limit: u64) -> Result<String, ImportError> {
        let length = self.count("bytes in a text", limit, 1)?;
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes)
            .map_err(|_| ImportError::Malformed(format!("a {what} is not UTF-8")))
    }

    fn bool(&mut self) -> Result<bool, ImportError> {
        match self.array::<1>()?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(ImportError::Malformed(format!("a flag is {other}"))),
        }
    }

    fn u32(&mut self) -> Result<u32, ImportError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, ImportError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ImportError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ImportError> {
        if bytes.len() as u64 > self.length - self.position {
            return Err(ImportError::Truncated(format!(
                "the header goes on beyond the end at {} bytes",
                self.length
            )));
        }
        let position = self.position + bytes.len() as u64;
        if position > MAX_HEADER_BYTES {
            return Err(ImportError::TooMuch {
                what: "bytes of metadata",
                count: position,
                limit: MAX_HEADER_BYTES,
            });
        }
        self.reader.read_exact(bytes).map_err(ImportError::Read)?;
        self.position = position;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
