//! The driver keeps the contract of every switch.

use std::time::Duration;

use clock::monotonic;
use ebpf_switch::EbpfSwitch;
use model::{InstanceState, Nanos, Slot, Tuple};
use scheduling::Scheduler;
use switch::conformance::{self, SLOTS, frame_of, tuple_of};
use switch::{PortKind, PortSpec, Switch};

use crate::bed::{Bed, World, available};
use crate::steering::service;

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

/// Whether nothing is left in the kernel: no maps, interfaces or filters.
fn is_clean(world: &World) {
    let pins = std::path::Path::new("/sys/fs/bpf/inco").join(&world.config.name);
    assert!(!pins.exists(), "{} stays", pins.display());
    let text =
        |command: &mut std::process::Command| String::from_utf8(command.output().unwrap().stdout).unwrap();
    let links = text(world.host.command("ip").args(["-o", "link"]));
    let names = links.lines().filter_map(|line| line.split(": ").nth(1));
    let left: Vec<&str> = names.filter(|name| name.starts_with("inco")).collect();
    assert_eq!(left, Vec::<&str>::new());
    let filters = ["-n", &world.host.name, "filter", "show", "dev", "up0", "ingress"];
    assert_eq!(text(std::process::Command::new("tc").args(filters)), "");
}

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
    is_clean(&world);
}

/// Hundreds of megabytes of maps would stay in the kernel.
#[test]
fn a_start_that_fails_leaves_nothing() {
    if !available() {
        return;
    }
    let mut world = World::new(2);
    world.config.uplinks.push("missing0".to_owned());
    world.host.enter();
    assert!(EbpfSwitch::start(&world.config).is_err());
    is_clean(&world);
}

#[test]
fn the_weights_of_active_instances_are_read() {
    if !available() {
        return;
    }
    let mut service = service();
    service.scheduler = Scheduler::from_name("weighted").unwrap();
    let mut bed = Bed::new(World::new(2), service);
    bed.add(0..2, &[]);
    let weights = |bed: &Bed| [0, 1].map(|slot| bed.reading.slots[slot].weight);
    bed.until("both have weights", |bed| {
        let [first, second] = weights(bed);
        first > 0 && second > 0 && first + second == 256
    });
    bed.set_state(Slot(0), Some(InstanceState::Draining));
    bed.until("one has all", |bed| weights(bed) == [0, 256]);
}
