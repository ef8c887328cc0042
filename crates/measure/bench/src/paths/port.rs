//! A generator's port on interfaces of the kernel: packets enter by one and are taken at another.

use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd};

use anyhow::Result;
use packet_socket::{Config, PacketSocket};
use testbed::network::Network;
use traffic::Port;

/// Rings for a burst of some milliseconds.
const CONFIG: Config = Config {
    slots: 4096,
    frame_bytes: 1514,
};
/// The longest frame that may arrive: what a sender leaves to a card is longer, and no packet of the generator.
const FRAME_BYTES: usize = 1514;

/// The port.
pub(super) struct KernelPort {
    sender: PacketSocket,
    receiver: PacketSocket,
    /// The MAC address that frames go to, if not the generator's own choice.
    to: Option<[u8; 6]>,
    frame: Vec<u8>,
}

impl KernelPort {
    /// Opens the interface of that name in both networks.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refuses a packet socket.
    pub(super) fn open(
        from: &Network,
        at: &Network,
        interface: &str,
        to: Option<[u8; 6]>,
    ) -> Result<KernelPort> {
        let open = |network: &Network| network.within(|| Ok(PacketSocket::open(interface, CONFIG)?));
        Ok(KernelPort {
            sender: open(from)?,
            receiver: open(at)?,
            to,
            frame: Vec::with_capacity(FRAME_BYTES),
        })
    }
}

impl Port for KernelPort {
    fn frame_bytes_limit(&self) -> usize {
        FRAME_BYTES
    }
    fn free(&mut self) -> usize {
        let (_, sender) = self.sender.rings();
        sender.slots().saturating_sub(sender.used()) as usize
    }
    fn slots(&self, _frame_bytes: usize) -> usize {
        1
    }
    fn push(&mut self, frame: &[u8]) -> bool {
        self.frame.clear();
        self.frame.extend_from_slice(frame);
        if let (Some(to), Some(place)) = (self.to, self.frame.first_chunk_mut()) {
            *place = to;
        }
        let (_, sender) = self.sender.rings();
        sender.put(&self.frame).is_ok()
    }
    fn flush(&mut self) {
        let (_, sender) = self.sender.rings();
        // An interface that is gone loses all packets, and so the report says.
        let _gone = sender.send();
    }
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let (receiver, _) = self.receiver.rings();
        loop {
            let mut length = None;
            let taken = receiver.take(1, |received| {
                if let Some(place) = buffer.get_mut(..received.bytes.len()) {
                    place.copy_from_slice(received.bytes);
                    length = Some(received.bytes.len());
                }
                ControlFlow::Break(())
            });
            if length.is_some() || taken.frames + taken.too_large == 0 {
                return length;
            }
        }
    }
    fn release(&mut self) {
        let (receiver, _) = self.receiver.rings();
        receiver.release();
    }
    fn arm(&mut self) -> bool {
        let (receiver, _) = self.receiver.rings();
        !receiver.has_frames()
    }
    fn disarm(&mut self) {}
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.receiver.as_fd())
    }
    fn maintain(&mut self) {}
}

/// A MAC address as `ip` prints it.
pub(super) fn mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Vec<u8> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<_, _>>()
        .ok()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_read() {
        assert_eq!(mac("02:00:00:00:00:ff"), Some([2, 0, 0, 0, 0, 255]));
        assert_eq!((mac("02:00"), mac("FAILED")), (None, None));
    }
}
