//! Instances that are the ends of connections: their programs use the kernel's network, over a kernel port. The switch
//! is their next hop: it sets the MAC addresses of what they get and send, and takes VLAN tags off and puts them on.
//! Where the service's address is translated, that is done with what they get here; with what they send once its flow
//! is known.
//!
//! What neighbours an uplink has is learnt from the packets that it brings: the reply to an address goes to the MAC
//! address from which its packets come. That outlives this process, so that the next run can reply at once.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use interfaces::{GATEWAY_MAC, instance_mac, is_checker};
use model::{DropReason, ServiceId, Slot, UplinkId, VipMode, protocol};
use packet::{Translation, Way, ethertype};
use shared_memory::OwnMemory;
use switch::{Plan, ServicePlan};

use crate::frame::Frame;
use crate::id_map::{SlotMap, UplinkMap};
use crate::keep::Keep;
use crate::neighbours::{
    BYTES, KEY_AT, LAYOUT, LAYOUT_AT, MAC_BITS, WAYS, address, latest, load, mac_of, number, place, router,
    tag_of, word,
};
use crate::tunnels::Tunnels;

/// Bytes of the two MAC addresses, and of a VLAN tag.
const ADDRESSES: usize = 12;
const TAG: usize = 4;
/// Addresses of an instance: the service's and its own, of both IP versions.
const ADDRESS_LIMIT: usize = 4;
/// The name under which it is kept.
pub(crate) const NAME: &str = "neighbours/all";

/// The kernel port of an instance that may come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelPlace {
    /// The place of the instance.
    pub slot: Slot,
    /// The addresses that it has for itself, beside the service's.
    pub own: Vec<IpAddr>,
    /// Whether it may open connections.
    pub egress: bool,
}

/// What workers know of such instances and of uplinks, beside the plan.
#[derive(Debug, Default)]
pub struct Ends {
    places: SlotMap<Option<KernelPlace>>,
    /// Whether the instance that is attached there has another kind of port, from a run in which its service had that
    /// kind.
    is_other: SlotMap<AtomicBool>,
    /// How the packets of each are translated, as the newest plan with its instance says: it holds as long as something
    /// of that instance is on its way.
    translations: SlotMap<ArcSwapOption<Translation>>,
    /// Of each uplink the MAC address of services' addresses; 0: it serves none.
    own: UplinkMap<AtomicU64>,
    tunnels: Tunnels,
    /// [`None`] without places. Any worker writes, in one store.
    neighbours: Option<OwnMemory>,
}

