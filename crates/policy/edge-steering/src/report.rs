//! Load reports: datagrams by which a machine tells an edge how much it has left, for each service.

use signal::Key;
use subtle::ConstantTimeEq as _;
use thiserror::Error;

use crate::MachineId;
use crate::greeting::{GREETING_BYTES, Greeting};

/// Bytes of a datagram at most: it fits an Ethernet frame of 1,500 bytes behind a tunnel's header.
pub const DATAGRAM_LIMIT: usize = 1_400;
/// The first bytes of a report. A signal's tag covers other first bytes, so neither passes as the other.
const MAGIC: [u8; 4] = *b"inLR";
/// The version of the format.
const VERSION: u8 = 1;
/// Bytes before the rows.
const HEAD_BYTES: usize = 44;
/// Bytes of a service's row.
const ROW_BYTES: usize = 28;
/// Bytes of the tag.
const TAG_BYTES: usize = 16;
/// Services of a report at most.
pub const SERVICES_LIMIT: usize = (DATAGRAM_LIMIT - HEAD_BYTES - TAG_BYTES) / ROW_BYTES;

/// Where the parts of a report are.
mod at {
    use std::ops::Range;

    pub(super) const MAGIC: Range<usize> = 0..4;
    pub(super) const VERSION: usize = 4;
    pub(super) const ZERO: usize = 5;
    pub(super) const MACHINE: Range<usize> = 6..8;
    pub(super) const NONCE: Range<usize> = 8..16;
    pub(super) const AUDIENCE: Range<usize> = 16..24;
    pub(super) const INCARNATION: Range<usize> = 24..32;
    pub(super) const COUNTER: Range<usize> = 32..40;
    pub(super) const SERVICES: Range<usize> = 40..42;
    pub(super) const ZEROS: Range<usize> = 42..44;
}

/// Whether a machine takes flows of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Serving {
    /// It takes new flows.
    Serving,
    /// It takes no new flows, and keeps those that it has.
    Draining,
    /// It ends now: flows that it still has must move.
    Leaving,
}

impl Serving {
    const fn byte(self) -> u8 {
        match self {
            Serving::Serving => 0,
            Serving::Draining => 1,
            Serving::Leaving => 2,
        }
    }

    const fn of_byte(byte: u8) -> Option<Serving> {
        match byte {
            0 => Some(Serving::Serving),
            1 => Some(Serving::Draining),
            2 => Some(Serving::Leaving),
            _ => None,
        }
    }
}

/// What a machine says of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceLoad {
    /// The service's number in the cluster.
    pub service: u32,
    /// Whether it takes flows.
    pub state: Serving,
    /// Its Active instances there.
    pub instances: u16,
    /// What they can process together, in the unit of the service's metric (packets per second, mostly).
    pub capacity: u64,
    /// What they have left of it: at most the capacity.
    pub capacity_left: u64,
    /// Flows that are pinned to them.
    pub live_flows: u32,
}

impl ServiceLoad {
    /// Its utilisation, 0 to 1. Without a capacity it is full.
    pub fn utilisation(&self) -> f64 {
        if self.capacity > 0 {
            self.used() as f64 / self.capacity as f64
        } else {
            1.0
        }
    }

    /// What is used of its capacity.
    pub fn used(&self) -> u64 {
        self.capacity.saturating_sub(self.capacity_left)
    }
}

/// The number of a service in the cluster: of its name alone (FNV-1a), so that edges and machines agree.
pub fn service_number(name: &str) -> u32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811c_9dc5, mix)
}

/// What is in a report beside its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The machine.
    pub machine: MachineId,
    /// The run of the edge that it is for: a random number of that run. So what was sent to an earlier run, or to
    /// another edge, is refused.
    pub audience: u64,
    /// The machine's run: higher than that of each earlier one, from 1. The wall clock in nanoseconds, or one more than
    /// the last one if the clock went back.
    pub incarnation: u64,
    /// Higher than that of each earlier report of the incarnation.
    pub counter: u64,
}

