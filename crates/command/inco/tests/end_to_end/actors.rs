//! Services of actors in real containers, behind inco's switch: one that inco runs, and one whose sides are instances of
//! two services, where the test does what the supervisor's caller does.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use actor_control::Side;
use actor_supervisor::{Service, Supervisor, Wish};
use api::types::{ActorRow, ActorsRow};
use model::{Action, ActorChange, ActorSide, EventKind, InstanceId, SideChange};
use rustix::process::Signal;

use crate::support::{Engine, Inco, Network, PATIENCE, Place, eventually, kill};

const IMAGE: &str = "inco-test/actors";
const SERVER: &str = "10.0.0.70:7000";
/// Requests without an answer, at most.
const WINDOW: u64 = 32;

fn configuration() -> String {
    let side = |name: &str, address: &str, side: &str| {
        format!(
            "[service.{name}]\nvip = {{ address = \"{address}\", ports = \"7000\" \
             }}\nport = \"memif\"\nimage = \"{IMAGE}\"\ncommand = [\"/inco-actors\", \"--side\", \
             \"{side}\"]\nmemory = \"128MiB\"\ninstances = {{ min = 1, max = 1, standby = 0 }}\nautoscaler = \
             \"fixed\"\n"
        )
    };
    format!(
        "{}[switch]\ndriver = \"soft\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\n{}{}",
        Engine::Oci.toml(),
        side("kv", "10.0.0.70", "card"),
        side("kv-host", "10.0.0.71", "host"),
    )
}

/// The program, beside the one for functions.
fn program() -> PathBuf {
    let nf = std::env::var_os("INCO_NF").unwrap();
    Path::new(&nf).with_file_name("inco-actors")
}

/// The two sides, and which instances they are.
struct Actors<'p> {
    place: &'p Place,
    inco: &'p Inco,
    supervisor: Supervisor,
    instances: [Option<InstanceId>; 2],
}

impl Actors<'_> {
    /// Sees which instances there are, and lets the supervisor do what it can.
    fn turn(&mut self) {
        for side in Side::BOTH {
            let service = if side == Side::Card { "kv" } else { "kv-host" };
            let rows = self.inco.instances();
            let row = rows
                .iter()
                .find(|row| row.service == service && row.pid.is_some());
            let of = &mut self.instances[side.index()];
            if of.is_some() && *of != row.map(|row| row.id) {
                *of = None;
                self.supervisor.ended(side).unwrap();
            }
            if let (None, Some(row)) = (*of, row)
                && let Some(container) = &row.container
            {
                *of = Some(row.id);
                let folder = self.place.run_dir().join("instances").join(container);
                self.supervisor
                    .began(side, folder.join("actors.sock"), clock::monotonic());
            }
        }
        self.supervisor.turn(clock::monotonic()).unwrap();
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Supervisor) -> bool) {
        eventually(what, PATIENCE, || {
            self.turn();
            is_so(&self.supervisor).then_some(())
        });
    }

    fn until_running(&mut self) {
        self.until("both sides run", |supervisor| {
            Side::BOTH.iter().all(|side| supervisor.is_running(*side))
        });
    }

    fn moves(&mut self, to: Side, mut meanwhile: impl FnMut()) {
        self.supervisor.command(0, Wish::Move(to)).unwrap();
        eventually("it is there", PATIENCE, || {
            self.turn();
            meanwhile();
            (self.supervisor.side_of(0) == Some(to)).then_some(())
        });
    }

    /// Kills a side's program. inco starts another one.
    fn kill(&mut self, side: Side) {
        let id = self.instances[side.index()].unwrap();
        kill(self.inco.instance(id).unwrap().pid.unwrap(), Signal::KILL);
        eventually("it has ended", PATIENCE, || {
            self.turn();
            (self.instances[side.index()] != Some(id)).then_some(())
        });
    }
}

/// A client that counts.
struct Client {
    socket: UdpSocket,
    next: u64,
    answers: Vec<(u64, u64)>,
}

impl Client {
    fn new(network: &Network) -> Client {
        let socket = network.as_client(|| UdpSocket::bind("10.0.0.2:0").unwrap());
        socket.connect(SERVER).unwrap();
        socket.set_nonblocking(true).unwrap();
        Client {
            socket,
            next: 1,
            answers: Vec::new(),
        }
    }

