//! The pages of docs/, run as they stand: the blocks marked `sh` of a page are one script, in an empty folder.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Engine, Place, available, eventually, text};

/// How long the script of a page may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The blocks marked `sh`, in their order.
fn script(page: &str) -> String {
    let mut script = String::new();
    let mut inside = false;
    for line in page.lines() {
        match line.trim_end() {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => {
                script.push_str(line);
                script.push('\n');
            }
            _ => {}
        }
    }
    script
}

fn lacks(program: &str) -> Option<String> {
    let found = Command::new("sh")
        .args(["-c", "command -v \"$0\" >/dev/null", program])
        .status();
    (!found.is_ok_and(|status| status.success())).then(|| format!("{program} is not installed"))
}

fn runs_as_it_stands(page: &str) {
    runs(page, &["bash"]);
}

/// `shell` runs the script.
fn runs(page: &str, shell: &[&str]) {
    if !Engine::Oci.is_here() || !available("jq", lacks("jq")) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let script = script(&std::fs::read_to_string(root.join("docs").join(page)).unwrap());
    assert!(script.contains("inco "), "{page} has no example");
    let place = Place::new();
    let folder = place.path("folder");
    let programs = place.path("bin");
    for directory in [&folder, &programs] {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_inco"), programs.join("inco")).unwrap();
    let path = std::env::var("PATH").unwrap();
    let said = place.path("said");
    let log = std::fs::File::create(&said).unwrap();
    // Whatever fails, the inco that was started ends, and its containers with it.
    let whole =
        format!("set -euo pipefail\ntrap 'inco stop > /dev/null 2>&1 || true; wait' EXIT\nset -x\n{script}");
    let mut child = Command::new(shell[0])
        .args(&shell[1..])
        .args(["-c", &whole])
        .current_dir(&folder)
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("INCO", root.canonicalize().unwrap())
        .env("INCO_RUN_DIR", place.run_dir())
        .env("INCO_STATE_DIR", place.path("state"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let until = Instant::now() + LIMIT;
    let status = eventually("the script ends", LIMIT + Duration::from_secs(20), || {
        if Instant::now() > until {
            // So that its trap runs.
            crate::support::kill(child.id(), rustix::process::Signal::TERM);
        }
        child.try_wait().unwrap()
    });
    let said = text(&std::fs::read(&said).unwrap());
    assert!(status.success(), "docs/{page}: {status}\n{said}");
}

#[test]
fn the_page_about_looking_runs() {
    runs_as_it_stands("tasks/watch.md");
}

#[test]
fn the_page_about_images_runs() {
    runs_as_it_stands("tasks/images.md");
}

#[test]
fn the_page_about_two_arms_runs() {
    runs_as_it_stands("tasks/two-arm.md");
}

#[test]
fn the_page_about_chains_runs() {
    runs_as_it_stands("tasks/chain.md");
}

#[test]
fn the_page_about_standby_runs() {
    runs_as_it_stands("tasks/standby.md");
}

#[test]
fn the_page_about_policies_runs() {
    runs_as_it_stands("tasks/policy.md");
}

/// In a network namespace of its own.
#[test]
fn the_page_about_web_servers_runs() {
    let missing = ["nginx", "curl", "ip"].into_iter().find_map(lacks);
    if !available("servers", missing) {
        return;
    }
    let _deleted = Command::new("ip").args(["netns", "delete", "lab"]).output();
    runs("tasks/web.md", &["unshare", "--net", "bash"]);
}

/// In a network namespace of its own.
#[test]
fn the_page_about_actors_runs() {
    if !available("ip", lacks("ip")) {
        return;
    }
    let _deleted = Command::new("ip")
        .args(["netns", "delete", "actors-lab"])
        .output();
    runs("tasks/actors.md", &["unshare", "--net", "bash"]);
}

#[test]
fn the_tutorial_runs() {
    let missing = lacks("dpdk-testpmd")
        .or_else(|| lacks("cc"))
        .or_else(|| lacks("pkg-config"));
    if available("dpdk", missing) {
        runs_as_it_stands("tutorial.md");
    }
}

/// A page that is not run must be one without such blocks; a link must lead somewhere.
#[test]
fn no_example_is_forgotten_and_every_link_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let here = include_str!("documentation.rs");
    for folder in ["docs", "docs/tasks"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let page = std::fs::read_to_string(&path).unwrap();
            let name = path
                .strip_prefix(root.join("docs"))
                .unwrap()
                .display()
                .to_string();
            assert!(
                script(&page).is_empty() || here.contains(&format!("(\"{name}\"")),
                "{name} has examples that no test runs"
            );
            for link in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let file = link.split('#').next().unwrap_or_default();
                if !file.is_empty() && !file.contains("://") {
                    assert!(
                        path.parent().unwrap().join(file).exists(),
                        "{name}: {link} leads nowhere"
                    );
                }
            }
        }
    }
}
