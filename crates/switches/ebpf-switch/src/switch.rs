//! The driver: the contract of a switch over the programs in the kernel.

use std::net::IpAddr;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clock::monotonic;
use flow_table::AttachCounts;
use interfaces::{GATEWAY_MAC, LinkWatch, Links, Pairs};
use model::{Fallback, Generation, Nanos, ServiceId, Slot, TableFull, UplinkId};
use switch::{
    Capabilities, Change, Plan, Resumed, Switch, SwitchError, SwitchEvent, SwitchReading, SwitchRequest,
    WakeUp,
};

use crate::config::{CAPABILITIES, EbpfSwitchConfig};
use crate::error::{EbpfError, check_kernel};
use crate::events::{Alarm, Events};
use crate::instances::Instances;
use crate::kernel::{Found, Kernel, Leftovers, Loaded, Shared, Sizes};
use crate::layout::{RULES, SERVICES, UPLINKS, fallback, shared_by, store_bytes, store_words};
use crate::picks::{Now, Picker};
use crate::ports::lock;
use crate::release::Release as Programs;
use crate::signals::Signals;
use crate::table::{Lister, Question};
use crate::uplinks::Uplinks;
use crate::{readings, rules, table};

/// Entries of the table of what flows share, where none do.
const SHARED_MIN: u32 = 64;
/// What flows share is remembered for that much longer than the longest idle timeout: a flow that goes on is noted
/// after 64 packets or after a second's pause.
const SHARED_SPARE: Nanos = Nanos::from_secs(60);
/// How long a program that reads what was there before may still run. One takes microseconds.
pub(crate) const GRACE: Duration = Duration::from_millis(1);

/// Whether the driver can be had on this machine.
///
/// # Errors
/// The kernel is too old.
pub fn check() -> Result<(), EbpfError> {
    check_kernel()
}

/// Removes what a run of that name has left in the kernel, as [`Switch::stop`] would have.
///
/// # Errors
/// The system refuses.
pub fn remove_all(name: &str, prefix: &str) -> Result<(), EbpfError> {
    let Some(left) = Leftovers::of(name) else {
        return Ok(());
    };
    let system = |what| move |source| EbpfError::System { what, source };
    let mut links = Links::new().map_err(system("netlink"))?;
    let pairs = pairs(prefix, 0);
    for link in links.list().map_err(system("listing interfaces"))? {
        if left.uplinks.contains(&link.index) {
            Kernel::detach(&link.name);
        } else if pairs.slot_of(&link.name).is_some() {
            links
                .remove(&link.name)
                .map_err(system("removing an interface"))?;
        }
    }
    left.remove();
    Ok(())
}

/// How the pairs of this driver are made: its programs take all that comes from instances.
fn pairs(prefix: &str, mtu: u16) -> Pairs {
    Pairs {
        prefix: prefix.to_owned(),
        mtu: u32::from(mtu),
        is_apart: false,
    }
}

/// Steers by programs in the kernel.
pub struct EbpfSwitch {
    kernel: Arc<Mutex<Kernel>>,
    shared: Arc<Shared>,
    links: Links,
    watch: LinkWatch,
    pairs: Pairs,
    uplinks: Uplinks,
    instances: Instances,
    lister: Lister,
    signals: Option<Signals>,
    told: Events,
    steering: Steering,
    flow_limit: u64,
    half_open: i32,
    resumed: Resumed,
    events: Vec<SwitchEvent>,
}

/// What is steered by.
struct Steering {
    plan: Arc<Plan>,
    rules: Vec<rules::Rule>,
    /// Addresses that are answered for, each with a bit for each uplink.
    addresses: Vec<(IpAddr, u32)>,
    pickers: Vec<Picker>,
    loads: Vec<f32>,
    /// Whether loads or instances have changed since picks were prepared.
    has_changed: bool,
    acknowledged: Generation,
    /// Plans that programs may not have seen yet.
    coming: Vec<(Generation, Instant)>,
}

