//! Bursts pass a chain without an allocation.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::SocketAddr;

use counting_allocator::allocations;
use functions::workloads::{REQUEST_BYTES, SETUP, TABLE};
use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, Setup, find};
use model::Nanos;
use packet::build::Frame;

#[global_allocator]
static ALLOCATOR: counting_allocator::Counting = counting_allocator::Counting;

#[test]
fn bursts_pass_a_chain_without_an_allocation() {
    let setup = Setup {
        instance: 1,
        ports: 2,
        seed: 0,
        external: None,
    };
    let make = |name, text| find(LIBRARY, name).unwrap().make(text, &setup).unwrap();
    let forward = || make("forward", "stamp = true");
    let routes = "address = \"192.0.2.1\"\nroutes = \"10.0.0.0/8 a\"\n[[next_hop]]\nname = \"a\"\n";
    let chains = [
        vec![forward(), forward(), forward()],
        vec![make("firewall", "default = \"allow\""), make("router", routes)],
    ];
    for stages in chains {
        let mut chain = Chain::new(stages).unwrap();
        let mut burst = Burst::new();
        let ends = [1, 2].map(|host| SocketAddr::from(([10, 0, 0, host], 1000)));
        let mut frame = Frame::udp(ends[0], ends[1], &[7; 20]).unwrap().to_vec().unwrap();
        let before = allocations();
        let mut left = 0;
        for round in 0..100 {
            burst.begin(round % 2, (round + 1) % 2);
            // Many connections, each in several bursts.
            frame[34..36].copy_from_slice(&u16::from(round / 2 + 1).to_be_bytes());
            while burst.push(&frame) {}
            chain.process(&mut burst, Nanos(round.into()));
            left += burst.leaving().len();
            chain.tick(0, &mut burst, 1, Nanos(round.into()));
        }
        assert_eq!(allocations(), before);
        assert_eq!(left, 100 * RECEIVED_LIMIT);
    }
}

/// A question for the address of a name, and its header of DNS.
fn question(name: &str) -> Vec<u8> {
    let mut message = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.extend_from_slice(&[0, 0, 1, 0, 1]);
    message
}

#[test]
fn servers_answer_without_an_allocation() {
    let setup = Setup {
        instance: 1,
        ports: 1,
        seed: 0,
        external: None,
    };
    let dns = format!(
        "cache_answers = 64\nzones = '''\n{}'''\n",
        include_str!("dns/example.zone")
    );
    let request = |text: String| [&[0, 1, 0, 0, 0, 1, 0, 0], text.as_bytes()].concat();
    let value = "v".repeat(900);
    for (name, text, port) in [("dns", dns.as_str(), 53), ("cache", "memory_mib = 1", 11_211)] {
        let mut chain = Chain::new(vec![find(LIBRARY, name).unwrap().make(text, &setup).unwrap()]).unwrap();
        let mut burst = Burst::new();
        let client = SocketAddr::from(([10, 0, 0, 1], 1000));
        let server = SocketAddr::from(([10, 0, 0, 2], port));
        let (mut left, mut allocated) = (0, 0);
        for round in 0..200 {
            // Names that are in the cache and others; values that are there, that are not, and that make others go.
            let frames: Vec<Vec<u8>> = (0..RECEIVED_LIMIT)
                .map(|at| match (name, at % 4) {
                    ("dns", 0) => question(&format!("n{round}-{at}.example.com")),
                    ("dns", 1) => question("many.example.com"),
                    ("dns", _) => question("first.example.com"),
                    (_, 0) => request(format!("set k{round}-{at} 0 100 900\r\n{value}\r\n")),
                    (_, 1) => request(format!("get k{round}-0 k{}-4\r\n", round / 2)),
                    (_, 2) => request("set n 0 0 1\r\n7\r\n".to_owned()),
                    _ => request("incr n 5\r\n".to_owned()),
                })
                .map(|payload| {
                    let frame = Frame::udp(client, server, &payload).unwrap();
                    frame.to_vec().unwrap()
                })
                .collect();
            let before = allocations();
            burst.begin(0, 0);
            for frame in &frames {
                assert!(burst.push(frame));
            }
            chain.process(&mut burst, Nanos(round));
            left += burst.leaving().len();
            allocated += allocations() - before;
        }
        assert_eq!(allocated, 0, "{name}");
        assert!(left >= 200 * RECEIVED_LIMIT, "{name}: {left}");
    }
}

/// Requests of all workloads: they are answered, dropped or kept.
#[test]
fn requests_are_served_without_an_allocation() {
    for of in TABLE {
        let stage = find(LIBRARY, of.function).unwrap();
        let stage = stage.make(&of.configuration(), &SETUP).unwrap();
        let mut chain = Chain::new(vec![stage]).unwrap();
        let mut burst = Burst::new();
        let requests = of.requests(1_000, REQUEST_BYTES, 1);
        let before = allocations();
        for (at, requests) in requests.chunks(RECEIVED_LIMIT).enumerate() {
            let now = Nanos::from_millis(at as u64);
            burst.begin(0, 0);
            for request in requests {
                assert!(burst.push(request));
            }
            chain.process(&mut burst, now);
            chain.tick(0, &mut burst, 0, now);
        }
        assert_eq!(allocations(), before, "{}", of.application);
        assert_eq!(chain.stages()[0].totals().packets, 1_000);
    }
}
