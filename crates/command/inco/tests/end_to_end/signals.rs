//! Sleeping instances, and the signals of the host's manager that wake them and send them back to sleep.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use api::counters::SignalCounters;
use model::{InstanceId, InstanceState};
use signal::{Key, Signal, Wish};

use crate::addresses::{are_here, nginx};
use crate::support::{
    Engine, FORWARD, Inco, Network, PATIENCE, Place, assert_clean, assert_nothing_moved, eventually, text,
};

fn configuration() -> String {
    format!(
        r#"
[switch.timeouts]
udp = "1s"
{FORWARD}
instances = {{ min = 2, max = 4, sleep = true }}
scheduler = "weighted"
autoscaler = "fixed"
signals = true
{}"#,
        Engine::Oci.toml()
    )
}

/// The key of an instance, and the socket of its function.
fn key(place: &Place, id: InstanceId) -> (Key, PathBuf) {
    let path = place.run_dir().join("signals").join(format!("{}.key", id.0));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o400);
    let file: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let text = |key: &str| file[key].as_str().unwrap().to_owned();
    (
        Key::from_text(&text("key")).unwrap(),
        PathBuf::from(text("socket")),
    )
}

fn manager(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("INCO_NF").unwrap());
    command.args(arguments).env("INCO_RUN_DIR", place.run_dir());
    command
}

