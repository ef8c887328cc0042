//! inco ends (killed, stopped or told to keep its containers), and the next run adopts the containers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use api::types::FlowFilter;
use model::{EventKind, InstanceId, InstanceState};

use crate::support::{
    Engine, IMAGE, Inco, Ovs, PATIENCE, Place, Systemd, assert_clean, eventually, launcher_of, program,
    text as text_of,
};
use crate::upgrade::{copy_of_inco, earlier_inco, program_of};

pub(crate) fn service(name: &str, port: u16, standby_mode: &str) -> String {
    format!(
        r#"
[service.{name}]
match = {{ proto = "udp", dst_port = {port} }}
image = "{IMAGE}"
command = ["/inco-nf", "forward", "--stamp", "--pace-cpus", "0.1"]
cpus = 0.1
memory = "64MiB"
capacity = "10kpps"
instances = {{ min = 2, max = 2, standby = 1, standby_mode = "{standby_mode}" }}
scheduler = "round-robin"
autoscaler = "fixed"
ring = {{ slots = 8192 }}
"#
    )
}

pub(crate) fn configuration(engine: Engine, services: &[String]) -> String {
    let uplink = "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n";
    format!("{uplink}{}{}", services.concat(), engine.toml())
}

pub(crate) const LOAD: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "2s"
[[phase]]
duration = "1s"
flows = 8
dst_port = 53
rate_per_flow = "200pps"
"#;

/// Ids and processes.
pub(crate) fn pids(inco: &Inco) -> BTreeMap<InstanceId, u32> {
    inco.instances().iter().map(|i| (i.id, i.pid.unwrap())).collect()
}

/// Containers that the engine has of this place: control groups of the embedded one, Docker's own list.
fn containers(engine: Engine, place: &Place, inco: &Inco) -> usize {
    match engine {
        Engine::Oci => {
            let pid = inco.instances().iter().find_map(|i| i.pid).unwrap();
            let groups = crate::support::siblings(pid);
            assert!(!groups.is_empty());
            groups.len()
        }
        Engine::Docker => {
            let label = format!("label=inco.run-dir={}", place.run_dir().display());
            let listed = Command::new("docker")
                .args(["ps", "-aq", "--filter", &label])
                .output()
                .unwrap();
            text_of(&listed.stdout).lines().count()
        }
    }
}

/// Containers and flows that it took over, as its first event says.
fn taken_over(inco: &Inco) -> (u32, u64) {
    let events = inco.events();
    let started = events.iter().find_map(|event| match event.kind {
        EventKind::Started { adopted, flows, .. } => Some((adopted, flows)),
        _ => None,
    });
    started.expect("inco tells that it started")
}

fn adopted(inco: &Inco) -> u32 {
    taken_over(inco).0
}

/// How a run ends that leaves everything to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Killed,
    Kept,
    KilledAfterItsLauncher,
    /// By SIGTERM of systemd.
    Lingering,
}

fn is_taken_over(engine: Engine, end: &End, standby_mode: &str) {
    if !engine.is_here() {
        return;
    }
    let place = Place::new();
    let text = configuration(engine, &[service("dns", 53, standby_mode)]);
    let inco = place.run(&text);
    inco.settled(2, 1);
    assert_eq!(adopted(&inco), 0);
    assert_clean(&place.traffic(LOAD).report());
    let before = pids(&inco);
    let traces = match end {
        End::Killed => inco.kill(),
        _ => inco.stop_with(&place, &["--keep"]).1,
    };
    // The containers go on by themselves.
    let mut alive = traces.processes_alive();
    alive.sort_unstable();
    let mut expected: Vec<u32> = before.values().copied().collect();
    expected.sort_unstable();
    assert_eq!(alive, expected);

    let inco = place.run(&text);
    inco.settled(2, 1);
    assert_eq!(pids(&inco), before);
    assert_eq!(adopted(&inco), 3);
    assert!(
        inco.instances().iter().all(|i| i.adopted),
        "{:#?}",
        inco.instances()
    );
    assert_eq!(containers(engine, &place, &inco), 3);
    assert_clean(&place.traffic(LOAD).report());
    let status = inco.at_rest();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    // What was taken over is looked after: its end is noticed and it is replaced, with an id of its own.
    let (id, pid) = before.iter().next().unwrap();
    crate::support::kill(*pid, rustix::process::Signal::KILL);
    eventually("the dead one is gone", PATIENCE, || {
        inco.instance(*id).is_none().then_some(())
    });
    let after = inco.settled(2, 1);
    assert!(after.iter().any(|i| !before.contains_key(&i.id)), "{after:#?}");
    inco.stop(&place);
    traces.assert_nothing_left();
}

