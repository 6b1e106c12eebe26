//! A learning Ethernet switch with imperfect links, without its wires: frames and `now` go in,
//! frames and the time of the next departure come out. [`cable`] connects it to devices.
//!
//! A link's delay, jitter, loss and rate apply to what its machine sends, so a round trip
//! between two machines takes both delays. Frames of one link stay in order, as on a wire: jitter
//! stretches gaps but does not reorder.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub mod cable;

/// Longest Ethernet frame that a link carries; well above any MTU used here.
pub const MAX_FRAME: usize = 16 << 10;
/// Destination, source and type.
const HEADER: usize = 14;
/// Frames under way at most: a second of 10 Gbit/s in full frames. More are dropped.
const MAX_UNDER_WAY: usize = 1 << 20;
/// Addresses remembered at most; a bench has a handful of machines.
const MAX_ADDRESSES: usize = 4_096;
/// A link of limited rate queues frames for so long and drops those that would wait longer.
const LONGEST_QUEUE: Duration = Duration::from_millis(200);

type Address = [u8; 6];

/// What a link does to frames that its machine sends.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Link {
    pub delay: Duration,
    /// Up to so much is added to the delay, evenly spread.
    pub jitter: Duration,
    /// Probability that a frame is lost, 0 to 1.
    pub loss: f64,
    /// Bits per second; `None` for no limit.
    pub rate: Option<u64>,
}

/// What passed so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub forwarded: u64,
    pub lost: u64,
    /// Dropped because a queue was full or a frame malformed.
    pub dropped: u64,
}

/// The switch.
#[derive(Debug)]
pub struct Switch {
    ports: Vec<Port>,
    addresses: BTreeMap<Address, usize>,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    chance: Chance,
    sequence: u64,
    counters: Counters,
}

#[derive(Debug)]
struct Port {
    link: Link,
    /// When the link has sent everything that it has so far.
    idle_at: Option<Instant>,
    last_arrival: Option<Instant>,
}

/// Ordered by arrival, then by the order of sending.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    arrival: Instant,
    sequence: u64,
    port: usize,
    frame: Arc<[u8]>,
}

impl Switch {
    /// One port per link. The same seed and the same frames at the same times give the same losses
    /// and jitter.
    pub fn new(links: &[Link], seed: u64) -> Self {
        Switch {
            ports: links
                .iter()
                .map(|link| Port {
                    link: *link,
                    idle_at: None,
                    last_arrival: None,
                })
                .collect(),
            addresses: BTreeMap::new(),
            under_way: BinaryHeap::new(),
            chance: Chance(seed),
            sequence: 0,
            counters: Counters::default(),
        }
    }

    /// A frame comes in at `port`.
    pub fn receive(&mut self, port: usize, frame: &[u8], now: Instant) {
        let Some((to, from)) = addresses(frame) else {
            self.counters.dropped += 1;
            return;
        };
        if self.addresses.len() < MAX_ADDRESSES || self.addresses.contains_key(&from) {
            self.addresses.insert(from, port);
        }
        if self.chance.share() < self.ports[port].link.loss {
            self.counters.lost += 1;
            return;
        }
        let jitter = self.chance.share();
        let Some(arrival) = self.ports[port].send(frame.len(), jitter, now) else {
            self.counters.dropped += 1;
            return;
        };
        let frame: Arc<[u8]> = frame.into();
        for receiver in self.receivers(port, to) {
            if self.under_way.len() >= MAX_UNDER_WAY {
                self.counters.dropped += 1;
                continue;
            }
            self.sequence += 1;
            self.under_way.push(Reverse(UnderWay {
                arrival,
                sequence: self.sequence,
                port: receiver,
                frame: Arc::clone(&frame),
            }));
        }
    }

    /// When the next frame arrives somewhere.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse(next)| next.arrival)
    }

    /// A frame that has arrived by `now`, and the port it leaves through.
    pub fn deliver(&mut self, now: Instant) -> Option<(usize, Arc<[u8]>)> {
        if self.next_arrival()? > now {
            return None;
        }
        let Reverse(arrived) = self.under_way.pop()?;
        self.counters.forwarded += 1;
        Some((arrived.port, arrived.frame))
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn receivers(&self, from: usize, to: Address) -> Vec<usize> {
        let group = to[0] & 1 == 1;
        match self.addresses.get(&to) {
            Some(port) if !group => (*port != from).then_some(*port).into_iter().collect(),
            _ => (0..self.ports.len()).filter(|port| *port != from).collect(),
        }
    }
}

