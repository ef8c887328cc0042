//! Kernel ports of the soft switch keep the contract of every switch.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use interfaces::frames_prefix;
use model::{AffinityKey, Nanos, ServiceId, Slot, Tuple};
use packet_socket::PacketSocket;
use real_parts::Namespace;
use soft_switch::SoftSwitchConfig;
use switch::conformance::{self, frame_of, tuple_of};
use switch::{
    Capabilities, PortKind, PortSpec, Switch, SwitchError, SwitchEvent, SwitchReading, SwitchRequest,
};

use crate::bed::{self, Bed};
use crate::kernel::{PREFIX, World, available, switch_changed};

/// The switch as far as its instances have ports of that kind: interfaces.
struct OnInterfaces(Bed, PortKind);

impl Switch for OnInterfaces {
    fn capabilities(&self) -> Capabilities {
        let can = Capabilities {
            ring_occupancy: false,
            ..self.0.switch.capabilities()
        };
        if self.1 == PortKind::Frames {
            return Capabilities {
                ports: &[
                    PortKind::Frames,
                    PortKind::Kernel,
                    PortKind::Memif,
                    PortKind::Null,
                ],
                ..can
            };
        }
        Capabilities {
            ports: &[
                PortKind::Kernel,
                PortKind::Frames,
                PortKind::Memif,
                PortKind::Null,
            ],
            returns: false,
            // Only packets to functions are known by what they carry.
            affinity_keys: &[AffinityKey::Flow, AffinityKey::Addresses, AffinityKey::Source],
            // What ends connections gives nothing back that could go on.
            chains: false,
            ..can
        }
    }

    fn request(&mut self, request: SwitchRequest) -> Result<(), SwitchError> {
        if let SwitchRequest::Publish(plan) = &request {
            plan.validate(&self.capabilities())?;
        }
        self.0.switch.request(request)
    }

    fn set_loads(&mut self, loads: &[(Slot, f32)], expected: &[(ServiceId, f32)]) {
        self.0.switch.set_loads(loads, expected);
    }

    fn read(&mut self, into: &mut SwitchReading) {
        self.0.switch.read(into);
    }

    fn poll(&mut self, now: Nanos, events: &mut Vec<SwitchEvent>) {
        self.0.switch.poll(now, events);
    }

    fn take_longest_gaps(&mut self) -> Vec<Nanos> {
        self.0.switch.take_longest_gaps()
    }

    fn stop(&mut self) {
        self.0.switch.stop();
    }
}

struct Conforming {
    switch: OnInterfaces,
    world: World,
    wire: PacketSocket,
    taps: BTreeMap<Slot, PacketSocket>,
}

/// What an instance gives back of a packet: what ends a connection answers it, with the addresses the other way around.
fn turned(kind: PortKind, tuple: &Tuple) -> Tuple {
    if kind == PortKind::Frames {
        return *tuple;
    }
    Tuple {
        src: tuple.dst,
        dst: tuple.src,
        src_port: tuple.dst_port,
        dst_port: tuple.src_port,
        ..*tuple
    }
}

pub(crate) fn tap(namespace: &Namespace, interface: &str) -> PacketSocket {
    let config = packet_socket::Config {
        slots: 1024,
        frame_bytes: 1514,
    };
    namespace.within(|| PacketSocket::open(interface, config).unwrap())
}

pub(crate) fn send_all(by: &mut PacketSocket, frames: impl Iterator<Item = Vec<u8>>) {
    let (_, sender) = by.rings();
    frames.for_each(|frame| sender.put(&frame).unwrap());
    sender.send().unwrap();
}

fn receive_all(from: &mut PacketSocket) -> Vec<Tuple> {
    let mut all = Vec::new();
    let (receiver, _) = from.rings();
    receiver.take(usize::MAX, |frame| {
        all.extend(tuple_of(frame.bytes));
        ControlFlow::Continue(())
    });
    receiver.release();
    all
}

impl conformance::Bed for Conforming {
    fn switch(&mut self) -> &mut dyn Switch {
        &mut self.switch
    }

    fn start_instance(&mut self, slot: Slot) -> PortSpec {
        let prefix = match self.switch.1 {
            PortKind::Frames => frames_prefix(PREFIX, 0),
            _ => PREFIX.to_owned(),
        };
        self.world.start_instance_with(&prefix, slot.0, &[]);
        self.taps
            .insert(slot, tap(&self.world.instances[&slot.0], "eth0"));
        PortSpec {
            deadline: Nanos(bed::PATIENCE.as_nanos() as u64),
            ..PortSpec::new(self.switch.1, "")
        }
    }

    fn kill_instance(&mut self, slot: Slot) {
        self.taps.remove(&slot);
        self.world.instances.remove(&slot.0);
    }

    fn offer(&mut self, packets: &[Tuple]) {
        send_all(&mut self.wire, packets.iter().map(frame_of));
    }

    fn take(&mut self, slot: Slot) -> Vec<Tuple> {
        self.taps.get_mut(&slot).map(receive_all).unwrap_or_default()
    }

    fn give_back(&mut self, slot: Slot, packets: &[Tuple]) {
        if let Some(tap) = self.taps.get_mut(&slot) {
            let given = packets.iter().map(|packet| turned(self.switch.1, packet));
            send_all(tap, given.map(|packet| frame_of(&packet)));
        }
    }

    fn received(&mut self) -> Vec<Tuple> {
        let kind = self.switch.1;
        let all = receive_all(&mut self.wire);
        all.iter().map(|packet| turned(kind, packet)).collect()
    }

    fn wait(&mut self) -> Nanos {
        std::thread::sleep(Duration::from_micros(200));
        self.switch.0.now()
    }
}

fn conform(kind: PortKind, counts: &[usize], change: impl Fn(&mut SoftSwitchConfig)) {
    if !available() {
        return;
    }
    for &workers in counts {
        conformance::run(|| {
            let world = World::quiet();
            let places = conformance::SLOTS.len() as u16;
            let bed = switch_changed(workers, places, conformance::service(), |config| {
                if kind == PortKind::Frames {
                    let places = std::mem::take(&mut config.kernel_ports.places);
                    config.kernel_ports.frames[0] = places.iter().map(|place| place.slot).collect();
                }
                change(config);
            });
            Conforming {
                switch: OnInterfaces(bed, kind),
                wire: tap(&world.net, "net0"),
                world,
                taps: BTreeMap::new(),
            }
        });
    }
}

#[test]
fn kernel_ports_conform() {
    conform(PortKind::Kernel, &[1, 2], |_| {});
}

#[test]
fn ports_of_whole_frames_conform() {
    conform(PortKind::Frames, &[1, 2], |_| {});
}

/// Flows change their path all the time meanwhile.
#[test]
fn kernel_ports_beside_a_fast_path_conform() {
    conform(PortKind::Kernel, &[1], |config| {
        crate::fast::beside(config, Nanos::from_millis(2))
    });
}
