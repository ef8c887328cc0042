//! Packets from instances that end connections: each belongs to a flow that is pinned to its instance, or opens one.

use model::Slot;
use packet::{PacketInfo, TcpFlags};

use crate::frame::FrameMemory;
use crate::worker::context::Context;
use crate::worker::lookup::Lookup;

/// Counts a packet of an instance with its flow, which is this worker's. `opens`: the instance may open connections;
/// they are pinned to itself. Whether the packet may leave.
pub(crate) fn count<M: FrameMemory>(
    info: &PacketInfo,
    slot: Slot,
    opens: bool,
    lookup: &mut Lookup,
    cx: &Context<M>,
) -> bool {
    let hash = cx.hasher.hash(&info.key);
    let table = &mut lookup.table;
    let pins = table
        .lookup(&info.key, hash)
        .map(|entry| (entry, table.pins(entry)));
    if info.is_icmp_error {
        // It is about what the instance got. In another one's flow, it would end that.
        return match pins {
            Some((_, pins)) if pins != [Slot::NONE; 2] => pins.contains(&slot),
            _ => opens,
        };
    }
    let entry = match pins {
        Some((entry, pins)) if pins.contains(&slot) => Some(entry),
        // Its flow was given to another one.
        Some((_, pins)) if pins != [Slot::NONE; 2] => return false,
        Some((entry, _)) if opens => {
            table.set_pins(entry, [slot; 2], cx.now);
            Some(entry)
        }
        None if opens && !ends(info) && !answers_an_opening(info) => {
            let service = cx.view.routes[slot].service;
            let entered = table.insert(&info.key, hash, info.direction, [slot; 2], service, cx.now);
            if entered.is_ok() {
                cx.counters.slots[slot].new_flows.add(1);
            } else {
                cx.counters.figures.table_full.add(1);
            }
            entered.ok()
        }
        _ => None,
    };
    let Some(entry) = entry else {
        cx.counters.slots[slot].return_unmatched.add(1);
        // The rest of a connection that is over, or a new one.
        return opens || info.key.protocol() == model::protocol::TCP && !is_opening(info);
    };
    let bytes = u64::from(info.frame_len);
    table.hit(entry, info.direction, 1, bytes, cx.now, info.tcp_flags.0);
    if table.pins(entry) == [Slot::NONE; 2] {
        // It opened the connection anew.
        table.set_pins(entry, [slot; 2], cx.now);
    }
    true
}

/// Whether a packet opens a TCP connection.
pub(crate) fn is_opening(info: &PacketInfo) -> bool {
    info.tcp_flags.0 & (TcpFlags::SYN | TcpFlags::ACK) == TcpFlags::SYN
}

/// Whether a packet answers one that opens a TCP connection. Where that is not known, it was one of too many: the
/// answer makes no entry either.
fn answers_an_opening(info: &PacketInfo) -> bool {
    let both = TcpFlags::SYN | TcpFlags::ACK;
    info.key.protocol() == model::protocol::TCP && info.tcp_flags.0 & both == both
}

/// Whether a packet ends a flow that is not known.
pub(crate) fn ends(info: &PacketInfo) -> bool {
    info.key.protocol() == model::protocol::TCP && info.tcp_flags.0 & (TcpFlags::RST | TcpFlags::FIN) != 0
}
