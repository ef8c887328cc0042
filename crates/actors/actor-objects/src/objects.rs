//! The objects of one actor.

use std::fmt;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use zerocopy::byteorder::little_endian::U64;

use crate::free_space::FreeSpace;
use crate::region::{Limits, Place, Region, RegionError, UNIT};

/// Names an object of an actor: a place and its generation. It is the same on both sides, and may be kept in objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    place: u32,
    generation: u32,
}

impl ObjectId {
    pub(crate) fn new(place: u32, generation: u32) -> ObjectId {
        ObjectId { place, generation }
    }

    /// The id as a number, to be kept in an object. It is never 0.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.place as u64
    }

    /// The id of such a number. Any number is allowed: one that names no object is stale.
    pub const fn from_bits(bits: u64) -> ObjectId {
        ObjectId {
            place: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.place, self.generation)
    }
}

/// Why a call on objects did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The object was freed, or there never was one with that id.
    #[error("no object {0}: it was freed")]
    Stale(ObjectId),
    /// The region of this actor has no room for it.
    #[error("no room for {bytes} bytes; the longest free piece has {longest}")]
    Exhausted {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes of the longest free piece.
        longest: usize,
    },
    /// The actor has as many objects as its limit says.
    #[error("{0} objects, which is the limit")]
    TooMany(u32),
    /// An object has at least one byte.
    #[error("an object of 0 bytes")]
    Empty,
    /// Bytes that the object does not have.
    #[error("bytes {begin} to {end} of an object of {bytes} bytes")]
    Range {
        /// The first one.
        begin: usize,
        /// The one behind the last.
        end: usize,
        /// Bytes of the object.
        bytes: usize,
    },
    /// Source and destination of a copy overlap; that is a move.
    #[error("source and destination overlap")]
    Overlap,
}

/// The objects of one actor. Only one process has them at a time.
#[derive(Debug)]
pub struct Objects {
    region: Region,
    free: FreeSpace,
    /// Places that were used and are free.
    free_places: Vec<u32>,
    /// Places from here on were never used.
    pub(crate) fresh: u32,
    live: u32,
    used_bytes: u64,
}

impl Objects {
    /// Makes an empty region. Gives its file as well.
    ///
    /// # Errors
    /// [`RegionError`], for limits that cannot be, and if there is no memory.
    pub fn create(limits: Limits) -> Result<(OwnedFd, Objects), RegionError> {
        let (file, region) = Region::create(limits)?;
        Ok((file, Objects::empty(region)))
    }

    fn empty(region: Region) -> Objects {
        Objects {
            free: FreeSpace::new(region.units()),
            region,
            free_places: Vec::new(),
            fresh: 0,
            live: 0,
            used_bytes: 0,
        }
    }

    /// Takes over the objects of a process that has ended. Everything in the region is checked.
    ///
    /// # Errors
    /// [`RegionError`], if it is no region, if it is damaged, or if a message was under way.
    pub fn open(file: BorrowedFd<'_>) -> Result<Objects, RegionError> {
        let mut objects = Objects::empty(Region::open(file)?);
        objects.refresh()?;
        Ok(objects)
    }

    /// Looks at the table again, which another process that has the region has changed between two messages. Everything
    /// is checked. It takes as long as there are objects.
    ///
    /// # Errors
    /// [`RegionError::Table`], if it is damaged; then there are no objects any more.
    pub fn refresh(&mut self) -> Result<(), RegionError> {
        let looked = self.look();
        if looked.is_err() {
            self.clear();
        }
        looked
    }

    fn look(&mut self) -> Result<(), RegionError> {
        let objects = self;
        let units = objects.region.units();
        (objects.fresh, objects.used_bytes) = (0, 0);
        let mut taken = Vec::new();
        for (place, row) in (0_u32..).zip(objects.region.parts().0) {
            if row.generation.get() > 0 {
                objects.fresh = place + 1;
            }
            if row.bytes.get() == 0 {
                continue;
            }
            let fits = row
                .at
                .get()
                .checked_add(row.units())
                .is_some_and(|end| end <= units);
            if row.generation.get() == 0 || !fits {
                return Err(RegionError::Table(place));
            }
            taken.push((row.at.get(), row.units(), place));
            objects.used_bytes += u64::from(row.bytes.get());
        }
        objects.live = taken.len() as u32;
        let rows = &objects.region.parts().0[..objects.fresh as usize];
        objects.free_places = (0..)
            .zip(rows)
            .filter(|(_, row)| row.bytes.get() == 0 && row.generation.get() < u32::MAX)
            .map(|(place, _)| place)
            .collect();
        // What lies between the objects is free.
        taken.sort_unstable();
        objects.free = FreeSpace::default();
        let mut end = 0;
        for (at, length, place) in taken {
            if at < end {
                return Err(RegionError::Table(place));
            }
            objects.free.give(end, at - end);
            end = at + length;
        }
        objects.free.give(end, units - end);
        Ok(())
    }

