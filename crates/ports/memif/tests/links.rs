//! This crate's client and server with each other, in one process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memif::{
    Client, ClientConfig, ControlEvent, Error, Link, Listener, QueuePair, RingConfig, RxError, ServerConfig,
    TxError,
};

const SECONDS: Duration = Duration::from_secs(5);

struct Place {
    directory: tempfile::TempDir,
    path: PathBuf,
    listener: Listener,
}

fn place(change: impl FnOnce(&mut ServerConfig)) -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memif.sock");
    let mut config = ServerConfig::new("server");
    change(&mut config);
    let listener = Listener::bind(&path, config).unwrap();
    Place {
        directory,
        path,
        listener,
    }
}

/// Client and server of a new link.
fn link(listener: &mut Listener, config: &ClientConfig) -> (Link, Link) {
    let config = config.clone();
    let client = thread::spawn(move || Client::connect(&config, SECONDS));
    let server = listener.accept(SECONDS).unwrap().expect("no client connected");
    (client.join().unwrap().unwrap(), server)
}

/// The error of a client that is refused.
fn refused(listener: &mut Listener, config: &ClientConfig) -> Error {
    let config = config.clone();
    let client = thread::spawn(move || Client::connect(&config, SECONDS));
    while !client.is_finished() {
        assert!(listener.accept(Duration::from_millis(5)).unwrap().is_none());
    }
    client.join().unwrap().expect_err("the client was accepted")
}

fn config(path: &Path, ring: RingConfig) -> ClientConfig {
    ClientConfig {
        ring,
        name: "client".into(),
        ..ClientConfig::new(path, 7)
    }
}

/// A frame whose bytes derive from its number.
fn frame(number: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (number * 31 + at * 7 + at / 251) as u8)
        .collect()
}

/// Sends frames of many lengths one way and compares the received ones, over many rounds of the ring.
fn exchange(from: &mut QueuePair, to: &mut QueuePair, lengths: &[usize]) {
    let mut buffer = vec![0; 65_536];
    let (mut sent, mut received) = (0, 0);
    let begin = Instant::now();
    while received < lengths.len() {
        while sent < lengths.len() {
            match from.tx.push(&frame(sent, lengths[sent])) {
                Ok(()) => sent += 1,
                Err(TxError::Full) => break,
                Err(error) => panic!("frame of {} bytes: {error}", lengths[sent]),
            }
        }
        from.tx.flush();
        while let Some(length) = to.rx.pop(&mut buffer) {
            let length = length.unwrap();
            assert!(
                buffer[..length] == frame(received, lengths[received]),
                "frame {received} differs"
            );
            received += 1;
        }
        to.rx.release();
        assert!(begin.elapsed() < Duration::from_secs(15), "{received} of {sent}");
    }
    assert_eq!(from.tx.occupancy(), 0);
    assert_eq!(from.tx.consumed(), from.tx.pushed());
    assert_eq!(from.tx.pushed(), to.rx.consumed());
}

/// The same in bursts of many sizes, interleaved with frames that need several buffers.
fn exchange_in_bursts(from: &mut QueuePair, to: &mut QueuePair, lengths: &[usize]) {
    let frames: Vec<Vec<u8>> = lengths
        .iter()
        .enumerate()
        .map(|(n, &len)| frame(n, len))
        .collect();
    let mut buffer = vec![0; 65_536];
    let (mut sent, mut received, mut turn) = (0, 0, 0);
    let begin = Instant::now();
    while received < frames.len() {
        turn += 1;
        let burst = &frames[sent..(sent + turn % 97).min(frames.len())];
        let moved = from.tx.push_burst(burst, Vec::as_slice, 65_536);
        let bytes: usize = burst[..moved.packets].iter().map(Vec::len).sum();
        assert_eq!(moved.bytes, bytes as u64);
        sent += moved.packets;
        if moved.packets < burst.len() && from.tx.push(&frames[sent]).is_ok() {
            sent += 1;
        }
        from.tx.flush();
        let most = turn % 53;
        let before = received;
        let taken = to.rx.take_burst(most, |packet| {
            assert_eq!(packet.len(), lengths[received]);
            let (short, whole) = (packet.len() - 1, packet.len());
            assert!(!packet.copy_to(&mut buffer[..short]));
            assert!(packet.copy_to(&mut buffer[..whole]));
            assert!(
                buffer[..whole] == frames[received][..],
                "frame {received} differs"
            );
            received += 1;
        });
        assert!(taken == received - before && taken <= most);
        to.rx.release();
        assert!(begin.elapsed() < Duration::from_secs(15), "{received} of {sent}");
    }
    assert_eq!((from.tx.occupancy(), sent), (0, frames.len()));
    assert_eq!(from.tx.consumed(), from.tx.pushed());
    assert_eq!(to.rx.take_burst(64, |_| panic!("an unexpected frame")), 0);
}

