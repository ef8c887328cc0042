//! `inco upgrade`: another program takes over beside traffic, and the one before goes on where it does not serve.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::{Client, Endpoint, Remote};
use model::{Action, EventKind, InstanceId};
use real_parts::is_full_length;
use rustix::process::{Pid, Signal, kill_process};

use crate::openflow;

use crate::restart::{LOAD, configuration, live_flows, pids, service};
use crate::support::{
    ApiOverTls, Engine, Inco, Ovs, PATIENCE, Place, Systemd, Traffic, assert_clean, available, eventually,
    launcher_of, program, text as text_of,
};

const FLOWS: u64 = 12_000;

/// A copy of inco: the same release in another file.
pub(crate) fn copy_of_inco(place: &Place, name: &str) -> PathBuf {
    let copy = place.path(name);
    std::fs::copy(env!("CARGO_BIN_EXE_inco"), &copy).unwrap();
    copy
}

/// An inco of an earlier commit: `make test-upgrade` builds it.
pub(crate) fn earlier_inco() -> Option<PathBuf> {
    let program = std::env::var_os("INCO_EARLIER").map(PathBuf::from);
    let missing = program
        .is_none()
        .then(|| "INCO_EARLIER names no inco of an earlier commit".to_owned());
    available("earlier", missing).then_some(program).flatten()
}

/// A program that seems to be an inco, and does this when it is to run.
fn script(place: &Place, does: &str) -> PathBuf {
    let text = format!("#!/bin/sh\ncase $1 in --version) echo inco 9.9.9;; check) ;; *) {does};; esac\n");
    let file = place.file("seems-to-be-inco", &text);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    file
}

pub(crate) fn program_of(pid: u32) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap()
}

/// So many flows for so long, all pinned.
fn with_traffic(place: &Place, inco: &Inco, flows: u64, seconds: u32) -> Traffic {
    let load = LOAD
        .replace("duration = \"1s\"", &format!("duration = \"{seconds}s\""))
        .replace("flows = 8", &format!("flows = {flows}"))
        .replace("\"200pps\"", "\"0.2pps\"");
    let traffic = place.traffic(&load);
    eventually("all flows are pinned", PATIENCE, || {
        (live_flows(inco) >= flows).then_some(())
    });
    traffic
}

/// Packets flow, and each flow and container is there.
fn goes_on(inco: &Inco, before: &BTreeMap<InstanceId, u32>, flows: u64) {
    inco.settled(2, 1);
    assert_eq!(pids(inco), *before);
    // Counts follow with the next reading of the workers.
    eventually("all flows are there", PATIENCE, || {
        (live_flows(inco) >= flows).then_some(())
    });
    let returned = inco.status().accounting.returned;
    eventually("many packets flow", PATIENCE, || {
        (inco.status().accounting.returned > returned + flows / 10).then_some(())
    });
    let status = inco.status();
    assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
}

fn ends_clean(place: &Place, inco: Inco, traffic: Traffic) {
    traffic.interrupt();
    let report = traffic.report();
    assert_eq!(report.counts.lost_in_restarts, 0, "{:#?}", report.counts);
    assert_clean(&report);
    inco.stop(place);
}

fn no_flow_notices(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let text = configuration(engine, &[service("dns", 53, "warm")]).replace("capacity = \"10kpps\"", "");
    let inco = place.run(&text);
    inco.settled(2, 1);
    let containers = pids(&inco);
    let traffic = with_traffic(&place, &inco, FLOWS, 60);
    for name in ["first", "second"] {
        let program = copy_of_inco(&place, name);
        let (before, first) = (inco.status(), launcher_of(&place));
        let said = place.must(&["upgrade", "--program", program.to_str().unwrap()]);
        print!("{said}");
        assert!(
            said.contains("took over from") && said.contains("adopted 3 containers"),
            "{said}"
        );
        let status = inco.status();
        assert_ne!(status.pid, before.pid);
        assert_eq!(program_of(status.pid), program);
        goes_on(&inco, &containers, FLOWS);
        let now = launcher_of(&place);
        assert_eq!(now.len(), 1, "{now:?} {first:?}");
        assert_eq!(program_of(now[0]), program);
        // Its events follow those of the run before.
        let events = inco.events();
        assert!(events[0].sequence > before.events, "{}", inco.told());
        assert!(
            events
                .windows(2)
                .all(|pair| pair[0].sequence + 1 == pair[1].sequence)
        );
        let resumed = status.resumed.expect("there was an earlier run");
        assert!(
            resumed.flows >= FLOWS && resumed.unusable.is_empty(),
            "{resumed:?}"
        );
    }
    ends_clean(&place, inco, traffic);
}

