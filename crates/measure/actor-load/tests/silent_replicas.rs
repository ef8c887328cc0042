//! Clients of replicas of which some are silent for a while, over UDP.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actor_load::{Counts, Heard, Load, Pace, Times, Workload};
use anyhow::Result;
use model::Random;

/// Each request is its id. An answer is the id, and whom to ask instead: 255, if nobody.
struct Numbers;

impl Workload for Numbers {
    fn request(&mut self, _: usize, _: u64, id: u64, _: &mut Random) -> Result<Vec<u8>> {
        Ok(id.to_le_bytes().to_vec())
    }

    fn hear(&self, _asked: u64, body: &[u8]) -> Option<(u64, Heard)> {
        let id = u64::from_le_bytes(*body.first_chunk()?);
        let heard = match body.get(8)? {
            255 => Heard::Ended,
            other => Heard::Elsewhere(Some(usize::from(*other))),
        };
        Some((id, heard))
    }

    fn ended(&mut self, _: usize, _: u64, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Replicas that answer, at a time since the begin, what this says of them; nothing: they are silent.
fn run(said: impl Fn(usize, Duration) -> Option<u8> + Sync) -> (Times, Counts) {
    let sockets: Vec<UdpSocket> = (0..3).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<SocketAddr> = sockets.iter().map(|of| of.local_addr().unwrap()).collect();
    let (is_done, began) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        for (place, socket) in sockets.iter().enumerate() {
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let (is_done, said) = (&is_done, &said);
            scope.spawn(move || {
                let mut buffer = [0; 16];
                while !is_done.load(Ordering::Relaxed) {
                    let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                        continue;
                    };
                    if let Some(answer) = said(place, began.elapsed()) {
                        let answer = [&buffer[..length], &[answer]].concat();
                        socket.send_to(&answer, from).unwrap();
                    }
                }
            });
        }
        let mut load = Load::new(Numbers, 4, &addresses).unwrap();
        let pace = Pace {
            rate: None,
            lasts: Duration::from_millis(1_500),
        };
        let times = load.run(pace, || true);
        let settled = load.settle();
        is_done.store(true, Ordering::Relaxed);
        settled.unwrap();
        (times.unwrap(), load.counts())
    })
}

/// The others name a leader that is silent until later, and is back then.
#[test]
fn a_leader_that_was_silent_is_asked_again_when_it_is_back() {
    let silent = Duration::from_millis(300)..Duration::from_millis(700);
    let (times, counts) = run(|place, at| match place {
        0 => (!silent.contains(&at)).then_some(255),
        _ => Some(0),
    });
    assert_eq!((counts.lost, counts.twice), (0, 0), "{counts:?}");
    assert!(times.percentile_ms(1.0) < 1_000.0, "{}", times.percentile_ms(1.0));
}

/// The others name a leader that has ended, until another one leads.
#[test]
fn the_next_leader_is_found_without_the_one_that_has_ended() {
    let (ended, leads) = (Duration::from_millis(300), Duration::from_millis(600));
    let (times, counts) = run(|place, at| match place {
        0 => (at < ended).then_some(255),
        2 if at > leads => Some(255),
        1 if at > leads => Some(2),
        _ => Some(0),
    });
    assert_eq!((counts.lost, counts.twice), (0, 0), "{counts:?}");
    assert!(times.percentile_ms(1.0) < 800.0, "{}", times.percentile_ms(1.0));
}
