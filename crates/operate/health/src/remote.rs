//! One check of a server that others run, over this machine's own network: the kernel's routes and neighbours are those
//! by which the programs send it packets. What it answers is bounded and not trusted.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::Question;
use crate::answers::{self, MAX_TEXT};
use crate::probe::{Passed, fill, request};

/// Bytes of an answer over UDP that are read at most.
const ANSWER_BYTES: usize = 4096;

/// Asks a server. Takes at most `limit`. The port 0 stands for its own.
///
/// # Errors
/// It did not pass: why, in words.
pub(crate) fn ask(at: SocketAddr, question: &Question, limit: Duration) -> Result<Passed, String> {
    let until = Instant::now() + limit;
    let to = |port: u16| SocketAddr::new(at.ip(), if port == 0 { at.port() } else { port });
    match question {
        Question::Tcp { port } => connect(to(*port), until).map(|_| Passed::Serves),
        Question::Http { port, path } => {
            let line = converse(to(*port), request(at.ip(), path).as_bytes(), until)?;
            answers::status(&line).map(|()| Passed::Serves)
        }
        Question::Agent { port } => {
            let line = converse(to(*port), b"", until)?;
            answers::agent(&line).map(Passed::Agent)
        }
        Question::Dns { port, name } => resolve(to(*port), name, until).map(|()| Passed::Serves),
    }
}

/// The time that is left; [`None`]: none is.
fn left(until: Instant) -> Option<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

fn connect(to: SocketAddr, until: Instant) -> Result<TcpStream, String> {
    let port = to.port();
    let late = || format!("port {port} does not accept a connection in time");
    let limit = left(until).ok_or_else(late)?;
    TcpStream::connect_timeout(&to, limit).map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => format!("port {port} refuses the connection"),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => late(),
        _ => format!("no connection to port {port}: {error}"),
    })
}

/// Sends a request, and takes the first line of the answer.
fn converse(to: SocketAddr, request: &[u8], until: Instant) -> Result<Vec<u8>, String> {
    let port = to.port();
    let late = || format!("port {port} does not answer in time");
    let mut stream = connect(to, until)?;
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => late(),
        _ => format!("port {port}: {error}"),
    };
    stream
        .set_write_timeout(Some(left(until).ok_or_else(late)?))
        .map_err(failed)?;
    stream.write_all(request).map_err(failed)?;
    let mut line = Vec::new();
    let mut bytes = [0; 512];
    loop {
        stream
            .set_read_timeout(Some(left(until).ok_or_else(late)?))
            .map_err(failed)?;
        let count = stream.read(&mut bytes).map_err(failed)?;
        line.extend_from_slice(bytes.get(..count).unwrap_or_default());
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            return Ok(line);
        }
        if line.len() > MAX_TEXT {
            return Err(format!("what port {port} answers has no end"));
        }
        if count == 0 && line.is_empty() {
            return Err(format!("port {port} closes the connection without an answer"));
        }
        if count == 0 {
            return Ok(line);
        }
    }
}

/// Asks a name server.
fn resolve(to: SocketAddr, name: &str, until: Instant) -> Result<(), String> {
    let port = to.port();
    let mut random = [0; 2];
    fill(&mut random).map_err(|error| format!("no random bytes: {error}"))?;
    let question = answers::question(u16::from_ne_bytes(random), name)?;
    let from: IpAddr = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::ConnectionRefused => format!("port {port} refuses the question"),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            format!("port {port} does not answer the question in time")
        }
        _ => format!("no question to port {port}: {error}"),
    };
    let socket = UdpSocket::bind((from, 0)).map_err(failed)?;
    // Connected, it takes answers from there alone.
    socket.connect(to).map_err(failed)?;
    socket.send(&question).map_err(failed)?;
    let mut answer = [0; ANSWER_BYTES];
    loop {
        let left = left(until).ok_or_else(|| failed(ErrorKind::TimedOut.into()))?;
        socket.set_read_timeout(Some(left)).map_err(failed)?;
        let count = socket.recv(&mut answer).map_err(failed)?;
        if let Some(verdict) = answers::resolved(&answer[..count], &question) {
            return verdict;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(300);

    fn http() -> Question {
        Question::Http {
            port: 0,
            path: "/health".to_owned(),
        }
    }

    /// A server that answers each connection with these bytes, and tells what it was asked.
    fn server(answer: &'static [u8]) -> (SocketAddr, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 256];
            let count = stream.read(&mut asked).unwrap();
            stream.write_all(answer).unwrap();
            String::from_utf8_lossy(&asked[..count]).into_owned()
        };
        (at, thread::spawn(serve))
    }

    #[test]
    fn a_server_is_asked_at_its_own_port() {
        let (at, asked) = server(b"HTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!(ask(at, &http(), LIMIT), Ok(Passed::Serves));
        assert!(asked.join().unwrap().starts_with("GET /health HTTP/1.1\r\n"));
        let (at, asked) = server(b"HTTP/1.1 503 Busy\r\n\r\n");
        assert_eq!(
            ask(at, &http(), LIMIT),
            Err("it answers with status 503".to_owned())
        );
        asked.join().unwrap();
    }

    #[test]
    fn an_answer_without_an_end_does_not_pass() {
        let (at, asked) = server(&[b'a'; 8192]);
        let said = ask(at, &http(), LIMIT).unwrap_err();
        assert!(said.contains("no end"), "{said}");
        drop(asked.join());
    }

    #[test]
    fn silence_and_refusal_are_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let began = Instant::now();
        let said = ask(at, &http(), LIMIT).unwrap_err();
        assert!(
            said.contains("does not answer in time") && began.elapsed() < 3 * LIMIT,
            "{said}"
        );
        drop(listener);
        let said = ask(at, &Question::Tcp { port: 0 }, LIMIT).unwrap_err();
        assert!(said.contains("refuses the connection"), "{said}");
    }

    #[test]
    fn a_name_server_is_asked_over_udp() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let serve = thread::spawn(move || {
            let mut question = [0; 512];
            let (count, from) = socket.recv_from(&mut question).unwrap();
            // The answer that there is no such name.
            (question[2], question[3]) = (0x81, 0x83);
            socket.send_to(&question[..count], from).unwrap();
        });
        let question = Question::Dns {
            port: 0,
            name: "example.com".to_owned(),
        };
        assert_eq!(ask(at, &question, LIMIT), Ok(Passed::Serves));
        serve.join().unwrap();
    }
}
