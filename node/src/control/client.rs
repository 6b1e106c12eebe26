//! The command line's end of the control channel.

use std::{io, time::Duration};

use interprocess::local_socket::tokio::{Stream, prelude::*};
use serde::de::DeserializeOwned;
use tokio::{io::BufReader, time::Instant};

use super::{
    line,
    protocol::{Command, Event, MAX_LINE, Reply, Request},
};
use crate::{
    error::{Code, Error, Result},
    paths::Home,
    platform,
};

/// How long an agent that holds its home's lock may take to open its socket.
const STARTING: Duration = Duration::from_secs(10);

/// How often to look again meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A connection to a running agent, good for one request. Dropping it cancels the request.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
}

impl Client {
    /// Connects to the home's agent; `None` where none runs. An agent that is just starting is
    /// waited for.
    pub async fn connect(home: &Home) -> Result<Option<Self>> {
        let deadline = Instant::now() + STARTING;
        loop {
            match Self::connect_now(home).await {
                Ok(stream) => return Ok(Some(Self { stream })),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(Error::new(
                        Code::Refused,
                        format_args!("the agent of {} belongs to another user", home.label()),
                    ));
                }
                Err(_) if home.is_locked() && Instant::now() < deadline => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                Err(_) if home.is_locked() => {
                    return Err(Error::failed(format_args!(
                        "an agent holds {} but does not answer",
                        home.label()
                    ))
                    .hint("its log is in the home's `logs` folder"));
                }
                Err(_) => return Ok(None),
            }
        }
    }

    async fn connect_now(home: &Home) -> io::Result<Stream> {
        let path = home.socket_path();
        Stream::connect(platform::control_name(&path)?).await
    }

    /// Sends a command and hands every event to `on_event` until the result comes.
    pub async fn call<T: DeserializeOwned>(
        self,
        command: Command,
        mut on_event: impl FnMut(Event) -> Result<()>,
    ) -> Result<T> {
        let gone = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidInput => Error::bad_input(format_args!("too long: {error}")),
            _ => Error::failed(format_args!("the agent went away: {error}")),
        };
        let mut writer = &self.stream;
        let request = Request { id: None, command };
        let broken = match line::write(&mut writer, &request, MAX_LINE).await {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(gone(error)),
            // An agent that hangs up before it has heard us has said why.
            written => written.err(),
        };
        let mut reader = BufReader::new(&self.stream);
        loop {
            match line::read::<Reply>(&mut reader, MAX_LINE)
                .await
                .map_err(gone)?
            {
                Some(Reply::Event(event)) => on_event(event)?,
                Some(Reply::Result(value)) => {
                    return serde_json::from_value(value).map_err(|error| {
                        Error::failed(format_args!(
                            "the agent's answer is not understood: {error}"
                        ))
                        .hint("the agent may be of another version; restart it")
                    });
                }
                Some(Reply::Error(error)) => return Err(error),
                None => {
                    if let Some(error) = broken {
                        return Err(gone(error));
                    }
                    return Err(Error::failed("the agent ended before it answered")
                        .hint("its log is in the home's `logs` folder"));
                }
            }
        }
    }
}

/// Does a command: through the home's agent if there is one, else here if it can be done here.
pub async fn call<T: DeserializeOwned>(
    home: &Home,
    command: Command,
    on_event: impl FnMut(Event) -> Result<()>,
) -> Result<T> {
    match Client::connect(home).await? {
        Some(client) => client.call(command, on_event).await,
        None if command.works_without_an_agent() => {
            let value = crate::local::answer(home, command, on_event).await?;
            serde_json::from_value(value).map_err(Error::failed)
        }
        None => Err(no_agent(home)),
    }
}

/// What a command says that needs an agent and finds none.
pub fn no_agent(home: &Home) -> Error {
    Error::new(
        Code::NoAgent,
        format_args!("no agent is running for {}", home.label()),
    )
    .hint("start one with `skein agent`")
}