#[test]
fn bursts_arrive_unchanged_in_both_directions() {
    let mut place = place(|_| ());
    let ring = RingConfig {
        log2_slots: 6,
        ..RingConfig::default()
    };
    let (mut client, mut server) = link(&mut place.listener, &config(&place.path, ring));
    let mut lengths: Vec<usize> = (1..=600).chain([2047, 2048, 2049, 4096, 60, 9000]).collect();
    for _ in 0..2 {
        exchange_in_bursts(&mut client.queues[0], &mut server.queues[0], &lengths);
        exchange_in_bursts(&mut server.queues[0], &mut client.queues[0], &lengths);
        // Reuse the slots with other lengths, then with whole bursts of short frames.
        lengths.reverse();
        lengths.extend((0..2000).map(|n| 60 + n % 5));
    }
}

#[test]
fn a_burst_stops_at_an_exception() {
    let mut place = place(|_| ());
    let ring = RingConfig {
        log2_slots: 6,
        ..RingConfig::default()
    };
    let (mut client, mut server) = link(&mut place.listener, &config(&place.path, ring));
    for client_sends in [true, false] {
        let (from, to) = if client_sends {
            (&mut client.queues[0], &mut server.queues[0])
        } else {
            (&mut server.queues[0], &mut client.queues[0])
        };
        let mut push = |lengths: &[usize], longest| {
            let frames: Vec<Vec<u8>> = lengths.iter().map(|&len| vec![1; len]).collect();
            from.tx.push_burst(&frames, Vec::as_slice, longest).packets
        };
        assert_eq!(push(&[60, 2048, 2049, 60], 65_536), 2, "a frame of two buffers");
        assert_eq!(push(&[60, 0, 60], 65_536), 1, "an empty frame");
        assert_eq!(push(&[60, 61, 62], 61), 2, "a frame longer than asked for");
        assert_eq!(push(&[60; 100], 65_536), 59, "a full ring");
        assert_eq!(push(&[60; 100], 65_536), 0, "a full ring still");
        from.tx.flush();
        let mut lengths = Vec::new();
        assert_eq!(to.rx.take_burst(100, |packet| lengths.push(packet.len())), 64);
        assert_eq!(lengths[..5], [60, 2048, 60, 60, 61]);
        to.rx.release();
        assert_eq!(from.tx.free(), 64);
    }
}

#[test]
fn a_burst_keeps_what_does_not_fit() {
    let mut place = place(|_| ());
    let (mut client, mut server) = link(&mut place.listener, &config(&place.path, RingConfig::default()));
    for client_sends in [true, false] {
        let (from, to) = if client_sends {
            (&mut client.queues[0], &mut server.queues[0])
        } else {
            (&mut server.queues[0], &mut client.queues[0])
        };
        // The third takes several buffers.
        for len in [60, 61, 5000, 62] {
            from.tx.push(&vec![1; len]).unwrap();
        }
        from.tx.flush();
        let mut take = |longest: usize| {
            let mut lengths = Vec::new();
            let fits = |len| len <= longest;
            let taken = to
                .rx
                .take_burst_while(10, fits, |packet| lengths.push(packet.len()));
            assert_eq!(taken, lengths.len());
            lengths
        };
        assert_eq!(take(59), []);
        assert_eq!(take(60), [60]);
        assert_eq!(take(4999), [61]);
        assert_eq!(take(4999), []);
        assert_eq!(take(5000), [5000, 62]);
    }
}

