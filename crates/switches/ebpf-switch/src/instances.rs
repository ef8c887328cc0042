//! The instances at their ports: attached, failed, detached, and the pins to them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use interfaces::{Link, Links, Pairs, Remaker, instance_mac};
use model::{Nanos, PortKind, ServiceId, Slot, Vip, VipMode};
use switch::{Plan, PortSpec, SwitchEvent};

use crate::back_ends::BackEnds;
use crate::error::EbpfError;
use crate::kernel::{Kernel, Shared};
use crate::layout::{EPOCHS, SLOT_DNAT, SLOT_EGRESS, SlotRow, slot_state, store_bytes, store_words};
use crate::ports::{self, PreparedPort, lock};
use crate::readings::live_in;
use crate::rules::words;
use crate::tunnels::{TunnelEnd, Tunnels};

/// How long a pair that could not be made waits for the next attempt.
const RETRY: Duration = Duration::from_secs(1);
/// How long the instances of an earlier run have to be found again. After that their flows are given to others.
const ADOPT_PATIENCE: Duration = Duration::from_secs(15);

/// Where an instance is in its life at the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// None is attached.
    Free,
    /// It is to be connected by then.
    Attaching(Instant),
    Up,
    /// Its pair is being made again, and then it is free.
    Leaving,
    /// Its pair has gone while no instance was attached, and is being made again.
    Missing,
}

/// A port and its instance.
struct Port {
    of: PreparedPort,
    link: Link,
    /// What the kernel has told of the pair while it was being made again.
    newer: Option<Link>,
    phase: Phase,
    is_failed: bool,
    /// Whether a plan of this run has had it.
    was_planned: bool,
    /// Whether an earlier run has left it with an instance.
    is_inherited: bool,
    retry: Option<Instant>,
}

/// All ports.
pub(crate) struct Instances {
    ports: BTreeMap<Slot, Port>,
    /// Those that others run, which have no ports.
    pub(crate) back_ends: BackEnds,
    /// Those that are machines behind tunnels.
    pub(crate) tunnels: Tunnels,
    shared: Arc<Shared>,
    remaker: Remaker<EbpfError>,
    adopt_until: Option<Instant>,
}

impl Instances {
    /// Makes the pairs that are missing, and attaches the program to all.
    ///
    /// # Errors
    /// A pair cannot be made.
    pub(crate) fn start(
        (ports, end): (&[PreparedPort], Option<&TunnelEnd>),
        pairs: Pairs,
        links: &mut Links,
        kernel: &Arc<Mutex<Kernel>>,
        shared: Arc<Shared>,
        is_taken_over: bool,
    ) -> Result<Instances, EbpfError> {
        let of_kind = |kind| {
            let ports = ports.iter().filter(move |port| port.kind == kind);
            ports.map(|port| port.slot)
        };
        let known = lock(kernel).take_back_ends();
        let routed = of_kind(PortKind::Routed);
        let back_ends = BackEnds::start(routed, known, Arc::clone(&shared), is_taken_over);
        let machines = of_kind(PortKind::Tunnel);
        let tunnels = Tunnels::start(
            end,
            machines,
            &mut lock(kernel),
            Arc::clone(&shared),
            is_taken_over,
        )?;
        let listed = links.list().map_err(|source| EbpfError::System {
            what: "listing interfaces",
            source,
        })?;
        let there: BTreeMap<Slot, Link> = listed
            .into_iter()
            .filter_map(|link| Some((pairs.slot_of(&link.name)?, link)))
            .collect();
        for (slot, link) in &there {
            if !of_kind(PortKind::Kernel).any(|of| of == *slot) {
                if !back_ends.has(*slot) && !tunnels.has(*slot) {
                    free(&shared, *slot);
                }
                // Of an earlier configuration.
                let removed = links.remove(&link.name);
                removed.map_err(|source| interfaces::Error {
                    interface: link.name.clone(),
                    source,
                })?;
            }
        }
        let mut all = BTreeMap::new();
        for of in ports.iter().filter(|port| port.kind == PortKind::Kernel) {
            let slot = of.slot;
            let kept = there.get(&slot).filter(|link| is_taken_over && link.is_veth);
            let link = match kept {
                Some(link) => {
                    ports::attach(&pairs, kernel, slot)?;
                    link.clone()
                }
                None => {
                    free(&shared, slot);
                    ports::make(&pairs, links, kernel, slot)?
                }
            };
            let is_inherited = kept.is_some() && link.peer_is_away && link.has_carrier;
            let port = Port {
                of: of.clone(),
                link,
                newer: None,
                phase: Phase::Free,
                is_failed: false,
                was_planned: false,
                is_inherited,
                retry: None,
            };
            port.write(row(&shared, slot));
            all.insert(slot, port);
        }
        let remaker = ports::remaker(pairs, Arc::clone(kernel)).map_err(|source| EbpfError::System {
            what: "starting a thread",
            source,
        })?;
        Ok(Instances {
            ports: all,
            back_ends,
            tunnels,
            shared,
            remaker,
            adopt_until: is_taken_over.then(|| Instant::now() + ADOPT_PATIENCE),
        })
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        let own = self.ports.keys().copied();
        own.chain(self.back_ends.slots()).chain(self.tunnels.slots())
    }

