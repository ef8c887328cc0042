//! Uplinks and instances that are interfaces of the kernel: real pairs, real TCP connections.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use interfaces::{GATEWAY_MAC, container_end};
use model::{DropReason, InstanceState, Slot, UplinkId, Vip, VipMode};
use real_parts::{Namespace, fetch, run, serve};
use soft_switch::{Keep, KernelPlace, KernelPorts, SoftSwitchConfig, UplinkConfig, UplinkDevice};
use switch::{PortKind, PortSpec, ServicePlan, SwitchEvent, SwitchRequest};

use crate::bed::{self, Bed, echo};
use crate::kept::Kept;

pub(crate) const VIP: &str = "10.0.0.100";
pub(crate) const VIP_V6: &str = "2001:db8::100";
/// What the names of the pairs of instances begin with.
pub(crate) const PREFIX: &str = "inco";
const NET_MAC: &str = "02:00:00:00:00:01";
const UPLINK_MAC: &str = "02:00:00:00:00:02";

/// Whether this machine has what these tests need.
pub(crate) fn available() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let missing = (!is_root).then(|| "network namespaces need root".to_owned());
    real_parts::available("root", missing)
}

/// A machine with an uplink, the network there, and the namespaces of instances.
pub(crate) struct World {
    pub(crate) host: Namespace,
    pub(crate) net: Namespace,
    pub(crate) instances: BTreeMap<u16, Namespace>,
}

impl World {
    /// This thread moves to the machine. The network has addresses.
    pub(crate) fn new() -> World {
        let world = World::make(|_| {});
        world.net.ip("addr add 10.0.0.1/24 dev net0");
        world.net.ip("addr add 2001:db8::1/64 dev net0 nodad");
        world
    }

    /// The same, where no kernel sends anything by itself.
    pub(crate) fn quiet() -> World {
        World::make(|namespace| {
            namespace.set("ipv6/conf/all/disable_ipv6", "1");
            namespace.set("ipv6/conf/default/disable_ipv6", "1");
        })
    }

    fn make(ready: impl Fn(&Namespace)) -> World {
        let (host, net) = (Namespace::new("host"), Namespace::new("net"));
        ready(&host);
        ready(&net);
        host.ip(&format!(
            "link add name up0 address {UPLINK_MAC} type veth peer name net0 address {NET_MAC} netns {}",
            net.name
        ));
        host.ip("link set up0 up");
        net.ip("link set net0 up");
        host.enter();
        World {
            host,
            net,
            instances: BTreeMap::new(),
        }
    }

    /// Moves the other end of a pair into a container, and sets it up as an engine does.
    pub(crate) fn start_instance(&mut self, slot: u16, addresses: &[&str]) {
        self.start_instance_with(PREFIX, slot, addresses);
    }

    /// The same with a pair whose name begins so.
    pub(crate) fn start_instance_with(&mut self, prefix: &str, slot: u16, addresses: &[&str]) {
        let namespace = Namespace::new(&format!("i{slot}"));
        if addresses.is_empty() {
            namespace.set("ipv6/conf/all/disable_ipv6", "1");
            namespace.set("ipv6/conf/default/disable_ipv6", "1");
        }
        let end = container_end(prefix, Slot(slot));
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
        let gateway = GATEWAY_MAC.map(|byte| format!("{byte:02x}")).join(":");
        namespace.ip("route add 169.254.1.1 dev eth0");
        namespace.ip("route add default via 169.254.1.1 dev eth0 onlink");
        namespace.ip(&format!(
            "neigh add 169.254.1.1 lladdr {gateway} nud permanent dev eth0"
        ));
        if !addresses.is_empty() {
            namespace.ip(&format!(
                "neigh add fe80::1 lladdr {gateway} nud permanent dev eth0"
            ));
            namespace.ip("-6 route add default via fe80::1 dev eth0 onlink");
        }
        self.instances.insert(slot, namespace);
    }

    /// Starts one that serves downloads at the service's addresses, and gives it flows.
    pub(crate) fn add_server(&mut self, bed: &mut Bed, slot: u16) {
        self.start_instance(slot, &[&format!("{VIP}/32"), &format!("{VIP_V6}/128")]);
        for address in [format!("{VIP}:80"), format!("[{VIP_V6}]:80")] {
            serve(&self.instances[&slot], &address);
        }
        attach(bed, slot);
        bed.set_state(slot, 0, InstanceState::Active);
        bed.publish();
    }