#[test]
fn frames_of_every_length_arrive_unchanged_in_both_directions() {
    let mut place = place(|_| ());
    let config = config(&place.path, RingConfig::default());
    let (mut client, mut server) = link(&mut place.listener, &config);
    assert_eq!(
        (client.peer_name.as_str(), server.peer_name.as_str()),
        ("server", "client")
    );
    assert_eq!((client.interface_id, server.interface_id), (7, 7));
    let lengths: Vec<usize> = (1..=600)
        .chain((601..9216).step_by(37))
        .chain([2047, 2048, 2049, 4096, 65_536])
        .collect();
    exchange(&mut client.queues[0], &mut server.queues[0], &lengths);
    exchange(&mut server.queues[0], &mut client.queues[0], &lengths);
    // Reuse the slots with other lengths.
    let lengths: Vec<usize> = lengths.into_iter().rev().collect();
    exchange(&mut client.queues[0], &mut server.queues[0], &lengths);
    exchange(&mut server.queues[0], &mut client.queues[0], &lengths);
}

#[test]
fn rings_of_every_size_work() {
    for log2_slots in 6..=14 {
        let mut place = place(|_| ());
        let ring = RingConfig {
            log2_slots,
            buffer_bytes: 256,
            queues: 1,
        };
        let (mut client, mut server) = link(&mut place.listener, &config(&place.path, ring));
        let slots = 1 << log2_slots;
        assert_eq!(client.queues[0].tx.slots(), slots);
        assert_eq!(server.queues[0].tx.slots(), slots);
        // More than the 16-bit indices hold.
        let lengths: Vec<usize> = (0..70_000 / 4).map(|number| 20 + number * 13 % 1000).collect();
        exchange(&mut client.queues[0], &mut server.queues[0], &lengths);
        exchange(&mut server.queues[0], &mut client.queues[0], &lengths);
        assert!(client.queues[0].tx.pushed() > 17_500);
    }
}

#[test]
fn queue_pairs_are_independent_and_the_server_limits_them() {
    let mut place = place(|config| {
        config.max_queues = 3;
        config.max_log2_slots = 8;
    });
    let ring = RingConfig {
        queues: 4,
        ..RingConfig::default()
    };
    let (mut client, mut server) = link(&mut place.listener, &config(&place.path, ring));
    assert_eq!((client.queues.len(), server.queues.len()), (3, 3));
    assert_eq!(client.queues[0].tx.slots(), 256);
    for (number, queue) in client.queues.iter_mut().enumerate() {
        queue.tx.push(&[number as u8; 60]).unwrap();
        queue.tx.flush();
    }
    let mut buffer = [0; 2048];
    for (number, queue) in server.queues.iter_mut().enumerate() {
        assert_eq!(queue.rx.pop(&mut buffer), Some(Ok(60)));
        assert_eq!(buffer[..60], [number as u8; 60]);
        assert_eq!(queue.rx.pop(&mut buffer), None);
        queue.tx.push(&[100 + number as u8; 60]).unwrap();
        queue.tx.flush();
    }
    for (number, queue) in client.queues.iter_mut().enumerate() {
        assert_eq!(queue.rx.pop(&mut buffer), Some(Ok(60)));
        assert_eq!(buffer[..60], [100 + number as u8; 60]);
    }
}

