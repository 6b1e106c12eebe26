//! What a way to store and compute a model loses against a reference, and what a step of it takes.
//!
//! Everything goes through the program: it imports the GGUF once a weight mode, an agent with one `[tuning]` after the
//! other computes the logits of every position of a text (in chunks of a prompt, as for any prompt), and answers a short
//! prompt for the time of a step with one row. The reference is a mode in `exact`, unless told otherwise.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::agent::{LONG, SHORT, Skein};
use super::npy::Rows;
use super::score::Score;
use crate::interrupt;

/// The text where none is named.
const TEXT: &str = include_str!("../../data/loss_text.txt");
/// Answers that the step time is the fastest of: whatever else runs only makes them slower.
const ANSWERS: usize = 3;
/// Ids of the text that the timed answer goes on from.
const PROMPT: usize = 16;
/// What is tried where nothing is said: one thing at a time, and all of it at once.
const VARIATIONS: [&str; 9] = [
    "",
    "precision=f32",
    "precision=f32,kv=f32",
    "kv=bf16",
    "kv=u8",
    "group=0",
    "group=32",
    "group=64",
    "precision=f32,kv=f32,group=0",
];

/// `skein-lab measure loss`.
#[derive(Debug, clap::Args)]
pub struct Loss {
    /// The program under test [default: `skein` beside this program]
    #[arg(long, value_name = "PATH")]
    skein: Option<PathBuf>,
    /// The GGUF to measure
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// The text [default: the one that comes with this program]
    #[arg(long, value_name = "PATH")]
    text: Option<PathBuf>,
    /// The weight modes to measure
    #[arg(long, value_name = "MODE,…", value_delimiter = ',', default_values = ["f32", "f16", "int8", "int4"])]
    weights: Vec<String>,
    /// The weight mode that is the reference
    #[arg(long, value_name = "MODE", default_value = "f32")]
    reference: String,
    /// How the reference computes; `exact` takes eight rows at a time, which is long for a large model
    #[arg(long, value_name = "WAY", default_value = "exact")]
    reference_way: String,
    /// A way to compute, such as `precision=f32,kv=u8,group=32`, or `exact`; an empty one is what ships; may be given
    /// again [default: one thing at a time]
    #[arg(long, value_name = "KEY=VALUE,…")]
    vary: Vec<String>,
    /// Tokens of the answers that are timed; 0 leaves step times out
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: u32,
    /// Threads of a worker
    #[arg(long, value_name = "N")]
    threads: Option<u16>,
    /// Work in this folder and leave the imported models there [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// One way to compute.
#[derive(Debug, Clone, Default, PartialEq)]
struct Way {
    exact: bool,
    precision: Option<String>,
    kv: Option<String>,
    group: Option<u32>,
}

impl Way {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut way = Way::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                None if part == "exact" => way.exact = true,
                Some(("precision", value)) => way.precision = Some(value.to_owned()),
                Some(("kv", value)) => way.kv = Some(value.to_owned()),
                Some(("group", value)) => {
                    way.group = Some(value.parse().context("a group is a number")?);
                }
                _ => anyhow::bail!(
                    "`{part}` is not a way to compute; there are exact, precision=, kv= and group="
                ),
            }
        }
        Ok(way)
    }

    /// The home's settings.
    fn settings(&self) -> String {
        let mut text = "[tuning]\n".to_owned();
        // Writing to a string does not fail.
        if let Some(precision) = &self.precision {
            let _ = writeln!(text, "inference_precision = \"{precision}\"");
        }
        if let Some(kv) = &self.kv {
            let _ = writeln!(text, "kv = \"{kv}\"");
        }
        if let Some(group) = self.group {
            let _ = writeln!(text, "dynamic_quantization_group = {group}");
        }
        text
    }

    fn numerics(&self) -> &'static str {
        if self.exact { "exact" } else { "fast" }
    }

    /// The table's columns; what ships is a dash.
    fn columns(&self) -> String {
        let group = self.group.map(|group| group.to_string());
        let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "–".to_owned());
        format!(
            "{} | {} | {} | {}",
            self.numerics(),
            or_dash(&self.precision),
            or_dash(&self.kv),
            or_dash(&group)
        )
    }
}

