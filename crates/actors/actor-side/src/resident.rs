//! An actor as one side sees it: where its objects are, and how far a move has got.

use actor_migration::Residence;
use actor_objects::{Export, Import, Objects};
use actor_runtime::{Message, Registration};

use crate::side::Member;

/// Bytes of objects in a message of the channel, and parts that it is gathered from.
const PIECE_BYTES: usize = 64 << 10;
const PIECE_PARTS: usize = 128;

/// How far objects were sent.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) attempt: u32,
    /// The head of the stream with its table, and how much of it was sent.
    table: Vec<u8>,
    table_sent: usize,
    export: Export,
}

impl Sending {
    pub(crate) fn new(attempt: u32, objects: &Objects) -> Sending {
        let (table, export) = objects.export();
        Sending {
            attempt,
            table,
            table_sent: 0,
            export,
        }
    }

    /// Has `put` send the next piece, behind `head`. Nothing at the end; else whether it was sent.
    pub(crate) fn next(
        &mut self,
        objects: &Objects,
        head: &[u8],
        put: impl FnOnce(&[&[u8]]) -> bool,
    ) -> Option<bool> {
        let rest = self.table.get(self.table_sent..).unwrap_or_default();
        let rest = &rest[..rest.len().min(PIECE_BYTES)];
        let mut export = self.export.clone();
        let mut parts: Vec<&[u8]> = Vec::with_capacity(1 + PIECE_PARTS);
        if !rest.is_empty() {
            parts.push(rest);
        } else if export.next(objects, PIECE_BYTES, PIECE_PARTS, &mut parts) == 0 {
            return None;
        }
        parts.insert(0, head);
        let is_sent = put(&parts);
        if is_sent {
            self.table_sent += rest.len();
            self.export = export;
        }
        Some(is_sent)
    }
}

/// See the module's text. While the actor runs here, the runtime has its objects.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) member: Member,
    pub(crate) residence: Residence<Message>,
    pub(crate) objects: Option<Objects>,
    pub(crate) import: Option<Import>,
    /// What came of the objects cannot be taken.
    pub(crate) is_broken: bool,
    /// The actor that has finished what it had, and has not left yet.
    pub(crate) registration: Option<Registration>,
    pub(crate) stops: bool,
    pub(crate) sending: Option<Sending>,
}

impl Resident {
    /// An empty region for objects that are to come.
    pub(crate) fn begin_import(&mut self) -> bool {
        let objects = self.objects.take().map(|mut objects| {
            objects.clear();
            objects
        });
        self.is_broken = false;
        self.import = objects.and_then(|objects| Import::new(objects).ok());
        self.import.is_some()
    }

    /// A part of the objects.
    pub(crate) fn push(&mut self, part: &[u8]) {
        if let Some(import) = &mut self.import {
            self.is_broken |= import.push(part).is_err();
        }
    }

    /// Whether all objects are here and right.
    pub(crate) fn finish_import(&mut self) -> bool {
        let Some(import) = self.import.take() else {
            return false;
        };
        if self.is_broken || !import.is_complete() {
            self.objects = Some(import.cancel());
            return false;
        }
        self.objects = import.finish().ok();
        self.objects.is_some()
    }

    /// Forgets what came of the objects.
    pub(crate) fn drop_import(&mut self) {
        match self.import.take() {
            Some(import) => self.objects = Some(import.cancel()),
            None => self.free_objects(),
        }
    }

    pub(crate) fn free_objects(&mut self) {
        if let Some(objects) = &mut self.objects {
            objects.clear();
        }
    }
}
