//! Running out of file descriptors. A program of its own: the limit counts for the whole process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use memif::{Client, ClientConfig, Error, Listener, ServerConfig};
use rustix::process::{Resource, getrlimit, setrlimit};

#[test]
fn running_out_of_descriptors_is_reported_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memif.sock");
    let mut listener = Listener::bind(&path, ServerConfig::new("server")).unwrap();
    let mut config = ClientConfig::new(&path, 0);
    config.ring.log2_slots = 6;
    let before = getrlimit(Resource::Nofile);
    let probe: OwnedFd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let in_use = probe.as_raw_fd() as u64;
    drop(probe);
    let (mut errors, mut links) = (0, 0);
    // From no descriptor to spare to enough for both ends, which are in this process.
    for spare in 0..24 {
        let mut limit = before;
        limit.current = Some(in_use + spare);
        setrlimit(Resource::Nofile, limit).unwrap();
        let client = thread::spawn({
            let config = config.clone();
            move || Client::connect(&config, Duration::from_millis(300))
        });
        let mut accepted = None;
        while !client.is_finished() {
            match listener.accept(Duration::from_millis(5)) {
                Ok(link) => accepted = accepted.or(link),
                Err(error) => assert!(matches!(error, Error::FileDescriptors { .. }), "{error}"),
            }
        }
        match client.join().unwrap() {
            Ok(_) => links += 1,
            Err(error @ Error::FileDescriptors { limit, .. }) => {
                assert_eq!(limit, in_use + spare);
                assert!(error.to_string().contains("ulimit -n"), "{error}");
                errors += 1;
            }
            // The server had none left and said so, or could not even accept.
            Err(Error::Disconnected { reason }) => {
                assert!(reason.contains("no file descriptor left"), "{reason}")
            }
            Err(error) => assert!(
                matches!(error, Error::Timeout { .. } | Error::Closed { .. }),
                "{error}"
            ),
        }
        setrlimit(Resource::Nofile, before).unwrap();
        while listener.accept(Duration::from_millis(1)).unwrap().is_some() {}
    }
    assert!(errors > 0 && links > 0, "{errors} errors, {links} links");
}
