//! A machine's standing in its fleet, as data: its certificate and, for the root holder, the secret and the books.
//!
//! Pure: every change is a method with `now`; [`Membership`](super::Membership) decides when it reaches the disk.

use super::{Certificate, FleetId, Invite, InviteTerms, Refusal, clean_name};
use libp2p::{PeerId, identity::ed25519};
use serde::{Deserialize, Serialize};
use serde_bytes::{ByteArray, ByteBuf};
use std::collections::BTreeMap;

/// Invites that may be open at once, so that the books stay small.
const MAX_OPEN_INVITES: usize = 1_024;

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Standing {
    format: u32,
    fleet: ByteArray<32>,
    fleet_name: String,
    certificate: ByteBuf,
    root: Option<Root>,
}

/// The root holder's secret and books.
#[derive(Clone, Serialize, Deserialize)]
struct Root {
    secret: ByteArray<32>,
    next_serial: u64,
    /// Open invites by id.
    invites: BTreeMap<ByteArray<16>, InviteRecord>,
    /// Everybody who was let in, by peer id bytes.
    members: BTreeMap<ByteBuf, MemberRecord>,
}

#[derive(Clone, Serialize, Deserialize)]
struct InviteRecord {
    expires: u64,
    uses: u32,
    /// Peer ids that joined with it; each counts once however often it asks.
    used_by: Vec<ByteBuf>,
}

#[derive(Clone, Serialize, Deserialize)]
struct MemberRecord {
    name: String,
    serial: u64,
    issued: u64,
}

const FORMAT: u32 = 1;

impl Standing {
    /// A new fleet, whose root this machine holds.
    pub(super) fn found(peer: PeerId, fleet_name: &str, own_name: &str, now: u64) -> Self {
        let key = ed25519::Keypair::generate();
        let mut secret = [0; 32];
        secret.copy_from_slice(key.secret().as_ref());
        Self {
            format: FORMAT,
            fleet: ByteArray::new(key.public().to_bytes()),
            fleet_name: clean_name(fleet_name),
            certificate: ByteBuf::from(Certificate::sign(&key, peer, own_name, 0, now).encode()),
            root: Some(Root {
                secret: ByteArray::new(secret),
                next_serial: 1,
                invites: BTreeMap::new(),
                members: BTreeMap::new(),
            }),
        }
    }

    /// An ordinary member.
    pub(super) fn joined(fleet_name: &str, certificate: &Certificate) -> Self {
        Self {
            format: FORMAT,
            fleet: ByteArray::new(certificate.fleet.0),
            fleet_name: clean_name(fleet_name),
            certificate: ByteBuf::from(certificate.encode()),
            root: None,
        }
    }

    /// Checks what was read from disk; gives the own certificate.
    pub(super) fn check(&self, peer: PeerId) -> Result<Certificate, &'static str> {
        if self.format != FORMAT {
            return Err("it was written by another version");
        }
        let certificate =
            Certificate::decode(&self.certificate).map_err(|_| "its certificate is invalid")?;
        if certificate.fleet != self.fleet() {
            return Err("its certificate is of another fleet");
        }
        if certificate.peer != peer {
            return Err("its certificate belongs to another machine's key");
        }
        if let Some(root) = &self.root
            && root.key().public().to_bytes() != self.fleet().0
        {
            return Err("its root secret is of another fleet");
        }
        Ok(certificate)
    }

    pub(super) fn fleet(&self) -> FleetId {
        FleetId(self.fleet.into_array())
    }

    pub(super) fn fleet_name(&self) -> &str {
        &self.fleet_name
    }

    pub(super) fn is_root(&self) -> bool {
        self.root.is_some()
    }

    /// Signs and books an invite; `None` unless this machine holds the root and has room for one more.
    pub(super) fn invite(
        &mut self,
        issuer: PeerId,
        terms: &InviteTerms,
        now: u64,
    ) -> Option<Invite> {
        let root = self.root.as_mut()?;
        root.invites.retain(|_, record| record.expires > now);
        if root.invites.len() >= MAX_OPEN_INVITES {
            return None;
        }
        let invite = Invite::sign(&root.key(), &self.fleet_name, issuer, terms);
        root.invites.insert(
            ByteArray::new(invite.id),
            InviteRecord {
                expires: terms.expires,
                uses: terms.uses,
                used_by: Vec::new(),
            },
        );
        Some(invite)
    }

    /// Lets `peer` in on an invite whose signature was checked, and books it. The same peer asking again with the same
    /// invite gets its certificate again and counts once. The flag says whether the books changed.
    pub(super) fn redeem(
        &mut self,
        invite: &Invite,
        peer: PeerId,
        name: &str,
        now: u64,
    ) -> Result<(Certificate, bool), Refusal> {
        if invite.fleet != self.fleet() {
            return Err(Refusal::ForeignFleet);
        }
        let root = self.root.as_mut().ok_or(Refusal::NotRoot)?;
        if now >= invite.expires {
            return Err(Refusal::ExpiredInvite);
        }
        let key = root.key();
        let record = root
            .invites
            .get_mut(&ByteArray::new(invite.id))
            .ok_or(Refusal::UnknownInvite)?;
        let id = ByteBuf::from(peer.to_bytes());
        if record.used_by.contains(&id)
            && let Some(member) = root.members.get(&id)
        {
            let certificate =
                Certificate::sign(&key, peer, &member.name, member.serial, member.issued);
            return Ok((certificate, false));
        }
        if record.used_by.len() >= record.uses as usize {
            return Err(Refusal::UsedUp);
        }
        let certificate = Certificate::sign(&key, peer, name, root.next_serial, now);
        record.used_by.push(id.clone());
        root.next_serial += 1;
        root.members.insert(
            id,
            MemberRecord {
                name: certificate.name.clone(),
                serial: certificate.serial,
                issued: certificate.issued,
            },
        );
        Ok((certificate, true))
    }
}

impl Root {
    fn key(&self) -> ed25519::Keypair {
        ed25519::SecretKey::try_from_bytes(self.secret.into_array())
            .map(ed25519::Keypair::from)
            .expect("any 32 bytes are an Ed25519 secret")
    }
}
