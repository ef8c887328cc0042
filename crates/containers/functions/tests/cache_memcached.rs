//! The function `cache` and memcached itself answer the same requests with the same text.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use functions::{Burst, Chain, LIBRARY, Setup, find};
use model::{Nanos, mix};
use packet::build::Frame;
use real_parts::{Namespace, available};

const SETUP: Setup = Setup {
    instance: 1,
    ports: 1,
    seed: 5,
    external: None,
};
const SERVER: &str = "127.0.0.1:11211";
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(20);

struct Memcached(Child);

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server under test.
trait Server {
    /// The text of the answer to a request.
    fn ask(&mut self, id: u16, request: &[u8]) -> Vec<u8>;
}

fn datagram(id: u16, request: &[u8]) -> Vec<u8> {
    let [a, b] = id.to_be_bytes();
    [&[a, b, 0, 0, 0, 1, 0, 0], request].concat()
}

/// Puts the datagrams of an answer together; [`None`] while some are missing.
fn whole(parts: &HashMap<u16, Vec<u8>>, count: u16) -> Option<Vec<u8>> {
    let all: Option<Vec<_>> = (0..count).map(|number| parts.get(&number).cloned()).collect();
    Some(all?.concat())
}

/// Waits until the server listens: before, the kernel refuses what is sent to it.
fn listens(socket: &UdpSocket) {
    let start = Instant::now();
    let mut buffer = [0; 2048];
    while start.elapsed() < LIMIT {
        if socket.send(&datagram(0, b"version\r\n")).is_ok() && socket.recv(&mut buffer).is_ok() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("memcached does not listen");
}

impl Server for UdpSocket {
    fn ask(&mut self, id: u16, request: &[u8]) -> Vec<u8> {
        let mut parts = HashMap::new();
        let mut buffer = [0; 2048];
        self.send(&datagram(id, request)).unwrap();
        while let Ok(len) = self.recv(&mut buffer) {
            let word = |at: usize| u16::from_be_bytes([buffer[at], buffer[at + 1]]);
            if word(0) != id {
                continue;
            }
            // What follows a wrong request is another one to memcached, and has an answer of its own.
            parts.entry(word(2)).or_insert_with(|| buffer[8..len].to_vec());
            if let Some(text) = whole(&parts, word(4)) {
                return text;
            }
        }
        panic!("memcached does not answer {:?}", String::from_utf8_lossy(request));
    }
}

struct Ours(Chain, Burst);

impl Server for Ours {
    fn ask(&mut self, id: u16, request: &[u8]) -> Vec<u8> {
        let ends = ["192.0.2.9:4000", "192.0.2.7:11211"].map(|end| end.parse::<SocketAddr>().unwrap());
        let request = datagram(id, request);
        let frame = Frame::udp(ends[0], ends[1], &request).unwrap();
        let Ours(chain, burst) = self;
        burst.begin(0, 0);
        assert!(burst.push(&frame.to_vec().unwrap()));
        chain.process(burst, Nanos::from_secs(1));
        let mut parts = HashMap::new();
        let mut count = 0;
        for extent in burst.leaving() {
            let payload = &burst.bytes_of(extent)[42..];
            assert_eq!(payload[..2], id.to_be_bytes());
            count = u16::from_be_bytes([payload[4], payload[5]]);
            parts.insert(
                u16::from_be_bytes([payload[2], payload[3]]),
                payload[8..].to_vec(),
            );
        }
        whole(&parts, count).unwrap()
    }
}

/// Draws requests.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 += 1;
        mix(self.0) % limit
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A request for several keys.
const MANY: &str = "get a b c number k:1 a\r\n";

/// The answer to [`MANY`], asked key by key: memcached 1.6 sends a datagram for each key, without a whole that they are
/// parts of.
fn many(server: &mut impl Server, id: u16) -> Vec<u8> {
    let mut whole = Vec::new();
    for key in MANY.split_ascii_whitespace().skip(1) {
        let answer = server.ask(id, format!("get {key}\r\n").as_bytes());
        whole.extend_from_slice(answer.strip_suffix(b"END\r\n").unwrap());
    }
    whole.extend_from_slice(b"END\r\n");
    whole
}

/// Numbers of versions, as a server names them: the last one of each key.
type Uniques = HashMap<String, String>;

/// The key of a request and its text, with `UNIQUE` in the place of the number that a server has for a version.
fn request(draw: &mut Draw, number: u64) -> (String, String) {
    let key = draw
        .of(&[
            "a",
            "b",
            "c",
            "number",
            "k:1",
            "\u{fc}",
            "long-long-long-long-long-long-long-long-key",
        ])
        .to_owned();
    let noreply = if draw.below(8) == 0 { " noreply" } else { "" };
    let time = draw.of(&["0", "1000", "0", "-1", "2592000"]);
    let flags = draw.of(&["0", "5", "4294967295", "0"]);
    let value = match draw.below(8) {
        0 => String::new(),
        1 => draw.below(1000).to_string(),
        // Of a larger one memcached looks for a minus sign also behind the value, among what others have left there.
        2 => i64::MAX.to_string(),
        3 => "9".to_owned(),
        4 => "x".repeat(draw.below(1200) as usize),
        5 => "12 34".to_owned(),
        _ => format!("value-{number}"),
    };
    let len = value.len();
    let text = match draw.below(24) {
        0..4 => format!("get {key}\r\n"),
        4 | 5 => format!("gets {key}\r\n"),
        6 => MANY.to_owned(),
        7..10 => format!("set {key} {flags} {time} {len}{noreply}\r\n{value}\r\n"),
        10 => format!("add {key} {flags} {time} {len}{noreply}\r\n{value}\r\n"),
        11 => format!("replace {key} {flags} {time} {len}{noreply}\r\n{value}\r\n"),
        12 => format!("append {key} {flags} {time} {len}{noreply}\r\n{value}\r\n"),
        13 => format!("prepend {key} {flags} {time} {len}{noreply}\r\n{value}\r\n"),
        14 | 15 => format!("cas {key} {flags} {time} {len} UNIQUE{noreply}\r\n{value}\r\n"),
        16 => format!("delete {key}{noreply}\r\n"),
        17 => format!(
            "incr {key} {}\r\n",
            draw.of(&["1", "99", "18446744073709551615", "x", "-1"])
        ),
        18 => format!(
            "decr {key} {}\r\n",
            draw.of(&["1", "99", "18446744073709551615", ""])
        ),
        19 => format!("touch {key} {time}{noreply}\r\n"),
        20 if draw.below(4) == 0 => format!("flush_all{noreply}\r\n"),
        21 => format!("set number 0 0 {}\r\n{}\r\n", number.to_string().len(), number),
        _ => draw
            .of(&[
                "get\r\n",
                "nothing\r\n",
                "set a 0 0\r\n",
                "set a x 0 1\r\nx\r\n",
                "set a 0 0 3\r\nabcd\r\n",
                "delete a 5\r\n",
                "delete a 0\r\n",
                "touch a x\r\n",
                "incr a\r\n",
                "cas a 0 0 1 x\r\nx\r\n",
                "flush_all x\r\n",
            ])
            .to_owned(),
    };
    (key, text)
}

#[test]
fn the_same_requests_have_the_same_answers() {
    let missing = if !rustix::process::geteuid().is_root() {
        Some("this is not run as root".to_owned())
    } else if !std::path::Path::new("/usr/bin/memcached").exists() {
        Some("memcached is not installed".to_owned())
    } else {
        None
    };
    if !available("servers", missing) {
        return;
    }
    let namespace = Namespace::new("memcached");
    let _server = Memcached(
        namespace
            .command("memcached")
            .args([
                "-u",
                "root",
                "-l",
                "127.0.0.1",
                "-p",
                "0",
                "-U",
                "11211",
                "-t",
                "1",
                "-m",
                "64",
            ])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut theirs = namespace.within(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(SERVER).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        listens(&socket);
        socket
    });
    let chain = Chain::new(vec![find(LIBRARY, "cache").unwrap().make("", &SETUP).unwrap()]).unwrap();
    let mut ours = Ours(chain, Burst::new());
    assert!(theirs.ask(0, b"version\r\n").starts_with(b"VERSION "));

    let mut draw = Draw(11);
    let (mut of_ours, mut of_theirs) = (Uniques::new(), Uniques::new());
    // Which number of theirs is which of ours.
    let mut same: HashMap<String, String> = HashMap::new();
    let (mut stored, mut found) = (0, 0);
    for number in 1..=8000_u64 {
        let id = number as u16;
        let (key, text) = request(&mut draw, number);
        let with = |uniques: &Uniques| {
            let unique = uniques.get(&key).map_or("999999999", String::as_str);
            text.replace("UNIQUE", unique)
        };
        let (for_ours, for_theirs) = (with(&of_ours), with(&of_theirs));
        if for_ours
            .lines()
            .next()
            .is_some_and(|line| line.ends_with(" noreply"))
        {
            // The answer to the next request shows what has become of it.
            let Ours(chain, burst) = &mut ours;
            let ends = ["192.0.2.9:4000", "192.0.2.7:11211"].map(|end| end.parse::<SocketAddr>().unwrap());
            let payload = datagram(id, for_ours.as_bytes());
            let frame = Frame::udp(ends[0], ends[1], &payload).unwrap().to_vec().unwrap();
            burst.begin(0, 0);
            assert!(burst.push(&frame));
            chain.process(burst, Nanos::from_secs(1));
            let is_quiet = burst.leaving().is_empty();
            theirs.send(&datagram(id, for_theirs.as_bytes())).unwrap();
            // A request that they both take for wrong has an answer all the same, with the identifier of this one.
            assert!(
                is_quiet || burst.bytes_of(&burst.leaving()[0])[50..].starts_with(b"ERROR"),
                "{text:?}"
            );
            continue;
        }
        let [our_answer, their_answer] = [
            ours.ask(id, for_ours.as_bytes()),
            if text == MANY {
                many(&mut theirs, id)
            } else {
                theirs.ask(id, for_theirs.as_bytes())
            },
        ]
        .map(|text| String::from_utf8(text).unwrap());
        if text.starts_with("gets ") && our_answer.starts_with("VALUE ") {
            let cut = |text: &str| {
                let (line, value) = text.split_once("\r\n").unwrap();
                let (line, unique) = line.rsplit_once(' ').unwrap();
                (format!("{line}\r\n{value}"), unique.to_owned())
            };
            let ((our_value, our), (their_value, their)) = (cut(&our_answer), cut(&their_answer));
            assert_eq!(our_value, their_value, "request {number}: {text:?}");
            assert_eq!(same.entry(their.clone()).or_insert_with(|| our.clone()), &our);
            of_ours.insert(key.clone(), our);
            of_theirs.insert(key, their);
            continue;
        }
        assert_eq!(our_answer, their_answer, "request {number}: {text:?}");
        stored += usize::from(our_answer == "STORED\r\n");
        found += usize::from(our_answer.starts_with("VALUE "));
        // Whether memcached leaves blanks behind a number that has become shorter depends on who looks at it meanwhile.
        let is_number = our_answer.starts_with(|first: char| first.is_ascii_digit());
        if is_number && (text.starts_with("incr ") || text.starts_with("decr ")) {
            let delete = format!("delete {key}\r\n");
            let answers = [ours.ask(id, delete.as_bytes()), theirs.ask(id, delete.as_bytes())];
            assert_eq!(answers, [b"DELETED\r\n"; 2]);
        }
    }
    let mut numbers: Vec<_> = same.values().collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), same.len(), "two of their versions are one of ours");
    assert!(
        stored > 500 && found > 500 && same.len() > 50,
        "{stored} {found} {}",
        same.len()
    );
}
