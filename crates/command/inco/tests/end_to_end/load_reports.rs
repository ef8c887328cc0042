//! Two levels: an edge gives new connections to the machine that reports less load, whoever loads the other. Two machines
//! behind tunnels, each with an inco and a real nginx, and a network of their own for reports.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use api::types::ReportRow;
use model::{DropReason, EventKind};
use testbed::http::Connection;

use crate::addresses::are_here;
use crate::back_ends::{SERVICE, is_active, row};
use crate::support::{Engine, Inco, Load, Namespace, Network, PATIENCE, Place, Sniffer, bridge, eventually};
use crate::tunnels::{EDGE, FIRST, Machine, SECOND, segment};

/// Where the edge takes reports.
pub(crate) const LISTEN: &str = "192.168.7.1:4790";
/// The key of each machine.
const KEYS: [&str; 2] = [
    "0102030405060708090a0b0c0d0e0f101112131415161718",
    "1102030405060708090a0b0c0d0e0f101112131415161719",
];
/// A later key of the first one.
const NEXT_KEY: &str = "2102030405060708090a0b0c0d0e0f10111213141516171a";
/// More new flows for one machine than for the other. By hash alone, 600 flows are 100 apart once in 10,000 times.
const APART: u32 = 100;
const FLOWS: u32 = 600;
/// New flows between two looks at the reports.
const AT_A_TIME: u32 = 10;

/// A machine that reports to these edges, and takes their packets out of tunnels.
fn machine(
    network: &Network,
    beside: &Place,
    number: u8,
    (to, from): (&[&str], &[&str]),
    change: fn(&str) -> String,
) -> Machine {
    Machine::with(network, beside, (number, from), |host, place, text| {
        network.machine_ip(&format!(
            "link add rep-{number} type veth peer name rep netns {}\nlink set rep-{number} master rep0 up",
            host.pid()
        ));
        host.ip(&format!(
            "link set eth1 address 02:00:00:00:00:1{number}\naddress add 192.168.7.1{number}/24 dev rep\nlink set rep up"
        ));
        let key = key_file(place, number);
        change(&text)
            + &format!("capacity = \"50kpps\"\n[reports]\nmachine = {number}\nto = {to:?}\nkey = \"{key}\"\n")
    })
}

/// A network for reports, in which the edge is to listen, and both machines.
fn machines(network: &Network, beside: &Place) -> [Machine; 2] {
    machines_of_edges(network, beside, (&[LISTEN], &["10.0.0.1"]), str::to_owned)
}

/// The same for edges that listen there, and have these addresses for tunnels. `change` is made in the machines'
/// configurations.
pub(crate) fn machines_of_edges(
    network: &Network,
    beside: &Place,
    edges: (&[&str], &[&str]),
    change: fn(&str) -> String,
) -> [Machine; 2] {
    network.machine_ip(&format!(
        "{}\naddress add 192.168.7.1/24 dev rep0\nlink set rep0 up",
        bridge("rep0")
    ));
    [1, 2].map(|number| machine(network, beside, number, edges, change))
}

/// A client that knows the MAC address from which the first machine speaks for the service, and so reaches it without the
/// edge.
fn neighbour_of_the_first(network: &Network) -> Namespace {
    let host = Namespace::new();
    network.client_ip(&format!(
        "link add to-others type veth peer name eth0 netns {}\nlink set to-others master br0 up",
        host.pid()
    ));
    host.ip(
        "address add 10.0.0.3/24 dev eth0\nlink set eth0 up\nneighbour add 10.0.0.100 lladdr 42:00:00:00:00:11 dev eth0",
    );
    host
}

fn key_file(place: &Place, number: u8) -> String {
    let key = KEYS[usize::from(number) - 1];
    place
        .secret_file(&format!("{number}.key"), key)
        .display()
        .to_string()
}

/// The configuration of an edge that goes by reports.
pub(crate) fn edge_text(place: &Place, listen: &str) -> String {
    let policy = "{ policy = \"round-robin\", slow_start = \"0s\" }";
    let machines = [1, 2].map(|number| {
        let key = key_file(place, number);
        format!("[[reports.machines]]\nnumber = {number}\naddress = \"10.0.0.1{number}\"\nkey = \"{key}\"\n")
    });
    let text = EDGE.replace(policy, "\"machines\"");
    assert_ne!(text, EDGE);
    format!("{text}[reports]\nlisten = \"{listen}\"\n{}", machines.concat())
}

