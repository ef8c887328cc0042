//! Which instance the flows have that share one: those of a client's address, or between a client and a service's
//! address. All workers look into the same memory, because a client's flows may have several owners. Only new flows do,
//! and flows that are looked at whether they have expired.
//!
//! The memory outlives this process, so that the next run goes on with it.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use model::{AffinityKey, Nanos, ServiceId, Slot, Timeouts, Tuple};
use shared_memory::OwnMemory;
use switch::{Plan, ServicePlan, SwitchError};

use crate::keep::Keep;
use crate::soft::SoftSwitchConfig;

/// The name under which it is kept.
pub(crate) const NAME: &str = "shares/all";
/// Fewest clients that are remembered.
const CLIENTS_MIN: usize = 4096;
/// Places that a client may have, all in one cache line.
const WAYS: usize = 4;
/// Locks, each of many sets: workers seldom want the same one at a time.
const LOCKS: usize = 64;
/// Words of a place: the pin, and when it was last seen.
const PLACE_WORDS: usize = 2;
/// Words of the memory: which layout, of which services, the key of the places, how many sets of places; the epoch of
/// each slot's pins; the places.
const LAYOUT: u64 = 0x1ac0_3001;
const LAYOUT_AT: usize = 0;
const SERVICES_AT: usize = 1;
const KEY_AT: usize = 2;
const SETS_AT: usize = 4;
const EPOCHS_AT: usize = 8;
const PLACES_AT: usize = EPOCHS_AT + Slot::LIMIT;
/// How long beyond the longest timeout of a flow a client is remembered after a flow of it was last seen: a new flow may
/// take some time to come after the last one. As with the driver `ebpf`.
const SPARE: Nanos = Nanos::from_secs(60);
/// A pin: the tag of its client, the epoch of its slot, and the slot. No pin is 0.
const SLOT_BITS: u32 = 11;
const EPOCH_BITS: u32 = 13;
const TAG_SHIFT: u32 = SLOT_BITS + EPOCH_BITS;
const TAG_USED: u64 = 1 << 63;
/// For the places of clients: odd numbers without a pattern.
const MIX: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03];

/// What flows have in common that share an instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    service: ServiceId,
    client: IpAddr,
    server: Option<IpAddr>,
}

impl Shared {
    /// What a flow of the service has in common with others, by one of its packets; [`None`] where each flow is picked
    /// for itself.
    pub(crate) fn of(service: &ServicePlan, tuple: impl FnOnce() -> Tuple) -> Option<Shared> {
        if !service.affinity_key.shares_addresses() {
            return None;
        }
        let [client, server] = service.ends(&tuple());
        Some(Shared {
            service: service.id,
            client,
            server: (service.affinity_key == AffinityKey::Addresses).then_some(server),
        })
    }

    /// The addresses, as those of a packet without ports: for the hash by which such flows are picked.
    pub(crate) fn tuple(&self) -> Tuple {
        let none = match self.client {
            IpAddr::V4(_) => IpAddr::from([0_u8; 4]),
            IpAddr::V6(_) => IpAddr::from([0_u8; 16]),
        };
        Tuple {
            src: self.client,
            dst: self.server.unwrap_or(none),
            src_port: 0,
            dst_port: 0,
            protocol: 0,
            vlan: 0,
        }
    }
}

/// The pins that flows share, once a service has such flows.
#[derive(Clone, Debug, Default)]
pub struct SharedPins(pub(crate) Arc<OnceLock<Shares>>);

/// Makes them with the first plan that has such a service, and tells of slots whose flows go elsewhere.
pub(crate) struct SharesMaker {
    pub(crate) pins: SharedPins,
    clients: usize,
    key: [u64; 2],
    timeouts: Timeouts,
    keep: Option<Keep>,
    /// What an earlier run knew.
    before: Option<Earlier>,
}

/// What an earlier run knew.
pub(crate) struct Earlier {
    pub(crate) memory: OwnedFd,
    /// What the memory says of the services, where each has the number that it has now.
    pub(crate) services: Option<u64>,
}

impl SharesMaker {
    /// For a switch of these settings: as many clients as a table has IPv4 flows.
    pub(crate) fn new(config: &SoftSwitchConfig, before: Option<Earlier>) -> SharesMaker {
        SharesMaker {
            pins: SharedPins::default(),
            clients: config.table.ipv4_flows,
            key: [config.hash_key[1], config.hash_key[2]],
            timeouts: config.timeouts,
            keep: config.keep.clone(),
            before,
        }
    }

