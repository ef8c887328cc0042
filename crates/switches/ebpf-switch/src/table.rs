//! Flows in the kernel's tables. A thread lists them and has those removed that are over, because a walk over a million
//! entries takes a while.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flow_table::TcpState;
use model::{Direction, FlowKey, FlowKeyV4, FlowKeyV6, Nanos, ServiceId, Slot};
use rustix::time::{ClockId, clock_gettime};
use switch::{FlowFilter, FlowRow, SwitchEvent};

use crate::bpf::{self, Entries};
use crate::kernel::Shared;
use crate::layout::{Flow, KEY_BYTES, TCP_HANDSHAKE};

/// How often flows that are over are removed.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// The pause after a walk over the tables, in multiples of its duration: it takes at most a twentieth of a CPU.
const SWEEP_SHARE: u32 = 20;

/// A question to the thread.
pub(crate) struct Question {
    pub(crate) id: u64,
    pub(crate) filter: FlowFilter,
    pub(crate) limit: usize,
}

/// The thread.
pub(crate) struct Lister {
    questions: Option<Sender<Question>>,
    answers: Receiver<SwitchEvent>,
    thread: Option<JoinHandle<()>>,
}

impl Lister {
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Lister> {
        let (questions, todo) = channel::<Question>();
        let (tell, answers) = channel();
        let work = move || {
            let mut pause = SWEEP_EVERY;
            loop {
                let question = match todo.recv_timeout(pause) {
                    Ok(question) => question,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        let began = Instant::now();
                        if let Err(error) = shared.sweep() {
                            tracing::warn!(%error, "flows that are over stay in the table until it is full");
                        }
                        pause = (began.elapsed() * SWEEP_SHARE).max(SWEEP_EVERY);
                        continue;
                    }
                };
                let answer = list(&shared, &question).unwrap_or_else(|error| SwitchEvent::Trouble {
                    what: "flow table".to_owned(),
                    reason: error.to_string(),
                });
                if tell.send(answer).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("inco-flows".to_owned()).spawn(work)?;
        Ok(Lister {
            questions: Some(questions),
            answers,
            thread: Some(thread),
        })
    }

    pub(crate) fn ask(&self, question: Question) {
        if let Some(questions) = &self.questions {
            // The thread lives as long as this sender.
            let _ = questions.send(question);
        }
    }

    pub(crate) fn take(&self) -> Option<SwitchEvent> {
        self.answers.try_recv().ok()
    }

    pub(crate) fn stop(&mut self) {
        self.questions = None;
        if let Some(thread) = self.thread.take() {
            // It says nothing when it ends.
            let _ = thread.join();
        }
    }
}

/// The clock by which the programs note when a flow was seen.
fn coarse_now() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn list(shared: &Shared, of: &Question) -> io::Result<SwitchEvent> {
    let now = coarse_now();
    let mut rows = Vec::new();
    let mut complete = true;
    for family in 0..KEY_BYTES.len() {
        let mut entries = Entries::of(shared.table(family)).map_err(io::Error::other)?;
        loop {
            let more = entries.next(|key, value| {
                let (Some(key), Some(flow)) = (key_of(key), Flow::of(value)) else {
                    return;
                };
                if let Some(row) = row(shared, key, &flow, now).filter(|row| of.filter.matches(row)) {
                    if rows.len() < of.limit {
                        rows.push(row);
                    } else {
                        complete = false;
                    }
                }
            })?;
            if !more || !complete {
                break;
            }
        }
    }
    Ok(SwitchEvent::Flows {
        id: of.id,
        rows,
        rules: Vec::new(),
        complete,
    })
}

/// A flow that has its pin still.
fn row(shared: &Shared, key: FlowKey, flow: &Flow, now: u64) -> Option<FlowRow> {
    let slot = &shared.world().slots[usize::from(flow.slot())];
    if slot.epoch.load(Relaxed) != flow.epoch() {
        return None;
    }
    Some(FlowRow {
        key,
        opener: if flow.opener == 0 {
            Direction::Forward
        } else {
            Direction::Reverse
        },
        service: ServiceId(flow.service()),
        pins: [Slot(flow.slot()); 2],
        pinned_at: [Some(Nanos(flow.pinned_at)); 2],
        packets: flow.packets,
        bytes: flow.bytes,
        idle: Nanos(now.saturating_sub(flow.seen)),
        tcp: match flow.tcp {
            1 => TcpState::Handshake,
            2 => TcpState::Established,
            3 => TcpState::FinForward,
            4 => TcpState::FinReverse,
            5 => TcpState::Closed,
            _ => TcpState::None,
        },
        returned: None,
        dropped: None,
    })
}

/// A key as the programs write it.
fn key_of(bytes: &[u8]) -> Option<FlowKey> {
    fn half<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
        bytes.get(at..at + N)?.try_into().ok()
    }
    let word = |at: usize| half::<2>(bytes, at).map(u16::from_ne_bytes);
    if bytes.len() == KEY_BYTES[0] {
        Some(FlowKey::V4(FlowKeyV4 {
            a: half(bytes, 0)?,
            b: half(bytes, 4)?,
            a_port: word(8)?,
            b_port: word(10)?,
            vlan: word(12)?,
            protocol: bytes[14],
            zero: 0,
        }))
    } else {
        Some(FlowKey::V6(FlowKeyV6 {
            a: half(bytes, 0)?,
            b: half(bytes, 16)?,
            a_port: word(32)?,
            b_port: word(34)?,
            vlan: word(36)?,
            protocol: *bytes.get(38)?,
            zero: 0,
        }))
    }
}

