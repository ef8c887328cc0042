//! A function in C as a [`Function`]. The number of the function is part of the type, because a type is what the list of
//! a runner has of a function.

use std::ffi::{c_char, c_void};
use std::mem;
use std::ptr::{self, NonNull};

use functions::{About, Burst, Entry, Error, Function, RECEIVED_LIMIT, Reason, Setup, Summary, Verdict};
use model::Nanos;

use crate::layout::{self, ANSWER, CONSUME, DROP, FORWARD, NEVER};
use crate::outbox::Outbox;
use crate::registry::{self, FUNCTIONS_LIMIT, Registered};

/// Bytes of what a function says of a wrong configuration, at most.
const ERROR_BYTES: usize = 512;
/// Of a packet that reaches beyond its room, or has another verdict than there are: no function has that reason, and the
/// stage counts it apart.
const MISUSED: Reason = Reason(u8::MAX);

/// The entries of functions by their numbers.
pub(crate) const ENTRIES: [Entry; FUNCTIONS_LIMIT] = [
    Entry::of::<InC<0>>(),
    Entry::of::<InC<1>>(),
    Entry::of::<InC<2>>(),
    Entry::of::<InC<3>>(),
    Entry::of::<InC<4>>(),
    Entry::of::<InC<5>>(),
    Entry::of::<InC<6>>(),
    Entry::of::<InC<7>>(),
];

/// A configuration that C has made, and frees when it is dropped.
#[derive(Debug)]
pub(crate) struct Configuration {
    pointer: NonNull<c_void>,
    of: &'static Registered,
}

// SAFETY: the header says that another thread than the function's compiles and frees configurations.
unsafe impl Send for Configuration {}

impl Configuration {
    /// Gives it away: to the function, which frees it.
    fn into_raw(self) -> *mut c_void {
        let pointer = self.pointer.as_ptr();
        mem::forget(self);
        pointer
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from `compile` or `reload`, and nobody else has it.
        unsafe { (self.of.free_configuration)(self.pointer.as_ptr()) }
    }
}

/// A function in C.
#[derive(Debug)]
pub(crate) struct InC<const NUMBER: usize> {
    state: NonNull<c_void>,
    of: &'static Registered,
    outbox: Box<Outbox>,
    ports: u8,
}

// SAFETY: the header says that one thread calls the function; which one does not matter to it, because `create` is called
// by that thread, too.
unsafe impl<const NUMBER: usize> Send for InC<NUMBER> {}

impl<const NUMBER: usize> Drop for InC<NUMBER> {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from `create`, and nobody else has it.
        unsafe { (self.of.destroy)(self.state.as_ptr()) }
    }
}

/// What there is where a program asks for a function that it has not: entries are given out for those that there are.
const NONE: About = About {
    name: "none",
    help: "None",
    reasons: &[],
    metrics: &[],
};

fn setup_in_c(setup: &Setup) -> layout::Setup {
    layout::Setup {
        seed: setup.seed,
        instance: setup.instance,
        ports: setup.ports,
    }
}

/// Writes a line and ends the program: where C breaks what the header says, there is nothing to go on with.
fn give_up(of: &About, what: &str) -> ! {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{}: {what}", of.name);
    std::process::abort()
}

impl<const NUMBER: usize> Function for InC<NUMBER> {
    type Configuration = Configuration;

    fn about() -> About {
        registry::get(NUMBER).map_or(NONE, |of| of.about)
    }

    fn compile(text: &str, setup: &Setup) -> Result<Configuration, Error> {
        let of = registry::get(NUMBER).ok_or_else(|| Error::whole("there is no such function"))?;
        let mut error = [0_u8; ERROR_BYTES];
        let setup = setup_in_c(setup);
        // SAFETY: the text has as many bytes, and `error` as many places; both live during the call.
        let pointer = unsafe {
            (of.compile)(
                text.as_ptr().cast::<c_char>(),
                text.len(),
                &raw const setup,
                error.as_mut_ptr().cast::<c_char>(),
                ERROR_BYTES,
            )
        };
        match NonNull::new(pointer) {
            Some(pointer) => Ok(Configuration { pointer, of }),
            None => {
                let said = error.split(|byte| *byte == 0).next().unwrap_or_default();
                let said = String::from_utf8_lossy(said);
                Err(Error::whole(if said.is_empty() {
                    "the configuration is wrong".into()
                } else {
                    said
                }))
            }
        }
    }

    fn new(configuration: Configuration, setup: &Setup) -> InC<NUMBER> {
        let of = configuration.of;
        let setup_in_c = setup_in_c(setup);
        // SAFETY: the configuration comes from `compile`, and is the function's from now on.
        let state = unsafe { (of.create)(configuration.into_raw(), &raw const setup_in_c) };
        InC {
            state: NonNull::new(state).unwrap_or_else(|| give_up(&of.about, "create gave NULL")),
            of,
            outbox: Box::new(Outbox::new()),
            ports: setup.ports,
        }
    }

