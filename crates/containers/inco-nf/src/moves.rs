//! Messages by which a worker of the switch moves flows with their state: taken out of what a port receives, and answered
//! behind the packets of the same burst.

use functions::{Chain, RECEIVED_LIMIT, STATE_BYTES_LIMIT};
use model::Nanos;
use state_moves::{FRAME_BYTES_LIMIT, Message, NotMoved, is_message};

/// The messages of one burst. Their memory is there from the start.
pub(crate) struct Messages {
    frames: Box<[[u8; FRAME_BYTES_LIMIT]; RECEIVED_LIMIT]>,
    lengths: Vec<usize>,
}

impl Messages {
    pub(crate) fn new() -> Messages {
        Messages {
            frames: Box::new([[0; FRAME_BYTES_LIMIT]; RECEIVED_LIMIT]),
            lengths: Vec::with_capacity(RECEIVED_LIMIT),
        }
    }

    /// Takes a frame, if it is a message. One that is too long is none that this release knows, and is dropped.
    #[inline]
    pub(crate) fn take(&mut self, frame: &[u8]) -> bool {
        let is_one = is_message(frame);
        if is_one {
            self.keep(frame);
        }
        is_one
    }

    #[cold]
    fn keep(&mut self, frame: &[u8]) {
        if let Some(place) = self.frames.get_mut(self.lengths.len())
            && let Some(room) = place.get_mut(..frame.len())
        {
            room.copy_from_slice(frame);
            self.lengths.push(frame.len());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Answers all of them, which came by that port, and forgets them. `send` is given each answer with its port.
    #[cold]
    pub(crate) fn answer(
        &mut self,
        chain: &mut Chain,
        (port, ports): (usize, usize),
        now: Nanos,
        mut send: impl FnMut(usize, &[u8]),
    ) {
        let mut room = [0; FRAME_BYTES_LIMIT];
        let mut state = [0; STATE_BYTES_LIMIT];
        for (frame, length) in self.frames.iter().zip(self.lengths.drain(..)) {
            let Some((number, message)) = frame.get(..length).and_then(Message::read) else {
                continue;
            };
            let mut say = |by: usize, message: Message<'_>| {
                if let Some(length) = message.write(number, &mut room) {
                    send(by, &room[..length]);
                }
            };
            match message {
                Message::Pass { port: of } if usize::from(of) == port => {
                    for by in 0..ports {
                        say(by, Message::Passed { of, by: by as u8 });
                    }
                }
                Message::Export(flow) => match chain.export(&flow, &mut state, now) {
                    Ok(length) => say(port, Message::Exported(&state[..length])),
                    Err(why) => say(port, Message::Refused(why)),
                },
                Message::Import(flow, moved) => match chain.import(&flow, moved, now) {
                    Ok(()) => say(port, Message::Imported),
                    Err(why) => say(port, Message::Refused(why)),
                },
                Message::Forget(flow) => chain.forget(&flow, now),
                Message::HandOver(from) => match chain.hand_over(from, &mut state, now) {
                    Ok((length, next)) => {
                        let mappings = &state[..length];
                        say(port, Message::HandedOver { next, mappings });
                    }
                    Err(why) => say(port, Message::Refused(why)),
                },
                Message::TakeOver(mappings) => match chain.take_over(mappings, now) {
                    Ok(()) => say(port, Message::Imported),
                    Err(why) => say(port, Message::Refused(why)),
                },
                Message::Count(ports) => match chain.mappings_in(&ports, now) {
                    Some(count) => say(port, Message::Counted(count)),
                    None => say(port, Message::Refused(NotMoved::Unsupported)),
                },
                // What only instances say, and a port that is not this one.
                Message::Pass { .. }
                | Message::Passed { .. }
                | Message::Exported(_)
                | Message::Imported
                | Message::Refused(_)
                | Message::HandedOver { .. }
                | Message::Counted(_) => {}
            }
        }
    }
}
