//! Agents killed while they import, pull and compile: the next start works, and what is there is
//! whole or not there.
#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use skein_pipeline::testing::Seeded;
use skein_shards::testing::{TinyConfig, write_tiny_gguf};
use support::agents::{Agent, Place, is_alive, list, number, text, wait_for};

const POINTS: u64 = 10;
const ORPHANED: Duration = Duration::from_secs(2);

/// Large enough that everything takes a moment.
fn tiny(place: &Place) -> PathBuf {
    let path = place.path("tiny.gguf");
    let config = TinyConfig {
        layers: 6,
        hidden: 512,
        heads: 8,
        kv_heads: 4,
        ffn: 1024,
        ..TinyConfig::default()
    };
    write_tiny_gguf(&path, &config).unwrap();
    path
}

/// Nothing is left of what was begun and not finished.
fn check_for_leftovers(agent: &Agent) {
    for folder in ["store/import", "store/trash"] {
        let left = fs::read_dir(agent.home.join(folder)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{folder}");
    }
}

/// Kills the agent `share` of `whole` after `arguments` was begun; none of its workers is left.
fn kill_during(agent: &mut Agent, arguments: &[&str], whole: Duration, share: f64) {
    let command = agent.begin(arguments);
    sleep(whole.mul_f64(share));
    let workers = agent.workers();
    agent.kill_9();
    drop(command);
    wait_for("the workers to end", ORPHANED, || {
        workers.iter().all(|worker| !is_alive(*worker))
    });
}

/// Ten points in time, spread over the whole and each drawn within its part.
fn points(seed: u64) -> impl Iterator<Item = f64> {
    let mut draws = Seeded(seed);
    (0..POINTS)
        .map(move |point| (point as f64 + draws.within(0..1000) as f64 / 1000.0) / POINTS as f64)
}

fn timed(agent: &Agent, arguments: &[&str]) -> (Value, Duration) {
    let begun = Instant::now();
    let object = agent.done(arguments);
    (object, begun.elapsed())
}

#[test]
fn an_agent_killed_while_it_imports_leaves_a_whole_model_or_none() {
    let place = Place::new();
    let file = tiny(&place);
    let add = ["model", "add", file.to_str().unwrap(), "--weights", "f32"];
    let (model, whole) = {
        let agent = place.start("first", &[]);
        timed(&agent, &add)
    };
    let mut agent = place.start("victim", &[]);
    for share in points(1) {
        kill_during(&mut agent, &add, whole, share);
        agent = place.start("victim", &[]);
        check_for_leftovers(&agent);
        let held = agent.check_what_is_held().len();
        eprintln!("killed at {share:.2} of the import: {held} segments are here");
        if held > 0 {
            // It was done before the blow fell: then it has to be all there.
            let there = agent.done(&["model", "show", "tiny"]);
            assert_eq!(there, model);
            agent.done(&["model", "rm", "tiny"]);
        }
    }
    assert_eq!(agent.done(&add), model);
    assert_eq!(
        agent.check_what_is_held().len(),
        list(&model["segments"]).len()
    );
}

#[test]
fn an_agent_killed_while_it_pulls_or_compiles_goes_on_where_it_was() {
    let place = Place::new();
    let file = tiny(&place);
    let root = place.start("root", &[]);
    root.done(&["fleet", "new", "test"]);
    let invite = root.done(&["fleet", "invite", "--uses", "2"]);
    let model = root.done(&["model", "add", file.to_str().unwrap(), "--weights", "f32"]);
    let segments = list(&model["segments"]).len();
    let flags = ["--bootstrap", root.address.as_str()];
    let prepare = ["debug", "stage", text(&model["id"]), "--layers", "0..6"];
    let start = |name: &str| {
        let agent = place.start(name, &flags);
        agent.sees(&[&root]);
        agent.hears_of(&root, &model);
        agent
    };

    // Pull and compile as one: how long they take together, and how long the second takes alone.
    let (code, joined) = place.run("first", &["join", text(&invite["invite"])]);
    assert_eq!(code, 0, "{joined}");
    let (both, compiling) = {
        let agent = start("first");
        let (got, both) = timed(&agent, &prepare);
        assert_eq!(got["pulled_bytes"], model["bytes"]);
        let (got, compiling) = timed(&agent, &prepare);
        assert_eq!(number(&got["pulled_bytes"]), 0);
        (both, compiling)
    };

    let (code, joined) = place.run("victim", &["join", text(&invite["invite"])]);
    assert_eq!(code, 0, "{joined}");
    let mut agent = start("victim");
    let pulling = both.saturating_sub(compiling).max(both / 4);
    for share in points(2) {
        kill_during(&mut agent, &prepare, pulling, share);
        agent = start("victim");
        check_for_leftovers(&agent);
        let held = agent.check_what_is_held().len();
        eprintln!("killed at {share:.2} of the pull: {held} of {segments} segments are here");
        if held == segments {
            agent.done(&["model", "rm", "tiny"]);
        }
    }
    agent.done(&prepare);
    assert_eq!(agent.check_what_is_held().len(), segments);
    for share in points(3) {
        kill_during(&mut agent, &prepare, compiling, share);
        agent = start("victim");
        check_for_leftovers(&agent);
        let got = agent.done(&["model", "show", "tiny"]);
        assert!(list(&got["segments"]).iter().all(|one| one["held"] == true));
    }
    let again = agent.done(&prepare);
    assert_eq!(number(&again["pulled_bytes"]), 0);
}