impl EbpfSwitch {
    /// Loads the programs, or takes over what an earlier run has left. A failure leaves what was there before.
    ///
    /// # Errors
    /// The kernel refuses, or an interface is missing.
    pub fn start(config: &EbpfSwitchConfig) -> Result<EbpfSwitch, EbpfError> {
        EbpfSwitch::start_as(config, &Programs::THIS)
    }

    /// The same with the programs of a release.
    ///
    /// # Errors
    /// As [`EbpfSwitch::start`].
    pub fn start_as(config: &EbpfSwitchConfig, release: &Programs) -> Result<EbpfSwitch, EbpfError> {
        let is_first = Leftovers::of(&config.name).is_none();
        let started = EbpfSwitch::start_over(config, release);
        if started.is_err()
            && is_first
            && let Err(error) = remove_all(&config.name, &config.prefix)
        {
            tracing::warn!(%error, "what is pinned in the kernel stays until the next start or `inco stop`");
        }
        started
    }

    /// The same, but what was made before a failure stays.
    fn start_over(config: &EbpfSwitchConfig, release: &Programs) -> Result<EbpfSwitch, EbpfError> {
        let system = |what| move |source| EbpfError::System { what, source };
        if config.uplinks.len() > UPLINKS {
            return Err(EbpfError::Limit {
                what: "uplinks",
                asked: config.uplinks.len(),
                limit: UPLINKS,
            });
        }
        let sizes = Sizes {
            flows: config.flows,
            shared_pins: if config.shares {
                config.flows[0].max(SHARED_MIN)
            } else {
                SHARED_MIN
            },
        };
        let Loaded {
            mut kernel,
            shared,
            events,
            found,
            take_over,
        } = Kernel::load(&config.name, sizes, release)?;
        let signals = kernel.take_signals();
        let taken_at = monotonic();
        let (kernel, shared) = (Arc::new(Mutex::new(kernel)), Arc::new(shared));
        let is_taken_over = matches!(found, Found::Taken | Found::Older(_));
        write_settings(&shared, config, is_taken_over);
        let mut links = Links::new().map_err(system("netlink"))?;
        // Before interfaces are listed: what changes after that is told.
        let watch = LinkWatch::new().map_err(system("netlink"))?;
        let pairs = pairs(&config.prefix, config.mtu);
        let instances = Instances::start(
            (&config.ports, config.tunnel.as_ref()),
            pairs.clone(),
            &mut links,
            &kernel,
            Arc::clone(&shared),
            is_taken_over,
        )?;
        leave_others(&mut links, &shared, config);
        let uplinks = Uplinks::start(&config.uplinks, &mut links, &kernel, &shared)?;
        let converted = take_over.map(|of| of.finish(&shared)).transpose();
        let converted = converted.map_err(system("copying flows of the layout before"))?;
        shared.world().settings.by_hash.store(0, Release);
        let lister = Lister::start(Arc::clone(&shared)).map_err(system("starting a thread"))?;
        let told = Events::start(events, &shared).map_err(system("starting a thread"))?;
        let smaller_table = config.flows.into_iter().min().unwrap_or_default();
        let mut switch = EbpfSwitch {
            kernel,
            links,
            watch,
            pairs,
            uplinks,
            instances,
            lister,
            signals,
            told,
            steering: Steering {
                plan: Arc::default(),
                rules: Vec::new(),
                addresses: Vec::new(),
                pickers: Vec::new(),
                loads: vec![0.0; Slot::LIMIT],
                has_changed: false,
                // An earlier run counted its own plans.
                acknowledged: Generation(0),
                coming: Vec::new(),
            },
            flow_limit: config.flows.iter().map(|limit| u64::from(*limit)).sum(),
            half_open: i32::try_from(config.half_open.unwrap_or(smaller_table / 4)).unwrap_or(i32::MAX),
            resumed: Resumed::default(),
            events: Vec::new(),
            shared,
        };
        switch.resumed = match found {
            Found::Nothing => Resumed::default(),
            Found::Taken | Found::Older(_) => switch.resumption(taken_at, converted, Vec::new()),
            Found::Unusable(reason) => switch.resumption(taken_at, None, vec![reason]),
        };
        Ok(switch)
    }