    fn reload(&mut self, configuration: Configuration) -> Configuration {
        // SAFETY: the state comes from `create`; the configuration from `compile`, and is the function's from now on.
        let old = unsafe { (self.of.reload)(self.state.as_ptr(), configuration.into_raw()) };
        Configuration {
            pointer: NonNull::new(old).unwrap_or_else(|| give_up(&self.of.about, "reload gave NULL")),
            of: self.of,
        }
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        const EMPTY: layout::Packet = layout::Packet {
            data: ptr::null_mut(),
            len: 0,
            headroom: 0,
            tailroom: 0,
            verdict: FORWARD,
            port: 0,
            reason: 0,
            reserved: 0,
        };
        let (from, opposite) = (burst.port(), burst.opposite());
        let mut views = [EMPTY; RECEIVED_LIMIT];
        let mut rooms = [const { None }; RECEIVED_LIMIT];
        let mut count = 0;
        for ((mut packet, view), room) in burst.packets().zip(&mut views).zip(&mut rooms) {
            // A function may write anywhere between the ends of the rooms. So the frame reaches there until it has been
            // called.
            let (headroom, tailroom, len) = (packet.headroom(), packet.tailroom(), packet.len());
            let _ = packet.grow_front(headroom);
            let _ = packet.grow_back(tailroom);
            let first = packet.frame_mut().as_mut_ptr();
            *view = layout::Packet {
                data: first.wrapping_add(headroom),
                len: len as u32,
                headroom: headroom as u32,
                tailroom: tailroom as u32,
                port: opposite,
                ..EMPTY
            };
            // The packet stays borrowed, so that its pointer is the only way to its bytes.
            *room = Some((packet, first.addr(), headroom, len));
            count += 1;
        }
        if count > 0 {
            // SAFETY: the state comes from `create`. There are `count` packets; the data of each, with its rooms, are
            // bytes of the burst that nothing else refers to during the call. The outbox is not used by anybody else.
            unsafe {
                (self.of.process)(
                    self.state.as_ptr(),
                    views.as_mut_ptr(),
                    count,
                    from,
                    &raw mut *self.outbox,
                    now.0,
                );
            }
        }
        for (view, room) in views.iter().zip(rooms) {
            let Some((mut packet, first, headroom, len)) = room else {
                break;
            };
            let whole = packet.len();
            // Addresses are compared, nothing is read: what C says of them is not trusted.
            let front = view.data.addr().checked_sub(first);
            let (front, len, is_within) = match front {
                Some(front) if view.len > 0 && front + view.len as usize <= whole => {
                    (front, view.len as usize, true)
                }
                _ => (headroom, len, false),
            };
            let is_cut = (front == 0 || packet.shrink_front(front))
                && (front + len == whole || packet.shrink_back(whole - front - len));
            packet.decide(match view.verdict {
                _ if !is_within || !is_cut => Verdict::Drop(MISUSED),
                FORWARD if view.port < self.ports => Verdict::Forward(view.port),
                ANSWER => Verdict::Answer,
                DROP => Verdict::Drop(Reason(view.reason)),
                CONSUME => Verdict::Consume,
                _ => Verdict::Drop(MISUSED),
            });
        }
        self.outbox.flush(burst, self.ports);
    }

    fn due(&self) -> Option<Nanos> {
        let (due, _) = self.of.due.zip(self.of.tick)?;
        // SAFETY: the state comes from `create`.
        let due = unsafe { due(self.state.as_ptr()) };
        (due != NEVER).then_some(Nanos(due))
    }

    fn tick(&mut self, burst: &mut Burst, now: Nanos) {
        if let Some(tick) = self.of.tick {
            // SAFETY: the state comes from `create`. The outbox is not used by anybody else.
            unsafe { tick(self.state.as_ptr(), &raw mut *self.outbox, now.0) }
        }
        self.outbox.flush(burst, self.ports);
    }

    fn metrics(&self, values: &mut [u64]) {
        if let Some(write) = self.of.values
            && values.len() == self.of.about.metrics.len()
        {
            // SAFETY: the state comes from `create`; there is a place for each metric.
            unsafe { write(self.state.as_ptr(), values.as_mut_ptr()) }
        }
    }

    fn summary(&self) -> Summary {
        let mut of = layout::Summary::default();
        if let Some(summarise) = self.of.summary {
            // SAFETY: the state comes from `create`; the summary lives during the call.
            unsafe { summarise(self.state.as_ptr(), &raw mut of) }
        }
        Summary {
            entries: of.entries,
            flows: of.flows,
            flows_limit: of.flows_limit,
        }
    }
}
