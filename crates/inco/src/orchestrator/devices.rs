//! Uplinks that are DPDK devices.

use anyhow::Result;
use configuration::Configuration;
use eswitch::{SoftSwitchConfig, Switch};

/// Starts the switch with mbufs as its frames.
///
/// # Errors
/// Where DPDK does not start or a device cannot be opened.
#[cfg(feature = "dpdk")]
pub(super) fn switch(
    configuration: &Configuration,
    config: &SoftSwitchConfig,
    frame_bytes: usize,
) -> Result<Box<dyn Switch>> {
    use anyhow::Context as _;
    use configuration::{Device, Hugepages};
    use dpdk::device::from_shorthand;
    use dpdk::{Eal, EalConfig, Mempool, MempoolConfig};
    use eswitch::{DpdkQueue, MbufMemory, SoftSwitch};
    use model::UplinkId;

    use super::wiring::FRAMES_PER_WORKER;

    /// Descriptors of a device's queue: what the wrapper asks for.
    const DESCRIPTORS: usize = 1024;
    /// What an mbuf takes beside its room, in bytes: header, headroom, padding.
    const MBUF_OVERHEAD: usize = 512;

    let workers = config.workers.len();
    let mut devices = Vec::new();
    let mut room = frame_bytes;
    for (index, uplink) in configuration.uplinks.iter().enumerate() {
        let text = match &uplink.device {
            Device::Memif(_) => continue,
            Device::Veth(name) => format!("veth:{name}"),
            Device::Pcap(path) => format!("pcap:{}", path.display()),
            Device::Dpdk(device) => device.clone(),
        };
        let of_uplink = || format!("uplink {:?}", uplink.name);
        let device = from_shorthand(&text)
            .with_context(of_uplink)?
            .for_frames(frame_bytes);
        room = room.max(device.frame_bytes(frame_bytes));
        devices.push((
            UplinkId(index as u8),
            device,
            u16::from(uplink.queues).min(workers as u16),
            of_uplink(),
        ));
    }
    let mbufs = workers * FRAMES_PER_WORKER
        + devices
            .iter()
            .map(|d| 2 * DESCRIPTORS * usize::from(d.2))
            .sum::<usize>();
    let eal = match Eal::running() {
        Some(eal) => eal,
        None => {
            let of = &configuration.switch;
            let args = EalConfig {
                // The pool, and as much again for the rings of devices and DPDK's own needs.
                memory_mib: (2 * mbufs * (room + MBUF_OVERHEAD) / (1 << 20)).max(64) as u32,
                hugepages: of.hugepages == Hugepages::On,
                pci: devices
                    .iter()
                    .filter_map(|d| d.1.pci_address().map(str::to_owned))
                    .collect(),
                more: of.dpdk_args.clone(),
                ..EalConfig::new(format!("inco-{}", std::process::id()))
            };
            Eal::init(&args.args()).context("DPDK does not start")?
        }
    };
    let pool = MempoolConfig {
        mbufs: mbufs.next_power_of_two() as u32 - 1,
        frame_bytes: u16::try_from(room).unwrap_or(u16::MAX),
        ..MempoolConfig::default()
    };
    let pool = Mempool::create(&eal, &pool).context("no memory for DPDK's frames")?;
    let mut ports = Vec::new();
    for (uplink, device, queues, of_uplink) in devices {
        ports.push((
            uplink,
            DpdkQueue::open(&eal, &device, pool, queues).context(of_uplink)?,
        ));
    }
    Ok(Box::new(SoftSwitch::start(
        config,
        MbufMemory::shares(workers, pool),
        ports,
    )?))
}

/// Says that this build has no DPDK.
///
/// # Errors
/// Always.
#[cfg(not(feature = "dpdk"))]
pub(super) fn switch(
    configuration: &Configuration,
    _config: &SoftSwitchConfig,
    _frame_bytes: usize,
) -> Result<Box<dyn Switch>> {
    let names: Vec<_> = configuration
        .uplinks
        .iter()
        .filter(|uplink| !matches!(uplink.device, configuration::Device::Memif(_)))
        .map(|uplink| uplink.name.as_str())
        .collect();
    anyhow::bail!(
        "uplink {}: its device needs DPDK, which this build does not have; build with `make build`, or use memif:SOCKET",
        names.join(", ")
    )
}
