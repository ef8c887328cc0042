//! The connections that are under way: which packets belong to one that a rule has allowed.

use flow_table::{
    EntryIndex, FlowChange, FlowHasher, FlowTable, Identity, Line, TableConfig, TableError, TcpState,
};
use model::{Direction, FlowKey, Nanos, ServiceId, Slot, Timeouts};
use packet::{PacketInfo, TcpFlags};
use state_moves::NotMoved;

/// Connections that one call ends at most: some ten microseconds.
const EXPIRED_PER_CALL: usize = 128;
/// Bytes of a moved connection: version, the direction that opened it, the state of TCP.
pub(super) const MOVED_BYTES: usize = 3;
/// Of their layout.
const VERSION: u8 = 1;
/// The states of TCP, as a moved connection numbers them.
const STATES: [TcpState; 6] = [
    TcpState::None,
    TcpState::Handshake,
    TcpState::Established,
    TcpState::FinForward,
    TcpState::FinReverse,
    TcpState::Closed,
];
const NO_PINS: [Slot; 2] = [Slot::NONE; 2];
/// How often connections are ended.
pub(super) const INTERVAL: Nanos = Nanos::from_millis(5);

/// Connections of both families, each with the state of TCP and the time of its last packet. The table is that of the
/// switch: bounded, never evicting a connection for another one, with constant work for each packet.
pub(super) struct Connections {
    table: FlowTable<Box<[Line]>>,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections")
            .field("live", &self.live())
            .finish_non_exhaustive()
    }
}

impl Connections {
    /// Room for so many connections of each family. The seed keys the hash.
    pub(super) fn new(limit: usize, timeouts: &Timeouts, seed: u64) -> Result<Connections, TableError> {
        let config = TableConfig {
            ipv4_flows: limit,
            ipv6_flows: limit,
            return_counters: false,
            pin_times: false,
        };
        let mut numbers = super::synthetic::Sequence::new(seed);
        let hasher = FlowHasher::new(std::array::from_fn(|_| numbers.next_number()));
        let storage = vec![Line::ZERO; config.lines_needed()?].into_boxed_slice();
        let table = FlowTable::new(
            storage,
            &config,
            timeouts,
            hasher,
            &Identity::default(),
            Nanos::ZERO,
        )?;
        Ok(Connections { table })
    }

    pub(super) fn set_timeouts(&mut self, timeouts: &Timeouts) {
        // The configuration has checked them against the same limit.
        let _ = self.table.set_timeouts(timeouts);
    }

    /// The hash of a connection.
    #[inline]
    pub(super) fn hash(&self, key: &FlowKey) -> u64 {
        self.table.hasher().hash(key)
    }

    #[inline]
    pub(super) fn prefetch(&self, key: &FlowKey, hash: u64) {
        self.table.prefetch(key, hash);
    }

    #[inline]
    pub(super) fn prefetch_entry(&self, key: &FlowKey, hash: u64) {
        self.table.prefetch_candidate(key, hash);
    }

    /// Counts a packet of a known connection, and follows its state. False if it is not known, also if it opens one in
    /// the place of one that has ended: rules decide on that again.
    #[inline]
    pub(super) fn follow(&mut self, info: &PacketInfo, hash: u64, now: Nanos) -> bool {
        let Some(entry) = self.table.lookup(&info.key, hash) else {
            return false;
        };
        // An error proves nothing about the connection: who sends it may have seen one packet.
        if !info.is_icmp_error && self.count(entry, info, now) == FlowChange::Reopened {
            self.table.purge(&info.key, hash);
            return false;
        }
        true
    }

    fn count(&mut self, entry: EntryIndex, info: &PacketInfo, now: Nanos) -> FlowChange {
        let flags = info.tcp_flags.0;
        self.table
            .hit(entry, info.direction, 1, u64::from(info.frame_len), now, flags)
            .change
    }

    /// Opens a connection with its first packet; false if there is no room.
    pub(super) fn open(&mut self, info: &PacketInfo, hash: u64, now: Nanos) -> bool {
        match self
            .table
            .insert(&info.key, hash, info.direction, NO_PINS, ServiceId(0), now)
        {
            Ok(entry) => {
                self.count(entry, info, now);
                true
            }
            Err(_) => false,
        }
    }

