//! Every scenario file is played, and comes out as it says.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::path::{Path, PathBuf};

use simulation::{ScenarioFile, run};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

fn data() -> PathBuf {
    std::env::var_os("INCO_DATA").map_or_else(|| folder().join("../../shared/data"), PathBuf::from)
}

fn required() -> bool {
    std::env::var("INCO_REQUIRE").is_ok_and(|list| list.split(',').any(|part| part == "data"))
}

#[test]
fn every_scenario_comes_out_as_it_says() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no scenario in {}", folder().display());
    let only = std::env::var("INCO_SCENARIO").ok();
    let mut wrong = Vec::new();
    for path in files {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let file = ScenarioFile::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert!(!file.expectation().what.is_empty(), "{name}: it expects nothing");
        assert!(!file.expectation().checks.is_empty(), "{name}: it checks nothing");
        match run(&file, 1, &data(), &mut |_, _, _| {}) {
            Ok(result) => {
                for check in result.checks.iter().filter(|check| !check.met) {
                    wrong.push(format!(
                        "{name}: {} does not hold: {} and {}",
                        check.check, check.left, check.right
                    ));
                }
            }
            Err(error) if error.is_absent_data() && !required() => eprintln!("{name}: skipped: {error}"),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
