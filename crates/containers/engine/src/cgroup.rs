//! Control groups of containers, version 1 and 2, by direct reads and writes of their files. A read or write takes
//! microseconds; an engine's API takes milliseconds.
//!
//! The root directory is an argument: `/sys/fs/cgroup`, or a tree of files in a test. The version is detected.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::{CpuQuota, EngineError, EngineEvent, Usage};

/// Where the kernel's control groups are mounted on every common distribution.
pub const ROOT: &str = "/sys/fs/cgroup";

/// Bytes of the longest file of a control group's usage: lines with a word and a number each.
const USAGE_BYTES: usize = 4096;

/// Which of the two interfaces the kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One tree for each controller.
    V1,
    /// One tree in all.
    V2,
}

/// The machine's control groups.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    root: PathBuf,
    version: Version,
}

impl Hierarchy {
    /// What is mounted at this root.
    ///
    /// # Errors
    /// [`EngineError::Io`] where no control groups are there.
    pub fn at(root: impl Into<PathBuf>) -> Result<Hierarchy, EngineError> {
        let root = root.into();
        let version = if root.join("cgroup.controllers").exists() {
            Version::V2
        } else if root.join("cpu").is_dir() && root.join("freezer").is_dir() {
            Version::V1
        } else {
            let none = io::Error::from(ErrorKind::NotFound);
            return Err(EngineError::io(
                "find control groups (cpu, freezer) in",
                &root,
                &none,
            ));
        };
        Ok(Hierarchy { root, version })
    }

    /// Which version it is.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The control group of this path, as `/inco/inco-firewall-7`, in every tree. It need not exist.
    pub fn group(&self, path: &str) -> Cgroup {
        let relative = path.trim_start_matches('/').to_owned();
        let of = |controller: &str| self.root.join(controller).join(&relative);
        match self.version {
            Version::V1 => Cgroup {
                version: Version::V1,
                cpu: of("cpu"),
                cpu_account: of("cpuacct"),
                memory: of("memory"),
                freezer: of("freezer"),
                root: self.root.clone(),
                relative,
            },
            Version::V2 => {
                let own = self.root.join(&relative);
                Cgroup {
                    version: Version::V2,
                    cpu: own.clone(),
                    cpu_account: own.clone(),
                    memory: own.clone(),
                    freezer: own,
                    root: self.root.clone(),
                    relative,
                }
            }
        }
    }

    /// The control group that a process is in, going by its freezer (version 1) or its only one (version 2), from
    /// the text of `/proc/<pid>/cgroup`. `None` where the text names none, or only the root.
    pub fn group_of(&self, proc_cgroup: &str) -> Option<Cgroup> {
        let path = proc_cgroup.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let wanted = match self.version {
                Version::V1 => controllers.split(',').any(|controller| controller == "freezer"),
                Version::V2 => number == "0" && controllers.is_empty(),
            };
            wanted.then_some(path)
        })?;
        let escapes = path.split('/').any(|part| part == "..");
        (path != "/" && !escapes).then(|| self.group(path))
    }

    /// The names of the groups directly under this path, of every tree; each once, sorted.
    pub fn children(&self, path: &str) -> Vec<String> {
        let relative = path.trim_start_matches('/');
        let mut names: Vec<String> = self
            .trees()
            .iter()
            .filter_map(|tree| fs::read_dir(tree.join(relative)).ok())
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The root of each tree. On a version 1 machine the unified one is among them, where it is mounted.
    fn trees(&self) -> Vec<PathBuf> {
        trees(&self.root, self.version)
    }
}

fn trees(root: &Path, version: Version) -> Vec<PathBuf> {
    match version {
        Version::V2 => vec![root.to_path_buf()],
        Version::V1 => fs::read_dir(root)
            .into_iter()
            .flatten()
            .flatten()
            // `cpu` is often a link to `cpu,cpuacct`: the same tree, which is listed by its own name.
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect(),
    }
}