/// More services than a datagram has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{services} services, at most {SERVICES_LIMIT} fit a report of {DATAGRAM_LIMIT} bytes")]
pub struct TooManyServices {
    /// So many.
    pub services: usize,
}

/// Writes a report with a row for each service, **in ascending order of service**. Returns its bytes.
///
/// ```text
/// offset  bytes
///      0      4  "inLR"
///      4      1  version: 1
///      5      1  0
///      6      2  machine
///      8      8  nonce of the machine's key
///     16      8  audience
///     24      8  incarnation
///     32      8  counter
///     40      2  number of services, n
///     42      2  0
///     44   28 n  service (4), state (1: 0 serving, 1 draining, 2 leaving), 0 (1), instances (2), capacity (8),
///                capacity left (8), live flows (4)
///             16  tag: SipHash-2-4-128 of all bytes before it with the machine's key
/// ```
/// Numbers are in network byte order.
///
/// # Errors
/// Too many services.
pub fn write<'a>(
    head: &Head,
    services: &[ServiceLoad],
    key: &Key,
    into: &'a mut [u8; DATAGRAM_LIMIT],
) -> Result<&'a [u8], TooManyServices> {
    if services.len() > SERVICES_LIMIT {
        return Err(TooManyServices {
            services: services.len(),
        });
    }
    let end = HEAD_BYTES + services.len() * ROW_BYTES;
    into[at::MAGIC].copy_from_slice(&MAGIC);
    into[at::VERSION] = VERSION;
    into[at::ZERO] = 0;
    into[at::MACHINE].copy_from_slice(&head.machine.0.to_be_bytes());
    into[at::NONCE].copy_from_slice(&key.nonce());
    into[at::AUDIENCE].copy_from_slice(&head.audience.to_be_bytes());
    into[at::INCARNATION].copy_from_slice(&head.incarnation.to_be_bytes());
    into[at::COUNTER].copy_from_slice(&head.counter.to_be_bytes());
    into[at::SERVICES].copy_from_slice(&(services.len() as u16).to_be_bytes());
    into[at::ZEROS].fill(0);
    let rows = into[HEAD_BYTES..end].chunks_exact_mut(ROW_BYTES);
    for (row, load) in rows.zip(services) {
        row[..4].copy_from_slice(&load.service.to_be_bytes());
        row[4] = load.state.byte();
        row[5] = 0;
        row[6..8].copy_from_slice(&load.instances.to_be_bytes());
        row[8..16].copy_from_slice(&load.capacity.to_be_bytes());
        row[16..24].copy_from_slice(&load.capacity_left.to_be_bytes());
        row[24..28].copy_from_slice(&load.live_flows.to_be_bytes());
    }
    let tag = key.tag(&into[..end]);
    into[end..end + TAG_BYTES].copy_from_slice(&tag);
    Ok(&into[..end + TAG_BYTES])
}

/// Why a report is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// It is cut off, too long, has bits where there must be none, or rows that cannot be.
    #[error("the datagram is cut off, too long, or says what cannot be")]
    Malformed,
    /// It has another version of the format.
    #[error("the report has another version of the format")]
    Version,
    /// It is about another machine than the gate's.
    #[error("the report is about another machine")]
    OtherMachine,
    /// It belongs to the key of another machine, or to an earlier key.
    #[error("the report belongs to another key")]
    OtherKey,
    /// It is for another edge, or an earlier run of this one.
    #[error("the report is for another edge, or for an earlier run of this one")]
    OtherEdge,
    /// The tag is not that of the machine's key.
    #[error("the tag is not that of the machine's key")]
    WrongTag,
    /// Incarnation and counter have not risen: it was sent before, or was overtaken by a later one.
    #[error("the counter has not risen")]
    Replayed,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Refusal; 7] = [
        Refusal::Malformed,
        Refusal::Version,
        Refusal::OtherMachine,
        Refusal::OtherKey,
        Refusal::OtherEdge,
        Refusal::WrongTag,
        Refusal::Replayed,
    ];

    /// Its word in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Malformed => "malformed",
            Refusal::Version => "version",
            Refusal::OtherMachine => "other_machine",
            Refusal::OtherKey => "other_key",
            Refusal::OtherEdge => "other_edge",
            Refusal::WrongTag => "wrong_tag",
            Refusal::Replayed => "replayed",
        }
    }
}

