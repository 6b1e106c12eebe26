//! What differs between operating systems, behind safe functions.
//!
//! The rest of the product asks here; it has no `cfg` of its own.

#[cfg(unix)]
mod unix;
#[cfg(unix)]
pub use unix::{control_name, create_private_folder, prepare_control_path, runtime_folder};

#[cfg(windows)]
mod windows;
#[cfg(windows)]
pub use windows::{control_name, create_private_folder, prepare_control_path, runtime_folder};
