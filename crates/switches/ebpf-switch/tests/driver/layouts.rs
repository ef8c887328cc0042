//! Flows of the layout before this one: a take-over by a release with another layout.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData};
use ebpf_switch::{Before, EbpfSwitch, Release};
use model::{InstanceState, Slot};
use switch::Switch;

use crate::bed::{Bed, World, available};
use crate::frames::{ACK, FIN, SYN, tcp, udp};
use crate::namespaces::Tap;
use crate::restart::{packet, places};
use crate::steering::service;

/// Programs whose flows have their fields in other places, and one more: no release had them.
const OLDER: Release = Release {
    object: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/older.o")),
    layout: Release::THIS.layout - 1,
    before: None,
};
/// This release, if it came after that one.
const NEWER: Release = Release {
    before: Some(Before {
        layout: OLDER.layout,
        entry: from_older,
    }),
    ..Release::THIS
};

fn from_older(map: &str, key: &[u8], value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let value = if map.starts_with("flows") {
        let part = |from: usize, to: usize| value.get(from..to);
        // Pin, seen, packets, bytes, pinned at, outside, place, and the rest.
        let parts = [
            part(72, 80)?,
            part(56, 64)?,
            part(32, 48)?,
            part(8, 24)?,
            part(64, 72)?,
            part(48, 56)?,
            part(0, 8)?,
            part(80, 88)?,
        ];
        parts.concat()
    } else {
        value.to_vec()
    };
    Some((key.to_vec(), value))
}

/// A switch of the older release with two instances.
fn older_bed() -> Bed {
    let world = World::new(3);
    let switch = EbpfSwitch::start_as(&world.config, &OLDER).unwrap();
    let mut bed = Bed::of(switch, world, service(), 0);
    bed.publish();
    bed.add(0..2, &[]);
    bed
}

/// Flows that are there before, and the first of those that begin meanwhile.
const KNOWN: u16 = 800;
const FRESH: u16 = 1000;
/// How many begin at most.
const STEPS: u16 = 4000;

/// Sends packets of known flows and begins new ones, until it is to stop. Each new flow goes on for a while.
fn stream(wire: &Tap, stop: &AtomicBool) -> usize {
    let mut sent = 0;
    for step in 0..STEPS {
        wire.send(&packet(step % KNOWN));
        sent += 1;
        for back in [0, 9, 70, 300] {
            if let Some(flow) = step.checked_sub(back) {
                wire.send(&packet(FRESH + flow));
                sent += 1;
            }
        }
        if step % 8 == 0 {
            std::thread::sleep(Duration::from_micros(400));
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    sent
}

/// Another release takes over while packets come: known flows and those that begin meanwhile stay where they are, no
/// packet is lost, and each is counted once. `interrupts`: the first attempt ends when some programs are exchanged.
fn no_flow_moves(interrupts: bool) {
    let mut bed = older_bed();
    let wire = Tap::open(&bed.world.net, "net0");
    (0..KNOWN).for_each(|flow| wire.send(&packet(flow)));
    let before = places(&bed.world, usize::from(KNOWN));
    assert_eq!(before.values().collect::<BTreeSet<_>>().len(), 2);
    bed.turn();
    assert_eq!(bed.reading.delivered(), u64::from(KNOWN));
    bed.switch.leave();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| stream(&wire, &stop));
        std::thread::sleep(Duration::from_millis(20));
        if interrupts {
            let mut config = bed.world.config.clone();
            config.uplinks.push("missing0".to_owned());
            bed.world.host.enter();
            assert!(EbpfSwitch::start_as(&config, &NEWER).is_err());
            std::thread::sleep(Duration::from_millis(20));
        }
        bed.world.host.enter();
        bed.switch = EbpfSwitch::start_as(&bed.world.config, &NEWER).unwrap();
        let resumed = bed.switch.resumed().unwrap().clone();
        assert_eq!((&resumed.rejected[..], resumed.converted), (&[][..], 2));
        assert_eq!((resumed.instances, resumed.flows.rejected_entries()), (2, 0));
        assert!(resumed.flows.flows >= u64::from(KNOWN), "{resumed:?}");
        bed.publish();
        for slot in [Slot(0), Slot(1)] {
            bed.attach(slot);
            bed.set_state(slot, Some(InstanceState::Active));
        }
        for _ in 0..100 {
            bed.turn();
        }
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        assert!(sent > 500, "{sent}");
        // It checks that each flow is at one place.
        let mut during = places(&bed.world, sent);
        let fresh = during.split_off(&FRESH);
        assert!(fresh.len() > 100, "{}", fresh.len());
        assert!(during.iter().all(|(flow, slot)| before.get(flow) == Some(slot)));
        bed.turn();
        let flows = bed.flows();
        assert_eq!(flows.len(), usize::from(KNOWN) + fresh.len());
        let live: u64 = bed.reading.slots.iter().map(|of| of.live_flows).sum();
        assert_eq!(live, flows.len() as u64);
        assert_eq!(bed.reading.workers[0].live_flows, flows.len() as u64);
        assert_eq!(bed.reading.delivered(), u64::from(KNOWN) + sent as u64);
        assert_eq!(
            (bed.reading.offered(), bed.reading.dropped()),
            (bed.reading.delivered(), 0)
        );
        let moves: u64 = bed.reading.slots.iter().map(|of| of.expected_moves).sum();
        assert_eq!(moves, 0);
    });
    // The next one of this release takes over as always; nothing is left of the older maps.
    let next = format!("/sys/fs/bpf/inco-next/{}", bed.world.config.name);
    assert!(!std::path::Path::new(&next).exists());
    bed.switch.leave();
    bed.switch = bed.world.start_switch();
    let resumed = bed.switch.resumed().unwrap();
    assert_eq!((&resumed.rejected[..], resumed.converted), (&[][..], 0));
    bed.switch.stop();
}

