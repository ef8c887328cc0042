//! The interfaces of this machine towards the network.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, Release};

use interfaces::{Link, Links, announce};
use model::UplinkId;
use switch::SwitchEvent;

use crate::error::EbpfError;
use crate::kernel::{Kernel, Program, Shared};
use crate::layout::store_bytes;
use crate::ports::lock;

/// One of them.
struct Uplink {
    name: String,
    link: Link,
    /// Whether the control plane has been told that it is up.
    is_told: bool,
}

/// All of them.
pub(crate) struct Uplinks {
    all: Vec<Uplink>,
}

impl Uplinks {
    /// Attaches the program to each.
    ///
    /// # Errors
    /// An interface is not there, or cannot be attached to.
    pub(crate) fn start(
        names: &[String],
        links: &mut Links,
        kernel: &Mutex<Kernel>,
        shared: &Shared,
    ) -> Result<Uplinks, EbpfError> {
        let mut all = Vec::new();
        for (name, number) in names.iter().zip(0..) {
            let link = links.find(name).map_err(|source| interfaces::Error {
                interface: name.clone(),
                source,
            })?;
            write(shared, number, &link);
            lock(kernel).attach(Program::Uplink, name, number)?;
            all.push(Uplink {
                name: name.clone(),
                link,
                is_told: false,
            });
        }
        Ok(Uplinks { all })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|of| of.name.as_str())
    }

    /// Interfaces by number.
    pub(crate) fn index_of(&self, uplink: UplinkId) -> u32 {
        self.all.get(uplink.index()).map_or(0, |of| of.link.index)
    }

    /// How many are up.
    pub(crate) fn up(&self) -> usize {
        self.all.iter().filter(|of| of.link.has_carrier).count()
    }

    /// An interface has changed. Gives the number of an uplink that has come up.
    pub(crate) fn follow(
        &mut self,
        link: &Link,
        kernel: &Mutex<Kernel>,
        shared: &Shared,
    ) -> Result<(), EbpfError> {
        let Some((number, of)) = (0..).zip(&mut self.all).find(|(_, of)| of.name == link.name) else {
            return Ok(());
        };
        if link.is_gone && link.index != of.link.index {
            return Ok(());
        }
        let is_new = !link.is_gone && link.index != of.link.index;
        of.link = link.clone();
        of.link.has_carrier &= !link.is_gone;
        write(shared, number, &of.link);
        if is_new {
            lock(kernel).attach(Program::Uplink, &of.name, number)?;
        }
        Ok(())
    }

    /// Tells which have come up or gone down, and announces the addresses of those that came up.
    pub(crate) fn tell(&mut self, addresses: &[(IpAddr, u32)], events: &mut Vec<SwitchEvent>) {
        for (number, of) in (0..).zip(&mut self.all) {
            if of.is_told == of.link.has_carrier {
                continue;
            }
            of.is_told = of.link.has_carrier;
            let uplink = UplinkId(number);
            if of.is_told {
                let peer = of.name.clone();
                events.push(SwitchEvent::UplinkUp { uplink, peer });
                of.announce(number, addresses);
            } else {
                let reason = format!("the interface {} is down", of.name);
                events.push(SwitchEvent::UplinkDown { uplink, reason });
            }
        }
    }

    /// Announces addresses on all that are up.
    pub(crate) fn announce(&self, addresses: &[(IpAddr, u32)]) {
        for (number, of) in (0..).zip(&self.all) {
            if of.link.has_carrier {
                of.announce(number, addresses);
            }
        }
    }
}

impl Uplink {
    fn announce(&self, number: u8, addresses: &[(IpAddr, u32)]) {
        let here = addresses.iter().filter(|(_, uplinks)| uplinks >> number & 1 == 1);
        if let Err(error) = announce(self.link.index, self.link.mac, here.map(|(address, _)| *address)) {
            // Neighbours ask all the same.
            tracing::warn!(uplink = self.name, %error, "addresses could not be announced");
        }
    }
}

fn write(shared: &Shared, number: u16, link: &Link) {
    let Some(row) = shared.world().uplinks.get(usize::from(number)) else {
        return;
    };
    row.ifindex
        .store(if link.is_gone { 0 } else { link.index }, Relaxed);
    store_bytes(&row.mac, link.mac);
    row.is_peer
        .store(u8::from(link.is_veth && link.peer_is_away), Relaxed);
    row.is_up
        .store(u8::from(link.has_carrier && !link.is_gone), Release);
}
