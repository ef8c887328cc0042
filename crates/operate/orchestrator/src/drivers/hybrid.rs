//! The driver for inco's own switch with programs in the kernel beside it: flows begin in the worker, and those that are
//! worth it are forwarded by the kernel.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use configuration::{Configuration, Device, Unusable};
use fast_path::KernelPath;
use path_costs::Costs;
use promotion::{Prices, Settings};
use soft_switch::{FastConfig, Keep};
use switch::Capabilities;

use super::soft::{Soft, switch};
use super::{Driver, Started};

/// The paths of `inco bench paths` that this driver's two paths are.
const SLOW: &str = "soft-kernel";
const FAST: &str = "ebpf";

/// The driver `hybrid`.
pub(super) struct Hybrid;

impl Driver for Hybrid {
    fn capabilities(&self) -> Capabilities {
        soft_switch::FAST_CAPABILITIES
    }

    fn loads_programs(&self) -> bool {
        true
    }

    fn check(&self, of: &configuration::Switch) -> Result<(), (&'static str, Unusable)> {
        prices(of).map_err(|error| {
            let write = "write a file that inco bench paths has written, or remove the key";
            ("switch.hybrid.costs", Unusable::new(format!("{error:#}"), write))
        })?;
        KernelPath::load().map(drop).map_err(|error| {
            let wrong = Unusable::new(error.to_string(), "write driver = \"soft\"");
            ("switch.driver", wrong)
        })
    }

    fn check_devices(&self, configuration: &Configuration) -> Result<()> {
        let interfaces = interfaces(configuration);
        ensure!(
            interfaces.clone().next().is_some(),
            "no uplink is an interface of the kernel, so that the driver hybrid has nothing to do: write device = \
             \"kernel:INTERFACE\" in an [[uplink]], or driver = \"soft\" in [switch]"
        );
        for (uplink, interface) in interfaces {
            check_interface(interface)
                .with_context(|| format!("uplink {uplink:?}, interface {interface}"))?;
        }
        Soft.check_devices(configuration)
    }

    fn start(&self, configuration: &Configuration, secret: [u64; 4], keep: Option<Keep>) -> Result<Started> {
        for (uplink, interface) in interfaces(configuration) {
            check_interface(interface)
                .with_context(|| format!("uplink {uplink:?}, interface {interface}"))?;
        }
        let of = &configuration.switch;
        let fast = FastConfig {
            path: Arc::new(KernelPath::load()?),
            settings: Settings {
                rules: of.hybrid.rules as usize,
                promotions_per_second: of.hybrid.promotions_per_second,
                window: of.hybrid.window,
                ..Settings::default()
            },
            prices: prices(of)?,
        };
        switch(configuration, secret, keep, Some(fast))
    }

    fn is_kept_by_launcher(&self) -> bool {
        true
    }

    fn clean_up(&self, run_dir: &Path) -> Result<()> {
        Soft.clean_up(run_dir)
    }
}

/// The uplinks that are interfaces of the kernel.
fn interfaces(configuration: &Configuration) -> impl Iterator<Item = (&str, &str)> + Clone {
    configuration
        .uplinks
        .iter()
        .filter_map(|uplink| match &uplink.device {
            Device::Kernel(interface) => Some((uplink.name.as_str(), interface.as_str())),
            _ => None,
        })
}

/// Whether an interface has what keeps the order of a flow that changes its path: one queue, and packets that stay on the
/// CPU which got them. One that is not there is told by the switch.
fn check_interface(interface: &str) -> Result<()> {
    let queues = Path::new("/sys/class/net").join(interface).join("queues");
    let Ok(entries) = std::fs::read_dir(&queues) else {
        return Ok(());
    };
    let names: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .collect();
    let sending = names
        .iter()
        .filter(|name| name.as_encoded_bytes().starts_with(b"tx-"));
    let sending = sending.count();
    ensure!(
        sending <= 1,
        "it has {sending} queues to send by, and packets of one flow could leave by two of them: set one with \
         `ethtool -L {interface} combined 1`, or write driver = \"soft\" in [switch]"
    );
    for name in names
        .iter()
        .filter(|name| name.as_encoded_bytes().starts_with(b"rx-"))
    {
        let file = queues.join(name).join("rps_cpus");
        let cpus = std::fs::read_to_string(&file).unwrap_or_default();
        ensure!(
            cpus.chars()
                .all(|of| matches!(of, '0' | ',') || of.is_whitespace()),
            "the kernel deals its packets to other CPUs ({} is {}): write 0 there, or driver = \"soft\" in [switch]",
            file.display(),
            cpus.trim()
        );
    }
    Ok(())
}

/// What packets cost on both paths: of the configured file, or the defaults.
fn prices(of: &configuration::Switch) -> Result<Prices> {
    let Some(file) = &of.hybrid.costs else {
        return Ok(Prices::default());
    };
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let costs = Costs::parse(&text).with_context(|| format!("{} is no file of costs", file.display()))?;
    let (prices, lacking) = Prices::default().measured(&costs, SLOW, FAST);
    for what in lacking {
        tracing::warn!(file = %file.display(), "it has no {what}; the default is used");
    }
    Ok(prices)
}
