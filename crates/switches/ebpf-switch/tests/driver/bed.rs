//! A switch in a network namespace of its own, a network before it and instances behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clock::monotonic;
use ebpf_switch::{EbpfSwitch, EbpfSwitchConfig, PreparedPort};
use interfaces::container_end;
use model::{Generation, InstanceId, InstanceState, Nanos, PlaceId, ServiceId, Slot, Timeouts};
use real_parts::{Namespace, run};
use switch::{
    Edits, Plan, PortKind, PortSpec, ServicePlan, SlotPlan, Switch, SwitchEvent, SwitchReading, SwitchRequest,
};

use crate::namespaces::Tap;

/// The MAC address of the network's end.
pub(crate) const NET_MAC: &str = "02:00:00:00:00:01";
/// The MAC address of the uplink.
pub(crate) const UPLINK_MAC: &str = "02:00:00:00:00:02";
/// What a test waits for at most.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Whether this machine has what these tests need.
pub(crate) fn available() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let missing = (!is_root).then(|| "network namespaces and programs in the kernel need root".to_owned());
    real_parts::available("root", missing)
}

/// A switch with one uplink and so many ports for instances.
pub(crate) fn config(name: &str, slots: u16) -> EbpfSwitchConfig {
    let ports = (0..slots).map(|slot| PreparedPort {
        slot: Slot(slot),
        service: ServiceId(0),
        own: Vec::new(),
        egress: false,
        kind: PortKind::Kernel,
    });
    EbpfSwitchConfig {
        name: name.to_owned(),
        prefix: "inco".to_owned(),
        uplinks: vec!["up0".to_owned()],
        tunnel: None,
        ports: ports.collect(),
        mtu: 1500,
        flows: [16_384, 4096],
        timeouts: Timeouts::default(),
        half_open: None,
        shares: false,
        hash_key: [0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321],
    }
}

/// A running instance.
pub(crate) struct Instance {
    pub(crate) namespace: Namespace,
    pub(crate) tap: Tap,
}

/// The machine and what is around it.
pub(crate) struct World {
    pub(crate) host: Namespace,
    pub(crate) net: Namespace,
    pub(crate) wire: Tap,
    pub(crate) instances: BTreeMap<Slot, Instance>,
    pub(crate) config: EbpfSwitchConfig,
}

/// A switch that is to steer by something.
pub(crate) struct Bed {
    pub(crate) switch: EbpfSwitch,
    pub(crate) world: World,
    pub(crate) plan: Plan,
    pub(crate) reading: SwitchReading,
    pub(crate) events: Vec<SwitchEvent>,
}

impl World {
    /// `slots` ports for instances.
    pub(crate) fn new(slots: u16) -> World {
        let (host, net) = (Namespace::new("host"), Namespace::new("net"));
        host.ip(&format!(
            "link add up0 address {UPLINK_MAC} type veth peer name net0 netns {}",
            net.name
        ));
        net.ip(&format!("link set net0 address {NET_MAC}"));
        for (namespace, interface) in [(&host, "up0"), (&net, "net0")] {
            // Nothing but what tests send.
            namespace.set("ipv6/conf/all/disable_ipv6", "1");
            namespace.set("ipv6/conf/default/disable_ipv6", "1");
            namespace.ip(&format!("link set {interface} up"));
        }
        let wire = Tap::open(&net, "net0");
        let config = config(&host.name, slots);
        host.enter();
        World {
            host,
            net,
            wire,
            instances: BTreeMap::new(),
            config,
        }
    }

    /// Starts an instance as an engine does: its end of the pair is moved there and set up.
    pub(crate) fn start_instance(&mut self, slot: Slot, addresses: &[&str]) {
        let namespace = Namespace::new(&format!("i{}", slot.0));
        let has_v6 = addresses.iter().any(|address| address.contains(':'));
        if !has_v6 {
            namespace.set("ipv6/conf/all/disable_ipv6", "1");
            namespace.set("ipv6/conf/default/disable_ipv6", "1");
        }
        let end = container_end(&self.config.prefix, slot);
        run(
            "ip",
            &[
                "-n",
                &self.host.name,
                "link",
                "set",
                &end,
                "netns",
                &namespace.name,
            ],
        );
        namespace.ip(&format!("link set {end} name eth0"));
        for address in addresses {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            namespace.ip(&format!("addr add {address} dev eth0{nodad}"));
        }
        namespace.ip("link set eth0 up");
        let gateway: Vec<String> = interfaces::GATEWAY_MAC
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let gateway = gateway.join(":");
        namespace.ip("route add 169.254.1.1 dev eth0");
        namespace.ip("route add default via 169.254.1.1 dev eth0 onlink");
        namespace.ip(&format!(
            "neigh add 169.254.1.1 lladdr {gateway} nud permanent dev eth0"
        ));
        if has_v6 {
            namespace.ip(&format!(
                "neigh add fe80::1 lladdr {gateway} nud permanent dev eth0"
            ));
            namespace.ip("-6 route add default via fe80::1 dev eth0 onlink");
        }
        let tap = Tap::open(&namespace, "eth0");
        self.instances.insert(slot, Instance { namespace, tap });
    }

