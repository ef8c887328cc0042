//! DPDK's tables of routes: `rte_lpm`, `rte_fib`, and those of IPv6.

use std::ffi::CString;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use dpdk_sys as sys;

use crate::{Eal, Errno, Error};

/// Addresses of one lookup, at most.
pub const ROUTES_ADDRESSES_LIMIT: usize = sys::INCO_ROUTES_ADDRESSES as usize;

/// Which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutesKind {
    /// `rte_lpm`: IPv4, by 24 and 8 bits. It has no default route.
    Lpm,
    /// `rte_fib`: the same with vector instructions.
    Fib,
    /// `rte_lpm6`: by 24 bits and then 8 at a time. It has no default route.
    Lpm6,
    /// `rte_fib6`: the same with vector instructions.
    Fib6,
}

impl RoutesKind {
    const fn is_v6(self) -> bool {
        matches!(self, RoutesKind::Lpm6 | RoutesKind::Fib6)
    }
}

/// Compiled routes.
#[derive(Debug)]
pub struct Routes {
    table: NonNull<sys::inco_routes>,
    kind: RoutesKind,
}

// SAFETY: a table is not changed after it was built, and any thread may read and free it.
unsafe impl Send for Routes {}

impl Routes {
    /// Builds a table of routes: an address, how many of its bits count, and a value of 24 bits. `groups` is how many
    /// tables of 256 places there may be for long prefixes.
    ///
    /// # Errors
    /// [`Error::Refused`] if there are no routes or too many, one is of the other family, or memory or groups do not
    /// suffice.
    pub fn new(
        _eal: &Eal,
        kind: RoutesKind,
        routes: &[(IpAddr, u8, u32)],
        groups: u32,
    ) -> Result<Routes, Error> {
        static TABLES: AtomicU64 = AtomicU64::new(0);
        let what = format!("a table of {} routes", routes.len());
        let is_possible =
            |&(address, _, value): &(IpAddr, u8, u32)| address.is_ipv6() == kind.is_v6() && value < 1 << 24;
        let count = u32::try_from(routes.len()).unwrap_or(0);
        if count == 0 || !routes.iter().all(is_possible) {
            let invalid = 22;
            return Err(Error::refused("cannot build", &what, invalid));
        }
        let routes: Vec<sys::inco_route> = routes.iter().map(row).collect();
        let number = TABLES.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("inco-{number}")).unwrap_or_default();
        let of_c = match kind {
            RoutesKind::Lpm => sys::INCO_ROUTES_LPM,
            RoutesKind::Fib => sys::INCO_ROUTES_FIB,
            RoutesKind::Lpm6 => sys::INCO_ROUTES_LPM6,
            RoutesKind::Fib6 => sys::INCO_ROUTES_FIB6,
        };
        // SAFETY: EAL runs (`_eal`); the name is zero-terminated, and there are `count` routes. DPDK copies both.
        let table = unsafe { sys::inco_routes_create(name.as_ptr(), of_c, routes.as_ptr(), count, groups) };
        let Some(table) = NonNull::new(table) else {
            // SAFETY: reads a thread-local variable.
            let errno = unsafe { sys::inco_errno() };
            return Err(Error::refused("cannot build", &what, errno));
        };
        Ok(Routes { table, kind })
    }

    /// Writes the value of each IPv4 address, or `u32::MAX`. At most [`ROUTES_ADDRESSES_LIMIT`], as many as `values`.
    ///
    /// # Errors
    /// [`Errno`] if there are more, or if the table is one of IPv6.
    pub fn lookup4(&self, addresses: &[u32], values: &mut [u32]) -> Result<(), Errno> {
        let count = addresses.len().min(values.len());
        // SAFETY: there are `count` addresses of 4 bytes and `count` values.
        unsafe { self.lookup(!self.kind.is_v6(), addresses.as_ptr().cast(), values, count) }
    }

    /// As [`lookup4`](Routes::lookup4), for IPv6.
    ///
    /// # Errors
    /// [`Errno`] if there are more, or if the table is one of IPv4.
    pub fn lookup6(&self, addresses: &[[u8; 16]], values: &mut [u32]) -> Result<(), Errno> {
        let count = addresses.len().min(values.len());
        // SAFETY: there are `count` addresses of 16 bytes and `count` values.
        unsafe { self.lookup(self.kind.is_v6(), addresses.as_ptr().cast(), values, count) }
    }

    /// # Safety
    /// If `is_of_family`, there are `count` addresses of the table's family at `addresses`, and `count` values.
    unsafe fn lookup(
        &self,
        is_of_family: bool,
        addresses: *const std::ffi::c_void,
        values: &mut [u32],
        count: usize,
    ) -> Result<(), Errno> {
        if !is_of_family {
            let invalid = 22;
            return Err(Errno(invalid));
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        // SAFETY: the table lives; addresses and values by the caller's contract. The callee checks the limit.
        let ret =
            unsafe { sys::inco_routes_lookup(self.table.as_ptr(), addresses, values.as_mut_ptr(), count) };
        if ret == 0 {
            Ok(())
        } else {
            Err(Errno(ret.saturating_abs()))
        }
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        // SAFETY: nobody else has the table.
        unsafe { sys::inco_routes_free(self.table.as_ptr()) };
    }
}

fn row(&(address, len, value): &(IpAddr, u8, u32)) -> sys::inco_route {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes = address.octets(),
    }
    sys::inco_route {
        address: bytes,
        len,
        value,
    }
}
