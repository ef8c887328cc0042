//! Floods of packets that open connections which nobody goes on with.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use model::Slot;
use real_parts::{Namespace, fetch, serve};
use switch::Switch;

use crate::bed::{Bed, World, available};
use crate::frames::{ACK, SYN, tcp};
use crate::namespaces::Tap;
use crate::steering::service;

/// Connections that may be half open here: a quarter of the smaller table.
const HALF_OPEN: u32 = 64;

#[test]
fn a_flood_breaks_no_connection_and_fills_no_table() {
    if !available() {
        return;
    }
    let mut world = World::new(2);
    world.config.flows = [4096, 4 * HALF_OPEN];
    world.net.ip("addr add 10.0.0.1/24 dev net0");
    let mut bed = Bed::new(world, service());
    for slot in [Slot(0), Slot(1)] {
        bed.world.start_instance(slot, &["10.0.0.100/32"]);
        let instance = &bed.world.instances[&slot].namespace;
        instance.set("ipv4/tcp_syncookies", "1");
        serve(instance, "10.0.0.100:80");
        bed.activate(slot);
    }
    // One that was there before.
    const BYTES: u64 = 64 << 20;
    let mut before = bed
        .world
        .net
        .within(|| TcpStream::connect("10.0.0.100:80").unwrap());
    before.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    before.write_all(&BYTES.to_be_bytes()).unwrap();
    let mut block = vec![0; 1 << 20];
    before.read_exact(&mut block).unwrap();

    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let net = Namespace::clone_of(&bed.world.net);
    let tap = Tap::open(&net, "net0");
    std::thread::scope(|scope| {
        let (stop, sent) = (&stop, &sent);
        scope.spawn(move || {
            for number in 0..u32::MAX {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let [_, a, b, c] = number.to_be_bytes();
                let client = format!("198.{}.{b}.{c}:{}", 18 + a % 2, 1024 + number % 60_000);
                tap.send(&tcp(&client, "10.0.0.100:80", SYN));
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let end = Stop(stop);
        bed.until("the flood is one", |_| sent.load(Ordering::Relaxed) > 10_000);
        let failed: Vec<_> = (0..40)
            .filter_map(|_| bed.world.net.within(|| fetch("10.0.0.100:80", 50_000)).err())
            .collect();
        assert_eq!(failed, Vec::<String>::new(), "of 40 new ones");
        bed.turn();
        let listed = bed.flows();
        let half_open = listed.iter().filter(|row| row.tcp.name() == "handshake").count();
        // CPUs that ask at once may each let one more through.
        assert!(half_open <= HALF_OPEN as usize + 8, "{half_open} are half open");
        assert!(listed.len() < 1000, "{} flows", listed.len());
        assert_eq!(bed.reading.workers[0].table_full, 0);
        let flooded = bed.reading.services[0].flooded;
        assert!(flooded > 5000, "{flooded}");
        let mut left = BYTES - block.len() as u64;
        while left > 0 {
            let read = before.read(&mut block).unwrap();
            assert!(read > 0, "{left} bytes are missing");
            left -= read as u64;
        }
        drop(end);
    });
    bed.switch.stop();
}

/// Above the limit a SYN goes by its hash and makes no entry; its acknowledgement does, at the same instance.
#[test]
fn an_acknowledgement_is_pinned_where_its_syn_went() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|world, _| world.config.half_open = Some(4));
    let server = "10.0.0.100:80";
    for port in 4000..4004 {
        bed.sent(&tcp(&format!("198.51.100.7:{port}"), server, SYN));
    }
    assert_eq!(bed.flows().len(), 4);
    let mut slots = Vec::new();
    for port in 5000..5016 {
        let client = format!("198.51.100.7:{port}");
        let (slot, _) = bed.sent(&tcp(&client, server, SYN));
        bed.world.instances[&slot]
            .tap
            .send(&tcp(server, &client, SYN | ACK));
        let mut came = Vec::new();
        bed.until("the answer comes", |bed| {
            came.extend(bed.received());
            !came.is_empty()
        });
        assert_eq!(
            (&came[0][..6], &came[0][6..12]),
            (&crate::frames::CLIENT[..], &crate::frames::UPLINK[..])
        );
        assert_eq!(bed.flows().len(), 4 + slots.len(), "neither has made an entry");
        assert_eq!(bed.sent(&tcp(&client, server, ACK)).0, slot);
        assert_eq!(bed.flows().len(), 5 + slots.len());
        slots.push(slot);
    }
    assert!(slots.contains(&Slot(0)) && slots.contains(&Slot(1)), "{slots:?}");
    bed.turn();
    assert_eq!(bed.reading.services[0].flooded, 16);
    // Those that go on make room for others.
    for port in 4000..4004 {
        bed.sent(&tcp(&format!("198.51.100.7:{port}"), server, ACK));
    }
    bed.sent(&tcp("198.51.100.7:6000", server, SYN));
    bed.turn();
    assert_eq!(bed.reading.services[0].flooded, 16);
    assert_eq!(bed.flows().len(), 21);
    bed.switch.stop();
}
