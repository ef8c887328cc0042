//! The output of containers: the newest part of each one's standard output and error, in memory, also of containers
//! that have ended. Threads of engines write, any thread reads; a lock is held only for a copy.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clock::unix_ms;

/// Bytes that are kept of one container's output: the newest.
pub const MAX_LOG_BYTES: usize = 1 << 20;
/// Bytes that are kept of all containers of a group.
pub const MAX_GROUP_BYTES: usize = 16 << 20;
/// Containers of a group whose output is kept. Those that have ended are dropped first.
pub const MAX_GROUP_LOGS: usize = 256;

/// The output of containers. A clone is another handle to the same.
///
/// Positions count the bytes that a container has written since it was made, so that a reader can go on where it was.
#[derive(Clone, Debug)]
pub struct Logs(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The label whose value says to which group a container belongs.
    group_label: String,
    logs: Mutex<BTreeMap<String, Log>>,
}

/// The output of one container.
#[derive(Debug)]
struct Log {
    labels: BTreeMap<String, String>,
    /// The position of the first byte in `bytes`.
    first: u64,
    bytes: VecDeque<u8>,
    started_unix_ms: u64,
    ended_unix_ms: Option<u64>,
}

/// Which output is kept of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRow {
    /// The container.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The position of the oldest byte that is kept.
    pub first: u64,
    /// The position after the newest byte.
    pub next: u64,
    /// When its output was first read, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// When it ended, in milliseconds since 1970; `None` while it runs.
    pub ended_unix_ms: Option<u64>,
}

impl Default for Logs {
    /// No output yet, and one group for all containers.
    fn default() -> Logs {
        Logs::by("")
    }
}

impl Log {
    fn next(&self) -> u64 {
        self.first + self.bytes.len() as u64
    }

    fn drop_first(&mut self, count: usize) {
        let count = count.min(self.bytes.len());
        self.bytes.drain(..count);
        self.first += count as u64;
    }
}

impl Logs {
    /// Without output. Containers with the same value of this label form a group, which has a limit of its own.
    /// Containers without the label form the group with the empty name.
    pub fn by(group_label: impl Into<String>) -> Logs {
        Logs(Arc::new(Shared {
            group_label: group_label.into(),
            logs: Mutex::default(),
        }))
    }

    /// The containers of a group, the one that was made first first.
    pub fn list(&self, group: &str) -> Vec<LogRow> {
        let logs = self.lock();
        let of_group = logs.iter().filter(|(_, log)| self.group_of(log) == group);
        let mut rows: Vec<LogRow> = of_group
            .map(|(name, log)| LogRow {
                name: name.clone(),
                labels: log.labels.clone(),
                first: log.first,
                next: log.next(),
                started_unix_ms: log.started_unix_ms,
                ended_unix_ms: log.ended_unix_ms,
            })
            .collect();
        rows.sort_by(|a, b| (a.started_unix_ms, &a.name).cmp(&(b.started_unix_ms, &b.name)));
        rows
    }

    /// Up to `most` bytes of a container's output from the position `from` on, and the position of the first byte:
    /// later than `from` if the output there has been dropped. `None` for an unknown container.
    pub fn read(&self, name: &str, from: u64, most: usize) -> Option<(u64, Vec<u8>)> {
        let logs = self.lock();
        let log = logs.get(name)?;
        let from = from.clamp(log.first, log.next());
        let skipped = (from - log.first) as usize;
        Some((from, log.bytes.range(skipped..).take(most).copied().collect()))
    }

    /// Begins the log of a container; one of that name that there was is dropped.
    pub(crate) fn begin(&self, name: &str, labels: &BTreeMap<String, String>) {
        let log = Log {
            labels: labels.clone(),
            first: 0,
            bytes: VecDeque::new(),
            started_unix_ms: unix_ms(),
            ended_unix_ms: None,
        };
        let mut logs = self.lock();
        logs.insert(name.to_owned(), log);
        self.limit(&mut logs, name);
    }

