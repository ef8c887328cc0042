//! Writes events as JSON lines to files, so that decisions can be read and replayed after inco has ended. A separate
//! thread writes; the control loop never waits for a disk.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::counters::EventLogCounters;
use api::types::UnwrittenEvents;
use model::Event;
use serde::Deserialize;

/// Events that may wait for the disk: some seconds at a high rate. Further events are counted as lost.
const WAITING_LIMIT: usize = 4096;
/// Wait after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The current file.
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
    /// Why nothing can be written at the moment.
    refusal: Mutex<Option<String>>,
}

impl Figures {
    fn set_refusal(&self, reason: Option<String>) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

impl EventFiles {
    /// Continues the files in that directory, which is created if missing. Gives the number of the last event in them;
    /// 0 if there is none.
    ///
    /// # Errors
    /// The files cannot be written.
    pub(super) fn start(directory: &Path, file_bytes: u64, files: u32) -> Result<(EventFiles, u64)> {
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
        let newest = [FILE.to_owned(), rotated(1)]
            .iter()
            .find_map(|name| last_number(&directory.join(name)));
        let (sender, receiver) = mpsc::sync_channel(WAITING_LIMIT);
        let figures = Arc::new(Figures::default());
        let thread = std::thread::Builder::new()
            .name("inco-events".to_owned())
            .spawn({
                let figures = Arc::clone(&figures);
                move || writer.run(&receiver, &figures)
            })
            .context("cannot start the thread that writes events")?;
        let files = EventFiles {
            sender: Some(sender),
            figures,
            thread: Some(thread),
        };
        Ok((files, newest.unwrap_or(0)))
    }

    /// Queues an event without waiting.
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

