//! Which external endpoint stands for which internal one: the rules of RFC 4787, 5382, 5508 and 7857, without packets.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use model::{Nanos, PortBlock, mix};
use packet::TcpFlags;
use state_moves::NotMoved;

use super::configuration::Settings;
use super::mapping::{Class, Id, Mapping, NONE, NewMapping, Slab, Tick};
use super::moving::{MOVED_BYTES, MovedMapping};
use super::pool::{CLASSES, Exhausted, Pool};
use super::records::Records;
use super::tcp::State;
use crate::keys::Keys;

/// Mappings looked at per burst and per tick, to end those whose time is over. A burst makes at most half as many, so
/// ends keep up with beginnings.
const ENDS_PER_CALL: u32 = 64;

/// For so many seconds after the first mapping was given time stands still, and it is late by as much from then on: a
/// mapping that goes on at the other instance must not end here while packets from outside still come here.
const GIVING_S: Tick = 10;
/// Places looked at for one message of a hand-over: some microseconds.
const GIVEN_PER_CALL: usize = 2048;
/// Blocks of other instances whose mappings are counted as they begin and end, at most. Others are counted one by one.
const COUNTED_LIMIT: usize = 64;

/// Why an endpoint is not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Nothing stands for it.
    NoMapping,
    /// All ports of the host's blocks are in use, and it may have no further block.
    HostLimit,
    /// There is no free block.
    NoBlock,
    /// There are as many mappings as may be.
    MappingLimit,
}

/// By way of which instance an internal endpoint has sent to a remote one most recently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The one that gives the mapping: its flow moves.
    There,
    /// Perhaps this one: the port may have been used for another connection to the same remote endpoint since, and that
    /// one must not get the external endpoint of an earlier one.
    PerhapsHere,
}

/// Totals since the function began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) imported: u64,
    /// Ended because a reload took their address away.
    pub(super) withdrawn: u64,
}

#[derive(Debug)]
pub(super) struct Translator {
    settings: Settings,
    pool: Pool,
    slab: Slab,
    /// By protocol and internal endpoint.
    by_internal: Keys,
    /// By place in the pool and protocol.
    by_external: Box<[Id]>,
    /// By protocol and external endpoint, where that is not of the pool: mappings of other instances.
    foreign: Keys,
    records: Records,
    counters: Counters,
    /// Since when another instance has mappings of this one. Then no port is given back: it may stand for a mapping there.
    gives_since: Cell<Option<Tick>>,
    /// Ports of the pool that are not given back, and stand for no mapping here.
    lent: usize,
    /// Mappings in these blocks.
    counted: Vec<(PortBlock, u32)>,
    /// Flows by internal and remote endpoint whose mapping came from another instance, where the internal endpoint has
    /// got another mapping here meanwhile: they keep their external endpoint.
    kept: HashMap<(Class, SocketAddrV4, SocketAddrV4), Id>,
    now: Tick,
}

fn is_in(ports: &PortBlock, end: SocketAddrV4) -> bool {
    ports.address == *end.ip() && (ports.first..=ports.last).contains(&end.port())
}

/// Protocol and endpoint as one number.
#[inline(always)]
fn key(class: Class, end: SocketAddrV4) -> u64 {
    let end_number = u64::from(u32::from(*end.ip())) << 16 | u64::from(end.port());
    (class as u64 + 1) << 48 | end_number
}

