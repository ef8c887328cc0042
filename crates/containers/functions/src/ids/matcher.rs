//! Which rules a payload may match, and whether it does.
//!
//! 1. All payloads are searched for the fast patterns of all rules at once, whatever the case: `windows.rs`; those of
//!    less than four bytes by the automaton of Aho and Corasick ("Efficient string matching: an aid to bibliographic
//!    search", 1975; the crate `aho-corasick`).
//! 2. The parts of a rule whose fast pattern was found are searched one after the other; where a later part does not
//!    fit, an earlier one is tried at its next place.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use memchr::memmem;

use super::rule::{Content, Part, Rule};
use super::windows::Windows;

/// Places of parts of a rule that are tried in one payload, at most: a bound on the work that a hostile payload
/// makes.
pub const PLACES_LIMIT: u32 = 2_000;
/// The fast patterns of all rules.
#[derive(Debug)]
pub(super) struct Prefilter {
    /// Those of at least eight bytes.
    long: Windows<2>,
    /// Those of at least four.
    middle: Windows<1>,
    /// Shorter ones, and the rule of each.
    short: Option<AhoCorasick>,
    short_rules: Vec<u32>,
    /// Rules without a pattern: they are compared with every payload.
    pub(super) others: Vec<u32>,
    /// Bytes of the longest pattern.
    pub(super) longest: usize,
}

impl Prefilter {
    /// The patterns of rules, by index. The error is the library's.
    pub(super) fn new<'r>(
        rules: impl Iterator<Item = (u32, &'r Rule)>,
    ) -> Result<Prefilter, aho_corasick::BuildError> {
        let (mut patterns, mut others) = (Vec::new(), Vec::new());
        for (at, rule) in rules {
            match rule.fast_pattern() {
                Some(content) => patterns.push((content.bytes.as_slice(), at)),
                None => others.push(at),
            }
        }
        let longest = patterns
            .iter()
            .map(|(pattern, _)| pattern.len())
            .max()
            .unwrap_or(0);
        let has = |bytes: usize| move |(pattern, _): &(&[u8], u32)| pattern.len() >= bytes;
        let (long, shorter): (Vec<_>, Vec<_>) = patterns.into_iter().partition(has(Windows::<2>::SPAN));
        let (middle, short): (Vec<_>, Vec<_>) = shorter.into_iter().partition(has(Windows::<1>::SPAN));
        let (short, short_rules): (Vec<_>, Vec<_>) = short.into_iter().unzip();
        let short = (!short.is_empty())
            .then(|| {
                AhoCorasick::builder()
                    .ascii_case_insensitive(true)
                    .match_kind(MatchKind::Standard)
                    .kind(Some(AhoCorasickKind::DFA))
                    .build(&short)
            })
            .transpose()?;
        Ok(Prefilter {
            long: Windows::new(long),
            middle: Windows::new(middle),
            short,
            short_rules,
            others,
            longest,
        })
    }

    /// Calls `found` with each rule whose pattern is in the payload, as often as it is.
    #[inline]
    pub(super) fn search(&self, payload: &[u8], mut found: impl FnMut(u32)) {
        self.long.search(payload, &mut found);
        self.middle.search(payload, &mut found);
        let Some(automaton) = &self.short else { return };
        for hit in automaton.find_overlapping_iter(payload) {
            if let Some(rule) = self.short_rules.get(hit.pattern().as_usize()) {
                found(*rule);
            }
        }
    }
}

/// A piece of a payload or of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer<'b> {
    pub(super) bytes: &'b [u8],
    /// How many bytes of the stream lie before it.
    pub(super) base: u64,
    /// Bytes of it that were searched before: a match must end behind them.
    pub(super) seen: usize,
}

impl<'b> Buffer<'b> {
    /// A payload that is searched as a whole.
    pub(super) fn whole(bytes: &'b [u8]) -> Buffer<'b> {
        Buffer {
            bytes,
            base: 0,
            seen: 0,
        }
    }
}

/// Whether a payload matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Yes,
    No,
    /// It was not found in [`PLACES_LIMIT`] places.
    Unknown,
}

/// Whether all parts are where they must be.
pub(super) fn matches(parts: &[Part], buffer: Buffer<'_>) -> Found {
    let has_positive = parts.iter().any(|part| match part {
        Part::Content(of) => !of.is_negated,
        Part::Pcre(of) => !of.is_negated,
    });
    let mut search = Search {
        buffer,
        places: PLACES_LIMIT,
        needs_fresh: has_positive && buffer.seen > 0,
    };
    match search.from(parts, 0, 0) {
        true => Found::Yes,
        false if search.places == 0 => Found::Unknown,
        false => Found::No,
    }
}