impl Ends {
    /// With these places. `key` keeps senders from choosing whose place among the neighbours they take. What an earlier
    /// run knew `before` goes on.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(
        places: &[KernelPlace],
        key: [u64; 2],
        keep: Option<&Keep>,
        before: Option<OwnedFd>,
        tunnels: Tunnels,
    ) -> io::Result<Ends> {
        let mut ends = Ends {
            tunnels,
            ..Ends::default()
        };
        for place in places {
            ends.places[place.slot] = Some(place.clone());
        }
        if places.is_empty() {
            return Ok(ends);
        }
        if let Some(file) = before {
            let memory = OwnMemory::open(file.as_fd())?;
            let is_known = |memory: &OwnMemory| word(memory, LAYOUT_AT).load(Ordering::Relaxed) == LAYOUT;
            ends.neighbours =
                Some(memory).filter(|memory| 8 * memory.all_words().len() >= BYTES && is_known(memory));
        }
        if ends.neighbours.is_none() {
            let (file, memory) = OwnMemory::create("inco-neighbours", BYTES, false)?;
            for (at, part) in (KEY_AT..).zip(key) {
                word(&memory, at).store(part, Ordering::Relaxed);
            }
            word(&memory, LAYOUT_AT).store(LAYOUT, Ordering::Relaxed);
            if let Some(keep) = keep {
                keep.keep(NAME, &(), &[file.as_fd()]);
            }
            ends.neighbours = Some(memory);
        }
        Ok(ends)
    }

    /// An uplink is there, and packets to services' addresses come to that MAC address.
    pub(crate) fn set_mac(&self, uplink: UplinkId, mac: [u8; 6]) {
        self.own[uplink].store(number(mac), Ordering::Relaxed);
    }

    /// The tunnels by uplinks.
    pub(crate) fn tunnels(&self) -> &Tunnels {
        &self.tunnels
    }

    /// The MAC address of services' addresses at an uplink.
    pub(crate) fn mac(&self, uplink: UplinkId) -> Option<[u8; 6]> {
        let mac = self.own[uplink].load(Ordering::Relaxed);
        (mac != 0).then(|| address(mac))
    }

    /// An instance is attached: whether its port is one of the kernel.
    pub(crate) fn attach(&self, slot: Slot, is_end: bool) {
        self.is_other[slot].store(!is_end, Ordering::Relaxed);
    }

    /// The place of a slot, unless its instance has another kind of port.
    fn end(&self, slot: Slot) -> Option<&KernelPlace> {
        let place = self.places[slot].as_ref();
        place.filter(|_| !self.is_other[slot].load(Ordering::Relaxed))
    }

    /// The addresses that the instance there has for itself.
    pub(crate) fn own(&self, slot: Slot) -> &[IpAddr] {
        self.end(slot).map_or(&[], |place| &place.own)
    }

    /// A plan is to be published.
    pub(crate) fn follow(&self, plan: &Plan) {
        for place in self.places.iter().flatten() {
            let row = plan.slot(place.slot);
            let Some(service) = row.and_then(|row| plan.service(row.service)) else {
                continue;
            };
            let vip = service.vip.as_ref().filter(|vip| vip.mode == VipMode::Dnat);
            let vip = vip.filter(|_| self.end(place.slot).is_some());
            let translation = vip.map(|vip| {
                let port = vip.ports.first().map(|range| *range.start());
                Translation::new(&vip.addresses, &place.own, port.zip(vip.target_port))
            });
            let current = &self.translations[place.slot];
            if current.load().as_deref() != translation.as_ref() {
                current.store(translation.map(Arc::new));
            }
        }
    }

    /// How the packets of the instance there are translated.
    pub(crate) fn translation(&self, slot: Slot) -> Guard<Option<Arc<Translation>>> {
        self.translations[slot].load()
    }

    /// Whether the instance there may open connections; [`None`] for one that is no end of connections.
    pub(crate) fn opens(&self, slot: Slot) -> Option<bool> {
        self.end(slot).map(|place| place.egress)
    }

    /// Makes a frame of no service the answer to itself, where it asks for an address of a service or an instance.
    #[cold]
    pub(crate) fn answer<F: Frame>(&self, frame: &mut F, uplink: UplinkId, plan: &Plan) -> bool {
        let Some(mac) = self.mac(uplink) else { return false };
        // Who sends packets of tunnels here answers for the addresses.
        let is_asked = !self.tunnels.receives(uplink);
        let serves =
            |service: &&ServicePlan| is_asked && service.vip.is_some() && service.uplinks.contains(&uplink);
        let is_own = |slot: Slot, address: &IpAddr| self.own(slot).contains(address);
        let end = self.tunnels.end(uplink).map(|end| IpAddr::V4(end.address));
        let is_ours = |address: IpAddr| {
            let mut services = plan.services.iter().filter(serves);
            services.any(|of| {
                of.vip
                    .as_ref()
                    .is_some_and(|vip| vip.addresses.contains(&address))
            }) || end == Some(address)
                || plan.instances().any(|(slot, _)| is_own(slot, &address))
        };
        let len = frame.len();
        match packet::answer(frame.room(), len, mac, is_ours) {
            Some(len) => {
                frame.set_len(len);
                true
            }
            None => false,
        }
    }

    /// A packet from that address came from that MAC address, on that uplink.
    #[inline]
    fn learn(&self, uplink: UplinkId, from: IpAddr, mac: [u8; 6]) {
        let Some(memory) = &self.neighbours else { return };
        let (set, tag) = place(memory, uplink, from);
        let mac = number(mac);
        // A group or nobody has no packets of its own.
        if set.iter().any(|at| load(memory, *at) == (tag << MAC_BITS | mac)) || mac >> 40 & 1 == 1 || mac == 0
        {
            return;
        }
        let of = |entry: u64, that: fn(u64) -> u64, this: u64| entry != 0 && that(entry) == this;
        let known = set.iter().find(|at| of(load(memory, **at), tag_of, tag));
        let free = set.iter().find(|at| load(memory, **at) == 0);
        let others = set.iter().filter(|at| known != Some(at));
        if others.clone().any(|at| of(load(memory, *at), mac_of, mac)) {
            word(memory, router(uplink)).store(mac, Ordering::Relaxed);
        }
        // One that the router reaches is no loss, and need not be noted at another's cost.
        let by_router = load(memory, router(uplink));
        let spare = others.clone().find(|at| mac_of(load(memory, **at)) == by_router);
        let oldest = (mac != by_router).then_some(&set[tag as usize % WAYS]);
        let Some(at) = known.or(free).or(spare).or(oldest) else {
            return;
        };
        word(memory, *at).store(tag << MAC_BITS | mac, Ordering::Relaxed);
        word(memory, latest(uplink)).store(mac, Ordering::Relaxed);
    }

    /// Where a packet to that address goes.
    #[inline]
    pub(crate) fn find(&self, uplink: UplinkId, to: IpAddr) -> Option<[u8; 6]> {
        let memory = self.neighbours.as_ref()?;
        let (set, tag) = place(memory, uplink, to);
        let entries = set.map(|at| load(memory, at));
        let known = entries
            .iter()
            .find(|entry| **entry != 0 && tag_of(**entry) == tag);
        let others = || [router(uplink), latest(uplink)].map(|at| load(memory, at));
        let mac = known.map_or_else(
            || others().into_iter().find(|mac| *mac != 0),
            |entry| Some(mac_of(*entry)),
        );
        mac.map(address)
    }
}

