//! Each test that the Makefile or docs/promises.md names is there. A filter that fits no test runs nothing, and passes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::text;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The words of a variable of the Makefile.
fn words(variable: &str) -> Vec<String> {
    // `-q` runs nothing, and `-p` prints the variables; make then exits with 1, because `help` is never up to date.
    let mut make = Command::new("make");
    make.args(["-pRrq", "help"]).current_dir(root());
    let printed = text(&make.output().unwrap().stdout);
    let line = printed
        .lines()
        .find_map(|line| line.strip_prefix(variable)?.strip_prefix(" := "));
    line.unwrap_or_else(|| panic!("the Makefile has no {variable}"))
        .split_whitespace()
        .map(String::from)
        .collect()
}

#[test]
fn each_filter_of_the_makefile_fits_a_test() {
    let this = std::env::current_exe().unwrap();
    let listed = text(&Command::new(this).arg("--list").output().unwrap().stdout);
    let tests: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .collect();
    assert!(tests.len() > 100, "{listed}");
    for variable in ["LONG", "STATED_SIZE"] {
        let filters = words(variable);
        assert!(filters.len() > 5, "{variable}: {filters:?}");
        let idle: Vec<_> = filters
            .iter()
            .filter(|filter| !tests.iter().any(|test| test.contains(filter.as_str())))
            .collect();
        assert!(
            idle.is_empty(),
            "no test has these of {variable} in its name: {idle:?}"
        );
    }
}

/// The names in a cell of the table, each with the crate of its test.
fn named(cell: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    // Those before "of `crate`", which says where they are.
    let mut open: Vec<String> = Vec::new();
    let mut parts = cell.split('`');
    let mut before = parts.next().unwrap_or_default();
    while let (Some(quoted), Some(after)) = (parts.next(), parts.next()) {
        if before.trim_end().ends_with(" of") {
            if open.is_empty() {
                // "`names` of `one` and of `another`"
                open = found.iter().map(|(name, _)| name.clone()).collect();
            }
            found.extend(open.drain(..).map(|name| (name, quoted.to_string())));
        } else if !quoted.contains(' ') {
            open.push(quoted.to_string());
        }
        before = after;
    }
    found.extend(open.into_iter().map(|name| (name, "inco".to_string())));
    found
}

/// What a test's name can have as a part: the functions and files of a crate.
fn parts_of(folder: &Path, parts: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            parts_of(&path, parts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            parts.insert(path.file_stem().unwrap().to_str().unwrap().to_string());
            let source = std::fs::read_to_string(&path).unwrap();
            parts.extend(source.lines().filter_map(|line| {
                let name = line.trim_start().strip_prefix("fn ")?;
                Some(name.split_once('(')?.0.to_string())
            }));
        }
    }
}

#[test]
fn each_test_of_the_promises_is_there() {
    let page = std::fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("| promise | test |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut checked = 0;
    for row in rows {
        let cell = row.split('|').nth(2).unwrap();
        for (name, of) in named(cell) {
            let folder = std::fs::read_dir(root().join("crates"))
                .unwrap()
                .map(|group| group.unwrap().path().join(&of))
                .find(|folder| folder.is_dir())
                .unwrap_or_else(|| panic!("no crate {of}: {row}"));
            let mut parts = BTreeSet::new();
            parts_of(&folder, &mut parts);
            let last = name.rsplit("::").next().unwrap();
            assert!(
                parts.iter().any(|part| part.contains(last)),
                "{of} has no test {name}: {row}"
            );
            checked += 1;
        }
    }
    assert!(checked > 40, "{checked} names");
}
