//! The program with the kinds of actors that come with inco: see the crate's documentation.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    inco_actors::main(inco_actors::kinds::make)
}
