//! What an actor is, and what it sees while it runs.

use actor_objects::Objects;
use actor_scheduling::ActorId;
use model::Nanos;

use crate::message::{Address, Message};

/// What became of a message that an actor was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has ended.
    Done,
    /// It goes on later: the actor has kept what it needs for that, in its state or in the message. It gets the message
    /// again, before its other ones.
    Yielded,
}

/// A receiver of messages with private state. It runs on one core at a time, unless it is registered with several
/// instances ([`Registration::parallel`](crate::Registration::parallel)).
///
/// It must not wait, and must not keep anything that another actor can reach. What is to last, when it moves to the other
/// side or starts again, it keeps in its objects ([`Context::objects`]).
pub trait Actor: Send {
    /// Prepares the state; called once, before the first message.
    fn init(&mut self, context: &mut Context<'_>) {
        let _ = context;
    }

    /// Handles a message. The actor may take the body out of it, to send it on.
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress;

    /// Handles messages in order; returns how many have ended. The one after those has yielded, if there is one; it and
    /// the ones after it come again. An actor whose calls cost something, such as one in a sandbox, has its own, and says
    /// [`Context::begin`] and [`Context::complete`] around its messages.
    fn exec_all(&mut self, messages: &mut [Message], context: &mut Context<'_>) -> usize {
        for (ended, message) in messages.iter_mut().enumerate() {
            context.begin();
            if self.exec(message, context) == Progress::Yielded {
                return ended;
            }
            context.complete();
        }
        messages.len()
    }
}

/// What an actor sees while it runs.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) objects: Option<&'a mut Objects>,
    pub(crate) me: ActorId,
    pub(crate) now: Nanos,
    /// When the slice of this run ends, where the policy interrupts.
    pub(crate) until: Option<Nanos>,
    /// What this core's actors have sent; what this one has begins at `sent_from`.
    pub(crate) outbox: &'a mut Vec<Message>,
    pub(crate) sent_from: usize,
    pub(crate) failure: Option<String>,
}

impl Context<'_> {
    /// The actor that runs.
    pub fn me(&self) -> ActorId {
        self.me
    }

    /// Its objects: nothing where it was registered without
    /// ([`Registration::objects`](crate::Registration::objects)).
    pub fn objects(&mut self) -> Option<&mut Objects> {
        self.objects.as_deref_mut()
    }

    /// From now on the objects are not the state behind a completed message.
    pub fn begin(&mut self) {
        if let Some(objects) = &mut self.objects {
            objects.begin();
        }
    }

    /// The message has been handled: the objects are the state behind it. Without a message under way it does nothing.
    pub fn complete(&mut self) {
        if let Some(objects) = &mut self.objects
            && objects.is_under_way()
        {
            objects.complete();
        }
    }

    /// When this run began, on the clock of the runtime. One run may serve several messages.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Sends a message, when this run ends. Whether its receiver's mailbox has room shows then, and is counted there.
    pub fn send(&mut self, to: Address, kind: u32, body: Vec<u8>) {
        let me = Address::Actor(self.me);
        self.outbox.push(Message::new(to, me, kind, body, self.now));
    }

    /// Has the actor stopped when this run ends: it cannot go on, for this reason. Messages that have not ended are lost.
    pub fn fail(&mut self, reason: String) {
        self.failure = Some(reason);
    }

    /// Takes what has been sent in this run: for an actor around another one, which passes it on itself.
    pub fn take_sent(&mut self) -> impl Iterator<Item = Message> {
        self.outbox.drain(self.sent_from..)
    }

    /// Whether the policy wants another message to run now. An actor that looks here in its long computations and
    /// returns [`Progress::Yielded`] can be interrupted; nothing else interrupts a native actor.
    pub fn should_yield(&self) -> bool {
        self.until.is_some_and(|until| clock::monotonic() >= until)
    }
}
