//! The `oci` engine under faults: the launcher is killed or hangs, inco is killed, a record is false.
//! And DPDK's own program as a container.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // these are tests

mod support;

use std::io::{BufRead, BufReader, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use engine::cgroup::Hierarchy;
use engine::image::{Beside, ImageFile};
use engine::logs::MAX_LOG_BYTES;
use engine::{
    ContainerSpec, ContainerState, CpuQuota, EngineEvent, Exchange, ImageRef, Label, OciConfig, OciEngine,
    Request,
};
use model::{Mount, Nanos};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use support::{IMAGE, PATIENCE, Place, Told, available, build_image, launcher, oci_missing, spec};

fn pid(raw: u32) -> Pid {
    Pid::from_raw(raw as i32).unwrap()
}

fn runs(raw: u32) -> bool {
    test_kill_process(pid(raw)).is_ok()
        && !std::fs::read_to_string(format!("/proc/{raw}/stat"))
            .unwrap_or_default()
            .contains(") Z ")
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn config(place: &Place) -> OciConfig {
    let mut config = OciConfig::at(place.run_dir());
    config.images = place.store();
    config
}

/// Names of the control groups that exist of containers of this place.
fn groups(place: &Place) -> Vec<String> {
    let hierarchy = Hierarchy::at("/sys/fs/cgroup").unwrap();
    let mut names = Vec::new();
    for parent in hierarchy
        .children("/")
        .iter()
        .filter(|name| name.starts_with("inco-"))
    {
        let of_this = |name: &String| place.run_dir().join("oci/containers").join(name).exists();
        names.extend(hierarchy.children(parent).into_iter().filter(of_this));
    }
    names
}

fn all() -> Label {
    Label::new("inco.service", "probe")
}

#[test]
fn a_killed_launcher_is_replaced_and_containers_run_on() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let launcher = launcher(&place.run_dir());
    let launcher_pid = launcher.pid();
    let mut told = Told::new(Box::new(OciEngine::start(config(&place), launcher).unwrap()));
    let first = told.create(&spec("inco-launcher-dies-1", &["sleep"]));
    kill_process(pid(launcher_pid), Signal::KILL).unwrap();
    told.wait("engine down", |event| {
        matches!(event, EngineEvent::EngineDown { .. }).then_some(())
    });
    told.wait("engine up", |event| {
        matches!(event, EngineEvent::EngineUp { .. }).then_some(())
    });
    assert!(runs(first));
    assert_eq!(told.events, vec![]);

    told.create(&spec("inco-launcher-dies-2", &["sleep"]));
    told.pause("inco-launcher-dies-1").unwrap();
    told.resume("inco-launcher-dies-1").unwrap();
    kill_process(pid(first), Signal::KILL).unwrap();
    let (exit, ..) = told.exit_of("inco-launcher-dies-1");
    assert_eq!(exit.status, None, "the exit status is unknown");
    for name in ["inco-launcher-dies-1", "inco-launcher-dies-2"] {
        told.remove(name).unwrap();
    }
    assert_eq!(groups(&place), Vec::<String>::new());
}

#[test]
fn while_a_launcher_hangs_creates_fail_and_nothing_is_left_of_them() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let launcher = launcher(&place.run_dir());
    let launcher_pid = pid(launcher.pid());
    let mut told = Told::new(Box::new(OciEngine::start(config(&place), launcher).unwrap()));
    let first = told.create(&spec("inco-launcher-hangs-1", &["sleep"]));
    kill_process(launcher_pid, Signal::STOP).unwrap();
    let late = told.submit(Request::Create(Box::new(spec(
        "inco-launcher-hangs-2",
        &["sleep"],
    ))));
    let reason = told.wait("engine down", |event| match event {
        EngineEvent::EngineDown { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert!(reason.contains("does not answer"), "{reason}");
    assert!(told.answer(late).unwrap_err().is_transient());
    let refused = told
        .ask(Request::Create(Box::new(spec(
            "inco-launcher-hangs-3",
            &["sleep"],
        ))))
        .unwrap_err();
    assert!(refused.is_transient(), "{refused}");
    // What needs no launcher works.
    told.pause("inco-launcher-hangs-1").unwrap();
    told.resume("inco-launcher-hangs-1").unwrap();
    assert!(runs(first));

    kill_process(launcher_pid, Signal::CONT).unwrap();
    let after = told.wait("engine up", |event| match event {
        EngineEvent::EngineUp { after, .. } => Some(*after),
        _ => None,
    });
    assert!(after > Nanos::ZERO);
    // The order that it finds now was given up: whatever comes of it goes.
    told.create(&spec("inco-launcher-hangs-3", &["sleep"]));
    until("the late one is gone", || {
        groups(&place) == ["inco-launcher-hangs-1", "inco-launcher-hangs-3"]
            && !place.run_dir().join("oci/state/inco-launcher-hangs-2").exists()
    });
    let listed: Vec<String> = told
        .engine
        .list(&all())
        .unwrap()
        .into_iter()
        .map(|container| container.name)
        .collect();
    assert_eq!(listed, ["inco-launcher-hangs-1", "inco-launcher-hangs-3"]);
    for name in listed {
        told.remove(&name).unwrap();
    }
    assert_eq!(groups(&place), Vec::<String>::new());
}

/// A command that is starting enters the container's control group, and makes it anew where it was removed meanwhile.
#[test]
fn a_command_that_is_starting_makes_nothing_of_a_removed_container() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let mut told = Told::new(Box::new(
        OciEngine::start(config(&place), launcher(&place.run_dir())).unwrap(),
    ));
    // No other run's leavings, should there be any.
    let own = std::process::id();
    let names = (0..40).map(|round| format!("inco-late-command-{own}-{round}"));
    let names: Vec<String> = names.collect();
    for (round, name) in (0..).zip(&names) {
        told.create(&spec(name, &["sleep"]));
        let command = told.submit(Request::Exec {
            name: name.clone(),
            command: vec!["/probe".to_owned(), "stubborn".to_owned()],
            limit: Nanos::from_secs(8),
        });
        // Another moment of its start each time.
        std::thread::sleep(Duration::from_micros(250 * round));
        told.remove(name).unwrap();
        assert!(told.answer(command).is_err());
    }
    let hierarchy = Hierarchy::at("/sys/fs/cgroup").unwrap();
    let parents = hierarchy.children("/");
    let parents = parents.iter().filter(|name| name.starts_with("inco-"));
    let left: Vec<String> = parents.flat_map(|parent| hierarchy.children(parent)).collect();
    let left: Vec<&String> = left.iter().filter(|group| names.contains(group)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_process_that_only_has_the_id_of_a_container_is_not_taken_for_it() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let mut told = Told::new(Box::new(place.engine()));
    let names = ["inco-lies-1", "inco-lies-2", "inco-lies-3"];
    let pids: Vec<u32> = names
        .iter()
        .map(|name| told.create(&spec(name, &["sleep"])))
        .collect();
    told.pause("inco-lies-2").unwrap();
    drop(told);
    // Another start time, no record at all, and a record cut short; the second is frozen, so that it would not die of
    // a signal.
    let record = |name: &str| {
        place
            .run_dir()
            .join("oci/containers")
            .join(name)
            .join("record.json")
    };
    let text = std::fs::read_to_string(record("inco-lies-1")).unwrap();
    let mut lie: serde_json::Value = serde_json::from_str(&text).unwrap();
    lie["start_ticks"] = serde_json::json!(1);
    std::fs::write(record("inco-lies-1"), lie.to_string()).unwrap();
    std::fs::remove_file(record("inco-lies-2")).unwrap();
    std::fs::write(record("inco-lies-3"), &text[..text.len() / 2]).unwrap();

    let mut told = Told::new(Box::new(place.engine()));
    assert_eq!(told.engine.list(&all()).unwrap(), vec![]);
    assert_eq!(groups(&place), Vec::<String>::new());
    assert!(pids.iter().all(|&pid| !runs(pid)), "{pids:?}");
    // The names are free again.
    told.create(&spec("inco-lies-1", &["sleep"]));
    told.remove("inco-lies-1").unwrap();
}

#[test]
fn one_run_directory_has_one_engine() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let first = OciEngine::start(config(&place), launcher(&place.run_dir())).unwrap();
    let other = tempfile::tempdir().unwrap();
    let error = OciEngine::start(config(&place), launcher(other.path())).unwrap_err();
    assert!(error.to_string().contains("another inco"), "{error}");
    drop(first);
    drop(OciEngine::start(config(&place), launcher(&place.run_dir())).unwrap());
}

/// Whoever replaces or removes an image, its containers keep its files. They go with the first build after the last of
/// them.
#[test]
fn an_image_that_is_replaced_stays_for_its_containers() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let mut told = Told::new(Box::new(place.engine()));
    let images = || {
        std::fs::read_dir(place.dir.path().join("images"))
            .unwrap()
            .count()
    };
    let has_files = |pid: u32| Path::new(&format!("/proc/{pid}/root/probe")).exists();
    let first = told.create(&spec("inco-replaced-1", &["sleep"]));
    build_image(&place.store());
    assert!(has_files(first));
    assert_eq!(images(), 2);
    let second = told.create(&spec("inco-replaced-2", &["sleep"]));
    place.store().remove(&ImageRef::from(IMAGE)).unwrap();
    assert!(has_files(first) && has_files(second));
    build_image(&place.store());
    assert_eq!(images(), 3);
    told.remove("inco-replaced-1").unwrap();
    build_image(&place.store());
    assert!(has_files(second));
    assert_eq!(
        images(),
        2,
        "that of the first one is gone, that of the second is not"
    );
    told.remove("inco-replaced-2").unwrap();
    build_image(&place.store());
    assert_eq!(images(), 1);
}

#[test]
fn files_that_a_launcher_keeps_outlive_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let memory = rustix::fs::memfd_create("table", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&memory, b"pins").unwrap();
    let mut first = launcher(dir.path());
    let first_pid = first.pid();
    let keeper = first.keeper().unwrap();
    assert!(keeper.take().unwrap().is_empty());
    keeper.keep("table", "four bytes", &[memory.as_fd()]).unwrap();
    drop((first, keeper, memory));

    let mut second = launcher(dir.path());
    assert_eq!(second.pid(), first_pid, "it waited");
    let keeper = second.keeper().unwrap();
    let mut entries = keeper.take().unwrap();
    assert_eq!((entries.len(), entries[0].note.as_str()), (1, "four bytes"));
    let mut file = std::fs::File::from(entries[0].files.pop().unwrap());
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "pins");
    keeper.clear().unwrap();
    drop((second, keeper));
    until("the launcher is gone", || !runs(first_pid));
    assert!(!dir.path().join("launcher.sock").exists() && !dir.path().join("keeper.sock").exists());
}