    /// The addresses of instances' own, with their service.
    pub(crate) fn own_addresses(&self) -> impl Iterator<Item = (ServiceId, IpAddr)> {
        let ports = self.ports.values();
        ports.flat_map(|port| port.of.own.iter().map(|address| (port.of.service, *address)))
    }

    pub(crate) fn has(&self, slot: Slot) -> bool {
        self.ports.contains_key(&slot) || self.back_ends.has(slot) || self.tunnels.has(slot)
    }

    /// Slots whose instance an earlier run has left.
    pub(crate) fn inherited(&self) -> impl Iterator<Item = Slot> {
        self.ports
            .iter()
            .filter(|(_, port)| port.is_inherited)
            .map(|(slot, _)| *slot)
    }

    /// Where an earlier run had instances that others run.
    pub(crate) fn inherited_elsewhere(&self) -> BTreeMap<Slot, SocketAddr> {
        let mut all = self.back_ends.inherited();
        all.extend(self.tunnels.inherited());
        all
    }

    /// Whether an instance there can be given flows.
    pub(crate) fn is_usable(&self, slot: Slot) -> bool {
        self.ports
            .get(&slot)
            .is_some_and(|port| port.phase == Phase::Up && !port.is_failed)
            || self.back_ends.is_usable(slot)
            || self.tunnels.is_usable(slot)
    }

    /// Connects an instance. Gives false where one is connected already.
    pub(crate) fn attach(
        &mut self,
        slot: Slot,
        service: ServiceId,
        of: &PortSpec,
        links: &mut Links,
        events: &mut Vec<SwitchEvent>,
    ) -> bool {
        if self.back_ends.has(slot) {
            return self.back_ends.attach(slot, service, of.back_end, links, events);
        }
        if self.tunnels.has(slot) {
            return self.tunnels.attach(slot, service, of.back_end, events);
        }
        let Some(port) = self.ports.get_mut(&slot) else {
            return false;
        };
        if port.phase != Phase::Free {
            return false;
        }
        port.of.service = service;
        port.phase = Phase::Attaching(Instant::now() + Duration::from_nanos(of.deadline.0));
        port.is_failed = false;
        port.was_planned = false;
        port.write(row(&self.shared, slot));
        true
    }

    /// Removes every pin to the slot.
    pub(crate) fn purge(&mut self, slot: Slot) {
        void(&self.shared, slot);
    }

    /// The instance has failed: it gets nothing more, and nothing more comes from it.
    pub(crate) fn fail(&mut self, slot: Slot) {
        if let Some(port) = self.ports.get_mut(&slot) {
            port.is_failed = true;
            row(&self.shared, slot).state.store(slot_state::FAILED, Release);
            void(&self.shared, slot);
        }
        self.back_ends.fail(slot);
        self.tunnels.fail(slot);
    }

