//! The live page in a real browser, served by the real server over its stream; what the control loop would say is
//! told by the test.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by it")]

mod browser;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::types::{
    ActorRow, ActorSideRow, ActorsRow, FlowPage, FlowRow, InstanceRow, PercentilesUs, ServiceRow, Snapshot,
    Status, UplinkRow,
};
use api::{ControlRequest, EventLog, Server, ServerSettings, request_queue};
use browser::{Browser, browser, port_to};
use model::{ActorChange, ActorSide, Event, EventKind, InstanceId, InstanceState, Nanos};

/// How long the page is watched at the end.
fn watched() -> Duration {
    Duration::from_secs(if real_parts::is_full_length() { 600 } else { 0 })
}

/// An inco as the API sees it.
struct World {
    server: Option<Server>,
    events: EventLog,
    /// Active instances.
    instances: Arc<Mutex<u32>>,
    /// Services of actors.
    actors: Arc<Mutex<Vec<ActorsRow>>>,
}

impl World {
    fn start(socket: &Path, pid: u32) -> World {
        let (asker, mut inbox) = request_queue();
        let instances = Arc::new(Mutex::new(1));
        let started = Instant::now();
        let there = Arc::clone(&instances);
        let actors = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&actors);
        std::thread::spawn(move || {
            while let Some(control_request) = inbox.wait() {
                let count = *there.lock().unwrap();
                match control_request {
                    ControlRequest::Snapshot(answer) => answer.give(Snapshot {
                        actors: told.lock().unwrap().clone(),
                        ..snapshot(pid, count, started.elapsed())
                    }),
                    ControlRequest::Flows(filter, answer) => answer.give(Ok(FlowPage {
                        flows: vec![flow(filter.instance)],
                        complete: true,
                    })),
                    // The page asks for nothing else.
                    _ => {}
                }
            }
        });
        let events = EventLog::default();
        let server = Server::start(ServerSettings::on(socket), asker, events.clone()).unwrap();
        World {
            server: Some(server),
            events,
            instances,
            actors,
        }
    }

    fn tell(&self, sequence: u64, kind: EventKind) {
        self.events.push(Event {
            sequence,
            at: Nanos(sequence),
            unix_ms: clock::unix_ms(),
            service: Some("web".to_owned()),
            instance: None,
            kind,
        });
    }
}

fn snapshot(pid: u32, instances: u32, uptime: Duration) -> Snapshot {
    let uptime_s = uptime.as_secs_f64();
    Snapshot {
        unix_ms: clock::unix_ms(),
        status: Status {
            version: "9.9".to_owned(),
            pid,
            uptime_s,
            uplinks: vec![UplinkRow {
                name: "wan".to_owned(),
                up: true,
                received_pps: f64::from(instances) * 1000.0,
                sent_pps: f64::from(instances) * 900.0,
                ..UplinkRow::default()
            }],
            ..Status::default()
        },
        services: vec![ServiceRow {
            name: "web".to_owned(),
            active: instances,
            desired: instances,
            // What others write is text to the page, whatever it looks like.
            reason: "<img src=x onerror=alert(1)>".to_owned(),
            failing: None,
            ..ServiceRow::default()
        }],
        instances: (1..=instances).map(instance).collect(),
        ..Snapshot::default()
    }
}

/// The third instance has a function that tells nothing, and no packets.
fn instance(id: u32) -> InstanceRow {
    let is_told = id != 3;
    InstanceRow {
        id: InstanceId(id),
        service: "web".to_owned(),
        place: None,
        core: None,
        state: InstanceState::Active,
        state_ms: 1500,
        slot: Some(1),
        container: None,
        address: None,
        name: None,
        pid: Some(100 + id),
        adopted: false,
        to_pps: 1000.0,
        back_pps: 900.0,
        to_packets: 1,
        back_packets: 1,
        live_flows: 12,
        ring_occupancy: 0.25,
        dropped_packets: 0,
        capacity_pps: None,
        cpu_quota: None,
        cpu: Some(0.53),
        busy: is_told.then_some(0.42),
        gap_us: is_told.then_some(166.7),
        ring_wait_us: is_told.then_some(PercentilesUs {
            p50: 1.5,
            p99: 2_400.0,
        }),
        function_us: is_told.then_some(PercentilesUs { p50: 0.8, p99: 35.2 }),
        held_up: 0.08,
        watts: None,
        memory_bytes: is_told.then_some(12 << 20),
        report: None,
        reason: "ready".to_owned(),
    }
}

