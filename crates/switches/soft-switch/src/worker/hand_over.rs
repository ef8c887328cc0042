//! Mappings of instances that translate, given by one that is to end to its heir, a message at a time. Packets go on
//! meanwhile: a mapping that both have translates alike in both. Nothing is lost with a message, which is asked for again.

use model::{Nanos, PortBlock, Slot};
use state_moves::Message;
use switch::{MappingsEvent, MappingsRequest};

use crate::frame::FrameMemory;
use crate::message::WorkerEvent;
use crate::worker::Worker;
use crate::worker::emptying::Place;

/// After that an instance is asked again: longer than a function with a small CPU quota waits for its next period.
const ASKED_AGAIN: Nanos = Nanos::from_millis(50);
/// How often it is asked the same, at most.
const ATTEMPTS: u32 = 40;
/// Requests under way at the same time, at most: a hand-over and a count of each instance.
const JOBS_LIMIT: usize = 2 * Slot::LIMIT;

/// What was asked last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The old instance, for mappings from that number on.
    Give(u32),
    /// The heir, to take them; the old one goes on there.
    Take(u32, Option<u32>),
    /// For the number of mappings in a block.
    Count(PortBlock),
}

/// A request of the control plane under way.
pub(super) struct Job {
    /// Of the last message.
    number: u64,
    from: Place,
    /// The heir; where mappings are counted, the same.
    to: Place,
    asked: Asked,
    since: Nanos,
    attempts: u32,
    /// Whether the heir has taken all so far.
    is_complete: bool,
}

impl<M: FrameMemory> Worker<M> {
    /// Begins with a request.
    pub(super) fn begin_with_mappings(&mut self, request: MappingsRequest) {
        // It may be about an instance that is new in the plan.
        self.load_plan();
        let (from, to, asked) = match request {
            MappingsRequest::HandOver { from, to } => (from, to, Asked::Give(0)),
            MappingsRequest::Count { slot, ports } => (slot, slot, Asked::Count(ports)),
        };
        let [from, to] = [from, to].map(|slot| Place::of(slot, &self.cx.view));
        let jobs = &mut self.state_moves.jobs;
        // One that is asked anew takes the place of the earlier one.
        jobs.retain(|of| {
            of.from != from || matches!(of.asked, Asked::Count(_)) != matches!(asked, Asked::Count(_))
        });
        if jobs.len() < JOBS_LIMIT {
            jobs.push(Job {
                number: 0,
                from,
                to,
                asked,
                since: self.cx.now,
                attempts: 0,
                is_complete: true,
            });
            self.ask(self.state_moves.jobs.len() - 1);
        }
    }

    /// Asks the old instance. What finds no room is asked again later.
    fn ask(&mut self, at: usize) {
        let number = self.state_moves.next_number(&self.cx);
        let Some(job) = self.state_moves.jobs.get_mut(at) else {
            return;
        };
        let message = match job.asked {
            Asked::Give(from) | Asked::Take(from, _) => {
                job.asked = Asked::Give(from);
                Message::HandOver(from)
            }
            Asked::Count(ports) => Message::Count(ports),
        };
        (job.number, job.since) = (number, self.cx.now);
        job.attempts += 1;
        let from = job.from;
        self.tell(from, 0, number, &message);
    }

    /// What the instance in that place says, if it is asked by this number. Whether it is.
    pub(super) fn hear_of_mappings(&mut self, of: Place, number: u64, message: &Message<'_>) -> bool {
        let mut jobs = self.state_moves.jobs.iter();
        let Some(at) = jobs.position(|job| job.number == number) else {
            return false;
        };
        let job = &mut self.state_moves.jobs[at];
        match (job.asked, *message) {
            (Asked::Give(from), Message::HandedOver { next, mappings }) if of == job.from => {
                if next.is_some_and(|next| next <= from) {
                    self.end_with_mappings(at, None);
                    return true;
                }
                job.asked = Asked::Take(from, next);
                let to = job.to;
                let number = self.state_moves.next_number(&self.cx);
                self.state_moves.jobs[at].number = number;
                self.tell(to, 0, number, &Message::TakeOver(mappings));
            }
            (Asked::Take(_, next), Message::Imported | Message::Refused(_)) if of == job.to => {
                job.is_complete &= *message == Message::Imported;
                match next {
                    Some(next) => {
                        (job.asked, job.attempts) = (Asked::Give(next), 0);
                        self.ask(at);
                    }
                    None => {
                        let is_complete = job.is_complete;
                        self.end_with_mappings(at, is_complete.then_some(0));
                    }
                }
            }
            (Asked::Count(_), Message::Counted(mappings)) if of == job.from => {
                self.end_with_mappings(at, Some(mappings));
            }
            (Asked::Give(_) | Asked::Count(_), Message::Refused(_)) if of == job.from => {
                self.end_with_mappings(at, None);
            }
            _ => return false,
        }
        true
    }

    /// Asks again what was not answered, and ends what cannot go on.
    pub(super) fn advance_mappings(&mut self) {
        for at in (0..self.state_moves.jobs.len()).rev() {
            let job = &self.state_moves.jobs[at];
            let view = &self.cx.view;
            let is_late = self.cx.now.since(job.since) >= ASKED_AGAIN;
            if !job.from.serves(view) || !job.to.serves(view) || is_late && job.attempts >= ATTEMPTS {
                self.end_with_mappings(at, None);
            } else if is_late {
                self.ask(at);
            }
        }
    }

    /// Tells how it ended: the number of mappings where they were counted; [`None`]: it did not succeed.
    fn end_with_mappings(&mut self, at: usize, result: Option<u32>) {
        let job = self.state_moves.jobs.swap_remove(at);
        let slot = job.from.slot;
        let event = match (job.asked, result) {
            (Asked::Count(ports), Some(mappings)) => MappingsEvent::Counted {
                slot,
                ports,
                mappings,
            },
            (Asked::Count(_), None) => return,
            (_, result) => MappingsEvent::HandedOver {
                slot,
                is_complete: result.is_some(),
            },
        };
        self.cx.send_event(WorkerEvent::Mappings(event));
    }
}
