use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute_mut, transmute_ref};

/// One cache line of a table's storage: 64 bytes, aligned to 64. The caller provides a slice of these: boxed,
/// or a mapping that outlives the process (`zerocopy`'s traits convert its bytes to lines).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct Line(pub [u64; 8]);

const _: () = assert!(size_of::<Line>() == Line::BYTES && align_of::<Line>() == Line::BYTES);

impl Line {
    /// Bytes of a line.
    pub const BYTES: usize = 64;

    /// A line of zeroes.
    pub const ZERO: Line = Line([0; 8]);

    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8; 64] {
        transmute_ref!(&self.0)
    }

    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; 64] {
        transmute_mut!(&mut self.0)
    }

    /// The first or the second four words.
    #[inline(always)]
    pub(crate) fn half(&self, half: usize) -> &[u64; 4] {
        let halves: &[[u64; 4]; 2] = transmute_ref!(&self.0);
        &halves[half & 1]
    }

    #[inline(always)]
    pub(crate) fn half_mut(&mut self, half: usize) -> &mut [u64; 4] {
        let halves: &mut [[u64; 4]; 2] = transmute_mut!(&mut self.0);
        &mut halves[half & 1]
    }
}
