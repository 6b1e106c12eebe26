//! Reads a NumPy file of float32 `[rows, columns]` row by row: whole files of logits are too large to hold several.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, ensure};

/// A file being read.
#[derive(Debug)]
pub struct Rows {
    file: BufReader<File>,
    pub rows: usize,
    pub columns: usize,
    bytes: Vec<u8>,
}

impl Rows {
    /// Opens a file of format 1.0, little endian, in C order.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let mut file =
            BufReader::new(File::open(path).with_context(|| format!("cannot open {path:?}"))?);
        let mut start = [0; 10];
        file.read_exact(&mut start)?;
        ensure!(
            &start[..8] == b"\x93NUMPY\x01\x00",
            "{path:?} is no NumPy 1.0 file"
        );
        let mut header = vec![0; usize::from(u16::from_le_bytes([start[8], start[9]]))];
        file.read_exact(&mut header)?;
        let header = String::from_utf8_lossy(&header);
        let (rows, columns) = shape(&header)
            .with_context(|| format!("{path:?} has another header than expected: {header}"))?;
        Ok(Rows {
            file,
            rows,
            columns,
            bytes: vec![0; columns * 4],
        })
    }

    /// Reads the next row into `row`.
    pub fn next(&mut self, row: &mut Vec<f32>) -> anyhow::Result<()> {
        self.file.read_exact(&mut self.bytes)?;
        row.clear();
        row.extend(
            self.bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        );
        Ok(())
    }
}

fn shape(header: &str) -> Option<(usize, usize)> {
    if !header.contains("'descr': '<f4'") || !header.contains("'fortran_order': False") {
        return None;
    }
    let (_, rest) = header.split_once("'shape': (")?;
    let (shape, _) = rest.split_once(')')?;
    let (rows, columns) = shape.split_once(',')?;
    Some((rows.trim().parse().ok()?, columns.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were_written_and_another_type_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        let write = |descr: &str| {
            let header =
                format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 1), }}\n");
            let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
            bytes.extend((header.len() as u16).to_le_bytes());
            bytes.extend(header.as_bytes());
            bytes.extend(1.5f32.to_le_bytes());
            bytes.extend((-2f32).to_le_bytes());
            std::fs::write(&path, bytes).unwrap();
        };
        write("<f4");
        let mut rows = Rows::open(&path).unwrap();
        let mut row = Vec::new();
        rows.next(&mut row).unwrap();
        assert_eq!(row, [1.5]);
        rows.next(&mut row).unwrap();
        assert_eq!(row, [-2.0]);
        assert!(rows.next(&mut row).is_err());
        write("<f8");
        assert!(Rows::open(&path).is_err());
    }
}
