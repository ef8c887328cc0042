//! Replays the corpora of all targets.

#[test]
fn corpora_violate_no_target() {
    for (name, target) in fuzz_targets::TARGETS {
        let inputs = real_parts::fuzz_inputs(name);
        assert!(inputs.len() >= 2, "{name} has {} inputs", inputs.len());
        for (input, bytes) in inputs {
            eprintln!("{input}");
            target(&bytes);
        }
    }
    fuzz_targets::clean_up();
}
