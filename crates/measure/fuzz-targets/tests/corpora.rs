//! Replays the corpora of all targets.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

#[test]
fn corpora_violate_no_target() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpora");
    for (name, target) in fuzz_targets::TARGETS {
        let mut files: Vec<_> = std::fs::read_dir(corpora.join(name))
            .unwrap_or_else(|error| panic!("{name} has no corpus: {error}"))
            .map(|file| file.unwrap().path())
            .collect();
        files.sort();
        assert!(files.len() >= 2, "{name} has {} inputs", files.len());
        for file in files {
            eprintln!("{}", file.display());
            target(&std::fs::read(&file).unwrap());
        }
    }
    fuzz_targets::clean_up();
}
