//! A generator's port that shows an observer each frame that is sent, and each that comes back.

use std::os::fd::BorrowedFd;

use traffic::Port;

/// Looks at frames.
pub(super) trait Observer {
    /// A frame is about to be sent.
    fn sent(&mut self, _frame: &[u8]) {}

    /// A frame has come back.
    fn returned(&mut self, frame: &[u8]);
}

/// The port.
pub(super) struct ObservedPort<P, O> {
    port: P,
    pub(super) observer: O,
}

impl<P: Port, O: Observer> ObservedPort<P, O> {
    pub(super) const fn new(port: P, observer: O) -> ObservedPort<P, O> {
        ObservedPort { port, observer }
    }
}

impl<P: Port, O: Observer> Port for ObservedPort<P, O> {
    fn frame_bytes_limit(&self) -> usize {
        self.port.frame_bytes_limit()
    }
    fn free(&mut self) -> usize {
        self.port.free()
    }
    fn slots(&self, frame_bytes: usize) -> usize {
        self.port.slots(frame_bytes)
    }
    fn push(&mut self, frame: &[u8]) -> bool {
        self.observer.sent(frame);
        self.port.push(frame)
    }
    fn flush(&mut self) {
        self.port.flush();
    }
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let len = self.port.receive(buffer)?;
        self.observer.returned(buffer.get(..len).unwrap_or_default());
        Some(len)
    }
    fn release(&mut self) {
        self.port.release();
    }
    fn arm(&mut self) -> bool {
        self.port.arm()
    }
    fn disarm(&mut self) {
        self.port.disarm();
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.wake_fd()
    }
    fn maintain(&mut self) {
        self.port.maintain();
    }
    fn is_away(&self) -> bool {
        self.port.is_away()
    }
}
