//! Who is there: identity, membership, finding and reaching the other machines of a fleet.
//!
//! ```text
//! identity   a key pair and its peer id
//! fleet      membership: certificates, invites, the root holder's books (pure but for one file)
//! join       redeeming an invite
//! gate       membership proved inside the transport upgrade
//! transport  TCP, QUIC, circuits, behind the gate
//! swarm      the event loop that owns libp2p, behind a cloneable handle
//! streams    raw streams by protocol name
//! rpc        small requests and answers
//! advert     what a member says about itself
//! directory  what is known about the others (pure)
//! book       where members were last reached
//! wire       CBOR and frames          platform   private files
//! ```
//! This is the only crate that knows libp2p; nothing of it leaves but [`PeerId`] and [`Multiaddr`]. It knows no models,
//! shards or steps: streams and requests carry bytes, adverts carry what the agent says.
//!
//! Start with [`Identity::load_or_create`], [`fleet::Membership::open`] and [`Swarm::spawn`].

pub mod advert;
mod book;
mod directory;
pub mod fleet;
pub mod gate;
mod identity;
pub mod join;
mod platform;
pub mod rpc;
pub mod streams;
pub mod swarm;
mod transport;
mod wire;

pub use advert::{Advert, AdvertBody, DeviceAdvert, HeldModel, LineAdvert};
pub use directory::PeerEntry;
pub use fleet::{
    Certificate, FleetId, FleetInfo, Invite, Membership, Refusal, Role, SharedMembership,
};
pub use identity::{Identity, IdentityError};
pub use libp2p::{Multiaddr, PeerId};
pub use streams::{Incoming, Stream, StreamError};
pub use swarm::{Event, Events, Handle, Responder, Swarm, SwarmConfig};
