//! The client against servers that violate the protocol and overwrite the shared memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memif::{Client, ClientConfig, ControlEvent, Error, Link, ProtocolError, RxError, TxError};

mod raw;

use raw::{RawSocket, Served};

struct Place {
    _directory: tempfile::TempDir,
    path: PathBuf,
    listener: RawSocket,
}

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memif.sock");
    let listener = RawSocket::listen(&path);
    Place {
        _directory: directory,
        path,
        listener,
    }
}

fn config(place: &Place) -> ClientConfig {
    let mut config = ClientConfig::new(&place.path, 3);
    config.ring.log2_slots = 6;
    config
}

/// A valid handshake of this crate's client with a manual server.
fn connected(place: &Place) -> (Link, Served) {
    let config = config(place);
    let client = thread::spawn(move || Client::connect(&config, Duration::from_secs(5)));
    let server = raw::serve(&place.listener);
    (client.join().unwrap().unwrap(), server)
}

#[test]
fn a_server_that_leaves_at_any_step_gives_an_error_at_once() {
    let place = place();
    for steps in 0..6 {
        let config = config(&place);
        let client = thread::spawn(move || {
            let begin = Instant::now();
            let error = Client::connect(&config, Duration::from_secs(5)).expect_err("connected to nobody");
            (error, begin.elapsed())
        });
        let server = place.listener.accept();
        if steps > 0 {
            assert!(server.send(&raw::hello(), &[]));
        }
        for _ in 1..steps {
            server.receive();
            assert!(server.send(&raw::message(raw::ACK, &[]), &[]));
        }
        drop(server);
        let (error, elapsed) = client.join().unwrap();
        assert!(
            matches!(error, Error::Closed { .. }),
            "after {steps} steps: {error:?}"
        );
        assert!(elapsed < Duration::from_secs(4));
    }
}

/// A container owns the directory of its socket: whatever it puts there, the client reaches no other server, and
/// never waits.
#[test]
fn only_the_socket_itself_is_connected_to() {
    let elsewhere = place();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("port.sock");
    let refused = || Client::connect(&ClientConfig::new(&path, 0), Duration::ZERO).expect_err("connected");

    std::os::unix::fs::symlink(&elsewhere.path, &path).unwrap();
    let error = refused();
    assert!(
        matches!(
            error,
            Error::NotASocket {
                found: "a symbolic link",
                ..
            }
        ) && !error.is_worth_retrying(),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .contains("port.sock is a symbolic link, not a socket"),
        "{error}"
    );
    std::fs::remove_file(&path).unwrap();
    // A link to nowhere is no server that will come, either.
    std::os::unix::fs::symlink(directory.path().join("none"), &path).unwrap();
    assert!(matches!(refused(), Error::NotASocket { .. }));
    std::fs::remove_file(&path).unwrap();

    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    assert!(matches!(refused(), Error::NotASocket { found: "a FIFO", .. }));
    std::fs::remove_file(&path).unwrap();

    std::fs::create_dir(&path).unwrap();
    assert!(matches!(
        refused(),
        Error::NotASocket {
            found: "a directory",
            ..
        }
    ));
    std::fs::remove_dir(&path).unwrap();

    std::fs::write(&path, b"x").unwrap();
    assert!(matches!(
        refused(),
        Error::NotASocket {
            found: "a regular file",
            ..
        }
    ));
    std::fs::remove_file(&path).unwrap();

    assert_eq!(elsewhere.listener.waiting(), 0, "somebody came to another server");
    // The socket itself is fine, by another name of it as well.
    std::fs::hard_link(&elsewhere.path, &path).unwrap();
    assert!(matches!(refused(), Error::Timeout { expected: "HELLO" }));
    assert_eq!(elsewhere.listener.waiting(), 1);
}

/// The server binds in its own mount namespace, where the path is short; ours may be longer than an address of a
/// socket.
#[test]
fn the_path_to_a_socket_may_be_long() {
    let place = place();
    let long = place.path.parent().unwrap().join("d".repeat(120));
    std::fs::create_dir(&long).unwrap();
    let path = long.join("port.sock");
    std::fs::rename(&place.path, &path).unwrap();
    let config = ClientConfig::new(&path, 3);
    let client = thread::spawn(move || Client::connect(&config, Duration::from_secs(5)));
    let _server = raw::serve(&place.listener);
    client.join().unwrap().unwrap();
}

