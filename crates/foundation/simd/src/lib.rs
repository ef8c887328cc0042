//! The packet path's use of the processor beyond arithmetic: prefetching a cache line, comparing sixteen
//! signatures at once, and compiling a step for wider registers. Each function is safe for any argument,
//! behaves the same on every processor, and has a scalar twin in [`scalar`] for comparison in tests.
//!
//! The functions use only baseline instructions of an architecture (SSE2 on x86-64, NEON on AArch64), so that
//! every call is inlined. Other architectures use the scalar twin, and prefetching does nothing there.
//! [`Level::detect`] finds further extensions once. A [`Kernel`] is compiled for each level and gives the
//! same results on all.
//!
//! This crate does not depend on flows. It touches only memory borrowed by its arguments.

// UNSAFETY: vector loads and the prefetch instruction take raw pointers; all of them come from references.
#![expect(unsafe_code)]

pub mod scalar;

/// The positions of `needle` in `bytes`: bit `i` is set if `bytes[i] == needle`.
///
/// ```
/// let mut signatures = [0_u8; 16];
/// signatures[3] = 7;
/// signatures[15] = 7;
/// assert_eq!(simd::match_bytes(&signatures, 7), 1 << 3 | 1 << 15);
/// ```
#[inline(always)]
pub fn match_bytes(bytes: &[u8; 16], needle: u8) -> u16 {
    #[cfg(target_arch = "x86_64")]
    {
        x86_64::match_bytes(bytes, needle)
    }
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    {
        aarch64::match_bytes(bytes, needle)
    }
    #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_feature = "neon"))))]
    {
        scalar::match_bytes(bytes, needle)
    }
}

/// The place of the last of sixteen ascending bytes that is not above `value`; 0 if all are.
///
/// ```
/// let mut starts = [255; 16];
/// starts[..3].copy_from_slice(&[0, 10, 20]);
/// assert_eq!(simd::last_not_above(&starts, 19), 1);
/// ```
#[inline(always)]
pub fn last_not_above(bytes: &[u8; 16], value: u8) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        x86_64::last_not_above(bytes, value)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        scalar::last_not_above(bytes, value)
    }
}

/// Which of four rows of lower bounds a row of values reaches: bit `i` is set if every value is at least its bound in
/// `bounds[i]`. An upper bound becomes a lower one when it and its value are complemented.
///
/// ```
/// let mut bounds = [[5_u16; 8]; 4];
/// bounds[2][7] = 6;
/// assert_eq!(simd::reached(&bounds, &[5; 8]), 0b1011);
/// ```
#[inline(always)]
pub fn reached(bounds: &[[u16; 8]; 4], values: &[u16; 8]) -> u8 {
    #[cfg(target_arch = "x86_64")]
    {
        x86_64::reached(bounds, values)
    }
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    {
        aarch64::reached(bounds, values)
    }
    #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_feature = "neon"))))]
    {
        scalar::reached(bounds, values)
    }
}

/// A step of the packet path, compiled for each [`Level`] so that loops over a burst use that level's
/// registers. `run` and everything it calls must be `#[inline(always)]`.
pub trait Kernel {
    /// The result.
    type Output;
    /// Runs the step, with four-word vectors in the level's registers.
    fn run<W: Words>(self) -> Self::Output;
}

