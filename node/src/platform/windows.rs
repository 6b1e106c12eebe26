//! Windows: a user's folders are private by their place, local sockets are named pipes.

use std::{
    fs::File,
    io,
    os::windows::io::AsHandle,
    path::{Path, PathBuf},
    process::ExitStatus,
};

use interprocess::local_socket::{GenericNamespaced, Name, ToNsName};

/// Makes a folder; under the user's profile it is private by inheritance.
pub fn create_private_folder(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)
}

/// Where a socket with a hashed name would be; a pipe's name is only derived from it.
pub fn runtime_folder() -> PathBuf {
    std::env::temp_dir().join("skein")
}

/// The pipe's name: a hash of the path, since a pipe's name may not hold a path.
pub fn control_name(path: &Path) -> io::Result<Name<'_>> {
    let hash = blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex();
    format!("skein-{}", &hash[..24])
        .to_ns_name::<GenericNamespaced>()
        .map(Name::into_owned)
}

/// Nothing to make way for: a pipe ends with its process.
pub fn prepare_control_path(_path: &Path) -> io::Result<()> {
    Ok(())
}

/// A second handle to this process's stdout. What libraries print is not kept apart here.
pub fn take_stdout() -> io::Result<File> {
    io::stdout()
        .as_handle()
        .try_clone_to_owned()
        .map(File::from)
}

/// Not known: a process id says nothing once its process has ended.
pub fn parent_process() -> Option<u32> {
    None
}

/// There are no signals.
pub fn exit_signal(_status: ExitStatus) -> Option<i32> {
    None
}

/// Waits until this process is asked to end: Ctrl-C.
pub async fn termination() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// Bytes that can still be written where `path` is or would be.
pub fn disk_available(path: &Path) -> Option<u64> {
    let disks = sysinfo::Disks::new_with_refreshed_list();
    let holders = disks
        .iter()
        .filter(|disk| path.starts_with(disk.mount_point()));
    holders
        .max_by_key(|disk| disk.mount_point().as_os_str().len())
        .map(sysinfo::Disk::available_space)
}
