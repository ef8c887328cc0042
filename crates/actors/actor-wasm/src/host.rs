//! What a module may call.

use actor_runtime::{Address, Context};
use actor_scheduling::ActorId;
use cipher::{KeyIvInit as _, StreamCipher as _};
use sha1::{Digest as _, Sha1};
use wasmtime::{Caller, Error, Linker, Memory, Result};

/// What belongs to an instance, and what it does in a message.
#[derive(Debug, Default)]
pub(crate) struct Host {
    pub(crate) memory: Option<Memory>,
    pub(crate) me: u32,
    pub(crate) now: u64,
    /// Messages that leave when this one has ended.
    pub(crate) sent: Vec<(Address, u32, Vec<u8>)>,
    /// Why the actor wants to be stopped.
    pub(crate) failure: Option<String>,
}

impl Host {
    /// Sends what the message that has ended has sent.
    pub(crate) fn send_all(&mut self, context: &mut Context<'_>) {
        for (to, kind, body) in self.sent.drain(..) {
            context.send(to, kind, body);
        }
    }
}

/// An actor's address of the two numbers by which modules know it.
fn address(outside: i32, number: i64) -> Address {
    match outside {
        0 => Address::Actor(ActorId(number as u32)),
        _ => Address::Outside(number as u64),
    }
}

/// Adds all functions of the module `inco`.
pub(crate) fn add(linker: &mut Linker<Host>) -> Result<()> {
    linker.func_wrap("inco", "me", |caller: Caller<'_, Host>| caller.data().me as i32)?;
    linker.func_wrap("inco", "now", |caller: Caller<'_, Host>| caller.data().now as i64)?;
    linker.func_wrap(
        "inco",
        "send",
        |mut caller: Caller<'_, Host>, outside: i32, to: i64, kind: i32, at: i32, bytes: i32| {
            let (memory, host) = parts(&mut caller)?;
            let body = part(memory, at, bytes)?;
            if body.len() > actor_runtime::BODY_BYTES_LIMIT {
                return Err(Error::msg("send: a body of more than 64 KiB"));
            }
            if host.sent.len() == SENT_LIMIT {
                return Err(Error::msg("send: more than 4,096 messages for one"));
            }
            let body = body.to_vec();
            host.sent.push((address(outside, to), kind as u32, body));
            Ok(())
        },
    )?;
    linker.func_wrap(
        "inco",
        "fail",
        |mut caller: Caller<'_, Host>, at: i32, bytes: i32| {
            let (memory, host) = parts(&mut caller)?;
            let reason = part(memory, at, bytes.min(REASON_LIMIT))?;
            host.failure = Some(String::from_utf8_lossy(reason).into_owned());
            Ok(())
        },
    )?;
    linker.func_wrap(
        "inco",
        "crc32",
        |mut caller: Caller<'_, Host>, at: i32, bytes: i32| {
            let (memory, _) = parts(&mut caller)?;
            Ok(crc32fast::hash(part(memory, at, bytes)?) as i32)
        },
    )?;
    linker.func_wrap(
        "inco",
        "sha1",
        |mut caller: Caller<'_, Host>, at: i32, bytes: i32, to: i32| {
            let (memory, _) = parts(&mut caller)?;
            let digest = Sha1::digest(part(memory, at, bytes)?);
            part_mut(memory, to, 20)?.copy_from_slice(&digest);
            Ok(())
        },
    )?;
    linker.func_wrap(
        "inco",
        "aes256_ctr",
        |mut caller: Caller<'_, Host>, key: i32, counter: i32, at: i32, bytes: i32| {
            let (memory, _) = parts(&mut caller)?;
            let mut stream = ctr::Ctr128BE::<aes::Aes256>::new_from_slices(
                part(memory, key, 32)?,
                part(memory, counter, 16)?,
            )
            .map_err(|error| Error::msg(error.to_string()))?;
            stream.apply_keystream(part_mut(memory, at, bytes)?);
            Ok(())
        },
    )?;
    linker.func_wrap(
        "inco",
        "find",
        |mut caller: Caller<'_, Host>, at: i32, bytes: i32, pattern: i32, pattern_bytes: i32| {
            let (memory, _) = parts(&mut caller)?;
            let pattern = part(memory, pattern, pattern_bytes)?;
            let found = memchr::memmem::find(part(memory, at, bytes)?, pattern);
            Ok(found.map_or(-1, |place| place as i32))
        },
    )?;
    Ok(())
}

/// Messages that one message may send: a loop that sends would otherwise take the machine's memory before its time is over.
const SENT_LIMIT: usize = 4_096;
/// Bytes of a reason.
const REASON_LIMIT: i32 = 256;

fn parts<'a>(caller: &'a mut Caller<'_, Host>) -> Result<(&'a mut [u8], &'a mut Host)> {
    let memory = caller.data().memory;
    let memory = memory.ok_or_else(|| Error::msg("the memory is not there yet"))?;
    Ok(memory.data_and_store_mut(caller))
}

fn range(at: i32, bytes: i32) -> Option<std::ops::Range<usize>> {
    let begin = at as u32 as usize;
    Some(begin..begin.checked_add(bytes as u32 as usize)?)
}

fn part(memory: &[u8], at: i32, bytes: i32) -> Result<&[u8]> {
    let part = range(at, bytes).and_then(|range| memory.get(range));
    part.ok_or_else(|| Error::msg("a call named bytes outside of the memory"))
}

fn part_mut(memory: &mut [u8], at: i32, bytes: i32) -> Result<&mut [u8]> {
    let part = range(at, bytes).and_then(|range| memory.get_mut(range));
    part.ok_or_else(|| Error::msg("a call named bytes outside of the memory"))
}
