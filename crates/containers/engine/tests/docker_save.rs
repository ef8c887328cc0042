//! Images that a real Docker daemon built and saved, run by the `oci` engine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // these are tests

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use engine::image::{Imported, Store};
use engine::{ContainerSpec, Exchange, ImageRef, Owner};
use support::{Place, Told, available, oci_missing, probe};

fn docker(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("docker")
        .args(arguments)
        .env("DOCKER_BUILDKIT", "0")
        .output()
        .map_err(|error| format!("docker: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(said)
    }
}

/// An image of the daemon, for as long as the test runs.
struct Built(String);

impl Drop for Built {
    fn drop(&mut self) {
        let _ = docker(&["rmi", "--force", &self.0]);
    }
}

/// Three layers: files, other files in their place, and one removed.
fn build(dir: &Path) -> Built {
    let name = format!("inco-saved-{}:test", std::process::id());
    let file = "FROM scratch\nCOPY probe /probe\nCOPY one /data\nCOPY --chown=7:8 two /data\nRUN [\"/probe\", \"remove\", \"/data/old\"]\n\
                ENV GREETING=hello\nUSER 7:8\nWORKDIR /data/work\nENTRYPOINT [\"/probe\"]\nCMD [\"whoami\"]\n";
    fs::write(dir.join("Dockerfile"), file).unwrap();
    fs::copy(probe(), dir.join("probe")).unwrap();
    for (path, text) in [
        ("one/old", "old"),
        ("one/kept", "one"),
        ("one/other", "one"),
        ("two/kept", "two"),
    ] {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    for (path, mode) in [("two/kept", 0o640), ("two/open", 0o1777), ("one/private", 0o700)] {
        let path = dir.join(path);
        if !path.exists() {
            fs::create_dir(&path).unwrap();
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    symlink("kept", dir.join("two/link")).unwrap();
    let context = dir.to_str().unwrap();
    docker(&["build", "--network", "none", "--tag", &name, context]).unwrap();
    Built(name)
}

fn import(store: &Store, source: &Path) -> Imported {
    store
        .import(&ImageRef::from("saved:test"), source, &[], &[])
        .unwrap()
}

/// What a file is: its kind and permissions, user and group, and what is in it or where it leads.
type Shape = (char, u32, u64, u64, Vec<u8>);

/// The files of a container of this image, as Docker exports them.
fn exported(built: &Built, to: &Path) -> BTreeMap<PathBuf, Shape> {
    let id = docker(&["create", &built.0]).unwrap();
    let written = docker(&["export", "--output", to.to_str().unwrap(), id.trim()]);
    docker(&["rm", id.trim()]).unwrap();
    written.unwrap();
    let mut archive = tar::Archive::new(File::open(to).unwrap());
    let shape = |entry: std::io::Result<tar::Entry<'_, File>>| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().components().collect();
        let header = entry.header().clone();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let target = header.link_name_bytes().map(std::borrow::Cow::into_owned);
        let kind = match header.entry_type() {
            tar::EntryType::Regular => 'f',
            tar::EntryType::Directory => 'd',
            tar::EntryType::Symlink => 'l',
            other => panic!("{other:?} is in {to:?}"),
        };
        let (uid, gid) = (header.uid().unwrap(), header.gid().unwrap());
        let mode = header.mode().unwrap() & 0o7777;
        (path, (kind, mode, uid, gid, target.unwrap_or(content)))
    };
    archive.entries().unwrap().map(shape).collect()
}

/// The files below this folder, at these paths of its image.
fn shapes(folder: &Path, at: &Path, into: &mut BTreeMap<PathBuf, Shape>) {
    let data = fs::symlink_metadata(folder).unwrap();
    let (kind, content) = if data.is_dir() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            shapes(&entry.path(), &at.join(entry.file_name()), into);
        }
        ('d', Vec::new())
    } else if data.is_symlink() {
        let target = fs::read_link(folder).unwrap();
        ('l', target.into_os_string().into_encoded_bytes())
    } else {
        ('f', fs::read(folder).unwrap())
    };
    let owner = (u64::from(data.uid()), u64::from(data.gid()));
    into.insert(
        at.to_owned(),
        (kind, data.mode() & 0o7777, owner.0, owner.1, content),
    );
}

#[test]
fn an_image_that_docker_saved_runs_as_it_does_there() {
    let missing = docker(&["version"]).err();
    if !available("oci", oci_missing()) || !available("docker", missing) {
        return;
    }
    let place = Place::new();
    let context = place.dir.path().join("context");
    fs::create_dir(&context).unwrap();
    let built = build(&context);
    let archive = place.dir.path().join("saved.tar");
    docker(&["save", "--output", archive.to_str().unwrap(), &built.0]).unwrap();
    let unpacked = place.dir.path().join("saved");
    fs::create_dir(&unpacked).unwrap();
    let status = Command::new("tar")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(&unpacked)
        .status();
    assert!(status.unwrap().success());

    let is_of_image = |path: &PathBuf| path.starts_with("data") || path.starts_with("probe");
    let mut theirs = exported(&built, &place.dir.path().join("exported.tar"));
    theirs.retain(|path, _| is_of_image(path));
    assert_eq!(theirs.len(), 8, "{:?}", theirs.keys());

    let store = place.store();
    for source in [&archive, &unpacked] {
        let image = import(&store, source).image;
        assert_eq!(image.command(&[]), ["/probe", "whoami"]);
        assert_eq!(
            image.env.last().unwrap(),
            &("GREETING".to_owned(), "hello".to_owned())
        );
        assert_eq!(
            (image.user, image.directory.as_path()),
            (Owner { uid: 7, gid: 8 }, Path::new("/data/work"))
        );
        let (rootfs, _) = store.resolve(&ImageRef::from("saved:test")).unwrap();
        let mut ours = BTreeMap::new();
        shapes(&rootfs, Path::new(""), &mut ours);
        ours.retain(|path, _| is_of_image(path));
        for (path, shape) in &theirs {
            assert_eq!(ours.get(path), Some(shape), "{path:?} of {source:?}");
        }
        assert_eq!(ours.len(), theirs.len(), "{:?}", ours.keys());
    }

    let mut told = Told::new(Box::new(place.engine()));
    let with = |name: &str, command: &[&str]| ContainerSpec {
        command: command.iter().map(|&word| word.to_owned()).collect(),
        exchange: Some(Exchange {
            source: place.run_dir().join("instances").join(name),
            target: "/run/inco".into(),
        }),
        ..ContainerSpec::new(name, "saved:test")
    };
    for (name, command, said) in [
        ("inco-saved-own", &[][..], "7:8 /data/work"),
        ("inco-saved-cat", &["/probe", "cat", "/data/kept"], "two"),
    ] {
        told.create(&with(name, command));
        let (_, output, _) = told.exit_of(name);
        assert_eq!(output, said);
        told.remove(name).unwrap();
    }
    // Its program can reach inco's socket.
    let name = "inco-saved-meet";
    told.create(&with(name, &["/probe", "meet", "/run/inco"]));
    let socket = place.run_dir().join("instances").join(name).join("port.sock");
    let deadline = Instant::now() + support::PATIENCE;
    while UnixStream::connect(&socket).is_err() {
        assert!(Instant::now() < deadline, "it does not listen");
        std::thread::sleep(Duration::from_millis(1));
    }
    told.remove(name).unwrap();
}