/// A vector of four words, processed by one instruction if the level has registers for it. Only a [`Kernel`]
/// is given its level's type.
pub trait Words: Copy + sealed::Sealed {
    /// Loads four words.
    fn load(words: &[u64; 4]) -> Self;
    /// Stores the words.
    fn store(self, words: &mut [u64; 4]);
    /// Adds element-wise, wrapping.
    #[must_use]
    fn plus(self, other: Self) -> Self;
    /// Bitwise and.
    #[must_use]
    fn and(self, other: Self) -> Self;
    /// Bitwise or.
    #[must_use]
    fn or(self, other: Self) -> Self;
    /// Bitwise exclusive or.
    #[must_use]
    fn xor(self, other: Self) -> Self;
    /// Whether all words are 0.
    fn are_zero(self) -> bool;
    /// Transposes eight rows of four 32-bit words, each word's first byte in its lowest bits: `columns[i][j]`
    /// becomes the word at `4 * i` of `rows[j]`.
    fn columns(rows: &[&[u8; 16]; 8], columns: [&mut [u32; 8]; 4]);
    /// Transposes eight columns: `rows[i][j]` becomes `columns[j][i]`.
    fn rows(columns: [&[u32; 8]; 8], rows: &mut [[u32; 8]; 8]);
    /// Which bits of a table are set: bit `i` of the result is bit `at[i]` of the table, counted from the lowest one of
    /// its first word on, and again from the first one behind the last. `N` is a power of two.
    fn bits<const N: usize>(table: &[u32; N], at: &[u32; 8]) -> u8;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::scalar::Words {}
    #[cfg(target_arch = "x86_64")]
    impl Sealed for super::x86_64::Words {}
}

/// A processor's instruction set level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The architecture's baseline.
    Every,
    /// AVX2, BMI1, BMI2 and POPCNT in addition (x86-64 since 2013).
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

/// Proof that this processor has AVX2, BMI1, BMI2 and POPCNT.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2 {
    _only_from_detection: (),
}

impl Level {
    /// The highest level of this processor.
    pub fn detect() -> Level {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2")
            && std::arch::is_x86_feature_detected!("popcnt")
        {
            return Level::Avx2(Avx2 {
                _only_from_detection: (),
            });
        }
        Level::Every
    }

    /// Runs a kernel compiled for this level.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Level::Every => kernel.run::<scalar::Words>(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Avx2` exists only if the processor was found to have the function's target
            // features.
            Level::Avx2(_) => unsafe { x86_64::run_avx2(kernel) },
        }
    }
}

/// Prefetches the cache line in which `place` starts. A hint without observable effect except time.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    x86_64::prefetch(core::ptr::from_ref(place).cast());
    #[cfg(target_arch = "aarch64")]
    aarch64::prefetch(core::ptr::from_ref(place).cast());
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    scalar::prefetch(place);
}

