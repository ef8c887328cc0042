//! Load reports between machines and edges: the thread that sends them, the thread that takes them, and the files of
//! keys. What they say, and which of them are accepted, is `edge-steering`'s; what follows is the control loop's
//! (`control/reports.rs`).

mod receiver;
mod sender;

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::fs::OFlags;
use signal::Key;

pub(crate) use receiver::{Heard, Receiver};
pub(crate) use sender::{Board, Sender};

/// Longest file that is read as a key, in bytes.
const KEY_FILE_LIMIT: u64 = 4_096;

/// Why a file cannot be used as a key, and what to do.
#[derive(Debug)]
pub(crate) struct WrongKey {
    pub(crate) what: String,
    pub(crate) write: &'static str,
}

/// Reads the key of a machine.
///
/// # Errors
/// It cannot be read, others can read it, or it is no key.
pub(crate) fn read_key(file: &Path) -> Result<Key, WrongKey> {
    let wrong = |what: String, write| WrongKey { what, write };
    let unreadable =
        |error: io::Error| wrong(error.to_string(), "write the file of a key: openssl rand -hex 24");
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(file)
        .map_err(unreadable)?;
    let about = opened.metadata().map_err(unreadable)?;
    if !about.is_file() {
        return Err(wrong("it is not a file".to_owned(), "write the file of a key"));
    }
    if about.mode() & 0o077 != 0 {
        return Err(wrong("others can read it".to_owned(), "run chmod 0400"));
    }
    let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&about.uid());
    if !is_ours {
        return Err(wrong("it belongs to another user".to_owned(), "run chown root"));
    }
    let mut text = String::new();
    opened
        .take(KEY_FILE_LIMIT)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    Key::from_text(text.trim()).map_err(|error| wrong(error.to_string(), "write one: openssl rand -hex 24"))
}

/// The keys of a configuration.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// That of this machine, if it sends reports.
    pub(crate) own: Option<Key>,
    /// Those of the machines whose reports are taken, in their order.
    pub(crate) machines: Vec<Key>,
}

impl Keys {
    /// Reads them.
    ///
    /// # Errors
    /// One cannot be used: which, and why.
    pub(crate) fn read(of: &configuration::Reports) -> Result<Keys, String> {
        let key = |file: &Path| {
            read_key(file).map_err(|wrong| format!("{}: {}: {}", file.display(), wrong.what, wrong.write))
        };
        let own = of.sends.as_ref().map(|of| key(&of.key)).transpose()?;
        let machines = of.takes.iter().flat_map(|of| &of.machines);
        let machines = machines.map(|of| key(&of.key)).collect::<Result<_, _>>()?;
        Ok(Keys { own, machines })
    }
}

