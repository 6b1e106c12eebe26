//! Membership: what a fleet is, who belongs to it, and how a machine is let in.
//!
//! A fleet is an Ed25519 root key; its id is the public key. The machine that holds the secret (the root holder) signs
//! a [`Certificate`] for each member's peer id. It lets machines in through an [`Invite`]: a token that it signed,
//! that expires, and whose uses it counts. Only the root holder invites, counts and signs.
//!
//! Nothing here opens a socket or reads a clock: `now` is unix seconds and comes from the caller. Only
//! [`Membership`] touches the disk. The exchange between two machines is in [`gate`](crate::gate).
//!
//! # On the wire
//! Certificates and invites are canonical CBOR maps inside `{"body": bytes, "signature": bytes}`, signed by the root
//! key over `context || 0x00 || body`:
//!
//! | | context | body |
//! |---|---|---|
//! | certificate | `skein certificate 1` | `{"name": text, "peer": bytes (peer id), "fleet": 32 bytes, "issued": u64, "serial": u64}` |
//! | invite | `skein invite 1` | `{"id": 16 bytes, "name": text (the fleet's), "uses": u32, "fleet": 32 bytes, "issuer": bytes (peer id), "expires": u64, "addresses": [bytes (binary multiaddr ending in /p2p/…)]}` |
//!
//! People pass an invite on as text: `skein1` followed by the lower-case unpadded base32 (RFC 4648) of the signed
//! CBOR. The signature is its checksum.

mod certificate;
mod invite;
mod membership;
mod standing;

pub use certificate::Certificate;
pub use invite::{Invite, InviteTerms, NotAnInvite};
pub(crate) use invite::{MAX_ADDRESSES as MAX_INVITE_ADDRESSES, peer_of};
pub use membership::{FleetInfo, Membership, MembershipError, Role, SharedMembership};

use libp2p::identity::ed25519;
use std::fmt;

/// Longest name of a fleet or a machine, in bytes: fits a table column and bounds certificates.
pub const MAX_NAME_BYTES: usize = 64;

/// A fleet's id: the root's Ed25519 public key. Shown as 52 letters and digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FleetId(pub [u8; 32]);

impl FleetId {
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        ed25519::PublicKey::try_from_bytes(&self.0).is_ok_and(|key| key.verify(message, signature))
    }
}

impl fmt::Display for FleetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = data_encoding::BASE32_NOPAD.encode(&self.0);
        text.make_ascii_lowercase();
        f.write_str(&text)
    }
}

impl fmt::Debug for FleetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FleetId({self})")
    }
}

/// Why a machine is not let in. [`code`](Self::code) is what travels and what scripts may match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The machine that was asked belongs to no fleet itself.
    #[error("that machine belongs to no fleet")]
    NoFleet,
    /// The asking machine showed neither certificate nor invite.
    #[error("no certificate of a fleet")]
    NoCertificate,
    /// The certificate or invite is of another fleet.
    #[error("it is of another fleet")]
    ForeignFleet,
    /// The root key did not sign this.
    #[error("its signature is wrong")]
    BadSignature,
    /// The certificate is of another machine.
    #[error("the certificate belongs to another machine")]
    WrongPeer,
    /// The invite's time is over.
    #[error("the invite has expired")]
    ExpiredInvite,
    /// The invite was used as often as it may be.
    #[error("the invite is used up")]
    UsedUp,
    /// The root holder signed this invite and no longer knows it.
    #[error("the invite is not known any more")]
    UnknownInvite,
    /// Invites are answered by the root holder only.
    #[error("only the fleet's root machine answers invites, and this is another member")]
    NotRoot,
    /// The message was not one of ours, or too long.
    #[error("malformed message")]
    Malformed,
    /// Nothing arrived in time.
    #[error("no proof of membership in time")]
    TooSlow,
    /// The answering side could not keep its books.
    #[error("the other side could not record the membership")]
    Unrecorded,
}

impl Refusal {
    const ALL: [Self; 12] = [
        Self::NoFleet,
        Self::NoCertificate,
        Self::ForeignFleet,
        Self::BadSignature,
        Self::WrongPeer,
        Self::ExpiredInvite,
        Self::UsedUp,
        Self::UnknownInvite,
        Self::NotRoot,
        Self::Malformed,
        Self::TooSlow,
        Self::Unrecorded,
    ];

    /// A stable short name, for example `expired-invite`.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoFleet => "no-fleet",
            Self::NoCertificate => "no-certificate",
            Self::ForeignFleet => "foreign-fleet",
            Self::BadSignature => "bad-signature",
            Self::WrongPeer => "wrong-peer",
            Self::ExpiredInvite => "expired-invite",
            Self::UsedUp => "used-up",
            Self::UnknownInvite => "unknown-invite",
            Self::NotRoot => "not-root",
            Self::Malformed => "malformed",
            Self::TooSlow => "too-slow",
            Self::Unrecorded => "unrecorded",
        }
    }

    /// The refusal with this code.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| refusal.code() == code)
    }
}

/// A name that is safe to print and to sign: trimmed, without control characters, at most [`MAX_NAME_BYTES`] long.
pub(crate) fn clean_name(name: &str) -> String {
    let printable: String = name
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let mut clean = printable.trim().to_owned();
    while clean.len() > MAX_NAME_BYTES {
        clean.pop();
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_found_by_its_code() {
        for refusal in Refusal::ALL {
            assert_eq!(Refusal::from_code(refusal.code()), Some(refusal));
        }
        assert_eq!(Refusal::from_code("welcome"), None);
    }

    #[test]
    fn names_are_cleaned_without_splitting_characters() {
        assert_eq!(clean_name("  a\nb\u{1b} "), "a b");
        let long = clean_name(&"é".repeat(100));
        assert_eq!(long.len(), MAX_NAME_BYTES);
        assert!(long.chars().all(|c| c == 'é'));
    }
}
