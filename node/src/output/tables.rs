//! The contract's objects as tables and words.

use comfy_table::{ContentArrangement, Table, presets};

use super::words::{printable, short, size};
use crate::objects::{
    Ask, CheckStatus, Demo, Device, Doctor, LineState, Model, Numerics, Peer, Plan, Role, Stage,
    Status, Tokenized,
};

/// `skein status`.
pub fn status(status: &Status) -> String {
    let mut lines = vec![format!("{} ({})", printable(&status.name), status.peer)];
    lines.push(format!(
        "state    {}",
        state(&status.state, status.reason.as_deref())
    ));
    lines.push(match &status.fleet {
        Some(fleet) => {
            let role = match fleet.role {
                Role::Root => "root",
                Role::Member => "member",
            };
            format!(
                "fleet    {} ({}), {role}",
                printable(&fleet.name),
                short(&fleet.id)
            )
        }
        None => "fleet    none: it serves this machine alone".into(),
    });
    lines.push(format!("devices  {}", devices(&status.devices)));
    for (what, budget) in [("memory", status.memory), ("disk", status.disk)] {
        lines.push(format!(
            "{what:<8} {} of {} used",
            size(budget.used),
            size(budget.cap)
        ));
    }
    if let Some(api) = &status.api {
        lines.push(format!("api      {}", printable(api)));
    }
    if !status.models.is_empty() {
        let mut table = table(["MODEL", "ID", "SEGMENTS HELD"]);
        for model in &status.models {
            table.add_row([
                printable(&model.name),
                short(&model.id),
                format!("{} of {}", model.segments_held, model.segments),
            ]);
        }
        lines.push(format!("\n{table}"));
    }
    for line in &status.lines {
        let name = status.models.iter().find(|model| model.id == line.model);
        let name = name.map_or_else(|| short(&line.model), |model| printable(&model.name));
        let state = match line.state {
            LineState::Building => "building",
            LineState::Serving => "serving",
            LineState::Draining => "draining",
            LineState::Failed => "failed",
            LineState::Ended => "ended",
        };
        lines.push(format!(
            "\nline for {name}: {state}, epoch {}, {} request{}",
            line.epoch,
            line.requests,
            plural(line.requests.into())
        ));
        if !line.stages.is_empty() {
            lines.push(stages(&line.stages));
        }
    }
    lines.join("\n")
}

/// `skein peers`.
pub fn peers(peers: &[Peer]) -> String {
    if peers.is_empty() {
        return "no other members are known".into();
    }
    let mut table = table([
        "NAME", "PEER", "STATE", "RTT", "DEVICES", "FREE", "HOLDS", "SEEN",
    ]);
    for peer in peers {
        let held: u64 = peer.held.iter().map(|held| u64::from(held.segments)).sum();
        table.add_row([
            printable(&peer.name),
            short(&peer.peer),
            state(&peer.state, peer.reason.as_deref()),
            peer.rtt_ms
                .map_or_else(|| "–".into(), |rtt| format!("{rtt:.1} ms")),
            devices(&peer.devices),
            size(peer.memory_free),
            format!("{held} segment{}", plural(held)),
            format!("{:.0} s ago", peer.last_seen_s),
        ]);
    }
    table.to_string()
}

/// `skein plan`.
pub fn plan(plan: &Plan) -> String {
    let mut table = table([
        "STAGE", "MACHINE", "DEVICE", "LAYERS", "WEIGHTS", "KV", "HEADROOM", "STEP",
    ]);
    for (index, stage) in plan.stages.iter().enumerate() {
        table.add_row([
            index.to_string(),
            format!("{} ({})", printable(&stage.name), short(&stage.peer)),
            printable(&stage.device),
            layers(stage.layers),
            size(stage.weights_bytes),
            size(stage.kv_bytes),
            size(stage.headroom_bytes),
            stage
                .est_step_ms
                .map_or_else(|| "–".into(), |ms| format!("{ms:.1} ms")),
        ]);
    }
    let mut text = format!("{table}\ncontext {} tokens", plan.ctx);
    if let Some(speed) = plan.est_tokens_per_s {
        text.push_str(&format!(", about {speed:.1} tokens/s"));
    }
    for peer in &plan.left_out {
        let name = format!("{} ({})", printable(&peer.name), short(&peer.peer));
        text.push_str(&format!("\nleft out: {name}: {}", printable(&peer.reason)));
    }
    text
}

/// `skein model ls`.
pub fn models(models: &[Model]) -> String {
    if models.is_empty() {
        return "no models; `skein model add FILE` imports one".into();
    }
    let mut table = table([
        "NAME", "ID", "FAMILY", "LAYERS", "CONTEXT", "WEIGHTS", "SIZE", "HELD",
    ]);
    for model in models {
        table.add_row([
            printable(&model.name),
            short(&model.id),
            printable(&model.family),
            model.layers.to_string(),
            model.context.to_string(),
            printable(&model.weights),
            size(model.bytes),
            held(model),
        ]);
    }
    table.to_string()
}