/// A thread that ends with its owner.
#[derive(Debug)]
struct Ending {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ending {
    /// Starts a thread, which looks at the flag whenever it wakes.
    fn start(name: &str, run: impl FnOnce(&AtomicBool) + Send + 'static) -> io::Result<Ending> {
        let ends = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ends);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&flag))?;
        Ok(Ending {
            ends,
            thread: Some(thread),
        })
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("a thread of load reports has panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::{Duration, Instant};

    use clock::monotonic;
    use edge_steering::{MachineId, ServiceLoad, Serving};

    use super::receiver::Taken;
    use super::*;

    fn key(byte: u8) -> Key {
        Key::of_random([byte; 24])
    }

    #[test]
    fn a_key_is_read_only_from_a_file_of_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        let with = |text: &str, mode: u32| {
            let _gone = std::fs::remove_file(&file);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            read_key(&file).map(|key| key.nonce()).map_err(|wrong| wrong.what)
        };
        let text = key(7).to_text();
        assert_eq!(with(&format!("{text}\n"), 0o400), Ok(key(7).nonce()));
        assert_eq!(with(&text, 0o440), Err("others can read it".to_owned()));
        assert!(with(&text[1..], 0o400).is_err());
        assert!(with("", 0o400).is_err());
        assert!(read_key(folder.path()).is_err());
        assert!(read_key(Path::new("/dev/zero")).is_err());
        assert!(read_key(&folder.path().join("none")).is_err());
    }

    fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = ask() {
                return found;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    const LOAD: ServiceLoad = ServiceLoad {
        service: 7,
        state: Serving::Serving,
        instances: 2,
        capacity: 1_000,
        capacity_left: 250,
        live_flows: 9,
    };

    fn receiver(at: std::net::SocketAddr) -> Receiver {
        Receiver::start(at, [(MachineId(3), key(1))]).unwrap()
    }

    #[test]
    fn reports_arrive_and_go_on_after_a_restart_of_either_end() {
        // A free port.
        let at = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut edge = receiver(at);
        // What nobody renews is not sent.
        let heard = |edge: &Receiver, machine: &Sender, after: u64| {
            eventually("a report is accepted", || {
                machine.board().tell(monotonic(), [LOAD].into_iter());
                let mut loads = None;
                edge.heard(|_, heard| loads = Some(heard.loads.clone()));
                // Where this thread waited long for a CPU, what was sent meanwhile says nothing of services.
                let loads = loads.filter(|loads: &Vec<ServiceLoad>| !loads.is_empty());
                (edge.taken().accepted[0] > after).then_some(loads?)
            })
        };
        for _ in 0..2 {
            let machine = Sender::start(MachineId(3), &key(1), &[at]).unwrap();
            let before = edge.taken().accepted[0];
            assert_eq!(heard(&edge, &machine, before), vec![LOAD]);
            // The sender counts a report after it left: the edge may have it before.
            eventually("the report is counted", || {
                let mut edges = machine.board().edges();
                edges.all(|of| of.is_known && of.sent > 0).then_some(())
            });
            edge = {
                drop(edge);
                receiver(at)
            };
            assert_eq!(heard(&edge, &machine, 0), vec![LOAD]);
            assert_eq!(edge.taken().refused["wrong_tag"], 0);
        }
    }

    #[test]
    fn machines_come_and_go_and_the_others_go_on() {
        let at = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let edge = receiver(at);
        let (third, fourth) = (MachineId(3), MachineId(4));
        let machines = [
            Sender::start(third, &key(1), &[at]).unwrap(),
            Sender::start(fourth, &key(4), &[at]).unwrap(),
        ];
        let until = |what: &str, is_so: &dyn Fn(&Taken) -> bool| {
            eventually(what, || {
                for machine in &machines {
                    machine.board().tell(monotonic(), [LOAD].into_iter());
                }
                let taken = edge.taken();
                is_so(&taken).then_some(taken)
            })
        };
        let before = until("the first is heard", &|of| of.accepted[0] > 0);
        edge.follow([(fourth, key(4)), (third, key(1))]);
        assert!(
            edge.taken().accepted[1] >= before.accepted[0],
            "what is known stays"
        );
        until("both are heard", &|of| {
            of.accepted[0] > 0 && of.accepted[1] > before.accepted[0]
        });
        // With another key it is a stranger, and the other one goes on.
        edge.follow([(third, key(2)), (fourth, key(4))]);
        let at_change = edge.taken();
        assert_eq!(at_change.accepted[0], 0);
        let last = until("the other goes on", &|of| {
            of.accepted[1] > at_change.accepted[1] && of.refused["other_key"] > 0
        });
        assert_eq!(last.accepted[0], 0);
    }

    #[test]
    fn strangers_change_nothing_and_are_counted() {
        let at = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let edge = receiver(at);
        let stranger = Sender::start(MachineId(3), &key(2), &[at]).unwrap();
        let unknown = Sender::start(MachineId(4), &key(1), &[at]).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        eventually("all are refused", || {
            for of in [&stranger, &unknown] {
                of.board().tell(monotonic(), [LOAD].into_iter());
            }
            socket.send_to(b"hello", at).unwrap();
            let taken = edge.taken();
            ["other_key", "unknown_machine", "malformed"]
                .iter()
                .all(|reason| taken.refused[*reason] > 0)
                .then_some(())
        });
        let taken = edge.taken();
        assert_eq!((taken.accepted, taken.answered), (vec![0], 0));
        assert!(stranger.board().edges().all(|of| !of.is_known));
    }

    #[test]
    fn a_board_that_nobody_renews_is_not_sent() {
        let edge = UdpSocket::bind("127.0.0.1:0").unwrap();
        edge.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let machine = Sender::start(MachineId(3), &key(1), &[edge.local_addr().unwrap()]).unwrap();
        assert!(edge.recv(&mut [0; 2_000]).is_err(), "nothing was told yet");
        eventually("a report comes", || {
            machine.board().tell(monotonic(), [LOAD].into_iter());
            edge.recv(&mut [0; 2_000]).ok()
        });
    }
}
