//! The tests and their shared helpers.

mod acl;
mod af_packet;
mod capture;
mod memory;
mod ring;
mod routes;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dpdk::{Batch, DeviceArgs, Eal, EalConfig, Mempool, MempoolConfig, RxQueue};

/// The process's only EAL.
pub(crate) fn eal() -> Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    *EAL.get_or_init(|| {
        let config = EalConfig::new(format!("inco-test-{}", std::process::id()));
        Eal::init(&config.args()).unwrap()
    })
}

/// A separate pool per test, so that leaks are detected.
pub(crate) fn pool(mbufs: u32, frame_bytes: u16) -> Mempool {
    Mempool::create(
        &eal(),
        &MempoolConfig {
            mbufs,
            frame_bytes,
            cache: 32,
        },
    )
    .unwrap()
}

/// Asserts that every mbuf is back in the pool.
pub(crate) fn assert_full(pool: &Mempool) {
    assert_eq!(pool.available(), pool.mbufs(), "mbufs leaked");
}

/// Serializes tests that count ports: the process has one port table.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn device(name: &str) -> DeviceArgs {
    DeviceArgs::named(name)
}

/// Receives until there are `count` packets or two seconds have passed.
pub(crate) fn receive(queue: &mut RxQueue, count: usize) -> Vec<dpdk::Mbuf> {
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut all = Vec::new();
    let mut batch = Batch::new();
    while all.len() < count && Instant::now() < deadline {
        queue.receive(&mut batch);
        batch.move_to(&mut all);
    }
    all
}

/// A frame of `len` bytes with a number.
pub(crate) fn frame(number: usize, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len)
        .map(|at| (at.wrapping_mul(31).wrapping_add(number)) as u8)
        .collect();
    let header = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    let n = header.len().min(len);
    bytes[..n].copy_from_slice(&header[..n]);
    if len >= 22 {
        bytes[14..22].copy_from_slice(&(number as u64).to_be_bytes());
    }
    bytes
}
