//! Socket endpoints.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use thiserror::Error;

use crate::tls::Keys;

/// TCP connect timeout.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// An endpoint in Open vSwitch's notation: `unix:/run/openvswitch/db.sock`, `tcp:192.0.2.1:6640`,
/// `ssl:192.0.2.1:6640`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A unix socket.
    Unix(PathBuf),
    /// A host and a port.
    Tcp(String),
    /// A host and a port, with TLS.
    Ssl {
        /// Host and port.
        host: String,
        /// Our certificate and the trusted authority; [`None`] until [`Endpoint::with_keys`].
        keys: Option<Arc<Keys>>,
    },
}

impl Endpoint {
    /// The same endpoint, with keys if it uses TLS.
    #[must_use]
    pub fn with_keys(self, keys: Option<&Keys>) -> Endpoint {
        match self {
            Endpoint::Ssl { host, .. } => Endpoint::Ssl {
                host,
                keys: keys.cloned().map(Arc::new),
            },
            other => other,
        }
    }

    /// The target with which Open vSwitch listens there: `ptcp:6653:192.0.2.1`. [`None`] for a unix socket,
    /// on which a bridge always listens, and for a host name.
    pub fn passive(&self) -> Option<String> {
        let (kind, host) = match self {
            Endpoint::Unix(_) => return None,
            Endpoint::Tcp(host) => ("ptcp", host),
            Endpoint::Ssl { host, .. } => ("pssl", host),
        };
        let address: SocketAddr = host.parse().ok()?;
        Some(match address.ip() {
            IpAddr::V4(ip) => format!("{kind}:{}:{ip}", address.port()),
            IpAddr::V6(ip) => format!("{kind}:{}:[{ip}]", address.port()),
        })
    }
}

/// A text that is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not an endpoint: write unix:/path/to/socket, tcp:HOST:PORT or ssl:HOST:PORT")]
pub struct EndpointError {
    text: String,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        let wrong = || EndpointError {
            text: text.to_owned(),
        };
        match text.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') => Ok(Endpoint::Unix(path.into())),
            Some((kind @ ("tcp" | "ssl"), host)) => {
                let port = host.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
                let host = host.to_owned();
                match port {
                    Some(Ok(port)) if port > 0 && kind == "tcp" => Ok(Endpoint::Tcp(host)),
                    Some(Ok(port)) if port > 0 => Ok(Endpoint::Ssl { host, keys: None }),
                    _ => Err(wrong()),
                }
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Tcp(host) => write!(f, "tcp:{host}"),
            Endpoint::Ssl { host, .. } => write!(f, "ssl:{host}"),
        }
    }
}

/// A connection to an endpoint.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Connects; TCP within two seconds per address of the host.
    pub(crate) fn connect(endpoint: &Endpoint) -> io::Result<Stream> {
        match endpoint {
            Endpoint::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Endpoint::Tcp(host) => connect_tcp(host).map(Stream::Tcp),
            Endpoint::Ssl { host, keys } => {
                let no_keys = "TLS needs a certificate, its key and the authority's certificate";
                let keys = keys.as_ref();
                let keys = keys.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, no_keys))?;
                let socket = connect_tcp(host)?;
                let name = ServerName::from(socket.peer_addr()?.ip());
                // The handshake happens with the first read or write.
                let connection = ClientConnection::new(keys.config()?, name).map_err(io::Error::other)?;
                Ok(Stream::Tls(Box::new(StreamOwned::new(connection, socket))))
            }
        }
    }

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_nonblocking(true),
            Stream::Tcp(stream) => stream.set_nonblocking(true),
            Stream::Tls(stream) => stream.sock.set_nonblocking(true),
        }
    }

    pub(crate) fn set_limit(&self, limit: Duration) -> io::Result<()> {
        let of_tcp = |stream: &TcpStream| {
            stream.set_read_timeout(Some(limit))?;
            stream.set_write_timeout(Some(limit))
        };
        match self {
            Stream::Unix(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))
            }
            Stream::Tcp(stream) => of_tcp(stream),
            Stream::Tls(stream) => of_tcp(&stream.sock),
        }
    }
}

fn connect_tcp(host: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Unix(_) | Stream::Tcp(_) => Ok(()),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Tls(stream) => stream.sock.as_fd(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    #[test]
    fn endpoints_use_open_vswitchs_notation() {
        for text in [
            "unix:/run/openvswitch/db.sock",
            "tcp:127.0.0.1:6640",
            "tcp:[::1]:6653",
            "tcp:card:6653",
            "ssl:192.168.100.2:6640",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "unix:relative",
            "tcp:host",
            "tcp:host:0",
            "tcp:host:70000",
            "ssl:host",
            "/run/x",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_passive_target_matches_the_endpoint() {
        for (text, passive) in [
            ("tcp:192.0.2.1:6653", Some("ptcp:6653:192.0.2.1")),
            ("ssl:192.0.2.1:6653", Some("pssl:6653:192.0.2.1")),
            ("ssl:[2001:db8::1]:6653", Some("pssl:6653:[2001:db8::1]")),
            ("tcp:card:6653", None),
            ("unix:/run/openvswitch/br.mgmt", None),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.passive().as_deref(), passive, "{text}");
        }
    }
}
