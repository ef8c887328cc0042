//! Numbers and strings of bytes in messages and objects: little-endian, without padding.

/// Reads a message from its front. Each call gives [`None`] if the rest is too short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string of bytes behind its length, which is one byte.
    pub(crate) fn short(&mut self) -> Option<&'a [u8]> {
        let bytes = self.u8()?;
        self.bytes(usize::from(bytes))
    }

    /// A string of bytes behind its length, which is two bytes.
    pub(crate) fn long(&mut self) -> Option<&'a [u8]> {
        let bytes = self.u16()?;
        self.bytes(usize::from(bytes))
    }

    /// `value`, if nothing follows.
    pub(crate) fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// Writes a message to its end.
pub(crate) trait Write {
    fn put_u8(&mut self, value: u8) -> &mut Self;
    fn put_u16(&mut self, value: u16) -> &mut Self;
    fn put_u32(&mut self, value: u32) -> &mut Self;
    fn put_u64(&mut self, value: u64) -> &mut Self;
    /// At most 255 bytes behind their length.
    fn put_short(&mut self, bytes: &[u8]) -> &mut Self;
    /// At most 65,535 bytes behind their length.
    fn put_long(&mut self, bytes: &[u8]) -> &mut Self;
}

impl Write for Vec<u8> {
    fn put_u8(&mut self, value: u8) -> &mut Self {
        self.push(value);
        self
    }

    fn put_u16(&mut self, value: u16) -> &mut Self {
        self.extend(value.to_le_bytes());
        self
    }

    fn put_u32(&mut self, value: u32) -> &mut Self {
        self.extend(value.to_le_bytes());
        self
    }

    fn put_u64(&mut self, value: u64) -> &mut Self {
        self.extend(value.to_le_bytes());
        self
    }

    fn put_short(&mut self, bytes: &[u8]) -> &mut Self {
        debug_assert!(bytes.len() <= usize::from(u8::MAX));
        self.put_u8(bytes.len() as u8);
        self.extend(bytes);
        self
    }

    fn put_long(&mut self, bytes: &[u8]) -> &mut Self {
        debug_assert!(bytes.len() <= usize::from(u16::MAX));
        self.put_u16(bytes.len() as u16);
        self.extend(bytes);
        self
    }
}
