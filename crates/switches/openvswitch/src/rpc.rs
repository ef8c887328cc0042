//! JSON-RPC, as spoken by Open vSwitch's database and the control sockets of its daemons.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::endpoint::{Endpoint, Stream};
use crate::ovsdb::OvsdbError;

/// The longest accepted reply: a database of thousands of ports, or a dump of some ten thousand flows.
const ANSWER_BYTES: usize = 16 << 20;

/// A connection for sequential calls. Each blocks at most for its limit.
#[derive(Debug)]
pub(crate) struct Rpc {
    pub(crate) endpoint: Endpoint,
    pub(crate) limit: Duration,
    stream: Stream,
    received: Vec<u8>,
    next_id: u64,
}

impl Rpc {
    pub(crate) fn connect(endpoint: &Endpoint, limit: Duration) -> Result<Rpc, OvsdbError> {
        let failed = |source| OvsdbError::Socket {
            endpoint: endpoint.clone(),
            source,
        };
        let stream = Stream::connect(endpoint).map_err(failed)?;
        stream.set_limit(limit).map_err(failed)?;
        Ok(Rpc {
            endpoint: endpoint.clone(),
            limit,
            stream,
            received: Vec::new(),
            next_id: 1,
        })
    }

    /// Calls a method and returns the whole reply with its `error` or `result`.
    pub(crate) fn call(&mut self, method: &str, parameters: &[Value]) -> Result<Value, OvsdbError> {
        let id = self.next_id;
        self.next_id += 1;
        self.write(&json!({"method": method, "params": parameters, "id": id}))?;
        let since = Instant::now();
        loop {
            let message = self.read(since)?;
            // An echo request is answered with its own parameters.
            if message.get("method").and_then(Value::as_str) == Some("echo") {
                self.write(
                    &json!({"result": message.get("params"), "error": null, "id": message.get("id")}),
                )?;
            } else if message.get("id").and_then(Value::as_u64) == Some(id) {
                return Ok(message);
            }
        }
    }

    fn write(&mut self, message: &Value) -> Result<(), OvsdbError> {
        let written = self.stream.write_all(message.to_string().as_bytes());
        let written = written.and_then(|()| self.stream.flush());
        written.map_err(|error| self.failed(error))
    }

    /// The next complete message.
    fn read(&mut self, since: Instant) -> Result<Value, OvsdbError> {
        let mut buffer = [0; 16 << 10];
        if let Some(message) = self.take_message()? {
            return Ok(message);
        }
        loop {
            let late = since.elapsed() > self.limit;
            let read = match self.stream.read(&mut buffer) {
                Err(error) if late || is_late(&error) => {
                    return Err(OvsdbError::Timeout {
                        endpoint: self.endpoint.clone(),
                        what: "a reply".to_owned(),
                        limit: self.limit,
                    });
                }
                other => other.map_err(|error| self.failed(error))?,
            };
            if read == 0 {
                return Err(self.failed(io::ErrorKind::UnexpectedEof.into()));
            }
            self.received
                .extend_from_slice(buffer.get(..read).unwrap_or_default());
            if self.received.len() > ANSWER_BYTES {
                return Err(self.not_rpc(format!("a reply of more than {ANSWER_BYTES} bytes")));
            }
            // Parsed only if it may be complete, not with every part of a long reply.
            if self.received.trim_ascii_end().ends_with(b"}")
                && let Some(message) = self.take_message()?
            {
                return Ok(message);
            }
        }
    }

    fn take_message(&mut self) -> Result<Option<Value>, OvsdbError> {
        let mut values = serde_json::Deserializer::from_slice(&self.received).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                let end = values.byte_offset();
                self.received.drain(..end);
                Ok(Some(value))
            }
            Some(Err(error)) if !error.is_eof() => Err(self.not_rpc(error.to_string())),
            _ => Ok(None),
        }
    }

    pub(crate) fn not_rpc(&self, what: String) -> OvsdbError {
        OvsdbError::NotOvsdb {
            endpoint: self.endpoint.clone(),
            what,
        }
    }

    fn failed(&self, source: io::Error) -> OvsdbError {
        OvsdbError::Socket {
            endpoint: self.endpoint.clone(),
            source,
        }
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
