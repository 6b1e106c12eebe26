//! A check-up of this machine: what an agent of this home needs, and what is missing.
//!
//! Changes nothing, fetches nothing, and never loads OpenVINO into this process: devices are listed
//! by a worker. Nothing that is amiss makes the check-up itself fail.

use std::{net::TcpListener, path::PathBuf, time::Duration};

use skein_provide::{Env, OpenVino, Source, default_model_in_cache, locate_openvino, openvino};

use super::fleet;
use crate::{
    control::{Client, Command, RuntimeReport},
    error::Error,
    host,
    objects::{Check, CheckStatus, Device, Doctor, Status},
    output,
    paths::Home,
    platform,
    settings::Settings,
};

/// Below this, not even the default model runs with room to spare.
const LITTLE_MEMORY: u64 = 2 << 30;

/// Below this, an import or a pull soon fills the disk.
const LITTLE_DISK: u64 = 5 << 30;

/// How long the agent may take to say how it is.
const AGENT_ANSWERS: Duration = Duration::from_secs(5);

/// Looks at everything that an agent of this home needs.
pub async fn check(home: &Home) -> Doctor {
    let env = Env::of_process();
    let (openvino, runtime) = openvino(&env).await;
    let (devices, found) = devices(&env, runtime.as_ref()).await;
    let agent = ask_agent(home).await;
    let checks = vec![
        openvino,
        devices,
        memory(),
        disk(home),
        cache(&env),
        home_check(home),
        agent_check(home, &agent),
        fleet_check(home, &agent),
        ports(home, &agent),
    ];
    Doctor {
        checks,
        devices: found,
    }
}

fn ok(name: &str, detail: impl Into<String>) -> Check {
    Check {
        name: name.into(),
        status: CheckStatus::Ok,
        detail: detail.into(),
        hint: None,
    }
}

fn warning(name: &str, detail: impl Into<String>, hint: impl Into<String>) -> Check {
    let status = CheckStatus::Warning;
    Check {
        name: name.into(),
        status,
        detail: detail.into(),
        hint: Some(hint.into()),
    }
}

fn failed(name: &str, error: Error) -> Check {
    let status = CheckStatus::Warning;
    Check {
        name: name.into(),
        status,
        detail: error.message,
        hint: error.hint,
    }
}

fn unknown(name: &str, detail: impl Into<String>) -> Check {
    Check {
        name: name.into(),
        status: CheckStatus::Unknown,
        detail: detail.into(),
        hint: None,
    }
}

async fn openvino(env: &Env) -> (Check, Option<OpenVino>) {
    const NAME: &str = "openvino";
    let looked = {
        let env = env.clone();
        // Asks a Python interpreter, which takes a moment.
        super::blocking(move || Ok(locate_openvino(&env))).await
    };
    match looked {
        Ok(Ok(Some(found))) => {
            let how = match found.source {
                Source::Variable => "OPENVINO_DIR",
                Source::Python => "a Python package",
                Source::Cache => "the cache",
            };
            let detail = format!(
                "{} from {how}: {}",
                openvino::VERSION,
                found.libs_dir.display()
            );
            (ok(NAME, detail), Some(found))
        }
        Ok(Ok(None)) => {
            let detail = match openvino::announcement(env) {
                Ok(fetch) => format!("not here; {fetch} when an agent first needs it"),
                Err(error) => format!("not here, and it cannot be fetched: {error}"),
            };
            let hint = "start an agent to fetch it, or set OPENVINO_DIR to where it is";
            (warning(NAME, detail, hint), None)
        }
        Ok(Err(error)) => (warning(NAME, error.to_string(), error.hint()), None),
        Err(error) => (unknown(NAME, error.message), None),
    }
}