fn edge(network: &Network, place: &Place) -> Inco {
    let edge = network.run(place, &edge_text(place, LISTEN));
    is_active(&edge, FIRST);
    is_active(&edge, SECOND);
    edge
}

/// So many new connections through the edge, one after the other: how many of them each machine answered.
fn connect(network: &Network, flows: u32) -> [u32; 2] {
    network.as_client(|| {
        let mut answered = [0, 0];
        for _ in 0..flows {
            let body = Connection::open(SERVICE.parse().unwrap())
                .and_then(|mut connection| connection.get("/", true))
                .unwrap();
            match body.as_str() {
                "machine 1" => answered[0] += 1,
                "machine 2" => answered[1] += 1,
                other => panic!("{other}"),
            }
        }
        answered
    })
}

/// New flows go to the second machine, since the first one is loaded by others. A busy machine may serve those so slowly
/// that the new flows are the larger load: some of these are let pass at a time.
fn the_other_machine_is_preferred(network: &Network, edge: &Inco) {
    let mut answered = [0, 0];
    for _ in 0..FLOWS / AT_A_TIME {
        the_first_is_seen_as_loaded(edge);
        let more = connect(network, AT_A_TIME);
        answered = [0, 1].map(|of| answered[of] + more[of]);
        if answered[1] >= answered[0] + APART {
            return;
        }
    }
    panic!("{answered:?}\n{:#?}\n{}", edge.instances(), edge.told());
}

fn report(edge: &Inco, address: &str) -> Option<ReportRow> {
    row(edge, address)?.report
}

fn the_first_is_seen_as_loaded(edge: &Inco) {
    eventually("the first machine reports more load", PATIENCE, || {
        let (first, second) = (report(edge, FIRST)?, report(edge, SECOND)?);
        (first.utilisation > 2.0 * second.utilisation && first.live_flows > 0).then_some(())
    });
}

fn refused(edge: &Inco, reason: &str) -> u64 {
    let reports = edge.status().reports.unwrap();
    reports.refused.get(reason).copied().unwrap_or(0)
}

/// The latest datagram of a machine with a row of a service, as it came.
fn captured(network: &Network) -> Vec<u8> {
    let mut sniffer = network.as_machine(Sniffer::new);
    eventually("a report is seen", PATIENCE, || {
        let frame = sniffer.next()?;
        let datagram = frame.get(42..)?;
        (datagram.starts_with(b"inLR") && datagram.len() == 88).then(|| datagram.to_vec())
    })
}

/// Sends forged, repeated and meaningless datagrams until each kind is known to be refused, and calls `meanwhile`.
fn attack(network: &Network, edge: &Inco, meanwhile: impl FnOnce()) {
    let genuine = captured(network);
    let with = |at: usize, bytes: &[u8]| {
        let mut forged = genuine.clone();
        forged[at..at + bytes.len()].copy_from_slice(bytes);
        forged
    };
    let kinds = [
        ("replayed", genuine.clone()),
        // Nothing is left of its capacity.
        ("wrong_tag", with(60, &[0; 8])),
        ("other_key", with(8, &[0; 8])),
        ("unknown_machine", with(6, &[0, 9])),
        ("malformed", genuine[..80].to_vec()),
        ("version", with(4, &[9])),
    ];
    let host = Namespace::new();
    network.machine_ip(&format!(
        "link add rep-9 type veth peer name rep netns {}\nlink set rep-9 master rep0 up",
        host.pid()
    ));
    host.ip("address add 192.168.7.19/24 dev rep\nlink set rep up");
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            host.within(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                while !ends.load(Ordering::Relaxed) {
                    for (_, datagram) in &kinds {
                        // A queue that is full loses some.
                        let _lost = socket.send_to(datagram, LISTEN);
                    }
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            });
        });
        // A failure ends the thread, too.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for (reason, _) in &kinds {
                eventually(reason, PATIENCE, || (refused(edge, reason) > 0).then_some(()));
            }
            meanwhile();
        }));
        ends.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}

fn told(edge: &Inco, wanted: impl Fn(&EventKind) -> bool) -> usize {
    edge.events().iter().filter(|event| wanted(&event.kind)).count()
}

