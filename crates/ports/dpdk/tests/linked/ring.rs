//! Ports on DPDK's loopback (`net_ring`) and its sink and source (`net_null`).

use dpdk::{Batch, Error, Port, PortConfig, Refused};

use super::{alone, assert_full, device, eal, frame, pool, receive};

#[test]
fn frames_arrive_in_order() {
    let _alone = alone();
    let pool = pool(2047, 2048);
    let mut port = Port::attach(&eal(), &device("net_ring7")).unwrap();
    assert_eq!(port.info().driver, "net_ring");
    let mut queues = port.start(&PortConfig::new(pool)).unwrap();
    assert_eq!(port.queues_in_use(), 2);
    assert!(port.link().unwrap().up);
    assert!(!port.is_removed());
    let (mut rx, mut tx) = (queues.rx.pop().unwrap(), queues.tx.pop().unwrap());
    let mut sent = 0;
    let mut seen = 0;
    let mut batch = Batch::new();
    let mut into = Vec::with_capacity(64);
    while seen < 5000 {
        while sent < 5000 && batch.room() > 0 {
            batch
                .push(pool.copy_from_slice(&frame(sent, 64 + sent % 1400)).unwrap())
                .unwrap();
            sent += 1;
        }
        tx.send(&mut batch);
        rx.receive_into(&mut into, 64);
        for mbuf in into.drain(..) {
            assert_eq!(mbuf.data(), frame(seen, 64 + seen % 1400));
            seen += 1;
        }
    }
    assert_eq!(tx.refused(), Refused::default());
    let stats = port.stats().unwrap();
    assert_eq!((stats.rx_packets, stats.tx_packets), (5000, 5000));
    drop((rx, tx, batch));
    port.close().unwrap();
    assert_full(&pool);
}

#[test]
fn unsent_frames_keep_their_order() {
    let _alone = alone();
    let pool = pool(4095, 128);
    let mut port = Port::attach(&eal(), &device("net_ring8")).unwrap();
    let mut queues = port.start(&PortConfig::new(pool)).unwrap();
    let mut mbufs: Vec<_> = (0..3000)
        .map(|n| pool.copy_from_slice(&frame(n, 60)).unwrap())
        .collect();
    // DPDK's ring device has 1,024 slots, one of which stays free.
    let first = queues.tx[0].send_from(&mut mbufs, usize::MAX, None);
    assert!((1000..=1024).contains(&first), "{first}");
    assert_eq!(mbufs.len(), 3000 - first);
    assert_eq!(queues.tx[0].send_from(&mut mbufs, usize::MAX, None), 0);
    let mut all = Vec::new();
    while all.len() < 3000 {
        all.extend(receive(&mut queues.rx[0], 64.min(3000 - all.len())));
        queues.tx[0].send_from(&mut mbufs, usize::MAX, None);
    }
    for (number, mbuf) in all.iter().enumerate() {
        assert_eq!(mbuf.data(), frame(number, 60));
    }
    // Drop everything with frames still in the ring, queues first or port first.
    queues.tx[0].send_from(&mut all, usize::MAX, None);
    drop(all);
    receive(&mut queues.rx[0], 3000);
    drop(queues);
    drop(port);
    assert_full(&pool);
}

#[test]
fn invalid_frames_are_freed_and_counted() {
    let _alone = alone();
    let pool = pool(255, 9216);
    let mut port = Port::attach(&eal(), &device("net_ring9")).unwrap();
    let mut config = PortConfig::new(pool);
    config.mtu = Some(1500);
    let mut queues = port.start(&config).unwrap();
    assert_eq!(queues.tx[0].frame_bytes_max(), 1522);
    let lens = [60, 0, 1, 13, 14, 1522, 1523, 9216, 64];
    let mut batch = Batch::new();
    for len in lens {
        batch
            .push(pool.copy_from_slice(&frame(len, len)).unwrap())
            .unwrap();
    }
    assert_eq!(queues.tx[0].send(&mut batch), 4);
    assert!(batch.is_empty());
    // 0, 1, 13, 1,523 and 9,216 bytes.
    let refused = Refused {
        packets: 5,
        bytes: 10_753,
    };
    assert_eq!(queues.tx[0].refused(), refused);
    let mut list: Vec<_> = lens
        .map(|len| pool.copy_from_slice(&frame(len, len)).unwrap())
        .into();
    assert_eq!(queues.tx[0].send_from(&mut list, usize::MAX, None), 4);
    assert_eq!((list.len(), queues.tx[0].refused().packets), (0, 10));
    let lens: Vec<usize> = receive(&mut queues.rx[0], 8).iter().map(|m| m.len()).collect();
    assert_eq!(lens, [60, 14, 1522, 64, 60, 14, 1522, 64]);
    drop(queues);
    port.close().unwrap();
    assert_full(&pool);
}

#[test]
fn a_device_has_one_owner_and_can_be_reattached() {
    let _alone = alone();
    let pool = pool(511, 128);
    for round in 0..40 {
        // More rounds than DPDK has ports: each is released.
        let mut port = Port::attach(&eal(), &device("net_ring10")).unwrap();
        assert_eq!(
            Port::attach(&eal(), &device("net_ring10")).unwrap_err(),
            Error::PortInUse("net_ring10".to_owned())
        );
        if round % 2 == 0 {
            port.start(&PortConfig::new(pool)).unwrap();
        }
        port.close().unwrap();
    }
    assert_full(&pool);
}