/// What the runtime sees, told by a worker.
async fn devices(env: &Env, runtime: Option<&OpenVino>) -> (Check, Vec<Device>) {
    const NAME: &str = "devices";
    let Some(runtime) = runtime else {
        return (
            unknown(NAME, "they can be listed once OpenVINO is here"),
            Vec::new(),
        );
    };
    let places = host::executable()
        .map_err(|error| error.to_string())
        .and_then(|program| Ok((program, env.cache_dir().map_err(|error| error.to_string())?)));
    let (program, cache): (PathBuf, PathBuf) = match places {
        Ok(places) => places,
        Err(error) => return (unknown(NAME, error), Vec::new()),
    };
    match host::probe(&program, &runtime.libs_dir, &cache, false).await {
        Ok(report) => {
            let devices: Vec<Device> = report
                .devices
                .into_iter()
                .map(|device| Device {
                    id: device.id,
                    name: device.name,
                    memory_bytes: device.memory_bytes,
                    calibrated: device.bytes_per_s.is_some(),
                })
                .collect();
            let names: Vec<_> = devices
                .iter()
                .map(|d| format!("{} ({})", d.id, d.name))
                .collect();
            let check = if devices.is_empty() {
                warning(
                    NAME,
                    "OpenVINO sees none",
                    "update the drivers of this machine's devices",
                )
            } else {
                ok(NAME, names.join(", "))
            };
            (check, devices)
        }
        Err(error) => {
            let hint =
                "the library may be damaged or of another system; remove it and fetch it again";
            (warning(NAME, error.to_string(), hint), Vec::new())
        }
    }
}

fn memory() -> Check {
    let (total, available) = (platform::total_memory(), platform::available_memory());
    let detail = format!(
        "{} of {} available",
        output::size(available),
        output::size(total)
    );
    if available < LITTLE_MEMORY {
        let hint = "close other programs; a stage takes its weights, caches and some working space";
        warning("memory", detail, hint)
    } else {
        ok("memory", detail)
    }
}

fn disk(home: &Home) -> Check {
    match platform::disk_available(&home.store_dir()) {
        None => unknown(
            "disk",
            format!("{} has no disk that we know of", home.label()),
        ),
        Some(free) => {
            let detail = format!("{} free for models in {}", output::size(free), home.label());
            if free < LITTLE_DISK {
                warning(
                    "disk",
                    detail,
                    "free some space, or keep models elsewhere with --home",
                )
            } else {
                ok("disk", detail)
            }
        }
    }
}

fn cache(env: &Env) -> Check {
    match env.cache_dir() {
        Err(error) => warning("cache", error.to_string(), error.hint()),
        Ok(folder) => {
            let model = match default_model_in_cache(env) {
                Ok(Some(_)) => "has the default model",
                _ => "does not have the default model",
            };
            match writable(&folder) {
                Ok(()) => ok("cache", format!("{} {model}", folder.display())),
                Err(error) => warning(
                    "cache",
                    format!("{} cannot be written: {error}", folder.display()),
                    "set SKEIN_CACHE to a folder that can",
                ),
            }
        }
    }
}

fn home_check(home: &Home) -> Check {
    let folder = home.data_dir();
    if let Err(error) = Settings::load(home) {
        return failed("home", error);
    }
    match writable(folder) {
        Ok(()) if home.exists() => ok("home", home.label()),
        Ok(()) => ok(
            "home",
            format!("{} is made when it is first needed", home.label()),
        ),
        Err(error) => warning(
            "home",
            format!("{} cannot be written: {error}", home.label()),
            "keep files elsewhere with --home or SKEIN_HOME",
        ),
    }
}

/// Whether a folder, or the one it would be made in, takes files.
fn writable(folder: &std::path::Path) -> std::io::Result<()> {
    let existing = folder
        .ancestors()
        .find(|folder| folder.exists())
        .unwrap_or(folder);
    tempfile::tempfile_in(existing).map(drop)
}

/// What the running agent says of itself.
enum Agent {
    None,
    Silent(String),
    Running(Box<Status>, Option<RuntimeReport>),
}

