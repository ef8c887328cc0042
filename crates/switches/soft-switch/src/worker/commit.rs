//! Commit: the end of a turn, when what it did becomes visible to peers.
//!
//! A turn copies frames into rings and takes frames out of rings; no peer sees either before the commit. So a process
//! that dies in a turn has done nothing, as seen from outside, and the next run does it again. The commit itself is
//! many stores. Where somebody keeps this worker's state, it first notes what it is about to store: the rings of
//! instances have that in a line of their own, the uplinks' are in the page. The next run stores it again, which
//! changes nothing where it was stored. So each packet passes exactly once. A turn in which no ring moves has no commit.
//!
//! What waits in this process for longer than a turn is lost with it: fragments whose first one has not come, packets
//! of flows that move, and packets on their way between workers.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use memif::Unfinished;
use model::UplinkId;
use shared_memory::OwnMemory;

use crate::frame::FrameMemory;
use crate::port::Queue as _;
use crate::worker::context::Context;

/// Words of the page: which layout, the turn that is noted, the one that is done, then two for each uplink.
const LAYOUT_AT: usize = 0;
const NOTED_AT: usize = 1;
const DONE_AT: usize = 2;
const UPLINKS_AT: usize = 4;
/// The layout of the page and of what rings say.
const LAYOUT: u64 = 0x1ac0_0001;

/// A page that outlives this process, where a worker notes what it commits.
#[derive(Debug)]
pub struct CommitPage {
    memory: OwnMemory,
    turn: u64,
}

/// Positions of an uplink's queue, as a worker noted them.
fn noted(word: &AtomicU64, turn: u64) -> Option<u16> {
    let word = word.load(Ordering::Relaxed);
    (word >> 16 == turn & (u64::MAX >> 16)).then_some(word as u16)
}

