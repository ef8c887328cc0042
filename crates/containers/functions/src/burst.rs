//! The packets that a function works on: received ones, and those that it makes.
//!
//! Frames lie one behind the other in one piece of memory, each with room before and behind it:
//!
//! ```text
//! | headroom 128 | frame 0 | tailroom ≥ 128 | headroom 128 | frame 1 | tailroom ≥ 128 | ...
//! ```
//!
//! The memory is as large as 64 frames of the longest length need, and is touched only as far as frames reach: the 32
//! shortest take 12 KiB, which stay in the first-level cache. A frame is copied once into the burst and once out of it.

use model::Nanos;

use crate::about::Reason;

/// Packets of a burst, at most, with those that functions originate.
pub const CAPACITY: usize = 64;
/// Packets received into a burst, at most: functions can always originate as many again.
pub const RECEIVED_LIMIT: usize = 32;
/// Bytes of a received or originated frame, at most. It is as long as a packet of memif can be.
pub const FRAME_BYTES_LIMIT: usize = 65_536;
/// Bytes free before each frame, for what an encapsulation adds: IPv6, UDP and ESP with its IV are 72.
pub const HEADROOM: usize = 128;
/// Bytes free behind each frame, at least: padding, trailer and check value of ESP are at most 49 with the usual ones.
pub const TAILROOM: usize = 128;
/// Frames begin at lines of the cache.
const LINE: usize = 64;

/// Bytes of one frame with its rooms, at most.
const PLACE_BYTES_LIMIT: usize = HEADROOM + FRAME_BYTES_LIMIT + TAILROOM + LINE;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It leaves by that port, after the other functions of the chain on its way.
    Forward(u8),
    /// It has become an answer, in its own memory, and leaves by the port from which the burst came, after the functions
    /// of the chain that it has passed already.
    Answer,
    /// It is dropped, for one of the function's reasons.
    Drop(Reason),
    /// Nothing leaves, and nothing was lost: the packet was for the function itself, which has kept what it needs of it.
    Consume,
}

/// Where a frame lies, and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The frame with its rooms.
    first: u32,
    last: u32,
    /// The frame.
    start: u32,
    end: u32,
    verdict: Verdict,
}

impl Extent {
    /// The port by which the packet leaves.
    #[inline]
    pub fn port(&self) -> u8 {
        match self.verdict {
            Verdict::Forward(port) => port,
            // Those do not leave: `Burst::settle` has taken them out, or has made them forwarded ones.
            Verdict::Answer | Verdict::Drop(_) | Verdict::Consume => u8::MAX,
        }
    }
}

/// A packet of a burst.
#[derive(Debug)]
pub struct Packet<'b> {
    /// The frame with its rooms.
    place: &'b mut [u8],
    extent: &'b mut Extent,
}