    /// A plan is to be published.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub(crate) fn follow(&mut self, plan: &Plan) -> Result<(), SwitchError> {
        let mut services = plan.services.iter();
        if self.pins.0.get().is_some() || !services.any(|of| of.affinity_key.shares_addresses()) {
            return Ok(());
        }
        let (keep, before) = (self.keep.as_ref(), self.before.take());
        let made = Shares::new(self.clients, self.key, &self.timeouts, keep, before);
        let made = made.map_err(|source| SwitchError::System {
            what: "memory for the instances that flows share".to_owned(),
            source,
        })?;
        let _first = self.pins.0.set(made);
        Ok(())
    }

    /// Flows of the instance in that slot get others.
    pub(crate) fn forget(&self, slot: Slot) {
        if let Some(shares) = self.pins.0.get() {
            shares.forget(slot);
        }
    }

    /// Flows of the instance in one slot get that in the other one.
    pub(crate) fn inherit(&self, from: Slot, to: Slot) {
        if let Some(shares) = self.pins.0.get() {
            shares.inherit(from, to);
        }
    }
}

/// The pins that flows share.
#[derive(Debug)]
pub(crate) struct Shares {
    memory: OwnMemory,
    /// Held while a set gets a client. Not in the memory, where a killed run would leave one held.
    locks: [Mutex<()>; LOCKS],
    sets: usize,
    remembered: Nanos,
}

