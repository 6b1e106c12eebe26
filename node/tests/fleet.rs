//! Three agents on loopback through the command line: what one machine cannot hold, three carry, and
//! whatever dies, the rest lives on.
#![cfg(target_os = "linux")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use skein_shards::testing::{TinyConfig, write_tiny_gguf};
use support::agents::{
    Agent, Place, Running, is_alive, kill_9, list, number, offsets, text, wait_for,
};

/// A worker notices that its agent is gone within a third of a second; the rest is for a busy machine.
const ORPHANED: Duration = Duration::from_secs(1);
/// As much as a third of the model below takes with its working space, and less than a half does.
const CAP: &str = "210MiB";
const CAP_BYTES: u64 = 210 << 20;
/// Requests of the model below have room in this context.
const CTX: &str = "512";

/// Nine layers of 16 MB in f32.
fn big_tiny(place: &Place) -> PathBuf {
    let path = place.path("tiny.gguf");
    let config = TinyConfig {
        layers: 9,
        hidden: 512,
        heads: 8,
        kv_heads: 4,
        ffn: 2048,
        context: 512,
        ..TinyConfig::default()
    };
    write_tiny_gguf(&path, &config).unwrap();
    path
}

fn small_tiny(place: &Place) -> PathBuf {
    let path = place.path("tiny.gguf");
    let config = TinyConfig {
        layers: 6,
        hidden: 256,
        ffn: 512,
        ..TinyConfig::default()
    };
    write_tiny_gguf(&path, &config).unwrap();
    path
}

/// A fleet whose first member is its root and has imported the model; everybody sees everybody.
fn fleet(place: &Place, file: &Path, names: &[&str], flags: &[&str]) -> Vec<Agent> {
    let root = place.start(names[0], flags);
    root.done(&["fleet", "new", "test"]);
    let uses = (names.len() - 1).to_string();
    let invite = root.done(&["fleet", "invite", "--uses", &uses]);
    let model = root.done(&["model", "add", file.to_str().unwrap(), "--weights", "f32"]);
    let mut agents = vec![root];
    for name in &names[1..] {
        let member = place.start(name, flags);
        member.done(&["join", text(&invite["invite"])]);
        agents.push(member);
    }
    meet(&agents);
    for member in &agents[1..] {
        member.hears_of(&agents[0], &model);
    }
    agents
}

fn meet(agents: &[Agent]) {
    for agent in agents {
        let others: Vec<&Agent> = agents
            .iter()
            .filter(|other| other.peer != agent.peer)
            .collect();
        agent.sees(&others);
    }
}

/// `ask --numerics exact` for ids that `seed` chooses.
fn ask_arguments(seed: u32, tokens: u32) -> Vec<String> {
    let ids: Vec<String> = (0..5 + seed * 3)
        .map(|index| ((index * 29 + seed * 7) % 256).to_string())
        .collect();
    let arguments = [
        "ask",
        "tiny",
        "--ids",
        &ids.join(","),
        "--max-tokens",
        &tokens.to_string(),
        "--ignore-eos",
        "--numerics",
        "exact",
        "--temperature",
        "0.8",
        "--seed",
        "5",
        "--ctx",
        CTX,
    ];
    arguments.iter().map(|text| (*text).to_owned()).collect()
}