/// Quota, policy and pauses are as an operator left them, and events are numbered on. The file applies after a stop.
#[test]
fn what_was_set_by_hand_holds_after_a_crash_and_until_a_stop() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let text = configuration(Engine::Oci, &[service("dns", 53, "warm")]);
    let mut inco = place.run(&text);
    inco.settled(2, 1);
    let row = |inco: &Inco| inco.client().services().unwrap().remove(0);
    let quotas = |inco: &Inco| {
        // One on standby gets its quota when it becomes active.
        let rows = inco.instances().into_iter();
        let active = rows.filter(|row| row.state == InstanceState::Active);
        active.map(|row| row.cpu_quota).collect::<Vec<_>>()
    };
    let of_the_file = (row(&inco).scheduler, quotas(&inco));
    place.must(&["policy", "dns", "--scheduler", "least-connections"]);
    place.must(&["scale", "dns", "--cpus", "0.2"]);
    place.must(&["disable-scale-in", "dns"]);
    place.must(&["disable-scale-out", "dns"]);
    place.must(&["disable-scale-out", "dns", "--off"]);
    let by_hand = |inco: &Inco| {
        let service = row(inco);
        (
            service.scheduler,
            quotas(inco),
            service.pause_in,
            service.pause_out,
        )
    };
    let before = eventually("the quota is set", PATIENCE, || {
        let now = by_hand(&inco);
        (now.1.iter().all(|cpus| *cpus == Some(0.2))).then_some(now)
    });
    assert_ne!((before.0.clone(), before.1.clone()), of_the_file);
    assert_eq!((before.2, before.3), (true, false));
    for _ in 0..2 {
        let newest = inco.status().events;
        drop(inco.kill());
        inco = place.run(&text);
        inco.settled(2, 1);
        eventually("all is set again", PATIENCE, || {
            (by_hand(&inco) == before).then_some(())
        });
        let events = inco.events();
        // What was told and not written yet when it was killed has its numbers twice.
        assert!(events[0].sequence > newest.saturating_sub(3), "{}", inco.told());
        assert!(
            events
                .windows(2)
                .all(|pair| pair[0].sequence + 1 == pair[1].sequence)
        );
        let again = events.iter().filter(|event| {
            matches!(&event.kind, EventKind::Action { by, refused: false, .. } if by == "earlier run")
        });
        assert_eq!(again.count(), 3, "{}", inco.told());
    }
    inco.stop(&place);
    let inco = place.run(&text);
    inco.settled(2, 1);
    assert_eq!((row(&inco).scheduler, quotas(&inco)), of_the_file);
    assert!(!row(&inco).pause_in);
    inco.stop(&place);
}

/// Live flows of all instances.
pub(crate) fn live_flows(inco: &Inco) -> u64 {
    inco.instances().iter().map(|i| i.live_flows).sum()
}

/// Kills the launcher, and waits for another one that keeps the same: memory, and the run directory. Of memory so many
/// pieces at least.
pub(crate) fn launcher_is_replaced(place: &Place, memory: usize) {
    let files = |pid: u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten();
        let links: Vec<_> = files
            .filter_map(|file| std::fs::read_link(file.path()).ok())
            .collect();
        let count = |is: &dyn Fn(&PathBuf) -> bool| links.iter().filter(|link| is(link)).count();
        (
            count(&|link| link.to_string_lossy().starts_with("/memfd:")),
            count(&|link| *link == place.run_dir()),
        )
    };
    let first = launcher_of(place);
    let kept = files(first[0]);
    assert!(kept.0 >= memory && kept.1 == 1, "the launcher keeps {kept:?}");
    crate::support::kill(first[0], rustix::process::Signal::KILL);
    eventually("another launcher keeps the same", PATIENCE, || {
        let now = launcher_of(place);
        (now != first && now.len() == 1 && files(now[0]) == kept).then_some(())
    });
}

