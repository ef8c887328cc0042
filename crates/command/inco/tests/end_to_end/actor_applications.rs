//! The applications made of actors as services of a running inco: real clients over the network, actors that move under
//! load, sides that are killed, and a checker for what each application promises.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actor_load::analytics::{self, Analytics};
use actor_load::store::{self, Store};
use actor_load::transactions::{self, Transactions};
use actor_load::{Load, Pace, Workload};
use api::types::ActorsRow;
use model::{Action, ActorSide};
use rustix::process::Signal;

use crate::support::{Engine, Inco, Network, PATIENCE, Place, eventually, example, kill, text};

const IMAGE: &str = "inco-test/application-actors";
const PACE: Pace = Pace {
    rate: None,
    lasts: Duration::from_secs(60),
};

/// An example, with this test's image, engine, folder and without inco's own moves.
fn configuration(name: &str, data: Option<&Path>) -> String {
    let text = std::fs::read_to_string(example(name)).unwrap();
    let text = text.replace("moves = \"auto\"\noverload = \"5ms\"\n", "moves = \"manual\"\n");
    let text = text.replace(
        "kind = \"actors\"\n",
        &format!("kind = \"actors\"\nimage = \"{IMAGE}\"\n"),
    );
    let folder = text
        .lines()
        .find_map(|line| line.strip_prefix("mounts = [\"")?.split(':').next());
    let text = match (folder, data) {
        (Some(folder), Some(data)) => {
            std::fs::create_dir_all(data).unwrap();
            // Root of a container is another user here.
            std::fs::set_permissions(data, Permissions::from_mode(0o777)).unwrap();
            text.replace(&format!("\"{folder}:"), &format!("\"{}:", data.display()))
        }
        _ => text.clone(),
    };
    format!("{}{text}", Engine::Oci.toml())
}

fn service(inco: &Inco) -> ActorsRow {
    inco.client().actors().unwrap().remove(0)
}

pub(crate) fn both_run(inco: &Inco) -> ActorsRow {
    eventually("both sides run", PATIENCE, || {
        let row = service(inco);
        row.sides.iter().all(|side| side.runs).then_some(row)
    })
}

/// Has an actor move to the other side of where it is, with those of its group.
pub(crate) fn move_over(inco: &Inco, actor: &str) {
    let side = || {
        let row = service(inco);
        let of = row.actors.iter().find(|of| of.actor == actor).unwrap();
        of.side
    };
    let from = eventually("it is on a side", PATIENCE, side);
    let to = match from {
        ActorSide::Card => ActorSide::Host,
        ActorSide::Host => ActorSide::Card,
    };
    let action = Action::ActorMove {
        service: service(inco).service,
        actor: actor.to_owned(),
        to,
    };
    inco.client().act(&action).unwrap();
    eventually("it is on the other side", PATIENCE, || {
        (side() == Some(to)).then_some(())
    });
}

/// Kills the process of a side between two messages of clients, and waits until another one has taken its place.
pub(crate) fn kill_side(inco: &Inco, side: ActorSide) {
    let before = both_run(inco).sides[side.index()].instance.unwrap();
    kill(inco.instance(before).unwrap().pid.unwrap(), Signal::KILL);
    eventually("another process", PATIENCE, || {
        let row = service(inco);
        let of = &row.sides[side.index()];
        (of.runs && of.instance.is_some_and(|id| id != before)).then_some(())
    });
    both_run(inco);
}

/// Clients ask while these actors move to the other side and back; then all is answered.
fn moves_under_load<W: Workload + Send>(inco: &Inco, load: &mut Load<W>, actors: &[&str]) {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| load.run(PACE, || !is_done.load(Ordering::Relaxed)).unwrap());
        for _ in 0..2 {
            for actor in actors {
                move_over(inco, actor);
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        is_done.store(true, Ordering::Relaxed);
        let times = clients.join().unwrap();
        assert!(times.count() > 50, "{} were answered meanwhile", times.count());
    });
    load.settle().unwrap();
    assert_eq!(load.counts().lost, 0, "{:?}", load.counts());
}

