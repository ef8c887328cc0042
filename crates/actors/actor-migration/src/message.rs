//! What the two sides say to each other, in order, and its bytes.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 | kind |
//! | 1..4 | 0 |
//! | 4..8 | the actor |
//! | 8..12 | the attempt to move it; 0 in a request |
//! | 12.. | of a request, or of a part of the objects: its bytes |

/// A message about an actor. `R`: a request to the actor. `attempt`: the number of the attempt to move it, so that a message
/// about an earlier one is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message<R> {
    /// A request for the side where the actor is.
    Request(R),
    /// The source wants to move the actor.
    Prepare(u32),
    /// The target can take it. All that it forwarded came before.
    Prepared(u32),
    /// The target cannot.
    Refused(u32),
    /// The source has sent all objects.
    ObjectsEnd(u32),
    /// The target has all objects.
    Complete(u32),
    /// The target could not take the objects.
    Failed(u32),
    /// The source will not run the actor again: the target starts it.
    Start(u32),
    /// The target has started it.
    Started(u32),
    /// A request that the source held.
    Forward(u32, R),
    /// The source has forwarded all that it held.
    ForwardEnd(u32),
    /// The target has them all.
    Cleaned(u32),
    /// The source goes on with the actor.
    Abort(u32),
    /// A part of the stream of objects.
    Objects(u32, R),
}

/// Bytes before those of a request.
pub const HEAD_BYTES: usize = 12;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Shorter than a head.
    #[error("{0} bytes; a message has at least {HEAD_BYTES}")]
    Short(usize),
    /// No message has this kind, or bytes that must be 0 are not.
    #[error("no message of kind {0}")]
    Kind(u32),
    /// Bytes where there must be none.
    #[error("{bytes} bytes behind a message of kind {kind}")]
    Long {
        /// The kind.
        kind: u32,
        /// Bytes too many.
        bytes: usize,
    },
}

impl<R> Message<R> {
    /// Kind and attempt.
    fn head(&self) -> (u32, u32) {
        match self {
            Message::Request(_) => (1, 0),
            Message::Prepare(attempt) => (2, *attempt),
            Message::Prepared(attempt) => (3, *attempt),
            Message::Refused(attempt) => (4, *attempt),
            Message::ObjectsEnd(attempt) => (5, *attempt),
            Message::Complete(attempt) => (6, *attempt),
            Message::Failed(attempt) => (7, *attempt),
            Message::Start(attempt) => (8, *attempt),
            Message::Started(attempt) => (9, *attempt),
            Message::Forward(attempt, _) => (10, *attempt),
            Message::ForwardEnd(attempt) => (11, *attempt),
            Message::Cleaned(attempt) => (12, *attempt),
            Message::Abort(attempt) => (13, *attempt),
            Message::Objects(attempt, _) => (14, *attempt),
        }
    }
}

/// The head of a message about an actor. A request's bytes follow it.
pub fn encode<R>(actor: u32, message: &Message<R>) -> [u8; HEAD_BYTES] {
    let (kind, attempt) = message.head();
    let mut bytes = [0; HEAD_BYTES];
    for (into, number) in bytes.chunks_exact_mut(4).zip([kind, actor, attempt]) {
        into.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// The actor and the message that bytes say.
///
/// # Errors
/// [`WireError`].
pub fn decode(bytes: &[u8]) -> Result<(u32, Message<&[u8]>), WireError> {
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else {
        return Err(WireError::Short(bytes.len()));
    };
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (kind, actor, attempt) = (number(0), number(4), number(8));
    let message = match kind {
        1 => Message::Request(rest),
        2 => Message::Prepare(attempt),
        3 => Message::Prepared(attempt),
        4 => Message::Refused(attempt),
        5 => Message::ObjectsEnd(attempt),
        6 => Message::Complete(attempt),
        7 => Message::Failed(attempt),
        8 => Message::Start(attempt),
        9 => Message::Started(attempt),
        10 => Message::Forward(attempt, rest),
        11 => Message::ForwardEnd(attempt),
        12 => Message::Cleaned(attempt),
        13 => Message::Abort(attempt),
        14 => Message::Objects(attempt, rest),
        _ => return Err(WireError::Kind(kind)),
    };
    let has_bytes = matches!(
        message,
        Message::Request(_) | Message::Forward(..) | Message::Objects(..)
    );
    if !has_bytes && !rest.is_empty() {
        return Err(WireError::Long {
            kind,
            bytes: rest.len(),
        });
    }
    Ok((actor, message))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_decoded_is_what_was_encoded(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..40),
            kind in 0..17_u8,
        ) {
            if let Some(head) = bytes.first_chunk_mut::<4>() {
                *head = [kind, 0, 0, 0];
            }
            match decode(&bytes) {
                Ok((actor, message)) => {
                    let head = encode(actor, &message);
                    // The attempt of a request has no meaning.
                    let meaning = if kind == 1 { 8 } else { HEAD_BYTES };
                    prop_assert_eq!(&head[..meaning], &bytes[..meaning]);
                }
                Err(WireError::Short(length)) => prop_assert!(length == bytes.len() && length < HEAD_BYTES),
                Err(WireError::Kind(of)) => prop_assert!(of == 0 || of > 14),
                Err(WireError::Long { bytes: more, .. }) => prop_assert_eq!(more + HEAD_BYTES, bytes.len()),
            }
        }
    }
}
