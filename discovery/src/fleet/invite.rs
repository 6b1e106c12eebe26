//! An invite: a token that lets a bounded number of machines in until it expires.
//!
//! The uses are counted by the root holder ([`Membership`](super::Membership)); the token only states how many there
//! were to begin with.

use super::{FleetId, MAX_NAME_BYTES, Refusal, clean_name};
use crate::{
    identity,
    wire::{self, Signed},
};
use libp2p::{Multiaddr, PeerId, identity::ed25519, multiaddr::Protocol};
use serde::{Deserialize, Serialize};
use serde_bytes::{ByteArray, ByteBuf};
use std::{fmt, str::FromStr};

const CONTEXT: &str = "skein invite 1";
const PREFIX: &str = "skein1";
/// More addresses would make the token unwieldy and a first contact slow.
pub(crate) const MAX_ADDRESSES: usize = 8;
/// Longest address in an invite: DNS names, relay hops and two peer ids fit.
const MAX_ADDRESS_BYTES: usize = 256;
/// Longest token: base32 of eight longest addresses and the rest.
const MAX_TOKEN_CHARACTERS: usize = 5_000;

/// What the one who invites decides.
#[derive(Debug, Clone)]
pub struct InviteTerms {
    /// Unix seconds from which on the invite is void.
    pub expires: u64,
    /// How many machines may join with it, at least 1.
    pub uses: u32,
    /// Where the root holder (first) and other members can be reached; each ends in `/p2p/<peer id>`. At most eight
    /// are kept.
    pub addresses: Vec<Multiaddr>,
}

/// A signed invite. `Display` and `FromStr` are the copyable token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invite {
    /// The fleet, and the key that signed.
    pub fleet: FleetId,
    /// The fleet's name.
    pub name: String,
    /// Tells this invite from others.
    pub id: [u8; 16],
    /// Unix seconds from which on it is void.
    pub expires: u64,
    /// How many machines may join with it.
    pub uses: u32,
    /// The root holder, who alone answers it.
    pub issuer: PeerId,
    /// Where the issuer (first) and other members can be reached, each ending in `/p2p/<peer id>`.
    pub addresses: Vec<Multiaddr>,
    signature: Vec<u8>,
}

/// The text is no invite.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAnInvite {
    /// It does not begin with `skein1`.
    #[error("not an invite: it does not begin with \"skein1\"")]
    Prefix,
    /// Characters are missing or wrong.
    #[error("the invite is damaged: copy it again, whole")]
    Damaged,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    id: ByteArray<16>,
    name: String,
    uses: u32,
    fleet: ByteArray<32>,
    issuer: ByteBuf,
    expires: u64,
    addresses: Vec<ByteBuf>,
}

impl Invite {
    pub(super) fn sign(
        root: &ed25519::Keypair,
        fleet_name: &str,
        issuer: PeerId,
        terms: &InviteTerms,
    ) -> Self {
        let mut invite = Self {
            fleet: FleetId(root.public().to_bytes()),
            name: clean_name(fleet_name),
            id: identity::random(),
            expires: terms.expires,
            uses: terms.uses,
            issuer,
            addresses: terms
                .addresses
                .iter()
                .filter(|a| peer_of(a).is_some() && a.len() <= MAX_ADDRESS_BYTES)
                .take(MAX_ADDRESSES)
                .cloned()
                .collect(),
            signature: Vec::new(),
        };
        invite.signature = root.sign(&wire::signing_input(CONTEXT, &invite.body()));
        invite
    }

    fn body(&self) -> Vec<u8> {
        wire::encode(&Body {
            id: ByteArray::new(self.id),
            name: self.name.clone(),
            uses: self.uses,
            fleet: ByteArray::new(self.fleet.0),
            issuer: ByteBuf::from(self.issuer.to_bytes()),
            expires: self.expires,
            addresses: self
                .addresses
                .iter()
                .map(|a| ByteBuf::from(a.to_vec()))
                .collect(),
        })
    }

