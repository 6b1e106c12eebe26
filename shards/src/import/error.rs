//! Why a model file is refused.

use std::io;

use crate::store::StoreError;

/// One sentence for people, and [`ImportError::hint`] for what to do about it.
///
/// Everything but [`ImportError::Read`], [`ImportError::Store`] and [`ImportError::Cancelled`] says
/// that the file is not one that we can run.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("the file cannot be read: {0}")]
    Read(#[source] io::Error),
    #[error("the model cannot be stored: {0}")]
    Store(#[from] StoreError),
    #[error("the import was cancelled")]
    Cancelled,
    #[error("the file is not GGUF")]
    NotGguf,
    #[error("the file has GGUF version {0}")]
    Version(u32),
    #[error("the file is GGUF in big-endian order")]
    BigEndian,
    #[error("the file ends early: {0}")]
    Truncated(String),
    #[error("the file contradicts itself: {0}")]
    Malformed(String),
    #[error("the file has more {what} than this program reads: {count}, the limit is {limit}")]
    TooMuch {
        what: &'static str,
        count: u64,
        limit: u64,
    },
    #[error("the file is one part of a model that is split into {0} files")]
    Split(u64),
    #[error("the file does not say '{0}'")]
    MissingKey(String),
    #[error("'{key}' is {value}")]
    UnsupportedValue { key: String, value: String },
    #[error("the architecture '{0}' is not supported")]
    Architecture(String),
    #[error("the model is a mixture of {0} experts")]
    MixtureOfExperts(u64),
    #[error("the tensor '{tensor}' has the type {kind}")]
    TensorType { tensor: String, kind: String },
    #[error("the tensor '{tensor}' has the shape {found:?} where {expected:?} is expected")]
    Shape {
        tensor: String,
        found: Vec<u64>,
        expected: Vec<u64>,
    },
    #[error("the tensor '{0}' is missing")]
    MissingTensor(String),
    #[error("the tensor '{0}' has no place in this architecture")]
    UnusedTensor(String),
    #[error("the tensor '{0}' has values that are not finite")]
    NotFinite(String),
    #[error("the tensor '{0}' has values that do not fit {1}")]
    OutOfRange(String, &'static str),
    #[error("the RoPE scaling '{0}' is not supported")]
    RopeScaling(String),
    #[error("the tokenizer is not supported: {0}")]
    Tokenizer(String),
}

impl ImportError {
    /// What to do about it, in one sentence.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Read(_) => "check that the path is right and that you may read the file",
            Self::Store(_) => "check the free space and the permissions of the store's folder",
            Self::Cancelled => "nothing was kept; start the import again when you like",
            Self::NotGguf => "give a file that ends in .gguf; other formats cannot be imported yet",
            Self::Version(_) => "versions 2 and 3 can be read; convert the model again",
            Self::BigEndian => "convert the model to little-endian order",
            Self::Truncated(_) => "the download is probably incomplete; fetch the file again",
            Self::Malformed(_) | Self::MissingKey(_) | Self::NotFinite(_) => {
                "the file is damaged or was written by a faulty converter; fetch it again"
            }
            Self::TooMuch { .. } => "no known model needs that much; fetch the file again",
            Self::Split(_) => "merge the parts into one file first",
            Self::UnsupportedValue { .. } | Self::UnusedTensor(_) => {
                "the model computes something that this program does not; pick another model"
            }
            Self::Architecture(_) => "the architectures 'llama' and 'qwen2' are supported",
            Self::MixtureOfExperts(_) => "pick a dense model",
            Self::TensorType { .. } => {
                "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q8_K can be read; \
                 pick another quantisation of the model"
            }
            Self::Shape { .. } | Self::MissingTensor(_) => {
                "the file is damaged, or it is not a whole language model"
            }
            Self::OutOfRange(..) => "import the model with --weights int8 or f32",
            Self::RopeScaling(_) => "pick a model without RoPE scaling or with 'linear'",
            Self::Tokenizer(_) => {
                "byte-level BPE ('gpt2') with the pre-tokenizers smollm, qwen2, llama-bpe, \
                 gpt-2 and default is supported"
            }
        }
    }
}
