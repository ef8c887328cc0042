//! The program as a separate process, driven by a memif client, as the switch does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memif::{Client, ClientConfig, Link, Listener, ServerConfig};
use model::Random;
use nf_page::PageReader;
use packet::build::Frame;
use packet::capture::{CaptureWriter, Captured};
use rustix::process::{Pid, Signal, kill_process};
use traffic::{Capture, Control, Generator, MemifPort, Phase, Profile, Rate, Report, Size, Span, Timing};

const PATIENCE: Duration = Duration::from_secs(10);

struct Function {
    child: Child,
    dir: tempfile::TempDir,
}

impl Function {
    fn start(arguments: &[&str]) -> Function {
        Function::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    fn start_in(dir: tempfile::TempDir, arguments: &[&str]) -> Function {
        let child = Command::new(env!("CARGO_BIN_EXE_inco-nf"))
            .arg("forward")
            .args(arguments)
            .env("INCO_SOCKET", dir.path().join("port.sock"))
            .env("INCO_PAGE", dir.path().join("page.sock"))
            .spawn()
            .unwrap();
        Function { child, dir }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("port.sock")
    }

    fn link(&self, port: u32) -> Link {
        Client::connect_when_ready(&ClientConfig::new(self.socket(), port), PATIENCE).unwrap()
    }

    fn port(&self, port: u32) -> MemifPort {
        MemifPort::connect(&self.socket(), port, PATIENCE).unwrap()
    }

    fn page(&self) -> PageReader {
        let page = PageReader::create().unwrap();
        let path = self.dir.path().join("page.sock");
        until("the page's socket", || path.exists());
        page.offer(&path).unwrap();
        until("the first counters", || page.read().is_some());
        page
    }

    /// CPU time used so far.
    fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", self.child.id())).unwrap();
        Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn run(&self, profile: Profile) -> Report {
        let report = Generator::new(profile)
            .unwrap()
            .run(&mut [self.port(0)], &Control::new(), |_| {})
            .unwrap();
        assert_eq!(
            report.counts.offered_packets,
            report.counts.returned_packets + report.lost
        );
        report
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn phase(pps: f64, ms: u64) -> Phase {
    Phase {
        duration: Span::from_millis(ms),
        flows: 8,
        rate: Some(Rate(pps)),
        ..Phase::default()
    }
}

fn profile(phase: Phase) -> Profile {
    Profile {
        phases: vec![phase],
        uplink_wait: Span::from_millis(5000),
        ..Profile::default()
    }
}

fn exchange(from: &mut Link, to: Option<&mut Link>, frame: &[u8]) -> Vec<u8> {
    // A newly connected client may not have posted its buffers yet.
    until("room in the ring", || from.queues[0].tx.push(frame).is_ok());
    from.queues[0].tx.flush();
    let rx = &mut to.unwrap_or(from).queues[0].rx;
    let mut buffer = vec![0; 65_536];
    let mut len = None;
    until("the packet", || {
        len = rx.pop(&mut buffer);
        len.is_some()
    });
    buffer.truncate(len.unwrap().unwrap());
    buffer
}

#[test]
fn packets_return_unchanged_and_are_counted() {
    let function = Function::start(&[]);
    let page = function.page();
    for phase in [
        phase(20_000.0, 300),
        Phase {
            size: Size::Cycle(vec![64, 1500, 9000]),
            ..phase(2_000.0, 200)
        },
    ] {
        let report = function.run(profile(phase));
        assert!(report.is_clean(), "{}", report.table(true));
        assert_eq!(report.counts.unstamped, report.counts.returned_packets);
    }
    until("all counters", || {
        page.read().unwrap().total().packets_out == 6400
    });
    let counters = page.read().unwrap();
    assert_eq!(
        (
            counters.port_count,
            counters.total().packets_in,
            counters.total().dropped()
        ),
        (1, 6400, 0)
    );
    assert_eq!(counters.total().bytes_in, counters.total().bytes_out);
    assert!(counters.busy_ns > 0 && counters.busy_ns <= counters.cpu_ns * 100);
    assert!(counters.rss_bytes > 100_000, "{counters:?}");
    let before = counters.heartbeat_ns;
    until("a heartbeat while idle", || {
        page.read().unwrap().heartbeat_ns > before
    });
}

#[test]
fn a_stamping_function_writes_its_id_and_keeps_checksums() {
    let function = Function::start(&["--stamp", "--instance-id", "70000"]);
    let report = function.run(profile(phase(20_000.0, 200)));
    // The generator compares every byte with the frame it would build with this id, including the checksum.
    assert!(report.is_clean(), "{}", report.table(true));
    assert_eq!(report.counts.unstamped, 0);
    assert!(report.flows.iter().all(|flow| flow.instance == 70_000));
}

#[test]
fn one_arm_replies_on_the_same_port_and_crossed_ports_on_the_other() {
    let straight = Function::start(&["--ports", "2"]);
    let (mut zero, mut one) = (straight.link(0), straight.link(1));
    assert_eq!(exchange(&mut zero, None, b"to port zero"), b"to port zero");
    assert_eq!(exchange(&mut one, None, b"to port one"), b"to port one");

    let crossed = Function::start(&["--ports", "2", "--cross"]);
    let mut zero = crossed.link(0);
    zero.queues[0].tx.push(b"nobody there").unwrap();
    zero.queues[0].tx.flush();
    let page = crossed.page();
    until("the drop", || {
        page.read().unwrap().ports[0].dropped_unconnected == 1
    });
    let mut one = crossed.link(1);
    assert_eq!(exchange(&mut zero, Some(&mut one), b"from zero"), b"from zero");
    assert_eq!(exchange(&mut one, Some(&mut zero), b"from one"), b"from one");
    until("the counters", || page.read().unwrap().ports[0].packets_out == 1);
}

#[test]
fn it_continues_after_the_switch_reconnects() {
    let function = Function::start(&[]);
    let first_page = function.page();
    let mut link = function.link(0);
    assert_eq!(exchange(&mut link, None, b"first"), b"first");
    drop(link);
    let mut link = function.link(0);
    assert_eq!(exchange(&mut link, None, b"second"), b"second");
    drop(first_page);
    let page = function.page();
    until("totals in the new page", || {
        page.read().unwrap().total().packets_in == 2
    });
}

#[test]
fn it_sleeps_when_idle() {
    let function = Function::start(&[]);
    let page = function.page();
    let mut link = function.link(0);
    exchange(&mut link, None, b"awake");
    let since = page.read().unwrap().heartbeat_ns;
    let (start, cpu) = (Instant::now(), function.cpu());
    // A second of ten idle heartbeats.
    until("heartbeats", || {
        page.read().unwrap().heartbeat_ns - since > 1_000_000_000
    });
    let share = (function.cpu() - cpu).as_secs_f64() / start.elapsed().as_secs_f64();
    assert!(share < 0.01, "idle at {:.2} % of a CPU", 100.0 * share);
}

#[test]
fn a_paced_function_stays_below_its_share_under_overload() {
    let function = Function::start(&["--pace-cpus", "0.1", "--cost-ns", "5000"]);
    let page = function.page();
    // 5 us each: a tenth of a CPU is less than 20 k packets/s, and 60 k are sent.
    let overload = || {
        let overload = Profile {
            uplink_wait: Span::from_millis(1),
            ..profile(phase(60_000.0, 1000))
        };
        let (start, cpu) = (Instant::now(), function.cpu());
        let report = function.run(overload);
        assert_eq!(
            (
                report.counts.reordered,
                report.counts.duplicated,
                report.counts.altered
            ),
            (0, 0, 0)
        );
        assert!(report.counts.returned_packets > 1000, "{}", report.table(false));
        (
            report,
            (function.cpu() - cpu).as_secs_f64() / start.elapsed().as_secs_f64(),
        )
    };
    let (report, share) = overload();
    assert!(share <= 0.1, "{share:.3} of a CPU instead of at most 0.1");
    assert!(report.counts.lost_at_uplink > 0, "{}", report.table(false));

    // The host may raise the limit.
    page.set_cpu_limit(0.3);
    let (_, more) = overload();
    assert!(
        more > 1.3 * share && more <= 0.3,
        "{more:.3} of a CPU after {share:.3}"
    );
}

#[test]
fn work_is_declared_per_packet_and_per_byte() {
    let function = Function::start(&["--cost-ns", "3000", "--cost-ns-per-byte", "250.5"]);
    let page = function.page();
    let mut link = function.link(0);
    let frames = [64_usize, 1000, 1514, 9000];
    for len in frames {
        let frame = vec![7; len];
        assert_eq!(exchange(&mut link, None, &frame), frame);
    }
    until("the counters", || {
        page.read().unwrap().total().packets_out == frames.len() as u64
    });
    let bytes: usize = frames.iter().sum();
    let declared = 3000 * frames.len() as u64 + (250.5 * bytes as f64) as u64;
    let busy = page.read().unwrap().busy_ns;
    // Rounded down for each packet.
    assert!(busy + frames.len() as u64 >= declared, "{busy} of {declared} ns");
}

/// The functions of a page: name, packets, and how often each took another configuration.
fn functions(page: &PageReader) -> Vec<(String, u64, u64)> {
    let functions = page.functions().into_iter();
    functions
        .map(|of| (of.name, of.counters.packets, of.counters.reloads))
        .collect()
}

#[test]
fn a_chain_counts_each_of_its_functions() {
    let function = Function::start(&["--instance-id", "5", "--", "forward", "--stamp", "--", "forward"]);
    let page = function.page();
    let report = function.run(profile(phase(20_000.0, 100)));
    assert!(report.is_clean(), "{}", report.table(true));
    assert!(report.flows.iter().all(|flow| flow.instance == 5));
    let packets = report.counts.returned_packets;
    let each = ("forward".to_owned(), packets, 0);
    until("all counters", || {
        functions(&page) == [each.clone(), each.clone(), each.clone()]
    });
    let stamped = |of: &nf_page::StageReport| (of.metrics[0].name.clone(), of.metrics[0].value);
    let stamped: Vec<_> = page.functions().iter().map(stamped).collect();
    assert_eq!(
        stamped,
        [0, packets, 0].map(|value| ("stamped".to_owned(), value))
    );
}

#[test]
fn a_configuration_is_read_again_without_a_loss() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("forward.toml");
    std::fs::write(&file, "stamp = false\n").unwrap();
    let path = file.to_str().unwrap().to_owned();
    let function = Function::start_in(dir, &["--instance-id", "5", "--config", &path]);
    let page = function.page();
    let report = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| function.run(profile(phase(20_000.0, 1500))));
        until("packets", || page.read().unwrap().total().packets_in > 0);
        // A wrong one first: the function goes on as it was.
        std::fs::write(&file, "stamp = 3\n").unwrap();
        until("the wrong file is noticed", || {
            page.read().unwrap().reloads_failed == 1
        });
        assert_eq!(functions(&page)[0].2, 0);
        // In one piece, as an editor does it.
        let next = file.with_extension("next");
        std::fs::write(&next, "stamp = true\n").unwrap();
        std::fs::rename(&next, &file).unwrap();
        until("the right file is taken", || functions(&page)[0].2 == 1);
        traffic.join().unwrap()
    });
    assert!(report.is_clean(), "{}", report.table(true));
    // On a signal also without a change.
    function.signal(Signal::HUP);
    until("it is read again", || functions(&page)[0].2 == 2);
    let report = function.run(profile(phase(20_000.0, 100)));
    assert!(
        report.is_clean() && report.counts.unstamped == 0,
        "{}",
        report.table(true)
    );
}