/// A report that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadReport<'a> {
    /// What it has beside its rows.
    pub head: Head,
    rows: &'a [[u8; ROW_BYTES]],
}

impl LoadReport<'_> {
    /// Its services, in ascending order.
    pub fn services(&self) -> impl Iterator<Item = ServiceLoad> + '_ {
        // Rows were checked before.
        self.rows.iter().filter_map(row)
    }
}

pub(crate) fn u64_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn row(bytes: &[u8; ROW_BYTES]) -> Option<ServiceLoad> {
    let load = ServiceLoad {
        service: u64_of(&bytes[..4]) as u32,
        state: Serving::of_byte(bytes[4])?,
        instances: u64_of(&bytes[6..8]) as u16,
        capacity: u64_of(&bytes[8..16]),
        capacity_left: u64_of(&bytes[16..24]),
        live_flows: u64_of(&bytes[24..28]) as u32,
    };
    (bytes[5] == 0 && load.capacity_left <= load.capacity).then_some(load)
}

/// The machine that a datagram claims to be from: which gate to ask. [`None`] if it is no report.
pub fn machine_of(datagram: &[u8]) -> Option<MachineId> {
    let is_report = datagram.get(at::MAGIC) == Some(&MAGIC);
    let machine = datagram.get(at::MACHINE).filter(|_| is_report)?;
    Some(MachineId(u64_of(machine) as u16))
}

/// Accepts the reports of one machine.
#[derive(Clone, Debug)]
pub struct Gate {
    machine: MachineId,
    key: Key,
    audience: u64,
    /// Incarnation and counter of the last report that was accepted.
    last: (u64, u64),
}

impl Gate {
    /// The gate of a machine at the run of an edge whose reports say `audience`.
    pub const fn new(machine: MachineId, key: Key, audience: u64) -> Gate {
        Gate {
            machine,
            key,
            audience,
            last: (0, 0),
        }
    }

    /// Looks at a datagram. Only one that is accepted changes the gate.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn accept<'a>(&mut self, datagram: &'a [u8]) -> Result<LoadReport<'a>, Refusal> {
        let read = Read::of(datagram)?;
        self.must_be_of_machine(&read)?;
        if read.said.audience != self.audience {
            return Err(Refusal::OtherEdge);
        }
        self.must_be_authentic(&read)?;
        let mut before = None;
        for bytes in read.rows {
            let service = row(bytes).ok_or(Refusal::Malformed)?.service;
            if before.is_some_and(|before| before >= service) {
                return Err(Refusal::Malformed);
            }
            before = Some(service);
        }
        if (read.said.incarnation, read.said.counter) <= self.last {
            return Err(Refusal::Replayed);
        }
        self.last = (read.said.incarnation, read.said.counter);
        Ok(LoadReport {
            head: read.said,
            rows: read.rows,
        })
    }

    /// The answer to a datagram that was refused: it is authentic, but for an earlier run of this edge, or its machine's
    /// clock went back. [`None`] for all others: strangers get no answer.
    pub fn answer(&self, datagram: &[u8]) -> Option<[u8; GREETING_BYTES]> {
        let read = Read::of(datagram).ok()?;
        self.must_be_of_machine(&read).ok()?;
        self.must_be_authentic(&read).ok()?;
        let Head {
            audience,
            incarnation,
            counter,
            ..
        } = read.said;
        let greeting = Greeting {
            machine: self.machine,
            audience: self.audience,
            incarnation,
            counter,
            floor: self.last.0,
        };
        (audience != self.audience || incarnation < self.last.0).then(|| greeting.bytes(&self.key))
    }

    fn must_be_of_machine(&self, read: &Read<'_>) -> Result<(), Refusal> {
        if read.said.machine != self.machine {
            return Err(Refusal::OtherMachine);
        }
        if read.nonce != self.key.nonce() {
            return Err(Refusal::OtherKey);
        }
        Ok(())
    }

    fn must_be_authentic(&self, read: &Read<'_>) -> Result<(), Refusal> {
        if bool::from(self.key.tag(read.tagged).ct_eq(read.tag)) {
            Ok(())
        } else {
            Err(Refusal::WrongTag)
        }
    }
}

