//! Model files in, the canonical form out.

mod error;
pub mod gguf;

pub use error::ImportError;
