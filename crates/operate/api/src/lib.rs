//! The HTTP API over a unix socket and over TLS, and its client. It knows what may be asked and how it is said; it
//! never looks at the switch or the containers itself: every question goes to the control loop as a message, and the
//! loop never waits for the API.
//!
//! Key types: [`Asker`] and [`Inbox`] (the two ends of the queue of questions), [`EventLog`] (events, for those who
//! follow), [`Server`], [`Client`], and what is said in [`types`].
//!
//! 1. The daemon makes the queue with [`questions`] and an [`EventLog`], and starts a [`Server`] with both.
//! 2. At each turn the control loop takes what is in its [`Inbox`] and answers each [`Question`].
//! 3. It pushes what happens into the [`EventLog`]; followers are woken.
//! 4. Dropping the [`Server`] ends it and removes the socket.
#![forbid(unsafe_code)]

mod access;
mod client;
pub mod counters;
mod endpoint;
mod event_log;
mod figures;
mod history;
mod metrics;
mod page;
mod problem;
mod question;
mod routes;
pub mod run_dir;
mod seats;
mod server;
mod stream;
mod tuple;
pub mod types;

use std::path::PathBuf;

use thiserror::Error;

pub use access::{TOKEN_LENGTH, TOKEN_LIMIT};
pub use client::{Client, EventStream};
pub use endpoint::{Endpoint, Remote};
pub use event_log::{EVENT_LIMIT, EventLog, Events};
pub use metrics::{Format, encode};
pub use question::{Answer, Asker, Caller, Inbox, QUESTION_LIMIT, Question, questions};
pub use routes::{ANSWER_TIME, openapi};
pub use server::{Limits, Server, Tcp, longest_path};
pub use tuple::{TupleError, parse_tuple};

/// What can go wrong between the API's two ends.
#[derive(Debug, Error)]
pub enum ApiError {
    /// Nobody listens.
    #[error("inco is not running (no socket at {}): start it with `inco run -f inco.toml`", socket.display())]
    NotRunning {
        /// Where it was looked for.
        socket: PathBuf,
    },
    /// The socket may not be used by this user.
    #[error("no permission to use {}: run this as root, or as a member of the socket's group", socket.display())]
    Permission {
        /// The socket.
        socket: PathBuf,
    },
    /// Another inco listens already.
    #[error("another inco listens on {}: stop it with `inco stop`, or set INCO_RUN_DIR to another directory", socket.display())]
    InUse {
        /// The socket.
        socket: PathBuf,
    },
    /// Something else lies where the socket should.
    #[error("{} is a file, and no socket: remove it, or write another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// inco said no.
    #[error(transparent)]
    Refused(#[from] types::Refusal),
    /// The connection broke, or inco did not answer in time.
    #[error("inco did not answer on {}: {reason}", socket.display())]
    NoAnswer {
        /// The socket.
        socket: PathBuf,
        /// What was seen.
        reason: String,
    },
    /// What names a remote inco is wrong.
    #[error("{what}: {reason}")]
    Remote {
        /// The URL or a file.
        what: String,
        /// What is the matter, or what to write.
        reason: String,
    },
    /// What came is not what this version understands.
    #[error("inco answered what this version does not understand ({reason}): use the same version of both")]
    NotUnderstood {
        /// What was seen.
        reason: String,
    },
    /// The file of tokens is no such file.
    #[error("tokens file {}: {reason}", file.display())]
    Tokens {
        /// The file.
        file: PathBuf,
        /// What is the matter, and what to do.
        reason: String,
    },
    /// The certificate or its key cannot be used.
    #[error("{}: {reason}; write the certificate and its key as PEM, one for the other", file.display())]
    Certificate {
        /// The file.
        file: PathBuf,
        /// What is the matter.
        reason: String,
    },
    /// The system refused something that the server needs.
    #[error("{what} {}: {source}", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}