fn flow(instance: Option<InstanceId>) -> FlowRow {
    FlowRow {
        flow: format!("tcp 10.0.0.1:1000 > 10.0.0.{}:80", instance.map_or(0, |id| id.0)),
        service: "web".to_owned(),
        forward: instance,
        reverse: instance,
        since_unix_ms: [None; 2],
        packets: [7, 3],
        bytes: [700, 300],
        idle_ms: 1,
        state: "established".to_owned(),
        pps: Some(500.0),
        error_pps: None,
        rule: None,
    }
}

/// A store whose actors are on these sides.
fn store(sides: [ActorSide; 2], migrations: u64) -> ActorsRow {
    let side = |side: ActorSide| ActorSideRow {
        side,
        place: Some(side.name().to_owned()),
        runs: true,
        cores: 2,
        busy: 0.25,
        requests: 1_500,
        answers: 1_490,
        ..ActorSideRow::default()
    };
    let actor = |(name, side): (&str, ActorSide)| ActorRow {
        actor: name.to_owned(),
        side: Some(side),
        state: "runs".to_owned(),
        mode: "fcfs".to_owned(),
        mean_us: 12.0,
        tail_us: 40.0,
        migrations,
        ..ActorRow::default()
    };
    ActorsRow {
        service: "kv".to_owned(),
        moves: "auto".to_owned(),
        sides: ActorSide::BOTH.map(side).into(),
        actors: std::iter::zip(["consensus", "memtable"], sides)
            .map(actor)
            .collect(),
    }
}

const LIVE: &str = "document.querySelector('#connection')?.textContent === 'live'";

