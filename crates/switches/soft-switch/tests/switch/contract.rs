//! The soft switch keeps the contract of every switch.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Nanos, Slot, Tuple};
use switch::conformance::{self, frame_of, tuple_of};
use switch::{PortKind, PortSpec, Switch};

use crate::bed::{Bed, PATIENCE};

/// The end of an instance that the suite has: it takes, and gives back when it is told to.
enum Instance {
    Listening(memif::Listener),
    Connected(memif::Link),
}

struct SoftBed {
    bed: Bed,
    instances: BTreeMap<Slot, Instance>,
    sockets: u32,
}

impl SoftBed {
    fn new(workers: usize) -> SoftBed {
        SoftBed {
            bed: Bed::new(workers, 1, vec![conformance::service()]),
            instances: BTreeMap::new(),
            sockets: 0,
        }
    }
}

impl conformance::Bed for SoftBed {
    fn switch(&mut self) -> &mut dyn Switch {
        &mut self.bed.switch
    }

    fn start_instance(&mut self, slot: Slot) -> PortSpec {
        self.sockets += 1;
        let socket = self
            .bed
            .directory
            .path()
            .join(format!("instance-{}.sock", self.sockets));
        let server = memif::ServerConfig::new("instance");
        let listener = memif::Listener::bind(&socket, server).unwrap();
        self.instances.insert(slot, Instance::Listening(listener));
        PortSpec {
            deadline: Nanos(PATIENCE.as_nanos() as u64),
            ..PortSpec::new(PortKind::Memif, socket)
        }
    }

    fn kill_instance(&mut self, slot: Slot) {
        self.instances.remove(&slot);
    }

    fn offer(&mut self, packets: &[Tuple]) {
        let frames: Vec<Vec<u8>> = packets.iter().map(frame_of).collect();
        self.bed.send(0, frames.iter().map(Vec::as_slice));
    }

    fn take(&mut self, slot: Slot) -> Vec<Tuple> {
        let mut taken = Vec::new();
        let Some(Instance::Connected(link)) = self.instances.get_mut(&slot) else {
            return taken;
        };
        let mut buffer = [0; 2048];
        for queue in &mut link.queues {
            while let Some(Ok(len)) = queue.rx.pop(&mut buffer) {
                taken.extend(tuple_of(&buffer[..len]));
            }
            queue.rx.release();
        }
        taken
    }

    fn give_back(&mut self, slot: Slot, packets: &[Tuple]) {
        if let Some(Instance::Connected(link)) = self.instances.get_mut(&slot) {
            let tx = &mut link.queues[0].tx;
            for tuple in packets {
                tx.push(&frame_of(tuple)).unwrap();
            }
            tx.flush();
        }
    }

    fn received(&mut self) -> Vec<Tuple> {
        self.bed
            .take(0)
            .iter()
            .filter_map(|frame| tuple_of(frame))
            .collect()
    }

    fn wait(&mut self) -> Nanos {
        std::thread::sleep(Duration::from_micros(200));
        for instance in self.instances.values_mut() {
            if let Instance::Listening(listener) = instance
                && let Some(link) = listener.accept(Duration::ZERO).unwrap()
            {
                *instance = Instance::Connected(link);
            }
        }
        self.bed.now()
    }
}

#[test]
fn one_worker_conforms() {
    conformance::run(|| SoftBed::new(1));
}

#[test]
fn two_workers_conform() {
    conformance::run(|| SoftBed::new(2));
}
