//! The function `dns` as a program on an interface of the kernel, asked by `dig`: its answers are those of NSD.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, Setup, find};
use packet_socket::{Config, PacketSocket};
use real_parts::{Namespace, available, run};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

const ZONE: &str = include_str!("dns/example.zone");
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

fn now() -> model::Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    model::Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Answers what comes in by an interface.
fn serve(mut socket: PacketSocket, mut chain: Chain, is_over: &AtomicBool) -> Chain {
    let mut burst = Burst::new();
    while !is_over.load(Ordering::Acquire) {
        burst.begin(0, 0);
        let (receiver, sender) = socket.rings();
        receiver.take(RECEIVED_LIMIT, |frame| {
            assert!(burst.push(frame.bytes));
            ControlFlow::Continue(())
        });
        receiver.release();
        chain.process(&mut burst, now());
        for extent in burst.leaving() {
            sender.put(burst.bytes_of(extent)).unwrap();
        }
        socket.rings().1.send().unwrap();
        poll(
            &mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)],
            Some(&LOOK),
        )
        .unwrap();
    }
    chain
}

/// How long a server may take to listen.
const LIMIT: Duration = Duration::from_secs(60);

struct Nsd(Child);

impl Drop for Nsd {
    fn drop(&mut self) {
        // It ends its own children, too.
        if let Some(id) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

const NSD: [&str; 2] = ["/usr/sbin/nsd", "/usr/local/sbin/nsd"];

fn nsd(namespace: &Namespace, folder: &Path) -> Nsd {
    let at = folder.display();
    let configuration = format!(
        "server:\n ip-address: 127.0.0.1\n server-count: 1\n username: \"\"\n database: \"\"\n zonesdir: \"{at}\"\n \
         pidfile: \"{at}/nsd.pid\"\n xfrdfile: \"{at}/xfrd.state\"\n zonelistfile: \"{at}/zone.list\"\n \
         minimal-responses: yes\n verbosity: 0\n rrl-ratelimit: 0\n\
         remote-control:\n control-enable: no\nzone:\n name: example.com\n zonefile: example.zone\n"
    );
    std::fs::write(folder.join("nsd.conf"), configuration).unwrap();
    std::fs::write(folder.join("example.zone"), ZONE).unwrap();
    let program = NSD.into_iter().find(|path| Path::new(path).exists()).unwrap();
    let child = namespace
        .command(program)
        .args(["-d", "-c", folder.join("nsd.conf").to_str().unwrap()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    Nsd(child)
}

/// What `dig` shows of an answer: its code, flags, and records by section, in any order.
#[derive(Debug, PartialEq)]
struct Shown {
    code: String,
    is_authoritative: bool,
    is_truncated: bool,
    records: BTreeSet<(String, String)>,
}

/// Asks a server all questions, one after the other.
fn dig(namespace: &Namespace, server: &str, questions: &[String], folder: &Path) -> Vec<Shown> {
    const OPTIONS: &str = "+norecurse +ignore +time=5 +tries=6 +nocookie +noquestion +nostats";
    let lines: String = questions
        .iter()
        .map(|question| format!("@{server} {OPTIONS} {question}\n"))
        .collect();
    let file = folder.join("questions");
    std::fs::write(&file, lines).unwrap();
    let output = namespace
        .command("dig")
        .args(["-f", file.to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{server}: {text}");
    text.split("; <<>> DiG").skip(1).map(shown).collect()
}

fn shown(text: &str) -> Shown {
    let header = |key: &str| {
        let (_, rest) = text.split_once(key).unwrap_or_else(|| panic!("{text}"));
        rest.split([',', ';']).next().unwrap().trim().to_owned()
    };
    let flags: Vec<String> = header("flags: ").split(' ').map(str::to_owned).collect();
    let mut section = String::new();
    let mut records = BTreeSet::new();
    for line in text.lines().skip(1) {
        if let Some(name) = line
            .strip_prefix(";; ")
            .and_then(|line| line.strip_suffix(" SECTION:"))
        {
            section = name.to_owned();
        } else if !line.starts_with(';') && !line.is_empty() {
            let words: Vec<_> = line.split_whitespace().collect();
            records.insert((section.clone(), words.join(" ").to_lowercase()));
        }
    }
    let is_truncated = flags.contains(&"tc".to_owned());
    if is_truncated {
        // What is left of it is up to the server.
        records.clear();
    }
    Shown {
        code: header("status: "),
        is_authoritative: flags.contains(&"aa".to_owned()),
        is_truncated,
        records,
    }
}

/// Waits until the server answers.
fn listens(namespace: &Namespace, server: &str) {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        let arguments = ["+time=1", "+tries=1", &format!("@{server}"), "example.com", "SOA"];
        let output = namespace.command("dig").args(arguments).output().unwrap();
        if output.status.success() {
            return;
        }
    }
    panic!("{server} does not answer");
}

fn questions() -> Vec<String> {
    let names = [
        "@",
        "ns1",
        "mail",
        "www",
        "many",
        "shop",
        "first",
        "away",
        "broken",
        "ring-a",
        "to-child",
        "sip",
        "80",
        "text",
        "long",
        "_sip._udp",
        "_udp",
        "odd\\.label",
        "wild",
        "any.wild",
        "a.b.wild",
        "there.wild",
        "below.there.wild",
        "deep.wild",
        "x.deep.wild",
        "y.deep.wild",
        "any.alias",
        "child",
        "host.child",
        "ns.child",
        "far",
        "x.y.far",
        "sister",
        "none",
        "none.none",
    ];
    let mut all = Vec::new();
    for name in names {
        let name = match name {
            "@" => "ExAmple.com".to_owned(),
            name => format!("{name}.eXample.com"),
        };
        for rtype in [
            "A", "AAAA", "NS", "SOA", "CNAME", "MX", "TXT", "SRV", "PTR", "CAA", "DS",
        ] {
            for size in ["+noedns", "+bufsize=1232 +dnssec"] {
                all.push(format!("{size} {name} {rtype}"));
            }
        }
    }
    // Too long even for EDNS, and not ours.
    all.push("+bufsize=1232 longer.example.com TXT".to_owned());
    all.push("+bufsize=1232 www.example.org A".to_owned());
    all.push("+noedns example.net SOA".to_owned());
    all
}

#[test]
fn dig_gets_the_answers_that_nsd_gives() {
    let has = |program: &str| {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output();
        found.is_ok_and(|output| output.status.success())
    };
    let missing = if !rustix::process::geteuid().is_root() {
        Some("this is not run as root".to_owned())
    } else if !has("dig") {
        Some("dig is not installed".to_owned())
    } else if !NSD.into_iter().any(|path| Path::new(path).exists()) {
        Some("nsd is not installed".to_owned())
    } else {
        None
    };
    if !available("servers", missing) {
        return;
    }
    let [client, middle] = ["client", "middle"].map(Namespace::new);
    middle.set("ipv6/conf/default/disable_ipv6", "1");
    middle.ip(&format!(
        "link add name c1 type veth peer name c0 netns {}",
        client.name
    ));
    // Nobody computes checksums on the way.
    run(
        "ip",
        &["netns", "exec", &client.name, "ethtool", "-K", "c0", "tx", "off"],
    );
    client.ip("link set c0 up");
    middle.ip("link set c1 up");
    client.ip("addr add 192.0.2.9/24 dev c0");
    client.ip("addr add 2001:db8::9/64 dev c0 nodad");
    // The other end is the function's alone: the kernel has no address there.
    let setup = Setup {
        instance: 1,
        ports: 1,
        seed: 5,
        external: None,
    };
    let text = format!(
        "addresses = [\"192.0.2.53\", \"2001:db8::53\"]\nmac = \"02:00:00:00:00:35\"\nzones = '''\n{ZONE}'''\n"
    );
    let chain = Chain::new(vec![find(LIBRARY, "dns").unwrap().make(&text, &setup).unwrap()]).unwrap();
    let config = Config {
        slots: 256,
        frame_bytes: 1514,
    };
    let socket = middle.within(|| PacketSocket::open("c1", config).unwrap());
    let is_over = Arc::new(AtomicBool::new(false));
    let serving = std::thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || serve(socket, chain, &is_over)
    });
    let folder = tempfile::tempdir().unwrap();
    let server = nsd(&client, folder.path());

    listens(&client, "127.0.0.1");
    let questions = questions();
    // The number in docs/functions/dns.md.
    assert_eq!(questions.len(), 773);
    let expected = dig(&client, "127.0.0.1", &questions, folder.path());
    assert_eq!(expected.len(), questions.len());
    for ours in ["192.0.2.53", "2001:db8::53"] {
        let answers = dig(&client, ours, &questions, folder.path());
        assert_eq!(answers.len(), questions.len());
        for ((question, answer), expected) in questions.iter().zip(&answers).zip(&expected) {
            assert_eq!(answer, expected, "{question} at {ours}");
        }
    }

    drop(server);
    is_over.store(true, Ordering::Release);
    let chain = serving.join().unwrap();
    let totals = chain.stages()[0].totals();
    assert!(
        totals.answered + totals.consumed >= 2 * questions.len() as u64,
        "{totals:?}"
    );
}
