//! Network interfaces of this machine's kernel: listed and watched, and in pairs for the instances of services.
//!
//! Key types: [`Links`] (requests to the kernel), [`LinkWatch`] (changes), [`Pairs`] (the interfaces of instances),
//! [`Remaker`] (makes pairs again), [`announce`] (tells neighbours where an address is), [`send_frame`].

mod announce;
mod links;
mod pairs;

use std::io;

use thiserror::Error;

pub use announce::{announce, send_frame};
pub use links::{Link, LinkWatch, Links, NAME_LIMIT};
pub use pairs::{
    CHECKER_V4, CHECKER_V6, GATEWAY_MAC, Pairs, Remaker, container_end, frames_prefix, host_end,
    instance_mac, is_checker,
};

/// What cannot be done with an interface.
#[derive(Debug, Error)]
#[error("interface {interface}: {source}")]
pub struct Error {
    /// Which one.
    pub interface: String,
    /// The system's word.
    pub source: io::Error,
}
