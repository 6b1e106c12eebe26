//! Membership, as the command line speaks of it: founding a fleet, joining one.
//!
//! What a fleet is and who is let in is `skein_discovery`'s business; here are the steps around it
//! that the agent and the offline path share, and the words for what goes wrong.

use std::{future::Future, time::SystemTime};

use skein_discovery::{
    Certificate, FleetInfo, Handle, Identity, IdentityError, Invite, Membership, SharedMembership,
    Swarm, SwarmConfig, fleet::MembershipError, join::JoinError, swarm::InviteError,
};

use super::blocking;
use crate::{
    error::{Code, Context, Error, Result},
    objects,
    paths::Home,
    settings::{self, Settings},
};

/// This machine's place in its fleet, where it has one.
pub fn role(membership: &Membership) -> Option<objects::FleetRole> {
    membership.fleet().map(|fleet| objects::FleetRole {
        id: fleet.id.to_string(),
        name: fleet.name,
        role: match fleet.role {
            skein_discovery::Role::Root => objects::Role::Root,
            skein_discovery::Role::Member => objects::Role::Member,
        },
    })
}

/// Founds a fleet called `name` with this machine, called `own_name`, at its root.
pub async fn found(
    membership: &SharedMembership,
    name: &str,
    own_name: &str,
) -> Result<objects::FleetId> {
    if name.trim().is_empty() {
        return Err(Error::usage("a fleet's name cannot be empty"));
    }
    let (membership, name, own_name) = (membership.clone(), name.to_owned(), own_name.to_owned());
    blocking(move || {
        membership
            .change(|membership| membership.found(&name, &own_name, unix_now()))
            .map(fleet_id)
            .map_err(membership_error)
    })
    .await
}

/// Redeems an invite through a running network.
pub async fn join(network: &Handle, invite: &str, own_name: &str) -> Result<objects::Joined> {
    let invite = read_invite(invite)?;
    let joined = adopt(
        network.membership(),
        &invite,
        network.redeem(&invite, own_name),
    )
    .await?;
    network.learn(invite.addresses.clone()).await;
    Ok(joined)
}

/// [`found`] on a home whose agent does not run.
pub async fn found_in(home: &Home, name: Option<String>) -> Result<objects::FleetId> {
    let (_, membership, own_name) = open(home).await?;
    found(&membership, name.as_deref().unwrap_or(&own_name), &own_name).await
}

/// [`join`] on a home whose agent does not run, through a network that lives no longer. The
/// invite's addresses stay in the home's address book, where its agent finds them.
pub async fn join_in(home: &Home, invite: &str) -> Result<objects::Joined> {
    let (identity, membership, own_name) = open(home).await?;
    let config = SwarmConfig {
        mdns: false,
        home: Some(home.data_dir().to_owned()),
        ..SwarmConfig::default()
    };
    let (network, events) = Swarm::spawn(identity, membership, config)
        .await
        .map_err(Error::failed)?;
    let joined = join(&network, invite, &own_name).await;
    network.shutdown().await;
    drop(events);
    joined
}

/// Asks for a certificate and takes it on. A machine that is in a fleet already does not ask, so
/// that no use of the invite is lost.
async fn adopt(
    membership: &SharedMembership,
    invite: &Invite,
    redeem: impl Future<Output = Result<Certificate, JoinError>>,
) -> Result<objects::Joined> {
    if let Some(fleet) = membership.read().fleet() {
        return Err(membership_error(MembershipError::AlreadyMember(fleet.name)));
    }
    let certificate = redeem.await.map_err(join_error)?;
    let (membership, invite) = (membership.clone(), invite.clone());
    blocking(move || {
        membership
            .change(|membership| {
                let fleet = membership.adopt(&invite, &certificate)?;
                Ok(objects::Joined {
                    fleet: fleet_id(fleet),
                    peer: membership.peer().to_string(),
                })
            })
            .map_err(membership_error)
    })
    .await
}

/// The home's key, membership and name for this machine.
async fn open(home: &Home) -> Result<(Identity, SharedMembership, String)> {
    home.create()?;
    let name = Settings::load(home)?
        .name
        .unwrap_or_else(settings::host_name);
    let home = home.clone();
    blocking(move || {
        let identity = Identity::load_or_create(&home.identity_file()).map_err(identity_error)?;
        let membership =
            Membership::open(home.data_dir(), identity.peer()).map_err(membership_error)?;
        Ok((identity, SharedMembership::new(membership), name))
    })
    .await
}

fn read_invite(invite: &str) -> Result<Invite> {
    invite.trim().parse().map_err(|error| {
        Error::bad_input(error).hint("`skein fleet invite` prints one on the fleet's root machine")
    })
}

fn fleet_id(fleet: FleetInfo) -> objects::FleetId {
    objects::FleetId {
        id: fleet.id.to_string(),
        name: fleet.name,
    }
}

/// Seconds since 1970.
pub fn unix_now() -> u64 {
    // A clock before 1970 has no certificate to be wrong about.
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// A key's trouble in the command line's words.
pub fn identity_error(error: IdentityError) -> Error {
    Error::failed(error)
        .hint("the key is this machine's name in its fleet; put back a copy if you have one")
}

/// A membership's refusal in the command line's words.
pub fn membership_error(error: MembershipError) -> Error {
    match error {
        MembershipError::AlreadyMember(_) => Error::new(Code::Refused, error)
            .hint("another home (`--home DIR`) can belong to another fleet"),
        MembershipError::NoFleet => Error::new(Code::Refused, error)
            .hint("found one with `skein fleet new`, or join one with `skein join`"),
        MembershipError::NotRoot => {
            Error::new(Code::Refused, error).hint("run it on the machine that made the fleet")
        }
        MembershipError::Terms(_) => Error::usage(error),
        MembershipError::Certificate(_) => Error::new(Code::Refused, error),
        MembershipError::Io { .. } | MembershipError::Damaged { .. } => Error::failed(error),
    }
}

/// A failed invitation in the command line's words.
pub fn invite_error(error: InviteError) -> Error {
    match error {
        InviteError::Membership(error) => membership_error(error),
        InviteError::NoAddress => {
            Error::failed(error).hint("start the agent with an address that others can reach")
        }
    }
}

/// A failed join in the command line's words.
pub fn join_error(error: JoinError) -> Error {
    match error {
        JoinError::Refused(_) => {
            Error::new(Code::Refused, error).hint("ask the fleet's owner for a new invite")
        }
        JoinError::Unreachable { .. } => Error::failed(error)
            .hint("the agent of the machine that made the fleet must be running and reachable"),
        JoinError::Network(_) => Error::failed(error),
    }
}

/// The home's membership as it is on disk, without making anything; for the check-up.
pub fn look(home: &Home) -> Result<Option<objects::FleetRole>> {
    let Some(identity) = Identity::load(&home.identity_file()).map_err(identity_error)? else {
        return Ok(None);
    };
    let membership = Membership::open(home.data_dir(), identity.peer())
        .context("the membership cannot be read")?;
    Ok(role(&membership))
}