impl Shares {
    /// For so many clients at least. `key` keeps senders from choosing whose place they take. What an earlier run knew
    /// `before` goes on if it is of the same services and size.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(
        clients: usize,
        key: [u64; 2],
        timeouts: &Timeouts,
        keep: Option<&Keep>,
        before: Option<Earlier>,
    ) -> io::Result<Shares> {
        // Twice as many places as clients: one in twenty sets then has more clients than places.
        let sets = clients.max(CLIENTS_MIN).div_ceil(WAYS / 2);
        let bytes = 8 * (PLACES_AT + sets * WAYS * PLACE_WORDS);
        let remembered = Nanos(timeouts.longest_in_use().0.saturating_add(SPARE.0));
        let services = keep.map_or(0, |keep| keep.numbering.tables);
        let header = [
            (LAYOUT_AT, LAYOUT),
            (SERVICES_AT, services),
            (SETS_AT, sets as u64),
        ];
        let of = |memory| Shares {
            memory,
            locks: [const { Mutex::new(()) }; LOCKS],
            sets,
            remembered,
        };
        if let Some(before) = before {
            let found = of(OwnMemory::open(before.memory.as_fd())?);
            let is_same = |(at, value): &(usize, u64)| {
                let word = found.word(*at).load(Ordering::Relaxed);
                word == *value || *at == SERVICES_AT && Some(word) == before.services
            };
            if 8 * found.memory.all_words().len() >= bytes && header.iter().all(is_same) {
                found.word(SERVICES_AT).store(services, Ordering::Relaxed);
                return Ok(found);
            }
        }
        let (file, memory) = OwnMemory::create("inco-shares", bytes, false)?;
        let shares = of(memory);
        for (at, value) in header.into_iter().chain((KEY_AT..).zip(key)) {
            shares.word(at).store(value, Ordering::Relaxed);
        }
        if let Some(keep) = keep {
            keep.keep(NAME, &(), &[file.as_fd()]);
        }
        Ok(shares)
    }

    /// The slot of those with which a flow shares it, if one of them was seen lately and `takes` flows. It goes on to be
    /// remembered.
    pub(crate) fn find(&self, of: &Shared, now: Nanos, takes: impl Fn(Slot) -> bool) -> Option<Slot> {
        let (set, tag) = self.place(of);
        let at = set
            .into_iter()
            .find(|at| self.load(*at) & !below(TAG_SHIFT) == tag)?;
        let slot = self.valid(self.load(at)).filter(|slot| takes(*slot))?;
        let seen = self.word(at + 1);
        if now.since(Nanos(seen.load(Ordering::Relaxed))) > self.remembered {
            return None;
        }
        seen.store(now.0, Ordering::Relaxed);
        Some(slot)
    }

    /// Notes the slot that was picked for a flow, for those with which it shares it. Gives the slot: another one, if
    /// another worker was first with one that `takes` flows.
    pub(crate) fn agree(&self, of: &Shared, slot: Slot, now: Nanos, takes: impl Fn(Slot) -> bool) -> Slot {
        let (set, tag) = self.place(of);
        // Of two workers that see a client first, the second finds what the first has noted.
        let lock = &self.locks[set[0] / (WAYS * PLACE_WORDS) % LOCKS];
        let _alone = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = self.find(of, now, takes) {
            return other;
        }
        let seen_at = |at: usize| self.word(at + 1).load(Ordering::Relaxed);
        let known = set
            .into_iter()
            .find(|at| self.load(*at) & !below(TAG_SHIFT) == tag);
        let free = || {
            set.into_iter().find(|at| {
                self.valid(self.load(*at)).is_none() || now.since(Nanos(seen_at(*at))) > self.remembered
            })
        };
        let oldest = || set.into_iter().min_by_key(|at| seen_at(*at));
        if let Some(at) = known.or_else(free).or_else(oldest) {
            let pin = tag | self.pin(slot);
            // In this order: until the second store, who looks without the lock takes the pin for one that is over.
            self.word(at).store(pin, Ordering::Release);
            self.word(at + 1).store(now.0, Ordering::Release);
        }
        slot
    }

    /// A flow of those was seen to go on.
    pub(crate) fn go_on(&self, of: &Shared, now: Nanos) {
        let _slot = self.find(of, now, |_| true);
    }

    /// Flows that share the instance in that slot get others: it has failed, has gone or lost its flows.
    pub(crate) fn forget(&self, slot: Slot) {
        if slot.index() < Slot::LIMIT {
            self.word(EPOCHS_AT + slot.index())
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Clients of the instance in one slot have that in the other one from now on.
    pub(crate) fn inherit(&self, from: Slot, to: Slot) {
        let places = (PLACES_AT..PLACES_AT + self.sets * WAYS * PLACE_WORDS).step_by(PLACE_WORDS);
        for at in places {
            let pin = self.load(at);
            if self.valid(pin) == Some(from) {
                let new = pin & !below(TAG_SHIFT) | self.pin(to);
                // Where another worker was faster, the client has got another slot just now.
                let _ = self
                    .word(at)
                    .compare_exchange(pin, new, Ordering::Release, Ordering::Relaxed);
            }
        }
    }

    /// A pin to that slot, without the tag of a client.
    fn pin(&self, slot: Slot) -> u64 {
        self.epoch(slot) << SLOT_BITS | u64::from(slot.0) & below(SLOT_BITS)
    }

    /// The slot of a pin that still holds.
    fn valid(&self, pin: u64) -> Option<Slot> {
        let slot = Slot((pin & below(SLOT_BITS)) as u16);
        let is_of_epoch = pin >> SLOT_BITS & below(EPOCH_BITS) == self.epoch(slot);
        (pin & TAG_USED != 0 && slot.index() < Slot::LIMIT && is_of_epoch).then_some(slot)
    }

    fn epoch(&self, slot: Slot) -> u64 {
        self.load(EPOCHS_AT + slot.index() % Slot::LIMIT) & below(EPOCH_BITS)
    }

    /// The places of a client, and its tag there.
    fn place(&self, of: &Shared) -> ([usize; WAYS], u64) {
        let key = [0, 1].map(|at| self.load(KEY_AT + at));
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let mut mixed = fold(u64::from(of.service.0) ^ MIX[0], key[0] ^ MIX[1]);
        for address in std::iter::once(of.client).chain(of.server) {
            let bits = match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
                IpAddr::V6(v6) => v6.to_bits(),
            };
            mixed = fold(
                mixed ^ bits as u64 ^ key[0] ^ MIX[0],
                (bits >> 64) as u64 ^ key[1] ^ MIX[1],
            );
            mixed = fold(mixed ^ MIX[1], key[0] ^ MIX[0]);
        }
        let set = ((u128::from(mixed) * self.sets as u128) >> 64) as usize;
        // The set is of the upper bits.
        let tag = (mixed << TAG_SHIFT | TAG_USED) & !below(TAG_SHIFT);
        let first = PLACES_AT + set * WAYS * PLACE_WORDS;
        (std::array::from_fn(|way| first + way * PLACE_WORDS), tag)
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        let words = self.memory.all_words();
        &words[at % words.len()]
    }

    #[inline]
    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }
}

