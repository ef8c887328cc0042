//! `cache` beside memcached, with the same requests over UDP.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use functions::RECEIVED_LIMIT;
use functions::cache::Workload;
use model::Nanos;
use packet::build::Frame;

use super::service::Served;
use super::session::{Case, Peer, Session};
use super::side::{Side, measured};
use super::through::{Through, chain};
use crate::contestant::{Clock, KilledOnDrop, Measured, command_line};

/// What was measured.
pub(super) const NOTE: &str = "requests for keys that are drawn evenly and all have a value, with the copy into the burst. memcached \
    gets the same requests over the kernel's loopback interface, and its rate is per CPU time of its thread, with that of its \
    system calls";

/// Keys, bytes of a value, and the percentage of requests that read.
const CASES: [(u64, usize, u64); 4] = [
    (1_000, 64, 90),
    (100_000, 64, 90),
    (100_000, 64, 50),
    (100_000, 1_000, 90),
];
/// Requests, which come again and again.
const REQUESTS: usize = 1 << 15;
const MEMORY_MIB: u64 = 256;
/// Bytes of the headers before a request, and of the check sequence behind it.
const AROUND: usize = 46;
const PEER: &str = "memcached";
/// How long it may take to answer.
const LIMIT: Duration = Duration::from_secs(5);
/// How long it is waited for at its start, and how often.
const START: (Duration, usize) = (Duration::from_millis(20), 250);

/// Measures it.
pub(super) fn measure(session: &mut Session) -> Result<()> {
    for (keys, value_bytes, reads) in CASES {
        let mut workload = Workload::new(keys, value_bytes, reads, 1);
        let fill: Vec<Vec<u8>> = (0..keys)
            .map(|key| {
                let mut payload = Vec::new();
                workload.fill(key, &mut payload);
                payload
            })
            .collect();
        let requests: Vec<Vec<u8>> = (0..REQUESTS)
            .map(|_| {
                let mut payload = Vec::new();
                workload.next(&mut payload);
                payload
            })
            .collect();
        let bytes: usize = requests.iter().map(Vec::len).sum();
        let case = Case::new(
            format!("{reads} % reads, values of {value_bytes} bytes"),
            keys as usize,
            AROUND + bytes / requests.len(),
        );
        let (filling, frames) = (frames(&fill)?, frames(&requests)?);
        let filled = Through::new(
            Some(chain("cache", &format!("memory_mib = {MEMORY_MIB}\n"))?),
            &filling,
        )?;
        let mut ours = Through::new(filled.into_chain(), &frames)?;
        let peer = Peer::of(PEER, Memcached::start(&fill, &requests));
        session.case(&case, &mut ours, Some(peer))?;
    }
    Ok(())
}

/// As the instance of a service.
pub(super) fn served() -> Result<Served> {
    let (keys, value_bytes, reads) = CASES[0];
    let mut workload = Workload::new(keys, value_bytes, reads, 1);
    let mut payloads = vec![Vec::new(); keys as usize];
    for (key, payload) in (0..).zip(&mut payloads) {
        workload.fill(key, payload);
    }
    let first = frames(&payloads)?;
    let mut requests = vec![Vec::new(); REQUESTS];
    for payload in &mut requests {
        workload.next(payload);
    }
    let configuration = format!("memory_mib = {MEMORY_MIB}\n");
    let served = Served::of(configuration, keys as usize, frames(&requests)?);
    Ok(Served { first, ..served })
}

fn frames(payloads: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let ends = [([192, 0, 2, 9], 4000).into(), ([192, 0, 2, 7], 11211).into()];
    let [from, to]: [SocketAddr; 2] = ends;
    payloads
        .iter()
        .map(|payload| Ok(Frame::udp(from, to, payload)?.to_vec()?))
        .collect()
}

