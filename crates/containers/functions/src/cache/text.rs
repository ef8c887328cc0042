//! Requests in memcached's text protocol, as they are read.

/// Bytes of a key, at most.
pub(super) const KEY_BYTES_LIMIT: usize = 250;

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    /// Only over the version with that number.
    Cas(u64),
}

/// A request. `quiet`: it wants no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request<'d> {
    /// Values of keys, with their numbers or without.
    Get {
        keys: &'d [u8],
        has_unique: bool,
    },
    Store {
        how: Store,
        key: &'d [u8],
        flags: u32,
        time: i32,
        value: &'d [u8],
        quiet: bool,
    },
    Delete {
        key: &'d [u8],
        quiet: bool,
    },
    Add {
        key: &'d [u8],
        amount: u64,
        is_less: bool,
        quiet: bool,
    },
    Touch {
        key: &'d [u8],
        time: i32,
        quiet: bool,
    },
    FlushAll {
        time: i32,
        quiet: bool,
    },
    Version,
    Stats,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) says: &'static [u8],
    pub(super) quiet: bool,
}

const ERROR: &[u8] = b"ERROR\r\n";
const FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const DELETE: &[u8] = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const TIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const DATA: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";

/// The words of a line.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// Words that a request has, at most: `cas` with `noreply`. More are only those of `get`.
const WORDS_LIMIT: usize = 7;

/// Reads the request at the start of a datagram. What follows it is not looked at.
pub(super) fn read(datagram: &[u8]) -> Result<Request<'_>, Wrong> {
    let wrong = |says| Wrong { says, quiet: false };
    let end = memchr::memchr(b'\n', datagram).ok_or(wrong(ERROR))?;
    let (line, data) = (&datagram[..end], &datagram[end + 1..]);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut all: [&[u8]; WORDS_LIMIT] = [&[]; WORDS_LIMIT];
    let mut count = 0;
    for (place, word) in all.iter_mut().zip(words(line)) {
        *place = word;
        count += 1;
    }
    if words(line).nth(WORDS_LIMIT).is_some() {
        // One more than there may be.
        count += 1;
    }
    let arguments = all.get(1..count.min(WORDS_LIMIT)).unwrap_or_default();
    let how = match all[0] {
        b"get" | b"gets" => {
            let has_unique = all[0] == b"gets";
            let keys = line.get(all[0].len()..).unwrap_or_default();
            // Before the command there can be spaces, too.
            let start = line.iter().position(|byte| *byte != b' ').unwrap_or(0);
            let keys = keys.get(start..).unwrap_or_default();
            if count < 2 {
                return Err(wrong(ERROR));
            }
            if words(keys).any(|key| key.len() > KEY_BYTES_LIMIT) {
                return Err(wrong(FORMAT));
            }
            return Ok(Request::Get { keys, has_unique });
        }
        b"set" => Store::Set,
        b"add" => Store::Add,
        b"replace" => Store::Replace,
        b"append" => Store::Append,
        b"prepend" => Store::Prepend,
        b"cas" => Store::Cas(0),
        _ if count > WORDS_LIMIT => return Err(wrong(ERROR)),
        name => return read_short(name, arguments),
    };
    read_store(how, &all, count, data)
}

/// Reads a request that stores the value behind its line.
fn read_store<'d>(
    how: Store,
    all: &[&'d [u8]; WORDS_LIMIT],
    count: usize,
    data: &'d [u8],
) -> Result<Request<'d>, Wrong> {
    let fixed = if matches!(how, Store::Cas(_)) { 6 } else { 5 };
    if count != fixed && count != fixed + 1 {
        return Err(Wrong {
            says: ERROR,
            quiet: false,
        });
    }
    let quiet = all[count - 1] == b"noreply";
    let wrong = |says| Wrong { says, quiet };
    let numbers = || {
        let flags = u32::try_from(unsigned(all[2])?).ok()?;
        let len = usize::try_from(signed(all[4])?).ok()?;
        let how = match how {
            Store::Cas(_) => Store::Cas(unsigned(all[5])?),
            other => other,
        };
        Some((how, flags, signed(all[3])?, len))
    };
    let key = all[1];
    let Some((how, flags, time, len)) = numbers().filter(|_| key.len() <= KEY_BYTES_LIMIT) else {
        return Err(wrong(FORMAT));
    };
    let Some(value) = data.get(..len).filter(|_| data[len..].starts_with(b"\r\n")) else {
        return Err(wrong(DATA));
    };
    Ok(Request::Store {
        how,
        key,
        flags,
        time,
        value,
        quiet,
    })
}

/// Reads a request of one line.
fn read_short<'d>(name: &[u8], arguments: &[&'d [u8]]) -> Result<Request<'d>, Wrong> {
    let quiet = arguments.last() == Some(&&b"noreply"[..]);
    let error = Wrong {
        says: ERROR,
        quiet: false,
    };
    let wrong = |says| Wrong { says, quiet };
    let named = |key: &'d [u8]| (key.len() <= KEY_BYTES_LIMIT).then_some(key).ok_or(wrong(FORMAT));
    match (name, arguments) {
        (b"delete", [key, rest @ ..]) if rest.len() < 3 => {
            let key = named(key)?;
            match rest {
                [] | [b"0"] | [b"noreply"] | [b"0", b"noreply"] => Ok(Request::Delete { key, quiet }),
                _ => Err(wrong(DELETE)),
            }
        }
        (b"incr" | b"decr", [key, amount] | [key, amount, _]) => Ok(Request::Add {
            key: named(key)?,
            amount: unsigned(amount).ok_or(wrong(DELTA))?,
            is_less: name == b"decr",
            quiet,
        }),
        (b"touch", [key, time] | [key, time, _]) => Ok(Request::Touch {
            key: named(key)?,
            time: signed(time).ok_or(wrong(TIME))?,
            quiet,
        }),
        (b"flush_all", [] | [b"noreply"]) => Ok(Request::FlushAll { time: 0, quiet }),
        (b"flush_all", [time] | [time, _]) => Ok(Request::FlushAll {
            time: signed(time).ok_or(wrong(TIME))?,
            quiet,
        }),
        (b"version", _) => Ok(Request::Version),
        (b"stats", []) => Ok(Request::Stats),
        _ => Err(error),
    }
}

/// A number that fills a word.
pub(super) fn unsigned(word: &[u8]) -> Option<u64> {
    if word.is_empty() {
        return None;
    }
    word.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then_some(())?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

fn signed(word: &[u8]) -> Option<i32> {
    let (is_negative, digits) = match word {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let number = i64::try_from(unsigned(digits)?).ok()?;
    i32::try_from(if is_negative { -number } else { number }).ok()
}