    /// Appends what a container wrote. Nothing is kept of one that was not begun.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let mut logs = self.lock();
        let Some(log) = logs.get_mut(name) else { return };
        log.bytes.extend(bytes);
        let over = log.bytes.len().saturating_sub(MAX_LOG_BYTES);
        log.drop_first(over);
        self.limit(&mut logs, name);
    }

    /// Notes that a container has ended.
    pub(crate) fn end(&self, name: &str) {
        if let Some(log) = self.lock().get_mut(name) {
            log.ended_unix_ms = Some(unix_ms());
        }
    }

    /// The end of what a container wrote, up to so many bytes.
    pub(crate) fn last_words(&self, name: &str, most: usize) -> String {
        let logs = self.lock();
        let Some(log) = logs.get(name) else {
            return String::new();
        };
        let skipped = log.bytes.len().saturating_sub(most);
        let bytes: Vec<u8> = log.bytes.range(skipped..).copied().collect();
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }

    /// Enforces the limits of the container's group: drops the log that ended first, else the oldest bytes of the
    /// longest log.
    fn limit(&self, logs: &mut BTreeMap<String, Log>, name: &str) {
        let group = logs
            .get(name)
            .map_or(String::new(), |log| self.group_of(log).to_owned());
        loop {
            let of_group = || logs.iter().filter(|(_, log)| self.group_of(log) == group);
            let (count, bytes) = of_group().fold((0, 0), |(count, bytes), (_, log)| {
                (count + 1, bytes + log.bytes.len())
            });
            let over = bytes.saturating_sub(MAX_GROUP_BYTES);
            if over == 0 && count <= MAX_GROUP_LOGS {
                return;
            }
            let ended = of_group()
                .filter_map(|(name, log)| Some((log.ended_unix_ms?, name.clone())))
                .min();
            let longest = of_group().max_by_key(|(_, log)| log.bytes.len());
            let longest = longest.map(|(name, _)| name.clone());
            match (ended, longest) {
                (Some((_, name)), _) => {
                    logs.remove(&name);
                }
                // All run: an engine bounds how many do.
                (None, Some(name)) if over > 0 => {
                    if let Some(log) = logs.get_mut(&name) {
                        log.drop_first(over);
                    }
                }
                (None, _) => return,
            }
        }
    }

    fn group_of<'l>(&self, log: &'l Log) -> &'l str {
        log.labels.get(&self.0.group_label).map_or("", String::as_str)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Log>> {
        self.0.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(names: &[&str]) -> Logs {
        let logs = Logs::by("service");
        for name in names {
            let service = name.split('-').next().unwrap().to_owned();
            logs.begin(name, &BTreeMap::from([("service".to_owned(), service)]));
        }
        logs
    }

    fn text(logs: &Logs, name: &str, from: u64) -> (u64, String) {
        let (from, bytes) = logs.read(name, from, MAX_LOG_BYTES).unwrap();
        (from, String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn a_reader_continues_at_its_position() {
        let logs = begun(&["a-1"]);
        logs.write("a-1", b"one\n");
        assert_eq!(text(&logs, "a-1", 0), (0, "one\n".to_owned()));
        logs.write("a-1", b"two\n");
        assert_eq!(text(&logs, "a-1", 4), (4, "two\n".to_owned()));
        assert_eq!(text(&logs, "a-1", 8), (8, String::new()));
        assert_eq!(text(&logs, "a-1", 99), (8, String::new()));
        assert_eq!(logs.read("a-1", 2, 3), Some((2, b"e\nt".to_vec())));
        assert_eq!(logs.read("a-2", 0, MAX_LOG_BYTES), None);
        assert_eq!(logs.last_words("a-1", 5), "\ntwo");
        logs.write("a-2", b"unregistered");
        assert_eq!(logs.read("a-2", 0, MAX_LOG_BYTES), None);
    }

    #[test]
    fn the_newest_part_of_each_is_kept() {
        let logs = begun(&["a-1"]);
        logs.write("a-1", &vec![b'x'; MAX_LOG_BYTES]);
        logs.write("a-1", b"end");
        let (from, bytes) = logs.read("a-1", 0, MAX_LOG_BYTES).unwrap();
        assert_eq!((from, bytes.len()), (3, MAX_LOG_BYTES));
        assert!(bytes.ends_with(b"xend"));
    }

    #[test]
    fn a_group_drops_what_has_ended_first_and_other_groups_keep_theirs() {
        let names: Vec<String> = (0..18).map(|id| format!("a-{id}")).collect();
        let logs = begun(&names.iter().map(String::as_str).collect::<Vec<_>>());
        logs.begin("b-1", &BTreeMap::from([("service".to_owned(), "b".to_owned())]));
        logs.write("b-1", b"kept");
        logs.end("b-1");
        logs.write("a-7", b"short");
        logs.end("a-7");
        for name in names.iter().filter(|name| *name != "a-7") {
            logs.write(name, &vec![b'x'; MAX_LOG_BYTES]);
        }
        assert_eq!(logs.read("a-7", 0, MAX_LOG_BYTES), None, "it had ended");
        let kept: Vec<u64> = logs.list("a").iter().map(|row| row.next - row.first).collect();
        assert_eq!(
            (kept.len(), kept.iter().sum::<u64>()),
            (17, MAX_GROUP_BYTES as u64)
        );
        assert_eq!(text(&logs, "b-1", 0).1, "kept");
    }

    #[test]
    fn containers_that_end_at_once_are_not_kept_for_ever() {
        let names: Vec<String> = (0..MAX_GROUP_LOGS + 10).map(|id| format!("a-{id:04}")).collect();
        let logs = begun(&[]);
        for name in &names {
            logs.begin(name, &BTreeMap::from([("service".to_owned(), "a".to_owned())]));
            logs.end(name);
        }
        let rows = logs.list("a");
        assert_eq!(rows.len(), MAX_GROUP_LOGS);
        assert!(rows.iter().all(|row| row.ended_unix_ms.is_some()));
        assert!(
            rows.iter().any(|row| Some(&row.name) == names.last()),
            "the newest is there"
        );
    }
}
