//! Instances that others run: this machine's routes lead to them, through an uplink. No interface is made for them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use aya::maps::{HashMap, MapData};
use interfaces::Links;
use model::{ServiceId, Slot};
use switch::{Plan, SlotPlan, SwitchEvent};

use crate::instances::{by_version, free, row, void, write_vip};
use crate::kernel::Shared;
use crate::layout::{SLOT_DNAT, SLOT_ROUTED, SlotRow, slot_state, store_words};
use crate::rules::bytes;

/// Bytes of an address with its port, as programs look them up.
pub(crate) const KEY_BYTES: usize = 24;
/// The map of addresses with ports to slots plus one.
pub(crate) type Known = HashMap<MapData, [u8; KEY_BYTES], u32>;

/// How often the routes are asked whether they lead elsewhere.
const LOOK: Duration = Duration::from_secs(1);

/// A slot for an instance that others run.
#[derive(Default)]
struct BackEnd {
    /// Where it is, while one is attached.
    at: Option<SocketAddr>,
    is_failed: bool,
    /// Whether a plan of this run has had it.
    was_planned: bool,
    /// Where an earlier run had one.
    inherited: Option<SocketAddr>,
}

/// All of them.
pub(crate) struct BackEnds {
    all: BTreeMap<Slot, BackEnd>,
    known: Option<Known>,
    shared: Arc<Shared>,
    look_at: Instant,
}

impl BackEnds {
    /// Those of the slots. Where the state of an earlier run is taken over, what it had there serves on.
    pub(crate) fn start(
        slots: impl Iterator<Item = Slot>,
        known: Option<Known>,
        shared: Arc<Shared>,
        is_taken_over: bool,
    ) -> BackEnds {
        let inherited = |slot| is_taken_over.then(|| of_earlier(row(&shared, slot))).flatten();
        let all = slots.map(|slot| {
            let inherited = inherited(slot);
            if inherited.is_none() {
                free(&shared, slot);
                row(&shared, slot).flags.store(0, Relaxed);
            }
            let of = BackEnd {
                inherited,
                ..BackEnd::default()
            };
            (slot, of)
        });
        let all = all.collect();
        let mut back_ends = BackEnds {
            all,
            known,
            shared,
            look_at: Instant::now(),
        };
        if let Err(reason) = back_ends.write_known() {
            tracing::warn!(reason, "answers of back ends are not translated");
        }
        back_ends
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.all.keys().copied()
    }

    pub(crate) fn has(&self, slot: Slot) -> bool {
        self.all.contains_key(&slot)
    }

    /// Where an earlier run had instances.
    pub(crate) fn inherited(&self) -> BTreeMap<Slot, SocketAddr> {
        let all = self.all.iter();
        all.filter_map(|(slot, of)| Some((*slot, of.inherited?)))
            .collect()
    }

    pub(crate) fn is_usable(&self, slot: Slot) -> bool {
        self.all
            .get(&slot)
            .is_some_and(|of| of.at.is_some() && !of.is_failed)
    }

    /// Connects an instance. Gives false where one is connected already.
    pub(crate) fn attach(
        &mut self,
        slot: Slot,
        service: ServiceId,
        at: Option<SocketAddr>,
        links: &mut Links,
        events: &mut Vec<SwitchEvent>,
    ) -> bool {
        let Some(of) = self.all.get_mut(&slot).filter(|of| of.at.is_none()) else {
            return false;
        };
        let mut failed = |reason| events.push(SwitchEvent::AttachFailed { slot, reason });
        let Some(at) = at else {
            failed("it has no address".to_owned());
            return true;
        };
        let index = match way(&self.shared, links, at.ip()) {
            Ok(index) => index,
            Err(reason) => {
                failed(reason);
                return true;
            }
        };
        let to = row(&self.shared, slot);
        if of.inherited.take() != Some(at) {
            free(&self.shared, slot);
        }
        (of.at, of.is_failed, of.was_planned) = (Some(at), false, false);
        let (v4, v6) = by_version(&[at.ip()]);
        to.service.store(service.0, Relaxed);
        to.own4.store(v4, Relaxed);
        store_words(&to.own6, v6);
        to.target_port.store(at.port(), Relaxed);
        to.flags.store(SLOT_ROUTED | SLOT_DNAT, Relaxed);
        to.ifindex.store(index, Release);
        if let Err(reason) = self.write_known() {
            self.all.entry(slot).or_default().at = None;
            events.push(SwitchEvent::AttachFailed { slot, reason });
            return true;
        }
        let peer = at.to_string();
        events.push(SwitchEvent::Attached { slot, peer });
        true
    }

    pub(crate) fn fail(&mut self, slot: Slot) {
        if let Some(of) = self.all.get_mut(&slot) {
            of.is_failed = true;
            row(&self.shared, slot).state.store(slot_state::FAILED, Release);
            void(&self.shared, slot);
        }
    }

    pub(crate) fn detach(&mut self, slot: Slot, events: &mut Vec<SwitchEvent>) {
        if let Some(of) = self.all.get_mut(&slot) {
            *of = BackEnd::default();
            free(&self.shared, slot);
            if let Err(reason) = self.write_known() {
                tracing::warn!(%slot, reason, "what a back end sends is still taken for an answer");
            }
        }
        events.push(SwitchEvent::Detached { slot, outstanding: 0 });
    }

