//! OpenFlow over a socket.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use openflow::{Event, Features, Limits, Message, Session, SessionError, Side};
use thiserror::Error;

use crate::endpoint::{Endpoint, Stream};

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Reads of one turn at most: a switch that never stops talking must not stop its listener.
const READS_PER_TURN: usize = 16;

/// Why a connection ended.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The socket failed, or nobody listens.
    #[error("{endpoint}: {source}")]
    Socket {
        /// Where to.
        endpoint: Endpoint,
        /// The system's word.
        source: io::Error,
    },
    /// The other side has closed it.
    #[error("{endpoint}: the switch has closed the connection")]
    Closed {
        /// Where to.
        endpoint: Endpoint,
    },
    /// What was said is not OpenFlow, or nothing was said for too long.
    #[error("{endpoint}: {error}")]
    Session {
        /// Where to.
        endpoint: Endpoint,
        /// Why.
        error: SessionError,
    },
}

/// A connection to one bridge that never blocks.
#[derive(Debug)]
pub struct Connection {
    endpoint: Endpoint,
    stream: Stream,
    session: Session,
    buffer: Box<[u8]>,
}

impl Connection {
    /// Connects. To a unix socket this does not wait, to a TCP port for at most two seconds per address.
    ///
    /// # Errors
    /// [`ConnectionError::Socket`].
    pub fn connect(endpoint: &Endpoint, limits: Limits, now_ns: u64) -> Result<Connection, ConnectionError> {
        let failed = |source| ConnectionError::Socket {
            endpoint: endpoint.clone(),
            source,
        };
        let stream = Stream::connect(endpoint).map_err(failed)?;
        stream.set_nonblocking().map_err(failed)?;
        Ok(Connection {
            endpoint: endpoint.clone(),
            stream,
            session: Session::new(Side::Controller, limits, now_ns),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
        })
    }

    /// Sends a message with the next turn, and gives its transaction id.
    ///
    /// # Errors
    /// As [`Session::send`].
    pub fn send(&mut self, message: &Message) -> Result<u32, SessionError> {
        self.session.send(message)
    }

    /// Bytes that wait to be written.
    pub fn waiting_bytes(&self) -> usize {
        self.session.output().len()
    }

    /// Writes what fits, reads what is there, and adds what was said to `events`.
    ///
    /// # Errors
    /// Why it has ended. What was said before is in `events`.
    pub fn turn(&mut self, now_ns: u64, events: &mut Vec<Event>) -> Result<(), ConnectionError> {
        self.write()?;
        for _ in 0..READS_PER_TURN {
            let read = match self.stream.read(&mut self.buffer) {
                Ok(0) => {
                    return Err(ConnectionError::Closed {
                        endpoint: self.endpoint.clone(),
                    });
                }
                Ok(read) => read,
                Err(error) if is_nothing_now(&error) => break,
                Err(error) => return Err(self.failed(error)),
            };
            self.session
                .receive(self.buffer.get(..read).unwrap_or_default(), now_ns);
            while let Some(event) = self.session.next_event().map_err(|error| self.ended(error))? {
                events.push(event);
            }
        }
        self.session.tick(now_ns).map_err(|error| self.ended(error))?;
        self.write()
    }

    fn write(&mut self) -> Result<(), ConnectionError> {
        while !self.session.output().is_empty() {
            match self.stream.write(self.session.output()) {
                Ok(written) => self.session.written(written),
                Err(error) if is_nothing_now(&error) => return Ok(()),
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> ConnectionError {
        ConnectionError::Socket {
            endpoint: self.endpoint.clone(),
            source,
        }
    }

    fn ended(&self, error: SessionError) -> ConnectionError {
        ConnectionError::Session {
            endpoint: self.endpoint.clone(),
            error,
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn is_nothing_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// What a turn of a [`Reconnecting`] came to.
#[derive(Debug)]
pub enum Turned {
    /// Versions are agreed on and the switch has said who it is: rules can be written. What was written on an earlier
    /// connection may or may not be there.
    Up(Features),
    /// What the switch said.
    Said(Event),
    /// The connection has ended, or could not be made; another try follows.
    Down(ConnectionError),
}

/// A connection that is made anew whenever it ends, after a pause that grows.
#[derive(Debug)]
pub struct Reconnecting {
    endpoint: Endpoint,
    limits: Limits,
    connection: Option<Connection>,
    is_up: bool,
    again_ns: u64,
    pause_ns: u64,
    said: Vec<Event>,
}

/// The pause after the first failure, and the longest, in nanoseconds: a switch that is back is found within it.
const PAUSE_NS: u64 = 10_000_000;
const LONGEST_PAUSE_NS: u64 = 500_000_000;

impl Reconnecting {
    /// To that endpoint, with the first turn.
    pub fn new(endpoint: Endpoint, limits: Limits) -> Reconnecting {
        Reconnecting {
            endpoint,
            limits,
            connection: None,
            is_up: false,
            again_ns: 0,
            pause_ns: PAUSE_NS,
            said: Vec::new(),
        }
    }

    /// Whether messages can be sent.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// The connection, while it is up.
    pub fn connection(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut().filter(|_| self.is_up)
    }

    /// One step; what happened is added to `turned`.
    pub fn turn(&mut self, now_ns: u64, turned: &mut Vec<Turned>) {
        if self.connection.is_none() && now_ns >= self.again_ns {
            match Connection::connect(&self.endpoint, self.limits, now_ns) {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => self.end(error, now_ns, turned),
            }
        }
        let Some(connection) = &mut self.connection else {
            return;
        };
        let ended = connection.turn(now_ns, &mut self.said).err();
        for event in self.said.drain(..) {
            match event {
                Event::Agreed(_) => {}
                Event::Message {
                    message: Message::FeaturesReply(features),
                    ..
                } if !self.is_up => {
                    self.is_up = true;
                    self.pause_ns = PAUSE_NS;
                    turned.push(Turned::Up(features));
                }
                event => turned.push(Turned::Said(event)),
            }
        }
        if let Some(error) = ended {
            self.end(error, now_ns, turned);
        }
    }

    fn end(&mut self, error: ConnectionError, now_ns: u64, turned: &mut Vec<Turned>) {
        self.connection = None;
        self.is_up = false;
        self.again_ns = now_ns + self.pause_ns;
        self.pause_ns = (self.pause_ns * 2).min(LONGEST_PAUSE_NS);
        turned.push(Turned::Down(error));
    }
}
