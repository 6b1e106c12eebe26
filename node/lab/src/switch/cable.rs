//! Connects a [`Switch`] to devices: one thread waits for frames and for the next arrival.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Counters, MAX_FRAME, Switch};

/// How soon the thread notices that it is to end.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// Frames taken from one device before the others have their turn.
const FRAMES_PER_TURN: usize = 64;

/// A switch at work; it stops when this is dropped.
#[derive(Debug)]
pub struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Counters>>,
}

impl Running {
    /// Port `i` of the switch is `devices[i]`.
    pub fn start(mut switch: Switch, mut devices: Vec<File>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                turn(&mut switch, &mut devices);
            }
            switch.counters()
        });
        Running {
            stop,
            thread: Some(thread),
        }
    }

    /// Stops the switch and says what passed.
    pub fn stop(mut self) -> Counters {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Counters> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn turn(switch: &mut Switch, devices: &mut [File]) {
    while let Some((port, frame)) = switch.deliver(Instant::now()) {
        // A device that is down or full drops the frame, as a network card does.
        let _ = devices[port].write(&frame);
    }
    let wait = switch.next_arrival().map_or(LONGEST_WAIT, |next| {
        next.saturating_duration_since(Instant::now())
            .min(LONGEST_WAIT)
    });
    let ready = readable(devices, wait);
    let mut buffer = [0; MAX_FRAME];
    for port in ready {
        for _ in 0..FRAMES_PER_TURN {
            match devices[port].read(&mut buffer) {
                Ok(bytes) => switch.receive(port, &buffer[..bytes], Instant::now()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }
}

fn readable(devices: &[File], wait: Duration) -> Vec<usize> {
    let mut waiting: Vec<PollFd<'_>> = devices
        .iter()
        .map(|device| PollFd::new(device, PollFlags::IN))
        .collect();
    let timeout = Timespec {
        tv_sec: wait.as_secs().cast_signed(),
        tv_nsec: wait.subsec_nanos().into(),
    };
    if poll(&mut waiting, Some(&timeout)).is_err() {
        return Vec::new();
    }
    let broken = PollFlags::ERR | PollFlags::NVAL | PollFlags::HUP;
    if waiting.iter().any(|fd| fd.revents().intersects(broken)) {
        // A namespace was deleted under the device; do not spin until we are told to stop.
        std::thread::sleep(wait.max(Duration::from_millis(1)));
    }
    waiting
        .iter()
        .enumerate()
        .filter(|(_, fd)| fd.revents().contains(PollFlags::IN))
        .map(|(port, _)| port)
        .collect()
}