async fn ask_agent(home: &Home) -> Agent {
    let ask = async {
        let Some(client) = Client::connect(home).await? else {
            return Ok(Agent::None);
        };
        let status = client.call(Command::Status, |_| Ok(())).await?;
        let runtime = match Client::connect(home).await? {
            Some(client) => client.call(Command::Runtime, |_| Ok(())).await.ok(),
            None => None,
        };
        Ok::<_, Error>(Agent::Running(Box::new(status), runtime))
    };
    match tokio::time::timeout(AGENT_ANSWERS, ask).await {
        Ok(Ok(agent)) => agent,
        Ok(Err(error)) => Agent::Silent(error.message),
        Err(_) => Agent::Silent("the agent does not answer".into()),
    }
}

fn agent_check(home: &Home, agent: &Agent) -> Check {
    match agent {
        Agent::None => warning(
            "agent",
            format!("none is running for {}", home.label()),
            "start one with `skein agent`",
        ),
        Agent::Silent(reason) => warning(
            "agent",
            reason.clone(),
            "its log is in the home's `logs` folder",
        ),
        Agent::Running(status, _) => {
            let reason = status.reason.as_deref().map(|reason| format!(": {reason}"));
            let detail = format!(
                "running as {}, {}{}",
                status.name,
                status.state,
                reason.unwrap_or_default()
            );
            ok("agent", detail)
        }
    }
}

fn fleet_check(home: &Home, agent: &Agent) -> Check {
    const HINT: &str = "found one with `skein fleet new`, or join one with `skein join INVITE`";
    let fleet = match agent {
        Agent::Running(status, _) => Ok(status.fleet.clone()),
        Agent::None | Agent::Silent(_) => fleet::look(home),
    };
    match fleet {
        Ok(Some(fleet)) => {
            let role = match fleet.role {
                crate::objects::Role::Root => "its root",
                crate::objects::Role::Member => "a member",
            };
            let connected = match agent {
                Agent::Running(_, Some(runtime)) => {
                    format!(", connected to {} others", runtime.connected)
                }
                _ => String::new(),
            };
            ok("fleet", format!("{role} of {}{connected}", fleet.name))
        }
        Ok(None) => warning("fleet", "this machine belongs to none", HINT),
        Err(error) => failed("fleet", error),
    }
}

/// Whether the addresses that an agent would listen on are free, or those it does.
fn ports(home: &Home, agent: &Agent) -> Check {
    const NAME: &str = "ports";
    if let Agent::Running(_, runtime) = agent {
        return match runtime {
            Some(runtime) if runtime.listening.is_empty() => warning(
                NAME,
                "the agent listens nowhere",
                "start it with --listen, such as /ip4/0.0.0.0/tcp/4810",
            ),
            Some(runtime) => ok(
                NAME,
                format!("listening on {}", runtime.listening.join(", ")),
            ),
            None => unknown(NAME, "the agent does not say"),
        };
    }
    let Ok(settings) = Settings::load(home) else {
        return unknown(NAME, "the settings cannot be read");
    };
    let listen = if settings.listen.is_empty() {
        crate::agent::run::default_listen()
    } else {
        settings.listen
    };
    let taken: Vec<_> = listen
        .iter()
        .filter(|address| is_taken(address))
        .cloned()
        .collect();
    if taken.is_empty() {
        ok(NAME, format!("free: {}", listen.join(", ")))
    } else {
        let hint = "another program has them; let the agent listen elsewhere with --listen";
        warning(NAME, format!("taken: {}", taken.join(", ")), hint)
    }
}

/// Whether somebody has the port of a TCP multiaddr. Others, and port 0, count as free.
fn is_taken(address: &str) -> bool {
    let mut parts = address.split('/').skip(1);
    let (Some("ip4" | "ip6"), Some(host), Some("tcp"), Some(port)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let (Ok(host), Ok(port)) = (host.parse::<std::net::IpAddr>(), port.parse::<u16>()) else {
        return false;
    };
    let bound = TcpListener::bind((host, port));
    bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_somebody_has_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_taken(&format!("/ip4/127.0.0.1/tcp/{port}")));
        assert!(!is_taken("/ip4/127.0.0.1/tcp/0"));
        assert!(!is_taken("/ip4/127.0.0.1/udp/1/quic-v1") && !is_taken("nonsense"));
    }
}
