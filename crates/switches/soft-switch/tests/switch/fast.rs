//! The programs of the fast path beside the worker: flows that are promoted and demoted all the time.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fast_path::KernelPath;
use model::{DropReason, InstanceState, Nanos};
use promotion::{Curve, Paths, Prices, Settings};
use real_parts::{Namespace, fetch, is_full_length};
use soft_switch::{FastConfig, SoftSwitchConfig};
use switch::ServicePlan;

use crate::bed::{Bed, PATIENCE};
use crate::kernel::{VIP, VIP_V6, World, available, is_accounted_for, service, switch_changed};

/// Flows of each version of IP that are promoted and demoted.
const FLOWS: usize = 24;

/// Has each flow promoted as soon as it may be, and demoted again when it has had its rule for that span.
pub(crate) fn beside(config: &mut SoftSwitchConfig, window: Nanos) {
    let flat = |ns| Curve {
        small_ns: ns,
        large_ns: ns,
    };
    let paths = Paths {
        slow: flat(2_000.0),
        fast: Some(flat(1_000.0)),
    };
    // The clients are on this machine: the uplink is one of a pair of interfaces.
    let across = Paths {
        fast: Some(paths.slow),
        ..paths
    };
    config.workers = vec![Some(0)];
    config.fast = Some(FastConfig {
        path: Arc::new(KernelPath::load().unwrap()),
        settings: Settings {
            rules: 1000,
            promotions_per_second: 1_000_000,
            window,
            keep_at: 1e12,
            ..Settings::default()
        },
        prices: Prices {
            paths: [paths, across, paths, across],
            rule_ns: 1.0,
        },
    });
}

fn start(world: &mut World, service: ServicePlan, window: Nanos) -> Bed {
    let mut bed = switch_changed(1, 2, service, |config| beside(config, window));
    world.add_server(&mut bed, 0);
    world.add_server(&mut bed, 1);
    bed
}

/// Keeps a thread on one CPU: what it sends from another one could overtake what waits in the queue of the first.
fn stay() {
    let mut set = rustix::thread::CpuSet::new();
    set.set(usize::from(
        std::thread::available_parallelism().unwrap().get() > 1,
    ));
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

fn fast_packets(bed: &Bed) -> u64 {
    bed.reading.slots.iter().map(|of| of.fast_packets).sum()
}

#[test]
fn downloads_are_exact_while_flows_change_their_path() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = start(&mut world, service(), Nanos::from_millis(20));
    let bytes = if is_full_length() { 1 << 30 } else { 64 << 20 };
    let downloads: Vec<_> = [format!("{VIP}:80"), format!("[{VIP_V6}]:80")]
        .into_iter()
        .cycle()
        .take(6)
        .map(|address| {
            let net = Namespace::clone_of(&world.net);
            std::thread::spawn(move || net.within(|| fetch(&address, bytes)))
        })
        .collect();
    // They take their time: each byte is made and compared by this test. But packets come all the time.
    let are_done = || downloads.iter().all(|of| of.is_finished());
    while !are_done() {
        let before = bed.reading.offered();
        bed.until("packets come, or all are done", |bed| {
            are_done() || bed.reading.offered() >= before + 100
        });
    }
    for download in downloads {
        download.join().unwrap().unwrap();
    }
    is_accounted_for(&mut bed);
    let figures = &bed.reading.workers[0];
    let (promotions, demotions) = (figures.promotions, figures.demotions);
    println!(
        "{promotions} promotions, {demotions} demotions, {} packets by rules",
        fast_packets(&bed)
    );
    assert!(promotions > 10 && demotions > 10);
    assert!(fast_packets(&bed) > 200);
    bed.until("no rule is left", |bed| bed.reading.workers[0].fast_rules == 0);
}

/// What clients and instances saw of numbered datagrams, which instances send back.
struct Talk {
    /// By flow.
    sent: Vec<u64>,
    came: Vec<u64>,
    /// Doubled, out of order, or by another instance.
    wrong: u64,
    span: f64,
}

impl Talk {
    fn all(&self) -> u64 {
        self.sent.iter().sum()
    }

    fn lost(&self) -> u64 {
        self.all() - self.came.iter().sum::<u64>()
    }
}

/// How clients send in a turn of a millisecond.
#[derive(Clone, Copy)]
struct Pace {
    /// Datagrams of a flow, at most, of eight.
    burst: u64,
    /// Datagrams on their way, of all flows.
    window: u64,
    /// Bytes that a socket of an instance holds.
    buffer: usize,
    span: Duration,
}

/// The service's addresses.
fn addresses() -> [String; 2] {
    [format!("{VIP}:80"), format!("[{VIP_V6}]:80")]
}