#[test]
fn the_two_ends_agree_on_how_full_a_ring_is() {
    let mut place = place(|_| ());
    let ring = RingConfig {
        log2_slots: 6,
        ..RingConfig::default()
    };
    let (mut client, mut server) = link(&mut place.listener, &config(&place.path, ring));
    let mut buffer = [0; 2048];
    for client_sends in [true, false] {
        let (from, to) = if client_sends {
            (&mut client.queues[0], &mut server.queues[0])
        } else {
            (&mut server.queues[0], &mut client.queues[0])
        };
        assert_eq!(
            (from.tx.free(), from.tx.occupancy(), to.rx.occupancy()),
            (64, 0, 0)
        );
        for _ in 0..64 {
            from.tx.push(&[1; 60]).unwrap();
        }
        assert_eq!(from.tx.push(&[1; 60]), Err(TxError::Full));
        assert_eq!(
            from.tx.push_with(60, |_| panic!("called for a full ring")),
            Err(TxError::Full)
        );
        assert_eq!(to.rx.available(), 0, "nothing is visible before the flush");
        from.tx.flush();
        assert_eq!(
            (from.tx.occupancy(), to.rx.occupancy(), to.rx.available()),
            (64, 64, 64)
        );
        for _ in 0..10 {
            assert_eq!(to.rx.pop(&mut buffer), Some(Ok(60)));
        }
        assert_eq!((to.rx.occupancy(), to.rx.consumed()), (54, 10));
        assert_eq!(
            (from.tx.occupancy(), from.tx.consumed()),
            (64, 0),
            "not released yet"
        );
        to.rx.release();
        assert_eq!(
            (from.tx.occupancy(), from.tx.consumed(), from.tx.free()),
            (54, 10, 10)
        );
        // Ten slots: four frames of two buffers and one of one leave one slot.
        for _ in 0..4 {
            from.tx.push(&[2; 3000]).unwrap();
        }
        from.tx.push(&[3; 60]).unwrap();
        assert_eq!(from.tx.push(&[4; 3000]), Err(TxError::Full));
        assert_eq!((from.tx.free(), from.tx.pushed()), (1, 73));
        // A server knows that a frame never fits only if it sees all of the client's buffers.
        let never = if client_sends {
            TxError::TooLarge
        } else {
            TxError::Full
        };
        assert_eq!(from.tx.push(&[0; 65 * 2048]), Err(never));
        assert_eq!(from.tx.push(&[]), Err(TxError::TooLarge));
        from.tx.push_with(61, |frame| frame.fill(9)).unwrap();
        from.tx.flush();
        for _ in 0..54 {
            assert_eq!(to.rx.pop(&mut buffer), Some(Ok(60)));
        }
        // A frame of two buffers into one: discarded and counted.
        assert_eq!(to.rx.pop(&mut buffer), Some(Err(RxError::TooLarge { len: 3000 })));
        let mut large = [0; 4096];
        for _ in 0..3 {
            assert_eq!(to.rx.pop(&mut large), Some(Ok(3000)));
            assert_eq!(large[..3000], [2; 3000]);
        }
        assert_eq!(
            to.rx.pop(&mut buffer[..59]),
            Some(Err(RxError::TooLarge { len: 60 }))
        );
        assert_eq!(to.rx.pop(&mut buffer[..61]), Some(Ok(61)));
        assert_eq!(buffer[..61], [9; 61]);
        assert_eq!(to.rx.pop(&mut buffer), None);
        assert_eq!(
            (to.rx.counters().too_large, to.rx.counters().bad_descriptors),
            (2, 0)
        );
        assert_eq!(
            (from.tx.occupancy(), from.tx.consumed()),
            (0, 74),
            "an emptied ring is released automatically"
        );
    }
}

/// A descriptor is written only if it changes: one left by a chain must count as changed.
#[test]
fn a_slot_of_a_chain_can_hold_an_unchained_frame_again() {
    let mut place = place(|_| ());
    let ring = RingConfig {
        log2_slots: 6,
        ..RingConfig::default()
    };
    let (mut client, mut server) = link(&mut place.listener, &config(&place.path, ring));
    // Rounds of 64 slots: short frames, chains in the same slots, then short frames of the first length.
    let lengths: Vec<usize> = [
        [60; 64].as_slice(),
        &[9000; 12],
        &[60; 4],
        &[60; 64],
        &[2049; 32],
        &[60; 64],
    ]
    .concat();
    exchange(&mut client.queues[0], &mut server.queues[0], &lengths);
    exchange(&mut server.queues[0], &mut client.queues[0], &lengths);
}

