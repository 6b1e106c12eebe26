//! The address book: where members were last reached, kept over restarts, and when to try them again.
//!
//! Pure but for [`AddressBook::load`] and [`AddressBook::save`]. Losing the file costs nothing but time: mDNS, invites
//! and other members fill it again.

use crate::{platform, wire};
use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

/// Members whose addresses are kept.
const MAX_PEERS: usize = 512;
/// Addresses kept per member, most recently useful first.
const MAX_ADDRESSES: usize = 8;
/// Waits between attempts to reach a member: doubling from the first to the last.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LAST_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    peers: BTreeMap<PeerId, Contact>,
    changed: bool,
}

#[derive(Debug, Default)]
struct Contact {
    addresses: Vec<Multiaddr>,
    failures: u32,
    next_try: Option<Instant>,
    connected: bool,
}

#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    peers: BTreeMap<ByteBuf, Vec<ByteBuf>>,
}

const FORMAT: u32 = 1;

impl AddressBook {
    /// Reads the book at `path`; a missing or unreadable one is empty.
    pub(crate) fn load(path: &Path) -> Self {
        let mut book = Self::default();
        let file = fs::read(path)
            .ok()
            .and_then(|bytes| wire::decode::<File>(&bytes).ok())
            .filter(|file| file.format == FORMAT);
        for (peer, addresses) in file.into_iter().flat_map(|file| file.peers) {
            let Ok(peer) = PeerId::from_bytes(&peer) else {
                continue;
            };
            for bytes in addresses.into_iter().rev() {
                if let Ok(address) = Multiaddr::try_from(bytes.into_vec()) {
                    book.learn(peer, address);
                }
            }
        }
        book.changed = false;
        book
    }

