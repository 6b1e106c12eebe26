//! Both ends of the control channel against an agent that is not one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use skein::{
    control::{
        AddModel, AgentService, AskRequest, Client, Command, Event, EventSink, Listener,
        LogitsRequest, LogitsSummary, PlanRequest, Prompt, RuntimeReport, StageRequest,
        TokenizeRequest, serve,
    },
    error::{Code, Error, Result},
    objects::{self, FinishReason, Numerics},
    paths::Home,
};
use tokio::{sync::Notify, time::timeout};

/// Long enough for a slow machine, short enough to notice a hang.
const SOON: Duration = Duration::from_secs(20);

/// Answers what the tests ask and refuses the rest.
#[derive(Default)]
struct Fake {
    stop: Notify,
    statuses: AtomicU32,
    dropped: AtomicBool,
}

/// Says that the future which held it is gone.
struct Dropped<'a>(&'a AtomicBool);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn unasked<T>() -> Result<T> {
    Err(Error::failed("not in this test"))
}

impl AgentService for Fake {
    async fn status(&self) -> Result<objects::Status> {
        let looks = self.statuses.fetch_add(1, Ordering::SeqCst);
        Ok(objects::Status {
            peer: "peer".into(),
            name: "fake".into(),
            state: if looks < 3 { "starting" } else { "available" }.into(),
            reason: None,
            fleet: None,
            devices: Vec::new(),
            memory: objects::Budget { cap: 2, used: 1 },
            disk: objects::Budget { cap: 2, used: 1 },
            models: Vec::new(),
            lines: Vec::new(),
            api: None,
        })
    }

    async fn peers(&self) -> Result<Vec<objects::Peer>> {
        Ok(Vec::new())
    }

    async fn stop(&self) -> Result<()> {
        self.stop.notify_one();
        Ok(())
    }

    async fn plan(&self, request: PlanRequest) -> Result<objects::Plan> {
        Err(Error::does_not_fit(
            format_args!("{} is short of 5 bytes", request.model),
            5,
        ))
    }

    /// Says "word " as often as asked for; `slow` waits for ever after the first.
    async fn ask(&self, request: AskRequest, events: EventSink) -> Result<objects::Ask> {
        let _dropped = Dropped(&self.dropped);
        for token in 0..request.max_tokens {
            events
                .send(Event::Text {
                    text: "word ".into(),
                    tokens: vec![token],
                })
                .await?;
            if request.model == "slow" {
                std::future::pending::<()>().await;
            }
        }
        Ok(objects::Ask {
            model: request.model,
            text: "word ".repeat(request.max_tokens as usize),
            tokens: (0..request.max_tokens).collect(),
            prompt_tokens: 1,
            finish_reason: FinishReason::Length,
            message: None,
            numerics: request.numerics,
            epoch: 1,
            ttft_ms: Some(1.0),
            tokens_per_s: None,
            seed: request.seed.unwrap_or(7),
            pipeline: Vec::new(),
        })
    }

    async fn stage(&self, _: StageRequest, _: EventSink) -> Result<objects::Stage> {
        unasked()
    }

    async fn logits(&self, request: LogitsRequest, events: EventSink) -> Result<LogitsSummary> {
        for row in 0..request.ids.len() as u32 {
            events.logits(row, &[row as f32, 0.5]).await?;
        }
        Ok(LogitsSummary {
            model: request.model,
            rows: request.ids.len() as u32,
            vocab: 2,
            numerics: request.numerics,
            pipeline: Vec::new(),
        })
    }

    async fn model_add(&self, _: AddModel, _: EventSink) -> Result<objects::Model> {
        unasked()
    }

    async fn model_list(&self) -> Result<Vec<objects::Model>> {
        Ok(Vec::new())
    }

    async fn model_show(&self, model: String) -> Result<objects::Model> {
        Err(Error::new(
            Code::NotFound,
            format_args!("no model here is called {model}"),
        ))
    }

    async fn model_remove(&self, _: String) -> Result<objects::Removed> {
        unasked()
    }

    async fn tokenize(&self, _: TokenizeRequest) -> Result<objects::Tokenized> {
        unasked()
    }

    async fn fleet_new(&self, _: Option<String>) -> Result<objects::FleetId> {
        unasked()
    }

    async fn fleet_invite(&self, _: u64, _: u32) -> Result<objects::Invite> {
        Err(Error::new(Code::Refused, "only the root invites"))
    }

    async fn join(&self, _: String) -> Result<objects::Joined> {
        unasked()
    }

    async fn runtime(&self) -> Result<RuntimeReport> {
        unasked()
    }
}