/// A memcached with one thread for requests.
struct Memcached<'r> {
    client: UdpSocket,
    requests: &'r [Vec<u8>],
    /// The next request.
    at: usize,
    process: KilledOnDrop,
}

impl<'r> Memcached<'r> {
    /// Starts it and sends `fill`.
    ///
    /// # Errors
    /// It is not installed, or does not answer.
    fn start(fill: &[Vec<u8>], requests: &'r [Vec<u8>]) -> Result<Memcached<'r>> {
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("no UDP port is free")?;
        // A port that was free a moment ago.
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
        let server = server.context("no UDP port is free")?;
        let mut command = Command::new("memcached");
        command
            .args(["-u", "root", "-l", "127.0.0.1", "-p", "0", "-t", "1"])
            .args(["-U", &server.port().to_string(), "-m", &MEMORY_MIB.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command_line(&command)))?;
        let process = KilledOnDrop::new(child);
        client.connect(server).context("cannot send to memcached")?;
        wait(&client)?;
        client
            .set_read_timeout(Some(LIMIT))
            .context("a socket takes no limit of time")?;
        let memcached = Memcached {
            client,
            requests,
            at: 0,
            process,
        };
        for fill in fill.chunks(RECEIVED_LIMIT) {
            memcached.ask(fill)?;
        }
        Ok(memcached)
    }

    /// Sends requests, and waits for an answer of each.
    fn ask(&self, requests: &[Vec<u8>]) -> Result<()> {
        for request in requests {
            self.client.send(request).context("memcached takes no request")?;
        }
        let mut answer = [0; 2048];
        for _ in requests {
            self.client
                .recv(&mut answer)
                .context("memcached does not answer")?;
        }
        Ok(())
    }
}

/// Waits until memcached answers.
fn wait(client: &UdpSocket) -> Result<()> {
    let (pause, times) = START;
    client
        .set_read_timeout(Some(pause))
        .context("a socket takes no limit of time")?;
    let mut answer = [0; 2048];
    for at in 1..=times {
        // The number of the request tells late answers apart.
        let [a, b] = (at as u16).to_be_bytes();
        let request = [&[a, b, 0, 0, 0, 1, 0, 0], &b"version\r\n"[..]].concat();
        let asked = client.send(&request).and_then(|_| client.recv(&mut answer));
        match asked {
            Ok(len) if len > 8 && answer[..2] == [a, b] => return Ok(()),
            Ok(_) => {}
            // Nobody listens yet.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::thread::sleep(pause),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error).context("cannot ask memcached"),
        }
    }
    bail!("memcached does not answer")
}

impl Side for Memcached<'_> {
    fn turn(&mut self, time: Nanos) -> Result<Measured> {
        let clock = Clock::of(self.process.pid())?;
        let mut packets = 0;
        loop {
            let end = (self.at + RECEIVED_LIMIT).min(self.requests.len());
            self.ask(&self.requests[self.at..end])?;
            packets += (end - self.at) as u64;
            self.at = if end < self.requests.len() { end } else { 0 };
            let spent = Nanos(clock.elapsed_ns()?);
            if spent >= time {
                return Ok(measured(packets, spent));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use functions::Burst;

    use super::*;

    #[test]
    fn each_key_has_a_value_before_it_is_read() {
        let mut workload = Workload::new(1, 10, 100, 1);
        let mut payloads = vec![Vec::new(), Vec::new()];
        workload.fill(0, &mut payloads[0]);
        workload.next(&mut payloads[1]);
        let mut chain = chain("cache", "memory_mib = 1").unwrap();
        let mut burst = Burst::new();
        burst.begin(0, 1);
        for frame in frames(&payloads).unwrap() {
            burst.push(&frame);
        }
        chain.process(&mut burst, Nanos::from_secs(1));
        let answer = burst.bytes_of(&burst.leaving()[1]).to_vec();
        assert!(answer[50..].starts_with(b"VALUE key-0 0 10\r\n"), "{answer:?}");
    }
}
