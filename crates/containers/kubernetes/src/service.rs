//! What is followed, and what is said of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use model::BackEnd;

/// Where the account of a Pod has its token.
pub(crate) const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// A Kubernetes cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cluster {
    /// The kubeconfig; [`None`]: the account of the Pod in which inco runs, else `$KUBECONFIG`, else `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Its context; [`None`]: its current one.
    pub context: Option<String>,
}

/// What is wrong with a kubeconfig, or between inco and the API server. No text contains credentials.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no kubeconfig, or it cannot be read.
    #[error("{file}: {reason}")]
    Kubeconfig {
        /// Where it is, or was looked for.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A runtime or a thread cannot be had.
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
    /// The API server does not answer, or refuses.
    #[error("{0}")]
    Api(String),
    /// The client of the API was left out of the build.
    #[error("this inco was built without Kubernetes: build it with the feature `kubernetes`")]
    LeftOut,
}

/// What inco does with the objects of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The group of the API; empty: the first one.
    pub group: &'static str,
    /// The objects, such as `pods`, or a part of them, such as `pods/resize`.
    pub resource: &'static str,
    /// What is done with them.
    pub verbs: &'static [&'static str],
}

/// What it takes to follow Services.
pub const TO_FOLLOW: [Right; 1] = [Right {
    group: "discovery.k8s.io",
    resource: "endpointslices",
    verbs: &["list", "watch"],
}];

/// What it takes to run Pods.
pub const TO_RUN_PODS: [Right; 3] = [
    Right {
        group: "",
        resource: "pods",
        verbs: &["list", "watch", "create", "delete"],
    },
    Right {
        group: "",
        resource: "pods/resize",
        verbs: &["patch"],
    },
    Right {
        group: "",
        resource: "events",
        verbs: &["list"],
    },
];

/// What a look at the API server has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The version of the API server, such as `1.34`.
    pub version: String,
    /// The namespace that was asked about.
    pub namespace: String,
    /// What inco would have to do in the namespace and may not, such as `watch endpointslices`; empty: it may all.
    pub forbidden: Vec<String>,
}

impl Cluster {
    /// Where the kubeconfig is, if there is one.
    pub fn file(&self) -> Option<PathBuf> {
        if let Some(file) = &self.kubeconfig {
            return Some(file.clone());
        }
        if self.is_in_pod() {
            return None;
        }
        let named = std::env::var_os("KUBECONFIG").filter(|of| !of.is_empty());
        let first = |of: std::ffi::OsString| std::env::split_paths(&of).next();
        named
            .and_then(first)
            .or_else(|| Some(std::env::home_dir()?.join(".kube/config")))
    }

    /// Whether the account of the Pod is used in which inco runs.
    pub(crate) fn is_in_pod(&self) -> bool {
        self.kubeconfig.is_none()
            && self.context.is_none()
            && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
            && Path::new(POD_TOKEN).exists()
    }
}

/// Which port of the endpoints serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PortChoice {
    /// The only one.
    #[default]
    Only,
    /// The one with this name in the Service.
    Named(String),
    /// The one with this number at the endpoints.
    Number(u16),
}

/// A Service that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The cluster.
    pub cluster: Cluster,
    /// The namespace.
    pub namespace: String,
    /// The Service.
    pub service: String,
    /// Which port of its endpoints.
    pub port: PortChoice,
    /// Whether its IPv4 endpoints are the servers, or the IPv6 ones.
    pub is_ipv4: bool,
}

/// What is new about a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Its servers now, in a stable order, and why some have no port.
    List(Vec<BackEnd>, Option<String>),
    /// The API server does not answer, or refuses. The last list holds.
    Away(String),
    /// The API server answers again, after so long.
    Back(Duration),
}
