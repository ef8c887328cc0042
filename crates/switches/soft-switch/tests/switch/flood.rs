//! Floods of packets that open connections which nobody goes on with.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use model::{DropReason, Match};
use packet::TcpFlags;
use packet::build::Frame;
use real_parts::{Namespace, fetch};

use crate::bed::{Bed, echo, service, stamp};
use crate::kernel::{self, VIP, World, available};
use crate::kernel_contract::{send_all, tap};

const SYN: u8 = TcpFlags::SYN;
const ACK: u8 = TcpFlags::ACK;
/// Connections that may be half open here.
const HALF_OPEN: u32 = 64;

fn tcp(from: SocketAddr, flags: u8) -> Vec<u8> {
    let to = "198.51.100.1:80".parse().unwrap();
    let frame = Frame::tcp(from, to, TcpFlags(flags), b"a stamp has its place here").unwrap();
    frame.to_vec().unwrap()
}

/// Sends a packet. Gives the instance that it came to.
fn sent(bed: &mut Bed, from: SocketAddr, flags: u8) -> u8 {
    bed.send(0, [tcp(from, flags).as_slice()]);
    stamp(&bed.take_all(0, 1)[0])
}

/// Above the limit a SYN goes by its hash and makes no entry; its acknowledgement does, at the same instance. So it is
/// with IPv4 and IPv6, and for a service whose unknown connections are picked by load.
#[test]
fn an_acknowledgement_is_pinned_where_its_syn_went() {
    for recovers in [false, true] {
        let mut of = service(0, &[0], Match::default());
        of.recovers = recovers;
        let mut bed = Bed::with(1, 1, vec![of], |config| config.half_open = Some(4));
        for slot in 0..3 {
            bed.add(slot, 0, 1, echo);
        }
        let client = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        let flows = |bed: &mut Bed, count: u64| {
            bed.until("so many flows are there", |bed| {
                bed.reading.workers[0].live_flows == count
            });
        };
        for port in 4000..4004 {
            sent(&mut bed, client(port), SYN);
        }
        flows(&mut bed, 4);
        let mut used = BTreeSet::new();
        for port in 5000..5032 {
            let at = sent(&mut bed, client(port), SYN);
            // Sent again, it goes the same way, and so does the answer to it.
            assert_eq!(sent(&mut bed, client(port), SYN), at);
            let server = "198.51.100.1:80".parse().unwrap();
            let answer = Frame::tcp(
                server,
                client(port),
                TcpFlags(SYN | ACK),
                b"a stamp has its place here",
            )
            .unwrap();
            bed.send(0, [answer.to_vec().unwrap().as_slice()]);
            assert_eq!(stamp(&bed.take_all(0, 1)[0]), at);
            flows(&mut bed, 4 + u64::from(port - 5000));
            assert_eq!(sent(&mut bed, client(port), ACK), at);
            flows(&mut bed, 5 + u64::from(port - 5000));
            used.insert(at);
        }
        assert_eq!(used.len(), 3, "{used:?}");
        assert_eq!(bed.reading.services[0].flooded, 64);
        // Those that go on make room for others.
        for port in 4000..4004 {
            sent(&mut bed, client(port), ACK);
        }
        sent(&mut bed, client(6000), SYN);
        assert_eq!(bed.reading.services[0].flooded, 64);
        flows(&mut bed, 37);
        bed.finish();
    }
}

#[test]
fn connections_that_end_or_are_forgotten_are_half_open_no_more() {
    let mut bed = Bed::with(1, 1, vec![service(0, &[0], Match::default())], |config| {
        config.half_open = Some(8);
        config.timeouts.tcp_handshake = model::Nanos::from_millis(200);
    });
    bed.add(0, 0, 1, echo);
    let client = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
    for round in 0..3 {
        // Refused, reset, begun anew and forgotten.
        for port in 0..8 {
            sent(&mut bed, client(1000 * (round + 1) + port), SYN);
        }
        assert_eq!(bed.reading.services[0].flooded, 0);
        (0..4).for_each(|port| {
            let from = client(1000 * (round + 1) + port);
            sent(&mut bed, from, TcpFlags::RST);
            sent(&mut bed, from, SYN);
        });
        bed.until("they are forgotten", |bed| bed.reading.workers[0].live_flows == 0);
    }
    assert_eq!(bed.reading.services[0].flooded, 0);
    bed.finish();
}