/// One control group: where it is in each tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    version: Version,
    cpu: PathBuf,
    cpu_account: PathBuf,
    memory: PathBuf,
    freezer: PathBuf,
    root: PathBuf,
    relative: String,
}

impl Cgroup {
    /// Its path below the root of each tree, without a leading `/`.
    pub fn path(&self) -> &str {
        &self.relative
    }

    /// Whether it exists.
    pub fn exists(&self) -> bool {
        self.freezer.is_dir()
    }

    /// Gives this group the CPU weight of so many programs: one for each container in it. By default a group has the
    /// weight of one program, however many containers it holds; on a busy machine they would share that and stay far
    /// below their quotas. With more weight, containers without a quota would leave nothing to those who steer to them.
    /// Does nothing without the CPU controller.
    pub fn weigh(&self, programs: usize) {
        let programs = programs.clamp(1, 100);
        let _ = match self.version {
            Version::V1 => write(&self.cpu.join("cpu.shares"), &(1_024 * programs).to_string()),
            Version::V2 => write(&self.cpu.join("cpu.weight"), &(100 * programs).to_string()),
        };
    }

    /// Sets the CPU quota, or lifts it. Holds from the next period on.
    ///
    /// # Errors
    /// [`EngineError::BadSpec`] for what the kernel would not take; [`EngineError::Io`].
    pub fn set_quota(&self, quota: Option<CpuQuota>) -> Result<(), EngineError> {
        quota.map_or(Ok(()), |quota| quota.check())?;
        match (self.version, quota) {
            (Version::V1, None) => write(&self.cpu.join("cpu.cfs_quota_us"), "-1"),
            (Version::V1, Some(quota)) => {
                write(&self.cpu.join("cpu.cfs_period_us"), &quota.period_us.to_string())?;
                write(&self.cpu.join("cpu.cfs_quota_us"), &quota.quota_us.to_string())
            }
            (Version::V2, None) => write(&self.cpu.join("cpu.max"), "max"),
            (Version::V2, Some(quota)) => write(
                &self.cpu.join("cpu.max"),
                &format!("{} {}", quota.quota_us, quota.period_us),
            ),
        }
    }

    /// The quota that holds now; `None` for none.
    ///
    /// # Errors
    /// [`EngineError::Io`].
    pub fn quota(&self) -> Result<Option<CpuQuota>, EngineError> {
        let (quota, period) = match self.version {
            Version::V1 => (
                read(&self.cpu.join("cpu.cfs_quota_us"))?,
                read(&self.cpu.join("cpu.cfs_period_us"))?,
            ),
            Version::V2 => {
                let text = read(&self.cpu.join("cpu.max"))?;
                let mut words = text.split_whitespace().map(str::to_owned);
                (words.next().unwrap_or_default(), words.next().unwrap_or_default())
            }
        };
        let (quota, period) = (quota.trim().parse().ok(), period.trim().parse().ok());
        Ok(quota
            .zip(period)
            .map(|(quota_us, period_us)| CpuQuota { quota_us, period_us }))
    }

    /// Starts to freeze or thaw the processes. [`is_frozen`](Cgroup::is_frozen) tells when they are frozen: a process
    /// that its quota throttles freezes in its next period.
    ///
    /// # Errors
    /// [`EngineError::Io`].
    pub fn freeze(&self, frozen: bool) -> Result<(), EngineError> {
        match self.version {
            Version::V1 => write(
                &self.freezer.join("freezer.state"),
                if frozen { "FROZEN" } else { "THAWED" },
            ),
            Version::V2 => write(
                &self.freezer.join("cgroup.freeze"),
                if frozen { "1" } else { "0" },
            ),
        }
    }

    /// Whether all of its processes are frozen.
    ///
    /// # Errors
    /// [`EngineError::Io`].
    pub fn is_frozen(&self) -> Result<bool, EngineError> {
        Ok(match self.version {
            Version::V1 => read(&self.freezer.join("freezer.state"))?.trim() == "FROZEN",
            Version::V2 => figure(&read(&self.freezer.join("cgroup.events"))?, "frozen") == 1,
        })
    }

