//! Merges what all rankers send for a window.
//!
//! A counter leaves out windows that are empty for it. Its next message is for a later window, and says that nothing
//! comes any more for the earlier ones. So a window is complete when each ranker has sent it or a later one. A window
//! that is empty for all rankers is not sent.

use actor_objects::{ObjectId, Objects};
use actor_runtime::{Actor, Address, Context, Message, Progress};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::analytics::ranker::Row;
use crate::analytics::{ASK, TOP, WindowPart};
use crate::codec::Reader;
use crate::state::{self, Failure, Outbox};

/// Windows that wait for a ranker, at most. If there are more, the oldest is sent as it is, and says that it is not exact.
pub const WINDOWS_LIMIT: usize = 64;

/// Windows that were sent and are kept for readers, at most: of more, those that end first are forgotten.
pub const WINDOWS_KEPT: usize = 64;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Root {
    windows: U64,
    rankers: U64,
    /// The end of the last window that was sent.
    sent: U64,
    /// A ring of the ids of kept windows, each as the body of its message.
    kept: U64,
    /// How many were put into it.
    kept_next: U64,
    malformed: U64,
}

/// A window that waits; its rows are an object of their own.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Window {
    /// 0: the place is free.
    end: U64,
    refused: U64,
    is_inexact: U64,
    rows: U64,
    used: U64,
}

/// The last worker.
#[derive(Debug)]
pub struct Aggregator {
    n: usize,
    rankers: Vec<Address>,
    sink: Option<Address>,
}

impl Aggregator {
    /// Merges the `n` greatest counts of these rankers; `n` is 1 to 500. Each window goes to the sink, where there is one,
    /// and is kept for readers.
    pub fn new(n: u16, rankers: Vec<Address>, sink: Option<Address>) -> Option<Aggregator> {
        ((1..=500).contains(&n) && !rankers.is_empty()).then_some(Aggregator {
            n: usize::from(n),
            rankers,
            sink,
        })
    }

    /// Bytes of the region that it needs.
    pub fn region_bytes(&self) -> usize {
        (WINDOWS_LIMIT + 1) * (2 * self.n * size_of::<Row>() + size_of::<Window>())
            + WINDOWS_KEPT * (8 + 2 * (64 + self.n * size_of::<Row>()))
            + self.rankers.len() * 8
            + 1024
    }

    fn begin(&self, objects: &mut Objects) -> Result<(), Failure> {
        let root = Root::new_zeroed();
        state::create_root(objects, &root)?;
        let windows = objects.allocate((WINDOWS_LIMIT + 1) * size_of::<Window>())?;
        let rankers = objects.allocate(self.rankers.len() * 8)?;
        let kept = objects.allocate(WINDOWS_KEPT * 8)?;
        let root = Root {
            kept: kept.to_bits().into(),
            windows: windows.to_bits().into(),
            rankers: rankers.to_bits().into(),
            ..root
        };
        state::set_root(objects, &root)
    }

    fn take(&self, message: &Message, objects: &mut Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let mut root: Root = state::root(objects)?;
        let ranker = self.rankers.iter().position(|ranker| *ranker == message.from);
        let part = WindowPart::decode(&message.body).filter(|part| part.end > 0);
        let Some((ranker, part)) = ranker.zip(part) else {
            root.malformed += 1;
            return state::set_root(objects, &root);
        };
        // What was sent without this ranker said so.
        let has_some = !part.rows.is_empty() || part.refused > 0 || part.is_inexact;
        if part.end > root.sent.get() && has_some {
            self.merge(&part, &root, objects)?;
        }
        let ends = state::rows_mut::<U64>(objects, ObjectId::from_bits(root.rankers.get()))?;
        ends[ranker].set(ends[ranker].get().max(part.end));
        let complete = ends.iter().map(|end| end.get()).min().unwrap_or(0);
        self.send_until(complete, &mut root, objects, outbox)?;
        state::set_root(objects, &root)
    }

    /// The next window after the one that ends then; one that ends at 0, if there is none yet.
    fn ask(&self, message: &Message, objects: &mut Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let mut root: Root = state::root(objects)?;
        let mut reader = Reader(&message.body);
        let Some(after) = reader.u64().and_then(|after| reader.end(after)) else {
            root.malformed += 1;
            return state::set_root(objects, &root);
        };
        let mut next: Option<(u64, ObjectId)> = None;
        for id in state::rows::<U64>(objects, ObjectId::from_bits(root.kept.get()))? {
            if *id == U64::ZERO {
                continue;
            }
            let id = ObjectId::from_bits(id.get());
            let end = Reader(objects.get(id)?).u64().ok_or(Failure::Layout)?;
            if end > after && next.is_none_or(|(other, _)| end < other) {
                next = Some((end, id));
            }
        }
        let body = match next {
            Some((_, id)) => objects.get(id)?.to_vec(),
            None => WindowPart {
                is_last: true,
                ..WindowPart::default()
            }
            .encode(),
        };
        outbox.send(message.from, TOP, body);
        Ok(())
    }