#[test]
fn sigterm_ends_it_at_once_and_removes_its_sockets() {
    let mut function = Function::start(&["--pace-cpus", "0.1"]);
    let _page = function.page();
    let mut link = function.link(0);
    exchange(&mut link, None, b"hello");
    let asked = Instant::now();
    function.signal(Signal::TERM);
    let status = function.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    assert!(!function.socket().exists() && !function.dir.path().join("page.sock").exists());
}

#[test]
fn wrong_usage_is_status_2() {
    for arguments in [
        &["--cross"][..],
        &["--stamp"],
        &["--ports", "3"],
        &["--pace-cpus", "-1"],
        &["--bogus"],
        &["--config-text", "costs = 1"],
        &["--config-text", "stamp = true"],
        &["--config-text", "", "--stamp"],
        &["--cost-ns-per-byte", "1001"],
        &["--"],
        &["--", "foreward"],
        &["--", "forward", "--socket", "x"],
        &["--", "manager"],
    ] {
        let mut function = Command::new(env!("CARGO_BIN_EXE_inco-nf"));
        let output = function
            .arg("forward")
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn every_captured_packet_returns_unchanged() {
    let Some(data) = real_parts::data() else { return };
    let mut files: Vec<PathBuf> = std::fs::read_dir(data.join("trex"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    files.push(data.join("opennetvm_64B_download.pcap"));
    assert!(files.len() >= 28);
    let function = Function::start(&["--stamp", "--instance-id", "9"]);
    let mut packets = 0;
    for file in files {
        let capture = Capture {
            file: file.clone(),
            start: Span::default(),
            timing: Timing::Captured,
            speed: 1.0,
            rate: Some(Rate(40_000.0)),
            repeat: 1,
            uplink: 0,
            reply_uplink: None,
        };
        let report = function.run(Profile {
            captures: vec![capture],
            uplink_wait: Span::from_millis(5000),
            ..Profile::default()
        });
        assert!(
            report.is_clean() && report.counts.unstamped == 0,
            "{}\n{}",
            file.display(),
            report.table(true)
        );
        packets += report.counts.returned_packets;
    }
    assert!(packets > 20_000, "{packets}");
}

/// Random payloads, half of them with a valid stamp of another run in front: the function writes into none.
#[test]
fn millions_of_replayed_payloads_return_unchanged() {
    const FRAMES: u32 = 200_000;
    const REPEAT: u32 = 10;
    let mut random = Random::new(17);
    let mut writer = CaptureWriter::new();
    for number in 0..FRAMES {
        let mut payload: Vec<u8> = (0..5).flat_map(|_| random.bits().to_be_bytes()).collect();
        if number % 2 == 0 {
            let stamp = stamp::Stamp {
                flow: number % 64,
                sequence: number / 64,
                sent: stamp::truncated_time(random.bits()),
                instance: number % 5,
            };
            payload[..stamp::LEN].copy_from_slice(&stamp.to_bytes());
        }
        let ends = [(1, 1000 + number % 64), (2, 53)]
            .map(|(host, port)| std::net::SocketAddr::from(([10, 0, 0, host], u16::try_from(port).unwrap())));
        let frame = Frame::udp(ends[0], ends[1], &payload).unwrap();
        let frame = frame.to_vec().unwrap();
        writer.push(&Captured {
            timestamp_ns: 1_000 * u64::from(number),
            frame: &frame,
            original_len: u32::try_from(frame.len()).unwrap(),
        });
    }
    let function = Function::start(&["--stamp", "--instance-id", "9"]);
    let file = function.dir.path().join("random.pcap");
    std::fs::write(&file, writer.into_bytes()).unwrap();
    let capture = Capture {
        file,
        start: Span::default(),
        timing: Timing::Captured,
        speed: 1.0,
        rate: Some(Rate(250_000.0)),
        repeat: REPEAT,
        uplink: 0,
        reply_uplink: None,
    };
    let report = function.run(Profile {
        captures: vec![capture],
        uplink_wait: Span::from_millis(5000),
        ..Profile::default()
    });
    assert!(report.is_clean(), "{}", report.table(true));
    assert_eq!(report.counts.unstamped, 0);
    assert_eq!(report.counts.returned_packets, u64::from(FRAMES * REPEAT));
}

/// In the role of the client, as with Open vSwitch, which listens itself.
#[test]
fn as_client_it_connects_and_reconnects() {
    let function = Function::start(&["--role", "client", "--queues", "2", "--ring-slots", "256"]);
    for frame in [b"the first switch", b"and the next one"] {
        let mut config = ServerConfig::new("switch");
        config.max_queues = 2;
        let mut listener = Listener::bind(function.socket(), config).unwrap();
        let mut link = None;
        until("a connection", || {
            link = listener.accept(Duration::from_millis(100)).unwrap();
            link.is_some()
        });
        let mut link = link.unwrap();
        assert_eq!((link.queues.len(), link.queues[0].tx.slots()), (2, 256));
        assert_eq!(exchange(&mut link, None, frame), frame);
    }
}
