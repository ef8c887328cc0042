//! Compares each view with its reviewed text in `snapshots/*.txt`. `INCO_WRITE_REFERENCE=1` rewrites the files;
//! review the changes.

use std::path::Path;

use api::types::{
    Accounting, ActorRow, ActorSideRow, ActorsRow, EngineStatus, FlowRow, InstanceRow, PercentilesUs,
    ServiceRow, Status, UplinkRow, Watts, WattsSource,
};
use model::{Action, ActorChange, ActorSide, Event, EventKind, InstanceId, InstanceState, Nanos};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::state::{KeyAction, Observed, Page, Top, Update};
use super::view::{Theme, draw};

const PLAIN: Theme = Theme {
    colours: false,
    unicode: true,
};

fn instance(id: u32, service: &str, state: InstanceState, second: u64) -> InstanceRow {
    let load = f64::from(id) * 1000.0 + second as f64 * 150.0;
    let is_active = state == InstanceState::Active;
    InstanceRow {
        id: InstanceId(id),
        service: service.to_owned(),
        place: None,
        core: None,
        state,
        state_ms: 12_000 + second * 1000,
        slot: Some(id as u16),
        container: Some(format!("inco-{service}-{id}")),
        address: None,
        name: None,
        pid: Some(4000 + id),
        adopted: id == 1,
        to_pps: if is_active { load } else { 0.0 },
        back_pps: if is_active { load } else { 0.0 },
        to_packets: second * 4000,
        back_packets: second * 3990,
        live_flows: if is_active { u64::from(id) * 5 + second } else { 0 },
        ring_occupancy: if is_active { f64::from(id) / 10.0 } else { 0.0 },
        dropped_packets: if id == 3 { second * second * 10 } else { 0 },
        capacity_pps: Some(20_000.0),
        cpu_quota: Some(0.1),
        cpu: Some(0.53),
        busy: Some(0.42),
        gap_us: is_active.then(|| 1e6 / load),
        ring_wait_us: Some(PercentilesUs {
            p50: 1.5,
            p99: 2_400.0,
        }),
        function_us: Some(PercentilesUs { p50: 0.8, p99: 35.2 }),
        held_up: 0.08,
        watts: Some(Watts {
            expected: 5.8,
            low: 2.1,
            high: 9.6,
            source: WattsSource::Model,
        }),
        memory_bytes: Some(12 << 20),
        report: None,
        reason: "scaled out".to_owned(),
    }
}

fn service(name: &str, second: u64) -> ServiceRow {
    ServiceRow {
        name: name.to_owned(),
        image: Some(format!("inco/{name}")),
        scheduler: "best-fit".to_owned(),
        metric: "packets".to_owned(),
        autoscaler: "ladder".to_owned(),
        active: 3,
        desired: 4,
        fixed: name == "dns",
        min: 1,
        max: 8,
        standby: 1,
        live_flows: 30 + second,
        offered_pps: 12_345.0,
        returned_pps: 12_300.0,
        highest_utilisation: Some(0.62),
        ..ServiceRow::default()
    }
}

fn event(sequence: u64, instance: Option<u32>, kind: EventKind) -> Event {
    Event {
        sequence,
        at: Nanos(0),
        unix_ms: 3_600_000 + sequence * 1234,
        service: Some("web".to_owned()),
        instance: instance.map(InstanceId),
        kind,
    }
}