/// inco goes and comes again in the middle of traffic, several times: no flow moves, no packet is lost, and none comes
/// twice. The generator stays connected: its rings and those of the instances hold what comes meanwhile.
fn no_flow_notices(engine: Engine, ends: &[End]) {
    if engine.is_here() {
        let place = Place::with_a_cpu();
        no_flow_notices_behind(None, &place, engine, ends, &program()).stop(&place);
        let there = std::fs::read_dir(place.run_dir()).unwrap().flatten();
        let sockets: Vec<_> = there
            .map(|entry| entry.file_name())
            .filter(|name| name.to_string_lossy().ends_with(".sock"))
            .collect();
        assert!(sockets.is_empty(), "{sockets:?}");
    }
}

/// The same, with inco's own switch or behind Open vSwitch. Gives the last run, which systemd started. What it leaves
/// is removed after three seconds.
/// `first` is the program of the first run.
pub(crate) fn no_flow_notices_behind(
    ovs: Option<&Ovs>,
    place: &Place,
    engine: Engine,
    ends: &[End],
    first: &Path,
) -> Inco {
    // Open vSwitch has a rule for each flow and direction. Behind it, containers have the memory of the rings, of two
    // queue pairs.
    let (flows, rate, memory, slots) = match ovs {
        None => (12_000, "0.2pps", 6, "8192"),
        Some(_) => (200, "10pps", 0, "4096"),
    };
    let text = configuration(engine, &[service("dns", 53, "warm")])
        .replace("capacity = \"10kpps\"", "")
        .replace("8192", slots);
    let text = ovs.map(Ovs::toml).unwrap_or_default() + &text;
    let systemd = Systemd::new(place);
    let mut ends = ends.iter().peekable();
    let run = |program: &Path, end: Option<&&End>| match end {
        Some(End::Lingering) => systemd.run_by(program, &text),
        Some(_) => place.run_by(program, &text),
        None => systemd.run_by(program, &format!("{text}linger = \"3s\"\n")),
    };
    let mut inco = run(first, ends.peek());
    inco.settled(2, 1);
    let before = pids(&inco);
    let load = LOAD
        .replace("duration = \"1s\"", "duration = \"120s\"")
        .replace("flows = 8", &format!("flows = {flows}"))
        .replace("200pps", rate);
    let traffic = place.traffic(&load);
    let returned = |inco: &Inco| inco.status().accounting.returned;
    let all_are_pinned = |inco: &Inco| {
        eventually("all flows are pinned", PATIENCE, || {
            let has_rules = || {
                let table = place.must(&["flows", "--limit", "1000"]);
                let installed = table.lines().filter(|line| line.contains("installed"));
                installed.count() as u64 >= flows
            };
            (live_flows(inco) >= flows && (ovs.is_none() || has_rules())).then_some(())
        });
    };
    all_are_pinned(&inco);
    while let Some(end) = ends.next() {
        match end {
            End::Killed => drop(inco.kill()),
            End::Kept => drop(inco.stop_with(place, &["--keep"])),
            End::KilledAfterItsLauncher => {
                launcher_is_replaced(place, memory);
                drop(inco.kill());
            }
            End::Lingering => {
                drop(inco.terminated());
                systemd.hears("STOPPING=1");
            }
        }
        if ovs.is_some() {
            // It goes on alone.
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        let since = Instant::now();
        inco = run(&program(), ends.peek());
        eventually("packets flow again", PATIENCE, || {
            (returned(&inco) > 0).then_some(())
        });
        println!(
            "{}, {end:?}: packets were seen to flow {:?} after its start",
            engine.name(),
            since.elapsed()
        );
        inco.settled(2, 1);
        assert_eq!(pids(&inco), before);
        // Counts follow with the next reading of the workers; Open vSwitch is asked for its rules while packets flow.
        all_are_pinned(&inco);
        eventually("many packets flow", PATIENCE, || {
            (returned(&inco) > 2_000).then_some(())
        });
        let status = inco.status();
        assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
        let resumed = status.resumed.expect("there was an earlier run");
        assert!(
            resumed.flows >= flows && resumed.unusable.is_empty(),
            "{resumed:?}"
        );
        assert_eq!(
            (resumed.instances, resumed.uplinks, resumed.converted_tables),
            (3, 1, 0)
        );
        assert_eq!(resumed.rejected.values().sum::<u64>(), 0, "{resumed:?}");
        assert_eq!(inco.client().counters().unwrap().resumed, resumed);
        // The event comes before that.
        let told = if ovs.is_some() { 0 } else { resumed.flows };
        assert_eq!(taken_over(&inco), (3, told));
    }
    traffic.interrupt();
    let report = traffic.report();
    let c = &report.counts;
    assert_eq!(
        (c.expected_moves, c.lost_in_restarts),
        (0, 0),
        "{c:#?}\n{}",
        inco.told()
    );
    assert_clean(&report);
    inco
}

/// The instances that serve each flow.
fn pins(inco: &Inco) -> BTreeMap<String, (Option<InstanceId>, Option<InstanceId>)> {
    let filter = FlowFilter {
        limit: Some(FlowFilter::LIMIT),
        ..FlowFilter::default()
    };
    let flows = inco.client().flows(&filter).unwrap().flows.into_iter();
    flows.map(|row| (row.flow, (row.forward, row.reverse))).collect()
}

/// The next run has fewer workers than an instance's ports have queues: its rings are of no use, its flows are.
#[test]
fn instances_that_are_connected_anew_keep_their_flows() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let with = |workers: &str, queues: u8| {
        let service =
            service("dns", 53, "warm").replace("ring = {", &format!("queues = {queues}\nring = {{"));
        format!(
            "[switch]\nworkers = {workers}\n{}",
            configuration(Engine::Oci, &[service])
        )
    };
    let load = LOAD
        .replace("flows = 8", "flows = 200")
        .replace("\"200pps\"", "\"2pps\"");
    let inco = place.run(&with("[0, 1]", 2));
    inco.settled(2, 1);
    assert_clean(&place.traffic(&load).report());
    inco.at_rest();
    let (before, containers) = (pins(&inco), pids(&inco));
    assert_eq!(before.len(), 200);
    drop(inco.kill());
    let inco = place.run(&with("[0]", 1));
    inco.settled(2, 1);
    let resumed = inco.status().resumed.expect("there was an earlier run");
    assert_eq!(
        (resumed.flows, resumed.instances, resumed.converted_tables),
        (200, 0, 2)
    );
    let has_queues = |part: &&String| part.starts_with("port/") && part.contains("it has 2 queues");
    assert_eq!(
        resumed.unusable.iter().filter(has_queues).count(),
        3,
        "{resumed:?}"
    );
    let said = text_of(&place.output(&["status"]).stdout);
    assert!(
        said.contains("taken over from an earlier run: flows 200; instances 0"),
        "{said}"
    );
    assert_eq!((pins(&inco), pids(&inco)), (before.clone(), containers));
    // The same flows again: each is where it was.
    assert_clean(&place.traffic(&load).report());
    assert_eq!(pins(&inco), before);
    inco.stop(&place);
}