impl Port {
    /// When a frame sent now arrives; `None` when the link's queue is full.
    fn send(&mut self, bytes: usize, jitter: f64, now: Instant) -> Option<Instant> {
        let mut sent = now;
        if let Some(rate) = self.link.rate {
            let begins = self.idle_at.map_or(now, |idle| idle.max(now));
            if begins - now > LONGEST_QUEUE {
                return None;
            }
            let seconds = bytes as f64 * 8.0 / rate.max(1) as f64;
            // A day stands for a link that is as good as cut.
            sent = begins + Duration::from_secs_f64(seconds.min(86_400.0));
            self.idle_at = Some(sent);
        }
        let arrival = sent + self.link.delay + self.link.jitter.mul_f64(jitter);
        let arrival = self.last_arrival.map_or(arrival, |last| last.max(arrival));
        self.last_arrival = Some(arrival);
        Some(arrival)
    }
}

fn addresses(frame: &[u8]) -> Option<(Address, Address)> {
    if frame.len() < HEADER || frame.len() > MAX_FRAME {
        return None;
    }
    let (to, rest) = frame.split_first_chunk()?;
    Some((*to, *rest.first_chunk()?))
}

/// SplitMix64: enough for losing frames.
#[derive(Debug)]
struct Chance(u64);

impl Chance {
    /// Evenly in `[0, 1)`.
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROADCAST: Address = [0xff; 6];
    const MULTICAST: Address = [0x01, 0, 0x5e, 0, 0, 0xfb];

    fn mac(machine: u8) -> Address {
        [2, 0, 0, 0, 0, machine]
    }