#[derive(Debug, Deserialize)]
struct Tokens {
    ids: Vec<u32>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    tokens: Vec<u32>,
    tokens_per_s: Option<f64>,
}

/// Measures and prints the table, row by row.
pub fn measure(told: &Loss) -> anyhow::Result<()> {
    interrupt::listen()?;
    let program = super::program(told.skein.as_deref())?;
    let (folder, _temporary) = super::folder(told.folder.as_deref())?;
    let text = match &told.text {
        Some(path) => {
            std::fs::read_to_string(path).with_context(|| format!("no text in {path:?}"))?
        }
        None => TEXT.to_owned(),
    };
    let variations: Vec<&str> = if told.vary.is_empty() {
        VARIATIONS.to_vec()
    } else {
        told.vary.iter().map(String::as_str).collect()
    };
    let ways = variations
        .into_iter()
        .map(Way::parse)
        .collect::<anyhow::Result<Vec<Way>>>()?;

    let first = Way::parse(&told.reference_way)?;

    let skein = Skein::new(&program, folder.join("home"))?;
    skein.set("")?;
    let stem = told.model.file_stem().and_then(|stem| stem.to_str());
    let bench = Bench {
        skein,
        stem: stem.context("the model's file has no name")?.to_owned(),
        threads: told.threads.map(|threads| threads.to_string()),
        tokens: told.tokens,
        ids: Vec::new(),
    };
    bench.import(&told.model, &told.reference)?;
    for mode in &told.weights {
        bench.import(&told.model, mode)?;
    }
    let tokens: Tokens = bench.skein.call(
        &[
            "model",
            "tokenize",
            &bench.name(&told.reference),
            "--text",
            &text,
        ],
        SHORT,
    )?;
    ensure!(tokens.ids.len() > PROMPT, "the text is too short");
    let bench = Bench {
        ids: tokens.ids,
        ..bench
    };
    bench.table(told, &first, &ways, &folder)
}

struct Bench {
    skein: Skein,
    /// The file's name, without its end.
    stem: String,
    threads: Option<String>,
    tokens: u32,
    ids: Vec<u32>,
}

impl Bench {
    /// What the model is called with these weights.
    fn name(&self, mode: &str) -> String {
        format!("{}-{mode}", self.stem)
    }

    /// Imports the file under that name, unless the folder has it from before.
    fn import(&self, model: &Path, mode: &str) -> anyhow::Result<()> {
        let name = self.name(mode);
        let models: Vec<Value> = self.skein.call(&["model", "ls"], SHORT)?;
        if models.iter().any(|model| model["name"] == *name) {
            return Ok(());
        }
        let path = model.to_str().context("the model's path is not UTF-8")?;
        eprintln!("importing {name}");
        self.skein.call::<Value>(
            &["model", "add", path, "--name", &name, "--weights", mode],
            LONG,
        )?;
        Ok(())
    }

