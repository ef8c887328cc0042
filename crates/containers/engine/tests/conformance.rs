//! What every engine does, asked of all of them: the fake, `oci`, `docker`, `swarm` and `kubernetes`. A new engine is one more module at
//! the end. What an engine lacks ([`Abilities`]) it has to refuse.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // these are tests

mod support;

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clock::monotonic;
use engine::cgroup::{Hierarchy, ROOT, Version};
use engine::logs::{Logs, MAX_LOG_BYTES};
use engine::{
    Abilities, ContainerState, CpuQuota, Engine, EngineError, EngineEvent, Execution, Exit, FakeConfig,
    FakeEngine, Label, MAX_COMMAND_OUTPUT_BYTES, Request,
};
use model::Nanos;
use support::wire::{self, Wire};
use support::{Told, spec};

/// Docker's daemon is one for all: tests at once would measure each other, and see each other's containers.
static DOCKER: Mutex<()> = Mutex::new(());

/// An engine under test, and what only its test knows.
trait Subject {
    fn told(&mut self) -> &mut Told;
    /// Begins the names of this test's containers, so that tests at once do not meet.
    fn prefix(&self) -> String;
    /// The fake, where it is one: its programs do nothing by themselves.
    fn fake(&self) -> Option<FakeEngine>;
    /// Drops the engine and makes another one over the same containers.
    fn reopen(&mut self);
    /// All resources of a container on this machine: processes, control groups, files, mounts.
    fn traces(&self, name: &str) -> Vec<String>;

    fn name(&self, what: &str) -> String {
        format!("inco-{}-{what}", self.prefix())
    }

    /// What the engine is asked for beside what all are.
    fn complete(&self, _spec: &mut engine::ContainerSpec) {}

    fn kill(&self, name: &str, pid: u32) {
        match self.fake() {
            Some(fake) => assert!(fake.kill(name, 9)),
            None => kill(pid, rustix::process::Signal::KILL),
        }
    }
}

fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// The number in a file that the probe counts in.
fn counted(path: &Path) -> u64 {
    std::fs::read_to_string(path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

fn label_of(subject: &dyn Subject) -> Label {
    Label::new("inco.test", subject.prefix())
}

/// The containers of this test.
fn list(subject: &mut dyn Subject) -> Vec<engine::Container> {
    let label = label_of(subject);
    subject.told().engine.list(&label).unwrap()
}

fn labelled(subject: &dyn Subject, what: &str, command: &[&str]) -> engine::ContainerSpec {
    let mut spec = spec(&subject.name(what), command);
    spec.labels.insert("inco.test".into(), subject.prefix());
    subject.complete(&mut spec);
    spec
}

/// What the engine can do, and whether its containers run on this machine.
fn can(subject: &mut dyn Subject) -> (Abilities, bool) {
    let engine = &subject.told().engine;
    (engine.abilities(), engine.is_local())
}

/// What an engine lacks it refuses, whatever the state of a container is.
fn what_it_lacks_is_refused(subject: &mut dyn Subject) {
    let spec = labelled(subject, "lacks", &["sleep"]);
    let name = spec.name.clone();
    subject.told().create(&spec);
    let (can, _) = can(subject);
    let command = vec!["/probe".to_owned(), "exit".to_owned(), "0".to_owned()];
    let limit = Nanos::from_secs(8);
    for (has, request) in [
        (can.pause, Request::Pause { name: name.clone() }),
        (can.pause, Request::Resume { name: name.clone() }),
        (
            can.quota,
            Request::SetQuota {
                name: name.clone(),
                quota: Some(CpuQuota::of_cpus(0.5)),
            },
        ),
        (
            can.commands,
            Request::Exec {
                name: name.clone(),
                command: command.clone(),
                limit,
            },
        ),
    ] {
        let verb = request.verb();
        match subject.told().ask(request) {
            Ok(_) => assert!(has, "{verb}"),
            Err(EngineError::Unsupported { verb: said, .. }) => {
                assert!(!has && said == verb, "{verb}: {said}")
            }
            Err(error) => panic!("{verb}: {error}"),
        }
    }
    let (told, executed) = channel();
    subject.told().engine.execute(Execution {
        name: name.clone(),
        command,
        limit,
        answer: Box::new(move |result| told.send(result).unwrap()),
    });
    let executed = executed.recv_timeout(support::PATIENCE).unwrap();
    assert_eq!(executed.is_ok(), can.commands, "{executed:?}");
    let usage = subject.told().engine.usage(&name);
    assert_eq!(usage.is_ok(), can.usage, "{usage:?}");
    subject.told().remove(&name).unwrap();
    assert_eq!(subject.traces(&name), Vec::<String>::new());
}

/// Why there cannot be such a container.
fn refused(subject: &mut dyn Subject, spec: &engine::ContainerSpec) -> EngineError {
    let create = Request::Create(Box::new(spec.clone()));
    subject.told().ask(create).unwrap_err()
}

fn a_container_runs_ends_and_leaves_nothing_behind(subject: &mut dyn Subject) {
    let spec = labelled(subject, "life", &["sleep"]);
    let name = spec.name.clone();
    let label = label_of(subject);
    let (can, is_local) = can(subject);
    let pid = subject.told().create(&spec);
    assert_eq!(pid > 0, is_local);

    let listed = subject.told().engine.list(&label).unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    let only = listed.first().unwrap();
    assert_eq!(
        (&only.name, only.pid, only.state),
        (&name, pid, ContainerState::Running)
    );
    assert_eq!(only.labels, spec.labels);
    assert_eq!(
        subject
            .told()
            .engine
            .list(&Label::any("inco.test"))
            .unwrap()
            .iter()
            .filter(|c| c.name == name)
            .count(),
        1
    );
    assert_eq!(
        subject
            .told()
            .engine
            .list(&Label::new("inco.test", "nobody"))
            .unwrap(),
        vec![]
    );
    assert_eq!(subject.told().engine.usage(&name).is_ok(), can.usage);
    assert!(
        !subject.traces(&name).is_empty(),
        "the test must see what it looks for"
    );
    if can.pause {
        it_pauses_and_goes_on(subject, &name);
    }
    if can.quota {
        let mut set = |quota| {
            let name = name.clone();
            subject.told().ask(Request::SetQuota { name, quota })
        };
        set(Some(CpuQuota::of_cpus(0.5))).unwrap();
        // An API server has limits change, and never go.
        let lifted = set(None);
        let is_kept = lifted
            .as_ref()
            .is_err_and(|error| error.to_string().contains("limits cannot be removed"));
        assert!(lifted.is_ok() || !is_local && is_kept, "{lifted:?}");
    }

    subject.told().stop(&name, 5_000).unwrap();
    let (exit, ..) = subject.told().exit_of(&name);
    let by_term = Exit {
        signal: Some(15),
        ..Exit::default()
    };
    // An orchestrator may have forgotten it.
    let is_unknown = !is_local && exit == Exit::default();
    assert!(
        exit.status == Some(0) || exit == by_term || is_unknown,
        "{exit:?}"
    );
    subject.told().stop(&name, 5_000).unwrap();
    assert_eq!(
        subject.told().engine.list(&label).unwrap().first().unwrap().state,
        ContainerState::Exited
    );

    subject.told().remove(&name).unwrap();
    assert_eq!(subject.told().engine.list(&label).unwrap(), vec![]);
    assert_eq!(subject.traces(&name), Vec::<String>::new());
    if can.usage {
        assert!(matches!(
            subject.told().engine.usage(&name),
            Err(EngineError::NotFound { .. })
        ));
    }
    subject.told().remove(&name).unwrap();
    assert_eq!(subject.told().events, vec![], "told twice");
}

fn it_pauses_and_goes_on(subject: &mut dyn Subject, name: &str) {
    let state = |subject: &mut dyn Subject| list(subject).first().unwrap().state;
    subject.told().pause(name).unwrap();
    assert_eq!(state(subject), ContainerState::Paused);
    subject.told().pause(name).unwrap();
    subject.told().resume(name).unwrap();
    subject.told().resume(name).unwrap();
    assert_eq!(state(subject), ContainerState::Running);
}

fn what_cannot_be_is_refused_and_leaves_nothing(subject: &mut dyn Subject) {
    let spec = labelled(subject, "refused", &["sleep"]);
    let name = spec.name.clone();
    let mut missing = spec.clone();
    missing.image = "inco/no-such-image:1".into();
    let error = refused(subject, &missing);
    let image = "inco/no-such-image:1".to_owned();
    let (is_right, advice) = match (subject.told().engine.driver(), &error) {
        ("docker", error) => (
            *error == EngineError::NotInDocker { image },
            "`docker pull inco/no-such-image:1`",
        ),
        ("swarm" | "kubernetes", EngineError::NotAtNodes { image: said, .. }) => {
            (*said == image, "put it into a registry")
        }
        (_, error) => (
            *error == EngineError::ImageMissing { image },
            "`inco image import`",
        ),
    };
    assert!(is_right && error.to_string().contains(advice), "{error}");
    let mut bad = spec.clone();
    bad.name = "inco-../../x".into();
    assert!(matches!(refused(subject, &bad), EngineError::BadName { .. }));
    let mut bad = spec.clone();
    bad.cpu = Some(CpuQuota {
        quota_us: 1,
        period_us: 10_000,
    });
    assert!(matches!(refused(subject, &bad), EngineError::BadSpec { .. }));
    if subject.fake().is_none() {
        let mut bad = spec.clone();
        bad.command = vec!["/no-such-program".into()];
        let error = refused(subject, &bad);
        assert!(
            matches!(&error, EngineError::Start { reason, .. } if reason.contains("no-such-program")),
            "{error}"
        );
        let mut bad = spec.clone();
        bad.mounts = vec![model::Mount {
            source: "/no/such/dir".into(),
            target: "/x".into(),
            read_only: true,
        }];
        assert!(refused(subject, &bad).to_string().contains("/no/such/dir"));
    }
    assert_eq!(subject.traces(&name), Vec::<String>::new());

    let (can, _) = can(subject);
    for (has, request) in [
        (can.pause, Request::Pause { name: name.clone() }),
        (can.pause, Request::Resume { name: name.clone() }),
        (
            can.quota,
            Request::SetQuota {
                name: name.clone(),
                quota: None,
            },
        ),
        (
            true,
            Request::Stop {
                name: name.clone(),
                grace: Nanos::ZERO,
            },
        ),
    ] {
        if !has {
            continue;
        }
        let error = subject.told().ask(request).unwrap_err();
        assert_eq!(error, EngineError::NotFound { name: name.clone() });
    }

    let pid = subject.told().create(&spec);
    assert_eq!(
        refused(subject, &spec),
        EngineError::NameTaken { name: name.clone() }
    );
    // The one that was there is as it was.
    let listed = list(subject);
    assert_eq!(listed.first().map(|container| container.pid), Some(pid));
    subject.told().stop(&name, 0).unwrap();
    if can.pause {
        let error = subject.told().pause(&name).unwrap_err();
        assert_eq!(error, EngineError::NotRunning { name: name.clone() });
    }
    subject.told().remove(&name).unwrap();
    assert_eq!(subject.traces(&name), Vec::<String>::new());
}

fn ends_are_reported_once_and_in_time(subject: &mut dyn Subject) {
    let spec = labelled(subject, "exit", &["exit", "3"]);
    subject.told().create(&spec);
    if let Some(fake) = subject.fake() {
        assert!(fake.exit(&spec.name, 3));
    }
    let (exit, output, _) = subject.told().exit_of(&spec.name);
    assert_eq!((exit.status, exit.signal), (Some(3), None));
    let (_, is_local) = can(subject);
    if subject.fake().is_none() && is_local {
        assert!(output.contains("leaving with 3; PROBE=1"), "{output:?}");
    }
    subject.told().remove(&spec.name).unwrap();

    let spec = labelled(subject, "killed", &["sleep"]);
    for _ in 0..3 {
        let pid = subject.told().create(&spec);
        let before = monotonic();
        subject.kill(&spec.name, pid);
        let (exit, _, at) = subject.told().exit_of(&spec.name);
        assert_eq!((exit.status, exit.signal), (None, Some(9)));
        if subject.fake().is_none() {
            let late = at.since(before);
            // An orchestrator hears of it: a kubelet looks once a second.
            let most = if is_local { 100 } else { 3_000 };
            assert!(
                late < Nanos::from_millis(most),
                "noticed after {} ms",
                late.as_millis()
            );
        }
        subject.told().remove(&spec.name).unwrap();
    }
    assert_eq!(subject.told().events, vec![]);
}

/// As a tool of the host does that counts towards the container.
fn a_process_in_its_control_group_goes_with_the_container(subject: &mut dyn Subject) {
    let spec = labelled(subject, "guest", &["sleep"]);
    let pid = subject.told().create(&spec);
    let hierarchy = Hierarchy::at(ROOT).unwrap();
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group = hierarchy.group_of(&text).unwrap();
    let tree = match hierarchy.version() {
        Version::V1 => Path::new(ROOT).join("freezer"),
        Version::V2 => PathBuf::from(ROOT),
    };
    let mut guest = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let procs = tree.join(group.path()).join("cgroup.procs");
    std::fs::write(procs, guest.id().to_string()).unwrap();
    subject.kill(&spec.name, pid);
    subject.told().exit_of(&spec.name);
    subject.told().remove(&spec.name).unwrap();
    let is_there = group.exists();
    let _ended = guest.kill();
    guest.wait().unwrap();
    assert!(!is_there, "{} stays", group.path());
}

fn commands_run_beside_the_program(subject: &mut dyn Subject) {
    let spec = labelled(subject, "exec", &["sleep"]);
    let name = spec.name.clone();
    subject.told().create(&spec);
    let exec = |command: &[&str], limit_ms| Request::Exec {
        name: name.clone(),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        limit: Nanos::from_millis(limit_ms),
    };
    let fake = subject.fake();
    let exits = |status| {
        if let Some(fake) = &fake {
            fake.set_exec_status(status);
        }
    };
    exits(Some(0));
    assert_eq!(
        subject
            .told()
            .ask(exec(&["/probe", "exit", "0"], 8_000))
            .map(drop),
        Ok(())
    );
    // As confined as the program that it runs beside.
    let beside = subject.told().ask(exec(&["/probe", "beside"], 8_000)).map(drop);
    assert_eq!(beside, Ok(()));
    // At once after a resume as well: what an engine learns late of a pause does not count.
    for _ in 0..8 {
        subject.told().pause(&name).unwrap();
        subject.told().resume(&name).unwrap();
        subject.told().ask(exec(&["/probe", "exit", "0"], 8_000)).unwrap();
    }
    exits(Some(7));
    let failed = subject
        .told()
        .ask(exec(&["/probe", "exit", "7"], 8_000))
        .unwrap_err();
    let said = failed.to_string();
    assert!(
        matches!(failed, EngineError::Command { .. }) && said.contains("exited with 7"),
        "{said}"
    );
    if fake.is_none() {
        // With the container's environment.
        assert!(
            said.contains("its last output: leaving with 7; PROBE=1"),
            "{said}"
        );
        let missing = subject.told().ask(exec(&["/nonexistent"], 8_000)).unwrap_err();
        assert!(missing.to_string().contains("nonexistent"), "{missing}");
    }
    assert!(matches!(
        subject.told().ask(exec(&[], 8_000)),
        Err(EngineError::BadSpec { .. })
    ));
    // A follower of the output gets the end, however the container ends.
    let (told, executed) = channel();
    let execute = |subject: &mut dyn Subject, container: &str, command: &[&str]| {
        let told = told.clone();
        subject.told().engine.execute(Execution {
            name: container.to_owned(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            limit: Nanos::from_secs(8),
            answer: Box::new(move |result| told.send(result).unwrap()),
        });
        executed.recv_timeout(support::PATIENCE).unwrap()
    };
    let executed = execute(subject, &name, &["/probe", "exit", "7"]).unwrap();
    assert_eq!((executed.exit.status, executed.exit.signal), (Some(7), None));
    if fake.is_none() {
        assert_eq!(executed.output, b"leaving with 7; PROBE=1\n");
        let cut = execute(subject, &name, &["/probe", "flood", "10000"]).unwrap();
        assert_eq!(cut.output.len(), MAX_COMMAND_OUTPUT_BYTES);
        assert!(cut.output.starts_with(b"flood of words"));
    }
    let missing = execute(subject, "inco-nobody", &["/probe"]);
    assert!(
        matches!(missing, Err(EngineError::NotFound { .. })),
        "{missing:?}"
    );
    // One that does not end is ended, and holds nothing up meanwhile.
    exits(None);
    let hangs = subject.told().submit(exec(&["/probe", "stubborn"], 1_000));
    let (name_of, quota) = (name.clone(), Some(CpuQuota::of_cpus(0.5)));
    subject
        .told()
        .ask(Request::SetQuota { name: name_of, quota })
        .unwrap();
    let late = subject.told().answer(hangs).unwrap_err();
    assert!(matches!(late, EngineError::Timeout { .. }), "{late}");
    // With the container it ends, too.
    let hangs = subject.told().submit(exec(&["/probe", "stubborn"], 8_000));
    subject.told().stop(&name, 0).unwrap();
    assert!(subject.told().answer(hangs).is_err());
    exits(Some(0));
    assert!(matches!(
        subject.told().ask(exec(&["/probe", "exit", "0"], 8_000)),
        Err(EngineError::NotRunning { .. })
    ));
    subject.told().remove(&name).unwrap();
    assert!(matches!(
        subject.told().ask(exec(&["/probe", "exit", "0"], 8_000)),
        Err(EngineError::NotFound { .. })
    ));
    assert_eq!(subject.traces(&name), Vec::<String>::new());
}

/// Waits until the output of a container is so.
fn output_is(logs: &Logs, name: &str, what: &str, is_so: impl Fn(u64, &[u8]) -> bool) -> (u64, Vec<u8>) {
    let deadline = std::time::Instant::now() + support::PATIENCE;
    loop {
        let (from, bytes) = logs.read(name, 0, MAX_LOG_BYTES).unwrap_or_default();
        if is_so(from, &bytes) {
            return (from, bytes);
        }
        let length = bytes.len();
        assert!(
            std::time::Instant::now() < deadline,
            "{what}: {length} bytes from {from}"
        );
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn output_is_kept_up_to_its_limit_and_after_the_end(subject: &mut dyn Subject, logs: &Logs) {
    let spec = labelled(subject, "words", &["exit", "3"]);
    subject.told().create(&spec);
    subject.told().exit_of(&spec.name);
    subject.told().remove(&spec.name).unwrap();
    let said = b"leaving with 3; PROBE=1\n";
    output_is(logs, &spec.name, "all that it said", |_, bytes| bytes == said);
    let row = logs
        .list("")
        .into_iter()
        .find(|row| row.name == spec.name)
        .unwrap();
    assert_eq!((row.labels, row.next), (spec.labels, said.len() as u64));
    assert!(row.ended_unix_ms >= Some(row.started_unix_ms));

    // A container that writes more than is kept runs on, even without a reader, and can be stopped.
    let spec = labelled(subject, "flood", &["flood"]);
    subject.told().create(&spec);
    let is_full = |from: u64, _: &[u8]| from > 0;
    let (_, bytes) = output_is(logs, &spec.name, "more than is kept", is_full);
    assert_eq!(bytes.len(), MAX_LOG_BYTES);
    let text = String::from_utf8(bytes).unwrap();
    assert!(
        text.lines()
            .skip(1)
            .all(|line| "flood of words".starts_with(line))
    );
    subject.reopen();
    assert_eq!(list(subject).len(), 1);
    let before = logs
        .list("")
        .into_iter()
        .find(|row| row.name == spec.name)
        .unwrap()
        .next;
    output_is(
        logs,
        &spec.name,
        "more of the one that was adopted",
        |from, bytes| from + bytes.len() as u64 > before,
    );
    subject.told().stop(&spec.name, 5_000).unwrap();
    let (exit, output, _) = subject.told().exit_of(&spec.name);
    // Not every engine knows the exit status of an adopted container.
    assert_eq!((exit.status.unwrap_or(0), exit.signal), (0, None));
    assert!(output.len() <= engine::MAX_OUTPUT_BYTES && output.contains("flood of words"));
    subject.told().remove(&spec.name).unwrap();
    assert_eq!(subject.traces(&spec.name), Vec::<String>::new());
}

fn a_stop_waits_for_its_grace_and_then_kills(subject: &mut dyn Subject) {
    let spec = labelled(subject, "stubborn", &["stubborn"]);
    let name = spec.name.clone();
    subject.told().create(&spec);
    let (can, is_local) = can(subject);
    if let Some(fake) = subject.fake() {
        fake.hang(&name);
    } else if !is_local {
        std::thread::sleep(std::time::Duration::from_millis(300));
    } else {
        // Until it ignores the signal: it has nothing else to do.
        let pid = list(subject).first().unwrap().pid;
        let status = format!("/proc/{pid}/status");
        let deadline = std::time::Instant::now() + support::PATIENCE;
        let ignores = || {
            let text = std::fs::read_to_string(&status).unwrap();
            let mask = text
                .lines()
                .find_map(|line| line.strip_prefix("SigIgn:"))
                .unwrap();
            u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << 14) != 0
        };
        while !ignores() {
            assert!(std::time::Instant::now() < deadline, "it never ignores SIGTERM");
            std::thread::yield_now();
        }
    }
    let Ok(EngineEvent::Done { took, .. }) = subject.told().stop(&name, 50) else {
        panic!("not stopped")
    };
    assert!(took >= Nanos::from_millis(50), "{took:?}");
    let (exit, ..) = subject.told().exit_of(&name);
    let is_unknown = !is_local && exit == Exit::default();
    assert!(exit.signal == Some(9) || is_unknown, "{exit:?}");
    subject.told().remove(&name).unwrap();
    if !can.pause {
        assert_eq!(subject.traces(&name), Vec::<String>::new());
        return;
    }

    // A frozen one is stopped and removed like any other.
    let spec = labelled(subject, "frozen", &["sleep"]);
    subject.told().create(&spec);
    subject.told().pause(&spec.name).unwrap();
    subject.told().stop(&spec.name, 5_000).unwrap();
    subject.told().remove(&spec.name).unwrap();
    subject.told().create(&spec);
    subject.told().pause(&spec.name).unwrap();
    subject.told().remove(&spec.name).unwrap();
    assert_eq!(subject.traces(&spec.name), Vec::<String>::new());
}

fn several_are_made_at_once(subject: &mut dyn Subject) {
    let specs: Vec<_> = (0..8)
        .map(|i| labelled(subject, &format!("many-{i}"), &["sleep"]))
        .collect();
    let tickets: Vec<_> = specs
        .iter()
        .map(|spec| subject.told().submit(Request::Create(Box::new(spec.clone()))))
        .collect();
    for ticket in tickets {
        subject.told().answer(ticket).unwrap();
    }
    assert_eq!(list(subject).len(), 8);
    let tickets: Vec<_> = specs
        .iter()
        .map(|spec| {
            subject.told().submit(Request::Remove {
                name: spec.name.clone(),
            })
        })
        .collect();
    for ticket in tickets {
        subject.told().answer(ticket).unwrap();
    }
    for spec in &specs {
        assert_eq!(subject.traces(&spec.name), Vec::<String>::new());
        let (exit, ..) = subject.told().exit_of(&spec.name);
        // An orchestrator asks a program to end before it kills it, and may have forgotten how it did.
        let (_, is_local) = can(subject);
        assert!(exit.signal == Some(9) || !is_local, "{exit:?}");
    }
    assert_eq!(subject.told().events, vec![]);
}

fn requests_for_one_container_keep_their_order(subject: &mut dyn Subject) {
    let spec = labelled(subject, "order", &["sleep"]);
    let name = spec.name.clone();
    let quota = Some(CpuQuota::of_cpus(0.5));
    let (can, _) = can(subject);
    let requests = [
        (true, Request::Create(Box::new(spec.clone()))),
        (can.pause, Request::Pause { name: name.clone() }),
        (
            can.quota,
            Request::SetQuota {
                name: name.clone(),
                quota,
            },
        ),
        (can.pause, Request::Resume { name: name.clone() }),
        (true, Request::Remove { name: name.clone() }),
        (true, Request::Create(Box::new(spec.clone()))),
        (
            true,
            Request::Stop {
                name: name.clone(),
                grace: Nanos::ZERO,
            },
        ),
        (true, Request::Remove { name: name.clone() }),
    ];
    let tickets: Vec<_> = requests
        .into_iter()
        .filter(|(has, _)| *has)
        .map(|(_, request)| subject.told().submit(request))
        .collect();
    subject.told().answer(*tickets.last().unwrap()).unwrap();
    let mut answered = Vec::new();
    for event in std::mem::take(&mut subject.told().events) {
        match event {
            EngineEvent::Created { ticket, .. } | EngineEvent::Done { ticket, .. } => answered.push(ticket),
            EngineEvent::Exited { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answered, tickets[..tickets.len() - 1]);
    assert_eq!(subject.traces(&name), Vec::<String>::new());
}

fn what_runs_is_adopted(subject: &mut dyn Subject) {
    let names = ["adopt-1", "adopt-2", "adopt-3"];
    let specs: Vec<_> = names
        .iter()
        .map(|what| labelled(subject, what, &["sleep"]))
        .collect();
    let pids: Vec<u32> = specs.iter().map(|spec| subject.told().create(spec)).collect();
    let [one, two, three] = [0, 1, 2].map(|i: usize| specs.get(i).unwrap().name.clone());
    let (can, _) = can(subject);
    if can.pause {
        subject.told().pause(&two).unwrap();
    }
    subject.reopen();
    let listed = list(subject);
    let found: Vec<(&str, u32)> = listed
        .iter()
        .map(|container| (container.name.as_str(), container.pid))
        .collect();
    let expected: Vec<(&str, u32)> = specs
        .iter()
        .map(|spec| spec.name.as_str())
        .zip(pids.iter().copied())
        .collect();
    assert_eq!(found, expected);
    let state = if can.pause {
        ContainerState::Paused
    } else {
        ContainerState::Running
    };
    assert_eq!(listed.get(1).unwrap().state, state);
    assert_eq!(listed.first().unwrap().labels, specs.first().unwrap().labels);

    // They are as much this engine's as its own.
    assert!(matches!(
        subject
            .told()
            .ask(Request::Create(Box::new(specs.first().unwrap().clone()))),
        Err(EngineError::NameTaken { .. })
    ));
    subject.kill(&one, *pids.first().unwrap());
    subject.told().exit_of(&one);
    if can.pause {
        subject.told().resume(&two).unwrap();
    }
    subject.told().stop(&two, 5_000).unwrap();
    subject.told().exit_of(&two);
    assert_eq!(subject.told().engine.usage(&three).is_ok(), can.usage);
    for name in [&one, &two, &three] {
        subject.told().remove(name).unwrap();
        assert_eq!(subject.traces(name), Vec::<String>::new());
    }
    subject.reopen();
    assert_eq!(list(subject), vec![]);
}

fn twenty_in_a_row(subject: &mut dyn Subject) {
    let spec = labelled(subject, "row", &["sleep"]);
    for _ in 0..20 {
        subject.told().create(&spec);
        subject.told().remove(&spec.name).unwrap();
    }
    assert_eq!(subject.traces(&spec.name), Vec::<String>::new());
}

/// A paused program stands still, a limited one gets its share. For engines with programs.
fn limits_hold(subject: &mut dyn Subject, dir: PathBuf) {
    let mut spec = labelled(subject, "count", &["count", "/shared/count"]);
    spec.mounts = vec![model::Mount {
        source: dir.clone(),
        target: "/shared".into(),
        read_only: false,
    }];
    spec.cpu = Some(CpuQuota::of_cpus(0.2));
    let name = spec.name.clone();
    subject.told().create(&spec);
    let file = dir.join("count");
    let wait_past = |limit: u64| {
        let deadline = std::time::Instant::now() + support::PATIENCE;
        while counted(&file) <= limit {
            assert!(
                std::time::Instant::now() < deadline,
                "it does not count past {limit}"
            );
            std::thread::yield_now();
        }
    };
    wait_past(0);
    subject.told().pause(&name).unwrap();
    let stood = counted(&file);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(counted(&file), stood, "a paused program went on");
    subject.told().resume(&name).unwrap();
    wait_past(stood);
    subject.told().remove(&name).unwrap();

    let mut spec = labelled(subject, "spin", &["spin"]);
    let quota = CpuQuota::of_cpus(0.05);
    spec.cpu = Some(quota);
    let name = spec.name.clone();
    subject.told().create(&spec);
    // However busy the machine is: watched until it was stopped five times, it had no more than its share, and a
    // period's worth.
    let watch = |subject: &mut dyn Subject| {
        let first = (subject.told().engine.usage(&name).unwrap(), monotonic());
        loop {
            let last = (subject.told().engine.usage(&name).unwrap(), monotonic());
            let throttled = last.0.throttled_periods - first.0.throttled_periods;
            let (cpu, wall) = (last.0.cpu_ns - first.0.cpu_ns, last.1.since(first.1));
            if throttled >= 5 {
                let fair = wall.0 as f64 * quota.cpus() + 30e6;
                assert!((cpu as f64) < fair * 1.2, "{cpu} ns of CPU in {wall:?}");
                return;
            }
            assert!(
                wall < Nanos(support::PATIENCE.as_nanos() as u64),
                "never throttled: {cpu} ns in {wall:?}"
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    watch(subject);
    subject.told().pause(&name).unwrap();
    subject.told().resume(&name).unwrap();
    watch(subject);
    subject
        .told()
        .ask(Request::SetQuota {
            name: name.clone(),
            quota: None,
        })
        .unwrap();
    let before = subject.told().engine.usage(&name).unwrap();
    let runs = |subject: &mut dyn Subject| subject.told().engine.usage(&name).unwrap();
    let deadline = std::time::Instant::now() + support::PATIENCE;
    while runs(subject).cpu_ns < before.cpu_ns + 100_000_000 {
        assert!(std::time::Instant::now() < deadline, "it does not run");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(
        runs(subject).throttled_periods <= before.throttled_periods + 1,
        "still throttled"
    );
    subject.told().remove(&name).unwrap();

    let mut spec = labelled(subject, "eat", &["eat"]);
    spec.memory_bytes = Some(16 << 20);
    for attempt in 0.. {
        subject.told().create(&spec);
        let (exit, ..) = subject.told().exit_of(&spec.name);
        subject.told().remove(&spec.name).unwrap();
        let killed = exit.status.is_none() && exit.signal.is_none_or(|signal| signal == 9);
        assert!(killed, "{exit:?}");
        // Docker removes the control group, and with it the reason, as soon as it can; its own word comes late.
        if exit.out_of_memory || subject.told().engine.driver() != "docker" || attempt == 5 {
            assert!(exit.out_of_memory, "{exit:?}");
            break;
        }
    }

    let mut spec = labelled(subject, "fork", &["fork"]);
    spec.pids_limit = 16;
    subject.told().create(&spec);
    let (_, output, _) = subject.told().exit_of(&spec.name);
    assert_eq!(output, "16 processes");
    subject.told().remove(&spec.name).unwrap();
    assert_eq!(subject.traces(&spec.name), Vec::<String>::new());
}

/// What a container must not be able to do: it says so itself. For engines with programs.
fn a_container_is_confined(subject: &mut dyn Subject) {
    let spec = labelled(subject, "confined", &["confined"]);
    subject.told().create(&spec);
    let (exit, output, _) = subject.told().exit_of(&spec.name);
    assert_eq!((exit.status, output.as_str()), (Some(0), ""));
    subject.told().remove(&spec.name).unwrap();
}

/// Docker's capabilities without `NET_RAW`, as the kernel writes them.
const ORDINARY: &str = "00000000a80405fb";

/// A container whose program says what is amiss of its port.
fn ported(subject: &dyn Subject, wire: &Wire, capabilities: &str) -> engine::ContainerSpec {
    let name = subject.name("ported");
    let hostname: String = name.chars().take(63).collect();
    let command = ["ported", capabilities, wire::SERVICE, "20000\t20999", &hostname];
    let mut spec = labelled(subject, "ported", &command);
    spec.functions = vec![wire.function()];
    spec
}

/// Its program finds its network, and can change nothing of it: it says so itself. For engines with programs.
fn a_port_is_there_before_the_program_which_cannot_change_it(subject: &mut dyn Subject) {
    if !support::available("oci", wire::missing()) {
        return;
    }
    let wire = Wire::new();
    let mut spec = ported(subject, &wire, ORDINARY);
    subject.told().create(&spec);
    let (exit, output, _) = subject.told().exit_of(&spec.name);
    assert_eq!((exit.status, output.as_str()), (Some(0), ""));
    subject.told().remove(&spec.name).unwrap();
    assert_eq!(subject.traces(&spec.name), Vec::<String>::new());
    gone(&wire);

    // The place is used again.
    wire.plug();
    spec = ported(subject, &wire, "0000000000000000");
    spec.capabilities = Some(Vec::new());
    subject.told().create(&spec);
    let (exit, output, _) = subject.told().exit_of(&spec.name);
    assert_eq!((exit.status, output.as_str()), (Some(0), ""));
    subject.told().remove(&spec.name).unwrap();
    gone(&wire);
}

/// The kernel removes a network namespace, and with it the pair, a little after its last process.
fn gone(wire: &Wire) {
    let deadline = std::time::Instant::now() + support::PATIENCE;
    while wire.is_plugged() {
        assert!(std::time::Instant::now() < deadline, "the port stays");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// It outlives the engine, serves through a pause, and goes with its container.
fn a_container_keeps_its_port(subject: &mut dyn Subject) {
    if !support::available("oci", wire::missing()) {
        return;
    }
    let wire = Wire::new();
    let mut spec = labelled(subject, "keeps", &["sleep"]);
    spec.functions = vec![wire.function()];
    let pid = subject.told().create(&spec);
    assert!(wire.answers(wire::SERVICE) && wire.answers(wire::SERVICE_V6));
    subject.reopen();
    let listed = list(subject);
    assert_eq!(
        listed.iter().map(|container| container.pid).collect::<Vec<_>>(),
        [pid]
    );
    assert!(wire.answers(wire::SERVICE));
    subject.told().pause(&spec.name).unwrap();
    subject.told().resume(&spec.name).unwrap();
    let exec = Request::Exec {
        name: spec.name.clone(),
        command: vec![
            "/probe".to_owned(),
            "cat".to_owned(),
            "/sys/class/net/eth0/mtu".to_owned(),
        ],
        limit: Nanos::from_secs(8),
    };
    subject.told().ask(exec).unwrap();
    assert!(wire.is_plugged());
    subject.told().remove(&spec.name).unwrap();
    gone(&wire);
    assert_eq!(subject.traces(&spec.name), Vec::<String>::new());
}

fn a_container_without_its_port_is_not_made(subject: &mut dyn Subject) {
    if !support::available("oci", wire::missing()) {
        return;
    }
    let wire = Wire::new();
    let mut spec = labelled(subject, "portless", &["sleep"]);
    let mut absent = wire.port();
    absent.host = "incoc-nowhere".to_owned();
    spec.functions = vec![model::NetFunction::Port(absent)];
    let error = refused(subject, &spec);
    assert!(
        matches!(&error, EngineError::NoFunction { what, .. } if what.contains("incoc-nowhere")),
        "{error}"
    );
    // It fails after it was moved.
    let mut twice = wire.port();
    twice.addresses.extend_from_within(..1);
    spec.functions = vec![model::NetFunction::Port(twice)];
    let error = refused(subject, &spec);
    assert!(
        matches!(&error, EngineError::Start { reason, .. } if reason.contains("address 10.0.0.100/32")),
        "{error}"
    );
    assert_eq!(subject.traces(&spec.name), Vec::<String>::new());
    gone(&wire);
    wire.plug();
    spec.functions = vec![wire.function()];
    spec.command = vec!["/no-such-program".to_owned()];
    let error = refused(subject, &spec);
    assert!(
        matches!(&error, EngineError::Start { reason, .. } if reason.contains("no-such-program")),
        "{error}"
    );
    assert_eq!(subject.traces(&spec.name), Vec::<String>::new());
    gone(&wire);
    // Nothing of that is in the way of the next one.
    wire.plug();
    spec.command = vec!["/probe".to_owned(), "sleep".to_owned()];
    subject.told().create(&spec);
    assert!(wire.answers(wire::SERVICE));
    subject.told().remove(&spec.name).unwrap();
    assert_eq!(subject.traces(&spec.name), Vec::<String>::new());
}

/// Processes with this in their command line or cgroup, control groups and mounts with this in their name.
fn traces_on_this_machine(name: &str, cgroup_part: &str, dirs: &[PathBuf]) -> Vec<String> {
    let mut traces = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let group = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        if group.contains(cgroup_part) {
            traces.push(format!("process {}", entry.path().display()));
        }
    }
    let mut dirs = dirs.to_vec();
    dirs.push(PathBuf::from("/sys/fs/cgroup"));
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.to_string_lossy().contains(cgroup_part) || entry.file_name().to_string_lossy() == *name {
                traces.push(path.display().to_string());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) && path.components().count() < 8 {
                dirs.push(path);
            }
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    traces.extend(
        mounts
            .lines()
            .filter(|line| line.contains(name))
            .map(str::to_owned),
    );
    traces
}

macro_rules! suite {
    ($subject:expr; $($test:ident),* $(,)?) => {
        $(#[test]
        fn $test() {
            if let Some(mut subject) = $subject(stringify!($test)) {
                crate::$test(&mut subject);
            }
        })*
    };
}

mod fake {
    use super::*;

    struct Fake {
        engine: FakeEngine,
        told: Told,
    }

    fn subject(_test: &str) -> Option<Fake> {
        let engine = FakeEngine::new(FakeConfig::default());
        engine.set_images([support::IMAGE]);
        let told = told(&engine);
        Some(Fake { engine, told })
    }

    fn told(engine: &FakeEngine) -> Told {
        let mut told = Told::new(Box::new(engine.clone()));
        let engine = engine.clone();
        told.step = Box::new(move || engine.advance(engine.next_at().expect("nothing is on the way")));
        told
    }

    impl Subject for Fake {
        fn told(&mut self) -> &mut Told {
            &mut self.told
        }
        fn prefix(&self) -> String {
            "fake".into()
        }
        fn fake(&self) -> Option<FakeEngine> {
            Some(self.engine.clone())
        }
        fn reopen(&mut self) {
            self.told = told(&self.engine);
        }
        fn traces(&self, name: &str) -> Vec<String> {
            let containers = self.engine.containers().into_iter();
            containers
                .map(|container| container.name)
                .filter(|own| own == name)
                .collect()
        }
    }

    suite!(subject;
        a_container_runs_ends_and_leaves_nothing_behind, what_cannot_be_is_refused_and_leaves_nothing, ends_are_reported_once_and_in_time,
        a_stop_waits_for_its_grace_and_then_kills, several_are_made_at_once, requests_for_one_container_keep_their_order,
        what_runs_is_adopted, what_it_lacks_is_refused, twenty_in_a_row, commands_run_beside_the_program);
}

mod oci {
    use super::*;
    use crate::support::{Place, available, oci_missing};

    struct Oci {
        told: Option<Told>,
        place: Place,
        prefix: String,
    }

    fn subject(test: &str) -> Option<Oci> {
        if !available("oci", oci_missing()) {
            return None;
        }
        let place = Place::new();
        let told = Some(Told::new(Box::new(place.engine())));
        Some(Oci {
            told,
            place,
            prefix: test.replace('_', "-"),
        })
    }

    impl Subject for Oci {
        fn told(&mut self) -> &mut Told {
            self.told.as_mut().unwrap()
        }
        fn prefix(&self) -> String {
            self.prefix.clone()
        }
        fn fake(&self) -> Option<FakeEngine> {
            None
        }
        fn reopen(&mut self) {
            self.told = None;
            self.told = Some(Told::new(Box::new(self.place.engine())));
        }
        fn traces(&self, name: &str) -> Vec<String> {
            traces_on_this_machine(name, name, &[self.place.run_dir()])
        }
    }

    impl Drop for Oci {
        fn drop(&mut self) {
            if std::thread::panicking() {
                // Nothing of a test that failed is to disturb the next one.
                self.reopen();
                let label = label_of(self);
                for container in self.told().engine.list(&label).unwrap_or_default() {
                    let _ = self.told().ask(Request::Remove { name: container.name });
                }
                return;
            }
            // An engine without containers leaves nothing at all.
            self.told = None;
            let left: Vec<_> = std::fs::read_dir(self.place.run_dir())
                .unwrap()
                .flatten()
                .collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }

    suite!(subject;
        a_container_runs_ends_and_leaves_nothing_behind, what_cannot_be_is_refused_and_leaves_nothing, ends_are_reported_once_and_in_time,
        a_stop_waits_for_its_grace_and_then_kills, several_are_made_at_once, requests_for_one_container_keep_their_order,
        what_runs_is_adopted, what_it_lacks_is_refused, twenty_in_a_row, a_container_is_confined, commands_run_beside_the_program,
        a_process_in_its_control_group_goes_with_the_container, a_port_is_there_before_the_program_which_cannot_change_it,
        a_container_keeps_its_port, a_container_without_its_port_is_not_made);

    #[test]
    fn limits_hold() {
        if let Some(mut subject) = subject("limits") {
            let dir = subject.place.dir.path().join("shared");
            std::fs::create_dir(&dir).unwrap();
            super::limits_hold(&mut subject, dir);
        }
    }

    #[test]
    fn output_is_kept_up_to_its_limit_and_after_the_end() {
        if let Some(mut subject) = subject("output") {
            let logs = subject.place.logs.clone();
            super::output_is_kept_up_to_its_limit_and_after_the_end(&mut subject, &logs);
        }
    }
}

mod docker {
    use engine::{DEFAULT_HOST, DockerConfig, DockerEngine};

    use super::*;
    use crate::support::{Place, available};

    struct Docker {
        told: Option<Told>,
        _one: MutexGuard<'static, ()>,
        place: Place,
        prefix: String,
    }

    fn engine(place: &Place) -> Result<Box<dyn Engine>, EngineError> {
        let mut config = DockerConfig::at(DEFAULT_HOST);
        config.images = Some(place.store());
        config.logs = place.logs.clone();
        // What is asked here is whether it is right, on however busy a machine.
        config.status_limit = Nanos::from_secs(10);
        DockerEngine::start(config).map(|engine| Box::new(engine) as Box<dyn Engine>)
    }

    fn subject(test: &str) -> Option<Docker> {
        let one = DOCKER.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Place::new();
        match engine(&place) {
            Ok(engine) => {
                let told = Some(Told::new(engine));
                let prefix = format!("docker-{}-{}", std::process::id(), test.replace('_', "-"));
                Some(Docker {
                    told,
                    _one: one,
                    place,
                    prefix,
                })
            }
            Err(error) => {
                available("docker", Some(error.to_string()));
                None
            }
        }
    }

    impl Subject for Docker {
        fn told(&mut self) -> &mut Told {
            self.told.as_mut().unwrap()
        }
        fn prefix(&self) -> String {
            self.prefix.clone()
        }
        fn fake(&self) -> Option<FakeEngine> {
            None
        }
        fn reopen(&mut self) {
            self.told = None;
            self.told = Some(Told::new(engine(&self.place).unwrap()));
        }
        fn traces(&self, name: &str) -> Vec<String> {
            // Docker's groups and files have its own id: it is asked by the command that a user would use. A holder's
            // name begins with its container's.
            let listed = std::process::Command::new("docker")
                .args(["ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}}"])
                .output()
                .unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            let ours = listed
                .lines()
                .filter_map(|line| line.split_once(' '))
                .filter(|(_, own)| own.starts_with(name));
            ours.flat_map(|(id, _)| traces_on_this_machine(name, id, &[]))
                .collect()
        }
    }

    impl Drop for Docker {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let label = format!("label=inco.test={}", self.prefix);
                let listed = std::process::Command::new("docker")
                    .args(["ps", "-aq", "--filter", &label])
                    .output();
                for id in String::from_utf8(listed.unwrap().stdout).unwrap().lines() {
                    let _ = std::process::Command::new("docker")
                        .args(["rm", "-f", id])
                        .output();
                }
            }
        }
    }

    suite!(subject;
        a_container_runs_ends_and_leaves_nothing_behind, what_cannot_be_is_refused_and_leaves_nothing, ends_are_reported_once_and_in_time,
        a_stop_waits_for_its_grace_and_then_kills, several_are_made_at_once, requests_for_one_container_keep_their_order,
        what_runs_is_adopted, what_it_lacks_is_refused, twenty_in_a_row, a_container_is_confined, commands_run_beside_the_program,
        a_process_in_its_control_group_goes_with_the_container, a_port_is_there_before_the_program_which_cannot_change_it,
        a_container_keeps_its_port, a_container_without_its_port_is_not_made);

    #[test]
    fn a_holder_that_a_killed_run_left_is_removed() {
        let Some(mut subject) = subject("holder") else {
            return;
        };
        let name = subject.name("held");
        let label = format!("inco.holder-of.inco.test={}", subject.prefix);
        // What such a run has made is of any image.
        let image = support::IMAGE;
        let holder = format!("{name}.holder");
        let spec = labelled(&subject, "other", &["sleep"]);
        subject.told().create(&spec);
        let made = std::process::Command::new("docker")
            .args([
                "run",
                "--detach",
                "--network=none",
                "--name",
                &holder,
                "--label",
                &label,
                image,
            ])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        assert_ne!(subject.traces(&name), Vec::<String>::new());
        subject.reopen();
        assert_eq!(list(&mut subject).len(), 1, "it is no container of a service");
        assert_eq!(subject.traces(&name), Vec::<String>::new());
        subject.told().remove(&spec.name).unwrap();
    }

    #[test]
    fn output_is_kept_up_to_its_limit_and_after_the_end() {
        if let Some(mut subject) = subject("output") {
            let logs = subject.place.logs.clone();
            super::output_is_kept_up_to_its_limit_and_after_the_end(&mut subject, &logs);
        }
    }

    #[test]
    fn limits_hold() {
        if let Some(mut subject) = subject("limits") {
            let dir = subject.place.dir.path().join("shared");
            std::fs::create_dir(&dir).unwrap();
            super::limits_hold(&mut subject, dir);
        }
    }
}

/// A swarm of one node: it has its own Docker, in a network of its own.
mod swarm {
    use std::time::{Duration, Instant};

    use engine::{DockerConfig, SwarmEngine, Task, TaskAsk};
    use model::TaskOptions;
    use real_parts::{Swarm, has_swarm};

    use super::*;
    use crate::support::Place;

    /// When a node has removed a container at the latest.
    const SOON: Duration = Duration::from_secs(3);

    struct InSwarm<'s> {
        told: Option<Told>,
        swarm: &'s Swarm,
        prefix: String,
    }

    fn engine(swarm: &Swarm) -> Told {
        let config = DockerConfig::at(swarm.host(1));
        Told::new(Box::new(SwarmEngine::start(config).unwrap()))
    }

    impl Subject for InSwarm<'_> {
        fn told(&mut self) -> &mut Told {
            self.told.as_mut().unwrap()
        }
        fn prefix(&self) -> String {
            self.prefix.clone()
        }
        fn fake(&self) -> Option<FakeEngine> {
            None
        }
        fn reopen(&mut self) {
            self.told = None;
            self.told = Some(engine(self.swarm));
        }
        fn complete(&self, spec: &mut engine::ContainerSpec) {
            spec.task = Some(Box::new(Task {
                args: Vec::new(),
                port: 8080,
                grace: Nanos::from_millis(50),
                ask: TaskAsk::Swarm(TaskOptions::default()),
            }));
        }
        fn kill(&self, name: &str, _pid: u32) {
            let filter = format!("name={name}.");
            let id = self.swarm.docker(1, &["ps", "--quiet", "--filter", &filter]);
            self.swarm.docker(1, &["kill", id.trim()]);
        }
        /// A node removes a container soon after the swarm has forgotten its task.
        fn traces(&self, name: &str) -> Vec<String> {
            let began = Instant::now();
            loop {
                let traces = self.traces_now(name);
                if traces.is_empty() || began.elapsed() > SOON {
                    return traces;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    impl InSwarm<'_> {
        fn traces_now(&self, name: &str) -> Vec<String> {
            let services = self.swarm.docker(1, &["service", "ls", "--format", "{{.Name}}"]);
            let services = services.lines().filter(|own| *own == name).map(str::to_owned);
            let format = "{{.ID}} {{.Names}}";
            let containers = self
                .swarm
                .docker(1, &["ps", "--all", "--no-trunc", "--format", format]);
            let start = format!("{name}.");
            let containers = containers
                .lines()
                .filter_map(|line| line.split_once(' '))
                .filter(|(_, own)| own.starts_with(&start))
                .map(|(id, _)| id.to_owned());
            services.chain(containers).collect()
        }
    }

    /// All at one swarm, one after the other: it takes seconds to begin.
    #[test]
    fn a_swarm_does_what_every_engine_does() {
        if !has_swarm() {
            return;
        }
        let place = Place::new();
        let swarm = Swarm::start(&place.dir.path().join("swarm"), 1, None);
        let config = DockerConfig::at(swarm.host(1));
        engine::import_into_docker(&config, &place.store(), &support::IMAGE.into()).unwrap();
        type Test = fn(&mut dyn Subject);
        let tests: [(&str, Test); 8] = [
            ("life", a_container_runs_ends_and_leaves_nothing_behind),
            ("refused", what_cannot_be_is_refused_and_leaves_nothing),
            ("ends", ends_are_reported_once_and_in_time),
            ("stop", a_stop_waits_for_its_grace_and_then_kills),
            ("several", several_are_made_at_once),
            ("order", requests_for_one_container_keep_their_order),
            ("adopted", what_runs_is_adopted),
            ("lacks", what_it_lacks_is_refused),
        ];
        for (name, test) in tests {
            eprintln!("swarm: {name}");
            let mut subject = InSwarm {
                told: Some(engine(&swarm)),
                swarm: &swarm,
                prefix: format!("s-{name}"),
            };
            test(&mut subject);
        }
        // A Docker that manages no swarm says what to do.
        swarm.docker(1, &["swarm", "leave", "--force"]);
        let error = SwarmEngine::start(config).err().unwrap().to_string();
        assert!(error.contains("docker swarm init"), "{error}");
    }
}

/// A cluster of one node, by the account that the manifest of `deploy/` makes.
mod kubernetes {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use ::kubernetes::Cluster;
    use engine::{DEFAULT_HOST, DockerConfig, KubernetesConfig, KubernetesEngine, Task, TaskAsk};
    use model::{PodOptions, TaskFile};
    use real_parts::{ApiServer, has_kubernetes_node};

    use super::*;
    use crate::support::Place;

    /// When a node has removed a container at the latest.
    const SOON: Duration = Duration::from_secs(5);
    const PODS: &str = "/api/v1/namespaces/edge/pods";
    const ROLE: &str = include_str!("../../../../deploy/kubernetes/role.yaml");
    const DAEMONS: &str = include_str!("../../../../deploy/kubernetes/daemonset.yaml");
    const PATHS: [(&str, &str); 6] = [
        ("Namespace", "/api/v1/namespaces"),
        ("ServiceAccount", "/api/v1/namespaces/edge/serviceaccounts"),
        ("ConfigMap", "/api/v1/namespaces/edge/configmaps"),
        ("Role", "/apis/rbac.authorization.k8s.io/v1/namespaces/edge/roles"),
        (
            "RoleBinding",
            "/apis/rbac.authorization.k8s.io/v1/namespaces/edge/rolebindings",
        ),
        ("DaemonSet", "/apis/apps/v1/namespaces/edge/daemonsets"),
    ];

    struct InPods<'c> {
        told: Option<Told>,
        server: &'c ApiServer,
        config: KubernetesConfig,
        prefix: String,
    }

    fn engine(config: &KubernetesConfig) -> Told {
        Told::new(Box::new(KubernetesEngine::start(config.clone()).unwrap()))
    }

    fn asked(options: PodOptions) -> Option<Box<Task>> {
        Some(Box::new(Task {
            args: Vec::new(),
            port: 8080,
            grace: Nanos::from_secs(1),
            ask: TaskAsk::Kubernetes(options),
        }))
    }

    impl Subject for InPods<'_> {
        fn told(&mut self) -> &mut Told {
            self.told.as_mut().unwrap()
        }
        fn prefix(&self) -> String {
            self.prefix.clone()
        }
        fn fake(&self) -> Option<FakeEngine> {
            None
        }
        fn reopen(&mut self) {
            self.told = None;
            self.told = Some(engine(&self.config));
        }
        fn complete(&self, spec: &mut engine::ContainerSpec) {
            spec.task = asked(PodOptions::default());
        }
        fn kill(&self, name: &str, _pid: u32) {
            self.server.kill_container(name, "instance");
        }
        /// A node ends what runs soon after its Pod is gone.
        fn traces(&self, name: &str) -> Vec<String> {
            let began = Instant::now();
            loop {
                let mut traces = self.server.containers(name, None);
                let pod = self.server.ask("GET", &format!("{PODS}/{name}"), "");
                traces.extend(pod.ok().map(|_| name.to_owned()));
                if traces.is_empty() || began.elapsed() > SOON {
                    return traces;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Limits that change while it runs, files, what Kubernetes does not know, and a Pod that others delete.
    fn pods_are_what_is_asked(subject: &mut InPods<'_>) {
        let site = r#"{ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "site" }, "data": { "a": "in a file" } }"#;
        subject
            .server
            .put("/api/v1/namespaces/edge/configmaps", "site", site);
        let mut spec = labelled(subject, "files", &["cat", "/run/configs/site/a"]);
        let configs = vec![TaskFile {
            name: "site".to_owned(),
            target: None,
        }];
        spec.task = asked(PodOptions {
            configs,
            node_selector: vec![("kubernetes.io/hostname".to_owned(), "n1".to_owned())],
            tolerations: Some(r#"[{ "key": "edge", "operator": "Exists" }]"#.to_owned()),
            ..PodOptions::default()
        });
        subject.told().create(&spec);
        let (exit, ..) = subject.told().exit_of(&spec.name);
        assert_eq!(exit.status, Some(0));
        subject.told().remove(&spec.name).unwrap();

        spec.task = asked(PodOptions {
            affinity: Some(r#"{ "nodeAfinity": {} }"#.to_owned()),
            ..PodOptions::default()
        });
        let error = refused(subject, &spec).to_string();
        assert!(error.contains("nodeAfinity"), "{error}");

        let mut spec = labelled(subject, "sized", &["sleep"]);
        (spec.cpu, spec.memory_bytes) = (Some(CpuQuota::of_cpus(0.5)), Some(32 << 20));
        let name = spec.name.clone();
        subject.told().create(&spec);
        let pod = |subject: &InPods<'_>| subject.server.ask("GET", &format!("{PODS}/{name}"), "").unwrap();
        let quota = Some(CpuQuota::of_cpus(0.25));
        subject
            .told()
            .ask(Request::SetQuota {
                name: name.clone(),
                quota,
            })
            .unwrap();
        assert!(pod(subject).contains(r#""cpu": "250m""#), "{}", pod(subject));
        // It would be of another class then.
        let lifted = Request::SetQuota {
            name: name.clone(),
            quota: None,
        };
        let error = subject.told().ask(lifted).unwrap_err();
        eprintln!("a limit that cannot be lifted: {error}");
        assert!(matches!(error, EngineError::Refused { .. }), "{error}");
        subject.server.delete(PODS, &name);
        subject.told().exit_of(&name);
        subject.told().remove(&name).unwrap();
        assert_eq!(subject.traces(&name), Vec::<String>::new());
        assert_eq!(subject.told().events, vec![]);
    }

    /// A node that does not report: its Pod has failed, and can be removed.
    fn a_lost_node_ends_its_pods(subject: &mut InPods<'_>) {
        let spec = labelled(subject, "lost", &["sleep"]);
        subject.told().create(&spec);
        subject.server.kill_kubelet();
        let since = Instant::now();
        let (_, output, _) = subject.told().exit_of(&spec.name);
        eprintln!("a lost node is noticed after {:?}", since.elapsed());
        assert!(output.contains("does not answer"), "{output}");
        subject.told().remove(&spec.name).unwrap();
        assert!(
            subject
                .server
                .ask("GET", &format!("{PODS}/{}", spec.name), "")
                .is_err()
        );
        subject.server.up();
        assert_eq!(subject.traces(&spec.name), Vec::<String>::new());
    }

    /// All at one cluster, one after the other: it takes seconds to begin.
    #[test]
    fn kubernetes_does_what_every_engine_does() {
        if !has_kubernetes_node() {
            return;
        }
        let place = Place::new();
        let docker = DockerConfig::at(DEFAULT_HOST);
        engine::import_into_docker(&docker, &place.store(), &support::IMAGE.into()).unwrap();
        let folder = place.dir.path().join("cluster");
        let server = ApiServer::start_with_node(&folder, Box::new(|program| Command::new(program)));
        server.give_image(support::IMAGE);
        server.apply(ROLE, &PATHS, false);
        server.apply(DAEMONS, &PATHS, true);
        let cluster = |kubeconfig| Cluster {
            kubeconfig: Some(kubeconfig),
            context: None,
        };
        let mut config = KubernetesConfig::at(cluster(server.kubeconfig_of("edge", "inco")));
        (config.namespace, config.may_pull) = (Some("edge".to_owned()), false);
        let has_account = || {
            server
                .ask("GET", "/api/v1/namespaces/edge/serviceaccounts/default", "")
                .is_ok()
        };
        let began = Instant::now();
        while !has_account() {
            assert!(began.elapsed() < support::PATIENCE);
            std::thread::sleep(Duration::from_millis(100));
        }
        // Somebody who may do nothing is told what to do.
        let mut nobody = config.clone();
        nobody.cluster = cluster(server.reader_kubeconfig());
        let error = KubernetesEngine::start(nobody).err().unwrap().to_string();
        assert!(error.contains("cannot list resource \"pods\""), "{error}");

        let subject = |name: &str| InPods {
            told: Some(engine(&config)),
            server: &server,
            config: config.clone(),
            prefix: format!("k-{name}"),
        };
        type Test = fn(&mut dyn Subject);
        let tests: [(&str, Test); 8] = [
            ("life", a_container_runs_ends_and_leaves_nothing_behind),
            ("refused", what_cannot_be_is_refused_and_leaves_nothing),
            ("ends", ends_are_reported_once_and_in_time),
            ("stop", a_stop_waits_for_its_grace_and_then_kills),
            ("several", several_are_made_at_once),
            ("order", requests_for_one_container_keep_their_order),
            ("adopted", what_runs_is_adopted),
            ("lacks", what_it_lacks_is_refused),
        ];
        for (name, test) in tests {
            let since = Instant::now();
            test(&mut subject(name));
            eprintln!("kubernetes: {name} {:?}", since.elapsed());
        }
        pods_are_what_is_asked(&mut subject("asked"));
        a_lost_node_ends_its_pods(&mut subject("lost"));
    }
}

/// The engines of two places as one: the second place has another `oci` engine, or Docker.
mod places {
    use engine::{Container, DEFAULT_HOST, DockerConfig, DockerEngine, PlacesEngine, Ticket, Usage};

    use super::*;
    use crate::support::{Place, available, oci_missing};

    const PLACES: [&str; 2] = ["card", "host"];

    /// Gives each container a place by the last letter of its name, so that a test has some at both.
    struct ByName(PlacesEngine);

    impl Engine for ByName {
        fn driver(&self) -> &'static str {
            self.0.driver()
        }
        fn is_local(&self) -> bool {
            self.0.is_local()
        }
        fn submit(&mut self, ticket: Ticket, mut request: Request) {
            if let Request::Create(spec) = &mut request {
                let last = spec.name.bytes().last().unwrap_or_default();
                spec.place = Some(PLACES[usize::from(last % 2)].to_owned());
            }
            self.0.submit(ticket, request);
        }
        fn execute(&mut self, execution: Execution) {
            self.0.execute(execution);
        }
        fn poll(&mut self, events: &mut Vec<EngineEvent>) {
            self.0.poll(events);
        }
        fn list(&mut self, label: &Label) -> Result<Vec<Container>, EngineError> {
            self.0.list(label)
        }
        fn usage(&self, name: &str) -> Result<Usage, EngineError> {
            self.0.usage(name)
        }
    }

    struct Places {
        told: Option<Told>,
        /// The run directory of each `oci` engine; that of Docker has images only.
        at: [Place; 2],
        has_docker: bool,
        prefix: String,
        _one: MutexGuard<'static, ()>,
    }

    fn engine(at: &[Place; 2], has_docker: bool) -> Result<Told, EngineError> {
        let second: Box<dyn Engine> = if has_docker {
            let mut config = DockerConfig::at(DEFAULT_HOST);
            config.images = Some(at[1].store());
            config.status_limit = Nanos::from_secs(10);
            Box::new(DockerEngine::start(config)?)
        } else {
            Box::new(at[1].engine())
        };
        let first: Box<dyn Engine> = Box::new(at[0].engine());
        let engines = PLACES.into_iter().zip([first, second]);
        let engines = engines.map(|(place, engine)| (vec![place.to_owned()], engine));
        Ok(Told::new(Box::new(ByName(PlacesEngine::new(engines)))))
    }

    fn subject(test: &str, has_docker: bool) -> Option<Places> {
        if !available("oci", oci_missing()) {
            return None;
        }
        let one = DOCKER.lock().unwrap_or_else(PoisonError::into_inner);
        let at = [Place::new(), Place::new()];
        match engine(&at, has_docker) {
            Ok(told) => Some(Places {
                told: Some(told),
                at,
                has_docker,
                prefix: format!("places-{}-{}", std::process::id(), test.replace('_', "-")),
                _one: one,
            }),
            Err(error) => {
                available("docker", Some(error.to_string()));
                None
            }
        }
    }

    impl Subject for Places {
        fn told(&mut self) -> &mut Told {
            self.told.as_mut().unwrap()
        }
        fn prefix(&self) -> String {
            self.prefix.clone()
        }
        fn fake(&self) -> Option<FakeEngine> {
            None
        }
        fn reopen(&mut self) {
            self.told = None;
            self.told = Some(engine(&self.at, self.has_docker).unwrap());
        }
        fn traces(&self, name: &str) -> Vec<String> {
            let dirs = [self.at[0].run_dir(), self.at[1].run_dir()];
            let mut traces = traces_on_this_machine(name, name, &dirs);
            if self.has_docker {
                let listed = std::process::Command::new("docker")
                    .args(["ps", "--all", "--no-trunc", "--format", "{{.Names}}"])
                    .output()
                    .unwrap();
                let listed = String::from_utf8(listed.stdout).unwrap();
                traces.extend(
                    listed
                        .lines()
                        .filter(|own| own.starts_with(name))
                        .map(str::to_owned),
                );
            }
            traces
        }
    }

    impl Drop for Places {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.reopen();
                let label = label_of(self);
                for container in self.told().engine.list(&label).unwrap_or_default() {
                    let _ = self.told().ask(Request::Remove { name: container.name });
                }
            }
        }
    }

    mod two_oci {
        use super::*;

        fn subject(test: &str) -> Option<Places> {
            super::subject(test, false)
        }

        suite!(subject;
            a_container_runs_ends_and_leaves_nothing_behind, what_cannot_be_is_refused_and_leaves_nothing,
            ends_are_reported_once_and_in_time, a_stop_waits_for_its_grace_and_then_kills, several_are_made_at_once,
            requests_for_one_container_keep_their_order, what_runs_is_adopted, commands_run_beside_the_program);
    }

    mod oci_and_docker {
        use super::*;

        fn subject(test: &str) -> Option<Places> {
            super::subject(test, true)
        }

        suite!(subject;
            a_container_runs_ends_and_leaves_nothing_behind, what_cannot_be_is_refused_and_leaves_nothing,
            ends_are_reported_once_and_in_time, a_stop_waits_for_its_grace_and_then_kills, several_are_made_at_once,
            requests_for_one_container_keep_their_order, what_runs_is_adopted, commands_run_beside_the_program);
    }
}
