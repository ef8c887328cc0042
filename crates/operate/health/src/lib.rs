//! Whether instances serve: asks the kernel and the instances themselves, on threads of its own. It decides nothing:
//! the controller does, with what is found here.
//!
//! Key types: [`ListenWatch`] (waits until programs listen on a service's ports, or take frames), [`Checkers`] (checks instances again
//! and again), [`Question`] (what one is asked), [`Port`] (the way to it, and to no other).
#![forbid(unsafe_code)]

pub mod answers;
mod checkers;
mod error;
mod listen;
mod probe;
mod remote;
mod wire;

pub use checkers::{Aspect, Checkers, Repeated, Verdict, Way};
pub use error::HealthError;
pub use listen::{ListenWatch, Listening};
pub use model::{AgentReport, AgentState};
pub use probe::Passed;
pub use wire::Port;

/// What an instance is asked over its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether it accepts a connection.
    Tcp {
        /// At this port.
        port: u16,
    },
    /// Whether it answers a request for a path with 2xx or 3xx.
    Http {
        /// At this port.
        port: u16,
        /// The path, with its first slash.
        path: String,
    },
    /// Whether it answers a question for a name.
    Dns {
        /// At this port of UDP.
        port: u16,
        /// The name.
        name: String,
    },
    /// What its agent says.
    Agent {
        /// The port of the agent.
        port: u16,
    },
}
