//! What people see: lines of output that nobody needs to read, tables, events in words, charts, and pages with everything in
//! them. It asks nobody and decides nothing.
#![forbid(unsafe_code)]
// They panic where nobody reads the output: `output` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod chart;
pub mod event;
pub mod output;
pub mod page;
pub mod table;