#[test]
fn transactions_are_serialisable_while_actors_move_and_after_either_side_was_killed() {
    if !Engine::Oci.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    place.must(&["image", "build", "actors", "--name", IMAGE]);
    let data = place.path("transactions");
    let text = configuration("actors-transactions.toml", Some(&data));
    // Short segments, so that some are full.
    let text = text.replace("tick = 20 }", "tick = 20, log_bytes = 8192 }");
    let inco = network.run(&place, &text);
    both_run(&inco);
    let settings = transactions::Settings {
        keys: 20,
        value_bytes: 100,
        records: true,
    };
    let address = "10.0.0.72:7200".parse().unwrap();
    let mut load =
        network.as_client(|| Load::new(Transactions::new(settings).unwrap(), 8, &[address]).unwrap());
    assert!(load.wait(PATIENCE).unwrap(), "nobody answers");
    for side in [ActorSide::Card, ActorSide::Host] {
        moves_under_load(&inco, &mut load, &["coordinator", "left", "journal"]);
        kill_side(&inco, side);
        assert!(
            load.wait(PATIENCE).unwrap(),
            "nobody answers after {side:?} ended"
        );
    }
    moves_under_load(&inco, &mut load, &["right", "coordinator"]);
    let workload = load.workload();
    let checked = workload.check().unwrap();
    assert!(
        checked > 200 && workload.aborted() > 0,
        "{checked}, {}",
        workload.aborted()
    );
    // Segments of the log are on the disk.
    assert!(data.join("1.data").exists());
    inco.stop(&place);
}

#[test]
fn the_store_is_linearizable_while_replicas_move_and_after_either_side_was_killed() {
    if !Engine::Oci.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    place.must(&["image", "build", "actors", "--name", IMAGE]);
    let data = place.path("store");
    let text = configuration("actors-store.toml", Some(&data));
    let inco = network.run(&place, &text);
    both_run(&inco);
    let settings = store::Settings {
        keys: 20,
        reads: 0.5,
        written: 0,
        value_bytes: 100,
        records: true,
    };
    let replicas = [7400, 7401, 7402].map(|port| format!("10.0.0.76:{port}").parse().unwrap());
    let mut load = network.as_client(|| Load::new(Store::new(settings).unwrap(), 8, &replicas).unwrap());
    assert!(load.wait(PATIENCE).unwrap(), "nobody answers");
    for side in [ActorSide::Card, ActorSide::Host] {
        moves_under_load(&inco, &mut load, &["consensus0", "consensus1"]);
        kill_side(&inco, side);
        assert!(
            load.wait(PATIENCE).unwrap(),
            "nobody answers after {side:?} ended"
        );
    }
    moves_under_load(&inco, &mut load, &["consensus2"]);
    let checked = load.workload().check().unwrap();
    assert!(checked > 200, "{checked}");
    inco.stop(&place);
}

#[test]
fn the_windows_of_analytics_are_exact_while_all_actors_move() {
    if !Engine::Oci.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    place.must(&["image", "build", "actors", "--name", IMAGE]);
    let text = configuration("actors-analytics.toml", None);
    let text = text.replace("slots = 10, slot_time = 1000", "slots = 4, slot_time = 250");
    let inco = network.run(&place, &text);
    both_run(&inco);
    let settings = analytics::Settings {
        keys: 300,
        pattern: "inco".to_owned(),
        n: 10,
        slots: 4,
        slot_time: 250,
    };
    let filters = [7300, 7301].map(|port| format!("10.0.0.74:{port}").parse().unwrap());
    let results = "10.0.0.74:7302".parse().unwrap();
    inco.settled(2, 0);
    let mut analytics = network.as_client(|| Analytics::new(settings, &filters, results).unwrap());
    let is_done = AtomicBool::new(false);
    let pace = Pace {
        rate: Some(1_000.0),
        ..PACE
    };
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| analytics.run(pace, || !is_done.load(Ordering::Relaxed)).unwrap());
        let began = Instant::now();
        for _ in 0..2 {
            for actor in [
                "counter0",
                "ranker0",
                "aggregator",
                "filter0",
                "counter1",
                "filter1",
                "ranker1",
            ] {
                move_over(&inco, actor);
            }
        }
        while began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
        is_done.store(true, Ordering::Relaxed);
        clients.join().unwrap();
    });
    analytics.settle().unwrap();
    assert_eq!(analytics.counts().lost, 0, "{:?}", analytics.counts());
    let checked = analytics.check().unwrap();
    assert!(checked >= 8, "{checked} windows");
    inco.stop(&place);
}

/// As a user would: the examples, and the command that the example names.
#[test]
fn the_load_command_measures_and_checks() {
    if !Engine::Oci.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    place.must(&["image", "build", "actors", "--name", IMAGE]);
    let text = configuration("actors-transactions.toml", Some(&place.path("transactions")));
    let inco = network.run(&place, &text);
    both_run(&inco);
    let arguments = [
        "load",
        "transactions",
        "10.0.0.72:7200",
        "--keys",
        "50",
        "--rate",
        "200",
        "--duration",
        "2",
        "--check",
        "--json",
    ];
    let output = network.as_client(|| place.must(&arguments));
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert!(report["requests"].as_u64().unwrap() > 300, "{output}");
    assert!(
        report["checked"].as_str().unwrap().contains("serialisable"),
        "{output}"
    );
    assert!(report["p99_ms"].as_f64().unwrap() > 0.0, "{output}");
    inco.stop(&place);
}