    /// Writes the book if it changed since it was last written.
    pub(crate) fn save(&mut self, path: &Path) -> io::Result<()> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let reachable = self.peers.iter().filter(|(_, c)| !c.addresses.is_empty());
        let peers = reachable.map(|(peer, contact)| {
            let addresses = contact.addresses.iter();
            (
                ByteBuf::from(peer.to_bytes()),
                addresses.map(|a| ByteBuf::from(a.to_vec())).collect(),
            )
        });
        let file = File {
            format: FORMAT,
            peers: peers.collect(),
        };
        platform::write_private(path, &wire::encode(&file))
    }

    /// Notes that `peer` may be at `address`. The newest comes first.
    pub(crate) fn learn(&mut self, peer: PeerId, address: Multiaddr) {
        let Some(contact) = self.contact(peer) else {
            return;
        };
        if contact.addresses.contains(&address) {
            // Members repeat their addresses; only one that worked moves to the front.
            return;
        }
        contact.addresses.insert(0, address);
        contact.addresses.truncate(MAX_ADDRESSES);
        // A new address is worth a try at once.
        contact.failures = 0;
        contact.next_try = None;
        self.changed = true;
    }

    /// Notes that a connection to `peer` stands, at `address` if it can be dialled again.
    pub(crate) fn connected(&mut self, peer: PeerId, address: Option<Multiaddr>) {
        let Some(contact) = self.contact(peer) else {
            return;
        };
        contact.connected = true;
        contact.failures = 0;
        contact.next_try = None;
        if let Some(address) = address
            && contact.addresses.first() != Some(&address)
        {
            contact.addresses.retain(|known| *known != address);
            contact.addresses.insert(0, address);
            contact.addresses.truncate(MAX_ADDRESSES);
            self.changed = true;
        }
    }

    /// The page of `peer`. A full book gives up the member that failed to answer most often.
    fn contact(&mut self, peer: PeerId) -> Option<&mut Contact> {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&peer) {
            let unreachable = self.peers.iter().filter(|(_, c)| c.failures > 0);
            let worst = *unreachable.max_by_key(|(_, c)| c.failures)?.0;
            self.peers.remove(&worst);
        }
        Some(self.peers.entry(peer).or_default())
    }

    pub(crate) fn disconnected(&mut self, peer: PeerId, now: Instant) {
        if let Some(contact) = self.peers.get_mut(&peer) {
            contact.connected = false;
            contact.failures = 0;
            contact.next_try = Some(now + FIRST_WAIT);
        }
    }

    /// Notes that an attempt to reach `peer` failed.
    pub(crate) fn failed(&mut self, peer: PeerId, now: Instant) {
        if let Some(contact) = self.peers.get_mut(&peer) {
            let wait = FIRST_WAIT
                .saturating_mul(1 << contact.failures.min(16))
                .min(LAST_WAIT);
            contact.failures += 1;
            contact.next_try = Some(now + wait);
        }
    }

    /// Peers to dial now. Each is put off until its attempt ends or the longest wait passes.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let mut due = Vec::new();
        for (peer, contact) in &mut self.peers {
            let ready = contact.next_try.is_none_or(|at| at <= now);
            if ready && !contact.connected && !contact.addresses.is_empty() {
                contact.next_try = Some(now + LAST_WAIT);
                due.push((*peer, contact.addresses.clone()));
            }
        }
        due
    }

    /// Where `peer` may be.
    pub(crate) fn addresses(&self, peer: PeerId) -> &[Multiaddr] {
        self.peers
            .get(&peer)
            .map_or(&[], |contact| &contact.addresses)
    }

    /// Does not try `peer` before `until`.
    pub(crate) fn put_off(&mut self, peer: PeerId, until: Instant) {
        if let Some(contact) = self.peers.get_mut(&peer) {
            contact.next_try = Some(until);
        }
    }

    /// Everybody may be tried again at once.
    pub(crate) fn retry_all(&mut self) {
        for contact in self.peers.values_mut() {
            contact.failures = 0;
            contact.next_try = None;
        }
    }

    /// Forgets a peer that turned out to be no member.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.changed |= self.peers.remove(&peer).is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/10.0.0.1/tcp/{port}").parse().unwrap()
    }

    #[test]
    fn waits_between_attempts_double_up_to_a_minute_and_a_new_address_ends_them() {
        let mut book = AddressBook::default();
        let peer = PeerId::random();
        let mut now = Instant::now();
        book.learn(peer, address(1));
        let mut waits = Vec::new();
        for _ in 0..9 {
            assert_eq!(book.due(now), [(peer, vec![address(1)])]);
            assert!(book.due(now).is_empty(), "one attempt at a time");
            book.failed(peer, now);
            let failed_at = now;
            while book.due(now).is_empty() {
                now += Duration::from_secs(1);
            }
            waits.push((now - failed_at).as_secs());
            // Undo the attempt that asking began.
            book.put_off(peer, now);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        book.failed(peer, now);
        book.learn(peer, address(2));
        assert_eq!(book.due(now), [(peer, vec![address(2), address(1)])]);
    }

    #[test]
    fn a_connected_peer_is_left_alone_and_the_address_that_worked_comes_first() {
        let mut book = AddressBook::default();
        let peer = PeerId::random();
        let now = Instant::now();
        book.learn(peer, address(1));
        book.learn(peer, address(2));
        book.connected(peer, Some(address(1)));
        assert!(book.due(now).is_empty());
        book.disconnected(peer, now);
        assert!(book.due(now).is_empty(), "a moment for the other side");
        assert_eq!(
            book.due(now + FIRST_WAIT),
            [(peer, vec![address(1), address(2)])]
        );
    }

    #[test]
    fn the_book_survives_a_restart_and_a_damaged_file_is_an_empty_book() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peers.cbor");
        let mut book = AddressBook::load(&path);
        let peer = PeerId::random();
        for port in 0..20 {
            book.learn(peer, address(port));
        }
        book.connected(PeerId::random(), None);
        book.save(&path).unwrap();
        let mut reopened = AddressBook::load(&path);
        assert_eq!(reopened.peers.len(), 1, "one was never reachable");
        assert_eq!(reopened.addresses(peer), book.addresses(peer));
        assert_eq!(reopened.addresses(peer).len(), MAX_ADDRESSES);
        assert_eq!(reopened.due(Instant::now()).len(), 1);
        fs::write(&path, b"nonsense").unwrap();
        assert!(AddressBook::load(&path).peers.is_empty());
    }
}
