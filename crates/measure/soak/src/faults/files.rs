//! What an operator does wrong: an invalid file, two incos in one run directory.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use model::Action;
use model::Random;

use super::{Fault, Injected};
use crate::bed::Bed;
use crate::guard::Guard;
use crate::plan::below;

/// Time in which a second inco must refuse to run.
const REFUSAL_LIMIT: Duration = Duration::from_secs(10);

/// A reload of a file that is not right.
pub(super) struct InvalidReload;

impl Fault for InvalidReload {
    fn name(&self) -> &'static str {
        "invalid-reload"
    }

    fn about(&self) -> &'static str {
        "reloads a configuration that is cut off, wrong or binary; it must be refused"
    }

    fn inject(&self, bed: &mut Bed, random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let right = bed.configuration();
        let (kind, wrong) = match below(random, 4) {
            0 => (
                "cut off",
                right[..right.len() - 1 - below(random, right.len() / 2)].to_owned() + "\n[[",
            ),
            1 => ("with an unknown key", format!("{right}\nsurprise = 1\n")),
            2 => (
                "with another uplink",
                right.replacen("device = \"", "device = \"other-", 1),
            ),
            _ => (
                "of random bytes",
                (0..4096).map(|_| char::from(random.bits() as u8)).collect(),
            ),
        };
        bed.write_configuration(&wrong)?;
        let outcome = bed
            .client()
            .and_then(|client| Ok(client.act(&Action::Reload { check: false })?));
        bed.write_configuration(&right)?;
        match outcome {
            Ok(outcome) => bail!("a configuration {kind} was taken: {outcome:?}"),
            Err(_) => Ok(Injected::alone(format!("reloaded a configuration {kind}"))),
        }
    }
}

/// Another inco with the same run directory.
pub(super) struct SecondInco;

impl Fault for SecondInco {
    fn name(&self) -> &'static str {
        "second-inco"
    }

    fn about(&self) -> &'static str {
        "starts another inco in the same run directory; it must refuse to run"
    }

    fn inject(&self, bed: &mut Bed, _random: &mut Random, _guard: &mut Guard) -> Result<Injected> {
        let mut second = bed
            .inco_run()?
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let since = Instant::now();
        loop {
            match second.try_wait()? {
                Some(status) if status.success() => bail!("the second inco ended with success"),
                Some(status) => return Ok(Injected::alone(format!("a second inco ended with {status}"))),
                None if since.elapsed() > REFUSAL_LIMIT => {
                    second.kill()?;
                    second.wait()?;
                    bail!("a second inco runs in the same run directory");
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}
