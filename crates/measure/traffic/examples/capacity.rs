//! CPU time per packet to generate, send over memif, receive and measure: `cargo run --release -p traffic
//! --example capacity [packets in millions] [off|exact]`.
//!
//! The forwarder runs on the same thread, in the generator's `receive`, so the figure is CPU time, valid on a
//! busy machine too, and includes the forwarder's share. The load exceeds what can be sent: the generator is
//! never idle.
use std::os::fd::BorrowedFd;
use std::time::Duration;

use memif::{Link, Listener, ServerConfig};
use traffic::{Control, Error, Generator, MemifPort, Phase, Port, Profile, Rate, Span, Verify};

/// Due packets per second: more than any machine can send.
const PPS: f64 = 100e6;

struct WithForwarder {
    port: MemifPort,
    forwarder: Link,
}

impl Port for WithForwarder {
    fn frame_bytes_limit(&self) -> usize {
        self.port.frame_bytes_limit()
    }
    fn free(&mut self) -> usize {
        self.port.free()
    }
    fn slots(&self, frame_bytes: usize) -> usize {
        self.port.slots(frame_bytes)
    }
    fn push(&mut self, frame: &[u8]) -> bool {
        self.port.push(frame)
    }
    fn flush(&mut self) {
        self.port.flush();
        let pair = &mut self.forwarder.queues[0];
        pair.rx.forward_to(&mut pair.tx, 4096);
        pair.tx.flush();
    }
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.port.receive(buffer)
    }
    fn release(&mut self) {
        self.port.release();
    }
    fn arm(&mut self) -> bool {
        self.port.arm()
    }
    fn disarm(&mut self) {
        self.port.disarm();
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.wake_fd()
    }
    fn maintain(&mut self) {
        self.port.maintain();
    }
}

fn main() {
    let argument = |n: usize| std::env::args().nth(n);
    let millions: f64 = argument(1).and_then(|a| a.parse().ok()).unwrap_or(5.0);
    let verify = if argument(2).as_deref() == Some("exact") {
        Verify::Exact
    } else {
        Verify::Off
    };
    if let Err(error) = run(millions, verify) {
        eprintln!("{error}");
    }
}

fn run(millions: f64, verify: Verify) -> Result<(), Error> {
    let socket = std::env::temp_dir().join(format!("traffic-capacity-{}.sock", std::process::id()));
    let mut listener = Listener::bind(&socket, ServerConfig::new("forwarder"))?;
    let path = socket.clone();
    let accepted = std::thread::spawn(move || listener.accept(Duration::from_secs(5)));
    let port = MemifPort::connect(&path, 0, Duration::from_secs(5))?;
    let Ok(Ok(Some(forwarder))) = accepted.join() else {
        return Err(Error::NoClient { path });
    };
    let mut ports = [WithForwarder { port, forwarder }];
    let profile = Profile {
        verify,
        uplink_wait: Span::from_millis(3_600_000),
        phases: vec![Phase {
            duration: Span::from_millis((millions * 1e9 / PPS) as u64),
            flows: 32,
            rate: Some(Rate(PPS)),
            ..Phase::default()
        }],
        ..Profile::default()
    };
    let generator = Generator::new(profile)?;
    let cpu = || clock::thread_cpu().0 as f64 / 1e9;
    let before = cpu();
    let report = generator.run(&mut ports, &Control::new(), |_| {})?;
    let ns = (cpu() - before) * 1e9 / report.counts.returned_packets.max(1) as f64;
    print!("{}", report.table(false));
    println!(
        "\n{ns:.1} ns of CPU time a packet: {:.2} Mpps a core",
        1000.0 / ns
    );
    Ok(())
}