#[test]
fn flows_of_the_layout_before_are_taken_over() {
    if available() {
        no_flow_moves(false);
    }
}

#[test]
fn a_take_over_of_another_layout_that_was_interrupted_goes_on() {
    if available() {
        no_flow_moves(true);
    }
}

/// Flows that begin in the middle of a take-over.
const BETWEEN: std::ops::Range<u16> = 2000..2100;
/// Sends their packets at the moments that the conversion of entries shows.
static BETWEEN_WIRE: Mutex<Option<(Tap, Moment)>> = Mutex::new(None);

/// How far the take-over is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Flows are copied. The older programs are attached.
    First,
    /// They have been copied, and new ones have begun since.
    Copied,
    /// Newer programs are attached, and flows are about to be copied once more.
    Exchanged,
}

/// As [`from_older`]; each of those flows has a packet after the first walk over the table, which the older programs
/// see, and one before the second walk, which the newer ones see.
fn with_packets_between(map: &str, key: &[u8], value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut between = BETWEEN_WIRE.lock().unwrap();
    if let Some((wire, moment)) = &mut *between {
        let next = match (*moment, map) {
            // IPv4 is copied before IPv6.
            (Moment::First, "flows_v6") => Some(Moment::Copied),
            // What comes before the flows in each walk.
            (Moment::Copied, "addresses") => Some(Moment::Exchanged),
            _ => None,
        };
        if let Some(next) = next {
            BETWEEN.for_each(|flow| wire.send(&packet(flow)));
            *moment = next;
        }
    }
    drop(between);
    from_older(map, key, value)
}

/// A flow that begins under the older programs, after their flows were copied, and goes on under the newer ones, which
/// know nothing of it: both pick the same instance.
#[test]
fn flows_that_begin_between_the_copy_and_the_exchange_stay() {
    if !available() {
        return;
    }
    let mut bed = older_bed();
    // One of IPv6, so that its table is walked over.
    bed.world
        .wire
        .send(&udp("[2001:db8:1::7]:4000", "[2001:db8::100]:80", &[0; 20]));
    (1..11).for_each(|flow| bed.world.wire.send(&packet(flow)));
    places(&bed.world, 11);
    bed.switch.leave();
    let wire = Tap::open(&bed.world.net, "net0");
    *BETWEEN_WIRE.lock().unwrap() = Some((wire, Moment::First));
    let before = Before {
        entry: with_packets_between,
        ..NEWER.before.unwrap()
    };
    let release = Release {
        before: Some(before),
        ..NEWER
    };
    bed.switch = EbpfSwitch::start_as(&bed.world.config, &release).unwrap();
    let (_, moment) = BETWEEN_WIRE.lock().unwrap().take().unwrap();
    assert_eq!(moment, Moment::Exchanged);
    // It checks that each flow is at one place.
    let at = places(&bed.world, 2 * BETWEEN.len());
    assert_eq!(at.len(), BETWEEN.len());
    assert_eq!(at.values().collect::<BTreeSet<_>>().len(), 2, "both have some");
    bed.publish();
    for slot in [Slot(0), Slot(1)] {
        bed.attach(slot);
        bed.set_state(slot, Some(InstanceState::Active));
    }
    BETWEEN.for_each(|flow| bed.world.wire.send(&packet(flow)));
    assert_eq!(places(&bed.world, BETWEEN.len()), at);
    bed.switch.stop();
}