    /// A connection as a value, for [`Connections::import`] of another instance; [`None`] if it is not known.
    pub(super) fn export(&self, key: &FlowKey, now: Nanos) -> Option<[u8; MOVED_BYTES]> {
        let row = self.table.get(key, now)?;
        let state = STATES.iter().position(|of| *of == row.tcp)? as u8;
        Some([VERSION, row.opener.index() as u8, state])
    }

    /// Takes a connection over, in place of what is known of it. It counts as used now.
    pub(super) fn import(&mut self, key: &FlowKey, moved: &[u8], now: Nanos) -> Result<(), NotMoved> {
        let [VERSION, opener, state] = *moved else {
            return Err(NotMoved::Malformed);
        };
        let opener = [Direction::Forward, Direction::Reverse]
            .into_iter()
            .find(|of| of.index() == usize::from(opener))
            .ok_or(NotMoved::Malformed)?;
        let state = *STATES.get(usize::from(state)).ok_or(NotMoved::Malformed)?;
        if (state == TcpState::None) == (key.protocol() == model::protocol::TCP) {
            return Err(NotMoved::Malformed);
        }
        let hash = self.hash(key);
        self.table.purge(key, hash);
        let entry = self
            .table
            .insert(key, hash, opener, NO_PINS, ServiceId(0), now)
            .map_err(|_| NotMoved::Full)?;
        // The flags that lead to the state.
        let (direction, flags) = match state {
            TcpState::None => (opener, 0),
            TcpState::Handshake => (opener, TcpFlags::SYN),
            TcpState::Established => (opener, TcpFlags::ACK),
            TcpState::FinForward => (Direction::Forward, TcpFlags::FIN | TcpFlags::ACK),
            TcpState::FinReverse => (Direction::Reverse, TcpFlags::FIN | TcpFlags::ACK),
            TcpState::Closed => (opener, TcpFlags::RST),
        };
        self.table.hit(entry, direction, 1, 0, now, flags);
        Ok(())
    }

    /// Forgets a connection.
    pub(super) fn forget(&mut self, key: &FlowKey) {
        let hash = self.hash(key);
        self.table.purge(key, hash);
    }

    /// Ends connections whose time has passed. Returns whether there may be more.
    pub(super) fn expire(&mut self, now: Nanos) -> bool {
        self.table.expire(now, EXPIRED_PER_CALL).behind
    }

    /// Connections now.
    pub(super) fn live(&self) -> usize {
        self.table.flows()
    }

    /// Room of both families.
    pub(super) fn limit(&self) -> usize {
        self.table.config().ipv4_flows + self.table.config().ipv6_flows
    }

    /// Connections that have ended because their time had passed.
    pub(super) fn expired(&self) -> u64 {
        self.table.counters().expired.iter().sum()
    }
}

/// Whether a packet can open a connection: TCP does with SYN alone, ICMP with a request.
pub(super) fn opens(info: &PacketInfo, icmp_type: u8, midstream: bool) -> bool {
    const SYN_ACK_FIN_RST: u8 = TcpFlags::SYN | TcpFlags::ACK | TcpFlags::FIN | TcpFlags::RST;
    match info.key.protocol() {
        model::protocol::TCP => {
            let flags = info.tcp_flags;
            flags.0 & SYN_ACK_FIN_RST == TcpFlags::SYN || midstream && !flags.rst()
        }
        // Echo, timestamp, information and address mask; echo.
        model::protocol::ICMP => matches!(icmp_type, 8 | 13 | 15 | 17),
        model::protocol::ICMPV6 => icmp_type == 128,
        _ => true,
    }
}

/// Whether a packet stands for itself: messages of ICMPv6 by which hosts and routers of a link find each other, and
/// reports of groups. They open nothing, and rules decide on each.
pub(super) fn stands_alone(info: &PacketInfo, icmp_type: u8) -> bool {
    match info.key.protocol() {
        model::protocol::ICMPV6 => matches!(icmp_type, 130..=137 | 143),
        model::protocol::ICMP => matches!(icmp_type, 9 | 10),
        _ => false,
    }
}
