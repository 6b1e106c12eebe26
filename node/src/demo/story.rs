//! What happens in the demo, in order, and how it is told.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::DemoOptions;
use super::agents::{Agent, Stage};
use crate::control::{AddModel, AskRequest, Command, Event, Prompt, StageRequest};
use crate::error::{Error, Result};
use crate::objects::{self, Numerics, Weights};
use crate::output;

/// What is asked.
const PROMPT: &str = "What is the capital of France?";
/// Tokens of the answer; enough to see a line work, and past the end of the answer so that both runs end alike.
const TOKENS: u32 = 24;
/// A stage's count reaches the head with the next pong.
const COUNTED: Duration = Duration::from_secs(10);
/// How long the demo's invites may be used, in seconds.
const INVITE_S: u64 = 3600;

/// Tells the demo as it happens, on stderr.
#[derive(Debug)]
pub struct Narrator {
    begun: Instant,
    /// Words for a person are wanted.
    aloud: bool,
    last: Option<String>,
}

impl Narrator {
    /// A narrator; a silent one where stdout is for a program and stderr is not watched.
    pub fn new(aloud: bool) -> Self {
        Narrator {
            begun: Instant::now(),
            aloud,
            last: None,
        }
    }

    /// One line.
    pub fn say(&mut self, text: &str) {
        if self.aloud {
            anstream::eprintln!("{:6.1} s  {text}", self.begun.elapsed().as_secs_f64());
        }
    }

    /// What an agent reports on the way; repeated progress of one task is told once.
    fn report(&mut self, event: Event) {
        match event {
            Event::Note { message } => self.say(&format!("  {message}")),
            Event::Progress {
                task, total, bytes, ..
            } => {
                if self.last.as_ref() != Some(&task) {
                    let size = if bytes && total > 0 {
                        format!(" ({})", output::size(total))
                    } else {
                        String::new()
                    };
                    self.say(&format!("  {task}{size}"));
                    self.last = Some(task);
                }
            }
            Event::Line { stages, .. } => {
                for stage in &stages {
                    self.say(&format!("  {}", describe(stage)));
                }
                if self.aloud {
                    anstream::eprint!("          ");
                }
            }
            Event::Text { text, .. } => {
                if self.aloud {
                    anstream::eprint!("{}", text.replace('\n', "\n          "));
                    let _ = std::io::stderr().flush();
                }
            }
            Event::Logits { .. } => {}
        }
    }
}