impl Packet<'_> {
    fn range(&self) -> std::ops::Range<usize> {
        let of = &self.extent;
        (of.start - of.first) as usize..(of.end - of.first) as usize
    }

    /// Its frame, from the destination address on, without the frame check sequence.
    #[inline]
    pub fn frame(&self) -> &[u8] {
        &self.place[self.range()]
    }

    /// Its frame, to be changed in place.
    #[inline]
    pub fn frame_mut(&mut self) -> &mut [u8] {
        let range = self.range();
        &mut self.place[range]
    }

    /// Bytes of its frame.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "one without bytes is no packet")]
    pub fn len(&self) -> usize {
        (self.extent.end - self.extent.start) as usize
    }

    /// Bytes free before the frame: at first [`HEADROOM`].
    #[inline]
    pub fn headroom(&self) -> usize {
        (self.extent.start - self.extent.first) as usize
    }

    /// Bytes free behind the frame: at first at least [`TAILROOM`].
    #[inline]
    pub fn tailroom(&self) -> usize {
        (self.extent.last - self.extent.end) as usize
    }

    /// Puts `bytes` bytes before the frame. Their values are not specified. [`None`], and no change, if there is no
    /// room.
    #[inline]
    pub fn grow_front(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.headroom() {
            return None;
        }
        self.extent.start -= bytes as u32;
        self.frame_mut().get_mut(..bytes)
    }

    /// Puts `bytes` bytes behind the frame. Their values are not specified. [`None`], and no change, if there is no
    /// room.
    #[inline]
    pub fn grow_back(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.tailroom() {
            return None;
        }
        let len = self.len();
        self.extent.end += bytes as u32;
        self.frame_mut().get_mut(len..)
    }

    /// Takes `bytes` bytes off the front. False, and no change, if no byte were left.
    #[inline]
    #[must_use]
    pub fn shrink_front(&mut self, bytes: usize) -> bool {
        let fits = bytes < self.len();
        if fits {
            self.extent.start += bytes as u32;
        }
        fits
    }

    /// Takes `bytes` bytes off the end. False, and no change, if no byte were left.
    #[inline]
    #[must_use]
    pub fn shrink_back(&mut self, bytes: usize) -> bool {
        let fits = bytes < self.len();
        if fits {
            self.extent.end -= bytes as u32;
        }
        fits
    }

    /// What becomes of it, as far as it is decided.
    #[inline]
    pub fn verdict(&self) -> Verdict {
        self.extent.verdict
    }

    /// Decides what becomes of it. The last decision counts.
    #[inline]
    pub fn decide(&mut self, verdict: Verdict) {
        self.extent.verdict = verdict;
    }

    /// [`Verdict::Drop`].
    #[inline]
    pub fn drop(&mut self, reason: Reason) {
        self.decide(Verdict::Drop(reason));
    }

    /// [`Verdict::Answer`].
    #[inline]
    pub fn answer(&mut self) {
        self.decide(Verdict::Answer);
    }

    /// [`Verdict::Consume`].
    #[inline]
    pub fn consume(&mut self) {
        self.decide(Verdict::Consume);
    }
}

/// The packets of a burst, in order.
#[derive(Debug)]
pub struct Packets<'b> {
    /// The memory from byte `at` on.
    memory: &'b mut [u8],
    at: u32,
    extents: std::slice::IterMut<'b, Extent>,
}

impl<'b> Iterator for Packets<'b> {
    type Item = Packet<'b>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'b>> {
        let extent = self.extents.next()?;
        // Extents are in the order of their memory.
        let ahead = (extent.first - self.at) as usize;
        let (_, rest) = std::mem::take(&mut self.memory).split_at_mut_checked(ahead)?;
        let (place, rest) = rest.split_at_mut_checked((extent.last - extent.first) as usize)?;
        self.memory = rest;
        self.at = extent.last;
        Some(Packet { place, extent })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.extents.size_hint()
    }
}

impl ExactSizeIterator for Packets<'_> {}

/// Up to [`CAPACITY`] packets, which came from one port.
#[derive(Debug)]
pub struct Burst {
    memory: Box<[u8]>,
    /// Bytes of the memory that are taken.
    filled: usize,
    /// The packets that the function works on, in the order of their memory: those that it was given, and those that it
    /// originated.
    active: Vec<Extent>,
    given: usize,
    /// Those that have turned towards the port from which the burst came, with the position in the chain where they did.
    turned: Vec<(Extent, u8)>,
    /// Those that leave.
    leaving: Vec<Extent>,
    port: u8,
    opposite: u8,
    work: Nanos,
    refused: u64,
}

impl Default for Burst {
    fn default() -> Burst {
        Burst::new()
    }
}

/// What became of the packets that one function worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) forwarded: u64,
    pub(crate) answered: u64,
    pub(crate) consumed: u64,
    pub(crate) originated: u64,
}

/// For functions.
impl Burst {
    /// The port from which the packets came.
    #[inline]
    pub fn port(&self) -> u8 {
        self.port
    }

    /// The port by which they leave where nothing else is decided: the same one if the instance has one port.
    #[inline]
    pub fn opposite(&self) -> u8 {
        self.opposite
    }

    /// How many packets the function was given, without those that it originated.
    #[inline]
    pub fn len(&self) -> usize {
        self.given
    }

