//! Follows the endpoints of Kubernetes Services. It watches `EndpointSlice`s and says which servers there are; it
//! changes nothing in the cluster, and decides nothing about flows.
//!
//! Key types: [`Cluster`] says how the API server is reached, [`Wanted`] which Service is followed. [`Followers`] has a
//! thread that does so; [`Followers::news`] gives what is new, without a system call. [`Slices`] is the pure part: out of
//! slices as they come, in any order and repeated, it makes the list of servers. [`joined`] makes one list out of those of
//! several Services, with weights.
//!
//! 1. The slices of the Service are listed.
//! 2. They are watched from there on. What comes changes the list.
//! 3. A watch that ends, once a minute, is followed by step 1. It does not begin again where it was, since an API server
//!    that has lost its store counts anew.
//! 4. While the API server does not answer, or refuses, the list stays as it is. Attempts have pauses from 0.5 s to 10 s,
//!    or as long as the server says, and begin with step 1.
//!
//! The watcher of `kube-runtime` is not used: it does not say when a watch that was broken is established again, so
//! nobody would know that the list is current before something changes.
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
mod cluster;
#[cfg(feature = "client")]
mod follow;
#[cfg(not(feature = "client"))]
mod left_out;
mod service;
#[cfg(feature = "client")]
mod slices;
mod weights;

#[cfg(feature = "client")]
pub use cluster::said;
#[cfg(feature = "client")]
pub use follow::Followers;
#[cfg(not(feature = "client"))]
pub use left_out::Followers;
pub use service::{Access, Cluster, Error, News, PortChoice, Right, TO_FOLLOW, TO_RUN_PODS, Wanted};
#[cfg(feature = "client")]
pub use slices::Slices;
pub use weights::joined;
