//! The kinds of actors that come with inco.

use actor_objects::ObjectId;
use actor_runtime::{Actor, Context, Message, Progress};

/// Makes an actor of these kinds:
///
/// | kind | answers each message with |
/// | --- | --- |
/// | `echo` | its body |
/// | `counter` | its body, and how many messages it has had so far (8 bytes, little-endian): its state |
pub fn make(kind: &str, _number: u32) -> Option<Box<dyn Actor>> {
    match kind {
        "echo" => Some(Box::new(Echo)),
        "counter" => Some(Box::new(Counter)),
        _ => None,
    }
}

struct Echo;

impl Actor for Echo {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        context.send(message.from, message.kind, std::mem::take(&mut message.body));
        Progress::Done
    }
}

/// Its state is one object: the count.
struct Counter;

impl Counter {
    /// The next count, noted.
    fn next(context: &mut Context<'_>) -> Result<u64, String> {
        let objects = context.objects().ok_or("a counter needs objects")?;
        let (id, count) = match objects.iter().next() {
            Some((id, bytes)) => (
                id,
                bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)),
            ),
            None => return Err("the counter has no object".to_owned()),
        };
        let next = count.wrapping_add(1);
        let written = objects.write(id, 0, &next.to_le_bytes());
        written.map(|()| next).map_err(|error| error.to_string())
    }
}

impl Actor for Counter {
    fn init(&mut self, context: &mut Context<'_>) {
        let made: Result<ObjectId, String> = match context.objects() {
            Some(objects) => objects.allocate(8).map_err(|error| error.to_string()),
            None => Err("a counter needs objects".to_owned()),
        };
        if let Err(reason) = made {
            context.fail(reason);
        }
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        match Counter::next(context) {
            Ok(count) => {
                let mut body = std::mem::take(&mut message.body);
                body.extend(count.to_le_bytes());
                context.send(message.from, message.kind, body);
            }
            Err(reason) => context.fail(reason),
        }
        Progress::Done
    }
}
