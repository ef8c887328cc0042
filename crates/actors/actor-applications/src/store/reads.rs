//! Reads of the leader without the log.
//!
//! A read must see all writes that ended before it began. The leader notes the last chosen slot, and asks all replicas
//! whether they still follow it. Once a majority has said so after the read came, there was no later leader when it came,
//! so no later write had ended. When the memtable has applied the noted slot, it answers. This is the read index of Raft
//! (Ongaro, "Consensus: bridging theory and practice", 2014, section 6.4); it needs no clock. One round of questions
//! serves all reads that came before it.
//!
//! Reads wait in a ring of ids. Each is an object: round (8), slot (8), address (8), id (8), key.

use actor_objects::{ObjectId, Objects};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{Reader, Write as _};
use crate::state::{self, Failure};

/// Reads that wait, at most; others go through the log.
pub(crate) const READS_LIMIT: u64 = 256;

/// The reads that wait, as a part of the root.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Reads {
    ring: U64,
    first: U64,
    next: U64,
    /// The last round of questions that has begun.
    round: U64,
    /// The last one that a majority has answered.
    confirmed: U64,
    /// A bit for each replica that has answered the last one.
    heard: U64,
}

impl Reads {
    pub(crate) fn create(objects: &mut Objects, reads: Reads) -> Result<Reads, Failure> {
        let ring = objects.allocate(READS_LIMIT as usize * 8)?.to_bits().into();
        Ok(Reads { ring, ..reads })
    }

    pub(crate) fn round(&self) -> u64 {
        self.round.get()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.next.get() < self.first.get() + READS_LIMIT
    }

    fn place(&self, objects: &mut Objects, number: u64) -> Result<ObjectId, Failure> {
        let ids = state::rows::<U64>(objects, ObjectId::from_bits(self.ring.get()))?;
        Ok(ObjectId::from_bits(ids[(number % READS_LIMIT) as usize].get()))
    }

    /// A read waits for the next round, and for this slot. Whether that round is to begin now.
    pub(crate) fn add(
        &mut self,
        objects: &mut Objects,
        slot: u64,
        client: u64,
        id: u64,
        key: &[u8],
    ) -> Result<bool, Failure> {
        let mut read = Vec::with_capacity(32 + key.len());
        read.put_u64(self.round.get() + 1)
            .put_u64(slot)
            .put_u64(client)
            .put_u64(id);
        read.extend(key);
        let object = state::allocate(objects, &read)?;
        let ids = state::rows_mut::<U64>(objects, ObjectId::from_bits(self.ring.get()))?;
        ids[(self.next.get() % READS_LIMIT) as usize].set(object.to_bits());
        self.next += 1;
        Ok(self.round == self.confirmed)
    }

    /// Begins a round, which this replica has answered.
    pub(crate) fn begin(&mut self, me: u64) {
        self.round += 1;
        self.heard.set(me);
    }

    /// Notes who has answered a round; gives all of those, if it is the last one.
    pub(crate) fn hear(&mut self, round: u64, replica: u64) -> Option<u64> {
        if round != self.round.get() {
            return None;
        }
        self.heard |= U64::new(replica);
        Some(self.heard.get())
    }

    /// A majority has answered the last round. Whether reads wait for the next one.
    pub(crate) fn confirm(&mut self, objects: &mut Objects) -> Result<bool, Failure> {
        self.confirmed = self.round;
        if self.first == self.next {
            return Ok(false);
        }
        let last = self.place(objects, self.next.get() - 1)?;
        Ok(Reader(objects.get(last)?).u64() > Some(self.round.get()))
    }

    /// Takes the next read that may be answered: address (8), id (8), key.
    pub(crate) fn take(&mut self, objects: &mut Objects, applied: u64) -> Result<Option<Vec<u8>>, Failure> {
        if self.first == self.next {
            return Ok(None);
        }
        let object = self.place(objects, self.first.get())?;
        let mut reader = Reader(objects.get(object)?);
        let (round, slot) = reader.u64().zip(reader.u64()).ok_or(Failure::Layout)?;
        if round > self.confirmed.get() || slot > applied {
            return Ok(None);
        }
        let read = reader.0.to_vec();
        objects.free(object)?;
        self.first += 1;
        Ok(Some(read))
    }

    /// Forgets all reads: of a time when this replica was leader before. Their clients ask again.
    pub(crate) fn clear(&mut self, objects: &mut Objects) -> Result<(), Failure> {
        while self.first < self.next {
            let object = self.place(objects, self.first.get())?;
            objects.free(object)?;
            self.first += 1;
        }
        self.confirmed = self.round;
        Ok(())
    }
}
