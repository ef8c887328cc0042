//! The first steps of a burst: parse the headers, and prefetch the table entries of their flows.

use flow_table::{Burst, FlowHasher, FlowTable};
use model::WorkerId;
use packet::{HeaderBurst, Lengths, PacketColumns};
use simd::{Kernel, Words};

use crate::BURST_FRAMES;
use crate::frame::{Frame, FrameMemory, Sizes};
use crate::table_memory::TableMemory;
use crate::worker::context::Context;

/// The parser of bursts.
pub(crate) struct Parser {
    /// The headers of the burst's frames, in the same places.
    pub(crate) headers: Box<HeaderBurst>,
    /// The table's columns of them, in the same places.
    pub(crate) burst: Box<Burst>,
    /// The owners of their flows, in the same places, if there is more than one worker.
    owners: [u8; BURST_FRAMES],
    /// Their sizes.
    pub(crate) sizes: Sizes,
}

impl Parser {
    pub(crate) fn new() -> Parser {
        Parser {
            headers: Box::default(),
            burst: Box::default(),
            owners: [0; BURST_FRAMES],
            sizes: Sizes::NONE,
        }
    }

    /// Parses these frames and prefetches the table entries of their flows. Returns their sizes, and a number that is
    /// above 1 if one of them has several segments.
    #[inline]
    pub(crate) fn parse<M: FrameMemory>(
        &mut self,
        frames: &[M::Frame],
        cx: &Context<M>,
        table: &mut FlowTable<TableMemory>,
    ) -> (Lengths, u16) {
        let (lengths, segments) = cx.level.run(Parse {
            frames,
            headers: &mut self.headers,
            burst: &mut self.burst,
            table,
            owners: (cx.workers > 1).then_some(Owners {
                hasher: &cx.hasher,
                workers: cx.workers,
                this: cx.id,
                found: &mut self.owners,
            }),
        });
        self.sizes = Sizes {
            shortest: lengths.shortest,
            longest: lengths.longest,
        };
        (lengths, segments)
    }

    /// The same without a test for the owner.
    pub(crate) fn parse_own<M: FrameMemory>(
        &mut self,
        frames: &[M::Frame],
        cx: &Context<M>,
        table: &mut FlowTable<TableMemory>,
    ) {
        cx.level.run(Parse {
            frames,
            headers: &mut self.headers,
            burst: &mut self.burst,
            table,
            owners: None,
        });
    }

    /// The exceptions among the first `frames` frames, a bit each.
    #[inline]
    pub(crate) fn exceptions(&self, frames: usize) -> u64 {
        if self.headers.packets.all_fast() {
            return 0;
        }
        let all = 1_u64.checked_shl(frames as u32).unwrap_or(0).wrapping_sub(1);
        all & !self.headers.packets.fast_mask() & !self.burst.v6()
    }

    /// The worker that owns the flow of a fast-path packet, where that is another one.
    #[inline(always)]
    pub(crate) fn other_owner(&self, place: usize) -> Option<usize> {
        let is_fast = self.headers.packets.is_fast[place % BURST_FRAMES] != 0 || self.burst.is_v6(place);
        let is_other = self.burst.is_marked_exception(place) && is_fast;
        is_other.then(|| self.owners[place % BURST_FRAMES].into())
    }
}

/// Puts the IPv6 packets of a burst on the fast path.
#[inline(never)]
fn fill_v6<F: Frame>(frames: &[F], packets: &PacketColumns, burst: &mut Burst) {
    let others = packets.is_fast.iter().zip(&packets.bytes).zip(frames);
    for (at, ((is_fast, bytes), frame)) in others.enumerate() {
        if *is_fast == 0
            && let Some(packet) = packet::parse_fast_v6(frame.bytes())
        {
            burst.put_v6(at, &packet, *bytes);
        }
    }
}

struct Parse<'a, F> {
    frames: &'a [F],
    headers: &'a mut HeaderBurst,
    burst: &'a mut Burst,
    table: &'a mut FlowTable<TableMemory>,
    /// With several workers.
    owners: Option<Owners<'a>>,
}

/// Computes the owners of a burst's fast-path packets.
struct Owners<'a> {
    hasher: &'a FlowHasher,
    workers: usize,
    this: WorkerId,
    /// The owners, by place.
    found: &'a mut [u8; BURST_FRAMES],
}

impl Owners<'_> {
    /// Removes packets of other owners from the fast path: this worker's table does not have their flows.
    #[inline(always)]
    fn assign(self, burst: &mut Burst) {
        for (place, found) in self.found.iter_mut().enumerate().take(burst.len()) {
            let owner = burst.owner(place, self.hasher, self.workers);
            *found = owner as u8;
            if owner != self.this.index() {
                burst.mark_exception(place);
            }
        }
    }
}

impl<F: Frame> Kernel for Parse<'_, F> {
    /// The frames' sizes, and the bitwise or of their numbers of segments.
    type Output = (Lengths, u16);

    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "iterators over columns side by side keep a loop from becoming vector instructions"
    )]
    fn run<W: Words>(self) -> (Lengths, u16) {
        let mut segments = 0;
        let (groups, rest) = self.frames.as_chunks::<{ HeaderBurst::GROUP }>();
        let mut group = [HeaderBurst::EMPTY; HeaderBurst::GROUP];
        for at in 0..groups.len() {
            let first = at * HeaderBurst::GROUP;
            for i in 0..HeaderBurst::GROUP {
                segments |= groups[at][i].segments();
                group[i] = self.headers.put(first + i, groups[at][i].bytes());
            }
            self.headers.load::<W>(first, &group);
        }
        if !rest.is_empty() {
            let first = groups.len() * HeaderBurst::GROUP;
            for i in 0..rest.len() {
                segments |= rest[i].segments();
                group[i] = self.headers.put(first + i, rest[i].bytes());
            }
            self.headers.load::<W>(first, &group);
        }
        self.headers.validate(self.frames.len());
        self.burst.fill::<W>(&self.headers.packets);
        if !self.headers.packets.all_fast() {
            fill_v6(self.frames, &self.headers.packets, self.burst);
        }
        if let Some(owners) = self.owners {
            owners.assign(self.burst);
        }
        self.table.prefetch_buckets(self.burst, &self.headers.packets);
        self.table.resolve_candidates(self.burst);
        (self.headers.packets.lengths(), segments)
    }
}
