//! Requests of clients, answers, and the commands of the log.

use crate::codec::{Reader, Write as _};
use crate::store::{KEY_BYTES, VALUE_BYTES};

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The value of a key.
    Get,
    /// A key has this value from now on.
    Put(Vec<u8>),
    /// A key has no value from now on.
    Delete,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client: a number that it has drawn at random once, the same for all replicas.
    pub client: u64,
    /// Greater than that of the client's last request.
    pub id: u64,
    /// The key.
    pub key: Vec<u8>,
    /// What is to be done.
    pub operation: Operation,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The key has the new value, or none.
    Written,
    /// The value of the key.
    Found(Vec<u8>),
    /// The key has no value.
    NotFound,
    /// The replica with this index may be the leader.
    NotLeader(Option<u8>),
    /// As many commands are under way as may.
    Busy,
    /// The request has another form, or there are too many clients.
    Refused,
}

impl Request {
    /// The body of the message. [`None`] if key or value are longer than their limits, or the key is empty.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        body.put_u64(self.client).put_u64(self.id);
        let (code, value) = match &self.operation {
            Operation::Get => (1, None),
            Operation::Put(value) => (2, Some(value)),
            Operation::Delete => (3, None),
        };
        if !(1..=KEY_BYTES).contains(&self.key.len()) || value.is_some_and(|value| value.len() > VALUE_BYTES)
        {
            return None;
        }
        body.put_u8(code).put_short(&self.key);
        if let Some(value) = value {
            body.put_long(value);
        }
        Some(body)
    }

    /// What a body says; [`None`] for another form.
    pub fn decode(body: &[u8]) -> Option<Request> {
        let mut reader = Reader(body);
        let (client, id) = (reader.u64()?, reader.u64()?);
        let (code, key) = (reader.u8()?, reader.short()?);
        let operation = match code {
            1 => Operation::Get,
            2 => Operation::Put(reader.long().filter(|value| value.len() <= VALUE_BYTES)?.to_vec()),
            3 => Operation::Delete,
            _ => return None,
        };
        let is_key = (1..=KEY_BYTES).contains(&key.len());
        let request = Request {
            client,
            id,
            key: key.to_vec(),
            operation,
        };
        is_key.then_some(reader.end(request)).flatten()
    }
}

impl Answer {
    /// The body of the message.
    pub fn encode(&self, id: u64) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u64(id);
        match self {
            Answer::Written => body.put_u8(0),
            Answer::Found(value) => body.put_u8(1).put_long(value),
            Answer::NotFound => body.put_u8(2),
            Answer::NotLeader(leader) => body.put_u8(3).put_u8(leader.unwrap_or(u8::MAX)),
            Answer::Busy => body.put_u8(4),
            Answer::Refused => body.put_u8(5),
        };
        body
    }

    /// The id and what is said of it; [`None`] for another form.
    pub fn decode(body: &[u8]) -> Option<(u64, Answer)> {
        let mut reader = Reader(body);
        let (id, status) = (reader.u64()?, reader.u8()?);
        let answer = match status {
            0 => Answer::Written,
            1 => Answer::Found(reader.long()?.to_vec()),
            2 => Answer::NotFound,
            3 => Answer::NotLeader(Some(reader.u8()?).filter(|leader| *leader != u8::MAX)),
            4 => Answer::Busy,
            5 => Answer::Refused,
            _ => return None,
        };
        reader.end((id, answer))
    }
}

/// A command of the log: a request, and the address outside where it came from. Without one it fills a gap and changes
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command(pub(crate) Option<(u64, Request)>);

impl Command {
    /// The command of a request, whose body is read already.
    pub(crate) fn encode(from: u64, body: &[u8]) -> Vec<u8> {
        let mut command = Vec::with_capacity(8 + body.len());
        command.put_u64(from);
        command.extend(body);
        command
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Command> {
        if bytes.is_empty() {
            return Some(Command(None));
        }
        let mut reader = Reader(bytes);
        let from = reader.u64()?;
        Some(Command(Some((from, Request::decode(reader.0)?))))
    }
}

/// Bytes of a command, at most: address, client, id, operation, key and value with their lengths.
pub(crate) const COMMAND_BYTES: usize = 8 + 8 + 8 + 1 + 1 + KEY_BYTES + 2 + VALUE_BYTES;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(body in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(request) = Request::decode(&body) {
                prop_assert_eq!(request.encode().unwrap(), &body[..]);
            }
            if let Some((id, answer)) = Answer::decode(&body) {
                prop_assert_eq!(answer.encode(id), body);
            }
        }

        #[test]
        fn each_request_is_read_as_written(
            client in any::<u64>(),
            id in any::<u64>(),
            key in prop::collection::vec(any::<u8>(), 0..300),
            operation in prop_oneof![
                Just(Operation::Get),
                Just(Operation::Delete),
                prop::collection::vec(any::<u8>(), 0..1_200).prop_map(Operation::Put),
            ],
        ) {
            let request = Request { client, id, key, operation };
            if let Some(body) = request.encode() {
                prop_assert!(body.len() + 8 <= COMMAND_BYTES);
                prop_assert_eq!(Request::decode(&body), Some(request));
            }
        }
    }
}
