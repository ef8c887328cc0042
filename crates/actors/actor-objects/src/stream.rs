//! All objects of an actor as a stream of bytes, from one side to the other.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | mark of the stream |
//! | 4, 4 | number of its layout; places |
//! | 8, 8 | bytes of all objects; messages completed |
//! | 8 per place | generation and bytes; 0 bytes for one that is free: its stale ids stay stale |
//! | the rest | the objects, in the order of their places |

use crate::objects::{ObjectError, ObjectId, Objects};

/// "inco mov", as bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"inco mov");
/// The number of the layout.
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 32;
const ROW_BYTES: usize = 8;

/// Why a stream is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The stream of another program.
    #[error("it is no stream of objects")]
    NotAStream,
    /// Made by another version.
    #[error("layout {0} of a stream of objects; this is {VERSION}")]
    Version(u32),
    /// The region that is to take them has objects.
    #[error("the region already has objects")]
    NotEmpty,
    /// More places than the region has.
    #[error("{places} places; the region has {limit}")]
    Places {
        /// Places of the stream.
        places: u32,
        /// Places of the region.
        limit: u32,
    },
    /// An object that does not fit.
    #[error("place {place}: {error}")]
    Object {
        /// Its place.
        place: u32,
        /// Why.
        error: ObjectError,
    },
    /// A place that was used has a generation.
    #[error("place {0} has no generation")]
    Generation(u32),
    /// The objects have not as many bytes as the stream says.
    #[error("objects of {found} bytes; the stream says {said}")]
    Bytes {
        /// Bytes by the table.
        found: u64,
        /// Bytes by the head.
        said: u64,
    },
    /// The stream has ended before the last object.
    #[error("the stream ends early")]
    Short,
    /// The stream goes on behind the last object.
    #[error("the stream goes on behind its end")]
    Long,
}

/// How far all objects of an actor have been sent. The actor does not run meanwhile.
#[derive(Clone, Debug)]
pub struct Export {
    /// The place of the next object, and how much of it was given.
    place: u32,
    given: usize,
}

impl Objects {
    /// Head and table of the stream, and the objects behind them.
    pub fn export(&self) -> (Vec<u8>, Export) {
        let mut head = Vec::with_capacity(HEAD_BYTES + ROW_BYTES * self.fresh as usize);
        head.extend(MAGIC.to_le_bytes());
        head.extend(VERSION.to_le_bytes());
        head.extend(self.fresh.to_le_bytes());
        head.extend(self.used_bytes().to_le_bytes());
        head.extend(self.completed().to_le_bytes());
        for (generation, bytes) in self.rows() {
            head.extend(generation.to_le_bytes());
            head.extend(bytes.to_le_bytes());
        }
        (head, Export { place: 0, given: 0 })
    }
}

impl Export {
    /// Fills `parts` with the next bytes of the objects: at most `bytes`, in at most `parts_limit` parts. Gives how many
    /// bytes they are; 0 at the end.
    pub fn next<'a>(
        &mut self,
        objects: &'a Objects,
        bytes: usize,
        parts_limit: usize,
        parts: &mut Vec<&'a [u8]>,
    ) -> usize {
        parts.clear();
        let mut total = 0;
        while total < bytes && parts.len() < parts_limit && self.place < objects.fresh {
            let object = objects.at_place(self.place);
            let end = object.len().min(self.given + bytes - total);
            if end > self.given {
                parts.push(&object[self.given..end]);
            }
            total += end - self.given;
            self.given = end;
            if end == object.len() {
                self.place += 1;
                self.given = 0;
            }
        }
        total
    }
}

/// What of a stream comes next.
#[derive(Debug)]
enum Expected {
    Head,
    Table { places: u32, bytes: u64 },
    Data,
}

/// Objects that arrive. Nothing of it can be used before it is complete.
#[derive(Debug)]
pub struct Import {
    objects: Objects,
    expected: Expected,
    /// Bytes of a head or a row that has not come as a whole.
    pending: Vec<u8>,
    place: u32,
    found: u64,
    /// Where the next bytes go.
    into: Vec<ObjectId>,
    next: usize,
    filled: usize,
}