#[test]
fn a_flood_breaks_no_connection_and_fills_no_table() {
    if !available() {
        return;
    }
    for workers in [1, 2] {
        let mut world = World::new();
        let mut bed = kernel::switch_changed(workers, 2, kernel::service(), |config| {
            config.half_open = Some(HALF_OPEN);
            config.table.ipv4_flows = 4096;
        });
        for slot in 0..2 {
            world.add_server(&mut bed, slot);
            world.instances[&slot].set("ipv4/tcp_syncookies", "1");
        }
        bed.plan.services[0].recovers = true;
        bed.publish();
        bed.publish();
        // One that was there before.
        const BYTES: u64 = 16 << 20;
        let server = format!("{VIP}:80");
        let mut before = world.net.within(|| TcpStream::connect(&server).unwrap());
        before.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        before.write_all(&BYTES.to_be_bytes()).unwrap();
        let mut block = vec![0; 1 << 20];
        before.read_exact(&mut block).unwrap();

        let (stop, count, taken) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let (served, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut wire = tap(&world.net, "net0");
        let to: SocketAddr = server.parse().unwrap();
        std::thread::scope(|scope| {
            let (stop, count, taken) = (&stop, &count, &taken);
            let (served, done) = (&served, &done);
            scope.spawn(move || {
                for number in 0..u32::MAX / 16 {
                    // Much less than the uplink's ring and the kernel's queues hold: what finds them full is lost,
                    // whoever sent it. The flood sleeps meanwhile, so that those that serve have the CPU.
                    while count.load(Ordering::Relaxed) > taken.load(Ordering::Relaxed) + 128 {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        std::thread::sleep(Duration::from_micros(500));
                    }
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let frames = (16 * number..16 * (number + 1)).map(|number| {
                        let [_, a, b, c] = number.to_be_bytes();
                        let port = 1024 + (number % 60_000) as u16;
                        let from = SocketAddr::from(([198, 18 + a % 2, b, c], port));
                        let mut frame = Frame::tcp(from, to, TcpFlags(SYN), &[]).unwrap();
                        frame.dst_mac = [0x42, 0, 0, 0, 0, 2];
                        frame.to_vec().unwrap()
                    });
                    send_all(&mut wire, frames);
                    count.fetch_add(16, Ordering::Relaxed);
                }
            });
            struct Stop<'a>(&'a AtomicBool);
            impl Drop for Stop<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let end = Stop(stop);
            let follow = |bed: &mut Bed, what: &str, holds: &dyn Fn() -> bool| {
                bed.until(what, |bed| {
                    taken.store(bed.reading.uplinks[0].received_packets, Ordering::Relaxed);
                    holds()
                });
            };
            follow(&mut bed, "the flood is one", &|| {
                count.load(Ordering::Relaxed) > 6_000
            });
            let net = Namespace::clone_of(&world.net);
            let (before, server) = (&mut before, &server);
            let clients = scope.spawn(move || {
                struct Done<'a>(&'a AtomicBool);
                impl Drop for Done<'_> {
                    fn drop(&mut self) {
                        self.0.store(true, Ordering::Relaxed);
                    }
                }
                let _end = Done(done);
                let fetched = (0..20).map(|_| {
                    let fetched = net.within(|| fetch(server, 50_000));
                    served.fetch_add(1, Ordering::Relaxed);
                    fetched
                });
                let failed: Vec<_> = fetched.filter_map(Result::err).collect();
                let mut left = BYTES - block.len() as u64;
                while left > 0 {
                    let read = before.read(&mut block).unwrap();
                    assert!(read > 0, "{left} bytes are missing");
                    left -= read as u64;
                }
                failed
            });
            for number in 1..=20 {
                follow(&mut bed, "the next client is served", &|| {
                    served.load(Ordering::Relaxed) >= number
                });
            }
            follow(&mut bed, "the client of before is served", &|| {
                done.load(Ordering::Relaxed)
            });
            assert_eq!(clients.join().unwrap(), Vec::<String>::new(), "of 20 new ones");
            bed.until("all is read", |_| true);
            let flows: u64 = bed.reading.workers.iter().map(|of| of.live_flows).sum();
            assert!(flows < 1000, "{flows} flows");
            assert!(bed.reading.workers.iter().all(|of| of.table_full == 0));
            let flooded = bed.reading.services[0].flooded;
            assert!(flooded > 5000, "{flooded}");
            drop(end);
        });
        assert_eq!(bed.reading.drops[DropReason::Spoofed.index()], 0);
    }
}
