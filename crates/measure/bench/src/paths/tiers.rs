//! HTTP requests through three tiers: nginx, an application, redis, a small version of the microservices of the offload
//! evaluation. The tiers are in turn at the two ends of the path, so a request crosses it three times: from wrk at the
//! client's end to nginx at the server's, from there to the application at the client's, and from there to redis at the
//! server's. The application is a few threads of this process in the client's network: it asks redis once for each request.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use testbed::Interrupt;
use testbed::http::Connection;

use super::bed::{APPLICATION_PORT, Bed, Ground, PAGE_BYTES, STORE_PORT};
use super::outcome::Figures;
use super::requests;

/// How often the application looks for connections. Those that there are do not wait for it.
const LOOK: Duration = Duration::from_millis(5);
/// A tier that says nothing for so long has gone.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a request's header, at most.
const HEADER_LIMIT: usize = 8192;
/// What redis is asked for.
const KEY: &str = "page";

/// A turn.
pub(super) fn turn(
    bed: &mut Bed<'_>,
    ground: &Ground,
    interrupt: &Interrupt,
    seconds: u64,
) -> Result<Figures> {
    bed.store(ground)?;
    let store = format!("{}:{STORE_PORT}", bed.address());
    bed.wait(interrupt, "redis does not answer", |bed| {
        bed.client()
            .within(|| Store::open(&store)?.set(&vec![b'x'; PAGE_BYTES as usize]))
    })?;
    let _application = Application::start(bed, store)?;
    let front = format!("{}:80", bed.address())
        .parse()
        .context("the server's address")?;
    let path = format!("/tiers/{}", bed.own());
    bed.wait(interrupt, "the three tiers do not answer", |bed| {
        let length = bed
            .client()
            .within(|| Connection::open(front)?.fetch(&path, true, |_| {}))?;
        ensure!(length == PAGE_BYTES, "the answer has {length} bytes");
        Ok(())
    })?;
    requests::ask(bed, ground, &format!("http://{front}{path}"), seconds)
}

/// The middle tier: it runs until it is dropped.
struct Application {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Application {
    /// Serves in the client's network; what it answers is in the store.
    fn start(bed: &Bed<'_>, store: String) -> Result<Application> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (network, over) = (bed.client().network(), Arc::clone(&is_over));
        // Before the thread begins, so that an error is told.
        let listener = bed.client().within(|| {
            let listener = TcpListener::bind(("0.0.0.0", APPLICATION_PORT)).context("the application")?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })?;
        // Threads that begin in a network are in it.
        let serving = move || network.within(|| serve(&listener, &store, &over));
        let thread = thread::Builder::new()
            .name("application".to_owned())
            .spawn(serving)?;
        Ok(Application {
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // What it could not serve has shown as failed requests.
            let _ = thread.join();
        }
    }
}

/// Takes connections, each by a thread that ends with it.
fn serve(listener: &TcpListener, store: &str, is_over: &AtomicBool) -> Result<()> {
    let mut connections = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                let store = store.to_owned();
                connections.push(stream.try_clone()?);
                thread::Builder::new()
                    .name("application".to_owned())
                    .spawn(move || answer(stream, &store))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => thread::sleep(LOOK),
            Err(error) => return Err(error).context("the application takes no connection"),
        }
    }
    // Its threads end, too: they would keep the network.
    for stream in connections {
        let _ = stream.shutdown(Shutdown::Both);
    }
    Ok(())
}

/// Answers the requests of a connection until it ends.
fn answer(stream: TcpStream, store: &str) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut store = Store::open(store)?;
    let mut to = stream.try_clone()?;
    let mut from = BufReader::new(stream);
    let mut reply = Vec::new();
    while header(&mut from)? {
        let page = store.get()?;
        reply.clear();
        write!(reply, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", page.len())?;
        reply.extend_from_slice(page);
        to.write_all(&reply)?;
    }
    Ok(())
}