/// A fake agent on a temporary home.
struct Agent {
    home: Home,
    service: Arc<Fake>,
    task: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Agent {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::resolve(Some(folder.path())).unwrap();
        let listener = Listener::bind(&home, home.lock().unwrap()).unwrap();
        let service = Arc::new(Fake::default());
        let stopping = Arc::clone(&service);
        let task = tokio::spawn(async move {
            let shutdown = async { stopping.stop.notified().await };
            serve(listener, Arc::clone(&stopping), shutdown).await;
        });
        Self {
            home,
            service,
            task,
            _folder: folder,
        }
    }

    async fn client(&self) -> Client {
        Client::connect(&self.home)
            .await
            .unwrap()
            .expect("the fake agent runs")
    }

    /// Runs the built program against this agent.
    async fn skein(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_skein"));
        command
            .arg("--home")
            .arg(self._folder.path())
            .args(arguments)
            .kill_on_drop(true);
        timeout(SOON, command.output())
            .await
            .expect("the command ends")
            .unwrap()
    }
}

fn ask(model: &str, max_tokens: u32) -> Command {
    Command::Ask(AskRequest {
        model: model.into(),
        prompt: Prompt::Raw {
            text: "hello".into(),
        },
        max_tokens,
        ignore_eos: false,
        temperature: 0.0,
        seed: None,
        nodes: None,
        numerics: Numerics::Exact,
        ctx: None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_arrives_in_order_before_the_result() {
    let agent = Agent::start();
    let mut tokens = Vec::new();
    // More than the queue holds.
    let answer: objects::Ask = agent
        .client()
        .await
        .call(ask("m", 1000), |event| {
            if let Event::Text { tokens: new, .. } = event {
                tokens.extend(new);
            }
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(tokens, (0..1000).collect::<Vec<_>>());
    assert_eq!(answer.tokens, tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_the_connection_cancels_the_request() {
    let agent = Agent::start();
    let client = agent.client().await;
    let (first, seen) = tokio::sync::oneshot::channel();
    let mut first = Some(first);
    let call = tokio::spawn(client.call::<objects::Ask>(ask("slow", 2), move |_| {
        first.take().map(|first| first.send(()));
        Ok(())
    }));
    timeout(SOON, seen).await.unwrap().unwrap();
    call.abort();
    timeout(SOON, async {
        while !agent.service.dropped.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the agent notices");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_keeps_its_code_hint_and_missing_bytes_across_the_channel() {
    let agent = Agent::start();
    let request = PlanRequest {
        model: "m".into(),
        nodes: None,
        ctx: None,
    };
    let error = agent
        .client()
        .await
        .call::<objects::Plan>(Command::Plan(request), |_| Ok(()))
        .await;
    let error = error.unwrap_err();
    assert_eq!(
        (error.code, error.missing_bytes),
        (Code::DoesNotFit, Some(5))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_and_endless_lines_get_an_error_and_leave_the_agent_serving() {
    use interprocess::local_socket::tokio::{Stream, prelude::*};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let agent = Agent::start();
    for nonsense in [
        b"nonsense\n".to_vec(),
        b"{\"command\":\"fly\"}\n".to_vec(),
        vec![b'x'; 5 << 20],
    ] {
        let path = agent.home.socket_path();
        let stream = Stream::connect(skein::platform::control_name(&path).unwrap())
            .await
            .unwrap();
        let mut writer = &stream;
        // The agent may hang up on an endless line before it is all written.
        let _ = writer.write_all(&nonsense).await;
        let mut reply = String::new();
        let _ = timeout(SOON, (&stream).read_to_string(&mut reply))
            .await
            .expect("an answer");
        if nonsense.len() < 1000 {
            assert!(reply.starts_with(r#"{"error":{"code":"usage""#), "{reply}");
        }
    }
    let models: Vec<objects::Model> = agent
        .client()
        .await
        .call(Command::ModelList, |_| Ok(()))
        .await
        .unwrap();
    assert!(models.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn more_clients_than_there_is_room_for_are_told_so() {
    let agent = Agent::start();
    let mut waiting = Vec::new();
    for _ in 0..80 {
        let client = agent.client().await;
        waiting.push(tokio::spawn(
            client.call::<objects::Ask>(ask("slow", 2), |_| Ok(())),
        ));
    }
    let refused = timeout(SOON, async {
        loop {
            if let Some(index) = waiting
                .iter()
                .position(tokio::task::JoinHandle::is_finished)
            {
                break waiting.swap_remove(index).await.unwrap().unwrap_err();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    assert!(refused.message.contains("already running"), "{refused}");
    for call in waiting {
        call.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_a_dead_agent_left_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::resolve(Some(folder.path())).unwrap();
    std::fs::write(home.socket_path(), b"").unwrap();
    assert!(Client::connect(&home).await.unwrap().is_none());
    let listener = Listener::bind(&home, home.lock().unwrap()).unwrap();
    let service = Arc::new(Fake::default());
    let task = tokio::spawn(serve(listener, service, std::future::pending()));
    assert!(Client::connect(&home).await.unwrap().is_some());
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_home_with_a_long_path_is_reached_too() {
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("long".repeat(50));
    let home = Home::resolve(Some(&long)).unwrap();
    let listener = Listener::bind(&home, home.lock().unwrap()).unwrap();
    // The home exists only now, and its path may resolve differently.
    let home = Home::resolve(Some(&long)).unwrap();
    let path = listener.path().to_owned();
    let task = tokio::spawn(serve(
        listener,
        Arc::new(Fake::default()),
        std::future::pending(),
    ));
    assert!(Client::connect(&home).await.unwrap().is_some());
    task.abort();
    let _ = task.await;
    assert!(!path.exists(), "the socket goes with its agent");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_can_reach_the_socket() {
    use std::os::unix::fs::PermissionsExt;

    let agent = Agent::start();
    let folder = agent.home.socket_path().parent().unwrap().to_owned();
    assert_eq!(
        std::fs::metadata(folder).unwrap().permissions().mode() & 0o077,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ask_streams_text_for_people_and_prints_one_object_for_programs() {
    let agent = Agent::start();
    let people = agent
        .skein(&["ask", "m", "hello", "--max-tokens", "3"])
        .await;
    assert!(people.status.success());
    assert_eq!(
        String::from_utf8(people.stdout).unwrap(),
        "word word word \n"
    );
    assert!(
        String::from_utf8(people.stderr)
            .unwrap()
            .contains("3 tokens")
    );

    let programs = agent
        .skein(&["ask", "m", "hello", "--max-tokens", "3", "--json"])
        .await;
    let answer: objects::Ask = serde_json::from_slice(&programs.stdout).unwrap();
    assert_eq!((answer.tokens, answer.seed), (vec![0, 1, 2], 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn logits_become_a_numpy_file() {
    let agent = Agent::start();
    let file = agent._folder.path().join("logits.npy");
    let out = file.to_str().unwrap();
    let output = agent
        .skein(&[
            "debug", "logits", "m", "--ids", "5,6,7", "--out", out, "--json",
        ])
        .await;
    assert!(output.status.success(), "{output:?}");
    let summary: LogitsSummary = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((summary.rows, summary.numerics), (3, Numerics::Exact));
    let bytes = std::fs::read(&file).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let values: Vec<f32> = bytes[start..]
        .as_chunks()
        .0
        .iter()
        .map(|value| f32::from_le_bytes(*value))
        .collect();
    assert_eq!(values, [0.0, 0.5, 1.0, 0.5, 2.0, 0.5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_when_it_has_come_about_or_the_time_is_over() {
    let agent = Agent::start();
    let ready = agent
        .skein(&["status", "--wait", "ready", "--timeout", "15s", "--json"])
        .await;
    assert!(ready.status.success(), "{ready:?}");
    let status: objects::Status = serde_json::from_slice(&ready.stdout).unwrap();
    assert_eq!(status.state, "available");

    let alone = agent
        .skein(&[
            "status",
            "--wait",
            "peers=1",
            "--timeout",
            "300ms",
            "--json",
        ])
        .await;
    assert_eq!(alone.status.code(), Some(7));
    let error: serde_json::Value = serde_json::from_slice(&alone.stdout).unwrap();
    assert_eq!(error["error"]["code"], "timed_out");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_follow_the_agents_refusals() {
    let agent = Agent::start();
    for (arguments, code) in [
        (&["plan", "m"][..], 5),
        (&["model", "show", "nothing"], 6),
        (&["fleet", "invite"], 4),
    ] {
        assert_eq!(
            agent.skein(arguments).await.status.code(),
            Some(code),
            "{arguments:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_returns_when_the_agent_is_gone() {
    let mut agent = Agent::start();
    let output = agent.skein(&["stop", "--json"]).await;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"{\"stopped\":true}\n");
    assert!(!agent.home.is_locked());
    timeout(SOON, &mut agent.task).await.unwrap().unwrap();
    assert_eq!(agent.skein(&["status"]).await.status.code(), Some(3));
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_cancels_the_request_in_the_agent_and_exits_130() {
    let agent = Agent::start();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_skein"));
    command
        .arg("--home")
        .arg(agent._folder.path())
        .args(["ask", "slow", "hello"]);
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut word = [0; 5];
    let stdout = child.stdout.as_mut().unwrap();
    timeout(SOON, tokio::io::AsyncReadExt::read_exact(stdout, &mut word))
        .await
        .unwrap()
        .unwrap();
    let pid = rustix::process::Pid::from_raw(child.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = timeout(SOON, child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(130));
    timeout(SOON, async {
        while !agent.service.dropped.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the agent notices");
}
