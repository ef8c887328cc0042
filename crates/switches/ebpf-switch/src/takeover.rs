//! Flows of the layout before this one, copied into maps of this layout while the programs are exchanged.
//!
//! The older programs steer on over their maps until the last of them is exchanged, and newer ones steer over the new
//! maps from the first exchange on. Both pick alike meanwhile, by the hash of a flow (`by_hash`), and leave valid pins
//! as they are. So it does not matter which of them sees a flow first, and what the older ones have pinned after it
//! was copied is copied when they are gone. Each step can be repeated: a run that is killed in between leaves both
//! sets of maps, and the next one goes on.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use aya::maps::MapData;
use flow_table::AttachCounts;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::bpf::{Entries, Writer};
use crate::error::chain;
use crate::kernel::{self, Shared};
use crate::layout::{Counts, Flow, KEY_BYTES, SERVICES, SLOTS, SlotCounts, SlotRow, TCP_HANDSHAKE, World};
use crate::release::Before;
use crate::switch::GRACE;

/// The flow tables, with the orders of their flows.
const FLOWS: [(&str, &str); 2] = [("flows_v4", "order_v4"), ("flows_v6", "order_v6")];
/// Tables whose entries are copied as they are.
const OTHERS: [&str; 5] = [
    "addresses",
    "shared_pins",
    "neighbours",
    "fragments",
    "own_fragments",
];

/// A take-over that has begun.
pub(crate) struct TakeOver {
    before: Before,
    /// Where the older maps are pinned, and where the new ones are until it is over.
    pins: PathBuf,
    next: PathBuf,
    older: BTreeMap<&'static str, MapData>,
    newer: BTreeMap<&'static str, MapData>,
    pub(crate) counts: AttachCounts,
}

fn wrong(error: &dyn std::error::Error) -> io::Error {
    io::Error::other(chain(error))
}

impl TakeOver {
    /// Copies what there is. The programs over the new maps are attached to nothing yet, or an earlier run was killed
    /// while it attached them.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn begin(
        before: Before,
        pins: PathBuf,
        next: PathBuf,
        shared: &Shared,
    ) -> io::Result<TakeOver> {
        let open = |place: &PathBuf| -> io::Result<BTreeMap<&'static str, MapData>> {
            let names = FLOWS.iter().flat_map(|(flows, order)| [*flows, *order]);
            let names = names.chain(OTHERS).chain(["world", "counts"]);
            let maps =
                names.map(|name| Ok((name, MapData::from_pin(place.join(name)).map_err(|e| wrong(&e))?)));
            maps.collect()
        };
        let mut of = TakeOver {
            before,
            older: open(&pins)?,
            newer: open(&next)?,
            pins,
            next,
            counts: AttachCounts::default(),
        };
        kernel::set_by_hash(&of.older["world"])?;
        thread::sleep(GRACE);
        if shared.world().settings.layout.load(Relaxed) == 0 {
            of.copy_world(shared)?;
        }
        of.copy_tables(shared)?;
        Ok(of)
    }

    /// All programs have been exchanged: what the older ones did last is copied, and the new maps take their place.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn finish(mut self, shared: &Shared) -> io::Result<AttachCounts> {
        thread::sleep(GRACE);
        self.copy_tables(shared)?;
        self.add_counters(shared)?;
        renameat_with(CWD, &self.pins, CWD, &self.next, RenameFlags::EXCHANGE)?;
        kernel::remove_pins(&self.next)?;
        fs::remove_dir(&self.next)?;
        Ok(self.counts)
    }

    /// What inco writes, but for what depends on the tables of flows.
    fn copy_world(&self, shared: &Shared) -> io::Result<()> {
        let world = shared.world();
        let places = world.order.each_ref().map(|order| order.places.load(Relaxed));
        let sweep_row = world.settings.sweep_row.load(Relaxed);
        let writer = Writer::of(&self.newer["world"]).map_err(|e| wrong(&e))?;
        let mut result = Err(io::Error::from(io::ErrorKind::InvalidData));
        self.each("world", |of, key, value| {
            let Some((key, mut value)) = (of.before.entry)("world", key, value) else {
                return;
            };
            if !writer.takes(&key, &value) {
                return;
            }
            // It is none of this layout before all flows are in the tables.
            value[..8].fill(0);
            value[offset_of!(World, order)..offset_of!(World, uplinks)].fill(0);
            result = writer.write(&key, &value, false).map(drop);
        })?;
        result?;
        for (order, places) in world.order.iter().zip(places) {
            order.places.store(places, Relaxed);
        }
        world.settings.sweep_row.store(sweep_row, Relaxed);
        for service in &world.services[..SERVICES] {
            service.moving.half_open.store(0, Relaxed);
        }
        world.settings.by_hash.store(1, Relaxed);
        Ok(())
    }

    /// Passes the entries of an older map on.
    fn each(&self, map: &str, mut to: impl FnMut(&Self, &[u8], &[u8])) -> io::Result<()> {
        let mut entries = Entries::of(&self.older[map]).map_err(|e| wrong(&e))?;
        while entries.next(|key, value| to(self, key, value))? {}
        Ok(())
    }

    /// Copies each entry that is not there yet.
    fn copy_tables(&mut self, shared: &Shared) -> io::Result<()> {
        for map in OTHERS {
            let writer = Writer::of(&self.newer[map]).map_err(|e| wrong(&e))?;
            let mut result = Ok(());
            self.each(map, |of, key, value| {
                if let Some((key, value)) = (of.before.entry)(map, key, value)
                    && result.is_ok()
                {
                    result = writer.write(&key, &value, true).map(drop);
                }
            })?;
            result?;
        }
        for family in 0..FLOWS.len() {
            let counts = self.copy_flows(family, shared)?;
            self.counts.flows += counts.flows;
            // The second walk sees them again.
            (self.counts.malformed, self.counts.no_room) = (
                self.counts.malformed.max(counts.malformed),
                self.counts.no_room.max(counts.no_room),
            );
        }
        Ok(())
    }

    fn copy_flows(&self, family: usize, shared: &Shared) -> io::Result<AttachCounts> {
        let (flows, order) = FLOWS[family];
        let writer = Writer::of(&self.newer[flows]).map_err(|e| wrong(&e))?;
        let places = Writer::of(&self.newer[order]).map_err(|e| wrong(&e))?;
        let mut counts = AttachCounts::default();
        let mut result = Ok(());
        self.each(flows, |of, key, value| {
            let read = (of.before.entry)(flows, key, value).filter(|(key, value)| writer.takes(key, value));
            match read {
                _ if result.is_err() => {}
                Some((key, value)) => {
                    result = copy_flow(family, shared, &writer, &places, &key, value, &mut counts)
                }
                None => counts.malformed += 1,
            }
        })?;
        result.map(|()| counts)
    }

    /// Adds what the older programs have counted to what this run counts itself, except for flows: those that were
    /// copied have been counted.
    fn add_counters(&self, shared: &Shared) -> io::Result<()> {
        let own = shared.own_words();
        let ordinary = (0..offset_of!(Counts, started))
            .chain(offset_of!(Counts, lost_events)..offset_of!(Counts, fresh))
            .chain(offset_of!(Counts, uplinks)..offset_of!(Counts, slots));
        let of_slots = (0..SLOTS).flat_map(|slot| {
            let at = offset_of!(Counts, slots) + slot * size_of::<SlotCounts>();
            at..at + offset_of!(SlotCounts, started)
        });
        let places: Vec<usize> = ordinary.chain(of_slots).step_by(8).collect();
        self.each("counts", |of, key, value| {
            let Some((_, value)) = (of.before.entry)("counts", key, value) else {
                return;
            };
            for at in &places {
                let word = value.get(*at..at + 8).and_then(|word| word.try_into().ok());
                if let (Some(word), Some(to)) = (word.map(u64::from_ne_bytes), own.get(at / 8)) {
                    to.fetch_add(word, Relaxed);
                }
            }
        })
    }
}

