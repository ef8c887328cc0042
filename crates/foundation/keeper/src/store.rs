//! What the server has, and its limits.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::fd::OwnedFd;

use rustix::process::{Resource, getrlimit};

use crate::{Error, MAX_ENTRIES, MAX_FILES, MAX_NAME_BYTES, MAX_NOTE_BYTES, RESERVED_FILES};

/// Bytes of names in one answer at most.
const NAMES_BYTES: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) note: String,
    pub(crate) files: Vec<OwnedFd>,
}

/// Entries by name.
#[derive(Debug, Default)]
pub(crate) struct Store {
    entries: BTreeMap<String, Kept>,
    /// Descriptors of all entries.
    files: usize,
}

/// Whether an entry is within its own limits.
pub(crate) fn check(name: &str, note: &str, files: usize) -> Result<(), Error> {
    let limit = |what, asked, limit| match asked {
        asked if asked > limit => Err(Error::Limit { what, asked, limit }),
        _ => Ok(()),
    };
    limit("bytes of a name", name.len(), MAX_NAME_BYTES)?;
    limit("bytes of a note", note.len(), MAX_NOTE_BYTES)?;
    limit("descriptors of an entry", files, MAX_FILES)?;
    if files == 0 {
        return Err(Error::Refused {
            reason: "no descriptor came with it".to_owned(),
        });
    }
    Ok(())
}

impl Store {
    pub(crate) fn keep(&mut self, name: String, note: String, files: Vec<OwnedFd>) -> Result<(), Error> {
        check(&name, &note, files.len())?;
        let before = self.entries.get(&name).map_or(0, |kept| kept.files.len());
        if before == 0 && self.entries.len() >= MAX_ENTRIES {
            return Err(Error::Limit {
                what: "entries",
                asked: self.entries.len() + 1,
                limit: MAX_ENTRIES,
            });
        }
        let all = self.files - before + files.len();
        let soft = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let limit = usize::try_from(soft.saturating_sub(RESERVED_FILES)).unwrap_or(usize::MAX);
        if all > limit {
            return Err(Error::Limit {
                what: "descriptors in all",
                asked: all,
                limit,
            });
        }
        self.files = all;
        self.entries.insert(name, Kept { note, files });
        Ok(())
    }

    pub(crate) fn forget(&mut self, name: &str) {
        if let Some(kept) = self.entries.remove(name) {
            self.files -= kept.files.len();
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Store::default();
    }

    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Kept> {
        self.entries.get(name)
    }

    /// Names after this one, as many as fit an answer.
    pub(crate) fn names(&self, after: &str) -> Vec<String> {
        let mut bytes = 0;
        let after = (Bound::Excluded(after), Bound::Unbounded);
        let names = self.entries.range::<str, _>(after).map(|(name, _)| name.clone());
        names
            .take_while(|name| {
                bytes += name.len();
                bytes <= NAMES_BYTES
            })
            .collect()
    }
}