#[test]
fn the_page_follows_a_scale_out_and_survives_a_restart() {
    let Some(program) = browser() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let mut world = World::start(&socket, 7);
    let port = port_to(&socket);
    let mut page = Browser::open(&program, &format!("http://127.0.0.1:{port}/"));
    page.until(LIVE);
    page.until("document.querySelectorAll('#instance-rows tbody tr').length === 1");
    assert!(page.text("#about").contains("9.9"));
    assert_eq!(page.texts("#services tbody td")[..2], ["web", "1 of 1"]);
    assert_eq!(page.text("#figures dd"), "1.00k/s");
    // Nothing of what others say is markup.
    assert!(page.text("#reasons").contains("<img src=x"));
    assert_eq!(page.value("document.images.length"), 0);

    // A scale-out, live: rows, the count, the decision with its reason, areas and boxes.
    *world.instances.lock().unwrap() = 3;
    world.tell(
        1,
        EventKind::Scaled {
            from: 1,
            to: 3,
            policy: "ladder".to_owned(),
            reason: "utilisation 0.82 over 0.70".to_owned(),
            case: None,
        },
    );
    page.until("document.querySelectorAll('#instance-rows tbody tr').length === 3");
    page.until("document.querySelectorAll('#decisions li').length === 1");
    assert!(
        page.text("#decisions li")
            .contains("1 → 3 instances wanted by ladder (utilisation 0.82 over 0.70)")
    );
    assert_eq!(page.texts("#instance-rows tbody td:first-child"), ["1", "2", "3"]);
    assert_eq!(page.texts("#services tbody td")[1], "3 of 3");
    assert_eq!(page.text("#figures dd"), "3.00k/s");
    assert_eq!(page.texts("#flows path title").len(), 3);
    assert_eq!(
        page.value("document.querySelectorAll('#topology rect').length"),
        5
    );

    // By keyboard: the largest flows of an instance.
    page.value("document.querySelectorAll('#instance-rows button')[1].focus()");
    for kind in ["keyDown", "keyUp"] {
        let key = serde_json::json!({
            "type": kind, "key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13
        });
        page.call("Input.dispatchKeyEvent", key);
    }
    page.until("document.querySelector('#detail-title').textContent === 'Instance 2 of web'");
    page.until("document.querySelector('#detail-flows tbody')?.textContent.includes('10.0.0.2:80')");
    says(
        &mut page,
        &[
            "CPU 53.0% of 1, not limited, busy 42.0% and held up 8.0% of the time, memory 12.0 MiB",
            "A packet comes each 166.7 µs on average.",
            "wait 1.5 µs and 2 ms in its ring and take 0.8 µs and 35.2 µs in the function",
        ],
    );
    page.value("choose(3)");
    page.until("document.querySelector('#detail-title').textContent === 'Instance 3 of web'");
    says(
        &mut page,
        &[
            "busy - and held up 8.0% of the time, memory -,",
            "No packet comes now.",
            "wait (not known) in its ring and take (not known) in the function",
        ],
    );

    // It goes away, and another one comes: the page says so, goes on, and shows nothing of the old one.
    drop(world.server.take());
    page.until("document.querySelector('#connection').className === 'gone'");
    let world = World::start(&socket, 8);
    world.tell(
        1,
        EventKind::Started {
            adopted: 3,
            flows: 0,
            repaired: 0,
            rejected: 0,
        },
    );
    page.until(LIVE);
    page.until("state.pid === 8 && document.querySelectorAll('#instance-rows tbody tr').length === 1");
    page.until("document.querySelector('#events').textContent.includes('adopted 3 containers')");
    assert_eq!(page.texts("#decisions li").len(), 0);

    // A page that is opened now shows what happened before: two instances since more than a second.
    *world.instances.lock().unwrap() = 2;
    page.until("state.samples.filter((sample) => sample.rates.size === 2).length >= 2");
    drop(page);
    let mut page = Browser::open(&program, &format!("http://127.0.0.1:{port}/"));
    page.until(LIVE);
    page.until("document.querySelectorAll('#instance-rows tbody tr').length === 2");
    assert_eq!(
        page.value("state.samples.filter((sample) => sample.rates.size === 2).length >= 2"),
        true
    );
    assert_eq!(
        page.value("state.samples.some((sample) => sample.rates.size === 1)"),
        true
    );
    assert_eq!(
        page.value("Math.max(...state.samples.map((sample) => sample.offered))"),
        2000
    );

    // Nothing is cut off at the width of a laptop, nor wider than the screen on a phone.
    for width in [1280, 360] {
        page.call(
            "Emulation.setDeviceMetricsOverride",
            serde_json::json!({"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": width < 500}),
        );
        page.until(&format!(
            "innerWidth === {width} && document.documentElement.scrollWidth <= {width}"
        ));
        page.value("draw()");
        let clipped = page.value(
            "[...document.querySelectorAll('.chart text')].filter((text) => {
                const [own, chart] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
                return own.left < chart.left - 1 || own.right > chart.right + 1;
            }).map((text) => text.textContent).join()",
        );
        assert_eq!(clipped, "", "axis labels clipped at {width} px");
        if width == 1280 {
            let cut = page.value(
                "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth)
                    .map((box) => `${box.firstElementChild.id} ${box.scrollWidth} > ${box.clientWidth}`).join()",
            );
            assert_eq!(cut, "", "tables cut off at {width} px");
        }
    }
    memory_stays_bounded(&mut page);
    assert_eq!(page.complaints(), [] as [String; 0]);
}

/// The words about the chosen instance.
fn says(page: &mut Browser, parts: &[&str]) {
    let words = page.text("#detail-words");
    for part in parts {
        assert!(words.contains(part), "no {part:?} in {words:?}");
    }
}

