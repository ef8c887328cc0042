//! A program dies with a link, and its next run goes on with it.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::os::fd::OwnedFd;
use std::time::Duration;

use memif::{
    Client, ClientConfig, ControlEvent, Error, Link, LinkState, Listener, RingConfig, ServerConfig,
    Unfinished,
};

const SECOND: Duration = Duration::from_secs(1);

fn config(path: &std::path::Path) -> ClientConfig {
    ClientConfig {
        ring: RingConfig {
            log2_slots: 6,
            ..RingConfig::default()
        },
        ..ClientConfig::new(path, 0)
    }
}

/// Client and server, and the directory of their socket.
fn linked() -> (Link, Link, Listener, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memif.sock");
    let mut listener = Listener::bind(&path, ServerConfig::new("server")).unwrap();
    let client = std::thread::spawn(move || Client::connect(&config(&path), SECOND).unwrap());
    let server = listener.accept(SECOND).unwrap().unwrap();
    (client.join().unwrap(), server, listener, directory)
}

/// What somebody keeps of a link whose program dies.
fn kept(link: Link) -> (String, Vec<OwnedFd>) {
    let files = link
        .files()
        .iter()
        .map(|file| file.try_clone_to_owned().unwrap())
        .collect();
    (serde_json::to_string(link.state()).unwrap(), files)
}

fn resumed((state, files): (String, Vec<OwnedFd>), unfinished: Option<Unfinished>) -> Link {
    let state: LinkState = serde_json::from_str(&state).unwrap();
    Link::resume(&state, files, |_| unfinished).unwrap()
}

fn push(link: &mut Link, numbers: std::ops::Range<u8>) {
    for number in numbers {
        // Of all lengths, so that a length that was left in a descriptor is noticed.
        link.queues[0]
            .tx
            .push(&vec![number; 60 + usize::from(number)])
            .unwrap();
    }
}

fn pop(link: &mut Link) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let mut numbers = Vec::new();
    while let Some(len) = link.queues[0].rx.pop(&mut buffer) {
        let len = len.unwrap();
        assert!(buffer[..len].iter().all(|byte| *byte == buffer[0]));
        assert_eq!(
            len,
            60 + usize::from(buffer[0]),
            "the length of frame {}",
            buffer[0]
        );
        numbers.push(buffer[0]);
    }
    numbers
}

/// One end dies and goes on, many times over, so that rings wrap: nothing is lost, nothing comes twice.
fn goes_on(mut dying: Link, mut peer: Link) {
    let mut number = 0;
    for round in 0..40_u64 {
        let next = || number..number + 5;
        push(&mut peer, next());
        peer.queues[0].tx.flush();
        push(&mut dying, next());
        dying.queues[0].tx.flush();
        // What is not published was never there; what is not released comes again.
        push(&mut dying, 200..203);
        dying.queues[0].rx.hold_slots();
        assert_eq!(pop(&mut dying), Vec::from_iter(next()));
        let files = kept(dying);
        dying = resumed(files, None);
        assert_eq!(pop(&mut dying), Vec::from_iter(next()), "round {round}");
        dying.queues[0].rx.release();
        assert_eq!(pop(&mut peer), Vec::from_iter(next()), "round {round}");
        peer.queues[0].rx.release();
        assert_eq!(dying.queues[0].tx.occupancy(), 0);
        assert!(!dying.queues[0].tx.is_violated() && !dying.queues[0].rx.is_violated());
        number = (number + 5) % 100;
    }
    // The whole ring is still there.
    push(&mut dying, 0..64);
    assert!(dying.queues[0].tx.push(&[1; 60]).is_err());
    dying.queues[0].tx.flush();
    assert_eq!(pop(&mut peer), Vec::from_iter(0..64));
    assert_eq!(
        peer.control.poll().unwrap(),
        ControlEvent::None,
        "the peer noticed nothing"
    );
    drop(dying);
    assert!(matches!(
        peer.control.poll().unwrap(),
        ControlEvent::Disconnected { .. }
    ));
}

#[test]
fn a_client_goes_on() {
    let (client, server, _listener, _directory) = linked();
    goes_on(client, server);
}

#[test]
fn a_server_goes_on() {
    let (client, server, _listener, _directory) = linked();
    goes_on(server, client);
}

/// What a turn was about to publish is published by the next run, once, whether or not it was published already.
fn finishes(mut dying: Link, mut peer: Link, is_client: bool) {
    for (turn, published) in (1..).zip([0, 1, 2]) {
        push(&mut peer, 0..5);
        peer.queues[0].tx.flush();
        dying.queues[0].rx.hold_slots();
        assert_eq!(pop(&mut dying), [0, 1, 2, 3, 4]);
        push(&mut dying, 10..13);
        let pair = &mut dying.queues[0];
        pair.tx.intend(turn);
        pair.rx.intend(turn);
        let noted = |position| (!is_client).then_some(position);
        let unfinished = Unfinished {
            turn,
            tx: noted(pair.tx.position()),
            rx: noted(pair.rx.position()),
        };
        if published > 0 {
            pair.tx.flush();
        }
        if published > 1 {
            pair.rx.release();
        }
        let files = kept(dying);
        dying = resumed(files, Some(unfinished));
        assert_eq!(pop(&mut peer), [10, 11, 12]);
        peer.queues[0].rx.release();
        assert!(pop(&mut dying).is_empty());
        // An older turn says nothing any more.
        let files = kept(dying);
        let other = Unfinished {
            turn: turn + 1,
            tx: None,
            rx: None,
        };
        dying = resumed(files, Some(other));
        assert!(pop(&mut peer).is_empty() && pop(&mut dying).is_empty());
        push(&mut peer, 0..64);
        peer.queues[0].tx.flush();
        assert_eq!(pop(&mut dying), Vec::from_iter(0..64));
    }
}