    fn frame(from: u8, to: Address, bytes: usize) -> Vec<u8> {
        let mut frame = vec![0; bytes.max(HEADER)];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&mac(from));
        frame
    }

    /// Everything that arrives until nothing is under way, as (port, milliseconds).
    fn arrivals(switch: &mut Switch, begun: Instant) -> Vec<(usize, u128)> {
        let mut seen = Vec::new();
        while let Some(next) = switch.next_arrival() {
            while let Some((port, _)) = switch.deliver(next) {
                seen.push((port, (next - begun).as_millis()));
            }
        }
        seen
    }

    fn delayed(ms: u64) -> Link {
        Link {
            delay: Duration::from_millis(ms),
            ..Link::default()
        }
    }

    #[test]
    fn an_unknown_address_reaches_everyone_else_and_a_learnt_one_only_its_port() {
        let now = Instant::now();
        let mut switch = Switch::new(&[Link::default(); 3], 1);
        switch.receive(0, &frame(0, mac(1), 60), now);
        assert_eq!(arrivals(&mut switch, now), [(1, 0), (2, 0)]);
        switch.receive(1, &frame(1, mac(0), 60), now);
        assert_eq!(arrivals(&mut switch, now), [(0, 0)]);
        switch.receive(0, &frame(0, mac(1), 60), now);
        assert_eq!(arrivals(&mut switch, now), [(1, 0)]);
    }

    #[test]
    fn broadcast_and_multicast_reach_everyone_else() {
        let now = Instant::now();
        let mut switch = Switch::new(&[Link::default(); 3], 1);
        for to in [BROADCAST, MULTICAST] {
            switch.receive(2, &frame(2, to, 60), now);
            assert_eq!(arrivals(&mut switch, now), [(0, 0), (1, 0)]);
        }
    }

    #[test]
    fn a_machine_that_moves_is_found_at_its_new_port() {
        let now = Instant::now();
        let mut switch = Switch::new(&[Link::default(); 3], 1);
        switch.receive(1, &frame(9, BROADCAST, 60), now);
        switch.receive(2, &frame(9, BROADCAST, 60), now);
        arrivals(&mut switch, now);
        switch.receive(0, &frame(0, mac(9), 60), now);
        assert_eq!(arrivals(&mut switch, now), [(2, 0)]);
    }

    #[test]
    fn a_frame_to_its_own_port_goes_nowhere() {
        let now = Instant::now();
        let mut switch = Switch::new(&[Link::default(); 2], 1);
        switch.receive(0, &frame(0, mac(0), 60), now);
        assert_eq!(arrivals(&mut switch, now), []);
    }

    #[test]
    fn each_way_takes_the_sender_s_delay() {
        let now = Instant::now();
        let mut switch = Switch::new(&[delayed(20), delayed(5)], 1);
        switch.receive(0, &frame(0, BROADCAST, 60), now);
        switch.receive(1, &frame(1, BROADCAST, 60), now);
        assert_eq!(arrivals(&mut switch, now), [(0, 5), (1, 20)]);
    }

    #[test]
    fn nothing_arrives_early() {
        let now = Instant::now();
        let mut switch = Switch::new(&[delayed(20), delayed(20)], 1);
        switch.receive(0, &frame(0, BROADCAST, 60), now);
        assert!(
            switch
                .deliver(now + Duration::from_micros(19_999))
                .is_none()
        );
        assert!(switch.deliver(now + Duration::from_millis(20)).is_some());
    }

    #[test]
    fn jitter_spreads_arrivals_but_keeps_the_order() {
        let now = Instant::now();
        let link = Link {
            jitter: Duration::from_millis(10),
            ..delayed(20)
        };
        let mut switch = Switch::new(&[link; 2], 7);
        for sent in 0..200u64 {
            let size = HEADER + sent as usize;
            switch.receive(
                0,
                &frame(0, BROADCAST, size),
                now + Duration::from_millis(sent),
            );
        }
        let mut sizes = Vec::new();
        let mut late = Vec::new();
        while let Some(next) = switch.next_arrival() {
            let (_, frame) = switch.deliver(next).expect("it is due");
            let sent = Duration::from_millis((frame.len() - HEADER) as u64);
            late.push((next - now) - sent);
            sizes.push(frame.len());
        }
        assert!(sizes.is_sorted());
        assert!(
            late.iter()
                .all(|late| (20..=30).contains(&late.as_millis()))
        );
        assert!(late.iter().max() > Some(&Duration::from_millis(28)));
    }

    #[test]
    fn the_wished_share_of_frames_is_lost() {
        let now = Instant::now();
        let link = Link {
            loss: 0.25,
            ..Link::default()
        };
        let mut switch = Switch::new(&[link; 2], 3);
        for _ in 0..10_000 {
            switch.receive(0, &frame(0, BROADCAST, 60), now);
        }
        let lost = switch.counters().lost;
        assert!((2_300..2_700).contains(&lost), "{lost}");
        assert_eq!(arrivals(&mut switch, now).len() as u64, 10_000 - lost);
    }

    #[test]
    fn a_limited_rate_spaces_frames_and_drops_what_would_queue_too_long() {
        let now = Instant::now();
        let link = Link {
            rate: Some(8_000_000),
            ..Link::default()
        };
        // A thousand bytes take a millisecond.
        let mut switch = Switch::new(&[link; 2], 1);
        for _ in 0..3 {
            switch.receive(0, &frame(0, BROADCAST, 1_000), now);
        }
        assert_eq!(arrivals(&mut switch, now), [(1, 1), (1, 2), (1, 3)]);
        for _ in 0..1_000 {
            switch.receive(0, &frame(0, BROADCAST, 1_000), now);
        }
        assert_eq!(switch.counters().dropped, 802);
    }

    #[test]
    fn frames_too_short_or_too_long_are_dropped() {
        let now = Instant::now();
        let mut switch = Switch::new(&[Link::default(); 2], 1);
        switch.receive(0, &[0; HEADER - 1], now);
        switch.receive(0, &[0; MAX_FRAME + 1], now);
        assert_eq!(switch.counters().dropped, 2);
        assert_eq!(switch.next_arrival(), None);
    }

    #[test]
    fn one_seed_gives_one_course_of_events() {
        let now = Instant::now();
        let course = |seed| {
            let link = Link {
                loss: 0.3,
                jitter: Duration::from_millis(9),
                ..delayed(1)
            };
            let mut switch = Switch::new(&[link; 2], seed);
            for _ in 0..50 {
                switch.receive(0, &frame(0, BROADCAST, 60), now);
            }
            arrivals(&mut switch, now)
        };
        assert_eq!(course(5), course(5));
        assert_ne!(course(5), course(6));
    }
}