    fn receive(&mut self) {
        let mut answer = [0; 64];
        while let Ok(length) = self.socket.recv(&mut answer) {
            assert_eq!(length, 16);
            let word = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().unwrap());
            self.answers.push((word(0), word(8)));
        }
    }

    /// Sends as many requests as may be without an answer.
    fn turn(&mut self) {
        self.receive();
        let answered = self.answers.last().map_or(0, |last| last.0);
        while self.next <= answered + WINDOW {
            self.socket.send(&self.next.to_le_bytes()).unwrap();
            self.next += 1;
        }
    }

    fn settle(&mut self) {
        eventually("all is answered", PATIENCE, || {
            self.receive();
            (self.answers.last().map(|last| last.0) == Some(self.next - 1)).then_some(())
        });
    }

    /// From the first answer on each request was counted once, and answered once and in order.
    fn counted_each_once(&self) {
        let (first, counted) = self.answers[0];
        for (answer, number) in self.answers.iter().zip(0..) {
            assert_eq!(*answer, (first + number, counted + number));
        }
    }

    /// Requests one after the other. One that is lost, because the instance is being replaced, is followed by the
    /// next.
    fn ask(&mut self, mut meanwhile: impl FnMut()) {
        eventually("a request is answered", PATIENCE, || {
            let number = self.next;
            // The answer may be that nobody is there.
            let _sent = self.socket.send(&number.to_le_bytes());
            self.next += 1;
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(200) {
                meanwhile();
                self.receive();
                if self.answers.last().is_some_and(|last| last.0 == number) {
                    return Some(());
                }
            }
            None
        });
    }
}

#[test]
fn requests_flow_while_an_actor_moves_between_two_containers_and_after_either_was_killed() {
    if !Engine::Oci.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let root = place.path("actors");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::copy(program(), root.join("inco-actors")).unwrap();
    let root = root.display().to_string();
    place.must(&["image", "import", IMAGE, &root, "--", "/inco-actors"]);
    let inco = network.run(&place, &configuration());
    let region = actor_objects::Limits {
        bytes: 1 << 16,
        objects: 64,
    };
    let service = Service::new(["counter", "echo"], region);
    let mut actors = Actors {
        place: &place,
        inco: &inco,
        supervisor: Supervisor::new(service).unwrap(),
        instances: [None, None],
    };
    actors.until_running();
    inco.settled(2, 0);
    let mut client = Client::new(&network);
    client.ask(|| actors.turn());
    for to in [Side::Host, Side::Card, Side::Host] {
        let enough = client.answers.len() + 200;
        actors.moves(to, || client.turn());
        eventually("requests are answered", PATIENCE, || {
            actors.turn();
            client.turn();
            (client.answers.len() > enough).then_some(())
        });
    }
    client.settle();
    let expected: Vec<_> = (1..client.next).map(|number| (number, number)).collect();
    assert!(
        client.answers == expected,
        "each once and in order, and each counted once"
    );
    let rows = actors.supervisor.rows();
    assert_eq!((rows[0].moves, rows[0].side), (3, Some(Side::Host)));

    // The card has the network and no actor. The host has the actor, between two messages.
    for side in [Side::Card, Side::Host, Side::Card] {
        let (number, count) = *client.answers.last().unwrap();
        actors.kill(side);
        actors.until_running();
        client.ask(|| actors.turn());
        let after = *client.answers.last().unwrap();
        assert!(
            after.0 > number && after.1 > count,
            "{after:?} after {number}, {count}"
        );
        let is_later = |pair: &[(u64, u64)]| pair[1].0 > pair[0].0 && pair[1].1 > pair[0].1;
        assert!(client.answers.windows(2).all(is_later));
        assert_eq!(actors.supervisor.side_of(0), Some(Side::Host));
    }
    actors.moves(Side::Card, || ());
    client.ask(|| actors.turn());
    drop(actors);
    inco.stop(&place);
}

const OPERATED: &str = "inco-test/operated-actors";

/// A counter, which gets the packets, and an echo on a port of its own.
fn operated(more: &str) -> String {
    format!(
        r#"{}[switch]
driver = "soft"
[[uplink]]
name = "wan"
device = "kernel:eth1"
[[place]]
name = "card"
[[place]]
name = "host"
[service.kv]
kind = "actors"
vip = {{ address = "10.0.0.70", ports = "7000-7001" }}
image = "{OPERATED}"
memory = "128MiB"
[[service.kv.actors]]
name = "count"
kind = "counter"
[[service.kv.actors]]
name = "echo"
kind = "echo"
ports = "7001"
[service.kv.sides]
{more}
"#,
        Engine::Oci.toml()
    )
}

