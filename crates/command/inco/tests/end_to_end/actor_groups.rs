//! A service of actors whose card serves one of them in turns while its messages are long, and takes it back into the line:
//! in containers behind inco's switch. Each decision about the actor and about cores is an event, which is decided again.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use api::types::ActorRow;
use model::{ActorChange, ActorSide, Event, EventKind, SideChange};

use crate::actor_applications::both_run;
use crate::support::{Engine, Inco, Network, PATIENCE, Place, eventually};

const IMAGE: &str = "inco-test/grouped-actors";
/// Turns of a loop: of the actor that is always in the line, and of the other one while it works long.
const STEADY: u64 = 200_000;
const LONG: u64 = 10_000_000;

/// Takes as many turns of a loop as the message says, and answers with it.
const MODULE: &str = r#"(module
  (import "inco" "send" (func $send (param i32 i64 i32 i32 i32)))
  (memory (export "memory") 1)
  (func (export "inbox") (result i32) (i32.const 1024))
  (func (export "inbox_bytes") (result i32) (i32.const 64))
  (func (export "exec") (param $kind i32) (param $outside i32) (param $from i64) (param $bytes i32) (result i32)
    (local $left i64)
    (local.set $left (i64.load (i32.const 1024)))
    (loop $again
      (if (i64.gt_s (local.get $left) (i64.const 0))
        (then (local.set $left (i64.sub (local.get $left) (i64.const 1))) (br $again))))
    (call $send (local.get $outside) (local.get $from) (local.get $kind) (i32.const 1024) (i32.const 8))
    (i32.const 0)))
"#;

fn configuration(place: &Place) -> String {
    let modules = place.path("modules");
    std::fs::create_dir_all(&modules).unwrap();
    std::fs::write(modules.join("works.wat"), MODULE).unwrap();
    let mut text = format!(
        "{}[switch]\ndriver = \"soft\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\n[service.kv]\nkind = \
         \"actors\"\nimage = \"{IMAGE}\"\nvip = {{ address = \"10.0.0.70\", ports = \"7000-7001\" }}\nmemory = \
         \"128MiB\"\nmounts = [\"{}:/modules:ro\"]\n",
        Engine::Oci.toml(),
        modules.display()
    );
    for (name, port) in [("steady", 7000), ("works", 7001)] {
        text.push_str(&format!(
            "[[service.kv.actors]]\nname = \"{name}\"\nkind = \"wasm\"\nregion = \"128KiB\"\noptions = {{ module = \
             \"/modules/works.wat\", budget_ms = 10000 }}\nports = {port}\n"
        ));
    }
    text + "[service.kv.sides]\nmoves = \"manual\"\ncard_cores = 2\ntail_threshold = \"20ms\"\n"
}

/// A client that has some requests without an answer at a time.
struct Client {
    socket: UdpSocket,
    window: usize,
    under_way: usize,
    heard: Instant,
}

impl Client {
    fn new(network: &Network, port: u16, window: usize) -> Client {
        let socket = network.as_client(|| UdpSocket::bind("10.0.0.2:0").unwrap());
        socket.connect(("10.0.0.70", port)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Client {
            socket,
            window,
            under_way: 0,
            heard: Instant::now(),
        }
    }

    fn turn(&mut self, work: u64) {
        while self.socket.recv(&mut [0; 16]).is_ok() {
            self.under_way = self.under_way.saturating_sub(1);
            self.heard = Instant::now();
        }
        // What is lost on the way, before the sides run, is asked again.
        if self.heard.elapsed() > Duration::from_secs(2) {
            (self.under_way, self.heard) = (0, Instant::now());
        }
        while self.under_way < self.window {
            let _sent = self.socket.send(&work.to_le_bytes());
            self.under_way += 1;
        }
    }
}

fn actor(inco: &Inco, name: &str) -> ActorRow {
    let actors = inco.client().actors().unwrap().remove(0).actors;
    actors.into_iter().find(|of| of.actor == name).unwrap()
}

/// The event of such a change of the actor that works.
fn of_actor(inco: &Inco, wanted: ActorChange) -> Option<Event> {
    let is_it = |event: &Event| {
        matches!(&event.kind, EventKind::Actor { actor, change, side: ActorSide::Card, .. }
            if actor == "works" && *change == wanted)
    };
    inco.events().into_iter().find(is_it)
}

/// The event of such a change of a core of the card.
fn of_core(inco: &Inco, wanted: SideChange) -> Option<Event> {
    let is_it = |event: &Event| matches!(&event.kind, EventKind::ActorSide { side: ActorSide::Card, change, .. } if *change == wanted);
    inco.events().into_iter().find(is_it)
}

#[test]
fn an_actor_is_served_in_turns_while_its_messages_are_long_and_comes_back_with_its_core() {
    if !Engine::Oci.is_here() {
        return;
    }
    // A machine that is busy has all actors wait.
    let (place, network) = (Place::quiet(), Network::new());
    place.must(&["image", "build", "actors", "--name", IMAGE]);
    let inco = network.run(&place, &configuration(&place));
    both_run(&inco);
    inco.settled(2, 0);
    let mut steady = Client::new(&network, 7000, 2);
    let mut works = Client::new(&network, 7001, 16);
    let phases = [
        (LONG, ActorChange::Downgraded, SideChange::CoreToRound, "drr"),
        (0, ActorChange::Upgraded, SideChange::CoreToLine, "fcfs"),
    ];
    for (work, change, core_change, mode) in phases {
        let mut asked_until = |what: &str, is_so: &dyn Fn() -> Option<Event>| {
            eventually(what, PATIENCE, || {
                let since = Instant::now();
                while since.elapsed() < Duration::from_millis(50) {
                    steady.turn(STEADY);
                    works.turn(work);
                    std::thread::sleep(Duration::from_micros(200));
                }
                is_so()
            })
        };
        let of_works = asked_until("the actor's group changes", &|| of_actor(&inco, change));
        let of_core = asked_until("a core's group changes", &|| of_core(&inco, core_change));
        eventually("it is shown", PATIENCE, || {
            (actor(&inco, "works").mode == mode).then_some(())
        });
        // By its event each decision is made again.
        let of_works_says = match change {
            ActorChange::Downgraded => "works is served in turns",
            _ => "works is served first come, first served",
        };
        let of_core_says = match core_change {
            SideChange::CoreToRound => "core 1 serves in turns",
            _ => "core 1 serves first come, first served",
        };
        for (event, says) in [(of_works, of_works_says), (of_core, of_core_says)] {
            let file = place.file("event.json", &serde_json::to_string(&event).unwrap());
            let explained = place.must(&["explain", "actors", "--input", file.to_str().unwrap()]);
            assert!(explained.contains(says), "{says:?} is not in {explained}");
        }
    }
    // Nobody else has changed its group, and no message was refused.
    for name in ["steady", "works"] {
        let of = actor(&inco, name);
        assert_eq!((of.mode.as_str(), of.refused), ("fcfs", 0), "{of:#?}");
    }
    let changes = inco.events().into_iter().filter(|event| {
        matches!(&event.kind, EventKind::Actor { actor, change: ActorChange::Downgraded | ActorChange::Upgraded, .. }
            if actor == "steady")
    });
    assert_eq!(changes.count(), 0);
    inco.stop(&place);
}