/// Copies a flow that is not there yet and whose pin is valid.
fn copy_flow(
    family: usize,
    shared: &Shared,
    flows: &Writer<'_>,
    order: &Writer<'_>,
    key: &[u8],
    mut value: Vec<u8>,
    counts: &mut AttachCounts,
) -> io::Result<()> {
    const PLACE: usize = offset_of!(Flow, place);
    let Some(flow) = Flow::of(&value) else {
        counts.malformed += 1;
        return Ok(());
    };
    let world = shared.world();
    let slot: &SlotRow = &world.slots[usize::from(flow.slot())];
    if slot.epoch.load(Relaxed) != flow.epoch() || flows.has(key)? {
        return Ok(());
    }
    let row = &world.order[family];
    let number = row.head.fetch_add(1, Relaxed);
    value[PLACE..PLACE + 8].copy_from_slice(&number.to_ne_bytes());
    let is_new = match flows.write(key, &value, true) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENOMEM)) => {
            counts.no_room += 1;
            false
        }
        written => written?,
    };
    // A place that is given is written in any case: the walk waits for it. Its number comes last.
    let at = (number % u64::from(row.places.load(Relaxed).max(1))) as u32;
    let mut place = key[..KEY_BYTES[family]].to_vec();
    for number in [0, number + 1] {
        place.truncate(KEY_BYTES[family]);
        place.extend_from_slice(&u64::to_ne_bytes(number));
        order.write(&at.to_ne_bytes(), &place, false)?;
    }
    if is_new {
        counts.flows += 1;
        let own = shared.own_counts();
        own.started[family].fetch_add(1, Relaxed);
        let started = &own.slots[usize::from(flow.slot())].started;
        started[flow.epoch() as usize % started.len()].fetch_add(1, Relaxed);
        if flow.tcp == TCP_HANDSHAKE {
            let service = &world.services[usize::from(flow.service())];
            service.moving.half_open.fetch_add(1, Relaxed);
        }
    }
    Ok(())
}