/// Prefetches the cache line in which `places[index]` starts, without a bounds check: beyond the end it is a
/// hint about memory that is not read.
#[inline(always)]
pub fn prefetch_at<T>(places: &[T], index: usize) {
    let place = places.as_ptr().wrapping_add(index);
    #[cfg(target_arch = "x86_64")]
    x86_64::prefetch(place.cast());
    #[cfg(target_arch = "aarch64")]
    aarch64::prefetch(place.cast());
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = place;
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::arch::x86_64::{
        __m128i, __m256i, _MM_HINT_T0, _mm_cmpeq_epi8, _mm_cmpeq_epi16, _mm_cmpeq_epi32, _mm_loadu_si128,
        _mm_min_epu8, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_prefetch, _mm_set1_epi8,
        _mm_setzero_si128, _mm_subs_epu16, _mm256_add_epi64, _mm256_and_si256, _mm256_andnot_si256,
        _mm256_castsi128_si256, _mm256_castsi256_ps, _mm256_i32gather_epi32, _mm256_inserti128_si256,
        _mm256_loadu_si256, _mm256_movemask_ps, _mm256_or_si256, _mm256_permute2x128_si256,
        _mm256_set1_epi32, _mm256_sllv_epi32, _mm256_srli_epi32, _mm256_storeu_si256, _mm256_testz_si256,
        _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
        _mm256_xor_si256,
    };

    /// Four words in a register. Exists only in kernels run by `run_avx2`: no other code can name the type.
    #[derive(Clone, Copy)]
    #[allow(
        unreachable_pub,
        reason = "it implements a public trait, but cannot be named outside"
    )]
    pub struct Words(__m256i);

    impl super::Words for Words {
        #[inline(always)]
        fn load(words: &[u64; 4]) -> Words {
            // SAFETY: reads the 32 bytes borrowed by `words`, at any alignment. As in all of these, the
            // processor has AVX2: see `Words`.
            Words(unsafe { _mm256_loadu_si256(words.as_ptr().cast::<__m256i>()) })
        }
        #[inline(always)]
        fn store(self, words: &mut [u64; 4]) {
            // SAFETY: writes the 32 bytes borrowed by `words`, at any alignment.
            unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast::<__m256i>(), self.0) }
        }
        #[inline(always)]
        fn plus(self, other: Words) -> Words {
            // SAFETY: registers only, as below.
            Words(unsafe { _mm256_add_epi64(self.0, other.0) })
        }
        #[inline(always)]
        fn and(self, other: Words) -> Words {
            // SAFETY: as above.
            Words(unsafe { _mm256_and_si256(self.0, other.0) })
        }
        #[inline(always)]
        fn or(self, other: Words) -> Words {
            // SAFETY: as above.
            Words(unsafe { _mm256_or_si256(self.0, other.0) })
        }
        #[inline(always)]
        fn xor(self, other: Words) -> Words {
            // SAFETY: as above.
            Words(unsafe { _mm256_xor_si256(self.0, other.0) })
        }
        #[inline(always)]
        fn are_zero(self) -> bool {
            // SAFETY: as above.
            unsafe { _mm256_testz_si256(self.0, self.0) != 0 }
        }
        #[inline(always)]
        fn columns(rows: &[&[u8; 16]; 8], columns: [&mut [u32; 8]; 4]) {
            let [c0, c1, c2, c3] = columns;
            // SAFETY: each load reads the 16 bytes of a row, each store writes the 32 bytes of a column, at
            // any alignment.
            unsafe {
                // Row i in the lower half, row i + 4 in the upper one: both halves are transposed at once.
                let (r0, r1) = (pair(rows[0], rows[4]), pair(rows[1], rows[5]));
                let (r2, r3) = (pair(rows[2], rows[6]), pair(rows[3], rows[7]));
                let [w0, w1, w2, w3] = transposed(r0, r1, r2, r3);
                _mm256_storeu_si256(c0.as_mut_ptr().cast::<__m256i>(), w0);
                _mm256_storeu_si256(c1.as_mut_ptr().cast::<__m256i>(), w1);
                _mm256_storeu_si256(c2.as_mut_ptr().cast::<__m256i>(), w2);
                _mm256_storeu_si256(c3.as_mut_ptr().cast::<__m256i>(), w3);
            }
        }
        #[inline(always)]
        fn rows(columns: [&[u32; 8]; 8], rows: &mut [[u32; 8]; 8]) {
            let [c0, c1, c2, c3, c4, c5, c6, c7] = columns;
            // SAFETY: each store writes the 32 bytes of a row, at any alignment.
            unsafe {
                // Rows 0 | 4, 1 | 5, 2 | 6 and 3 | 7, half of each.
                let first = transposed(column(c0), column(c1), column(c2), column(c3));
                let second = transposed(column(c4), column(c5), column(c6), column(c7));
                for i in 0..4 {
                    let lower = _mm256_permute2x128_si256::<0x20>(first[i], second[i]);
                    let upper = _mm256_permute2x128_si256::<0x31>(first[i], second[i]);
                    _mm256_storeu_si256(rows[i].as_mut_ptr().cast::<__m256i>(), lower);
                    _mm256_storeu_si256(rows[i + 4].as_mut_ptr().cast::<__m256i>(), upper);
                }
            }
        }
        #[inline(always)]
        fn bits<const N: usize>(table: &[u32; N], at: &[u32; 8]) -> u8 {
            const { assert!(N.is_power_of_two() && N <= 1 << 27) };
            // SAFETY: the load reads the 32 bytes of `at`, at any alignment. The gather reads words of `table`: each index
            // is taken modulo their number, a power of two.
            let signs = unsafe {
                let at = column(at);
                let index = _mm256_and_si256(_mm256_srli_epi32::<5>(at), _mm256_set1_epi32((N - 1) as i32));
                let words = _mm256_i32gather_epi32::<4>(table.as_ptr().cast::<i32>(), index);
                // The bit becomes the sign: shifted to the left by 31 less its number, which are its complement's low bits.
                let left = _mm256_andnot_si256(at, _mm256_set1_epi32(31));
                _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_sllv_epi32(words, left)))
            };
            signs as u8
        }
    }

    // No closures here or in callers: a closure is compiled for the baseline, and functions with target
    // features are not inlined into it.

    /// # Safety
    /// The processor has AVX2, as for all operations of a level's [`Words`].
    #[inline(always)]
    unsafe fn pair(lower: &[u8; 16], upper: &[u8; 16]) -> __m256i {
        // SAFETY: each load reads 16 borrowed bytes, at any alignment.
        unsafe {
            let (lower, upper) = (
                _mm_loadu_si128(lower.as_ptr().cast::<__m128i>()),
                _mm_loadu_si128(upper.as_ptr().cast::<__m128i>()),
            );
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(lower), upper)
        }
    }

    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn column(words: &[u32; 8]) -> __m256i {
        // SAFETY: reads 32 borrowed bytes, at any alignment.
        unsafe { _mm256_loadu_si256(words.as_ptr().cast::<__m256i>()) }
    }

    /// Transposes four rows of four words, in both halves.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn transposed(r0: __m256i, r1: __m256i, r2: __m256i, r3: __m256i) -> [__m256i; 4] {
        // SAFETY: registers only.
        unsafe {
            let (low01, high01) = (_mm256_unpacklo_epi32(r0, r1), _mm256_unpackhi_epi32(r0, r1));
            let (low23, high23) = (_mm256_unpacklo_epi32(r2, r3), _mm256_unpackhi_epi32(r2, r3));
            [
                _mm256_unpacklo_epi64(low01, low23),
                _mm256_unpackhi_epi64(low01, low23),
                _mm256_unpacklo_epi64(high01, high23),
                _mm256_unpackhi_epi64(high01, high23),
            ]
        }
    }

    /// # Safety
    /// The processor has AVX2, BMI1, BMI2 and POPCNT.
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    pub(crate) unsafe fn run_avx2<K: super::Kernel>(kernel: K) -> K::Output {
        kernel.run::<Words>()
    }

    #[inline(always)]
    pub(crate) fn match_bytes(bytes: &[u8; 16], needle: u8) -> u16 {
        // SAFETY: the load reads the 16 bytes borrowed by `bytes` and needs no alignment; every x86-64 has
        // SSE2.
        let mask = unsafe {
            let vector = _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>());
            _mm_movemask_epi8(_mm_cmpeq_epi8(vector, _mm_set1_epi8(needle.cast_signed())))
        };
        // `movemask` fills the low 16 bits, one per byte.
        mask as u16
    }

    #[inline(always)]
    pub(crate) fn last_not_above(bytes: &[u8; 16], value: u8) -> usize {
        // SAFETY: the load reads the 16 bytes borrowed by `bytes` and needs no alignment; every x86-64 has SSE2.
        let mask = unsafe {
            let vector = _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>());
            let least = _mm_min_epu8(vector, _mm_set1_epi8(value.cast_signed()));
            _mm_movemask_epi8(_mm_cmpeq_epi8(vector, least))
        };
        // Bit `i` is set if byte `i` is not above. Without any, the first place.
        ((mask | 1).ilog2() & 15) as usize
    }

    #[inline(always)]
    pub(crate) fn reached(bounds: &[[u16; 8]; 4], values: &[u16; 8]) -> u8 {
        // SAFETY: each load reads the 16 bytes of a borrowed row and needs no alignment; every x86-64 has SSE2.
        let mask = unsafe {
            let zero = _mm_setzero_si128();
            let values = _mm_loadu_si128(values.as_ptr().cast::<__m128i>());
            // What a value lacks to its bound.
            let [a, b, c, d] = bounds;
            let a = _mm_subs_epu16(_mm_loadu_si128(a.as_ptr().cast::<__m128i>()), values);
            let b = _mm_subs_epu16(_mm_loadu_si128(b.as_ptr().cast::<__m128i>()), values);
            let c = _mm_subs_epu16(_mm_loadu_si128(c.as_ptr().cast::<__m128i>()), values);
            let d = _mm_subs_epu16(_mm_loadu_si128(d.as_ptr().cast::<__m128i>()), values);
            // A row is eight words of zero: 16 bytes, packed to 8, and to 4, of which one word remains for each row.
            let ab = _mm_packs_epi16(_mm_cmpeq_epi16(a, zero), _mm_cmpeq_epi16(b, zero));
            let cd = _mm_packs_epi16(_mm_cmpeq_epi16(c, zero), _mm_cmpeq_epi16(d, zero));
            let ones = _mm_cmpeq_epi32(zero, zero);
            let rows = _mm_packs_epi32(_mm_cmpeq_epi32(ab, ones), _mm_cmpeq_epi32(cd, ones));
            _mm_movemask_epi8(_mm_packs_epi16(rows, zero))
        };
        // Two bits for each row.
        (mask & mask >> 1 & 1
            | (mask >> 2 & mask >> 3 & 1) << 1
            | (mask >> 4 & mask >> 5 & 1) << 2
            | (mask >> 6 & mask >> 7 & 1) << 3) as u8
    }

    #[inline(always)]
    pub(crate) fn prefetch(place: *const i8) {
        // SAFETY: a prefetch never faults and changes no memory, for any address; every x86-64 has SSE.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place) }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    #[cfg(target_feature = "neon")]
    #[inline(always)]
    pub(crate) fn match_bytes(bytes: &[u8; 16], needle: u8) -> u16 {
        use core::arch::aarch64::{
            vaddv_u8, vandq_u8, vceqq_u8, vdupq_n_u8, vget_high_u8, vget_low_u8, vld1q_u8,
        };
        const WEIGHTS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        // SAFETY: both loads read 16 bytes of a borrowed array and need no alignment; NEON is enabled (`cfg`
        // above).
        unsafe {
            let equal = vceqq_u8(vld1q_u8(bytes.as_ptr()), vdupq_n_u8(needle));
            let bits = vandq_u8(equal, vld1q_u8(WEIGHTS.as_ptr()));
            u16::from(vaddv_u8(vget_low_u8(bits))) | u16::from(vaddv_u8(vget_high_u8(bits))) << 8
        }
    }

    #[cfg(target_feature = "neon")]
    #[inline(always)]
    pub(crate) fn reached(bounds: &[[u16; 8]; 4], values: &[u16; 8]) -> u8 {
        use core::arch::aarch64::{vcgeq_u16, vld1q_u16, vminvq_u16};
        let mut mask = 0;
        for (row, bounds) in bounds.iter().enumerate() {
            // SAFETY: both loads read 16 bytes of a borrowed array and need no alignment; NEON is enabled (`cfg` above).
            let lowest =
                unsafe { vminvq_u16(vcgeq_u16(vld1q_u16(values.as_ptr()), vld1q_u16(bounds.as_ptr()))) };
            mask |= u8::from(lowest != 0) << row;
        }
        mask
    }

    #[inline(always)]
    pub(crate) fn prefetch(place: *const i8) {
        // SAFETY: a prefetch never faults and changes neither memory, registers nor flags, for any address.
        unsafe {
            core::arch::asm!("prfm pldl1keep, [{place}]", place = in(reg) place, options(nostack, readonly, preserves_flags));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_position_has_its_bit() {
        for position in 0..16 {
            let mut bytes = [0x5a_u8; 16];
            bytes[position] = 0xff;
            assert_eq!(match_bytes(&bytes, 0xff), 1 << position);
            assert_eq!(match_bytes(&bytes, 0x5a), !(1 << position));
            assert_eq!(match_bytes(&bytes, 0), 0);
        }
    }

    proptest! {
        #[test]
        fn bounds_are_compared_as_in_scalar_code(
            mut bounds in any::<[[u16; 8]; 4]>(),
            values in any::<[u16; 8]>(),
            reached_rows in 0_u8..16,
            fails in any::<[(bool, u8); 4]>(),
        ) {
            prop_assert_eq!(reached(&bounds, &values), scalar::reached(&bounds, &values));
            // Random bounds are hardly ever reached: lower some rows, all but perhaps one bound.
            for (row, (fails, at)) in fails.into_iter().enumerate() {
                if reached_rows >> row & 1 == 1 {
                    for (bound, value) in bounds[row].iter_mut().zip(values) {
                        *bound = (*bound).min(value);
                    }
                    if fails {
                        let at = usize::from(at % 8);
                        bounds[row][at] = values[at].saturating_add(1);
                    }
                }
            }
            prop_assert_eq!(reached(&bounds, &values), scalar::reached(&bounds, &values));
        }
    }

    #[test]
    fn prefetch_accepts_any_address() {
        prefetch(&0_u8);
        let lines = vec![0_u64; 1 << 12];
        for line in &lines {
            prefetch(line);
            scalar::prefetch(line);
        }
        for index in [0, 4095, 4096, 1 << 40, usize::MAX] {
            prefetch_at(&lines, index);
        }
        prefetch_at::<u64>(&[], 0);
    }

    /// Enough arithmetic for a compiler to use the level's instructions.
    struct Sum<'a>(&'a [u32]);

    impl Kernel for Sum<'_> {
        type Output = u32;
        #[inline(always)]
        fn run<W: Words>(self) -> u32 {
            self.0
                .iter()
                .fold(0, |sum, &n| sum.wrapping_add(n.swap_bytes() ^ n >> 3))
        }
    }

    /// The results of each operation on words.
    struct Operations<'a>(&'a [u64; 4], &'a [u64; 4]);

    impl Kernel for Operations<'_> {
        type Output = ([[u64; 4]; 4], bool);
        #[inline(always)]
        fn run<W: Words>(self) -> Self::Output {
            let (a, b) = (W::load(self.0), W::load(self.1));
            let mut all = [[0; 4]; 4];
            a.plus(b).store(&mut all[0]);
            a.and(b).store(&mut all[1]);
            a.or(b).store(&mut all[2]);
            a.xor(b).store(&mut all[3]);
            (all, a.and(b).are_zero())
        }
    }

    /// An 8×8 transposition, and the first four columns of the same rows read as bytes.
    struct Turn<'a>(&'a [[u32; 8]; 8]);

    impl Kernel for Turn<'_> {
        type Output = ([[u32; 8]; 4], [[u32; 8]; 8]);
        #[inline(always)]
        fn run<W: Words>(self) -> Self::Output {
            let bytes: [[u8; 32]; 8] = self
                .0
                .map(|row| std::array::from_fn(|at| row[at / 4].to_le_bytes()[at % 4]));
            let firsts = bytes.each_ref().map(|row| row.first_chunk().unwrap());
            let (mut columns, mut rows) = ([[0; 8]; 4], [[0; 8]; 8]);
            W::columns(&firsts, columns.each_mut());
            W::rows(self.0.each_ref(), &mut rows);
            (columns, rows)
        }
    }

    /// Bits of a small table.
    struct Bits<'a>(&'a [u32; 4], &'a [u32; 8]);

    impl Kernel for Bits<'_> {
        type Output = u8;
        #[inline(always)]
        fn run<W: Words>(self) -> u8 {
            W::bits(self.0, self.1)
        }
    }

    proptest! {
        /// Also bits beyond the table's end.
        #[test]
        fn bits_match_the_scalar_twin(table: [u32; 4], at in prop::array::uniform8(0_u32..300), far: [u32; 8]) {
            for at in [at, far] {
                let said = Level::detect().run(Bits(&table, &at));
                prop_assert_eq!(said, Level::Every.run(Bits(&table, &at)));
                for (i, at) in at.into_iter().enumerate() {
                    let at = at as usize % 128;
                    prop_assert_eq!(said >> i & 1 == 1, table[at / 32] >> (at % 32) & 1 == 1);
                }
            }
        }

        #[test]
        fn words_match_the_scalar_twin(a: [u64; 4], b: [u64; 4], masks in prop::array::uniform4(0_u64..2)) {
            for b in [b, std::array::from_fn(|i| b[i] & masks[i]), [0; 4]] {
                let said = Level::detect().run(Operations(&a, &b));
                prop_assert_eq!(said, Level::Every.run(Operations(&a, &b)));
                let each = |word: fn(u64, u64) -> u64| std::array::from_fn(|i| word(a[i], b[i]));
                let expected = [each(u64::wrapping_add), each(|a, b| a & b), each(|a, b| a | b), each(|a, b| a ^ b)];
                prop_assert_eq!(said, (expected, expected[1] == [0; 4]));
            }
        }

        #[test]
        fn transpositions_match_the_scalar_twin(words: [[u32; 8]; 8]) {
            let said = Level::detect().run(Turn(&words));
            prop_assert_eq!(said, Level::Every.run(Turn(&words)));
            let (columns, rows) = said;
            for (i, j) in (0..8).flat_map(|i| (0..8).map(move |j| (i, j))) {
                prop_assert_eq!(rows[i][j], words[j][i]);
                prop_assert!(i > 3 || columns[i][j] == words[j][i]);
            }
        }

        #[test]
        fn a_kernel_gives_the_same_result_on_every_level(words in prop::collection::vec(any::<u32>(), 0..100)) {
            prop_assert_eq!(Level::detect().run(Sum(&words)), Level::Every.run(Sum(&words)));
        }

        #[test]
        fn last_not_above_matches_the_scalar_twin(mut bytes: [u8; 16], value: u8, at in 0_usize..16) {
            bytes.sort_unstable();
            for value in [value, bytes[at]] {
                let place = last_not_above(&bytes, value);
                prop_assert_eq!(place, scalar::last_not_above(&bytes, value));
                prop_assert!(bytes[place] <= value || place == 0);
                prop_assert!(bytes.get(place + 1).is_none_or(|next| *next > value));
            }
        }

        #[test]
        fn match_bytes_matches_the_scalar_twin(bytes: [u8; 16], needle: u8) {
            prop_assert_eq!(match_bytes(&bytes, needle), scalar::match_bytes(&bytes, needle));
        }

        /// Few distinct values, so that most vectors have several matches.
        #[test]
        fn match_bytes_matches_the_scalar_twin_with_many_equal(bytes in prop::array::uniform16(0_u8..3), needle in 0_u8..3) {
            prop_assert_eq!(match_bytes(&bytes, needle), scalar::match_bytes(&bytes, needle));
        }

        /// Any alignment of the sixteen bytes.
        #[test]
        fn match_bytes_works_at_every_alignment(bytes in prop::collection::vec(0_u8..4, 64), offset in 0_usize..48, needle in 0_u8..4) {
            if let Some(window) = bytes[offset..].first_chunk::<16>() {
                prop_assert_eq!(match_bytes(window, needle), scalar::match_bytes(window, needle));
            }
        }
    }
}
