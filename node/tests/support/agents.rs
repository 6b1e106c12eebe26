//! Agents on loopback, driven through the command line.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest that anything here may take; a busy machine with two cores needs a part of it.
pub const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(30);

/// A folder with a home for each agent.
pub struct Place {
    folder: tempfile::TempDir,
}

/// One agent process and its home.
pub struct Agent {
    pub name: String,
    pub home: PathBuf,
    pub peer: String,
    pub address: String,
    child: Child,
}

/// A command of `skein` under way.
pub struct Running {
    child: Child,
    output: Option<JoinHandle<Vec<u8>>>,
    what: String,
}

impl Place {
    pub fn new() -> Self {
        Self {
            folder: super::folder(),
        }
    }

    /// The path of a file or home.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A home whose agent is called like it. The speed of the devices is measured once a place.
    pub fn home(&self, name: &str) -> PathBuf {
        let home = self.path(name);
        fs::create_dir_all(&home).unwrap();
        fs::write(home.join("settings.toml"), format!("name = \"{name}\"\n")).unwrap();
        let measured = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path().join("calibration.json"))
            .find(|path| path.is_file());
        let own = home.join("calibration.json");
        if let Some(measured) = measured.filter(|_| !own.exists()) {
            fs::copy(measured, own).unwrap();
        }
        home
    }

    /// Starts an agent, also on a home that one had before, and waits until it knows its devices.
    pub fn start(&self, name: &str, flags: &[&str]) -> Agent {
        let home = self.home(name);
        let mut child = Command::new(env!("CARGO_BIN_EXE_skein"))
            .arg("--home")
            .arg(&home)
            .args(["--json", "agent", "--no-mdns", "--until-stdin-closes"])
            .args(["--listen", "/ip4/127.0.0.1/tcp/0", "--threads", "1"])
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(home.join("stderr.log")).unwrap())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let mut agent = Agent {
            name: name.to_owned(),
            home,
            peer: String::new(),
            address: String::new(),
            child,
        };
        let (sender, lines) = mpsc::channel();
        // Reads on, so that the pipe never fills up.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let first = lines
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("{name} did not start: {}", agent.log()));
        let ready: Value = serde_json::from_str(&first).unwrap();
        assert_eq!(ready["event"], "ready", "{first}");
        agent.peer = text(&ready["peer"]).to_owned();
        agent.address = text(&ready["addresses"][0]).to_owned();
        agent.wait_for("its devices", |agent| {
            agent.done(&["status"])["state"] == "available"
        });
        agent
    }

    /// Runs a command on a home that has no agent.
    pub fn run(&self, name: &str, arguments: &[&str]) -> (i32, Value) {
        Running::start(&self.home(name), arguments).finish()
    }
}

impl Agent {
    /// Runs a command and gives its exit status and object.
    pub fn run(&self, arguments: &[&str]) -> (i32, Value) {
        self.begin(arguments).finish()
    }

    /// Runs a command that has to succeed.
    pub fn done(&self, arguments: &[&str]) -> Value {
        let (code, object) = self.run(arguments);
        assert_eq!(
            code,
            0,
            "{} {arguments:?}: {object}\n{}",
            self.name,
            self.log()
        );
        object
    }

    /// Begins a command.
    pub fn begin(&self, arguments: &[&str]) -> Running {
        Running::start(&self.home, arguments)
    }

    /// Looks until `done` says so.
    pub fn wait_for(&self, what: &str, done: impl Fn(&Self) -> bool) {
        wait_for(&format!("{}: {what}", self.name), PATIENCE, || done(self));
    }

    /// Waits until it hears from these peers and from what they can do.
    pub fn sees(&self, peers: &[&Agent]) {
        self.wait_for("its peers", |agent| {
            let seen = agent.done(&["peers"]);
            let usable = |peer: &&Agent| {
                list(&seen)
                    .iter()
                    .any(|one| one["peer"] == peer.peer && one["state"] == "available")
            };
            peers.iter().all(usable)
        });
    }

