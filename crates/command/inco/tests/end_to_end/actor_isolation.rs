//! A service of actors in which one does what it must not: native actors in processes of their own, in containers behind
//! inco's switch. Only the process of the one that offends ends, and a neighbour does its work as before.
//!
//! A response time on a busy machine says more about the machine than about the neighbour. So what makes it up is counted:
//! that the neighbour answers while the other one runs, and how often its process is woken for a request.

use std::collections::BTreeSet;
use std::net::UdpSocket;

use api::types::{ActorRow, ActorsRow};
use model::ActorSide;

use crate::actor_applications::both_run;
use crate::support::{Engine, Inco, Network, PATIENCE, Place, eventually};

const IMAGE: &str = "inco-test/isolated-actors";
/// CPU time that the one that loops has: long, so that others can be asked meanwhile on a busy machine.
const BUDGET_MS: u64 = 1_000;
/// Requests of a measurement.
const REQUESTS: u64 = 300;
/// Times that a process is woken for a request: once, and seldom again while its answer is on its way.
const WAKES: f64 = 1.1;

fn configuration() -> String {
    let mut text = format!(
        "{}[switch]\ndriver = \"soft\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\n[service.kv]\nkind = \
         \"actors\"\nimage = \"{IMAGE}\"\nvip = {{ address = \"10.0.0.70\", ports = \"7000-7004\" }}\nmemory = \
         \"128MiB\"\n",
        Engine::Oci.toml()
    );
    let actors = [
        ("neighbour", "counter", "neighbour"),
        ("loops", "offender", "loops"),
        ("mate", "counter", "loops"),
        ("writes", "offender", "writes"),
    ];
    for ((name, kind, process), port) in actors.into_iter().zip(7000..) {
        text.push_str(&format!(
            "[[service.kv.actors]]\nname = \"{name}\"\nkind = \"{kind}\"\noptions = {{ process = \"{process}\", \
             budget_ms = {BUDGET_MS} }}\nports = {port}\n"
        ));
    }
    // A stand-in keeps its core busy while it waits for its process: another one serves the neighbour.
    text + "[service.kv.sides]\nmoves = \"manual\"\ncard_cores = 2\nbudget = \"60s\"\n"
}

/// A client of an actor that counts.
struct Client {
    socket: UdpSocket,
    asked: u64,
}

