//! What an orchestrator of several machines is asked about a container, beside what every engine is.

use std::path::PathBuf;

crate::words! {
    /// How a task is reached at its node.
    #[derive(Default)]
    pub enum TaskNetwork {
        /// At a port of the node that the node chooses, and that leads to the container's own port.
        #[default]
        Published = "published",
        /// At the container's own port: it is in the network of its node.
        Host = "host",
    }

    /// What a task speaks at its port.
    #[derive(Default)]
    pub enum TaskProtocol {
        /// TCP.
        #[default]
        Tcp = "tcp",
        /// UDP.
        Udp = "udp",
    }
}

/// A secret or a config that the orchestrator keeps, as a file in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFile {
    /// What the orchestrator calls it.
    pub name: String,
    /// Where it is in the container; [`None`]: where the orchestrator puts it.
    pub target: Option<PathBuf>,
}

/// What an orchestrator is asked about the tasks of a service, beside what every engine is. It decides where they run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskOptions {
    /// How they are reached.
    pub network: TaskNetwork,
    /// What they speak.
    pub protocol: TaskProtocol,
    /// What their nodes must be, as `node.labels.zone == a`.
    pub constraints: Vec<String>,
    /// Over what they are spread, the most important first, as `node.labels.rack`.
    pub spread: Vec<String>,
    /// CPUs that a node keeps for one of them.
    pub reserved_cpus: Option<f64>,
    /// Bytes of memory that a node keeps for one of them.
    pub reserved_memory_bytes: Option<u64>,
    /// Secrets that they get.
    pub secrets: Vec<TaskFile>,
    /// Configs that they get.
    pub configs: Vec<TaskFile>,
}

/// What Kubernetes is asked about the Pods of a service, beside what every engine is. It decides where they run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodOptions {
    /// Labels that their nodes must have.
    pub node_selector: Vec<(String, String)>,
    /// Taints of nodes that they tolerate: a list of Kubernetes' `Toleration`, as JSON.
    pub tolerations: Option<String>,
    /// Kubernetes' `Affinity`, as JSON.
    pub affinity: Option<String>,
    /// Secrets with logins for the registry of their image.
    pub pull_secrets: Vec<String>,
    /// The account whose token they get; [`None`]: they get none.
    pub service_account: Option<String>,
    /// CPUs that a node keeps for one of them; [`None`]: as many as it may use.
    pub reserved_cpus: Option<f64>,
    /// Bytes of memory that a node keeps for one of them; [`None`]: as many as it may use.
    pub reserved_memory_bytes: Option<u64>,
    /// Secrets whose keys they get as files, each in a directory.
    pub secrets: Vec<TaskFile>,
    /// The same of ConfigMaps.
    pub configs: Vec<TaskFile>,
}
