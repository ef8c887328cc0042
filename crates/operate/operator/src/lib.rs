//! The operator of a node: makes the services of this node's inco out of objects of a Kubernetes cluster, and writes there
//! what inco says of them. It steers no packet, chooses no node and answers for no other node. Where it is away, or the
//! API server is, all goes on as it is.
//!
//! Key types: [`Object`](objects::Object) is what the cluster has, [`Wanted`](plan::Wanted) what that wants of this node,
//! [`Plan`](plan::Plan) the configuration with a verdict for each object, [`Entry`](status::Entry) what a node says. All
//! these are pure; [`run`] has the input and output.
//!
//! 1. Objects are listed. A watch only says when that is worth while, so it may lose, repeat and reorder what it wants.
//! 2. [`objects::wishes`] and [`plan::plan`] make the configuration out of the base file, the objects and the configuration
//!    that was accepted last.
//! 3. The file is written, and inco asked to take it. What it refuses is taken out, and told.
//!    Where new instances are others than those that are there, inco is asked to replace these (`rollouts`).
//! 4. Each second inco is asked for its services. What has changed is written into the status of the objects.
//! 5. What the statuses say of all nodes is there for others as external metrics ([`metrics`]).
//!
//! Limits: 64 services of a node (inco's), 16 KiB of a specification, 20,000 objects of a kind in the cluster.
#![forbid(unsafe_code)]

pub mod addresses;
mod cluster;
mod files;
mod force;
pub mod gateway;
pub mod metrics;
pub mod objects;
pub mod plan;
mod rollouts;
mod run;
pub mod spec;
pub mod status;

pub use files::Files;
pub use rollouts::Differ;
pub use run::{Check, Settings, run};

/// What goes wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A runtime or a thread cannot be had.
    #[error("cannot start: {0}")]
    Start(std::io::Error),
    /// The API server does not answer, or refuses.
    #[error("{0}")]
    Cluster(String),
    /// The API server does not take what is said of an object. Others have nothing to do with that.
    #[error("{0}")]
    Refused(String),
    /// A file cannot be read or written, or is wrong.
    #[error("{0}")]
    File(String),
}
