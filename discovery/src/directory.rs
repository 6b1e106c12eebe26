//! Who is there, what they say about themselves, and how far away they are.
//!
//! Pure: `now` comes in. Nothing here is persisted (that is the [`book`](crate::book)) and nothing is decided from it:
//! planning is not in this crate.

use crate::advert::{Advert, Verified};
use libp2p::{Multiaddr, PeerId};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Peers remembered at once: the largest fleet.
const MAX_PEERS: usize = 1_024;
/// A peer that is gone for so long is no longer shown.
const FORGET_AFTER: Duration = Duration::from_secs(60 * 60);
/// Addresses kept per peer.
const MAX_ADDRESSES: usize = 16;
/// Weight of a new round-trip time against the average.
const RTT_WEIGHT: f64 = 0.25;

/// What is known about one other member.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerEntry {
    /// Its id.
    pub peer: PeerId,
    /// What it calls itself, or what its certificate does.
    pub name: String,
    /// Whether a connection is open.
    pub connected: bool,
    /// Whether its advert is alive; `false` also when there is none.
    pub fresh: bool,
    /// Smoothed round-trip time over the open connection.
    pub rtt: Option<Duration>,
    /// Where it can be reached, as it says and as it was dialled; the address in use comes first.
    pub addresses: Vec<Multiaddr>,
    /// Since when nothing was heard from it.
    pub silent_for: Duration,
    /// The last advert, alive or not.
    pub advert: Option<Arc<Advert>>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    connected: bool,
    rtt: Option<Duration>,
    /// The other end of the connection, which for an inbound one is no place to dial.
    remote: Option<Multiaddr>,
    addresses: Vec<Multiaddr>,
    last_heard: Instant,
    advert: Option<(Arc<Advert>, Instant)>,
    /// What [`Directory::expire`] last reported.
    was_fresh: bool,
}

impl Entry {
    fn is_fresh(&self, now: Instant) -> bool {
        self.advert.as_ref().is_some_and(|(advert, received)| {
            now.saturating_duration_since(*received) < Duration::from_secs(advert.lifetime_s.into())
        })
    }
}

/// What became of an advert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It says something new.
    News,
    /// It is newer and says the same.
    Refresh,
    /// It is not newer than what is known.
    Stale,
}

/// The directory of one agent.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    entries: BTreeMap<PeerId, Entry>,
}

impl Directory {
    /// A connection stands, with `remote` at its other end; `dialled` says that we dialled that address.
    pub(crate) fn connected(
        &mut self,
        peer: PeerId,
        name: &str,
        remote: Multiaddr,
        dialled: bool,
        now: Instant,
    ) {
        if let Some(entry) = self.entry(peer, name, now) {
            entry.connected = true;
            entry.last_heard = now;
            if dialled {
                put_first(&mut entry.addresses, remote.clone());
            }
            entry.remote = Some(remote);
        }
    }