impl Client {
    fn new(network: &Network, port: u16) -> Client {
        let socket = network.as_client(|| UdpSocket::bind("10.0.0.2:0").unwrap());
        socket.connect(("10.0.0.70", port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { socket, asked: 0 }
    }

    /// Asks, and takes the answer: it is that of this request, which has changed the state once.
    fn ask(&mut self) {
        self.asked += 1;
        self.socket.send(&self.asked.to_le_bytes()).unwrap();
        let mut answer = [0; 32];
        let length = self.socket.recv(&mut answer).unwrap();
        let expected = [self.asked.to_le_bytes(); 2].concat();
        assert_eq!(&answer[..length], expected, "request {}", self.asked);
    }

    fn ask_all(&mut self) {
        for _ in 0..REQUESTS {
            self.ask();
        }
        // No second answer to any.
        self.socket.set_nonblocking(true).unwrap();
        assert!(self.socket.recv(&mut [0; 32]).is_err());
        self.socket.set_nonblocking(false).unwrap();
    }
}

fn row(inco: &Inco) -> ActorsRow {
    inco.client().actors().unwrap().remove(0)
}

fn actor(inco: &Inco, name: &str) -> ActorRow {
    let actors = row(inco).actors.into_iter();
    actors.into_iter().find(|of| of.actor == name).unwrap()
}

/// The process of the card's side.
fn side(inco: &Inco) -> u32 {
    let instance = row(inco).sides[ActorSide::Card.index()].instance.unwrap();
    inco.instance(instance).unwrap().pid.unwrap()
}

/// The processes of groups: children of the side. One that has ended is none, also before its parent knows.
fn groups(side: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // Behind the name, which may have spaces: the state and the parent.
        let behind = stat.rsplit(')').next().unwrap();
        let mut fields = behind.split_whitespace();
        let (state, parent) = (fields.next(), fields.next());
        if parent == Some(side.to_string().as_str()) && !matches!(state, Some("Z" | "X")) {
            found.insert(process.file_name().to_str().unwrap().parse().unwrap());
        }
    }
    found
}

/// How often all threads of a process were woken.
fn wakes(process: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of = |thread: std::fs::DirEntry| -> u64 {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap();
        let count = (status.lines()).find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    };
    threads.flatten().map(of).sum()
}

/// The process that is woken for the requests of a client, and for each how often: others of the side are not.
fn process_of(client: &mut Client, side: u32) -> (u32, f64) {
    let all = groups(side);
    let before: Vec<_> = all.iter().map(|process| (*process, wakes(*process))).collect();
    client.ask_all();
    let mut woken: Vec<_> = (before.into_iter())
        .map(|(process, before)| (process, (wakes(process) - before) as f64 / REQUESTS as f64))
        .collect();
    woken.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (other, count) in &woken[1..] {
        assert!(*count < 0.05, "process {other} was woken {count} times for each");
    }
    woken[0]
}

/// Where the side has the first region of an actor in its memory.
fn region_of(side: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{side}/maps")).unwrap();
    let line = maps.lines().find(|line| line.contains("memfd:actor-objects"));
    let line = line.unwrap_or_else(|| panic!("no region: {maps}"));
    u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
}

#[test]
fn an_actor_that_offends_ends_its_process_only_and_its_neighbour_works_as_before() {
    if !Engine::Oci.is_here() {
        return;
    }
    // One that loops, and the core that waits for it, take both CPUs of a small machine.
    let (place, network) = (Place::quiet(), Network::new());
    place.must(&["image", "build", "actors", "--name", IMAGE]);
    let inco = network.run(&place, &configuration());
    both_run(&inco);
    inco.settled(2, 0);
    let [mut neighbour, mut loops, mut mate, mut writes] =
        [7000, 7001, 7002, 7003].map(|port| Client::new(&network, port));
    for client in [&mut neighbour, &mut loops, &mut mate, &mut writes] {
        client.ask();
    }
    let side_before = side(&inco);
    let all = groups(side_before);
    assert_eq!(all.len(), 3, "a process for each group: {all:?}");
    let (own, before) = process_of(&mut neighbour, side_before);
    let (of_loops, _) = process_of(&mut mate, side_before);
    assert_ne!(own, of_loops);
    assert!(before <= WAKES, "woken {before} times for each request");

    // While the one that loops has its budget, the neighbour is asked and answers.
    loops.socket.send(b"loop").unwrap();
    let mut meanwhile = 0;
    loop {
        neighbour.ask();
        if !groups(side_before).contains(&of_loops) {
            break;
        }
        meanwhile += 1;
    }
    assert!(
        meanwhile >= 5,
        "{meanwhile} were answered while the other one had {BUDGET_MS} ms"
    );
    eventually("it is stopped", PATIENCE, || {
        (actor(&inco, "loops").state == "stopped").then_some(())
    });
    // The other one of its process begins again with its objects.
    mate.ask();
    let after_loop = groups(side_before);
    assert_eq!(after_loop.difference(&all).count(), 1, "{all:?}, {after_loop:?}");
    assert_eq!(
        all.difference(&after_loop).collect::<Vec<_>>(),
        [&of_loops],
        "only the process of the one that looped has ended"
    );
    let (process, after) = process_of(&mut neighbour, side_before);
    assert_eq!(process, own, "the neighbour's process goes on");
    assert!(
        after <= WAKES,
        "woken {after} times for each request, {before} before"
    );

    // A write to a region that the side has, and no process of a group.
    let wild = [&b"write"[..], &region_of(side_before).to_le_bytes()].concat();
    writes.socket.send(&wild).unwrap();
    eventually("it is stopped", PATIENCE, || {
        (actor(&inco, "writes").state == "stopped").then_some(())
    });
    let after_write = groups(side_before);
    assert!(after_write.is_subset(&after_loop), "{after_write:?}");
    assert_eq!(
        after_write.len(),
        2,
        "only the process of the one that wrote has ended"
    );
    let (process, after) = process_of(&mut neighbour, side_before);
    assert_eq!(process, own, "the neighbour's process goes on");
    assert!(
        after <= WAKES,
        "woken {after} times for each request, {before} before"
    );
    mate.ask();

    // Nothing of the side has ended, and no message was refused.
    let row = both_run(&inco);
    assert!(row.sides.iter().all(|side| side.starts == 1), "{row:#?}");
    assert_eq!(side(&inco), side_before);
    for (name, state) in [
        ("neighbour", "runs"),
        ("loops", "stopped"),
        ("mate", "runs"),
        ("writes", "stopped"),
    ] {
        let of = actor(&inco, name);
        assert_eq!((of.state.as_str(), of.refused), (state, 0), "{of:#?}");
    }
    inco.stop(&place);
}
