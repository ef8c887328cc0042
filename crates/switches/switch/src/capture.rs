//! A capture: copies of packets, made by the workers that forward them and taken by one reader.
//!
//! Workers and reader share a [`Capture`]. All memory is there before the first packet: a worker takes an empty
//! buffer, fills it and puts it into a queue without locks; the reader gives it back. Where no buffer is free, the copy
//! is left out and counted. The packet itself is never touched and never waits.
//!
//! Its life: [`Capture::new`]; [`SwitchRequest::Capture`](crate::SwitchRequest::Capture); the reader takes packets with
//! [`Capture::take`] until it [ends](Capture::end) it. The switch keeps its share until no worker has one, so that no
//! worker frees memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use model::{CapturePoint, DropReason, FlowKey, InstanceId, Nanos, ServiceId, Slot, Tuple, UplinkId};

use crate::plan::ServicePlan;

/// Packets that wait for the reader at most.
const QUEUE_PACKETS: usize = 8192;
/// Bytes of packets that wait for the reader at most.
const QUEUE_BYTES: usize = 16 << 20;
/// The most bytes that are kept of a packet: the longest frame.
pub const CAPTURE_SNAPLEN_LIMIT: u32 = 65_535;

/// Which packets are captured. Empty fields match all.
#[derive(Clone, Debug, Default)]
pub struct CaptureFilter {
    /// Where.
    pub points: Vec<CapturePoint>,
    /// Of this service, as a plan has it.
    pub service: Option<ServicePlan>,
    /// Of the instance in this slot: what it is given and gives back, and what its flows bring at an uplink.
    pub slot: Option<Slot>,
    /// Packets with the addresses and ports of this flow, in both directions.
    pub key: Option<FlowKey>,
    /// Dropped for this reason.
    pub reason: Option<DropReason>,
}

/// How much is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureLimits {
    /// Packets in all.
    pub packets: u64,
    /// Bytes kept of each, from the Ethernet header on, at most [`CAPTURE_SNAPLEN_LIMIT`].
    pub snaplen: u32,
}

/// Where and when a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sighting {
    /// Where.
    pub point: CapturePoint,
    /// When: the monotonic time at which the worker's turn began.
    pub at: Nanos,
    /// At which uplink, where it is one.
    pub uplink: Option<UplinkId>,
    /// Whether it leaves by that uplink.
    pub leaves: bool,
    /// The slot of its instance, where that is known.
    pub slot: Option<Slot>,
    /// Its instance, where that is known.
    pub instance: Option<InstanceId>,
    /// Its service, where that is known.
    pub service: Option<ServiceId>,
    /// Why it was dropped, where it was.
    pub reason: Option<DropReason>,
    /// Its addresses and ports, where it has some.
    pub tuple: Option<Tuple>,
}

impl Sighting {
    /// One of which nothing else is known.
    pub fn at(point: CapturePoint, at: Nanos, tuple: Option<Tuple>) -> Sighting {
        Sighting {
            point,
            at,
            uplink: None,
            leaves: false,
            slot: None,
            instance: None,
            service: None,
            reason: None,
            tuple,
        }
    }
}

/// A packet's copy.
#[derive(Debug)]
pub struct CapturedPacket {
    /// Where and when.
    pub seen: Sighting,
    /// Its length in bytes, from the Ethernet header on.
    pub length: u32,
    /// Its first bytes. The room is there from the start.
    pub bytes: Vec<u8>,
}

/// A capture that runs.
#[derive(Debug)]
pub struct Capture {
    filter: CaptureFilter,
    limits: CaptureLimits,
    /// Copies made.
    copied: AtomicU64,
    /// Packets of which no copy was made, because no buffer was free, by point.
    left_out: [AtomicU64; CapturePoint::WORDS.len()],
    is_over: AtomicBool,
    filled: ArrayQueue<Box<CapturedPacket>>,
    empty: ArrayQueue<Box<CapturedPacket>>,
}

impl Capture {
    /// A capture that no switch has yet.
    pub fn new(filter: CaptureFilter, limits: CaptureLimits) -> Arc<Capture> {
        let limits = CaptureLimits {
            snaplen: limits.snaplen.clamp(1, CAPTURE_SNAPLEN_LIMIT),
            ..limits
        };
        let room = limits.snaplen as usize;
        let buffers = (QUEUE_BYTES / room).clamp(1, QUEUE_PACKETS);
        let empty = ArrayQueue::new(buffers);
        for _ in 0..buffers {
            let seen = Sighting::at(CapturePoint::Uplink, Nanos::ZERO, None);
            // There is room for as many as are made.
            let _put = empty.push(Box::new(CapturedPacket {
                seen,
                length: 0,
                bytes: Vec::with_capacity(room),
            }));
        }
        Arc::new(Capture {
            filter,
            limits,
            copied: AtomicU64::new(0),
            left_out: Default::default(),
            is_over: AtomicBool::new(false),
            filled: ArrayQueue::new(buffers),
            empty,
        })
    }

