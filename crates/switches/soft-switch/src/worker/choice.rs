//! The instance of a flow whose packets say more than its key, or less.

use model::{FlowKey, Slot, protocol};
use rtrb::Producer;
use scheduling::{Candidates, NewFlow, Pick};

use crate::counters::WorkerCounters;
use crate::frame::FrameMemory;
use crate::message::WorkerEvent;
use crate::shares::Shared;
use crate::worker::context::Context;
use crate::worker::set_up::{Opening, ServiceState, SetUp};
use crate::worker::unknown::{TcpPart, public_hash};

/// The instance that a new flow gets.
pub(super) struct Choice {
    /// Its place among the candidates.
    pub(super) index: usize,
    pub(super) slot: Slot,
    /// Whether no instance had room for the flow.
    pub(super) is_overcommitted: bool,
    /// Whether the flow went by its hash because its start was not seen.
    pub(super) is_recovered: bool,
    /// Whether it shares the instance with other flows.
    pub(super) is_shared: bool,
}

impl SetUp {
    /// Picks the instance of a flow whose packets say more than its key, or less: the middle of a connection, a flow that
    /// shares its instance with others, one whose destination was chosen; or of one whose decision is recorded.
    /// `place`: that of the service. The flow gets the hash by which it went.
    #[inline(never)]
    pub(super) fn choose_with_care<M: FrameMemory>(
        &mut self,
        place: usize,
        opening: &Opening<'_>,
        flow: &mut NewFlow<'_>,
        cx: &mut Context<M>,
    ) -> Option<Choice> {
        let (service, state) = cx
            .view
            .plan
            .services
            .get(place)
            .zip(self.services.get_mut(place))?;
        let &Opening { key, direction, .. } = opening;
        let mut shared = None;
        if service.affinity_key.shares_addresses() {
            shared = Shared::of(service, || key.tuple(direction)).zip(self.shares.get());
        }
        let is_recovered =
            opening.part == TcpPart::Middle && (service.recovers || cx.now < state.by_hash_until);
        if is_recovered || shared.is_some() || state.goes_by_hash {
            flow.hash = public_hash(key, shared.map(|(of, _)| of).as_ref());
        }
        let machines = service.machines.as_deref().zip(cx.ends.tunnels().edges());
        let sequence = machines.map(|(machines, hasher)| {
            flow.hash = hasher.hash(key);
            state.machines.of(machines, flow.hash)
        });
        // Other edges know where these are by the hash alone.
        let goes_by_hash = opening.part == TcpPart::Middle || key.protocol() != protocol::TCP;
        let first = sequence
            .filter(|_| goes_by_hash)
            .and_then(|of| state.first_taker(&of));
        let first = first.map(|slot| [slot]);
        let flow = &mut NewFlow {
            among: match (&first, &sequence) {
                (Some(first), _) => first,
                (None, Some(sequence)) => sequence.slots(),
                (None, None) => &[],
            },
            ..*flow
        };
        let destination = take_destination(&mut self.destinations, key, &state.candidates);
        let known = shared.and_then(|(of, shares)| {
            let slot = shares.find(&of, cx.now, |slot| state.candidates.index_of(slot).is_some())?;
            Some((state.candidates.index_of(slot)?, slot))
        });
        let destination = destination.or(known);
        let pick = match destination {
            Some((index, _)) if known.is_some() => Pick::Fits(index),
            _ if is_recovered => state.pick_by_hash(flow),
            _ if state.record.is_none() => state.scheduler.pick(flow, &state.candidates),
            _ => recorded_pick(state, flow, &mut cx.events, &cx.counters),
        };
        let (index, slot) = destination.or_else(|| state.picked(pick))?;
        let mut choice = Choice {
            index,
            slot,
            is_overcommitted: matches!(pick, Pick::Overcommitted(_)),
            is_recovered,
            is_shared: shared.is_some(),
        };
        if let Some((of, shares)) = shared.filter(|_| known.is_none()) {
            let takes = |slot| state.candidates.index_of(slot).is_some();
            let agreed = shares.agree(&of, choice.slot, cx.now, takes);
            if let Some(index) = state.candidates.index_of(agreed) {
                (choice.index, choice.slot) = (index, agreed);
            }
        }
        Some(choice)
    }
}

/// Picks an instance, records the decision, and sends it to the control plane.
#[cold]
fn recorded_pick<M: FrameMemory>(
    state: &mut ServiceState,
    flow: &NewFlow<'_>,
    events: &mut Producer<WorkerEvent<M>>,
    counters: &WorkerCounters,
) -> Pick {
    let mut record = state.record.take();
    if let Some(record) = &mut record {
        record.before(&mut state.scheduler, &state.candidates);
    }
    let pick = state.scheduler.pick(flow, &state.candidates);
    if let Some(mut record) = record {
        record.after(flow, pick);
        if events.push(WorkerEvent::Recorded(record)).is_err() {
            counters.figures.events_lost.add(1);
        }
    }
    pick
}

/// The chosen destination of the flow, if it is a candidate: its place among them, and its slot.
#[cold]
fn take_destination(
    destinations: &mut Vec<(FlowKey, Slot)>,
    key: &FlowKey,
    candidates: &Candidates,
) -> Option<(usize, Slot)> {
    let place = destinations.iter().position(|(of, _)| of == key)?;
    let (_, to) = destinations.swap_remove(place);
    let index = (0..candidates.len()).find(|i| candidates.get(*i).is_some_and(|c| c.slot == to))?;
    Some((index, to))
}