/// Plays the whole demo.
pub async fn play(
    options: &DemoOptions,
    stage: &Stage,
    narrator: &mut Narrator,
) -> Result<objects::Demo> {
    let model = provide(options, narrator).await?;
    let nodes = options.nodes as usize;

    narrator.say(&format!("starting {nodes} agents"));
    let mut agents = Vec::new();
    for index in 0..nodes {
        let agent = stage.start(&format!("node-{}", index + 1), None).await?;
        narrator.say(&format!(
            "  {} is {} at {}",
            agent.name,
            agent.peer,
            agent.addresses.join(" ")
        ));
        agents.push(agent);
    }
    let root = agents[0].clone();

    let fleet: objects::FleetId = root
        .call(Command::FleetNew {
            name: Some("demo".into()),
        })
        .await?;
    narrator.say(&format!("{} made the fleet {}", root.name, fleet.id));
    let invite = invite(&root, nodes as u32 - 1).await?;
    for agent in &agents[1..] {
        let _: objects::Joined = agent
            .call(Command::Join {
                invite: invite.clone(),
            })
            .await?;
        narrator.say(&format!("{} joined with the invite", agent.name));
    }

    narrator.say(&format!("{} imports {}", root.name, model.display()));
    let imported = add(&root, &model, narrator).await?;
    narrator.say(&format!(
        "  {} is {}: {} layers, {} weights, {}",
        imported.name,
        imported.id,
        imported.layers,
        imported.weights,
        output::size(imported.bytes)
    ));
    narrator.say("waiting until every agent has measured its devices and sees the others");
    for agent in &agents {
        agent.available().await?;
    }
    for agent in &agents {
        let others: Vec<&Agent> = agents
            .iter()
            .filter(|other| other.peer != agent.peer)
            .collect();
        agent.sees(&others).await?;
    }

    narrator.say(&format!(
        "{} asks across {nodes} nodes: {PROMPT}",
        root.name
    ));
    let answer = ask(&root, &imported.id, nodes as u32, narrator).await?;
    narrator.say(&format!(
        "{} tokens, {}",
        answer.tokens.len(),
        answer.finish_reason.as_str()
    ));
    let worked = workers_that_stepped(&agents, &answer).await?;

    let late_joiner = join_late(stage, &agents, &answer, &imported, narrator).await?;

    narrator.say("a fresh single node answers the same prompt");
    let single = stage.start("single", None).await?;
    let alone = add(&single, &model, narrator).await?;
    if alone.id != imported.id {
        return Err(Error::failed(
            "importing the same file twice gave two models",
        ));
    }
    single.available().await?;
    let reference = ask(&single, &alone.id, 1, narrator).await?;
    narrator.say(&format!("{} tokens", reference.tokens.len()));

    let demo = objects::Demo {
        model: objects::DemoModel {
            id: imported.id,
            name: imported.name,
        },
        prompt: PROMPT.into(),
        identical_to_single_node: !answer.tokens.is_empty() && answer.tokens == reference.tokens,
        text: answer.text,
        tokens: answer.tokens,
        numerics: answer.numerics,
        ttft_ms: answer.ttft_ms,
        tokens_per_s: answer.tokens_per_s,
        nodes: answer.pipeline,
        late_joiner,
        single_node_tokens: reference.tokens,
        workers_that_stepped: worked,
    };
    Ok(demo)
}

/// The runtime and the model, fetched where they are missing.
async fn provide(options: &DemoOptions, narrator: &mut Narrator) -> Result<PathBuf> {
    narrator.say("looking for OpenVINO and the model");
    let given = options.model.clone();
    let found = tokio::task::spawn_blocking(move || {
        let env = skein_provide::Env::of_process();
        let mut announce =
            |announcement: &skein_provide::Announcement| anstream::eprintln!("{announcement}");
        skein_provide::find_openvino(&env, &mut announce)?;
        match given {
            Some(path) => Ok(path),
            None => skein_provide::default_model(&env, &mut announce),
        }
    })
    .await
    .map_err(Error::failed)?;
    let path = found
        .map_err(|error: skein_provide::ProvideError| Error::failed(&error).hint(error.hint()))?;
    std::path::absolute(path).map_err(Error::from)
}

async fn invite(root: &Agent, uses: u32) -> Result<String> {
    let invite: objects::Invite = root
        .call(Command::FleetInvite {
            expires_s: INVITE_S,
            uses,
        })
        .await?;
    Ok(invite.invite)
}

async fn add(
    agent: &Agent,
    model: &std::path::Path,
    narrator: &mut Narrator,
) -> Result<objects::Model> {
    let request = AddModel {
        path: model.to_owned(),
        name: None,
        weights: Weights::Auto,
    };
    agent
        .follow(Command::ModelAdd(request), |event| narrator.report(event))
        .await
}

async fn ask(
    agent: &Agent,
    model: &str,
    nodes: u32,
    narrator: &mut Narrator,
) -> Result<objects::Ask> {
    let request = AskRequest {
        model: model.to_owned(),
        prompt: Prompt::Chat {
            system: None,
            text: PROMPT.into(),
        },
        max_tokens: TOKENS,
        ignore_eos: true,
        temperature: 0.0,
        seed: Some(0),
        nodes: Some(nodes),
        numerics: Numerics::Exact,
        ctx: Some(1024),
    };
    let answer: objects::Ask = agent
        .follow(Command::Ask(request), |event| narrator.report(event))
        .await?;
    if narrator.aloud {
        anstream::eprintln!();
    }
    if answer.finish_reason == objects::FinishReason::Error {
        return Err(Error::failed(
            answer.message.unwrap_or_else(|| "the line failed".into()),
        ));
    }
    Ok(answer)
}

