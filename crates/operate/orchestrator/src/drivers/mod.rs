//! The drivers of switches that this build has: what inco must know of each before there is a switch, and how it is made. Nothing
//! else asks which driver there is.

mod devices;
mod openflow;
mod soft;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use configuration::{Configuration, SwitchDriver, Unusable, Uplink};
use controller::PortPlace;
use switch::{Capabilities, Switch};

/// A driver.
pub(super) trait Driver: Sync {
    /// What its switches can do.
    fn capabilities(&self) -> Capabilities;

    /// Whether what its switch is made of answers.
    ///
    /// # Errors
    /// The key that says what does not, with why.
    fn check(&self, _of: &configuration::Switch) -> Result<(), (&'static str, Unusable)> {
        Ok(())
    }

    /// What would keep the switch from starting, as far as that can be told without opening a device.
    ///
    /// # Errors
    /// Where a device cannot be, or there is not enough memory for what it needs.
    fn check_devices(&self, _configuration: &Configuration) -> Result<()> {
        Ok(())
    }

    /// Paths at which the switch, or inco for it, listens on a unix socket, beside the uplinks'.
    fn sockets(&self, _configuration: &Configuration) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Starts the switch. `secret` is the key of its hashes.
    ///
    /// # Errors
    /// Where an uplink cannot be opened or memory is not to be had.
    fn start(&self, configuration: &Configuration, secret: [u64; 4]) -> Result<Started>;
}

/// A switch that forwards, and, where it has made the ports for instances already, the places of each service's.
pub(super) struct Started {
    pub(super) switch: Box<dyn Switch>,
    pub(super) places: Option<Vec<Vec<PortPlace>>>,
}

/// The driver for the word in the configuration.
fn of(driver: SwitchDriver) -> &'static dyn Driver {
    match driver {
        SwitchDriver::Soft => &soft::Soft,
        SwitchDriver::OpenFlow => &openflow::OpenFlow,
    }
}

/// The driver that a configuration chooses.
pub(super) fn driver(configuration: &Configuration) -> &'static dyn Driver {
    of(configuration.switch.driver)
}

/// What each driver can do.
pub(super) fn capabilities(driver: SwitchDriver) -> Capabilities {
    of(driver).capabilities()
}

/// Whether what the chosen switch is made of answers.
///
/// # Errors
/// As [`Driver::check`].
pub(super) fn check(switch: &configuration::Switch) -> Result<(), (&'static str, Unusable)> {
    of(switch.driver).check(switch)
}

/// The directory of an uplink's socket.
fn make_parent(uplink: &Uplink, socket: &Path) -> Result<()> {
    match socket.parent() {
        Some(directory) => std::fs::create_dir_all(directory)
            .with_context(|| format!("uplink {:?}: cannot make {}", uplink.name, directory.display())),
        None => Ok(()),
    }
}