#[test]
fn a_launcher_whose_wait_is_over_has_the_program_clean_up_and_waits_on() {
    let dir = tempfile::tempdir().unwrap();
    let memory = rustix::fs::memfd_create("table", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut first = launcher(dir.path());
    let first_pid = first.pid();
    let keeper = first.keeper().unwrap();
    keeper.keep("table", "", &[memory.as_fd()]).unwrap();
    keeper.linger(Duration::ZERO).unwrap();
    drop((first, keeper));
    // This program says that it was asked, and removes nothing.
    until("it was asked to clean up", || {
        dir.path().join("cleaned-up").exists()
    });
    let mut second = launcher(dir.path());
    assert_eq!(second.pid(), first_pid);
    let keeper = second.keeper().unwrap();
    assert_eq!(keeper.take().unwrap().len(), 1);
    keeper.clear().unwrap();
    drop((second, keeper));
    until("the launcher is gone", || !runs(first_pid));
}

#[test]
fn a_flood_of_output_takes_no_more_of_a_cpu_than_its_share() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let mut told = Told::new(Box::new(place.engine()));
    told.create(&spec("inco-flood-1", &["flood"]));
    let read = || place.logs.list("").iter().map(|row| row.next).sum::<u64>();
    until("it has written more than is kept", || {
        read() > MAX_LOG_BYTES as u64
    });
    // A program that writes faster than the engine reads blocks in the kernel.
    let (before, since) = (read(), Instant::now());
    until("half a second has passed", || {
        since.elapsed() >= Duration::from_millis(500)
    });
    let most = 64 * 1024 * 100 * since.elapsed().as_millis() as u64 / 1_000;
    assert!(
        read() - before <= most + 2 * 64 * 1024,
        "{} bytes, {most} may be",
        read() - before
    );
    told.stop("inco-flood-1", 5_000).unwrap();
    told.remove("inco-flood-1").unwrap();
}