fn send(place: &Place, wish: &str, id: InstanceId) {
    let output = manager(place, &["signal", wish, &id.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn signals(inco: &Inco) -> SignalCounters {
    inco.client().counters().unwrap().signals
}

fn until_state(inco: &Inco, id: InstanceId, state: InstanceState, limit: Duration) {
    eventually(&format!("instance {id} is {}", state.name()), limit, || {
        (inco.instance(id)?.state == state).then_some(())
    });
}

#[test]
fn a_signal_wakes_an_instance_and_another_one_sends_it_back_and_no_flow_moves() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    let inco = place.run(&configuration());
    let all = inco.settled(2, 2);
    let of = |state| all.iter().filter(move |row| row.state == state).map(|row| row.id);
    let asleep = of(InstanceState::Standby).next().unwrap();
    let traffic = place.traffic(
        r#"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "10s"
flows = 40
rate_per_flow = "50pps"
[[phase]]
start = "5s"
duration = "5s"
flows = 40
src = "10.1.0.1"
rate_per_flow = "50pps"
"#,
    );
    eventually("flows are pinned", PATIENCE, || {
        (inco.status().live_flows >= 40).then_some(())
    });
    let began = Instant::now();
    send(&place, "wake", asleep);
    until_state(&inco, asleep, InstanceState::Active, Duration::from_secs(2));
    assert!(began.elapsed() < Duration::from_secs(2));
    // Those of the second phase.
    eventually("it has flows", PATIENCE, || {
        (inco.instance(asleep)?.live_flows >= 5).then_some(())
    });
    send(&place, "sleep", asleep);
    until_state(&inco, asleep, InstanceState::Draining, Duration::from_secs(2));
    // How evenly packets are shared is told while they flow.
    let told = inco.client().counters().unwrap().services.remove(0);
    let (jain, max_min) = (told.jain.unwrap(), told.max_min.unwrap());
    assert!((0.2..=1.0).contains(&jain) && max_min >= 1.0, "{jain}, {max_min}");
    let shown = place.must(&["services"]);
    assert!(
        shown.contains("forward: weights, computed every ") && shown.contains("Jain's index "),
        "{shown}"
    );
    eventually("those that are awake share all of the weight", PATIENCE, || {
        let rows: serde_json::Value = serde_json::from_str(&place.must(&["services", "--json"])).unwrap();
        let weights = rows[0]["weights"]["instances"].as_array()?;
        let sum: u64 = weights.iter().filter_map(|of| of["weight"].as_u64()).sum();
        (weights.len() == 2 && sum == 256).then_some(())
    });
    // Every worker knows by then.
    std::thread::sleep(Duration::from_millis(200));
    let flows = inco.instance(asleep).unwrap().live_flows;
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(
        inco.instance(asleep).unwrap().live_flows,
        flows,
        "it keeps its flows"
    );
    assert_clean(&traffic.report());
    // Once they have ended it sleeps again: the same container, connected as before.
    until_state(&inco, asleep, InstanceState::Standby, PATIENCE);
    assert_eq!(inco.status().accounting.expected_moves, 0);
    assert_eq!(inco.count(InstanceState::Standby), 2);
    let counted = signals(&inco);
    assert_eq!((counted.accepted["wake"], counted.accepted["sleep"]), (1, 1));
    assert!(counted.refused.values().all(|count| *count == 0), "{counted:?}");
    inco.stop(&place);
    assert!(!place.run_dir().join("signals").exists());
}

/// The manager's signal comes out of the container's own network.
fn a_signal_passes_a_kernel_port(driver: &str) {
    if !are_here(Engine::Oci, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let text = nginx(
        &place,
        Engine::Oci,
        driver,
        "instances = { min = 1, max = 2, sleep = true }\nsignals = true\n",
    );
    let inco = network.run(&place, &text);
    let all = inco.settled(1, 1);
    let asleep = all
        .iter()
        .find(|row| row.state == InstanceState::Standby)
        .unwrap();
    send(&place, "wake", asleep.id);
    until_state(&inco, asleep.id, InstanceState::Active, PATIENCE);
    for _ in 0..20 {
        assert_eq!(network.get("http://10.0.0.100/").unwrap(), "served\n");
    }
    assert!(
        inco.instance(asleep.id).unwrap().to_packets > 0,
        "{}",
        inco.told()
    );
    send(&place, "sleep", asleep.id);
    until_state(&inco, asleep.id, InstanceState::Standby, PATIENCE);
    let counted = signals(&inco);
    assert_eq!((counted.accepted["wake"], counted.accepted["sleep"]), (1, 1));
    assert!(counted.refused.values().all(|count| *count == 0), "{counted:?}");
    inco.stop(&place);
}

#[test]
fn a_signal_passes_a_kernel_port_ebpf() {
    a_signal_passes_a_kernel_port("ebpf");
}

#[test]
fn a_signal_passes_a_kernel_port_soft() {
    a_signal_passes_a_kernel_port("soft");
}

#[test]
fn forged_and_old_signals_change_nothing_and_are_counted() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&configuration());
    let all = inco.settled(2, 2);
    let asleep: Vec<InstanceId> = all
        .iter()
        .filter(|row| row.state == InstanceState::Standby)
        .map(|row| row.id)
        .collect();
    let [first, second] = asleep[..] else {
        panic!("{all:?}")
    };
    let ((own, socket), (others, _)) = (key(&place, first), key(&place, second));
    let port = UnixDatagram::unbound().unwrap();
    let signal = |wish, instance: InstanceId, counter| Signal {
        wish,
        instance: instance.0,
        counter,
    };
    let now = || clock::monotonic().0;
    let frame = |of: &Signal, key: &Key| of.frame(key, [2; 6], [4; 6]).to_vec();
    let mut expected = signals(&inco).refused;
    let mut is_refused = |frame: &[u8], reason: &str| {
        port.send_to(frame, &socket).unwrap();
        *expected.get_mut(reason).unwrap() += 1;
        eventually(reason, PATIENCE, || {
            (signals(&inco).refused == expected).then_some(())
        });
        assert_eq!(
            (
                inco.count(InstanceState::Active),
                inco.count(InstanceState::Standby)
            ),
            (2, 2)
        );
    };
    let mut torn = frame(&signal(Wish::Wake, first, now()), &own);
    torn[15] = 1;
    is_refused(&torn, "malformed");
    let mut newer = frame(&signal(Wish::Wake, first, now()), &own);
    newer[14] = 9;
    is_refused(&newer, "version");
    // Of another instance, with its own key and with ours.
    is_refused(&frame(&signal(Wish::Wake, second, now()), &others), "other_port");
    is_refused(&frame(&signal(Wish::Wake, first, now()), &others), "other_key");
    let mut forged = frame(&signal(Wish::Wake, first, now()), &own);
    forged[36] ^= 1;
    is_refused(&forged, "wrong_tag");
    // From before inco started.
    is_refused(&frame(&signal(Wish::Wake, first, 1), &own), "replayed");
    // Genuine, and without effect.
    is_refused(&frame(&signal(Wish::Sleep, first, now()), &own), "not_permitted");
    let genuine = frame(&signal(Wish::Wake, first, now()), &own);
    place.must(&["scale", "forward", "--max", "2"]);
    is_refused(&genuine, "not_permitted");
    place.must(&["scale", "forward", "--whole-range"]);
    is_refused(&genuine, "replayed");
    send(&place, "wake", first);
    until_state(&inco, first, InstanceState::Active, PATIENCE);
    // What the function sends in its own name is told of.
    let told = inco.events().iter().any(|event| {
        matches!(&event.kind, model::EventKind::Failure { what, reason }
            if what == "signal" && reason.contains("refused"))
    });
    assert!(told, "{}", inco.told());
    inco.stop(&place);
}

#[test]
fn an_instance_can_be_woken_after_inco_was_killed() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&configuration());
    let asleep = inco
        .settled(2, 2)
        .iter()
        .find(|row| row.state == InstanceState::Standby)
        .unwrap()
        .id;
    let (own, socket) = key(&place, asleep);
    let old = Signal {
        wish: Wish::Wake,
        instance: asleep.0,
        counter: clock::monotonic().0,
    };
    drop(inco.kill());
    let inco = place.run(&configuration());
    inco.settled(2, 2);
    assert_eq!(key(&place, asleep).0, own, "the key is that of the instance");
    // Which instances are active may have changed.
    let row = inco.instance(asleep).unwrap();
    let port = UnixDatagram::unbound().unwrap();
    port.send_to(&old.frame(&own, [2; 6], [4; 6]), &socket).unwrap();
    eventually("it is refused", PATIENCE, || {
        (signals(&inco).refused["replayed"] == 1).then_some(())
    });
    let (wish, state) = match row.state {
        InstanceState::Standby => ("wake", InstanceState::Active),
        _ => ("sleep", InstanceState::Standby),
    };
    send(&place, wish, asleep);
    until_state(&inco, asleep, state, PATIENCE);
    inco.stop(&place);
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