fn borrowed(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

fn begin_ask(agent: &Agent, seed: u32, tokens: u32) -> Running {
    agent.begin(&borrowed(&ask_arguments(seed, tokens)))
}

fn ask(agent: &Agent, seed: u32, tokens: u32) -> Value {
    agent.done(&borrowed(&ask_arguments(seed, tokens)))
}

/// Bytes of each of the model's segments, and whether they are here.
fn segments(agent: &Agent) -> BTreeMap<String, (u64, bool)> {
    let model = agent.done(&["model", "show", "tiny"]);
    list(&model["segments"])
        .iter()
        .map(|segment| {
            let held = segment["held"] == true;
            (
                text(&segment["name"]).to_owned(),
                (number(&segment["bytes"]), held),
            )
        })
        .collect()
}

/// Bytes of the segments that a stage of the tied model needs and `held` does not have.
fn missing(
    all: &BTreeMap<String, (u64, bool)>,
    held: Option<&BTreeMap<String, (u64, bool)>>,
    layers: &Value,
    depth: u64,
) -> u64 {
    let (first, end) = (number(&layers[0]), number(&layers[1]));
    all.iter()
        .filter(|(name, _)| match name.strip_prefix("layer.") {
            Some(layer) => (first..end).contains(&layer.parse().unwrap()),
            None => match name.as_str() {
                "common" => true,
                "embedding" => first == 0 || end == depth,
                "head" => end == depth,
                other => panic!("there is no segment {other}"),
            },
        })
        .filter(|(name, _)| !held.is_some_and(|held| held[*name].1))
        .map(|(_, (bytes, _))| bytes)
        .sum()
}

fn requests(agent: &Agent) -> u64 {
    list(&agent.done(&["status"])["lines"])
        .iter()
        .map(|line| number(&line["requests"]))
        .sum()
}

/// The head of the lines for `tiny`, once a request runs there.
fn wait_until_it_runs(agents: &[Agent]) -> &Agent {
    let mut head = None;
    wait_for("a request to run", support::agents::PATIENCE, || {
        head = agents.iter().find(|agent| requests(agent) > 0);
        head.is_some()
    });
    head.unwrap()
}

#[test]
fn what_no_machine_holds_alone_runs_on_three_and_survives_what_dies() {
    let place = Place::new();
    let file = big_tiny(&place);
    let flags = ["--memory", CAP];
    let mut agents = fleet(&place, &file, &["one", "two", "three"], &flags);
    let all = segments(&agents[0]);

    // Two are too few, and say by how much.
    for command in [
        vec!["plan", "tiny", "--nodes", "2", "--ctx", CTX],
        vec![
            "ask", "tiny", "--ids", "1,2,3", "--nodes", "2", "--ctx", CTX,
        ],
    ] {
        let (code, refusal) = agents[0].run(&command);
        assert_eq!(code, 5, "{refusal}");
        assert_eq!(refusal["error"]["code"], "does_not_fit");
        assert!(number(&refusal["error"]["missing_bytes"]) > 0, "{refusal}");
    }

    // A machine that holds a part already pulls the rest of its share and nothing else.
    agents[1].done(&["debug", "stage", "tiny", "--layers", "4..5"]);
    agents[0].wait_for("its peers' memory", |agent| {
        let peers = agent.done(&["peers"]);
        list(&peers)
            .iter()
            .all(|peer| number(&peer["memory_free"]) == CAP_BYTES)
    });
    let before: Vec<_> = agents
        .iter()
        .enumerate()
        .map(|(index, agent)| (index < 2).then(|| segments(agent)))
        .collect();
    let first = ask(&agents[0], 0, 12);
    let pipeline = list(&first["pipeline"]);
    assert_eq!(pipeline.len(), 3, "{first}");
    let mut covered = 0;
    for stage in pipeline {
        assert_eq!(number(&stage["layers"][0]), covered);
        covered = number(&stage["layers"][1]);
        let at = agents.iter().position(|agent| agent.peer == stage["peer"]);
        let wanted = missing(&all, before[at.unwrap()].as_ref(), &stage["layers"], 9);
        assert_eq!(number(&stage["pulled_bytes"]), wanted, "{stage}");
        let sources = list(&stage["pulled_from"]).iter();
        let told: u64 = sources.map(|source| number(&source["bytes"])).sum();
        assert_eq!(told, wanted, "{stage}");
    }
    assert_eq!(covered, 9);

    // Four at once get what each gets alone, here and on a machine of its own.
    let alone = {
        let single = place.start("single", &[]);
        single.done(&["model", "add", file.to_str().unwrap(), "--weights", "f32"]);
        (0..4)
            .map(|seed| ask(&single, seed, 24))
            .collect::<Vec<_>>()
    };
    let running: Vec<Running> = (0..4)
        .map(|seed| begin_ask(&agents[seed as usize % 3], seed, 24))
        .collect();
    for (run, alone) in running.into_iter().zip(&alone) {
        let (code, answer) = run.finish();
        assert_eq!(code, 0, "{answer}");
        assert_eq!(list(&answer["pipeline"]).len(), 3);
        assert_eq!(list(&alone["pipeline"]).len(), 1);
        assert_eq!(answer["model"], alone["model"]);
        assert_eq!(list(&answer["tokens"]).len(), 24);
        assert_eq!(answer["tokens"], alone["tokens"]);
    }

    // An asker that goes away takes its request along.
    let asking = begin_ask(&agents[0], 1, 450);
    let head = wait_until_it_runs(&agents);
    drop(asking);
    head.wait_for("the request to leave", |head| requests(head) == 0);
    assert_eq!(ask(&agents[0], 1, 24)["tokens"], alone[1]["tokens"]);

    // A worker that is killed ends the answer with an error that names its machine and the signal.
    let asking = begin_ask(&agents[0], 2, 450);
    let head = wait_until_it_runs(&agents);
    let status = head.done(&["status"]);
    let stage = &list(&list(&status["lines"])[0]["stages"])[1];
    kill_9(number(&stage["worker_pid"]) as u32);
    let (code, answer) = asking.finish();
    assert_eq!(code, 1, "{answer}");
    assert_eq!(answer["finish_reason"], "error", "{answer}");
    let message = text(&answer["message"]);
    assert!(message.contains(text(&stage["name"])), "{message}");
    assert!(message.contains("signal 9"), "{message}");
    assert_eq!(ask(&agents[0], 2, 24)["tokens"], alone[2]["tokens"]);

    // An agent that is killed takes its worker along, and comes back.
    let workers = agents[2].workers();
    assert!(!workers.is_empty());
    agents[2].kill_9();
    wait_for("its worker to end", ORPHANED, || {
        workers.iter().all(|worker| !is_alive(*worker))
    });
    agents.remove(2);
    let (code, refusal) = agents[0].run(&["ask", "tiny", "--ids", "1,2", "--ctx", CTX]);
    assert_ne!(code, 0, "{refusal}");
    let mut again = [&flags[..], &["--bootstrap", &agents[0].address]].concat();
    again.dedup();
    let third = place.start("three", &again);
    agents.push(third);
    meet(&agents);
    assert_eq!(ask(&agents[0], 3, 24)["tokens"], alone[3]["tokens"]);
}

fn flip(path: &Path, at: u64) {
    let mut file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte[0] ^ 0x10]).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_flipped_byte_on_a_members_disk_is_caught_and_not_used() {
    let place = Place::new();
    let file = small_tiny(&place);
    let agents = fleet(&place, &file, &["one", "two", "three"], &[]);
    let model = agents[0].done(&["model", "show", "tiny"]);
    let whole = agents[1].done(&["debug", "stage", "tiny", "--layers", "0..6"]);
    assert_eq!(number(&whole["pulled_bytes"]), number(&model["bytes"]));

    let at = offsets(&model)["layer.2"].start + 4321;
    flip(&agents[1].weights_file(&model), at);
    let (code, error) = agents[2].run(&[
        "debug",
        "stage",
        "tiny",
        "--layers",
        "2..3",
        "--from",
        &agents[1].peer,
    ]);
    assert_eq!(code, 1, "{error}");
    let message = text(&error["error"]["message"]);
    eprintln!("{message}");
    assert!(message.contains("pull"), "{message}");
    assert!(!segments(&agents[2])["layer.2"].1);
    // The one whose disk it was has found out as well, and no longer says that it has it.
    assert!(!segments(&agents[1])["layer.2"].1);

    // Another has it whole, and then so does everybody.
    let got = agents[2].done(&["debug", "stage", "tiny", "--layers", "2..3"]);
    let from_root = list(&got["pulled_from"])
        .iter()
        .find(|source| source["peer"] == agents[0].peer);
    assert!(number(&from_root.unwrap()["bytes"]) > 0, "{got}");
    agents[1].done(&["debug", "stage", "tiny", "--layers", "2..3"]);
    for agent in &agents {
        let held = agent.check_what_is_held();
        assert!(
            held.contains(&"layer.2".to_owned()),
            "{}: {held:?}",
            agent.name
        );
    }
}