    /// The ids of its processes.
    pub fn processes(&self) -> Vec<u32> {
        fs::read_to_string(self.freezer.join("cgroup.procs"))
            .map(|text| text.lines().filter_map(|line| line.parse().ok()).collect())
            .unwrap_or_default()
    }

    /// Kills all processes. Lifts the quota and thaws first: a throttled process dies late, and a frozen one (version
    /// 1) does not die. Returns true if no process was left.
    ///
    /// # Errors
    /// [`EngineError::Io`] if the group cannot be thawed.
    pub fn kill(&self) -> Result<bool, EngineError> {
        if !self.exists() {
            return Ok(true);
        }
        // Not every group has a CPU controller; what counts is that its processes die.
        let _ = self.set_quota(None);
        if self.version == Version::V2 && write(&self.freezer.join("cgroup.kill"), "1").is_ok() {
            return Ok(self.processes().is_empty());
        }
        match self.freeze(false) {
            Err(EngineError::Io {
                errno: rustix::io::Errno::NOENT,
                ..
            }) => return Ok(true),
            other => other?,
        }
        let processes = self.processes();
        for pid in &processes {
            if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                // One that has ended meanwhile is what was wanted.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        Ok(processes.is_empty())
    }

    /// Removes it from every tree. False where one is still busy: a process that was killed has not left yet.
    ///
    /// # Errors
    /// [`EngineError::Io`] for anything else.
    pub fn remove(&self) -> Result<bool, EngineError> {
        let mut gone = true;
        for tree in trees(&self.root, self.version) {
            let path = tree.join(&self.relative);
            match fs::remove_dir(&path) {
                Ok(()) => {}
                // Another error than "not found", where the tree itself cannot be written.
                Err(_) if !path.exists() => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ResourceBusy | ErrorKind::DirectoryNotEmpty
                    ) =>
                {
                    gone = false;
                }
                Err(error) => return Err(EngineError::io("remove control group", &path, &error)),
            }
        }
        Ok(gone)
    }

    /// What its processes have used so far. A controller that is not there counts 0.
    ///
    /// # Errors
    /// [`EngineError::Io`] where the group does not exist.
    pub fn usage(&self) -> Result<Usage, EngineError> {
        UsageFiles::open(self)?.read()
    }

    /// How many of its processes the kernel killed because its memory was used up.
    pub fn out_of_memory_kills(&self) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        fs::read_to_string(self.memory.join(file)).map_or(0, |text| figure(&text, "oom_kill"))
    }
}

/// The files that tell the usage of a control group, open: finding them takes longer than reading them.
#[derive(Debug)]
struct UsageFiles {
    version: Version,
    stat: File,
    /// The path of `stat`, for errors.
    path: PathBuf,
    /// Version 1 has the CPU time in a file of its own.
    cpu: Option<File>,
    memory: Option<File>,
}

impl UsageFiles {
    fn open(group: &Cgroup) -> Result<UsageFiles, EngineError> {
        let path = group.cpu.join("cpu.stat");
        let stat = File::open(&path).map_err(|error| EngineError::io("open", &path, &error))?;
        let (cpu, memory) = match group.version {
            Version::V1 => (
                File::open(group.cpu_account.join("cpuacct.usage")).ok(),
                group.memory.join("memory.usage_in_bytes"),
            ),
            Version::V2 => (None, group.memory.join("memory.current")),
        };
        Ok(UsageFiles {
            version: group.version,
            stat,
            path,
            cpu,
            memory: File::open(memory).ok(),
        })
    }

