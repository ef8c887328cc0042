//! Facts about a machine from the kernel's files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The files of a machine: this one, or a tree created by a test.
#[derive(Clone, Debug)]
pub(super) struct Host {
    root: PathBuf,
}

impl Host {
    /// This machine.
    pub(super) fn here() -> Host {
        Host::at("/")
    }

    /// A machine with its root at `root`.
    pub(super) fn at(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into() }
    }

    /// The full path of a file; `path` has no leading slash.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A file's trimmed text; `None` if it cannot be read.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Sorted names in a directory; empty if it cannot be read.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path));
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The last component of a symbolic link's target.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(Path::new(target.file_name()?).display().to_string())
    }
}

/// The CPUs of a list in the kernel's format: `0-3,7`. Ignores invalid parts.
pub(super) fn cpu_list(text: &str) -> BTreeSet<u16> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u16>(), last.trim().parse()) {
            cpus.extend(first..=last);
        }
    }
    cpus
}

/// CPUs as text: `0, 1, 4`.
pub(super) fn cpu_text<'a>(cpus: impl IntoIterator<Item = &'a u16>) -> String {
    let cpus: Vec<String> = cpus.into_iter().map(ToString::to_string).collect();
    cpus.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpu_list("0-2,7\n"), BTreeSet::from([0, 1, 2, 7]));
        assert_eq!(cpu_list(""), BTreeSet::new());
        assert_eq!(cpu_list("(null)"), BTreeSet::new());
        assert_eq!(cpu_text(&cpu_list("3,1")), "1, 3");
    }
}
