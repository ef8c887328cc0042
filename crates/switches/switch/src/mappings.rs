//! Mappings of instances that translate to external addresses: an instance that is to end gives them to another one, its
//! heir, which gets its external ports as well.
//!
//! 1. A plan names the [heir](MappingsPlan::heirs) of a draining instance. Clients whose flows share an instance
//!    have the heir from then on.
//! 2. [`SwitchRequest::PurgeSlot`](crate::SwitchRequest::PurgeSlot): its flows move to the heir with their state.
//!    [`MappingsEvent::FlowsMoved`] follows.
//! 3. [`MappingsRequest::HandOver`]: the heir gets copies of all mappings. [`MappingsEvent::HandedOver`] follows.
//! 4. A plan gives the [blocks](MappingsPlan::blocks) to the heir. What came from outside meanwhile was pinned to the old
//!    instance, whose mappings still hold; another purge moves those flows, too.
//! 5. Such a block is the heir's as long as [`MappingsRequest::Count`] finds mappings in it.

use model::{PortBlock, ServiceId, Slot};

/// Who takes mappings and blocks over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappingsPlan {
    /// Draining instances, each with its heir.
    pub heirs: Vec<(Slot, Slot)>,
    /// Blocks that an instance has from another one, with the service whose blocks they are.
    pub blocks: Vec<(ServiceId, u16, Slot)>,
}

impl MappingsPlan {
    /// The heir of the instance in that slot.
    pub fn heir(&self, of: Slot) -> Option<Slot> {
        let heir = self.heirs.iter().find(|(from, _)| *from == of);
        heir.map(|(_, heir)| *heir)
    }
}

/// What a switch is to do with mappings. Needs
/// [`Capabilities::port_blocks`](crate::Capabilities::port_blocks).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingsRequest {
    /// Have one instance give all its mappings to another one.
    HandOver {
        /// Who has them.
        from: Slot,
        /// Who gets them, too.
        to: Slot,
    },
    /// Ask an instance how many mappings it has in a block. Nothing follows where it does not answer.
    Count {
        /// Whom.
        slot: Slot,
        /// The block.
        ports: PortBlock,
    },
}

/// What a switch tells of mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingsEvent {
    /// After a purge: the flows of an instance that has an heir have moved there, or stay.
    FlowsMoved {
        /// Whose.
        slot: Slot,
    },
    /// A hand-over is over.
    HandedOver {
        /// Whose mappings.
        slot: Slot,
        /// Whether the heir has all of them.
        is_complete: bool,
    },
    /// An instance has so many mappings in a block.
    Counted {
        /// Which one.
        slot: Slot,
        /// The block.
        ports: PortBlock,
        /// How many.
        mappings: u32,
    },
}
