//! An OpenFlow session without the connection: negotiates versions, frames and numbers messages, and detects
//! a silent peer (section 6.3 of the specification).

use thiserror::Error;

use crate::message::{ErrorMessage, Message, decode, encode, frame_length};
use crate::wire::DecodeError;
use crate::{NO_BUFFER, Version};

/// The end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Requests the switch's features once versions are negotiated.
    Controller,
    /// Replies.
    Switch,
}

/// Limits of a session. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of pending output. More is refused.
    pub output_bytes: usize,
    /// After this long without a message an echo request is sent.
    pub quiet_ns: u64,
    /// After this long without a reply the session ends.
    pub silent_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            output_bytes: 4 << 20,
            quiet_ns: 1_000_000_000,
            silent_ns: 3_000_000_000,
        }
    }
}

/// An event from the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A version was negotiated: messages can be sent.
    Agreed(Version),
    /// A message. Hellos and echoes are handled internally.
    Message {
        /// Its transaction id; a reply has the request's.
        xid: u32,
        /// The message.
        message: Message,
    },
    /// A message that cannot be decoded. The session continues.
    Garbled {
        /// Its type number.
        kind: u8,
        /// Why.
        error: DecodeError,
    },
}

/// Why a session ended, or a message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SessionError {
    /// No common version.
    #[error("no common version: the peer supports up to {theirs:#04x}, inco 0x04 (1.3) and 0x06 (1.5)")]
    NoCommonVersion {
        /// The peer's highest number.
        theirs: u8,
    },
    /// The first message was not a hello, or the stream cannot be framed.
    #[error("this is not OpenFlow: {0}")]
    NotOpenFlow(DecodeError),
    /// The peer did not reply in time.
    #[error("the peer has been silent for {for_ns} ns")]
    Silent {
        /// How long, in nanoseconds.
        for_ns: u64,
    },
    /// Too much output is pending: try again later.
    #[error("{waiting} bytes of output are pending, the limit is {limit}")]
    Full {
        /// Pending bytes.
        waiting: usize,
        /// [`Limits::output_bytes`].
        limit: usize,
    },
    /// No version has been negotiated yet.
    #[error("nothing can be sent before version negotiation")]
    NotAgreed,
    /// The message exceeds the maximum length.
    #[error("the message cannot be sent: {0}")]
    TooLong(DecodeError),
}

/// The state of one connection. Times are monotonic nanoseconds.
#[derive(Clone, Debug)]
pub struct Session {
    side: Side,
    limits: Limits,
    version: Option<Version>,
    input: Vec<u8>,
    /// Start of the next message.
    read: usize,
    output: Vec<u8>,
    written: usize,
    next_xid: u32,
    heard_ns: u64,
    asked_ns: Option<u64>,
}

impl Session {
    /// A session on a connection established at `now_ns`. Its hello is pending output.
    pub fn new(side: Side, limits: Limits, now_ns: u64) -> Session {
        let mut session = Session {
            side,
            limits,
            version: None,
            input: Vec::new(),
            read: 0,
            output: Vec::new(),
            written: 0,
            next_xid: 1,
            heard_ns: now_ns,
            asked_ns: None,
        };
        let versions = Version::ALL.map(Version::number).to_vec();
        // Cannot fail: it is short, and the output is empty.
        let _fits = session.write(Version::V15, 0, &Message::Hello { versions });
        session
    }

    /// The negotiated version.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Takes bytes read from the connection. [`Session::next_event`] then returns the events.
    pub fn receive(&mut self, bytes: &[u8], now_ns: u64) {
        if !bytes.is_empty() {
            self.heard_ns = now_ns;
            self.asked_ns = None;
        }
        // At most one incomplete message is buffered: 64 KiB.
        self.input.drain(..self.read);
        self.read = 0;
        self.input.extend_from_slice(bytes);
    }

    /// The next event; [`None`] until more is received.
    ///
    /// # Errors
    /// The session has ended: close the connection after writing the pending output.
    pub fn next_event(&mut self) -> Result<Option<Event>, SessionError> {
        loop {
            let rest = self.input.get(self.read..).unwrap_or_default();
            let Some(length) = frame_length(rest).map_err(SessionError::NotOpenFlow)? else {
                return Ok(None);
            };
            let Some(bytes) = rest.get(..length) else {
                return Ok(None);
            };
            let kind = bytes.get(1).copied().unwrap_or_default();
            let number = bytes.first().copied().unwrap_or_default();
            let decoded = decode(self.version.unwrap_or(Version::V15), bytes);
            self.read += length;
            let Some(version) = self.version else {
                return self.agree(number, decoded).map(Some);
            };
            match decoded {
                Ok((xid, Message::EchoRequest(data))) => {
                    // If the output is full, the peer asks again or disconnects.
                    let _no_room = self.write(version, xid, &Message::EchoReply(data));
                }
                Ok((_, Message::EchoReply(_) | Message::Hello { .. })) => {}
                Ok((xid, message)) => return Ok(Some(Event::Message { xid, message })),
                Err(error) => return Ok(Some(Event::Garbled { kind, error })),
            }
        }
    }

