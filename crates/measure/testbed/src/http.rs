//! HTTP over one connection, whose failures are told and never repeated.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

/// A request without an answer for so long has failed. A lost packet is sent again after 0.2 s, a lost SYN after 1 s.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// The longest header of an answer, in bytes.
const HEADER_LIMIT: usize = 4096;
/// What is read at once, in bytes.
const PART_BYTES: usize = 1 << 16;
/// Where a header ends.
const END: &[u8] = b"\r\n\r\n";

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Nobody takes the connection.
    pub fn open(to: SocketAddr) -> Result<Connection> {
        let opened = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect_timeout(&to, ANSWER_LIMIT)?;
            stream.set_read_timeout(Some(ANSWER_LIMIT))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let stream = opened().with_context(|| format!("no connection to {to}"))?;
        Ok(Connection { stream })
    }

    /// Asks for a path, and gives the body. The server closes the connection after the last one.
    ///
    /// # Errors
    /// As [`Connection::fetch`].
    pub fn get(&mut self, path: &str, is_last: bool) -> Result<String> {
        let mut body = Vec::new();
        self.fetch(path, is_last, |part| body.extend_from_slice(part))?;
        String::from_utf8(body).context("the answer is no text")
    }

    /// The same, for a body that is taken in parts. Gives its length.
    ///
    /// # Errors
    /// There is no answer, or another one than the whole body.
    pub fn fetch(&mut self, path: &str, is_last: bool, mut take: impl FnMut(&[u8])) -> Result<u64> {
        let after = if is_last { "Connection: close\r\n" } else { "" };
        let request = format!("GET {path} HTTP/1.1\r\nHost: web\r\n{after}\r\n");
        self.stream.write_all(request.as_bytes()).context("no answer")?;
        let mut part = vec![0; PART_BYTES];
        let mut header = Vec::new();
        let body = loop {
            let count = self.stream.read(&mut part).context("no answer")?;
            header.extend_from_slice(part.get(..count).unwrap_or_default());
            if let Some(end) = header.windows(END.len()).position(|bytes| bytes == END) {
                break header.split_off(end + END.len());
            }
            if count == 0 || header.len() > HEADER_LIMIT {
                bail!("the connection ends after {} bytes of a header", header.len());
            }
        };
        let header = String::from_utf8_lossy(&header);
        let length = header
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let length = length.and_then(|length| length.trim().parse::<u64>().ok());
        let (Some(length), true) = (length, header.starts_with("HTTP/1.1 200 ")) else {
            bail!("the answer is {header:?}");
        };
        let mut got = body.len() as u64;
        take(&body);
        while got < length {
            let count = self.stream.read(&mut part).context("no more of the answer")?;
            ensure!(count > 0, "the connection ends after {got} of {length} bytes");
            got += count as u64;
            take(part.get(..count).unwrap_or_default());
        }
        ensure!(got == length, "{got} bytes came instead of {length}");
        Ok(got)
    }
}
