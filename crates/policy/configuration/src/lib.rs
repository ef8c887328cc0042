//! The configuration file: TOML in, a checked [`Configuration`] or every [`Problem`] with file, line, key and what to
//! write out. It reads text and nothing else: no file, no environment, no clock; what only the machine can tell is
//! asked through [`Facts`].
//!
//! Key types: [`Configuration`] and what it holds, [`Problem`], [`Facts`].
//!
//! 1. [`parse`] reads the text and checks what can be checked without a machine, by what the chosen driver [can do](model::Capabilities).
//! 2. [`check_facts`] compares it with a machine.
//! 3. [`Configuration::changes_to`] says what a reload would change, and what it may not.
//! 4. [`reference`] is the documentation of every key, from the table that also refuses unknown ones.
#![forbid(unsafe_code)]

mod check;
mod facts;
mod keys;
mod limits;
mod nearest;
mod parse;
mod policies;
mod problem;
mod read;
mod reference;
mod reload;
mod types;
mod units;
mod values;

pub use facts::{Facts, Unusable, check_facts};
pub use keys::{KEYS, Key, KeyDefault, Reload, TABLES};
pub use model::PortKind;
pub use nearest::{nearest, scheduler_name};
pub use parse::parse;
pub use policies::parse_scheduler;
pub use problem::{Place, Problem};
pub use reference::reference;
pub use types::*;
pub use units::{show_rate, show_size, show_span};
