//! What the demo asks a cluster of Kubernetes for: a namespace with the web servers' file, and its own nodes.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use kubernetes::{Cluster, said};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

/// A cluster. Dropping it takes from it what the demo has put there.
pub(super) struct ClusterApi {
    runtime: Runtime,
    client: Client,
    namespace: String,
    nodes: Vec<String>,
}

impl ClusterApi {
    /// The cluster of a kubeconfig, where the demo will have that namespace and those nodes.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub(super) fn at(kubeconfig: &Path, namespace: &str, nodes: Vec<String>) -> Result<ClusterApi> {
        let runtime = runtime()?;
        let cluster = Cluster {
            kubeconfig: Some(kubeconfig.to_owned()),
            context: None,
        };
        let client = runtime.block_on(cluster.client())?;
        Ok(ClusterApi {
            runtime,
            client,
            namespace: namespace.to_owned(),
            nodes,
        })
    }

    /// Makes the namespace.
    ///
    /// # Errors
    /// The API server refuses it, or does not answer.
    pub(super) fn make_namespace(&self) -> Result<()> {
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": self.namespace } }))?;
        let api: Api<Namespace> = Api::all(self.client.clone());
        self.ask(api.create(&PostParams::default(), &namespace)).map(drop)
    }

    /// Whether Pods may be made there: their account is.
    pub(super) fn has_account(&self) -> bool {
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        self.ask(api.get("default")).is_ok()
    }

    /// Makes the ConfigMap `site` with one file.
    ///
    /// # Errors
    /// The API server refuses it, or does not answer.
    pub(super) fn make_site(&self, file: &str, text: &str) -> Result<()> {
        let map: ConfigMap =
            serde_json::from_value(json!({ "metadata": { "name": "site" }, "data": { file: text } }))?;
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        self.ask(api.create(&PostParams::default(), &map)).map(drop)
    }

    /// Whether a node takes Pods that tolerate the demo's taint.
    pub(super) fn is_ready(&self, node: &str) -> bool {
        let Ok(node) = self.ask(self.nodes().get(node)) else {
            return false;
        };
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let conditions = node
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        conditions
            .iter()
            .any(|of| of.type_ == "Ready" && of.status == "True")
            && !taints
                .iter()
                .any(|taint| taint.key.starts_with("node.kubernetes.io/"))
    }

    /// Whether the scheduler may give a node further Pods.
    ///
    /// # Errors
    /// The API server refuses it, or does not answer.
    pub(super) fn set_schedulable(&self, node: &str, is: bool) -> Result<()> {
        let nodes = self.nodes();
        let changed = if is {
            self.ask(nodes.uncordon(node))
        } else {
            self.ask(nodes.cordon(node))
        };
        changed.map(drop)
    }

    /// The names of the Pods in the namespace.
    ///
    /// # Errors
    /// The API server refuses it, or does not answer.
    pub(super) fn pods(&self) -> Result<Vec<String>> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let pods = self.ask(api.list(&ListParams::default()))?;
        Ok(pods
            .items
            .into_iter()
            .filter_map(|pod| pod.metadata.name)
            .collect())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn ask<T>(&self, asked: impl Future<Output = kube::Result<T>>) -> Result<T> {
        let answered = self.runtime.block_on(asked);
        answered.map_err(|error| anyhow::Error::from(said(&error)))
    }
}

impl Drop for ClusterApi {
    fn drop(&mut self) {
        // Where the control plane is the demo's own, it ends next.
        let params = DeleteParams::default();
        for node in &self.nodes {
            let _ = self.ask(self.nodes().delete(node, &params));
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let _ = self.ask(namespaces.delete(&self.namespace, &params));
    }
}

fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the client of Kubernetes")
}

/// The address of a kubeconfig's API server.
///
/// # Errors
/// It cannot be read, or the server has a name: machines of the demo resolve none.
pub(super) fn server(kubeconfig: &Path) -> Result<SocketAddr> {
    let at = || kubeconfig.display().to_string();
    // The parser's own error may quote the file, and with it a token.
    let read = Kubeconfig::read_from(kubeconfig)
        .ok()
        .with_context(|| format!("{}: it cannot be read as a kubeconfig", at()))?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(read, &options);
    let config = runtime()?
        .block_on(config)
        .with_context(|| format!("{}: it cannot be used", at()))?;
    let host = config.cluster_url.host().unwrap_or_default();
    let address: IpAddr = host.trim_matches(['[', ']']).parse().ok().with_context(|| {
        format!(
            "{}: the server is {host:?}, and machines of the demo resolve no names: write its IP address",
            at()
        )
    })?;
    Ok((address, config.cluster_url.port_u16().unwrap_or(443)).into())
}