#[test]
fn a_port_is_not_closed_under_its_queues() {
    let _alone = alone();
    let pool = pool(511, 128);
    let mut port = Port::attach(&eal(), &device("net_ring11")).unwrap();
    let mut queues = port.start(&PortConfig::new(pool)).unwrap();
    let in_use = Error::QueuesInUse {
        port: "net_ring11".to_owned(),
        queues: 2,
    };
    assert_eq!(port.stop().unwrap_err(), in_use);
    assert_eq!(port.start(&PortConfig::new(pool)).unwrap_err(), in_use);
    assert_eq!(port.close().unwrap_err(), in_use);
    // The port is dropped; its queues keep working on another thread.
    let worker = std::thread::spawn(move || {
        let mut batch = Batch::new();
        batch.push(pool.copy_from_slice(&frame(1, 60)).unwrap()).unwrap();
        queues.tx[0].send(&mut batch);
        assert_eq!(receive(&mut queues.rx[0], 1)[0].data(), frame(1, 60));
    });
    worker.join().unwrap();
    // The last queue closed it.
    Port::attach(&eal(), &device("net_ring11"))
        .unwrap()
        .close()
        .unwrap();
    assert_full(&pool);
}

#[test]
fn a_port_restarts_with_other_queues() {
    let _alone = alone();
    let pool = pool(1023, 128);
    let mut port = Port::attach(&eal(), &device("net_null0,no-rx=1")).unwrap();
    let mut config = PortConfig::new(pool);
    for queues in [1, 4, 2] {
        (config.rx_queues, config.tx_queues) = (queues, queues);
        let started = port.start(&config).unwrap();
        assert_eq!(
            (started.rx.len(), started.tx.len()),
            (usize::from(queues), usize::from(queues))
        );
    }
    config.rx_queues = 60_000;
    assert!(matches!(
        port.start(&config).unwrap_err(),
        Error::TooManyQueues { wanted: 60_000, .. }
    ));
    port.close().unwrap();
    assert_full(&pool);
}

#[test]
fn a_source_and_a_sink_do_not_leak() {
    let _alone = alone();
    let pool = pool(2047, 128);
    let mut source = Port::attach(&eal(), &device("net_null1,size=60")).unwrap();
    let mut sink = Port::attach(&eal(), &device("net_null2,no-rx=1")).unwrap();
    let mut from = source.start(&PortConfig::new(pool)).unwrap();
    let mut to = sink.start(&PortConfig::new(pool)).unwrap();
    let mut batch = Batch::new();
    assert_eq!(to.rx[0].receive(&mut batch), 0);
    let mut moved = 0;
    while moved < 100_000 {
        assert!(from.rx[0].receive(&mut batch) > 0);
        moved += to.tx[0].send(&mut batch);
        assert!(batch.is_empty());
    }
    assert_eq!(sink.stats().unwrap().tx_packets, moved as u64);
    drop((from, to));
    source.close().unwrap();
    sink.close().unwrap();
    assert_full(&pool);
}

#[test]
fn two_queues_are_used_by_two_threads_at_once() {
    let _alone = alone();
    let eal = eal();
    let pool = pool(4095, 128);
    let mut port = Port::attach(&eal, &device("net_null3,size=60")).unwrap();
    let mut config = PortConfig::new(pool);
    (config.rx_queues, config.tx_queues) = (2, 2);
    let queues = port.start(&config).unwrap();
    let workers: Vec<_> = queues
        .rx
        .into_iter()
        .zip(queues.tx)
        .map(|(mut rx, mut tx)| {
            std::thread::spawn(move || {
                let _place = eal.register_thread().unwrap();
                let mut batch = Batch::new();
                let mut moved = 0;
                while moved < 50_000 {
                    rx.receive(&mut batch);
                    moved += tx.send(&mut batch);
                }
                moved as u64
            })
        })
        .collect();
    let moved: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
    assert_eq!(port.stats().unwrap().tx_packets, moved);
    port.close().unwrap();
    assert_full(&pool);
}

#[test]
fn errors_name_the_device() {
    let _alone = alone();
    for name in [
        "net_nosuch0",
        "net_pcap5,rx_pcap=/nonexistent/a.pcap",
        "net_af_packet5,iface=nosuch0",
    ] {
        let error = Port::attach(&eal(), &device(name)).unwrap_err();
        let word = name.split(',').next().unwrap();
        assert!(
            matches!(error, Error::Refused { .. }) && error.to_string().contains(word),
            "{error}"
        );
    }
    let long = format!("net_null{}", "1".repeat(200));
    assert!(Port::attach(&eal(), &device(&long)).is_err());
    assert!(Port::attach(&eal(), &device("net_null0\0")).is_err());
    assert!(Port::attach(&eal(), &device("")).is_err());
}

#[test]
fn rss_is_configured_if_supported_and_rejected_otherwise() {
    let _alone = alone();
    let pool = pool(4095, 2048);
    let two = PortConfig {
        rx_queues: 2,
        tx_queues: 2,
        ..PortConfig::new(pool)
    };
    let shares = std::array::from_fn(|share| share as u16 % 2);
    let mut with = Port::attach(&eal(), &device("net_null4,no-rx=1")).unwrap();
    let queues = with.start(&two).unwrap();
    with.configure_rss([0x6d, 0x5a], &shares).unwrap();
    drop((queues, with));
    let mut without = Port::attach(&eal(), &device("net_ring_dealing")).unwrap();
    let queues = without.start(&PortConfig::new(pool)).unwrap();
    let error = without
        .configure_rss([0x6d, 0x5a], &shares)
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot configure RSS by addresses"), "{error}");
    drop((queues, without));
}
