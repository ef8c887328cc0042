//! Longest-prefix match: [`Prefix`], their flattening into ranges, and the compiled tables of each family.

mod prefix;
mod ranges;
mod routes4;
mod routes6;
mod v4;
mod v6;

pub use prefix::{Prefix, PrefixError};
pub use ranges::{Range, flatten};
pub use routes4::{LOOKUPS_LIMIT, Routes4};
pub use routes6::Routes6;
pub use v4::Classes4;
pub use v6::Classes6;

/// The value of addresses that no prefix holds, in [`Routes4`] and [`Routes6`].
pub const NO_ROUTE: u32 = u32::MAX;
