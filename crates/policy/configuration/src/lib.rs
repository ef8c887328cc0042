//! The configuration file: parses TOML into a checked [`Configuration`], or into every [`Problem`] with file, line,
//! key and remedy. It reads text only: no file, no environment, no clock. Facts of the machine come from [`Facts`].
//!
//! Key types: [`Configuration`] and its parts, [`Problem`], [`Facts`].
//!
//! 1. [`parse`] reads the text and makes all checks that need no machine, by the driver's
//!    [capabilities](model::Capabilities).
//! 2. [`check_facts`] checks it against a machine.
//! 3. [`Configuration::changes_to`] lists the changes of a reload, and those that need a restart.
//! 4. [`reference`] is the documentation of every key, made from the table that also refuses unknown ones.
#![forbid(unsafe_code)]

mod actors;
mod chains;
mod check;
mod facts;
mod key;
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
mod variants;

pub use actors::{
    ACTORS_IMAGE, ACTORS_LIMIT, ActorMember, Actors, ActorsPart, KIND_LIMIT_BYTES, Moves, ServiceKind, Sides,
};
pub use facts::{Facts, Unusable, check_facts};
pub use key::{Key, KeyDefault, Reload};
pub use keys::{KEYS, TABLES};
pub use model::PortKind;
pub use nearest::{nearest, scheduler_name};
pub use parse::{parse, parse_scheduler};
pub use placement::{Goal, PlaceId, Placement, estimate};
pub use problem::{Position, Problem};
pub use reference::reference;
pub use types::*;
pub use units::{ValueError, rate as parse_rate, show_rate, show_size, show_span, span as parse_span};
pub use variants::{AtPlace, Variant};
