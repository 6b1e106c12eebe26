//! Weights reach the others over the network and no other way: each agent lives in a mount and
//! a network namespace of its own, and only the importer's sees the model's file and its store.

use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::LINK;
use super::fleet::{ask, import, join, meet};
use crate::network::Network;
use crate::skein::{Hidden, Skein};

pub fn from_the_importer(program: &Path, model: &Path) -> anyhow::Result<String> {
    let names = ["importer", "second", "third"];
    let network = Network::build(&names, LINK)?;
    let homes = tempfile::tempdir().context("cannot make a folder")?;
    // A folder per home: what is hidden is the importer's, log and all.
    let skeins = names
        .iter()
        .zip(&network.machines)
        .map(|(name, machine)| {
            Skein::new(
                name,
                program,
                machine,
                &homes.path().join(format!("home-of-{name}")),
            )
        })
        .collect::<anyhow::Result<Vec<Skein>>>()?;
    let hidden = [
        Hidden::File(model.to_owned()),
        Hidden::Folder(skeins[0].home().to_owned()),
    ];
    let skeins: Vec<Skein> = skeins
        .into_iter()
        .map(|skein| match skein.name {
            "importer" => skein,
            _ => skein.without(&hidden),
        })
        .collect();
    let importer = &skeins[0];

    importer.call::<Value>(&["fleet", "new", "lab"], crate::skein::SHORT)?;
    import(importer, model)?;
    let mut agents = vec![importer.start(&["--no-mdns", "--listen", "/ip4/0.0.0.0/tcp/0"])?];
    join(importer, &skeins[1..])?;
    for skein in &skeins[1..] {
        agents.push(skein.start(&["--no-mdns"])?);
    }
    let (together, alone) = meet(&skeins)
        .and_then(|()| Ok((ask(importer, 3)?, ask(importer, 1)?)))
        .map_err(|error| {
            agents
                .iter()
                .fold(error, |error, agent| agent.explain(error))
        })?;
    let mut pulled = 0;
    for stage in &together.pipeline {
        let own = stage.peer == agents[0].peer;
        ensure!(
            own == (stage.pulled_bytes == 0),
            "the stage on {} pulled {} bytes",
            stage.peer,
            stage.pulled_bytes
        );
        pulled += stage.pulled_bytes;
    }
    ensure!(
        together.tokens == alone.tokens,
        "three nodes said {:?}, one said {:?}",
        together.text,
        alone.text
    );
    drop(agents);
    Ok(format!(
        "{} tokens equal to a single node's, {:.1} MB pulled",
        together.tokens.len(),
        pulled as f64 / 1e6
    ))
}
