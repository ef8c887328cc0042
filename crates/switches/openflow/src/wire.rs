//! Reading and writing of big-endian bytes.

use thiserror::Error;

/// Why a message could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// It is truncated.
    #[error("{what} is truncated")]
    Short {
        /// The element being decoded.
        what: &'static str,
    },
    /// An impossible length.
    #[error("{what} cannot be {length} bytes long")]
    Length {
        /// The element being decoded.
        what: &'static str,
        /// The length.
        length: usize,
    },
    /// A value that the protocol does not define.
    #[error("{what} cannot be {value}")]
    Value {
        /// The element being decoded.
        what: &'static str,
        /// The value.
        value: u64,
    },
}

pub(crate) type Result<T> = std::result::Result<T, DecodeError>;

/// Reads from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// The element being decoded, for errors.
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { bytes, what }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(count)
            .ok_or(DecodeError::Short { what: self.what })?;
        self.bytes = rest;
        Ok(taken)
    }

    /// A sub-reader for an element with its own length.
    pub(crate) fn part(&mut self, count: usize, what: &'static str) -> Result<Reader<'a>> {
        Ok(Reader::new(self.take(count)?, what))
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    pub(crate) fn skip(&mut self, count: usize) -> Result<()> {
        self.take(count).map(|_| ())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Text in a fixed-size field, up to its first zero. Invalid UTF-8 is replaced.
    pub(crate) fn text(&mut self, size: usize) -> Result<String> {
        let field = self.take(size)?;
        let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

/// Appends to the end.
pub(crate) trait Write {
    fn put(&mut self, bytes: &[u8]);
    fn len_now(&self) -> usize;
    fn set_u16(&mut self, at: usize, value: u16);

    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }
    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }
    fn pad(&mut self, count: usize) {
        for _ in 0..count {
            self.put_u8(0);
        }
    }
    /// Pads to a multiple of 8 bytes from `start` on.
    fn pad_to_8(&mut self, start: usize) {
        let length = self.len_now() - start;
        self.pad(length.next_multiple_of(8) - length);
    }
    /// Writes the length of the element that started at `start` into its length field, `offset` bytes after
    /// the start.
    fn set_length(&mut self, start: usize, offset: usize) {
        // A message has at most 64 KiB; `encode` rejects longer ones.
        let length = u16::try_from(self.len_now() - start).unwrap_or(u16::MAX);
        self.set_u16(start + offset, length);
    }
    /// Text in a fixed-size field, truncated if too long, zero-terminated.
    fn put_text(&mut self, text: &str, size: usize) {
        let bytes = text.as_bytes();
        let length = bytes.len().min(size.saturating_sub(1));
        self.put(bytes.get(..length).unwrap_or_default());
        self.pad(size - length);
    }
}

impl Write for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    fn len_now(&self) -> usize {
        self.len()
    }
    fn set_u16(&mut self, at: usize, value: u16) {
        if let Some(field) = self.get_mut(at..at + 2) {
            field.copy_from_slice(&value.to_be_bytes());
        }
    }
}
