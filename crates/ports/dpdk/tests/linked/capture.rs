//! Captures as devices: `pcap:`.

use dpdk::{Port, PortConfig, device};

use super::{alone, assert_full, eal, frame, pool, receive};

/// A capture in the classic format: microseconds, little endian, Ethernet.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (at, frame) in frames.iter().enumerate() {
        for word in [at as u32, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// The frames of a capture.
fn frames_of(file: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut rest = &file[24..];
    while rest.len() >= 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

#[test]
fn a_capture_is_received_unchanged() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    // 9,018 bytes exceed one mbuf of 2 KiB: the device returns a chain.
    let frames: Vec<_> = [60, 64, 1518, 9018, 14, 61]
        .iter()
        .map(|&len| frame(len, len))
        .collect();
    std::fs::write(&path, capture(&frames)).unwrap();
    let pool = pool(1023, 2048);
    let args = device::from_shorthand(&format!("pcap:{}", path.display())).unwrap();
    let mut port = Port::attach(&eal(), &args).unwrap();
    let mut queues = port.start(&PortConfig::new(pool)).unwrap();
    let mut received = receive(&mut queues.rx[0], frames.len());
    assert_eq!(received.len(), frames.len());
    for (mbuf, frame) in received.iter_mut().zip(&frames) {
        let mut copy = vec![0; mbuf.len()];
        assert_eq!(mbuf.copy_to(&mut copy), frame.len());
        assert_eq!(&copy, frame);
        assert_eq!(mbuf.is_contiguous(), frame.len() <= 2048);
    }
    // Frames sent to it are discarded and freed.
    queues.tx[0].send_from(&mut received, usize::MAX, None);
    drop((received, queues));
    port.close().unwrap();
    assert_full(&pool);
}

#[test]
fn jumbo_frames_are_contiguous_in_a_large_enough_pool() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    let out = folder.path().join("out.pcap");
    let frames: Vec<_> = (0..50).map(|n| frame(n, 60 + n * 180)).collect();
    std::fs::write(&path, capture(&frames)).unwrap();
    let pool = pool(255, 9216);
    let args = device::from_shorthand(&format!("pcap:{},tx={}", path.display(), out.display())).unwrap();
    let mut port = Port::attach(&eal(), &args).unwrap();
    let mut config = PortConfig::new(pool);
    config.mtu = Some(9000);
    let mut queues = port.start(&config).unwrap();
    let mut received = receive(&mut queues.rx[0], frames.len());
    assert!(received.iter().all(dpdk::Mbuf::is_contiguous));
    assert_eq!(
        queues.tx[0].send_from(&mut received, usize::MAX, None),
        frames.len()
    );
    drop((received, queues));
    port.close().unwrap();
    assert_full(&pool);
    assert_eq!(frames_of(&std::fs::read(out).unwrap()), frames);
}

#[test]
fn a_looped_capture_repeats_and_ends() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    let frames: Vec<_> = (0..3).map(|n| frame(n, 60)).collect();
    std::fs::write(&path, capture(&frames)).unwrap();
    let pool = pool(4095, 2048);
    let args = device::from_shorthand(&format!("pcap:{},loop", path.display())).unwrap();
    // It is repeatedly detached while running.
    for _ in 0..5 {
        let mut port = Port::attach(&eal(), &args).unwrap();
        let mut queues = port.start(&PortConfig::new(pool)).unwrap();
        let received = receive(&mut queues.rx[0], 100);
        assert!(received.len() >= 100);
        for (number, mbuf) in received.iter().enumerate() {
            assert_eq!(mbuf.data(), frames[number % 3]);
        }
        drop((received, queues));
        port.close().unwrap();
    }
    assert_full(&pool);
}
