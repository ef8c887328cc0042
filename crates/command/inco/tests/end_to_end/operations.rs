//! What an operator does while packets flow: changes the configuration, holds an autoscaler back.

use std::io::Write as _;
use std::process::Stdio;

use api::types::{FlowFilter, ServiceRow};
use model::{Action, Event, EventKind};

use crate::support::{Engine, FORWARD, Inco, PATIENCE, Place, assert_clean, available, eventually, kill};

/// The flow table's times are rounded down to 2.1 ms, and once more to a whole one.
const TICK_MS: u64 = 4;

const CONFIGURATION: &str = r#"
FORWARD
capacity = "100kpps"
instances = { min = 2, max = 3, standby = 0 }
autoscaler = "fixed"
scheduler = { policy = "best-fit", slow_start = "0s" }
ring = { slots = 8192 }

[event_log]
file_size = "64KiB"
files = 3
"#;

const TRAFFIC: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "60s"
flows = 12
ramp = "100ms"
rate_per_flow = "200pps"
"#;

fn service(inco: &Inco, name: &str) -> Option<ServiceRow> {
    inco.client()
        .services()
        .unwrap()
        .into_iter()
        .find(|row| row.name == name)
}

fn pins(inco: &Inco) -> Vec<(String, Option<model::InstanceId>)> {
    let page = inco.client().flows(&FlowFilter::default()).unwrap();
    page.flows
        .into_iter()
        .map(|flow| (flow.flow, flow.forward))
        .collect()
}