/// Both sides, and after a move what moved, when and why; without a reload.
#[test]
fn the_page_shows_both_sides_and_what_moved_when_and_why() {
    let Some(program) = browser() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let world = World::start(&socket, 7);
    let port = port_to(&socket);
    let mut page = Browser::open(&program, &format!("http://127.0.0.1:{port}/"));
    page.until(LIVE);
    // An inco without actors has no such section.
    assert_eq!(page.value("document.querySelector('#actors').hidden"), true);
    *world.actors.lock().unwrap() = vec![store([ActorSide::Card; 2], 0)];
    page.until("document.querySelectorAll('#actor-rows tbody tr').length === 2");
    assert_eq!(page.value("document.querySelector('#actors').hidden"), false);
    let sides = page.texts("#actor-sides li");
    let words = |side: &str| format!("kv, {side} at {side}: runs; 2 cores 25.0% busy");
    assert!(
        sides.len() == 2 && sides[0].starts_with(&words("card")) && sides[1].starts_with(&words("host")),
        "{sides:?}"
    );
    let second = "#actor-rows tbody td:nth-child(2)";
    assert_eq!(page.texts(second), ["card", "card"]);
    assert_eq!(page.texts("#actor-events li").len(), 0);

    *world.actors.lock().unwrap() = vec![store([ActorSide::Card, ActorSide::Host], 1)];
    let reason = "the card is busy: 0.93 over 0.85";
    for (sequence, change, took_us) in [
        (1, ActorChange::MoveBegun, None),
        (2, ActorChange::MoveEnded, Some(2_400)),
    ] {
        world.tell(
            sequence,
            EventKind::Actor {
                actor: "memtable".to_owned(),
                side: ActorSide::Card,
                change,
                took_us,
                lost: None,
                reason: reason.to_owned(),
                case: None,
            },
        );
    }
    page.until("document.querySelectorAll('#actor-events li').length === 2");
    page.until("document.querySelectorAll('#actor-rows tbody td:nth-child(2)')[1].textContent === 'host'");
    assert_eq!(page.texts(second), ["card", "host"]);
    assert_eq!(
        page.texts("#actor-rows tbody td:first-child"),
        ["kv/consensus", "kv/memtable"]
    );
    assert_eq!(page.texts("#actor-rows tbody td:last-child"), ["1", "1"]);
    let events = page.texts("#actor-events li");
    assert!(
        events[0].contains(&format!(
            "actor memtable is on the host now after 2.4 ms ({reason})"
        )),
        "{events:?}"
    );
    assert!(
        events[1].contains(&format!(
            "actor memtable moves from the card to the host ({reason})"
        )),
        "{events:?}"
    );
    // When: a time of day, and it can be seen.
    let time = "document.querySelector('#actor-events li time')";
    page.until(&format!("/^\\d\\d:\\d\\d:\\d\\d/.test({time}.textContent)"));
    page.until(&format!(
        "{time}.checkVisibility() && {time}.getBoundingClientRect().height > 0"
    ));

    // A side that ends says so.
    world.actors.lock().unwrap()[0].sides[1].runs = false;
    page.until("document.querySelectorAll('#actor-sides li')[1].className === 'bad'");
    assert!(page.texts("#actor-sides li")[1].contains("does not run"));
    assert_eq!(page.complaints(), [] as [String; 0]);
}

/// More than charts and lists hold, at once, and then as much again: a page that kept something for each of it would
/// grow.
fn memory_stays_bounded(page: &mut Browser) {
    let more = |page: &mut Browser, snapshots: u32| {
        page.value(
            &"for (let i = 0; i < SNAPSHOTS; i++) {
                const next = structuredClone(state.snapshot);
                next.unix_ms += 1000;
                next.status.uptime_s += 1;
                for (const row of next.instances) row.id += i % 50 === 0 ? 1 : 0;
                take(next);
                happened({ sequence: i, unix_ms: next.unix_ms, event: 'hot', service: 'web', instance: i % 7,
                occupancy: 0.5 });
                if (i % 10 === 0) drawEvents();
            }"
            .replace("SNAPSHOTS", &snapshots.to_string()),
        );
        page.memory()
    };
    let (first, nodes) = more(page, 1000);
    let (second, more_nodes) = more(page, 400);
    assert!(
        second - first < 1e6,
        "the page grew from {first} to {second} bytes with 400 snapshots"
    );
    assert!(more_nodes < nodes + 2000, "from {nodes} to {more_nodes} nodes");
    let until = Instant::now() + watched();
    while Instant::now() < until {
        std::thread::sleep(Duration::from_secs(1).min(until - Instant::now()));
        page.value("0");
    }
    let (last, _) = page.memory();
    assert!(last - second < 1e6, "the page grew from {second} to {last} bytes");
}
