//! How messages of a client go and come: datagrams, or a stream of bytes. Neither ever waits.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};

use anyhow::{Context as _, Result, bail};

/// Bytes of an answer, at most.
pub(crate) const ANSWER_BYTES: usize = 64 << 10;

/// Whether an error says that nobody is there yet.
fn says_nobody(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
    )
}

/// A socket towards an address, which never waits.
pub(crate) fn socket(address: SocketAddr) -> Result<UdpSocket> {
    let own = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(own).context("a client has no socket")?;
    socket
        .connect(address)
        .with_context(|| format!("a client cannot reach {address}"))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sends; what is lost is sent again later.
pub(crate) fn send(socket: &UdpSocket, body: &[u8]) -> Result<()> {
    match socket.send(body) {
        Err(error) if says_nobody(error.kind()) || error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error).context("a client cannot send"),
        Ok(_) => Ok(()),
    }
}

/// What has come, if something has.
pub(crate) fn receive<'b>(socket: &UdpSocket, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>> {
    loop {
        match socket.recv(buffer) {
            Ok(length) => return Ok(Some(&buffer[..length])),
            Err(error) if says_nobody(error.kind()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error).context("a client cannot receive"),
        }
    }
}

/// Where a client's messages go.
pub(crate) enum Wire {
    /// A message is a datagram. It may be lost.
    Datagrams(UdpSocket),
    /// Messages lie one behind the other. None is lost.
    Stream(Stream),
}

/// A connection.
pub(crate) struct Stream {
    connection: TcpStream,
    /// What the connection has not taken yet.
    unsent: Vec<u8>,
    heard: Vec<u8>,
}

impl Wire {
    pub(crate) fn datagrams(address: SocketAddr) -> Result<Wire> {
        Ok(Wire::Datagrams(socket(address)?))
    }

    /// Connects, which waits.
    pub(crate) fn stream(address: SocketAddr) -> Result<Wire> {
        let connection =
            TcpStream::connect(address).with_context(|| format!("a client cannot connect to {address}"))?;
        connection.set_nodelay(true)?;
        connection.set_nonblocking(true)?;
        Ok(Wire::Stream(Stream {
            connection,
            unsent: Vec::new(),
            heard: Vec::new(),
        }))
    }

    /// Whether what was sent may never come.
    pub(crate) fn may_lose(&self) -> bool {
        matches!(self, Wire::Datagrams(_))
    }

    pub(crate) fn send(&mut self, body: &[u8]) -> Result<()> {
        match self {
            Wire::Datagrams(socket) => send(socket, body),
            Wire::Stream(stream) => {
                stream.unsent.extend(body);
                stream.flush()
            }
        }
    }

    /// The next message. `whole` gives the length of the first one in a stream, if all of it has come.
    pub(crate) fn receive<'b>(
        &mut self,
        buffer: &'b mut [u8],
        whole: impl Fn(&[u8]) -> Option<usize>,
    ) -> Result<Option<&'b [u8]>> {
        match self {
            Wire::Datagrams(socket) => receive(socket, buffer),
            Wire::Stream(stream) => stream.receive(buffer, whole),
        }
    }
}

impl Stream {
    fn flush(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            match self.connection.write(&self.unsent) {
                Ok(0) => bail!("the application has closed a connection"),
                Ok(taken) => drop(self.unsent.drain(..taken)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("a client cannot send"),
            }
        }
        Ok(())
    }

    fn receive<'b>(
        &mut self,
        buffer: &'b mut [u8],
        whole: impl Fn(&[u8]) -> Option<usize>,
    ) -> Result<Option<&'b [u8]>> {
        self.flush()?;
        loop {
            if let Some(length) = whole(&self.heard) {
                let message = buffer
                    .get_mut(..length)
                    .zip(self.heard.get(..length))
                    .context("an answer is too long")?;
                message.0.copy_from_slice(message.1);
                self.heard.drain(..length);
                return Ok(Some(&buffer[..length]));
            }
            match self.connection.read(buffer) {
                Ok(0) => bail!("the application has closed a connection"),
                Ok(length) => self.heard.extend(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error).context("a client cannot receive"),
            }
            if self.heard.len() > ANSWER_BYTES {
                bail!("an answer is too long");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn messages_of_a_stream_come_one_by_one_however_they_were_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut wire = Wire::stream(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let whole = |bytes: &[u8]| Some(bytes.iter().position(|of| *of == b'\n')? + 1);
        let mut buffer = vec![0; 100];
        let mut next = |wire: &mut Wire| {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(5) {
                if let Some(message) = wire.receive(&mut buffer, whole).unwrap() {
                    return message.to_vec();
                }
            }
            panic!("nothing has come");
        };
        other.write_all(b"one\ntw").unwrap();
        assert_eq!(next(&mut wire), b"one\n");
        other.write_all(b"o\nthree\n").unwrap();
        assert_eq!(next(&mut wire), b"two\n");
        assert_eq!(next(&mut wire), b"three\n");
        wire.send(b"asked").unwrap();
        let mut asked = [0; 5];
        other.read_exact(&mut asked).unwrap();
        assert_eq!(&asked, b"asked");
        drop(other);
        let ended = (0..1_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            wire.receive(&mut [0; 10], whole).is_err()
        });
        assert!(ended, "an end was not seen");
    }
}