/// How many worker processes took steps, as the machines that run them count.
async fn workers_that_stepped(agents: &[Agent], answer: &objects::Ask) -> Result<usize> {
    let line: BTreeSet<u32> = answer
        .pipeline
        .iter()
        .map(|stage| stage.worker_pid)
        .collect();
    let deadline = Instant::now() + COUNTED;
    loop {
        let mut stepped = BTreeSet::new();
        for agent in agents {
            let status: objects::Status = agent.call(Command::Status).await?;
            let stages = status.lines.iter().flat_map(|line| &line.stages);
            stepped.extend(
                stages
                    .filter(|stage| stage.steps > 0)
                    .map(|stage| stage.worker_pid),
            );
        }
        let worked = stepped.intersection(&line).count();
        if worked >= line.len() || Instant::now() > deadline {
            return Ok(worked);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A fourth agent joins through the root, finds the fleet through another member, and after the root has stopped pulls
/// that member's range from that member.
async fn join_late(
    stage: &Stage,
    agents: &[Agent],
    answer: &objects::Ask,
    model: &objects::Model,
    narrator: &mut Narrator,
) -> Result<objects::Stage> {
    let (root, member) = (&agents[0], &agents[1]);
    let name = format!("node-{}", agents.len() + 1);
    let home = stage.home(&name)?;
    let token = invite(root, 1).await?;
    // Without an agent of its own: the invite is redeemed with the root, and nothing else happens.
    let joined: objects::Joined =
        crate::control::call(&home, Command::Join { invite: token }, |_| Ok(())).await?;
    narrator.say(&format!(
        "{name} joined the fleet {} through {}",
        joined.fleet.name, root.name
    ));
    let address = member
        .addresses
        .first()
        .ok_or_else(|| Error::failed(format_args!("{} has no address", member.name)))?;
    let late = stage.start(&name, Some(address)).await?;
    narrator.say(&format!("{name} bootstraps at {}, {address}", member.name));
    late.sees(&[member]).await?;
    narrator.say(&format!("{} stops", root.name));
    let _: objects::Stopped = root.call(Command::Stop).await?;
    late.available().await?;

    let theirs = answer
        .pipeline
        .iter()
        .find(|stage| stage.peer == member.peer)
        .ok_or_else(|| Error::failed(format_args!("{} has no stage in the line", member.name)))?;
    narrator.say(&format!(
        "{name} prepares layers {} to {} without {}",
        theirs.layers[0], theirs.layers[1], root.name
    ));
    let request = StageRequest {
        model: model.id.clone(),
        layers: theirs.layers,
        from: Some(member.peer.clone()),
    };
    let got: objects::Stage = late
        .follow(Command::Stage(request), |event| narrator.report(event))
        .await?;
    narrator.say(&format!("  {}", describe(&got)));
    let from_member: u64 = got
        .pulled_from
        .iter()
        .filter(|source| source.peer == member.peer)
        .map(|source| source.bytes)
        .sum();
    if from_member == 0
        || got
            .pulled_from
            .iter()
            .any(|source| source.peer == root.peer)
    {
        return Err(Error::failed(format_args!(
            "{name} did not pull its range from {}",
            member.name
        )));
    }
    Ok(got)
}

fn describe(stage: &objects::Stage) -> String {
    let pulled = match stage.pulled_bytes {
        0 => "nothing pulled".to_owned(),
        bytes => format!("{} pulled", output::size(bytes)),
    };
    format!(
        "{}: layers {} to {} on {}, worker {}, {} of weights, {pulled}",
        stage.name,
        stage.layers[0],
        stage.layers[1],
        stage.device,
        stage.worker_pid,
        output::size(stage.weights_bytes),
    )
}
