//! Windows: a user's folders are private by their place, local sockets are named pipes.

use std::{
    io,
    path::{Path, PathBuf},
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
