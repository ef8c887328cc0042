//! strongSwan as the other end of tunnels: two of its daemons agree on keys (IKEv2), and the function `ipsec` does the work of
//! one of them. At the other end strongSwan encrypts and decrypts (`kernel-libipsec`, which speaks ESP in UDP alone).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod middle;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use functions::ipsec::Ipsec;
use functions::{Chain, Function, LIBRARY, Setup, find};
use real_parts::{Namespace, available, echo, echoes, fetch, serve};

const PATIENCE: Duration = Duration::from_secs(20);
const CHARON: &str = "/usr/lib/ipsec/charon";
const LIBIPSEC: &str = "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so";
const GCM: &str = "/usr/lib/ipsec/plugins/libstrongswan-gcm.so";
const SWANCTL: &str = "/usr/sbin/swanctl";
const PINGS: u64 = 10;
const SETUP: Setup = Setup {
    instance: 1,
    ports: 2,
    seed: 3,
    external: None,
};

fn is_possible() -> bool {
    let missing = [CHARON, LIBIPSEC, GCM, SWANCTL]
        .iter()
        .find(|file| !Path::new(file).exists());
    middle::is_possible() && available("strongswan", missing.map(|file| format!("{file} is not here")))
}

/// A daemon of strongSwan in a namespace: 1 begins, 2 answers.
struct Daemon<'n> {
    namespace: &'n Namespace,
    folder: PathBuf,
    child: Child,
}

