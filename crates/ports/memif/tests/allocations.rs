//! Moving packets does not allocate.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::thread;
use std::time::Duration;

use counting_allocator::{Counting, allocations};
use memif::{Client, ClientConfig, Listener, ServerConfig};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn packets_move_without_allocation() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memif.sock");
    let mut listener = Listener::bind(&path, ServerConfig::new("server")).unwrap();
    let client =
        thread::spawn(move || Client::connect(&ClientConfig::new(path, 0), Duration::from_secs(5)).unwrap());
    let mut server = listener.accept(Duration::from_secs(5)).unwrap().unwrap();
    let mut client = client.join().unwrap();
    let (near, far) = (&mut client.queues[0], &mut server.queues[0]);
    let long = vec![1; 9000];
    let short = [[2; 60]; 3];
    let mut buffer = vec![0; 9216];

    let before = allocations();
    let mut returned = 0_u32;
    for round in 0..2000 {
        let length = [60, 2000, 9000][round % 3];
        near.tx.push(&long[..length]).unwrap();
        near.tx.push_with(60, |frame| frame.fill(3)).unwrap();
        near.tx.flush();
        far.rx.forward_to(&mut far.tx, 10);
        far.tx.flush();
        while let Some(outcome) = near.rx.pop(&mut buffer) {
            outcome.unwrap();
            returned += 1;
        }
        near.rx.release();
        near.tx.occupancy();
        assert_eq!(near.tx.push_burst(&short, |frame| frame, 64).packets, 3);
        near.tx.push(&long).unwrap();
        near.tx.flush();
        far.rx
            .take_burst(10, |packet| returned += u32::from(packet.copy_to(&mut buffer)));
        far.rx.release();
    }
    assert_eq!(returned, 12_000);
    assert!(!memif::wait(&mut [&mut near.rx], &[], Duration::ZERO).unwrap());
    assert_eq!(allocations(), before);
}
