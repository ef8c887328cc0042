//! Where Docker or Podman answers.

use std::path::PathBuf;

use model::Nanos;

use crate::cgroup;
use crate::image::Store;
use crate::logs::Logs;

/// How a [`DockerEngine`](crate::DockerEngine) works.
#[derive(Clone, Debug)]
pub struct DockerConfig {
    /// `unix:///run/docker.sock`, or `tcp://host:2376` with certificates.
    pub host: String,
    /// Where `cert.pem`, `key.pem` and `ca.pem` are; needed for `tcp:`.
    pub certificates: Option<PathBuf>,
    /// Whether each container is the task of a service of Swarm, whose manager the engine is.
    pub is_swarm: bool,
    /// Images that Docker does not have are taken from here.
    pub images: Option<Store>,
    /// Where the output of its containers goes.
    pub logs: Logs,
    /// Where control groups are mounted.
    pub cgroup_root: PathBuf,
    /// After this a create has failed.
    pub create_timeout: Nanos,
    /// How long to wait for Docker's exit status after the kernel has told the end of a program: 80 ms, since the end
    /// must be told within 100 ms. After that the status is unknown.
    pub status_limit: Nanos,
}

/// Where Docker listens unless something else is said.
pub const DEFAULT_HOST: &str = "unix:///run/docker.sock";

impl DockerConfig {
    /// The engine at this host, and everything else as usual.
    pub fn at(host: impl Into<String>) -> DockerConfig {
        DockerConfig {
            host: host.into(),
            certificates: None,
            is_swarm: false,
            images: Some(Store::at(Store::default_dir())),
            logs: Logs::default(),
            cgroup_root: PathBuf::from(cgroup::ROOT),
            create_timeout: Nanos::from_secs(30),
            status_limit: Nanos::from_millis(80),
        }
    }
}