/// In the short form: all three applications at once, with either side killed or cut off, clients cut off, and actors that
/// move.
#[test]
fn the_checkers_pass_over_crashes_partitions_and_migrations() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let duration = if real_parts::is_full_length() { "1h" } else { "30s" };
    let output = place.output(&["soak", "actors", "--duration", duration, "--seed", "7", "--json"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    let verdict: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&verdict["ok"], &verdict["seed"]),
        (&true.into(), &7.into()),
        "{said}"
    );
    // Operations, transactions, and windows, of which there are a few each second: on a busy machine the checkers take most
    // of the time.
    for (application, least) in [("store", 50), ("transactions", 50), ("analytics", 5)] {
        let of = &verdict[application];
        assert!(of["checked"].as_u64() > Some(least), "{said}");
        for broken in ["violations", "unanswered", "answered_twice"] {
            assert_eq!(of[broken], 0, "{application}: {said}");
        }
    }
    for fault in ["side-crash", "side-partition", "client-partition", "migration"] {
        assert!(verdict["faults"][fault].as_u64() > Some(0), "{fault}: {said}");
    }
}

/// Rows of an experiment, each with its limit kept, if it has one.
fn experiment(place: &Place, name: &str) -> Vec<serde_json::Value> {
    let output = place.must(&["bench", "actors", name, "--json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&output).unwrap();
    assert!(rows.iter().all(|row| row["experiment"] == name), "{output}");
    rows
}

#[test]
fn the_end_of_the_side_with_the_leader_of_the_store_costs_less_than_a_second_and_no_request() {
    if !Engine::Oci.is_here() {
        return;
    }
    let rows = experiment(&Place::quiet(), "crash");
    let of = |case: &str| {
        let row = rows.iter().find(|row| row["case"] == case).unwrap();
        row["value"].as_f64().unwrap()
    };
    assert_eq!(of("requests without an answer"), 0.0, "{rows:#?}");
    assert_eq!(of("requests answered twice"), 0.0, "{rows:#?}");
    assert!(of("longest time of a request, all rounds") < 1_000.0, "{rows:#?}");
    assert!(of("operations checked") > 200.0, "{rows:#?}");
}

/// What is measured, not how fast it is: other programs run here, and this one was built for tests.
#[test]
fn the_store_is_measured_beside_memcached_and_redis() {
    if !Engine::Oci.is_here() {
        return;
    }
    let rows = experiment(&Place::with_a_cpu(), "store");
    let cases = ["store, one replica: reads", "store, three replicas: reads"];
    for case in cases {
        let row = rows.iter().find(|row| row["case"] == case).unwrap();
        assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
    }
    for peer in ["memcached", "redis"] {
        let is_here = rows
            .iter()
            .any(|row| row["case"].as_str().unwrap().starts_with(peer));
        assert!(is_here, "{peer} was left out: {rows:#?}");
    }
}

#[test]
fn what_a_card_saves_is_a_model_of_three_applications() {
    if !Engine::Oci.is_here() {
        return;
    }
    let rows = experiment(&Place::with_a_cpu(), "cores");
    for application in ["transactions", "analytics", "store"] {
        let case = format!("{application}, all machines: with / without");
        let row = rows.iter().find(|row| row["case"] == *case).unwrap();
        assert_eq!(row["met"], true, "{row}");
        assert!(row["value"].as_f64().is_some_and(|of| of > 0.0), "{row}");
    }
    // Whether the order is that of the paper is said; which one it is, a busy machine may change.
    for (case, pairs) in [("applications", 2.0), ("roles", 4.0)] {
        let case = format!("{case}, by medians, in the paper's order");
        let row = rows.iter().find(|row| row["case"] == *case).unwrap();
        let value = row["value"].as_f64().unwrap();
        assert_eq!(
            (&row["limit"], &row["met"]),
            (&pairs.into(), &(value >= pairs).into()),
            "{row}"
        );
    }
    assert!(
        rows.iter()
            .all(|row| row["unit"].as_str().unwrap().contains("MODEL")),
        "{rows:#?}"
    );
}

/// What clients of a neighbour lose: nothing. How long it is delayed depends on what else runs here.
#[test]
fn the_bench_of_isolation_finds_no_message_of_a_neighbour_lost() {
    if !real_parts::is_full_length() || !Engine::Oci.is_here() {
        return;
    }
    let rows = experiment(&Place::with_a_cpu(), "isolation");
    let lost: Vec<_> = (rows.iter())
        .filter(|row| row["unit"] == "messages" && row["limit"] == 0.0)
        .collect();
    assert_eq!(
        lost.len(),
        7,
        "of three offences of native actors and of modules, and in containers: {rows:#?}"
    );
    assert!(lost.iter().all(|row| row["met"] == true), "{lost:#?}");
}
