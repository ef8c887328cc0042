//! Messages between two sides, a card and a host, through rings in shared memory that a DMA engine writes. It must never
//! give a message that was not sent, or give one twice.
//!
//! Key types: [`Declared`] (latency and bandwidth of the DMA engine, a model).
#![forbid(unsafe_code)]

mod declared;

pub use declared::Declared;