    fn agree(
        &mut self,
        number: u8,
        decoded: Result<(u32, Message), DecodeError>,
    ) -> Result<Event, SessionError> {
        let versions = match decoded {
            Ok((_, Message::Hello { versions })) => versions,
            Ok(_) => {
                return Err(SessionError::NotOpenFlow(DecodeError::Value {
                    what: "the first message's version",
                    value: number.into(),
                }));
            }
            Err(error) => return Err(SessionError::NotOpenFlow(error)),
        };
        let speaks = |version: Version| match versions.as_slice() {
            // Without a list, all versions up to that of the header.
            [] => version.number() == number.min(Version::V15.number()),
            list => list.contains(&version.number()),
        };
        let Some(version) = Version::ALL.into_iter().rev().find(|version| speaks(*version)) else {
            let error = Message::Error(ErrorMessage {
                kind: ErrorMessage::HELLO_FAILED,
                code: 0,
                data: b"this side speaks OpenFlow 1.3 and 1.5".to_vec(),
            });
            let _no_room = self.write(Version::V13, 0, &error);
            let theirs = versions.iter().copied().max().unwrap_or(number);
            return Err(SessionError::NoCommonVersion { theirs });
        };
        self.version = Some(version);
        if self.side == Side::Controller {
            self.send(&Message::FeaturesRequest)?;
        }
        Ok(Event::Agreed(version))
    }

    /// Sends a message and returns its transaction id.
    ///
    /// # Errors
    /// [`SessionError::Full`] if too much output is pending; [`SessionError::NotAgreed`];
    /// [`SessionError::TooLong`]. Nothing is sent then.
    pub fn send(&mut self, message: &Message) -> Result<u32, SessionError> {
        let version = self.version.ok_or(SessionError::NotAgreed)?;
        let xid = self.next_xid;
        let message = match message {
            // A message in a bundle has the outer transaction id.
            Message::BundleAdd {
                bundle,
                flags,
                message,
                ..
            } => &Message::BundleAdd {
                bundle: *bundle,
                flags: *flags,
                xid,
                message: message.clone(),
            },
            other => other,
        };
        self.write(version, xid, message)?;
        // 0 marks unsolicited messages; all ones is reserved.
        self.next_xid = match self.next_xid.wrapping_add(1) {
            0 | NO_BUFFER => 1,
            next => next,
        };
        Ok(xid)
    }

    /// Sends a reply with the transaction id of the request.
    ///
    /// # Errors
    /// As [`Session::send`].
    pub fn answer(&mut self, xid: u32, message: &Message) -> Result<(), SessionError> {
        let version = self.version.ok_or(SessionError::NotAgreed)?;
        self.write(version, xid, message)
    }

    fn write(&mut self, version: Version, xid: u32, message: &Message) -> Result<(), SessionError> {
        let waiting = self.output().len();
        if waiting >= self.limits.output_bytes {
            return Err(SessionError::Full {
                waiting,
                limit: self.limits.output_bytes,
            });
        }
        encode(version, xid, message, &mut self.output).map_err(SessionError::TooLong)
    }

    /// The pending output.
    pub fn output(&self) -> &[u8] {
        self.output.get(self.written..).unwrap_or_default()
    }

    /// Removes so many bytes of pending output.
    pub fn written(&mut self, bytes: usize) {
        self.written = (self.written + bytes).min(self.output.len());
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        } else if self.written > self.limits.output_bytes / 2 {
            self.output.drain(..self.written);
            self.written = 0;
        }
    }

    /// Advances the time: sends an echo request to a quiet peer.
    ///
    /// # Errors
    /// [`SessionError::Silent`] if it does not reply: close the connection.
    pub fn tick(&mut self, now_ns: u64) -> Result<(), SessionError> {
        let for_ns = now_ns.saturating_sub(self.heard_ns);
        if for_ns >= self.limits.silent_ns {
            return Err(SessionError::Silent { for_ns });
        }
        if let (Some(_), None) = (self.version, self.asked_ns)
            && for_ns >= self.limits.quiet_ns
        {
            self.asked_ns = Some(now_ns);
            let ask = Message::EchoRequest(now_ns.to_be_bytes().to_vec());
            // If the output is full, the silence limit applies.
            let _no_room = self.send(&ask);
        }
        Ok(())
    }
}
