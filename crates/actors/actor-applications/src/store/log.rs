//! The log of a replica: a ring of slots in one object, each with the id of the object of its command.

use actor_objects::{ObjectId, Objects};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::state::{self, Failure};

/// The ballot of a command that this replica knows to be chosen, whoever proposed it.
pub(crate) const CHOSEN: u64 = u64::MAX;

/// What a replica has accepted in a slot. The command follows in the same object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Accepted {
    slot: U64,
    pub(crate) ballot: U64,
    /// Of the leader: a bit for each replica that has accepted it in this ballot.
    pub(crate) votes: U64,
}

const HEAD_BYTES: usize = size_of::<Accepted>();

/// The ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    pub(crate) ring: ObjectId,
    pub(crate) slots: u64,
}

impl Log {
    pub(crate) fn create(objects: &mut Objects, slots: u64) -> Result<Log, Failure> {
        let ring = objects.allocate(slots as usize * 8)?;
        Ok(Log { ring, slots })
    }

    /// The id of what lies in the place of a slot.
    fn id(self, objects: &Objects, slot: u64) -> Result<Option<ObjectId>, Failure> {
        let ids = state::rows::<U64>(objects, self.ring)?;
        let id = ids
            .get((slot % self.slots) as usize)
            .ok_or(Failure::Layout)?
            .get();
        Ok((id != 0).then_some(ObjectId::from_bits(id)))
    }

    /// What was accepted in a slot, and the command. Nothing if the ring does not reach so far, or has a gap there.
    pub(crate) fn get(self, objects: &Objects, slot: u64) -> Result<Option<(Accepted, &[u8])>, Failure> {
        let Some(id) = self.id(objects, slot)? else {
            return Ok(None);
        };
        let (accepted, command) =
            Accepted::read_from_prefix(objects.get(id)?).map_err(|_| Failure::Layout)?;
        Ok((accepted.slot.get() == slot).then_some((accepted, command)))
    }

    /// Accepts a command, instead of what lies in its place.
    pub(crate) fn put(
        self,
        objects: &mut Objects,
        slot: u64,
        ballot: u64,
        votes: u64,
        command: &[u8],
    ) -> Result<(), Failure> {
        if let Some(old) = self.id(objects, slot)? {
            objects.free(old)?;
        }
        let head = Accepted {
            slot: slot.into(),
            ballot: ballot.into(),
            votes: votes.into(),
        };
        let id = objects.allocate(HEAD_BYTES + command.len())?;
        objects.write(id, 0, head.as_bytes())?;
        objects.write(id, HEAD_BYTES, command)?;
        let ids = state::rows_mut::<U64>(objects, self.ring)?;
        ids[(slot % self.slots) as usize].set(id.to_bits());
        Ok(())
    }

    /// Adds a vote in a ballot; gives all votes. Nothing if the slot has another ballot.
    pub(crate) fn vote(
        self,
        objects: &mut Objects,
        slot: u64,
        ballot: u64,
        vote: u64,
    ) -> Result<Option<u64>, Failure> {
        let Some((mut accepted, _)) = self.get(objects, slot)? else {
            return Ok(None);
        };
        let Some(id) = self
            .id(objects, slot)?
            .filter(|_| accepted.ballot.get() == ballot)
        else {
            return Ok(None);
        };
        accepted.votes |= vote;
        objects.write(id, 0, accepted.as_bytes())?;
        Ok(Some(accepted.votes.get()))
    }
}
