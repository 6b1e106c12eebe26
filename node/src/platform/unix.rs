//! Linux and macOS: permissions are modes, local sockets are files.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
        process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::ExitStatus,
};

use interprocess::local_socket::{GenericFilePath, Name, ToFsName};
use tokio::signal::unix::{SignalKind, signal};

/// Only the owner may enter, list or write.
const PRIVATE: u32 = 0o700;

/// Makes a folder that only its owner can enter. A folder that is already there is left as its
/// owner made it.
pub fn create_private_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE)
        .create(folder)
}

/// This user's folder for sockets whose home has too long a path.
pub fn runtime_folder() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if folder.len() <= 40 && Path::new(&folder).is_absolute() => {
            PathBuf::from(folder).join("skein")
        }
        // Not `temp_dir()`: TMPDIR may be long as well, and the two ends may have different ones.
        _ => PathBuf::from(format!("/tmp/skein-{user}")),
    }
}

/// The socket's name for connecting and listening.
pub fn control_name(path: &Path) -> io::Result<Name<'_>> {
    path.to_fs_name::<GenericFilePath>()
}

/// Makes way for a listener: the folder is this user's and closed to others, and a socket that a
/// dead agent left is gone. The caller holds the home's lock, so no live agent owns it.
pub fn prepare_control_path(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        create_private_folder(folder)?;
        let found = fs::symlink_metadata(folder)?;
        // In a folder that all may write to, another user may have been here first.
        if !found.is_dir() || found.uid() != rustix::process::getuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("{} belongs to another user", folder.display()),
            ));
        }
        if found.mode() & 0o077 != 0 {
            fs::set_permissions(folder, fs::Permissions::from_mode(PRIVATE))?;
        }
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// This process's stdout, for its owner alone: what libraries print goes to stderr from here on.
pub fn take_stdout() -> io::Result<File> {
    let own = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(File::from(own))
}

/// The process that started this one, or whoever took its place when it ended.
pub fn parent_process() -> Option<u32> {
    rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_pid()).ok())
}

/// The signal that ended a process.
pub fn exit_signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// Waits until this process is asked to end: Ctrl-C, a service manager, a closed terminal.
pub async fn termination() {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else {
        tracing::warn!("signals cannot be caught: ending will not be tidy");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

/// Bytes that this user may still write where `path` is or would be.
pub fn disk_available(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|folder| folder.exists())?;
    let found = rustix::fs::statvfs(existing).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_the_socket_is_closed_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let socket = open.join("control.sock");
        fs::write(&socket, b"left over").unwrap();
        prepare_control_path(&socket).unwrap();
        assert_eq!(fs::metadata(&open).unwrap().mode() & 0o777, PRIVATE);
        assert!(!socket.exists());
    }

    #[test]
    fn a_folder_that_is_yet_to_be_made_has_the_space_of_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let space = disk_available(&folder.path().join("not/there/yet")).unwrap();
        assert!(space > 0);
    }
}
