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
            let write = "have `inco bench paths --costs FILE` write one and name it here, or remove the key";
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use path_costs::{Cost, Figure, Scope, Work};
    use promotion::Kind;

    use super::*;

    const PLAIN: Kind = Kind::new(Scope::Across, false);

    /// What `inco run` and `inco check` read of a file with this text, or of one that is not there.
    fn with_costs<T>(text: Option<&str>, read: impl FnOnce(&configuration::Switch, &str) -> T) -> T {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("paths.toml");
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
        let file = file.display().to_string();
        let configuration = format!(
            "[switch]\ndriver = \"hybrid\"\nworkers = [1]\n[switch.hybrid]\ncosts = {file:?}\n[[uplink]]\nname = \
             \"wan\"\ndevice = \"kernel:eth1\"\n[service.web]\nport = \"kernel\"\nimage = \"nginx\"\nvip = {{ address = \
             \"10.0.0.100\", ports = \"80\" }}\n"
        );
        let configuration = crate::load::parse(&configuration, "inco.toml").unwrap();
        read(&configuration.switch, &file)
    }

    fn row(path: &str, work: Work, median: f64) -> Cost {
        let mut cost = Cost::new(path, Scope::Across, work, 16);
        let figure = Figure::of(&[median]);
        match work {
            Work::Packets => cost.cpu_ns_per_packet = figure,
            _ => cost.cpu_s_per_gbit = figure,
        }
        cost
    }

    #[test]
    fn prices_are_those_of_the_file() {
        let rows = vec![
            row(SLOW, Work::Packets, 1_000.0),
            row(SLOW, Work::Tcp, 0.5),
            row(FAST, Work::Packets, 250.0),
            row(FAST, Work::Tcp, 0.125),
            // Neither of the two paths.
            row("bridge", Work::Packets, 7.0),
        ];
        let text = Costs::new(2, "6.12", rows).text().unwrap();
        let prices = with_costs(Some(&text), |of, _| prices(of)).unwrap();
        let paths = prices.of(PLAIN);
        let bits = 1448.0 * 8.0;
        assert_eq!((paths.slow.small_ns, paths.slow.large_ns), (1_000.0, 0.5 * bits));
        let fast = paths.fast.unwrap();
        assert_eq!((fast.small_ns, fast.large_ns), (250.0, 0.125 * bits));
    }

    #[test]
    fn what_the_file_lacks_has_the_default() {
        let text = Costs::new(2, "6.12", vec![row(FAST, Work::Packets, 250.0)])
            .text()
            .unwrap();
        let read = with_costs(Some(&text), |of, _| prices(of)).unwrap();
        let mut expected = Prices::default();
        let fast = &mut expected.paths[PLAIN.index()].fast;
        assert_ne!(fast.unwrap().small_ns, 250.0);
        fast.as_mut().unwrap().small_ns = 250.0;
        assert_eq!(read, expected);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_refused_with_its_place_and_a_remedy() {
        let head = "version = 1\ncpus = 2\nkernel = \"6.12\"\n";
        let row = "[[cost]]\npath = \"ebpf\"\nscope = \"across\"\nwork = \"packets\"\nstreams = 16\n";
        for (text, said) in [
            (None, "cannot read"),
            (Some("version = 2\n".to_owned()), "reads version 1"),
            (Some(format!("{head}cpu = 2\n")), "line 4"),
            (Some(format!("{head}{row}{row}")), "cost 2 (\"ebpf\")"),
            (Some(format!("{head}{row}cpu_ns_per_packet = 7\n")), "line 9"),
        ] {
            // It is refused before the kernel is asked for anything.
            let (file, (key, wrong)) = with_costs(text.as_deref(), |of, file| {
                (file.to_owned(), Hybrid.check(of).unwrap_err())
            });
            assert_eq!(key, "switch.hybrid.costs");
            assert!(
                wrong.what.contains(&file) && wrong.what.contains(said),
                "{}",
                wrong.what
            );
            assert!(!wrong.what.contains('\n'), "{}", wrong.what);
            assert!(
                wrong.write.contains("inco bench paths --costs"),
                "{}",
                wrong.write
            );
        }
    }
}