#[test]
fn a_changed_file_is_applied_while_packets_flow_and_a_bad_one_changes_nothing() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let text = CONFIGURATION.replace("FORWARD\n", FORWARD);
    let inco = place.run(&text);
    inco.settled(2, 0);
    let began = clock::unix_ms();
    let traffic = place.traffic(TRAFFIC);
    let before = eventually("all flows", PATIENCE, || {
        Some(pins(&inco)).filter(|pins| pins.len() == 12)
    });
    let all_pinned = clock::unix_ms();
    let refused = |text: &str| {
        place.file("inco.toml", text);
        let output = place.output(&["reload"]);
        assert!(!output.status.success(), "{output:?}");
        crate::support::text(&output.stderr)
    };
    let rows = inco.client().services().unwrap();
    let said = refused(&text.replace("max = 3", "max = \"three\""));
    assert!(
        said.contains("inco.toml:") && said.contains("nothing was changed"),
        "{said}"
    );
    let said = refused(
        &text
            .replace("memif:wan.sock", "memif:other.sock")
            .replace("max = 3", "max = 4"),
    );
    assert!(
        said.contains("uplink") && said.contains("nothing was changed"),
        "{said}"
    );
    let said = refused(&text.replace("service.forward", "service.other"));
    assert!(said.contains("service.forward (it is removed)"), "{said}");
    // The same is told beforehand.
    let output = place.output(&["reload", "--check", "--diff"]);
    let (told, said) = (
        crate::support::text(&output.stdout),
        crate::support::text(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(1), "{told}{said}");
    assert!(
        told.contains("service.forward: a service -> absent (needs a restart)\n")
            && said.contains(
                "a reload would be refused: these keys cannot change while inco runs: service.forward"
            ),
        "{told}{said}"
    );
    let same = |row: &ServiceRow| {
        (
            row.name.clone(),
            row.min,
            row.max,
            row.scheduler.clone(),
            row.autoscaler.clone(),
        )
    };
    let now = inco.client().services().unwrap();
    assert_eq!(
        now.iter().map(same).collect::<Vec<_>>(),
        rows.iter().map(same).collect::<Vec<_>>()
    );

    // Limits, policy, match and another service, in one file.
    let changed = text
        .replace("min = 2, max = 3", "min = 3, max = 4")
        .replace("best-fit", "round-robin")
        .replace("memory", "match = { dst = \"10.0.0.0/7\" }\nmemory")
        + "\n[service.added]\nport = \"null\"\nmatch = { dst = \"192.0.2.0/24\" }\ninstances = 1\n";
    let file = place.file("inco.toml", &changed);
    // As an operator does: check, see what a reload would do, reload.
    let checked = place.must(&["check", "-f", &file.display().to_string()]);
    assert!(checked.contains("inco runs with"), "{checked}");
    let told = place.must(&["reload", "--check", "--diff"]);
    for line in [
        "service.added: absent -> a service",
        "service.added.instances: absent -> 1",
        "service.forward.instances: { max = 3, min = 2, standby = 0 } -> { max = 4, min = 3, standby = 0 }",
        "service.forward.match.dst: any (default) -> \"10.0.0.0/7\"",
        "a reload would change service.added, service.added.instances,",
    ] {
        assert!(told.contains(line), "{told}\nhas no\n{line}");
    }
    let now = inco.client().services().unwrap();
    assert_eq!(now.len(), 1, "a check changes nothing");
    let outcome: api::types::Outcome = serde_json::from_str(&place.must(&["reload", "--json"])).unwrap();
    assert!(
        outcome.result.starts_with("changed: service.added, ")
            && outcome.result.contains("service.forward.scheduler"),
        "{outcome:?}"
    );
    assert!(
        outcome.changes.iter().all(|change| !change.needs_restart),
        "{outcome:?}"
    );
    eventually("three instances and the new service's", PATIENCE, || {
        let forward = service(&inco, "forward")?;
        let added = service(&inco, "added")?;
        ((forward.active, forward.min, forward.max) == (3, 3, 4) && added.active == 1).then_some(())
    });
    assert_eq!(service(&inco, "forward").unwrap().scheduler, "round-robin");
    let after = pins(&inco);
    for pin in &before {
        assert!(after.contains(pin), "{pin:?} has moved: {after:?}");
    }
    // Again, by a signal: there is nothing to do.
    kill(inco.status().pid, rustix::process::Signal::HUP);
    let by_signal = |event: &Event| {
        matches!(&event.kind, EventKind::Action { action, by, refused: false, result, .. }
            if action == "reload" && by == "signal" && result.contains("nothing has changed"))
    };
    eventually("the signal is heard", PATIENCE, || {
        inco.events().iter().any(by_signal).then_some(())
    });

    // A flow is explained by where it is.
    let (flow, instance) = &before[0];
    let explanation = inco.client().explain_flow(flow).unwrap();
    assert_eq!(explanation.pinned.as_ref().unwrap().forward, *instance);
    assert_eq!(explanation.service.as_deref(), Some("forward"));
    let since = explanation.since_unix_ms.unwrap();
    assert!(
        began <= since + TICK_MS && since <= all_pinned,
        "not {began} <= {since} <= {all_pinned}"
    );
    let said = place.must(&["explain", "flow", flow]);
    let on = format!("forward on instance {} (active) since ", instance.unwrap());
    assert!(
        said.contains(&on) && said.contains("the scheduler picked instance"),
        "{said}"
    );
    // Its service says that it stays.
    let to = inco
        .instances()
        .iter()
        .map(|row| row.id)
        .find(|id| Some(*id) != *instance)
        .unwrap();
    let action = Action::Move {
        flow: flow.clone(),
        instance: to,
    };
    let refusal = inco.client().act(&action).unwrap_err().to_string();
    assert!(refusal.contains("affinity = \"relaxed\""), "{refusal}");

    // What was done is in the files, with who asked for what.
    let file = place.run_dir().join("events/events.jsonl");
    let written = eventually("the files have it", PATIENCE, || {
        let lines = std::fs::read_to_string(&file).unwrap();
        let events: Vec<Event> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        (events.len() == inco.events().len()).then_some(events)
    });
    assert_eq!(written, inco.events());
    let refusals = written.iter().filter(|event| {
        matches!(&event.kind, EventKind::Action { action, refused: true, request, by, .. }
        if action == "reload" && request["action"] == "reload" && by == "uid 0")
    });
    assert_eq!(refusals.count(), 3);

    traffic.interrupt();
    assert_clean(&traffic.report());
    inco.at_rest();
    inco.stop(&place);
}

