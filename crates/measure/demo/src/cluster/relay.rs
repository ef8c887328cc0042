//! A way out of network namespaces: what connects to an address there is connected to the same address from this process's
//! network.

use std::io::copy;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use testbed::network::Namespace;

/// How long a connection may take: its other end is near.
const LIMIT: Duration = Duration::from_secs(5);

/// Passes connections on until it is dropped. Those that there are then go on until an end closes them.
pub(super) struct Relay(Arc<TcpListener>);

impl Relay {
    /// Has the namespace own the address, and passes on what connects to it there.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(super) fn start(namespace: &Namespace, address: SocketAddr) -> Result<Relay> {
        if !address.ip().is_loopback() {
            namespace.ip(&["address", "add", &address.ip().to_string(), "dev", "lo"])?;
        }
        let listener = namespace.within(|| {
            TcpListener::bind(address)
                .with_context(|| format!("cannot listen on {address} in a network namespace"))
        })?;
        let relay = Relay(Arc::new(listener));
        let listener = Arc::clone(&relay.0);
        spawn(move || {
            // Ends when the listener is shut down.
            while let Ok((near, _)) = listener.accept() {
                // An end that is refused sees its connection closed.
                let _ = pass_on(near, address);
            }
        })?;
        Ok(relay)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Both);
    }
}

fn pass_on(near: TcpStream, address: SocketAddr) -> Result<()> {
    let far = TcpStream::connect_timeout(&address, LIMIT)?;
    let (mut from_near, mut to_near) = (near.try_clone()?, near);
    let (mut from_far, mut to_far) = (far.try_clone()?, far);
    spawn(move || {
        let _ = copy(&mut from_near, &mut to_far);
        let _ = to_far.shutdown(Shutdown::Both);
    })?;
    spawn(move || {
        let _ = copy(&mut from_far, &mut to_near);
        let _ = to_near.shutdown(Shutdown::Both);
    })
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new()
        .name("relay".to_owned())
        .spawn(run)
        .map(drop)
        .context("cannot start a thread")
}
