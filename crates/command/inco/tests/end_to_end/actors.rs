//! A service of actors in real containers, behind inco's switch: card and host are instances of two services. The test
//! does what the supervisor's caller does.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use actor_control::Side;
use actor_supervisor::{Service, Supervisor, Wish};
use model::InstanceId;
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

    /// Requests one after the other. One that is lost, because the instance is being replaced, is followed by the
    /// next.
    fn ask(&mut self, actors: &mut Actors<'_>) {
        eventually("a request is answered", PATIENCE, || {
            let number = self.next;
            // The answer may be that nobody is there.
            let _sent = self.socket.send(&number.to_le_bytes());
            self.next += 1;
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(200) {
                actors.turn();
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
    client.ask(&mut actors);
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
        client.ask(&mut actors);
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
    client.ask(&mut actors);
    drop(actors);
    inco.stop(&place);
}
