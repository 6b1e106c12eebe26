//! What a member says about itself to all others.
//!
//! # On the wire
//! `{"body": bytes, "signature": bytes, "certificate": bytes}` in CBOR, at most [`MAX_ADVERT_BYTES`]. The body is a
//! CBOR [`Advert`]; the signature is the author's own key's, over `skein advert 1 || 0x00 || body`; the certificate is
//! the author's, so that a receiver that never met the author can check that it is a member. Fields that a receiver
//! does not know are ignored, fields that are missing take their defaults, so a later version may add some.
//!
//! It is gossiped on the topic `skein/advert/1/<fleet id>`, and exchanged directly when two members connect
//! (`/skein/advert/1`: the request is the dialer's advert, the response the listener's, either may be empty).
//!
//! A later sequence number replaces an earlier one. It starts at the unix time in milliseconds when the agent starts and
//! grows by one per advert, so that it grows over restarts. An advert lives for `lifetime_s` from its receipt; clocks
//! of different machines are never compared.

use crate::{
    Identity,
    fleet::{Certificate, Membership, Refusal},
    identity, wire,
};
use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Longest signed advert. With all of the bounds below it stays under 64 KiB, what gossip carries at most.
pub const MAX_ADVERT_BYTES: usize = 64 * 1024;
/// Generation of the protocols between members that this build speaks.
pub const GENERATION: u32 = 1;

const CONTEXT: &str = "skein advert 1";
/// Bounds of one advert; a machine with more advertises the first so many.
const MAX_DEVICES: usize = 32;
const MAX_HELD: usize = 128;
const MAX_LINES: usize = 64;
const MAX_ADDRESSES: usize = 16;
const MAX_TEXT_BYTES: usize = 256;
/// One bit per segment: models of up to 4,096 segments.
const MAX_BITMAP_BYTES: usize = 512;
/// Nobody may claim to be there for longer than this without saying so again.
const MAX_LIFETIME_S: u32 = 3_600;

/// What the agent says; the swarm adds the rest and signs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AdvertBody {
    /// Generation of the protocols between members ([`GENERATION`]).
    pub generation: u32,
    /// What the machine is called.
    pub name: String,
    /// Numerics class: `exact` lines are bit-identical within one.
    pub device_class: String,
    /// Compute devices.
    pub devices: Vec<DeviceAdvert>,
    /// Bytes the owner lets Skein use.
    pub memory_cap: u64,
    /// Bytes of those that are free to promise.
    pub memory_free: u64,
    /// Bytes of disk that are free for segments.
    pub disk_free: u64,
    /// Segments this machine can serve.
    pub held: Vec<HeldModel>,
    /// Lines that this machine is the head of.
    pub lines: Vec<LineAdvert>,
    /// `available`, `user-active`, `on-battery`, …
    pub state: String,
    /// Why, in words for a person.
    pub reason: String,
}

/// A device of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceAdvert {
    /// OpenVINO's name: `CPU`, `GPU.0`, …
    pub id: String,
    /// The product's name.
    pub name: String,
    /// Bytes it can address.
    pub memory_bytes: u64,
    /// Bytes of those that are free now.
    pub memory_free: u64,
    /// Measured weight bytes per second in a decode step; 0 while unmeasured.
    pub bytes_per_s: f64,
}

/// What a machine holds of a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldModel {
    /// The model's id (BLAKE3 of its manifest).
    #[serde(with = "serde_bytes")]
    pub model: [u8; 32],
    /// The model's name.
    pub name: String,
    /// One bit per segment of the manifest, least significant bit first: set where it is held whole.
    #[serde(with = "serde_bytes")]
    pub segments: Vec<u8>,
    /// How many segments the model has.
    pub total: u32,
}

impl HeldModel {
    /// Whether segment `index` is held.
    pub fn holds(&self, index: u32) -> bool {
        index < self.total
            && self
                .segments
                .get(index as usize / 8)
                .is_some_and(|byte| byte >> (index % 8) & 1 == 1)
    }

    /// How many segments are held.
    pub fn count(&self) -> u32 {
        (0..self.total.min(MAX_BITMAP_BYTES as u32 * 8))
            .filter(|index| self.holds(*index))
            .count() as u32
    }
}

/// A running line, as its head tells it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LineAdvert {
    /// The line's id.
    pub line: u64,
    /// The model's id.
    #[serde(with = "serde_bytes")]
    pub model: [u8; 32],
    /// The model's name.
    pub name: String,
    /// How many stages it has.
    pub nodes: u32,
    /// `fast` or `exact`.
    pub numerics: String,
    /// Tokens of context.
    pub context: u32,
    /// `building`, `serving`, …
    pub state: String,
    /// Requests being served.
    pub requests: u32,
}