struct Search<'b> {
    buffer: Buffer<'b>,
    places: u32,
    needs_fresh: bool,
}

impl Search<'_> {
    /// Whether the parts fit behind a part that ends at `cursor`; `last` is the end of the last part so far.
    fn from(&mut self, parts: &[Part], cursor: usize, last: usize) -> bool {
        let Some((part, rest)) = parts.split_first() else {
            return !self.needs_fresh || last > self.buffer.seen;
        };
        match part {
            Part::Content(content) => {
                let Some((mut at, end)) = range(content, &self.buffer, cursor) else {
                    return content.is_negated && self.from(rest, cursor, last);
                };
                if content.is_negated {
                    return find(content, self.buffer.bytes, at, end).is_none()
                        && self.from(rest, cursor, last);
                }
                let is_bound = is_bound(rest);
                let mut place = None;
                while let Some(found) = find(content, self.buffer.bytes, at, end) {
                    if !self.step() {
                        return false;
                    }
                    let after = found + content.bytes.len();
                    if is_bound && self.from(rest, after, last.max(after)) {
                        return true;
                    }
                    place = Some(after);
                    if !is_bound && !self.needs_fresh {
                        break;
                    }
                    at = found + 1;
                }
                !is_bound && place.is_some_and(|after| self.from(rest, after, last.max(after)))
            }
            Part::Pcre(pcre) => {
                let mut at = if pcre.is_relative { cursor } else { 0 };
                let bytes = self.buffer.bytes;
                if pcre.is_negated {
                    let is_there = bytes.get(at..).is_some_and(|rest| pcre.regex.is_match(rest));
                    return !is_there && self.from(rest, cursor, last);
                }
                let is_bound = is_bound(rest);
                let mut place = None;
                while let Some(found) = bytes.get(at..).and_then(|rest| pcre.regex.find(rest)) {
                    if !self.step() {
                        return false;
                    }
                    let after = at + found.end();
                    if is_bound && self.from(rest, after, last.max(after)) {
                        return true;
                    }
                    place = Some(after);
                    if !is_bound && !self.needs_fresh {
                        break;
                    }
                    at += found.start() + 1;
                }
                !is_bound && place.is_some_and(|after| self.from(rest, after, last.max(after)))
            }
        }
    }

    fn step(&mut self) -> bool {
        self.places = self.places.saturating_sub(1);
        self.places > 0
    }
}

/// Whether it matters to these parts where the part before them ends. If not, any place of that one will do, and the
/// last is the freshest.
fn is_bound(parts: &[Part]) -> bool {
    for part in parts {
        let (is_relative, is_negated) = match part {
            Part::Content(of) => (of.is_relative(), of.is_negated),
            Part::Pcre(of) => (of.is_relative, of.is_negated),
        };
        if is_relative || !is_negated {
            return is_relative;
        }
    }
    false
}

/// Where a content may lie in the buffer: from a first byte to before an end. [`None`] if nowhere.
fn range(content: &Content, buffer: &Buffer<'_>, cursor: usize) -> Option<(usize, usize)> {
    let len = buffer.bytes.len();
    let (start, most) = if content.is_relative() {
        let start = cursor as i64 + content.distance.unwrap_or(0);
        // What lies before the buffer is gone.
        let most = content.within.map(|within| start.saturating_add(within as i64));
        (start.max(0), most)
    } else {
        let base = buffer.base as i64;
        let start = content.offset.unwrap_or(0) as i64;
        let most = content
            .depth
            .map(|depth| start.saturating_add(depth as i64).saturating_sub(base));
        ((start - base).max(0), most)
    };
    let end = most.map_or(len, |most| usize::try_from(most).unwrap_or(0).min(len));
    let mut start = usize::try_from(start).ok()?;
    if content.at_end {
        if end < len {
            return None;
        }
        start = start.max(len.checked_sub(content.bytes.len())?);
    }
    (start + content.bytes.len() <= end).then_some((start, end))
}

/// The first place of a content from `at` to before `end`.
fn find(content: &Content, bytes: &[u8], at: usize, end: usize) -> Option<usize> {
    let bytes = bytes.get(at..end)?;
    if !content.any_case {
        return memmem::find(bytes, &content.bytes).map(|found| at + found);
    }
    let (first, _) = content.bytes.split_first()?;
    let last = bytes.len().checked_sub(content.bytes.len())?;
    let mut from = 0;
    loop {
        let rest = bytes.get(from..=last)?;
        let found = from + memchr::memchr2(*first, first.to_ascii_uppercase(), rest)?;
        let candidate = bytes.get(found..found + content.bytes.len())?;
        if candidate.eq_ignore_ascii_case(&content.bytes) {
            return Some(at + found);
        }
        from = found + 1;
    }
}
