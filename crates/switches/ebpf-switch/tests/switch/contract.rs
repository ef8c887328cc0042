//! The driver keeps the contract of every switch.

use std::collections::BTreeMap;
use std::time::Duration;

use clock::monotonic;
use ebpf_switch::EbpfSwitch;
use model::{Nanos, Slot, Tuple};
use switch::conformance::{self, SLOTS, frame_of, tuple_of};
use switch::{PortKind, PortSpec, Switch};

use crate::bed::{World, available};

struct Conforming {
    switch: EbpfSwitch,
    world: World,
}

/// A packet with the addresses the other way around.
fn answer_to(tuple: &Tuple) -> Tuple {
    Tuple {
        src: tuple.dst,
        dst: tuple.src,
        src_port: tuple.dst_port,
        dst_port: tuple.src_port,
        ..*tuple
    }
}

impl conformance::Bed for Conforming {
    fn switch(&mut self) -> &mut dyn Switch {
        &mut self.switch
    }

    fn start_instance(&mut self, slot: Slot) -> PortSpec {
        self.world.start_instance(slot, &[]);
        PortSpec::new(PortKind::Kernel, "")
    }

    fn kill_instance(&mut self, slot: Slot) {
        self.world.instances.remove(&slot);
    }

    fn offer(&mut self, packets: &[Tuple]) {
        for tuple in packets {
            self.world.wire.send(&frame_of(tuple));
        }
    }

    fn take(&mut self, slot: Slot) -> Vec<Tuple> {
        let Some(instance) = self.world.instances.get(&slot) else {
            return Vec::new();
        };
        let frames = std::iter::from_fn(|| instance.tap.receive());
        frames.filter_map(|frame| tuple_of(&frame)).collect()
    }

    fn give_back(&mut self, slot: Slot, packets: &[Tuple]) {
        for tuple in packets {
            self.world.instances[&slot].tap.send(&frame_of(&answer_to(tuple)));
        }
    }

    fn received(&mut self) -> Vec<Tuple> {
        let frames = std::iter::from_fn(|| self.world.wire.receive());
        frames
            .filter_map(|frame| Some(answer_to(&tuple_of(&frame)?)))
            .collect()
    }

    fn wait(&mut self) -> Nanos {
        std::thread::sleep(Duration::from_micros(500));
        monotonic()
    }
}

#[test]
fn the_driver_conforms() {
    if !available() {
        return;
    }
    conformance::run(|| {
        let world = World::new(SLOTS.len() as u16);
        Conforming {
            switch: world.start_switch(),
            world,
        }
    });
}

/// Nothing is left in the kernel after a stop.
#[test]
fn a_stop_removes_everything() {
    if !available() {
        return;
    }
    let world = World::new(2);
    let mut switch = world.start_switch();
    let pins = format!("/sys/fs/bpf/inco/{}", world.config.name);
    assert!(std::path::Path::new(&pins).join("world").exists());
    switch.stop();
    assert!(!std::path::Path::new(&pins).exists());
    let left: BTreeMap<String, String> = world.host.within(|| {
        let listed = std::process::Command::new("ip")
            .args(["-o", "link"])
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let names = listed.lines().filter_map(|line| line.split(": ").nth(1));
        names
            .filter(|name| name.starts_with("inco"))
            .map(|name| (name.to_owned(), String::new()))
            .collect()
    });
    assert_eq!(left, BTreeMap::new());
    let filters = std::process::Command::new("tc")
        .args(["-n", &world.host.name, "filter", "show", "dev", "up0", "ingress"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(filters.stdout).unwrap(), "");
}
