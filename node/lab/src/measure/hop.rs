//! What a step takes outside compute: pipes to the workers, relays, streams between agents, and the head's own loop.
//!
//! Real agents on loopback answer a prompt over one to N stages, one token at a time, so that one frame is under way at
//! any moment. The head writes down how long each frame was away, every worker how long it had it, both as log lines that
//! only this measurement asks for. Per step, overhead = away − the sum over the workers; all are spans of one process's
//! clock, so no clocks are compared. What a worker does outside its engine (codec, checks, sampling) is shown apart.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::agent::{Agent, LONG, SHORT, Skein};
use crate::interrupt;

/// The name the model gets in the stores.
const MODEL: &str = "hop";
/// What workers and the head are asked to log.
const LOG: &str = "info,skein::worker=debug,skein::steps=trace";
/// The first steps are the prompt and warm caches up.
const WARM_UP: u64 = 16;
const PROMPT: &str = "Tell a long story about geese.";
/// Logs are written a moment after the steps.
const SETTLE: Duration = Duration::from_millis(500);

/// `skein-lab measure hop`.
#[derive(Debug, clap::Args)]
pub struct Hop {
    /// The program under test [default: `skein` beside this program]
    #[arg(long, value_name = "PATH")]
    skein: Option<PathBuf>,
    /// The GGUF that the stages run; a small one leaves more processor to the hops
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// Agents, and the most stages of a line
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    nodes: u32,
    /// Steps of each line
    #[arg(long, value_name = "N", default_value_t = 500)]
    tokens: u32,
    /// Work in this folder and leave what is in it [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// Measures and prints the table.
pub fn measure(told: &Hop) -> anyhow::Result<()> {
    interrupt::listen()?;
    let program = super::program(told.skein.as_deref())?;
    let (folder, _temporary) = super::folder(told.folder.as_deref())?;
    let skeins = (0..told.nodes)
        .map(|at| Skein::new(&program, folder.join(format!("node-{at}"))))
        .collect::<anyhow::Result<Vec<Skein>>>()?;
    let agents = fleet(&skeins, told)?;

    println!(
        "One request, {} steps a line; times in µs, p50 / p99; load average at the start: {}\n",
        told.tokens,
        super::load()
    );
    println!(
        "| stages | away | in the engines | workers outside their engines | overhead | overhead a hop |"
    );
    println!("|---|---|---|---|---|---|");
    for stages in 1..=told.nodes {
        let steps = run(&skeins, &agents, stages, told.tokens)?;
        let column = |of: &dyn Fn(&Step) -> f64| {
            let mut values: Vec<f64> = steps.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            format!(
                "{:.0} / {:.0}",
                percentile(&values, 50),
                percentile(&values, 99)
            )
        };
        println!(
            "| {stages} | {} | {} | {} | {} | {} |",
            column(&|step| step.away),
            column(&|step| step.engine),
            column(&|step| step.worker - step.engine),
            column(&|step| step.away - step.worker),
            column(&|step| (step.away - step.worker) / f64::from(stages)),
        );
    }
    Ok(())
}

/// One fleet of all agents, the model in the first one's store.
fn fleet(skeins: &[Skein], told: &Hop) -> anyhow::Result<Vec<Agent>> {
    let path = told
        .model
        .to_str()
        .context("the model's path is not UTF-8")?;
    let models: Vec<Value> = skeins[0].call(&["model", "ls"], SHORT)?;
    if models.is_empty() {
        skeins[0].call::<Value>(&["fleet", "new", "hop"], SHORT)?;
        skeins[0].call::<Value>(
            &["model", "add", path, "--name", MODEL, "--weights", "int8"],
            LONG,
        )?;
    }
    let flags = ["--threads", "1", "--log", LOG];
    let mut agents = vec![skeins[0].start(&flags)?];
    let others = skeins.len() - 1;
    if others > 0 {
        let invite: Value =
            skeins[0].call(&["fleet", "invite", "--uses", &others.to_string()], SHORT)?;
        let invite = invite["invite"].as_str().context("no invite was printed")?;
        for skein in &skeins[1..] {
            skein.call::<Value>(&["join", invite], SHORT)?;
            agents.push(skein.start(&flags)?);
        }
    }
    for skein in skeins {
        interrupt::wait_for("all agents to see each other", SHORT, || {
            let peers: Vec<Value> = skein.call(&["peers"], SHORT)?;
            let here = |peer: &&Value| peer["state"] == "available" || peer["state"] == "working";
            Ok((peers.iter().filter(here).count() == others).then_some(()))
        })?;
    }
    Ok(agents)
}

/// One step of a line, in µs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Step {
    /// From a frame's first byte to its answer, on the head.
    away: f64,
    /// Sum of the time that workers had it.
    worker: f64,
    /// The part of that in engines.
    engine: f64,
    /// Workers that had it.
    workers: u32,
}

