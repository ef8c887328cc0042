//! The switch drivers of this build: their capabilities, checks and constructors. No other module depends on which
//! driver is used.

mod devices;
mod ebpf;
mod hybrid;
mod kernel_ports;
mod openflow;
mod soft;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use configuration::{Configuration, SwitchDriver, Unusable, Uplink};
use controller::MadePort;
use model::Slot;
use soft_switch::Keep;
use switch::{Capabilities, Switch};

pub(crate) use openflow::Bridge;
pub use soft::flow_tables_mib;

/// A switch driver.
pub(super) trait Driver: Sync {
    /// The capabilities of its switch.
    fn capabilities(&self) -> Capabilities;

    /// Checks that the switch's own services, such as a database, answer.
    ///
    /// # Errors
    /// A service does not answer. Returns its configuration key, with the reason.
    fn check(&self, _of: &configuration::Switch) -> Result<(), (&'static str, Unusable)> {
        Ok(())
    }

    /// Checks the devices without opening them.
    ///
    /// # Errors
    /// A device is not usable, or there is too little memory for it.
    fn check_devices(&self, _configuration: &Configuration) -> Result<()> {
        Ok(())
    }

    /// Whether it loads programs into the kernel.
    fn loads_programs(&self) -> bool {
        false
    }

    /// The unix sockets on which the switch listens, or inco on its behalf, except those of uplinks.
    fn sockets(&self, _configuration: &Configuration) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Whether the launcher keeps its switch's state. That of another one outlives inco by itself.
    fn is_kept_by_launcher(&self) -> bool {
        false
    }

    /// The bridge that the switch makes in Open vSwitch.
    fn bridge(&self, _configuration: &Configuration) -> Option<Bridge> {
        None
    }

    /// Removes what a run has left of the switch in this machine's kernel.
    ///
    /// # Errors
    /// It is in use, or the system refuses.
    fn clean_up(&self, _run_dir: &Path) -> Result<()> {
        Ok(())
    }

    /// Starts the switch. `secret` is the key of its hashes. `keep`: who keeps its state for the next run, and has it
    /// of the one before.
    ///
    /// # Errors
    /// An uplink cannot be opened, or memory cannot be allocated.
    fn start(&self, configuration: &Configuration, secret: [u64; 4], keep: Option<Keep>) -> Result<Started>;
}

/// A started switch, and the ports of each service that it has made in advance.
pub(super) struct Started {
    pub(super) switch: Box<dyn Switch>,
    pub(super) made_ports: Vec<Vec<MadePort>>,
    /// How the instance of a slot is reached alone, where that is possible.
    pub(super) ports: Vec<(Slot, health::Port)>,
}

/// The driver of that configuration value.
fn of(driver: SwitchDriver) -> &'static dyn Driver {
    match driver {
        SwitchDriver::Soft => &soft::Soft,
        SwitchDriver::OpenFlow => &openflow::OpenFlow,
        SwitchDriver::Ebpf => &ebpf::Ebpf,
        SwitchDriver::Hybrid => &hybrid::Hybrid,
    }
}

/// The driver of a configuration.
pub(super) fn driver(configuration: &Configuration) -> &'static dyn Driver {
    of(configuration.switch.driver)
}

/// The longest packet that passes between uplinks and instances, in bytes without the Ethernet header.
pub fn longest_packet(configuration: &Configuration) -> u16 {
    kernel_ports::mtu(configuration)
}

/// Whether the driver of a configuration loads programs into the kernel.
pub fn loads_programs(configuration: &Configuration) -> bool {
    driver(configuration).loads_programs()
}

/// The capabilities of each driver.
pub(super) fn capabilities(driver: SwitchDriver) -> Capabilities {
    of(driver).capabilities()
}

/// Whether the switch of a configuration alone gets the packets of its uplinks, and passes some on to this machine's
/// network. Else that network gets those of the kernel's interfaces as well.
pub fn passes_to_host(configuration: &Configuration) -> bool {
    driver(configuration).capabilities().passes_to_host
}

/// Removes what runs in that run directory have left of their switches in this machine's kernel.
///
/// # Errors
/// Fails as [`Driver::clean_up`] does.
pub(super) fn clean_up(run_dir: &Path) -> Result<()> {
    let drivers = SwitchDriver::WORDS.iter().map(|(_, driver)| of(*driver));
    drivers
        .into_iter()
        .try_for_each(|driver| driver.clean_up(run_dir))
}

/// Checks that the configured switch's own services answer.
///
/// # Errors
/// Fails as [`Driver::check`] does.
pub(super) fn check(switch: &configuration::Switch) -> Result<(), (&'static str, Unusable)> {
    of(switch.driver).check(switch)
}

/// Creates the directory of an uplink's socket.
fn make_parent(uplink: &Uplink, socket: &Path) -> Result<()> {
    match socket.parent() {
        Some(directory) => std::fs::create_dir_all(directory)
            .with_context(|| format!("uplink {:?}: cannot make {}", uplink.name, directory.display())),
        None => Ok(()),
    }
}