#[test]
fn no_flow_notices_an_upgrade_oci() {
    no_flow_notices(Engine::Oci);
}

#[test]
fn no_flow_notices_an_upgrade_docker() {
    no_flow_notices(Engine::Docker);
}

/// The earlier program does what it is told, and the one that is tested converts what it left.
#[test]
fn no_flow_notices_an_upgrade_from_an_earlier_inco() {
    let Some(earlier) = earlier_inco().filter(|_| Engine::Oci.is_here()) else {
        return;
    };
    let place = Place::with_a_cpu();
    let text = configuration(Engine::Oci, &[service("dns", 53, "warm")]).replace("capacity = \"10kpps\"", "");
    let inco = place.run_by(&earlier, &text);
    inco.settled(2, 1);
    let containers = pids(&inco);
    let traffic = with_traffic(&place, &inco, FLOWS, 60);
    let next = program();
    let output = place
        .inco_by(&earlier, &["upgrade", "--program", next.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text_of(&output.stderr));
    let status = inco.status();
    assert_eq!(program_of(status.pid), next);
    goes_on(&inco, &containers, FLOWS);
    let resumed = status.resumed.expect("there was an earlier run");
    assert!(
        resumed.flows >= FLOWS && resumed.unusable.is_empty(),
        "{resumed:?}"
    );
    ends_clean(&place, inco, traffic);
}

/// The rules of Open vSwitch forward meanwhile.
#[test]
fn no_flow_notices_an_upgrade_openflow() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let Some(ovs) = Ovs::start() else { return };
    // No flow ends meanwhile.
    let text = openflow::configuration(&ovs, "3", "").replace("udp = \"1s\"", "udp = \"30s\"");
    let inco = place.run(&text);
    inco.settled(3, 0);
    let containers = pids(&inco);
    let mut traffic = openflow::thirty_flows(&place, 120);
    openflow::has_rules(&place);
    for name in ["first", "second"] {
        let program = copy_of_inco(&place, name);
        let before = inco.status();
        let said = place.must(&["upgrade", "--program", program.to_str().unwrap()]);
        print!("{said}");
        assert!(
            said.contains("took over from") && said.contains("adopted 3 containers"),
            "{said}"
        );
        let status = inco.status();
        assert_ne!(status.pid, before.pid);
        assert_eq!(program_of(status.pid), program);
        let now = launcher_of(&place);
        assert_eq!((now.len(), program_of(now[0])), (1, program));
        inco.settled(3, 0);
        assert_eq!(pids(&inco), containers);
        openflow::has_rules(&place);
        eventually("packets are counted", PATIENCE, || {
            (inco.status().accounting.returned > 1_000).then_some(())
        });
        let status = inco.status();
        assert_eq!(status.accounting.dropped, 0, "{:#?}", status.drops);
    }
    assert!(traffic.is_running(), "it has to go on until after that");
    traffic.interrupt();
    let report = traffic.report();
    assert_eq!(report.counts.lost_in_restarts, 0, "{:#?}", report.counts);
    assert_clean(&report);
    // What was in a function when a program began to count is counted as if the function had made it.
    let of = inco.at_rest().accounting;
    assert_eq!(
        (of.offered + of.originated, of.dropped),
        (of.returned, 0),
        "{of:?}"
    );
    inco.stop(&place);
    place.is_left_clean();
    assert_eq!(ovs.bridges(), "", "the bridge is removed");
}

