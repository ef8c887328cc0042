//! The pairs of interfaces of instances with kernel ports. All are there before any container. A pair whose other end
//! went with a container is made again, and before its slot is told to be free.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use interfaces::{Error, LinkWatch, Links, Pairs, Remaker, host_end};
use model::{Nanos, PortKind, Slot};
use switch::{PortSpec, SwitchError, SwitchEvent};

use super::{KernelPorts, system};

/// An Ethernet header with two VLAN tags.
const HEADER_BYTES: u32 = 22;
/// How long a pair that could not be made waits for the next attempt.
const RETRY: Nanos = Nanos::from_secs(1);

/// All pairs.
pub(super) struct InstancePairs {
    pairs: Pairs,
    slots: BTreeSet<Slot>,
    /// [`None`] without pairs.
    kernel: Option<Kernel>,
    /// Slots whose instance is attached, or being attached.
    attached: BTreeSet<Slot>,
    /// Slots whose pair is being made again, with what then tells that they are free.
    leaving: BTreeMap<Slot, Option<SwitchEvent>>,
    retries: Vec<(Nanos, Slot)>,
}

/// What makes pairs, and sees them go.
struct Kernel {
    links: Links,
    watch: LinkWatch,
    remaker: Remaker<Error>,
}

impl InstancePairs {
    /// Makes the pairs that are missing. Those of an earlier run stay where that `goes_on`, or where containers have
    /// their other ends.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn start(of: &KernelPorts, goes_on: bool) -> Result<InstancePairs, SwitchError> {
        let pairs = Pairs {
            prefix: of.prefix.clone(),
            mtu: u32::from(of.mtu),
            is_apart: true,
        };
        let slots: BTreeSet<Slot> = of.places.iter().map(|place| place.slot).collect();
        let mut all = InstancePairs {
            pairs,
            slots,
            kernel: None,
            attached: BTreeSet::new(),
            leaving: BTreeMap::new(),
            retries: Vec::new(),
        };
        if all.slots.is_empty() {
            return Ok(all);
        }
        let netlink = |error| system("netlink", error);
        let mut links = Links::new().map_err(netlink)?;
        // Before they are listed: what goes after that is told.
        let watch = LinkWatch::new().map_err(netlink)?;
        let there = links.list().map_err(netlink)?;
        let there: BTreeSet<Slot> = there
            .iter()
            .filter(|link| link.is_veth && (goes_on || link.peer_is_away))
            .filter_map(|link| all.pairs.slot_of(&link.name))
            .collect();
        for slot in all.slots.difference(&there) {
            all.pairs.make(&mut links, *slot).map_err(refused)?;
        }
        let pairs = all.pairs.clone();
        let remaker = Remaker::start(move |links, slot| pairs.make(links, slot));
        all.kernel = Some(Kernel {
            links,
            watch,
            remaker: remaker.map_err(netlink)?,
        });
        Ok(all)
    }

    /// The port of an instance, as the switch opens it.
    ///
    /// # Errors
    /// There is no pair for the slot.
    pub(super) fn port_of(&mut self, slot: Slot, port: PortSpec) -> Result<PortSpec, SwitchError> {
        if port.kind != PortKind::Kernel {
            return Ok(port);
        }
        if !self.slots.contains(&slot) {
            return Err(SwitchError::Limit {
                what: "slots with a port",
                asked: slot.index() + 1,
                limit: self.slots.len(),
            });
        }
        self.attached.insert(slot);
        Ok(PortSpec {
            address: PathBuf::from(host_end(&self.pairs.prefix, slot)),
            data_ports: 1,
            buffer_bytes: self.pairs.mtu + HEADER_BYTES,
            ..port
        })
    }

    /// What tells an instance from others that have had its slot: it goes with its pair.
    pub(super) fn identity(&mut self, port: PortSpec) -> PathBuf {
        let (PortKind::Kernel, Some(kernel)) = (port.kind, &mut self.kernel) else {
            return port.address;
        };
        let link = kernel.links.find(&port.address.to_string_lossy());
        PathBuf::from(format!(
            "{}/{}",
            port.address.display(),
            link.map_or(0, |link| link.index)
        ))
    }

    /// Has pairs made again that are gone. Of the events behind the first `before` ones, holds those back that tell that
    /// a slot is free, until its pair is there.
    pub(super) fn poll(&mut self, now: Nanos, before: usize, events: &mut Vec<SwitchEvent>) {
        let Some(Kernel {
            links,
            watch,
            remaker,
        }) = &mut self.kernel
        else {
            return;
        };
        let (pairs, slots) = (&self.pairs, &self.slots);
        let (attached, leaving) = (&mut self.attached, &mut self.leaving);
        let mut is_held = |event: &SwitchEvent| match *event {
            SwitchEvent::Detached { slot, .. } if slots.contains(&slot) => {
                attached.remove(&slot);
                let link = links.find(&host_end(&pairs.prefix, slot));
                link.map_or(true, |link| link.peer_is_away)
            }
            SwitchEvent::AttachFailed { slot, .. } if slots.contains(&slot) => {
                attached.remove(&slot);
                links.find(&host_end(&pairs.prefix, slot)).is_err()
            }
            _ => false,
        };
        for event in events.extract_if(before.., |event| is_held(event)) {
            if let SwitchEvent::Detached { slot, .. } | SwitchEvent::AttachFailed { slot, .. } = event
                && leaving.insert(slot, Some(event)).is_none()
            {
                remaker.remake(slot);
            }
        }
        // What is there again was removed to be made anew.
        watch.take(|link| {
            if let Some(slot) = pairs.slot_of(&link.name).filter(|slot| slots.contains(slot))
                && link.is_gone
                && links.find(&link.name).is_err()
                && !leaving.contains_key(&slot)
                && !attached.contains(&slot)
            {
                leaving.insert(slot, None);
                remaker.remake(slot);
            }
        });
        for (_, slot) in self.retries.extract_if(.., |(at, _)| now >= *at) {
            remaker.remake(slot);
        }
        while let Some((slot, made)) = remaker.done() {
            match made {
                Ok(_) => events.extend(leaving.remove(&slot).flatten()),
                Err(error) => {
                    self.retries.push((now + RETRY, slot));
                    events.push(SwitchEvent::Trouble {
                        what: format!("the port of {slot}"),
                        reason: format!("{error}; it is tried again"),
                    });
                }
            }
        }
    }

    /// Ends the thread, and removes all pairs if they are not left to the next run.
    pub(super) fn stop(&mut self, removes: bool) {
        let Some(Kernel {
            mut links,
            mut remaker,
            ..
        }) = self.kernel.take()
        else {
            return;
        };
        remaker.stop();
        if removes && let Err(error) = self.pairs.remove_all(&mut links) {
            tracing::warn!(%error, "interfaces of instances stay");
        }
    }
}

/// The slots of the pairs whose names begin so and whose other ends are in containers.
///
/// # Errors
/// The kernel refuses.
pub fn pairs_in_use(prefix: &str) -> Result<Vec<Slot>, SwitchError> {
    let pairs = Pairs {
        prefix: prefix.to_owned(),
        mtu: 0,
        is_apart: true,
    };
    let netlink = |error| system("netlink", error);
    let all = Links::new().and_then(|mut links| links.list()).map_err(netlink)?;
    let in_use = all.iter().filter(|link| link.is_veth && link.peer_is_away);
    Ok(in_use.filter_map(|link| pairs.slot_of(&link.name)).collect())
}

/// Removes all pairs whose names begin so.
///
/// # Errors
/// The kernel refuses.
pub fn remove_pairs(prefix: &str) -> Result<(), SwitchError> {
    let pairs = Pairs {
        prefix: prefix.to_owned(),
        mtu: 0,
        is_apart: true,
    };
    let mut links = Links::new().map_err(|error| system("netlink", error))?;
    pairs.remove_all(&mut links).map_err(refused)
}

fn refused(error: Error) -> SwitchError {
    SwitchError::Port {
        reason: error.to_string(),
    }
}