#[test]
fn a_restricted_autoscaler_reports_its_decision() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let text = CONFIGURATION
        .replace("FORWARD\n", FORWARD)
        .replace(
            "autoscaler = \"fixed\"",
            "autoscaler = { policy = \"smartinco\", target = 0.5 }",
        )
        .replace("100kpps", "2kpps")
        .replace("[service.forward]", "[service.forward]\naffinity = \"relaxed\"");
    let inco = place.run(&text);
    inco.settled(2, 0);
    place.must(&["pause-out", "forward"]);
    place.must(&["disable-scale-out", "forward"]);
    // 2400 packets per second, where two instances take 2000 at the target.
    let traffic = place.traffic(TRAFFIC);
    let row = eventually("it would want more", PATIENCE, || {
        service(&inco, "forward").filter(|row| row.would.is_some())
    });
    assert_eq!(
        (row.would, row.desired, row.pause_out, row.dry_run),
        (Some(3), 2, true, false)
    );
    // The rate differs from moment to moment.
    eventually("the table says it", PATIENCE, || {
        let table = place.must(&["services"]);
        table.contains("[scale-out disabled, would want 3]").then_some(())
    });
    let shadowed = |event: &Event| {
        matches!(
            event.kind,
            EventKind::Shadowed {
                wanted: 2,
                would: 3,
                ..
            }
        )
    };
    eventually("that is told", PATIENCE, || {
        inco.events().iter().any(shadowed).then_some(())
    });
    place.must(&["dry-run", "forward"]);
    place.must(&["disable-scale-out", "forward", "--off"]);
    assert_eq!(service(&inco, "forward").unwrap().desired, 2, "a dry run");
    place.must(&["dry-run", "forward", "--off"]);
    let rows = inco.settled(3, 0);
    assert_eq!(service(&inco, "forward").unwrap().would, None);

    // A flow of a service that allows it is moved, once.
    let (flow, from) = pins(&inco).into_iter().next().unwrap();
    let to = rows
        .iter()
        .map(|row| row.id)
        .find(|id| Some(*id) != from)
        .unwrap();
    let id = to.0.to_string();
    let since = || inco.client().explain_flow(&flow).unwrap().since_unix_ms;
    let (asked, first) = (clock::unix_ms(), since().unwrap());
    assert!(first <= asked, "{first} {asked}");
    assert!(place.must(&["move", &flow, &id]).contains("moves to instance"));
    eventually("it is there", PATIENCE, || {
        pins(&inco).contains(&(flow.clone(), Some(to))).then_some(())
    });
    let (moved, now) = (since().unwrap(), clock::unix_ms());
    assert!(
        asked <= moved + TICK_MS && moved <= now,
        "not {asked} <= {moved} <= {now}"
    );
    assert!(place.must(&["move", &flow, &id]).contains("already"));
    let gone = place.output(&["move", "tcp 192.0.2.1:1 > 192.0.2.2:2", &id]);
    assert!(
        crate::support::text(&gone.stderr).contains("is not in the flow table"),
        "{gone:?}"
    );

    // The decision of the event log's file can be repeated from its line as it is.
    let scaled = eventually("the decision is written", PATIENCE, || {
        let lines = std::fs::read_to_string(place.run_dir().join("events/events.jsonl")).unwrap();
        lines
            .lines()
            .find(|line| line.contains("\"event\":\"scaled\""))
            .map(str::to_owned)
    });
    let mut explain = place
        .inco(&["explain", "autoscaler", "--input", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    explain
        .stdin
        .take()
        .unwrap()
        .write_all(scaled.as_bytes())
        .unwrap();
    let output = explain.wait_with_output().unwrap();
    let said = crate::support::text(&output.stdout);
    assert!(
        output.status.success() && said.contains("3 instances"),
        "{said}\n{scaled}"
    );
    traffic.interrupt();
    let report = traffic.report_with_moves();
    assert_eq!(report.lost, 0, "{:#?}", report.counts);
    inco.stop(&place);
}

/// Mounts a FUSE file system whose server never answers over a directory, until it is dropped.
struct Hung {
    directory: std::path::PathBuf,
    served_by: Option<std::fs::File>,
}

impl Hung {
    fn over(directory: &std::path::Path) -> Option<Hung> {
        let served_by = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .ok()?;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&served_by);
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("inco-test", directory, "fuse", flags, options.as_c_str()).ok()?;
        Some(Hung {
            directory: directory.to_owned(),
            served_by: Some(served_by),
        })
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // Blocked system calls return an error.
        drop(self.served_by.take());
        rustix::mount::unmount(&self.directory, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

/// What cannot be read is refused in time with what is the matter, and is read again once that is over.
#[test]
fn a_file_that_cannot_be_read_is_refused_until_it_can() {
    let place = Place::new();
    let folder = place.path("etc");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("inco.toml");
    let text = "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n\
                [service.sink]\nport = \"null\"\ninstances = 1\n";
    std::fs::write(&file, text).unwrap();
    let inco = place.run_file(&file);
    let refused = || {
        let output = place.output(&["reload"]);
        assert!(!output.status.success(), "{output:?}");
        crate::support::text(&output.stderr)
    };
    let is_read = || {
        let said = place.must(&["reload"]);
        assert!(said.contains("nothing has changed"), "{said}");
    };
    is_read();

    std::fs::remove_file(&file).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let said = refused();
    assert!(
        said.contains("this is a FIFO; name a regular file") && said.contains("nothing was changed"),
        "{said}"
    );
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, text).unwrap();
    is_read();

    let Some(hung) = Hung::over(&folder) else {
        available(
            "fuse",
            Some("a file system cannot be mounted: /dev/fuse and root".to_owned()),
        );
        place.must(&["stop"]);
        inco.ended();
        return;
    };
    for _ in 0..2 {
        let said = refused();
        assert!(
            said.contains("inco.toml was not read and checked within 8 s")
                && said.contains("nothing was changed"),
            "{said}"
        );
    }
    drop(hung);
    is_read();
    place.must(&["stop"]);
    inco.ended();
}
