//! The endpoint of a running inco: a unix socket on this machine, or TLS to another machine.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::Uri;
use hyper::header::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::ApiError;
use crate::access::TOKEN_LENGTH;

/// Default port of a URL, as in the documentation's examples.
const PORT: u16 = 8443;

/// The endpoint of a running inco.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// The unix socket at this path.
    Socket(PathBuf),
    /// A TLS endpoint.
    Remote(Box<Remote>),
}

/// A TLS endpoint with its token.
#[derive(Clone)]
pub struct Remote {
    url: String,
    host: String,
    port: u16,
    name: ServerName<'static>,
    /// Marked as sensitive, so that it is never printed.
    authorization: HeaderValue,
    config: Arc<ClientConfig>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Remote {
    /// The inco at `https://HOST[:PORT]`; the default port is 8443. `token` is a file with the token. `certificate`
    /// is a file with the trusted certificates as PEM: the server's or its authority's.
    ///
    /// # Errors
    /// [`ApiError::Remote`] if the URL or a file is invalid.
    pub fn new(url: &str, token: &Path, certificate: &Path) -> Result<Remote, ApiError> {
        let wrong = |what: String, reason: String| ApiError::Remote { what, reason };
        let not_a_url = |reason: &str| wrong(format!("the URL {url:?}"), reason.to_owned());
        let form = "write https://HOST:PORT";
        let uri: Uri = url.parse().map_err(|_| not_a_url(form))?;
        if uri.scheme_str() != Some("https") || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(not_a_url(form));
        }
        let host = uri.host().map(|host| host.trim_matches(['[', ']']).to_owned());
        let host = host.ok_or_else(|| not_a_url(form))?;
        let name = ServerName::try_from(host.clone()).map_err(|_| not_a_url(form))?;
        let of_token = |reason: String| wrong(format!("the token file {}", token.display()), reason);
        let text = std::fs::read_to_string(token).map_err(|error| of_token(error.to_string()))?;
        let text = text.trim();
        // The server's token file also has roles and names.
        if text.len() < TOKEN_LENGTH || text.contains(char::is_whitespace) {
            let reason =
                format!("it must contain one token of at least {TOKEN_LENGTH} characters and nothing else");
            return Err(of_token(reason));
        }
        let mut authorization = HeaderValue::try_from(format!("Bearer {text}"))
            .map_err(|_| of_token("write letters and digits".to_owned()))?;
        authorization.set_sensitive(true);
        let config = trusting(certificate)
            .map_err(|reason| wrong(format!("the certificate file {}", certificate.display()), reason))?;
        Ok(Remote {
            url: url.trim_end_matches('/').to_owned(),
            host,
            port: uri.port_u16().unwrap_or(PORT),
            name,
            authorization,
            config: Arc::new(config),
        })
    }
}

fn trusting(certificate: &Path) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(certificate).map_err(|error| error.to_string())?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("it has no certificate".to_owned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// A connection of either kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Endpoint {
    /// For messages: the path of the socket, or the URL.
    pub(crate) fn place(&self) -> PathBuf {
        match self {
            Endpoint::Socket(path) => path.clone(),
            Endpoint::Remote(remote) => PathBuf::from(&remote.url),
        }
    }

    /// The value of the `Authorization` header, if one is needed.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        match self {
            Endpoint::Socket(_) => None,
            Endpoint::Remote(remote) => Some(remote.authorization.clone()),
        }
    }

    pub(crate) async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Endpoint::Socket(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Endpoint::Remote(remote) => {
                let stream = TcpStream::connect((remote.host.as_str(), remote.port)).await?;
                let connector = TlsConnector::from(Arc::clone(&remote.config));
                Ok(Box::new(connector.connect(remote.name.clone(), stream).await?))
            }
        }
    }
}