    /// Whether it was given none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.given == 0
    }

    /// The packets, without those that the function originated.
    #[inline]
    pub fn packets(&mut self) -> Packets<'_> {
        Packets {
            memory: &mut self.memory[..self.filled],
            at: 0,
            extents: self.active[..self.given].iter_mut(),
        }
    }

    /// One packet by its index, below [`Burst::len`]; for work in several passes, and while packets are originated.
    #[inline]
    pub fn packet(&mut self, index: usize) -> Option<Packet<'_>> {
        let extent = self.active.get_mut(index)?;
        let place = self.memory.get_mut(extent.first as usize..extent.last as usize)?;
        Some(Packet { place, extent })
    }

    /// The frame of a packet by its index; empty if there is none.
    #[inline]
    pub fn frame(&self, index: usize) -> &[u8] {
        self.active.get(index).map_or(&[], |extent| self.bytes_of(extent))
    }

    /// A new packet of `len` zero bytes, which leaves by [`Burst::opposite`], after the later functions of the chain. To
    /// send it back, after the earlier ones, call [`Packet::answer`]. It is not one of [`Burst::packets`]. [`None`], and
    /// counted, if the burst is full or the frame would be empty or too long.
    pub fn originate(&mut self, len: usize) -> Option<Packet<'_>> {
        let packets = self.active.len() + self.turned.len() + self.leaving.len();
        let has_room = packets < CAPACITY && self.memory.len() - self.filled >= PLACE_BYTES_LIMIT;
        if !has_room || len == 0 || len > FRAME_BYTES_LIMIT {
            self.refused += 1;
            return None;
        }
        let verdict = Verdict::Forward(self.opposite);
        let extent = self.place(len, verdict);
        self.memory[extent.start as usize..extent.end as usize].fill(0);
        self.active.push(extent);
        self.packet(self.active.len() - 1)
    }

    /// How many packets can be originated at least, of any length.
    pub fn room(&self) -> usize {
        let packets = self.active.len() + self.turned.len() + self.leaving.len();
        let memory = (self.memory.len() - self.filled) / PLACE_BYTES_LIMIT;
        CAPACITY.saturating_sub(packets).min(memory)
    }

    /// Declares work that is not done: the runner lets that time pass. For functions that stand for others.
    #[inline]
    pub fn spend(&mut self, work: Nanos) {
        self.work = self.work + work;
    }
}

/// For runners, and for the tests of functions.
impl Burst {
    /// An empty burst, which never allocates again.
    pub fn new() -> Burst {
        Burst {
            // Zeroed memory of this size is mapped, and becomes resident only where it is touched.
            memory: vec![0; CAPACITY * PLACE_BYTES_LIMIT].into_boxed_slice(),
            filled: 0,
            active: Vec::with_capacity(CAPACITY),
            given: 0,
            turned: Vec::with_capacity(CAPACITY),
            leaving: Vec::with_capacity(CAPACITY),
            port: 0,
            opposite: 0,
            work: Nanos::ZERO,
            refused: 0,
        }
    }

    /// Empties it for packets that come from `port` and leave by `opposite` where nothing else is decided.
    #[inline]
    pub fn begin(&mut self, port: u8, opposite: u8) {
        self.filled = 0;
        self.active.clear();
        self.given = 0;
        self.turned.clear();
        self.leaving.clear();
        self.port = port;
        self.opposite = opposite;
        self.work = Nanos::ZERO;
    }

    /// Adds a packet that `write` writes to the start of the memory that it gets, [`FRAME_BYTES_LIMIT`] bytes. It returns
    /// the frame's length; for 0, or more than there is, no packet is added. Returns the length, or [`None`] if no
    /// packet was added. `write` is not called if the burst has [`RECEIVED_LIMIT`] packets.
    #[inline]
    pub fn receive(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> Option<usize> {
        if self.given >= RECEIVED_LIMIT {
            return None;
        }
        let start = self.filled + HEADROOM;
        let len = write(self.memory.get_mut(start..start + FRAME_BYTES_LIMIT)?);
        if len == 0 || len > FRAME_BYTES_LIMIT {
            return None;
        }
        let extent = self.place(len, Verdict::Forward(self.opposite));
        self.active.push(extent);
        self.given = self.active.len();
        Some(len)
    }

    /// Adds a packet; false if there is no room for it.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        let written = self.receive(|room| match room.get_mut(..frame.len()) {
            Some(room) => {
                room.copy_from_slice(frame);
                frame.len()
            }
            None => 0,
        });
        written.is_some()
    }

    /// The packets that leave, after [`Chain::process`](crate::Chain::process). Those of one port are in their order.
    #[inline]
    pub fn leaving(&self) -> &[Extent] {
        &self.leaving
    }

    /// The frame at an extent of this burst.
    #[inline]
    pub fn bytes_of(&self, extent: &Extent) -> &[u8] {
        &self.memory[extent.start as usize..extent.end as usize]
    }

    /// The work that functions have declared with [`Burst::spend`].
    #[inline]
    pub fn spent(&self) -> Nanos {
        self.work
    }

    /// Packets that a function wanted to originate and that found no room, since the burst was made.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

