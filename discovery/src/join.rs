//! Joining a fleet: redeeming an invite with the machine that issued it.
//!
//! Needs no swarm, so it works with and without a running agent. What the other side does is in
//! [`gate`]; taking the certificate on is [`Membership::adopt`](crate::fleet::Membership::adopt).

use crate::{
    Identity,
    fleet::{Certificate, Invite, Refusal},
    gate::{self, Cause},
    transport,
};
use futures::{StreamExt, future};
use libp2p::{
    Multiaddr, PeerId,
    core::{
        Endpoint,
        transport::{DialOpts, PortUse},
    },
    multiaddr::Protocol,
};
use std::time::Duration;

/// For one address: connecting, encryption, the exchange. Then the next one is tried.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(6);

/// Why joining failed.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The issuer answered, and said no.
    #[error("the fleet's root machine refused: {0}")]
    Refused(Refusal),
    /// Nobody could be asked.
    #[error("the fleet's root machine {issuer} cannot be reached{tried}")]
    Unreachable {
        /// The root holder.
        issuer: PeerId,
        /// Each address that was tried and how it failed, ready to print.
        tried: String,
    },
    /// This machine cannot open connections.
    #[error("cannot set up the network: {0}")]
    Network(#[from] std::io::Error),
}

/// Shows `invite` to its issuer at each of the issuer's addresses in order, until one answers. `name` is what this
/// machine would like to be called. `now` in unix seconds; an expired invite is refused without asking.
pub async fn redeem(
    identity: &Identity,
    invite: &Invite,
    name: &str,
    now: u64,
) -> Result<Certificate, JoinError> {
    if now >= invite.expires {
        return Err(JoinError::Refused(Refusal::ExpiredInvite));
    }
    let mut tried = String::new();
    for address in invite.issuer_addresses() {
        let attempt = attempt(identity, invite, address, name);
        let failure = match tokio::time::timeout(ADDRESS_TIMEOUT, attempt).await {
            Ok(Ok(certificate)) => return Ok(certificate),
            Ok(Err(Cause::RefusedByPeer(refusal))) => return Err(JoinError::Refused(refusal)),
            Ok(Err(cause)) => cause.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::debug!(%address, failure, "could not redeem an invite here");
        tried.push_str(&format!("\n  {address}: {failure}"));
    }
    Err(JoinError::Unreachable {
        issuer: invite.issuer,
        tried,
    })
}

async fn attempt(
    identity: &Identity,
    invite: &Invite,
    address: &Multiaddr,
    name: &str,
) -> Result<Certificate, Cause> {
    let mut transport = transport::direct(identity)?;
    let mut bare = address.clone();
    if matches!(bare.iter().last(), Some(Protocol::P2p(_))) {
        bare.pop();
    }
    let dial = libp2p::Transport::dial(
        &mut transport,
        bare,
        DialOpts {
            role: Endpoint::Dialer,
            port_use: PortUse::New,
        },
    )
    .map_err(|error| std::io::Error::other(error.to_string()))?;
    let exchange = async {
        let connection = dial.await?;
        gate::redeem(connection, invite, identity.peer(), name).await
    };
    // Some transports make progress only while they are polled themselves.
    let background = transport.for_each(|_| future::ready(()));
    tokio::select! {
        outcome = exchange => outcome,
        () = async { background.await; future::pending().await } => unreachable!("pending"),
    }
}