    /// The limits of the region.
    pub fn limits(&self) -> Limits {
        self.region.limits
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.live as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Bytes of all objects.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Bytes of the longest object that could be allocated.
    pub fn longest_free_bytes(&self) -> usize {
        self.free.longest() as usize * UNIT
    }

    /// A new object of so many bytes, all 0.
    ///
    /// # Errors
    /// [`ObjectError::Exhausted`], [`ObjectError::TooMany`], [`ObjectError::Empty`].
    pub fn allocate(&mut self, bytes: usize) -> Result<ObjectId, ObjectError> {
        if bytes == 0 {
            return Err(ObjectError::Empty);
        }
        let is_fresh = self.free_places.is_empty();
        let place = self.free_places.last().copied().unwrap_or(self.fresh);
        if place >= self.region.limits.objects {
            return Err(ObjectError::TooMany(self.live));
        }
        let generation = self.region.parts().0[place as usize].generation.get() + 1;
        let id = ObjectId { place, generation };
        self.place(id, bytes)?;
        self.get_mut(id)?.fill(0);
        if is_fresh {
            self.fresh += 1;
        } else {
            self.free_places.pop();
        }
        Ok(id)
    }

    /// Finds room for an object and notes it in the table. Its bytes are whatever lay there.
    fn place(&mut self, id: ObjectId, bytes: usize) -> Result<(), ObjectError> {
        let exhausted = ObjectError::Exhausted {
            bytes,
            longest: self.longest_free_bytes(),
        };
        let Ok(length) = u32::try_from(bytes) else {
            return Err(exhausted);
        };
        let row = Place::new(id.generation, length, 0);
        let at = self.free.take(row.units()).ok_or(exhausted)?;
        self.region.parts_mut().0[id.place as usize] = Place::new(id.generation, length, at);
        self.live += 1;
        self.used_bytes += u64::from(length);
        Ok(())
    }

    /// Puts an object, or a place that was freed (0 bytes), into an empty table: as it was on the other side.
    /// The bytes of an object are to be written by who restores it.
    pub(crate) fn restore(&mut self, place: u32, generation: u32, bytes: u32) -> Result<(), ObjectError> {
        if place >= self.region.limits.objects {
            return Err(ObjectError::TooMany(self.live));
        }
        if bytes > 0 {
            self.place(ObjectId { place, generation }, bytes as usize)?;
        } else {
            self.region.parts_mut().0[place as usize] = Place::new(generation, 0, 0);
            if generation < u32::MAX {
                self.free_places.push(place);
            }
        }
        self.fresh = place + 1;
        Ok(())
    }

    /// Ends an object.
    ///
    /// # Errors
    /// [`ObjectError::Stale`].
    pub fn free(&mut self, id: ObjectId) -> Result<(), ObjectError> {
        let row = self.row(id)?;
        self.free.give(row.at.get(), row.units());
        self.region.parts_mut().0[id.place as usize] = Place::new(id.generation, 0, 0);
        // A place whose generations are used up is never taken again: no id comes twice.
        if id.generation < u32::MAX {
            self.free_places.push(id.place);
        }
        self.live -= 1;
        self.used_bytes -= u64::from(row.bytes.get());
        Ok(())
    }

    #[inline]
    fn row(&self, id: ObjectId) -> Result<Place, ObjectError> {
        match self.region.parts().0.get(id.place as usize) {
            Some(row) if row.generation.get() == id.generation && row.bytes.get() > 0 => Ok(*row),
            _ => Err(ObjectError::Stale(id)),
        }
    }

    /// Where a part of an object lies.
    #[inline]
    fn span(&self, id: ObjectId, part: Range<usize>) -> Result<Range<usize>, ObjectError> {
        let row = self.row(id)?;
        let bytes = row.bytes.get() as usize;
        if part.start > part.end || part.end > bytes {
            return Err(ObjectError::Range {
                begin: part.start,
                end: part.end,
                bytes,
            });
        }
        let at = row.at.get() as usize * UNIT;
        Ok(at + part.start..at + part.end)
    }

    /// Bytes of an object.
    ///
    /// # Errors
    /// [`ObjectError::Stale`].
    pub fn bytes_of(&self, id: ObjectId) -> Result<usize, ObjectError> {
        Ok(self.row(id)?.bytes.get() as usize)
    }

    /// The bytes of an object.
    ///
    /// # Errors
    /// [`ObjectError::Stale`].
    #[inline]
    pub fn get(&self, id: ObjectId) -> Result<&[u8], ObjectError> {
        let span = self.span(id, 0..self.row(id)?.bytes.get() as usize)?;
        Ok(&self.region.parts().1[span])
    }

    /// The bytes of an object, to be changed.
    ///
    /// # Errors
    /// [`ObjectError::Stale`].
    #[inline]
    pub fn get_mut(&mut self, id: ObjectId) -> Result<&mut [u8], ObjectError> {
        let span = self.span(id, 0..self.row(id)?.bytes.get() as usize)?;
        Ok(&mut self.region.parts_mut().1[span])
    }

    /// Writes bytes into an object from `at` on.
    ///
    /// # Errors
    /// [`ObjectError::Stale`], [`ObjectError::Range`].
    pub fn write(&mut self, id: ObjectId, at: usize, bytes: &[u8]) -> Result<(), ObjectError> {
        let span = self.span(id, at..at.saturating_add(bytes.len()))?;
        self.region.parts_mut().1[span].copy_from_slice(bytes);
        Ok(())
    }

    /// Sets a part of an object to one value.
    ///
    /// # Errors
    /// [`ObjectError::Stale`], [`ObjectError::Range`].
    pub fn set(&mut self, id: ObjectId, part: Range<usize>, value: u8) -> Result<(), ObjectError> {
        let span = self.span(id, part)?;
        self.region.parts_mut().1[span].fill(value);
        Ok(())
    }

    /// Copies a part of an object to `at` in another one, or in the same where they do not overlap.
    ///
    /// # Errors
    /// [`ObjectError::Stale`], [`ObjectError::Range`], [`ObjectError::Overlap`].
    pub fn copy(
        &mut self,
        from: ObjectId,
        part: Range<usize>,
        to: ObjectId,
        at: usize,
    ) -> Result<(), ObjectError> {
        let (source, target) = self.spans(from, part, to, at)?;
        if source.start < target.end && target.start < source.end {
            return Err(ObjectError::Overlap);
        }
        self.region.parts_mut().1.copy_within(source, target.start);
        Ok(())
    }

    /// Copies a part of an object to `at` in the same or another one, as if all of it was read before.
    ///
    /// # Errors
    /// [`ObjectError::Stale`], [`ObjectError::Range`].
    pub fn move_part(
        &mut self,
        from: ObjectId,
        part: Range<usize>,
        to: ObjectId,
        at: usize,
    ) -> Result<(), ObjectError> {
        let (source, target) = self.spans(from, part, to, at)?;
        self.region.parts_mut().1.copy_within(source, target.start);
        Ok(())
    }

    fn spans(
        &self,
        from: ObjectId,
        part: Range<usize>,
        to: ObjectId,
        at: usize,
    ) -> Result<(Range<usize>, Range<usize>), ObjectError> {
        let source = self.span(from, part)?;
        let target = self.span(to, at..at.saturating_add(source.len()))?;
        Ok((source, target))
    }

    /// All objects in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = (ObjectId, &[u8])> {
        let (table, data) = self.region.parts();
        (0..)
            .zip(&table[..self.fresh as usize])
            .filter(|(_, row)| row.bytes.get() > 0)
            .map(move |(place, row)| {
                let at = row.at.get() as usize * UNIT;
                let bytes = row.bytes.get() as usize;
                (ObjectId::new(place, row.generation.get()), &data[at..at + bytes])
            })
    }