#[test]
fn a_client_finishes_its_turn() {
    let (client, server, _listener, _directory) = linked();
    finishes(client, server, true);
}

#[test]
fn a_server_finishes_its_turn() {
    let (client, server, _listener, _directory) = linked();
    finishes(server, client, false);
}

#[test]
fn a_listener_goes_on_with_those_who_came_meanwhile() {
    let (client, server, listener, directory) = linked();
    let path = directory.path().join("memif.sock");
    let socket = listener.file().try_clone_to_owned().unwrap();
    let mut listener = listener;
    listener.leave();
    drop(listener);
    assert!(path.exists());
    let other = tempfile::tempdir().unwrap();
    let elsewhere = Listener::resume(
        socket.try_clone().unwrap(),
        other.path().join("memif.sock"),
        ServerConfig::new("server"),
    );
    assert!(matches!(elsewhere, Err(Error::Kept { .. })), "{elsewhere:?}");
    let waits = std::thread::spawn({
        let path = path.clone();
        move || {
            let config = ClientConfig {
                interface_id: 1,
                ..config(&path)
            };
            (Client::connect(&config, SECOND), path)
        }
    });
    let server = resumed(kept(server), None);
    let mut listener = Listener::resume(socket, &path, ServerConfig::new("server")).unwrap();
    listener.remember(&server);
    assert_eq!(listener.accept(SECOND).unwrap().unwrap().interface_id, 1);
    let (second, path) = waits.join().unwrap();
    second.unwrap();
    // The interface of the link that went on is taken.
    let refused = std::thread::spawn(move || Client::connect(&config(&path), SECOND));
    assert!(listener.accept(Duration::from_millis(300)).unwrap().is_none());
    assert!(matches!(refused.join().unwrap(), Err(Error::Disconnected { .. })));
    drop((client, server));
}

#[test]
fn a_clients_buffers_have_their_length_back_when_all_had_frames_that_nobody_saw() {
    // With what a release before this one noted, the length is a guess: a long frame takes several buffers.
    for (is_noted, slots) in [(true, 1), (false, 34)] {
        let (mut client, mut server, _listener, _directory) = linked();
        let tx = &mut server.queues[0].tx;
        while tx.push(&[1; 60]).is_ok() {}
        assert_eq!(tx.occupancy(), 64);
        let (state, files) = kept(server);
        let mut state: serde_json::Value = serde_json::from_str(&state).unwrap();
        let noted = state["to_client"][0].as_object_mut().unwrap();
        assert_eq!(noted["peer_buffer"], 2048);
        if !is_noted {
            noted.remove("peer_buffer");
        }
        server = resumed((state.to_string(), files), None);
        let tx = &mut server.queues[0].tx;
        tx.push(&[2; 2000]).unwrap();
        assert_eq!(tx.occupancy(), slots, "noted: {is_noted}");
        tx.flush();
        let mut buffer = [0; 4096];
        assert_eq!(client.queues[0].rx.pop(&mut buffer), Some(Ok(2000)));
        assert!(buffer[..2000].iter().all(|byte| *byte == 2));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (client, _server, _listener, _directory) = linked();
    let (state, files) = kept(client);
    let again = || {
        files
            .iter()
            .map(|file| file.try_clone().unwrap())
            .collect::<Vec<_>>()
    };
    let with = |text: String, files: Vec<OwnedFd>| {
        let state: LinkState = serde_json::from_str(&text).unwrap();
        Link::resume(&state, files, |_| None)
    };
    assert!(with(state.clone(), again()).is_ok());
    let mut short = again();
    short.pop();
    assert!(matches!(with(state.clone(), short), Err(Error::Kept { .. })));
    let mut swapped = again();
    swapped.swap(0, 1);
    assert!(with(state.clone(), swapped).is_err());
    let value: serde_json::Value = serde_json::from_str(&state).unwrap();
    for (pointer, wrong) in [
        ("/to_server/0/offset", 1_u64 << 31),
        ("/to_server/0/offset", 8),
        ("/to_server/0/offset", 64),
        ("/to_server/0/log2_slots", 15),
        ("/to_server/0/log2_slots", 14),
        ("/to_server/0/region", 1),
        ("/to_server/0/first_buffer", u64::MAX),
        ("/to_client/0/first_buffer", 1 << 20),
        ("/buffers/stride", u64::MAX / 2),
        ("/buffers/capacity", 1 << 20),
        ("/regions/0", 1 << 40),
        ("/regions/0", 0),
    ] {
        let mut value = value.clone();
        *value.pointer_mut(pointer).unwrap() = wrong.into();
        assert!(with(value.to_string(), again()).is_err(), "{pointer} {wrong}");
    }
    // The peer is gone.
    drop(_server);
    assert!(matches!(with(state, again()), Err(Error::Closed { .. })));
}
