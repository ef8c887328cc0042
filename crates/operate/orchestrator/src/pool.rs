//! The instance ports that a rule-based switch makes when it starts: the slots of each service, and the mounts and
//! variables that a container needs to use its port.

use std::path::{Path, PathBuf};

use configuration::{Configuration, InstanceDevice, Service};
use controller::MadePort;
use model::{Mount, PortKind, ServiceId, Slot};
use openflow_switch::{PooledPorts, PortDevice};

use super::wiring::PORT_SOCKET;
use api::run_dir::in_run_dir;

/// The folder of the directories of slots' sockets, in the run directory.
pub(crate) const FOLDER: &str = "ports";
/// Path of the port socket's directory inside a container.
const PORT_DIR: &str = "/run/inco-port";

/// The slots of a service for instances with one kind of ports.
pub(super) struct Slots<'a> {
    pub(super) id: ServiceId,
    pub(super) service: &'a Service,
    pub(super) kind: PortKind,
    pub(super) slots: Vec<Slot>,
}

/// The slots of each service, in the order of the configuration: first those for its own kind of ports, then those for other
/// kinds at some places, so that such a place changes no slot. With memif ports: enough for `max`, standby and draining
/// instances. With functions of a card: one per device.
pub(super) fn slots(configuration: &Configuration) -> impl Iterator<Item = Slots<'_>> {
    let spare = configuration.switch.spare_ports();
    let mut next = 0;
    let own = configuration
        .services_with_ids()
        .map(|(id, of)| (id, of, of.port));
    let others = configuration.services_with_ids().flat_map(|(id, of)| {
        let kinds = of.port_kinds().into_iter().skip(1);
        kinds.map(move |kind| (id, of, kind))
    });
    own.chain(others).map(move |(id, service, kind)| {
        let first = next;
        next += service.made_ports(spare);
        let slots = (first..next).map(|slot| Slot(slot as u16)).collect();
        Slots {
            id,
            service,
            kind,
            slots,
        }
    })
}

/// The devices of each instance of a service.
fn devices(service: &Service) -> impl Iterator<Item = &[InstanceDevice]> {
    service.devices.chunks_exact(service.uplinks.len().max(1))
}

/// The directory of a slot's socket on this machine. It stays while a container may use it.
fn directory(slot: Slot) -> PathBuf {
    in_run_dir(&Path::new(FOLDER).join(slot.0.to_string()))
}

/// The ports that the switch must make.
pub(super) fn ports(configuration: &Configuration) -> Vec<PooledPorts> {
    let representor = |of: &InstanceDevice| {
        let name = of.representor.clone();
        if of.is_of_dpdk() {
            PortDevice::Dpdk(name)
        } else {
            PortDevice::Interface(name)
        }
    };
    let of_service = |of: Slots<'_>| -> Vec<PooledPorts> {
        let Slots { service, slots, .. } = of;
        let pooled = |slot, devices| PooledPorts {
            slot,
            service: of.id,
            devices,
        };
        if service.port.is_listed() {
            let devices = devices(service).map(|of| of.iter().map(representor).collect());
            return slots
                .into_iter()
                .zip(devices)
                .map(|(slot, of)| pooled(slot, of))
                .collect();
        }
        let memif = |slot| PortDevice::Memif(directory(slot).join(PORT_SOCKET));
        let slots = slots.into_iter();
        slots
            .map(|slot| pooled(slot, vec![memif(slot); service.uplinks.len()]))
            .collect()
    };
    slots(configuration).flat_map(of_service).collect()
}

/// The slots and port settings for each service's instances, where a memif port has `queue_pairs` queue pairs.
pub(super) fn made_ports(configuration: &Configuration, queue_pairs: u16) -> Vec<Vec<MadePort>> {
    let memif = |service: &Service, slot| MadePort {
        slot,
        kind: service.port,
        mounts: vec![Mount {
            source: directory(slot),
            target: PathBuf::from(PORT_DIR),
            // The container must not delete the socket: later ones need it.
            read_only: true,
        }],
        env: vec![
            ("INCO_SOCKET".to_owned(), format!("{PORT_DIR}/{PORT_SOCKET}")),
            ("INCO_ROLE".to_owned(), "client".to_owned()),
            ("INCO_QUEUES".to_owned(), queue_pairs.to_string()),
            ("INCO_RING_SLOTS".to_owned(), service.ring.slots.to_string()),
            (
                "INCO_BUFFER_BYTES".to_owned(),
                service.ring.buffer_bytes.to_string(),
            ),
        ],
        functions: Vec::new(),
    };
    let device = |slot, devices: &[InstanceDevice]| MadePort {
        slot,
        kind: PortKind::Device,
        mounts: Vec::new(),
        env: Vec::new(),
        functions: devices.iter().map(|of| of.function.clone()).collect(),
    };
    let of_service = |Slots { service, slots, .. }: Slots<'_>| {
        if service.port.is_listed() {
            let devices = slots.into_iter().zip(devices(service));
            return devices.map(|(slot, of)| device(slot, of)).collect();
        }
        slots.into_iter().map(|slot| memif(service, slot)).collect()
    };
    slots(configuration).map(of_service).collect()
}
