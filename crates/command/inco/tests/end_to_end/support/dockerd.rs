//! A Docker engine of a test's own, which it may stop.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use testbed::{Dockerd, DockerdAccess};

use super::{available, free_port};

/// `dockerd` with everything in one directory. It removes what it has and ends when it is dropped.
pub(crate) struct PrivateDockerd(Dockerd);

impl PrivateDockerd {
    /// Starts one; `None`, said or failed, where there is no `dockerd`.
    pub(crate) fn start(directory: &Path) -> Option<PrivateDockerd> {
        PrivateDockerd::start_as(directory, DockerdAccess::default())
    }

    /// The same, which listens at an address of this machine alone, for those with keys of its authority.
    pub(crate) fn start_over_tls(
        directory: &Path,
        server: PathBuf,
        client: PathBuf,
    ) -> Option<PrivateDockerd> {
        let access = DockerdAccess {
            host: format!("tcp://127.0.0.1:{}", free_port()),
            daemon: tls(&server),
            client: tls(&client),
        };
        PrivateDockerd::start_as(directory, access)
    }

    fn start_as(directory: &Path, access: DockerdAccess) -> Option<PrivateDockerd> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        if !available(
            "docker",
            Dockerd::check_installed().err().map(|error| error.to_string()),
        ) {
            return None;
        }
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let group = format!("test-dockerd-{}-{number}", std::process::id());
        Some(PrivateDockerd(Dockerd::start(directory, &group, access).unwrap()))
    }

    /// For `host` in a configuration.
    pub(crate) fn host(&self) -> String {
        self.0.host().to_owned()
    }

    /// Ends the daemon; its containers go on.
    pub(crate) fn pause(&mut self) {
        self.0.pause().unwrap();
    }

    /// Starts it again.
    pub(crate) fn go_on(&mut self) {
        self.0.go_on().unwrap();
    }

    /// What `docker` says of it; [`None`] where it fails.
    pub(crate) fn output(&self, arguments: &[&str]) -> Option<String> {
        self.0.output(arguments)
    }
}

/// Options by which `docker` and `dockerd` show the keys of a directory, and want to see some of their authority.
fn tls(keys: &Path) -> Vec<String> {
    let option = |name: &str, file: &str| format!("--{name}={}", keys.join(file).display());
    vec![
        "--tlsverify".to_owned(),
        option("tlscacert", "ca.pem"),
        option("tlscert", "cert.pem"),
        option("tlskey", "key.pem"),
    ]
}