/// Whether an error is the expected one.
type Expected = fn(&Error) -> bool;

#[test]
fn wrong_answers_are_named() {
    let place = place();
    let old = raw::message(
        raw::HELLO,
        &[(34, &1_u16.to_ne_bytes()), (36, &0x0100_u16.to_ne_bytes())],
    );
    let cases: Vec<(Vec<u8>, Expected)> = vec![
        (vec![0; 127], |e| {
            matches!(e, Error::Protocol(ProtocolError::MessageSize { bytes: 127 }))
        }),
        (vec![0; 129], |e| {
            matches!(e, Error::Protocol(ProtocolError::MessageSize { bytes: 129 }))
        }),
        (raw::message(99, &[]).to_vec(), |e| {
            matches!(e, Error::Protocol(ProtocolError::MessageType { value: 99 }))
        }),
        (raw::message(raw::CONNECTED, &[]).to_vec(), |e| {
            matches!(
                e,
                Error::Protocol(ProtocolError::Unexpected {
                    received: "CONNECTED"
                })
            )
        }),
        (old.to_vec(), |e| {
            matches!(e, Error::Protocol(ProtocolError::Version { .. }))
        }),
        (
            raw::message(raw::DISCONNECT, &[(6, b"go away")]).to_vec(),
            |e| matches!(e, Error::Disconnected { reason } if reason == "go away"),
        ),
    ];
    for (bytes, expected) in cases {
        let config = config(&place);
        let client = thread::spawn(move || Client::connect(&config, Duration::from_secs(5)));
        let server = place.listener.accept();
        assert!(server.send(&bytes, &[]));
        let error = client.join().unwrap().expect_err("connected");
        assert!(expected(&error), "{error:?}");
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn a_silent_server_costs_the_deadline_and_no_more() {
    let place = place();
    let begin = Instant::now();
    let error = Client::connect(&config(&place), Duration::from_millis(50)).expect_err("connected");
    assert!(matches!(error, Error::Timeout { expected: "HELLO" }), "{error:?}");
    assert!(begin.elapsed() >= Duration::from_millis(50) && begin.elapsed() < Duration::from_secs(2));
}

#[test]
fn offsets_written_by_the_server_are_ignored() {
    let place = place();
    let (mut link, server) = connected(&place);
    let queue = &mut link.queues[0];
    // The first buffer towards the client is after the rings and the 64 buffers of the other direction.
    let buffers_at = (2 * raw::RING_BYTES).next_multiple_of(4096);
    let buffer = buffers_at + 64 * (2048 + 64);
    server.memory.write(buffer, b"in its place");
    server
        .memory
        .set_descriptor(server.to_client, 0, raw::descriptor(0, 7, 12, u32::MAX - 3));
    server.memory.set_tail(server.to_client, 1);
    let mut frame = [0; 2048];
    assert_eq!(queue.rx.pop(&mut frame), Some(Ok(12)));
    assert_eq!(&frame[..12], b"in its place");
    server.memory.write(buffer + 2048 + 64, b"in the next");
    server
        .memory
        .set_descriptor(server.to_client, 1, raw::descriptor(0, 7, 11, u32::MAX - 3));
    server.memory.set_tail(server.to_client, 2);
    frame.fill(0);
    assert_eq!(
        queue
            .rx
            .take_burst(5, |packet| assert!(packet.copy_to(&mut frame))),
        1
    );
    assert_eq!(&frame[..11], b"in the next");
    // Towards the server: whatever it wrote into the descriptor, the frame is in the right buffer.
    server.memory.set_descriptor(
        server.to_server,
        0,
        raw::descriptor(0xFFFF, 0xFFFF, u32::MAX, u32::MAX),
    );
    queue.tx.push(b"frame").unwrap();
    queue.tx.flush();
    assert_eq!(server.memory.head(server.to_server), 1);
    let mut bytes = [0; 5];
    rustix::io::pread(&server.memory.0, &mut bytes, buffers_at).unwrap();
    assert_eq!(&bytes, b"frame");
}

#[test]
fn bad_descriptors_are_counted_and_skipped() {
    let place = place();
    let (mut link, server) = connected(&place);
    let queue = &mut link.queues[0];
    let descriptors = [
        raw::descriptor(0, 0, 0, 0),
        raw::descriptor(0, 0, 2049, 0),
        raw::descriptor(0, 0, u32::MAX, 0),
        raw::descriptor(1, 0, 2049, 0),
        raw::descriptor(0, 0, 10, 0),
        raw::descriptor(0, 0, 60, 0),
        // An endless chain.
        raw::descriptor(1, 0, 60, 0),
        raw::descriptor(1, 0, 60, 0),
    ];
    for (slot, descriptor) in descriptors.into_iter().enumerate() {
        server
            .memory
            .set_descriptor(server.to_client, slot as u64, descriptor);
    }
    server.memory.set_tail(server.to_client, descriptors.len() as u16);
    let mut frame = [0; 2048];
    let mut outcomes = Vec::new();
    while let Some(outcome) = queue.rx.pop(&mut frame) {
        outcomes.push(outcome);
    }
    let bad = Err(RxError::BadDescriptor);
    assert_eq!(outcomes, [bad, bad, bad, bad, Ok(60), bad]);
    assert_eq!(queue.rx.counters().bad_descriptors, 5);
    assert_eq!(queue.rx.consumed(), 8);
    // All eight were released, with restored descriptors.
    queue.rx.release();
    assert_eq!(server.memory.head(server.to_client), 64 + 8);

    // The same in one burst.
    for (slot, descriptor) in (8..).zip(descriptors) {
        server.memory.set_descriptor(server.to_client, slot, descriptor);
    }
    server
        .memory
        .set_tail(server.to_client, 8 + descriptors.len() as u16);
    let mut lengths = Vec::new();
    assert_eq!(queue.rx.take_burst(100, |packet| lengths.push(packet.len())), 6);
    assert_eq!((lengths, queue.rx.counters().bad_descriptors), (vec![60], 10));
    assert_eq!(queue.rx.consumed(), 16);
    queue.rx.release();
    assert_eq!(server.memory.head(server.to_client), 64 + 16);
}

#[test]
fn an_index_outside_the_ring_ends_its_use() {
    let place = place();
    for tail in [65_u16, 1000, 0xFFFF, 0x8000] {
        let (mut link, server) = connected(&place);
        let queue = &mut link.queues[0];
        server.memory.set_tail(server.to_client, tail);
        assert_eq!(queue.rx.pop(&mut [0; 2048]), None);
        assert!(queue.rx.is_violated());
        server.memory.set_tail(server.to_client, 1);
        assert_eq!(queue.rx.available(), 0, "a ring does not come back to life");

        // Nothing was sent, so nothing can have been consumed.
        server.memory.set_tail(server.to_server, tail);
        assert_eq!(queue.tx.free(), 0);
        assert_eq!(queue.tx.push(b"frame"), Err(TxError::Violated));
        assert!(queue.tx.is_violated());
        queue.tx.flush();
    }
}

#[test]
fn a_server_disconnect_is_detected() {
    let place = place();
    let (mut link, server) = connected(&place);
    assert_eq!(link.control.poll().unwrap(), ControlEvent::None);
    assert_eq!(link.control.peer().unwrap().pid, std::process::id() as i32);
    assert!(
        server
            .socket
            .send(&raw::message(raw::DISCONNECT, &[(6, b"bye")]), &[])
    );
    assert_eq!(
        link.control.poll().unwrap(),
        ControlEvent::Disconnected { reason: "bye".into() }
    );

    let (mut link, server) = connected(&place);
    drop(server.socket);
    assert!(matches!(
        link.control.poll().unwrap(),
        ControlEvent::Disconnected { .. }
    ));
    // The rings can still be used.
    link.queues[0].tx.push(b"frame").unwrap();
    link.queues[0].tx.flush();

    let (mut link, server) = connected(&place);
    assert!(server.socket.send(&raw::message(raw::INIT, &[]), &[]));
    assert!(matches!(
        link.control.poll(),
        Err(Error::Protocol(ProtocolError::Unexpected { received: "INIT" }))
    ));
}

/// A server cannot block the client by filling its interrupt channel.
#[test]
fn a_full_interrupt_channel_never_blocks() {
    let place = place();
    let (mut link, server) = connected(&place);
    let queue = &mut link.queues[0];
    // Blocking mode with interrupts unmasked: raising must return at once, thousands of times.
    for fd in &server.interrupts {
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::empty()).unwrap();
    }
    server
        .memory
        .write(server.to_server.offset + 4, &0_u16.to_ne_bytes());
    for count in 1..=20_000_u32 {
        queue.tx.push(b"frame").unwrap();
        queue.tx.flush();
        // It consumes each frame and leaves the interrupt pending.
        server.memory.set_tail(server.to_server, count as u16);
    }
    assert_eq!(queue.tx.consumed(), 20_000);
    // The reverse: it fills our channel and leaves it full.
    while rustix::net::send(&server.interrupts[1], &[0; 8], rustix::net::SendFlags::DONTWAIT).is_ok() {}
    let begin = Instant::now();
    queue.rx.clear_interrupt();
    assert!(begin.elapsed() < Duration::from_secs(1));
}

/// Random values in rings and descriptors under load cause only counted errors.
#[test]
fn corrupted_rings_cause_only_counted_errors() {
    let place = place();
    // xorshift64 needs a nonzero seed.
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let (mut bad, mut violated, mut delivered) = (0, 0, 0);
    let begin = Instant::now();
    for round in 0..60 {
        if begin.elapsed() > Duration::from_secs(5) {
            break;
        }
        let (mut link, server) = connected(&place);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let scribbler = scope.spawn(|| {
                let Served {
                    memory,
                    to_server,
                    to_client,
                    ..
                } = &server;
                let mut next = || {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    seed
                };
                let mut tail = 0_u16;
                for _ in 0..3000 {
                    for ring in [*to_server, *to_client] {
                        let mut bytes = [0; 16];
                        bytes[..8].copy_from_slice(&next().to_ne_bytes());
                        bytes[8..].copy_from_slice(&next().to_ne_bytes());
                        if next() % 2 == 0 {
                            // Nearly valid: short lengths and few flags.
                            bytes = raw::descriptor(
                                (next() % 3 == 0).into(),
                                0,
                                (next() % 4096) as u32,
                                next() as u32,
                            );
                        }
                        memory.set_descriptor(ring, next(), bytes);
                    }
                    // Mostly valid indices.
                    let head = memory.head(*to_client);
                    tail = tail.wrapping_add((next() % 4) as u16).min(head.max(tail));
                    memory.set_tail(*to_client, tail);
                    memory.set_tail(*to_server, memory.head(*to_server));
                    if round % 3 == 2 && next() % 1000 == 0 {
                        memory.set_tail(*to_client, next() as u16);
                        memory.set_tail(*to_server, next() as u16);
                        memory.write(to_client.offset, &next().to_ne_bytes());
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
            let queue = &mut link.queues[0];
            let mut frame = vec![0; 8192];
            let long = vec![7; 5000];
            let mut count = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                count += 1;
                let _ = queue.tx.push(if count.is_multiple_of(7) {
                    &long
                } else {
                    &long[..60]
                });
                queue.tx.flush();
                assert!(queue.tx.occupancy() <= 64);
                match queue.rx.pop(&mut frame) {
                    Some(Ok(len)) => {
                        assert!(len <= frame.len());
                        delivered += 1;
                    }
                    Some(Err(RxError::BadDescriptor | RxError::TooLarge { .. })) | None => {}
                }
                if count.is_multiple_of(3) {
                    queue.rx.forward_to(&mut queue.tx, 2);
                }
                if count.is_multiple_of(5) {
                    queue.rx.take_burst(40, |packet| {
                        assert!((1..=memif::MAX_PACKET_BYTES).contains(&packet.len()));
                        delivered += u32::from(packet.copy_to(&mut frame));
                    });
                    let burst = queue.tx.push_burst(&[&long[..60]; 8], |frame| frame, 2048);
                    assert!(burst.packets <= 8);
                }
                queue.rx.release();
            }
            bad += queue.rx.counters().bad_descriptors;
            violated += u32::from(queue.rx.is_violated());
            scribbler.join().unwrap();
        });
    }
    assert!(
        bad > 100,
        "only {bad} bad descriptors: the scribbler did not reach us"
    );
    assert!(delivered > 100, "only {delivered} packets");
    assert!(violated > 0, "no violation seen");
}
