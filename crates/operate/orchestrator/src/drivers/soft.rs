//! The driver for inco's own switch.

use std::path::Path;

use anyhow::Result;
use configuration::{Configuration, Device, Service, SwitchDriver};
use flow_table::{Line, Ownership, TableConfig};
use model::{PortKind, Slot, UplinkId};
use soft_switch::{
    CAPABILITIES, FastConfig, HeapMemory, Keep, KernelPlace, KernelPorts, SoftSwitch, SoftSwitchConfig,
    TunnelEnd, UplinkConfig, UplinkDevice,
};
use switch::Capabilities;

use super::kernel_ports::{made_ports, mtu, names, own_addresses, ports};
use super::{Driver, Started, devices, make_parent};
use crate::pool;
use crate::reports::read_key;
use api::run_dir::{in_run_dir, run_dir};

/// Frames in the pool per worker: two full rings and the frames in transit between workers.
pub(super) const FRAMES_PER_WORKER: usize = 8192;
/// Bytes in a frame beyond the longest one of an uplink, for VLAN tags that a function adds.
const FRAME_SPARE: usize = 64;

/// The driver `soft`.
pub(super) struct Soft;

impl Driver for Soft {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn check_devices(&self, configuration: &Configuration) -> Result<()> {
        devices::check(configuration, frame_bytes(configuration))
    }

    fn start(&self, configuration: &Configuration, secret: [u64; 4], keep: Option<Keep>) -> Result<Started> {
        switch(configuration, secret, keep, None)
    }

    fn is_kept_by_launcher(&self) -> bool {
        true
    }

    fn clean_up(&self, run_dir: &Path) -> Result<()> {
        Ok(soft_switch::remove_pairs(&names(run_dir).1)?)
    }
}

/// Bytes of a frame in the pool: the longest one of an uplink, plus room for tags.
fn frame_bytes(configuration: &Configuration) -> usize {
    let longest = configuration.uplinks.iter().map(|uplink| uplink.max_frame).max();
    usize::from(longest.unwrap_or(1518)) + FRAME_SPARE
}

/// The flow table of each worker.
fn table(configuration: &Configuration) -> TableConfig {
    let of = &configuration.switch;
    TableConfig {
        ipv4_flows: of.flows as usize,
        ipv6_flows: of.flows_ipv6 as usize,
        return_counters: configuration.services.iter().any(Service::counts_flows),
        pin_times: true,
    }
}

/// MiB of the flow tables of all workers, in pages of 2 MiB; 0 where a switch has the flows.
pub fn flow_tables_mib(configuration: &Configuration) -> u64 {
    let of = &configuration.switch;
    if !matches!(of.driver, SwitchDriver::Soft | SwitchDriver::Hybrid) {
        return 0;
    }
    let bytes = table(configuration).lines_needed().unwrap_or(0) * Line::BYTES;
    (of.workers.len().max(1) * bytes.div_ceil(2 << 20) * 2) as u64
}