/// A whole advert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advert {
    /// What the agent said.
    pub body: AdvertBody,
    /// Later replaces earlier.
    pub sequence: u64,
    /// Seconds it lives from its receipt.
    pub lifetime_s: u32,
    /// The author's addresses as binary multiaddrs; see [`addresses`](Self::addresses).
    #[serde(default)]
    addresses: Vec<ByteBuf>,
}

/// An advert whose author is known.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verified {
    pub author: Certificate,
    pub advert: Advert,
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    #[serde(with = "serde_bytes")]
    body: Vec<u8>,
    #[serde(with = "serde_bytes")]
    signature: Vec<u8>,
    #[serde(with = "serde_bytes")]
    certificate: Vec<u8>,
}

impl Advert {
    /// An advert of what `body` says, cut to the bounds of the wire.
    pub(crate) fn new(
        mut body: AdvertBody,
        sequence: u64,
        lifetime_s: u32,
        addresses: &[Multiaddr],
    ) -> Self {
        body.devices.truncate(MAX_DEVICES);
        body.lines.truncate(MAX_LINES);
        body.held.truncate(MAX_HELD);
        body.held
            .retain(|held| held.segments.len() <= MAX_BITMAP_BYTES);
        for text in texts(&mut body) {
            shorten(text);
        }
        Self {
            body,
            sequence,
            lifetime_s: lifetime_s.min(MAX_LIFETIME_S),
            addresses: addresses
                .iter()
                .filter(|address| address.len() <= MAX_TEXT_BYTES)
                .take(MAX_ADDRESSES)
                .map(|address| ByteBuf::from(address.to_vec()))
                .collect(),
        }
    }

    /// Where the author says it can be reached. What is no address is left out.
    pub fn addresses(&self) -> impl Iterator<Item = Multiaddr> + '_ {
        self.addresses
            .iter()
            .filter_map(|bytes| Multiaddr::try_from(bytes.to_vec()).ok())
    }

    /// Signs as `identity`; `None` when it would be too long.
    pub(crate) fn seal(&self, identity: &Identity, certificate: &Certificate) -> Option<Vec<u8>> {
        let body = wire::encode(self);
        let bytes = wire::encode(&Envelope {
            signature: identity.sign(&wire::signing_input(CONTEXT, &body)),
            body,
            certificate: certificate.encode(),
        });
        (bytes.len() <= MAX_ADVERT_BYTES).then_some(bytes)
    }

    /// Reads an advert, checks that a member of our fleet signed it, and that it keeps the bounds.
    pub(crate) fn open(bytes: &[u8], membership: &Membership) -> Result<Verified, Refusal> {
        if bytes.len() > MAX_ADVERT_BYTES {
            return Err(Refusal::Malformed);
        }
        let envelope: Envelope = wire::decode(bytes).map_err(|_| Refusal::Malformed)?;
        let author = Certificate::decode(&envelope.certificate)?;
        let author = membership.admit(&envelope.certificate, author.peer)?;
        let input = wire::signing_input(CONTEXT, &envelope.body);
        if !identity::public_key(&author.peer)
            .is_some_and(|key| key.verify(&input, &envelope.signature))
        {
            return Err(Refusal::BadSignature);
        }
        let mut advert: Self = wire::decode(&envelope.body).map_err(|_| Refusal::Malformed)?;
        if advert.is_within_bounds() {
            Ok(Verified { author, advert })
        } else {
            Err(Refusal::Malformed)
        }
    }

    fn is_within_bounds(&mut self) -> bool {
        let body = &mut self.body;
        self.lifetime_s <= MAX_LIFETIME_S
            && self.addresses.len() <= MAX_ADDRESSES
            && body.devices.len() <= MAX_DEVICES
            && body.lines.len() <= MAX_LINES
            && body.held.len() <= MAX_HELD
            && body
                .held
                .iter()
                .all(|held| held.segments.len() <= MAX_BITMAP_BYTES)
            && body
                .devices
                .iter()
                .all(|device| device.bytes_per_s.is_finite() && device.bytes_per_s >= 0.0)
            && texts(body).all(|text| text.len() <= MAX_TEXT_BYTES)
    }
}

fn texts(body: &mut AdvertBody) -> impl Iterator<Item = &mut String> {
    let devices = body
        .devices
        .iter_mut()
        .flat_map(|device| [&mut device.id, &mut device.name]);
    let held = body.held.iter_mut().map(|held| &mut held.name);
    let lines = body
        .lines
        .iter_mut()
        .flat_map(|line| [&mut line.name, &mut line.numerics, &mut line.state]);
    [
        &mut body.name,
        &mut body.device_class,
        &mut body.state,
        &mut body.reason,
    ]
    .into_iter()
    .chain(devices)
    .chain(held)
    .chain(lines)
}

