//! The HTTP API over a unix socket and over TLS, and its client. It defines requests and answers. It never accesses
//! the switch or the containers: it sends each request to the control loop as a message, and the loop never waits for
//! the API.
//!
//! Key types: [`RequestSender`] and [`RequestReceiver`] (the two ends of the request queue), [`EventLog`] (the newest
//! events), [`Server`], [`Client`], and the bodies of requests and answers in [`types`].
//!
//! 1. The daemon creates the queue with [`request_queue`] and an [`EventLog`], and starts a [`Server`] with both.
//! 2. In each turn the control loop takes requests from its [`RequestReceiver`] and answers each [`ControlRequest`].
//! 3. It adds events to the [`EventLog`], which wakes the followers.
//! 4. Dropping the [`Server`] ends it and removes the socket.
#![forbid(unsafe_code)]

mod accepting;
mod access;
mod capture;
mod client;
mod connections;
mod control_request;
pub mod counters;
mod endpoint;
mod event_log;
mod figures;
mod history;
mod metrics;
mod page;
mod pcapng;
mod problem;
mod routes;
pub mod run_dir;
mod server;
mod stream;
mod tuple;
pub mod types;

use std::path::PathBuf;

use thiserror::Error;

pub use access::{TOKEN_LENGTH, TOKEN_LIMIT};
pub use capture::{CaptureQuery, RunningCapture};
pub use client::{CaptureEnder, CaptureStream, Client, EventStream};
pub use control_request::{
    Answer, Caller, ControlRequest, REQUEST_QUEUE_LIMIT, RequestReceiver, RequestSender, request_queue,
};
pub use endpoint::{Endpoint, Remote};
pub use event_log::{EVENT_LIMIT, EventLog, Events};
pub use metrics::{Format, encode};
pub use pcapng::CaptureTally;
pub use routes::{ANSWER_TIME, openapi};
pub use server::{Door, Limits, Listeners, Server, ServerSettings, Tcp, longest_path};
pub use tuple::{TupleError, parse_tuple};

/// An error of the client or the server.
#[derive(Debug, Error)]
pub enum ApiError {
    /// No inco listens on the socket.
    #[error("inco is not running (nothing listens on {}): start it with `inco run -f inco.toml`", socket.display())]
    NotRunning {
        /// The socket.
        socket: PathBuf,
    },
    /// This user has no permission to use the socket.
    #[error("no permission to use {}: run this as root, or as a member of the socket's group", socket.display())]
    Permission {
        /// The socket.
        socket: PathBuf,
    },
    /// Another inco already listens on the socket.
    #[error(
        "another inco listens on {}: stop it with `inco stop`, or set INCO_RUN_DIR to another directory",
        socket.display()
    )]
    InUse {
        /// The socket.
        socket: PathBuf,
    },
    /// The path of the socket exists and is not a socket.
    #[error("{} is a file and not a socket: remove it, or set another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// inco refused the request.
    #[error(transparent)]
    Refused(#[from] types::Refusal),
    /// The connection ended, or inco did not answer in time.
    #[error("inco did not answer on {}: {reason}", socket.display())]
    NoAnswer {
        /// The socket.
        socket: PathBuf,
        /// The observed fault.
        reason: String,
    },
    /// The URL, token file or certificate of a remote inco is invalid.
    #[error("{what}: {reason}")]
    Remote {
        /// The URL or a file.
        what: String,
        /// The problem, or what to write.
        reason: String,
    },
    /// This version does not understand the answer.
    #[error("this version does not understand inco's answer ({reason}): use the same version for both")]
    NotUnderstood {
        /// The observed fault.
        reason: String,
    },
    /// The file of tokens is invalid.
    #[error("tokens file {}: {reason}", file.display())]
    Tokens {
        /// The file.
        file: PathBuf,
        /// The problem and what to do.
        reason: String,
    },
    /// The certificate or its key is invalid.
    #[error("{}: {reason}; write a certificate and its private key as PEM", file.display())]
    Certificate {
        /// The file.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A system call of the server failed.
    #[error("{what} {}: {source}", path.display())]
    System {
        /// The operation.
        what: &'static str,
        /// Its file or address.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}