impl CommitPage {
    /// A new one, and its file.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn in_file() -> std::io::Result<(OwnedFd, CommitPage)> {
        let (file, memory) = OwnMemory::create("inco-turn", shared_memory::PAGE, false)?;
        let page = CommitPage { memory, turn: 0 };
        page.word(LAYOUT_AT).store(LAYOUT, Ordering::Relaxed);
        Ok((file, page))
    }

    /// What an earlier run left: [`None`] where it is of another layout.
    pub(crate) fn open(file: &OwnedFd) -> std::io::Result<Option<CommitPage>> {
        use std::os::fd::AsFd as _;
        let memory = OwnMemory::open(file.as_fd())?;
        let mut page = CommitPage { memory, turn: 0 };
        if page.word(LAYOUT_AT).load(Ordering::Relaxed) != LAYOUT {
            return Ok(None);
        }
        page.turn = page.word(NOTED_AT).load(Ordering::Relaxed);
        Ok(Some(page))
    }

    /// The turn that the earlier run did not finish, as an instance's rings have it.
    pub(crate) fn unfinished(&self) -> Option<Unfinished> {
        (self.word(DONE_AT).load(Ordering::Relaxed) != self.turn).then_some(Unfinished {
            turn: self.turn,
            tx: None,
            rx: None,
        })
    }

    /// The same, as this uplink's rings need it.
    pub(crate) fn unfinished_of(&self, uplink: UplinkId) -> Option<Unfinished> {
        let of = self.unfinished()?;
        let [tx, rx] = [0, 1].map(|at| noted(self.word(UPLINKS_AT + 2 * uplink.index() + at), of.turn));
        Some(Unfinished { tx, rx, ..of })
    }

    /// The turn is done.
    pub(crate) fn finish(&self) {
        self.word(DONE_AT).store(self.turn, Ordering::Release);
    }

    /// What the earlier run did not finish is finished. Its turns do not come again: what it noted for one that it
    /// never began has no meaning any more.
    pub(crate) fn finish_earlier(&mut self) {
        self.turn += 1;
        self.finish();
        self.word(NOTED_AT).store(self.turn, Ordering::Release);
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        let words = self.memory.words();
        &words[at % words.len()]
    }

    /// Notes where the rings of all ports with something new will be.
    fn note<M: FrameMemory>(&mut self, cx: &mut Context<M>) {
        self.turn += 1;
        let turn = self.turn;
        for &(slot, port) in cx.ports.sent_to.iter().chain(&cx.ports.received_from) {
            if let Some(instance) = &mut cx.ports.instances[slot]
                && let Some(Some(port)) = instance.ports.get_mut(port)
            {
                port.intend(turn);
            }
        }
        for uplink in (0..UplinkId::LIMIT as u8).map(UplinkId) {
            let Some(port) = &mut cx.ports.uplinks[uplink] else {
                continue;
            };
            if let Some(positions) = port.intend(turn) {
                for (at, position) in positions.into_iter().enumerate() {
                    let word = self.word(UPLINKS_AT + 2 * uplink.index() + at);
                    word.store(turn << 16 | u64::from(position), Ordering::Relaxed);
                }
            }
        }
        // After all of them, and before the first ring moves.
        self.word(NOTED_AT).store(turn, Ordering::Release);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

/// Begins the commit of a turn: the frames that instances got become visible to them. The uplinks follow, and then
/// [`release`].
#[inline]
pub(crate) fn publish<M: FrameMemory>(page: &mut Option<CommitPage>, cx: &mut Context<M>) {
    if let Some(page) = page {
        page.note(cx);
    }
    for (slot, port) in cx.ports.sent_to.drain(..) {
        if let Some(instance) = &mut cx.ports.instances[slot] {
            instance.publish(port);
        }
    }
}

/// Ends it: what was taken from peers is theirs again, now that it has arrived elsewhere.
#[inline]
pub(crate) fn release<M: FrameMemory>(page: &Option<CommitPage>, cx: &mut Context<M>) {
    for (slot, port) in cx.ports.received_from.drain(..) {
        if let Some(instance) = &mut cx.ports.instances[slot] {
            instance.release(port);
        }
    }
    if std::mem::take(&mut cx.ports.uplinks_gave) {
        for port in cx.ports.uplinks.iter_mut().flatten() {
            port.release();
        }
    }
    if let Some(page) = page {
        page.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_unfinished_from_its_note_to_its_end() {
        let (file, page) = CommitPage::in_file().unwrap();
        let open = || CommitPage::open(&file).unwrap().unwrap();
        assert_eq!(open().unfinished(), None, "no turn yet");
        page.word(UPLINKS_AT + 2).store(7 << 16 | 300, Ordering::Relaxed);
        page.word(UPLINKS_AT + 3).store(6 << 16 | 400, Ordering::Relaxed);
        page.word(NOTED_AT).store(7, Ordering::Relaxed);
        let (turn, none) = (7, None);
        assert_eq!(
            open().unfinished_of(UplinkId(1)),
            Some(Unfinished {
                turn,
                tx: Some(300),
                rx: none
            }),
            "what an earlier turn noted counts no more"
        );
        assert_eq!(
            open().unfinished_of(UplinkId(0)),
            Some(Unfinished {
                turn,
                tx: none,
                rx: none
            })
        );
        page.word(UPLINKS_AT).store(8 << 16 | 500, Ordering::Relaxed);
        open().finish_earlier();
        assert_eq!(open().unfinished(), None);
        // A process that ended before the note of turn 8 had its positions written: they are not of the next turn.
        let mut next = open();
        next.turn += 1;
        next.word(NOTED_AT).store(next.turn, Ordering::Relaxed);
        let unfinished = open().unfinished_of(UplinkId(0)).unwrap();
        assert_eq!((unfinished.turn, unfinished.tx), (9, None));
        next.finish();
        assert_eq!(open().unfinished(), None);
        page.word(LAYOUT_AT).store(1, Ordering::Relaxed);
        assert!(CommitPage::open(&file).unwrap().is_none());
    }
}
