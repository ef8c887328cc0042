//! What is seen while the load runs: a second client that sends one request at a time, and measures.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use display::table::short;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use testbed::wrk::Connections;

use super::network::Namespace;

/// Time between two requests.
const INTERVAL: Duration = Duration::from_millis(5);
/// Requests of which the percentile is taken: those of a second.
const KEPT: usize = 200;
const TIMEOUT: Duration = Duration::from_secs(2);

/// A client beside the load. Dropping it ends it.
pub(super) struct Watch {
    latencies_ms: Arc<Mutex<VecDeque<f64>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    last: (Instant, u64),
}

impl Watch {
    /// Starts a thread in the client's namespace.
    ///
    /// # Errors
    /// The namespace is gone, or there can be no more threads.
    pub(super) fn start(client: &Namespace, address: &str, connections: Connections) -> Result<Watch> {
        let path = format!("/run/netns/{}", client.name());
        let namespace = std::fs::File::open(&path).with_context(|| format!("cannot open {path}"))?;
        let address: SocketAddr = format!("{address}:80")
            .parse()
            .context("the address of the service")?;
        let latencies_ms = Arc::new(Mutex::new(VecDeque::new()));
        let ends = Arc::new(AtomicBool::new(false));
        let (kept, is_over) = (Arc::clone(&latencies_ms), Arc::clone(&ends));
        let thread = std::thread::Builder::new()
            .name("web-watch".to_owned())
            .spawn(move || {
                // Only this thread is in that namespace.
                if move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&namespace),
                    Some(LinkNameSpaceType::Network),
                )
                .is_ok()
                {
                    ask(address, connections, &kept, &is_over);
                }
            })
            .context("cannot start a thread")?;
        Ok(Watch {
            latencies_ms,
            ends,
            thread: Some(thread),
            last: (Instant::now(), 0),
        })
    }

    /// A line about the last second: requests that `wrk` has sent by now, and connections of each server.
    pub(super) fn line(&mut self, at: Duration, sent: u64, connections: &[Option<u64>]) -> String {
        let (before, sent_before) = std::mem::replace(&mut self.last, (Instant::now(), sent));
        let rate = sent.saturating_sub(sent_before) as f64 / before.elapsed().as_secs_f64().max(1e-3);
        let mut latencies: Vec<f64> = lock(&self.latencies_ms).iter().copied().collect();
        latencies.sort_by(f64::total_cmp);
        let p99 = latencies
            .get(latencies.len() * 99 / 100)
            .copied()
            .unwrap_or_default();
        let of_each: Vec<String> = connections
            .iter()
            .map(|count| count.map_or("?".to_owned(), |count| count.to_string()))
            .collect();
        format!(
            "{:5.1} s  {:>6} requests/s  p99 {p99:7.2} ms  {} servers, connections: {}",
            at.as_secs_f64(),
            short(rate),
            connections.len(),
            of_each.join(" "),
        )
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(latencies: &Mutex<VecDeque<f64>>) -> std::sync::MutexGuard<'_, VecDeque<f64>> {
    latencies.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends requests, one at a time, until `ends`. A failed one counts with the time that it took.
fn ask(address: SocketAddr, connections: Connections, latencies: &Mutex<VecDeque<f64>>, ends: &AtomicBool) {
    let close = connections == Connections::Close;
    let header = if close { "Connection: close\r\n" } else { "" };
    let request = format!("GET / HTTP/1.1\r\nHost: web\r\n{header}\r\n");
    let mut open: Option<TcpStream> = None;
    while !ends.load(Ordering::Relaxed) {
        let began = Instant::now();
        let stream = open
            .take()
            .map_or_else(|| TcpStream::connect_timeout(&address, TIMEOUT), Ok);
        let answered = stream.and_then(|mut stream| {
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_nodelay(true)?;
            stream.write_all(request.as_bytes())?;
            // The answer is one segment of less than this.
            let mut answer = [0; 4096];
            stream.read(&mut answer).map(|count| (stream, count))
        });
        if let Ok((stream, count)) = answered
            && count > 0
            && !close
        {
            open = Some(stream);
        }
        let mut kept = lock(latencies);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(began.elapsed().as_secs_f64() * 1e3);
        drop(kept);
        std::thread::sleep(INTERVAL.saturating_sub(began.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_of_requests_their_time_and_connections() {
        let mut watch = Watch {
            latencies_ms: Arc::new(Mutex::new((1..=200).map(f64::from).collect())),
            ends: Arc::new(AtomicBool::new(false)),
            thread: None,
            last: (Instant::now() - Duration::from_secs(2), 1_000),
        };
        let line = watch.line(Duration::from_millis(3_500), 5_000, &[Some(7), None, Some(12)]);
        let words: Vec<&str> = line.split_whitespace().collect();
        // 4,000 in a little more than two seconds.
        let rate = words[2].trim_end_matches('k').parse::<f64>().unwrap();
        assert!(
            words[..2] == ["3.5", "s"] && (1.8..=2.0).contains(&rate),
            "{line}"
        );
        assert!(line.contains("p99  199.00 ms"), "{line}");
        assert!(line.ends_with("3 servers, connections: 7 ? 12"), "{line}");
        assert_eq!(watch.last.1, 5_000);
    }
}