    fn fetch(&self, address: &str, bytes: u64) -> Result<(), String> {
        self.net.within(|| fetch(address, bytes))
    }
}

pub(crate) fn attach(bed: &mut Bed, slot: u16) {
    bed.set_state(slot, 0, InstanceState::Standby);
    bed.publish();
    bed.ask(bed::attach(slot, 0, PortSpec::new(PortKind::Kernel, "")));
    bed.until("the instance is attached", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::Attached { slot: s, .. } if s.0 == slot))
    });
}

/// Whether this thread's network has that interface.
fn is_there(interface: &str) -> bool {
    let shown = std::process::Command::new("ip")
        .args(["link", "show", interface])
        .output();
    shown.unwrap().status.success()
}

/// A service at two addresses.
pub(crate) fn service() -> ServicePlan {
    let addresses = vec![VIP.parse().unwrap(), VIP_V6.parse().unwrap()];
    ServicePlan {
        vip: Some(Vip {
            addresses,
            ports: vec![80..=80],
            mode: VipMode::L2,
            target_port: None,
        }),
        ..bed::service(0, &[0], model::Match::default())
    }
}

/// A switch on the machine of this thread, with so many places for instances.
pub(crate) fn switch(workers: usize, places: u16, service: ServicePlan, keep: Option<Keep>) -> Bed {
    switch_with(workers, places, service, keep, |_| Vec::new())
}

/// The same, whose instances have addresses of their own.
pub(crate) fn switch_with(
    workers: usize,
    places: u16,
    service: ServicePlan,
    keep: Option<Keep>,
    own: impl Fn(u16) -> Vec<IpAddr>,
) -> Bed {
    make(workers, places, service, own, |config| config.keep = keep)
}

/// The same, with other settings.
pub(crate) fn switch_changed(
    workers: usize,
    places: u16,
    service: ServicePlan,
    change: impl FnOnce(&mut SoftSwitchConfig),
) -> Bed {
    make(workers, places, service, |_| Vec::new(), change)
}

fn make(
    workers: usize,
    places: u16,
    service: ServicePlan,
    own: impl Fn(u16) -> Vec<IpAddr>,
    change: impl FnOnce(&mut SoftSwitchConfig),
) -> Bed {
    Bed::with(workers, 0, vec![service], |config| {
        config.uplinks = vec![UplinkConfig {
            name: "wan".to_owned(),
            device: UplinkDevice::Kernel {
                interface: "up0".to_owned(),
            },
            max_frame: 1522,
            waits: false,
        }];
        config.kernel_ports = KernelPorts {
            prefix: PREFIX.to_owned(),
            mtu: 1500,
            places: (0..places)
                .map(|slot| KernelPlace {
                    slot: Slot(slot),
                    own: own(slot),
                    egress: true,
                })
                .collect(),
            frames: Default::default(),
        };
        change(config);
    })
}

/// offered + originated = returned + delivered + dropped, as nothing is on its way.
pub(crate) fn is_accounted_for(bed: &mut Bed) {
    std::thread::sleep(Duration::from_millis(150));
    bed.until("all is read", |_| true);
    let slots = &bed.reading.slots;
    let (to, back) = slots.iter().fold((0, 0), |(to, back), of| {
        assert_eq!((of.to_packets, of.back_packets), (of.delivered, of.originated));
        (to + of.to_packets, back + of.back_packets)
    });
    assert!(to > 0 && back > 0);
    assert_eq!(bed.reading.in_flight(), 0);
}

#[test]
fn downloads_are_exact_in_both_versions_of_ip() {
    if !available() {
        return;
    }
    let bytes = if real_parts::is_full_length() {
        1 << 30
    } else {
        24 << 20
    };
    for workers in [1, 2] {
        let mut world = World::new();
        let mut bed = switch(workers, 2, service(), None);
        world.add_server(&mut bed, 0);
        world.add_server(&mut bed, 1);
        for address in [format!("{VIP}:80"), format!("[{VIP_V6}]:80")] {
            world.fetch(&address, bytes).unwrap();
            for _ in 0..20 {
                world.fetch(&address, 1000).unwrap();
            }
        }
        is_accounted_for(&mut bed);
        let new_flows: Vec<u64> = bed.reading.slots[..2].iter().map(|of| of.new_flows).collect();
        assert_eq!(new_flows.iter().sum::<u64>(), 42, "{new_flows:?}");
        assert!(new_flows.iter().all(|flows| *flows >= 15), "{new_flows:?}");
        assert_eq!(bed.reading.drops[DropReason::Spoofed.index()], 0);
        bed.until("no flow is left", |bed| {
            bed.reading.slots.iter().all(|of| of.live_flows == 0)
        });
    }
}