    /// The bytes of the object in a place; none if it is free.
    pub(crate) fn at_place(&self, place: u32) -> &[u8] {
        let (table, data) = self.region.parts();
        let row = &table[place as usize];
        let at = row.at.get() as usize * UNIT;
        &data[at..at + row.bytes.get() as usize]
    }

    /// Generation and bytes of each place that was ever used.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (u32, u32)> {
        let rows = &self.region.parts().0[..self.fresh as usize];
        rows.iter().map(|row| (row.generation.get(), row.bytes.get()))
    }

    /// The actor begins to handle a message: from now on its state is not that behind a completed one.
    pub fn begin(&mut self) {
        self.region.head_mut().is_under_way = U64::new(1);
    }

    /// The actor has handled the message.
    pub fn complete(&mut self) {
        let head = self.region.head_mut();
        head.completed += 1;
        head.is_under_way = U64::ZERO;
    }

    /// Whether a message is under way.
    pub fn is_under_way(&self) -> bool {
        self.region.head().is_under_way.get() != 0
    }

    /// Messages that the actor has completed, on either side.
    pub fn completed(&self) -> u64 {
        self.region.head().completed.get()
    }

    pub(crate) fn set_completed(&mut self, completed: u64) {
        self.region.head_mut().completed = U64::new(completed);
    }

    /// A word in the region for who decides where the actor runs; 0 at first. It does not move.
    pub fn mark(&self) -> u64 {
        self.region.head().mark.get()
    }

    /// Writes that word.
    pub fn set_mark(&mut self, mark: u64) {
        self.region.head_mut().mark = U64::new(mark);
    }

    /// Ends all objects, and forgets all ids: for the side that they have left.
    pub fn clear(&mut self) {
        let fresh = self.fresh as usize;
        self.region.parts_mut().0[..fresh].fill(Place::default());
        self.free = FreeSpace::new(self.region.units());
        self.free_places.clear();
        self.fresh = 0;
        self.live = 0;
        self.used_bytes = 0;
        self.set_completed(0);
        self.region.head_mut().is_under_way = U64::ZERO;
    }

    pub(crate) fn span_of(&self, id: ObjectId) -> Result<Range<usize>, ObjectError> {
        self.span(id, 0..self.row(id)?.bytes.get() as usize)
    }

    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        self.region.parts_mut().1
    }
}

#[cfg(test)]
mod tests;
