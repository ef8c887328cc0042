//! Flows that have just begun, beside a fast path: which of them the writer of rules is asked about before they are drawn, and
//! which are counted when they have been there for a while, so that it learns what flows bring.

use std::collections::VecDeque;

use flow_table::{FlowRow, TcpState};
use model::{FlowKey, Nanos, UplinkId, protocol};

/// New flows that are waited for at a time, at most. Others may be drawn later.
const WAITING: usize = 256;
/// While fewer of them wait for an answer, datagrams are asked about without one. More are a flood's: those that it sends are never
/// answered, or only once.
const UNANSWERED: usize = 128;
/// For how long an answer is waited for.
const ANSWER_TIME: Nanos = Nanos::from_millis(100);
/// New flows that are counted at a time, at most.
const COUNTED: usize = 256;

/// A flow that has begun.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Begun {
    pub(crate) key: FlowKey,
    pub(crate) hash: u64,
    /// Where its first packet came from.
    pub(crate) uplink: UplinkId,
    pub(crate) at: Nanos,
}

/// One that is waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Waiting {
    pub(crate) begun: Begun,
    is_asked: bool,
}

/// What a flow is like when it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It is over.
    Over,
    /// One end has not answered yet.
    Unanswered,
    /// Both ends have sent what belongs to an open flow.
    Open,
}

impl Look {
    /// At the row of the flow table.
    pub(crate) fn at(row: Option<&FlowRow>) -> Look {
        match row.map(|row| (row.tcp, row.packets)) {
            Some((TcpState::None, [forward, reverse])) if forward > 0 && reverse > 0 => Look::Open,
            Some((TcpState::Established, _)) => Look::Open,
            Some((TcpState::None | TcpState::Handshake, _)) => Look::Unanswered,
            _ => Look::Over,
        }
    }
}

/// The new flows of a worker.
#[derive(Debug)]
pub(crate) struct NewFlows {
    /// Those that may be asked about.
    waiting: VecDeque<Waiting>,
    /// Those that are counted after `window`, the oldest first.
    counted: VecDeque<Begun>,
    window: Nanos,
}

impl NewFlows {
    /// Everything is allocated here.
    pub(crate) fn new(window: Nanos) -> NewFlows {
        NewFlows {
            waiting: VecDeque::with_capacity(WAITING),
            counted: VecDeque::with_capacity(COUNTED),
            window,
        }
    }

    /// A flow has begun. `is_wanted`: new flows are worth a rule.
    pub(crate) fn begins(&mut self, begun: Begun, is_wanted: bool) {
        if is_wanted && self.waiting.len() < WAITING {
            self.waiting.push_back(Waiting {
                begun,
                is_asked: false,
            });
        }
        if self.counted.len() < COUNTED {
            self.counted.push_back(begun);
        }
    }

    /// How many are waited for.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The next one that is to be [looked at](NewFlows::looked).
    pub(crate) fn next(&mut self) -> Option<Waiting> {
        self.waiting.pop_front()
    }

    /// It was looked at. Whether the writer of rules is to be asked about it now.
    pub(crate) fn looked(&mut self, mut of: Waiting, look: Look, now: Nanos) -> bool {
        let is_asked = match look {
            Look::Over => return false,
            Look::Open => return !of.is_asked,
            Look::Unanswered if now.since(of.begun.at) >= ANSWER_TIME => return false,
            Look::Unanswered => of.begun.key.protocol() != protocol::TCP && self.waiting.len() < UNANSWERED,
        };
        let asks = is_asked && !of.is_asked;
        of.is_asked |= asks;
        self.waiting.push_back(of);
        asks
    }

