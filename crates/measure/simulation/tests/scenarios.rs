//! Runs every scenario file and evaluates its checks.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use real_parts::{data_folder, is_required};
use simulation::{ScenarioFile, run};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios")
}

#[test]
fn every_scenario_meets_its_expectation() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no scenario in {}", folder().display());
    if let Ok(only) = std::env::var("INCO_SCENARIO") {
        files.retain(|path| path.file_stem().is_some_and(|stem| *stem == *only));
    }
    // Hours of simulated time: on all processors.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let problems = problems_of(path);
                    wrong.lock().unwrap().extend(problems);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Only these check nothing but that the model reproduces its own input.
#[test]
fn few_scenarios_are_calibration_alone() {
    let files = std::fs::read_dir(folder()).unwrap();
    let mut alone: Vec<String> = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .filter(|path| ScenarioFile::load(path).unwrap().expectation().checks.is_empty())
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    alone.sort();
    let expected = [
        "inreal-cliff",
        "smartinco-contention",
        "smartinco-saturation",
        "smartlb-hop",
        "smartlb-scale-in",
    ];
    assert_eq!(alone, expected);
}

/// Runs one scenario and returns its unmet checks.
fn problems_of(path: &Path) -> Vec<String> {
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    let file = ScenarioFile::load(path).unwrap_or_else(|error| panic!("{error}"));
    assert!(
        !file.expectation().what.is_empty(),
        "{name}: it has no expectation"
    );
    let checks = file.expectation().checks.len() + file.expectation().calibration.len();
    assert!(checks > 0, "{name}: it has no checks");
    match run(&file, None, &data_folder(), &mut |_, _, _| {}) {
        Ok(result) => {
            let checks = result.checks.iter().filter(|check| !check.met);
            let said = |check: &simulation::Checked| {
                format!(
                    "{name}: {} does not hold: {} and {}",
                    check.check, check.left, check.right
                )
            };
            checks.map(said).collect()
        }
        Err(error) if error.is_absent_data() && !is_required("data") => {
            eprintln!("{name}: skipped: {error}");
            Vec::new()
        }
        Err(error) => vec![format!("{name}: {error}")],
    }
}