fn shorten(text: &mut String) {
    while text.len() > MAX_TEXT_BYTES {
        text.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ciborium::Value;

    struct Member {
        identity: Identity,
        membership: Membership,
        _folder: tempfile::TempDir,
    }

    fn member() -> Member {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::generate();
        let mut membership = Membership::open(folder.path(), identity.peer()).unwrap();
        membership.found("home", "root", 1).unwrap();
        Member {
            identity,
            membership,
            _folder: folder,
        }
    }

    fn body() -> AdvertBody {
        AdvertBody {
            generation: GENERATION,
            name: "desk".into(),
            devices: vec![DeviceAdvert {
                id: "CPU".into(),
                bytes_per_s: 1e9,
                ..DeviceAdvert::default()
            }],
            held: vec![HeldModel {
                model: [7; 32],
                name: "m".into(),
                segments: vec![0b101, 0b1],
                total: 9,
            }],
            lines: vec![LineAdvert {
                model: [7; 32],
                nodes: 3,
                ..LineAdvert::default()
            }],
            ..AdvertBody::default()
        }
    }

    #[test]
    fn an_advert_survives_the_wire_and_no_other_bytes_do() {
        let Member {
            identity,
            membership,
            ..
        } = member();
        let address: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        let advert = Advert::new(body(), 5, 20, std::slice::from_ref(&address));
        let bytes = advert
            .seal(&identity, membership.certificate().unwrap())
            .unwrap();
        let verified = Advert::open(&bytes, &membership).unwrap();
        assert_eq!(verified.advert, advert);
        assert_eq!(verified.author.peer, identity.peer());
        assert_eq!(advert.addresses().collect::<Vec<_>>(), [address]);
        assert_eq!(advert.body.held[0].count(), 3);
        assert!(advert.body.held[0].holds(8) && !advert.body.held[0].holds(1));
        for index in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[index] ^= 1;
            assert!(Advert::open(&flipped, &membership).is_err(), "byte {index}");
            assert!(Advert::open(&bytes[..index], &membership).is_err());
        }
    }

    #[test]
    fn a_member_cannot_speak_for_another_one() {
        let Member {
            identity,
            membership,
            ..
        } = member();
        let advert = Advert::new(body(), 5, 20, &[]);
        let certificate = membership.certificate().unwrap();
        let forged = advert.seal(&Identity::generate(), certificate).unwrap();
        assert_eq!(
            Advert::open(&forged, &membership),
            Err(Refusal::BadSignature)
        );
        let other = member();
        let real = advert.seal(&identity, certificate).unwrap();
        assert_eq!(
            Advert::open(&real, &other.membership),
            Err(Refusal::ForeignFleet)
        );
    }

    #[test]
    fn later_versions_may_add_fields_and_leave_some_out() {
        let Member {
            identity,
            membership,
            ..
        } = member();
        let text = |text: &str| Value::Text(text.into());
        let body = wire::encode(&Value::Map(vec![
            (
                text("body"),
                Value::Map(vec![
                    (text("name"), text("desk")),
                    (text("mood"), text("fine")),
                ]),
            ),
            (text("sequence"), Value::Integer(9.into())),
            (text("lifetime_s"), Value::Integer(20.into())),
            (text("later"), Value::Array(vec![Value::Null])),
        ]));
        let bytes = wire::encode(&Envelope {
            signature: identity.sign(&wire::signing_input(CONTEXT, &body)),
            body,
            certificate: membership.certificate().unwrap().encode(),
        });
        let verified = Advert::open(&bytes, &membership).unwrap();
        assert_eq!(verified.advert.body.name, "desk");
        assert_eq!(verified.advert.sequence, 9);
    }

    #[test]
    fn what_exceeds_the_bounds_is_cut_by_the_author_and_refused_by_the_reader() {
        let Member {
            identity,
            membership,
            ..
        } = member();
        let certificate = membership.certificate().unwrap();
        let mut large = body();
        large.reason = "é".repeat(1_000);
        large.held = vec![large.held[0].clone(); 1_000];
        let mut advert = Advert::new(large, 5, u32::MAX, &[]);
        let bytes = advert.seal(&identity, certificate).unwrap();
        assert_eq!(Advert::open(&bytes, &membership).unwrap().advert, advert);
        advert.body.held.push(advert.body.held[0].clone());
        let bytes = advert.seal(&identity, certificate).unwrap();
        assert_eq!(Advert::open(&bytes, &membership), Err(Refusal::Malformed));
        let mut fast = Advert::new(body(), 5, 20, &[]);
        fast.body.devices[0].bytes_per_s = f64::INFINITY;
        let bytes = fast.seal(&identity, certificate).unwrap();
        assert_eq!(Advert::open(&bytes, &membership), Err(Refusal::Malformed));
    }
}