/// Two releases back, or one ahead: that is said, and flows begin anew.
#[test]
fn maps_of_any_other_layout_are_rejected() {
    if !available() {
        return;
    }
    let mut bed = older_bed();
    bed.switch.leave();
    bed.switch = bed.world.start_switch();
    let rejected = bed.switch.resumed().unwrap().rejected.clone();
    let (found, reads) = (OLDER.layout, Release::THIS.layout);
    let said = format!("the maps of an earlier run have layout {found}, and this inco reads {reads}");
    assert_eq!(rejected, [said]);
    bed.switch.stop();
}

/// An entry that cannot be is left out and counted, as are flows for which a smaller table has no room.
#[test]
fn entries_that_cannot_be_converted_are_counted() {
    if !available() {
        return;
    }
    fn all_but_some(map: &str, key: &[u8], value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let is_odd = map == "flows_v4" && key.iter().fold(0, |a, b| a ^ b) & 1 == 1;
        if is_odd { None } else { from_older(map, key, value) }
    }
    let mut bed = older_bed();
    (0..400).for_each(|flow| bed.world.wire.send(&packet(flow)));
    places(&bed.world, 400);
    bed.switch.leave();
    bed.world.config.flows = [64, 64];
    let before = Before {
        entry: all_but_some,
        ..NEWER.before.unwrap()
    };
    let release = Release {
        before: Some(before),
        ..NEWER
    };
    bed.switch = EbpfSwitch::start_as(&bed.world.config, &release).unwrap();
    let counts = bed.switch.resumed().unwrap().flows;
    assert!(counts.malformed > 100 && counts.no_room > 50, "{counts:?}");
    assert_eq!(counts.flows + counts.rejected_entries(), 400, "{counts:?}");
    bed.switch.stop();
}

/// What an entry says, in a line: the key, the pin, and what follows the places that depend on time.
fn lines<const KEY: usize>(name: &str, map: &str) -> Vec<String> {
    let data = MapData::from_pin(format!("/sys/fs/bpf/inco/{name}/{map}")).unwrap();
    let map = HashMap::<_, [u8; KEY], [u8; 80]>::try_from(Map::HashMap(data)).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let line = |entry: Result<([u8; KEY], [u8; 80]), _>| {
        let (key, value) = entry.unwrap();
        // The pin, then packets and bytes, then neighbour and place, then opener, inside and the state of TCP.
        let parts = [&value[..8], &value[16..48], &value[56..72], &value[72..]];
        format!("{} {}", hex(&key), parts.map(hex).join(" "))
    };
    let mut lines: Vec<String> = map.iter().map(line).collect();
    lines.sort();
    lines
}

/// Entries are as the programs of this layout's release wrote them: keys, pins with their hashes, states. A change
/// without a new number is found here, see `src/release.rs`.
#[test]
fn entries_are_as_they_were_released() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    for (client, server) in [
        ("198.51.100.7:4000", "10.0.0.100:80"),
        ("[2001:db8:1::7]:4000", "[2001:db8::100]:443"),
        ("1.2.3.4:65535", "10.0.0.100:443"),
        ("[fe80::9]:1", "[2001:db8::100]:80"),
    ] {
        bed.sent(&udp(client, server, b"question"));
        bed.sent(&tcp(client, server, SYN));
        bed.sent(&tcp(client, server, ACK));
    }
    bed.sent(&tcp("198.51.100.7:4000", "10.0.0.100:80", FIN | ACK));
    bed.sent(&tcp("198.51.100.7:4001", "10.0.0.100:80", SYN));
    let name = &bed.world.config.name;
    let mut text = lines::<16>(name, "flows_v4");
    text.extend(lines::<40>(name, "flows_v6"));
    let text = text.join("\n") + "\n";
    let place = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join(format!("tests/layouts/v{}.flows", Release::THIS.layout));
    if std::env::var_os("INCO_WRITE_REFERENCE").is_some() {
        std::fs::write(&place, &text).unwrap();
    }
    let released = std::fs::read_to_string(&place).unwrap_or_default();
    assert_eq!(
        text, released,
        "see src/release.rs for the steps that a change of the layout takes"
    );
    bed.switch.stop();
}
