//! The inputs of the fuzz target `table`, replayed: no persisted table, whatever its bytes, makes the one who attaches
//! or converts it panic.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use proptest::prelude::*;

mod persisted;

#[test]
fn the_inputs_do_no_harm() {
    let inputs = real_parts::fuzz_inputs("table");
    assert!(inputs.len() >= 8, "{} inputs", inputs.len());
    for (input, bytes) in inputs {
        eprintln!("{input}");
        persisted::run(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_changes_do_no_harm(changes in prop::collection::vec(any::<[u8; 12]>(), 0..200)) {
        let mut input = vec![1];
        input.extend(changes.into_iter().flatten());
        prop_assert!(input.len() < persisted::INPUT_LIMIT);
        persisted::run(&input);
    }
}
