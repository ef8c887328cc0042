//! A bounded cache of answers as they are sent.

use super::answer::Kind;
use super::message::{ANSWER_LIMIT, HEADER, Question};

/// Places that an answer can have: one of a set.
const WAYS: usize = 4;

/// What besides the question tells answers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    /// Bytes, at most.
    limit: u16,
    has_edns: bool,
    is_dnssec: bool,
}

impl Class {
    fn of(question: &Question) -> Class {
        Class {
            limit: question.limit() as u16,
            has_edns: question.edns.is_some(),
            is_dnssec: question.edns.is_some_and(|edns| edns.is_dnssec),
        }
    }
}

/// What there is to know of an answer without a look at it.
#[derive(Clone, Copy, Debug)]
struct Tag {
    hash: u64,
    class: Class,
    /// Bytes of the answer; 0: there is none.
    len: u16,
    kind: Kind,
    /// Whether it was used since another one was searched a place for.
    is_used: bool,
}

const FREE: Tag = Tag {
    hash: 0,
    class: Class {
        limit: 0,
        has_edns: false,
        is_dnssec: false,
    },
    len: 0,
    kind: Kind::Refused,
    is_used: false,
};

/// Answers, each with the question that it repeats as its key.
#[derive(Debug)]
pub(super) struct Answers {
    tags: Box<[Tag]>,
    bytes: Box<[[u8; ANSWER_LIMIT]]>,
    sets: usize,
    held: usize,
    turn: usize,
}

impl Answers {
    /// A cache of about `limit` answers; of none for 0.
    pub(super) fn new(limit: usize) -> Answers {
        let sets = limit.div_ceil(WAYS);
        Answers {
            tags: vec![FREE; sets * WAYS].into_boxed_slice(),
            bytes: vec![[0; ANSWER_LIMIT]; sets * WAYS].into_boxed_slice(),
            sets,
            held: 0,
            turn: 0,
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.tags.len()
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    fn set(&self, hash: u64) -> usize {
        // The upper bits, so that any number of sets will do.
        ((u128::from(hash) * self.sets as u128) >> 64) as usize * WAYS
    }

    /// The answer to a question in lower case. `hash` is one of its name and type.
    pub(super) fn get(&mut self, hash: u64, question: &Question) -> Option<(&[u8], Kind)> {
        let class = Class::of(question);
        let first = self.set(hash);
        for at in first..first + WAYS {
            let (tag, bytes) = self.tags.get_mut(at).zip(self.bytes.get(at))?;
            if tag.hash != hash || tag.class != class || tag.len == 0 {
                continue;
            }
            let answer = bytes.get(..usize::from(tag.len))?;
            let name = question.name();
            let end = HEADER + name.len();
            let is_same = answer.get(HEADER..end) == Some(name)
                && answer.get(end..end + 2) == Some(&question.rtype.to_be_bytes()[..]);
            if is_same {
                tag.is_used = true;
                return Some((answer, tag.kind));
            }
        }
        None
    }

    /// Keeps an answer that is not there yet. True if another one had to go.
    pub(super) fn insert(&mut self, hash: u64, question: &Question, answer: &[u8], kind: Kind) -> bool {
        let first = self.set(hash);
        let Some(tags) = self.tags.get_mut(first..first + WAYS) else {
            return false;
        };
        // Each time another place is looked at first, so that all of them have the same time to be used again.
        self.turn = (self.turn + 1) % WAYS;
        let turn = self.turn;
        let is_free = |tag: &Tag| tag.len == 0;
        let is_unused = |at: &usize| !tags[*at].is_used;
        let free = tags.iter().position(is_free);
        let unused = || (0..WAYS).map(|at| (at + turn) % WAYS).find(is_unused);
        let place = free.or_else(unused).unwrap_or_else(|| {
            // All were used since: from now on it counts which of them are used again.
            tags.iter_mut().for_each(|tag| tag.is_used = false);
            turn
        });
        let (tag, bytes) = (&mut tags[place], &mut self.bytes[first + place]);
        let is_eviction = tag.len > 0;
        self.held += usize::from(!is_eviction);
        let len = answer.len().min(ANSWER_LIMIT);
        bytes[..len].copy_from_slice(&answer[..len]);
        *tag = Tag {
            hash,
            class: Class::of(question),
            len: len as u16,
            kind,
            is_used: false,
        };
        is_eviction
    }
}