/// Whom a signal kills while one launcher replaces the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    NewLauncher,
    OldLauncher,
    NewInco,
    Guard,
    BothIncos,
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The new inco has started. The guard has what the old launcher keeps.
    Starts,
    /// The new launcher has its own socket, and begins to take what the old one keeps.
    Begins,
    /// The new one has it, and its socket is that of the keeper. The old one has it, too.
    HasTaken,
    /// The old one has left.
    IsAlone,
}

impl Moment {
    const ALL: [Moment; 4] = [Moment::Starts, Moment::Begins, Moment::HasTaken, Moment::IsAlone];
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|data| data.ino())
}

/// The process that it started last.
fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next_back()?.parse().ok()
}

/// Whether one of its threads has not ended: its files are open until then.
fn is_alive(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    })
}

fn kill_9(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // It may have ended just now.
    let _ = kill_process(pid, Signal::KILL);
}

/// Looks as fast as it can.
fn at_once<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(since.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
    }
}

/// Upgrades, and kills that victim so long after that moment. Gives the processes that may run: the guard, which had
/// been inco, and the new inco.
fn killed_in_an_upgrade(
    place: &Place,
    program: &Path,
    victim: Victim,
    moment: Moment,
    later: Duration,
) -> [u32; 2] {
    let run_dir = place.run_dir();
    let guard = Client::connect(&run_dir.join("api.sock"))
        .unwrap()
        .status()
        .unwrap()
        .pid;
    let old = launcher_of(place)[0];
    let [launcher, keeper] = ["launcher.sock", "keeper.sock"].map(|name| run_dir.join(name));
    let before = [&launcher, &keeper].map(|path| inode(path));
    let first = child_of(guard);
    let mut command = place.inco(&["upgrade", "--program", program.to_str().unwrap()]);
    let mut asks = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // A launcher that another thread had started becomes a child of the guard, too.
    let new = at_once("the new inco starts", || {
        child_of(guard).filter(|pid| Some(*pid) != first && *pid != old)
    });
    let begins = || {
        at_once("the new launcher begins", || {
            let now = inode(&launcher)?;
            (Some(now) != before[0]).then_some(())
        });
    };
    match moment {
        Moment::Starts => {}
        Moment::Begins => begins(),
        Moment::HasTaken => {
            begins();
            at_once("it has taken all", || (inode(&keeper) != before[1]).then_some(()));
        }
        Moment::IsAlone => {
            begins();
            at_once("it is alone", || (!is_alive(old)).then_some(()));
        }
    }
    let since = Instant::now();
    while since.elapsed() < later {
        std::hint::spin_loop();
    }
    match victim {
        Victim::NewLauncher => kill_9(child_of(new).expect("the new inco has a launcher")),
        Victim::OldLauncher => kill_9(old),
        Victim::NewInco => kill_9(new),
        Victim::Guard => kill_9(guard),
        Victim::BothIncos => [guard, new].into_iter().for_each(kill_9),
    }
    if matches!(victim, Victim::Guard | Victim::BothIncos) {
        let _ = asks.kill();
    }
    let status = asks.wait().unwrap();
    println!("{victim:?} killed {later:?} after {moment:?}: the upgrade ended with {status}");
    [guard, new]
}