impl Translator {
    pub(super) fn new(settings: Settings, secret: u64) -> Translator {
        let pool = Pool::new(
            &settings.ranges,
            settings.block_ports,
            settings.blocks_per_host,
            mix(secret ^ 1),
        );
        let limit = settings.mappings_limit;
        Translator {
            slab: Slab::new(limit),
            by_internal: Keys::new(limit, mix(secret ^ 2)),
            by_external: vec![NONE; pool.ports() * CLASSES].into(),
            foreign: Keys::new(limit, mix(secret ^ 3)),
            records: Records::new(settings.log, settings.log_records_limit),
            counters: Counters::default(),
            gives_since: Cell::new(None),
            lent: 0,
            counted: Vec::with_capacity(COUNTED_LIMIT),
            kept: HashMap::new(),
            now: 0,
            pool,
            settings,
        }
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn records(&mut self) -> &mut Records {
        &mut self.records
    }

    pub(super) fn log(&self) -> &Records {
        &self.records
    }

    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    pub(super) fn mappings(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn limit(&self) -> usize {
        self.slab.limit()
    }

    /// Sets the time, which does not go backwards, and ends some of the mappings whose time is over. Whether there may
    /// be more of them.
    pub(super) fn turn(&mut self, now: Nanos) -> bool {
        let seconds = (now.0 / 1_000_000_000).min(u64::from(u32::MAX)) as Tick;
        let seconds = match self.gives_since.get() {
            None => seconds,
            Some(since) => since.max(seconds.saturating_sub(GIVING_S)),
        };
        self.now = self.now.max(seconds);
        self.records.set_time(now);
        let mut budget = ENDS_PER_CALL;
        while let Some(id) = self
            .slab
            .next_over(self.now, &self.settings.timeouts, &mut budget)
        {
            self.end(id);
        }
        budget == 0
    }

    /// Brings what an outbound packet needs first into the cache.
    #[inline(always)]
    pub(super) fn prefetch_internal(&self, class: Class, internal: SocketAddrV4) {
        self.by_internal.prefetch(key(class, internal));
    }

    /// And the mapping: of the source if it is one of the inside, else of the destination.
    #[inline(always)]
    pub(super) fn prefetch_mapping(&self, class: Class, [source, destination]: [SocketAddrV4; 2]) {
        let id = match self.by_internal.get(key(class, source)) {
            None => self.id_of_external(class, destination),
            id => id,
        };
        if let Some(id) = id {
            self.slab.prefetch(id);
        }
    }

    /// Whether packets to this endpoint are for the inside, by this instance. Another port of the same address may be
    /// another instance's: from here it is one of the outside.
    #[inline]
    pub(super) fn is_external(&self, class: Class, end: SocketAddrV4) -> bool {
        self.pool.place(end).is_some()
            || (self.foreign.len() > 0 && self.foreign.get(key(class, end)).is_some())
    }

    fn id_of_external(&self, class: Class, external: SocketAddrV4) -> Option<Id> {
        match self.pool.place(external) {
            Some(place) => {
                let id = self.by_external.get(place as usize * CLASSES + class.index());
                id.copied().filter(|&id| id != NONE)
            }
            None if self.foreign.len() == 0 => None,
            None => self.foreign.get(key(class, external)),
        }
    }

    /// The mapping, unless its time is over.
    #[inline(always)]
    fn live(&self, id: Id) -> Option<&Mapping> {
        let mapping = self.slab.get(id)?;
        (mapping.end(&self.settings.timeouts) > self.now).then_some(mapping)
    }

    /// The external endpoint of an internal one, which sends to `remote`. A new mapping is made where there is none
    /// (endpoint-independent mapping).
    #[inline]
    pub(super) fn outbound(
        &mut self,
        class: Class,
        internal: SocketAddrV4,
        remote: SocketAddrV4,
        flags: TcpFlags,
    ) -> Result<SocketAddrV4, Refused> {
        // Where the flow's own mapping is over, it has that of the others.
        while let Some(id) = self.id_of_internal(class, internal, remote) {
            let (now, timeouts) = (self.now, self.settings.timeouts);
            if let Some(mapping) = self
                .slab
                .get_mut(id)
                .filter(|mapping| mapping.end(&timeouts) > now)
            {
                let external = mapping.external;
                if mapping.sent(remote, flags, now) {
                    self.slab.hasten(id, &timeouts);
                }
                return Ok(external);
            }
            self.end(id);
        }
        self.begin(class, internal, remote, flags)
    }

    /// The mapping of an internal endpoint that sends to `remote`.
    #[inline(always)]
    fn id_of_internal(&self, class: Class, internal: SocketAddrV4, remote: SocketAddrV4) -> Option<Id> {
        let kept = match self.kept.is_empty() {
            true => None,
            false => self.kept.get(&(class, internal, remote)).copied(),
        };
        kept.or_else(|| self.by_internal.get(key(class, internal)))
    }

    /// The internal endpoint of an external one, to which `remote` sends (endpoint-independent filtering).
    #[inline]
    pub(super) fn inbound(
        &mut self,
        class: Class,
        external: SocketAddrV4,
        remote: SocketAddrV4,
        flags: TcpFlags,
    ) -> Result<SocketAddrV4, Refused> {
        let id = self.id_of_external(class, external).ok_or(Refused::NoMapping)?;
        let (now, timeouts) = (self.now, self.settings.timeouts);
        let may_refresh = self.settings.inbound_refresh;
        let mapping = self.slab.get_mut(id).ok_or(Refused::NoMapping)?;
        if mapping.end(&timeouts) <= now {
            return Err(Refused::NoMapping);
        }
        let internal = mapping.internal;
        if mapping.received(remote, flags, now, may_refresh) {
            self.slab.hasten(id, &timeouts);
        }
        Ok(internal)
    }

    /// The external endpoint of an internal one, for errors: they make and refresh no mapping.
    pub(super) fn external_of(
        &self,
        class: Class,
        internal: SocketAddrV4,
        remote: SocketAddrV4,
    ) -> Option<SocketAddrV4> {
        let id = self.id_of_internal(class, internal, remote)?;
        self.live(id).map(|mapping| mapping.external)
    }

    /// The internal endpoint of an external one, for errors.
    pub(super) fn internal_of(&self, class: Class, external: SocketAddrV4) -> Option<SocketAddrV4> {
        let id = self.id_of_external(class, external)?;
        self.live(id).map(|mapping| mapping.internal)
    }

    #[cold]
    fn begin(
        &mut self,
        class: Class,
        internal: SocketAddrV4,
        remote: SocketAddrV4,
        flags: TcpFlags,
    ) -> Result<SocketAddrV4, Refused> {
        if class == Class::Tcp && flags.rst() {
            return Err(Refused::NoMapping);
        }
        if self.slab.len() >= self.slab.limit() {
            return Err(Refused::MappingLimit);
        }
        let (place, assigned) = self
            .pool
            .take(*internal.ip(), class.index())
            .map_err(|why| match why {
                Exhausted::Host => Refused::HostLimit,
                Exhausted::Pool => Refused::NoBlock,
            })?;
        if let Some(assigned) = assigned {
            self.records.block(true, assigned);
        }
        let external = self.pool.external(place);
        let mapping = NewMapping {
            internal,
            external,
            remote,
            class,
            state: State::NEW.outbound(flags, true).state,
            touched: self.now,
        };
        self.add(mapping).ok_or(Refused::MappingLimit)?;
        self.counters.begun += 1;
        Ok(external)
    }

    /// A mapping whose port has been taken.
    fn add(&mut self, mapping: NewMapping) -> Option<Id> {
        let id = self.slab.insert(mapping, &self.settings.timeouts)?;
        // Each index has room for as many keys as the slab has mappings.
        let internal = key(mapping.class, mapping.internal);
        if self.by_internal.get(internal).is_none() {
            let _ = self.by_internal.insert(internal, id);
        }
        match self.pool.place(mapping.external) {
            Some(place) => self.by_external[place as usize * CLASSES + mapping.class.index()] = id,
            None => {
                let _ = self.foreign.insert(key(mapping.class, mapping.external), id);
            }
        }
        for (ports, count) in &mut self.counted {
            *count += u32::from(is_in(ports, mapping.external));
        }
        self.records
            .mapping(true, mapping.class, mapping.internal, mapping.external);
        Some(id)
    }

    fn end(&mut self, id: Id) {
        if let Some(mapping) = self.forget(id) {
            if let Some(place) = self.pool.place(mapping.external) {
                if self.gives_since.get().is_some() {
                    self.lent += 1;
                } else if let Some(block) = self.pool.give_back(place, mapping.class.index()) {
                    self.records.block(false, block);
                }
            }
            self.counters.ended += 1;
        }
    }

    /// Removes a mapping; its port stays taken.
    fn forget(&mut self, id: Id) -> Option<Mapping> {
        let mapping = self.slab.remove(id)?;
        let internal = key(mapping.class, mapping.internal);
        if self.by_internal.get(internal) == Some(id) {
            self.by_internal.remove(internal);
        }
        if !self.kept.is_empty() {
            self.kept.retain(|_, kept| *kept != id);
        }
        match self.pool.place(mapping.external) {
            Some(place) => self.by_external[place as usize * CLASSES + mapping.class.index()] = NONE,
            None => self.foreign.remove(key(mapping.class, mapping.external)),
        }
        for (ports, count) in &mut self.counted {
            *count -= u32::from(is_in(ports, mapping.external));
        }
        self.records
            .mapping(false, mapping.class, mapping.internal, mapping.external);
        Some(mapping)
    }

    /// The mapping that a flow between these endpoints uses, if there is one, and which of the two is external.
    fn id_of_flow(&self, class: Class, ends: [SocketAddrV4; 2]) -> Option<Id> {
        let [first, second] = ends;
        let inside = [(first, second), (second, first)]
            .into_iter()
            .find_map(|(internal, remote)| self.id_of_internal(class, internal, remote));
        let id = inside.or_else(|| ends.into_iter().find_map(|end| self.id_of_external(class, end)))?;
        self.live(id).map(|_| id)
    }

    /// Whether a flow between these endpoints is translated.
    pub(super) fn has(&self, class: Class, ends: [SocketAddrV4; 2]) -> bool {
        self.id_of_flow(class, ends).is_some()
    }

    fn begin_to_give(&self) {
        self.gives_since.set(self.gives_since.get().or(Some(self.now)));
    }

    /// The mapping of a flow as a value, for [`Translator::take_over`] of another instance. It stays here, too: both
    /// translate alike, whichever of them gets a packet. From now on no port of the pool is given back.
    pub(super) fn give(&self, class: Class, ends: [SocketAddrV4; 2]) -> Option<MovedMapping> {
        let id = self.id_of_flow(class, ends)?;
        self.begin_to_give();
        self.slab.get(id).map(|mapping| self.value(mapping))
    }

    /// The same of all mappings from that place in the slab on, as many as there is room for: the bytes written, and
    /// where it goes on.
    pub(super) fn give_all(&self, from: Id, room: &mut [u8]) -> (usize, Option<Id>) {
        self.begin_to_give();
        let mut written = 0;
        let until = (from as usize).saturating_add(GIVEN_PER_CALL);
        for id in from..self.slab.limit() as Id {
            let Some(place) = room.get_mut(written..written + MOVED_BYTES) else {
                return (written, Some(id));
            };
            if id as usize == until {
                return (written, Some(id));
            }
            // A place without a mapping has the endpoints of one that is over.
            let is_it = |of: &&Mapping| self.id_of_external(of.class, of.external) == Some(id);
            if let Some(mapping) = self.live(id).filter(is_it) {
                place.copy_from_slice(&self.value(mapping).to_bytes());
                written += MOVED_BYTES;
            }
        }
        (written, None)
    }

    /// How many mappings have an external port of that block.
    pub(super) fn count(&mut self, ports: &PortBlock) -> u32 {
        if let Some((_, count)) = self.counted.iter().find(|(of, _)| of == ports) {
            return *count;
        }
        let of_block = |id: &Id| {
            self.slab
                .get(*id)
                .is_some_and(|mapping| is_in(ports, mapping.external))
        };
        let count = self.slab.ids().filter(of_block).count() as u32;
        if self.counted.len() < COUNTED_LIMIT {
            self.counted.push((*ports, count));
        }
        count
    }

    fn value(&self, mapping: &Mapping) -> MovedMapping {
        MovedMapping {
            class: mapping.class,
            internal: mapping.internal,
            external: mapping.external,
            remote: mapping.remote,
            state: mapping.state,
            idle_s: self.now.saturating_sub(mapping.touched),
        }
    }

    /// Takes over a mapping of another instance, with its external endpoint. One that is here already gets what the
    /// other instance knows of it, too. Where the internal endpoint has another mapping here, the one taken over is for
    /// what comes to its external endpoint, and for what goes to `remote` if that `of` it says so.
    ///
    /// # Errors
    /// [`NotMoved::Conflict`]: the external endpoint stands for another one here, or an endpoint is on the wrong side.
    /// [`NotMoved::Full`]. Nothing has changed then.
    pub(super) fn take_over(
        &mut self,
        moved: &MovedMapping,
        remote: SocketAddrV4,
        of: Sent,
    ) -> Result<(), NotMoved> {
        let class = moved.class;
        if !self.is_inside(*moved.internal.ip()) || self.is_inside(*moved.external.ip()) {
            return Err(NotMoved::Conflict);
        }
        let touched = self.now.saturating_sub(moved.idle_s);
        let find = |of: &Translator| {
            [
                of.by_internal.get(key(class, moved.internal)),
                of.id_of_external(class, moved.external),
            ]
        };
        // What is over stands in nobody's way.
        for id in find(self).into_iter().flatten() {
            if self.live(id).is_none() && find(self).contains(&Some(id)) {
                self.end(id);
            }
        }
        if let [_, Some(id)] = find(self) {
            let mapping = self.slab.get_mut(id).ok_or(NotMoved::Conflict)?;
            if mapping.internal != moved.internal {
                return Err(NotMoved::Conflict);
            }
            mapping.merge(moved.remote, moved.state, touched);
            self.slab.hasten(id, &self.settings.timeouts);
            self.keep(id, moved, remote, of);
            return Ok(());
        }
        if self.slab.len() >= self.slab.limit() {
            return Err(NotMoved::Full);
        }
        if let Some(place) = self.pool.place(moved.external) {
            match self.pool.take_this(place, class.index(), *moved.internal.ip()) {
                Some(Some(assigned)) => self.records.block(true, assigned),
                Some(None) => {}
                // In use without a mapping: it was lent.
                None => self.lent = self.lent.saturating_sub(1),
            }
        }
        let mapping = NewMapping {
            internal: moved.internal,
            external: moved.external,
            remote: moved.remote,
            class,
            state: moved.state,
            touched,
        };
        let id = self.add(mapping).ok_or(NotMoved::Full)?;
        self.counters.imported += 1;
        self.keep(id, moved, remote, of);
        Ok(())
    }

    /// Notes that what the internal endpoint sends to `remote` keeps this mapping, if it has another one.
    fn keep(&mut self, id: Id, moved: &MovedMapping, remote: SocketAddrV4, of: Sent) {
        let own = self.by_internal.get(key(moved.class, moved.internal));
        if own == Some(id) || self.kept.len() >= self.slab.limit() {
            return;
        }
        let end = (moved.class, moved.internal, remote);
        let uses_own = || {
            own.and_then(|own| self.live(own))
                .is_some_and(|own| own.remote == remote)
        };
        if of == Sent::There {
            self.kept.insert(end, id);
        } else if !uses_own() {
            self.kept.entry(end).or_insert(id);
        }
    }

    /// Takes other settings over. If pool and limits are the same, mappings stay as they are; else `fresh`, which was
    /// made with those settings, takes the mappings that its pool has room for, and the old translator remains.
    pub(super) fn reload(&mut self, fresh: &mut Translator) {
        if self.settings.has_tables_of(&fresh.settings) {
            std::mem::swap(&mut self.settings, &mut fresh.settings);
            self.pool.set_blocks_per_host(self.settings.blocks_per_host);
            self.slab.rewind(&self.settings.timeouts);
            let log = Records::new(self.settings.log, self.settings.log_records_limit);
            let mut old = std::mem::replace(&mut self.records, log);
            self.records.set_time(old.time());
            self.records.append(&mut old);
            return;
        }
        fresh.turn(Nanos(u64::from(self.now) * 1_000_000_000));
        fresh.records.set_time(self.records.time());
        fresh.counters = self.counters;
        fresh.gives_since.set(self.gives_since.get());
        if self.lent > 0 {
            self.lend_again(fresh);
        }
        let mut ids: Vec<Id> = self.slab.ids().collect();
        // First those that an internal endpoint has for all other flows.
        ids.sort_by_key(|id| {
            let of = self.slab.get(*id).map(|of| key(of.class, of.internal));
            of.and_then(|of| self.by_internal.get(of)) != Some(*id)
        });
        let kept = self
            .kept
            .iter()
            .filter_map(|(flow, id)| Some((*flow, self.slab.get(*id)?.external)));
        let kept: Vec<_> = kept.collect();
        for id in ids {
            let moved = self.live(id).map(|mapping| self.value(mapping));
            let was_own = moved.is_some_and(|moved| self.pool.place(moved.external).is_some());
            self.end(id);
            let Some(moved) = moved else {
                continue;
            };
            // A foreign mapping stays one. One whose port this instance has lost ends.
            let is_own = fresh.pool.place(moved.external).is_some();
            if was_own != is_own || fresh.take_over(&moved, moved.remote, Sent::PerhapsHere).is_err() {
                fresh.counters.withdrawn += 1;
            }
        }
        fresh.kept.clear();
        for (flow, external) in kept {
            if let Some(id) = fresh.id_of_external(flow.0, external) {
                fresh.kept.insert(flow, id);
            }
        }
        fresh.counters.imported = self.counters.imported;
        let mut log = Records::new(fresh.settings.log, fresh.settings.log_records_limit);
        log.append(&mut self.records);
        log.append(&mut fresh.records);
        fresh.records = log;
        std::mem::swap(self, fresh);
    }

    /// Ports that are lent stay lent in another pool.
    fn lend_again(&self, other: &mut Translator) {
        for place in 0..self.pool.ports() as u32 {
            for class in 0..CLASSES {
                let is_lent = self.pool.is_taken(place, class)
                    && self.by_external[place as usize * CLASSES + class] == NONE;
                if is_lent && let Some(there) = other.pool.place(self.pool.external(place)) {
                    let lent = other.pool.take_this(there, class, Ipv4Addr::UNSPECIFIED);
                    other.lent += usize::from(lent.is_some());
                }
            }
        }
    }

    /// Whether an address is one of the inside.
    #[inline]
    pub(super) fn is_inside(&self, address: Ipv4Addr) -> bool {
        self.settings.is_inside(address)
    }
}