/// A container of this place that meets inco in a directory of its own.
fn meeting(place: &Place, name: &str, command: &[&str]) -> ContainerSpec {
    let mut spec = spec(name, command);
    spec.exchange = Some(Exchange {
        source: place.run_dir().join("instances").join(name),
        target: "/run/inco".into(),
    });
    spec
}

/// What stands in a file of a process of this machine.
fn of_process(pid: u32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap()
}

/// The options of the last mount at that place, as this process sees it.
fn mount_options(pid: u32, at: &str) -> String {
    let mounts = of_process(pid, "mountinfo");
    let of = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(at));
    of.unwrap_or_else(|| panic!("no mount at {at}: {mounts}"))
        .split(' ')
        .nth(5)
        .unwrap()
        .to_owned()
}

#[test]
fn root_in_a_container_has_no_rights_on_the_host_or_in_another_container() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let names = ["inco-ids-1", "inco-ids-2"];
    let mut told = Told::new(Box::new(place.engine()));
    let ids_of = |pid: u32| -> u32 {
        let maps = ["uid_map", "gid_map"].map(|map| of_process(pid, map));
        assert_eq!(maps[0], maps[1]);
        let map: Vec<u32> = maps[0].split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert!(
            matches!(map[..], [0, 0x7000_0000..0x7ffe_0000, 65_536]),
            "{map:?}"
        );
        map[1]
    };
    let mut first_ids = Vec::new();
    for name in names {
        let pid = told.create(&meeting(&place, name, &["meet", "/run/inco"]));
        let first_id = ids_of(pid);
        first_ids.push(first_id);
        let status = of_process(pid, "status");
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        assert_eq!(groups.map(str::trim), Some(""), "none of the host's root");
        let dir = place.run_dir().join("instances").join(name);
        let data = std::fs::metadata(&dir).unwrap();
        assert_eq!(
            (data.uid(), data.gid(), data.mode() & 0o7777),
            (first_id, first_id, 0o700)
        );
        for at in ["/", "/run/inco"] {
            let options = mount_options(pid, at);
            assert!(
                options.contains("nosuid") && options.contains("nodev"),
                "{at}: {options}"
            );
        }
        // inco meets it there, and it alone.
        let socket = dir.join("port.sock");
        until("it listens", || UnixStream::connect(&socket).is_ok());
        let mut words = [0; 4];
        UnixStream::connect(&socket)
            .unwrap()
            .read_exact(&mut words)
            .unwrap();
        assert_eq!(&words, b"here");
        let seen = std::fs::read_dir(format!("/proc/{pid}/root/run/inco")).unwrap();
        assert_eq!(seen.count(), 1);
    }
    assert_ne!(first_ids[0], first_ids[1], "each has ids of its own");
    // Those of the first are free again, and those of one that is taken over are not.
    told.remove(names[0]).unwrap();
    drop(told);
    let mut told = Told::new(Box::new(place.engine()));
    let pid = told.create(&spec("inco-ids-3", &["sleep"]));
    assert_eq!(ids_of(pid), first_ids[0]);
    let instances = std::fs::metadata(place.run_dir().join("instances")).unwrap();
    assert_eq!(instances.mode() & 0o7777, 0o700);
    for name in [names[1], "inco-ids-3"] {
        told.remove(name).unwrap();
    }
    assert_eq!(
        std::fs::read_dir(place.run_dir().join("instances"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn a_container_with_the_hosts_ids_runs_as_well() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let mut told = Told::new(Box::new(place.engine()));
    let mut spec = meeting(&place, "inco-host-ids-1", &["meet", "/run/inco"]);
    spec.user_namespace = false;
    let pid = told.create(&spec);
    assert!(of_process(pid, "uid_map").trim().ends_with("4294967295"));
    let socket = place.run_dir().join("instances/inco-host-ids-1/port.sock");
    until("it listens", || socket.exists());
    let command = ["/probe", "beside"].map(str::to_owned).to_vec();
    let beside = Request::Exec {
        name: spec.name.clone(),
        command,
        limit: Nanos::from_secs(8),
    };
    told.ask(beside).unwrap();
    told.remove(&spec.name).unwrap();
    told.exit_of(&spec.name);
    spec.command = ["/probe", "confined"].map(str::to_owned).to_vec();
    told.create(&spec);
    // It says what it could do; how it ended is told late on a busy machine.
    let (exit, output, _) = told.exit_of(&spec.name);
    assert_eq!((output.as_str(), exit.signal), ("", None));
    told.remove(&spec.name).unwrap();
}

#[test]
fn what_belongs_to_root_belongs_to_the_containers_root() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let secret = place.dir.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let files = [
        ImageFile::program(support::probe(), "/probe"),
        ImageFile {
            source: secret.clone(),
            target: "/etc/secret".into(),
            mode: 0o600,
        },
    ];
    let image = ImageRef::from("inco/secret");
    place.store().build_scratch(&image, &files, &[], &[]).unwrap();
    let mut told = Told::new(Box::new(place.engine()));
    let mut spec = spec("inco-owner-1", &["cat", "/etc/secret"]);
    spec.image = image;
    let mut run = |spec: &ContainerSpec| {
        told.create(spec);
        let (_, output, _) = told.exit_of(&spec.name);
        told.remove(&spec.name).unwrap();
        output
    };
    assert_eq!(run(&spec), "secret");
    // A single file, which may be read and not written; and a directory, in which files are made that are root's on
    // the host.
    let shared = place.dir.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let shown = |source: &Path, target: &str, read_only| Mount {
        source: source.to_owned(),
        target: target.into(),
        read_only,
    };
    spec.mounts = vec![
        shown(&secret, "/run/secret", true),
        shown(&shared, "/shared", false),
    ];
    spec.command[2] = "/run/secret".to_owned();
    assert_eq!(run(&spec), "secret");
    spec.command = ["/probe", "count", "/run/secret"].map(str::to_owned).to_vec();
    let output = run(&spec);
    assert!(output.contains("Read-only"), "{output}");
    spec.command = ["/probe", "meet", "/shared"].map(str::to_owned).to_vec();
    told.create(&spec);
    until("it listens", || shared.join("port.sock").exists());
    assert_eq!(std::fs::metadata(shared.join("port.sock")).unwrap().uid(), 0);
    told.remove(&spec.name).unwrap();
}

#[test]
fn a_container_that_fills_its_directory_harms_no_other() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let instances = place.run_dir().join("instances");
    let mut told = Told::new(Box::new(place.engine()));
    let fill = meeting(&place, "inco-fill-1", &["fill", "/run/inco"]);
    told.create(&fill);
    let last = instances.join("inco-fill-1");
    until("it is full", || {
        let room = rustix::fs::statvfs(&last).unwrap();
        room.f_bavail == 0 && room.f_favail == 0
    });
    let room = rustix::fs::statvfs(&last).unwrap();
    assert_eq!(
        (room.f_blocks * room.f_frsize, room.f_files),
        (engine::exchange::EXCHANGE_BYTES, engine::exchange::EXCHANGE_FILES)
    );
    // Another one has its own room, and so has one in the place of that which fails.
    for name in ["inco-fill-2", "inco-fill-3"] {
        told.create(&meeting(&place, name, &["meet", "/run/inco"]));
        let socket = instances.join(name).join("port.sock");
        until("it listens", || UnixStream::connect(&socket).is_ok());
        told.stop(name, 0).unwrap();
    }
    // With the container its directory is gone, also where another run removes it.
    told.remove("inco-fill-2").unwrap();
    drop(told);
    std::fs::remove_file(place.run_dir().join("oci/containers/inco-fill-3/config.json")).unwrap();
    let mut told = Told::new(Box::new(place.engine()));
    told.remove("inco-fill-1").unwrap();
    drop(told);
    assert_eq!(std::fs::read_dir(&instances).unwrap().count(), 0);
    let mounts = of_process(std::process::id(), "mountinfo");
    assert!(!mounts.contains(instances.to_str().unwrap()), "{mounts}");
}

