//! Ctrl-C and SIGTERM. The bench notices at its next wait and unwinds, so every guard runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How long a wait sleeps before it looks again.
const GLANCE: Duration = Duration::from_millis(50);

/// Starts to listen; once per process.
pub fn listen() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot listen for signals")?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        )
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            INTERRUPTED.store(true, Ordering::Relaxed);
            // Stay, so that a second signal does not cut the cleaning up short.
            std::future::pending::<()>().await;
        });
    });
    Ok(())
}

pub fn happened() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Polls until `ready` gives something; an error when it takes longer than `most` or a signal
/// arrives.
pub fn wait_for<T>(
    what: &str,
    most: Duration,
    mut ready: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if happened() {
            bail!("interrupted while waiting for {what}");
        }
        if begun.elapsed() >= most {
            bail!("waited {} s for {what}", most.as_secs());
        }
        std::thread::sleep(GLANCE);
    }
}
