//! The built program as a script sees it: exit codes, one object on stdout, help with examples.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// A program with a home of its own and nothing of the user's around it.
struct Program {
    home: tempfile::TempDir,
    cache: tempfile::TempDir,
}

impl Program {
    fn new() -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
            cache: tempfile::tempdir().unwrap(),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
        command
            .env("SKEIN_HOME", self.home.path())
            .env("SKEIN_CACHE", self.cache.path())
            .stdin(Stdio::null())
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs with `--json`: the exit code and the one object.
    fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let output = self.run(&[arguments, &["--json"]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let object = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{arguments:?} printed {text:?}: {error}"));
        assert_eq!(text.lines().count(), 1, "{text}");
        (output.status.code().expect("an exit code"), object)
    }

    fn store_is_empty(&self) -> bool {
        let (code, models) = self.json(&["model", "ls"]);
        assert_eq!(code, 0);
        let store = self.home.path().join("store");
        models == Value::Array(Vec::new())
            && bytes_below(&store, &["models", "import", "trash"]) == 0
    }
}

/// Bytes of the files in some folders of a store.
fn bytes_below(store: &Path, folders: &[&str]) -> u64 {
    fn sum(folder: &Path) -> u64 {
        let Ok(entries) = fs::read_dir(folder) else {
            return 0;
        };
        let sizes = entries.map(|entry| {
            let entry = entry.unwrap();
            let found = entry.metadata().unwrap();
            if found.is_dir() {
                sum(&entry.path())
            } else {
                found.len()
            }
        });
        sizes.sum()
    }
    folders.iter().map(|folder| sum(&store.join(folder))).sum()
}

#[test]
fn commands_that_need_an_agent_exit_3_without_one_and_say_how_to_start_it() {
    let program = Program::new();
    for arguments in [
        &["status"][..],
        &["peers"],
        &["stop"],
        &["plan", "m"],
        &["ask", "m", "hello"],
        &["fleet", "invite"],
        &["debug", "logits", "m", "--ids", "1", "--out", "x.npy"],
        &["status", "--wait", "ready", "--timeout", "200ms"],
    ] {
        let (code, object) = program.json(arguments);
        assert_eq!(code, 3, "{arguments:?}");
        assert_eq!(object["error"]["code"], "no_agent");
        assert!(
            object["error"]["message"]
                .as_str()
                .unwrap()
                .contains("no agent is running for")
        );
        assert!(
            object["error"]["hint"]
                .as_str()
                .unwrap()
                .contains("skein agent")
        );
    }
}

#[test]
fn without_json_an_error_is_a_fact_and_a_hint_on_stderr_and_stdout_is_empty() {
    let output = Program::new().run(&["status"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(output.stdout.is_empty());
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.starts_with("error: no agent is running"), "{words}");
    assert!(
        words.contains("\nhint: start one with `skein agent`"),
        "{words}"
    );
}

#[test]
fn wrong_usage_exits_2_with_one_error_object() {
    let program = Program::new();
    for arguments in [
        &["fly"][..],
        &["status", "--wait", "rain"],
        &["status", "--timeout", "soon"],
        &["ask", "m", "hello", "--temperature", "-1"],
        &["ask", "m", "hello", "--temperature", "nan"],
        &["ask", "m", "hello", "--max-tokens", "0"],
        &["ask", "m", "hello", "--ids", "1,2"],
        &["ask", "m", "--ids", "1,x"],
        &["ask", "m", "hello", "--raw", "--system", "s"],
        &["ask", "m", "hello", "--numerics", "sloppy"],
        &["ask", "m", "hello", "--nodes", "0"],
        &["ask"],
        &["ask", "m"],
        &["agent", "--memory", "lots"],
        &["agent", "--listen", "localhost:80"],
        &["agent", "--device", "TPU"],
        &["fleet", "invite", "--uses", "0"],
        &["fleet", "invite", "--expires", "never"],
        &["model", "tokenize", "m"],
        &["model", "tokenize", "m", "--text", "a", "--chat", "b"],
        &["model", "add"],
        &["model", "add", "x.gguf", "--weights", "int3"],
        &["demo", "--nodes", "1"],
        &["--home", "", "status"],
    ] {
        let (code, object) = program.json(arguments);
        assert_eq!(code, 2, "{arguments:?}: {object}");
        assert_eq!(object["error"]["code"], "usage", "{arguments:?}");
        assert!(!object["error"]["message"].as_str().unwrap().is_empty());
    }
}

#[test]
fn what_does_not_exist_yet_exits_2_and_is_named() {
    let program = Program::new();
    for (arguments, name) in [
        (
            &["bench", "decode", "--model", "m"][..],
            "skein bench decode",
        ),
        (
            &["bench", "wan", "--model", "m", "--delay", "20"],
            "skein bench wan",
        ),
        (&["model", "export", "m", "folder"], "skein model export"),
        (&["ask", "m", "hello", "--draft", "ngram"], "--draft"),
        (&["ask", "m", "hello", "--stop", "."], "--stop"),
        (&["ask", "m", "hello", "--top-k", "4"], "--top-k"),
        (&["ask", "m", "hello", "--top-p", "0.9"], "--top-p"),
        (&["ask", "m", "hello", "--min-p", "0.1"], "--min-p"),
    ] {
        let (code, object) = program.json(arguments);
        assert_eq!(code, 2, "{arguments:?}");
        assert_eq!(object["error"]["code"], "not_yet");
        assert!(
            object["error"]["message"].as_str().unwrap().contains(name),
            "{object}"
        );
    }
    // `off` is what there is, so this gets as far as looking for an agent.
    assert_eq!(program.json(&["ask", "m", "hello", "--draft", "off"]).0, 3);
}

#[test]
fn every_command_has_help_with_an_example() {
    fn walk(command: &clap::Command, path: &[&str], program: &Program) {
        let output = program.run(&[path, &["--help"]].concat());
        assert_eq!(output.status.code(), Some(0), "{path:?}");
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(help.contains("Example"), "{path:?} has no example");
        assert!(
            help.contains(&format!(
                "  {}",
                ["skein"]
                    .iter()
                    .chain(path)
                    .copied()
                    .collect::<Vec<_>>()
                    .join(" ")
            )) || path.is_empty(),
            "the example of {path:?} is of another command:\n{help}"
        );
        for sub in command
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help")
        {
            walk(sub, &[path, &[sub.get_name()]].concat(), program);
        }
    }
    walk(&skein::cli::definition(), &[], &Program::new());
}

#[test]
fn the_definition_of_the_command_line_is_consistent() {
    skein::cli::definition().debug_assert();
}

#[test]
fn a_file_that_is_no_model_exits_6_and_leaves_nothing_in_the_store() {
    let program = Program::new();
    let files = tempfile::tempdir().unwrap();
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend(1u64.to_le_bytes());
    let mut endless = header.clone();
    endless.extend(u64::MAX.to_le_bytes());
    let mut unknown = header.clone();
    unknown[8..16].copy_from_slice(&0u64.to_le_bytes());
    unknown.extend(1u64.to_le_bytes());
    unknown.extend(20u64.to_le_bytes());
    unknown.extend(b"general.architecture");
    unknown.extend(8u32.to_le_bytes());
    unknown.extend(6u64.to_le_bytes());
    unknown.extend(b"mystic");
    for (name, bytes) in [
        ("empty.gguf", Vec::new()),
        ("text.gguf", b"this is a poem, not a model".to_vec()),
        ("zip.gguf", b"PK\x03\x04".repeat(100)),
        ("old.gguf", b"GGUF\x01\0\0\0".to_vec()),
        ("truncated.gguf", header),
        ("endless.gguf", endless),
        ("unknown.gguf", unknown),
    ] {
        let path = files.path().join(name);
        fs::write(&path, bytes).unwrap();
        let (code, object) = program.json(&["model", "add", path.to_str().unwrap()]);
        assert_eq!(code, 6, "{name}: {object}");
        assert_eq!(object["error"]["code"], "bad_model", "{name}: {object}");
        assert!(object["error"]["message"].as_str().unwrap().contains(name));
        assert!(object["error"]["hint"].is_string(), "{name}");
        assert!(program.store_is_empty(), "{name}");
    }
    for missing in ["not-there.gguf", "."] {
        assert_eq!(program.json(&["model", "add", missing]).0, 6, "{missing}");
    }
    assert!(program.store_is_empty());
}

#[test]
fn a_model_that_is_not_here_exits_6() {
    let program = Program::new();
    for arguments in [
        &["model", "show", "nothing"][..],
        &["model", "rm", "nothing"],
        &["model", "tokenize", "nothing", "--text", "hello"],
    ] {
        let (code, object) = program.json(arguments);
        assert_eq!(
            (code, &object["error"]["code"]),
            (6, &Value::from("not_found")),
            "{arguments:?}"
        );
    }
}

#[test]
fn a_chat_file_that_is_none_exits_6() {
    let program = Program::new();
    let file = program.cache.path().join("chat.json");
    fs::write(&file, r#"{"role": "user"}"#).unwrap();
    let (code, object) =
        program.json(&["model", "tokenize", "m", "--chat", file.to_str().unwrap()]);
    assert_eq!(
        (code, &object["error"]["code"]),
        (6, &Value::from("bad_input"))
    );
}

#[test]
fn a_fleet_is_founded_once_without_an_agent() {
    let program = Program::new();
    let (code, fleet) = program.json(&["fleet", "new", "attic"]);
    assert_eq!((code, &fleet["name"]), (0, &Value::from("attic")));
    assert!(fleet["id"].as_str().unwrap().len() > 40);
    let (code, object) = program.json(&["fleet", "new", "cellar"]);
    assert_eq!(
        (code, &object["error"]["code"]),
        (4, &Value::from("refused"))
    );
    assert!(
        object["error"]["message"]
            .as_str()
            .unwrap()
            .contains("attic"),
        "{object}"
    );
    let (_, report) = program.json(&["doctor"]);
    let checks = report["checks"].as_array().unwrap();
    let fleet = checks
        .iter()
        .find(|check| check["name"] == "fleet")
        .unwrap();
    assert!(
        fleet["detail"].as_str().unwrap().contains("attic"),
        "{fleet}"
    );
}

#[test]
fn text_that_is_no_invite_is_bad_input() {
    let program = Program::new();
    for text in ["hello", "skein1aaaa", "skein1"] {
        let (code, object) = program.json(&["join", text]);
        assert_eq!(
            (code, &object["error"]["code"]),
            (6, &Value::from("bad_input")),
            "{text}"
        );
    }
}

#[test]
fn the_doctor_speaks_where_there_is_no_openvino_and_leaves_no_home_behind() {
    let program = Program::new();
    let home = program.home.path().join("not-yet");
    let mut command = program.command(&["doctor", "--json"]);
    // An empty PATH has no Python to ask, and the empty cache has no runtime.
    command
        .env("SKEIN_HOME", &home)
        .env("PATH", "")
        .env_remove("OPENVINO_DIR");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| {
            assert!(["ok", "warning", "unknown"].contains(&check["status"].as_str().unwrap()));
            check["name"].as_str().unwrap()
        })
        .collect();
    for name in [
        "openvino", "devices", "memory", "disk", "cache", "home", "agent", "fleet", "ports",
    ] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    let openvino = &report["checks"][0];
    assert_eq!(openvino["status"], "warning", "{openvino}");
    assert!(openvino["hint"].is_string());
    assert!(!home.exists());
}

#[test]
fn the_doctor_reports_an_openvino_of_no_use_and_goes_on() {
    let program = Program::new();
    let mut command = program.command(&["doctor", "--json"]);
    let output = command
        .env("OPENVINO_DIR", program.home.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["checks"][0]["status"], "warning");
    assert!(report["checks"].as_array().unwrap().len() >= 9);
}

#[test]
fn settings_that_make_no_sense_keep_an_agent_from_starting() {
    let program = Program::new();
    fs::write(
        program.home.path().join("settings.toml"),
        "memory = \"lots\"\n",
    )
    .unwrap();
    let (code, object) = program.json(&["agent"]);
    assert_eq!(
        (code, &object["error"]["code"]),
        (6, &Value::from("bad_input")),
        "{object}"
    );
    assert!(
        object["error"]["message"]
            .as_str()
            .unwrap()
            .contains("settings.toml")
    );
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let program = Program::new();
    let mut child = program
        .command(&["doctor", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
