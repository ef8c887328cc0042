//! The bindings, with the feature `link`.

use core::ffi::c_void;
use core::marker::{PhantomData, PhantomPinned};
use core::mem::offset_of;
use core::sync::atomic::AtomicU16;

#[expect(
    missing_docs,
    non_camel_case_types,
    reason = "generated; the names are DPDK's"
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
pub use bindings::*;

/// A pool of mbufs. Opaque.
#[allow(non_camel_case_types, reason = "DPDK's name")]
#[repr(C)]
pub struct rte_mempool {
    _private: [u8; 0],
    _not_ours: PhantomData<(*mut u8, PhantomPinned)>,
}

/// A compiled access list. Opaque.
#[allow(non_camel_case_types, reason = "DPDK's name")]
#[repr(C)]
pub struct rte_acl_ctx {
    _private: [u8; 0],
    _not_ours: PhantomData<(*mut u8, PhantomPinned)>,
}

/// The header of an mbuf (a packet, or a segment of one). Its first 64 bytes are the same in every DPDK since
/// 18.11; checked below at compile time.
#[allow(non_camel_case_types, reason = "DPDK's name")]
#[repr(C, align(64))]
pub struct rte_mbuf {
    /// Start of the buffer.
    pub buf_addr: *mut c_void,
    _iova: u64,
    /// Offset of the data in the buffer, in bytes.
    pub data_off: u16,
    /// Reference count.
    pub refcnt: AtomicU16,
    /// Segments in the chain that starts here.
    pub nb_segs: u16,
    /// The port that it was received on.
    pub port: u16,
    /// Offload flags.
    pub ol_flags: u64,
    _packet_type: u32,
    /// Bytes in all segments of the packet.
    pub pkt_len: u32,
    /// Bytes in this segment.
    pub data_len: u16,
    _vlan_tci: u16,
    _hash: [u32; 2],
    _vlan_tci_outer: u16,
    /// Bytes of the buffer, headroom included.
    pub buf_len: u16,
    /// Its pool.
    pub pool: *mut rte_mempool,
    _second_line: [u8; 64],
}

const fn at(offset: usize, of_c: u32) {
    assert!(
        offset == of_c as usize,
        "an mbuf of this DPDK is laid out differently"
    );
}
const _: () = {
    at(size_of::<rte_mbuf>(), INCO_MBUF_SIZE);
    at(offset_of!(rte_mbuf, buf_addr), INCO_MBUF_BUF_ADDR);
    at(offset_of!(rte_mbuf, data_off), INCO_MBUF_DATA_OFF);
    at(offset_of!(rte_mbuf, refcnt), INCO_MBUF_REFCNT);
    at(offset_of!(rte_mbuf, nb_segs), INCO_MBUF_NB_SEGS);
    at(offset_of!(rte_mbuf, port), INCO_MBUF_PORT);
    at(offset_of!(rte_mbuf, ol_flags), INCO_MBUF_OL_FLAGS);
    at(offset_of!(rte_mbuf, pkt_len), INCO_MBUF_PKT_LEN);
    at(offset_of!(rte_mbuf, data_len), INCO_MBUF_DATA_LEN);
    at(offset_of!(rte_mbuf, buf_len), INCO_MBUF_BUF_LEN);
    at(offset_of!(rte_mbuf, pool), INCO_MBUF_POOL);
    // `next` has been in either cache line over time: use the offset of the installed headers.
    assert!(INCO_MBUF_NEXT as usize + size_of::<*mut rte_mbuf>() <= size_of::<rte_mbuf>());
    assert!((INCO_MBUF_NEXT as usize).is_multiple_of(align_of::<*mut rte_mbuf>()));
};

/// The next segment of a chain, or null.
///
/// # Safety
/// `mbuf` points to a live mbuf.
pub unsafe fn mbuf_next(mbuf: *const rte_mbuf) -> *mut rte_mbuf {
    // SAFETY: the offset lies inside the mbuf and is aligned (checked above); the mbuf is live by the
    // caller's contract.
    unsafe {
        mbuf.cast::<u8>()
            .add(INCO_MBUF_NEXT as usize)
            .cast::<*mut rte_mbuf>()
            .read()
    }
}

/// Sets the next segment of a chain, or null.
///
/// # Safety
/// `mbuf` points to a live mbuf that the caller owns.
pub unsafe fn mbuf_set_next(mbuf: *mut rte_mbuf, next: *mut rte_mbuf) {
    // SAFETY: as in `mbuf_next`; the caller owns the mbuf.
    unsafe {
        mbuf.cast::<u8>()
            .add(INCO_MBUF_NEXT as usize)
            .cast::<*mut rte_mbuf>()
            .write(next)
    };
}
