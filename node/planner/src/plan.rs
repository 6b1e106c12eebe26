//! The wish that is planned for and the answer to it. Not in here: how the answer is found.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize, Serializer};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Tokens of context that every stage keeps room for.
    pub ctx: u32,
    /// Exactly this many stages on as many peers; `None` for as few as fit.
    pub nodes: Option<usize>,
    /// Peer id of the one who asks; it is preferred as the head.
    pub asker: String,
}

/// A line that fits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Stages in line order; their ranges cover all layers without a gap.
    pub stages: Vec<PlannedStage>,
    /// Estimated tokens per second of one request alone in the line, without a draft.
    pub est_tokens_per_s: f64,
    /// Every candidate that has no stage, in the order of peer ids.
    pub left_out: Vec<LeftOut>,
}

/// One stage of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedStage {
    pub peer: String,
    pub name: String,
    /// Id of the device on that peer.
    pub device: String,
    /// Half-open; serialised as `[first, end]`.
    #[serde(serialize_with = "as_pair")]
    pub layers: Range<u32>,
    /// Memory of the stage's weights.
    pub weights_bytes: u64,
    /// Key and value cache for the wished context.
    pub kv_bytes: u64,
    /// Runtime, activations and logits, see [`crate::footprint`].
    pub working_bytes: u64,
    /// Kept free on top of the three above.
    pub headroom_bytes: u64,
    /// Estimated compute time of one row.
    pub est_step_ms: f64,
}

impl PlannedStage {
    /// All bytes to reserve for the stage.
    pub fn reserved_bytes(&self) -> u64 {
        self.weights_bytes
            .saturating_add(self.kv_bytes)
            .saturating_add(self.working_bytes)
            .saturating_add(self.headroom_bytes)
    }
}

/// A peer without a stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeftOut {
    pub peer: String,
    pub name: String,
    /// Serialised as its sentence.
    #[serde(serialize_with = "as_sentence")]
    pub reason: Reason,
}

/// Why a peer has no stage.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    Unavailable {
        reason: String,
    },
    OtherGeneration {
        theirs: u32,
        ours: u32,
    },
    NoUsableDevice,
    /// `needed` is what the smallest stage of this model takes.
    NotEnoughMemory {
        free: u64,
        needed: u64,
    },
    NotEnoughDisk {
        free: u64,
        needed: u64,
    },
    FewerMachinesSuffice {
        machines: usize,
    },
    /// The best line of the same length with it against the line that was chosen.
    Slower {
        with_ms: f64,
        without_ms: f64,
    },
    /// It could take a stage, but there is no line for it to be in.
    NoLine,
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Unavailable { reason } => write!(out, "it is not available: {reason}"),
            Reason::OtherGeneration { theirs, ours } if theirs < ours => write!(
                out,
                "it runs an older generation of Skein ({theirs}, here {ours})"
            ),
            Reason::OtherGeneration { theirs, ours } => write!(
                out,
                "it runs a newer generation of Skein ({theirs}, here {ours})"
            ),
            Reason::NoUsableDevice => write!(out, "it offers no device"),
            Reason::NotEnoughMemory { free, needed } => write!(
                out,
                "not enough memory: {} free, the smallest stage takes {}",
                Bytes(*free),
                Bytes(*needed)
            ),
            Reason::NotEnoughDisk { free, needed } => write!(
                out,
                "not enough disk: {} free, the smallest stage takes {}",
                Bytes(*free),
                Bytes(*needed)
            ),
            Reason::FewerMachinesSuffice { machines: 1 } => write!(out, "one machine suffices"),
            Reason::FewerMachinesSuffice { machines } => {
                write!(out, "{machines} other machines suffice")
            }
            Reason::Slower {
                with_ms,
                without_ms,
            } => write!(
                out,
                "a token would take {with_ms:.1} ms with it, {without_ms:.1} ms without"
            ),
            Reason::NoLine => write!(out, "it could take a stage, but there is no line"),
        }
    }
}

/// There is no plan. `Display` is the fact; [`Refusal::hint`] says what to do about it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// No line that the wish permits has room. See [`crate::choose`] for `missing_bytes`.
    #[error("the model does not fit: {} are missing on {}", Bytes(*.missing_bytes), Machines(*.machines))]
    DoesNotFit {
        /// The smallest number of bytes that would have to become free for it to fit.
        missing_bytes: u64,
        /// Machines in the line that misses so little.
        machines: usize,
        /// Machines that could take part at all.
        usable: usize,
        left_out: Vec<LeftOut>,
    },
    /// More stages were asked for than there are machines that may take part.
    #[error("{} asked for, {usable} can take part", Machines(*.wanted))]
    TooFewPeers {
        wanted: usize,
        usable: usize,
        left_out: Vec<LeftOut>,
    },
    /// A stage holds at least one layer.
    #[error("{} asked for, but the model has only {layers} layers", Machines(*.wanted))]
    TooManyStages { wanted: usize, layers: u32 },
    /// The wish or the model makes no sense.
    #[error("nothing to plan: {0}")]
    Invalid(&'static str),
}

impl Refusal {
    /// What a person can do about it, one sentence.
    pub fn hint(&self) -> String {
        match self {
            Refusal::DoesNotFit { left_out, .. } => match first_unavailable(left_out) {
                Some((name, reason)) => format!(
                    "add a machine, raise --memory or lower --ctx; {name} is not available now: {reason}"
                ),
                None => "add a machine, raise --memory or lower --ctx".to_owned(),
            },
            Refusal::TooFewPeers {
                usable, left_out, ..
            } => {
                let way_out = match usable {
                    0 => "wait until a machine can take part, or add one".to_owned(),
                    _ => format!("ask for --nodes {usable} or fewer, or add machines"),
                };
                match left_out.iter().find(|out| out.reason != Reason::NoLine) {
                    Some(out) => format!("{way_out}; {}: {}", out.name, out.reason),
                    None => way_out,
                }
            }
            Refusal::TooManyStages { layers, .. } => {
                format!("ask for --nodes {layers} or fewer")
            }
            Refusal::Invalid(_) => "check --ctx and --nodes, and the model".to_owned(),
        }
    }

    /// Why each peer is out, where that was looked at.
    pub fn left_out(&self) -> &[LeftOut] {
        match self {
            Refusal::DoesNotFit { left_out, .. } | Refusal::TooFewPeers { left_out, .. } => {
                left_out
            }
            Refusal::TooManyStages { .. } | Refusal::Invalid(_) => &[],
        }
    }
}

fn first_unavailable(left_out: &[LeftOut]) -> Option<(&str, &str)> {
    left_out.iter().find_map(|out| match &out.reason {
        Reason::Unavailable { reason } => Some((out.name.as_str(), reason.as_str())),
        _ => None,
    })
}

/// Bytes for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: f64 = 1024.0 * 1024.0;
        let mib = self.0 as f64 / MIB;
        match self.0 {
            0..1_048_576 => write!(out, "{} bytes", self.0),
            1_048_576..10_737_418_240 => write!(out, "{mib:.1} MiB"),
            _ => write!(out, "{:.1} GiB", mib / 1024.0),
        }
    }
}

struct Machines(usize);

impl fmt::Display for Machines {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => write!(out, "one machine"),
            many => write!(out, "{many} machines"),
        }
    }
}

fn as_pair<S: Serializer>(layers: &Range<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    [layers.start, layers.end].serialize(serializer)
}

fn as_sentence<S: Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}