/// Not a test by itself: what the next one runs with few open files, and without the right to more.
#[test]
fn engine_with_few_files() {
    let Ok(dir) = std::env::var("INCO_TEST_FEW_FILES") else {
        return;
    };
    let dir = PathBuf::from(dir);
    let error = OciEngine::start(OciConfig::at(&dir), launcher(&dir)).unwrap_err();
    println!("\nrefused: {error}");
}

#[test]
fn too_few_open_files_are_reported_at_once_with_the_remedy() {
    let missing = (!Path::new("/usr/bin/setpriv").exists()).then(|| "there is no setpriv".to_owned());
    if !available("oci", oci_missing()) || !available("oci", missing) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let own = std::env::current_exe().unwrap();
    let output = Command::new("setpriv")
        .args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource"])
        .args(["prlimit", "--nofile=512:1024"])
        .arg(own)
        .args(["--exact", "engine_with_few_files", "--nocapture"])
        .env("INCO_TEST_FEW_FILES", dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let told = text
        .lines()
        .find(|line| line.starts_with("refused: "))
        .unwrap_or(&text);
    assert!(told.contains("the hard limit of open files is 1024"), "{told}");
    assert!(
        told.contains("ulimit -Hn 4096") && told.contains("LimitNOFILE=4096"),
        "{told}"
    );
}

/// Not a test by itself: what the next one runs in a process of its own, and kills.
#[test]
fn victim() {
    let Ok(dir) = std::env::var("INCO_TEST_VICTIM") else {
        return;
    };
    let dir = PathBuf::from(dir);
    let mut config = OciConfig::at(dir.join("run"));
    config.images = engine::image::Store::at(dir.join("images"));
    let mut told = Told::new(Box::new(
        OciEngine::start(config, launcher(&dir.join("run"))).unwrap(),
    ));
    let label = all();
    if told.engine.list(&label).unwrap().is_empty() {
        told.create(&spec("inco-victim-stays", &["sleep"]));
    }
    println!("\nready");
    for i in 0.. {
        let names: Vec<String> = (0..3).map(|j| format!("inco-victim-{}-{j}", i % 5)).collect();
        let made: Vec<_> = names
            .iter()
            .map(|name| told.submit(Request::Create(Box::new(spec(name, &["sleep"])))))
            .collect();
        for ticket in made {
            let _ = told.answer(ticket);
        }
        for name in &names {
            let _ = told.pause(name);
            let _ = told.remove(name);
        }
    }
}

#[test]
fn killed_at_any_moment_nothing_is_doubled_orphaned_or_left() {
    if !available("oci", oci_missing()) {
        return;
    }
    let place = Place::new();
    let mut stays = None;
    for round in 0..5_u64 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--nocapture"])
            .env("INCO_TEST_VICTIM", place.dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.unwrap() == "ready"),
            "the victim died by itself"
        );
        // Any moment: each round another one.
        std::thread::sleep(Duration::from_millis(5 + 13 * round));
        victim.kill().unwrap();
        victim.wait().unwrap();

        let mut told = Told::new(Box::new(place.engine()));
        let listed = told.engine.list(&all()).unwrap();
        let names: Vec<String> = listed.iter().map(|container| container.name.clone()).collect();
        // What exists is what is listed, and runs.
        assert_eq!(groups(&place), names);
        for container in &listed {
            assert!(runs(container.pid), "{container:?}");
            assert_ne!(container.state, ContainerState::Exited);
        }
        let stayed = listed
            .iter()
            .find(|container| container.name == "inco-victim-stays")
            .unwrap();
        assert_eq!(
            *stays.get_or_insert(stayed.pid),
            stayed.pid,
            "it is the same one, not another"
        );
        for name in names.iter().filter(|name| *name != "inco-victim-stays") {
            told.remove(name).unwrap();
        }
        if round == 4 {
            told.remove("inco-victim-stays").unwrap();
        }
    }
    assert_eq!(groups(&place), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(place.run_dir()).unwrap().count(), 0);
}

