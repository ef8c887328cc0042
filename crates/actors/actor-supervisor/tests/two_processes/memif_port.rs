//! The card with a memif port, which the test connects to, as the switch does.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use actor_control::Side;
use actor_supervisor::Wish;
use memif::{Client, ClientConfig, Link};
use packet::Parsed;
use packet::build::{Frame, Tag};

use crate::world::{WAIT, World};

const PORT: &str = "port.sock";
/// Clients of the test.
const CLIENTS: u16 = 50;
/// Requests without an answer, at most.
const WINDOW: u64 = 200;

fn options(_: SocketAddr, folder: &Path) -> String {
    format!("--socket {}", folder.join(PORT).display())
}

fn connect(world: &mut World) -> Link {
    let path = world.folder.path().join(PORT);
    let thread =
        std::thread::spawn(move || Client::connect_when_ready(&ClientConfig::new(path, 0), WAIT).unwrap());
    while !thread.is_finished() {
        world.turn();
        std::thread::sleep(Duration::from_millis(1));
    }
    thread.join().unwrap()
}

/// The frame of a request: its number tells the client, and whether it has a tag and which version of IP.
fn request(number: u64) -> Vec<u8> {
    let port = 4_000 + (number % u64::from(CLIENTS)) as u16;
    let (client, own) = match number % 2 {
        0 => ("192.0.2.7".parse().unwrap(), "198.51.100.1".parse().unwrap()),
        _ => ("2001:db8::7".parse().unwrap(), "2001:db8::1".parse().unwrap()),
    };
    let body = number.to_le_bytes();
    let frame = Frame::udp(SocketAddr::new(client, port), SocketAddr::new(own, 7_000), &body).unwrap();
    let tags = [Tag::vlan(9)];
    let tags = if number.is_multiple_of(5) { &tags[..] } else { &[] };
    Frame { tags, ..frame }.to_vec().unwrap()
}

/// Number and count of an answer, which goes where its request came from.
fn read(answer: &[u8]) -> (u64, u64) {
    let Parsed::Flow(info) = packet::parse(answer) else {
        panic!("{answer:?}");
    };
    let body = &answer[usize::from(info.l4_offset) + 8..];
    let word = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
    let asked = request(word(0));
    let Parsed::Flow(of_request) = packet::parse(&asked) else {
        panic!("{asked:?}");
    };
    assert_eq!(info.key, of_request.key);
    assert_ne!(info.direction, of_request.direction);
    assert_eq!((info.vlan, &answer[..6]), (of_request.vlan, &asked[6..12]));
    assert_eq!(&answer[6..12], &asked[..6]);
    (word(0), word(8))
}

#[test]
fn requests_through_memif_are_answered_while_the_actor_moves() {
    let mut world = World::with_network(&["counter"], options);
    world.until_running();
    let mut link = connect(&mut world);
    let (mut sent, mut answers, mut moves) = (0, Vec::new(), 0);
    let mut buffer = [0; 2_048];
    let since = Instant::now();
    while answers.len() < 20_000 {
        let pair = &mut link.queues[0];
        // Requests come while the actor moves, and wait for a move that takes long.
        let most = (2_000 * (moves as u64 + 2)).min(20_000);
        while sent < answers.len() as u64 + WINDOW && sent < most {
            // Beside requests also what is none.
            if sent % 100 == 0 {
                pair.tx.push(&[0xff; 60]).unwrap();
            }
            pair.tx.push(&request(sent + 1)).unwrap();
            sent += 1;
        }
        pair.tx.flush();
        while let Some(length) = pair.rx.pop(&mut buffer) {
            answers.push(read(&buffer[..length.unwrap()]));
        }
        pair.rx.release();
        world.turn();
        // A move each 2,000 answers.
        if let Some(side) = world.supervisor.side_of(0)
            && answers.len() > 2_000 * (moves + 1)
            && world.supervisor.rows()[0].moves == moves as u64
            && world.supervisor.command(0, Wish::Move(side.other())).is_ok()
        {
            moves += 1;
        }
        assert!(
            since.elapsed() < WAIT,
            "{} of {sent}: {:?}",
            answers.len(),
            world.supervisor.rows()
        );
    }
    let expected: Vec<_> = (1..=20_000).map(|number| (number, number)).collect();
    assert!(answers == expected, "each once, in order, counted once");
    assert!(moves >= 8, "{moves} moves");
    world.until("all is counted", |world| {
        let counts = world.supervisor.counts(Side::Card);
        (counts.requests, counts.answers, counts.malformed) == (20_000, 20_000, 200)
    });
    let counts = world.supervisor.counts(Side::Card);
    assert_eq!((counts.unsent, counts.unknown_clients, counts.refused), (0, 0, 0));
    // The switch connects again.
    drop(link);
    let mut link = connect(&mut world);
    let pair = &mut link.queues[0];
    pair.tx.push(&request(20_001)).unwrap();
    pair.tx.flush();
    let answer = loop {
        world.turn();
        if let Some(length) = link.queues[0].rx.pop(&mut buffer) {
            break read(&buffer[..length.unwrap()]);
        }
        assert!(since.elapsed() < WAIT);
    };
    assert_eq!(answer, (20_001, 20_001));
}
