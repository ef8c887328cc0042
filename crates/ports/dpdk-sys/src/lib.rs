//! Bindings to the DPDK of this machine, generated at build time: the few functions that crate `dpdk` calls, and the
//! head of an mbuf. It decides nothing and checks nothing; only crate `dpdk` may use it.
//!
//! Key types: [`rte_mbuf`] (its fields are read in Rust, since a call costs more than the read), [`rte_mempool`] (opaque).
//!
//! Without the feature `link` the crate is empty and builds on any machine.
// UNSAFETY: foreign functions are declared here; nothing calls them.
#![cfg_attr(feature = "link", expect(unsafe_code))]

#[cfg(feature = "link")]
mod linked;
#[cfg(feature = "link")]
pub use linked::*;
