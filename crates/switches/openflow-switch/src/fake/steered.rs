//! The fake switch and who steers by it, with a connection between them that can be cut.

use model::Nanos;
use openflow::{Event, Limits, Message, Session, Side};

use super::{Delivered, FakeNic};
use crate::steering::Steering;

/// A [`FakeNic`] that [`Steering`] has, as the driver has a bridge of Open vSwitch: in tests, and in simulations.
pub struct SteeredNic {
    /// The switch.
    pub nic: FakeNic,
    /// What writes its rules.
    pub steering: Steering,
    session: Option<Session>,
    monitor: u32,
}

impl SteeredNic {
    /// Both, not connected. `monitor`: the number of the switch's port whose other end `steering` has.
    pub fn new(nic: FakeNic, steering: Steering, monitor: u32) -> SteeredNic {
        SteeredNic {
            nic,
            steering,
            session: None,
            monitor,
        }
    }

    /// Makes a connection.
    pub fn connect(&mut self, now: Nanos) {
        self.session = Some(Session::new(Side::Controller, Limits::default(), now.0));
    }

    /// Cuts the connection. The switch goes on by the rules that it has.
    pub fn cut(&mut self, now: Nanos) {
        self.session = None;
        self.nic.disconnect(now);
        self.steering.disconnected();
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// Time passes on both sides. Gives the frames that have arrived at the other ends of ports, but for those that
    /// are for the steering. What is no OpenFlow on either side cuts the connection.
    pub fn turn(&mut self, now: Nanos) -> Vec<Delivered> {
        self.nic.tick(now);
        if self.exchange(now).is_none() {
            self.cut(now);
        }
        let mut delivered = self.nic.delivered(now);
        delivered.retain(|frame| {
            let is_ours = frame.port == self.monitor;
            if is_ours {
                self.steering.monitor(&frame.frame, now);
            }
            !is_ours
        });
        while let Some(frame) = self.steering.next_injection() {
            self.nic.packet(self.monitor, &frame, now);
        }
        delivered
    }

    /// Carries messages both ways. [`None`]: the connection is no good.
    fn exchange(&mut self, now: Nanos) -> Option<()> {
        let Some(session) = &mut self.session else {
            self.steering.tick(now);
            return Some(());
        };
        let bytes = self.nic.output().to_vec();
        self.nic.written(bytes.len());
        session.receive(&bytes, now.0);
        while let Some(event) = session.next_event().ok()? {
            match event {
                Event::Message {
                    message: Message::FeaturesReply(_),
                    ..
                } => self.steering.connected(),
                Event::Message { xid, message } => self.steering.message(xid, &message, now),
                Event::Agreed(_) | Event::Garbled { .. } => {}
            }
        }
        self.steering.tick(now);
        self.steering.send(|message| session.send(message).ok());
        self.nic.receive(session.output(), now).ok()?;
        session.written(session.output().len());
        Some(())
    }
}