    fn table(&self, told: &Loss, first: &Way, ways: &[Way], folder: &Path) -> anyhow::Result<()> {
        let reference = folder.join("reference.npy");
        println!(
            "{} tokens; the first row is the reference; load average at the start: {}\n",
            self.ids.len(),
            super::load()
        );
        println!(
            "| weights | numerics | precision | KV | group | KL | top-1 | perplexity | ms a step | load |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|");
        let time = self.run(&told.reference, first, &reference)?;
        self.row(&told.reference, first, &reference, &reference, time)?;
        let other = folder.join("other.npy");
        for mode in &told.weights {
            for way in ways {
                if *mode == told.reference && way == first {
                    continue;
                }
                match self.run(mode, way, &other) {
                    Ok(time) => self.row(mode, way, &reference, &other, time)?,
                    Err(error) if interrupt::happened() => return Err(error),
                    // Not every device takes every way, and the rest of a long table should not be lost to that.
                    Err(error) => {
                        println!("| {mode} | {} | failed | | | | |", way.columns());
                        eprintln!("{mode}, {}: {error:#}", way.columns());
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the logits of every position to `out` and returns the time of a step in ms.
    fn run(&self, mode: &str, way: &Way, out: &Path) -> anyhow::Result<Option<f64>> {
        self.skein.set(&way.settings())?;
        let mut flags = vec!["--allow-logits"];
        if let Some(threads) = &self.threads {
            flags.extend(["--threads", threads]);
        }
        let model = self.name(mode);
        let ids = list(&self.ids);
        let out = out.to_str().context("the folder's path is not UTF-8")?;
        let numerics = way.numerics();
        let agent = self.skein.start(&flags)?;
        self.skein
            .call::<Value>(
                &[
                    "debug",
                    "logits",
                    &model,
                    "--ids",
                    &ids,
                    "--nodes",
                    "1",
                    "--numerics",
                    numerics,
                    "--out",
                    out,
                ],
                LONG,
            )
            .with_context(|| agent.last_words())?;
        agent.stop();
        if self.tokens == 0 {
            return Ok(None);
        }
        // Another agent: the line for logits would keep its worker and its memory.
        let agent = self.skein.start(&flags)?;
        let prompt = list(&self.ids[..PROMPT]);
        let tokens = self.tokens.to_string();
        let mut fastest: Option<f64> = None;
        for _ in 0..ANSWERS {
            let answer: Answer = self
                .skein
                .call(
                    &[
                        "ask",
                        &model,
                        "--ids",
                        &prompt,
                        "--nodes",
                        "1",
                        "--numerics",
                        numerics,
                        "--max-tokens",
                        &tokens,
                        "--ignore-eos",
                    ],
                    LONG,
                )
                .with_context(|| agent.last_words())?;
            ensure!(
                answer.tokens.len() == self.tokens as usize,
                "{} tokens came instead of {tokens}",
                answer.tokens.len()
            );
            let rate = answer.tokens_per_s.context("an answer without a rate")?;
            fastest = Some(fastest.map_or(rate, |fastest| fastest.max(rate)));
        }
        agent.stop();
        Ok(fastest.map(|rate| 1e3 / rate))
    }

    fn row(
        &self,
        mode: &str,
        way: &Way,
        reference: &Path,
        other: &Path,
        time: Option<f64>,
    ) -> anyhow::Result<()> {
        let (mut reference, mut other) = (Rows::open(reference)?, Rows::open(other)?);
        for file in [&reference, &other] {
            ensure!(
                file.rows == self.ids.len() && file.columns == reference.columns,
                "logits have another shape than expected"
            );
        }
        let mut score = Score::default();
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        for at in 0..self.ids.len() {
            reference.next(&mut expected)?;
            other.next(&mut got)?;
            score.add(&expected, &got, self.ids.get(at + 1).copied());
        }
        println!(
            "| {mode} | {} | {:.4} | {:.3} | {:.2} | {} | {} |",
            way.columns(),
            score.kl(),
            score.top1(),
            score.perplexity(),
            time.map_or_else(|| "–".to_owned(), |time| format!("{time:.1}")),
            super::load()
        );
        Ok(())
    }
}

fn list(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_to_compute_becomes_settings() {
        let way = Way::parse("precision=f32,kv=u8,group=0").unwrap();
        assert_eq!(
            way.settings(),
            "[tuning]\ninference_precision = \"f32\"\nkv = \"u8\"\ndynamic_quantization_group = 0\n"
        );
        assert_eq!(way.columns(), "fast | f32 | u8 | 0");
        assert_eq!(Way::parse("").unwrap(), Way::default());
        assert!(Way::parse("exact").unwrap().exact);
    }

    #[test]
    fn an_unknown_way_to_compute_is_refused() {
        for text in ["speed=high", "fast", "group=many"] {
            assert!(Way::parse(text).is_err(), "{text}");
        }
        for text in VARIATIONS {
            assert!(Way::parse(text).is_ok(), "{text}");
        }
    }
}
