//! The messages of the control channel.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    objects::{Numerics, Stage, Weights},
};

/// The longest line either side accepts, in bytes. A request carries at most a prompt as long as
/// the longest context; the longest reply is a row of debug logits (a vocabulary of 262,144 in
/// base64 is 1.4 MB).
pub const MAX_LINE: usize = 4 << 20;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The client's own mark, for logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// What to do.
    #[serde(flatten)]
    pub command: Command,
}

/// Everything that an agent can be asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", content = "args", rename_all = "snake_case")]
pub enum Command {
    /// → [`Status`](crate::objects::Status)
    Status,
    /// → list of [`Peer`](crate::objects::Peer)
    Peers,
    /// → [`Stopped`](crate::objects::Stopped)
    Stop,
    /// → [`Plan`](crate::objects::Plan)
    Plan(PlanRequest),
    /// → [`Event::Line`], then [`Event::Text`] as it comes, then [`Ask`](crate::objects::Ask)
    Ask(AskRequest),
    /// → [`Event::Logits`] a row, then [`LogitsSummary`]
    Logits(LogitsRequest),
    /// → [`Event::Progress`], then [`Stage`](crate::objects::Stage)
    Stage(StageRequest),
    /// → [`Event::Progress`], then [`Model`](crate::objects::Model)
    ModelAdd(AddModel),
    /// → list of [`Model`](crate::objects::Model)
    ModelList,
    /// → [`Model`](crate::objects::Model)
    ModelShow {
        /// Name, id or start of an id.
        model: String,
    },
    /// → [`Removed`](crate::objects::Removed)
    ModelRemove {
        /// Name, id or start of an id.
        model: String,
    },
    /// → [`Tokenized`](crate::objects::Tokenized)
    Tokenize(TokenizeRequest),
    /// → [`FleetId`](crate::objects::FleetId)
    FleetNew {
        /// Its name; the machine's otherwise.
        name: Option<String>,
    },
    /// → [`Invite`](crate::objects::Invite)
    FleetInvite {
        /// How long it may be used, in seconds.
        expires_s: u64,
        /// How many machines may join with it.
        uses: u32,
    },
    /// → [`Joined`](crate::objects::Joined)
    Join {
        /// The invite's text.
        invite: String,
    },
    /// → [`RuntimeReport`]
    Runtime,
}

impl Command {
    /// Whether it can be done under the store's lock when no agent runs.
    pub fn works_without_an_agent(&self) -> bool {
        match self {
            Self::ModelAdd(_)
            | Self::ModelList
            | Self::ModelShow { .. }
            | Self::ModelRemove { .. }
            | Self::Tokenize(_)
            | Self::FleetNew { .. }
            | Self::Join { .. } => true,
            Self::Status
            | Self::Peers
            | Self::Stop
            | Self::Plan(_)
            | Self::Ask(_)
            | Self::Logits(_)
            | Self::Stage(_)
            | Self::FleetInvite { .. }
            | Self::Runtime => false,
        }
    }
}

/// `skein plan`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Name, id or start of an id.
    pub model: String,
    /// Stages asked for; the fewest that fit otherwise.
    pub nodes: Option<u32>,
    /// Context in tokens; the default otherwise.
    pub ctx: Option<u32>,
}

/// `skein ask`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AskRequest {
    /// Name, id or start of an id.
    pub model: String,
    /// What to answer.
    pub prompt: Prompt,
    /// Most tokens to make.
    pub max_tokens: u32,
    /// Go on past the end token.
    pub ignore_eos: bool,
    /// 0 is greedy.
    pub temperature: f32,
    /// Repeats an answer; the agent picks one otherwise.
    pub seed: Option<u64>,
    /// Stages asked for; the fewest that fit otherwise.
    pub nodes: Option<u32>,
    /// How the arithmetic is done.
    pub numerics: Numerics,
    /// Context in tokens; the default otherwise.
    pub ctx: Option<u32>,
}

/// What to answer. What a person typed never becomes control tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// A turn of a chat, put into the model's template.
    Chat {
        /// The system message; `None` leaves it to the template.
        system: Option<String>,
        /// The user's message.
        text: String,
    },
    /// Text to continue as it stands.
    Raw {
        /// The text.
        text: String,
    },
    /// Token ids to continue as they stand.
    Ids {
        /// The ids.
        ids: Vec<u32>,
    },
}