    /// What its processes have used so far.
    ///
    /// # Errors
    /// [`EngineError::Io`] where the group does not exist any more.
    fn read(&self) -> Result<Usage, EngineError> {
        let mut room = [0; USAGE_BYTES];
        let stat =
            text(&self.stat, &mut room).map_err(|error| EngineError::io("read", &self.path, &error))?;
        let (time, unit) = match self.version {
            Version::V1 => ("throttled_time", 1),
            Version::V2 => ("throttled_usec", 1_000),
        };
        let mut usage = Usage {
            cpu_ns: figure(stat, "usage_usec").saturating_mul(1_000),
            throttled_ns: figure(stat, time).saturating_mul(unit),
            throttled_periods: figure(stat, "nr_throttled"),
            periods: figure(stat, "nr_periods"),
            memory_bytes: 0,
        };
        let mut number = |file: &Option<File>| {
            let text = text(file.as_ref()?, &mut room).ok()?;
            text.trim().parse().ok()
        };
        usage.memory_bytes = number(&self.memory).unwrap_or(0);
        if self.version == Version::V1 {
            usage.cpu_ns = number(&self.cpu).unwrap_or(0);
        }
        Ok(usage)
    }
}

/// Reads the usage of containers again and again, and keeps the files of each open meanwhile.
#[derive(Debug, Default)]
pub(crate) struct UsageReader(RefCell<HashMap<String, UsageFiles>>);

impl UsageReader {
    /// What the processes of a container have used so far. `group` gives its control group where it is not known.
    ///
    /// # Errors
    /// Those of `group`; [`EngineError::NotFound`] where the control group does not exist; [`EngineError::Io`].
    pub(crate) fn usage(
        &self,
        name: &str,
        group: impl FnOnce() -> Result<Cgroup, EngineError>,
    ) -> Result<Usage, EngineError> {
        let mut files = self.0.borrow_mut();
        // One that is gone may be there again under this name.
        if let Some(usage) = files.get(name).and_then(|known| known.read().ok()) {
            return Ok(usage);
        }
        files.remove(name);
        let read = || {
            let opened = UsageFiles::open(&group()?)?;
            let usage = opened.read()?;
            files.insert(name.to_owned(), opened);
            Ok(usage)
        };
        read().map_err(|error| match error {
            EngineError::Io {
                errno: Errno::NOENT | Errno::NODEV,
                ..
            } => EngineError::NotFound {
                name: name.to_owned(),
            },
            other => other,
        })
    }

    /// Closes the files of containers that have ended.
    pub(crate) fn close_ended(&self, events: &[EngineEvent]) {
        for event in events {
            if let EngineEvent::Exited { name, .. } = event {
                self.0.borrow_mut().remove(name);
            }
        }
    }
}

/// A file of a control group, from its start.
fn text<'a>(file: &File, room: &'a mut [u8]) -> io::Result<&'a str> {
    let len = file.read_at(room, 0)?;
    std::str::from_utf8(&room[..len]).map_err(io::Error::other)
}

fn read(path: &Path) -> Result<String, EngineError> {
    fs::read_to_string(path).map_err(|error| EngineError::io("read", path, &error))
}

fn write(path: &Path, text: &str) -> Result<(), EngineError> {
    fs::write(path, text).map_err(|error| EngineError::io("write", path, &error))
}

