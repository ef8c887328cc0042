//! Runs the target that `INCO_FUZZ_TARGET` names.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("INCO_FUZZ_TARGET").expect("INCO_FUZZ_TARGET names the target");
    let found = fuzz_targets::TARGETS.iter().find(|(of, _)| *of == name);
    found.map(|(_, run)| *run).unwrap_or_else(|| panic!("unknown target {name:?}"))
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
