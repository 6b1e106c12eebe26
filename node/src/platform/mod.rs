//! What differs between operating systems, behind safe functions.
//!
//! The rest of the product asks here; it has no `cfg` of its own.

mod machine;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

pub use machine::{available_memory, resident_bytes, total_memory};
pub use system::{
    control_name, create_private_folder, disk_available, exit_signal, parent_process,
    prepare_control_path, runtime_folder, take_stdout, termination,
};
