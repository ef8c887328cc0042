//! Where Kubernetes answers, and where Pods are made.

use kubernetes::Cluster;
use model::Nanos;

/// How a [`KubernetesEngine`](crate::KubernetesEngine) works.
#[derive(Clone, Debug)]
pub struct KubernetesConfig {
    /// How the API server is reached.
    pub cluster: Cluster,
    /// Where its Pods are; [`None`]: the namespace of the kubeconfig's context, or of the Pod in which inco runs.
    pub namespace: Option<String>,
    /// Whether a node may get an image that it lacks from a registry.
    pub may_pull: bool,
    /// After this a create has failed.
    pub create_timeout: Nanos,
}

impl KubernetesConfig {
    /// The engine at that cluster, and everything else as usual.
    pub fn at(cluster: Cluster) -> KubernetesConfig {
        KubernetesConfig {
            cluster,
            namespace: None,
            may_pull: true,
            create_timeout: Nanos::from_secs(30),
        }
    }
}
