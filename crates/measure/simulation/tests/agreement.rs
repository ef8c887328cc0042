//! The simulation agrees with the live system: the traffic of a live run gives the same decisions here.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::path::Path;

use simulation::{Recording, ScenarioFile, play};

/// Permitted time between a live decision and its simulated counterpart, in seconds: the samples' spacing
/// (100 ms) and the live loop's delays.
const TOLERANCE_S: f64 = 0.3;

#[test]
fn a_recorded_live_run_gives_the_same_decisions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios");
    let recording = Recording::load(&folder.join("recordings/live-ramp.json")).unwrap();
    let file = ScenarioFile::load(&folder.join("live-ramp.toml")).unwrap();
    let scenario = file.variant("").unwrap();
    let outcome = play(&scenario, scenario.seed, Path::new("."), &folder).unwrap();
    let live: Vec<(u32, u32)> = recording.decisions.iter().map(|d| (d.from, d.to)).collect();
    let simulated: Vec<(u32, u32)> = outcome.decisions.iter().map(|d| (d.from, d.to)).collect();
    assert!(
        live.len() >= 5,
        "a recording without decisions shows nothing: {live:?}"
    );
    assert_eq!(live, simulated);
    for (live, simulated) in recording.decisions.iter().zip(&outcome.decisions) {
        assert!(
            (live.at_s - simulated.at_s).abs() <= TOLERANCE_S,
            "{} to {}: live at {} s, simulated at {} s: {}",
            live.from,
            live.to,
            live.at_s,
            simulated.at_s,
            simulated.reason
        );
    }
}
