//! The network by itself, without Skein.

use std::time::Duration;

use anyhow::ensure;

use crate::echo;
use crate::network::Network;
use crate::switch::Link;

/// What the machine itself may add to the fastest round trip; generous, since it may be busy.
const SLACK: Duration = Duration::from_millis(15);

/// The fastest round trip is both links' delays and little more. (The others say more about how
/// busy the machine is.)
pub fn round_trip(link: Link) -> anyhow::Result<String> {
    let network = Network::build(&["a", "b"], link)?;
    let [a, b] = network.machines.as_slice() else {
        unreachable!("two machines were asked for");
    };
    let times = echo::round_trips(a, b, 21, 1_000)?;
    let median = times[times.len() / 2];
    let expected = link.delay * 2;
    ensure!(
        times[0] >= expected && times[0] < expected + SLACK,
        "round trips took {:?} to {:?} instead of {expected:?}",
        times[0],
        times[times.len() - 1]
    );
    let counters = network.stop();
    ensure!(counters.lost == 0 && counters.dropped == 0, "{counters:?}");
    Ok(format!(
        "{:.1} ms at best, {:.1} ms in the middle",
        times[0].as_secs_f64() * 1e3,
        median.as_secs_f64() * 1e3
    ))
}

/// Messages of several frames arrive whole over a link that loses some.
pub fn loss() -> anyhow::Result<String> {
    let link = Link {
        delay: Duration::from_millis(1),
        jitter: Duration::from_millis(1),
        loss: 0.02,
        rate: Some(100_000_000),
    };
    let network = Network::build(&["a", "b"], link)?;
    let [a, b] = network.machines.as_slice() else {
        unreachable!("two machines were asked for");
    };
    let times = echo::round_trips(a, b, 40, 16_000)?;
    let counters = network.stop();
    ensure!(counters.lost > 0, "no frame was lost: {counters:?}");
    let longest = times[times.len() - 1];
    Ok(format!(
        "{} of {} frames lost, the slowest message took {:.0} ms",
        counters.lost,
        counters.lost + counters.forwarded,
        longest.as_secs_f64() * 1e3
    ))
}
