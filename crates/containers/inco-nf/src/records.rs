//! Writes the records of functions, such as alerts, on a thread of its own: whoever reads them may be slow, and packets go on.

use std::fs::{File, OpenOptions, metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Result};
use functions::Chain;
use model::Nanos;

use crate::say;

/// Records in a batch, in bytes: some 200, which take some 100 us to write down. The last one may go beyond.
const BATCH_BYTES: usize = 16 << 10;
/// Batches that there are. While the thread has all of them, records wait in their functions, which have limits.
const BATCHES: usize = 4;
/// How long the end of the program waits for a reader.
const LAST: Duration = Duration::from_millis(200);

/// The loop's end of the thread.
pub(crate) struct Records {
    /// An empty batch.
    spare: Option<String>,
    written: Receiver<String>,
    full: SyncSender<String>,
}

impl Records {
    /// Starts the thread, which writes to the file, or to standard output.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread does not start.
    pub(crate) fn start(path: Option<&PathBuf>) -> Result<Records> {
        let to = match path {
            Some(path) => To::File(
                open(path).with_context(|| format!("cannot write {}", path.display()))?,
                path.clone(),
            ),
            None => To::Output,
        };
        let (give_back, written) = sync_channel(BATCHES);
        let (full, batches) = sync_channel(BATCHES);
        for _ in 0..BATCHES {
            let _ = give_back.try_send(String::with_capacity(2 * BATCH_BYTES));
        }
        std::thread::Builder::new()
            .name("inco-nf-records".to_owned())
            .spawn(move || write(to, &batches, &give_back))?;
        Ok(Records {
            spare: None,
            written,
            full,
        })
    }

    /// Gives the thread a batch of the functions' records, if it has room. Returns whether there may be more of them.
    pub(crate) fn take(&mut self, chain: &mut Chain) -> bool {
        match self.spare.take().or_else(|| self.written.try_recv().ok()) {
            Some(batch) => self.fill(batch, chain),
            None => false,
        }
    }

    fn fill(&mut self, mut lines: String, chain: &mut Chain) -> bool {
        let since_1970 = Nanos(clock::wall().0.saturating_sub(clock::monotonic().0));
        while lines.len() < BATCH_BYTES && chain.record(since_1970, &mut lines) {
            lines.push('\n');
        }
        if lines.is_empty() {
            self.spare = Some(lines);
            return false;
        }
        let is_full = lines.len() >= BATCH_BYTES;
        // It has room for all batches.
        let _ = self.full.try_send(lines);
        is_full
    }

    /// Has the rest written, as long as the reader takes it.
    pub(crate) fn end(mut self, chain: &mut Chain) {
        loop {
            let batch = self.spare.take();
            let Some(batch) = batch.or_else(|| self.written.recv_timeout(LAST).ok()) else {
                return;
            };
            if !self.fill(batch, chain) {
                break;
            }
        }
        // The thread ends when it has written all batches.
        drop(self.full);
        while self.written.recv_timeout(LAST).is_ok() {}
    }
}

/// Where records go.
enum To {
    Output,
    /// With its path, where another one may be meanwhile.
    File(File, PathBuf),
}

impl To {
    fn write(&mut self, lines: &str) -> io::Result<()> {
        match self {
            To::Output => {
                let mut output = io::stdout().lock();
                output.write_all(lines.as_bytes())?;
                output.flush()
            }
            To::File(file, path) => {
                let inode = |of: io::Result<std::fs::Metadata>| of.map(|of| (of.dev(), of.ino())).ok();
                if inode(metadata(&*path)) != inode(file.metadata()) {
                    *file = open(path)?;
                }
                file.write_all(lines.as_bytes())
            }
        }
    }
}

fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Writes batches until the loop has ended.
fn write(mut to: To, batches: &Receiver<String>, give_back: &SyncSender<String>) {
    let mut has_failed = false;
    for mut lines in batches {
        let written = to.write(&lines);
        if let Err(error) = &written
            && !has_failed
        {
            say(format_args!(
                "records are lost, because they cannot be written: {error}"
            ));
        }
        has_failed = written.is_err();
        lines.clear();
        // It has room for all batches.
        let _ = give_back.try_send(lines);
    }
}