fn observed(second: u64) -> Observed {
    use InstanceState::{Active, Draining, Standby};
    let dropped = second * second * 10;
    Observed {
        status: Status {
            version: "1.2.3".to_owned(),
            pid: 7,
            file: "inco.toml".to_owned(),
            uptime_s: 60.0 + second as f64,
            engine: EngineStatus {
                driver: "oci".to_owned(),
                up: true,
                down_ms: 0,
            },
            uplinks: vec![UplinkRow {
                name: "wan".to_owned(),
                up: true,
                received_pps: 12_345.0,
                sent_pps: 12_300.0,
                ..UplinkRow::default()
            }],
            accounting: Accounting {
                dropped,
                in_flight: 12,
                ..Accounting::default()
            },
            live_flows: 30 + second,
            flow_limit: 65_536,
            events: 3,
            ..Status::default()
        },
        services: vec![service("web", second), service("dns", second)],
        instances: vec![
            instance(1, "web", Active, second),
            instance(2, "web", Active, second),
            instance(3, "web", Active, second),
            instance(4, "web", Draining, second),
            instance(5, "web", Standby, second),
            instance(6, "dns", Active, second),
        ],
        actors: Vec::new(),
        past: None,
        events: Some(vec![
            event(
                1,
                None,
                EventKind::Started {
                    adopted: 1,
                    flows: 0,
                    repaired: 0,
                    rejected: 0,
                },
            ),
            event(
                2,
                None,
                EventKind::Scaled {
                    from: 3,
                    to: 4,
                    policy: "ladder".to_owned(),
                    reason: "utilisation 0.82 over 0.70 for 10 ms".to_owned(),
                    case: None,
                },
            ),
            event(3, Some(3), EventKind::Hot { occupancy: 0.31 }),
        ]),
        flows: Vec::new(),
    }
}

fn flow(port: u16, pps: f64) -> FlowRow {
    FlowRow {
        flow: format!("tcp 10.0.0.1:{port} > 10.128.0.1:443"),
        service: "web".to_owned(),
        forward: Some(InstanceId(3)),
        reverse: Some(InstanceId(3)),
        since_unix_ms: [None; 2],
        packets: [u64::from(port) * 10, 5],
        bytes: [u64::from(port) * 640, 320],
        idle_ms: 1,
        state: "established".to_owned(),
        pps: Some(pps),
        error_pps: Some(12.0),
        rule: None,
    }
}

/// The state after 20 seconds.
fn top() -> Top {
    let mut top = Top::default();
    for second in 0..20 {
        top.update(Update::Observed(Box::new(observed(second))));
    }
    top
}

fn press(top: &mut Top, keys: &[KeyCode]) -> Option<KeyAction> {
    let mut wish = None;
    for key in keys {
        wish = top.key(KeyEvent::new(*key, KeyModifiers::NONE));
    }
    wish
}

fn drawn(top: &Top, width: u16, height: u16, theme: Theme) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, top, theme)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in 0..buffer.area.height {
        let line: String = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn is_as_before(name: &str, drawn: &Buffer) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/snapshots/{name}.txt"));
    let now = text(drawn);
    if std::env::var_os("INCO_WRITE_REFERENCE").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &now).unwrap();
    }
    let before = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        now == before,
        "{name} looks different now:\n{now}\nINCO_WRITE_REFERENCE=1 writes it anew; before it was:\n{before}"
    );
}

#[test]
fn the_overview_fits_a_small_terminal() {
    is_as_before("overview-80x24", &drawn(&top(), 80, 24, PLAIN));
}

#[test]
fn a_wide_terminal_has_longer_charts() {
    is_as_before("overview-120x30", &drawn(&top(), 120, 30, PLAIN));
}

#[test]
fn without_unicode_charts_are_ascii() {
    let theme = Theme {
        unicode: false,
        ..PLAIN
    };
    let buffer = drawn(&top(), 80, 24, theme);
    assert!(text(&buffer).is_ascii(), "{}", text(&buffer));
    is_as_before("overview-ascii", &buffer);
}

#[test]
fn a_failing_service_shows_its_failure_in_place_of_its_policies() {
    let mut top = top();
    let mut failing = observed(20);
    failing.services[0].failing =
        Some("crash loop (12 failures, last: its program exited with 3)".to_owned());
    top.update(Update::Observed(Box::new(failing)));
    let shown = text(&drawn(&top, 120, 24, PLAIN));
    assert!(
        shown.contains("crash loop (12 failures, last: its program"),
        "{shown}"
    );
}

