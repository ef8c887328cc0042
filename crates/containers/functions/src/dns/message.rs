//! Messages (RFC 1035, 4; EDNS: RFC 6891): questions as they are read, answers as they are written.

use super::zone::{NAME_BYTES_LIMIT, rtype};

/// Bytes of a header.
pub(super) const HEADER: usize = 12;
/// Bytes of an answer to a question without EDNS, at most.
pub(super) const PLAIN_LIMIT: usize = 512;
/// Bytes of an answer, at most: what passes nearly every path in one piece (RFC 9715).
pub(super) const ANSWER_LIMIT: usize = 1232;
/// Bytes of the record OPT without options.
const OPT: usize = 11;
/// Names to which a later one can point, at most.
const TARGETS_LIMIT: usize = 64;
/// The flag of a pointer, and pointers that a name can have in a message that this module has written.
const POINTER: u8 = 0xc0;
const POINTERS_LIMIT: usize = NAME_BYTES_LIMIT / 2;

const CLASS_IN: u16 = 1;

/// Codes of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    NoError,
    FormErr,
    NxDomain,
    NotImp,
    Refused,
    /// An unknown version of EDNS.
    BadVers,
}

impl Code {
    /// The four bits of the header, and eight of the record OPT.
    const fn bits(self) -> (u8, u8) {
        match self {
            Code::NoError => (0, 0),
            Code::FormErr => (1, 0),
            Code::NxDomain => (3, 0),
            Code::NotImp => (4, 0),
            Code::Refused => (5, 0),
            Code::BadVers => (0, 1),
        }
    }
}

/// What the record OPT of a question says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edns {
    /// Bytes of an answer, at most.
    pub(super) limit: u16,
    version: u8,
    /// Whether records of DNSSEC are wanted; copied (RFC 3225).
    pub(super) is_dnssec: bool,
}

/// A question, as it is looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// Its name in lower case, with the root.
    name: [u8; NAME_BYTES_LIMIT],
    name_len: u8,
    pub(super) rtype: u16,
    pub(super) class: u16,
    pub(super) edns: Option<Edns>,
}

/// Why a message is not answered from zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It has no whole header.
    Short,
    /// It is an answer.
    Answer,
    /// It is answered by this code, without its question.
    Code(Code),
}

impl Question {
    pub(super) fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.name_len)]
    }

    /// Bytes of the question in the message.
    pub(super) fn len(&self) -> usize {
        usize::from(self.name_len) + 4
    }

    /// Bytes of its answer, at most.
    pub(super) fn limit(&self) -> usize {
        self.edns.map_or(PLAIN_LIMIT, |edns| {
            usize::from(edns.limit).clamp(PLAIN_LIMIT, ANSWER_LIMIT)
        })
    }

    /// The code by which it is answered without a look into zones.
    pub(super) fn refusal(&self) -> Option<Code> {
        match (self.edns, self.rtype) {
            (Some(edns), _) if edns.version > 0 => Some(Code::BadVers),
            (_, rtype::OPT) => Some(Code::FormErr),
            // Types that are questions only, such as transfers.
            (_, 249..=254) => Some(Code::NotImp),
            _ if self.class != CLASS_IN => Some(Code::Refused),
            _ => None,
        }
    }

    /// Reads a message.
    pub(super) fn read(message: &[u8]) -> Result<Question, Fault> {
        const WRONG: Fault = Fault::Code(Code::FormErr);
        let header = message.first_chunk::<HEADER>().ok_or(Fault::Short)?;
        if header[2] & 0x80 != 0 {
            return Err(Fault::Answer);
        }
        if header[2] & 0x78 != 0 {
            return Err(Fault::Code(Code::NotImp));
        }
        let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        if count(4) != 1 || count(6) != 0 || count(8) != 0 {
            return Err(WRONG);
        }
        let mut question = Question {
            name: [0; NAME_BYTES_LIMIT],
            name_len: 0,
            rtype: 0,
            class: 0,
            edns: None,
        };
        let mut at = HEADER;
        let mut len = 0;
        loop {
            let label = *message.get(at).ok_or(WRONG)?;
            let end = 1 + usize::from(label);
            let from = message.get(at..at + end).filter(|_| label < 64).ok_or(WRONG)?;
            let to = question.name.get_mut(len..len + end).ok_or(WRONG)?;
            to.copy_from_slice(from);
            (at, len) = (at + end, len + end);
            if label == 0 {
                break;
            }
        }
        // Lengths of labels are below 64, where there are no letters.
        question.name.make_ascii_lowercase();
        question.name_len = len as u8;
        let fixed = message.get(at..).unwrap_or_default().first_chunk::<4>();
        let [a, b, c, d] = *fixed.ok_or(WRONG)?;
        question.rtype = u16::from_be_bytes([a, b]);
        question.class = u16::from_be_bytes([c, d]);
        at += 4;
        for _ in 0..count(10) {
            at = question.read_additional(message, at).ok_or(WRONG)?;
        }
        if at != message.len() {
            return Err(WRONG);
        }
        Ok(question)
    }

    /// Reads an additional record at a place. Gives where it ends; [`None`] if it is wrong.
    fn read_additional(&mut self, message: &[u8], mut at: usize) -> Option<usize> {
        let start = at;
        loop {
            let label = *message.get(at)?;
            at += match label {
                0 => 1,
                1..64 => 1 + usize::from(label),
                POINTER.. => 2,
                _ => return None,
            };
            if label == 0 || label >= POINTER {
                break;
            }
            if at - start > NAME_BYTES_LIMIT {
                return None;
            }
        }
        let fixed = message.get(at..)?.first_chunk::<10>()?;
        let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let end = at + fixed.len() + usize::from(word(8));
        if end > message.len() {
            return None;
        }
        if word(0) == rtype::OPT {
            if self.edns.is_some() || at != start + 1 {
                return None;
            }
            self.edns = Some(Edns {
                limit: word(2),
                version: fixed[5],
                is_dnssec: fixed[6] & 0x80 != 0,
            });
        }
        Some(end)
    }
}