/// The key as the programs write it, and which table it is in.
fn bytes_of(key: &FlowKey) -> (usize, Vec<u8>) {
    let (family, a, b, ports, vlan, protocol): (_, &[u8], &[u8], _, _, _) = match key {
        FlowKey::V4(k) => (0, &k.a, &k.b, [k.a_port, k.b_port], k.vlan, k.protocol),
        FlowKey::V6(k) => (1, &k.a, &k.b, [k.a_port, k.b_port], k.vlan, k.protocol),
    };
    let mut bytes = Vec::with_capacity(KEY_BYTES[family]);
    bytes.extend_from_slice(a);
    bytes.extend_from_slice(b);
    for word in [ports[0], ports[1], vlan] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.extend_from_slice(&[protocol, 0]);
    (family, bytes)
}

/// Removes one flow.
pub(crate) fn purge(shared: &Shared, key: &FlowKey) -> io::Result<()> {
    let (family, bytes) = bytes_of(key);
    let Some(flow) = bpf::take_entry(shared.table(family).fd().as_fd(), &bytes)? else {
        return Ok(());
    };
    if flow.tcp == TCP_HANDSHAKE {
        let service = &shared.world().services[usize::from(flow.service())];
        service.moving.half_open.fetch_sub(1, Relaxed);
    }
    let own = shared.own_counts();
    own.ended[family].fetch_add(1, Relaxed);
    let epoch = shared.world().slots[usize::from(flow.slot())].epoch.load(Relaxed);
    if epoch.wrapping_sub(flow.epoch()) < crate::layout::EPOCHS as u32 {
        let ended = &own.slots[usize::from(flow.slot())].ended;
        ended[flow.epoch() as usize % ended.len()].fetch_add(1, Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use model::Tuple;

    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        for (src, dst) in [("10.0.0.1", "192.0.2.1"), ("2001:db8::1", "2001:db8::2")] {
            let tuple = Tuple {
                src: src.parse().unwrap(),
                dst: dst.parse().unwrap(),
                src_port: 4000,
                dst_port: 80,
                protocol: 6,
                vlan: 42,
            };
            let (key, _) = FlowKey::new(&tuple);
            let (family, bytes) = bytes_of(&key);
            assert_eq!(bytes.len(), KEY_BYTES[family]);
            assert_eq!(key_of(&bytes), Some(key));
        }
    }
}
