//! The files of an operator: the base file, the configuration file of inco, and beside that the last text that inco has
//! accepted, and what is to be rolled out since. An operator remembers nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::Error;
use crate::run::Check;

/// Largest file in bytes: that of a configuration.
const LIMIT: u64 = 1 << 20;

/// Where the files are.
#[derive(Clone, Debug)]
pub struct Files {
    /// The base file: a configuration by itself.
    pub base: PathBuf,
    /// The configuration file of inco.
    pub file: PathBuf,
}

/// The services of a text that are tables, by their names.
pub(crate) fn services(text: &str) -> BTreeMap<String, Table> {
    let mut all: Table = toml::from_str(text).unwrap_or_default();
    let Some(Value::Table(services)) = all.remove("service") else {
        return BTreeMap::new();
    };
    let table = |(name, value)| match value {
        Value::Table(of) => Some((name, of)),
        _ => None,
    };
    services.into_iter().filter_map(table).collect()
}

/// Whose the services of a text are, by their names: the line before a table says `# service NAME: KIND NAMESPACE/NAME`.
pub(crate) fn owners(text: &str) -> BTreeMap<String, String> {
    let said = text.lines().filter_map(|line| line.strip_prefix("# service "));
    let each = said.filter_map(|of| of.split_once(": "));
    each.map(|(name, owner)| (name.to_owned(), owner.to_owned()))
        .collect()
}

fn text_of(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(LIMIT).read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a file as a whole, or not at all.
fn replace(path: &Path, text: &str) -> Result<(), String> {
    let cannot = |error: std::io::Error| {
        let path = path.display();
        format!("cannot write {path}: {error}; let the operator write its folder")
    };
    let mut new = path.to_owned().into_os_string();
    new.push(".new");
    let mut file = fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .map_err(cannot)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(cannot)?;
    fs::rename(&new, path).map_err(cannot)
}

impl Files {
    fn beside(&self, end: &str) -> PathBuf {
        let mut path = self.file.clone().into_os_string();
        path.push(end);
        path.into()
    }

    fn accepted(&self) -> PathBuf {
        self.beside(".accepted")
    }

    fn to_roll_out(&self) -> PathBuf {
        self.beside(".rollouts")
    }

    /// The base, and the last text that inco has accepted; empty: there is none.
    pub(crate) fn read(&self) -> Result<(String, String), String> {
        let base = text_of(&self.base).map_err(|error| {
            let base = self.base.display();
            format!("the base file {base} cannot be read: {error}; name it with --base")
        })?;
        let path = self.accepted();
        let accepted = match text_of(&path) {
            Ok(text) => text,
            // Nothing was accepted yet, or somebody else has written there.
            Err(error) if [ErrorKind::NotFound, ErrorKind::InvalidData].contains(&error.kind()) => {
                String::new()
            }
            // As if nothing had been accepted, what is in force would go.
            Err(error) => {
                let path = path.display();
                return Err(format!(
                    "{path} cannot be read: {error}; let the operator read its folder"
                ));
            }
        };
        Ok((base, accepted))
    }

    /// Has inco's configuration file there: what was accepted last, or else the base.
    ///
    /// # Errors
    /// There is no usable base file, or the file cannot be written.
    pub fn prepare(&self, check: Check<'_>) -> Result<(), Error> {
        let (base, accepted) = self.read().map_err(Error::File)?;
        if !accepted.is_empty() && check(&accepted).is_empty() {
            return self.restore(&accepted).map_err(Error::File);
        }
        if let Some(first) = check(&base).first() {
            let file = self.base.display();
            let text = format!("the base file {file}: {}: {}", first.key, first.text);
            return Err(Error::File(text));
        }
        self.write(&base).map_err(Error::File)
    }

    pub(crate) fn write(&self, text: &str) -> Result<(), String> {
        replace(&self.file, text)
    }

    /// Has that text there. What an operator has tried when it or inco ended may be what inco cannot start with.
    pub(crate) fn restore(&self, text: &str) -> Result<(), String> {
        match text_of(&self.file).is_ok_and(|there| there == text) {
            true => Ok(()),
            false => self.write(text),
        }
    }

    pub(crate) fn accept(&self, text: &str) -> Result<(), String> {
        replace(&self.accepted(), text)
    }

    /// The services that are to be rolled out, and of those of which inco was asked its newest event before that.
    pub(crate) fn rollouts(&self) -> Result<BTreeMap<String, Option<u64>>, String> {
        let path = self.to_roll_out();
        let cannot = |error: &dyn std::fmt::Display| format!("{} cannot be read: {error}", path.display());
        match text_of(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| cannot(&error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(cannot(&error)),
        }
    }

    pub(crate) fn keep_rollouts(&self, all: &BTreeMap<String, Option<u64>>) -> Result<(), String> {
        let text = serde_json::to_string(all).map_err(|error| error.to_string())?;
        replace(&self.to_roll_out(), &text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]
    use super::*;

    /// Files of which only the base is there, in a folder that goes with the first.
    fn with_base() -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().unwrap();
        let files = Files {
            base: folder.path().join("base.toml"),
            file: folder.path().join("inco.toml"),
        };
        fs::write(&files.base, "base").unwrap();
        (folder, files)
    }

    #[test]
    fn what_was_accepted_and_cannot_be_read_is_not_nothing() {
        let (_folder, files) = with_base();
        let read = |accepted: &str| {
            files.accept(accepted).unwrap();
            files.read().unwrap().1
        };
        assert_eq!(files.read().unwrap(), ("base".to_owned(), String::new()));
        assert_eq!(read("accepted"), "accepted");
        fs::remove_file(files.accepted()).unwrap();
        // A folder opens, and cannot be read.
        fs::create_dir(files.accepted()).unwrap();
        let said = files.read().unwrap_err();
        assert!(said.contains("inco.toml.accepted cannot be read: "), "{said}");
    }

    #[test]
    fn what_was_tried_is_not_left_to_the_next_start() {
        let (_folder, files) = with_base();
        let there = || fs::read_to_string(&files.file).unwrap();
        files.prepare(&|_| Vec::new()).unwrap();
        assert_eq!(there(), "base");
        files.accept("accepted").unwrap();
        files.write("tried").unwrap();
        files.prepare(&|_| Vec::new()).unwrap();
        assert_eq!(there(), "accepted");
        files.restore("accepted").unwrap();
        assert_eq!(there(), "accepted");
    }
}
