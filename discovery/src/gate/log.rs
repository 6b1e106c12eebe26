//! One line per refusal, and a bound on how many a flood of strangers can cause.

use crate::fleet::Refusal;
use libp2p::{Multiaddr, PeerId};
use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

/// Lines per window. A person can read these; a flood says nothing more in its thousandth line.
pub(crate) const LOG_BURST: u32 = 20;
/// How long a window lasts.
pub(crate) const LOG_WINDOW: Duration = Duration::from_secs(10);

/// Writes refusals to the log, at most [`LOG_BURST`] per [`LOG_WINDOW`].
#[derive(Default)]
pub(crate) struct RefusalLog {
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Window {
    /// Whether one more line may be written, and how many were left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now >= began + LOG_WINDOW) {
            self.began = Some(now);
            self.lines = 0;
        }
        if self.lines >= LOG_BURST {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl RefusalLog {
    pub(crate) fn refused(&self, refusal: Refusal, peer: PeerId, address: &Multiaddr) {
        let admitted = self
            .window
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .admit(Instant::now());
        let reason = refusal.code();
        match admitted {
            None => {}
            Some(0) => tracing::warn!(
                target: "skein::gate", %peer, %address, reason,
                "refused a connection: {refusal}"
            ),
            Some(left_out) => tracing::warn!(
                target: "skein::gate", %peer, %address, reason, left_out,
                "refused a connection: {refusal}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_logged_in_part_and_counted_in_the_next_line() {
        let mut window = Window::default();
        let start = Instant::now();
        let lines = (0..200).filter(|_| window.admit(start).is_some()).count();
        assert_eq!(lines, LOG_BURST as usize);
        assert_eq!(
            window.admit(start + LOG_WINDOW),
            Some(200 - u64::from(LOG_BURST))
        );
        assert_eq!(window.admit(start + LOG_WINDOW), Some(0));
    }
}