#[test]
fn with_places_each_instance_shows_its_own() {
    let mut top = top();
    assert!(!text(&drawn(&top, 100, 24, PLAIN)).contains("PLACE"));
    let mut at_places = observed(20);
    for (row, place) in at_places.instances.iter_mut().zip(["card", "card", "host"]) {
        row.place = Some(place.to_owned());
    }
    top.update(Update::Observed(Box::new(at_places)));
    for page in ['1', '2'] {
        press(&mut top, &[KeyCode::Char(page)]);
        let shown = text(&drawn(&top, 100, 24, PLAIN));
        let line = |id: &str| {
            shown
                .lines()
                .find(|line| line.trim_start().starts_with(id))
                .unwrap()
        };
        assert!(shown.contains("PLACE"), "{shown}");
        assert!(
            line("1 web").contains("card") && line("3 web").contains("host"),
            "{shown}"
        );
    }
}

#[test]
fn every_page_is_as_before() {
    let mut top = top();
    press(&mut top, &[KeyCode::Char('2')]);
    is_as_before("flows", &drawn(&top, 80, 24, PLAIN));
    press(&mut top, &[KeyCode::Char('3')]);
    is_as_before("events", &drawn(&top, 80, 24, PLAIN));
    press(&mut top, &[KeyCode::Char('?')]);
    is_as_before("help", &drawn(&top, 80, 24, PLAIN));
}

fn actor(name: &str, side: Option<ActorSide>, state: &str) -> ActorRow {
    ActorRow {
        actor: name.to_owned(),
        side,
        state: state.to_owned(),
        mode: "fcfs".to_owned(),
        mailbox: 3,
        mean_us: 12.4,
        tail_us: 1_800.0,
        requests_per_s: 1_234.0,
        load: 0.31,
        objects: 17,
        migrations: 2,
        ..ActorRow::default()
    }
}

/// Both sides, what is on them and on neither, and what moved and why.
#[test]
fn actors_are_shown_by_side() {
    let mut top = top();
    press(&mut top, &[KeyCode::Char('4')]);
    assert!(text(&drawn(&top, 80, 24, PLAIN)).contains("no service of actors"));
    let side = |side, runs, busy| ActorSideRow {
        side,
        runs,
        busy,
        cores: 2,
        requests: 123_456,
        answers: 123_450,
        starts: 1,
        ..ActorSideRow::default()
    };
    let actors = ActorsRow {
        service: "kv".to_owned(),
        moves: "auto".to_owned(),
        sides: vec![
            side(ActorSide::Card, true, 0.42),
            side(ActorSide::Host, false, 0.0),
        ],
        actors: vec![
            actor("counter", Some(ActorSide::Card), "runs"),
            actor("a-very-long-name-of-an-actor", Some(ActorSide::Host), "waits"),
            actor("ranker", None, "lost"),
        ],
    };
    let moved = EventKind::Actor {
        actor: "counter".to_owned(),
        side: ActorSide::Host,
        change: ActorChange::MoveEnded,
        reason: "prepare 0.10 ms, ready 0.02 ms".to_owned(),
        took_us: Some(1_500),
        lost: None,
        case: None,
    };
    let mut seen = observed(20);
    seen.actors = vec![actors];
    seen.events = seen.events.map(|mut events| {
        events.push(event(4, None, moved));
        events
    });
    top.update(Update::Observed(Box::new(seen)));
    let shown = text(&drawn(&top, 80, 24, PLAIN));
    let place = |word: &str| shown.find(word).unwrap_or_else(|| panic!("no {word}:\n{shown}"));
    // Each actor is below its side.
    let in_order = [
        "kv (moves auto)",
        " card runs",
        "counter",
        " host DOES NOT RUN",
        "a-very-long",
        "ranker",
        "WHAT MOVED, AND WHY",
        "actor counter is on the card now",
    ];
    assert!(in_order.map(place).is_sorted(), "{shown}");
    assert!(shown.contains("123,456") && shown.contains("lost"), "{shown}");
}