/// The number after this word in lines of "word number"; 0 where there is none.
fn figure(text: &str, word: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(word)?.strip_prefix(' ')?.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of plain files that looks like version 2. The kernel's behaviour behind these files is not tested with
    /// it.
    fn fake_v2() -> (tempfile::TempDir, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let own = dir.path().join("inco/inco-a-1");
        fs::create_dir_all(&own).unwrap();
        for (file, text) in [
            ("cpu.max", "max 100000\n"),
            (
                "cpu.stat",
                "usage_usec 1234\nuser_usec 1000\nnr_periods 7\nnr_throttled 3\nthrottled_usec 55\n",
            ),
            ("memory.current", "4096\n"),
            ("memory.events", "low 0\noom 2\noom_kill 1\noom_group_kill 0\n"),
            ("cgroup.freeze", "0\n"),
            ("cgroup.events", "populated 1\nfrozen 0\n"),
            ("cgroup.procs", ""),
        ] {
            fs::write(own.join(file), text).unwrap();
        }
        let hierarchy = Hierarchy::at(dir.path()).unwrap();
        assert_eq!(hierarchy.version(), Version::V2);
        let group = hierarchy.group("/inco/inco-a-1");
        (dir, group)
    }

    #[test]
    fn version_2_on_a_fake_tree() {
        let (dir, group) = fake_v2();
        for (programs, weight) in [(0, "100"), (3, "300"), (1_000, "10000")] {
            group.weigh(programs);
            let set = fs::read_to_string(dir.path().join("inco/inco-a-1/cpu.weight")).unwrap();
            assert_eq!(set, weight, "{programs} programs");
        }
        let own = dir.path().join("inco/inco-a-1");
        assert_eq!(group.quota().unwrap(), None);
        let quota = CpuQuota {
            quota_us: 2_500,
            period_us: 10_000,
        };
        group.set_quota(Some(quota)).unwrap();
        assert_eq!(fs::read_to_string(own.join("cpu.max")).unwrap(), "2500 10000");
        assert_eq!(group.quota().unwrap(), Some(quota));
        group.set_quota(None).unwrap();
        assert_eq!(group.quota().unwrap(), None);

        assert!(!group.is_frozen().unwrap());
        group.freeze(true).unwrap();
        assert_eq!(fs::read_to_string(own.join("cgroup.freeze")).unwrap(), "1");
        fs::write(own.join("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        assert!(group.is_frozen().unwrap());

        assert_eq!(group.out_of_memory_kills(), 1);
        let usage = group.usage().unwrap();
        let expected = Usage {
            cpu_ns: 1_234_000,
            throttled_ns: 55_000,
            throttled_periods: 3,
            periods: 7,
            memory_bytes: 4_096,
        };
        assert_eq!(usage, expected);
        assert!(group.kill().unwrap());
        assert_eq!(fs::read_to_string(own.join("cgroup.kill")).unwrap(), "1");
    }

    #[test]
    fn a_quota_that_the_kernel_would_refuse_is_refused_here() {
        let (_dir, group) = fake_v2();
        let error = group
            .set_quota(Some(CpuQuota {
                quota_us: 999,
                period_us: 10_000,
            }))
            .unwrap_err();
        assert!(matches!(error, EngineError::BadSpec { .. }), "{error}");
    }

    #[test]
    fn the_group_of_a_process_in_both_versions() {
        let v1 = Hierarchy {
            root: "/c".into(),
            version: Version::V1,
        };
        let text = "6:freezer:/docker/abc\n2:cpuacct,cpu:/docker/abc\n0::/\n";
        assert_eq!(v1.group_of(text).unwrap().path(), "docker/abc");
        assert_eq!(
            v1.group_of(text).unwrap().freezer,
            Path::new("/c/freezer/docker/abc")
        );
        assert_eq!(v1.group_of("6:freezer:/\n"), None);
        assert_eq!(v1.group_of("6:freezer:/../x\n"), None);
        let v2 = Hierarchy {
            root: "/c".into(),
            version: Version::V2,
        };
        assert_eq!(
            v2.group_of("0::/system.slice/docker-abc.scope\n").unwrap().cpu,
            Path::new("/c/system.slice/docker-abc.scope")
        );
        assert_eq!(v2.group_of("nonsense"), None);
    }

    #[test]
    fn what_is_gone_counts_as_removed_and_killed() {
        let (dir, group) = fake_v2();
        fs::remove_dir_all(dir.path().join("inco")).unwrap();
        assert!(group.kill().unwrap());
        assert!(group.remove().unwrap());
        assert!(matches!(group.usage(), Err(EngineError::Io { .. })));
    }

    #[test]
    fn a_root_without_control_groups_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let error = Hierarchy::at(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&dir.path().display().to_string()), "{error}");
    }
}