    /// The next one that is to be counted.
    pub(crate) fn due(&mut self, now: Nanos) -> Option<Begun> {
        let is_due = self.counted.front().is_some_and(|of| now >= of.at + self.window);
        is_due.then(|| self.counted.pop_front()).flatten()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use model::FlowKeyV4;

    use super::*;

    const WINDOW: Nanos = Nanos::from_secs(1);

    fn begun(number: u16, protocol: u8, at: Nanos) -> Begun {
        let key = FlowKey::V4(FlowKeyV4 {
            a_port: number,
            protocol,
            ..FlowKeyV4::default()
        });
        Begun {
            key,
            hash: u64::from(number),
            uplink: UplinkId(0),
            at,
        }
    }

    fn udp(number: u16) -> Begun {
        begun(number, protocol::UDP, Nanos::ZERO)
    }

    fn look(all: &mut NewFlows, look: Look, ms: u64) -> bool {
        let of = all.next().unwrap();
        all.looked(of, look, Nanos::from_millis(ms))
    }

    #[test]
    fn a_connection_is_asked_about_once_when_it_is_open() {
        let mut all = NewFlows::new(WINDOW);
        all.begins(begun(1, protocol::TCP, Nanos::ZERO), false);
        assert_eq!(all.waiting(), 0, "nobody wants it");
        all.begins(begun(1, protocol::TCP, Nanos::ZERO), true);
        assert!(!look(&mut all, Look::Unanswered, 0));
        assert!(!look(&mut all, Look::Unanswered, 99));
        assert!(look(&mut all, Look::Open, 99));
        assert_eq!(all.waiting(), 0);
        all.begins(begun(2, protocol::TCP, Nanos::ZERO), true);
        assert!(!look(&mut all, Look::Unanswered, 100));
        assert_eq!(all.waiting(), 0, "it took too long");
    }

    #[test]
    fn datagrams_are_asked_about_at_once_and_once() {
        let mut all = NewFlows::new(WINDOW);
        all.begins(udp(1), true);
        assert!(look(&mut all, Look::Unanswered, 0));
        assert!(!look(&mut all, Look::Unanswered, 1));
        assert!(!look(&mut all, Look::Open, 2));
        assert_eq!(all.waiting(), 0);
        all.begins(udp(2), true);
        assert!(!look(&mut all, Look::Over, 3));
        assert_eq!(all.waiting(), 0);
    }

    #[test]
    fn a_flood_without_answers_is_not_asked_about_for_long() {
        let mut all = NewFlows::new(WINDOW);
        (0..1_000).for_each(|number| all.begins(udp(number), true));
        assert_eq!(all.waiting(), WAITING);
        let asked = (0..10 * WAITING)
            .filter(|_| look(&mut all, Look::Unanswered, 50))
            .count();
        assert_eq!((asked, all.waiting()), (0, WAITING));
        // One that is answered still is. When the others are too old, new ones are as well.
        assert!(look(&mut all, Look::Open, 50));
        let asked = (1..WAITING)
            .filter(|_| look(&mut all, Look::Unanswered, 100))
            .count();
        assert_eq!((asked, all.waiting()), (0, 0));
        let now = Nanos::from_millis(100);
        (0..1_000).for_each(|number| all.begins(begun(number, protocol::UDP, now), true));
        let asked = (0..WAITING)
            .filter(|_| look(&mut all, Look::Unanswered, 100))
            .count();
        assert_eq!(asked, 0);
        (0..WAITING - UNANSWERED).for_each(|_| assert!(look(&mut all, Look::Open, 100)));
        assert!(
            look(&mut all, Look::Unanswered, 100),
            "there is room for one more"
        );
    }

    #[test]
    fn flows_are_counted_after_the_window() {
        let mut all = NewFlows::new(WINDOW);
        (0..1_000).for_each(|number| all.begins(udp(number), false));
        assert_eq!(all.due(Nanos::from_millis(999)), None);
        let due: Vec<Begun> = std::iter::from_fn(|| all.due(WINDOW)).collect();
        assert_eq!(due, (0..COUNTED as u16).map(udp).collect::<Vec<_>>());
    }

    #[test]
    fn a_row_says_whether_both_ends_have_answered() {
        let row = |tcp, packets| FlowRow {
            key: udp(1).key,
            opener: model::Direction::Forward,
            service: model::ServiceId(0),
            pins: [model::Slot(0); 2],
            pinned_at: [None; 2],
            packets,
            bytes: [0; 2],
            idle: Nanos::ZERO,
            tcp,
            returned: None,
            dropped: None,
        };
        let at = |tcp, packets| Look::at(Some(&row(tcp, packets)));
        assert_eq!(at(TcpState::None, [1, 0]), Look::Unanswered);
        assert_eq!(at(TcpState::None, [2, 1]), Look::Open);
        assert_eq!(at(TcpState::Handshake, [1, 1]), Look::Unanswered);
        assert_eq!(at(TcpState::Established, [2, 1]), Look::Open);
        assert_eq!(at(TcpState::FinForward, [5, 5]), Look::Over);
        assert_eq!(Look::at(None), Look::Over);
    }
}
