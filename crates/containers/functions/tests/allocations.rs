//! Bursts pass a chain without an allocation.
#![allow(clippy::unwrap_used, reason = "a test")]

use counting_allocator::allocations;
use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, Setup, find};
use model::Nanos;

#[global_allocator]
static ALLOCATOR: counting_allocator::Counting = counting_allocator::Counting;

#[test]
fn bursts_pass_a_chain_without_an_allocation() {
    let setup = Setup {
        instance: 1,
        ports: 2,
        seed: 0,
    };
    let forward = || {
        find(LIBRARY, "forward")
            .unwrap()
            .make("stamp = true", &setup)
            .unwrap()
    };
    let mut chain = Chain::new(vec![forward(), forward(), forward()]).unwrap();
    let mut burst = Burst::new();
    let before = allocations();
    let mut left = 0;
    for round in 0..100 {
        burst.begin(round % 2, (round + 1) % 2);
        while burst.push(&[round; 60]) {}
        chain.process(&mut burst, Nanos(round.into()));
        left += burst.leaving().len();
    }
    assert_eq!(allocations(), before);
    assert_eq!(left, 100 * RECEIVED_LIMIT);
}