/// A reload adds a service, which stands first in the file; later another one is removed. What stays keeps its flows,
/// though its number is another one in each run.
#[test]
fn flows_stay_when_services_come_and_go() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let [dns, web] = [("dns", 53), ("web", 80)].map(|(name, port)| service(name, port, "warm"));
    let load = LOAD
        .replace("flows = 8", "flows = 100")
        .replace("\"200pps\"", "\"4pps\"");
    let to_web = load.replace("dst_port = 53", "dst_port = 80");
    let inco = place.run(&configuration(Engine::Oci, std::slice::from_ref(&dns)));
    inco.settled(2, 1);
    assert_clean(&place.traffic(&load).report());
    let both = configuration(Engine::Oci, &[web.clone(), dns]);
    place.file("inco.toml", &both);
    place.must(&["reload"]);
    inco.settled(4, 2);
    assert_clean(&place.traffic(&to_web).report());
    inco.at_rest();
    let before = pins(&inco);
    assert_eq!(before.len(), 200);
    drop(inco.kill());

    let is_taken_over = |inco: &Inco, flows: u64, rejected: u64| {
        let resumed = inco.status().resumed.expect("there was an earlier run");
        assert_eq!(resumed.flows, flows, "{resumed:?}");
        assert_eq!(resumed.rejected.values().sum::<u64>(), rejected, "{resumed:?}");
        assert!(resumed.unusable.is_empty(), "{resumed:?}");
    };
    let inco = place.run(&both);
    inco.settled(4, 2);
    is_taken_over(&inco, 200, 0);
    for load in [&load, &to_web] {
        assert_clean(&place.traffic(load).report());
    }
    assert_eq!(pins(&inco), before);
    inco.at_rest();
    drop(inco.kill());

    let inco = place.run(&configuration(Engine::Oci, &[web]));
    inco.settled(2, 1);
    is_taken_over(&inco, 100, 100);
    assert_clean(&place.traffic(&to_web).report());
    let mut of_web = before;
    of_web.retain(|flow, _| flow.contains(":80 ") || flow.ends_with(":80"));
    assert_eq!(of_web.len(), 100, "{of_web:?}");
    assert_eq!(pins(&inco), of_web);
    inco.stop(&place);
}

