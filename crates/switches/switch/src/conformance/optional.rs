//! What a driver need not be able to do: it does it or refuses it, by what it declares.

use std::sync::Arc;
use std::time::Instant;

use model::{CapturePoint, FlowKey, Tuple, UplinkId};

use super::{Conforming, FLOWS, PATIENCE, SERVICE, SLOTS, packet_of};
use crate::{
    Capture, CaptureFilter, CaptureLimits, Change, FlowFilter, PortKind, PortSpec, SwitchError, SwitchEvent,
    SwitchRequest,
};

pub(super) fn works_or_is_refused(of: &mut Conforming<'_>) {
    let can = of.bed.switch().capabilities();
    assert!(!can.ports.is_empty());
    of.add(SLOTS[0]);
    let mut is_refused = |request: SwitchRequest| match of.bed.switch().request(request) {
        Ok(()) => false,
        Err(SwitchError::Unsupported { .. }) => true,
        Err(other) => panic!("{other}"),
    };
    let key = FlowKey::new(&packet_of(0)).0;
    let to = SLOTS[0];
    let moves = SwitchRequest::Change(Change::MoveFlow { key, to });
    assert_eq!(is_refused(moves), !can.relaxed_moves, "MoveFlow");
    let service = SERVICE;
    assert_eq!(
        is_refused(SwitchRequest::Record { id: 9, service }),
        !can.pick_records,
        "Record"
    );
    let all = CaptureFilter {
        points: CapturePoint::WORDS.iter().map(|(_, point)| *point).collect(),
        ..CaptureFilter::default()
    };
    let limits = CaptureLimits {
        packets: 100,
        snaplen: 64,
    };
    let capture = Capture::new(all, limits);
    assert_eq!(
        is_refused(SwitchRequest::Capture(Arc::clone(&capture))),
        !can.captures,
        "Capture"
    );
    let kinds = PortKind::WORDS.iter().map(|(_, kind)| *kind);
    for kind in kinds.filter(|kind| !can.connects(*kind)) {
        let port = PortSpec::new(kind, "");
        let slot = SLOTS[1];
        let unknown = SwitchRequest::Attach { slot, service, port };
        assert!(is_refused(unknown), "it has no port of the kind {}", kind.name());
    }
    assert_eq!(is_refused(SwitchRequest::Probe(SLOTS[0])), !can.probes, "Probe");
    assert!(
        !is_refused(SwitchRequest::OpenUplink(UplinkId(0))),
        "an uplink that does not wait"
    );
    of.send(0..1);
    if can.pick_records {
        of.until("the decision is told", |of| {
            of.events
                .iter()
                .any(|e| matches!(e, SwitchEvent::Recorded(record) if record.id == 9))
        });
    }
    of.give_all_back();
    if can.captures {
        sees_the_packet(of, &capture);
    }
    if can.flow_counters {
        // An answer is a packet of the flow, too.
        let packets = if can.returns { 1 } else { 2 };
        of.until("the flow's packets are counted", |of| {
            let (rows, _) = of.flows(FlowFilter::default(), 10);
            rows.first()
                .is_some_and(|row| row.packets.iter().sum::<u64>() == packets)
        });
    }
}

/// The first packet is captured at each point that it passes. A second capture has to wait until the first one is over.
fn sees_the_packet(of: &mut Conforming<'_>, capture: &Arc<Capture>) {
    let key = FlowKey::new(&packet_of(0)).0;
    let mut points = Vec::new();
    of.until("the packet is captured at each point", |_| {
        while let Some(copy) = capture.take() {
            assert_eq!(copy.seen.tuple.map(|tuple| FlowKey::new(&tuple).0), Some(key));
            points.push(copy.seen.point);
            capture.give_back(copy);
        }
        points.len() >= 4
    });
    use CapturePoint::{After, Before, Uplink};
    assert_eq!(points, [Uplink, Before, After, Uplink]);
    let again = || {
        let filter = CaptureFilter::default();
        Capture::new(filter, capture.limits())
    };
    let refused = of.bed.switch().request(SwitchRequest::Capture(again()));
    assert!(matches!(refused, Err(SwitchError::Capturing)), "{refused:?}");
    capture.end();
    let next = again();
    let request = SwitchRequest::Capture(Arc::clone(&next));
    let begun = of.bed.switch().request(request);
    assert!(begun.is_ok(), "the first one is over: {begun:?}");
    next.end();
}

/// Packets wait in the ring of an instance that takes none. Where instances end connections, there is no such ring.
pub(super) fn what_is_not_seen_stays_0(of: &mut Conforming<'_>) {
    let can = of.bed.switch().capabilities();
    of.add(SLOTS[0]);
    let packets: Vec<Tuple> = (0..FLOWS).map(packet_of).collect();
    of.bed.offer(&packets);
    let began = Instant::now();
    let mut fullest = 0;
    loop {
        let now = of.bed.wait();
        of.bed.switch().poll(now, &mut of.events);
        of.bed.switch().read(&mut of.reading);
        let slot = &of.reading.slots[SLOTS[0].index()];
        fullest = fullest.max(slot.ring_used);
        if slot.to_packets >= u64::from(FLOWS) && (fullest > 0 || !can.ring_occupancy) {
            break;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{fullest} descriptors in use: {slot:?}"
        );
    }
    assert_eq!(fullest > 0, can.ring_occupancy, "{fullest} descriptors in use");
    of.until("it has them all", |of| {
        of.given.values().map(Vec::len).sum::<usize>() >= packets.len()
    });
    of.give_all_back();
}