    fn resumption(&self, taken_at: Nanos, copied: Option<AttachCounts>, rejected: Vec<String>) -> Resumed {
        let counted = self
            .instances
            .slots()
            .map(|slot| (slot, readings::live(&self.shared, slot)));
        let live: std::collections::BTreeMap<_, _> = counted.filter(|(_, live)| *live > 0).collect();
        Resumed {
            taken_at,
            attached_at: monotonic(),
            flows: AttachCounts {
                flows: live.values().sum(),
                ..copied.unwrap_or_default()
            },
            converted: copied.map_or(0, |_| self.shared.tables()),
            live,
            instances: self.instances.inherited().count(),
            uplinks: self.uplinks.up(),
            back_ends: self.instances.inherited_elsewhere(),
            rejected,
        }
    }

    fn publish_plan(&mut self, plan: &Arc<Plan>) -> Result<(), SwitchError> {
        plan.validate(&CAPABILITIES)?;
        let compiled = rules::compile(plan);
        for (what, asked, limit) in [
            ("rules of services' matches", compiled.len(), RULES),
            ("services", plan.services.len(), SERVICES),
        ] {
            if asked > limit {
                return Err(SwitchError::Limit { what, asked, limit });
            }
        }
        let others = self.instances.tunnels.answers();
        let addresses = rules::addresses(plan, self.instances.own_addresses(), others);
        if addresses != self.steering.addresses {
            let wanted: Vec<_> = addresses
                .iter()
                .map(|(of, uplinks)| (rules::bytes(*of), *uplinks))
                .collect();
            let answered = lock(&self.kernel).answer_for(&wanted);
            answered.map_err(|error| SwitchError::Port {
                reason: error.to_string(),
            })?;
            self.steering.addresses = addresses;
            self.uplinks.announce(&self.steering.addresses);
        }
        let shared = Arc::clone(&self.shared);
        let world = shared.world();
        for service in &plan.services {
            let row = &world.services[service.id.index() % SERVICES];
            row.drops_when_full
                .store(u32::from(service.table_full == TableFull::Drop), Relaxed);
            row.shared_by.store(shared_by(service.affinity_key), Relaxed);
            row.half_open_limit.store(self.half_open, Relaxed);
            row.vlan
                .store(u32::from(service.matches.vlan.unwrap_or(0)), Relaxed);
            row.uplink
                .store(service.uplinks.first().map_or(0, |id| u32::from(id.0)), Relaxed);
        }
        self.instances.follow(plan);
        self.steering.follow(plan, &self.shared);
        self.steering.has_changed = true;
        self.prepare(monotonic());
        let settings = &world.settings;
        let (unmatched, other) = (way(plan.unmatched), way(plan.other));
        for (number, uplink) in (0_u8..).zip(&world.uplinks) {
            let exit = |of: Fallback| of.exit(UplinkId(number));
            let to = |of| exit(of).map_or(0, |id| self.uplinks.index_of(id));
            uplink.unmatched_to.store(to(plan.unmatched), Relaxed);
            uplink.other_to.store(to(plan.other), Relaxed);
        }
        settings.unmatched.store(unmatched, Relaxed);
        settings.other.store(other, Relaxed);
        if compiled != self.steering.rules {
            rules::publish(world, &compiled);
            self.steering.rules = compiled;
        }
        settings.generation.store(plan.generation.0, Release);
        self.steering
            .coming
            .push((plan.generation, Instant::now() + GRACE));
        Ok(())
    }

    /// Prepares picks where that is due.
    fn prepare(&mut self, at: Nanos) {
        let Steering {
            plan,
            pickers,
            loads,
            has_changed,
            ..
        } = &mut self.steering;
        let now = Now {
            at,
            plan,
            loads,
            live: &|slot| u32::try_from(readings::live(&self.shared, slot)).unwrap_or(u32::MAX),
            is_usable: &|slot| self.instances.is_usable(slot),
            has_changed: std::mem::take(has_changed),
        };
        for picker in pickers {
            picker.prepare(&self.shared.world().services[picker.id.index() % SERVICES], &now);
        }
    }

