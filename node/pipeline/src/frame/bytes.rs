//! A cursor over received bytes, and the writers that match it.

use super::FrameError;

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], FrameError> {
        let rest = &self.bytes[self.at..];
        if rest.len() < count {
            return Err(FrameError::Length {
                needed: self.at as u64 + count as u64,
                got: self.bytes.len() as u64,
            });
        }
        self.at += count;
        Ok(&rest[..count])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, FrameError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, FrameError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn f32(&mut self) -> Result<f32, FrameError> {
        Ok(f32::from_le_bytes(self.array()?))
    }

    pub fn zeros(&mut self, count: usize) -> Result<(), FrameError> {
        if self.take(count)?.iter().any(|byte| *byte != 0) {
            return Err(FrameError::Malformed("reserved bytes are not zero"));
        }
        Ok(())
    }

    /// The whole must be exactly `needed` bytes long.
    pub fn expect_length(&self, needed: u64) -> Result<(), FrameError> {
        let got = self.bytes.len() as u64;
        if got != needed {
            return Err(FrameError::Length { needed, got });
        }
        Ok(())
    }
}

pub(super) trait Put {
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_f32(&mut self, value: f32);
}

impl Put for Vec<u8> {
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_f32(&mut self, value: f32) {
        self.extend_from_slice(&value.to_le_bytes());
    }
}