#[test]
fn no_flow_notices_a_kill_9_oci() {
    no_flow_notices(Engine::Oci, &[End::Killed, End::Killed, End::Killed]);
}

#[test]
fn no_flow_notices_a_kill_9_docker() {
    no_flow_notices(Engine::Docker, &[End::Killed]);
}

#[test]
fn no_flow_notices_a_kill_9_of_the_launcher_and_then_of_inco() {
    no_flow_notices(Engine::Oci, &[End::KilledAfterItsLauncher]);
}

/// Nothing is known of the flows any more. Connections are recovered by their hash, so a second time none moves.
#[test]
fn connections_are_recovered_after_a_kill_9_of_inco_and_the_launcher_together() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let udp = service("web", 80, "warm");
    let text = configuration(Engine::Oci, &[udp.replace("proto = \"udp\"", "proto = \"tcp\"")]);
    let mut inco = place.run(&text);
    inco.settled(2, 1);
    let before = pids(&inco);
    let traffic = place.traffic(
        &LOAD
            .replace(
                "duration = \"1s\"",
                "duration = \"60s\"\nprotocol = \"tcp\"\nsize = 128",
            )
            .replace("flows = 8", "flows = 200")
            .replace("dst_port = 53", "dst_port = 80")
            .replace("\"200pps\"", "\"10pps\""),
    );
    eventually("all flows are pinned", PATIENCE, || {
        (live_flows(&inco) >= 200).then_some(())
    });
    let mut pins = Vec::new();
    for _ in 0..2 {
        // One that is stopped does nothing between the two ends.
        let launcher = launcher_of(&place)[0];
        crate::support::kill(launcher, rustix::process::Signal::STOP);
        drop(inco.kill());
        crate::support::kill(launcher, rustix::process::Signal::KILL);
        inco = place.run(&text);
        inco.settled(2, 1);
        assert_eq!(pids(&inco), before);
        eventually("all flows are pinned again", PATIENCE, || {
            (live_flows(&inco) >= 200).then_some(())
        });
        let counters = inco.client().counters().unwrap();
        assert_eq!(counters.services[0].recovered_flows, 200);
        let all = api::types::FlowFilter {
            limit: Some(1_000),
            ..Default::default()
        };
        let mut flows = inco.client().flows(&all).unwrap().flows;
        assert_eq!(flows.len(), 200);
        flows.sort_by(|a, b| a.flow.cmp(&b.flow));
        pins.push(
            flows
                .into_iter()
                .map(|row| (row.flow, row.forward))
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(pins[0], pins[1], "{}", inco.told());
    traffic.interrupt();
    drop(traffic);
    inco.stop(&place);
}

/// `systemctl restart` after another program was installed.
#[test]
fn no_flow_notices_a_restart_by_systemd_with_another_program() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let first = copy_of_inco(&place, "first");
    let inco = no_flow_notices_behind(None, &place, Engine::Oci, &[End::Lingering], &first);
    assert_ne!(program_of(inco.pid()), first);
    inco.stop(&place);
}

