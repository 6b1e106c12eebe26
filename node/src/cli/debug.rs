//! `skein debug`: for those who check the arithmetic.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use super::{
    Context,
    context::interruptible,
    values::{self, Ids},
};
use crate::{
    control::{self, Command, Event, LogitsRequest, LogitsSummary, StageRequest},
    error::{Error, Result},
    objects::{Numerics, Stage},
    output::{self, Progress},
};

/// Look at the arithmetic
#[derive(Debug, clap::Args)]
#[command(
    hide = true,
    after_help = "Example:\n  skein debug logits smollm2-135m --ids 1,2,3 --out logits.npy",
    arg_required_else_help = true
)]
pub struct DebugArgs {
    #[command(subcommand)]
    verb: DebugVerb,
}

#[derive(Debug, clap::Subcommand)]
enum DebugVerb {
    /// Write the logits of every position, float32 [n, vocab], as a NumPy file
    #[command(
        after_help = "Example:\n  skein debug logits smollm2-135m --ids 1,2,3 --nodes 2 --out logits.npy"
    )]
    Logits {
        /// Name, id or start of an id
        #[arg(value_name = "MODEL")]
        model: String,
        /// Token ids
        #[arg(long, value_name = "1,2,3")]
        ids: Ids,
        /// Exactly N stages on N peers; the fewest that fit otherwise
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
        nodes: Option<u32>,
        /// How the arithmetic is done
        #[arg(long, value_name = "MODE", value_enum, default_value = "exact")]
        numerics: Numerics,
        /// The file to write
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Prepare one stage on this machine outside any line, report it, and give it back
    #[command(after_help = "Example:\n  skein debug stage smollm2-135m --layers 10..20")]
    Stage {
        /// Name, id or start of an id
        #[arg(value_name = "MODEL")]
        model: String,
        /// Half-open range of layers
        #[arg(long, value_name = "FIRST..END", value_parser = values::layers)]
        layers: std::ops::Range<u32>,
        /// Pull from this peer alone
        #[arg(long, value_name = "PEER")]
        from: Option<String>,
    },
}

impl DebugArgs {
    pub(super) async fn handle(self, context: &Context) -> Result<()> {
        let (model, ids, nodes, numerics, out) = match self.verb {
            DebugVerb::Logits {
                model,
                ids: Ids(ids),
                nodes,
                numerics,
                out,
            } => (model, ids, nodes, numerics, out),
            DebugVerb::Stage {
                model,
                layers,
                from,
            } => {
                let request = StageRequest {
                    model,
                    layers: [layers.start, layers.end],
                    from,
                };
                let stage: Stage = context.call(Command::Stage(request)).await?;
                context.show(&stage, |stage| {
                    output::line_map(0, std::slice::from_ref(stage))
                });
                return Ok(());
            }
        };
        let rows = ids.len();
        let request = LogitsRequest {
            model,
            ids,
            nodes,
            numerics,
        };
        let mut file: Option<NpyFile> = None;
        let mut progress = Progress::new();
        let call = control::call(&context.home, Command::Logits(request), |event| {
            let Event::Logits { row, values } = event else {
                progress.show(&event);
                return Ok(());
            };
            let values = data_encoding::BASE64
                .decode(values.as_bytes())
                .map_err(|error| Error::failed(format_args!("row {row} is not base64: {error}")))?;
            let file = match &mut file {
                Some(file) => file,
                // Only once there is something to write: an unknown model leaves no file.
                None => file.insert(NpyFile::create(&out, rows, values.len() / 4)?),
            };
            file.row(row, &values)
        });
        let summary: Result<LogitsSummary> = interruptible(call).await;
        progress.finish();
        match (summary, file) {
            (Ok(summary), Some(file)) => {
                file.finish()?;
                context.show(&summary, |summary| {
                    format!(
                        "{} × {} logits in {}",
                        summary.rows,
                        summary.vocab,
                        out.display()
                    )
                });
                Ok(())
            }
            (Ok(_), None) => Err(Error::failed("the agent sent no logits")),
            (Err(error), file) => {
                if file.is_some() {
                    let _ = std::fs::remove_file(&out);
                }
                Err(error)
            }
        }
    }
}

/// A NumPy file (format 1.0) of float32 `[rows, columns]`, written row by row.
struct NpyFile {
    file: BufWriter<File>,
    rows: usize,
    columns: usize,
    written: usize,
}

impl NpyFile {
    fn create(path: &Path, rows: usize, columns: usize) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::failed(format_args!("cannot write {}: {error}", path.display()))
        };
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        file.write_all(&npy_header(rows, columns)).map_err(failed)?;
        Ok(Self {
            file,
            rows,
            columns,
            written: 0,
        })
    }

    fn row(&mut self, row: u32, values: &[u8]) -> Result<()> {
        if row as usize != self.written || self.written == self.rows {
            return Err(Error::failed(format_args!(
                "row {row} came where row {} of {} was due",
                self.written, self.rows
            )));
        }
        if values.len() != self.columns * 4 {
            return Err(Error::failed(format_args!(
                "row {row} has {} bytes instead of {}",
                values.len(),
                self.columns * 4
            )));
        }
        self.file.write_all(values)?;
        self.written += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        if self.written != self.rows {
            return Err(Error::failed(format_args!(
                "only {} of {} rows came",
                self.written, self.rows
            )));
        }
        self.file.flush()?;
        Ok(())
    }
}

/// Magic, version 1.0, and a dictionary padded so that the data begin at a multiple of 64.
fn npy_header(rows: usize, columns: usize) -> Vec<u8> {
    let mut text =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    const PREFIX: usize = 10;
    let length = (PREFIX + text.len() + 1).next_multiple_of(64) - PREFIX;
    text.extend(std::iter::repeat_n(' ', length - text.len() - 1));
    text.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    // A hundred bytes or so: a u16 is what the format has for it.
    header.extend((length as u16).to_le_bytes());
    header.extend(text.as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_numpy_1_0_and_ends_on_a_multiple_of_64() {
        let header = npy_header(3, 49152);
        assert_eq!(&header[..8], b"\x93NUMPY\x01\x00");
        assert_eq!(header.len() % 64, 0);
        let length = u16::from_le_bytes([header[8], header[9]]) as usize;
        assert_eq!(length + 10, header.len());
        let text = std::str::from_utf8(&header[10..]).unwrap();
        assert!(text.contains("'shape': (3, 49152)") && text.ends_with('\n'));
    }

    #[test]
    fn rows_out_of_order_or_of_another_width_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        let mut file = NpyFile::create(&path, 2, 1).unwrap();
        assert!(file.row(1, &[0; 4]).is_err());
        assert!(file.row(0, &[0; 8]).is_err());
        file.row(0, &1f32.to_le_bytes()).unwrap();
        file.row(1, &2f32.to_le_bytes()).unwrap();
        assert!(file.row(2, &[0; 4]).is_err());
        file.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len() % 64, 8);
    }
}