    // ---- the workers' side ------------------------------------------------------------------------------------

    /// Whether it wants packets of that point.
    pub fn looks_at(&self, point: CapturePoint) -> bool {
        self.filter.points.contains(&point)
    }

    /// The slot of the only instance that it wants.
    pub fn slot(&self) -> Option<Slot> {
        self.filter.slot
    }

    /// Whether it wants a packet, its instance aside.
    pub fn wants(&self, seen: &Sighting) -> bool {
        let filter = &self.filter;
        let is_of = |key: FlowKey| seen.tuple.is_some_and(|tuple| FlowKey::new(&tuple).0 == key);
        let serves = |service: &ServicePlan| match (seen.service, &seen.tuple) {
            (Some(id), _) => id == service.id,
            (None, Some(tuple)) => service.is_its(tuple),
            (None, None) => false,
        };
        self.looks_at(seen.point)
            && filter.reason.is_none_or(|reason| seen.reason == Some(reason))
            && filter.key.is_none_or(is_of)
            && filter.service.as_ref().is_none_or(serves)
    }

    /// Copies a packet where it is wanted.
    pub fn see(&self, seen: Sighting, frame: &[u8]) {
        let is_its = self.filter.slot.is_none_or(|slot| seen.slot == Some(slot));
        if is_its
            && self.wants(&seen)
            && let Some(copy) = self.copy(seen, frame)
        {
            self.put(copy);
        }
    }

    /// A copy of a packet, of which it is still to be seen whether it is wanted: [`Capture::put`] or
    /// [`Capture::give_back`] follows.
    pub fn copy(&self, seen: Sighting, frame: &[u8]) -> Option<Box<CapturedPacket>> {
        if self.is_over() || self.copied.load(Ordering::Relaxed) >= self.limits.packets {
            return None;
        }
        let Some(mut copy) = self.empty.pop() else {
            if let Some(left_out) = self.left_out.get(seen.point as usize) {
                left_out.fetch_add(1, Ordering::Relaxed);
            }
            return None;
        };
        copy.seen = seen;
        copy.length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        copy.bytes.clear();
        let kept = frame.len().min(self.limits.snaplen as usize);
        copy.bytes.extend_from_slice(frame.get(..kept).unwrap_or(frame));
        Some(copy)
    }

    /// Hands a copy to the reader.
    pub fn put(&self, copy: Box<CapturedPacket>) {
        self.copied.fetch_add(1, Ordering::Relaxed);
        // There is room for every buffer.
        let _put = self.filled.push(copy);
    }

    /// Takes a buffer back.
    pub fn give_back(&self, copy: Box<CapturedPacket>) {
        // There is room for every buffer.
        let _put = self.empty.push(copy);
    }

    /// Whether no more packets are wanted.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    // ---- the reader's side ------------------------------------------------------------------------------------

    /// The next packet, to be [given back](Capture::give_back).
    pub fn take(&self) -> Option<Box<CapturedPacket>> {
        self.filled.pop()
    }

    /// How much is captured.
    pub fn limits(&self) -> CaptureLimits {
        self.limits
    }

    /// Packets at that point of which no copy was made, because the reader had not taken earlier ones.
    pub fn left_out(&self, point: CapturePoint) -> u64 {
        let counter = self.left_out.get(point as usize);
        counter.map_or(0, |left_out| left_out.load(Ordering::Relaxed))
    }

    /// Ends it: workers look at no more packets.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use scheduling::Scheduler;

    use super::*;

    fn tuple(src_port: u16) -> Tuple {
        Tuple {
            src: "10.0.0.7".parse().unwrap(),
            dst: "10.128.0.1".parse().unwrap(),
            src_port,
            dst_port: 9,
            protocol: 17,
            vlan: 0,
        }
    }

    fn seen(point: CapturePoint, src_port: u16) -> Sighting {
        Sighting::at(point, Nanos(5), Some(tuple(src_port)))
    }

    fn capture(filter: CaptureFilter, packets: u64, snaplen: u32) -> Arc<Capture> {
        Capture::new(filter, CaptureLimits { packets, snaplen })
    }

    fn taken(of: &Capture) -> Vec<u16> {
        let mut ports = Vec::new();
        while let Some(copy) = of.take() {
            ports.push(copy.seen.tuple.unwrap().src_port);
            of.give_back(copy);
        }
        ports
    }

