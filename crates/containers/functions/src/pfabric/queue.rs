//! A bounded queue by priority, as in pFabric (Alizadeh and others, "pFabric: Minimal Near-Optimal Datacenter Transport",
//! SIGCOMM 2013, §4.2).

use crate::keys::Keys;

use super::heap::Heap;

/// No slot.
const NONE: u32 = u32::MAX;

/// A packet that waits.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    len: u32,
    remaining: u32,
    flow: u64,
    /// Its neighbours among the packets of its flow, by arrival.
    before: u32,
    behind: u32,
}

/// The first and the last packet of a flow: slots.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    first: u32,
    last: u32,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It waits.
    Waits,
    /// It waits, and one with more remaining bytes has left the full queue for it.
    InPlaceOfAnother,
    /// It has as many remaining bytes as each in the full queue, or more.
    Full,
}

/// Frames of up to some bytes, each with the bytes that remain of its flow. All memory is taken at the start.
#[derive(Debug)]
pub(super) struct Queue {
    slots: Box<[Slot]>,
    frames: Box<[u8]>,
    frame_bytes: usize,
    free: Vec<u32>,
    /// The fewest remaining bytes first, and the most.
    urgent: Heap,
    patient: Heap,
    /// By flow: a place in `ends`, which is the slot that its first packet had when the flow came.
    flows: Keys,
    ends: Box<[Ends]>,
    /// Places of `ends` that no flow has.
    free_ends: Vec<u32>,
    arrivals: u64,
}

impl Queue {
    pub(super) fn new(packets: usize, frame_bytes: usize, secret: u64) -> Queue {
        let all = || (0..packets as u32).rev().collect();
        Queue {
            slots: vec![Slot::default(); packets].into(),
            frames: vec![0; packets * frame_bytes].into(),
            frame_bytes,
            free: all(),
            urgent: Heap::new(packets),
            patient: Heap::new(packets),
            flows: Keys::new(packets, secret),
            ends: vec![Ends::default(); packets].into(),
            free_ends: all(),
            arrivals: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Takes a frame of at most `frame_bytes` bytes.
    pub(super) fn push(&mut self, frame: &[u8], flow: u64, remaining: u32) -> Pushed {
        let mut pushed = Pushed::Waits;
        if self.free.is_empty() {
            match self.patient.first() {
                Some(slot) if self.slots[slot as usize].remaining > remaining => {
                    self.remove(slot);
                    pushed = Pushed::InPlaceOfAnother;
                }
                _ => return Pushed::Full,
            }
        }
        let Some(slot) = self.free.pop() else {
            return Pushed::Full;
        };
        self.arrivals += 1;
        let place = slot as usize * self.frame_bytes;
        if let Some(room) = self.frames.get_mut(place..place + frame.len()) {
            room.copy_from_slice(frame);
        }
        let before = self.append(slot, flow);
        self.slots[slot as usize] = Slot {
            len: frame.len() as u32,
            remaining,
            flow,
            before,
            behind: NONE,
        };
        self.urgent.push(slot, (remaining, self.arrivals));
        self.patient.push(slot, (!remaining, !self.arrivals));
        pushed
    }

    /// The frame that leaves next: the first one of the flow with the fewest remaining bytes. That packet has waited for
    /// the longest time in its flow, and an earlier one of a flow is not left behind by its later ones.
    pub(super) fn next(&self) -> Option<&[u8]> {
        let slot = self.next_slot()? as usize;
        let place = slot * self.frame_bytes;
        self.frames.get(place..place + self.slots[slot].len as usize)
    }

    /// Removes the frame that leaves next.
    pub(super) fn pop(&mut self) {
        if let Some(slot) = self.next_slot() {
            self.remove(slot);
        }
    }

    fn next_slot(&self) -> Option<u32> {
        let most_urgent = self.urgent.first()?;
        let ends = self.flows.get(self.slots[most_urgent as usize].flow)?;
        Some(self.ends.get(ends as usize)?.first)
    }

    /// Makes a slot the last one of its flow. Returns the one before it.
    fn append(&mut self, slot: u32, flow: u64) -> u32 {
        if let Some(at) = self.flows.get(flow) {
            let last = std::mem::replace(&mut self.ends[at as usize].last, slot);
            self.slots[last as usize].behind = slot;
            return last;
        }
        // There are as many places as slots.
        if let Some(at) = self.free_ends.pop() {
            self.ends[at as usize] = Ends {
                first: slot,
                last: slot,
            };
            let _ = self.flows.insert(flow, at);
        }
        NONE
    }

    fn remove(&mut self, slot: u32) {
        let Slot {
            flow, before, behind, ..
        } = self.slots[slot as usize];
        if let Some(at) = self.flows.get(flow) {
            match self.slots.get_mut(before as usize) {
                Some(before) => before.behind = behind,
                None => self.ends[at as usize].first = behind,
            }
            match self.slots.get_mut(behind as usize) {
                Some(behind) => behind.before = before,
                None => self.ends[at as usize].last = before,
            }
            if before == NONE && behind == NONE {
                self.flows.remove(flow);
                self.free_ends.push(at);
            }
        }
        self.urgent.remove(slot);
        self.patient.remove(slot);
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The model: all packets in the order of their arrival, looked through each time.
    #[derive(Debug, Default)]
    struct Model(Vec<(u64, u32, Vec<u8>)>);

    impl Model {
        fn push(&mut self, limit: usize, frame: Vec<u8>, flow: u64, remaining: u32) -> Pushed {
            let mut pushed = Pushed::Waits;
            if self.0.len() == limit {
                // Of those with the most remaining bytes, the last one.
                let (at, most) = self
                    .0
                    .iter()
                    .map(|of| of.1)
                    .enumerate()
                    .max_by_key(|(at, of)| (*of, *at))
                    .unwrap();
                if most <= remaining {
                    return Pushed::Full;
                }
                self.0.remove(at);
                pushed = Pushed::InPlaceOfAnother;
            }
            self.0.push((flow, remaining, frame));
            pushed
        }

        fn pop(&mut self) -> Option<Vec<u8>> {
            let flow = self.0.iter().min_by_key(|of| of.1)?.0;
            let at = self.0.iter().position(|of| of.0 == flow)?;
            Some(self.0.remove(at).2)
        }
    }

    proptest! {
        #[test]
        fn it_decides_as_a_list_that_is_looked_through(
            steps in prop::collection::vec(prop::option::weighted(0.6, (0..6_u64, 0..20_u32, 1..9_usize)), 0..300), limit in 1..12_usize,
        ) {
            let mut queue = Queue::new(limit, 8, 3);
            let mut model = Model::default();
            for (step, number) in steps.into_iter().zip((0..=u8::MAX).cycle()) {
                match step {
                    Some((flow, remaining, len)) => {
                        let frame = vec![number; len];
                        let pushed = queue.push(&frame, flow, remaining);
                        prop_assert_eq!(pushed, model.push(limit, frame, flow, remaining));
                    }
                    None => {
                        prop_assert_eq!(queue.next().map(<[u8]>::to_vec), model.pop());
                        queue.pop();
                    }
                }
                prop_assert_eq!(queue.len(), model.0.len());
                let mut flows: Vec<u64> = model.0.iter().map(|of| of.0).collect();
                flows.sort_unstable();
                flows.dedup();
                prop_assert_eq!(queue.flows(), flows.len());
            }
        }
    }
}