fn kv(inco: &Inco) -> ActorsRow {
    let rows = inco.client().actors().unwrap();
    rows.into_iter().find(|of| of.service == "kv").unwrap()
}

fn actor(inco: &Inco, name: &str) -> ActorRow {
    let row = kv(inco);
    row.actors.into_iter().find(|of| of.actor == name).unwrap()
}

fn both_run(inco: &Inco) -> ActorsRow {
    eventually("both sides run", PATIENCE, || {
        let row = kv(inco);
        row.sides.iter().all(|side| side.runs).then_some(row)
    })
}

fn move_to(inco: &Inco, to: ActorSide) {
    let action = Action::ActorMove {
        service: "kv".to_owned(),
        actor: "count".to_owned(),
        to,
    };
    inco.client().act(&action).unwrap();
}

/// Has the actor move there and back and there again, under requests.
fn move_about(inco: &Inco, client: &mut Client) {
    for to in [ActorSide::Host, ActorSide::Card, ActorSide::Host] {
        let enough = client.answers.len() + 200;
        move_to(inco, to);
        is_on(inco, to, || client.turn());
        eventually("requests are answered", PATIENCE, || {
            client.turn();
            (client.answers.len() > enough).then_some(())
        });
    }
}

fn is_on(inco: &Inco, side: ActorSide, mut meanwhile: impl FnMut()) {
    eventually("it is there", PATIENCE, || {
        meanwhile();
        (actor(inco, "count").side == Some(side)).then_some(())
    });
}

/// What was told of the actor, oldest first.
fn changes(inco: &Inco, name: &str) -> Vec<ActorChange> {
    let events = inco.events().into_iter();
    let change = events.filter_map(|event| match event.kind {
        EventKind::Actor { actor, change, .. } if actor == name => Some(change),
        _ => None,
    });
    change.collect()
}

