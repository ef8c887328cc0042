//! The fake switch over a real socket, as a driver meets it: floods, nonsense and cuts in the middle of a message.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::{Nanos, ServiceId, Slot};
use openflow::{Event, Field, Limits};
use openflow_switch::{FakeNic, Faults, InstanceTerms, Part, ServiceRules, Settings, Side, Spread, Steering};
use openvswitch::{Endpoint, Reconnecting, Turned};
use scheduling::Scheduler;

const LIMIT: Duration = Duration::from_secs(20);

/// A switch that listens, and cuts each of the first connections after some bytes.
struct Listening {
    stop: Arc<AtomicBool>,
    rules: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    fn start(path: &Path, faults: Faults, cuts: Vec<usize>) -> Listening {
        let listener = UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, rules) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), rules.clone());
        let thread = std::thread::spawn(move || {
            let began = Instant::now();
            let now = || Nanos(began.elapsed().as_nanos() as u64);
            let mut nic = FakeNic::new(faults, 1, now());
            let mut cuts = cuts.into_iter();
            while !stopped.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                nic.disconnect(now());
                serve(&mut nic, stream, cuts.next(), &stopped, &counted, now);
            }
        });
        Listening {
            stop,
            rules,
            thread: Some(thread),
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(
    nic: &mut FakeNic,
    mut stream: UnixStream,
    cut_after: Option<usize>,
    stopped: &AtomicBool,
    rules: &AtomicU64,
    now: impl Fn() -> Nanos,
) {
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut left = cut_after.unwrap_or(usize::MAX);
    let mut buffer = [0; 4096];
    while !stopped.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => nic.receive(&buffer[..read], now()).unwrap(),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
        nic.tick(now());
        rules.store(nic.cookies().len() as u64, Ordering::Relaxed);
        let output = nic.output().to_vec();
        let part = &output[..output.len().min(left)];
        if stream.write_all(part).is_err() {
            return;
        }
        nic.written(part.len());
        left -= part.len();
        if left == 0 {
            return;
        }
    }
}

#[test]
fn rules_are_there_after_cuts_floods_and_nonsense() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("switch");
    let faults = Faults {
        garbage_one_in: 4,
        packet_in_flood: 20,
        ..Faults::default()
    };
    let switch = Listening::start(&path, faults, vec![3, 1000, 20_000]);
    let service = ServiceRules {
        id: ServiceId(0),
        sides: vec![Side {
            uplink: 0,
            port: 1,
            data_port: 0,
            is_answering: false,
            fields: vec![Field::eth_type(0x0800)],
        }],
        spread: Spread {
            parts: vec![(Part::SourceAddress, 6)],
        },
        uplinks: vec![1],
        fit: 1.0,
    };
    let scheduler = Scheduler::from_name("round-robin").unwrap();
    let mut steering = Steering::new(Settings::default(), vec![(service, scheduler)], 9);
    for slot in 0..4 {
        steering.attach(Slot(slot), ServiceId(0), vec![100 + u32::from(slot)]);
        let terms = InstanceTerms {
            takes_flows: true,
            capacity: 1e6,
            ..InstanceTerms::default()
        };
        steering.set_terms(Slot(slot), terms);
    }
    let began = Instant::now();
    let mut connection = Reconnecting::new(Endpoint::Unix(path), Limits::default());
    let mut turned = Vec::new();
    // Two for each instance, and one for each bucket.
    while switch.rules.load(Ordering::Relaxed) < 8 + 64
        || !steering.is_settled()
        || steering.figures().reconciled < 2
    {
        assert!(began.elapsed() < LIMIT, "{:?}", steering.figures());
        let now = began.elapsed().as_nanos() as u64;
        connection.turn(now, &mut turned);
        for turned in turned.drain(..) {
            match turned {
                Turned::Up(_) => steering.connected(),
                Turned::Said(Event::Message { xid, message }) => steering.message(xid, &message, Nanos(now)),
                Turned::Said(_) => {}
                Turned::Down(_) => steering.disconnected(),
            }
        }
        steering.tick(Nanos(now));
        // There is no monitor port here: nothing can be proven, and that alone.
        while steering.next_injection().is_some() {}
        if let Some(connection) = connection.connection() {
            steering.send(|message| connection.send(message).ok());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(steering.figures().queued < 1000);
}

/// What `ovs-ofctl` says of the fake switch; [`None`] where it is not installed.
fn ofctl(version: &str, command: &str, path: &Path, more: &[&str]) -> Option<String> {
    let limit = LIMIT.as_secs();
    let mut ofctl = Command::new("ovs-ofctl");
    ofctl.args([
        &format!("--timeout={limit}"),
        "-O",
        version,
        "--no-names",
        command,
    ]);
    ofctl.arg(format!("unix:{}", path.display())).args(more);
    let Ok(output) = ofctl.stdin(Stdio::null()).output() else {
        real_parts::available("ovs", Some("there is no ovs-ofctl".to_owned()));
        return None;
    };
    let said = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, wrong) = (said(&output.stdout), said(&output.stderr));
    assert!(
        output.status.success(),
        "{ofctl:?}: {} {out} {wrong}",
        output.status
    );
    Some(out)
}

#[test]
fn open_vswitchs_own_tool_writes_and_reads_its_rules() {
    for version in ["OpenFlow13", "OpenFlow15"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("switch");
        let _switch = Listening::start(&path, Faults::default(), Vec::new());
        // More than fit one message of the answer.
        let rules: Vec<String> = (1..=120)
            .map(|port| format!("priority=300,cookie={port},udp,in_port=1,nw_src=10.0.0.7,tp_src={port},actions=push_vlan:0x8100,output:{port}"))
            .collect();
        let file = directory.path().join("rules");
        std::fs::write(&file, rules.join("\n")).unwrap();
        let file = file.display().to_string();
        if ofctl(version, "add-flows", &path, &[&file]).is_none() {
            return;
        }
        let said = ofctl(version, "dump-flows", &path, &[]).unwrap();
        let has = |said: &str, port: u32| {
            said.lines().any(|line| {
                let parts = [
                    format!("cookie={port:#x},"),
                    format!("tp_src={port} "),
                    format!("output:{port}"),
                ];
                parts.iter().all(|part| line.contains(part))
                    && line.contains("priority=300,udp,in_port=1,nw_src=10.0.0.7")
            })
        };
        for port in 1..=120 {
            assert!(has(&said, port), "{version}, {port}: {said}");
        }
        let gone = "priority=300,udp,in_port=1,nw_src=10.0.0.7,tp_src=7";
        ofctl(version, "del-flows", &path, &["--strict", gone]).unwrap();
        let said = ofctl(version, "dump-flows", &path, &[]).unwrap();
        assert!(!has(&said, 7) && has(&said, 8), "{version}: {said}");
    }
}