/// Starts it, with a fast path beside its worker if there is to be one.
pub(super) fn switch(
    configuration: &Configuration,
    secret: [u64; 4],
    keep: Option<Keep>,
    fast: Option<FastConfig>,
) -> Result<Started> {
    let of = &configuration.switch;
    let workers: Vec<Option<usize>> = if of.workers.is_empty() {
        vec![None]
    } else {
        of.workers.iter().map(|cpu| Some(usize::from(*cpu))).collect()
    };
    let mut uplinks = Vec::new();
    for uplink in &configuration.uplinks {
        let device = match &uplink.device {
            Device::Memif(socket) => UplinkDevice::Memif {
                socket: in_run_dir(socket),
                queues: u16::from(uplink.queues),
            },
            Device::Veth(_) | Device::Pcap(_) | Device::Dpdk(_) => UplinkDevice::Device,
            Device::Kernel(interface) => UplinkDevice::Kernel {
                interface: interface.clone(),
            },
        };
        if let UplinkDevice::Memif { socket, .. } = &device {
            make_parent(uplink, socket)?;
        }
        uplinks.push(UplinkConfig {
            name: uplink.name.clone(),
            device,
            max_frame: usize::from(uplink.max_frame),
            waits: true,
        });
    }
    let (_, prefix) = names(&run_dir());
    let made = made_ports(configuration, &prefix)?;
    let ports = ports(configuration, &prefix)?;
    let config = SoftSwitchConfig {
        fast,
        tunnel: tunnel(configuration)?,
        kernel_ports: kernel_ports(configuration, prefix)?,
        half_open: of.ebpf.half_open,
        polling: of.poll,
        table: table(configuration),
        timeouts: of.timeouts,
        uplinks,
        hash_key: secret,
        ownership: Ownership::Keyed,
        workers,
        keep,
    };
    let count = config.workers.len();
    let frame_bytes = frame_bytes(configuration);
    if config
        .uplinks
        .iter()
        .any(|uplink| matches!(uplink.device, UplinkDevice::Device))
    {
        let switch = devices::switch(configuration, config, frame_bytes)?;
        return Ok(Started {
            switch,
            made_ports: made,
            ports,
        });
    }
    let memories = HeapMemory::shares(count, count * FRAMES_PER_WORKER, frame_bytes);
    let switch = SoftSwitch::start(&config, memories, Vec::new())?;
    Ok(Started {
        switch: Box::new(switch),
        made_ports: made,
        ports,
    })
}

/// The near end of tunnels, if an uplink has one.
fn tunnel(configuration: &Configuration) -> Result<Option<TunnelEnd>> {
    let mut uplinks = (0..).map(UplinkId).zip(&configuration.uplinks);
    let Some((uplink, of)) = uplinks.find_map(|(uplink, of)| Some((uplink, of.tunnel.as_ref()?))) else {
        return Ok(None);
    };
    let edges_key = of.edges_key.as_deref().map(|file| {
        let key = read_key(file).map_err(|wrong| {
            let name = &configuration.uplinks[uplink.index()].name;
            let (file, what, write) = (file.display(), wrong.what, wrong.write);
            anyhow::anyhow!("the key of edges of uplink {name:?}: {file}: {what}: {write}")
        })?;
        let [first, second] = [key.tag(b"flows 1"), key.tag(b"flows 2")].map(|tag| {
            let (words, _) = tag.as_chunks::<8>();
            [words[0], words[1]].map(u64::from_le_bytes)
        });
        Ok::<_, anyhow::Error>([first[0], first[1], second[0], second[1]])
    });
    Ok(Some(TunnelEnd {
        uplink,
        address: of.address,
        network: of.network,
        from: of.from.clone(),
        edges_key: edges_key.transpose()?,
    }))
}

/// The kernel ports of all services.
fn kernel_ports(configuration: &Configuration, prefix: String) -> Result<KernelPorts> {
    let own = own_addresses(configuration);
    let mut places = Vec::new();
    for of in pool::slots(configuration).filter(|of| of.kind == PortKind::Kernel) {
        for slot in of.slots {
            places.push(KernelPlace {
                slot,
                own: own(slot)?,
                egress: of.service.egress,
            });
        }
    }
    let mut frames: [Vec<Slot>; 2] = Default::default();
    for of in pool::slots(configuration).filter(|of| of.kind == PortKind::Frames) {
        for of_port in frames.iter_mut().take(of.service.uplinks.len()) {
            of_port.extend(&of.slots);
        }
    }
    // Instances from before their service got another kind of ports.
    let may_open = configuration.services.iter().all(|of| of.egress);
    let (in_use, frames_in_use) = soft_switch::pairs_in_use(&prefix)?;
    for slot in in_use {
        if !places.iter().any(|place| place.slot == slot) {
            places.push(KernelPlace {
                slot,
                own: own(slot)?,
                egress: may_open,
            });
        }
    }
    for (of_port, in_use) in frames.iter_mut().zip(frames_in_use) {
        of_port.extend(in_use);
    }
    Ok(KernelPorts {
        prefix,
        mtu: mtu(configuration),
        places,
        frames,
    })
}
