//! The seeds of the fuzz target `table`, replayed: no persisted table, whatever its bytes, makes the one who attaches
//! or converts it panic.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::path::Path;

use proptest::prelude::*;

mod persisted;

#[test]
fn the_seeds_do_no_harm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpora/table");
    let mut inputs = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        let input = std::fs::read(&path).unwrap();
        eprintln!("{}", path.display());
        persisted::run(&input);
        inputs += 1;
    }
    assert!(inputs >= 8, "{inputs} inputs in {}", folder.display());
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
