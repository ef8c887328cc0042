//! The pairs of interfaces of instances with kernel ports. All are there before any container. A pair whose other end
//! went with a container is made again, and before its slot is told to be free.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use interfaces::{Error, LinkWatch, Links, Pairs, Remaker, frames_prefix, host_end};
use model::{Nanos, PortKind, Slot};
use switch::{PortSpec, SwitchError, SwitchEvent};

use super::system;
use crate::ends::KernelPlace;
use crate::instance::PORT_LIMIT;

/// An Ethernet header with two VLAN tags.
const HEADER_BYTES: u32 = 22;
/// How long a pair that could not be made waits for the next attempt.
const RETRY: Nanos = Nanos::from_secs(1);

/// The kernel ports of instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelPorts {
    /// What the names of this machine's ends begin with, at most 8 bytes.
    pub prefix: String,
    /// The longest packet that they carry, without the Ethernet header.
    pub mtu: u16,
    /// The place of each instance with the kernel's network.
    pub places: Vec<KernelPlace>,
    /// The slots of instances that take whole frames, by the number of the data port: those that have such a port.
    pub frames: [Vec<Slot>; PORT_LIMIT],
}

/// All pairs.
pub(super) struct InstancePairs {
    network: Group,
    /// Of whole frames, by the number of the data port.
    frames: [Group; PORT_LIMIT],
}

impl InstancePairs {
    /// Makes the pairs that are missing. Those of an earlier run stay where that `goes_on`, or where containers have
    /// their other ends.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn start(of: &KernelPorts, goes_on: bool) -> Result<InstancePairs, SwitchError> {
        let group = |prefix: String, slots: Vec<Slot>| Group::start(pairs_of(prefix, of.mtu), slots, goes_on);
        let network = of.places.iter().map(|place| place.slot).collect();
        let [first, second] = &of.frames;
        Ok(InstancePairs {
            network: group(of.prefix.clone(), network)?,
            frames: [
                group(frames_prefix(&of.prefix, 0), first.clone())?,
                group(frames_prefix(&of.prefix, 1), second.clone())?,
            ],
        })
    }

    fn groups(&mut self) -> impl Iterator<Item = &mut Group> {
        std::iter::once(&mut self.network).chain(&mut self.frames)
    }

    /// The port of an instance, as the switch opens it.
    ///
    /// # Errors
    /// There is no pair for the slot.
    pub(super) fn port_of(&mut self, slot: Slot, port: PortSpec) -> Result<PortSpec, SwitchError> {
        let groups = match port.kind {
            PortKind::Kernel => std::slice::from_mut(&mut self.network),
            PortKind::Frames => self
                .frames
                .get_mut(..usize::from(port.data_ports))
                .unwrap_or_default(),
            _ => return Ok(port),
        };
        let names = groups.iter_mut().map(|group| group.take(slot));
        let names: Vec<String> = names.collect::<Result<_, _>>()?;
        Ok(PortSpec {
            address: PathBuf::from(names.join(",")),
            data_ports: names.len() as u8,
            buffer_bytes: self.network.pairs.mtu + HEADER_BYTES,
            ..port
        })
    }

    /// What tells an instance from others that have had its slot: it goes with its pairs.
    pub(super) fn identity(&mut self, port: PortSpec) -> PathBuf {
        let group = match port.kind {
            PortKind::Kernel => &mut self.network,
            PortKind::Frames => &mut self.frames[0],
            _ => return port.address,
        };
        let address = port.address.to_string_lossy();
        let index = address.split(',').next().and_then(|name| group.index_of(name));
        PathBuf::from(format!("{address}/{}", index.unwrap_or_default()))
    }

    /// Has pairs made again that are gone. Of the events behind the first `before` ones, holds those back that tell that
    /// a slot is free, until its pairs are there.
    pub(super) fn poll(&mut self, now: Nanos, before: usize, events: &mut Vec<SwitchEvent>) {
        // What one group lets go, the next one may hold back.
        self.groups().for_each(|group| group.poll(now, before, events));
    }

    /// Ends the threads, and removes all pairs if they are not left to the next run.
    pub(super) fn stop(&mut self, removes: bool) {
        self.groups().for_each(|group| group.stop(removes));
    }
}

/// How pairs with that prefix are made.
fn pairs_of(prefix: String, mtu: u16) -> Pairs {
    Pairs {
        prefix,
        mtu: u32::from(mtu),
        is_apart: true,
    }
}

/// The pairs of one kind: at most one for each slot.
struct Group {
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

impl Group {
    /// Makes the pairs that are missing.
    ///
    /// # Errors
    /// The kernel refuses.
    fn start(pairs: Pairs, slots: Vec<Slot>, goes_on: bool) -> Result<Group, SwitchError> {
        let mut all = Group {
            pairs,
            slots: slots.into_iter().collect(),
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

    /// The host's end of a slot's pair, which an instance gets.
    ///
    /// # Errors
    /// There is no pair for the slot.
    fn take(&mut self, slot: Slot) -> Result<String, SwitchError> {
        if !self.slots.contains(&slot) {
            return Err(SwitchError::Limit {
                what: "slots with a port",
                asked: slot.index() + 1,
                limit: self.slots.len(),
            });
        }
        self.attached.insert(slot);
        Ok(host_end(&self.pairs.prefix, slot))
    }

    fn index_of(&mut self, name: &str) -> Option<u32> {
        Some(self.kernel.as_mut()?.links.find(name).ok()?.index)
    }

    /// Has pairs made again that are gone, and holds events back, as [`InstancePairs::poll`] does.
    fn poll(&mut self, now: Nanos, before: usize, events: &mut Vec<SwitchEvent>) {
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
    fn stop(&mut self, removes: bool) {
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

/// The slots of the pairs whose names begin so and whose other ends are in containers: of those for the kernel's network,
/// and of those for whole frames by the number of the data port.
///
/// # Errors
/// The kernel refuses.
pub fn pairs_in_use(prefix: &str) -> Result<(Vec<Slot>, [Vec<Slot>; PORT_LIMIT]), SwitchError> {
    let netlink = |error| system("netlink", error);
    let all = Links::new().and_then(|mut links| links.list()).map_err(netlink)?;
    let slots_of = |prefix: String| {
        let pairs = pairs_of(prefix, 0);
        let in_use = all.iter().filter(|link| link.is_veth && link.peer_is_away);
        in_use.filter_map(|link| pairs.slot_of(&link.name)).collect()
    };
    let frames = [0, 1].map(|port| slots_of(frames_prefix(prefix, port)));
    Ok((slots_of(prefix.to_owned()), frames))
}

/// Removes all pairs whose names begin so.
///
/// # Errors
/// The kernel refuses.
pub fn remove_pairs(prefix: &str) -> Result<(), SwitchError> {
    let mut links = Links::new().map_err(|error| system("netlink", error))?;
    let frames = [0, 1].map(|port| frames_prefix(prefix, port));
    for prefix in std::iter::once(prefix.to_owned()).chain(frames) {
        pairs_of(prefix, 0).remove_all(&mut links).map_err(refused)?;
    }
    Ok(())
}

fn refused(error: Error) -> SwitchError {
    SwitchError::Port {
        reason: error.to_string(),
    }
}
