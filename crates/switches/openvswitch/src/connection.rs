//! OpenFlow connections over sockets.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use openflow::{Event, Features, Limits, Message, Session, SessionError, Side};
use thiserror::Error;

use crate::endpoint::{Endpoint, Stream};

/// Bytes per read.
const READ_BYTES: usize = 64 << 10;
/// Reads per turn: a switch that never stops sending must not block its controller.
const READS_PER_TURN: usize = 16;

/// Why a connection ended.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The socket failed, or the endpoint does not listen.
    #[error("{endpoint}: {source}")]
    Socket {
        /// The endpoint.
        endpoint: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// The peer closed the connection.
    #[error("{endpoint}: the switch has closed the connection")]
    Closed {
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// The peer does not speak OpenFlow, or was silent for too long.
    #[error("{endpoint}: {error}")]
    Session {
        /// The endpoint.
        endpoint: Endpoint,
        /// The error.
        error: SessionError,
    },
}

/// A non-blocking connection to one bridge.
#[derive(Debug)]
pub struct Connection {
    endpoint: Endpoint,
    stream: Stream,
    session: Session,
    buffer: Box<[u8]>,
}

impl Connection {
    /// Connects: to a unix socket without blocking, to a TCP port within two seconds per address.
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

    /// Queues a message for the next turn and returns its transaction id.
    ///
    /// # Errors
    /// As [`Session::send`].
    pub fn send(&mut self, message: &Message) -> Result<u32, SessionError> {
        self.session.send(message)
    }

    /// Bytes of pending output.
    pub fn waiting_bytes(&self) -> usize {
        self.session.output().len()
    }

    /// Writes and reads without blocking, and appends received events to `events`.
    ///
    /// # Errors
    /// Why the connection ended. Earlier events are in `events`.
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

/// A result of a [`Reconnecting`]'s turn.
#[derive(Debug)]
pub enum Turned {
    /// The version is negotiated and the switch's features are known: rules can be written. Messages sent on
    /// an earlier connection may or may not have taken effect.
    Up(Features),
    /// An event from the switch.
    Said(Event),
    /// The connection ended or could not be established; it is retried.
    Down(ConnectionError),
}

/// A connection that is re-established whenever it ends, with a growing backoff.
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

/// The initial and the maximum backoff, in nanoseconds: a restarted switch is found within it.
const PAUSE_NS: u64 = 10_000_000;
const LONGEST_PAUSE_NS: u64 = 500_000_000;

impl Reconnecting {
    /// Connects to that endpoint in the first turn.
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

    /// One step; results are appended to `turned`.
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
