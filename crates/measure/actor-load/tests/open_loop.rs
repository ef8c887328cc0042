//! Requests are sent at given times, whatever became of those before: times of answers count from there. So a server
//! that is silent for a while shows in the times of all requests that were due meanwhile, also of those for which no
//! client was free.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actor_load::{Heard, Load, Pace, Times, Workload};
use anyhow::Result;
use model::Random;

/// Requests of a second.
const RATE: f64 = 100.0;
/// Fewer than requests are due while the server is silent.
const CLIENTS: usize = 4;
const SILENT: std::ops::Range<Duration> = Duration::from_millis(300)..Duration::from_millis(600);

/// Each request is its id, and so is its answer.
struct Echoes;

impl Workload for Echoes {
    fn request(&mut self, _: usize, _: u64, id: u64, _: &mut Random) -> Result<Vec<u8>> {
        Ok(id.to_le_bytes().to_vec())
    }

    fn hear(&self, _asked: u64, body: &[u8]) -> Option<(u64, Heard)> {
        Some((u64::from_le_bytes(*body.first_chunk()?), Heard::Ended))
    }

    fn ended(&mut self, _: usize, _: u64, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Answers each request, except while it is silent.
fn serve(socket: &UdpSocket, is_done: &AtomicBool) {
    let (began, mut buffer) = (Instant::now(), [0; 16]);
    while !is_done.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        if !SILENT.contains(&began.elapsed()) {
            socket.send_to(&buffer[..length], from).unwrap();
        }
    }
}

/// How many took longer than that.
fn longer_than(times: &Times, ms: f64) -> usize {
    let count = times.count();
    let time = |place: usize| times.percentile_ms((place as f64 + 0.5) / count as f64);
    (0..count).filter(|place| time(*place) > ms).count()
}

#[test]
fn times_count_from_when_requests_were_due_and_each_is_sent() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let is_done = AtomicBool::new(false);
    let (times, counts, looks) = std::thread::scope(|scope| {
        scope.spawn(|| serve(&socket, &is_done));
        let mut load = Load::new(Echoes, CLIENTS, &[socket.local_addr().unwrap()]).unwrap();
        let pace = Pace {
            rate: Some(RATE),
            lasts: Duration::from_secs(1),
        };
        // When the load has looked whether requests are due: first and last.
        let mut looks: Option<(Instant, Instant)> = None;
        let before = Instant::now();
        let times = load.run(pace, || {
            let now = Instant::now();
            looks = Some((looks.map_or(now, |(first, _)| first), now));
            true
        });
        let most = before.elapsed();
        let settled = load.settle();
        is_done.store(true, Ordering::Relaxed);
        let mut times = times.unwrap();
        times.add(settled.unwrap());
        let (first, last) = looks.unwrap();
        (times, load.counts(), (last - first, most))
    });
    assert_eq!((counts.lost, counts.twice), (0, 0), "{counts:?}");
    assert_eq!(times.count() as u64, counts.requests, "{counts:?}");
    // As many as were due: one at the beginning, and one in each hundredth of a second.
    let due = |time: Duration| (time.as_secs_f64() * RATE) as usize + 1;
    let scheduled = due(looks.0)..=due(looks.1);
    assert!(
        scheduled.contains(&times.count()),
        "{} requests of {scheduled:?}",
        times.count()
    );
    // 30 were due in the silence, 25 of them more than 50 ms before its end. One of each client was under way at most.
    let long = longer_than(&times, 50.0);
    assert!(long >= 20, "{long} of {} took more than 50 ms", times.count());
}