#[test]
fn forwarding_keeps_order_and_content_and_stops_at_a_full_ring() {
    let mut place = place(|_| ());
    let ring = RingConfig {
        log2_slots: 6,
        ..RingConfig::default()
    };
    let (mut client, mut server) = link(&mut place.listener, &config(&place.path, ring));
    let (there, back) = (&mut client.queues[0], &mut server.queues[0]);
    let lengths: Vec<usize> = (0..5000)
        .map(|number| [60, 64, 1500, 2049, 9000, 128][number % 6])
        .collect();
    let mut buffer = vec![0; 65_536];
    let (mut sent, mut received, mut forwarded) = (0, 0, 0);
    while received < lengths.len() {
        while sent < lengths.len() && there.tx.push(&frame(sent, lengths[sent])).is_ok() {
            sent += 1;
        }
        there.tx.flush();
        // Twice, so that it also meets a full ring.
        for _ in 0..2 {
            forwarded += back.rx.forward_to(&mut back.tx, 7 + sent % 50);
            back.tx.flush();
        }
        assert!(forwarded <= sent && forwarded - received <= 64);
        while let Some(length) = there.rx.pop(&mut buffer) {
            let length = length.unwrap();
            assert!(
                buffer[..length] == frame(received, lengths[received]),
                "frame {received} differs"
            );
            received += 1;
        }
    }
    assert_eq!((forwarded, back.rx.counters().too_large), (5000, 0));
    // The ring is not emptied: what does not fit stays in place.
    for number in 0..64 {
        there.tx.push(&frame(number, 64)).unwrap();
    }
    there.tx.flush();
    assert_eq!(back.rx.forward_to(&mut back.tx, 1000), 64);
    back.tx.flush();
    there.tx.push(&frame(64, 64)).unwrap();
    there.tx.push(&frame(65, 5000)).unwrap();
    there.tx.flush();
    assert_eq!(back.rx.forward_to(&mut back.tx, 1000), 0);
    assert_eq!(back.rx.occupancy(), 4);
    while there.rx.pop(&mut buffer).is_some() {}
    assert_eq!(back.rx.forward_to(&mut back.tx, 1000), 2);
}