/// `skein model show`.
pub fn model(model: &Model) -> String {
    let unknown = || "unknown".to_owned();
    let mut text = format!(
        "{} ({})\nfamily   {}, {} layers, hidden {}, vocabulary {}, context {}\n\
         weights  {}, {}\nlicence  {}\nsource   {}\nstops at {:?}\n",
        printable(&model.name),
        model.id,
        printable(&model.family),
        model.layers,
        model.hidden,
        model.vocab,
        model.context,
        printable(&model.weights),
        size(model.bytes),
        model.license.as_deref().map_or_else(unknown, printable),
        model.source.as_deref().map_or_else(unknown, printable),
        model.stop_ids,
    );
    let mut table = table(["SEGMENT", "SIZE", "HASH", "HELD"]);
    for segment in &model.segments {
        table.add_row([
            printable(&segment.name),
            size(segment.bytes),
            short(&segment.hash),
            if segment.held { "yes" } else { "no" }.to_owned(),
        ]);
    }
    text.push_str(&table.to_string());
    text
}

/// `skein model tokenize`.
pub fn tokens(tokens: &Tokenized) -> String {
    let mut table = table(["ID", "TOKEN"]);
    for (id, token) in tokens.ids.iter().zip(&tokens.tokens) {
        table.add_row([id.to_string(), format!("{token:?}")]);
    }
    let count = tokens.ids.len() as u64;
    format!("{table}\n{count} token{}", plural(count))
}

/// `skein doctor`.
pub fn doctor(doctor: &Doctor) -> String {
    let mut lines = Vec::new();
    for check in &doctor.checks {
        let mark = match check.status {
            CheckStatus::Ok => "\x1b[32mok     \x1b[0m",
            CheckStatus::Warning => "\x1b[33mwarning\x1b[0m",
            CheckStatus::Unknown => "\x1b[2munknown\x1b[0m",
        };
        lines.push(format!(
            "{mark}  {:<9} {}",
            check.name,
            printable(&check.detail)
        ));
        if let Some(hint) = &check.hint {
            lines.push(format!("                    hint: {}", printable(hint)));
        }
    }
    lines.join("\n")
}

/// The line that answers, for stderr.
pub fn line_map(epoch: u64, stages: &[Stage]) -> String {
    let mut text = format!(
        "line of {} stage{}, epoch {epoch}",
        stages.len(),
        plural(stages.len() as u64)
    );
    for stage in stages {
        let pulled = match stage.pulled_bytes {
            0 => String::new(),
            bytes => format!(", pulled {}", size(bytes)),
        };
        text.push_str(&format!(
            "\n  layers {:<8} {} ({}) on {}{pulled}",
            layers(stage.layers),
            printable(&stage.name),
            short(&stage.peer),
            printable(&stage.device),
        ));
    }
    text
}

/// How fast an answer came, for stderr.
pub fn timing(ask: &Ask) -> String {
    let count = ask.tokens.len() as u64;
    let mut text = format!(
        "{} prompt tokens, {count} token{}",
        ask.prompt_tokens,
        plural(count)
    );
    if let Some(ttft) = ask.ttft_ms {
        text.push_str(&format!(", first after {ttft:.0} ms"));
    }
    if let Some(speed) = ask.tokens_per_s {
        text.push_str(&format!(", then {speed:.1} tokens/s"));
    }
    if ask.numerics == Numerics::Exact {
        text.push_str(", exact");
    }
    text
}

/// `skein demo`, at its end.
pub fn demo(demo: &Demo) -> String {
    let mut text = stages(&demo.nodes);
    text.push_str(&format!(
        "\nlate joiner {}: layers {}, pulled {} from {} peer{}",
        printable(&demo.late_joiner.name),
        layers(demo.late_joiner.layers),
        size(demo.late_joiner.pulled_bytes),
        demo.late_joiner.pulled_from.len(),
        plural(demo.late_joiner.pulled_from.len() as u64),
    ));
    text.push_str(&format!(
        "\n{} tokens; one process alone gives {}",
        demo.tokens.len(),
        if demo.identical_to_single_node {
            "the same tokens"
        } else {
            "OTHER tokens"
        },
    ));
    text
}

fn stages(stages: &[Stage]) -> String {
    let mut table = table([
        "LAYERS", "MACHINE", "DEVICE", "WORKER", "WEIGHTS", "KV", "RESIDENT", "PULLED",
    ]);
    for stage in stages {
        table.add_row([
            layers(stage.layers),
            format!("{} ({})", printable(&stage.name), short(&stage.peer)),
            printable(&stage.device),
            stage.worker_pid.to_string(),
            size(stage.weights_bytes),
            size(stage.kv_bytes),
            size(stage.resident_bytes),
            size(stage.pulled_bytes),
        ]);
    }
    table.to_string()
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

fn layers([first, end]: [u32; 2]) -> String {
    format!("[{first}, {end})")
}

fn state(state: &str, reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("{} ({})", printable(state), printable(reason)),
        None => printable(state),
    }
}

fn devices(devices: &[Device]) -> String {
    if devices.is_empty() {
        return "none".into();
    }
    let one = |device: &Device| {
        let memory = size(device.memory_bytes);
        let calibrated = if device.calibrated {
            ""
        } else {
            ", not measured"
        };
        format!("{} ({memory}{calibrated})", printable(&device.id))
    };
    devices.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn held(model: &Model) -> String {
    let held = model.segments.iter().filter(|segment| segment.held).count();
    match model.segments.len() {
        all if held == all => "all".into(),
        all => format!("{held} of {all}"),
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}
