//! The tensor types of GGUF: their names, sizes and identities.

/// A tensor type that can be turned into f32 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TensorType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
}

impl TensorType {
    /// Every type, in the file format's order.
    pub const ALL: [Self; 14] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Q8K,
        Self::Bf16,
    ];

    /// The type with this number in the file format, or the name of one that cannot be read.
    pub fn from_id(id: u32) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.id() == id)
            .ok_or_else(|| unreadable_name(id))
    }

    /// The number of this type in the file format.
    pub fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Q8K => 15,
            Self::Bf16 => 30,
        }
    }

    /// Values and bytes of one block.
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q2K => (256, 84),
            Self::Q3K => (256, 110),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Q8K => (256, 292),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Q8K => "Q8_K",
        }
    }
}

fn unreadable_name(id: u32) -> String {
    let name = match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        other => return format!("number {other}, which is unknown"),
    };
    name.to_owned()
}

/// Where a tensor lies in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// Innermost dimension first, as in the file: `[width]` or `[width, rows]`.
    pub shape: Vec<u64>,
    pub kind: TensorType,
    /// From the start of the file, in bytes.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

impl Tensor {
    /// Length of a row in values.
    pub fn width(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Number of values.
    pub fn values(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        let (values, bytes) = self.kind.block();
        self.width() / values as u64 * bytes as u64
    }
}