/// Whoever is killed while one launcher replaces another: a next run finds everything. In the end nothing is left.
#[test]
fn no_flow_notices_a_kill_9_while_a_launcher_replaces_another() {
    const FLOWS: u64 = 1_000;
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let text = configuration(Engine::Oci, &[service("dns", 53, "warm")]).replace("capacity = \"10kpps\"", "");
    let mut inco = place.run(&text);
    inco.settled(2, 1);
    let containers = pids(&inco);
    let traffic = with_traffic(&place, &inco, FLOWS, 600);
    let programs = ["one", "two"].map(|name| copy_of_inco(&place, name));
    // The short form has a diagonal of the table: each victim and each moment.
    let delays: &[u64] = if is_full_length() {
        &[0, 200, 500, 1_000, 2_000, 5_000]
    } else {
        &[500]
    };
    for (number, victim) in [
        Victim::OldLauncher,
        Victim::NewLauncher,
        Victim::NewInco,
        Victim::Guard,
        Victim::BothIncos,
    ]
    .into_iter()
    .enumerate()
    {
        let all = Moment::ALL.into_iter().enumerate();
        let moments = all.filter(|(at, _)| is_full_length() || at % 2 == number % 2);
        for (moment, delay) in moments.flat_map(|(_, moment)| delays.iter().map(move |of| (moment, *of))) {
            if (victim, moment) == (Victim::NewLauncher, Moment::Starts) {
                // There is none yet.
                continue;
            }
            let running = program_of(inco.status().pid);
            let program = programs.iter().find(|program| **program != running).unwrap();
            let incos = killed_in_an_upgrade(&place, program, victim, moment, Duration::from_micros(delay));
            // Where the upgrade was over just before, the guard ends as the new inco does.
            let has_ended = eventually("inco goes on, or has ended", PATIENCE, || {
                let ended = !incos.into_iter().any(is_alive);
                (ended || inco.client().status().is_ok()).then_some(ended)
            });
            if has_ended || matches!(victim, Victim::Guard | Victim::BothIncos) {
                // Also the new inco, which may go on alone.
                let traces = inco.kill();
                incos.into_iter().for_each(kill_9);
                eventually("both have ended", PATIENCE, || {
                    (!incos.into_iter().any(is_alive)).then_some(())
                });
                assert_eq!(traces.processes_alive().len(), 3);
                inco = place.run(&text);
            }
            goes_on(&inco, &containers, FLOWS);
            eventually("there is one launcher", PATIENCE, || {
                (launcher_of(&place).len() == 1).then_some(())
            });
        }
    }
    ends_clean(&place, inco, traffic);
    place.is_left_clean();
}

/// The program before goes on, with all flows.
#[test]
fn a_program_that_does_not_serve_is_rolled_back() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let text = configuration(Engine::Oci, &[service("dns", 53, "warm")]).replace("capacity = \"10kpps\"", "");
    let inco = place.run(&text);
    inco.settled(2, 1);
    let containers = pids(&inco);
    let traffic = with_traffic(&place, &inco, FLOWS, 60);
    let pid = inco.status().pid;
    for (does, why) in [
        ("exit 3", "ended before it served: exit status: 3"),
        ("exec sleep 100", "did not serve within 2 s"),
    ] {
        let newest = inco.status().events;
        let program = script(&place, does);
        let output = place.output(&[
            "upgrade",
            "--deadline",
            "2",
            "--program",
            program.to_str().unwrap(),
        ]);
        let said = text_of(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("the upgrade is undone") && said.contains(why),
            "{said}"
        );
        assert_eq!(inco.status().pid, pid);
        goes_on(&inco, &containers, FLOWS);
        let events = inco.events();
        assert!(events[0].sequence > newest, "{}", inco.told());
        let is_told = |kind: &EventKind| matches!(kind, EventKind::Failure { what, .. } if what == "upgrade");
        assert!(events.iter().any(|event| is_told(&event.kind)), "{}", inco.told());
    }
    ends_clean(&place, inco, traffic);
}

/// Nothing has happened.
#[test]
fn a_program_that_cannot_take_over_is_refused() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&configuration(Engine::Oci, &[service("dns", 53, "warm")]));
    inco.settled(2, 1);
    let before = inco.status();
    let refused = |program: &Path, why: &str| {
        let output = place.output(&["upgrade", "--program", program.to_str().unwrap()]);
        let said = text_of(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{said}");
    };
    refused(&place.path("none"), "cannot find");
    refused(&place.file("text", "no program"), "is not a program");
    refused(Path::new("/bin/true"), "is not an inco");
    let open = copy_of_inco(&place, "open");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    refused(&open, "other users can change");
    // The file has been changed since the start.
    place.file("inco.toml", "[service.dns]\nnonsense = 1\n");
    refused(&copy_of_inco(&place, "next"), "does not accept the configuration");
    let after = inco.status();
    assert_eq!(
        (after.pid, after.events),
        (before.pid, before.events),
        "{}",
        inco.told()
    );
    inco.stop(&place);
}

