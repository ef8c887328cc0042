//! Conformance: this crate's client and server with DPDK's memif driver in `dpdk-testpmd`, which returns
//! every packet.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use memif::{Client, ClientConfig, ControlEvent, Error, Link, Listener, QueuePair, ServerConfig, TxError};

mod testpmd;

use testpmd::{Options, Testpmd};

/// testpmd polls: two on a small machine would only wait for each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// Time from the start of testpmd to the link, on a busy machine.
const START: Duration = Duration::from_secs(20);

struct Place {
    _turn: MutexGuard<'static, ()>,
    _directory: tempfile::TempDir,
    path: PathBuf,
}

/// A separate directory, or `None` if DPDK is missing and not required.
fn place() -> Option<Place> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if !testpmd::is_available() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memif.sock");
    Some(Place {
        _turn: turn,
        _directory: directory,
        path,
    })
}

/// A link with a testpmd in the given role.
struct Peer {
    link: Link,
    testpmd: Testpmd,
    listener: Option<Listener>,
}

fn peer(role: &str, path: &Path, log2_slots: u8, queues: u16) -> Peer {
    let options = Options {
        log2_slots,
        queues,
        ..Options::new(role, path)
    };
    if role == "server" {
        let testpmd = Testpmd::start(&options).unwrap();
        Peer {
            link: connect(path, log2_slots, queues),
            testpmd,
            listener: None,
        }
    } else {
        let mut listener = Listener::bind(path, ServerConfig::new("ours")).unwrap();
        let testpmd = Testpmd::start(&options).unwrap();
        let link = listener.accept(START).unwrap();
        let Some(link) = link else {
            panic!(
                "testpmd did not connect: {:?}\n{}",
                listener.take_refusal(),
                testpmd.output()
            )
        };
        Peer {
            link,
            testpmd,
            listener: Some(listener),
        }
    }
}

fn connect(path: &Path, log2_slots: u8, queues: u16) -> Link {
    let mut config = ClientConfig::new(path, 0);
    config.ring.log2_slots = log2_slots;
    config.ring.queues = queues;
    Client::connect_when_ready(&config, START).unwrap()
}

fn frame(number: usize, length: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..length)
        .map(|at| (number * 31 + at * 7 + at / 251) as u8)
        .collect();
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame
}

