//! The configuration file: TOML in, a checked [`Configuration`] or every [`Problem`] with file, line, key and what to
//! write out. It reads text and nothing else: no file, no environment, no clock; what only the machine can tell is
//! asked through [`Facts`].
//!
//! Key types: [`Configuration`] and what it holds, [`Problem`], [`Facts`].
//!
//! 1. [`parse`] reads the text and checks what can be checked without a machine.
//! 2. [`check_facts`] compares it with a machine.
//! 3. [`reference`] is the documentation of every key, from the table that also refuses unknown ones.
#![forbid(unsafe_code)]

mod check;
mod defaults;
mod facts;
mod keys;
mod nearest;
mod parse;
mod problem;
mod read;
mod reference;
mod types;
mod units;

pub use defaults::{
    CPU_LIMIT, NAME_LIMIT, SERVICE_LIMIT, SERVICE_UPLINK_LIMIT, SOCKET_PATH_LIMIT, UPLINK_LIMIT, WORKER_LIMIT,
};
pub use facts::{Facts, Unusable, check_facts};
pub use keys::{KEYS, Key, KeyDefault, TABLES};
pub use nearest::{nearest, scheduler_name};
pub use parse::{parse, parse_scheduler};
pub use problem::{Place, Problem};
pub use reference::reference;
pub use types::*;
pub use units::{show_rate, show_size, show_span};