impl<'n> Daemon<'n> {
    fn start(namespace: &'n Namespace, folder: &Path, number: u8, suite: &str) -> Daemon<'n> {
        let folder = folder.join(number.to_string());
        std::fs::create_dir(&folder).unwrap();
        let place = folder.to_str().unwrap();
        let settings = format!(
            "charon {{\n load = random nonce aes sha1 sha2 hmac kdf gmp gcm openssl kernel-libipsec kernel-netlink socket-default \
             vici\n plugins {{ vici {{ socket = unix://{place}/vici }} }}\n filelog {{ log {{\n path = {place}/log\n default = \
             1\n chd = 4\n flush_line = yes\n }} }}\n}}\n"
        );
        std::fs::write(folder.join("strongswan.conf"), settings).unwrap();
        let other = 3 - number;
        let connection = format!(
            "connections {{ net {{\n version = 2\n local_addrs = 192.0.2.{number}\n remote_addrs = 192.0.2.{other}\n encap = \
             yes\n local {{ auth = psk\n id = end{number}\n }}\n remote {{ auth = psk\n }}\n children {{ net {{\n local_ts = \
             10.{number}.0.0/24\n remote_ts = 10.{other}.0.0/24\n esp_proposals = {suite}\n }} }}\n}} }}\nsecrets {{ ike-1 {{ secret \
             = \"both know it\" }} }}\n"
        );
        std::fs::write(folder.join("swanctl.conf"), connection).unwrap();
        // Its files in /run are its own.
        let child = namespace
            .command("unshare")
            .args([
                "-m",
                "sh",
                "-c",
                &format!("mount -t tmpfs tmpfs /run && exec {CHARON}"),
            ])
            .env("STRONGSWAN_CONF", folder.join("strongswan.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let daemon = Daemon {
            namespace,
            folder,
            child,
        };
        until("its socket", || daemon.folder.join("vici").exists());
        let file = daemon.folder.join("swanctl.conf");
        until("its connection", || {
            daemon.has_done(&["--load-all", "--file", file.to_str().unwrap()])
        });
        daemon
    }

    /// A command of strongSwan's own client.
    fn ask(&self, words: &[&str]) -> Command {
        let mut command = self.namespace.command(SWANCTL);
        command.args(words);
        command.args(["--uri", &format!("unix://{}", self.folder.join("vici").display())]);
        command
    }

    fn has_done(&self, words: &[&str]) -> bool {
        self.ask(words).output().unwrap().status.success()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// The newest pair of associations: the numbers and the keys of what this end receives and sends.
    fn associations(&self, count: usize) -> [Association; 2] {
        let mut found = None;
        until("its associations", || {
            found = associations(&self.log(), count);
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// An association as the function's configuration has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Association {
    spi: u32,
    /// In hexadecimal digits, with the salt in the last eight.
    key: String,
}

/// The last of `count` pairs that a log of the end that began tells of: what it receives, and what it sends.
fn associations(log: &str, count: usize) -> Option<[Association; 2]> {
    let established: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(" established with SPIs "))
        .collect();
    if established.len() < count {
        return None;
    }
    // As in `... established with SPIs 273698ea_i 3660dcff_o and TS ...`.
    let mut words = established.last()?.split(" with SPIs ").nth(1)?.split(' ');
    let mut spi = |suffix: &str| u32::from_str_radix(words.next()?.strip_suffix(suffix)?, 16).ok();
    let (received, sent) = (spi("_i")?, spi("_o")?);
    let key = |role: &str| {
        let lines: Vec<&str> = log.lines().collect();
        let at = lines
            .iter()
            .rposition(|line| line.contains(&format!("encryption {role} key => ")))?;
        // As in `03[CHD]   16: 4A EB ...  J..`, 16 bytes in a line.
        let bytes: usize = lines[at]
            .split("key => ")
            .nth(1)?
            .split(' ')
            .next()?
            .parse()
            .ok()?;
        let dump = lines.get(at + 1..at + 1 + bytes.div_ceil(16))?;
        let digits = dump.iter().flat_map(|line| {
            let bytes = line.split_once(": ").map_or("", |(_, bytes)| bytes);
            bytes.split(' ').take(16).take_while(|byte| byte.len() == 2)
        });
        let digits: String = digits.collect();
        (digits.len() == 2 * bytes).then(|| digits.to_lowercase())
    };
    Some([
        Association {
            spi: received,
            key: key("responder")?,
        },
        Association {
            spi: sent,
            key: key("initiator")?,
        },
    ])
}

/// The function as the other end of these.
fn configuration(suite: &str, pairs: &[[Association; 2]]) -> String {
    let association = |direction: &str, number: usize, of: &Association, ends: &str| {
        let (key, salt) = of.key.split_at(of.key.len() - 8);
        format!(
            "[[{direction}]]\nname = \"{direction}{number}\"\nspi = {}\nsuite = {suite:?}\nkey = {key:?}\nsalt = {salt:?}\n{ends}",
            of.spi
        )
    };
    let mut text = "otherwise = \"pass\"\n".to_owned();
    for (number, [to_client, from_client]) in pairs.iter().enumerate() {
        // What it sends to the daemon goes by the newest pair alone.
        if number + 1 == pairs.len() {
            let ends = "source = \"192.0.2.2\"\ndestination = \"192.0.2.1\"\nudp_destination_port = 4500\n";
            text += &association("outbound", number, to_client, ends);
        }
        text += &association("inbound", number, from_client, "destination = \"192.0.2.2\"\n");
    }
    let inbound: Vec<String> = (0..pairs.len())
        .map(|number| format!("inbound{number}"))
        .collect();
    text + &format!(
        "[[policy]]\nsource = [\"10.2.0.0/24\"]\ndestination = [\"10.1.0.0/24\"]\naction = \"protect\"\noutbound = \
         \"outbound{}\"\ninbound = {inbound:?}\n",
        pairs.len() - 1
    )
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pings(from: &Namespace) {
    let mut ping = from.command("ping");
    let count = PINGS.to_string();
    ping.args([
        "-q", "-c", &count, "-i", "0.02", "-W", "5", "-I", "10.1.0.1", "10.2.0.1",
    ]);
    let output = ping.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn strongswan_is_the_other_end(suite: &str, proposal: &str) {
    if !is_possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [client, between, server] = ["client", "middle", "server"].map(Namespace::new);
    // Towards the server is the inside of the function.
    let sockets = middle::connect(
        &between,
        [
            (&server, "s0", "02:00:00:00:00:0b"),
            (&client, "c0", "02:00:00:00:00:0a"),
        ],
    );
    for (of, interface, number) in [(&client, "c0", 1), (&server, "s0", 2)] {
        of.ip(&format!("addr add 192.0.2.{number}/24 dev {interface}"));
        of.ip(&format!("addr add 10.{number}.0.1/24 dev lo"));
        of.set("ipv4/conf/all/rp_filter", "0");
        of.set(&format!("ipv4/conf/{interface}/rp_filter"), "0");
    }
    // The server sends without protection, in spite of its daemon's routes.
    server.ip("route add 10.1.0.0/24 via 192.0.2.1 dev s0 src 10.2.0.1");
    server.ip("rule add priority 100 lookup main");
    let entry = find(LIBRARY, "ipsec").unwrap();
    let none = entry.make("otherwise = \"pass\"\n", &SETUP).unwrap();
    let (reload, configurations) = channel();
    let passing =
        std::thread::spawn(move || middle::pass(sockets, Chain::new(vec![none]).unwrap(), &configurations));

    let daemons =
        [(&client, 1), (&server, 2)].map(|(of, number)| Daemon::start(of, folder.path(), number, proposal));
    let [ours, _theirs] = &daemons;
    let initiate = ours
        .ask(&["--initiate", "--child", "net", "--timeout", "10"])
        .output()
        .unwrap();
    assert!(initiate.status.success(), "{initiate:?}\n{}", ours.log());
    let mut pairs = vec![ours.associations(1)];
    reload
        .send(entry.compile(&configuration(suite, &pairs), &SETUP).unwrap())
        .unwrap();
    pings(&client);
    serve(&server, "10.2.0.1:80");
    assert_eq!(client.within(|| fetch("10.2.0.1:80", 300_000)), Ok(()));
    echo(&server, "10.2.0.1:53");
    assert!(echoes(&client, "10.1.0.1:4000", "10.2.0.1:53", 1000));

    // New keys, agreed on through the function, beside the old ones.
    assert!(ours.has_done(&["--rekey", "--child", "net"]), "{}", ours.log());
    pairs.push(ours.associations(2));
    assert_ne!(pairs[0], pairs[1]);
    reload
        .send(entry.compile(&configuration(suite, &pairs), &SETUP).unwrap())
        .unwrap();
    pings(&client);
    assert_eq!(client.within(|| fetch("10.2.0.1:80", 300_000)), Ok(()));

    drop(reload);
    let metrics = passing.join().unwrap();
    let of = |name: &str| {
        let at = Ipsec::about()
            .metrics
            .iter()
            .position(|of| of.name == name)
            .unwrap();
        metrics[at]
    };
    // Two rounds of pings and two downloads of 300 kB, of which nothing passed without the function.
    assert!(
        of("left") > 2 * PINGS && of("entered_bytes") > 600_000,
        "{metrics:?}"
    );
    // The exchange for the new keys, and the end of the old ones.
    assert!(of("key_exchange") >= 4, "{metrics:?}");
}

#[test]
fn strongswan_is_the_other_end_with_aes_256_gcm() {
    strongswan_is_the_other_end("aes-256-gcm", "aes256gcm16");
}

#[test]
fn strongswan_is_the_other_end_with_aes_128_gcm() {
    strongswan_is_the_other_end("aes-128-gcm", "aes128gcm16");
}