#[test]
fn an_instance_is_shown_with_its_largest_flows() {
    let mut top = top();
    let keys = [KeyCode::Down; 4];
    press(&mut top, &keys);
    let wish = press(&mut top, &[KeyCode::Enter]);
    assert_eq!(wish, Some(KeyAction::LookAt(Some(InstanceId(3)))));
    top.update(Update::Observed(Box::new(Observed {
        flows: vec![flow(2000, 5000.0), flow(1000, 300.0)],
        ..observed(20)
    })));
    is_as_before("instance", &drawn(&top, 80, 24, PLAIN));
    // The selected instance disappears: the page says so.
    let mut fewer = observed(21);
    fewer.instances.retain(|row| row.id != InstanceId(3));
    top.update(Update::Observed(Box::new(fewer)));
    assert!(text(&drawn(&top, 80, 24, PLAIN)).contains("Instance 3 is removed"));
    assert_eq!(press(&mut top, &[KeyCode::Esc]), Some(KeyAction::LookAt(None)));
}

#[test]
fn actions_need_a_confirmation() {
    let mut top = top();
    press(&mut top, &[KeyCode::Down, KeyCode::Down, KeyCode::Down]);
    assert_eq!(press(&mut top, &[KeyCode::Char('d')]), None);
    is_as_before("drain", &drawn(&top, 80, 24, PLAIN));
    // Only `y` confirms.
    for key in ['n', 'q'] {
        assert_eq!(press(&mut top, &[KeyCode::Char('d'), KeyCode::Char(key)]), None);
        assert!(top.prompt.is_none());
    }
    assert_eq!(press(&mut top, &[KeyCode::Char('d'), KeyCode::Enter]), None);
    let wish = press(&mut top, &[KeyCode::Char('y')]);
    let drain = Action::Drain {
        instance: InstanceId(2),
    };
    assert_eq!(wish, Some(KeyAction::Act(drain)));
    top.update(Update::Done(Err(
        "instance 2 does not drain; see `inco instances`".to_owned(),
    )));
    assert!(text(&drawn(&top, 80, 24, PLAIN)).contains("REFUSED: instance 2"));
}

#[test]
fn a_count_and_a_policy_are_chosen() {
    let mut top = top();
    press(
        &mut top,
        &[
            KeyCode::Char('s'),
            KeyCode::Char('1'),
            KeyCode::Char('2'),
            KeyCode::Backspace,
        ],
    );
    press(&mut top, &[KeyCode::Char('x'), KeyCode::Char('6')]);
    is_as_before("count", &drawn(&top, 80, 24, PLAIN));
    press(
        &mut top,
        &[
            KeyCode::Backspace,
            KeyCode::Backspace,
            KeyCode::Char('6'),
            KeyCode::Enter,
        ],
    );
    let scale = |instances| {
        Some(KeyAction::Act(Action::Scale {
            service: "web".to_owned(),
            instances,
        }))
    };
    assert_eq!(press(&mut top, &[KeyCode::Char('y')]), scale(Some(6)));
    assert_eq!(
        press(&mut top, &[KeyCode::Char('+'), KeyCode::Char('y')]),
        scale(Some(5))
    );
    assert_eq!(
        press(&mut top, &[KeyCode::Char('-'), KeyCode::Char('y')]),
        scale(Some(3))
    );
    assert_eq!(
        press(&mut top, &[KeyCode::Char('a'), KeyCode::Char('y')]),
        scale(None)
    );

    press(&mut top, &[KeyCode::Char('p'), KeyCode::Down]);
    is_as_before("policy", &drawn(&top, 80, 24, PLAIN));
    let wish = press(&mut top, &[KeyCode::Enter, KeyCode::Char('y')]);
    let Some(KeyAction::Act(Action::Policy {
        service,
        scheduler: Some(choice),
        autoscaler: None,
    })) = wish
    else {
        panic!("{wish:?}");
    };
    assert_eq!(
        (service.as_str(), choice.policy.as_str()),
        ("web", scheduling::Scheduler::NAMES[1])
    );
}

