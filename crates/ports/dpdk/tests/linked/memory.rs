//! Pools, mbufs and batches.

use dpdk::{BATCH_LIMIT, Batch, Eal, Error, Mbuf, Mempool, MempoolConfig};
use proptest::prelude::*;

use super::{assert_full, eal, pool};

#[test]
fn eal_starts_once() {
    let eal = eal();
    assert!(eal.version().starts_with("DPDK "), "{}", eal.version());
    assert!(Eal::running().is_some());
    assert_eq!(Eal::init(&[]).unwrap_err(), Error::EalRuns);
}

#[test]
fn eal_leaves_the_affinity_of_other_threads_alone() {
    let _eal = eal();
    let allowed = |path: &str| {
        let status = std::fs::read_to_string(path).unwrap();
        status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"))
            .map(str::to_owned)
            .unwrap()
    };
    // EAL pins the thread that starts it: this one, if the wrapper did not use its own. The first thread was
    // never pinned.
    assert_eq!(allowed("/proc/thread-self/status"), allowed("/proc/self/status"));
}

#[test]
fn a_thread_registers_once_and_frees_its_slot() {
    let eal = eal();
    // More threads than EAL has slots, one after the other.
    for _ in 0..200 {
        std::thread::spawn(move || {
            let place = eal.register_thread().unwrap();
            assert_eq!(eal.register_thread().unwrap_err(), Error::ThreadRegistered);
            drop(place);
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_pool_runs_dry_and_fills_again() {
    let pool = pool(511, 256);
    let mut all = Vec::with_capacity(600);
    assert_eq!(pool.alloc_into(&mut all, 600), 511);
    assert!(pool.alloc().is_none());
    assert_eq!(pool.copy_from_slice(&[0; 64]).unwrap_err(), Error::NoMbuf);
    let mut batch = Batch::new();
    assert!(!pool.alloc_batch(&mut batch, 1));
    assert_eq!(pool.available(), 0);
    all.truncate(500);
    assert_eq!(pool.available(), 11);
    assert!(!pool.alloc_batch(&mut batch, 12), "all or none");
    assert!(batch.is_empty());
    assert!(pool.alloc_batch(&mut batch, 11));
    drop(all);
    drop(batch);
    assert_full(&pool);
}

#[test]
fn impossible_pools_are_rejected() {
    let create = |mbufs, frame_bytes, cache| {
        Mempool::create(
            &eal(),
            &MempoolConfig {
                mbufs,
                frame_bytes,
                cache,
            },
        )
        .unwrap_err()
    };
    for error in [
        create(0, 2048, 0),
        create(63, 0, 0),
        create(63, u16::MAX, 0),
        create(63, 2048, 60),
    ] {
        assert!(matches!(error, Error::PoolConfig { .. }), "{error}");
    }
    // 8 GiB in a process with 256 MiB.
    let error = create(4_000_000, 2048, 0);
    assert!(matches!(error, Error::Refused { .. }), "{error}");
}

#[test]
fn frames_up_to_nine_kib_fit_a_large_enough_pool() {
    let pool = pool(63, 9216);
    for len in [0, 1, 14, 60, 64, 1518, 9018, 9216] {
        let bytes = super::frame(len, len);
        let mbuf = pool.copy_from_slice(&bytes).unwrap();
        assert_eq!(mbuf.data(), bytes);
        assert_eq!(
            (mbuf.len(), mbuf.segment_count(), mbuf.is_contiguous()),
            (len, 1, true)
        );
    }
    let error = pool.copy_from_slice(&[0; 9217]).unwrap_err();
    assert_eq!(
        error,
        Error::FrameTooLarge {
            frame_bytes: 9217,
            room_bytes: 9216
        }
    );
    assert_full(&pool);
}

#[test]
fn a_batch_keeps_order_and_frees_all() {
    let pool = pool(255, 128);
    let mut batch = Batch::new();
    for number in 0..BATCH_LIMIT {
        batch
            .push(pool.copy_from_slice(&super::frame(number, 64)).unwrap())
            .unwrap();
    }
    let one_too_many = pool.copy_from_slice(&super::frame(99, 64)).unwrap();
    assert_eq!(batch.push(one_too_many).unwrap_err().data(), super::frame(99, 64));
    assert_eq!(batch.room(), 0);
    assert_eq!(batch.pop().unwrap().data(), super::frame(63, 64));
    let mut all = Vec::new();
    batch.move_to(&mut all);
    assert!(batch.is_empty() && batch.pop().is_none());
    for (number, mbuf) in all.iter().enumerate() {
        assert_eq!(mbuf.data(), super::frame(number, 64));
    }
    drop(all);
    assert_full(&pool);
}

#[test]
fn a_chain_reads_as_one_packet() {
    let pool = pool(63, 256);
    let bytes = super::frame(7, 700);
    let mut packet = pool.copy_from_slice(&bytes[..256]).unwrap();
    packet
        .chain(pool.copy_from_slice(&bytes[256..500]).unwrap())
        .unwrap();
    packet
        .chain(pool.copy_from_slice(&bytes[500..]).unwrap())
        .unwrap();
    assert_eq!(
        (packet.len(), packet.segment_count(), packet.data().len()),
        (700, 3, 256)
    );
    assert_eq!(packet.segments().flatten().copied().collect::<Vec<u8>>(), bytes);
    let mut copy = vec![0; 700];
    assert_eq!(packet.copy_to(&mut copy), 700);
    assert_eq!(copy, bytes);
    assert_eq!(packet.copy_to(&mut copy[..300]), 300);
    assert!(packet.append(1).is_none());
    assert_eq!(
        packet.linearize().unwrap_err(),
        Error::FrameTooLarge {
            frame_bytes: 700,
            room_bytes: 256
        }
    );
    assert_eq!(packet.len(), 700, "a failed linearize changes nothing");
    // Truncated to its first segment: the others are back in the pool at once.
    packet.set_len(100);
    assert_eq!((packet.segment_count(), packet.data()), (1, &bytes[..100]));
    assert_eq!(pool.available(), 62);
    // Short enough to linearize.
    packet
        .chain(pool.copy_from_slice(&bytes[100..200]).unwrap())
        .unwrap();
    packet.linearize().unwrap();
    assert_eq!((packet.segment_count(), packet.data()), (1, &bytes[..200]));
    drop(packet);
    assert_full(&pool);
}

#[test]
fn mbufs_may_be_freed_on_any_thread() {
    let eal = eal();
    let pool = pool(1023, 128);
    let (give, take) = std::sync::mpsc::sync_channel::<Vec<Mbuf>>(4);
    let freeing = std::thread::spawn(move || {
        let _place = eal.register_thread().unwrap();
        take.into_iter().map(|mbufs| mbufs.len()).sum::<usize>()
    });
    let _place = eal.register_thread().unwrap();
    let mut given = 0;
    while given < 20_000 {
        let mut mbufs = Vec::new();
        given += pool.alloc_into(&mut mbufs, 64);
        give.send(mbufs).unwrap();
    }
    drop(give);
    assert_eq!(freeing.join().unwrap(), given);
    assert_full(&pool);
}

/// An operation on a packet.
#[derive(Clone, Copy, Debug)]
enum Step {
    Append(usize),
    AddFront(usize),
    RemoveFront(usize),
    SetLen(usize),
    Fill(u8),
    FillRoom(u8),
    Chain(usize),
    Linearize,
}

fn step() -> impl Strategy<Value = Step> {
    let amount = prop_oneof![0usize..300, Just(usize::MAX), Just(65_535), Just(65_536)];
    prop_oneof![
        amount.clone().prop_map(Step::Append),
        amount.clone().prop_map(Step::AddFront),
        amount.clone().prop_map(Step::RemoveFront),
        amount.prop_map(Step::SetLen),
        any::<u8>().prop_map(Step::Fill),
        any::<u8>().prop_map(Step::FillRoom),
        (0usize..200).prop_map(Step::Chain),
        Just(Step::Linearize),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any sequence of calls: neighbours' bytes stay, lengths agree, nothing leaks.
    #[test]
    fn no_sequence_of_calls_reaches_beyond_the_mbuf(steps in prop::collection::vec(step(), 1..40)) {
        static POOL: std::sync::OnceLock<Mempool> = std::sync::OnceLock::new();
        let pool = POOL.get_or_init(|| pool(63, 256));
        // All others hold a pattern, so that a write past an end is detected.
        let mut neighbours = Vec::new();
        pool.alloc_into(&mut neighbours, 40);
        let mut packet = neighbours.swap_remove(20);
        for other in &mut neighbours {
            other.set_len(256);
            other.room().fill(0xa5);
        }
        for step in steps {
            let before = packet.len();
            match step {
                Step::Append(n) => {
                    let done = packet.append(n).map(|room| { room.fill(1); room.len() });
                    prop_assert_eq!(packet.len(), before + done.unwrap_or(0));
                    prop_assert!(done.is_none_or(|len| len == n));
                }
                Step::AddFront(n) => {
                    let done = packet.add_front(n).map(|room| { room.fill(2); room.len() });
                    prop_assert_eq!(packet.len(), before + done.unwrap_or(0));
                    prop_assert!(done.is_none_or(|len| len == n));
                }
                Step::RemoveFront(n) => {
                    let done = packet.remove_front(n);
                    prop_assert_eq!(packet.len(), before - if done { n } else { 0 });
                }
                Step::SetLen(n) => {
                    packet.set_len(n);
                    prop_assert!(packet.len() <= n && packet.is_contiguous());
                    prop_assert_eq!(packet.data().len(), packet.len());
                }
                Step::Fill(byte) => packet.data_mut().fill(byte),
                Step::FillRoom(byte) => packet.room().fill(byte),
                Step::Chain(n) => {
                    if let Ok(other) = pool.copy_from_slice(&vec![3; n]) {
                        packet.chain(other).unwrap();
                        prop_assert_eq!(packet.len(), before + n);
                    }
                }
                Step::Linearize => {
                    let done = packet.linearize().is_ok();
                    prop_assert!(!done || packet.is_contiguous());
                    prop_assert_eq!(packet.len(), before);
                }
            }
            prop_assert_eq!(packet.segments().map(<[u8]>::len).sum::<usize>(), packet.len());
            prop_assert!(packet.room().len() <= 256 + 128);
        }
        for other in &neighbours {
            prop_assert!(other.data().iter().all(|&byte| byte == 0xa5), "a neighbour was written to");
        }
        drop((packet, neighbours));
        prop_assert_eq!(pool.available(), pool.mbufs());
    }
}
