//! The charts of deploy/, rendered: what they make is what Kubernetes and DPF know, and what inco's programs take.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

mod dpf;
mod kubernetes;
mod template;