/// systemd is told the new process, and the one before ends.
#[test]
fn systemd_learns_which_process_is_the_main_one() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let systemd = Systemd::new(&place);
    let text = configuration(Engine::Oci, &[service("dns", 53, "warm")]);
    let mut child = systemd.start(&text, 2, 1);
    let program = copy_of_inco(&place, "next");
    place.must(&["upgrade", "--program", program.to_str().unwrap()]);
    let pid: u32 = systemd.hears("MAINPID=").parse().unwrap();
    assert_eq!(program_of(pid), program);
    assert!(child.wait().unwrap().success());
    let said = place.must(&["status"]);
    assert!(said.contains(&format!("process {pid}")), "{said}");
    place.must(&["stop"]);
    place.is_left_clean();
}

/// The first run ends while it makes containers. Nothing stays of those that were not ready.
#[test]
fn nothing_stays_of_containers_that_were_being_made() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let many = service("dns", 53, "warm").replace("min = 2, max = 2", "min = 8, max = 8");
    let inco = place.run(&configuration(Engine::Oci, &[many]));
    let before = inco.status().pid;
    let upgrade = Action::Upgrade {
        binary: copy_of_inco(&place, "next").display().to_string(),
        deadline_s: 10,
    };
    eventually("a container is being made", PATIENCE, || {
        (!inco.instances().is_empty()).then_some(())
    });
    inco.client().act(&upgrade).unwrap();
    eventually("the new program runs", PATIENCE, || {
        let status = inco.client().status().ok()?;
        (status.pid != before).then_some(())
    });
    inco.settled(8, 1);
    inco.stop(&place);
    place.is_left_clean();
}

/// Clients of the unix socket and of the network, one after the other, wait and are not refused.
#[test]
fn clients_wait_during_an_upgrade() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let api = ApiOverTls::new(&place);
    let text = api.toml.clone() + &configuration(Engine::Oci, &[service("dns", 53, "warm")]);
    let inco = place.run(&text);
    inco.settled(2, 1);
    let token = place.secret_file("token", ApiOverTls::READ);
    let remote = Remote::new(&format!("https://{}", api.address), &token, &api.certificate).unwrap();
    let socket = place.run_dir().join("api.sock");
    let endpoints = [Endpoint::Remote(Box::new(remote)), Endpoint::Socket(socket)];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = endpoints.map(|endpoint| {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut pids = BTreeMap::new();
                while !is_over.load(Ordering::Relaxed) {
                    // Each a connection of its own.
                    let status = Client::connect_to(endpoint.clone()).and_then(|client| client.status());
                    let status = status.unwrap_or_else(|error| panic!("{endpoint:?}: {error}; {pids:?}"));
                    *pids.entry(status.pid).or_insert(0) += 1;
                }
                pids
            })
        });
        let mut expected = BTreeSet::from([inco.status().pid]);
        let upgraded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for name in ["first", "second", "third"] {
                let program = copy_of_inco(&place, name);
                place.must(&["upgrade", "--program", program.to_str().unwrap()]);
                expected.insert(inco.status().pid);
            }
            // One that is rolled back.
            let program = script(&place, "exec sleep 100");
            let arguments = [
                "upgrade",
                "--deadline",
                "1",
                "--program",
                program.to_str().unwrap(),
            ];
            assert_eq!(place.output(&arguments).status.code(), Some(1));
        }));
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            let answered = client.join().unwrap();
            println!("answers by process: {answered:?}");
            assert_eq!(answered.keys().copied().collect::<BTreeSet<_>>(), expected);
        }
        assert!(upgraded.is_ok());
    });
    inco.stop(&place);
    place.is_left_clean();
}