    /// Disconnects an instance, or tells that there is none.
    pub(crate) fn detach(&mut self, slot: Slot, links: &mut Links, events: &mut Vec<SwitchEvent>) {
        if self.back_ends.has(slot) {
            return self.back_ends.detach(slot, events);
        }
        if self.tunnels.has(slot) {
            return self.tunnels.detach(slot, events);
        }
        let detached = SwitchEvent::Detached { slot, outstanding: 0 };
        let Some(port) = self.ports.get_mut(&slot) else {
            events.push(detached);
            return;
        };
        match port.phase {
            Phase::Leaving => return,
            Phase::Missing => {
                port.phase = Phase::Leaving;
                return;
            }
            Phase::Free | Phase::Attaching(_) | Phase::Up => {}
        }
        free(&self.shared, slot);
        port.is_inherited = false;
        // What the kernel tells of it may be still to come.
        let is_away = links.find(&port.link.name).map_or(true, |link| link.peer_is_away);
        if is_away {
            port.phase = Phase::Leaving;
            self.remaker.remake(slot);
        } else {
            port.phase = Phase::Free;
            events.push(detached);
        }
    }

    /// Takes a plan over: which instances take new flows, which serve those they have.
    pub(crate) fn follow(&mut self, plan: &Plan) {
        self.back_ends.follow(plan);
        self.tunnels.follow(plan);
        for (slot, port) in &mut self.ports {
            let row = row(&self.shared, *slot);
            match plan.slot(*slot) {
                Some(of) if port.phase == Phase::Up && !port.is_failed => {
                    port.was_planned = true;
                    port.is_inherited = false;
                    port.of.service = of.service;
                    if let Some(vip) = plan.service(of.service).and_then(|service| service.vip.as_ref()) {
                        port.write_vip(row, vip);
                    }
                    let takes = of.state.takes_new_flows();
                    let state = if takes {
                        slot_state::ACTIVE
                    } else {
                        slot_state::SERVING
                    };
                    row.state.store(state, Release);
                }
                None if port.was_planned => {
                    port.was_planned = false;
                    if !port.is_failed {
                        free(&self.shared, *slot);
                    }
                }
                _ => {}
            }
        }
    }

    /// An interface has changed.
    pub(crate) fn see(&mut self, slot: Slot, link: &Link, events: &mut Vec<SwitchEvent>) {
        let Some(port) = self.ports.get_mut(&slot) else {
            return;
        };
        if matches!(port.phase, Phase::Leaving | Phase::Missing) {
            port.newer = Some(link.clone());
            return;
        }
        if link.is_gone && link.index != port.link.index {
            return;
        }
        let was_up = port.link.has_carrier && !port.link.is_gone;
        port.link = link.clone();
        row(&self.shared, slot).ifindex.store(port.index(), Release);
        if port.phase == Phase::Up && was_up && (link.is_gone || !link.has_carrier) {
            let what = if link.is_gone { "is gone" } else { "is down" };
            let reason = format!("its interface {what}");
            events.push(SwitchEvent::PortDown { slot, reason });
        }
    }

    /// Moves on what is under way.
    pub(crate) fn poll(&mut self, at: Nanos, links: &mut Links, events: &mut Vec<SwitchEvent>) {
        let now = Instant::now();
        while let Some((slot, made)) = self.remaker.done() {
            let Some(port) = self.ports.get_mut(&slot) else {
                continue;
            };
            match made {
                Ok(link) => {
                    let newer = port.newer.take().filter(|newer| newer.index == link.index);
                    port.link = newer.unwrap_or(link);
                    if port.phase == Phase::Leaving {
                        events.push(SwitchEvent::Detached { slot, outstanding: 0 });
                    }
                    port.phase = Phase::Free;
                    port.write(row(&self.shared, slot));
                }
                Err(error) => {
                    port.retry = Some(now + RETRY);
                    let reason = format!("{error}; it is tried again");
                    events.push(SwitchEvent::Trouble {
                        what: format!("the port of {slot}"),
                        reason,
                    });
                }
            }
        }
        let is_over = self.adopt_until.is_some_and(|until| now >= until);
        if is_over {
            self.adopt_until = None;
        }
        self.back_ends.poll(links, is_over);
        self.tunnels.poll(at, is_over, events);
        for (slot, port) in &mut self.ports {
            if port.retry.is_some_and(|at| now >= at) {
                port.retry = None;
                self.remaker.remake(*slot);
            }
            if port.phase == Phase::Free && port.link.is_gone {
                port.phase = Phase::Missing;
                self.remaker.remake(*slot);
            }
            if let Phase::Attaching(deadline) = port.phase {
                if port.link.has_carrier && port.link.peer_is_away && !port.link.is_gone {
                    port.phase = Phase::Up;
                    let peer = format!("interface {}", port.link.name);
                    events.push(SwitchEvent::Attached { slot: *slot, peer });
                } else if now >= deadline {
                    port.phase = Phase::Free;
                    let reason = "its interface did not come up in the container".to_owned();
                    events.push(SwitchEvent::AttachFailed { slot: *slot, reason });
                }
            }
            if is_over && port.phase == Phase::Free && port.is_inherited {
                port.is_inherited = false;
                free(&self.shared, *slot);
            }
        }
    }

