//! The runnable queue that all cores of the round share.

use std::collections::VecDeque;

use model::Nanos;

use crate::ActorId;

/// What an actor may run in a round, and what its next message is expected to run.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Added to its deficit once in each round; more than 0.
    pub quantum: Nanos,
    /// Mean run time of its messages, a slice at most.
    pub cost: Nanos,
}

/// Actors with waiting messages, in order, with their deficits (Shreedhar and Varghese, SIGCOMM 1995).
#[derive(Debug, Default)]
pub struct Round {
    /// The first is next.
    order: VecDeque<ActorId>,
    /// By actor: what it may still run, in nanoseconds.
    deficits: Vec<u64>,
    /// Whether the first has received its quantum in this round.
    has_quantum: bool,
}

impl Round {
    /// A round for so many actors, none of which has a message.
    pub fn new(actors: u32) -> Round {
        Round {
            order: VecDeque::with_capacity(actors as usize),
            deficits: vec![0; actors as usize],
            has_quantum: false,
        }
    }

    /// Whether no actor is in it.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// An actor has its first waiting message.
    pub fn enter(&mut self, actor: ActorId) {
        self.order.push_back(actor);
    }

    /// An actor has left, with all of its messages.
    pub fn leave(&mut self, actor: ActorId) {
        self.suspend(actor);
        self.deficits[actor.index()] = 0;
    }

    /// The actor whose message is next; it pays for it. The caller takes that message, and says with
    /// [`emptied`](Round::emptied) if it was the last one.
    ///
    /// Each round gives each actor its quantum, so a message is found after at most `cost / quantum` rounds, rounded up,
    /// of the longest cost.
    pub fn next(&mut self, turn: impl Fn(ActorId) -> Turn) -> Option<ActorId> {
        loop {
            let actor = *self.order.front()?;
            let Turn { quantum, cost } = turn(actor);
            let deficit = &mut self.deficits[actor.index()];
            if !std::mem::replace(&mut self.has_quantum, true) {
                *deficit = deficit.saturating_add(quantum.0.max(1));
            }
            if *deficit >= cost.0 {
                *deficit -= cost.0;
                return Some(actor);
            }
            self.order.rotate_left(1);
            self.has_quantum = false;
        }
    }

    /// Whether the actor that [`next`](Round::next) has just named can pay for a further message in the same turn; it pays
    /// for it then, and the caller takes it.
    pub fn again(&mut self, turn: Turn) -> bool {
        let Some(actor) = self.order.front() else {
            return false;
        };
        let deficit = &mut self.deficits[actor.index()];
        let can_pay = *deficit >= turn.cost.0;
        if can_pay {
            *deficit -= turn.cost.0;
        }
        can_pay
    }

    /// An actor with waiting messages leaves for as long as it runs elsewhere; it keeps what it has saved.
    pub fn suspend(&mut self, actor: ActorId) {
        if self.order.front() == Some(&actor) {
            self.has_quantum = false;
        }
        self.order.retain(|other| *other != actor);
    }

    /// The actor that [`next`](Round::next) has just named has no further message: it saves nothing for later.
    pub fn emptied(&mut self, actor: ActorId) {
        debug_assert_eq!(self.order.front(), Some(&actor));
        self.leave(actor);
    }
}
