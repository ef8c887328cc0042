//! Peers that send garbage: frames on the uplink, bytes on the sockets.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use model::Random;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};

use super::{Fault, Injected};
use crate::bed::{Bed, UPLINK_SOCKET};
use crate::guard::Guard;
use crate::plan::{below, milliseconds};

/// Longest message, in bytes: longer than any that inco takes.
const MESSAGE_BYTES: usize = 2048;
/// Connections to each socket.
const CONNECTIONS: usize = 8;

/// Broken frames, among the others.
pub(super) struct Frames;

impl Fault for Frames {
    fn name(&self) -> &'static str {
        "garbage-frames"
    }

    fn about(&self) -> &'static str {
        "sends 500 to 2,000 broken frames into the uplink"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let frames = 500 + below(random, 1500);
        bed.network()?
            .send_garbage(frames as u64, Random::new(random.bits()))?;
        let mut injected = Injected::alone(format!("{frames} frames of garbage"));
        injected.lasts = milliseconds(random, 600, 1000);
        Ok(injected)
    }
}

/// Random bytes to everything that listens in the run directory.
pub(super) struct Sockets;

impl Fault for Sockets {
    fn name(&self) -> &'static str {
        "garbage-sockets"
    }

    fn about(&self) -> &'static str {
        "connects to every socket of inco in the run directory and sends random bytes"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        // A client that leaves before it has said anything ends DPDK 22.11 ("PANIC in eal_intr_thread_main()"), and with
        // it Open vSwitch.
        let is_foreign = |path: &Path| bed.open_vswitch().is_some() && path.ends_with(UPLINK_SOCKET);
        let mut sockets: Vec<PathBuf> = std::fs::read_dir(bed.run_dir())?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "sock") && !is_foreign(path))
            .collect();
        sockets.sort();
        if sockets.is_empty() {
            bail!("nothing listens in {}", bed.run_dir().display());
        }
        let mut sent = 0;
        let mut open = Vec::new();
        for path in &sockets {
            for _ in 0..CONNECTIONS {
                sent += usize::from(babble(path, random, &mut open));
            }
        }
        let what = format!("garbage on {sent} connections to {} sockets", sockets.len());
        // Some connections stay open: stalled handshakes.
        Ok(
            Injected::alone(what).healed(milliseconds(random, 100, 1500), move |_, _| {
                drop(open);
                Ok(())
            }),
        )
    }
}

/// Connects and sends some messages; whether anybody took one. Half of the connections stay open, in `open`.
fn babble(path: &Path, random: &mut Random, open: &mut Vec<OwnedFd>) -> bool {
    let messages: Vec<Vec<u8>> = (0..1 + below(random, 4))
        .map(|_| {
            let length = 1 + below(random, MESSAGE_BYTES);
            (0..length).map(|_| random.bits() as u8).collect()
        })
        .collect();
    let stays = random.bits().is_multiple_of(2);
    // Some sockets are for streams, the others for messages. Who does not accept is not waited for.
    let kinds = [SocketType::STREAM, SocketType::SEQPACKET];
    let connected = kinds.into_iter().find_map(|kind| {
        let made = socket_with(
            AddressFamily::UNIX,
            kind,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        );
        let (connection, address) = made.ok().zip(SocketAddrUnix::new(path).ok())?;
        connect(&connection, &address).ok().map(|()| connection)
    });
    let Some(connection) = connected else { return false };
    let sent = messages
        .iter()
        .filter(|message| send(&connection, message, SendFlags::NOSIGNAL).is_ok())
        .count();
    if stays {
        open.push(connection);
    }
    sent > 0
}