#[test]
fn addresses_answer_to_a_ping_and_the_machine_does_not() {
    if !available() {
        return;
    }
    let world = World::new();
    let _bed = switch(1, 1, service(), None);
    let pings = |address: &str| {
        let ping = world
            .net
            .command("ping")
            .args(["-c1", "-W2", "-q", address])
            .output();
        ping.unwrap().status.success()
    };
    assert!(pings(VIP) && pings(VIP_V6));
    assert!(!pings("10.0.0.101"));
    let seen = world
        .net
        .command("ip")
        .args(["neigh", "show", VIP])
        .output()
        .unwrap();
    let seen = String::from_utf8(seen.stdout).unwrap();
    assert!(seen.contains("lladdr 42:00:00:00:00:02"), "{seen}");
}

#[test]
fn a_drain_ends_with_the_last_connection_and_the_place_is_used_again() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = switch(1, 2, service(), None);
    world.add_server(&mut bed, 0);
    let address = format!("{VIP}:80");
    let download = {
        let net = Namespace::clone_of(&world.net);
        let address = address.clone();
        std::thread::spawn(move || net.within(|| fetch(&address, 64 << 20)))
    };
    bed.until("the download has begun", |bed| {
        bed.reading.slots[0].live_flows == 1
    });
    world.add_server(&mut bed, 1);
    bed.set_state(0, 0, InstanceState::Draining);
    bed.publish();
    for _ in 0..10 {
        world.fetch(&address, 1000).unwrap();
    }
    bed.until("no flow is left", |bed| bed.reading.slots[0].live_flows == 0);
    download.join().unwrap().unwrap();
    bed.until("all is read", |_| true);
    assert_eq!(bed.reading.slots[0].new_flows, 1);
    bed.unplan(0);
    world.instances.remove(&0);
    bed.ask(SwitchRequest::Detach(Slot(0)));
    bed.until("the slot is free", |bed| {
        bed.saw(|e| {
            matches!(
                e,
                SwitchEvent::Detached {
                    slot: Slot(0),
                    outstanding: 0
                }
            )
        })
    });
    bed.events.clear();
    world.add_server(&mut bed, 0);
    for _ in 0..10 {
        world.fetch(&address, 1000).unwrap();
    }
    is_accounted_for(&mut bed);
}

#[test]
fn an_instance_that_dies_is_told_at_once() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = switch(1, 1, service(), None);
    world.add_server(&mut bed, 0);
    world.host.ip("link del inco0");
    bed.until("its port is down", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::PortDown { slot: Slot(0), .. }))
    });
}

#[test]
fn a_pair_that_goes_before_it_is_attached_is_made_again() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = switch(1, 1, service(), None);
    world.start_instance(0, &[&format!("{VIP}/32")]);
    world.host.ip("link set inco0 down");
    bed.ask(bed::attach(0, 0, PortSpec::new(PortKind::Kernel, "")));
    // The program ends at once, and its network with it.
    world.instances.remove(&0);
    bed.until("attaching fails", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::AttachFailed { slot: Slot(0), .. }))
    });
    bed.until("the pair is there again", |_| is_there("incoc0"));
    bed.events.clear();
    world.add_server(&mut bed, 0);
    world.fetch(&format!("{VIP}:80"), 1000).unwrap();
}

#[test]
fn an_uplink_goes_and_comes_back() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = switch(1, 1, service(), None);
    world.add_server(&mut bed, 0);
    let address = format!("{VIP}:80");
    world.fetch(&address, 1000).unwrap();
    world.net.ip("link set net0 down");
    bed.until("the uplink is down", |bed| {
        bed.saw(|e| {
            matches!(
                e,
                SwitchEvent::UplinkDown {
                    uplink: UplinkId(0),
                    ..
                }
            )
        })
    });
    bed.events.clear();
    world.net.ip("link set net0 up");
    bed.until("the uplink is up", |bed| {
        bed.saw(|e| {
            matches!(
                e,
                SwitchEvent::UplinkUp {
                    uplink: UplinkId(0),
                    ..
                }
            )
        })
    });
    world.fetch(&address, 1000).unwrap();
}

