//! Where somebody listens.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// How long a TCP connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Where somebody listens, as Open vSwitch writes it: `unix:/run/openvswitch/db.sock`, `tcp:192.0.2.1:6640`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A unix socket.
    Unix(PathBuf),
    /// A host and a port.
    Tcp(String),
}

/// Why a text is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not an endpoint: write unix:/path/to/socket or tcp:HOST:PORT")]
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
            Some(("tcp", host)) => {
                let port = host.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
                match port {
                    Some(Ok(port)) if port > 0 => Ok(Endpoint::Tcp(host.to_owned())),
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
        }
    }
}

/// A connection to an endpoint.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Connects; for TCP within two seconds for each address of the host.
    pub(crate) fn connect(endpoint: &Endpoint) -> io::Result<Stream> {
        match endpoint {
            Endpoint::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Endpoint::Tcp(host) => {
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for address in host.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_nonblocking(true),
            Stream::Tcp(stream) => stream.set_nonblocking(true),
        }
    }

    pub(crate) fn set_limit(&self, limit: Duration) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))
            }
            Stream::Tcp(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_written_as_open_vswitch_writes_them() {
        for text in [
            "unix:/run/openvswitch/db.sock",
            "tcp:127.0.0.1:6640",
            "tcp:[::1]:6653",
            "tcp:card:6653",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "unix:relative",
            "tcp:host",
            "tcp:host:0",
            "tcp:host:70000",
            "ssl:host:1",
            "/run/x",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
