//! Where an agent keeps its files.
//!
//! With `--home` or `SKEIN_HOME`, everything of one agent is in one folder, and several agents on
//! a machine differ only in it. Without, the platform's own folders are used. Downloads that any
//! agent may share are elsewhere: `skein_provide` finds them (`SKEIN_CACHE`).

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    error::{Context, Error, Result},
    platform,
};

/// The environment variable that names the home.
pub const HOME_VARIABLE: &str = "SKEIN_HOME";

/// The longest path a Unix socket may have here: `sun_path` holds 108 bytes on Linux and 104 on
/// macOS, the last a NUL.
const MAX_SOCKET_PATH: usize = 103;

/// How often a starting agent tries for its home, and the pause between.
const LOCK_ATTEMPTS: u32 = 25;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// One agent's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// How messages name it.
    label: String,
    config: PathBuf,
    data: PathBuf,
    state: PathBuf,
}

impl Home {
    /// The home that `--home` or `SKEIN_HOME` names (clap reads both), else the platform's folders.
    /// Nothing is created.
    pub fn resolve(folder: Option<&Path>) -> Result<Self> {
        match folder {
            Some(folder) if folder.as_os_str().is_empty() => {
                Err(Error::usage("the home is an empty path").hint("name a folder"))
            }
            Some(folder) => {
                let folder = std::path::absolute(folder)
                    .context(format_args!("cannot make {} absolute", folder.display()))?;
                // An agent and its commands may come by different links to one folder.
                let folder = folder.canonicalize().unwrap_or(folder);
                Ok(Self {
                    label: folder.display().to_string(),
                    config: folder.clone(),
                    data: folder.clone(),
                    state: folder,
                })
            }
            None => {
                let folders = directories::ProjectDirs::from("", "", "skein").ok_or_else(|| {
                    Error::failed("this user has no home folder")
                        .hint("say where to keep files with `--home DIR` or SKEIN_HOME")
                })?;
                let data = folders.data_local_dir().to_path_buf();
                Ok(Self {
                    label: data.display().to_string(),
                    config: folders.config_dir().to_path_buf(),
                    state: folders
                        .state_dir()
                        .map_or_else(|| data.clone(), Path::to_path_buf),
                    data,
                })
            }
        }
    }

    /// How messages name it.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Makes the folders, readable by their owner only.
    pub fn create(&self) -> Result<()> {
        for folder in [&self.config, &self.data, &self.state] {
            platform::create_private_folder(folder)
                .context(format_args!("cannot make the folder {}", folder.display()))?;
        }
        Ok(())
    }

    /// Whether anything of it exists.
    pub fn exists(&self) -> bool {
        self.data.is_dir()
    }

    /// The owner's settings (TOML).
    pub fn settings_file(&self) -> PathBuf {
        self.config.join("settings.toml")
    }

    /// The machine's Ed25519 key.
    pub fn identity_file(&self) -> PathBuf {
        self.data.join("identity.key")
    }

    /// Membership: the fleet's key or this machine's certificate (CBOR).
    pub fn fleet_file(&self) -> PathBuf {
        self.data.join("fleet.cbor")
    }

    /// The folder of the above two.
    pub fn data_dir(&self) -> &Path {
        &self.data
    }

    /// Models.
    pub fn store_dir(&self) -> PathBuf {
        self.data.join("store")
    }

    /// Cut and compiled stages, safe to delete.
    pub fn stages_dir(&self) -> PathBuf {
        self.data.join("stages")
    }

    /// Logs of the agent and its workers.
    pub fn logs_dir(&self) -> PathBuf {
        self.state.join("logs")
    }

    /// Locked by the agent as long as it runs.
    pub fn lock_file(&self) -> PathBuf {
        self.data.join("agent.lock")
    }

    /// The control socket: in the home where the path is short enough for one, else under a hashed
    /// name in this user's run-time folder.
    pub fn socket_path(&self) -> PathBuf {
        let path = self.state.join("control.sock");
        if path.as_os_str().len() <= MAX_SOCKET_PATH {
            return path;
        }
        let hash = blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex();
        platform::runtime_folder().join(format!("{}.sock", &hash[..24]))
    }

    /// Takes the agent's place in this home, or says that another has it.
    pub fn lock(&self) -> Result<HomeLock> {
        self.create()?;
        for _ in 0..LOCK_ATTEMPTS {
            if let Some(lock) = self.try_lock(true)? {
                return Ok(lock);
            }
            // A command that only looks holds it for a moment.
            std::thread::sleep(LOCK_PAUSE);
        }
        Err(Error::failed(format_args!(
            "an agent is already running for {}",
            self.label
        ))
        .hint("`skein status` shows it, `skein stop` ends it"))
    }

    /// Whether an agent holds this home now. Makes nothing.
    pub fn is_locked(&self) -> bool {
        matches!(self.try_lock(false), Ok(None))
    }

    fn try_lock(&self, create: bool) -> Result<Option<HomeLock>> {
        let path = self.lock_file();
        let opening = format!("cannot open {}", path.display());
        let file = File::options()
            .create(create)
            .truncate(false)
            .write(true)
            .open(&path)
            .context(opening)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(HomeLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }
}

/// Held while an agent runs; the system frees it however the agent ends.
#[derive(Debug)]
pub struct HomeLock {
    _file: File,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_of_a_named_home_is_in_that_folder() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::resolve(Some(folder.path())).unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in [
            home.settings_file(),
            home.identity_file(),
            home.fleet_file(),
            home.store_dir(),
            home.stages_dir(),
            home.logs_dir(),
            home.lock_file(),
            home.socket_path(),
        ] {
            assert!(path.starts_with(&root), "{}", path.display());
        }
    }

    #[test]
    fn a_long_home_gets_a_socket_path_that_fits_and_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("a-folder-with-a-long-name".repeat(8));
        let one = Home::resolve(Some(&long.join("one")))
            .unwrap()
            .socket_path();
        let two = Home::resolve(Some(&long.join("two")))
            .unwrap()
            .socket_path();
        assert!(
            one.as_os_str().len() <= MAX_SOCKET_PATH,
            "{}",
            one.display()
        );
        assert_ne!(one, two);
    }

    #[test]
    fn a_second_agent_on_a_home_is_told_so_until_the_first_ends() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::resolve(Some(folder.path())).unwrap();
        let lock = home.lock().unwrap();
        assert!(home.is_locked());
        let error = home.lock().unwrap_err();
        assert!(error.message.contains("already running"), "{error}");
        drop(lock);
        assert!(!home.is_locked());
        home.lock().unwrap();
    }
}
