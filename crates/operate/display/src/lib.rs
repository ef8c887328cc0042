//! User-visible output: standard output and error, tables, events as text, charts, and self-contained pages. This
//! crate only formats; it queries nothing and decides nothing.
#![forbid(unsafe_code)]
// The print macros panic if the output is closed; `output` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod chart;
pub mod event;
pub mod output;
pub mod page;
pub mod table;