/// Answers once and returns the steps after the warm-up.
fn run(skeins: &[Skein], agents: &[Agent], stages: u32, tokens: u32) -> anyhow::Result<Vec<Step>> {
    let nodes = stages.to_string();
    let ask = |tokens: u32| -> anyhow::Result<Value> {
        let tokens = tokens.to_string();
        skeins[0].call(
            &[
                "ask",
                MODEL,
                PROMPT,
                "--nodes",
                &nodes,
                "--max-tokens",
                &tokens,
                "--ignore-eos",
                "--ctx",
                "1024",
            ],
            LONG,
        )
    };
    let before = lengths(agents)?;
    let answer = ask(tokens).with_context(|| agents[0].last_words())?;
    ensure!(
        answer["pipeline"].as_array().map(Vec::len) == Some(stages as usize),
        "the answer came from another line than asked for: {}",
        answer["pipeline"]
    );
    std::thread::sleep(SETTLE);

    let mut steps = BTreeMap::new();
    for (agent, before) in agents.iter().zip(before) {
        let log = std::fs::read(&agent.log).context("an agent's log is gone")?;
        let new = log.get(before..).context("an agent's log shrank")?;
        for line in String::from_utf8_lossy(new).lines() {
            note(line, &mut steps);
        }
    }
    let steps: Vec<Step> = steps.range(WARM_UP..).map(|(_, step)| *step).collect();
    ensure!(
        steps.len() as u64 + 2 * WARM_UP > u64::from(tokens),
        "only {} steps were written down",
        steps.len()
    );
    ensure!(
        steps
            .iter()
            .all(|step| step.workers == stages && step.away > 0.0),
        "a step was not written down by everyone"
    );
    Ok(steps)
}

fn lengths(agents: &[Agent]) -> anyhow::Result<Vec<usize>> {
    agents
        .iter()
        .map(|agent| {
            let length = std::fs::metadata(&agent.log).context("an agent's log is gone")?;
            Ok(usize::try_from(length.len())?)
        })
        .collect()
}

/// Takes a log line into account, if it is about a step.
fn note(line: &str, steps: &mut BTreeMap<u64, Step>) {
    let Some((_, line)) = line.split_once("step ") else {
        return;
    };
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| {
        words
            .get(at)
            .and_then(|word: &&str| word.parse::<u64>().ok())
    };
    match (number(0), words.get(1).copied()) {
        (Some(step), Some("returned")) => {
            if let Some(away) = number(3) {
                steps.entry(step).or_default().away = away as f64;
            }
        }
        (Some(step), Some("took")) => {
            if let (Some(worker), Some(engine)) = (number(2), number(4)) {
                let step = steps.entry(step).or_default();
                step.worker += worker as f64;
                step.engine += engine as f64;
                step.workers += 1;
            }
        }
        _ => {}
    }
}

/// The value that `percent` of the sorted values are not above.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steps_lines_are_summed_over_workers() {
        let mut steps = BTreeMap::new();
        for line in [
            "2026-01-01T00:00:00Z TRACE skein::steps: step 7 returned after 1200 us",
            "2026-01-01T00:00:00Z DEBUG skein::worker: step 7 took 500 us, 450 us of them in the engine",
            "2026-01-01T00:00:00Z DEBUG skein::worker: step 7 took 400 us, 380 us of them in the engine",
            "2026-01-01T00:00:00Z DEBUG skein::worker: step by step",
            "something else",
        ] {
            note(line, &mut steps);
        }
        let expected = Step {
            away: 1200.0,
            worker: 900.0,
            engine: 830.0,
            workers: 2,
        };
        assert_eq!(steps, BTreeMap::from([(7, expected)]));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&values, 50), 100.0);
        assert_eq!(percentile(&values, 99), 198.0);
        assert_eq!(percentile(&[3.0], 99), 3.0);
    }
}