    /// Waits until it hears that `peer` holds all of a model.
    pub fn hears_of(&self, peer: &Agent, model: &Value) {
        let segments = list(&model["segments"]).len() as u64;
        self.wait_for("a model of a peer", |agent| {
            let seen = agent.done(&["peers"]);
            let peers = list(&seen).iter();
            let mut held = peers
                .filter(|one| one["peer"] == peer.peer)
                .flat_map(|one| list(&one["held"]));
            held.any(|held| held["model"] == model["id"] && held["segments"] == segments)
        });
    }

    /// What it wrote to stderr.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.join("stderr.log")).unwrap_or_default()
    }

    /// Where a model's weights are.
    pub fn weights_file(&self, model: &Value) -> PathBuf {
        let folder = self.home.join("store/models").join(text(&model["id"]));
        folder.join("weights.bin")
    }

    /// Hashes every segment that it says it holds of its only model, and gives their names.
    pub fn check_what_is_held(&self) -> Vec<String> {
        let models = self.done(&["model", "ls"]);
        let Some(model) = list(&models).first() else {
            return Vec::new();
        };
        let offsets = offsets(model);
        let mut names = Vec::new();
        for segment in list(&model["segments"]) {
            if segment["held"] != true {
                continue;
            }
            let name = text(&segment["name"]);
            let range = &offsets[name];
            let mut bytes = vec![0; (range.end - range.start) as usize];
            let file = fs::File::open(self.weights_file(model)).unwrap();
            file.read_exact_at(&mut bytes, range.start).unwrap();
            let hash = blake3::hash(&bytes).to_hex();
            assert_eq!(hash.as_str(), text(&segment["hash"]), "{segment}");
            names.push(name.to_owned());
        }
        names
    }

    /// Ends it as a crash would.
    pub fn kill_9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processes that it started and that still run.
    pub fn workers(&self) -> Vec<u32> {
        children_of(self.pid())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Its parent's pipe closes: it leaves its lines, and ends.
        drop(self.child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            sleep(LOOK_AGAIN);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(home: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_skein"))
            .arg("--home")
            .arg(home)
            .arg("--json")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let output = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stdout.read_to_end(&mut bytes);
            bytes
        });
        Self {
            child,
            output: Some(output),
            what: arguments.join(" "),
        }
    }

    /// Waits for its end and gives exit status and object.
    pub fn finish(mut self) -> (i32, Value) {
        let mut code = None;
        wait_for(&self.what.clone(), PATIENCE, || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        let bytes = self.output.take().unwrap().join().unwrap();
        let object = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| panic!("{}: {}", self.what, String::from_utf8_lossy(&bytes)));
        (code.and_then(|code| code.code()).unwrap_or(-1), object)
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks until `done` says so, and fails after `within`.
pub fn wait_for(what: &str, within: Duration, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !done() {
        assert!(
            Instant::now() < deadline,
            "waited {within:?} for {what}, in vain"
        );
        sleep(LOOK_AGAIN);
    }
}

/// Whether a process still runs; one that only waits to be reaped does not.
pub fn is_alive(pid: u32) -> bool {
    fields(pid).is_some_and(|(state, _)| !matches!(state.as_str(), "Z" | "X"))
}

/// Ends a process that a test's agent started.
pub fn kill_9(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            fields(*pid).is_some_and(|(state, of)| of == parent && state != "Z" && state != "X")
        })
        .collect()
}

/// State and parent.
fn fields(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &stat[stat.rfind(')')? + 2..];
    let mut fields = rest.split(' ');
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// Where each segment of a model is in its weights: they follow each other at multiples of 4,096.
pub fn offsets(model: &Value) -> BTreeMap<String, Range<u64>> {
    let mut next = 0u64;
    list(&model["segments"])
        .iter()
        .map(|segment| {
            let start = next;
            let end = start + number(&segment["bytes"]);
            next = end.next_multiple_of(4096);
            (text(&segment["name"]).to_owned(), start..end)
        })
        .collect()
}

pub fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
}

pub fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

pub fn list(value: &Value) -> &[Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("{value} is no list"))
}