    pub(crate) fn disconnected(&mut self, peer: PeerId, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&peer) {
            entry.connected = false;
            entry.rtt = None;
            entry.remote = None;
            entry.last_heard = now;
        }
    }

    pub(crate) fn round_trip(&mut self, peer: PeerId, rtt: Duration, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&peer) {
            entry.last_heard = now;
            entry.rtt = Some(match entry.rtt {
                None => rtt,
                Some(average) => average.mul_f64(1.0 - RTT_WEIGHT) + rtt.mul_f64(RTT_WEIGHT),
            });
        }
    }

    /// The other end of the connection to `peer`.
    pub(crate) fn remote(&self, peer: PeerId) -> Option<&Multiaddr> {
        self.entries.get(&peer)?.remote.as_ref()
    }

    pub(crate) fn reachable_at(&mut self, peer: PeerId, address: Multiaddr) {
        if let Some(entry) = self.entries.get_mut(&peer)
            && !entry.addresses.contains(&address)
            && entry.addresses.len() < MAX_ADDRESSES
        {
            entry.addresses.push(address);
        }
    }

    /// Takes in a verified advert. `from_author`: the author itself sent it over its own connection, so it cannot be a
    /// replay and counts even if its sequence went back, as it does when a machine's clock was wrong.
    pub(crate) fn heard(&mut self, verified: Verified, from_author: bool, now: Instant) -> Heard {
        let Verified { author, advert } = verified;
        let Some(entry) = self.entry(author.peer, &author.name, now) else {
            return Heard::Stale;
        };
        let news = match &entry.advert {
            Some((known, _)) if advert.sequence <= known.sequence && !from_author => {
                return Heard::Stale;
            }
            Some((known, _)) => known.body != advert.body || !entry.is_fresh(now),
            None => true,
        };
        if !advert.body.name.is_empty() {
            entry.name.clone_from(&advert.body.name);
        }
        let claimed: Vec<_> = advert.addresses().collect();
        entry.advert = Some((Arc::new(advert), now));
        entry.last_heard = now;
        entry.was_fresh = true;
        // The author knows its addresses best; the one in use stays first.
        let in_use = entry
            .remote
            .clone()
            .filter(|remote| entry.addresses.contains(remote));
        if !claimed.is_empty() {
            entry.addresses = claimed;
            entry.addresses.truncate(MAX_ADDRESSES);
        }
        if let Some(address) = in_use {
            put_first(&mut entry.addresses, address);
        }
        if news { Heard::News } else { Heard::Refresh }
    }

    /// Lets adverts and long-gone peers lapse; whether anybody would notice.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let before = self.entries.len();
        self.entries.retain(|_, entry| {
            entry.connected || now.saturating_duration_since(entry.last_heard) < FORGET_AFTER
        });
        let mut changed = self.entries.len() != before;
        for entry in self.entries.values_mut() {
            let fresh = entry.is_fresh(now);
            changed |= std::mem::replace(&mut entry.was_fresh, fresh) != fresh;
        }
        changed
    }

    /// Everybody, by peer id.
    pub(crate) fn snapshot(&self, now: Instant) -> Vec<PeerEntry> {
        self.entries
            .iter()
            .map(|(peer, entry)| PeerEntry {
                peer: *peer,
                name: entry.name.clone(),
                connected: entry.connected,
                fresh: entry.is_fresh(now),
                rtt: entry.rtt,
                addresses: entry.addresses.clone(),
                silent_for: now.saturating_duration_since(entry.last_heard),
                advert: entry.advert.as_ref().map(|(advert, _)| advert.clone()),
            })
            .collect()
    }

    fn entry(&mut self, peer: PeerId, name: &str, now: Instant) -> Option<&mut Entry> {
        if self.entries.len() >= MAX_PEERS && !self.entries.contains_key(&peer) {
            let gone = self.entries.iter().filter(|(_, entry)| !entry.connected);
            let longest_gone = *gone.min_by_key(|(_, entry)| entry.last_heard)?.0;
            self.entries.remove(&longest_gone);
        }
        Some(self.entries.entry(peer).or_insert_with(|| Entry {
            name: name.to_owned(),
            connected: false,
            rtt: None,
            remote: None,
            addresses: Vec::new(),
            last_heard: now,
            advert: None,
            was_fresh: false,
        }))
    }
}