/// The same after a run of an earlier inco, which then is killed, too.
#[test]
fn no_flow_notices_a_restart_by_systemd_after_an_earlier_inco() {
    let Some(earlier) = earlier_inco().filter(|_| Engine::Oci.is_here()) else {
        return;
    };
    let place = Place::with_a_cpu();
    let ends = [End::Lingering, End::Killed];
    no_flow_notices_behind(None, &place, Engine::Oci, &ends, &earlier).stop(&place);
}

#[test]
fn no_flow_notices_a_stop_that_keeps_all() {
    no_flow_notices(Engine::Oci, &[End::Kept, End::Killed]);
}

#[test]
fn after_kill_9_the_containers_are_taken_over_oci() {
    is_taken_over(Engine::Oci, &End::Killed, "warm");
}

#[test]
fn after_kill_9_the_containers_are_taken_over_docker() {
    is_taken_over(Engine::Docker, &End::Killed, "paused");
}

#[test]
fn after_stop_keep_the_containers_are_taken_over_oci() {
    is_taken_over(Engine::Oci, &End::Kept, "paused");
}

#[test]
fn after_stop_keep_the_containers_are_taken_over_docker() {
    is_taken_over(Engine::Docker, &End::Kept, "warm");
}

/// Without a running inco, `inco stop` removes what the last one left.
fn stop_removes_what_is_left(engine: Engine, end: &End) {
    if !engine.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&configuration(engine, &[service("dns", 53, "paused")]));
    inco.settled(2, 1);
    let traces = match end {
        End::Killed => inco.kill(),
        _ => inco.stop_with(&place, &["--keep"]).1,
    };
    assert_eq!(traces.processes_alive().len(), 3);
    let said = place.must(&["stop"]);
    assert!(
        said.contains("; 3 containers of an earlier run are removed"),
        "{said}"
    );
    traces.assert_nothing_left();
    let there = std::fs::read_dir(place.run_dir()).unwrap().flatten();
    let there: Vec<_> = there.map(|entry| entry.file_name()).collect();
    assert_eq!(there, ["events"], "what happened stays to be read");
    // Then there is nothing to stop.
    let output = place.output(&["stop"]);
    let said = text_of(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("inco: nothing to stop: no inco runs with the run directory ")
            && said.lines().count() == 1,
        "{said}"
    );
}

/// A test fails after its inco was killed.
fn nothing_stays_of_a_test_that(fails: fn(&Place)) {
    if !Engine::Oci.is_here() {
        return;
    }
    let (killed, traces) = std::sync::mpsc::channel();
    let failed = std::thread::spawn(move || {
        let place = Place::new();
        let inco = place.run(&configuration(Engine::Oci, &[service("dns", 53, "warm")]));
        inco.settled(2, 1);
        killed.send(inco.kill()).unwrap();
        assert_eq!(launcher_of(&place).len(), 1);
        fails(&place);
    });
    assert!(failed.join().is_err());
    traces.recv().unwrap().assert_nothing_left();
}

#[test]
fn nothing_stays_of_a_test_that_fails_without_an_inco() {
    nothing_stays_of_a_test_that(|place| {
        assert_eq!(launcher_of(place).len(), 0, "it keeps the containers");
    });
}

#[test]
fn nothing_stays_of_a_test_whose_second_inco_does_not_start() {
    nothing_stays_of_a_test_that(|place| drop(place.run("nonsense = 1")));
}

