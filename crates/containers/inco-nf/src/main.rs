//! The program with the functions of the library: see the crate's documentation.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    inco_nf::main(functions::LIBRARY)
}
