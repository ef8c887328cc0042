//! A server, its clients, and what a client may do to it.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "what goes wrong here fails the test"
)]

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use keeper::{
    Error, Keeper, MAX_CLIENTS, MAX_ENTRIES, MAX_FILES, MAX_NAME_BYTES, MAX_NOTE_BYTES, Order, Server,
};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};

/// A server in a thread. It ends with this, or when a client orders it.
struct Running {
    thread: Option<JoinHandle<Server>>,
    stop: Arc<AtomicBool>,
}

impl Running {
    fn start(run_dir: &Path) -> Running {
        Running::of(Server::bind(run_dir).unwrap())
    }

    fn of(mut server: Server) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                while !stop.load(Ordering::Relaxed) && server.serve() == Order::None {
                    let mut fds: Vec<_> = server
                        .files()
                        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                        .collect();
                    let step = Duration::from_millis(5).try_into().unwrap();
                    poll(&mut fds, Some(&step)).unwrap();
                }
                server
            }
        });
        Running {
            thread: Some(thread),
            stop,
        }
    }

    fn end(mut self) -> Server {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn file(text: &str) -> File {
    let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(memory);
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn text(of: &OwnedFd) -> String {
    let mut file = File::from(of.try_clone().unwrap());
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_next_client_gets_what_one_that_died_had_given() {
    let place = tempfile::tempdir().unwrap();
    assert!(
        Keeper::connect(place.path()).unwrap().is_none(),
        "nobody is there"
    );
    let server = Running::start(place.path());
    let keeper = Keeper::connect(place.path()).unwrap().unwrap();
    assert!(keeper.take().unwrap().is_empty());
    let (one, two, three) = (file("one"), file("two"), file("three"));
    keeper
        .keep("b", "two \"files\"\n", &[one.as_fd(), two.as_fd()])
        .unwrap();
    keeper.keep("a", "replaced", &[two.as_fd()]).unwrap();
    keeper.keep("a", "its place", &[three.as_fd()]).unwrap();
    keeper.keep("c", "", &[one.as_fd()]).unwrap();
    keeper.forget("c");
    keeper.forget("never there");
    drop((keeper, one, two, three));
    for _ in 0..2 {
        let keeper = Keeper::connect(place.path()).unwrap().unwrap();
        let entries = keeper.take().unwrap();
        let seen: Vec<(&str, &str, Vec<String>)> = entries
            .iter()
            .map(|of| {
                (
                    of.name.as_str(),
                    of.note.as_str(),
                    of.files.iter().map(text).collect(),
                )
            })
            .collect();
        let expected = [
            ("a", "its place", vec!["three".to_owned()]),
            ("b", "two \"files\"\n", vec!["one".to_owned(), "two".to_owned()]),
        ];
        assert_eq!(seen, expected);
    }
    let server = server.end();
    assert!(!server.is_empty() && server.linger().is_none());
}

#[test]
fn another_server_gets_everything_again() {
    let place = tempfile::tempdir().unwrap();
    let first = Running::start(place.path());
    let keeper = Keeper::connect(place.path()).unwrap().unwrap();
    let (one, two) = (file("one"), file("two"));
    keeper.keep("one", "", &[one.as_fd()]).unwrap();
    drop(first.end());
    // What is given while nobody is there is not lost either.
    let error = keeper.keep("two", "", &[two.as_fd()]).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(keeper.give_again().is_err());
    let second = Running::start(place.path());
    assert_eq!(keeper.give_again().unwrap(), 2);
    keeper.forget("one");
    assert_eq!(keeper.entries().unwrap(), 1);
    let next = Keeper::connect(place.path()).unwrap().unwrap();
    keeper.keep("three", "", &[two.as_fd()]).unwrap();
    let names: Vec<String> = next.take().unwrap().into_iter().map(|of| of.name).collect();
    assert_eq!(names, ["three", "two"]);
    // What was taken is given on as well.
    next.dismiss().unwrap();
    drop(second.end());
    let third = Running::start(place.path());
    assert_eq!(next.give_again().unwrap(), 2);
    keeper.linger(Duration::from_secs(30)).unwrap_err();
    // It finds the new server by itself when it has something to keep, and is the one whose state counts then.
    keeper.keep("four", "", &[one.as_fd()]).unwrap();
    assert_eq!(next.entries().unwrap(), 3);
    next.linger(Duration::from_secs(30)).unwrap();
    next.clear().unwrap();
    drop(next);
    let server = third.end();
    assert!(server.is_empty());
    assert_eq!(server.linger(), Some(Duration::from_secs(30)));
}

fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1000 {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what}: not within 5 s");
}

/// A successor dies when its socket is in place, before it has told the server to end.
#[test]
fn a_server_whose_successor_died_is_found_again() {
    let place = tempfile::tempdir().unwrap();
    let server = Running::start(place.path());
    let keeper = Keeper::connect(place.path()).unwrap().unwrap();
    keeper.keep("one", "", &[file("one").as_fd()]).unwrap();
    let successor = Keeper::connect(place.path()).unwrap().unwrap();
    let socket = place.path().join(keeper::SOCKET);
    let dead = place.path().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    std::fs::rename(&dead, &socket).unwrap();
    drop(successor);
    let next = eventually("it listens again", || Keeper::connect(place.path()).unwrap());
    assert_eq!(next.entries().unwrap(), 1);
    // The connections from before are as they were.
    assert_eq!(keeper.entries().unwrap(), 1);
    drop(server.end());
    assert!(!socket.exists());
}

/// A successor has everything, and could not tell the server to end.
#[test]
fn a_server_without_clients_leaves_its_place_to_its_successor() {
    let places = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = places.each_ref().map(|place| {
        let server = Running::start(place.path());
        let keeper = Keeper::connect(place.path()).unwrap().unwrap();
        keeper.keep("one", "", &[file("one").as_fd()]).unwrap();
        (server, keeper)
    });
    let [from, to] = [1, 0].map(|at: usize| places[at].path().join(keeper::SOCKET));
    // Under its own name, too: its server would make that again.
    let link = places[0].path().join("link");
    std::fs::hard_link(from, &link).unwrap();
    std::fs::rename(link, &to).unwrap();
    // It may still be asked.
    assert_eq!(first.1.entries().unwrap(), 1);
    assert!(!first.0.thread.as_ref().unwrap().is_finished());
    drop(first.1);
    eventually("it has left", || {
        first.0.thread.as_ref().unwrap().is_finished().then_some(())
    });
    drop(first.0.end());
    assert!(to.exists(), "it is the other one's");
    drop(second);
}

/// What a process left that died while it made its socket.
#[test]
fn an_unfinished_socket_is_removed() {
    let place = tempfile::tempdir().unwrap();
    let unfinished = place.path().join(".77");
    drop(std::os::unix::net::UnixListener::bind(&unfinished).unwrap());
    Server::remove_unfinished(place.path(), 78);
    assert!(unfinished.exists());
    Server::remove_unfinished(place.path(), 77);
    assert!(!unfinished.exists());
}

/// An entry is forgotten while the connection is in use, and another one of the same name is kept before that was sent.
#[test]
fn an_entry_is_not_forgotten_in_place_of_the_one_before_it() {
    let place = tempfile::tempdir().unwrap();
    let server = Running::start(place.path());
    let keeper = Keeper::connect(place.path()).unwrap().unwrap();
    let (one, two) = (file("one"), file("two"));
    keeper.keep("port", "", &[one.as_fd()]).unwrap();
    let stopped = server.end();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| keeper.entries());
        std::thread::sleep(Duration::from_millis(100));
        keeper.forget("port");
        let keeps = scope.spawn(|| keeper.keep("port", "", &[two.as_fd()]));
        std::thread::sleep(Duration::from_millis(100));
        let _server = Running::of(stopped);
        assert_eq!(asks.join().unwrap().unwrap(), 1);
        keeps.join().unwrap().unwrap();
        let next = Keeper::connect(place.path()).unwrap().unwrap();
        let entries = next.take().unwrap();
        assert_eq!(
            entries.iter().map(|of| text(&of.files[0])).collect::<Vec<_>>(),
            ["two"]
        );
    });
}

