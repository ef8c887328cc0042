//! DPDK's access lists (`rte_acl`): the first of many rules that matches a packet's addresses, ports and protocol.

use std::ffi::CString;
use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use dpdk_sys as sys;

use crate::{Eal, Errno, Error};

/// Keys of one lookup, at most.
pub const ACL_KEYS_LIMIT: usize = sys::INCO_ACL_KEYS as usize;
/// Rules of a list, at most: their priorities are positive numbers of 29 bits.
pub const ACL_RULES_LIMIT: usize = 1 << 28;

/// A rule of IPv4. Ranges include both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclRule {
    /// The source, and how many of its bits count, at most 32.
    pub src: (Ipv4Addr, u8),
    /// The destination.
    pub dst: (Ipv4Addr, u8),
    /// Source ports.
    pub src_ports: (u16, u16),
    /// Destination ports.
    pub dst_ports: (u16, u16),
    /// The protocol, or all.
    pub protocol: Option<u8>,
}

/// What rules look at, in the order of bytes that DPDK reads.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct AclKey(sys::inco_acl_key);

impl AclKey {
    /// A key.
    pub fn new(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16, dst_port: u16, protocol: u8) -> AclKey {
        AclKey(sys::inco_acl_key {
            protocol,
            zero: [0; 3],
            src: u32::from(src).to_be(),
            dst: u32::from(dst).to_be(),
            src_port: src_port.to_be(),
            dst_port: dst_port.to_be(),
        })
    }
}

/// Compiled rules.
#[derive(Debug)]
pub struct Acl {
    list: NonNull<sys::rte_acl_ctx>,
}

// SAFETY: a list is not changed after it was compiled, and any thread may read and free it.
unsafe impl Send for Acl {}

impl Acl {
    /// Compiles rules, the first one having precedence.
    ///
    /// # Errors
    /// [`Error::Refused`] if there are no rules or too many, a length exceeds 32, or there is not enough memory.
    pub fn new(_eal: &Eal, rules: &[AclRule]) -> Result<Acl, Error> {
        static LISTS: AtomicU64 = AtomicU64::new(0);
        let what = format!("an access list of {} rules", rules.len());
        let is_possible = |rule: &AclRule| rule.src.1 <= 32 && rule.dst.1 <= 32;
        if rules.is_empty() || rules.len() > ACL_RULES_LIMIT || !rules.iter().all(is_possible) {
            let invalid = 22;
            return Err(Error::refused("cannot compile", &what, invalid));
        }
        let rules: Vec<sys::inco_acl_rule> = rules.iter().map(row).collect();
        let number = LISTS.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("inco-acl-{number}")).unwrap_or_default();
        // SAFETY: EAL runs (`_eal`); the name is zero-terminated, and `rules` has as many rules. DPDK copies both.
        let list = unsafe { sys::inco_acl_create(name.as_ptr(), rules.as_ptr(), rules.len() as u32) };
        let Some(list) = NonNull::new(list) else {
            // SAFETY: reads a thread-local variable.
            let errno = unsafe { sys::inco_errno() };
            return Err(Error::refused("cannot compile", &what, errno));
        };
        Ok(Acl { list })
    }

    /// Writes for each key the number of its rule, from 1, or 0 if none matches. At most [`ACL_KEYS_LIMIT`] keys, as
    /// many as `rules`.
    ///
    /// # Errors
    /// [`Errno`] if there are more.
    pub fn classify(&self, keys: &[AclKey], rules: &mut [u32]) -> Result<(), Errno> {
        let count = keys.len().min(rules.len());
        // SAFETY: the list lives; both slices have `count` elements, and `AclKey` is one key. The callee checks the
        // limit.
        let ret = unsafe {
            sys::inco_acl_classify(
                self.list.as_ptr(),
                keys.as_ptr().cast(),
                rules.as_mut_ptr(),
                u32::try_from(count).unwrap_or(u32::MAX),
            )
        };
        if ret == 0 {
            Ok(())
        } else {
            Err(Errno(ret.saturating_abs()))
        }
    }
}

impl Drop for Acl {
    fn drop(&mut self) {
        // SAFETY: nobody else has the list.
        unsafe { sys::inco_acl_free(self.list.as_ptr()) };
    }
}

fn row(rule: &AclRule) -> sys::inco_acl_rule {
    sys::inco_acl_rule {
        src: u32::from(rule.src.0),
        dst: u32::from(rule.dst.0),
        src_port_first: rule.src_ports.0,
        src_port_last: rule.src_ports.1,
        dst_port_first: rule.dst_ports.0,
        dst_port_last: rule.dst_ports.1,
        src_len: rule.src.1,
        dst_len: rule.dst.1,
        protocol: rule.protocol.unwrap_or(0),
        protocol_mask: if rule.protocol.is_some() { 0xff } else { 0 },
    }
}