impl Import {
    /// Objects that are to arrive in this empty region.
    ///
    /// # Errors
    /// [`ImportError::NotEmpty`].
    pub fn new(mut objects: Objects) -> Result<Import, ImportError> {
        if !objects.is_empty() {
            return Err(ImportError::NotEmpty);
        }
        objects.clear();
        Ok(Import {
            objects,
            expected: Expected::Head,
            pending: Vec::new(),
            place: 0,
            found: 0,
            into: Vec::new(),
            next: 0,
            filled: 0,
        })
    }

    /// Takes the next bytes of the stream, cut anywhere.
    ///
    /// # Errors
    /// [`ImportError`]; nothing more is taken then.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), ImportError> {
        while !bytes.is_empty() {
            match self.expected {
                Expected::Head => {
                    if self.gather(&mut bytes, HEAD_BYTES) {
                        self.read_head()?;
                    }
                }
                Expected::Table {
                    places,
                    bytes: all_bytes,
                } => {
                    if self.gather(&mut bytes, ROW_BYTES) {
                        self.read_row()?;
                        self.after_row(places, all_bytes)?;
                    }
                }
                Expected::Data => bytes = self.fill(bytes)?,
            }
        }
        Ok(())
    }

    /// Whether as many bytes have come as it takes.
    fn gather(&mut self, bytes: &mut &[u8], wanted: usize) -> bool {
        let (now, later) = bytes.split_at(bytes.len().min(wanted - self.pending.len()));
        self.pending.extend(now);
        *bytes = later;
        self.pending.len() == wanted
    }

    fn number(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.pending[at..at + 4]);
        u32::from_le_bytes(bytes)
    }

    fn long_number(&self, at: usize) -> u64 {
        u64::from(self.number(at)) | u64::from(self.number(at + 4)) << 32
    }

    fn read_head(&mut self) -> Result<(), ImportError> {
        if self.long_number(0) != MAGIC {
            return Err(ImportError::NotAStream);
        }
        if self.number(8) != VERSION {
            return Err(ImportError::Version(self.number(8)));
        }
        let places = self.number(12);
        let limit = self.objects.limits().objects;
        if places > limit {
            return Err(ImportError::Places { places, limit });
        }
        let (bytes, completed) = (self.long_number(16), self.long_number(24));
        self.objects.set_completed(completed);
        self.pending.clear();
        self.expected = Expected::Table { places, bytes };
        self.after_row(places, bytes)
    }

    fn read_row(&mut self) -> Result<(), ImportError> {
        let place = self.place;
        let (generation, bytes) = (self.number(0), self.number(4));
        if generation == 0 {
            return Err(ImportError::Generation(place));
        }
        let restored = self.objects.restore(place, generation, bytes);
        restored.map_err(|error| ImportError::Object { place, error })?;
        if bytes > 0 {
            self.into.push(ObjectId::new(place, generation));
        }
        self.found += u64::from(bytes);
        self.place += 1;
        self.pending.clear();
        Ok(())
    }

    /// Behind the last row come the objects.
    fn after_row(&mut self, places: u32, said: u64) -> Result<(), ImportError> {
        if self.place == places {
            if self.found != said {
                return Err(ImportError::Bytes {
                    found: self.found,
                    said,
                });
            }
            self.expected = Expected::Data;
        }
        Ok(())
    }

    fn fill<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], ImportError> {
        let id = *self.into.get(self.next).ok_or(ImportError::Long)?;
        let wrong = |error| ImportError::Object {
            place: self.next as u32,
            error,
        };
        let span = self.objects.span_of(id).map_err(wrong)?;
        let (now, later) = bytes.split_at(bytes.len().min(span.len() - self.filled));
        let begin = span.start + self.filled;
        self.objects.data_mut()[begin..begin + now.len()].copy_from_slice(now);
        self.filled += now.len();
        if self.filled == span.len() {
            self.next += 1;
            self.filled = 0;
        }
        Ok(later)
    }

    /// Whether everything has arrived.
    pub fn is_complete(&self) -> bool {
        matches!(self.expected, Expected::Data) && self.next == self.into.len()
    }

    /// The objects, all of which have arrived.
    ///
    /// # Errors
    /// [`ImportError::Short`].
    pub fn finish(self) -> Result<Objects, ImportError> {
        if self.is_complete() {
            Ok(self.objects)
        } else {
            Err(ImportError::Short)
        }
    }

    /// Gives the region back, empty.
    pub fn cancel(mut self) -> Objects {
        self.objects.clear();
        self.objects
    }
}