/// The lowest bits.
const fn below(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const NOW: Nanos = Nanos::from_secs(1000);

    fn shares(before: Option<OwnedFd>) -> Shares {
        let timeouts = Timeouts::all(Nanos::from_secs(10));
        let before = before.map(|memory| Earlier {
            memory,
            services: None,
        });
        Shares::new(CLIENTS_MIN, [7, 9], &timeouts, None, before).unwrap()
    }

    fn client(number: u32) -> Shared {
        Shared {
            service: ServiceId(3),
            client: IpAddr::V4((0x0a00_0000 + number).into()),
            server: None,
        }
    }

    #[test]
    fn flows_share_what_the_first_of_them_was_given_until_it_is_over() {
        let shares = shares(None);
        let any = |_| true;
        assert_eq!(shares.find(&client(1), NOW, any), None);
        assert_eq!(shares.agree(&client(1), Slot(5), NOW, any), Slot(5));
        assert_eq!(
            shares.agree(&client(1), Slot(6), NOW, any),
            Slot(5),
            "it is too late"
        );
        assert_eq!(shares.find(&client(1), NOW, any), Some(Slot(5)));
        assert_eq!(shares.find(&client(2), NOW, any), None);
        let other_service = Shared {
            service: ServiceId(4),
            ..client(1)
        };
        let to_a_server = Shared {
            server: Some("192.0.2.1".parse().unwrap()),
            ..client(1)
        };
        for other in [other_service, to_a_server] {
            assert_eq!(shares.find(&other, NOW, any), None);
        }
        // One that drains takes no new flows: another one is noted.
        let takes = |slot| slot != Slot(5);
        assert_eq!(shares.find(&client(1), NOW, takes), None);
        assert_eq!(shares.agree(&client(1), Slot(6), NOW, takes), Slot(6));
        assert_eq!(shares.find(&client(1), NOW, takes), Some(Slot(6)));
        // Its flows were taken away.
        shares.forget(Slot(6));
        assert_eq!(shares.find(&client(1), NOW, any), None);
        assert_eq!(shares.agree(&client(1), Slot(6), NOW, any), Slot(6));
        // Seventy seconds after the last of them.
        let later = |seconds| NOW + Nanos::from_secs(seconds);
        shares.go_on(&client(1), later(60));
        assert_eq!(shares.find(&client(1), later(129), any), Some(Slot(6)));
        assert_eq!(shares.find(&client(1), later(200), any), None);
        assert_eq!(shares.agree(&client(1), Slot(7), later(200), any), Slot(7));
    }

    #[test]
    fn as_many_clients_as_there_are_places_are_remembered_and_the_oldest_go_first() {
        let shares = shares(None);
        let any = |_| true;
        let count = CLIENTS_MIN as u32;
        for number in 0..count {
            shares.agree(
                &client(number),
                Slot((number % 1000) as u16),
                NOW + Nanos(number.into()),
                any,
            );
        }
        let known =
            |number: &u32| shares.find(&client(*number), NOW, any) == Some(Slot((number % 1000) as u16));
        assert!((0..count).filter(known).count() as u32 > count * 95 / 100);
        for number in count..20 * count {
            shares.agree(&client(number), Slot(1), NOW + Nanos(number.into()), any);
        }
        assert!(
            (19 * count..20 * count)
                .all(|number| shares.find(&client(number), NOW, any).is_some() || number < 20 * count - 100)
        );
        assert_eq!((0..count).filter(known).count(), 0);
    }

    #[test]
    fn workers_that_see_a_client_at_once_agree() {
        let shares = shares(None);
        let barrier = Barrier::new(2);
        let picks = |slot: Slot| {
            // So few that none is forgotten for another one.
            let all = (0..1500).map(|number| {
                // At the same moment, as often as can be.
                if number % 10 == 0 {
                    barrier.wait();
                }
                shares.agree(&client(number), slot, NOW, |_| true)
            });
            all.collect::<Vec<_>>()
        };
        let (one, two) = std::thread::scope(|scope| {
            let other = scope.spawn(|| picks(Slot(1)));
            (picks(Slot(2)), other.join().unwrap())
        });
        let apart = one.iter().zip(&two).filter(|(one, two)| one != two).count();
        assert_eq!(apart, 0);
        assert!(one.contains(&Slot(1)) || two.contains(&Slot(2)));
    }

    #[test]
    fn the_next_run_goes_on_with_those_of_the_same_services() {
        let bytes = 8 * (PLACES_AT + 2 * CLIENTS_MIN * PLACE_WORDS);
        let (file, memory) = OwnMemory::create("test", bytes, false).unwrap();
        let copy = || Some(file.try_clone().unwrap());
        // Of no layout: begun anew.
        let new = shares(copy());
        new.agree(&client(1), Slot(1), NOW, |_| true);
        assert_eq!(memory.all_words()[LAYOUT_AT].load(Ordering::Relaxed), 0);
        let set = |at: usize, value: u64| memory.all_words()[at].store(value, Ordering::Relaxed);
        set(LAYOUT_AT, LAYOUT);
        set(SETS_AT, (2 * CLIENTS_MIN / WAYS) as u64);
        shares(copy()).agree(&client(1), Slot(9), NOW, |_| true);
        assert_eq!(shares(copy()).find(&client(1), NOW, |_| true), Some(Slot(9)));
        set(SERVICES_AT, 1);
        assert_eq!(shares(copy()).find(&client(1), NOW, |_| true), None);
    }
}
