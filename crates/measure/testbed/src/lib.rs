//! A whole inco as a child process, with real containers: what the demo and the benches measure.
//!
//! 1. [`Ground`]: a directory for it, and an Open vSwitch where that is to forward.
//! 2. [`Session`]: a running inco, asked over its API; dropped, it is stopped and checked to be gone.
#![forbid(unsafe_code)]
// They panic where nobody reads the output: `display::output` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod open_vswitch;
mod session;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::ValueEnum;
use display::output::Interrupted;
use engine::ImageRef;
use images::EngineName;
use signal_hook::consts::{SIGINT, SIGTERM};

pub use open_vswitch::OpenVSwitch;
pub use session::{Ground, Service, Session};

/// What forwards packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SwitchName {
    /// inco's own switch
    #[default]
    Soft,
    /// Open vSwitch, which is started for the demo alone
    Openflow,
}

/// The image of the function that is measured.
pub const FORWARD_IMAGE: &str = "inco/forward";

/// What ends the demo from outside: Ctrl-C or SIGTERM. One that does not listen never happens.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for Ctrl-C and SIGTERM. The second one ends at once; inco then ends by itself, since it watches us.
    ///
    /// # Errors
    /// Where the system takes no handler.
    pub fn listen() -> Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .context("cannot listen for signals")?;
        }
        Ok(Interrupt(flag))
    }

    /// Whether the work may go on.
    ///
    /// # Errors
    /// [`Interrupted`], once it happened.
    pub fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Interrupted.into()),
            false => Ok(()),
        }
    }
}

/// Makes the image of `forward` where there is none, or an old one.
///
/// # Errors
/// Where there is no static `inco-nf`, or the image cannot be made or given to the engine.
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
