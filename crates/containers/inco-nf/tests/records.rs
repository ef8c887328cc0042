//! Records of functions: written by the program as they come, and no packet waits for whoever reads them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use memif::{Client, ClientConfig, Link};
use packet::build::Frame;
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(10);
const FIREWALL: &str = "default = \"allow\"\nconnections = 0\ncount_interval_s = 1\n[[rule]]\nname = \"all of UDP\"\naction \
                        = \"allow\"\nprotocol = \"udp\"\n";
const IDS: &str =
    "rules = '''\nalert udp any any -> any 53 (msg:\"seen\"; content:\"attack\"; sid:7; rev:2;)\n'''\n";
const NAT: &str = "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1024-65535\"]\nblock_ports = 4096\nlog = \"mappings\"\n";

struct Function {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
    directory: tempfile::TempDir,
    link: Link,
}

impl Function {
    fn start(words: &[&str]) -> Function {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("port.sock");
        let mut child = Command::new(env!("CARGO_BIN_EXE_inco-nf"))
            .args(words)
            .current_dir(directory.path())
            .env("INCO_SOCKET", &socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().map(BufReader::new);
        let link = Client::connect_when_ready(&ClientConfig::new(&socket, 0), PATIENCE).unwrap();
        Function {
            child,
            output,
            directory,
            link,
        }
    }

    /// Sends a packet of that port, and waits until it comes back.
    fn pass(&mut self, port: u16) {
        let ends = [([10, 0, 0, 1], port), ([198, 51, 100, 1], 53)].map(SocketAddr::from);
        let frame = Frame::udp(ends[0], ends[1], b"an attack")
            .unwrap()
            .to_vec()
            .unwrap();
        let queue = &mut self.link.queues[0];
        until("room in the ring", || queue.tx.push(&frame).is_ok());
        queue.tx.flush();
        let mut buffer = vec![0; 65_536];
        until("a packet", || queue.rx.pop(&mut buffer).is_some());
        queue.rx.release();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.as_mut().unwrap().read_line(&mut line).unwrap();
        assert_eq!(line.pop(), Some('\n'), "it has ended");
        line
    }

    /// Ends it as an engine does, and waits for its end.
    fn end(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Seconds since 1970.
fn wall_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

#[test]
fn records_are_lines_of_the_output() {
    let mut function = Function::start(&[
        "firewall",
        "--config-text",
        FIREWALL,
        "--",
        "ids",
        "--config-text",
        IDS,
        "--",
        "nat",
        "--config-text",
        NAT,
    ]);
    let began = wall_s();
    function.pass(1000);
    let mut lines: Vec<String> = (0..4).map(|_| function.line()).collect();
    // The counts of rules come at a time of their own.
    lines.sort_by_key(|line| {
        (
            line.contains(" rule "),
            line.contains("{"),
            line.contains(" mapping "),
        )
    });
    let of = |line: &str| {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!((time.parse::<f64>().unwrap() - began).abs() < 60.0, "{line}");
        rest.to_owned()
    };
    assert!(
        of(&lines[0]).starts_with("block 10.0.0.1 192.0.2.1:"),
        "{lines:#?}"
    );
    assert!(
        of(&lines[1]).starts_with("mapping udp 10.0.0.1:1000 192.0.2.1:"),
        "{lines:#?}"
    );
    let alert: serde_json::Value = serde_json::from_str(&lines[2]).unwrap();
    assert_eq!(alert["event_type"], "alert");
    assert_eq!(alert["src_ip"], "10.0.0.1");
    assert_eq!(
        (&alert["alert"]["signature_id"], &alert["alert"]["rev"]),
        (&7.into(), &2.into())
    );
    assert_eq!(of(&lines[3]), "rule allow 1 packets 51 bytes \"all of UDP\"");
}

#[test]
fn a_file_has_all_records_up_to_the_end_and_may_be_moved_away() {
    let mut function = Function::start(&["nat", "--config-text", NAT, "--records", "nat.log"]);
    let read = |function: &Function, name: &str| {
        std::fs::read_to_string(function.directory.path().join(name)).unwrap_or_default()
    };
    function.pass(1);
    until("its records", || read(&function, "nat.log").lines().count() == 2);
    let path = function.directory.path().join("nat.log");
    std::fs::rename(&path, path.with_extension("old")).unwrap();
    for port in 2..1000 {
        function.pass(port);
    }
    // What waits is written before it ends.
    function.end();
    let lines = read(&function, "nat.log");
    for port in 2..1000 {
        let mapping = format!(" mapping udp 10.0.0.1:{port} ");
        assert_eq!(
            lines.lines().filter(|line| line.contains(&mapping)).count(),
            1,
            "{port}"
        );
    }
    assert_eq!(read(&function, "nat.old").lines().count(), 2);
}

#[test]
fn packets_do_not_wait_for_a_reader_that_does_not_read() {
    let mut function = Function::start(&["nat", "--config-text", NAT]);
    // More than a pipe and all batches hold.
    for port in 1..5_000 {
        function.pass(port);
    }
    // It does not wait for the reader for long, either.
    let began = Instant::now();
    function.end();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_file_that_cannot_be_written_is_said_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_inco-nf"))
        .args(["nat", "--config-text", NAT, "--records", "/nonexistent/nat.log"])
        .env("INCO_SOCKET", directory.path().join("port.sock"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cannot write /nonexistent/nat.log"), "{said}");
}
