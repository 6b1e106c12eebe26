//! Key-value metadata of a GGUF file.

use std::collections::BTreeMap;

use crate::import::ImportError;

/// A value; the integer types of the file are kept as one, and so are the two floats.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
}

/// All metadata of one file, by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(pub BTreeMap<String, Value>);

impl Metadata {
    pub fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub fn string(&self, key: &str) -> Option<&str> {
        match self.0.get(key)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    pub fn strings(&self, key: &str) -> Option<&[String]> {
        match self.0.get(key)? {
            Value::Strings(texts) => Some(texts),
            _ => None,
        }
    }

    pub fn integers(&self, key: &str) -> Option<&[i64]> {
        match self.0.get(key)? {
            Value::Integers(numbers) => Some(numbers),
            _ => None,
        }
    }

    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.0.get(key)? {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// A whole number that is not negative, in any of the file's integer types.
    pub fn unsigned(&self, key: &str) -> Option<u64> {
        match self.0.get(key)? {
            Value::Unsigned(value) => Some(*value),
            Value::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// A token id or a width.
    pub fn u32(&self, key: &str) -> Option<u32> {
        u32::try_from(self.unsigned(key)?).ok()
    }

    pub fn float(&self, key: &str) -> Option<f64> {
        match self.0.get(key)? {
            Value::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// A value that must be there, and be a number of 32 bits.
    pub fn demand_u32(&self, key: &str) -> Result<u32, ImportError> {
        match self.0.get(key) {
            None => Err(ImportError::MissingKey(key.to_owned())),
            Some(value) => self.u32(key).ok_or_else(|| ImportError::UnsupportedValue {
                key: key.to_owned(),
                value: value.describe(),
            }),
        }
    }
}

impl Value {
    /// A short text for messages.
    pub fn describe(&self) -> String {
        match self {
            Self::Unsigned(value) => value.to_string(),
            Self::Signed(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::String(text) => format!("'{}'", text.chars().take(64).collect::<String>()),
            Self::Integers(list) => format!("a list of {} numbers", list.len()),
            Self::Floats(list) => format!("a list of {} numbers", list.len()),
            Self::Bools(list) => format!("a list of {} flags", list.len()),
            Self::Strings(list) => format!("a list of {} texts", list.len()),
        }
    }
}
