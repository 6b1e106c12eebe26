//! Reads, requantises and writes, a run of rows at a time.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use super::gguf::{Gguf, Tensor};
use super::layout::{CONSTANT_ALIGNMENT, Item, ItemSource, Plan, RowOrder};
use super::{ImportError, Progress};
use crate::hash::Hash;
use crate::manifest::{Segment, SegmentKind};
use crate::quant::{self, Packed, Storage};
use crate::store::{Import, SegmentWriter};

/// Values of a tensor that are in memory at a time, at least one head's rows.
const RUN_VALUES: u64 = 4 << 20;
const HASH_BYTES: usize = 1 << 20;

/// Tells the caller how far we are, and whether to stop.
pub struct Meter<'a> {
    progress: Progress,
    report: &'a mut dyn FnMut(Progress) -> bool,
}

impl<'a> Meter<'a> {
    pub fn new(total: u64, report: &'a mut dyn FnMut(Progress) -> bool) -> Self {
        Self {
            progress: Progress { done: 0, total },
            report,
        }
    }

    fn advance(&mut self, bytes: u64) -> Result<(), ImportError> {
        self.progress.done += bytes;
        match (self.report)(self.progress) {
            true => Ok(()),
            false => Err(ImportError::Cancelled),
        }
    }
}

pub fn source_bytes(path: &Path) -> Result<u64, ImportError> {
    let metadata = std::fs::metadata(path).map_err(ImportError::Read)?;
    Ok(metadata.len())
}

pub fn hash_file(path: &Path, meter: &mut Meter<'_>) -> Result<Hash, ImportError> {
    let mut file = File::open(path).map_err(ImportError::Read)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; HASH_BYTES];
    loop {
        let read = file.read(&mut buffer).map_err(ImportError::Read)?;
        if read == 0 {
            return Ok(hasher.finalize().into());
        }
        hasher.update(&buffer[..read]);
        meter.advance(read as u64)?;
    }
}

/// Writes every segment of the plan; their entries for the manifest.
pub fn write_segments<R: Read + Seek>(
    gguf: &mut Gguf<R>,
    plan: &Plan,
    import: &mut Import,
    meter: &mut Meter<'_>,
) -> Result<Vec<Segment>, ImportError> {
    let mut segments = Vec::with_capacity(plan.segments.len());
    for segment in &plan.segments {
        let mut writer = import.segment()?;
        debug_assert_eq!(writer.offset(), segment.offset);
        for item in &segment.items {
            writer.align(CONSTANT_ALIGNMENT)?;
            debug_assert_eq!(writer.position(), segment.offset + item.offset);
            write_item(gguf, item, &mut writer, meter)?;
        }
        let written = writer.finish()?;
        debug_assert_eq!(written.size, segment.size);
        segments.push(Segment {
            name: match segment.kind {
                SegmentKind::Common => "common".to_owned(),
                SegmentKind::Embedding => "embedding".to_owned(),
                SegmentKind::Layer(layer) => format!("layer.{layer}"),
                SegmentKind::Head => "head".to_owned(),
            },
            kind: segment.kind,
            offset: written.offset,
            size: written.size,
            hash: written.hash,
        });
    }
    Ok(segments)
}

fn write_item<R: Read + Seek>(
    gguf: &mut Gguf<R>,
    item: &Item,
    writer: &mut SegmentWriter<'_>,
    meter: &mut Meter<'_>,
) -> Result<(), ImportError> {
    let (tensor, rows, width, storage, order) = match &item.source {
        ItemSource::Literal(bytes) => return Ok(writer.append(bytes)?),
        ItemSource::Tensor {
            tensor,
            rows,
            width,
            storage,
            order,
        } => (tensor, *rows, *width, *storage, *order),
    };
    let mut values = Vec::new();
    let mut reordered = Vec::new();
    // Scales and zero points come after all data, and are small.
    let mut rest = Packed::default();
    let run = run_rows(width, order);
    let mut row = 0;
    while row < rows {
        let end = (row + run).min(rows);
        read(gguf, tensor, width, row..end, &mut values)?;
        let packed = match order {
            RowOrder::AsStored => pack(tensor, storage, width, &values)?,
            RowOrder::Deinterleave { head } => {
                deinterleave(&values, head as usize, width as usize, &mut reordered);
                pack(tensor, storage, width, &reordered)?
            }
        };
        writer.append(&packed.data)?;
        rest.scales.extend(packed.scales);
        rest.zero_points.extend(packed.zero_points);
        meter.advance(tensor.size * (end - row) / rows)?;
        row = end;
    }
    for part in [rest.scales, rest.zero_points] {
        if !part.is_empty() {
            writer.align(CONSTANT_ALIGNMENT)?;
            writer.append(&part)?;
        }
    }
    Ok(())
}

/// Rows in a run: whole heads, and an even number so that four-bit zero points fill their bytes.
fn run_rows(width: u64, order: RowOrder) -> u64 {
    let unit = match order {
        RowOrder::AsStored => 2,
        RowOrder::Deinterleave { head } => head * 2,
    };
    (RUN_VALUES / width / unit).max(1) * unit
}

/// Rows of a tensor; a vector, which the file keeps as one row, counts as rows of one value.
fn read<R: Read + Seek>(
    gguf: &mut Gguf<R>,
    tensor: &Tensor,
    width: u64,
    rows: std::ops::Range<u64>,
    values: &mut Vec<f32>,
) -> Result<(), ImportError> {
    if tensor.width() == width {
        return gguf.read_rows(tensor, rows, values);
    }
    gguf.read_rows(tensor, 0..1, values)?;
    values.truncate(rows.end as usize);
    values.drain(..rows.start as usize);
    Ok(())
}

fn pack(
    tensor: &Tensor,
    storage: Storage,
    width: u64,
    values: &[f32],
) -> Result<Packed, ImportError> {
    quant::pack(storage, width as usize, values)
        .map_err(|_| ImportError::OutOfRange(tensor.name.clone(), "f16"))
}

/// Row `2i + j` of a head becomes row `j · head/2 + i`.
fn deinterleave(values: &[f32], head: usize, width: usize, out: &mut Vec<f32>) {
    out.clear();
    for block in values.chunks_exact(head * width) {
        for j in 0..2 {
            for i in 0..head / 2 {
                out.extend_from_slice(&block[(2 * i + j) * width..][..width]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_halves_within_each_head() {
        let rows: Vec<f32> = (0..16).map(|v| v as f32).collect();
        let mut out = Vec::new();
        deinterleave(&rows, 4, 2, &mut out);
        let firsts: Vec<f32> = out.chunks(2).map(|row| row[0]).collect();
        assert_eq!(firsts, [0.0, 4.0, 2.0, 6.0, 8.0, 12.0, 10.0, 14.0]);
    }

    #[test]
    fn a_run_is_whole_heads_in_pairs() {
        assert_eq!(run_rows(1 << 30, RowOrder::AsStored), 2);
        assert_eq!(run_rows(1 << 30, RowOrder::Deinterleave { head: 64 }), 128);
        assert_eq!(run_rows(1 << 10, RowOrder::AsStored), 4096);
    }
}