/// The addresses of a packet, and where its IP header begins. [`None`] for what is not IP.
#[inline]
fn addresses(frame: &[u8]) -> Option<(IpAddr, IpAddr, usize)> {
    let kind = |at: usize| frame.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two));
    let mut at = ADDRESSES;
    if kind(at)? == ethertype::VLAN {
        at += TAG;
    }
    let ip = at + 2;
    let v4 = |at: usize| {
        frame
            .get(ip + at..)?
            .first_chunk::<4>()
            .map(|of| IpAddr::from(*of))
    };
    let v6 = |at: usize| {
        frame
            .get(ip + at..)?
            .first_chunk::<16>()
            .map(|of| IpAddr::from(*of))
    };
    match kind(at)? {
        ethertype::IPV4 => Some((v4(12)?, v4(16)?, ip)),
        ethertype::IPV6 => Some((v6(8)?, v6(24)?, ip)),
        _ => None,
    }
}

/// An instance that ends connections, as its home worker knows it.
#[derive(Debug)]
pub(crate) struct End {
    ends: Arc<Ends>,
    slot: Slot,
    uplink: UplinkId,
    vlan: Option<u16>,
    addresses: [Option<IpAddr>; ADDRESS_LIMIT],
}

impl End {
    pub(crate) fn new(ends: &Arc<Ends>, slot: Slot) -> End {
        End {
            ends: Arc::clone(ends),
            slot,
            uplink: UplinkId(0),
            vlan: None,
            addresses: [None; ADDRESS_LIMIT],
        }
    }

    /// Takes over the plan's settings of its service.
    pub(crate) fn note(&mut self, service: ServiceId, plan: &Plan) {
        let Some(service) = plan.service(service) else {
            return;
        };
        self.uplink = service.uplinks.first().copied().unwrap_or_default();
        self.vlan = service.matches.vlan;
        let place = self.ends.places[self.slot].as_ref();
        let own = place.iter().flat_map(|place| &place.own);
        let of_all = service.vip.iter().filter(|vip| vip.mode == VipMode::L2);
        let mut all = of_all.flat_map(|vip| &vip.addresses).chain(own);
        self.addresses = std::array::from_fn(|_| all.next().copied());
    }

    /// Readies packets for the instance: the switch sends them, and they have no tag.
    #[inline]
    pub(crate) fn enter<F: Frame>(&self, frames: &mut [F]) {
        let translation = self.ends.translation(self.slot);
        for frame in frames {
            let bytes = frame.bytes_mut();
            let Some((source, _, ip)) = addresses(bytes) else {
                continue;
            };
            if let Some(mac) = bytes.get(6..).and_then(<[u8]>::first_chunk) {
                self.ends.learn(self.uplink, source, *mac);
            }
            if ip > ADDRESSES + 2 {
                bytes.copy_within(ADDRESSES + TAG.., ADDRESSES);
                let len = bytes.len() - TAG;
                frame.set_len(len);
            }
            set_macs(frame.bytes_mut(), instance_mac(self.slot), GATEWAY_MAC);
            if let Some(translation) = &*translation
                && !translation.apply(frame.bytes_mut(), Way::In)
            {
                // Ports drop empty frames.
                frame.set_len(0);
            }
        }
    }