    /// Ends the thread, and removes all pairs if they are not left to the next run.
    pub(crate) fn stop(&mut self, links: Option<&mut Links>) {
        self.remaker.stop();
        let Some(links) = links else { return };
        self.back_ends.stop();
        self.tunnels.stop();
        for (slot, port) in &self.ports {
            free(&self.shared, *slot);
            if let Err(error) = links.remove(&port.link.name) {
                tracing::warn!(interface = port.link.name, %error, "the interface stays");
            }
        }
    }
}

impl Port {
    /// The interface that packets go to; 0 where the kernel would drop them without a word: the other end is down.
    const fn index(&self) -> u32 {
        if self.link.is_gone || !self.link.has_carrier {
            0
        } else {
            self.link.index
        }
    }

    /// Writes what does not depend on a plan.
    fn write(&self, row: &SlotRow) {
        row.service.store(self.of.service.0, Relaxed);
        // An instance of an earlier run is served on as it was until a plan says how.
        let translates = row.flags.load(Relaxed) & SLOT_DNAT != 0;
        row.flags.store(self.flags(translates), Relaxed);
        store_bytes(&row.mac, instance_mac(self.of.slot));
        let (v4, v6) = by_version(&self.of.own);
        row.own4.store(v4, Relaxed);
        store_words(&row.own6, v6);
        row.ifindex.store(self.index(), Release);
    }

    const fn flags(&self, translates: bool) -> u8 {
        let egress = if self.of.egress { SLOT_EGRESS } else { 0 };
        if translates { egress | SLOT_DNAT } else { egress }
    }

    /// Writes the service's address, and how it becomes the instance's.
    fn write_vip(&self, row: &SlotRow, vip: &Vip) {
        write_vip(row, vip, vip.target_port);
        row.flags.store(self.flags(vip.mode == VipMode::Dnat), Release);
    }
}

/// Writes the service's address, and the port of it that becomes the instance's, if one does.
pub(crate) fn write_vip(row: &SlotRow, vip: &Vip, target_port: Option<u16>) {
    let (v4, v6) = by_version(&vip.addresses);
    row.vip4.store(v4, Relaxed);
    store_words(&row.vip6, v6);
    let port = vip.ports.first().map_or(0, |range| *range.start());
    let ports = target_port.map_or((0, 0), |target| (port, target));
    row.port.store(ports.0, Relaxed);
    row.target_port.store(ports.1, Relaxed);
}

/// The last address of each IP version, as it lies in packets; 0 for none.
pub(crate) fn by_version(addresses: &[IpAddr]) -> (u32, [u64; 2]) {
    addresses
        .iter()
        .fold((0, [0; 2]), |(v4, v6), address| match address {
            IpAddr::V4(of) => (u32::from_ne_bytes(of.octets()), v6),
            IpAddr::V6(_) => (v4, words(*address)),
        })
}

pub(crate) fn row(shared: &Shared, slot: Slot) -> &SlotRow {
    &shared.world().slots[slot.index() % Slot::LIMIT]
}

/// Makes every pin to the slot invalid: those of the epoch that ends here.
pub(crate) fn void(shared: &Shared, slot: Slot) {
    let row = row(shared, slot);
    let next = row.epoch.load(Relaxed).wrapping_add(1);
    // Entries of an epoch that long ago count for nothing any more.
    let left = live_in(shared, slot, next);
    shared.own_counts().slots[slot.index()].ended[next as usize % EPOCHS].fetch_add(left, Relaxed);
    row.epoch.store(next, Release);
}

/// No instance is there any more, and no pin to one.
pub(crate) fn free(shared: &Shared, slot: Slot) {
    let row = row(shared, slot);
    if row.state.swap(slot_state::FREE, Release) != slot_state::FREE || row.epoch.load(Relaxed) == 0 {
        void(shared, slot);
    }
}
