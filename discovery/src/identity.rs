//! Who this machine is: an Ed25519 key pair and the peer id that follows from it.
//!
//! The file holds libp2p's protobuf form of the key. What the machine may do in a fleet is not here but in
//! [`fleet`](crate::fleet).

use crate::platform;
use libp2p::{
    PeerId,
    identity::{Keypair, ed25519},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Why an identity could not be read or made.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file system refused.
    #[error("cannot use the key file {path}: {error}", path = path.display())]
    Io {
        /// The key file.
        path: PathBuf,
        /// What the file system said.
        error: io::Error,
    },
    /// The file is there and holds no Ed25519 key pair.
    #[error("{path} holds no Ed25519 key pair", path = .0.display())]
    NotAKey(PathBuf),
}

/// A machine's key pair. Cheap to clone; printing it shows the peer id only.
#[derive(Clone)]
pub struct Identity {
    keypair: Keypair,
}

impl Identity {
    /// A fresh key pair that is kept nowhere.
    pub fn generate() -> Self {
        Self {
            keypair: Keypair::generate_ed25519(),
        }
    }

    /// Reads the key pair at `path`, or makes one there, readable by its owner only. Of two processes that do so at
    /// once both end up with the same key.
    pub fn load_or_create(path: &Path) -> Result<Self, IdentityError> {
        let failed = |error| IdentityError::Io {
            path: path.to_owned(),
            error,
        };
        match Self::load(path)? {
            Some(identity) => Ok(identity),
            None => {
                let fresh = Self::generate();
                let bytes = fresh
                    .keypair
                    .to_protobuf_encoding()
                    .map_err(|error| failed(io::Error::other(error)))?;
                if platform::create_private(path, &bytes).map_err(failed)? {
                    return Ok(fresh);
                }
                Self::load(path)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
            }
        }
    }

    /// Reads the key pair at `path`; `None` where there is no such file.
    pub fn load(path: &Path) -> Result<Option<Self>, IdentityError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(IdentityError::Io {
                    path: path.to_owned(),
                    error,
                });
            }
        };
        let keypair = Keypair::from_protobuf_encoding(&bytes)
            .map_err(|_| IdentityError::NotAKey(path.to_owned()))?;
        keypair
            .clone()
            .try_into_ed25519()
            .map_err(|_| IdentityError::NotAKey(path.to_owned()))?;
        Ok(Some(Self { keypair }))
    }

    /// The id other machines know this one by.
    pub fn peer(&self) -> PeerId {
        self.keypair.public().to_peer_id()
    }

    pub(crate) fn keypair(&self) -> &Keypair {
        &self.keypair
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.keypair
            .sign(message)
            .expect("an Ed25519 key always signs")
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Identity").field(&self.peer()).finish()
    }
}

/// The public key inside an Ed25519 peer id; `None` for a peer id of another kind.
pub(crate) fn public_key(peer: &PeerId) -> Option<ed25519::PublicKey> {
    /// Multihash code for "the digest is the data itself".
    const IDENTITY: u64 = 0;
    let hash = peer.as_ref();
    (hash.code() == IDENTITY)
        .then(|| libp2p::identity::PublicKey::try_decode_protobuf(hash.digest()).ok())?
        .and_then(|key| key.try_into_ed25519().ok())
}

/// `N ≤ 32` unpredictable bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let secret = ed25519::SecretKey::generate();
    std::array::from_fn(|index| secret.as_ref()[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let first = Identity::load_or_create(&path).unwrap();
        let second = Identity::load_or_create(&path).unwrap();
        assert_eq!(first.peer(), second.peer());
    }

    #[test]
    fn a_file_that_is_no_key_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, b"not a key").unwrap();
        assert!(matches!(
            Identity::load_or_create(&path),
            Err(IdentityError::NotAKey(_))
        ));
        assert_eq!(fs::read(&path).unwrap(), b"not a key");
    }

    #[test]
    fn the_public_key_is_inside_the_peer_id() {
        let identity = Identity::generate();
        let key = public_key(&identity.peer()).unwrap();
        assert!(key.verify(b"message", &identity.sign(b"message")));
        assert!(!key.verify(b"massage", &identity.sign(b"message")));
    }
}
