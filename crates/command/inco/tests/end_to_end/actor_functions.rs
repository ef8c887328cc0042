//! Functions of the library as actors: frames through inco's switch, and state that moves between card and host.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use model::ActorSide;
use packet::Parsed;
use packet::build::Frame;

use crate::actor_applications::{both_run, kill_side, move_over};
use crate::ipsec::{Load, gateway, receive, send};
use crate::support::{Engine, PATIENCE, Place, eventually};

const IMAGE: &str = "inco-test/function-actors";

/// A service whose only actor is a function between two networks.
fn configuration(place: &Place, function: &str, text: &str) -> String {
    let file = place.file("function.toml", text);
    format!(
        r#"{}[switch]
driver = "soft"
[[uplink]]
name = "lan"
device = "memif:lan.sock"
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[[place]]
name = "card"
[[place]]
name = "host"
[service.gateway]
kind = "actors"
image = "{IMAGE}"
uplinks = ["lan", "wan"]
memory = "128MiB"
mounts = ["{}:/function.toml:ro"]
[[service.gateway.actors]]
name = "function"
kind = "function"
options = {{ name = "{function}", config = "/function.toml", tick = 20 }}
region = "1MiB"
objects = 4096
mailbox = 4096
[service.gateway.sides]
moves = "manual"
"#,
        Engine::Oci.toml(),
        file.display()
    )
}

/// Each association goes on with its numbers and its window: the peer takes each packet, in order, and no copy passes.
#[test]
fn an_ipsec_gateway_moves_with_its_associations() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    place.must(&["image", "build", "actors", "--name", IMAGE]);
    let inco = place.run(&configuration(&place, "ipsec", &gateway(1)));
    both_run(&inco);
    inco.settled(2, 0);
    let load = Load::begin(&place, &inco);
    load.more(&inco, 20);
    for _ in 0..4 {
        move_over(&inco, "function");
        load.more(&inco, 20);
    }
    let seen = load.end();
    assert_eq!(seen.wrong, Vec::<String>::new());
    assert!(seen.again > 20, "{}", seen.again);
    inco.stop(&place);
}

/// A UDP packet of a flow: from inside, or the answer.
fn frame(flow: u16, is_answer: bool) -> Vec<u8> {
    let inside: SocketAddr = format!("10.1.0.1:{}", 1_000 + flow).parse().unwrap();
    let outside: SocketAddr = "10.2.0.1:53".parse().unwrap();
    let (src, dst) = if is_answer {
        (outside, inside)
    } else {
        (inside, outside)
    };
    Frame::udp(src, dst, &flow.to_be_bytes())
        .unwrap()
        .to_vec()
        .unwrap()
}

fn flow_of(frame: &[u8]) -> Option<u16> {
    let Parsed::Flow(info) = packet::parse(frame) else {
        return None;
    };
    let payload = frame.get(usize::from(info.l4_offset) + 8..)?;
    Some(u16::from_be_bytes(*payload.first_chunk()?))
}

/// Waits for so many frames.
fn take(link: &mut memif::Link, count: usize) -> Vec<u16> {
    let mut taken = Vec::new();
    eventually("frames come", PATIENCE, || {
        taken.extend(receive(link).iter().filter_map(|frame| flow_of(frame)));
        (taken.len() >= count).then_some(())
    });
    taken
}

/// Nothing comes for a while.
fn nothing(link: &mut memif::Link) {
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(300) {
        assert_eq!(receive(link).len(), 0);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Answers pass by the connections that the firewall knows, wherever it is and also after its process was killed; others do
/// not.
#[test]
fn a_firewall_moves_with_its_connections() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    place.must(&["image", "build", "actors", "--name", IMAGE]);
    let rules = "default = \"deny\"\nconnections = 1024\n[[rule]]\nname = \"outwards\"\naction = \"allow\"\nprotocol = \"udp\"\nsource = \
                 \"10.1.0.0/16\"\n";
    let inco = place.run(&configuration(&place, "firewall", rules));
    both_run(&inco);
    inco.settled(2, 0);
    let [mut lan, mut wan] = inco.networks(&place);
    const FLOWS: u16 = 40;
    let all: Vec<u16> = (0..FLOWS).collect();
    let frames = |flows: std::ops::Range<u16>, is_answer| -> Vec<Vec<u8>> {
        flows.map(|flow| frame(flow, is_answer)).collect()
    };
    send(&mut lan, &frames(0..FLOWS, false));
    assert_eq!(take(&mut wan, all.len()), all);
    for step in 0..3 {
        // Nobody inside has asked for these.
        send(&mut wan, &frames(FLOWS..2 * FLOWS, true));
        nothing(&mut lan);
        send(&mut wan, &frames(0..FLOWS, true));
        assert_eq!(take(&mut lan, all.len()), all, "step {step}");
        match step {
            0 => move_over(&inco, "function"),
            // It is on the host.
            _ => kill_side(&inco, ActorSide::Host),
        }
    }
    inco.stop(&place);
}
