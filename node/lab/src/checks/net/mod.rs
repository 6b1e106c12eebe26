//! Three agents, each in a network namespace of its own, 20 ms apart in each direction.

use std::path::Path;
use std::time::Duration;

use super::{Setup, needs};
use crate::interrupt;
use crate::outcome::{Outcome, Report};
use crate::switch::Link;

mod fleet;
mod shards;
mod wire;

/// How every machine's link is.
const LINK: Link = Link {
    delay: Duration::from_millis(20),
    jitter: Duration::ZERO,
    loss: 0.0,
    rate: None,
};

/// Runs all cases.
pub fn check(setup: &Setup) -> Report {
    if let Err(reason) = needs::namespaces() {
        return Report::without("net", &reason);
    }
    let mut report = Report::new("net");
    let mut case = |name: &str, run: &dyn Fn() -> Outcome| {
        if !interrupt::happened() {
            report.case(name, run);
        }
    };
    if let Err(error) = interrupt::listen() {
        case("signals", &|| Outcome::Failed(anyhow::anyhow!("{error:#}")));
    }
    case("a round trip takes both links' delays", &|| {
        wire::round_trip(LINK).into()
    });
    case("lost frames are sent again and nothing is changed", &|| {
        wire::loss().into()
    });
    let with_skein = |run: fn(&Path, &Path) -> anyhow::Result<String>| match needs::skein(setup) {
        Err(error) => Outcome::Failed(error),
        Ok(skein) => match needs::model(setup) {
            Err(reason) => Outcome::Skipped(reason),
            Ok(model) => run(&skein, &model).into(),
        },
    };
    case("agents find each other over mDNS and answer", &|| {
        with_skein(fleet::over_mdns)
    });
    case("agents join over an explicit address and answer", &|| {
        with_skein(fleet::over_an_address)
    });
    case("only the importer sees the model's file", &|| {
        with_skein(shards::from_the_importer)
    });
    if interrupt::happened() {
        report.interrupt();
    }
    report
}