    #[test]
    fn a_full_queue_leaves_copies_out_and_counts_them() {
        let points = vec![CapturePoint::Before];
        let of = capture(
            CaptureFilter {
                points,
                ..CaptureFilter::default()
            },
            u64::MAX,
            // 16 MiB of these are 256 buffers.
            CAPTURE_SNAPLEN_LIMIT,
        );
        let room = QUEUE_BYTES / CAPTURE_SNAPLEN_LIMIT as usize;
        for port in 0..room as u16 + 10 {
            of.see(seen(CapturePoint::Before, port), b"frame");
        }
        assert_eq!(of.left_out(CapturePoint::Before), 10);
        assert_eq!(of.left_out(CapturePoint::After), 0);
        // The oldest are there, and their buffers serve again.
        assert_eq!(taken(&of), (0..room as u16).collect::<Vec<_>>());
        of.see(seen(CapturePoint::Before, 7), b"frame");
        assert_eq!((taken(&of), of.left_out(CapturePoint::Before)), (vec![7], 10));
    }

    #[test]
    fn it_ends_with_its_packets_and_when_it_is_told() {
        let filter = CaptureFilter {
            points: vec![CapturePoint::After],
            ..CaptureFilter::default()
        };
        let of = capture(filter.clone(), 3, 64);
        (0..9).for_each(|port| of.see(seen(CapturePoint::After, port), b"frame"));
        assert_eq!((taken(&of), of.left_out(CapturePoint::After)), (vec![0, 1, 2], 0));
        let of = capture(filter, 3, 64);
        of.end();
        of.see(seen(CapturePoint::After, 1), b"frame");
        assert_eq!(taken(&of), Vec::<u16>::new());
    }

    #[test]
    fn a_long_packet_is_cut_and_its_length_is_kept() {
        let filter = CaptureFilter {
            points: vec![CapturePoint::After],
            ..CaptureFilter::default()
        };
        let of = capture(filter, 3, 64);
        of.see(seen(CapturePoint::After, 1), &[7; 1500]);
        let copy = of.take().unwrap();
        assert_eq!((copy.length, copy.bytes.as_slice()), (1500, [7; 64].as_slice()));
        assert_eq!(copy.bytes.capacity(), 64);
    }

    #[test]
    fn each_part_of_a_filter_is_required() {
        let scheduler = Scheduler::from_name("round-robin").unwrap();
        let service = ServicePlan::of_all(ServiceId(2), scheduler);
        let all = CaptureFilter {
            points: vec![CapturePoint::Uplink, CapturePoint::Dropped],
            ..CaptureFilter::default()
        };
        let dropped = Sighting {
            reason: Some(DropReason::Unmatched),
            slot: Some(Slot(4)),
            service: Some(ServiceId(2)),
            ..seen(CapturePoint::Dropped, 1000)
        };
        let is_seen = |filter: &CaptureFilter, seen: Sighting| {
            let of = capture(filter.clone(), 1, 64);
            of.see(seen, b"frame");
            of.take().is_some()
        };
        assert!(is_seen(&all, dropped) && is_seen(&all, seen(CapturePoint::Uplink, 1)));
        assert!(!is_seen(&all, seen(CapturePoint::Before, 1)));
        let reason = CaptureFilter {
            reason: Some(DropReason::Unmatched),
            ..all.clone()
        };
        assert!(is_seen(&reason, dropped) && !is_seen(&reason, seen(CapturePoint::Uplink, 1)));
        let slot = CaptureFilter {
            slot: Some(Slot(4)),
            ..all.clone()
        };
        assert!(is_seen(&slot, dropped) && !is_seen(&slot, seen(CapturePoint::Dropped, 1000)));
        let (key, _) = FlowKey::new(&Tuple {
            src: tuple(1000).dst,
            dst: tuple(1000).src,
            src_port: 9,
            dst_port: 1000,
            ..tuple(1000)
        });
        let flow = CaptureFilter {
            key: Some(key),
            ..all.clone()
        };
        assert!(is_seen(&flow, dropped) && !is_seen(&flow, seen(CapturePoint::Dropped, 1001)));
        let of_service = CaptureFilter {
            service: Some(service),
            ..all
        };
        let of_other = Sighting {
            service: Some(ServiceId(1)),
            ..dropped
        };
        assert!(is_seen(&of_service, dropped) && !is_seen(&of_service, of_other));
        assert!(
            is_seen(&of_service, seen(CapturePoint::Uplink, 1)),
            "by its match"
        );
        let without_addresses = Sighting::at(CapturePoint::Uplink, Nanos(5), None);
        assert!(!is_seen(&of_service, without_addresses));
    }
}
