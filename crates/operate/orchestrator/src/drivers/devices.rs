//! Uplinks that are DPDK devices.

use anyhow::Result;
use configuration::Configuration;
#[cfg(feature = "dpdk")]
use configuration::Uplink;
#[cfg(feature = "dpdk")]
use dpdk::{MempoolConfig, device::DeviceArgs};
#[cfg(feature = "dpdk")]
use model::UplinkId;
use soft_switch::SoftSwitchConfig;
use switch::Switch;

/// Starts the switch with mbufs as frames.
///
/// # Errors
/// DPDK does not start, or a device cannot be opened.
#[cfg(feature = "dpdk")]
pub(super) fn switch(
    configuration: &Configuration,
    mut config: SoftSwitchConfig,
    frame_bytes: usize,
) -> Result<Box<dyn Switch>> {
    use anyhow::Context as _;
    use dpdk::{Eal, EalConfig, Mempool};
    use flow_table::Ownership;
    use soft_switch::{DpdkQueue, MbufMemory, SoftSwitch};

    let workers = config.workers.len();
    let Needed { devices, pool } = Needed::of(configuration, workers, frame_bytes)?;
    let eal = match Eal::running() {
        Some(eal) => eal,
        None => {
            let hugepages = takes_hugepages(configuration.switch.hugepages, memory_mib(&pool, true))?;
            let args = EalConfig {
                memory_mib: u32::try_from(memory_mib(&pool, hugepages))?,
                hugepages,
                pci: devices
                    .iter()
                    .filter_map(|d| d.1.pci_address().map(str::to_owned))
                    .collect(),
                more: configuration.switch.dpdk_args.clone(),
                ..EalConfig::new(format!("inco-{}", std::process::id()))
            };
            let since = clock::monotonic();
            let eal = Eal::init(&args.args())?;
            let ms = clock::monotonic().since(since).as_millis();
            tracing::info!(ms, "DPDK has started: packets at its devices were lost until now");
            eal
        }
    };
    let pool = Mempool::create(&eal, &pool).context("not enough memory for DPDK's buffers")?;
    let mut ports = Vec::new();
    for (id, device, uplink) in devices {
        let (queues, max_frame) = (u16::from(uplink.queues), usize::from(uplink.max_frame));
        let opened = DpdkQueue::open(&eal, &device, pool, queues, id.index(), max_frame)
            .with_context(|| format!("uplink {:?}", uplink.name))?;
        if queues > 1 && !opened.deals {
            tracing::info!(
                uplink = uplink.name,
                "its device cannot deliver packets to the worker that owns their flow: packets are handed off \
                 between workers"
            );
        }
        if opened.deals && usize::from(queues) == workers {
            config.ownership = Ownership::Card;
        }
        ports.push((id, opened));
    }
    Ok(Box::new(SoftSwitch::start(
        &config,
        MbufMemory::shares(workers, pool),
        ports,
    )?))
}

/// The requirements of the configuration's devices.
#[cfg(feature = "dpdk")]
struct Needed<'a> {
    devices: Vec<(UplinkId, DeviceArgs, &'a Uplink)>,
    pool: MempoolConfig,
}

#[cfg(feature = "dpdk")]
impl Needed<'_> {
    /// # Errors
    /// DPDK does not know a device.
    fn of(configuration: &Configuration, workers: usize, frame_bytes: usize) -> Result<Needed<'_>> {
        use anyhow::Context as _;

        /// Descriptors of a device queue, as the wrapper requests them.
        const DESCRIPTORS: usize = 1024;

        let mut devices = Vec::new();
        let mut room = frame_bytes;
        let mut mbufs = workers * super::soft::FRAMES_PER_WORKER;
        for (index, uplink) in configuration.uplinks.iter().enumerate() {
            if !uplink.device.is_of_dpdk() {
                continue;
            }
            let queues = u16::from(uplink.queues);
            let of_uplink = || format!("uplink {:?}", uplink.name);
            let device = dpdk::device::from_shorthand(&uplink.device.to_string())
                .with_context(of_uplink)?
                .with(frame_bytes, queues);
            room = room.max(device.frame_bytes(frame_bytes));
            mbufs += 2 * DESCRIPTORS * usize::from(queues);
            devices.push((UplinkId(index as u8), device, uplink));
        }
        // A DPDK pool uses its memory best at a power of two minus one.
        let mbufs = mbufs.next_power_of_two() - 1;
        let pool = MempoolConfig {
            mbufs: u32::try_from(mbufs)?,
            frame_bytes: u16::try_from(room).unwrap_or(u16::MAX),
            ..MempoolConfig::default()
        };
        Ok(Needed { devices, pool })
    }
}

/// Memory that DPDK needs with that pool, in MiB.
#[cfg(feature = "dpdk")]
fn memory_mib(pool: &MempoolConfig, hugepages: bool) -> usize {
    /// Memory for DPDK itself and the rings of devices, in MiB.
    const DPDK_OWN_MIB: usize = 64;
    DPDK_OWN_MIB + pool.memory_bytes(hugepages).div_ceil(1 << 20) as usize
}

/// Checks, without opening a device, that DPDK has the configured devices and that their memory is available.
///
/// # Errors
/// A device or the memory is not available. The error says what to write.
#[cfg(feature = "dpdk")]
pub(super) fn check(configuration: &Configuration, frame_bytes: usize) -> Result<()> {
    let workers = configuration.switch.worker_count();
    let Needed { devices, pool } = Needed::of(configuration, workers, frame_bytes)?;
    if devices.is_empty() {
        return Ok(());
    }
    takes_hugepages(configuration.switch.hugepages, memory_mib(&pool, true)).map(drop)
}

/// Accepts everything: an earlier check has refused DPDK devices.
///
/// # Errors
/// Never fails.
#[cfg(not(feature = "dpdk"))]
pub(super) fn check(_configuration: &Configuration, _frame_bytes: usize) -> Result<()> {
    Ok(())
}

/// Whether `needed_mib` MiB come from hugepages.
///
/// # Errors
/// Hugepages are required and too few are free.
#[cfg(feature = "dpdk")]
fn takes_hugepages(wanted: configuration::Hugepages, needed_mib: usize) -> Result<bool> {
    use configuration::Hugepages;
    let free_mib = crate::host::free_hugepages_mib();
    let is_enough = free_mib >= needed_mib as u64;
    match wanted {
        Hugepages::Off => Ok(false),
        Hugepages::Auto => Ok(is_enough),
        Hugepages::On if is_enough => Ok(true),
        Hugepages::On => anyhow::bail!(
            "switch.hugepages: DPDK's buffers take {needed_mib} MiB and {free_mib} MiB of hugepages are free; \
             reserve more with `sysctl vm.nr_hugepages=N`, or write hugepages = \"auto\""
        ),
    }
}

/// Reports that this build has no DPDK.
///
/// # Errors
/// Always fails.
#[cfg(not(feature = "dpdk"))]
pub(super) fn switch(
    configuration: &Configuration,
    _config: SoftSwitchConfig,
    _frame_bytes: usize,
) -> Result<Box<dyn Switch>> {
    let names: Vec<_> = configuration
        .uplinks
        .iter()
        .filter(|uplink| uplink.device.is_of_dpdk())
        .map(|uplink| uplink.name.as_str())
        .collect();
    anyhow::bail!(
        "uplink {}: its device needs DPDK, and this build has no DPDK; build with `make build`, or use memif:SOCKET",
        names.join(", ")
    )
}
