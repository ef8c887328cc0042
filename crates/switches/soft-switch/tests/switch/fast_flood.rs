//! A flood of datagrams beside the programs of the fast path: real frames, none of which is answered.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fast_path::KernelPath;
use model::{FlowKey, Nanos, Tuple, protocol};
use packet::build::Frame;
use promotion::{Curve, Paths, Prices, Settings};
use soft_switch::FastConfig;
use switch::Switch as _;

use crate::bed::{Bed, PATIENCE};
use crate::kernel::{VIP, World, available, is_accounted_for, service, switch_changed};
use crate::kernel_contract::{send_all, tap};

/// Rules at a time.
const RULES: u64 = 64;
/// Flows that are answered: less than half of the rules are theirs.
const ANSWERED: usize = 24;
/// Datagrams of the flood, each a flow of its own.
const FLOOD: u32 = 40_000;
/// Of them on their way at a time: much less than each ring and queue holds, so that the flood loses nobody's packets.
const UNDER_WAY: u64 = 128;
const WINDOW: Nanos = Nanos::from_millis(200);
/// Nobody answers datagrams of another length.
const QUESTION: usize = 18;

/// A switch for which each flow of two packets is worth a rule: the easiest one for a flood.
fn start(world: &mut World) -> Bed {
    let flat = |ns| Curve {
        small_ns: ns,
        large_ns: ns,
    };
    let paths = Paths {
        slow: flat(2_000.0),
        fast: Some(flat(1_000.0)),
    };
    let mut bed = switch_changed(1, 2, service(), |config| {
        config.table.ipv4_flows = 1 << 17;
        config.workers = vec![Some(0)];
        config.fast = Some(FastConfig {
            path: Arc::new(KernelPath::load().unwrap()),
            settings: Settings {
                rules: RULES as usize,
                window: WINDOW,
                ..Settings::default()
            },
            prices: Prices {
                paths: [paths; 4],
                rule_ns: 1.0,
            },
        });
    });
    world.add_server(&mut bed, 0);
    world.add_server(&mut bed, 1);
    bed
}

/// Sends each question back, and nothing else, until it is over.
fn answer(socket: &UdpSocket, is_over: &AtomicBool) {
    let mut data = [0; 64];
    while !is_over.load(Ordering::Relaxed) {
        if let Ok((QUESTION, from)) = socket.recv_from(&mut data) {
            socket.send_to(&data[..QUESTION], from).unwrap();
        }
    }
}