#[test]
fn a_lost_and_restored_connection_is_shown() {
    let mut top = Top::default();
    top.update(Update::Gone(
        "inco is not running (nothing listens on /run/inco/api.sock)".to_owned(),
    ));
    is_as_before("waiting", &drawn(&top, 80, 24, PLAIN));
    top = self::top();
    top.update(Update::Gone("inco did not answer".to_owned()));
    is_as_before("gone", &drawn(&top, 80, 24, PLAIN));
    let mut other = observed(0);
    other.status.pid = 8;
    top.update(Update::Observed(Box::new(other)));
    let shown = text(&drawn(&top, 80, 24, PLAIN));
    assert!(
        shown.contains("another inco is running now (process 8)"),
        "{shown}"
    );
    assert!(shown.contains("lost 0/s"), "{shown}");
}

#[test]
fn colour_is_only_there_where_it_is_wanted() {
    let coloured = |theme: Theme| {
        let buffer = drawn(&top(), 80, 24, theme);
        let cells = buffer.content.iter();
        cells
            .filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
            .count()
    };
    assert_eq!(coloured(PLAIN), 0);
    assert!(
        coloured(Theme {
            colours: true,
            unicode: true
        }) > 100
    );
}

#[test]
fn any_size_is_drawn() {
    let mut top = top();
    let pages = [
        Page::Overview,
        Page::Flows,
        Page::Events,
        Page::Help,
        Page::Instance(InstanceId(3)),
    ];
    for page in pages {
        top.page = page;
        for (width, height) in [(1, 1), (2, 3), (20, 5), (40, 10), (79, 13), (300, 90)] {
            for key in ['d', 's', 'p', 'x'] {
                press(&mut top, &[KeyCode::Esc]);
                top.page = page;
                press(&mut top, &[KeyCode::Char(key)]);
                drawn(&top, width, height, PLAIN);
            }
            press(&mut top, &[KeyCode::Esc]);
        }
    }
}

#[test]
fn instances_are_filtered_and_ordered() {
    let mut top = top();
    let ids = |top: &Top| -> Vec<u32> { top.instances().iter().map(|row| row.id.0).collect() };
    let all = ids(&top);
    assert!(all.len() > 2 && all.is_sorted(), "{all:?}");
    press(&mut top, &[KeyCode::Char('o')]);
    let rates: Vec<f64> = top.instances().iter().map(|row| row.to_pps).collect();
    assert!(
        rates.is_sorted_by(|a, b| a >= b) && rates[0] > rates[rates.len() - 1],
        "{rates:?}"
    );
    let keys = ['/', 'a', 'c', 't', 'i', 'v', 'e'].map(KeyCode::Char);
    press(&mut top, &keys);
    let shown = text(&drawn(&top, 80, 24, PLAIN));
    assert!(
        shown.contains("filter: active_") && !shown.contains("draining"),
        "{shown}"
    );
    press(&mut top, &[KeyCode::Enter]);
    let shown = text(&drawn(&top, 80, 24, PLAIN));
    assert!(
        shown.contains("filter active  by rate") && shown.contains("? help"),
        "{shown}"
    );
    assert!(top.instances().len() < all.len());
    assert!(
        top.instances()
            .iter()
            .all(|row| row.state == InstanceState::Active)
    );
    press(&mut top, &[KeyCode::Char('/'), KeyCode::Esc]);
    assert_eq!(ids(&top).len(), all.len());
}

#[test]
fn ctrl_c_quits_during_a_confirmation() {
    let mut top = top();
    press(&mut top, &[KeyCode::Char('d')]);
    let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(top.key(key), Some(KeyAction::Quit));
    assert_eq!(
        press(&mut self::top(), &[KeyCode::Char('q')]),
        Some(KeyAction::Quit)
    );
}
