//! How the API server is reached, and what inco may do there.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client};

use crate::service::{Access, Cluster, Error, POD_TOKEN, Right};

/// How long a connection to the API server may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long [`Cluster::access`] may take.
const ACCESS_LIMIT: Duration = Duration::from_secs(10);

impl Cluster {
    /// Whether the kubeconfig can be used, without asking the API server.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self) -> Result<(), Error> {
        runtime()?.block_on(self.config()).map(drop)
    }

    /// Asks the API server whether inco has these rights in a namespace; [`None`]: in that of the context, or of the Pod
    /// in which inco runs.
    ///
    /// # Errors
    /// It does not answer within ten seconds, or refuses.
    pub fn access(&self, namespace: Option<&str>, rights: &[Right]) -> Result<Access, Error> {
        let asked = async {
            let client = self.client().await?;
            let namespace = namespace.unwrap_or(client.default_namespace());
            let version = client.apiserver_version().await.map_err(|error| said(&error))?;
            let mut forbidden = Vec::new();
            let each = |right: &Right| right.verbs.iter().map(|verb| (*right, *verb)).collect::<Vec<_>>();
            for (right, verb) in rights.iter().flat_map(each) {
                let (resource, part) = match right.resource.split_once('/') {
                    Some((resource, part)) => (resource, Some(part.to_owned())),
                    None => (right.resource, None),
                };
                let review = SelfSubjectAccessReview {
                    spec: SelfSubjectAccessReviewSpec {
                        resource_attributes: Some(ResourceAttributes {
                            namespace: Some(namespace.to_owned()),
                            verb: Some(verb.to_owned()),
                            group: Some(right.group.to_owned()),
                            resource: Some(resource.to_owned()),
                            subresource: part,
                            ..ResourceAttributes::default()
                        }),
                        ..SelfSubjectAccessReviewSpec::default()
                    },
                    ..SelfSubjectAccessReview::default()
                };
                let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
                let review = reviews.create(&PostParams::default(), &review).await;
                let review = review.map_err(|error| said(&error))?;
                if !review.status.is_some_and(|of| of.allowed) {
                    forbidden.push(format!("{verb} {}", right.resource));
                }
            }
            Ok(Access {
                version: format!("{}.{}", version.major, version.minor),
                namespace: namespace.to_owned(),
                forbidden,
            })
        };
        runtime()?.block_on(async {
            let within = tokio::time::timeout(ACCESS_LIMIT, asked).await;
            within.unwrap_or_else(|_| {
                let seconds = ACCESS_LIMIT.as_secs();
                Err(Error::Api(format!(
                    "the API server does not answer within {seconds} s"
                )))
            })
        })
    }

    async fn config(&self) -> Result<Config, Error> {
        let wrong = |reason: String| Error::Kubeconfig {
            file: self
                .file()
                .map_or_else(|| POD_TOKEN.to_owned(), |file| file.display().to_string()),
            reason,
        };
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let mut config = match &self.kubeconfig {
            _ if self.is_in_pod() => Config::incluster().map_err(|error| wrong(error.to_string()))?,
            Some(file) => {
                let read = Kubeconfig::read_from(file).map_err(|error| wrong(reason(&error)))?;
                let config = Config::from_custom_kubeconfig(read, &options).await;
                config.map_err(|error| wrong(reason(&error)))?
            }
            None => {
                let config = Config::from_kubeconfig(&options).await;
                config.map_err(|error| wrong(reason(&error)))?
            }
        };
        config.connect_timeout = Some(CONNECT_LIMIT);
        // Attempts and their pauses are the caller's.
        config.default_retry = false;
        Ok(config)
    }

    /// A client of the API. It makes no second attempts by itself.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub async fn client(&self) -> Result<Client, Error> {
        Client::try_from(self.config().await?).map_err(|error| said(&error))
    }
}

/// An error of the client in words.
pub fn said(error: &kube::Error) -> Error {
    let text = match error {
        kube::Error::Api(status) => format!("the API server refuses: {} ({})", status.message, status.code),
        // The outer texts say only which layer it was.
        error => {
            let mut innermost: &dyn std::error::Error = error;
            while let Some(source) = innermost.source() {
                innermost = source;
            }
            format!("the API server does not answer: {innermost}")
        }
    };
    Error::Api(text)
}

/// What is wrong with a kubeconfig. A parser's error may quote the file, and with it a token.
fn reason(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(_) => "it is not a kubeconfig: its YAML cannot be read".to_owned(),
        KubeconfigError::ReadConfig(error, _) => error.to_string(),
        KubeconfigError::LoadContext(name) => format!("it has no context {name:?}"),
        KubeconfigError::LoadClusterOfContext(name) => format!("it has no cluster {name:?}"),
        KubeconfigError::FindPath => "there is no home directory to look in".to_owned(),
        error => error.to_string(),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}