/// Clients send numbered datagrams, and instances send each back, over both versions of IP.
fn talk(world: &World, bed: &mut Bed, pace: Pace) -> Talk {
    let is_over = Arc::new(AtomicBool::new(false));
    let wrong = Arc::new(AtomicU64::new(0));
    let mut echoes = Vec::new();
    for (slot, instance) in &world.instances {
        for address in addresses() {
            let socket = instance.within(|| UdpSocket::bind(&address).unwrap());
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, pace.buffer).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let (is_over, wrong, slot) = (Arc::clone(&is_over), Arc::clone(&wrong), *slot as u8);
            echoes.push(std::thread::spawn(move || {
                stay();
                let mut next = std::collections::BTreeMap::<SocketAddr, u64>::new();
                let mut data = [0; 64];
                while !is_over.load(Ordering::Relaxed) {
                    let Ok((len, from)) = socket.recv_from(&mut data) else {
                        continue;
                    };
                    let number = u64::from_ne_bytes(*data.first_chunk().unwrap());
                    let next = next.entry(from).or_default();
                    if number < *next {
                        println!("{from}: {number} came, {next} was to come, at instance {slot}");
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                    *next = number + 1;
                    data[8] = slot;
                    socket.send_to(&data[..len], from).unwrap();
                }
            }));
        }
    }
    let servers = addresses().map(|of| of.parse::<SocketAddr>().unwrap());
    let clients: Vec<UdpSocket> = world.net.within(|| {
        (0..2 * FLOWS)
            .map(|at| {
                let server = servers[at % 2];
                let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any).unwrap();
                socket.connect(server).unwrap();
                rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
                socket.set_nonblocking(true).unwrap();
                socket
            })
            .collect()
    });
    // The kernel holds datagrams whose neighbour it asks for, and sends them by another CPU beside those that follow.
    world.net.within(|| {
        for server in servers {
            let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
            socket.connect(server).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.send(&[0; 18]).unwrap();
            socket.recv(&mut [0; 64]).unwrap();
        }
    });
    let client = std::thread::spawn({
        let wrong = Arc::clone(&wrong);
        move || {
            stay();
            let ends = Instant::now() + pace.span;
            let (mut sent, mut came) = (vec![0_u64; clients.len()], vec![0_u64; clients.len()]);
            // The number that comes next; what was left out is lost, or is wrong when it comes.
            let mut next = vec![0_u64; clients.len()];
            let mut by = vec![None; clients.len()];
            let mut random = 1_u64;
            let mut look = |sent: &[u64], came: &mut [u64]| {
                let mut data = [0; 64];
                for (at, socket) in clients.iter().enumerate() {
                    while socket.recv(&mut data).is_ok() {
                        let number = u64::from_ne_bytes(*data.first_chunk().unwrap());
                        let instance = *by[at].get_or_insert(data[8]);
                        if number < next[at] || number >= sent[at] || data[8] != instance {
                            println!("flow {at}: {number} came back, {} was to come", next[at]);
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                        next[at] = number + 1;
                        came[at] += 1;
                    }
                }
                sent.iter()
                    .zip(&next)
                    .map(|(sent, next)| sent - next)
                    .sum::<u64>()
            };
            while Instant::now() < ends {
                let mut room = pace.window.saturating_sub(look(&sent, &mut came));
                for (at, socket) in clients.iter().enumerate() {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if random >> 40 & 3 > 0 {
                        continue;
                    }
                    for _ in 0..((1 + (random >> 61)) * pace.burst / 8)
                        .clamp(1, room.max(1))
                        .min(room)
                    {
                        let mut data = [0; 18];
                        data[..8].copy_from_slice(&sent[at].to_ne_bytes());
                        socket.send(&data).unwrap();
                        sent[at] += 1;
                        room -= 1;
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let late = Instant::now() + Duration::from_secs(2);
            while came != sent && Instant::now() < late {
                look(&sent, &mut came);
                std::thread::sleep(Duration::from_millis(5));
            }
            (sent, came)
        }
    });
    let began = Instant::now();
    while !client.is_finished() {
        bed.until("some time has passed", |_| true);
        std::thread::sleep(Duration::from_millis(1));
    }
    let span = began.elapsed().as_secs_f64();
    let (sent, came) = client.join().unwrap();
    is_over.store(true, Ordering::Relaxed);
    for echo in echoes {
        echo.join().unwrap();
    }
    is_accounted_for(bed);
    Talk {
        sent,
        came,
        wrong: wrong.load(Ordering::Relaxed),
        span,
    }
}

/// Packets that the kernel of a namespace has counted as lost: at its interface, and at full sockets.
fn lost_by_kernel(namespace: &Namespace, interface: &str) -> [u64; 2] {
    namespace.within(|| {
        let file = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
        let number = |word: Option<&str>| word.unwrap().parse::<u64>().unwrap();
        // Received: bytes, packets, errors, drops, and four more. Sent: bytes, packets, errors, drops.
        let devices = file("dev");
        let own = devices
            .lines()
            .find(|line| line.trim_start().starts_with(interface));
        let words: Vec<&str> = own.unwrap().split_whitespace().collect();
        let at_interface = number(words.get(4).copied()) + number(words.get(12).copied());
        let v4 = file("snmp");
        let mut v4 = v4.lines().filter(|line| line.starts_with("Udp:"));
        let (names, values) = (v4.next().unwrap(), v4.next().unwrap());
        let place = names.split_whitespace().position(|name| name == "RcvbufErrors");
        let v4 = number(values.split_whitespace().nth(place.unwrap()));
        let v6 = file("snmp6");
        let v6 = v6.lines().find(|line| line.starts_with("Udp6RcvbufErrors"));
        let v6 = number(v6.unwrap().split_whitespace().nth(1));
        [at_interface, v4 + v6]
    })
}

/// Who has lost how many packets: all who can count any.
fn losses(world: &World, bed: &Bed) -> Vec<(String, u64)> {
    let of = &bed.reading;
    let mut counted = vec![
        ("the uplink's ring".to_owned(), of.uplinks[0].missed_packets),
        ("sending by the uplink".to_owned(), of.uplinks[0].failed_packets),
    ];
    // What is of no service are questions of kernels for neighbours and groups.
    let reasons = DropReason::ALL
        .iter()
        .filter(|of| !matches!(of, DropReason::Unmatched | DropReason::Other));
    counted
        .extend(reasons.map(|reason| (format!("the switch, {}", reason.name()), of.drops[reason.index()])));
    let ends = world
        .instances
        .iter()
        .map(|(slot, of)| (format!("instance {slot}"), of, "eth0"));
    for (who, namespace, interface) in [("the clients".to_owned(), &world.net, "net0")]
        .into_iter()
        .chain(ends)
    {
        let [at_interface, by_sockets] = lost_by_kernel(namespace, interface);
        counted.push((format!("the interface of {who}"), at_interface));
        counted.push((format!("full sockets of {who}"), by_sockets));
    }
    counted.retain(|(_, packets)| *packets > 0);
    counted
}

/// Numbered datagrams to an instance, which sends each back: none of either direction is lost, doubled or out of order, and
/// none goes to another instance. No more are on their way than the smallest ring holds, so that none is lost where the
/// machine has no time for any of those who take part.
#[test]
fn datagrams_keep_their_order_while_flows_change_their_path() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = start(&mut world, service(), Nanos::from_millis(1));
    let talk = talk(
        &world,
        &mut bed,
        Pace {
            burst: 8,
            window: 512,
            buffer: 64 << 20,
            span: Duration::from_secs(if is_full_length() { 60 } else { 5 }),
        },
    );
    let figures = &bed.reading.workers[0];
    let changes = figures.promotions + figures.demotions;
    let all = talk.all();
    let counted = losses(&world, &bed);
    println!(
        "{all} datagrams each way, {} packets by rules, {} promotions, {} demotions in {:.1} s",
        fast_packets(&bed),
        figures.promotions,
        figures.demotions,
        talk.span
    );
    assert_eq!(talk.wrong, 0);
    assert_eq!(talk.lost(), 0, "counted as lost: {counted:?}");
    assert_eq!(counted, []);
    let fast = fast_packets(&bed);
    assert!(
        fast > 1_000 && fast + 1_000 < 2 * all,
        "both paths were used: {fast} of {}",
        2 * all
    );
    // Beside other tests it takes its time.
    let rate = if is_full_length() { 1_000.0 } else { 100.0 };
    assert!(changes as f64 > rate * talk.span, "{changes} changes");
    // One set of counters, over both paths.
    let to: u64 = bed.reading.slots.iter().map(|of| of.to_packets).sum();
    let flows = bed.reading.slots.iter().map(|of| of.new_flows).sum::<u64>();
    assert!(to >= all, "{to} of {all}");
    // Two more found the neighbours.
    assert_eq!(flows, 2 * FLOWS as u64 + 2);
}

/// Where more comes than rings and sockets hold, what clients miss is what somebody has counted, and the rest keeps its
/// order and its instance.
#[test]
fn what_is_lost_while_flows_change_their_path_is_counted() {
    if !available() {
        return;
    }
    let mut world = World::new();
    let mut bed = start(&mut world, service(), Nanos::from_millis(1));
    let talk = talk(
        &world,
        &mut bed,
        Pace {
            burst: 2_000,
            window: u64::MAX,
            buffer: 64 << 10,
            span: Duration::from_secs(2),
        },
    );
    let counted = losses(&world, &bed);
    let sum: u64 = counted.iter().map(|(_, packets)| packets).sum();
    let lost = talk.lost();
    println!(
        "{lost} of {} lost, {} packets by rules; counted: {counted:?}",
        talk.all(),
        fast_packets(&bed)
    );
    assert!(lost > 0, "nothing was lost of {}", talk.all());
    assert_eq!(talk.wrong, 0);
    // The kernel's questions for neighbours can be lost, too, and are counted.
    assert!((lost..=lost + 20).contains(&sum), "counted: {counted:?}");
}

#[test]
fn a_draining_instance_has_no_rule_and_keeps_its_flows() {
    if !available() {
        return;
    }
    let mut world = World::new();
    // Rules that stay.
    let mut bed = start(&mut world, service(), Nanos::from_secs(60));
    let address = format!("{VIP}:80");
    let downloads: Vec<_> = (0..4)
        .map(|_| {
            let (net, address) = (Namespace::clone_of(&world.net), address.clone());
            std::thread::spawn(move || net.within(|| fetch(&address, 256 << 20)))
        })
        .collect();
    bed.until("flows have rules", |bed| {
        bed.reading.slots[..2].iter().all(|of| of.fast_rules > 0)
    });
    bed.set_state(0, 0, InstanceState::Draining);
    bed.publish();
    bed.until("one has none any more", |bed| {
        bed.reading.slots[0].fast_rules == 0
    });
    for download in downloads {
        bed.until("a download is done", |_| download.is_finished());
        download.join().unwrap().unwrap();
    }
    is_accounted_for(&mut bed);
    assert_eq!(
        bed.reading.slots[..2].iter().map(|of| of.new_flows).sum::<u64>(),
        4
    );
}

/// A function that answers a datagram over IPv4: both addresses and both ports change places.
fn answer(frame: &mut [u8], port: usize, _number: u32) -> Option<usize> {
    for (at, len) in [(0, 6), (26, 4), (34, 2)] {
        let (from, to) = frame[at..at + 2 * len].split_at_mut(len);
        from.swap_with_slice(to);
    }
    // None: the client's kernel had left it to its interface.
    frame[40..42].fill(0);
    Some(port)
}

/// One service has an instance with the kernel's network and one with a memif port: flows of the first one get rules, and
/// those of the other one stay with the worker, which alone reaches it.
#[test]
fn memif_and_kernel_instances_of_a_service_each_have_their_path() {
    if !available() {
        return;
    }
    const CLIENTS: usize = 8;
    const QUESTIONS: u64 = 200;
    let mut world = World::new();
    let mut bed = switch_changed(1, 1, service(), |config| beside(config, Nanos::from_secs(60)));
    world.add_server(&mut bed, 0);
    let server = world.instances[&0].within(|| UdpSocket::bind(format!("{VIP}:80")).unwrap());
    server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    bed.add(5, 0, 1, answer);
    let clients: Vec<UdpSocket> = world.net.within(|| {
        let bound = (0..CLIENTS).map(|_| {
            let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
            socket.connect(format!("{VIP}:80")).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        });
        bound.collect()
    });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut data = [0; 64];
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((len, from)) = server.recv_from(&mut data) {
                    server.send_to(&data[..len], from).unwrap();
                }
            }
        });
        let asking = scope.spawn(|| {
            for number in 0..QUESTIONS {
                for client in &clients {
                    let (mut question, mut data) = ([7; 32], [0; 64]);
                    question[..8].copy_from_slice(&number.to_ne_bytes());
                    client.send(&question).unwrap();
                    assert_eq!(client.recv(&mut data).unwrap(), question.len());
                    assert_eq!(data[..32], question);
                }
            }
        });
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _end = Over(&is_over);
        bed.until("all are answered", |_| asking.is_finished());
        asking.join().unwrap();
    });
    let half = CLIENTS as u64 / 2;
    bed.until("flows of the kernel's instance have rules", |bed| {
        bed.reading.slots[0].fast_rules == half
    });
    bed.until("all is back", |bed| bed.reading.in_flight() == 0);
    let [kernel, memif] = [0, 5].map(|slot| bed.reading.slots[slot]);
    println!(
        "{} and {} packets by rules",
        kernel.fast_packets, memif.fast_packets
    );
    assert_eq!((kernel.new_flows, memif.new_flows), (half, half));
    assert!(kernel.fast_packets > half * QUESTIONS, "{}", kernel.fast_packets);
    assert_eq!((memif.fast_rules, memif.fast_packets), (0, 0));
    assert_eq!(
        (memif.to_packets, memif.back_packets),
        (half * QUESTIONS, half * QUESTIONS)
    );
}
