//! A fake engine and a line in simulated time, for tests of this and other crates.