fn put_first(addresses: &mut Vec<Multiaddr>, address: Multiaddr) {
    addresses.retain(|known| *known != address);
    addresses.insert(0, address);
    addresses.truncate(MAX_ADDRESSES);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identity, Membership, advert::AdvertBody};

    /// A member of a fleet of one, which is all a directory looks at.
    struct Author {
        identity: Identity,
        membership: Membership,
        _folder: tempfile::TempDir,
    }

    impl Author {
        fn new(name: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let identity = Identity::generate();
            let mut membership = Membership::open(folder.path(), identity.peer()).unwrap();
            membership.found("home", name, 1).unwrap();
            Self {
                identity,
                membership,
                _folder: folder,
            }
        }

        fn says(&self, sequence: u64, lifetime_s: u32, state: &str) -> Verified {
            let body = AdvertBody {
                state: state.into(),
                ..AdvertBody::default()
            };
            let certificate = self.membership.certificate().unwrap();
            let address = "/ip4/10.0.0.7/tcp/1".parse().unwrap();
            let bytes = Advert::new(body, sequence, lifetime_s, &[address])
                .seal(&self.identity, certificate)
                .unwrap();
            Advert::open(&bytes, &self.membership).unwrap()
        }
    }

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_advert_lives_from_its_receipt_and_a_repetition_prolongs_it() {
        let mut directory = Directory::default();
        let author = Author::new("desk");
        let start = Instant::now();
        let heard = directory.heard(author.says(1, 20, "available"), false, start);
        assert_eq!(heard, Heard::News);
        assert!(!directory.expire(start + seconds(19)));
        let heard = directory.heard(author.says(2, 20, "available"), false, start + seconds(19));
        assert_eq!(heard, Heard::Refresh);
        assert!(directory.snapshot(start + seconds(38))[0].fresh);
        assert!(!directory.expire(start + seconds(38)));
        assert!(
            directory.expire(start + seconds(39)),
            "somebody has to be told"
        );
        assert!(!directory.expire(start + seconds(40)), "once");
        let entry = directory.snapshot(start + seconds(40)).remove(0);
        assert_eq!((entry.fresh, entry.silent_for), (false, seconds(21)));
        assert_eq!(entry.name, "desk");
        let back = directory.heard(author.says(3, 20, "available"), false, start + seconds(50));
        assert_eq!(back, Heard::News, "it is there again");
    }

    #[test]
    fn what_is_not_newer_is_ignored_unless_the_author_says_it_in_person() {
        let mut directory = Directory::default();
        let author = Author::new("desk");
        let now = Instant::now();
        directory.heard(author.says(5, 20, "available"), false, now);
        let state = |directory: &Directory| {
            let entry = directory.snapshot(now).remove(0);
            entry.advert.unwrap().body.state.clone()
        };
        for sequence in [4, 5] {
            let heard = directory.heard(author.says(sequence, 20, "old"), false, now);
            assert_eq!(heard, Heard::Stale);
        }
        assert_eq!(state(&directory), "available");
        let later = now + seconds(60);
        let replayed = directory.heard(author.says(5, 20, "old"), false, later);
        assert_eq!(
            replayed,
            Heard::Stale,
            "a replay does not revive who is gone"
        );
        assert_eq!(
            directory.heard(author.says(2, 20, "restarted"), true, now),
            Heard::News
        );
        assert_eq!(state(&directory), "restarted");
    }

    #[test]
    fn connections_round_trips_and_addresses_are_kept_apart_from_adverts() {
        let mut directory = Directory::default();
        let author = Author::new("desk");
        let peer = author.identity.peer();
        let now = Instant::now();
        let here = address("/ip4/127.0.0.1/tcp/5");
        let inbound = address("/ip4/127.0.0.1/tcp/50000");
        directory.connected(peer, "desk", inbound.clone(), false, now);
        assert_eq!(directory.remote(peer), Some(&inbound));
        assert_eq!(directory.snapshot(now)[0].addresses, []);
        directory.connected(peer, "desk", here.clone(), true, now);
        directory.round_trip(peer, Duration::from_millis(100), now);
        directory.round_trip(peer, Duration::from_millis(20), now);
        directory.heard(author.says(1, 20, "available"), false, now);
        directory.reachable_at(peer, address("/ip4/10.0.0.8/tcp/1"));
        let entry = directory.snapshot(now).remove(0);
        assert!(entry.connected && entry.fresh);
        assert_eq!(entry.rtt, Some(Duration::from_millis(80)));
        assert_eq!(
            entry.addresses,
            [
                here,
                address("/ip4/10.0.0.7/tcp/1"),
                address("/ip4/10.0.0.8/tcp/1")
            ]
        );
        directory.disconnected(peer, now);
        let entry = directory.snapshot(now).remove(0);
        assert!(!entry.connected && entry.fresh && entry.rtt.is_none());
        assert!(directory.expire(now + FORGET_AFTER));
        assert!(directory.snapshot(now).is_empty());
    }

    #[test]
    fn the_directory_and_each_entry_are_bounded() {
        let mut directory = Directory::default();
        let now = Instant::now();
        for number in 0..MAX_PEERS + 10 {
            let peer = PeerId::random();
            directory.connected(peer, "x", address("/ip4/10.0.0.1/tcp/1"), true, now);
            if number == 0 {
                for port in 0..100 {
                    directory.reachable_at(peer, address(&format!("/ip4/10.0.0.1/tcp/{port}")));
                }
            }
        }
        let entries = directory.snapshot(now);
        assert_eq!(entries.len(), MAX_PEERS);
        let gone = entries[7].peer;
        directory.disconnected(gone, now);
        let newcomer = PeerId::random();
        directory.connected(newcomer, "x", address("/ip4/10.0.0.1/tcp/1"), true, now);
        assert!(directory.entries.contains_key(&newcomer));
        assert!(!directory.entries.contains_key(&gone), "it makes room");
        assert!(
            entries
                .iter()
                .all(|entry| entry.addresses.len() <= MAX_ADDRESSES)
        );
    }
}
