//! Packets to external addresses of a service that translates: their instance is the owner of their port's block,
//! whatever a scheduler would say, and whether or not it takes other new flows. Each direction has a pin of its own,
//! because the opposite one may be to another owner's block.

use flow_table::{FlowTable, Full};
use model::{Direction, DropReason, Slot};
use switch::ExternalPacket;

use crate::frame::FrameMemory;
use crate::table_memory::TableMemory;
use crate::worker::context::Context;
use crate::worker::egress::Decision;
use crate::worker::set_up::{Opening, Place, SetUp};
use crate::worker::unknown::TcpPart;

impl SetUp {
    /// The destination of a packet without an instance that comes to or from external addresses. `enter` writes the pin,
    /// as for [`SetUp::open`].
    #[cold]
    pub(super) fn open_by_block<M: FrameMemory>(
        &mut self,
        opening: &Opening<'_>,
        packet: ExternalPacket,
        table: &mut FlowTable<TableMemory>,
        cx: &Context<M>,
        enter: impl FnOnce(&mut FlowTable<TableMemory>, Place) -> Result<bool, Full>,
    ) -> Decision {
        let (service, slot) = match packet {
            ExternalPacket::Owned { service, slot } => (service, slot),
            ExternalPacket::Unowned { service } => {
                let reason = DropReason::PortBlock;
                return Decision::Refused { service, reason };
            }
            ExternalPacket::Spoofed { service } => {
                let reason = DropReason::Spoofed;
                return Decision::Refused { service, reason };
            }
        };
        let to = Decision::Instance { slot, service };
        let counters = &cx.counters;
        if opening.is_icmp_error {
            return to;
        }
        // An owner is known without an entry: what finds no room there goes to it all the same.
        let is_flood = opening.part == TcpPart::Opens
            && self
                .half_open
                .is_reached(opening.key, table.half_open_of_service(service));
        if is_flood {
            counters.services[service].flooded.add(1);
            return to;
        }
        if !table.is_slot_usable(slot) {
            // Its pins are just being removed.
            counters.services[service].unpinned.add(1);
            return to;
        }
        let pins = match opening.direction {
            Direction::Forward => [slot, Slot::NONE],
            Direction::Reverse => [Slot::NONE, slot],
        };
        let place = Place {
            pins,
            slot,
            service,
            is_symmetric: false,
        };
        let Ok(moved) = enter(table, place) else {
            counters.figures.table_full.add(1);
            counters.services[service].unpinned.add(1);
            return to;
        };
        self.pinned[slot] += self
            .services
            .iter()
            .find(|of| of.id == service)
            .map_or(0.0, |of| of.expected);
        counters.slots[slot].new_flows.add(1);
        if moved {
            counters.slots[slot].expected_moves.add(1);
        }
        to
    }
}
