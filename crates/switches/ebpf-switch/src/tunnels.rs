//! Tunnels (VXLAN) by an uplink: the near end, and machines at the far ends in the place of instances.
//!
//! The programs write and read the outer headers (`bpf/tunnel.h`). This side asks for the machines' MAC addresses by ARP,
//! each second once one is known: so a machine that answers no more is noticed. A program notes the answers. This side
//! also tells senders whose packets are too big: the program hands their beginnings over, up to a rate.
//!
//! While no inco runs, flows go on to the machines that are known, but no machine is asked, and no sender is told.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use aya::maps::{Array, HashMap, Map, MapData, MapError, RingBuf};
use interfaces::send_frame;
use model::{Nanos, ServiceId, Slot, UplinkId};
use packet::{ICMP_ERROR_LIMIT, vxlan};
use switch::{Plan, SwitchEvent};

use crate::error::{EbpfError, chain};
use crate::instances::{free, row, void};
use crate::kernel::{Kernel, Shared};
use crate::layout::{SLOT_TUNNEL, SlotRow, slot_state, store_bytes};

/// How often a machine is asked whose MAC address is known, and one whose is not.
const ASK_KNOWN: Nanos = Nanos::from_secs(1);
const ASK_UNKNOWN: Nanos = Nanos::from_millis(50);
/// A machine that has not answered so many questions does not answer.
const QUESTIONS_LIMIT: u32 = 3;
/// Senders that are told in one turn; more wait for the next one.
const TURN_LIMIT: usize = 16;
/// Bytes of two VLAN tags, which the longest frame of an uplink has beside the MTU. Outer packets have no tags.
const TAGS: usize = 8;
/// Bytes of `struct tunnel_end`, of `struct far_end`, and of the words before the frame in `struct big_frame`.
const END_BYTES: usize = 32;
const FAR_BYTES: usize = 16;
const HEAD_BYTES: usize = 8;

/// The near end of tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelEnd {
    /// The uplink that carries them.
    pub uplink: UplinkId,
    /// The longest frame of that uplink, in bytes.
    pub max_frame: usize,
    /// Its address, which no network stack has.
    pub address: Ipv4Addr,
    /// The network's number (VNI).
    pub network: u32,
    /// Far ends whose packets are taken out of the tunnel.
    pub from: Vec<Ipv4Addr>,
}

impl TunnelEnd {
    /// The longest frame that a tunnel carries, in bytes without outer headers.
    fn frame_limit(&self) -> usize {
        self.max_frame.saturating_sub(TAGS + vxlan::OVERHEAD)
    }