#[test]
fn the_manager_wakes_instances_under_load_and_lets_them_sleep_afterwards() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    // More than a quota allows, so that an instance is busy however busy the machine is.
    let busy = configuration()
        .replace(
            "\"--stamp\"]",
            "\"--stamp\", \"--cost-ns\", \"200000\"]\ncpus = 0.2",
        )
        .replace("min = 2", "min = 1");
    let inco = place.run(&busy);
    inco.settled(1, 3);
    let mut command = manager(&place, &["manager", "--window-ms", "300", "--hold-ms", "1000"]);
    let manager = Running(command.spawn().unwrap());
    // Four times what one instance can do.
    let traffic = place.traffic(
        r#"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "5s"
flows = 400
rate_per_flow = "10pps"
"#,
    );
    eventually("a second one is active", PATIENCE, || {
        (inco.count(InstanceState::Active) >= 2).then_some(())
    });
    let report = traffic.report();
    assert_nothing_moved(&report);
    eventually("one is active, and the others sleep", PATIENCE, || {
        (inco.count(InstanceState::Active) == 1 && inco.count(InstanceState::Standby) == 3).then_some(())
    });
    drop(manager);
    let counted = signals(&inco);
    assert!(
        counted.accepted["wake"] >= 1 && counted.accepted["sleep"] >= 1,
        "{counted:?}"
    );
    inco.stop(&place);
}