/// A datagram in its parts. Nothing is known yet of who wrote it.
struct Read<'a> {
    tagged: &'a [u8],
    tag: &'a [u8; TAG_BYTES],
    nonce: [u8; 8],
    said: Head,
    rows: &'a [[u8; ROW_BYTES]],
}

impl Read<'_> {
    fn of(datagram: &[u8]) -> Result<Read<'_>, Refusal> {
        if datagram.len() > DATAGRAM_LIMIT {
            return Err(Refusal::Malformed);
        }
        let (tagged, tag) = datagram
            .split_last_chunk::<TAG_BYTES>()
            .ok_or(Refusal::Malformed)?;
        let (head, body) = tagged
            .split_first_chunk::<HEAD_BYTES>()
            .ok_or(Refusal::Malformed)?;
        if head[at::MAGIC] != MAGIC {
            return Err(Refusal::Malformed);
        }
        if head[at::VERSION] != VERSION {
            return Err(Refusal::Version);
        }
        let (rows, rest) = body.as_chunks::<ROW_BYTES>();
        let services = u64_of(&head[at::SERVICES]) as usize;
        if head[at::ZERO] != 0 || head[at::ZEROS] != [0; 2] || !rest.is_empty() || rows.len() != services {
            return Err(Refusal::Malformed);
        }
        Ok(Read {
            tagged,
            tag,
            nonce: u64_of(&head[at::NONCE]).to_be_bytes(),
            said: Head {
                machine: MachineId(u64_of(&head[at::MACHINE]) as u16),
                audience: u64_of(&head[at::AUDIENCE]),
                incarnation: u64_of(&head[at::INCARNATION]),
                counter: u64_of(&head[at::COUNTER]),
            },
            rows,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AUDIENCE: u64 = 77;

    fn key(byte: u8) -> Key {
        let mut bytes = [byte; 24];
        bytes[16..].fill(byte.wrapping_add(1));
        Key::of_random(bytes)
    }

    fn gate() -> Gate {
        Gate::new(MachineId(5), key(3), AUDIENCE)
    }

    fn head(incarnation: u64, counter: u64) -> Head {
        Head {
            machine: MachineId(5),
            audience: AUDIENCE,
            incarnation,
            counter,
        }
    }

    fn load(service: u32) -> ServiceLoad {
        ServiceLoad {
            service,
            state: Serving::Serving,
            instances: 100,
            capacity: 1_000,
            capacity_left: 400,
            live_flows: 12,
        }
    }

    fn datagram(head: &Head, services: &[ServiceLoad]) -> Vec<u8> {
        write(head, services, &key(3), &mut [0xff; DATAGRAM_LIMIT])
            .unwrap()
            .to_vec()
    }

    #[test]
    fn a_report_is_accepted_once_and_a_later_run_of_the_machine_begins_anew() {
        let mut gate = gate();
        for (incarnation, counter) in [(1, 0), (1, 1), (1, 9), (2, 0), (2, 1)] {
            let sent = datagram(&head(incarnation, counter), &[load(1), load(4)]);
            let report = gate.accept(&sent).unwrap();
            assert_eq!(report.head, head(incarnation, counter));
            assert_eq!(report.services().collect::<Vec<_>>(), [load(1), load(4)]);
            assert_eq!(gate.accept(&sent), Err(Refusal::Replayed));
        }
        // What an earlier run sent is not accepted again.
        assert_eq!(gate.accept(&datagram(&head(1, 10), &[])), Err(Refusal::Replayed));
    }

    #[test]
    fn each_fault_has_its_reason() {
        let sent = datagram(&head(1, 1), &[load(1), load(2)]);
        let with = |at: usize, byte: u8| {
            let mut bytes = sent.clone();
            bytes[at] = byte;
            bytes
        };
        let of = |services: &[ServiceLoad]| datagram(&head(1, 1), services);
        let more = ServiceLoad {
            capacity_left: 1_001,
            ..load(1)
        };
        let mut unknown_state = of(&[load(1)]);
        unknown_state[HEAD_BYTES + 4] = 3;
        let end = unknown_state.len() - TAG_BYTES;
        let tag = key(3).tag(&unknown_state[..end]);
        unknown_state[end..].copy_from_slice(&tag);
        for (bytes, refusal) in [
            (Vec::new(), Refusal::Malformed),
            (sent[..sent.len() - 1].to_vec(), Refusal::Malformed),
            ([&sent[..], &[0; ROW_BYTES]].concat(), Refusal::Malformed),
            (vec![0; DATAGRAM_LIMIT + 1], Refusal::Malformed),
            (with(0, 0), Refusal::Malformed),
            (with(4, 2), Refusal::Version),
            (with(5, 1), Refusal::Malformed),
            (with(41, 1), Refusal::Malformed),
            (with(43, 1), Refusal::Malformed),
            (with(7, 6), Refusal::OtherMachine),
            (with(8, 0), Refusal::OtherKey),
            (with(23, 0), Refusal::OtherEdge),
            (with(31, 9), Refusal::WrongTag),
            (with(sent.len() - 1, 0), Refusal::WrongTag),
            (of(&[more]), Refusal::Malformed),
            (of(&[load(2), load(1)]), Refusal::Malformed),
            (of(&[load(2), load(2)]), Refusal::Malformed),
            (unknown_state, Refusal::Malformed),
        ] {
            let mut gate = gate();
            assert_eq!(gate.accept(&bytes), Err(refusal), "{bytes:02x?}");
            assert!(
                gate.accept(&sent).is_ok(),
                "a refused datagram has changed the gate"
            );
        }
        assert_eq!(machine_of(&sent), Some(MachineId(5)));
        assert_eq!(machine_of(&with(0, 0)), None);
        assert_eq!(machine_of(&sent[..7]), None);
    }

    #[test]
    fn a_full_report_fits_a_datagram() {
        let services: Vec<ServiceLoad> = (0..=SERVICES_LIMIT as u32).map(load).collect();
        let mut into = [0; DATAGRAM_LIMIT];
        let sent = write(&head(1, 1), &services[1..], &key(3), &mut into).unwrap();
        assert!(sent.len() <= DATAGRAM_LIMIT && sent.len() + ROW_BYTES > DATAGRAM_LIMIT);
        assert_eq!(gate().accept(sent).unwrap().services().count(), SERVICES_LIMIT);
        let error = write(&head(1, 1), &services, &key(3), &mut [0; DATAGRAM_LIMIT]).unwrap_err();
        assert_eq!(error.services, SERVICES_LIMIT + 1);
    }

    proptest! {
        #[test]
        fn no_other_datagram_is_accepted(at in 0_usize..116, flip in 1_u8.., counter in 1_u64..) {
            let mut bytes = datagram(&head(1, counter), &[load(7), load(9)]);
            bytes[at] ^= flip;
            prop_assert!(gate().accept(&bytes).is_err());
        }

        #[test]
        fn random_datagrams_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..1_500)) {
            prop_assert!(gate().accept(&bytes).is_err());
        }

        #[test]
        fn a_report_says_what_was_written(
            rows in prop::collection::btree_map(any::<u32>(), (0..3_u8, any::<u16>(), any::<u64>(), any::<u64>(), any::<u32>()), 0..SERVICES_LIMIT),
            incarnation in 1_u64.., counter in any::<u64>(),
        ) {
            let services: Vec<ServiceLoad> = rows.into_iter().map(|(service, (state, instances, a, b, live_flows))| ServiceLoad {
                service,
                state: Serving::of_byte(state).unwrap(),
                instances,
                capacity: a.max(b),
                capacity_left: a.min(b),
                live_flows,
            }).collect();
            let sent = datagram(&head(incarnation, counter), &services);
            let mut gate = gate();
            let report = gate.accept(&sent).unwrap();
            prop_assert_eq!(report.services().collect::<Vec<_>>(), services);
        }
    }
}
