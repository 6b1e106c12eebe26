//! Who carries which layers: models × peers × devices → a plan, and why each peer is in or out.
//!
//! Pure: plain values in, plain values out. There is no socket, file, clock or random number
//! here, and nothing of the other crates: the agent translates manifests and adverts into
//! [`ModelShape`] and [`Candidate`], and turns a [`Plan`] into offers and reservations itself.
//! The same input gives the same plan on every platform (all arithmetic that decides is on
//! integers).
//!
//! - [`model`]: the sizes of a model, as the planner sees it
//! - [`candidate`]: a peer that might take a stage, and its devices
//! - [`footprint`]: what a stage takes of memory and disk, and whether a device can hold it
//! - [`pace`]: what a stage and its hops cost in time
//! - [`search`]: the best line over a set of machines, exactly
//! - [`choose`]: the rules on top of the search, reasons and refusals
//! - [`plan`](mod@crate::plan): the answer

pub mod candidate;
pub mod choose;
pub mod footprint;
pub mod model;
pub mod pace;
pub mod plan;
mod search;

pub use candidate::{Candidate, DeviceOffer, Held, Standing};
pub use choose::{EXACT_CANDIDATES, plan};
pub use footprint::Footprint;
pub use model::ModelShape;
pub use plan::{LeftOut, Plan, PlannedStage, Reason, Refusal, Wish};
