//! The examples of docs/tasks/own-function.md, in Rust and in C: built as there, run as programs of their own, and driven
//! by a memif client, as the switch does. Both are the same function.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use memif::{Client, ClientConfig, Link};
use nf_page::{MetricKind, PageReader, StageReport};
use packet::build::Frame;
use real_parts::available;
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(10);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// What `make nf` has built beside the static `inco-nf`; [`None`] without it.
fn built(name: &str) -> Option<PathBuf> {
    let nf = std::env::var_os("INCO_NF");
    let missing = "INCO_NF does not name the static inco-nf (`make nf` builds it)";
    available("oci", nf.is_none().then(|| missing.to_owned()))
        .then(|| Path::new(&nf.unwrap()).with_file_name(name))
}

/// The program in C, built in a folder by the example's Makefile.
fn in_c(library: &Path, folder: &Path) -> PathBuf {
    for file in ["guard.c", "Makefile"] {
        std::fs::copy(root().join("examples/function-c").join(file), folder.join(file)).unwrap();
    }
    let output = Command::new("make")
        .arg(format!("INCO={}", root().display()))
        .arg(format!("LIBRARY={}", library.display()))
        .arg("LDFLAGS=-static")
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    folder.join("guard")
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Running {
    child: Child,
    folder: tempfile::TempDir,
}

impl Running {
    fn start(program: &Path, configuration: &str, others: &[&str]) -> Running {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("guard.conf"), configuration).unwrap();
        let child = Command::new(program)
            .args(["guard", "--config"])
            .arg(folder.path().join("guard.conf"))
            .args(others)
            .env("INCO_SOCKET", folder.path().join("port.sock"))
            .env("INCO_PAGE", folder.path().join("page.sock"))
            .spawn()
            .unwrap();
        Running { child, folder }
    }

    fn link(&self) -> Link {
        let config = ClientConfig::new(self.folder.path().join("port.sock"), 0);
        Client::connect_when_ready(&config, PATIENCE).unwrap()
    }

    fn page(&self) -> PageReader {
        let page = PageReader::create().unwrap();
        let path = self.folder.path().join("page.sock");
        until("the page's socket", || path.exists());
        page.offer(&path).unwrap();
        until("the first counters", || page.read().is_some());
        page
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A UDP packet to a port.
fn to_port(port: u16) -> Vec<u8> {
    let [from, to] = [([10, 0, 0, 1], 1000), ([10, 0, 0, 2], port)].map(SocketAddr::from);
    Frame::udp(from, to, b"hello, function")
        .unwrap()
        .to_vec()
        .unwrap()
}

fn send(link: &mut Link, frame: &[u8]) {
    // A newly connected client may not have posted its buffers yet.
    until("room in the ring", || link.queues[0].tx.push(frame).is_ok());
    link.queues[0].tx.flush();
}

fn receive(link: &mut Link) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let mut len = None;
    until("the packet", || {
        len = link.queues[0].rx.pop(&mut buffer);
        len.is_some()
    });
    buffer.truncate(len.unwrap().unwrap());
    buffer
}

/// The value of a number of the first function.
fn number(page: &PageReader, name: &str, kind: MetricKind) -> u64 {
    let functions: Vec<StageReport> = page.functions();
    let of = functions.first().map(|of| of.metrics.clone()).unwrap_or_default();
    let number = of.iter().find(|of| of.name == name && of.kind == kind);
    number.map_or(0, |of| of.value)
}

/// What both programs do; `configuration` writes one for these ports.
fn check(program: &Path, configuration: impl Fn(&[u16]) -> String) {
    let help = Command::new(program).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(
        help.contains("guard") && help.contains("Drops UDP packets to some ports."),
        "{help}"
    );
    assert!(
        help.contains("monitor"),
        "the functions of the library are there, too: {help}"
    );
    let wrong = Command::new(program)
        .args(["guard", "--config-text", "x"])
        .output()
        .unwrap();
    assert_eq!(
        wrong.status.code(),
        Some(2),
        "{}",
        String::from_utf8_lossy(&wrong.stderr)
    );

    // In a chain with one of the library.
    let mut running = Running::start(program, &configuration(&[53, 123]), &["--", "forward"]);
    let page = running.page();
    let mut link = running.link();
    // What is dropped does not come before the next one.
    send(&mut link, &to_port(53));
    send(&mut link, &to_port(54));
    assert_eq!(receive(&mut link), to_port(54));
    until("the counters", || {
        number(&page, "guarded", MetricKind::Reason) == 1
    });
    assert_eq!(number(&page, "passed", MetricKind::Counter), 1);
    let functions = page.functions();
    let names: Vec<&str> = functions.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["guard", "forward"]);
    assert_eq!(functions[0].counters.entries, 2);

    // A wrong configuration changes nothing; a right one is taken.
    let file = running.folder.path().join("guard.conf");
    std::fs::write(&file, "wrong").unwrap();
    until("the wrong file is noticed", || {
        page.read().unwrap().reloads_failed == 1
    });
    let next = file.with_extension("next");
    std::fs::write(&next, configuration(&[54])).unwrap();
    std::fs::rename(&next, &file).unwrap();
    until("the right file is taken", || {
        page.functions()[0].counters.reloads == 1
    });
    send(&mut link, &to_port(54));
    send(&mut link, &to_port(53));
    assert_eq!(receive(&mut link), to_port(53));

    kill_process(Pid::from_child(&running.child), Signal::TERM).unwrap();
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_example_in_rust_runs() {
    let Some(program) = built("function-rust") else {
        return;
    };
    check(&program, |ports| format!("ports = {ports:?}\n"));
}

#[test]
fn the_example_in_c_runs() {
    let Some(library) = built("libinco_function.a") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    check(&in_c(&library, folder.path()), |ports| {
        ports.iter().map(|port| format!("{port}\n")).collect()
    });
}