    fn change(&mut self, change: Change) -> Result<(), SwitchError> {
        match change {
            Change::PurgeFlow(key) => {
                table::purge(&self.shared, &key).map_err(|source| SwitchError::System {
                    what: "removing a flow".to_owned(),
                    source,
                })?;
            }
            Change::MoveFlow { .. } => return Err(SwitchError::Unsupported { what: "move a flow" }),
            Change::SetScheduler { service, scheduler } => {
                let picker = self.steering.pickers.iter_mut().find(|of| of.id == service);
                if let Some(picker) = picker {
                    picker.set_scheduler(scheduler);
                }
                self.steering.has_changed = true;
            }
        }
        Ok(())
    }
}

impl Steering {
    /// Takes over the services of a plan.
    fn follow(&mut self, plan: &Arc<Plan>, shared: &Shared) {
        self.plan = Arc::clone(plan);
        self.pickers.retain(|of| plan.service(of.id).is_some());
        for service in &plan.services {
            if !self.pickers.iter().any(|of| of.id == service.id) {
                let row = &shared.world().services[service.id.index() % SERVICES];
                self.pickers.push(Picker::new(service, row));
            }
        }
    }
}

const fn way(of: Fallback) -> u32 {
    match of {
        Fallback::Host => fallback::HOST,
        Fallback::Drop => fallback::DROP,
        Fallback::Pass(_) | Fallback::Opposite => fallback::PASS,
    }
}

/// Writes what holds for as long as the switch runs. Pins carry a part of their key's hash, so its key stays.
fn write_settings(shared: &Shared, config: &EbpfSwitchConfig, is_taken_over: bool) {
    let settings = &shared.world().settings;
    let of = &config.timeouts;
    let timeouts = [
        of.tcp_handshake,
        of.tcp,
        of.tcp_linger,
        of.udp,
        of.sctp,
        of.icmp,
        of.other,
    ];
    for (to, timeout) in settings.timeouts.iter().zip(timeouts) {
        to.store(timeout.0, Relaxed);
    }
    let shared = of.longest_in_use().0.saturating_add(SHARED_SPARE.0);
    settings.shared_ns.store(shared, Relaxed);
    store_bytes(&settings.gateway_mac, GATEWAY_MAC);
    if !is_taken_over {
        store_words(&settings.hash_key, config.hash_key);
    }
}

/// Takes the program off uplinks that an earlier run had and this one has not.
fn leave_others(links: &mut Links, shared: &Shared, config: &EbpfSwitchConfig) {
    let rows = &shared.world().uplinks;
    let had: Vec<u32> = rows.iter().map(|of| of.ifindex.load(Relaxed)).collect();
    for link in links.list().unwrap_or_default() {
        if had.contains(&link.index) && !config.uplinks.contains(&link.name) {
            Kernel::detach(&link.name);
        }
    }
    // The others send on meanwhile.
    for row in rows.iter().skip(config.uplinks.len()) {
        row.ifindex.store(0, Relaxed);
    }
}

