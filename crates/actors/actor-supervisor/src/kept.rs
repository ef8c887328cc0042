//! What outlives inco: the regions of a service, as entries of a keeper.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use keeper::Entry;
use serde::{Deserialize, Serialize};

use crate::service::{Owned, Service};
use crate::supervisor::Error;

/// Actors of an entry: each has two descriptors, and its kind in the note.
const ACTORS: usize = 48;
const _: () = assert!(2 * ACTORS <= keeper::MAX_FILES);
const _: () = assert!(ACTORS * (actor_control::WORD_BYTES + 64) < keeper::MAX_NOTE_BYTES);
/// The number of the form of the notes.
const VERSION: u32 = 1;

/// What is noted beside the descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    version: u32,
    /// Both sides have started once.
    pub(crate) has_started: bool,
    /// Processes of each side that have begun.
    pub(crate) incarnations: [u32; 2],
    /// The number of the last channel.
    pub(crate) channel: u64,
    /// Whose regions these are: number and kind. First that of the card, then that of the host.
    actors: Vec<(u32, String)>,
}

/// What the entry of a part of a service is named: no entry of a switch begins so.
fn name(service: &str, part: usize) -> String {
    format!("inco/actors/{service}/{part}")
}

/// The names that the entries of a service of so many actors have in a keeper.
pub fn entry_names(service: &str, actors: usize) -> impl Iterator<Item = String> {
    (0..actors.div_ceil(ACTORS)).map(move |part| name(service, part))
}

/// Entries for a keeper.
pub(crate) fn entries(
    service: &str,
    owned: &[Owned],
    has_started: bool,
    incarnations: [u32; 2],
    channel: u64,
) -> Result<Vec<Entry>, Error> {
    let parts = owned.chunks(ACTORS).enumerate();
    let entry = |(part, owned): (usize, &[Owned])| {
        let of = |of: &Owned| (of.of.declaration.actor, of.of.declaration.kind.clone());
        let note = Note {
            version: VERSION,
            has_started,
            incarnations,
            channel,
            actors: owned.iter().map(of).collect(),
        };
        let regions = owned.iter().flat_map(|of| &of.regions);
        Ok(Entry {
            name: name(service, part),
            note: serde_json::to_string(&note).map_err(|_| Error::Kept("a note cannot be written"))?,
            files: regions
                .map(|region| region.try_clone())
                .collect::<Result<_, _>>()
                .map_err(|_| Error::Kept("no descriptor is free"))?,
        })
    };
    parts.map(entry).collect()
}

/// The regions of a service from the entries of a run before, and what was noted.
pub(crate) fn owned(service: &Service, entries: Vec<Entry>) -> Result<(Vec<Owned>, Note), Error> {
    let mut all: Vec<(u32, String, [Arc<OwnedFd>; 2])> = Vec::new();
    let mut last = None;
    for entry in entries {
        let note: Note =
            serde_json::from_str(&entry.note).map_err(|_| Error::Kept("a note cannot be read"))?;
        if note.version != VERSION || entry.files.len() != 2 * note.actors.len() {
            return Err(Error::Kept("an entry has another form"));
        }
        let mut files = entry.files.into_iter().map(Arc::new);
        for (actor, kind) in &note.actors {
            if let (Some(card), Some(host)) = (files.next(), files.next()) {
                all.push((*actor, kind.clone(), [card, host]));
            }
        }
        last = Some(note);
    }
    let note = last.ok_or(Error::Kept("nothing is there"))?;
    let owned = service.actors.iter().map(|of| {
        let declared = &of.declaration;
        let is_it = |(actor, kind, _): &&(u32, String, _)| (*actor, kind) == (declared.actor, &declared.kind);
        let (.., regions) = all
            .iter()
            .find(is_it)
            .ok_or(Error::Kept("an actor is not among them"))?;
        Ok(Owned {
            of: of.clone(),
            regions: regions.clone(),
            records: [None; 2],
        })
    });
    let owned = owned.collect::<Result<Vec<_>, Error>>()?;
    if owned.len() != all.len() {
        return Err(Error::Kept("they are of more actors than there are now"));
    }
    Ok((owned, note))
}