    /// Whether a packet of the instance answers a health check, which another socket of its interface receives.
    #[inline]
    pub(crate) fn answers_check(&self, frame: &[u8]) -> bool {
        addresses(frame).is_some_and(|(source, destination, _)| {
            is_checker(destination) && self.addresses.contains(&Some(source))
        })
    }

    /// Readies a packet of the instance for its uplink.
    ///
    /// # Errors
    /// It is not to leave.
    #[inline]
    pub(crate) fn leave<F: Frame>(&self, frame: &mut F) -> Result<(), DropReason> {
        let (source, destination, ip) = addresses(frame.bytes()).ok_or(DropReason::Other)?;
        if ip > ADDRESSES + 2 {
            return Err(DropReason::Spoofed);
        }
        // Without an address, the flow alone says what is the instance's.
        if self.addresses[0].is_some() && !self.addresses.contains(&Some(source)) {
            // The kernel says on its own which groups it is in, and asks for routers.
            let is_of_link =
                matches!(source, IpAddr::V6(of) if of.is_unicast_link_local() || of.is_unspecified());
            return Err(if is_of_link {
                DropReason::Other
            } else {
                DropReason::Spoofed
            });
        }
        if destination.is_multicast() || destination.is_unspecified() {
            return Err(DropReason::Other);
        }
        // The link ends here: the switch says who has which address.
        let has_ports = matches!(frame.bytes().get(ip + 6), Some(&(protocol::TCP | protocol::UDP)));
        if source.is_ipv6() && !has_ports && packet::is_discovery(frame.bytes()) {
            return Err(DropReason::Other);
        }
        let to = self.ends.find(self.uplink, destination);
        let (to, from) = to
            .zip(self.ends.mac(self.uplink))
            .ok_or(DropReason::NoNeighbour)?;
        if let Some(vlan) = self.vlan {
            frame.add_front(TAG).ok_or(DropReason::TooLarge)?;
            let tag = frame
                .bytes_mut()
                .get_mut(ADDRESSES..)
                .and_then(<[u8]>::first_chunk_mut);
            let [a, b] = ethertype::VLAN.to_be_bytes();
            let [c, d] = vlan.to_be_bytes();
            *tag.ok_or(DropReason::TooLarge)? = [a, b, c, d];
        }
        set_macs(frame.bytes_mut(), to, from);
        Ok(())
    }
}

#[inline]
fn set_macs(frame: &mut [u8], to: [u8; 6], from: [u8; 6]) {
    if let Some((first, rest)) = frame.split_first_chunk_mut::<6>()
        && let Some(second) = rest.first_chunk_mut::<6>()
    {
        *first = to;
        *second = from;
    }
}

#[cfg(test)]
mod tests {
    use model::{Vip, VipMode};
    use packet::build::{self, Tag};
    use scheduling::Scheduler;

    use super::*;
    use crate::frame::HeapFrame;

    const SLOT: Slot = Slot(3);
    const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn end(vlan: Option<u16>) -> (Arc<Ends>, End) {
        let place = KernelPlace {
            slot: SLOT,
            own: vec!["10.0.1.1".parse().unwrap()],
            egress: true,
        };
        let ends = Arc::new(
            Ends::new(
                &[place],
                [0x9ddf_ea08_eb38_2d69, 0xc3a5_c85c_97cb_3127],
                None,
                None,
                Tunnels::default(),
            )
            .unwrap(),
        );
        ends.set_mac(UplinkId(0), OWN_MAC);
        let mut service = ServicePlan::of_all(ServiceId(0), Scheduler::from_name("rss").unwrap());
        service.vip = Some(Vip {
            addresses: vec!["10.0.0.100".parse().unwrap(), "2001:db8::100".parse().unwrap()],
            ports: vec![80..=80],
            mode: VipMode::L2,
            target_port: None,
        });
        service.matches.vlan = vlan;
        let plan = Plan {
            services: vec![service],
            ..Plan::default()
        };
        let mut end = End::new(&ends, SLOT);
        end.note(ServiceId(0), &plan);
        (ends, end)
    }

    fn frame(src: &str, dst: &str, tags: &[Tag]) -> HeapFrame {
        let mut built = build::Frame::udp(src.parse().unwrap(), dst.parse().unwrap(), b"data").unwrap();
        (built.src_mac, built.dst_mac, built.tags) = (CLIENT_MAC, OWN_MAC, tags);
        let bytes = built.to_vec().unwrap();
        let mut frame = HeapFrame::with_room(200);
        frame.room()[..bytes.len()].copy_from_slice(&bytes);
        frame.set_len(bytes.len());
        frame
    }