#[test]
fn an_edge_picks_the_machine_that_reports_less_load() {
    if !are_here(Engine::Oci, &["nginx"]) {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), segment());
    let machines = machines(&network, &place);
    let edge = edge(&network, &place);
    eventually("both report", PATIENCE, || {
        report(&edge, FIRST).and(report(&edge, SECOND))
    });

    // Others load the first machine: the edge sees that by reports alone.
    let neighbour = neighbour_of_the_first(&network);
    let others = neighbour.within(|| Load::here(SERVICE.parse().unwrap(), 8));
    the_first_is_seen_as_loaded(&edge);
    the_other_machine_is_preferred(&network, &edge);

    // Who has no key changes nothing.
    attack(&network, &edge, || {
        the_first_is_seen_as_loaded(&edge);
        the_other_machine_is_preferred(&network, &edge);
    });

    // Without reports, both get their share.
    network.machine_ip("link set rep-1 down\nlink set rep-2 down");
    let is_of = |what: &str| what.starts_with("reports of machine ");
    eventually("it is told that no reports come", PATIENCE, || {
        let failed = told(
            &edge,
            |kind| matches!(kind, EventKind::Failure { what, .. } if is_of(what)),
        );
        (failed == 2).then_some(())
    });
    let trust = |address| report(&edge, address).unwrap().trust;
    assert!(trust(FIRST) < 0.01 && trust(SECOND) < 0.01);
    let answered = connect(&network, 100);
    assert!(answered.iter().all(|flows| *flows >= 20), "{answered:?}");
    network.machine_ip("link set rep-1 up\nlink set rep-2 up");
    eventually("it is told that reports come again", PATIENCE, || {
        let back = told(
            &edge,
            |kind| matches!(kind, EventKind::Recovered { what, .. } if is_of(what)),
        );
        (back == 2).then_some(())
    });
    the_other_machine_is_preferred(&network, &edge);

    let outcome = others.end();
    assert!(outcome.failures == 0 && outcome.servers == 1, "{outcome:#?}");
    let status = edge.at_rest();
    assert_eq!(status.accounting.expected_moves, 0, "{status:#?}");
    for reason in [DropReason::NoInstance, DropReason::Tunnel] {
        assert_eq!(status.drops.get(reason.name()), None, "{status:#?}");
    }
    let said = place.must(&["status"]);
    assert!(said.contains("reports of machine 1 (10.0.0.11): "), "{said}");
    assert!(place.must(&["instances"]).contains(" used, "));
    let said = machines[0].place.must(&["status"]);
    assert!(said.contains(&format!("reports to {LISTEN}: ")), "{said}");
    assert!(!said.contains("it has not answered"), "{said}");
    drop(edge.stop_with(&place, &[]));
    machines.into_iter().for_each(Machine::stop);
}

/// Each end may begin anew, also after a crash: reports are accepted again. A machine's key is replaced by reloads: only
/// its reports stop meanwhile.
#[test]
fn reports_go_on_after_a_restart_of_the_edge_and_with_another_key() {
    if !are_here(Engine::Oci, &["nginx"]) {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), segment());
    let machines = machines(&network, &place);
    let first = edge(&network, &place);
    let both_report = |edge: &Inco| {
        eventually("both report", PATIENCE, || {
            report(edge, FIRST).and(report(edge, SECOND))
        });
    };
    both_report(&first);
    drop(first.kill());
    let second = edge(&network, &place);
    both_report(&second);
    assert_eq!(refused(&second, "wrong_tag"), 0);

    let accepted = || -> Vec<u64> {
        let reports = second.status().reports.unwrap();
        reports.machines.iter().map(|of| of.accepted).collect()
    };
    assert_eq!(refused(&second, "other_key"), 0);
    place.secret_file("1.key", NEXT_KEY);
    network.as_machine(|| place.must(&["reload"]));
    eventually("reports with the earlier key are refused", PATIENCE, || {
        (refused(&second, "other_key") > 0).then_some(())
    });
    let before = accepted();
    assert_eq!(before[0], 0);
    let machine = &machines[0];
    machine.place.secret_file("1.key", NEXT_KEY);
    machine.host.within(|| machine.place.must(&["reload"]));
    eventually("reports with the new key are accepted", PATIENCE, || {
        let now = accepted();
        (now[0] > 0 && now[1] > before[1]).then_some(())
    });
    connect(&network, 20);
    drop(second.stop_with(&place, &[]));
    machines.into_iter().for_each(Machine::stop);
}