    /// The events that are missing in the files; `None` if none is.
    pub(super) fn unwritten(&self) -> Option<UnwrittenEvents> {
        let events = self.figures.lost.load(Ordering::Relaxed);
        (events > 0).then(|| UnwrittenEvents {
            events,
            error: self
                .figures
                .refusal
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        })
    }
}

impl Drop for EventFiles {
    /// Waits until all queued events are written.
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
    /// When a write last failed.
    refused: Option<Instant>,
}

impl Writer {
    fn run(mut self, events: &Receiver<Arc<Event>>, figures: &Figures) {
        while let Ok(first) = events.recv() {
            // One flush writes all queued events.
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
                // Between two tries there is no error of the system, and the time of the last one stays: the next one comes however
                // many events there are.
                if error.raw_os_error().is_some() || self.refused.is_none() {
                    figures.set_refusal(Some(format!("{}: {error}", self.directory.display())));
                    self.refused = Some(Instant::now());
                }
                self.open = None;
                lost += count;
                (count, bytes) = (0, 0);
            } else if self.refused.take().is_some() {
                let lost = figures.lost.load(Ordering::Relaxed);
                tracing::warn!(lost, directory = %self.directory.display(), "events are written again");
                figures.set_refusal(None);
            }
            figures.written.fetch_add(count, Ordering::Relaxed);
            figures.bytes.fetch_add(bytes, Ordering::Relaxed);
            figures.lost.fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// Writes a line and returns its length in bytes.
    fn put(&mut self, event: &Event) -> std::io::Result<u64> {
        if self.open.is_none() && self.refused.is_some_and(|at| at.elapsed() < RETRY_DELAY) {
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
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .read(true)
                .open(&path)?;
            let length = truncate_partial_line(&file, &path)?;
            self.open = Some((BufWriter::new(file), length));
        }
        self.open
            .as_mut()
            .ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    /// Renames `events.jsonl` to `events.jsonl.1`, that to `.2`, and deletes the oldest.
    fn rotate(&mut self) -> std::io::Result<()> {
        if let Some((mut file, _)) = self.open.take() {
            file.flush()?;
        }
        let name = |number: u32| match number {
            0 => self.directory.join(FILE),
            _ => self.directory.join(rotated(number)),
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

/// The name of a file that has been full: 1 is the newest one.
fn rotated(number: u32) -> String {
    format!("{FILE}.{number}")
}

/// Truncates an incomplete last line, which a full disk or a crash may have left. Returns the file's length in bytes.
fn truncate_partial_line(file: &File, path: &Path) -> std::io::Result<u64> {
    let length = file.metadata()?.len();
    let whole = start_of_line(file, length)?;
    if whole < length {
        file.set_len(whole)?;
        tracing::warn!(
            file = %path.display(),
            bytes = length - whole,
            "a partly written event is removed"
        );
    }
    Ok(whole)
}

/// Where the line begins that contains the byte before `end`: after the last line break before it.
fn start_of_line(file: &File, end: u64) -> std::io::Result<u64> {
    let mut start = end;
    let mut block = [0; 4096];
    while start > 0 {
        let from = (start - 1) / block.len() as u64 * block.len() as u64;
        let part = &mut block[..(start - from) as usize];
        file.read_exact_at(part, from)?;
        match part.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => return Ok(from + at as u64 + 1),
            None => start = from,
        }
    }
    Ok(0)
}

/// The number of the last event in a file of whole lines. [`None`] if it has none, or one that no run can have given.
fn last_number(path: &Path) -> Option<u64> {
    #[derive(Deserialize)]
    struct Numbered {
        sequence: u64,
    }

    let file = File::open(path).ok()?;
    let end = file.metadata().ok()?.len().checked_sub(1)?;
    let start = start_of_line(&file, end).ok()?;
    let mut line = vec![0; usize::try_from(end - start).ok()?];
    file.read_exact_at(&mut line, start).ok()?;
    let last: Numbered = serde_json::from_slice(&line).ok()?;
    // The next ones are greater.
    (last.sequence <= u64::MAX / 2).then_some(last.sequence)
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
        let (files, _) = EventFiles::start(directory.path(), 3 * line, 3).unwrap();
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
    fn a_later_run_appends_to_the_same_file() {
        let directory = tempfile::tempdir().unwrap();
        for sequence in [1, 2] {
            let (files, newest) = EventFiles::start(directory.path(), 1 << 20, 2).unwrap();
            assert_eq!(newest, sequence - 1);
            files.write(event(sequence));
        }
        assert_eq!(numbers(&directory.path().join(FILE)), [1, 2]);
    }

    /// Lines are longer than what is read at once, a file has just been full, or somebody has written into it.
    #[test]
    fn the_last_number_is_found_where_there_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let line = |number: u64, padding: usize| {
            let text = serde_json::to_string(&*event(number)).unwrap();
            format!("{}{text}\n", " ".repeat(padding))
        };
        let full = directory.path().join("events.jsonl.1");
        for (current, before, newest) in [
            (line(41, 0) + &line(42, 9_000), String::new(), 42),
            (line(41, 9_000) + &line(42, 0), line(7, 0), 42),
            (String::new(), line(7, 0), 7),
            (line(42, 0) + "nonsense\n", String::new(), 0),
            (line(u64::MAX, 0), String::new(), 0),
            ("\n".to_owned(), String::new(), 0),
        ] {
            std::fs::write(directory.path().join(FILE), &current).unwrap();
            std::fs::write(&full, before).unwrap();
            let (_files, found) = EventFiles::start(directory.path(), 1 << 20, 2).unwrap();
            assert_eq!(found, newest, "{current:?}");
        }
    }

    #[test]
    fn a_line_that_was_written_in_part_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let line = serde_json::to_string(&*event(1)).unwrap();
        let long = "x".repeat(10_000);
        for (left, remains) in [
            (format!("{line}\n{}", &line[..20]), 1),
            (format!("{line}\n{line}\n"), 2),
            (format!("{line}\n{long}"), 1),
            (long.clone(), 0),
            (String::new(), 0),
        ] {
            std::fs::write(&path, left).unwrap();
            let (files, _) = EventFiles::start(directory.path(), 1 << 20, 2).unwrap();
            files.write(event(7));
            drop(files);
            let there = numbers(&path);
            assert_eq!(there.len(), remains + 1);
            assert_eq!(there.last(), Some(&7));
        }
    }

    /// On a file system of two pages, lost events are counted, and every line is complete once there is room.
    #[test]
    fn a_full_disk_leaves_whole_lines() {
        use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let small = mount("tmpfs", path, "tmpfs", MountFlags::empty(), Some(c"size=8k"));
        if small.is_err() {
            real_parts::available("root", Some("a file system cannot be mounted".to_owned()));
            return;
        }
        let mut writer = Writer {
            directory: path.to_owned(),
            file_bytes: 1 << 20,
            files: 2,
            open: None,
            refused: None,
        };
        // Another file fills the disk except for part of a line.
        let other = path.join("other");
        std::fs::write(&other, [b'x'; 4096]).unwrap();
        let mut written = 0;
        while writer.put(&event(100)).is_ok() {
            written += 1;
            let flushed = writer.open.as_mut().map(|(file, _)| file.flush());
            if flushed.is_some_and(|flushed| flushed.is_err()) {
                break;
            }
        }
        assert!(written > 10, "{written}");
        // Buffered events are lost, and the loop counts them.
        if let Some((file, _)) = writer.open.take() {
            let (_file, _lost) = file.into_parts();
        }
        let left = std::fs::read(path.join(FILE)).unwrap();
        assert_ne!(
            left.last(),
            Some(&b'\n'),
            "the disk was full in the middle of a line"
        );
        std::fs::remove_file(other).unwrap();
        writer.put(&event(7)).unwrap();
        drop(writer);
        let there = numbers(&path.join(FILE));
        unmount(path, UnmountFlags::DETACH).unwrap();
        assert_eq!(there.last(), Some(&7));
        assert_eq!(there.len(), written);
    }

    #[test]
    fn writing_is_tried_again_however_many_events_there_are() {
        let directory = tempfile::tempdir().unwrap();
        let (files, _) = EventFiles::start(directory.path(), 1, 2).unwrap();
        // The second event needs a new file. For a while, a folder has the name for the rotated one.
        let in_the_way = directory.path().join("events.jsonl.1/in-the-way");
        std::fs::create_dir_all(&in_the_way).unwrap();
        let began = Instant::now();
        let mut sequence = 0;
        while files.counters().written_events < 2 {
            sequence += 1;
            files.write(event(sequence));
            if files.counters().lost_events > 0 && in_the_way.exists() {
                std::fs::remove_dir_all(directory.path().join("events.jsonl.1")).unwrap();
            }
            assert!(began.elapsed() < 60 * RETRY_DELAY, "{:?}", files.counters());
            std::thread::sleep(RETRY_DELAY / 20);
        }
        assert_eq!(files.unwritten().unwrap().error, None);
    }

    #[test]
    fn what_the_disk_refuses_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let (files, _) = EventFiles::start(directory.path(), 1, 2).unwrap();
        // The second event needs a new file, but a directory has the name for the rotated one.
        std::fs::create_dir_all(directory.path().join("events.jsonl.1/in-the-way")).unwrap();
        (1..=4).for_each(|sequence| files.write(event(sequence)));
        let figures = Arc::clone(&files.figures);
        drop(files);
        let (written, lost) = (
            figures.written.load(Ordering::Relaxed),
            figures.lost.load(Ordering::Relaxed),
        );
        assert_eq!(written + lost, 4);
        let refusal = figures.refusal.lock().unwrap().clone().unwrap();
        assert!(
            refusal.starts_with(directory.path().to_str().unwrap()),
            "{refusal}"
        );
        assert!(lost >= 1, "{lost}");
    }
}