    #[test]
    fn replies_go_where_requests_came_from() {
        for (vlan, tags) in [(None, vec![]), (Some(7), vec![Tag::vlan(7)])] {
            let (_ends, end) = end(vlan);
            for (client, vip) in [
                ("10.0.0.9:5", "10.0.0.100:80"),
                ("[2001:db8::9]:5", "[2001:db8::100]:80"),
            ] {
                let mut request = frame(client, vip, &tags);
                end.enter(std::slice::from_mut(&mut request));
                let mut untagged = frame(client, vip, &[]);
                set_macs(untagged.bytes_mut(), instance_mac(SLOT), GATEWAY_MAC);
                assert_eq!(request.bytes(), untagged.bytes());
                let mut reply = frame(vip, client, &[]);
                set_macs(reply.bytes_mut(), GATEWAY_MAC, instance_mac(SLOT));
                end.leave(&mut reply).unwrap();
                let mut expected = frame(vip, client, &tags);
                set_macs(expected.bytes_mut(), CLIENT_MAC, OWN_MAC);
                assert_eq!(reply.bytes(), expected.bytes());
            }
        }
    }

    #[test]
    fn an_instance_speaks_for_itself_alone() {
        let (_ends, end) = end(None);
        let left = |src: &str, dst: &str, tags: &[Tag]| end.leave(&mut frame(src, dst, tags));
        assert_eq!(
            left("10.0.0.100:80", "10.0.0.9:5", &[]),
            Err(DropReason::NoNeighbour)
        );
        end.enter(&mut [frame("10.0.0.8:5", "10.0.0.100:80", &[])]);
        assert_eq!(
            left("10.0.0.100:80", "10.0.0.9:5", &[]),
            Ok(()),
            "by the only router there is"
        );
        assert_eq!(left("10.0.1.1:80", "10.0.0.9:5", &[]), Ok(()));
        assert_eq!(left("10.0.0.101:80", "10.0.0.9:5", &[]), Err(DropReason::Spoofed));
        assert_eq!(
            left("10.0.0.100:80", "10.0.0.9:5", &[Tag::vlan(7)]),
            Err(DropReason::Spoofed)
        );
        assert_eq!(left("[fe80::1]:80", "[ff02::2]:5", &[]), Err(DropReason::Other));
        assert_eq!(left("10.0.0.100:80", "224.0.0.1:5", &[]), Err(DropReason::Other));
        let mut arp = frame("10.0.0.100:80", "10.0.0.9:5", &[]);
        arp.bytes_mut()[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(end.leave(&mut arp), Err(DropReason::Other));
    }

    #[test]
    fn neighbours_do_not_take_each_others_places() {
        let (ends, _) = end(None);
        let uplink = UplinkId(0);
        let all: Vec<IpAddr> = (0..300_u32)
            .map(|at| IpAddr::V4((0x0a00_0001 + at).into()))
            .collect();
        for (at, address) in all.iter().enumerate() {
            ends.learn(uplink, *address, [2, 0, 0, 0, (at >> 8) as u8, at as u8]);
        }
        ends.learn(uplink, all[0], [0xff; 6]);
        ends.learn(uplink, all[0], [2; 6]);
        let known = all.iter().enumerate();
        let right = known.filter(|(at, address)| {
            ends.find(uplink, **address) == Some([2, 0, 0, 0, (at >> 8) as u8, *at as u8])
        });
        assert_eq!(right.count(), 299, "all but the one that moved");
        assert_eq!(ends.find(uplink, all[0]), Some([2, 2, 2, 2, 2, 2]));
        // A router brings more addresses than there are places. Each is found, and no neighbour is forgotten.
        let router = [2, 9, 9, 9, 9, 9];
        let far = |at: u32| IpAddr::V4((0xac10_0000 + at).into());
        (0..10_000).for_each(|at| ends.learn(uplink, far(at), router));
        assert!((0..10_000).all(|at| ends.find(uplink, far(at)) == Some(router)));
        let near = |at: usize| ends.find(uplink, all[at]) == Some([2, 0, 0, 0, (at >> 8) as u8, at as u8]);
        assert!((1..300).all(near));
    }
}