    /// The signed CBOR.
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(&Signed {
            body: self.body(),
            signature: self.signature.clone(),
        })
    }

    /// Reads an invite and checks that the fleet it names signed it.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let signed: Signed = wire::decode_canonical(bytes).map_err(|_| Refusal::Malformed)?;
        let body: Body = wire::decode_canonical(&signed.body).map_err(|_| Refusal::Malformed)?;
        let fleet = FleetId(body.fleet.into_array());
        if !fleet.verifies(
            &wire::signing_input(CONTEXT, &signed.body),
            &signed.signature,
        ) {
            return Err(Refusal::BadSignature);
        }
        if body.name.len() > MAX_NAME_BYTES || body.addresses.len() > MAX_ADDRESSES {
            return Err(Refusal::Malformed);
        }
        let addresses = body
            .addresses
            .into_iter()
            .map(|bytes| {
                Multiaddr::try_from(bytes.into_vec())
                    .ok()
                    .filter(|address| peer_of(address).is_some())
                    .ok_or(Refusal::Malformed)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            fleet,
            name: body.name,
            id: body.id.into_array(),
            expires: body.expires,
            uses: body.uses,
            issuer: PeerId::from_bytes(&body.issuer).map_err(|_| Refusal::Malformed)?,
            addresses,
            signature: signed.signature,
        })
    }

    /// The addresses at which the issuer itself is reached, in order.
    pub fn issuer_addresses(&self) -> impl Iterator<Item = &Multiaddr> {
        self.addresses
            .iter()
            .filter(|address| peer_of(address) == Some(self.issuer))
    }
}

/// The peer id an address ends in.
pub(crate) fn peer_of(address: &Multiaddr) -> Option<PeerId> {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    }
}

impl fmt::Display for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = data_encoding::BASE32_NOPAD.encode(&self.encode());
        text.make_ascii_lowercase();
        write!(f, "{PREFIX}{text}")
    }
}

impl FromStr for Invite {
    type Err = NotAnInvite;

    /// Forgives white space anywhere and capitals, which mail programs and people add.
    fn from_str(text: &str) -> Result<Self, NotAnInvite> {
        let text: String = text
            .chars()
            .filter(|c| !c.is_whitespace())
            .take(MAX_TOKEN_CHARACTERS)
            .collect();
        let text = text.to_ascii_uppercase();
        let token = text
            .strip_prefix(&PREFIX.to_ascii_uppercase())
            .ok_or(NotAnInvite::Prefix)?;
        let bytes = data_encoding::BASE32_NOPAD
            .decode(token.as_bytes())
            .map_err(|_| NotAnInvite::Damaged)?;
        Self::decode(&bytes).map_err(|_| NotAnInvite::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invite() -> Invite {
        let issuer = PeerId::random();
        Invite::sign(
            &ed25519::Keypair::generate(),
            "home",
            issuer,
            &InviteTerms {
                expires: 2_000_000_000,
                uses: 3,
                addresses: vec![
                    format!("/ip4/127.0.0.1/tcp/4001/p2p/{issuer}")
                        .parse()
                        .unwrap(),
                    format!("/ip4/127.0.0.1/udp/4001/quic-v1/p2p/{}", PeerId::random())
                        .parse()
                        .unwrap(),
                    "/ip4/127.0.0.1/tcp/1".parse().unwrap(),
                ],
            },
        )
    }

    #[test]
    fn a_token_survives_capitals_and_line_breaks() {
        let invite = invite();
        assert_eq!(invite.addresses.len(), 2, "an address names its peer");
        assert_eq!(invite.issuer_addresses().count(), 1);
        let token = invite.to_string();
        assert!(token.starts_with("skein1"));
        assert_eq!(token.parse(), Ok(invite.clone()));
        let (a, b) = token.split_at(100);
        assert_eq!(
            format!(" {}\n  {}\n", a.to_uppercase(), b).parse(),
            Ok(invite)
        );
    }

    #[test]
    fn a_damaged_token_is_told_from_something_else() {
        let token = invite().to_string();
        for index in (6..token.len()).step_by(7) {
            let mut damaged = token.clone().into_bytes();
            damaged[index] = if damaged[index] == b'a' { b'b' } else { b'a' };
            let damaged = String::from_utf8(damaged).unwrap();
            assert_eq!(damaged.parse::<Invite>(), Err(NotAnInvite::Damaged));
            assert_eq!(token[..index].parse::<Invite>(), Err(NotAnInvite::Damaged));
        }
        assert_eq!("hello".parse::<Invite>(), Err(NotAnInvite::Prefix));
        assert_eq!("".parse::<Invite>(), Err(NotAnInvite::Prefix));
    }
}
