//! The policy `inreal` with `memory_high`: a real server whose memory grows with its connections.

use std::io::Write as _;
use std::net::TcpStream;

use model::{Event, EventKind};

use crate::addresses::{are_here, service};
use crate::policies::explained;
use crate::support::{Engine, Inco, Network, PATIENCE, Place, eventually};

/// The limit of an instance, as `service` has it, and the share of it that its memory may take.
const LIMIT: u64 = 64 << 20;
const HIGH: f64 = 0.5;
/// Bytes of the request that a connection begins and does not end. The server keeps them until it does.
const BEGUN: usize = 900_000;
/// So many of them are above the share, and far below the limit.
const CONNECTIONS: usize = 42;

/// A server that waits for the rest of a request for ten minutes, in a buffer of its own for each connection.
const SERVER: &str = "daemon off;\nmaster_process off;\nuser root;\nerror_log stderr warn;\npid /tmp/nginx.pid;\nevents \
                      {}\nhttp { access_log off; client_body_temp_path /tmp/b; proxy_temp_path /tmp/p; \
                      fastcgi_temp_path /tmp/f; uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s; client_header_timeout \
                      600s; large_client_header_buffers 4 1m; server { listen 80; root /srv; } }\n";

/// A connection with the beginning of a request.
fn begin(network: &Network) -> TcpStream {
    let mut stream = network.as_client(|| TcpStream::connect("10.0.0.100:80").unwrap());
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /").unwrap();
    stream.write_all(&vec![b'x'; BEGUN]).unwrap();
    stream
}

/// What autoscalers have decided.
fn scaled(inco: &Inco) -> Vec<Event> {
    let events = inco.events().into_iter();
    events
        .filter(|event| matches!(event.kind, EventKind::Scaled { .. }))
        .collect()
}

#[test]
fn memory_that_grows_with_connections_adds_an_instance() {
    if !are_here(Engine::Oci, &["nginx"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    place.must(&["image", "import", "nginx"]);
    let file = place.file("memory.conf", SERVER);
    let text = format!(
        "{}image = \"nginx\"\ncommand = [\"/usr/sbin/nginx\", \"-c\", \"/etc/memory.conf\"]\nmounts = \
         [\"{}:/etc/memory.conf:ro\"]\ncapacity = \"1Mpps\"\ninstances = {{ min = 1, max = 3, standby = 0 }}\nscheduler = \
         \"least-connections\"\nautoscaler = {{ policy = \"inreal\", memory_high = {HIGH} }}\nstop_grace = \"1s\"\n",
        service(Engine::Oci, "soft", "web", "80"),
        file.display()
    );
    let inco = network.run(&place, &text);
    let first = inco.settled(1, 0)[0].id;

    // It has room with a flow, so that its memory says something of flows.
    let mut connections = vec![begin(&network)];
    let before = eventually("its memory is known with a flow", PATIENCE, || {
        let row = inco.instance(first)?;
        row.memory_bytes.filter(|_| row.live_flows > 0)
    });
    assert!(
        (before as f64) < 0.9 * HIGH * LIMIT as f64,
        "{before} bytes without load"
    );
    assert!(scaled(&inco).is_empty(), "{}", inco.told());

    connections.extend((1..CONNECTIONS).map(|_| begin(&network)));
    let event = eventually("an instance is added", PATIENCE, || scaled(&inco).pop());
    let EventKind::Scaled {
        from,
        to,
        policy,
        reason,
        ..
    } = &event.kind
    else {
        unreachable!()
    };
    assert_eq!((*from, *to, policy.as_str()), (1, 2, "inreal"), "{reason}");
    assert!(reason.starts_with("memory_high: "), "{reason}");
    let told = |name: &str| -> f64 {
        let mut words = reason.split([' ', ',', ';']).skip_while(|word| *word != name);
        words.nth(1).unwrap().parse().unwrap()
    };
    assert!(told("memory") > HIGH && told("memory") < 1.0, "{reason}");
    let row = inco.instance(first).unwrap();
    println!(
        "{before} bytes with one connection, {:?} with {CONNECTIONS}: {reason}",
        row.memory_bytes
    );
    let answer = explained(&place, &serde_json::to_string(&event).unwrap());
    let decided = answer.pointer("/steps/0").unwrap_or(&answer);
    assert_eq!(decided["replicas"].as_u64(), Some(2), "{answer}");

    // New flows go to the new one, and what the first one has stays there. That is no reason for a third.
    let rows = inco.settled(2, 0);
    let next = rows.iter().find(|row| row.id != first).unwrap().id;
    connections.push(begin(&network));
    let of_next = eventually("it has memory of its own", PATIENCE, || {
        let row = inco.instance(next)?;
        row.memory_bytes.filter(|_| row.live_flows == 1)
    });
    assert!((of_next as f64) < 0.9 * HIGH * LIMIT as f64, "{of_next}");
    let row = inco.instance(first).unwrap();
    assert_eq!(row.live_flows, CONNECTIONS as u64, "{row:?}");
    assert!(row.memory_bytes.unwrap() as f64 > HIGH * LIMIT as f64, "{row:?}");
    assert_eq!(scaled(&inco).len(), 1, "{}", inco.told());
    drop(connections);
    inco.stop(&place);
}
