//! Three agents become a fleet and answer one prompt together.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::LINK;
use crate::interrupt;
use crate::network::Network;
use crate::skein::{Agent, Answer, LONG, SHORT, Skein};

/// The name the model gets in every store.
const MODEL: &str = "lab";
const PORT: u16 = 4_810;

/// After all have joined, every agent comes back at a port that nobody knows: only mDNS can tell.
pub fn over_mdns(program: &Path, model: &Path) -> anyhow::Result<String> {
    run(program, model, Way::Mdns)
}

/// Without mDNS, joiners know the root's address from the invite, and each other through the root.
pub fn over_an_address(program: &Path, model: &Path) -> anyhow::Result<String> {
    run(program, model, Way::Address)
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Mdns,
    Address,
}

fn run(program: &Path, model: &Path, way: Way) -> anyhow::Result<String> {
    let network = Network::build(&["a", "b", "c"], LINK)?;
    let homes = tempfile::tempdir().context("cannot make a folder")?;
    let names = ["a", "b", "c"];
    let skeins = names
        .iter()
        .zip(&network.machines)
        .map(|(name, machine)| Skein::new(name, program, machine, homes.path()))
        .collect::<anyhow::Result<Vec<Skein>>>()?;
    let root = &skeins[0];
    let root_address = network.machines[0].address;
    let fixed = format!("/ip4/{root_address}/tcp/{PORT}");

    root.call::<Value>(&["fleet", "new", "lab"], SHORT)?;
    import(root, model)?;
    let agent = root.start(&["--no-mdns", "--listen", &fixed])?;
    join(root, &skeins[1..]).map_err(|error| agent.explain(error))?;

    let agents = match way {
        Way::Address => {
            let mut agents = vec![agent];
            for skein in &skeins[1..] {
                agents.push(skein.start(&["--no-mdns"])?);
            }
            agents
        }
        Way::Mdns => {
            drop(agent);
            // A port of the system's choice: the one in the invite leads nowhere now.
            skeins
                .iter()
                .zip(&network.machines)
                .map(|(skein, machine)| {
                    let anywhere = format!("/ip4/{}/tcp/0", machine.address);
                    skein.start(&["--listen", &anywhere])
                })
                .collect::<anyhow::Result<Vec<Agent>>>()?
        }
    };
    let answer = meet(&skeins).and_then(|()| ask(root, 3)).map_err(|error| {
        agents
            .iter()
            .fold(error, |error, agent| agent.explain(error))
    })?;
    let peers: Vec<&str> = agents.iter().map(|agent| agent.peer.as_str()).collect();
    for stage in &answer.pipeline {
        ensure!(
            peers.contains(&stage.peer.as_str()),
            "a stage ran on {}, which is none of the three",
            stage.peer
        );
    }
    drop(agents);
    Ok(format!("{} tokens over 3 nodes", answer.tokens.len()))
}

/// Puts the model into a Skein's store.
pub fn import(skein: &Skein, model: &Path) -> anyhow::Result<()> {
    let path = model.to_str().context("the model's path is not UTF-8")?;
    skein.call::<Value>(&["model", "add", path, "--name", MODEL], LONG)?;
    Ok(())
}

/// One invite for all of `others`; the root's agent has to be running.
pub fn join(root: &Skein, others: &[Skein]) -> anyhow::Result<()> {
    let uses = others.len().to_string();
    let invite: Value = root.call(&["fleet", "invite", "--uses", &uses], SHORT)?;
    let invite = invite["invite"].as_str().context("no invite was printed")?;
    for skein in others {
        skein.call::<Value>(&["join", invite], SHORT)?;
    }
    Ok(())
}

/// Waits until everyone sees everyone else, and sees that they can take part.
pub fn meet(skeins: &[Skein]) -> anyhow::Result<()> {
    let wanted = format!("peers={}", skeins.len() - 1);
    for skein in skeins {
        for what in ["ready", &wanted] {
            skein.call::<Value>(&["status", "--wait", what, "--timeout", "90s"], LONG)?;
        }
    }
    for skein in skeins {
        interrupt::wait_for("all peers to be available", SHORT, || {
            let peers: Vec<Peer> = skein.call(&["peers"], SHORT)?;
            let available = peers.iter().filter(|peer| peer.state == "available");
            Ok((available.count() == skeins.len() - 1).then_some(()))
        })?;
    }
    Ok(())
}

/// One entry of `peers --json`, as far as it matters here.
#[derive(Deserialize)]
struct Peer {
    state: String,
}

/// The same prompt everywhere, in `exact`, so that answers can be compared.
pub fn ask(skein: &Skein, nodes: usize) -> anyhow::Result<Answer> {
    let nodes_flag = nodes.to_string();
    let answer: Answer = skein.call(
        &[
            "ask",
            MODEL,
            "Name three birds that fly in formation.",
            "--nodes",
            &nodes_flag,
            "--numerics",
            "exact",
            "--max-tokens",
            "24",
            "--ctx",
            "512",
        ],
        LONG,
    )?;
    answer.check(nodes)?;
    Ok(answer)
}
