//! What a run leaves traces in, looked for when it has ended.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use api::types::InstanceRow;

use super::{PATIENCE, Place, eventually, text};

const CGROUPS: &str = "/sys/fs/cgroup";

/// All resources of a run that were observed. Filled during the run, because their names are lost afterwards.
#[derive(Clone, Debug)]
pub(crate) struct Traces {
    run_dir: PathBuf,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    containers: BTreeSet<String>,
    /// With the start time of each: numbers are used again.
    processes: BTreeSet<(u32, String)>,
    /// Control groups of containers and their parents of ours.
    cgroups: BTreeSet<PathBuf>,
}

impl Traces {
    pub(crate) fn of(run_dir: &Path) -> Traces {
        Traces {
            run_dir: run_dir.to_owned(),
            seen: Arc::default(),
        }
    }

    pub(crate) fn note(&self, instances: &[InstanceRow]) {
        let mut seen = self.seen.lock().unwrap();
        for instance in instances {
            seen.containers.extend(instance.container.clone());
            let Some(pid) = instance.pid else { continue };
            let Some(start) = start_time(pid) else { continue };
            seen.processes.insert((pid, start));
            seen.cgroups.extend(cgroups_of(pid));
        }
    }

    /// Ids of containers' processes that were seen and still run.
    pub(crate) fn processes_alive(&self) -> Vec<u32> {
        let seen = self.seen.lock().unwrap();
        let alive = seen
            .processes
            .iter()
            .filter(|(pid, start)| start_time(*pid).as_ref() == Some(start));
        alive.map(|(pid, _)| *pid).collect()
    }

    /// What there still is, in words.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = self
            .processes_alive()
            .iter()
            .map(|pid| format!("process {pid} of a container"))
            .collect();
        let run_dir = self.run_dir.display().to_string();
        left.extend(
            processes_of(&self.run_dir)
                .iter()
                .map(|(pid, command)| format!("process {pid} of inco: {command}")),
        );
        let seen = self.seen.lock().unwrap();
        left.extend(
            seen.cgroups
                .iter()
                .filter(|group| group.exists())
                .map(|group| format!("control group {}", group.display())),
        );
        let mounts = mounts_under(&self.run_dir);
        left.extend(mounts.iter().map(|target| format!("mount {}", target.display())));
        let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        left.extend(
            sockets
                .lines()
                .filter_map(|line| line.split_whitespace().nth(7))
                // A removed file cannot be reached: the memif driver of Open vSwitch never closes a listener.
                .filter(|path| path.starts_with(&run_dir) && Path::new(path).exists())
                .map(|path| format!("open socket {path}")),
        );
        files(&self.run_dir, &mut |path, is_socket| {
            if is_socket || path.parent() == Some(&self.run_dir.join("instances")) {
                left.push(format!("file {}", path.display()));
            }
        });
        for container in &seen.containers {
            let there = Command::new("docker")
                .args(["container", "inspect", "--format", "{{json .Mounts}}", container])
                .output();
            if let Ok(output) = there
                && output.status.success()
                && text(&output.stdout).contains(&run_dir)
            {
                left.push(format!("Docker's container {container}"));
            }
        }
        left
    }

    /// Nothing of the run may be there any more: containers, control groups, mounts, sockets, processes.
    pub(crate) fn assert_nothing_left(&self) {
        {
            let seen = self.seen.lock().unwrap();
            assert!(
                !seen.cgroups.is_empty(),
                "no control group was seen: this test looks for nothing"
            );
        }
        // The launcher ends by itself when it sees that inco has.
        let mut left = Vec::new();
        let gone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("nothing is left", PATIENCE, || {
                left = self.left();
                left.is_empty().then_some(())
            });
        }));
        assert!(gone.is_ok(), "left behind:\n{}", left.join("\n"));
    }
}

/// Where something is mounted in that directory, in the order in which it was.
pub(crate) fn mounts_under(directory: &Path) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| line.split_whitespace().nth(4))
        .map(PathBuf::from)
        .filter(|target| target.starts_with(directory))
        .collect()
}

fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which is in brackets and may hold anything: field 22 of the line.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    if fields.next() == Some("Z") {
        return None;
    }
    fields.nth(18).map(str::to_owned)
}

/// The directories of a process' control groups that are of containers: its own one, and the parents named `inco-*`.
fn cgroups_of(pid: u32) -> Vec<PathBuf> {
    let mut groups = Vec::new();
    let lines = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    for line in lines.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        if path == "/" {
            continue;
        }
        let mounts = if controllers.is_empty() {
            vec![CGROUPS.to_owned(), format!("{CGROUPS}/unified")]
        } else {
            controllers
                .split(',')
                .map(|name| format!("{CGROUPS}/{}", name.trim_start_matches("name=")))
                .collect()
        };
        for mount in mounts {
            let root = PathBuf::from(&mount);
            let group = root.join(path.trim_start_matches('/'));
            if !group.is_dir() {
                continue;
            }
            let parents = group
                .ancestors()
                .take_while(|parent| **parent != *root)
                .filter(|parent| {
                    **parent == *group
                        || parent
                            .file_name()
                            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"inco-"))
                });
            groups.extend(parents.map(Path::to_owned));
        }
    }
    groups
}

/// The control groups beside that of a process, its own one included, in the first hierarchy where it has one.
pub(crate) fn siblings(pid: u32) -> Vec<PathBuf> {
    let own = cgroups_of(pid).into_iter().next();
    let Some(Ok(entries)) = own.as_deref().and_then(Path::parent).map(fs::read_dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// The processes that run in a place, with their command lines.
fn processes_of(run_dir: &Path) -> Vec<(u32, String)> {
    let ours = format!("INCO_RUN_DIR={}", run_dir.display());
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok())
        .filter_map(|pid| {
            let environment = text(&fs::read(format!("/proc/{pid}/environ")).ok()?);
            let is_ours = environment.split('\0').any(|word| word == ours);
            let command = text(&fs::read(format!("/proc/{pid}/cmdline")).ok()?);
            is_ours.then(|| (pid, command.replace('\0', " ").trim().to_owned()))
        })
        .collect()
}

/// The launcher of the inco that runs in a place.
pub(crate) fn launcher_of(place: &Place) -> Vec<u32> {
    let all = processes_of(&place.run_dir()).into_iter();
    all.filter(|(_, command)| command.ends_with(" launcher"))
        .map(|(pid, _)| pid)
        .collect()
}

fn files(directory: &Path, see: &mut dyn FnMut(&Path, bool)) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        see(&entry.path(), kind.is_socket());
        if kind.is_dir() {
            files(&entry.path(), see);
        }
    }
}