    /// Keeps a window that was sent, in the place of the oldest one.
    fn keep(&self, body: &[u8], root: &mut Root, objects: &mut Objects) -> Result<(), Failure> {
        let ring = ObjectId::from_bits(root.kept.get());
        let place = root.kept_next.get() as usize % WINDOWS_KEPT;
        let old = state::rows::<U64>(objects, ring)?[place].get();
        if old != 0 {
            objects.free(ObjectId::from_bits(old))?;
        }
        let id = state::allocate(objects, body)?;
        state::rows_mut::<U64>(objects, ring)?[place].set(id.to_bits());
        root.kept_next += 1;
        Ok(())
    }

    /// Merges rows into those of their window.
    fn merge(&self, part: &WindowPart, root: &Root, objects: &mut Objects) -> Result<(), Failure> {
        let table = ObjectId::from_bits(root.windows.get());
        let windows = state::rows::<Window>(objects, table)?;
        let place = windows.iter().position(|window| window.end.get() == part.end);
        let place = place.or_else(|| windows.iter().position(|window| window.end == U64::ZERO));
        let place = place.ok_or(Failure::Layout)?;
        let mut window = windows[place];
        if window.end == U64::ZERO {
            window = Window::new_zeroed();
            window.end.set(part.end);
            window
                .rows
                .set(objects.allocate(self.n * size_of::<Row>())?.to_bits());
        }
        let own = state::rows_mut::<Row>(objects, ObjectId::from_bits(window.rows.get()))?;
        let mut rows = own[..window.used.get() as usize].to_vec();
        rows.extend(part.rows.iter().map(Row::of));
        Row::sort(&mut rows);
        rows.truncate(self.n);
        own[..rows.len()].copy_from_slice(&rows);
        window.used.set(rows.len() as u64);
        window.refused += part.refused;
        window.is_inexact |= U64::from(u64::from(part.is_inexact));
        state::rows_mut::<Window>(objects, table)?[place] = window;
        Ok(())
    }

    /// Sends the windows up to the one that ends at `complete`, and the oldest ones beyond the limit.
    fn send_until(
        &self,
        complete: u64,
        root: &mut Root,
        objects: &mut Objects,
        outbox: &mut Outbox,
    ) -> Result<(), Failure> {
        let table = ObjectId::from_bits(root.windows.get());
        loop {
            let windows = state::rows::<Window>(objects, table)?;
            let waiting = (0..).zip(windows).filter(|(_, window)| window.end > U64::ZERO);
            let count = waiting.clone().count();
            let Some((place, window)) = waiting.min_by_key(|(_, window)| window.end.get()) else {
                return Ok(());
            };
            let is_complete = window.end.get() <= complete;
            if !is_complete && count <= WINDOWS_LIMIT {
                return Ok(());
            }
            let (place, window): (usize, Window) = (place, *window);
            let rows = ObjectId::from_bits(window.rows.get());
            let used = &state::rows::<Row>(objects, rows)?[..window.used.get() as usize];
            let part = WindowPart {
                end: window.end.get(),
                refused: window.refused.get(),
                is_last: true,
                is_inexact: window.is_inexact != U64::ZERO || !is_complete,
                rows: used.iter().map(Row::ranked).collect(),
            };
            let body = part.encode();
            objects.free(rows)?;
            self.keep(&body, root, objects)?;
            if let Some(sink) = self.sink {
                outbox.send(sink, TOP, body);
            }
            root.sent.set(window.end.get());
            state::rows_mut::<Window>(objects, table)?[place] = Window::new_zeroed();
        }
    }
}

impl Actor for Aggregator {
    fn init(&mut self, context: &mut Context<'_>) {
        state::step(context, |objects, _| self.begin(objects));
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        match message.kind {
            TOP => state::step(context, |objects, outbox| self.take(message, objects, outbox)),
            ASK => state::step(context, |objects, outbox| self.ask(message, objects, outbox)),
            _ => {}
        }
        Progress::Done
    }
}
