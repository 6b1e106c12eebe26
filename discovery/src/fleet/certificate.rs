//! A member's certificate: the root's word that a peer id belongs to the fleet.
//!
//! A certificate does not expire and names no address.

use super::{FleetId, MAX_NAME_BYTES, Refusal, clean_name};
use crate::wire::{self, Signed};
use libp2p::{PeerId, identity::ed25519};
use serde::{Deserialize, Serialize};
use serde_bytes::{ByteArray, ByteBuf};

const CONTEXT: &str = "skein certificate 1";

/// Proof that `peer` is a member of `fleet`; only made by signing or by checking a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The fleet, and the key that signed.
    pub fleet: FleetId,
    /// The member.
    pub peer: PeerId,
    /// What the member was called when it joined; at most [`MAX_NAME_BYTES`].
    pub name: String,
    /// Number of this certificate, from 0 for the root holder's own.
    pub serial: u64,
    /// When it was signed, unix seconds.
    pub issued: u64,
    signature: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    name: String,
    peer: ByteBuf,
    fleet: ByteArray<32>,
    issued: u64,
    serial: u64,
}

impl Certificate {
    pub(super) fn sign(
        root: &ed25519::Keypair,
        peer: PeerId,
        name: &str,
        serial: u64,
        issued: u64,
    ) -> Self {
        let mut certificate = Self {
            fleet: FleetId(root.public().to_bytes()),
            peer,
            name: clean_name(name),
            serial,
            issued,
            signature: Vec::new(),
        };
        certificate.signature = root.sign(&wire::signing_input(CONTEXT, &certificate.body()));
        certificate
    }

    fn body(&self) -> Vec<u8> {
        wire::encode(&Body {
            name: self.name.clone(),
            peer: ByteBuf::from(self.peer.to_bytes()),
            fleet: ByteArray::new(self.fleet.0),
            issued: self.issued,
            serial: self.serial,
        })
    }

    /// The signed CBOR.
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(&Signed {
            body: self.body(),
            signature: self.signature.clone(),
        })
    }

    /// Reads a certificate and checks that the fleet it names signed it. Whether that is *our* fleet, and whose
    /// certificate it is, is for [`Membership::admit`](super::Membership::admit).
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
        if body.name.len() > MAX_NAME_BYTES {
            return Err(Refusal::Malformed);
        }
        Ok(Self {
            fleet,
            peer: PeerId::from_bytes(&body.peer).map_err(|_| Refusal::Malformed)?,
            name: body.name,
            serial: body.serial,
            issued: body.issued,
            signature: signed.signature,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_survives_the_wire_and_no_other_bytes_do() {
        let root = ed25519::Keypair::generate();
        let certificate = Certificate::sign(&root, PeerId::random(), "desk", 3, 1_800_000_000);
        let bytes = certificate.encode();
        assert_eq!(Certificate::decode(&bytes), Ok(certificate));
        for index in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[index] ^= 1;
            assert!(Certificate::decode(&flipped).is_err(), "byte {index}");
            assert!(Certificate::decode(&bytes[..index]).is_err());
        }
    }
}
