//! Events as JSON lines in files, so that what was decided can be read, and decided again, after inco has ended. A thread
//! of its own writes: the control loop never waits for a disk.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::counters::EventLogCounters;
use model::Event;

/// Events that may wait for the disk: seconds of a busy time. More are counted as lost.
const WAITING_LIMIT: usize = 4096;
/// How long to leave a disk alone that refused.
const AGAIN: Duration = Duration::from_secs(1);
/// The name of the file that is written.
const FILE: &str = "events.jsonl";

/// Where events are written.
#[derive(Debug)]
pub(super) struct EventFiles {
    sender: Option<SyncSender<Arc<Event>>>,
    figures: Arc<Figures>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Figures {
    written: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
}

impl EventFiles {
    /// Goes on with the files in that directory, which is made where it is missing.
    ///
    /// # Errors
    /// Where nothing can be written there.
    pub(super) fn start(directory: &Path, file_bytes: u64, files: u32) -> Result<EventFiles> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("event_log: cannot make {}", directory.display()))?;
        let mut writer = Writer {
            directory: directory.to_owned(),
            file_bytes,
            files,
            open: None,
            refused: None,
        };
        writer
            .file()
            .with_context(|| format!("event_log: cannot write {}", directory.join(FILE).display()))?;
        let (sender, receiver) = mpsc::sync_channel(WAITING_LIMIT);
        let figures = Arc::new(Figures::default());
        let thread = std::thread::Builder::new()
            .name("inco-events".to_owned())
            .spawn({
                let figures = Arc::clone(&figures);
                move || writer.run(&receiver, &figures)
            })
            .context("cannot start the thread that writes events")?;
        Ok(EventFiles {
            sender: Some(sender),
            figures,
            thread: Some(thread),
        })
    }

    /// Hands an event over, without waiting.
    pub(super) fn write(&self, event: Arc<Event>) {
        let taken = self
            .sender
            .as_ref()
            .is_some_and(|sender| sender.try_send(event).is_ok());
        if !taken {
            self.figures.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counters(&self) -> EventLogCounters {
        EventLogCounters {
            written_events: self.figures.written.load(Ordering::Relaxed),
            written_bytes: self.figures.bytes.load(Ordering::Relaxed),
            lost_events: self.figures.lost.load(Ordering::Relaxed),
        }
    }
}

impl Drop for EventFiles {
    /// Waits until what was handed over is written.
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Writer {
    directory: PathBuf,
    file_bytes: u64,
    files: u32,
    open: Option<(BufWriter<File>, u64)>,
    /// When the disk last refused.
    refused: Option<Instant>,
}

impl Writer {
    fn run(mut self, events: &Receiver<Arc<Event>>, figures: &Figures) {
        while let Ok(first) = events.recv() {
            // Everything that waits goes out with one flush.
            let waiting = std::iter::once(first).chain(events.try_iter().take(WAITING_LIMIT));
            let (mut count, mut bytes) = (0, 0);
            let mut result = Ok(());
            let mut lost = 0;
            for event in waiting {
                if result.is_err() {
                    lost += 1;
                    continue;
                }
                match self.put(&event) {
                    Ok(length) => {
                        count += 1;
                        bytes += length;
                    }
                    Err(error) => {
                        lost += 1;
                        result = Err(error);
                    }
                }
            }
            if let (Ok(()), Some((file, _))) = (&result, &mut self.open) {
                result = file.flush();
            }
            if let Err(error) = result {
                if self.refused.is_none() {
                    tracing::error!(%error, directory = %self.directory.display(), "events cannot be written");
                }
                self.refused = Some(Instant::now());
                self.open = None;
                lost += count;
                (count, bytes) = (0, 0);
            } else if lost == 0 {
                self.refused = None;
            }
            figures.written.fetch_add(count, Ordering::Relaxed);
            figures.bytes.fetch_add(bytes, Ordering::Relaxed);
            figures.lost.fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// Writes a line and gives its length.
    fn put(&mut self, event: &Event) -> std::io::Result<u64> {
        if self.open.is_none() && self.refused.is_some_and(|at| at.elapsed() < AGAIN) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        let length = line.len() as u64;
        if let Some((_, written)) = &self.open
            && *written > 0
            && *written + length > self.file_bytes
        {
            self.rotate()?;
        }
        let (file, written) = self.file()?;
        file.write_all(&line)?;
        *written += length;
        Ok(length)
    }

    fn file(&mut self) -> std::io::Result<&mut (BufWriter<File>, u64)> {
        if self.open.is_none() {
            let path = self.directory.join(FILE);
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            let length = file.metadata()?.len();
            self.open = Some((BufWriter::new(file), length));
        }
        self.open
            .as_mut()
            .ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    /// `events.jsonl` becomes `events.jsonl.1`, that one `.2`, and the oldest goes.
    fn rotate(&mut self) -> std::io::Result<()> {
        if let Some((mut file, _)) = self.open.take() {
            file.flush()?;
        }
        let name = |number: u32| match number {
            0 => self.directory.join(FILE),
            _ => self.directory.join(format!("{FILE}.{number}")),
        };
        if self.files == 1 {
            return std::fs::remove_file(name(0));
        }
        for number in (0..self.files - 1).rev() {
            match std::fs::rename(name(number), name(number + 1)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use model::{EventKind, Nanos};

    use super::*;

    fn event(sequence: u64) -> Arc<Event> {
        Arc::new(Event {
            sequence,
            at: Nanos(sequence),
            unix_ms: 0,
            service: None,
            instance: None,
            kind: EventKind::Stopping { keep: false },
        })
    }

    fn numbers(file: &Path) -> Vec<u64> {
        let text = std::fs::read_to_string(file).unwrap();
        text.lines()
            .map(|line| serde_json::from_str::<Event>(line).unwrap().sequence)
            .collect()
    }

    #[test]
    fn files_are_bounded_in_size_and_number_and_hold_the_newest() {
        let directory = tempfile::tempdir().unwrap();
        let line = serde_json::to_string(&*event(10)).unwrap().len() as u64 + 1;
        let files = EventFiles::start(directory.path(), 3 * line, 3).unwrap();
        (10..30).for_each(|sequence| files.write(event(sequence)));
        let figures = Arc::clone(&files.figures);
        drop(files);
        let path = |name: &str| directory.path().join(name);
        assert_eq!(numbers(&path("events.jsonl")), [28, 29]);
        assert_eq!(numbers(&path("events.jsonl.1")), [25, 26, 27]);
        assert_eq!(numbers(&path("events.jsonl.2")), [22, 23, 24]);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3);
        assert_eq!(figures.written.load(Ordering::Relaxed), 20);
        assert_eq!(figures.bytes.load(Ordering::Relaxed), 20 * line);
        assert_eq!(figures.lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_later_run_goes_on_in_the_same_file() {
        let directory = tempfile::tempdir().unwrap();
        for sequence in [1, 2] {
            EventFiles::start(directory.path(), 1 << 20, 2)
                .unwrap()
                .write(event(sequence));
        }
        assert_eq!(numbers(&directory.path().join(FILE)), [1, 2]);
    }

    #[test]
    fn what_the_disk_refuses_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let files = EventFiles::start(directory.path(), 1, 2).unwrap();
        // The second event needs another file, and the name that the first one's must get is a directory's.
        std::fs::create_dir_all(directory.path().join("events.jsonl.1/in-the-way")).unwrap();
        (1..=4).for_each(|sequence| files.write(event(sequence)));
        let figures = Arc::clone(&files.figures);
        drop(files);
        let (written, lost) = (
            figures.written.load(Ordering::Relaxed),
            figures.lost.load(Ordering::Relaxed),
        );
        assert_eq!(written + lost, 4);
        assert!(lost >= 1, "{lost}");
    }
}