/// Has each client ask again as soon as it has its answer and a millisecond has passed, and counts the answers of each. A
/// client that misses one asks no more.
fn ask(clients: &[UdpSocket], answers: &[AtomicU64], is_over: &AtomicBool) {
    let send = |client: &UdpSocket, number: u64| {
        let mut question = [0; QUESTION];
        question[..8].copy_from_slice(&number.to_ne_bytes());
        client.send(&question).unwrap();
    };
    clients.iter().for_each(|client| send(client, 0));
    while !is_over.load(Ordering::Relaxed) {
        for (client, answers) in clients.iter().zip(answers) {
            let (mut data, number) = ([0; 64], answers.load(Ordering::Relaxed));
            if client.recv(&mut data).is_ok() {
                assert_eq!(
                    data[..8],
                    number.to_ne_bytes(),
                    "another answer than that to {number}"
                );
                answers.store(number + 1, Ordering::Relaxed);
                send(client, number + 1);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// For how long a flow has had its rule, in seconds; none if it has no rule.
fn has_rule_for(bed: &Bed, flow: &FlowKey) -> Option<f64> {
    let said = bed.switch.path_of(flow).unwrap();
    let (_, since) = said.split_once("it got its rule ")?;
    since.split(' ').next().unwrap().parse().ok()
}

#[test]
fn a_flood_of_datagrams_takes_no_rule_of_an_answered_flow_and_exceeds_no_budget() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = start(&mut world);
    let server: SocketAddr = format!("{VIP}:80").parse().unwrap();
    let is_over = AtomicBool::new(false);
    let (sent, taken) = (AtomicU64::new(0), AtomicU64::new(0));
    let sockets: Vec<UdpSocket> = world
        .instances
        .values()
        .map(|instance| {
            let socket = instance.within(|| UdpSocket::bind(server).unwrap());
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            socket
        })
        .collect();
    let clients: Vec<UdpSocket> = world.net.within(|| {
        let bound = (0..ANSWERED).map(|_| {
            let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
            socket.connect(server).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        });
        bound.collect()
    });
    let answers: Vec<AtomicU64> = clients.iter().map(|_| AtomicU64::new(0)).collect();
    let flows: Vec<FlowKey> = clients
        .iter()
        .map(|client| {
            let from = client.local_addr().unwrap();
            let tuple = Tuple {
                src: from.ip(),
                dst: server.ip(),
                src_port: from.port(),
                dst_port: server.port(),
                protocol: protocol::UDP,
                vlan: 0,
            };
            FlowKey::new(&tuple).0
        })
        .collect();
    let mut wire = tap(&world.net, "net0");
    std::thread::scope(|scope| {
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let end = Over(&is_over);
        let (is_over, sent, taken) = (&is_over, &sent, &taken);
        for socket in &sockets {
            scope.spawn(move || answer(socket, is_over));
        }
        let clients = &clients;
        // The kernel holds what comes before it knows the neighbour: only one asks for it.
        clients[0].set_nonblocking(false).unwrap();
        clients[0].set_read_timeout(Some(PATIENCE)).unwrap();
        clients[0].send(&[0; QUESTION]).unwrap();
        clients[0].recv(&mut [0; QUESTION]).unwrap();
        clients[0].set_nonblocking(true).unwrap();
        let answers = &answers;
        scope.spawn(move || ask(clients, answers, is_over));

        // All are answered, and have rules. Then it is known that even short flows are worth one.
        bed.until("all have had rules for some windows", |bed| {
            flows
                .iter()
                .all(|flow| has_rule_for(bed, flow).is_some_and(|s| s > 1.0))
        });
        assert_eq!(bed.reading.workers[0].fast_rules, ANSWERED as u64);
        let (before, began) = (bed.reading.workers[0], Instant::now());

        let flood = scope.spawn(move || {
            for number in (0..FLOOD).step_by(16) {
                while sent.load(Ordering::Relaxed) > taken.load(Ordering::Relaxed) + UNDER_WAY {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
                let frames = (number..number + 16).map(|number| {
                    let [_, a, b, c] = number.to_be_bytes();
                    let from = SocketAddr::from(([198, 18 + a % 2, b, c], 1024 + (number % 60_000) as u16));
                    let mut frame = Frame::udp(from, server, b"nobody answers").unwrap();
                    frame.dst_mac = [0x42, 0, 0, 0, 0, 2];
                    frame.to_vec().unwrap()
                });
                send_all(&mut wire, frames);
                sent.fetch_add(16, Ordering::Relaxed);
            }
        });
        // Flows of the flood that were begun: each with a packet.
        let new_flows = |bed: &Bed| bed.reading.slots[..2].iter().map(|of| of.new_flows).sum::<u64>();
        let flows_before = new_flows(&bed);
        let mut most = 0;
        bed.until("the flood is over", |bed| {
            taken.store(new_flows(bed) - flows_before, Ordering::Relaxed);
            most = most.max(bed.reading.workers[0].fast_rules);
            flood.is_finished() && new_flows(bed) - flows_before >= u64::from(FLOOD)
        });
        let span = began.elapsed().as_secs_f64();
        flood.join().unwrap();
        for flow in &flows {
            let had = has_rule_for(&bed, flow);
            assert!(
                had.is_some_and(|had| had > span),
                "{had:?} of {span:.1} s: {flow:?}"
            );
        }
        let count = || -> Vec<u64> { answers.iter().map(|of| of.load(Ordering::Relaxed)).collect() };
        let answered = count();
        bed.until("each is answered once more: none has missed an answer", |_| {
            count().iter().zip(&answered).all(|(now, before)| now > before)
        });
        drop(end);
        let now = bed.reading.workers[0];
        println!(
            "{FLOOD} datagrams in {span:.1} s: {} promotions, {most} of {RULES} rules at most; {} questions answered, \
             {} packets by rules",
            now.promotions - before.promotions,
            answered.iter().sum::<u64>(),
            now.fast_packets - before.fast_packets
        );
        assert!(most > ANSWERED as u64, "the flood got no rule at all");
        assert!(most <= RULES, "{most} rules");
        assert!(now.fast_packets > before.fast_packets, "{now:?}");
    });
    bed.until("the flood has no rule any more", |bed| {
        bed.reading.workers[0].fast_rules <= ANSWERED as u64
    });
    is_accounted_for(&mut bed);
}
