//! Fields of a file that another process writes, read by offset. Bytes beyond the end read as zero.

/// The bytes of one record.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a>(pub(crate) &'a [u8]);

impl<'a> Record<'a> {
    pub(crate) fn u32(self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.array(offset))
    }

    pub(crate) fn u64(self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.array(offset))
    }

    pub(crate) fn array<const N: usize>(self, offset: usize) -> [u8; N] {
        let bytes = offset.checked_add(N).and_then(|end| self.0.get(offset..end));
        bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    /// Returns the record of `size` bytes at `offset` of this one.
    pub(crate) fn part(self, offset: usize, size: usize) -> Self {
        Self(offset.checked_add(size).and_then(|end| self.0.get(offset..end)).unwrap_or_default())
    }

    /// Returns the text up to the first zero.
    pub(crate) fn text<const N: usize>(self, offset: usize) -> String {
        let bytes: [u8; N] = self.array(offset);
        String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
            .into_owned()
    }
}