#[test]
fn instances_open_connections_of_their_own() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = switch(2, 2, service(), None);
    world.add_server(&mut bed, 0);
    world.add_server(&mut bed, 1);
    serve(&world.net, "10.0.0.1:8080");
    // The network is known once it has asked for something.
    world.fetch(&format!("{VIP}:80"), 1000).unwrap();
    world.fetch(&format!("{VIP}:80"), 1000).unwrap();
    for (slot, namespace) in &world.instances {
        let ports = format!("{} {}", 40_000 + 1000 * slot, 40_999 + 1000 * slot);
        namespace.set("ipv4/ip_local_port_range", &ports);
        for bytes in [1000, 3 << 20] {
            namespace.within(|| fetch("10.0.0.1:8080", bytes)).unwrap();
        }
    }
    is_accounted_for(&mut bed);
}

#[test]
fn an_instance_cannot_speak_for_another_one() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = switch(1, 1, service(), None);
    world.add_server(&mut bed, 0);
    world.fetch(&format!("{VIP}:80"), 1000).unwrap();
    let instance = &world.instances[&0];
    instance.ip("addr add 10.0.0.66/32 dev eth0");
    let ping = instance
        .command("ping")
        .args(["-c1", "-W1", "-q", "-I", "10.0.0.66", "10.0.0.1"])
        .output();
    assert!(!ping.unwrap().status.success());
    bed.until("it is counted", |bed| {
        bed.reading.drops[DropReason::Spoofed.index()] > 0
    });
    // Nor does this machine answer it, at any of its addresses.
    world.host.ip("addr add 10.7.0.1/32 dev lo");
    world.host.ip("link set lo up");
    let ping = instance
        .command("ping")
        .args(["-c1", "-W1", "-q", "-I", VIP, "10.7.0.1"])
        .output();
    assert!(!ping.unwrap().status.success());
}

#[test]
fn connections_outlive_a_run_of_the_switch() {
    if !available() {
        return;
    }
    let kept = Kept::start();
    let mut world = World::new();
    let mut bed = switch(1, 3, service(), kept.run());
    world.add_server(&mut bed, 0);
    world.add_server(&mut bed, 1);
    world.add_server(&mut bed, 2);
    let downloads: Vec<_> = (0..3)
        .map(|_| {
            let net = Namespace::clone_of(&world.net);
            std::thread::spawn(move || net.within(|| fetch(&format!("{VIP}:80"), 200 << 20)))
        })
        .collect();
    bed.until("the downloads have begun", |bed| {
        bed.reading.slots[..3].iter().all(|of| of.back_packets > 1000)
    });
    // The third instance ends meanwhile, and a new one has its place.
    world.host.ip("link del inco2");
    world.instances.remove(&2);
    bed.run_again(|config| config.keep = kept.run());
    bed.events.clear();
    for slot in 0..2 {
        attach(&mut bed, slot);
        bed.set_state(slot, 0, InstanceState::Active);
    }
    bed.publish();
    bed.until("all flows are there", |bed| {
        bed.reading.slots[..3].iter().all(|of| of.live_flows == 1)
    });
    world.add_server(&mut bed, 2);
    bed.until("the flow of the one that ended is not", |bed| {
        bed.reading.slots[2].live_flows == 0
    });
    bed.ask(SwitchRequest::OpenUplink(UplinkId(0)));
    bed.until("two downloads are over", |bed| {
        bed.reading.slots[..2].iter().all(|of| of.live_flows == 0)
    });
    let done = downloads.into_iter().filter_map(|of| of.join().unwrap().ok());
    assert_eq!(done.count(), 2, "all but the one whose instance has ended");
}

#[test]
fn memif_and_kernel_instances_share_a_service() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = switch(1, 1, service(), None);
    world.add_server(&mut bed, 0);
    world.fetch(&format!("{VIP}:80"), 1000).unwrap();
    // A function in another slot: it gets every second flow, and sends what it gets out again.
    bed.add(5, 0, 1, echo);
    for _ in 0..4 {
        let socket = world.net.within(|| UdpSocket::bind("10.0.0.1:0").unwrap());
        socket.send_to(b"x", format!("{VIP}:80")).unwrap();
    }
    bed.until("both have flows", |bed| {
        bed.reading.slots[0].new_flows == 3 && bed.reading.slots[5].new_flows == 2
    });
    bed.until("all is back", |bed| bed.reading.in_flight() == 0);
    assert_eq!(bed.reading.slots[5].back_packets, 2);
}