#[test]
fn dpdk_testpmd_runs_in_a_container() {
    let program = Path::new("/usr/bin/dpdk-testpmd");
    let missing = (!program.exists()).then(|| "there is no /usr/bin/dpdk-testpmd (package dpdk)".to_owned());
    if !available("oci", oci_missing()) || !available("dpdk", missing) {
        return;
    }
    let place = Place::new();
    place
        .store()
        .from_host_program(&ImageRef::from("inco/testpmd"), program, &Beside::default())
        .unwrap();
    let shared = place.dir.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let mut testpmd = spec("inco-testpmd-1", &[]);
    testpmd.image = "inco/testpmd".into();
    let arguments = "/usr/bin/dpdk-testpmd --lcores=0@0,1@0 --no-huge -m 64 --no-pci --no-telemetry --no-shconf \
                     --vdev=net_memif0,role=server,socket=/run/memif/m.sock,socket-abstract=no \
                     -- --forward-mode=macswap --auto-start --total-num-mbufs=2048 --stats-period=3600";
    testpmd.command = arguments.split_whitespace().map(str::to_owned).collect();
    testpmd.mounts = vec![Mount {
        source: shared.clone(),
        target: "/run/memif".into(),
        read_only: false,
    }];
    testpmd.memory_bytes = Some(256 << 20);
    testpmd.cpu = Some(CpuQuota::of_cpus(0.5));

    let mut told = Told::new(Box::new(place.engine()));
    told.create(&testpmd);
    let socket = shared.join("m.sock");
    let deadline = Instant::now() + PATIENCE;
    while !socket.exists() {
        told.engine.poll(&mut told.events);
        assert_eq!(told.events, vec![], "it ended by itself");
        assert!(Instant::now() < deadline, "no memif socket within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(told.engine.list(&all()).unwrap().len(), 1);
    told.remove("inco-testpmd-1").unwrap();
}
