//! Sends signals through the ports of instances: into the network namespace of an instance with an interface, else by
//! way of its function.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use packet_socket::Interface;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use signal::{Key, Signal, Wish};

use crate::options;

/// The interface of an instance's port, in its network namespace.
const INTERFACE: &str = "eth0";
/// Slots of its rings: a signal is one frame.
const SLOTS: u32 = 32;
/// The addresses of a signal. Both are locally administered, and nobody looks at them.
const DESTINATION: [u8; 6] = [0x02, 0x69, 0x6e, 0x63, 0x6f, 0x00];
const SOURCE: [u8; 6] = [0x02, 0x69, 0x6e, 0x63, 0x6f, 0x01];
/// Longest file of a key, in bytes.
const KEY_FILE_LIMIT: u64 = 4_096;
/// Longest answer of the API, in bytes: 1024 instances have less than 1 MiB.
const ANSWER_LIMIT: u64 = 16 << 20;
/// How long the API may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The file that inco writes with the key of an instance.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct KeyFile {
    pub(crate) instance: u32,
    socket: Option<PathBuf>,
    key: String,
}

impl KeyFile {
    /// Reads the key of an instance.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn read(run_dir: &Path, instance: u32) -> Result<KeyFile> {
        let path = run_dir.join("signals").join(format!("{instance}.key"));
        let read = || -> Result<KeyFile> {
            let mut text = String::new();
            File::open(&path)?
                .take(KEY_FILE_LIMIT)
                .read_to_string(&mut text)?;
            Ok(serde_json::from_str(&text)?)
        };
        read().with_context(|| {
            format!(
                "cannot read {}: instances of services with `signals = true` have a key",
                path.display()
            )
        })
    }

    /// The instances that have keys.
    pub(crate) fn list(run_dir: &Path) -> Vec<u32> {
        let files = fs::read_dir(run_dir.join("signals"));
        let names = files.into_iter().flatten().flatten();
        names
            .filter_map(|file| file.file_name().to_str()?.strip_suffix(".key")?.parse().ok())
            .collect()
    }

    /// Sends a signal of the instance, whose program is `pid`.
    ///
    /// # Errors
    /// It could not be sent.
    pub(crate) fn send(&self, wish: Wish, counter: u64, pid: Option<u32>) -> Result<()> {
        let key = Key::from_text(&self.key)?;
        let signal = Signal {
            wish,
            instance: self.instance,
            counter,
        };
        let frame = signal.frame(&key, DESTINATION, SOURCE);
        if let Some(socket) = &self.socket {
            let sent = UnixDatagram::unbound().and_then(|from| from.send_to(&frame, socket));
            sent.with_context(|| {
                format!(
                    "the function of instance {} takes no signals on {}",
                    self.instance,
                    socket.display()
                )
            })?;
            return Ok(());
        }
        let Some(pid) = pid else {
            bail!("the process of instance {} is not known", self.instance);
        };
        through_interface(pid, frame.to_vec())
            .with_context(|| format!("instance {}: cannot send by {INTERFACE}", self.instance))
    }
}

/// Sends a frame in the network namespace of a process.
fn through_interface(pid: u32, frame: Vec<u8>) -> Result<()> {
    let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
    // A thread of its own stays there for good.
    let there = move || -> Result<()> {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let mut port = Interface::open(INTERFACE, SLOTS)?;
        ensure!(port.send(&frame) && port.flush(), "the kernel refuses the frame");
        Ok(())
    };
    let helper = std::thread::Builder::new()
        .name("inco-signal".to_owned())
        .spawn(there)?;
    match helper.join() {
        Ok(sent) => sent,
        Err(_) => bail!("the helper has ended"),
    }
}

/// An instance, as the API tells of it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct InstanceRow {
    pub(crate) id: u32,
    pub(crate) service: String,
    pub(crate) state: String,
    pub(crate) pid: Option<u32>,
}

/// A service, as the API tells of it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ServiceRow {
    pub(crate) name: String,
    pub(crate) min: u32,
    pub(crate) max: u32,
}

/// Asks the API of inco.
///
/// # Errors
/// It does not answer.
pub(crate) fn ask<T: DeserializeOwned>(run_dir: &Path, what: &str) -> Result<T> {
    let socket = run_dir.join("api.sock");
    let asked = || -> Result<T> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // Version 1.0: the answer comes in one piece, and ends with the connection.
        write!(stream, "GET {what} HTTP/1.0\r\nHost: inco\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.take(ANSWER_LIMIT).read_to_end(&mut answer)?;
        body(&answer)
    };
    asked().with_context(|| format!("inco does not answer on {}", socket.display()))
}

/// What an answer carries.
fn body<T: DeserializeOwned>(answer: &[u8]) -> Result<T> {
    let end = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .context("it is no answer")?;
    let (head, body) = answer.split_at(end);
    let status = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    ensure!(status == b"200", "status {}", String::from_utf8_lossy(status));
    Ok(serde_json::from_slice(&body[4..])?)
}

/// Sends one signal.
pub(crate) fn send_one(options: &options::Send) -> Result<()> {
    let key = KeyFile::read(&options.run_dir, options.instance)?;
    let instances: Vec<InstanceRow> = ask(&options.run_dir, "/v1/instances")?;
    let pid = instances
        .iter()
        .find(|of| of.id == options.instance)
        .and_then(|of| of.pid);
    let wish = match options.wish {
        options::Wish::Wake => Wish::Wake,
        options::Wish::Sleep => Wish::Sleep,
    };
    key.send(wish, clock::monotonic().0, pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let answer = b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n[{\"name\":\"a\",\"min\":1,\"max\":3}]";
        let rows: Vec<ServiceRow> = body(answer).unwrap();
        assert_eq!((rows[0].name.as_str(), rows[0].max), ("a", 3));
        for wrong in [
            &b""[..],
            b"HTTP/1.0 200 OK\r\n\r\n",
            b"HTTP/1.0 404 no\r\n\r\n[]",
            b"\r\n\r\n[]",
        ] {
            assert!(body::<Vec<ServiceRow>>(wrong).is_err());
        }
    }
}
