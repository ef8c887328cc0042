//! A target per parser of foreign input. A target takes any bytes, runs the parser with its limits, and panics if
//! something that must hold does not. It must never depend on a fuzzer: `fuzz/` runs the targets under libFuzzer, and
//! this crate's tests replay the corpora in `fuzz/corpora` on the stable compiler.
//!
//! Key types: [`TARGETS`] (all of them, by name).
//!
//! | target | foreign input | from |
//! | --- | --- | --- |
//! | `packets` | frames, up to a burst of them | network, containers |
//! | `fragments` | fragments of datagrams, in any order and at any time | network, containers |
//! | `signals` | signals of the host's manager, genuine ones among them | containers |
//! | `load_reports` | load reports of machines to an edge, genuine ones among them, and lists of machines in packets | network |
//! | `requests` | ARP requests, neighbour solicitations and pings for an address of inco's | network |
//! | `offload` | checksums and divisions that senders leave to cards | containers |
//! | `translation` | frames whose addresses and ports are translated, and errors that quote such frames | network, containers |
//! | `functions` | bursts of frames through one of the functions, with time between them | network |
//! | `state_moves` | messages about moves with state, and states of flows for the functions | containers |
//! | `actor_objects`, `actor_moves`, `actor_channel` | streams of objects, messages about moves, a channel's memory | the other side of actors |
//! | `actor_control` | messages between inco and a side of actors | containers |
//! | `captures` | a file in the pcap format | files |
//! | `answers` | what instances answer to health checks | containers |
//! | `memif_messages` | control messages of a memif client, with and without descriptors | network, containers |
//! | `memif_rings` | the shared memory of an established link, at any time | network, containers |
//! | `openflow_message`, `openflow_session`, `openflow_steering` | messages, streams, and a switch's behaviour | switch |
//! | `ovsdb` | replies of a database | switch |
//! | `http` | a connection to the API | API clients |
//! | `configuration` | a configuration, and a second one as its reload | files |
//! | `images` | archives: tar, OCI layout, `docker save` | files |
//! | `references` | names of images, and Docker's file with logins | files |
//! | `manifests` | what an image consists of | registries |
//! | `events` | lines of the event log | files |
//!
//! The target `table` (a persisted flow table) is beside the tests of `flow-table`.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a panic is a target's verdict; it runs in tests and under a fuzzer only"
)]

mod actors;
mod cluster;
mod control_plane;
mod edits;
mod files;
mod functions_library;
mod memif_peer;
mod network;

use std::path::PathBuf;

/// A target: its name, which is also that of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("packets", network::packets),
    ("fragments", network::fragments),
    ("requests", edits::requests),
    ("offload", edits::offload),
    ("translation", edits::translation),
    ("functions", functions_library::functions),
    ("state_moves", functions_library::state_moves),
    ("actor_objects", actors::objects),
    ("actor_moves", actors::moves),
    ("actor_channel", actors::channel),
    ("actor_control", actors::control),
    ("captures", network::captures),
    ("answers", network::answers),
    ("signals", network::signals),
    ("load_reports", cluster::load_reports),
    ("memif_messages", memif_peer::messages),
    ("memif_rings", memif_peer::rings),
    ("openflow_message", control_plane::openflow_message),
    ("openflow_session", control_plane::openflow_session),
    ("openflow_steering", control_plane::openflow_steering),
    ("ovsdb", control_plane::ovsdb),
    ("http", control_plane::http),
    ("configuration", files::configuration),
    ("images", files::images),
    ("references", files::references),
    ("manifests", files::manifests),
    ("events", files::events),
];

/// The function of a target, in a constant: the program that calls it links no other.
///
/// # Panics
/// For an unknown name.
pub const fn target(name: &str) -> fn(&[u8]) {
    let mut at = 0;
    while at < TARGETS.len() {
        if is_same(TARGETS[at].0.as_bytes(), name.as_bytes()) {
            return TARGETS[at].1;
        }
        at += 1;
    }
    panic!("there is no target of this name");
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// A directory of this process for sockets and files. [`clean_up`] removes it.
fn scratch(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("inco-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory.join(name)
}

/// Removes the files of this process.
pub fn clean_up() {
    let _ = std::fs::remove_dir_all(scratch(""));
}

/// Splits an input into pieces: a byte with the length, then as many bytes, or what is left.
fn pieces(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (&len, rest) = bytes.split_first()?;
        let (piece, rest) = rest.split_at(usize::from(len).min(rest.len()));
        bytes = rest;
        Some(piece)
    })
}