/// 256 instances on one switch. In production each has its own socket; one listener with 256 interfaces makes
/// as many links.
#[test]
fn two_hundred_and_fifty_six_links_in_one_process() {
    let before = descriptors();
    let mut place = place(|_| ());
    let ring = RingConfig {
        log2_slots: 6,
        buffer_bytes: 256,
        queues: 1,
    };
    // Both ends are in this process: twice four descriptors per link, so the limit must exceed 2,100.
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.current.is_some_and(|current| current < 4096) {
        limit.current = Some(limit.maximum.map_or(4096, |maximum| maximum.min(4096)));
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    }
    let mut links: Vec<(Link, Link)> = (0..256)
        .map(|id| {
            let mut config = config(&place.path, ring.clone());
            config.interface_id = id;
            link(&mut place.listener, &config)
        })
        .collect();
    // Other tests of this process run concurrently: allow for theirs.
    let per_link = (descriptors() - before) as f64 / 256.0;
    assert!(per_link < 8.5, "{per_link} descriptors a link for both ends");
    for (id, (client, _)) in links.iter_mut().enumerate() {
        client.queues[0].tx.push(&frame(id, 64)).unwrap();
        client.queues[0].tx.flush();
    }
    let mut buffer = [0; 256];
    for (id, (client, server)) in links.iter_mut().enumerate() {
        assert_eq!(server.interface_id as usize, id);
        let back = &mut server.queues[0];
        assert_eq!(back.rx.forward_to(&mut back.tx, 10), 1);
        back.tx.flush();
        assert_eq!(client.queues[0].rx.pop(&mut buffer), Some(Ok(64)));
        assert_eq!(buffer[..64], frame(id, 64));
        assert_eq!(client.control.poll().unwrap(), ControlEvent::None);
    }
    drop(links);
    let after = descriptors();
    assert!(
        after < before + 64,
        "{after} descriptors open afterwards, {before} before"
    );
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn access_is_limited_by_secret_and_interface_id() {
    let secret = *b"four and twenty letters!";
    let mut place = place(|config| {
        config.secret = Some(secret);
        config.interface_ids = Some(BTreeSet::from([7, 8]));
    });
    let good = ClientConfig {
        secret: Some(secret),
        ..config(&place.path, RingConfig::default())
    };
    let mut wrong = secret;
    wrong[23] = b'?';
    for secret in [None, Some(wrong), Some([0; 24])] {
        let error = refused(
            &mut place.listener,
            &ClientConfig {
                secret,
                ..good.clone()
            },
        );
        assert!(
            matches!(&error, Error::Disconnected { reason } if reason == "incorrect secret"),
            "{error}"
        );
        assert!(!error.is_worth_retrying());
    }
    let error = refused(
        &mut place.listener,
        &ClientConfig {
            interface_id: 9,
            ..good.clone()
        },
    );
    assert!(
        matches!(&error, Error::Disconnected { reason } if reason == "interface id 9 not found"),
        "{error}"
    );

    let (client, server) = link(&mut place.listener, &good);
    let error = refused(&mut place.listener, &good);
    assert!(
        matches!(&error, Error::Disconnected { reason } if reason == "already connected"),
        "{error}"
    );
    assert!(error.is_worth_retrying());
    let (_eight, _eight_too) = link(
        &mut place.listener,
        &ClientConfig {
            interface_id: 8,
            ..good.clone()
        },
    );

    // A dropped client frees the interface even if the server still holds its end.
    drop(client);
    let (client, second) = link(&mut place.listener, &good);
    // So does a dropped server end.
    drop((server, second));
    let _ = client;
    let _ = link(&mut place.listener, &good);
    assert_eq!(place.listener.refused(), 5);
}

#[test]
fn the_end_of_a_link_is_reported() {
    let mut place = place(|_| ());
    let config = config(&place.path, RingConfig::default());
    let (mut client, mut server) = link(&mut place.listener, &config);
    assert_eq!(server.control.poll().unwrap(), ControlEvent::None);
    client.queues[0].tx.push(b"the last frame").unwrap();
    client.queues[0].tx.flush();
    client.control.disconnect("scaled in");
    assert_eq!(
        server.control.poll().unwrap(),
        ControlEvent::Disconnected {
            reason: "scaled in".into()
        }
    );
    drop(client);
    assert!(matches!(
        server.control.poll().unwrap(),
        ControlEvent::Disconnected { .. }
    ));
    // The ring's contents are still readable.
    assert_eq!(server.queues[0].rx.pop(&mut [0; 64]), Some(Ok(14)));
    server.queues[0].tx.push(b"to nobody").unwrap();
    server.queues[0].tx.flush();

    let (mut client, server) = link(&mut place.listener, &config);
    drop(server);
    assert!(matches!(
        client.control.poll().unwrap(),
        ControlEvent::Disconnected { .. }
    ));
}

#[test]
fn a_socket_file_is_replaced_only_without_a_listener() {
    let Place {
        directory,
        path,
        listener,
    } = place(|_| ());
    let error = Listener::bind(&path, ServerConfig::new("second")).expect_err("bound twice");
    assert!(matches!(error, Error::AddressInUse { .. }), "{error}");
    drop(listener);
    assert!(!path.exists());
    // A killed server leaves its file behind.
    let left = directory.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    assert!(left.exists());
    drop(Listener::bind(&left, ServerConfig::new("third")).unwrap());
    // Another file is somebody's.
    let file = directory.path().join("notes");
    std::fs::write(&file, "a").unwrap();
    let error = Listener::bind(&file, ServerConfig::new("fourth")).expect_err("bound over a file");
    assert!(
        error
            .to_string()
            .contains("notes is a regular file, not a socket"),
        "{error}"
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"a");
    let long = directory.path().join("x".repeat(120));
    assert!(matches!(
        Listener::bind(long, ServerConfig::new("long")),
        Err(Error::Configuration(_))
    ));
}

#[test]
fn a_client_can_wait_for_its_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memif.sock");
    let config = config(&path, RingConfig::default());
    let error = Client::connect_when_ready(&config, Duration::from_millis(20)).expect_err("no server");
    assert!(matches!(error, Error::NotListening { .. }), "{error}");
    let client = thread::spawn(move || Client::connect_when_ready(&config, SECONDS));
    let mut listener = Listener::bind(
        &path,
        ServerConfig {
            mode: Some(0o600),
            ..ServerConfig::new("late")
        },
    )
    .unwrap();
    assert!(listener.accept(SECONDS).unwrap().is_some());
    client.join().unwrap().unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

/// Sleeps until there are packets. An interrupt of packets that were taken already ends a sleep early; a lost
/// one leaves it asleep for ten seconds.
fn wake(rx: &mut memif::RxQueue) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !memif::wait(&mut [&mut *rx], &[], Duration::from_secs(10)).unwrap() {
        assert!(Instant::now() < deadline, "a lost wake-up");
    }
}

