//! Runs the target that `INCO_FUZZ_TARGET` names when this is compiled. The program has the code of no other target:
//! libFuzzer looks at all counters of a program after each input.
#![no_main]

use libfuzzer_sys::fuzz_target;

const TARGET: fn(&[u8]) = fuzz_targets::target(env!("INCO_FUZZ_TARGET"));

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
