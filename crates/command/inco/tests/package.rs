//! The Debian package: made of the built programs, installed, run and removed in a copy of the file system that only
//! the test sees.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::path::Path;
use std::process::{Command, Output};

/// Whether it can be tested here; says so where not, and fails where `INCO_REQUIRE` names it.
fn is_here() -> bool {
    let runs = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output();
        output.is_ok_and(|output| output.status.success())
    };
    let missing = if !rustix::process::geteuid().is_root() {
        Some("this is not run as root")
    } else if std::env::var_os("INCO_NF").is_none() {
        Some("INCO_NF does not name the static inco-nf (`make nf` builds it)")
    } else if !(runs("dpkg-shlibdeps", "--version") && runs("strip", "--version")) {
        Some("dpkg-dev is not installed (scripts/setup.sh deb)")
    } else {
        None
    };
    real_parts::available("deb", missing.map(str::to_owned))
}

fn must(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    assert!(
        status.success(),
        "{command:?}: {status}\n{}{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).unwrap()
}

#[test]
fn the_package_installs_runs_and_goes() {
    if !is_here() {
        return;
    }
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging");
    let folder = tempfile::tempdir().unwrap();
    let binaries = folder.path().join("binaries");
    std::fs::create_dir(&binaries).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_inco"), binaries.join("inco")).unwrap();
    let nf = std::env::var_os("INCO_NF").unwrap();
    std::fs::copy(&nf, binaries.join("inco-nf")).unwrap();
    let actors = Path::new(&nf).with_file_name("inco-actors");
    std::fs::copy(actors, binaries.join("inco-actors")).unwrap();
    let built = must(
        Command::new(packaging.join("deb.sh"))
            .arg(&binaries)
            .arg(folder.path())
            // Small is for those who download it.
            .env("INCO_DEB_LEVEL", "0"),
    );
    let package = built.trim().strip_prefix("built: ").unwrap();
    let fields = must(Command::new("dpkg-deb").args(["--field", package]));
    assert!(
        fields.contains("Package: inco") && fields.contains("libc6"),
        "{fields}"
    );
    let version = must(Command::new("dpkg-deb").args(["--field", package, "Version"]));
    let version = version.trim();
    assert_eq!(version, env!("CARGO_PKG_VERSION").replace('-', "~"));
    // Any release is later than what was built before it.
    let release = version.split('~').next().unwrap();
    must(Command::new("dpkg").args(["--compare-versions", version, "le", release]));
    let said = must(Command::new(packaging.join("test-deb.sh")).arg(package));
    assert!(said.contains("installs, runs and goes"), "{said}");
    let missing = said.lines().find(|line| line.contains("not run under systemd"));
    real_parts::available("systemd", missing.map(str::to_owned));
}
