//! The layers of ARCHITECTURE.md, checked: arrows only point down, and what is pure stays pure.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The folders of `crates/` from the bottom up, each with its crates in rows from the bottom up. A crate may use a
/// folder below its own, and in its own folder what lies in a row below its own.
const FOLDERS: &[(&str, &[&[&str]])] = &[
    (
        "foundation",
        &[
            &[
                "simd",
                "model",
                "stamp",
                "signal",
                "cpu-slice",
                "real-parts",
                "counting-allocator",
                "keeper",
                "shared-memory",
            ],
            &["packet", "maglev", "clock", "state-moves"],
            &["flow-table"],
        ],
    ),
    (
        "ports",
        &[&["dpdk-sys", "memif", "packet-socket", "interfaces"], &["dpdk"]],
    ),
    (
        "containers",
        &[
            &["functions", "kubernetes", "nf-page", "registry"],
            &["engine", "inco-nf"],
            &["inco-nf-c"],
        ],
    ),
    (
        "policy",
        &[
            &[
                "autoscaling",
                "placement",
                "actor-scheduling",
                "path-costs",
                "edge-steering",
            ],
            &["scheduling"],
            &["promotion", "configuration"],
        ],
    ),
    (
        "switches",
        &[
            &["openflow", "path-change", "switch"],
            &["openvswitch", "soft-switch", "ebpf-switch", "fast-path"],
            &["openflow-switch"],
        ],
    ),
    (
        "actors",
        &[
            &[
                "actor-objects",
                "actor-channel",
                "actor-migration",
                "actor-histories",
            ],
            &["actor-runtime", "actor-control"],
            &[
                "actor-processes",
                "actor-side",
                "actor-applications",
                "actor-wasm",
            ],
            &["inco-actors"],
            &["actor-supervisor"],
        ],
    ),
    (
        "operate",
        &[
            &["display", "api", "collector", "health"],
            &["images", "controller", "operator"],
            &["orchestrator"],
        ],
    ),
    (
        "measure",
        &[
            &["traffic", "fuzz-targets", "rate-search", "actor-load"],
            &["simulation", "testbed"],
            &["demo", "bench", "soak"],
        ],
    ),
    ("command", &[&["doctor", "top"], &["inco"]]),
];

/// The crates without clock, input, output or unsafe code.
const PURE: &[&str] = &[
    "simd",
    "model",
    "configuration",
    "stamp",
    "signal",
    "state-moves",
    "packet",
    "maglev",
    "flow-table",
    "scheduling",
    "autoscaling",
    "placement",
    "actor-scheduling",
    "actor-migration",
    "path-costs",
    "promotion",
    "path-change",
    "edge-steering",
    "rate-search",
    "openflow",
    "functions",
];

/// The one pure crate that may have unsafe code: each such function has a scalar twin.
const UNSAFE_AND_PURE: &str = "simd";

/// What a pure crate must not depend on: they bring clocks, system calls or a runtime.
const IMPURE_DEPENDENCIES: &[&str] = &["tokio", "libc", "rustix", "clock"];

/// What a pure crate must not call outside its tests: these are arguments there.
const IMPURE_CALLS: &[&str] = &[
    "Instant::now",
    "SystemTime::now",
    "std::fs",
    "TcpStream",
    "UdpSocket",
    "UnixStream",
    "std::env",
    "std::process",
    "std::thread",
    "File::open",
];

/// Where a driver of a switch may be named: the parser of the key that chooses one, and what makes it. All others ask
/// what a switch can do.
const NAME_DRIVERS: &[&str] = &[
    "policy/configuration/src/keys.rs",
    "policy/configuration/src/types.rs",
    "operate/orchestrator/src/drivers/",
];

/// What names a driver.
const DRIVER_NAMES: &[&str] = &[
    "SwitchDriver::Soft",
    "SwitchDriver::OpenFlow",
    "SwitchDriver::Ebpf",
    "SwitchDriver::Hybrid",
    "OpenFlowSwitch",
    "EbpfSwitch",
    "SoftSwitch",
];

fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Each crate of the workspace: its folder and its ordinary dependencies.
fn crates() -> BTreeMap<String, (PathBuf, Vec<String>)> {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let manifest = |package: &Value| PathBuf::from(package["manifest_path"].as_str().unwrap());
    // An example is what a user writes.
    let root = Path::new(metadata["workspace_root"].as_str().unwrap());
    let is_example = |package: &&Value| manifest(package).starts_with(root.join("examples"));
    packages
        .iter()
        .filter(|package| !is_example(package))
        .map(|package| {
            let folder = manifest(package).parent().unwrap().to_owned();
            let dependencies = package["dependencies"].as_array().unwrap().iter();
            let ordinary = dependencies
                .filter(|d| d["kind"].is_null())
                .map(|d| d["name"].as_str().unwrap().to_owned());
            (
                package["name"].as_str().unwrap().to_owned(),
                (folder, ordinary.collect()),
            )
        })
        .collect()
}

/// Where a crate stands, as (folder, row), both counted from the bottom.
fn place_of(name: &str) -> Option<(usize, usize)> {
    FOLDERS.iter().enumerate().find_map(|(folder, (_, rows))| {
        let row = rows.iter().position(|row| row.contains(&name))?;
        Some((folder, row))
    })
}

/// All Rust files of a folder.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn arrows_only_point_down() {
    let crates = crates();
    let mut wrong = Vec::new();
    for (name, (path, dependencies)) in &crates {
        let Some(place) = place_of(name) else {
            wrong.push(format!(
                "{name} has no row: give it one in FOLDERS, and in ARCHITECTURE.md"
            ));
            continue;
        };
        let folder = FOLDERS[place.0].0;
        if !path.ends_with(format!("crates/{folder}/{name}")) {
            wrong.push(format!(
                "{name} is in {}, not in crates/{folder}/{name}",
                path.display()
            ));
        }
        for dependency in dependencies.iter().filter(|d| crates.contains_key(*d)) {
            if place_of(dependency).is_none_or(|below| below >= place) {
                wrong.push(format!("{name} uses {dependency}, which does not lie below it"));
            }
        }
    }
    for name in FOLDERS
        .iter()
        .flat_map(|(_, rows)| rows.iter().copied().flatten())
    {
        if !crates.contains_key(*name) {
            wrong.push(format!("{name} has a row but there is no such crate"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn architecture_draws_the_folders_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut found: Vec<String> = std::fs::read_dir(root.join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    let mut drawn: Vec<&str> = FOLDERS.iter().map(|(folder, _)| *folder).collect();
    drawn.sort_unstable();
    assert_eq!(found, drawn, "crates/ and FOLDERS differ");
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    for (folder, rows) in FOLDERS {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("| `{folder}/` |")))
            .unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for `{folder}/`"));
        for name in rows.iter().copied().flatten() {
            assert!(
                line.contains(&format!("`{name}`")),
                "ARCHITECTURE.md does not name {name} in the row of `{folder}/`"
            );
        }
    }
}

#[test]
fn pure_crates_bring_no_runtime() {
    let crates = crates();
    for &name in PURE {
        let Some((_, dependencies)) = crates.get(name) else {
            continue;
        };
        for dependency in dependencies {
            assert!(
                !IMPURE_DEPENDENCIES.contains(&dependency.as_str()),
                "{name} uses {dependency}"
            );
        }
    }
}

#[test]
fn pure_crates_forbid_unsafe_code() {
    let crates = crates();
    let lacking: Vec<&str> = PURE
        .iter()
        .copied()
        .filter(|&name| name != UNSAFE_AND_PURE)
        .filter(|&name| {
            crates.get(name).is_some_and(|(folder, _)| {
                let root = std::fs::read_to_string(folder.join("src/lib.rs")).unwrap();
                !root.contains("#![forbid(unsafe_code)]")
            })
        })
        .collect();
    assert!(
        lacking.is_empty(),
        "#![forbid(unsafe_code)] is missing in {}",
        lacking.join(", ")
    );
}

#[test]
fn pure_crates_read_no_clock_and_no_file() {
    let crates = crates();
    let mut wrong = Vec::new();
    for &name in PURE {
        let Some((folder, _)) = crates.get(name) else {
            continue;
        };
        let mut files = Vec::new();
        sources(&folder.join("src"), &mut files);
        for file in files {
            // Tests stand at a file's end, or are a file of their own.
            if file.file_name().is_some_and(|name| name == "tests.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            let lines = text
                .lines()
                .take_while(|line| !line.starts_with("#[cfg(test)]"))
                .enumerate();
            for (number, line) in lines.filter(|(_, line)| !line.trim_start().starts_with("//")) {
                if let Some(call) = IMPURE_CALLS.iter().find(|call| line.contains(*call)) {
                    wrong.push(format!("{}:{}: {call}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_code_above_the_switches_depends_on_the_driver() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    // What measures switches makes some by itself.
    for folder in ["policy", "operate", "command"] {
        let mut files = Vec::new();
        sources(&root.join(folder), &mut files);
        let is_product = |file: &&PathBuf| file.components().any(|part| part.as_os_str() == "src");
        for file in files.iter().filter(is_product) {
            let path = file.strip_prefix(&root).unwrap().to_str().unwrap();
            if NAME_DRIVERS.iter().any(|allowed| path.starts_with(allowed)) {
                continue;
            }
            let text = std::fs::read_to_string(file).unwrap();
            for (number, line) in text.lines().enumerate() {
                if let Some(name) = DRIVER_NAMES.iter().find(|name| line.contains(*name)) {
                    wrong.push(format!("{}:{}: {name}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "ask `Capabilities` instead:\n{}",
        wrong.join("\n")
    );
}

/// Lines of a file in the folders of switches, at most.
const FILE_LINES: usize = 600;
/// Fields of a struct there, at most.
const STRUCT_FIELDS: usize = 15;
/// Structs that may have more: one field is one counter, or one key of a service; or they are models of switches and
/// forward nothing.
const LONG_STRUCTS: &[&str] = &[
    "SlotCounters",
    "WorkerTotals",
    "ServicePlan",
    "Figures",
    "FakeNic",
];

#[test]
fn files_and_structs_of_switches_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../switches");
    let mut wrong = Vec::new();
    let mut files = Vec::new();
    sources(&root, &mut files);
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let count = text.lines().count();
        if count > FILE_LINES {
            wrong.push(format!("{}: {count} lines, at most {FILE_LINES}", file.display()));
        }
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            // As rustfmt writes it: what is declared at the margin ends at the margin.
            let words: Vec<&str> = line.split([' ', '<', '{']).collect();
            let Some(at) = words.iter().position(|word| *word == "struct") else {
                continue;
            };
            let is_declared = !line.starts_with([' ', '/']) && line.ends_with('{');
            if !is_declared || LONG_STRUCTS.contains(&words[at + 1]) {
                continue;
            }
            let body = lines.by_ref().take_while(|line| *line != "}");
            let is_field = |line: &&str| {
                line.strip_prefix("    ")
                    .is_some_and(|rest| !rest.starts_with([' ', '/', '#', ')', '}']))
            };
            let fields = body.filter(is_field).count();
            if fields > STRUCT_FIELDS {
                let name = words[at + 1];
                wrong.push(format!(
                    "{}: {name} has {fields} fields, at most {STRUCT_FIELDS}",
                    file.display()
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "give each part its own state:\n{}",
        wrong.join("\n")
    );
}

/// Text between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Each path in the documents exists, and each test that is named "in" a file is there.
#[test]
fn documents_name_files_and_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut pages: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .map(|page| root.join(page))
        .into();
    for folder in ["docs", "docs/tasks"] {
        let files = std::fs::read_dir(root.join(folder)).unwrap();
        pages.extend(
            files
                .map(|file| file.unwrap().path())
                .filter(|path| path.extension().is_some_and(|of| of == "md")),
        );
    }
    let mut paths = 0;
    for page in pages {
        for line in std::fs::read_to_string(&page).unwrap().lines() {
            let mut before = "";
            for text in quoted(line) {
                let folders = [
                    "crates/",
                    "deploy/",
                    "docs/",
                    "examples/",
                    "fuzz/",
                    "packaging/",
                    "scenarios/",
                    "scripts/",
                ];
                let path = text.split(':').next().unwrap_or_default();
                if folders.iter().any(|folder| path.starts_with(folder)) && !path.contains([' ', '*', '<']) {
                    paths += 1;
                    let file = root.join(path);
                    assert!(file.exists(), "{}: {path} does not exist", page.display());
                    if !before.is_empty()
                        && line.contains(&format!("`{before}` in `{path}`"))
                        && file.is_file()
                    {
                        let code = std::fs::read_to_string(&file).unwrap();
                        assert!(
                            code.contains(before),
                            "{}: {path} has no {before}",
                            page.display()
                        );
                    }
                }
                before = text;
            }
        }
    }
    assert!(paths > 100, "{paths} paths");
}