/// It has taken over what the first one left, and does not answer in time.
#[test]
fn nothing_stays_of_a_test_whose_second_inco_hangs() {
    nothing_stays_of_a_test_that(|place| {
        let inco = place.run(&configuration(Engine::Oci, &[service("dns", 53, "warm")]));
        crate::support::kill(inco.pid(), rustix::process::Signal::STOP);
        panic!("it answers nothing");
    });
}

#[test]
fn stop_removes_what_a_killed_inco_left_oci() {
    stop_removes_what_is_left(Engine::Oci, &End::Killed);
}

#[test]
fn stop_removes_what_a_killed_inco_left_docker() {
    stop_removes_what_is_left(Engine::Docker, &End::Killed);
}

#[test]
fn stop_removes_the_containers_that_were_kept() {
    stop_removes_what_is_left(Engine::Oci, &End::Kept);
}

fn containers_without_a_service_are_removed(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let place = Place::new();
    let services = [service("dns", 53, "warm"), service("ntp", 123, "warm")];
    let inco = place.run(&configuration(engine, &services));
    let rows = inco.settled(4, 2);
    let before: BTreeMap<_, _> = rows
        .iter()
        .filter(|i| i.service == "dns")
        .map(|i| (i.id, i.pid.unwrap()))
        .collect();
    let traces = inco.kill();
    assert_eq!(traces.processes_alive().len(), 6);
    let inco = place.run(&configuration(engine, &services[..1]));
    inco.settled(2, 1);
    assert_eq!(pids(&inco), before);
    eventually("the others are gone", PATIENCE, || {
        (traces.processes_alive().len() == 3 && containers(engine, &place, &inco) == 3).then_some(())
    });
    inco.stop(&place);
    traces.assert_nothing_left();
}

#[test]
fn containers_of_a_service_that_is_no_more_are_removed_oci() {
    containers_without_a_service_are_removed(Engine::Oci);
}

#[test]
fn containers_of_a_service_that_is_no_more_are_removed_docker() {
    containers_without_a_service_are_removed(Engine::Docker);
}

/// Two incos on one machine with one engine: neither touches the other's containers.
fn two_live_side_by_side(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let place = Place::new();
    let other = place.beside();
    let text = configuration(engine, &[service("dns", 53, "warm")]);
    let first = place.run(&text);
    first.settled(2, 1);
    let of_first = pids(&first);
    let second = other.run(&text);
    second.settled(2, 1);
    assert_eq!((adopted(&second), containers(engine, &other, &second)), (0, 3));
    assert_clean(&place.traffic(LOAD).report());
    assert_clean(&other.traffic(LOAD).report());
    second.stop(&other);
    assert_eq!(pids(&first), of_first);
    assert_clean(&place.traffic(LOAD).report());
    assert_eq!(containers(engine, &place, &first), 3);
    first.stop(&place);
}

#[test]
fn two_incos_leave_each_others_containers_alone_oci() {
    two_live_side_by_side(Engine::Oci);
}

#[test]
fn two_incos_leave_each_others_containers_alone_docker() {
    two_live_side_by_side(Engine::Docker);
}

/// SIGTERM of systemd: everything waits for the next inco, and is removed where none comes in time.
#[test]
fn what_systemd_stops_waits_for_the_next_inco_and_then_is_removed() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let systemd = Systemd::new(&place);
    let text = |linger: &str| {
        // In the last section, which is that of the engine.
        let engine = format!("linger = \"{linger}\"\n");
        configuration(Engine::Oci, &[service("dns", 53, "warm")]) + &engine
    };
    let run = |linger: &str| systemd.start(&text(linger), 2, 1);
    let end = |mut child: Child| {
        crate::support::kill(child.id(), rustix::process::Signal::TERM);
        assert!(child.wait().unwrap().success());
        systemd.hears("STOPPING=1");
    };
    let containers = || std::fs::read_dir(place.run_dir().join("oci/containers")).map_or(0, Iterator::count);
    end(run("60s"));
    assert_eq!(containers(), 3);
    let second = run("1s");
    let said = text_of(&place.output(&["events"]).stdout);
    assert!(said.contains("adopted 3 containers"), "{said}");
    end(second);
    assert_eq!(containers(), 3);
    place.is_left_clean();
}