/// The sections of an answer, by the place of their number in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Answer = 6,
    Authority = 8,
    Additional = 10,
}

/// Writes an answer. Each method gives [`None`] where there is no room; the answer is then not whole.
#[derive(Debug)]
pub(super) struct Writer<'b> {
    out: &'b mut [u8],
    len: usize,
    /// Up to where records may reach: behind it is the place of the record OPT.
    limit: usize,
    /// Where labels begin to which others can point.
    targets: [u16; TARGETS_LIMIT],
    targets_len: usize,
    edns: Option<Edns>,
}

impl<'b> Writer<'b> {
    /// Begins the answer to a question in memory of [`ANSWER_LIMIT`] bytes.
    pub(super) fn new(out: &'b mut [u8; ANSWER_LIMIT], question: &Question) -> Writer<'b> {
        let limit = question.limit() - if question.edns.is_some() { OPT } else { 0 };
        let name = question.name();
        let end = HEADER + question.len();
        out[..HEADER].fill(0);
        out[2] = 0x80;
        out[5] = 1;
        out[HEADER..HEADER + name.len()].copy_from_slice(name);
        out[end - 4..end - 2].copy_from_slice(&question.rtype.to_be_bytes());
        out[end - 2..end].copy_from_slice(&question.class.to_be_bytes());
        let mut writer = Writer {
            out,
            len: end,
            limit,
            targets: [0; TARGETS_LIMIT],
            targets_len: 0,
            edns: question.edns,
        };
        writer.note(HEADER);
        writer
    }

    /// Notes the labels of a name that is written at a place, up to a pointer or the root.
    fn note(&mut self, mut at: usize) {
        while let Some(&label @ 1..64) = self.out.get(at) {
            if let Some(target) = self.targets.get_mut(self.targets_len) {
                *target = at as u16;
                self.targets_len += 1;
            }
            at += 1 + usize::from(label);
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.len + bytes.len();
        if end > self.limit {
            return None;
        }
        self.out.get_mut(self.len..end)?.copy_from_slice(bytes);
        self.len = end;
        Some(())
    }

    /// Whether the name that is written at a place is this one, whatever the case of its letters.
    fn is_at(&self, mut at: usize, mut name: &[u8]) -> bool {
        let mut pointers = 0;
        while let Some(&label) = self.out.get(at) {
            if label >= POINTER {
                let next = self.out.get(at + 1).copied().unwrap_or(0);
                at = usize::from(label & !POINTER) << 8 | usize::from(next);
                pointers += 1;
                if pointers > POINTERS_LIMIT {
                    return false;
                }
                continue;
            }
            let end = 1 + usize::from(label);
            let (Some(here), Some(there)) = (self.out.get(at..at + end), name.get(..end)) else {
                return false;
            };
            if !here.eq_ignore_ascii_case(there) {
                return false;
            }
            if label == 0 {
                return true;
            }
            at += end;
            name = &name[end..];
        }
        false
    }

    /// Writes a name with its root, as short as what is written already allows.
    fn name(&mut self, name: &[u8]) -> Option<()> {
        let start = self.len;
        let mut rest = name;
        while let Some(&label @ 1..) = rest.first() {
            let targets = &self.targets[..self.targets_len];
            let found = targets.iter().find(|at| self.is_at(usize::from(**at), rest));
            if let Some(at) = found {
                let at = at.to_be_bytes();
                self.put(&[at[0] | POINTER, at[1]])?;
                self.note(start);
                return Some(());
            }
            let end = 1 + usize::from(label);
            self.put(rest.get(..end)?)?;
            rest = &rest[end..];
        }
        self.put(&[0])?;
        self.note(start);
        Some(())
    }

    /// Writes a record, and counts it. One that does not fit leaves nothing.
    pub(super) fn record(
        &mut self,
        section: Section,
        owner: &[u8],
        rtype: u16,
        ttl: u32,
        data: &[u8],
    ) -> Option<()> {
        let before = (self.len, self.targets_len);
        let written = self.write(owner, rtype, ttl, data);
        match written {
            Some(()) => self.count(section),
            None => (self.len, self.targets_len) = before,
        }
        written
    }

    fn write(&mut self, owner: &[u8], rtype: u16, ttl: u32, data: &[u8]) -> Option<()> {
        self.name(owner)?;
        self.put(&rtype.to_be_bytes())?;
        self.put(&CLASS_IN.to_be_bytes())?;
        self.put(&ttl.to_be_bytes())?;
        let before = self.len;
        self.put(&[0, 0])?;
        // Names in the data of those types alone can be pointers (RFC 3597, 4).
        let (first, names) = match rtype {
            rtype::NS | rtype::CNAME | rtype::PTR => (0, 1),
            rtype::MX => (2, 1),
            rtype::SOA => (0, 2),
            _ => (0, 0),
        };
        let (fixed, mut rest) = data.split_at_checked(first)?;
        self.put(fixed)?;
        for _ in 0..names {
            let (name, behind) = rest.split_at_checked(name_len(rest)?)?;
            self.name(name)?;
            rest = behind;
        }
        self.put(rest)?;
        let len = (self.len - before - 2) as u16;
        self.out
            .get_mut(before..before + 2)?
            .copy_from_slice(&len.to_be_bytes());
        Some(())
    }

    fn count(&mut self, section: Section) {
        let at = section as usize;
        let count = u16::from_be_bytes([self.out[at], self.out[at + 1]]) + 1;
        self.out[at..at + 2].copy_from_slice(&count.to_be_bytes());
    }

    /// Says that the answer comes from a zone of this server.
    pub(super) fn set_authoritative(&mut self) {
        self.out[2] |= 0x04;
    }

    /// Says that the answer is not whole, and leaves nothing of it.
    pub(super) fn truncate(&mut self, question: &Question) {
        self.len = HEADER + question.len();
        self.out[6..HEADER].fill(0);
        self.out[2] |= 0x02;
    }

    /// Ends the answer, and gives its length.
    pub(super) fn finish(mut self, code: Code) -> usize {
        let (bits, extended) = code.bits();
        self.out[3] = bits;
        if let Some(edns) = self.edns {
            let size = (ANSWER_LIMIT as u16).to_be_bytes();
            let flags = if edns.is_dnssec { 0x80 } else { 0 };
            // Its room was kept.
            self.limit = ANSWER_LIMIT;
            let written = self.put(&[0, 0, 41, size[0], size[1], extended, 0, flags, 0, 0, 0]);
            if written.is_some() {
                self.count(Section::Additional);
            }
        }
        self.len
    }
}

/// Bytes of the name, which has no pointers, at the start.
pub(super) fn name_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let label = *bytes.get(at)?;
        at += 1 + usize::from(label);
        if label == 0 {
            return Some(at);
        }
    }
}
