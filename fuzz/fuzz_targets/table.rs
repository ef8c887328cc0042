//! A persisted flow table, whatever its bytes, is attached, converted and used without a panic, and agrees with
//! itself.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/foundation/flow-table/tests/persisted/mod.rs"]
mod persisted;

fuzz_target!(|bytes: &[u8]| persisted::run(bytes));