/// Sends frames of these lengths and expects each one back, in order.
fn echo(queue: &mut QueuePair, lengths: &[usize]) {
    let mut buffer = vec![0; 65_536];
    let (mut sent, mut received) = (0, 0);
    let begin = Instant::now();
    while received < lengths.len() {
        // No more in flight than the smallest ring holds: testpmd drops what it cannot send at once.
        while sent < lengths.len() && sent - received < 8 {
            match queue.tx.push(&frame(sent, lengths[sent])) {
                Ok(()) => sent += 1,
                Err(TxError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        queue.tx.flush();
        match queue.rx.pop(&mut buffer) {
            Some(length) => {
                let length = length.unwrap_or_else(|error| panic!("frame {received}: {error}"));
                let expected = frame(received, lengths[received]);
                assert_eq!(length, expected.len(), "frame {received}");
                assert!(
                    buffer[..length] == expected,
                    "frame {received} of {length} bytes differs"
                );
                received += 1;
                queue.rx.release();
            }
            None => std::thread::yield_now(),
        }
        assert!(begin.elapsed() < START, "{received} of {sent} came back");
    }
    queue.rx.release();
    // testpmd releases slots at its next poll.
    while queue.tx.occupancy() > 0 {
        assert!(begin.elapsed() < START, "testpmd does not give slots back");
    }
    assert_eq!(queue.tx.consumed(), queue.tx.pushed());
}

/// Short, long and chained frames, several times around the ring in varying order, so that slots of a chain
/// later hold unchained frames.
fn lengths(log2_slots: u8) -> Vec<usize> {
    (0..3 << log2_slots)
        .map(|number| [64, 60, 1514, 2048, 2049, 5000, 128, 9000, 65][number * 7 % 9])
        .collect()
}

fn every_ring_size(role: &str) {
    let Some(place) = place() else { return };
    for log2_slots in [6, 10, 14] {
        let mut peer = peer(role, &place.path, log2_slots, 1);
        assert_eq!(peer.link.queues[0].tx.slots(), 1 << log2_slots);
        assert!(peer.link.peer_name.contains("DPDK"), "{}", peer.link.peer_name);
        echo(&mut peer.link.queues[0], &lengths(log2_slots.min(10)));
        assert_eq!(peer.link.queues[0].rx.counters().bad_descriptors, 0);
        peer.testpmd.kill();
        // A killed server leaves its socket file and does not replace it.
        let _ = std::fs::remove_file(&place.path);
    }
}

#[test]
fn dpdk_as_server_with_every_ring_size_and_chained_frames() {
    every_ring_size("server");
}

#[test]
fn dpdk_as_client_with_every_ring_size_and_chained_frames() {
    every_ring_size("client");
}

#[test]
fn several_queue_pairs_both_ways() {
    let Some(place) = place() else { return };
    for role in ["server", "client"] {
        let mut peer = peer(role, &place.path, 10, 3);
        assert_eq!(peer.link.queues.len(), 3);
        for queue in &mut peer.link.queues {
            echo(queue, &lengths(6));
        }
        drop(peer);
        let _ = std::fs::remove_file(&place.path);
    }
}

fn wait_for_the_end(link: &mut Link) {
    let begin = Instant::now();
    while link.control.poll().unwrap() == ControlEvent::None {
        assert!(begin.elapsed() < START, "the peer's death goes unnoticed");
        sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_server_is_detected_and_reconnected() {
    let Some(place) = place() else { return };
    let mut peer = peer("server", &place.path, 10, 1);
    echo(&mut peer.link.queues[0], &[64; 100]);
    peer.testpmd.kill();
    let begin = Instant::now();
    wait_for_the_end(&mut peer.link);
    assert!(begin.elapsed() < Duration::from_millis(100));
    // The last packets stay in the ring, and the full ring does not block.
    while peer.link.queues[0].tx.push(&[0; 64]).is_ok() {}
    peer.link.queues[0].tx.flush();
    assert_eq!(peer.link.queues[0].tx.occupancy(), 1024);
    let error =
        Client::connect(&ClientConfig::new(&place.path, 0), START).expect_err("connected to a dead server");
    assert!(matches!(error, Error::NotListening { .. }), "{error}");
    std::fs::remove_file(&place.path).unwrap();
    peer.testpmd = Testpmd::start(&Options::new("server", &place.path)).unwrap();
    let mut link = connect(&place.path, 10, 1);
    echo(&mut link.queues[0], &[64; 100]);

    // The reverse: our end leaves silently, like a killed switch, and testpmd accepts the next one.
    drop(link);
    let mut link = connect(&place.path, 10, 1);
    echo(&mut link.queues[0], &[64; 100]);
    link.control.disconnect("restart");
    drop(link);
    let mut link = connect(&place.path, 10, 1);
    echo(&mut link.queues[0], &[64; 100]);
}

#[test]
fn a_killed_client_is_detected_and_the_next_one_accepted() {
    let Some(place) = place() else { return };
    let mut peer = peer("client", &place.path, 10, 1);
    echo(&mut peer.link.queues[0], &[64; 100]);
    peer.testpmd.kill();
    wait_for_the_end(&mut peer.link);
    let listener = peer.listener.as_mut().unwrap();
    // The old link is still held here: it must not keep the new client out.
    peer.testpmd = Testpmd::start(&Options::new("client", &place.path)).unwrap();
    let mut link = listener
        .accept(START)
        .unwrap()
        .expect("the next testpmd was not served");
    echo(&mut link.queues[0], &[64; 100]);
}

#[test]
fn secrets_and_interface_ids_are_agreed_with_dpdk() {
    let Some(place) = place() else { return };
    let mut secret = [0; 24];
    secret[..9].copy_from_slice(b"open door");
    // DPDK requires it.
    {
        let _testpmd = Testpmd::start(&Options {
            device: ",secret=open door",
            ..Options::new("server", &place.path)
        })
        .unwrap();
        let good = ClientConfig {
            secret: Some(secret),
            ..ClientConfig::new(&place.path, 0)
        };
        let mut link = Client::connect_when_ready(&good, START).unwrap();
        echo(&mut link.queues[0], &[64; 10]);
        drop(link);
        let mut wrong = good.clone();
        wrong.secret = None;
        let error = Client::connect(&wrong, START).expect_err("connected without the secret");
        assert!(
            matches!(&error, Error::Disconnected { reason } if reason.contains("ecret")),
            "{error}"
        );
        wrong.secret = Some([b'x'; 24]);
        let error = Client::connect(&wrong, START).expect_err("connected with a wrong secret");
        assert!(
            matches!(&error, Error::Disconnected { reason } if reason.contains("ecret")),
            "{error}"
        );
        let error = Client::connect(
            &ClientConfig {
                interface_id: 5,
                ..good
            },
            START,
        )
        .expect_err("no such id");
        assert!(
            matches!(&error, Error::Disconnected { reason } if reason.contains("not found")),
            "{error}"
        );
    }
    let _ = std::fs::remove_file(&place.path);
    // We require it.
    let config = ServerConfig {
        secret: Some(secret),
        ..ServerConfig::new("ours")
    };
    let mut listener = Listener::bind(&place.path, config).unwrap();
    let begin = Instant::now();
    {
        let _testpmd = Testpmd::start(&Options::new("client", &place.path)).unwrap();
        while listener.refused() == 0 {
            assert!(listener.accept(Duration::from_millis(10)).unwrap().is_none());
            assert!(begin.elapsed() < START);
        }
        assert!(
            listener
                .take_refusal()
                .unwrap()
                .to_string()
                .contains("incorrect secret")
        );
    }
    let _testpmd = Testpmd::start(&Options {
        device: ",secret=open door",
        ..Options::new("client", &place.path)
    })
    .unwrap();
    let mut link = listener
        .accept(START)
        .unwrap()
        .expect("testpmd with the secret was not served");
    echo(&mut link.queues[0], &[64; 10]);
}

/// testpmd never sleeps, but wakes us: its producer raises unmasked interrupts.
#[test]
fn dpdk_wakes_a_sleeper() {
    let Some(place) = place() else { return };
    for role in ["server", "client"] {
        let mut peer = peer(role, &place.path, 10, 1);
        let queue = &mut peer.link.queues[0];
        let mut buffer = [0; 2048];
        for round in 0..200 {
            let begin = Instant::now();
            // A client posts its buffers shortly after the link is established.
            while queue.tx.push(&frame(round, 64)) == Err(TxError::Full) {
                assert!(begin.elapsed() < START);
            }
            queue.tx.flush();
            // Bounded, as `wait`'s documentation requires for other producers.
            while !memif::wait(&mut [&mut queue.rx], &[], Duration::from_millis(5)).unwrap() {
                assert!(begin.elapsed() < START);
            }
            assert_eq!(queue.rx.pop(&mut buffer), Some(Ok(64)));
        }
        drop(peer);
        let _ = std::fs::remove_file(&place.path);
    }
}