/// `skein debug logits`: every position of the ids, through the line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogitsRequest {
    /// Name, id or start of an id.
    pub model: String,
    /// The token ids.
    pub ids: Vec<u32>,
    /// Stages asked for.
    pub nodes: Option<u32>,
    /// How the arithmetic is done.
    pub numerics: Numerics,
}

/// `skein debug stage`: prepare one stage outside any line, and give it back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageRequest {
    /// Name, id or start of an id.
    pub model: String,
    /// Half-open layer range.
    pub layers: [u32; 2],
    /// The only peer to pull from; any that holds segments otherwise.
    pub from: Option<String>,
}

/// What came of it; the rows went before as [`Event::Logits`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogitsSummary {
    /// Model id.
    pub model: String,
    /// Rows, one for each id.
    pub rows: u32,
    /// Width of a row.
    pub vocab: u32,
    /// How it was computed.
    pub numerics: Numerics,
    /// The stages that computed it, first to last.
    pub pipeline: Vec<Stage>,
}

/// `skein model add`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddModel {
    /// The model's file, absolute.
    pub path: PathBuf,
    /// What to call it; the file's own name otherwise.
    pub name: Option<String>,
    /// How to store the weights.
    pub weights: Weights,
}

/// `skein model tokenize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizeRequest {
    /// Name, id or start of an id.
    pub model: String,
    /// What to encode.
    pub input: TokenizeInput,
}

/// What to encode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizeInput {
    /// Text in which control tokens count as such.
    Text(String),
    /// A chat, put into the model's template with the generation prompt.
    Chat(Vec<ChatMessage>),
}

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// What the agent knows about its own runtime and network, for `skein doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeReport {
    /// Multiaddrs it listens on.
    pub listening: Vec<String>,
    /// Addresses at which peers from elsewhere have reached it.
    pub reachable: Vec<String>,
    /// Members it is connected to.
    pub connected: u32,
}

/// One line from the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Something on the way.
    Event(Event),
    /// The end, well.
    Result(serde_json::Value),
    /// The end, badly.
    Error(Error),
}

/// Something that happens on the way to a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// How far a long task is. May be left out when the asker is slow.
    Progress {
        /// What is being done, as a person would say it.
        task: String,
        /// How much is done.
        done: u64,
        /// How much there is; 0 while unknown.
        total: u64,
        /// Whether the numbers are bytes.
        bytes: bool,
    },
    /// Something worth telling, in words.
    Note {
        /// One sentence.
        message: String,
    },
    /// The line that will answer.
    Line {
        /// Its epoch.
        epoch: u64,
        /// Its stages, first to last.
        stages: Vec<Stage>,
    },
    /// A piece of the answer; never half a character.
    Text {
        /// The piece; may be empty.
        text: String,
        /// The tokens whose text is complete with it.
        tokens: Vec<u32>,
    },
    /// One row of debug logits.
    Logits {
        /// Its position, counted from 0 and in order.
        row: u32,
        /// Little-endian float32 values in base64 (standard alphabet, padded).
        values: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_command_with_its_arguments_beside_it() {
        let request = Request {
            id: Some(4),
            command: Command::Plan(PlanRequest {
                model: "m".into(),
                nodes: None,
                ctx: Some(8),
            }),
        };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(
            text,
            r#"{"id":4,"command":"plan","args":{"model":"m","nodes":null,"ctx":8}}"#
        );
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
    }

    #[test]
    fn a_command_without_arguments_needs_none() {
        let request: Request = serde_json::from_str(r#"{"command":"status"}"#).unwrap();
        assert_eq!(
            request,
            Request {
                id: None,
                command: Command::Status
            }
        );
    }

    #[test]
    fn a_reply_says_what_it_is() {
        let event = Reply::Event(Event::Text {
            text: "a".into(),
            tokens: vec![1],
        });
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            r#"{"event":{"kind":"text","text":"a","tokens":[1]}}"#
        );
        let error: Reply =
            serde_json::from_str(r#"{"error":{"code":"no_agent","message":"m","hint":null}}"#)
                .unwrap();
        assert!(matches!(error, Reply::Error(_)));
    }
}
