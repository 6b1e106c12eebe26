//! What the bytes are: model files, the graphs and weights made of them, and the store that keeps
//! and shares them.
//!
//! A model file is read by [`import`], requantised by [`quant`] and written as one canonical
//! [`graph`] plus one weights file cut into segments, which a [`manifest`] names by [`hash`].
//! [`store`] keeps segments on disk, [`transfer`] moves verified ranges of them over any byte
//! stream, and [`tokenizer`] turns text into token ids and back.
//!
//! Deliberately not here: peers and addresses (`skein-discovery`), running a graph
//! (`skein-engine`), and which machine holds which layers (`skein-planner`).

pub mod graph;
pub mod hash;
pub mod import;
pub mod manifest;
pub mod quant;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tokenizer;
pub mod transfer;
