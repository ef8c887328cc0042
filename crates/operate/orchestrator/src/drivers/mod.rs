//! The switch drivers of this build: their capabilities, checks and constructors. No other module depends on which
//! driver is used.

mod devices;
mod ebpf;
mod kernel_ports;
mod openflow;
mod soft;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use configuration::{Configuration, SwitchDriver, Unusable, Uplink};
use controller::PortPlace;
use soft_switch::Keep;
use switch::{Capabilities, Switch};

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

    /// The unix sockets on which the switch listens, or inco on its behalf, except those of uplinks.
    fn sockets(&self, _configuration: &Configuration) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Removes what a run that was killed has left of the switch.
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

/// A started switch, and the places of each service whose instances' ports it has made in advance.
pub(super) struct Started {
    pub(super) switch: Box<dyn Switch>,
    pub(super) places: Vec<Option<Vec<PortPlace>>>,
}

/// The driver of that configuration value.
fn of(driver: SwitchDriver) -> &'static dyn Driver {
    match driver {
        SwitchDriver::Soft => &soft::Soft,
        SwitchDriver::OpenFlow => &openflow::OpenFlow,
        SwitchDriver::Ebpf => &ebpf::Ebpf,
    }
}

/// The driver of a configuration.
pub(super) fn driver(configuration: &Configuration) -> &'static dyn Driver {
    of(configuration.switch.driver)
}

/// The capabilities of each driver.
pub(super) fn capabilities(driver: SwitchDriver) -> Capabilities {
    of(driver).capabilities()
}

/// Removes what runs in that run directory have left of their switches.
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