    pub(crate) fn start_switch(&self) -> EbpfSwitch {
        self.host.enter();
        EbpfSwitch::start(&self.config).unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // A test that fails leaves nothing in the kernel either.
        self.switch.stop();
    }
}

impl Bed {
    /// A switch with one service.
    pub(crate) fn new(world: World, service: ServicePlan) -> Bed {
        let mut bed = Bed::taken_over(world, service, 0);
        bed.publish();
        bed
    }

    /// The same service by another switch: one that takes over.
    pub(crate) fn taken_over(world: World, service: ServicePlan, generation: u64) -> Bed {
        let switch = world.start_switch();
        Bed::of(switch, world, service, generation)
    }

    /// A switch that has no plan of this run yet.
    pub(crate) fn of(switch: EbpfSwitch, world: World, service: ServicePlan, generation: u64) -> Bed {
        Bed {
            switch,
            world,
            plan: Plan {
                generation: Generation(generation),
                services: vec![service],
                unmatched: model::Fallback::Host,
                other: model::Fallback::Host,
                ..Plan::default()
            },
            reading: SwitchReading::new(1, 1, 1),
            events: Vec::new(),
        }
    }

    pub(crate) fn turn(&mut self) {
        std::thread::sleep(Duration::from_micros(500));
        self.switch.poll(monotonic(), &mut self.events);
        self.switch.read(&mut self.reading);
    }

    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Bed) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            self.turn();
            assert!(
                began.elapsed() < PATIENCE,
                "not within {PATIENCE:?}: {what}: {:?} {:?} {:?}",
                self.events,
                self.reading.slots[0],
                self.reading.drops
            );
        }
    }

    pub(crate) fn ask(&mut self, request: SwitchRequest) {
        self.switch.request(request).unwrap();
    }

    pub(crate) fn publish(&mut self) {
        self.plan.generation = Generation(self.plan.generation.0 + 1);
        let generation = self.plan.generation;
        self.ask(SwitchRequest::Publish(Arc::new(self.plan.clone())));
        self.until("the plan is in force", |of| of.reading.acknowledged >= generation);
    }

    pub(crate) fn set_state(&mut self, slot: Slot, state: Option<InstanceState>) {
        let slots = &mut self.plan.slots;
        slots.resize(slots.len().max(slot.index() + 1), None);
        slots[slot.index()] = state.map(|state| SlotPlan {
            instance: InstanceId(u32::from(slot.0) + 1),
            service: ServiceId(0),
            place: PlaceId::default(),
            state,
            capacity_pps: 1e6,
            active_since: Nanos::ZERO,
            weight: 256,
            block: None,
            edits: Edits::default(),
        });
        self.publish();
    }

    /// Attaches the instance of a slot and gives it flows.
    pub(crate) fn activate(&mut self, slot: Slot) {
        self.attach(slot);
        self.set_state(slot, Some(InstanceState::Active));
    }

    pub(crate) fn attach(&mut self, slot: Slot) {
        let (service, port) = (ServiceId(0), PortSpec::new(PortKind::Kernel, ""));
        self.ask(SwitchRequest::Attach { slot, service, port });
        self.until("the instance is attached", |of| {
            of.events
                .iter()
                .any(|e| matches!(e, SwitchEvent::Attached { slot: s, .. } if *s == slot))
        });
        self.events.clear();
    }

    /// Starts instances with these addresses and gives them flows.
    pub(crate) fn add(&mut self, slots: std::ops::Range<u16>, addresses: &[&str]) {
        for slot in slots.map(Slot) {
            self.world.start_instance(slot, addresses);
            self.activate(slot);
        }
    }
}