/// For the chain.
impl Burst {
    /// Takes memory for a frame of `len` bytes.
    #[inline]
    fn place(&mut self, len: usize, verdict: Verdict) -> Extent {
        let first = self.filled;
        let start = first + HEADROOM;
        let last = (start + len + TAILROOM).next_multiple_of(LINE);
        self.filled = last;
        // 64 frames with their rooms are less than 5 MiB.
        Extent {
            first: first as u32,
            last: last as u32,
            start: start as u32,
            end: (start + len) as u32,
            verdict,
        }
    }

    /// Counts the verdicts of the function at `position`, and leaves those packets active that go on in the chain.
    #[inline]
    pub(crate) fn settle(&mut self, position: u8, dropped: &mut [u64]) -> Settled {
        let onward = Verdict::Forward(self.opposite);
        if self.active.len() == self.given && self.active.iter().all(|of| of.verdict == onward) {
            return Settled {
                forwarded: self.given as u64,
                ..Settled::default()
            };
        }
        self.settle_each(position, dropped)
    }

    fn settle_each(&mut self, position: u8, dropped: &mut [u64]) -> Settled {
        let mut settled = Settled::default();
        let mut stay = 0;
        for at in 0..self.active.len() {
            let mut extent = self.active[at];
            settled.originated += u64::from(at >= self.given);
            let has_turned = match extent.verdict {
                Verdict::Forward(port) => {
                    settled.forwarded += 1;
                    port == self.port && port != self.opposite
                }
                Verdict::Answer => {
                    settled.answered += 1;
                    extent.verdict = Verdict::Forward(self.port);
                    true
                }
                Verdict::Drop(Reason(reason)) => {
                    // The last one is for reasons that the function does not have.
                    let at = usize::from(reason).min(dropped.len().saturating_sub(1));
                    if let Some(count) = dropped.get_mut(at) {
                        *count += 1;
                    }
                    continue;
                }
                Verdict::Consume => {
                    settled.consumed += 1;
                    continue;
                }
            };
            if has_turned {
                self.turned.push((extent, position));
            } else {
                self.active[stay] = extent;
                stay += 1;
            }
        }
        self.active.truncate(stay);
        self.given = stay;
        settled
    }

    /// Whether packets have turned.
    #[inline]
    pub(crate) fn has_turned(&self) -> bool {
        !self.turned.is_empty()
    }

    /// The active packets leave.
    #[inline]
    pub(crate) fn leave(&mut self) {
        if self.leaving.is_empty() {
            std::mem::swap(&mut self.leaving, &mut self.active);
        } else {
            self.leaving.append(&mut self.active);
        }
        self.given = 0;
    }

    /// Turns the burst itself: from now on it goes back to the port that it came from.
    pub(crate) fn turn(&mut self) {
        std::mem::swap(&mut self.port, &mut self.opposite);
    }

    /// Adds the packets that have turned at `position` to the active ones.
    pub(crate) fn join(&mut self, position: u8) {
        let active = &mut self.active;
        let before = active.len();
        self.turned.retain(|(extent, at)| {
            let joins = *at == position;
            if joins {
                active.push(*extent);
            }
            !joins
        });
        if before > 0 && active.len() > before {
            active.sort_unstable_by_key(|extent| extent.first);
        }
        self.given = active.len();
    }

    /// Those that have turned again leave by the port to which they turned, past the rest of the chain.
    pub(crate) fn leave_turned(&mut self) {
        self.leaving
            .extend(self.turned.drain(..).map(|(extent, _)| extent));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a test does to a packet.
    #[derive(Clone, Debug)]
    enum Change {
        GrowFront(usize),
        GrowBack(usize),
        ShrinkFront(usize),
        ShrinkBack(usize),
        Fill(u8),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            (0..300_usize).prop_map(Change::GrowFront),
            (0..300_usize).prop_map(Change::GrowBack),
            (0..2_000_usize).prop_map(Change::ShrinkFront),
            (0..2_000_usize).prop_map(Change::ShrinkBack),
            any::<u8>().prop_map(Change::Fill),
        ]
    }

