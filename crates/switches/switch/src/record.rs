//! What went into a scheduling decision, written down by the worker that made it.

use edge_steering::SEQUENCE;
use model::{Direction, FlowKey, ServiceId, Slot};
use scheduling::{Candidate, Candidates, NewFlow, Pick, Scheduler, State, Terms};

/// A decision with all that it depends on. It goes to a worker with room for everything and comes back filled.
#[derive(Clone, Debug)]
pub struct PickRecord {
    /// Which request this answers.
    pub id: u64,
    /// Of which service.
    pub service: ServiceId,
    /// What held for all candidates.
    pub terms: Terms,
    /// The candidates before the pick.
    pub candidates: Vec<Candidate>,
    /// What the policy remembered of earlier decisions.
    pub state: State,
    /// The new flow; [`None`] before there was one.
    pub flow: Option<RecordedFlow>,
}

/// A new flow, and what was decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordedFlow {
    /// Its key.
    pub key: FlowKey,
    /// The direction of the packet that opened it.
    pub direction: Direction,
    /// The key's hash.
    pub hash: u64,
    /// What it was expected to bring, in the service's metric.
    pub expected: f32,
    /// Its DSCP.
    pub dscp: u8,
    /// [`NewFlow::among`], and [`Slot::NONE`] behind it.
    pub among: [Slot; SEQUENCE],
    /// The slot that it was given, where there was one.
    pub slot: Option<Slot>,
    /// Whether it fitted there.
    pub fits: bool,
}

impl PickRecord {
    /// A record with room for every slot.
    pub fn new(id: u64, service: ServiceId) -> PickRecord {
        PickRecord {
            id,
            service,
            terms: Terms::default(),
            candidates: Vec::with_capacity(Slot::LIMIT),
            state: State {
                counts: Vec::with_capacity(Slot::LIMIT),
                ..State::default()
            },
            flow: None,
        }
    }

    /// Notes what the scheduler sees, before it picks. Allocates nothing.
    pub fn before(&mut self, scheduler: &mut Scheduler, candidates: &Candidates) {
        scheduler.follow(candidates);
        self.terms = *candidates.terms();
        self.candidates.clear();
        self.candidates.extend_from_slice(candidates.rows());
        scheduler.save(&mut self.state);
    }

    /// Notes what it picked.
    pub fn after(&mut self, flow: &NewFlow<'_>, pick: Pick) {
        self.flow = Some(RecordedFlow {
            key: *flow.key,
            direction: flow.direction,
            hash: flow.hash,
            expected: flow.expected,
            dscp: flow.dscp,
            among: std::array::from_fn(|place| flow.among.get(place).copied().unwrap_or(Slot::NONE)),
            slot: pick
                .index()
                .and_then(|index| self.candidates.get(index))
                .map(|row| row.slot),
            fits: matches!(pick, Pick::Fits(_)),
        });
    }
}