    /// As the programs read it.
    fn words(&self) -> [u8; END_BYTES] {
        let words = [
            u32::from_ne_bytes(self.address.octets()),
            self.network,
            u32::from(self.uplink.0),
            u32::try_from(self.frame_limit()).unwrap_or(u32::MAX),
            u32::from(!self.from.is_empty()),
        ];
        let mut bytes = [0; END_BYTES];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// The maps of the programs.
struct Maps {
    far: HashMap<MapData, [u8; 4], [u8; FAR_BYTES]>,
    big: RingBuf<MapData>,
}

/// A slot for a machine.
#[derive(Default)]
struct Machine {
    /// Where it is, while one is attached.
    at: Option<SocketAddr>,
    /// Whether the control plane has been told that it is attached.
    is_up: bool,
    is_failed: bool,
    /// Whether a plan of this run has had it.
    was_planned: bool,
    /// Where an earlier run had one.
    inherited: Option<SocketAddr>,
    /// Questions since it answered last, and when it was asked; 0: not yet.
    unanswered: u32,
    asked_at: Nanos,
    /// Whether the control plane has been told that it does not answer.
    is_told: bool,
}

/// The near end and all machines.
pub(crate) struct Tunnels {
    end: Option<TunnelEnd>,
    maps: Option<Maps>,
    all: BTreeMap<Slot, Machine>,
    shared: Arc<Shared>,
}

impl Tunnels {
    /// Those of the slots. Where the state of an earlier run is taken over, its machines serve on. The programs are not
    /// attached yet.
    ///
    /// # Errors
    /// The programs have no room for all far ends.
    pub(crate) fn start(
        end: Option<&TunnelEnd>,
        slots: impl Iterator<Item = Slot>,
        kernel: &mut Kernel,
        shared: Arc<Shared>,
        is_taken_over: bool,
    ) -> Result<Tunnels, EbpfError> {
        let maps = end.map(|end| fill(end, kernel)).transpose()?;
        let inherited = |slot| is_taken_over.then(|| of_earlier(row(&shared, slot))).flatten();
        let all = slots.map(|slot| {
            let inherited = inherited(slot);
            if inherited.is_none() {
                free(&shared, slot);
                row(&shared, slot).flags.store(SLOT_TUNNEL, Relaxed);
            }
            let of = Machine {
                inherited,
                ..Machine::default()
            };
            (slot, of)
        });
        Ok(Tunnels {
            end: end.cloned(),
            maps,
            all: all.collect(),
            shared,
        })
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.all.keys().copied()
    }

    pub(crate) fn has(&self, slot: Slot) -> bool {
        self.all.contains_key(&slot)
    }

    /// Where an earlier run had machines.
    pub(crate) fn inherited(&self) -> impl Iterator<Item = (Slot, SocketAddr)> {
        let all = self.all.iter();
        all.filter_map(|(slot, of)| Some((*slot, of.inherited?)))
    }

    pub(crate) fn is_usable(&self, slot: Slot) -> bool {
        self.all.get(&slot).is_some_and(|of| of.is_up && !of.is_failed)
    }

    /// The uplink whose packets others answer for, and the near end's address with its uplink.
    pub(crate) fn answers(&self) -> (Option<UplinkId>, Option<(IpAddr, UplinkId)>) {
        let end = self.end.as_ref();
        let receives = end.filter(|end| !end.from.is_empty()).map(|end| end.uplink);
        (receives, end.map(|end| (IpAddr::V4(end.address), end.uplink)))
    }

    /// Has a machine asked for, until it answers. Gives false where there is one already.
    pub(crate) fn attach(
        &mut self,
        slot: Slot,
        service: ServiceId,
        at: Option<SocketAddr>,
        events: &mut Vec<SwitchEvent>,
    ) -> bool {
        let Some(of) = self.all.get_mut(&slot).filter(|of| of.at.is_none()) else {
            return false;
        };
        let mut failed = |reason: &str| {
            let reason = reason.to_owned();
            events.push(SwitchEvent::AttachFailed { slot, reason });
        };
        let (Some(end), Some(maps)) = (&self.end, &mut self.maps) else {
            failed("no uplink has an end of tunnels");
            return true;
        };
        let Some((at, IpAddr::V4(address))) = at.map(|at| (at, at.ip())) else {
            failed("it has no IPv4 address");
            return true;
        };
        let to = row(&self.shared, slot);
        let is_same = of.inherited.take() == Some(at);
        *of = Machine {
            at: Some(at),
            ..Machine::default()
        };
        if !is_same {
            free(&self.shared, slot);
            store_bytes(&to.mac, [0; 6]);
        }
        if maps.far.get(&address.octets(), 0).is_err() {
            let added = maps
                .far
                .insert(address.octets(), far_end(end.from.contains(&address)), 0);
            if let Err(error) = added {
                of.at = None;
                failed(&error.to_string());
                return true;
            }
        }
        to.service.store(service.0, Relaxed);
        to.own4.store(u32::from_ne_bytes(address.octets()), Relaxed);
        to.target_port.store(at.port(), Relaxed);
        to.flags.store(SLOT_TUNNEL, Release);
        if is_known(to) {
            of.tell(slot, events);
        }
        true
    }

    pub(crate) fn fail(&mut self, slot: Slot) {
        if let Some(of) = self.all.get_mut(&slot) {
            of.is_failed = true;
            row(&self.shared, slot).state.store(slot_state::FAILED, Release);
            void(&self.shared, slot);
        }
    }

    pub(crate) fn detach(&mut self, slot: Slot, events: &mut Vec<SwitchEvent>) {
        if let Some(of) = self.all.get_mut(&slot) {
            *of = Machine::default();
            free(&self.shared, slot);
            store_bytes(&row(&self.shared, slot).mac, [0; 6]);
        }
        events.push(SwitchEvent::Detached { slot, outstanding: 0 });
    }

    /// Takes a plan over: which machines take new flows, which serve those they have.
    pub(crate) fn follow(&mut self, plan: &Plan) {
        for (slot, of) in &mut self.all {
            let row = row(&self.shared, *slot);
            match plan.slot(*slot) {
                Some(planned) if of.is_up && !of.is_failed => {
                    of.was_planned = true;
                    row.service.store(planned.service.0, Relaxed);
                    let takes = planned.state.takes_new_flows();
                    let state = if takes {
                        slot_state::ACTIVE
                    } else {
                        slot_state::SERVING
                    };
                    row.state.store(state, Release);
                }
                None if std::mem::take(&mut of.was_planned) && !of.is_failed => free(&self.shared, *slot),
                _ => {}
            }
        }
    }

    /// Asks for machines, hears what they answered, and tells senders whose packets are too big. After `is_over`, what an
    /// earlier run has left and nobody has asked for is gone.
    pub(crate) fn poll(&mut self, now: Nanos, is_over: bool, events: &mut Vec<SwitchEvent>) {
        if is_over {
            for (slot, of) in &mut self.all {
                if of.inherited.take().is_some() {
                    free(&self.shared, *slot);
                }
            }
        }
        let (Some(end), Some(maps)) = (&self.end, &mut self.maps) else {
            return;
        };
        let uplinks = &self.shared.world().uplinks;
        let Some(uplink) = uplinks.get(usize::from(end.uplink.0)) else {
            return;
        };
        let (index, mac) = (uplink.ifindex.load(Relaxed), load_mac(&uplink.mac));
        for _ in 0..TURN_LIMIT {
            let Some(record) = maps.big.next() else { break };
            tell_sender(
                &record,
                end.frame_limit(),
                |uplink, error| {
                    let from = uplinks.get(uplink);
                    from.map_or(Ok(()), |from| send_frame(from.ifindex.load(Relaxed), error))
                },
                mac,
            );
        }
        for (slot, of) in &mut self.all {
            let Some(IpAddr::V4(address)) = of.at.map(|at| at.ip()) else {
                continue;
            };
            let to = row(&self.shared, *slot);
            if of.unanswered > 0
                && let Ok(far) = maps.far.get(&address.octets(), 0)
                && let Some(mac) = heard(&far, of.asked_at)
            {
                (of.unanswered, of.is_told) = (0, false);
                store_bytes(&to.mac, mac);
                if !of.is_up {
                    of.tell(*slot, events);
                }
            }
            let pause = if is_known(to) { ASK_KNOWN } else { ASK_UNKNOWN };
            if of.asked_at == Nanos::ZERO || now.since(of.asked_at) >= pause {
                of.asked_at = now;
                of.unanswered = of.unanswered.saturating_add(1);
                let mut question = [0; vxlan::ARP_FRAME];
                vxlan::ask(&mut question, mac, end.address, address);
                if let Err(error) = send_frame(index, &question) {
                    tracing::debug!(%address, %error, "a machine could not be asked for");
                }
            }
        }
        self.tell_silent(events);
    }

    /// Tells of machines that answer no more, where another one does. If none does, it is this machine that does not hear.
    fn tell_silent(&mut self, events: &mut Vec<SwitchEvent>) {
        // What is lost for all is not answered by any for as long.
        let answers = |of: &Machine| of.is_up && of.unanswered <= 1;
        if !self.all.values().any(answers) {
            return;
        }
        for (slot, of) in &mut self.all {
            if of.is_up && of.unanswered > QUESTIONS_LIMIT && !of.is_told {
                of.is_told = true;
                let reason = "the machine at the other end of the tunnel does not answer".to_owned();
                events.push(SwitchEvent::PortDown { slot: *slot, reason });
            }
        }
    }

    /// Leaves nothing in the slots.
    pub(crate) fn stop(&mut self) {
        for slot in self.all.keys() {
            free(&self.shared, *slot);
        }
    }
}

impl Machine {
    /// It is known from now on.
    fn tell(&mut self, slot: Slot, events: &mut Vec<SwitchEvent>) {
        self.is_up = true;
        let peer = self.at.map_or_else(String::new, |at| format!("tunnel to {at}"));
        events.push(SwitchEvent::Attached { slot, peer });
    }
}

/// Writes the near end and the far ends that may send for programs that are loaded.
fn fill(end: &TunnelEnd, kernel: &mut Kernel) -> Result<Maps, EbpfError> {
    let refused = |error: MapError| EbpfError::Load {
        reason: chain(&error),
    };
    let mut take = |name: &str| {
        kernel.take_map(name).ok_or_else(|| EbpfError::Load {
            reason: format!("no map {name}"),
        })
    };
    let mut far = HashMap::try_from(take("far_ends")?).map_err(refused)?;
    let big = match take("big_frames")? {
        map @ Map::RingBuf(_) => RingBuf::try_from(map).map_err(refused)?,
        _ => {
            return Err(EbpfError::Load {
                reason: "the map big_frames is of another kind".to_owned(),
            });
        }
    };
    for address in &end.from {
        far.insert(address.octets(), far_end(true), 0).map_err(refused)?;
    }
    let mut ends: Array<MapData, [u8; END_BYTES]> = Array::try_from(take("tunnel_end")?).map_err(refused)?;
    ends.set(0, end.words(), 0).map_err(refused)?;
    Ok(Maps { far, big })
}

/// A far end that has not answered yet, as the programs have it.
fn far_end(may_send: bool) -> [u8; FAR_BYTES] {
    let mut bytes = [0; FAR_BYTES];
    bytes[14] = u8::from(may_send);
    bytes
}

/// The MAC address of a far end that has answered since then.
fn heard(far: &[u8; FAR_BYTES], asked_at: Nanos) -> Option<[u8; 6]> {
    let (at, rest) = far.split_first_chunk::<8>()?;
    let mac = rest.first_chunk::<6>()?;
    (u64::from_ne_bytes(*at) >= asked_at.0 && *mac != [0; 6]).then_some(*mac)
}

fn load_mac(from: &[std::sync::atomic::AtomicU8; 6]) -> [u8; 6] {
    from.each_ref().map(|byte| byte.load(Relaxed))
}

/// Whether the MAC address of the machine of a slot is known.
fn is_known(row: &SlotRow) -> bool {
    load_mac(&row.mac) != [0; 6]
}

/// Where an earlier run had a machine in that slot, if it had one.
fn of_earlier(row: &SlotRow) -> Option<SocketAddr> {
    let state = row.state.load(Relaxed);
    let serves = state == slot_state::ACTIVE || state == slot_state::SERVING;
    if !serves || row.flags.load(Relaxed) & SLOT_TUNNEL == 0 {
        return None;
    }
    let address = Ipv4Addr::from(row.own4.load(Relaxed).to_ne_bytes());
    Some(SocketAddr::new(
        IpAddr::V4(address),
        row.target_port.load(Relaxed),
    ))
}

/// Tells the sender of the frame in a record, which is `struct big_frame` of the programs, how long one may be.
fn tell_sender(
    record: &[u8],
    frame_limit: usize,
    send: impl FnOnce(usize, &[u8]) -> std::io::Result<()>,
    mac: [u8; 6],
) {
    let Some((uplink, frame)) = big_frame(record) else {
        return;
    };
    let mut error = [0; ICMP_ERROR_LIMIT];
    let written = packet::too_big(&frame, frame_limit, mac, &mut error);
    if let Some(error) = written.and_then(|len| error.get(..len))
        && let Err(error) = send(uplink, error)
    {
        tracing::debug!(%error, "a sender could not be told that its packet is too big");
    }
}

/// The uplink and the frame of a record. The frame is cut off, and its headers say the length of what is there.
fn big_frame(record: &[u8]) -> Option<(usize, Vec<u8>)> {
    let (head, bytes) = record.split_at_checked(HEAD_BYTES)?;
    let (words, _) = head.as_chunks::<4>();
    let [uplink, vlan] = [0, 1].map(|at| words.get(at).map_or(0, |word| u32::from_ne_bytes(*word)));
    let mut frame = bytes.to_vec();
    let length = u16::try_from(frame.len().checked_sub(14)?).ok()?;
    let packet = frame.get_mut(14..)?;
    let (header, protocol) = if packet.first()? >> 4 == 6 {
        packet
            .get_mut(4..6)?
            .copy_from_slice(&length.checked_sub(40)?.to_be_bytes());
        (40, *packet.get(6)?)
    } else {
        let header = u16::from(packet.first()? & 15) * 4;
        packet.get_mut(2..4)?.copy_from_slice(&length.to_be_bytes());
        packet.get_mut(10..12)?.fill(0);
        let sum = packet::checksum::internet(packet.get(..usize::from(header))?);
        packet.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
        (header, *packet.get(9)?)
    };
    if protocol == model::protocol::UDP {
        let at = usize::from(header) + 4;
        packet
            .get_mut(at..at + 2)?
            .copy_from_slice(&length.checked_sub(header)?.to_be_bytes());
    }
    if vlan != 0 {
        let [high, low] = (vlan as u16).to_be_bytes();
        frame.splice(12..12, [0x81, 0, high, low]);
    }
    Some((uplink as usize, frame))
}
