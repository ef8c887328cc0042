//! Bindings to the installed DPDK, generated at build time: the few functions called by crate `dpdk`, and the
//! mbuf header. Checks nothing; only crate `dpdk` may use it.
//!
//! Key types: [`rte_mbuf`] (its fields are read in Rust, because a call costs more), [`rte_mempool`]
//! (opaque).
//!
//! Without the feature `link` the crate is empty and builds on any machine.
// UNSAFETY: foreign functions are declared here; nothing calls them.
#![cfg_attr(feature = "link", expect(unsafe_code))]

#[cfg(feature = "link")]
mod linked;
#[cfg(feature = "link")]
pub use linked::*;