    fn length() -> impl Strategy<Value = usize> {
        prop_oneof![8 => 1..2_000_usize, 1 => FRAME_BYTES_LIMIT - 2..=FRAME_BYTES_LIMIT]
    }

    /// Does the same to a packet and to its model.
    fn apply(packet: &mut Packet<'_>, model: &mut Vec<u8>, change: &Change) -> Result<(), TestCaseError> {
        let len = model.len();
        match *change {
            Change::GrowFront(bytes) => {
                let fits = bytes <= packet.headroom();
                let grown = packet.grow_front(bytes);
                prop_assert_eq!(grown.as_ref().map(|of| of.len()), fits.then_some(bytes));
                if let Some(grown) = grown {
                    grown.fill(0xf0);
                    model.splice(0..0, vec![0xf0; bytes]);
                }
            }
            Change::GrowBack(bytes) => {
                let fits = bytes <= packet.tailroom();
                let grown = packet.grow_back(bytes);
                prop_assert_eq!(grown.as_ref().map(|of| of.len()), fits.then_some(bytes));
                if let Some(grown) = grown {
                    grown.fill(0xb0);
                    model.extend(vec![0xb0; bytes]);
                }
            }
            Change::ShrinkFront(bytes) => {
                prop_assert_eq!(packet.shrink_front(bytes), bytes < len);
                if bytes < len {
                    model.drain(..bytes);
                }
            }
            Change::ShrinkBack(bytes) => {
                prop_assert_eq!(packet.shrink_back(bytes), bytes < len);
                if bytes < len {
                    model.truncate(len - bytes);
                }
            }
            Change::Fill(byte) => {
                packet.frame_mut().fill(byte);
                model.fill(byte);
            }
        }
        prop_assert_eq!(packet.frame(), model.as_slice());
        prop_assert_eq!(packet.len(), model.len());
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is done to one packet, the others keep their bytes, and each has its rooms at first.
        #[test]
        fn packets_are_apart(
            received in prop::collection::vec(length(), 0..40),
            originated in prop::collection::vec(length(), 0..40),
            changes in prop::collection::vec((any::<prop::sample::Index>(), change()), 0..60),
        ) {
            let mut burst = Burst::new();
            for round in 0..2_u8 {
                burst.begin(0, 1);
                let mut models: Vec<Vec<u8>> = Vec::new();
                for (at, len) in received.iter().enumerate() {
                    let frame = vec![at as u8 ^ round; *len];
                    prop_assert_eq!(burst.push(&frame), at < RECEIVED_LIMIT);
                    if at < RECEIVED_LIMIT {
                        models.push(frame);
                    }
                }
                prop_assert_eq!(burst.len(), models.len());
                for len in &originated {
                    let has_room = models.len() < CAPACITY;
                    let packet = burst.originate(*len);
                    prop_assert_eq!(packet.is_some(), has_room);
                    if let Some(packet) = packet {
                        prop_assert!(packet.frame().iter().all(|byte| *byte == 0) && packet.len() == *len);
                        models.push(packet.frame().to_vec());
                    }
                }
                for at in 0..models.len() {
                    let packet = burst.packet(at).unwrap();
                    prop_assert!(packet.headroom() == HEADROOM && packet.tailroom() >= TAILROOM);
                }
                if !models.is_empty() {
                    for (at, change) in &changes {
                        let at = at.index(models.len());
                        apply(&mut burst.packet(at).unwrap(), &mut models[at], change)?;
                    }
                }
                // By index and in order they are the same.
                for (at, model) in models.iter().enumerate() {
                    prop_assert_eq!(burst.frame(at), model.as_slice());
                }
                prop_assert!(burst.packet(models.len()).is_none() && burst.frame(models.len()).is_empty());
                let given = burst.len();
                prop_assert_eq!(burst.packets().len(), given);
                for (mut packet, model) in burst.packets().zip(&mut models) {
                    prop_assert_eq!(packet.frame(), model.as_slice());
                    let (front, back) = (packet.headroom(), packet.tailroom());
                    apply(&mut packet, model, &Change::GrowBack(back))?;
                    apply(&mut packet, model, &Change::GrowFront(front))?;
                }
                for (at, model) in models.iter().enumerate() {
                    prop_assert_eq!(burst.frame(at), model.as_slice());
                }
            }
        }

        /// Each packet is settled once: counted by its verdict, and where its verdict says.
        #[test]
        fn verdicts_are_settled_once(
            ports in prop_oneof![Just((0, 0)), Just((0, 1)), Just((1, 0))],
            verdicts in prop::collection::vec(
                prop_oneof![
                    4 => (0..2_u8).prop_map(Verdict::Forward),
                    1 => Just(Verdict::Answer),
                    1 => Just(Verdict::Consume),
                    2 => (0..4_u8).prop_map(|reason| Verdict::Drop(Reason(reason))),
                ],
                0..CAPACITY,
            ),
        ) {
            let (port, opposite) = ports;
            let mut burst = Burst::new();
            burst.begin(port, opposite);
            for (at, verdict) in (0_u8..).zip(&verdicts) {
                if usize::from(at) < RECEIVED_LIMIT {
                    prop_assert!(burst.push(&[at]));
                    burst.packet(at.into()).unwrap().decide(*verdict);
                } else {
                    let mut packet = burst.originate(1).unwrap();
                    packet.frame_mut()[0] = at;
                    packet.decide(*verdict);
                }
            }
            let (given, all) = (burst.len(), verdicts.len());
            let mut dropped = [0; 3];
            let settled = burst.settle(3, &mut dropped);
            let of = |is: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| is(verdict)).count() as u64;
            prop_assert_eq!(settled.originated, (all - given) as u64);
            prop_assert_eq!(settled.forwarded, of(|is| matches!(is, Verdict::Forward(_))));
            prop_assert_eq!(settled.answered, of(|is| *is == Verdict::Answer));
            prop_assert_eq!(settled.consumed, of(|is| *is == Verdict::Consume));
            prop_assert_eq!(dropped[1], of(|is| *is == Verdict::Drop(Reason(1))));
            // Reasons 2 and 3 are none of the two that the function has.
            prop_assert_eq!(dropped[2], of(|is| matches!(is, Verdict::Drop(Reason(2..)))));
            let counted = settled.forwarded + settled.answered + settled.consumed + dropped.iter().sum::<u64>();
            prop_assert_eq!(counted, all as u64);
            let has_turned = |verdict: &Verdict| match *verdict {
                Verdict::Answer => true,
                Verdict::Forward(to) => to == port && port != opposite,
                _ => false,
            };
            let leaves = |verdict: &Verdict| matches!(verdict, Verdict::Forward(_) | Verdict::Answer);
            let numbers = |turned: bool| -> Vec<u8> {
                let all = (0_u8..).zip(&verdicts).filter(|(_, of)| leaves(of) && has_turned(of) == turned);
                all.map(|(at, _)| at).collect()
            };
            let staying: Vec<u8> = burst.packets().map(|packet| packet.frame()[0]).collect();
            prop_assert_eq!(staying, numbers(false));
            burst.leave();
            burst.join(3);
            let turned: Vec<(u8, Verdict)> = burst.packets().map(|packet| (packet.frame()[0], packet.verdict())).collect();
            let back = numbers(true).into_iter().map(|at| (at, Verdict::Forward(port)));
            prop_assert_eq!(turned, back.collect::<Vec<_>>());
        }
    }

    #[test]
    fn memory_is_touched_only_as_far_as_frames_reach() {
        let mut burst = Burst::new();
        burst.begin(0, 0);
        for _ in 0..RECEIVED_LIMIT {
            assert!(burst.push(&[1; 60]));
        }
        assert!(!burst.push(&[1; 60]), "it is full");
        assert_eq!(burst.filled, 32 * (HEADROOM + 60 + 4 + TAILROOM));
    }

    #[test]
    fn what_is_no_frame_is_not_received() {
        let mut burst = Burst::new();
        burst.begin(0, 0);
        assert_eq!(burst.receive(|_| 0), None);
        assert_eq!(burst.receive(|room| room.len() + 1), None);
        assert!(!burst.push(&[]) && !burst.push(&vec![0; FRAME_BYTES_LIMIT + 1]));
        assert_eq!(burst.receive(|room| room.len()), Some(FRAME_BYTES_LIMIT));
        assert!(burst.originate(0).is_none() && burst.originate(FRAME_BYTES_LIMIT + 1).is_none());
        assert_eq!((burst.len(), burst.refused()), (1, 2));
    }
}