/// Two threads that sleep whenever idle: a lost wake-up would cost the ten-second timeout.
#[test]
fn no_wake_up_is_lost_between_sleepers() {
    let mut place = place(|_| ());
    let ring = RingConfig {
        log2_slots: 6,
        ..RingConfig::default()
    };
    let (mut client, mut server) = link(&mut place.listener, &config(&place.path, ring));
    const ROUNDS: u32 = 10_000;
    let echo = thread::spawn(move || {
        let queue = &mut server.queues[0];
        let mut done = 0;
        let mut naps = 0_u32;
        while done < ROUNDS {
            wake(&mut queue.rx);
            naps += 1;
            done += queue.rx.forward_to(&mut queue.tx, 64) as u32;
            queue.tx.flush();
        }
        naps
    });
    let begin = Instant::now();
    let queue = &mut client.queues[0];
    let mut buffer = [0; 2048];
    let mut done = 0;
    let mut outstanding = 0;
    while done < ROUNDS {
        // One, two or three at a time, so that the other side is met in every state.
        while outstanding < 1 + done % 3 && done + outstanding < ROUNDS {
            queue.tx.push(&[1; 60]).unwrap();
            queue.tx.flush();
            outstanding += 1;
        }
        wake(&mut queue.rx);
        while queue.rx.pop(&mut buffer).is_some() {
            done += 1;
            outstanding -= 1;
        }
    }
    let naps = echo.join().unwrap();
    assert!(naps > ROUNDS / 10, "the other side rarely slept: {naps}");
    assert!(begin.elapsed() < Duration::from_secs(15));
}

#[test]
fn sleep_ends_on_timeout_other_descriptors_and_peer_death() {
    let mut place = place(|_| ());
    let (client, mut server) = link(&mut place.listener, &config(&place.path, RingConfig::default()));
    let begin = Instant::now();
    assert!(!memif::wait(&mut [&mut server.queues[0].rx], &[], Duration::from_millis(30)).unwrap());
    assert!(begin.elapsed() >= Duration::from_millis(29));
    // The caller's descriptor.
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writer, b"x").unwrap();
    use std::os::fd::AsFd as _;
    assert!(!memif::wait(&mut [&mut server.queues[0].rx], &[reader.as_fd()], SECONDS).unwrap());
    // The peer's death wakes it, so that it can poll its control socket.
    let woken = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(!memif::wait(&mut [&mut server.queues[0].rx], &[], SECONDS).unwrap());
            woken.store(true, Ordering::Relaxed);
        });
        drop(client);
    });
    assert!(woken.load(Ordering::Relaxed));
    assert!(begin.elapsed() < SECONDS);
}