impl Switch for EbpfSwitch {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn request(&mut self, request: SwitchRequest) -> Result<(), SwitchError> {
        let unsupported = |what| Err(SwitchError::Unsupported { what });
        match request {
            SwitchRequest::Publish(plan) => return self.publish_plan(&plan),
            SwitchRequest::Attach { slot, service, port } => {
                if !CAPABILITIES.connects(port.kind) {
                    return Err(SwitchError::Unsupported {
                        what: "connect ports of that kind",
                    });
                }
                if !self.instances.has(slot) {
                    return Err(SwitchError::Limit {
                        what: "slots with a port",
                        asked: slot.index() + 1,
                        limit: self.instances.slots().count(),
                    });
                }
                let (links, events) = (&mut self.links, &mut self.events);
                if !self.instances.attach(slot, service, &port, links, events) {
                    return Err(SwitchError::SlotInUse { slot });
                }
            }
            SwitchRequest::Detach(slot) => {
                self.instances.detach(slot, &mut self.links, &mut self.events);
            }
            SwitchRequest::Fail(slot) => self.instances.fail(slot),
            SwitchRequest::PurgeSlot(slot) => self.instances.purge(slot),
            SwitchRequest::Mappings(_) => return unsupported("hand mappings over"),
            SwitchRequest::OpenUplink(_) => {}
            SwitchRequest::Change(change) => return self.change(change),
            SwitchRequest::Flows { id, filter, limit } => self.lister.ask(Question { id, filter, limit }),
            SwitchRequest::HeavyFlows { id, .. } => {
                let rows = Vec::new();
                self.events.push(SwitchEvent::HeavyFlows { id, rows });
            }
            SwitchRequest::Probe(_) => return unsupported("send probes"),
            SwitchRequest::Record { .. } => return unsupported("write a decision down"),
            SwitchRequest::Capture(_) => {
                return unsupported(
                    "capture packets: use tcpdump at the interface of an uplink or an instance",
                );
            }
        }
        Ok(())
    }

    fn set_loads(&mut self, loads: &[(Slot, f32)], expected: &[(ServiceId, f32)]) {
        let steering = &mut self.steering;
        for (slot, load) in loads {
            if let Some(known) = steering.loads.get_mut(slot.index()) {
                steering.has_changed |= known != load;
                *known = *load;
            }
        }
        for (service, expected) in expected {
            if let Some(picker) = steering.pickers.iter_mut().find(|of| of.id == *service) {
                picker.expected = *expected;
            }
        }
    }

    fn read(&mut self, into: &mut SwitchReading) {
        into.at = monotonic();
        into.age = Nanos::ZERO;
        into.acknowledged = self.steering.acknowledged;
        readings::read(&self.shared, self.instances.slots(), self.flow_limit, into);
        self.steering.pickers.iter().for_each(|of| of.show_weights(into));
        self.told.mark(into.at);
    }

    fn poll(&mut self, now: Nanos, events: &mut Vec<SwitchEvent>) {
        let mut changed = Vec::new();
        self.watch.take(|link| changed.push(link));
        for link in changed {
            if let Some(slot) = self.pairs.slot_of(&link.name) {
                self.instances.see(slot, &link, &mut self.events);
            } else if let Err(error) = self.uplinks.follow(&link, &self.kernel, &self.shared) {
                self.events.push(SwitchEvent::Trouble {
                    what: format!("uplink {}", link.name),
                    reason: error.to_string(),
                });
            }
        }
        self.uplinks.tell(&self.steering.addresses, &mut self.events);
        self.instances.poll(now, &mut self.links, &mut self.events);
        self.signals.iter_mut().for_each(|of| of.tell(&mut self.events));
        self.events.extend(std::iter::from_fn(|| self.lister.take()));
        let moment = Instant::now();
        let steering = &mut self.steering;
        let newest = steering
            .coming
            .iter()
            .filter(|(_, at)| moment >= *at)
            .map(|(of, _)| *of)
            .max();
        if let Some(newest) = newest {
            steering.acknowledged = steering.acknowledged.max(newest);
            steering.coming.retain(|(of, _)| *of > newest);
        }
        self.prepare(now);
        events.append(&mut self.events);
    }

    fn take_longest_gaps(&mut self) -> Vec<Nanos> {
        vec![Nanos::ZERO]
    }

    fn wake_up(&self) -> Option<Arc<dyn WakeUp>> {
        Some(Arc::<Alarm>::clone(&self.told.alarm))
    }

    fn keeps_state(&self) -> bool {
        true
    }

    fn resumed(&self) -> Option<&Resumed> {
        Some(&self.resumed)
    }

    fn leave(&mut self) {
        self.instances.stop(None);
        self.lister.stop();
        self.told.stop();
    }

    fn stop(&mut self) {
        self.lister.stop();
        self.told.stop();
        for name in self.uplinks.names() {
            Kernel::detach(name);
        }
        self.instances.stop(Some(&mut self.links));
        lock(&self.kernel).remove();
    }
}
