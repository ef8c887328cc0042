//! Real connections through the function `nat`: two kernels talk, and the function works between them.
#![allow(clippy::unwrap_used, reason = "a test")]

mod middle;

use std::sync::mpsc::channel;

use functions::{Chain, LIBRARY, Setup, find};
use real_parts::{Namespace, echo, echoes, fetch, refuses, run, serve};

const TEXT: &str = "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1024-65535\"]\n";
const SERVER: &str = "198.51.100.1";
const SETUP: Setup = Setup {
    instance: 1,
    ports: 2,
    seed: 3,
    external: None,
};

#[test]
fn two_kernels_talk_through_nat() {
    if !middle::is_possible() {
        return;
    }
    let [client, between, server] = ["client", "middle", "server"].map(Namespace::new);
    let sockets = middle::connect(
        &between,
        [
            (&client, "c0", "02:00:00:00:00:0a"),
            (&server, "s0", "02:00:00:00:00:0b"),
        ],
    );
    client.ip("addr add 10.0.0.2/24 dev c0");
    client.ip("neigh add 10.0.0.1 lladdr 02:00:00:00:00:0b nud permanent dev c0");
    client.ip("route add default via 10.0.0.1");
    server.ip(&format!("addr add {SERVER}/24 dev s0"));
    // It knows the external address alone.
    server.ip("route add 192.0.2.1 dev s0");
    server.ip("neigh add 192.0.2.1 lladdr 02:00:00:00:00:0a nud permanent dev s0");
    let chain = Chain::new(vec![find(LIBRARY, "nat").unwrap().make(TEXT, &SETUP).unwrap()]).unwrap();
    let (over, configurations) = channel();
    let passing = std::thread::spawn(move || middle::pass(sockets, chain, &configurations));

    serve(&server, &format!("{SERVER}:80"));
    for _ in 0..3 {
        assert_eq!(client.within(|| fetch(&format!("{SERVER}:80"), 300_000)), Ok(()));
    }
    echo(&server, &format!("{SERVER}:53"));
    assert!(echoes(&client, "10.0.0.2:4000", &format!("{SERVER}:53"), 100));
    // In fragments, both ways.
    assert!(echoes(&client, "10.0.0.2:4000", &format!("{SERVER}:53"), 8000));
    assert!(
        refuses(&client, "10.0.0.2:4000", &format!("{SERVER}:9")),
        "the error must quote what was sent"
    );
    run(
        "ip",
        &[
            "netns",
            "exec",
            &client.name,
            "ping",
            "-c",
            "2",
            "-W",
            "5",
            SERVER,
        ],
    );

    drop(over);
    let metrics = passing.join().unwrap();
    // Three connections, a port of UDP, and the identifier of an echo.
    assert_eq!(metrics[0], 5, "{metrics:?}");
}