    /// Takes a plan over: which instances take new flows, which serve those they have.
    pub(crate) fn follow(&mut self, plan: &Plan) {
        for (slot, of) in &mut self.all {
            let row = row(&self.shared, *slot);
            match plan.slot(*slot) {
                Some(planned) if of.at.is_some() && !of.is_failed => {
                    of.was_planned = true;
                    write(row, plan, planned, of.at);
                }
                None if std::mem::take(&mut of.was_planned) && !of.is_failed => free(&self.shared, *slot),
                _ => {}
            }
        }
    }

    /// Looks again and again by which interface each is reached. After `is_over`, what an earlier run has left and
    /// nobody has asked for is gone.
    pub(crate) fn poll(&mut self, links: &mut Links, is_over: bool) {
        if is_over {
            for (slot, of) in &mut self.all {
                if of.inherited.take().is_some() {
                    free(&self.shared, *slot);
                }
            }
        }
        let now = Instant::now();
        if now < self.look_at || self.all.values().all(|of| of.at.is_none()) {
            return;
        }
        self.look_at = now + LOOK;
        for (slot, of) in &self.all {
            if let Some(at) = of.at {
                // Without a way its packets are dropped and counted, and its checks fail.
                let index = way(&self.shared, links, at.ip()).unwrap_or(0);
                row(&self.shared, *slot).ifindex.store(index, Release);
            }
        }
    }

    /// Leaves nothing in the slots.
    pub(crate) fn stop(&mut self) {
        for slot in self.all.keys() {
            free(&self.shared, *slot);
        }
    }

    /// Writes for the programs who is where.
    fn write_known(&mut self) -> Result<(), String> {
        let Some(known) = &mut self.known else {
            return Err("the programs have no map for them".to_owned());
        };
        let failed = |error: aya::maps::MapError| error.to_string();
        let all = self.all.iter();
        let wanted: Vec<([u8; KEY_BYTES], u32)> = all
            .filter_map(|(slot, of)| Some((key(of.at.or(of.inherited)?), u32::from(slot.0) + 1)))
            .collect();
        let there: Vec<[u8; KEY_BYTES]> = known.keys().flatten().collect();
        for key in there {
            if !wanted.iter().any(|(of, _)| *of == key) {
                known.remove(&key).map_err(failed)?;
            }
        }
        for (key, slot) in &wanted {
            known.insert(key, slot, 0).map_err(failed)?;
        }
        let count = &self.shared.world().settings.back_ends;
        count.store(wanted.len() as u32, Release);
        Ok(())
    }
}

/// The interface by which an address is reached: it must be an uplink, where the program sees what comes back.
fn way(shared: &Shared, links: &mut Links, to: IpAddr) -> Result<u32, String> {
    let index = links
        .way_to(to)
        .map_err(|error| format!("no route leads to {to}: {error}"))?;
    let uplinks = &shared.world().uplinks;
    if uplinks.iter().any(|of| of.ifindex.load(Relaxed) == index) {
        return Ok(index);
    }
    let links = links.list().unwrap_or_default();
    let name = links.into_iter().find(|link| link.index == index);
    let name = name.map_or_else(|| index.to_string(), |link| link.name);
    Err(format!(
        "the route to {to} leads through {name}, which is no uplink: write an [[uplink]] with device = \
         \"kernel:{name}\""
    ))
}

fn write(row: &SlotRow, plan: &Plan, planned: &SlotPlan, at: Option<SocketAddr>) {
    row.service.store(planned.service.0, Relaxed);
    if let Some(vip) = plan
        .service(planned.service)
        .and_then(|service| service.vip.as_ref())
    {
        write_vip(row, vip, at.map(|at| at.port()));
    }
    let state = if planned.state.takes_new_flows() {
        slot_state::ACTIVE
    } else {
        slot_state::SERVING
    };
    row.state.store(state, Release);
}

/// Where an earlier run had an instance in that slot, if it had one.
fn of_earlier(row: &SlotRow) -> Option<SocketAddr> {
    let state = row.state.load(Relaxed);
    let serves = state == slot_state::ACTIVE || state == slot_state::SERVING;
    if !serves || row.flags.load(Relaxed) & SLOT_ROUTED == 0 {
        return None;
    }
    let v4 = row.own4.load(Relaxed);
    let address = if v4 == 0 {
        let mut octets = [0; 16];
        for (to, word) in octets.chunks_exact_mut(8).zip(&row.own6) {
            to.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        IpAddr::V6(Ipv6Addr::from(octets))
    } else {
        IpAddr::V4(Ipv4Addr::from(v4.to_ne_bytes()))
    };
    Some(SocketAddr::new(address, row.target_port.load(Relaxed)))
}

/// An address with its port, as `struct back_end` of the programs has it.
fn key(at: SocketAddr) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..16].copy_from_slice(&bytes(at.ip()));
    key[16..18].copy_from_slice(&at.port().to_ne_bytes());
    key
}