#[test]
fn limits_hold() {
    let place = tempfile::tempdir().unwrap();
    let server = Running::start(place.path());
    let keeper = Keeper::connect(place.path()).unwrap().unwrap();
    let one = file("one");
    let fd = one.as_fd();
    let is_limit = |kept: Result<(), Error>| matches!(kept, Err(Error::Limit { .. }));
    assert!(is_limit(keeper.keep(&"n".repeat(MAX_NAME_BYTES + 1), "", &[fd])));
    assert!(is_limit(keeper.keep("n", &"n".repeat(MAX_NOTE_BYTES + 1), &[fd])));
    assert!(is_limit(keeper.keep("n", "", &[fd; MAX_FILES + 1])));
    assert!(keeper.keep("n", "", &[]).is_err());
    keeper
        .keep(
            &"n".repeat(MAX_NAME_BYTES),
            &"\n".repeat(MAX_NOTE_BYTES),
            &[fd; MAX_FILES],
        )
        .unwrap();
    keeper.clear().unwrap();
    // This process has both ends of everything: each entry is four descriptors here.
    let soft = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let room = rustix::process::Rlimit {
        current: soft.maximum,
        maximum: soft.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, room).unwrap();
    if soft.maximum.is_none_or(|most| most > 4 * MAX_ENTRIES as u64) {
        for number in 0..MAX_ENTRIES {
            keeper.keep(&format!("{number:090}"), "", &[fd]).unwrap();
        }
        let refused = keeper.keep("one too many", "", &[fd]).unwrap_err().to_string();
        assert!(
            refused.contains("entries") && refused.contains("2048"),
            "{refused}"
        );
        keeper.keep(&format!("{:090}", 7), "replaced", &[fd]).unwrap();
        assert_eq!(keeper.take().unwrap().len(), MAX_ENTRIES);
    }
    let others: Vec<_> = (0..MAX_CLIENTS)
        .map(|_| Keeper::connect(place.path()).unwrap().unwrap())
        .collect();
    assert!(others[..MAX_CLIENTS - 1].iter().all(|other| other.take().is_ok()));
    drop(server);
}

/// A client that sends anything.
fn garbage(place: &Path, messages: &[Vec<u8>]) {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(place.join(keeper::SOCKET)).unwrap()).unwrap();
    for message in messages {
        // The server lets one go that does not read its answers.
        if send(&socket, message, SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn garbage_changes_nothing(messages in proptest::collection::vec(
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 1..200),
            proptest::collection::vec(Just(b'{'), 1..100_000),
            r#"\{"ask":"(keep|forget|names|fetch|later)","name":"[a-z]{0,9}","note":"","x":1\}"#.prop_map(String::into_bytes),
        ],
        1..200,
    )) {
        let place = tempfile::tempdir().unwrap();
        let server = Running::start(place.path());
        let keeper = Keeper::connect(place.path()).unwrap().unwrap();
        let one = file("one");
        keeper.keep("0", "note", &[one.as_fd()]).unwrap();
        garbage(place.path(), &messages);
        let entries = keeper.take().unwrap();
        prop_assert_eq!(entries.len(), 1);
        prop_assert_eq!(text(&entries[0].files[0]), "one");
        server.end();
    }
}