/// Reads a request without a body. Gives whether there was one.
fn header(from: &mut impl BufRead) -> Result<bool> {
    let mut left = HEADER_LIMIT as u64;
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = from.by_ref().take(left).read_until(b'\n', &mut line)?;
        if read == 0 && left == HEADER_LIMIT as u64 {
            return Ok(false);
        }
        ensure!(
            line.ends_with(b"\n"),
            "the request has no end within {HEADER_LIMIT} bytes"
        );
        if line == b"\r\n" {
            return Ok(true);
        }
        left -= read as u64;
    }
}

/// A connection to redis.
struct Store {
    to: TcpStream,
    from: BufReader<TcpStream>,
    page: Vec<u8>,
}

impl Store {
    fn open(address: &str) -> Result<Store> {
        let to = address.parse().context("the store's address")?;
        let to = TcpStream::connect_timeout(&to, PATIENCE)
            .with_context(|| format!("no connection to {address}"))?;
        to.set_nodelay(true)?;
        to.set_read_timeout(Some(PATIENCE))?;
        Ok(Store {
            from: BufReader::new(to.try_clone()?),
            to,
            page: Vec::new(),
        })
    }

    /// A line of an answer, which is short.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        (&mut self.from).take(256).read_line(&mut line)?;
        ensure!(line.ends_with("\r\n"), "redis said {line:?}");
        Ok(line.trim_end().to_owned())
    }

    fn set(&mut self, value: &[u8]) -> Result<()> {
        let mut request = Vec::new();
        write!(
            request,
            "*3\r\n$3\r\nSET\r\n${}\r\n{KEY}\r\n${}\r\n",
            KEY.len(),
            value.len()
        )?;
        request.extend_from_slice(value);
        request.extend_from_slice(b"\r\n");
        self.to.write_all(&request)?;
        match self.line()?.as_str() {
            "+OK" => Ok(()),
            other => bail!("redis said {other:?}"),
        }
    }

    fn get(&mut self) -> Result<&[u8]> {
        let request = format!("*2\r\n$3\r\nGET\r\n${}\r\n{KEY}\r\n", KEY.len());
        self.to.write_all(request.as_bytes())?;
        let line = self.line()?;
        let length: usize = line
            .strip_prefix('$')
            .context("no value")?
            .parse()
            .context("no value")?;
        ensure!(length as u64 == PAGE_BYTES, "the value has {length} bytes");
        self.page.resize(length + 2, 0);
        self.from.read_exact(&mut self.page)?;
        Ok(self.page.get(..length).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_with_an_empty_line() {
        let mut two: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        assert!(header(&mut two).unwrap() && header(&mut two).unwrap() && !header(&mut two).unwrap());
        let mut cut: &[u8] = b"GET / HTTP/1.1\r\nHost";
        assert!(header(&mut cut).is_err());
        let endless = b"a: b\r\n".repeat(HEADER_LIMIT);
        assert!(header(&mut endless.as_slice()).is_err());
    }

    #[test]
    fn the_application_answers_with_what_the_store_has() {
        let store = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = store.local_addr().unwrap().to_string();
        let redis = thread::spawn(move || {
            let (mut stream, _) = store.accept().unwrap();
            let mut asked = [0; 24];
            for _ in 0..2 {
                stream.read_exact(&mut asked[..23]).unwrap();
                assert_eq!(&asked[..23], b"*2\r\n$3\r\nGET\r\n$4\r\npage\r\n");
                write!(stream, "${PAGE_BYTES}\r\n{}\r\n", "y".repeat(PAGE_BYTES as usize)).unwrap();
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let application = thread::spawn(move || answer(listener.accept().unwrap().0, &address));
        let mut asks = Connection::open(to).unwrap();
        for is_last in [false, true] {
            assert_eq!(
                asks.get("/tiers", is_last).unwrap(),
                "y".repeat(PAGE_BYTES as usize)
            );
        }
        drop(asks);
        redis.join().unwrap();
        application.join().unwrap().unwrap();
    }
}
