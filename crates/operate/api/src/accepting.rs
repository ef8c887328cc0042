//! Takes connections from a listener, also when this process has no file descriptor left.

use std::fs::File;
use std::io;
use std::time::Duration;

use tokio::time::sleep;

/// Wait after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// How a listener fares. It keeps a descriptor for the time when there is none left: so whoever asks what is wrong gets
/// an answer, one connection after the other.
#[derive(Debug)]
pub(crate) struct Accepting {
    spare: Option<File>,
    has_failed: bool,
}

impl Accepting {
    pub(crate) fn new() -> Accepting {
        Accepting {
            spare: a_descriptor(),
            has_failed: false,
        }
    }

    /// The accepted connection. If there is none, the caller accepts again.
    pub(crate) async fn take<T>(&mut self, accepted: io::Result<T>) -> Option<T> {
        let error = match accepted {
            Ok(accepted) => {
                self.spare = self.spare.take().or_else(a_descriptor);
                if self.spare.is_some() && std::mem::take(&mut self.has_failed) {
                    tracing::warn!("the API takes connections again");
                }
                return Some(accepted);
            }
            Err(error) => error,
        };
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::error!(
                %error,
                "the API can hardly take connections: if too many files are open, raise the limit with \
                 `prlimit --nofile`, and LimitNOFILE in the unit"
            );
        }
        if self.spare.take().is_none() {
            sleep(PAUSE).await;
        }
        None
    }
}

fn a_descriptor() -> Option<File> {
    File::open("/dev/null").ok()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn the_spare_descriptor_is_given_once_and_kept_again() {
        let mut accepting = Accepting::new();
        let too_many = || Err::<(), _>(io::Error::from_raw_os_error(24));
        let begun = Instant::now();
        assert!(accepting.take(too_many()).await.is_none());
        assert!(accepting.spare.is_none() && begun.elapsed() < PAUSE);
        assert!(accepting.take(too_many()).await.is_none());
        assert!(begun.elapsed() >= PAUSE, "it does not spin");
        assert!(accepting.take(Ok(())).await.is_some());
        assert!(accepting.spare.is_some() && !accepting.has_failed);
    }
}
