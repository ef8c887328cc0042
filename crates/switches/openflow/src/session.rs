//! A connection between a controller and a switch, without the connection: versions are agreed on, messages are cut
//! from the stream and numbered, and silence is noticed (section 6.3 of the specification).

use thiserror::Error;

use crate::message::{ErrorMessage, Message, decode, encode, frame_length};
use crate::wire::DecodeError;
use crate::{NO_BUFFER, Version};

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It asks for the switch's features as soon as versions are agreed on.
    Controller,
    /// It answers.
    Switch,
}

/// Limits of a session. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that may wait to be written. What would be more is refused.
    pub output_bytes: usize,
    /// After this long without a message the other side is asked whether it is there.
    pub quiet_ns: u64,
    /// After this long without an answer it is not.
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

/// What came from the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A version was agreed on: messages can be sent.
    Agreed(Version),
    /// A message. Hellos and echoes are dealt with here and do not show.
    Message {
        /// Its transaction id; that of an answer is the question's.
        xid: u32,
        /// What it says.
        message: Message,
    },
    /// A message that cannot be understood. The next one may be.
    Garbled {
        /// Its type, as a number.
        kind: u8,
        /// Why.
        error: DecodeError,
    },
}

/// Why a session cannot go on, or a message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SessionError {
    /// No version that both speak.
    #[error(
        "no common version: the other side speaks up to {theirs:#04x}, this one 0x04 (1.3) and 0x06 (1.5)"
    )]
    NoCommonVersion {
        /// The highest number of theirs.
        theirs: u8,
    },
    /// The first message was not a hello, or the stream cannot be cut into messages.
    #[error("this is not OpenFlow: {0}")]
    NotOpenFlow(DecodeError),
    /// The other side has not answered for too long.
    #[error("the other side has been silent for {for_ns} ns")]
    Silent {
        /// How long, in nanoseconds.
        for_ns: u64,
    },
    /// Too much waits to be written already: try again when it is.
    #[error("{waiting} bytes wait to be written, {limit} may")]
    Full {
        /// How many wait.
        waiting: usize,
        /// [`Limits::output_bytes`].
        limit: usize,
    },
    /// Versions are not agreed on yet.
    #[error("nothing can be sent before a version is agreed on")]
    NotAgreed,
    /// The message does not fit into one.
    #[error("the message cannot be sent: {0}")]
    TooLong(DecodeError),
}

/// One connection's state. Times are monotonic nanoseconds.
#[derive(Clone, Debug)]
pub struct Session {
    side: Side,
    limits: Limits,
    version: Option<Version>,
    input: Vec<u8>,
    /// Where the next message begins.
    read: usize,
    output: Vec<u8>,
    written: usize,
    next_xid: u32,
    heard_ns: u64,
    asked_ns: Option<u64>,
}

impl Session {
    /// A session on a connection that was made at `now_ns`. Its hello waits to be written.
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
        // It is short, and nothing waits before it.
        let _fits = session.write(Version::V15, 0, &Message::Hello { versions });
        session
    }

    /// The version that was agreed on.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Takes what was read from the connection. [`Session::next_event`] then gives what it said.
    pub fn receive(&mut self, bytes: &[u8], now_ns: u64) {
        if !bytes.is_empty() {
            self.heard_ns = now_ns;
            self.asked_ns = None;
        }
        // At most one unfinished message is kept: 64 KiB.
        self.input.drain(..self.read);
        self.read = 0;
        self.input.extend_from_slice(bytes);
    }

    /// What came next; [`None`] until more is received.
    ///
    /// # Errors
    /// Where the session cannot go on: the connection is to be closed, after writing what waits.
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
                    // Where no room is left they ask again, or leave.
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
            // Without a list, all up to that of the header.
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

    /// Sends a message and gives its transaction id.
    ///
    /// # Errors
    /// [`SessionError::Full`] where too much waits; [`SessionError::NotAgreed`]; [`SessionError::TooLong`]. Nothing is
    /// sent then.
    pub fn send(&mut self, message: &Message) -> Result<u32, SessionError> {
        let version = self.version.ok_or(SessionError::NotAgreed)?;
        let xid = self.next_xid;
        let message = match message {
            // A message in a bundle has the number of the one around it.
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
        // 0 is for what nobody asked for, and all ones for none.
        self.next_xid = match self.next_xid.wrapping_add(1) {
            0 | NO_BUFFER => 1,
            next => next,
        };
        Ok(xid)
    }

    /// Sends an answer with the transaction id of the question.
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

    /// What waits to be written to the connection.
    pub fn output(&self) -> &[u8] {
        self.output.get(self.written..).unwrap_or_default()
    }

    /// That many bytes of it were written.
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

    /// Looks at the time: asks the other side whether it is there when it has been quiet.
    ///
    /// # Errors
    /// [`SessionError::Silent`] where it does not answer: the connection is to be closed.
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
            // Where there is no room, silence will tell.
            let _no_room = self.send(&ask);
        }
        Ok(())
    }
}
