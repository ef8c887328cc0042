//! Which file of an image a command runs, found as the kernel and the C library find it in the container.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

use model::Mount;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

use crate::image::Store;
use crate::{ContainerSpec, EngineError};

/// Where programs are looked for that are named without a `/`, unless image or container say otherwise.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a container finds where a command names a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A file that it can run, by its path in the container.
    Found(PathBuf),
    /// A file that is no program: a directory, or without a permission to run it.
    NotExecutable(PathBuf),
    /// Nothing, in none of these places.
    Missing(Vec<PathBuf>),
}

impl Store {
    /// Looks for the program of a command in the image and the mounts of the specification.
    ///
    /// # Errors
    /// [`EngineError::ImageMissing`], or [`EngineError::Io`] if the image cannot be read.
    pub fn find_program(&self, spec: &ContainerSpec, program: &str) -> Result<Program, EngineError> {
        let (rootfs, image) = self.resolve(&spec.image)?;
        let root = File::open(&rootfs).map_err(|error| EngineError::io("open", &rootfs, &error))?;
        let mut settings = image.env.iter().chain(&spec.env).rev();
        let path = settings.find(|(name, _)| name == "PATH");
        let path = path.map_or(PATH, |(_, value)| value.as_str());
        let places: Vec<PathBuf> = if program.contains('/') {
            vec![image.directory.join(program)]
        } else {
            let folders = path.split(':');
            folders
                .map(|folder| image.directory.join(folder).join(program))
                .collect()
        };
        let mut found = None;
        for place in &places {
            match kind_in(&root, &spec.mounts, place) {
                Some(true) => return Ok(Program::Found(place.clone())),
                Some(false) => found = found.or(Some(place.clone())),
                None => {}
            }
        }
        Ok(found.map_or(Program::Missing(places), Program::NotExecutable))
    }
}

/// Whether a path of a container is a program; `None` where there is nothing.
fn kind_in(root: &File, mounts: &[Mount], path: &Path) -> Option<bool> {
    let mut path = normal(path);
    let mounted = mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.target))
        .max_by_key(|mount| mount.target.components().count());
    let mut dir = root.as_fd().try_clone_to_owned().ok()?;
    if let Some(mount) = mounted {
        let rest = path.strip_prefix(&mount.target).unwrap_or(&path).to_owned();
        if rest.as_os_str().is_empty() {
            return is_program(&File::open(&mount.source).ok()?.into());
        }
        dir = File::open(&mount.source).ok()?.into();
        path = rest;
    }
    // Links lead where they would in the container.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = openat2(&dir, &path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
    is_program(&file)
}

fn is_program(file: &OwnedFd) -> Option<bool> {
    let about = fstat(file).ok()?;
    let any = Mode::XUSR | Mode::XGRP | Mode::XOTH;
    let is_file = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile;
    Some(is_file && Mode::from_raw_mode(about.st_mode).intersects(any))
}

/// A path without `.` and `..`, from the root.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                normal.pop();
            }
            _ => {}
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::ImageRef;

    fn file(path: &Path, mode: u32) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_program_is_found_as_in_the_container() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        file(&source.join("opt/app/run"), 0o755);
        file(&source.join("bin/tool"), 0o755);
        file(&source.join("etc/rules"), 0o644);
        symlink("/opt/app/run", source.join("bin/linked")).unwrap();
        symlink("/../../../../bin/tool", source.join("bin/up")).unwrap();
        symlink("/nowhere", source.join("bin/broken")).unwrap();
        let store = Store::at(directory.path().join("images"));
        let name = ImageRef::from("a");
        let env = [("PATH".to_owned(), "/opt/app:/bin".to_owned())];
        store.import(&name, &source, &["run".to_owned()], &env).unwrap();
        let mounted = directory.path().join("mounted");
        file(&mounted.join("extra"), 0o755);
        let mut spec = ContainerSpec::new("c", "a");
        spec.mounts = vec![Mount {
            source: mounted,
            target: "/opt/more".into(),
            read_only: true,
        }];
        let found = |spec: &ContainerSpec, program: &str| store.find_program(spec, program).unwrap();
        for (program, path) in [
            ("/bin/tool", "/bin/tool"),
            ("bin/tool", "/bin/tool"),
            ("./bin/tool", "/bin/tool"),
            ("tool", "/bin/tool"),
            ("run", "/opt/app/run"),
            ("linked", "/bin/linked"),
            // Above the root is the root.
            ("up", "/bin/up"),
            ("/opt/more/extra", "/opt/more/extra"),
        ] {
            let Program::Found(at) = found(&spec, program) else {
                panic!("{program}: {:?}", found(&spec, program));
            };
            assert_eq!(normal(&at), Path::new(path));
        }
        assert_eq!(
            found(&spec, "/etc/rules"),
            Program::NotExecutable("/etc/rules".into())
        );
        assert_eq!(found(&spec, "/etc"), Program::NotExecutable("/etc".into()));
        assert_eq!(
            found(&spec, "tol"),
            Program::Missing(vec!["/opt/app/tol".into(), "/bin/tol".into()])
        );
        for missing in ["broken", "/tool", "extra", "/opt/more/run", "etc/rulez"] {
            assert!(matches!(found(&spec, missing), Program::Missing(_)), "{missing}");
        }
        // The container's own environment is the last word.
        spec.env = vec![("PATH".to_owned(), "/opt/more".to_owned())];
        assert_eq!(found(&spec, "extra"), Program::Found("/opt/more/extra".into()));
        assert!(matches!(found(&spec, "tool"), Program::Missing(_)));
    }
}