/// The value of a metric of the service, as text for Prometheus.
fn metric(text: &str, name: &str, label: (&str, &str)) -> f64 {
    let (service, label) = ("service=\"kv\"", format!("{}=\"{}\"", label.0, label.1));
    let line = text.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('{') && rest.contains(service) && rest.contains(&label))
    });
    let line = line.unwrap_or_else(|| panic!("there is no {name} of {label} in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Metrics of actors and sides lie between what is said before and after they are read.
fn metrics_are_what_is_said(place: &Place, inco: &Inco) {
    let before = kv(inco);
    let text = place.ask("/metrics");
    let after = kv(inco);
    let lies = |name: &str, label: (&str, &str), least: u64, most: u64| {
        let value = metric(&text, name, label);
        assert!(
            least as f64 <= value && value <= most as f64,
            "{name} of {label:?} is {value}, and not from {least} to {most}"
        );
    };
    for (least, most) in before.actors.iter().zip(&after.actors) {
        let label = ("actor", least.actor.as_str());
        lies("inco_actor_messages_total", label, least.served, most.served);
        lies(
            "inco_actor_migrations_total",
            label,
            least.migrations,
            most.migrations,
        );
        // Nothing moves meanwhile.
        assert_eq!(least.side, most.side);
        let on_host = u64::from(least.side == Some(ActorSide::Host));
        lies("inco_actor_on_host", label, on_host, on_host);
        lies("inco_actor_runs", label, 1, 1);
        lies("inco_actor_objects", label, least.objects, most.objects);
    }
    for (least, most) in before.sides.iter().zip(&after.sides) {
        let label = ("side", least.side.name());
        lies("inco_actor_side_runs", label, 1, 1);
        lies("inco_actor_side_starts_total", label, least.starts, most.starts);
        lies("inco_actor_side_requests", label, least.requests, most.requests);
        lies("inco_actor_side_answers", label, least.answers, most.answers);
    }
    let count = after.actors.iter().find(|of| of.actor == "count").unwrap();
    assert!(count.served > 0 && count.migrations == 3, "{count:#?}");
}

/// Kills the process of a side, and waits until another one has taken its place.
fn kill_side(inco: &Inco, side: ActorSide) {
    let row = both_run(inco);
    let before = row.sides[side.index()].instance.unwrap();
    kill(inco.instance(before).unwrap().pid.unwrap(), Signal::KILL);
    eventually("another process", PATIENCE, || {
        let row = kv(inco);
        let of = &row.sides[side.index()];
        (of.runs && of.instance.is_some_and(|id| id != before)).then_some(())
    });
    both_run(inco);
}

#[test]
fn inco_runs_a_service_of_actors_moves_them_under_load_and_survives_the_end_of_each_part() {
    if !Engine::Oci.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    place.must(&["image", "build", "actors", "--name", OPERATED]);
    let inco = network.run(&place, &operated("moves = \"manual\""));
    let row = both_run(&inco);
    let places: Vec<_> = row.sides.iter().map(|side| side.place.as_deref()).collect();
    assert_eq!(places, [Some("card"), Some("host")]);
    inco.settled(2, 0);
    let mut client = Client::new(&network);
    client.ask(|| ());
    assert_eq!(actor(&inco, "count").side, Some(ActorSide::Card));

    // Each request is answered once and in order, and has changed the state once, wherever the actor was.
    move_about(&inco, &mut client);
    client.settle();
    let expected: Vec<_> = (1..client.next).map(|number| (number, number)).collect();
    assert!(
        client.answers == expected,
        "each once and in order, and each counted once"
    );
    let row = eventually("all is reported", PATIENCE, || {
        let row = actor(&inco, "count");
        (row.migrations == 3).then_some(row)
    });
    // What it handled after the last report before a move is not in its count.
    assert!(row.served > 0 && row.served < client.next, "{row:#?}");
    assert_eq!(
        (row.mode.as_str(), row.objects, row.state.as_str()),
        ("fcfs", 1, "runs")
    );
    let moves = [ActorChange::MoveBegun, ActorChange::MoveEnded];
    assert_eq!(changes(&inco, "count"), moves.repeat(3));
    metrics_are_what_is_said(&place, &inco);

    // The other actor has a port of its own.
    let other = network.as_client(|| UdpSocket::bind("10.0.0.2:0").unwrap());
    other.connect("10.0.0.70:7001").unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    other.send(b"hello").unwrap();
    let mut answer = [0; 16];
    assert_eq!(other.recv(&mut answer).unwrap(), 5);
    assert_eq!(&answer[..5], b"hello");

    // By the command line: a pause holds what comes, and loses nothing.
    let shown = place.must(&["actors", "kv"]);
    assert!(
        shown.contains("count") && shown.contains("host at host: runs"),
        "{shown}"
    );
    assert!(place.must(&["actors", "pause", "count"]).contains("paused"));
    client.socket.send(&client.next.to_le_bytes()).unwrap();
    client.next += 1;
    eventually("it waits", PATIENCE, || {
        let row = actor(&inco, "count");
        (row.state == "paused" && row.mailbox == 1).then_some(())
    });
    let refused = place.output(&["actors", "move", "kv/count", "card"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is paused"));
    place.must(&["actors", "resume", "kv/count", "--json"]);
    client.settle();
    assert_eq!(client.answers.last(), Some(&(client.next - 1, client.next - 1)));

    // Either side ends: the card has the network and the echo, the host the counter, between two messages.
    for side in [ActorSide::Host, ActorSide::Card] {
        let (number, count) = *client.answers.last().unwrap();
        kill_side(&inco, side);
        client.ask(|| ());
        let after = *client.answers.last().unwrap();
        assert!(
            after.0 > number && after.1 > count,
            "{after:?} after {number}, {count}"
        );
        // A side that has begun again may not have reported yet.
        is_on(&inco, ActorSide::Host, || ());
    }
    let ended = |event: &model::Event| {
        matches!(
            &event.kind,
            EventKind::ActorSide {
                change: SideChange::Ended,
                ..
            }
        )
    };
    assert_eq!(inco.events().into_iter().filter(ended).count(), 2);

    // inco itself ends: the next run finds both sides and goes on, and the state is what it was.
    let (number, count) = *client.answers.last().unwrap();
    drop(inco.kill());
    let inco = network.run(&place, &operated("moves = \"manual\""));
    both_run(&inco);
    client.ask(|| ());
    let after = *client.answers.last().unwrap();
    assert_eq!(
        after.1 - count,
        1,
        "{after:?} after {number}, {count}: nothing was lost or done twice"
    );
    let instances = inco.instances();
    assert!(instances.iter().all(|of| of.adopted), "{instances:#?}");
    // A side that is taken over may not have reported yet.
    is_on(&inco, ActorSide::Host, || ());
    move_to(&inco, ActorSide::Card);
    is_on(&inco, ActorSide::Card, || client.turn());
    client.settle();

    // An actor that was stopped stays so, also when its side begins again.
    place.must(&["actors", "stop", "echo"]);
    let is_stopped = || (actor(&inco, "echo").state == "stopped").then_some(());
    eventually("it is stopped", PATIENCE, is_stopped);
    kill_side(&inco, ActorSide::Card);
    eventually("it is stopped again", PATIENCE, is_stopped);
    client.ask(|| ());
    inco.stop(&place);
}

#[test]
fn actors_move_by_load_and_come_back() {
    if !Engine::Oci.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    place.must(&["image", "build", "actors", "--name", OPERATED]);
    // Any load at all is too much, and the card takes back what does nothing.
    let by_load = "overload = \"1us\"\npatience = \"100ms\"\nsettle = \"300ms\"\nspare = 0.9";
    let inco = network.run(&place, &operated(by_load));
    both_run(&inco);
    inco.settled(2, 0);
    let mut client = Client::new(&network);
    client.ask(|| ());
    is_on(&inco, ActorSide::Host, || client.turn());
    client.settle();
    is_on(&inco, ActorSide::Card, || ());
    client.counted_each_once();
    // Each decision has its inputs, and is made again from them.
    let decision = inco.events().into_iter().find(|event| {
        matches!(
            &event.kind,
            EventKind::Actor {
                change: ActorChange::MoveBegun,
                case: Some(_),
                ..
            }
        )
    });
    let line = serde_json::to_string(&decision.unwrap()).unwrap();
    let file = place.file("event.json", &line);
    let explained = place.must(&["explain", "actors", "--input", file.to_str().unwrap()]);
    assert!(
        explained.contains("push") && explained.contains("count"),
        "{explained}"
    );
    inco.stop(&place);
}

/// The sides have interfaces of the kernel in the place of memif links.
#[test]
fn actors_answer_through_interfaces_of_the_kernel_while_they_move_and_after_the_end_of_a_side_and_of_inco() {
    if !Engine::Oci.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    place.must(&["image", "build", "actors", "--name", OPERATED]);
    let configuration = operated("moves = \"manual\"")
        .replace("kind = \"actors\"\n", "kind = \"actors\"\nport = \"frames\"\n");
    let inco = network.run(&place, &configuration);
    both_run(&inco);
    inco.settled(2, 0);
    let mut client = Client::new(&network);
    client.ask(|| ());
    move_about(&inco, &mut client);
    client.settle();
    client.counted_each_once();
    // The process that has the interface towards the clients ends, and the actor is on the other side.
    let count = client.answers.last().unwrap().1;
    kill_side(&inco, ActorSide::Card);
    client.ask(|| ());
    let after = client.answers.last().unwrap().1;
    assert!(after > count, "{after} after {count}");
    // inco ends, and the sides keep their interfaces.
    drop(inco.kill());
    let inco = network.run(&place, &configuration);
    both_run(&inco);
    client.ask(|| ());
    assert!(client.answers.last().unwrap().1 > after);
    assert!(inco.instances().iter().all(|of| of.adopted));
    inco.stop(&place);
}

/// The example of a module answers as the counter does. It is moved under load, and then one side is killed.
#[test]
fn an_actor_in_webassembly_moves_with_its_memory() {
    if !Engine::Oci.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    place.must(&["image", "build", "actors", "--name", OPERATED]);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples");
    let examples = examples.canonicalize().unwrap();
    let configuration = operated("moves = \"manual\"").replace(
        "kind = \"counter\"\n",
        "kind = \"wasm\"\nregion = \"128KiB\"\noptions = { module = \"/modules/actor.wat\" }\n",
    );
    let configuration = configuration.replace(
        "memory = \"128MiB\"\n",
        &format!(
            "memory = \"128MiB\"\nmounts = [\"{}:/modules:ro\"]\n",
            examples.display()
        ),
    );
    let inco = network.run(&place, &configuration);
    both_run(&inco);
    let mut client = Client::new(&network);
    client.ask(|| ());
    for side in [ActorSide::Host, ActorSide::Card, ActorSide::Host] {
        move_to(&inco, side);
        is_on(&inco, side, || client.turn());
    }
    client.settle();
    client.counted_each_once();
    assert!(client.answers.len() > 100);
    // The side that does not have it ends, and its memory is still there.
    let last = client.answers.last().unwrap().1;
    kill_side(&inco, ActorSide::Card);
    client.ask(|| ());
    assert!(client.answers.last().unwrap().1 > last);
    inco.stop(&place);
}
