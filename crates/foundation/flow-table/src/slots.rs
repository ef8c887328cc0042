//! Live flows per slot, and which slots are being purged.

use model::Slot;

use crate::Counters;
use crate::entry::raw_pin;

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Open,
    /// Its pins count as none; entries may still name it.
    Purging,
    /// The same, because its instance failed.
    Failing,
}

/// Counts a flow with these pins among the live flows of each slot. Two pins to one slot count once.
#[inline(always)]
pub(crate) fn count_pins(live: &mut [u32], pins: [Slot; 2]) {
    if let Some(live) = live.get_mut(pins[0].index()) {
        *live += 1;
    }
    if pins[1] != pins[0]
        && let Some(live) = live.get_mut(pins[1].index())
    {
        *live += 1;
    }
}

#[derive(Debug)]
pub(crate) struct Slots {
    live: [u32; Slot::LIMIT],
    uses: [Use; Slot::LIMIT],
    /// Where a slot's sweep continues: family and entry.
    sweeps: [(u8, u32); Slot::LIMIT],
    /// Number of closed slots. Usually 0, which keeps `uses` off the packet path.
    closed: u32,
}

impl Slots {
    pub(crate) fn boxed() -> Box<Slots> {
        Box::new(Slots {
            live: [0; Slot::LIMIT],
            uses: [Use::Open; Slot::LIMIT],
            sweeps: [(0, 0); Slot::LIMIT],
            closed: 0,
        })
    }

    pub(crate) fn live(&self, slot: Slot) -> u32 {
        self.live.get(slot.index()).copied().unwrap_or(0)
    }

    pub(crate) fn live_all(&self) -> &[u32; Slot::LIMIT] {
        &self.live
    }

    #[inline(always)]
    fn use_of(&self, slot: Slot) -> Use {
        self.uses.get(slot.index()).copied().unwrap_or(Use::Open)
    }

    /// The pin, or none if its slot is closed.
    #[inline(always)]
    pub(crate) fn effective(&self, pin: Slot) -> Slot {
        if self.closed != 0 && self.use_of(pin) != Use::Open {
            Slot::NONE
        } else {
            pin
        }
    }

    #[inline(always)]
    pub(crate) fn effective_pins(&self, head: &[u64; 4]) -> [Slot; 2] {
        [self.effective(raw_pin(head[1])), self.effective(raw_pin(head[2]))]
    }

    pub(crate) fn is_failing(&self, slot: Slot) -> bool {
        self.closed != 0 && self.use_of(slot) == Use::Failing
    }

    /// The slot if flows can be pinned to it; else none, counted.
    #[inline(always)]
    pub(crate) fn usable(&self, slot: Slot, counters: &mut Counters) -> Slot {
        if !slot.is_some() {
            return Slot::NONE;
        }
        if slot.index() >= Slot::LIMIT || self.effective(slot) != slot {
            counters.refused_pins += 1;
            return Slot::NONE;
        }
        slot
    }

    /// Counts a flow with these pins.
    #[inline(always)]
    pub(crate) fn count(&mut self, pins: [Slot; 2]) {
        count_pins(&mut self.live, pins);
    }

    /// Adds the live flows of each slot that were counted elsewhere.
    pub(crate) fn add(&mut self, counted: &[u32]) {
        for (live, counted) in self.live.iter_mut().zip(counted) {
            *live += counted;
        }
    }

    #[inline(always)]
    pub(crate) fn uncount(&mut self, pins: [Slot; 2]) {
        if let Some(live) = self.live.get_mut(pins[0].index()) {
            *live -= 1;
        }
        if pins[1] != pins[0]
            && let Some(live) = self.live.get_mut(pins[1].index())
        {
            *live -= 1;
        }
    }

    /// Closes a slot unless it is closed, and returns where its sweep continues.
    pub(crate) fn begin_sweep(
        &mut self,
        slot: Slot,
        why: Use,
        counters: &mut Counters,
    ) -> Option<(usize, u32)> {
        let i = slot.index();
        let current = self.uses.get_mut(i)?;
        if *current == Use::Open {
            let flows = u64::from(std::mem::take(&mut self.live[i]));
            if why == Use::Failing {
                counters.failed_pins += flows;
            } else {
                counters.purged_pins += flows;
            }
            *current = why;
            self.closed += 1;
            self.sweeps[i] = (0, 0);
        } else if why == Use::Failing {
            *current = why;
        }
        let (family, entry) = self.sweeps[i];
        Some((usize::from(family), entry))
    }

    pub(crate) fn pause_sweep(&mut self, slot: Slot, family: usize, entry: u32) {
        if let Some(sweep) = self.sweeps.get_mut(slot.index()) {
            *sweep = (family as u8, entry);
        }
    }

    pub(crate) fn end_sweep(&mut self, slot: Slot) {
        if let Some(current) = self.uses.get_mut(slot.index())
            && *current != Use::Open
        {
            *current = Use::Open;
            self.closed -= 1;
        }
    }
}
