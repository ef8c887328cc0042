//! What the programs tell at once, by a ring in memory. A thread waits for it, and wakes the control plane up.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, JoinHandle, Thread};

use aya::maps::{MapData, RingBuf};
use model::Nanos;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use switch::{Usual, WakeUp};

use crate::kernel::Shared;
use crate::layout::EVENT_ALARM;

/// The ring, as the programs write it.
pub(crate) type Ring = RingBuf<MapData>;

/// Wakes the thread that started the switch: at the first packet after a quiet time, when a CPU has more packets than
/// usual, and when half of the prepared picks are used.
pub(crate) struct Alarm {
    thread: Thread,
    shared: Arc<Shared>,
    is_set: AtomicBool,
    has_risen: AtomicBool,
}

impl WakeUp for Alarm {
    fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
        for row in self.shared.cpus() {
            row.mark.store(0, Ordering::Relaxed);
        }
        // A CPU that has not seen its mark when the caller reads the counters is a rare case: the sleep is short.
        fence(Ordering::SeqCst);
    }

    fn clear(&self) {
        self.is_set.store(false, Ordering::Relaxed);
    }

    fn take_rise(&self) -> bool {
        self.has_risen.swap(false, Ordering::Acquire)
    }
}

/// The thread.
pub(crate) struct Events {
    pub(crate) alarm: Arc<Alarm>,
    /// By CPU.
    usual: Vec<Usual>,
    stop: Arc<OwnedFd>,
    reader: Option<JoinHandle<()>>,
}

impl Events {
    /// Begins to read the ring. This thread will be woken.
    pub(crate) fn start(ring: Ring, shared: &Arc<Shared>) -> io::Result<Events> {
        let alarm = Arc::new(Alarm {
            thread: thread::current(),
            shared: Arc::clone(shared),
            is_set: AtomicBool::new(false),
            has_risen: AtomicBool::new(false),
        });
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (told, until) = (Arc::clone(&alarm), Arc::clone(&stop));
        let reader = thread::Builder::new()
            .name("inco-events".to_owned())
            .spawn(move || read(ring, &told, &until))?;
        Ok(Events {
            alarm,
            usual: vec![Usual::default(); shared.cpus().len()],
            stop,
            reader: Some(reader),
        })
    }

    /// The counters have been read: from now on, more packets than usual are told.
    pub(crate) fn mark(&mut self, now: Nanos) {
        for (usual, row) in self.usual.iter_mut().zip(self.alarm.shared.cpus()) {
            let mark = usual.mark(row.moved.load(Ordering::Relaxed), now);
            row.mark.store(mark, Ordering::Relaxed);
        }
    }

    pub(crate) fn stop(&mut self) {
        if let Some(reader) = self.reader.take() {
            // It is not full: this is written once.
            let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
            // It says nothing when it ends.
            let _ = reader.join();
        }
    }
}

/// Reads the ring until it is to stop.
fn read(mut ring: Ring, alarm: &Alarm, stop: &OwnedFd) {
    loop {
        while let Some(event) = ring.next() {
            if event.get(..4) == Some(&EVENT_ALARM.to_ne_bytes()) {
                if !alarm.is_set.load(Ordering::Relaxed) {
                    alarm.has_risen.store(true, Ordering::Release);
                }
                alarm.thread.unpark();
            }
        }
        let mut waits = [
            PollFd::new(&ring, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        match poll(&mut waits, None) {
            Ok(_) if waits[1].revents().is_empty() => {}
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}
