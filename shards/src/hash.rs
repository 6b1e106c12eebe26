//! Content names: a BLAKE3 hash, and the hash that names a model.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER_PERMISSIVE;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The BLAKE3 hash of some bytes; for a segment also the root of its verified-streaming tree.
///
/// Shown and parsed as 64 hex digits; serialised as a byte string of 32, or as hex where the
/// format is for people.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        blake3::hash(bytes).into()
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first ten hex digits, for people; never unique by promise.
    pub fn short(&self) -> String {
        self.to_string()[..10].to_owned()
    }
}

impl From<blake3::Hash> for Hash {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl From<Hash> for blake3::Hash {
    fn from(hash: Hash) -> Self {
        blake3::Hash::from_bytes(hash.0)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({})", self.short())
    }
}

/// A text that is not a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash is 64 hex digits")]
pub struct ParseHashError;

impl FromStr for Hash {
    type Err = ParseHashError;

    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        let bytes = HEXLOWER_PERMISSIVE
            .decode(text.as_bytes())
            .map_err(|_| ParseHashError)?;
        Ok(Self(bytes.try_into().map_err(|_| ParseHashError)?))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            text.parse().map_err(de::Error::custom)
        } else {
            let bytes = serde_bytes::ByteBuf::deserialize(deserializer)?;
            let bytes = <[u8; 32]>::try_from(bytes.as_slice())
                .map_err(|_| de::Error::invalid_length(bytes.len(), &"a hash of 32 bytes"))?;
            Ok(Self(bytes))
        }
    }
}

/// The hash of a model's canonical manifest: the name by which peers mean the same model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ModelId(pub Hash);

impl ModelId {
    pub fn hash(&self) -> &Hash {
        &self.0
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelId({})", self.0.short())
    }
}

impl FromStr for ModelId {
    type Err = ParseHashError;

    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_survives_text_json_and_cbor() {
        let hash = Hash::of(b"skein");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string().to_uppercase().parse(), Ok(hash));
        let json = serde_json::to_string(&hash).unwrap();
        assert_eq!(serde_json::from_str::<Hash>(&json).unwrap(), hash);
        let mut cbor = Vec::new();
        ciborium::into_writer(&ModelId(hash), &mut cbor).unwrap();
        assert_eq!(cbor.len(), 34, "a byte string, not an array of numbers");
        assert_eq!(
            ciborium::from_reader::<ModelId, _>(&cbor[..]).unwrap(),
            ModelId(hash)
        );
    }

    #[test]
    fn a_hash_of_another_length_is_refused() {
        assert_eq!("abcd".parse::<Hash>(), Err(ParseHashError));
        assert_eq!("zz".repeat(32).parse::<Hash>(), Err(ParseHashError));
        assert!(ciborium::from_reader::<Hash, _>(&[0x41, 0x00][..]).is_err());
    }
}
