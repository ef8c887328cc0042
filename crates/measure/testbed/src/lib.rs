//! Runs a complete inco as a child process with real containers, for the demo and the benches.
//!
//! 1. [`Environment`]: the directory of the runs, and an Open vSwitch if that forwards.
//! 2. [`Dockerd`]: a private Docker engine that can be killed.
//! 3. [`Session`]: a running inco, controlled over its API. Dropping it stops inco and checks that nothing remains.
//! 4. [`network`] and [`http`]: networks with clients that count what fails.
//! 5. [`wrk`] and [`Haproxy`]: a load of many connections, and the balancer that inco is compared with. [`CpuTime`]:
//!    what that costs the machine.
//! 6. [`actors`]: an inco whose services are the applications made of actors.
#![forbid(unsafe_code)]
// The print macros panic if the output is closed; `display::output` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod actors;
mod dockerd;
mod haproxy;
pub mod http;
mod machine;
pub mod network;
mod open_vswitch;
mod session;
pub mod wrk;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::ValueEnum;
use display::output::Interrupted;
use engine::ImageRef;
use images::EngineName;
use signal_hook::consts::{SIGINT, SIGTERM};

pub use dockerd::{Dockerd, DockerdAccess};
pub use haproxy::Haproxy;
pub use machine::CpuTime;
pub use open_vswitch::OpenVSwitch;
pub use session::{Environment, Service, Session};

/// What forwards packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SwitchName {
    /// inco's own switch
    #[default]
    Soft,
    /// Open vSwitch, which is started for the demo alone
    Openflow,
}

/// The image of the measured function.
pub const FORWARD_IMAGE: &str = "inco/forward";

/// The image of a web server, and the program that it is made of.
pub const WEB_SERVER_IMAGE: &str = "nginx";

/// A request to end from outside: Ctrl-C or SIGTERM. The default value never receives one.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for Ctrl-C and SIGTERM. The second signal ends the process immediately; inco then stops, because it
    /// watches its parent.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the signal handler.
    pub fn listen() -> Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .context("cannot listen for signals")?;
        }
        Ok(Interrupt(flag))
    }

    /// Returns `Ok` while the work may continue.
    ///
    /// # Errors
    /// Returns [`Interrupted`] after a signal.
    pub fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Interrupted.into()),
            false => Ok(()),
        }
    }
}

/// Builds the image of `forward` if it is missing or outdated.
///
/// # Errors
/// Returns an error if there is no static `inco-nf`, or if the image cannot be built or loaded into the engine.
pub fn make_image(engine: EngineName) -> Result<()> {
    let name = ImageRef::from(FORWARD_IMAGE);
    let program = images::find_inco_nf()?;
    let made = std::fs::metadata(&program)
        .and_then(|of| of.modified())
        .ok()
        .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(u64::MAX, |at| u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
    let image = match images::store().resolve(&name) {
        Ok((_, there)) if there.created_unix_ms > made => there,
        _ => images::build_function("forward", &name)?,
    };
    images::deliver(engine, engine::DEFAULT_HOST, &image)
}

/// Makes the image `nginx` of this machine's web server, unless there is one.
///
/// # Errors
/// It is not installed, or the image cannot be made.
pub fn make_web_server_image() -> Result<()> {
    let name = ImageRef::from(WEB_SERVER_IMAGE);
    if images::store().resolve(&name).is_err() {
        images::import_program(&name, WEB_SERVER_IMAGE, &[])?;
    }
    Ok(())
}
