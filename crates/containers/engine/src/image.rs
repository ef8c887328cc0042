//! The images of the `oci` engine: a directory for each, with its root file system and its configuration. An image is
//! built from files or imported; layers are merged on import. The crate `registry` downloads what is imported here.
//!
//! Containers share the root file system of their image, read-only. An image may be replaced or removed while
//! containers run: they keep its files, which go with the first build after the last of them, and new containers get
//! the new image.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{BufReader, Read, Seek as _, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, openat, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::layers::{Layered, Settings};
use crate::unpack::{self, Limits, Tree};
use crate::{EngineError, ImageRef, LeftOut, Owner, users};

/// The longest name of an image, in bytes.
pub const MAX_IMAGE_NAME_BYTES: usize = 200;

/// Directories that every root file system has, for what is mounted over them.
const MOUNT_POINTS: [&str; 6] = ["dev", "etc", "proc", "run", "sys", "tmp"];

/// The permissions of the directory that holds the images.
const PRIVATE: u32 = 0o700;

/// What an image is, beside its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// With its tag.
    pub name: String,
    /// Program, and arguments that it always has, where a container gives no command.
    pub entrypoint: Vec<String>,
    /// Arguments where a container gives none; the program, too, where there is no entrypoint.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Environment, before a container's own.
    pub env: Vec<(String, String)>,
    /// Where the program starts.
    #[serde(default = "root")]
    pub directory: PathBuf,
    /// Who runs it.
    #[serde(default)]
    pub user: Owner,
    /// The number of the signal that ends its program; `None` for SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<i32>,
    /// Directories that its program writes to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<PathBuf>,
    /// What identifies it in a registry: `sha256:…` of its manifest. `None` unless it came from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// The size of its files, in bytes.
    pub bytes: u64,
}

fn root() -> PathBuf {
    PathBuf::from("/")
}

impl Image {
    /// The command of a container that gives none: the entrypoint, and `arguments` instead of the image's own if
    /// there are any.
    pub fn command(&self, arguments: &[String]) -> Vec<String> {
        let own = if arguments.is_empty() {
            self.arguments.as_slice()
        } else if self.entrypoint.is_empty() {
            // The program is what they follow.
            self.arguments.get(..1).unwrap_or_default()
        } else {
            &[]
        };
        [&self.entrypoint, own, arguments].concat()
    }
}

/// An image that was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// What it is.
    pub image: Image,
    /// What it has not, though its source had.
    pub left_out: LeftOut,
}

/// The directory in which an image is being built; locked during the build.
#[derive(Debug)]
struct Work {
    dir: PathBuf,
    _lock: File,
}

/// A file to put into an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageFile {
    /// On this machine.
    pub source: PathBuf,
    /// In the image; absolute.
    pub target: PathBuf,
    /// Permissions, as 0o755.
    pub mode: u32,
}

impl ImageFile {
    /// A program.
    pub fn program(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> ImageFile {
        ImageFile {
            source: source.into(),
            target: target.into(),
            mode: 0o755,
        }
    }
}

/// What the image of a program of this machine has, beside the program and its libraries.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// Arguments that the program always has.
    pub arguments: Vec<String>,
    /// Directories of this machine with all that is in them, and the libraries of plug-ins there; those that are not
    /// there are left out.
    pub directories: Vec<PathBuf>,
    /// Files of this machine; those that are not there are left out.
    pub files: Vec<PathBuf>,
    /// Empty directories, with permissions and owner.
    pub made: Vec<(PathBuf, u32, Owner)>,
    /// Files with these texts.
    pub texts: Vec<(PathBuf, String)>,
    /// Symbolic links, and where they lead.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Who runs it.
    pub user: Owner,
    /// Where it starts; `None` for `/`.
    pub directory: Option<PathBuf>,
    /// The signal that ends it; `None` for SIGTERM.
    pub stop_signal: Option<i32>,
    /// Directories that it writes to.
    pub volumes: Vec<PathBuf>,
}

/// The images of this machine.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Store {
    /// The images in this directory, which need not exist yet.
    pub fn at(dir: impl Into<PathBuf>) -> Store {
        Store { dir: dir.into() }
    }

    /// Where images are unless something else is said: `images` in [`Store::state_dir`].
    pub fn default_dir() -> PathBuf {
        Store::state_dir().join("images")
    }

    /// The directory of what outlives inco: `$INCO_STATE_DIR`, or `/var/lib/inco`. With another run directory than
    /// `/run/inco` it is that one, so that two incos share images only if both are told to.
    pub fn state_dir() -> PathBuf {
        let given = |name| {
            std::env::var_os(name)
                .filter(|text| !text.is_empty())
                .map(PathBuf::from)
        };
        state_dir(given("INCO_STATE_DIR"), given("INCO_RUN_DIR"))
    }

    /// Makes an image of these files and nothing else. One of that name is replaced.
    ///
    /// # Errors
    /// [`EngineError::BadSpec`] for a name or path that cannot be; [`EngineError::Io`].
    pub fn build_scratch(
        &self,
        name: &ImageRef,
        files: &[ImageFile],
        entrypoint: &[String],
        env: &[(String, String)],
    ) -> Result<Image, EngineError> {
        let filled = self.build(name, Path::new("/"), |tree| {
            add_files(tree, files)?;
            Ok(Settings::of(entrypoint, env))
        });
        filled.map(|imported| imported.image)
    }

    /// Imports an image: a root file system (a directory, or a tar archive as `docker export` writes it), or an image
    /// with layers (an OCI image layout, or what `docker save` writes, as a directory or a tar archive). Replaces an
    /// image of that name.
    ///
    /// Files of a root file system belong to the container's root; layers name the owners of theirs. An image with
    /// layers brings its entrypoint, arguments, environment, working directory and user; `entrypoint`, if not empty,
    /// replaces the first two, and `env` is added.
    ///
    /// # Errors
    /// [`EngineError::BadSpec`] for an invalid name; [`EngineError::NoProgram`] without an entrypoint;
    /// [`EngineError::BadImage`] for an unknown format, a wrong digest or an exceeded limit; [`EngineError::Io`].
    pub fn import(
        &self,
        name: &ImageRef,
        source: &Path,
        entrypoint: &[String],
        env: &[(String, String)],
    ) -> Result<Imported, EngineError> {
        let read = |error: &std::io::Error| EngineError::io("read", source, error);
        let kind = fs::metadata(source).map_err(|e| read(&e))?;
        let given = Settings::of(entrypoint, env);
        let mut archive = None;
        let layered = if kind.is_dir() {
            Layered::in_folder(source)?
        } else if kind.is_file() {
            let mut file = File::open(source).map_err(|e| read(&e))?;
            check_is_archive(source, &mut file)?;
            let layered = Layered::in_archive(source, &file)?;
            archive = Some(tar::Archive::new(file));
            layered
        } else {
            return Err(bad(source, "it is neither a folder nor a tar archive"));
        };
        if let Some(layered) = layered {
            let fill = |tree: &mut Tree<'_>| layered.unpack(tree, Limits::default())?.with(given).check();
            return self.build(name, source, fill);
        }
        // Before anything is made: it may be the wrong folder.
        let settings = given.check()?;
        self.build(name, source, |tree| {
            match archive {
                Some(mut archive) => unpack::unpack(tree, archive.entries().map_err(|e| read(&e))?)?,
                None => unpack::copy(tree, source, Path::new(""))?,
            }
            Ok(settings)
        })
    }

    /// The name that an image with layers has in its archive or folder; `None` where it has none.
    ///
    /// # Errors
    /// As [`Store::import`].
    pub fn name_in(&self, source: &Path) -> Result<Option<ImageRef>, EngineError> {
        let read = |error: &std::io::Error| EngineError::io("read", source, error);
        let kind = fs::metadata(source).map_err(|e| read(&e))?;
        let layered = if kind.is_dir() {
            Layered::in_folder(source)?
        } else {
            let mut file = File::open(source).map_err(|e| read(&e))?;
            check_is_archive(source, &mut file)?;
            Layered::in_archive(source, &file)?
        };
        let name = layered.map(|layered| layered.name()).transpose()?.flatten();
        Ok(name.map(ImageRef))
    }

    /// Imports an image that was downloaded from a registry: an OCI image layout in a folder. `digest` is the one of
    /// its manifest.
    ///
    /// # Errors
    /// As [`Store::import`].
    pub fn import_download(
        &self,
        name: &ImageRef,
        layout: &Path,
        digest: &str,
    ) -> Result<Imported, EngineError> {
        let layered = Layered::in_folder(layout)?.ok_or_else(|| bad(layout, "it is no OCI image layout"))?;
        self.build(name, layout, |tree| {
            let settings = layered.unpack(tree, Limits::default())?;
            let digest = Some(digest.to_owned());
            Settings { digest, ..settings }.check()
        })
    }

    /// Makes an image of a program of this machine with its shared libraries and, for DPDK programs, the drivers that
    /// an instance needs. The program has the same path as on this machine. Replaces an image of that name.
    ///
    /// # Errors
    /// [`EngineError::BadSpec`] if a library is not found; [`EngineError::Io`].
    pub fn from_host_program(
        &self,
        name: &ImageRef,
        program: &Path,
        beside: &Beside,
    ) -> Result<Image, EngineError> {
        let mut libraries = shared_libraries(program)?;
        let mut files = BTreeSet::from([ImageFile::program(program, program)]);
        let eal = libraries
            .iter()
            .find(|path| file_name(path).starts_with("librte_eal.so"));
        for driver in eal.map(|eal| dpdk_drivers(eal)).unwrap_or_default() {
            libraries.extend(shared_libraries(&driver)?);
            files.insert(ImageFile::program(&driver, &driver));
        }
        let directories: Vec<&PathBuf> = beside.directories.iter().filter(|dir| dir.is_dir()).collect();
        for plug_in in directories.iter().flat_map(|dir| plug_ins(dir)) {
            libraries.extend(shared_libraries(&plug_in)?);
        }
        let elsewhere: BTreeSet<String> = libraries
            .iter()
            .filter_map(|path| path.parent())
            .map(|dir| dir.display().to_string())
            .filter(|dir| !["/lib", "/usr/lib"].iter().any(|usual| dir.starts_with(usual)))
            .collect();
        files.extend(libraries.iter().map(|path| ImageFile::program(path, path)));
        let there = beside.files.iter().filter(|path| path.is_file());
        files.extend(there.map(|path| ImageFile {
            source: path.clone(),
            target: path.clone(),
            mode: 0o644,
        }));
        let mut env = Vec::new();
        if !elsewhere.is_empty() {
            let dirs: Vec<String> = elsewhere.into_iter().collect();
            env.push(("LD_LIBRARY_PATH".to_owned(), dirs.join(":")));
        }
        let mut entrypoint = vec![program.display().to_string()];
        entrypoint.extend_from_slice(&beside.arguments);
        let filled = self.build(name, Path::new("/"), |tree| {
            for dir in directories {
                unpack::copy(tree, dir, dir)?;
            }
            add_files(tree, &files)?;
            for (path, mode, owner) in &beside.made {
                tree.add_dir(path, *mode, *owner)?;
            }
            for (path, text) in &beside.texts {
                tree.add_file(path, 0o644, Owner::ROOT, &mut text.as_bytes())?;
            }
            for (path, target) in &beside.links {
                tree.add_symlink(path, target, Owner::ROOT)?;
            }
            Ok(Settings {
                directory: beside.directory.clone().unwrap_or_else(root),
                user: beside.user,
                stop_signal: beside.stop_signal,
                volumes: beside.volumes.clone(),
                ..Settings::of(&entrypoint, &env)
            })
        });
        filled.map(|imported| imported.image)
    }

    /// Every image, by name.
    ///
    /// # Errors
    /// [`EngineError::Io`] where the directory exists but cannot be read.
    pub fn list(&self) -> Result<Vec<Image>, EngineError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(EngineError::io("read", &self.dir, &error)),
        };
        let mut images: Vec<Image> = entries
            .flatten()
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            .filter_map(|entry| read_image(&entry.path()).ok().flatten())
            .collect();
        images.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(images)
    }

    /// Removes an image.
    ///
    /// # Errors
    /// [`EngineError::ImageMissing`] and [`EngineError::Io`].
    pub fn remove(&self, name: &ImageRef) -> Result<(), EngineError> {
        let dir = self.dir_of(name)?;
        let missing = || EngineError::ImageMissing {
            image: name.with_tag(),
        };
        let aside = self.temporary("old");
        fs::rename(&dir, &aside).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => missing(),
            _ => EngineError::io("remove", &dir, &error),
        })?;
        discard(&aside)
    }

    /// The root file system of an image, and what it is.
    ///
    /// # Errors
    /// [`EngineError::ImageMissing`]; [`EngineError::Io`] if it cannot be read.
    pub fn resolve(&self, name: &ImageRef) -> Result<(PathBuf, Image), EngineError> {
        let dir = self.dir_of(name)?;
        let read = read_image(&dir).map_err(|error| EngineError::io("read", &dir, &error))?;
        let image = read.ok_or_else(|| EngineError::ImageMissing {
            image: name.with_tag(),
        })?;
        Ok((dir.join("rootfs"), image))
    }

    /// Writes the root file system of an image as a tar archive.
    ///
    /// # Errors
    /// [`EngineError::ImageMissing`] and [`EngineError::Io`].
    pub fn write_tar(&self, name: &ImageRef, to: impl Write) -> Result<Image, EngineError> {
        let (rootfs, image) = self.resolve(name)?;
        let pack = |error: &std::io::Error| EngineError::io("pack", &rootfs, error);
        let mut archive = tar::Builder::new(to);
        archive.follow_symlinks(false);
        archive.append_dir_all(".", &rootfs).map_err(|e| pack(&e))?;
        archive.finish().map_err(|e| pack(&e))?;
        Ok(image)
    }

    fn build(
        &self,
        name: &ImageRef,
        source: &Path,
        fill: impl FnOnce(&mut Tree<'_>) -> Result<Settings, EngineError>,
    ) -> Result<Imported, EngineError> {
        let dir = self.dir_of(name)?;
        let work = self.work()?;
        let built = self.build_in(&work.dir, name, source, fill).and_then(|imported| {
            self.place(&work.dir, &dir)?;
            Ok(imported)
        });
        if built.is_err() {
            let _ = remove_all(&work.dir);
        }
        built
    }

    /// Moves a complete image to its place. An image that is there is replaced in one step: a reader always finds
    /// one, and of two that replace it at a time both succeed.
    fn place(&self, work: &Path, dir: &Path) -> Result<(), EngineError> {
        loop {
            match fs::rename(work, dir) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {}
                Err(error) => return Err(EngineError::io("make", dir, &error)),
            }
            match renameat_with(CWD, work, CWD, dir, RenameFlags::EXCHANGE) {
                Ok(()) => {
                    // Under the name of a temporary directory, a later build removes what is left of the old image.
                    let _ = discard(work);
                    return Ok(());
                }
                // It was removed meanwhile.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(EngineError::io("replace", dir, &errno.into())),
            }
        }
    }

    fn build_in(
        &self,
        work: &Path,
        name: &ImageRef,
        source: &Path,
        fill: impl FnOnce(&mut Tree<'_>) -> Result<Settings, EngineError>,
    ) -> Result<Imported, EngineError> {
        let rootfs = work.join("rootfs");
        make_dir(&rootfs)?;
        set_mode(&rootfs, 0o755)?;
        let mut tree = Tree::open(&rootfs, source, Limits::default())?;
        for point in MOUNT_POINTS {
            let mode = if point == "tmp" { 0o1777 } else { 0o755 };
            tree.add_dir(Path::new(point), mode, Owner::ROOT)?;
        }
        let settings = fill(&mut tree)?;

        // Older programs, DPDK's among them, write here what belongs into /run.
        let var_run = Path::new("var/run");
        if tree.is_free(var_run) {
            tree.add_symlink(var_run, Path::new("/run"), Owner::ROOT)?;
        }
        let image = Image {
            name: name.with_tag(),
            entrypoint: settings.entrypoint,
            arguments: settings.arguments,
            env: settings.env,
            directory: settings.directory,
            user: settings.user,
            stop_signal: settings.stop_signal,
            volumes: settings.volumes,
            digest: settings.digest,
            created_unix_ms: clock::unix_ms(),
            bytes: tree.bytes(),
        };
        let path = work.join("image.json");
        let text = serde_json::to_vec_pretty(&image).unwrap_or_default();
        fs::write(&path, text).map_err(|error| EngineError::io("write", &path, &error))?;
        let left_out = tree.left_out().clone();
        Ok(Imported { image, left_out })
    }

    /// Creates the directory of the images, or removes the permissions of others from it: images hold untrusted
    /// files.
    ///
    /// # Errors
    /// [`EngineError::Io`].
    pub(crate) fn close_to_others(&self) -> Result<(), EngineError> {
        make_dir(&self.dir)?;
        set_mode(&self.dir, PRIVATE)
    }

    /// A new directory to build in. What builds that were killed have left goes first.
    fn work(&self) -> Result<Work, EngineError> {
        self.close_to_others()?;
        let open = |dir: &Path| File::open(dir).map_err(|error| EngineError::io("open", dir, &error));
        let lock = |dir: &Path, file: &File, how| {
            flock(file, how).map_err(|errno| EngineError::Io {
                action: "lock",
                path: dir.to_owned(),
                errno,
            })
        };
        // Held until the new directory is locked itself, so that no other import removes it as a leftover.
        let store = open(&self.dir)?;
        lock(&self.dir, &store, FlockOperation::LockExclusive)?;
        self.remove_leftovers()?;
        let dir = self.temporary("new");
        make_dir(&dir)?;
        let file = open(&dir)?;
        lock(&dir, &file, FlockOperation::LockExclusive)?;
        Ok(Work { dir, _lock: file })
    }

    /// Removes the leftovers of builds and removals that were killed, and images that no container has any more. A
    /// build that still runs holds a lock on its directory.
    fn remove_leftovers(&self) -> Result<(), EngineError> {
        let entries = fs::read_dir(&self.dir).map_err(|error| EngineError::io("read", &self.dir, &error))?;
        for dir in entries.flatten().map(|entry| entry.path()) {
            let name = file_name(&dir);
            if ![".new-", ".old-"].iter().any(|mark| name.starts_with(mark)) {
                continue;
            }
            discard(&dir)?;
        }
        Ok(())
    }

    fn temporary(&self, what: &str) -> PathBuf {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.dir.join(format!(".{what}-{}-{number}", std::process::id()))
    }

    fn dir_of(&self, name: &ImageRef) -> Result<PathBuf, EngineError> {
        let name = name.with_tag();
        let allowed = |byte: u8| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/' | b':' | b'@')
        };
        let first = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        if !first || name.len() > MAX_IMAGE_NAME_BYTES || !name.bytes().all(allowed) {
            let reason = "it takes up to 200 of a-z, A-Z, 0-9, '.', '_', '-', '/', ':', '@' and starts with a letter or digit";
            return Err(EngineError::BadSpec {
                what: "this image name",
                reason: format!("{name:?}: {reason}"),
            });
        }
        Ok(self.dir.join(name.replace('/', "%2F")))
    }
}

/// Puts files into an image. Several names of one file stay one file: the loader must not load a library twice.
fn add_files<'a>(
    tree: &mut Tree<'_>,
    files: impl IntoIterator<Item = &'a ImageFile>,
) -> Result<(), EngineError> {
    let mut placed: HashMap<PathBuf, &Path> = HashMap::new();
    for file in files {
        let read = |error: &std::io::Error| EngineError::io("read", &file.source, error);
        let real = fs::canonicalize(&file.source).map_err(|e| read(&e))?;
        if let Some(first) = placed.get(&real) {
            tree.add_symlink(&file.target, first, Owner::ROOT)?;
            continue;
        }
        let mut content = File::open(&real).map_err(|e| read(&e))?;
        tree.add_file(&file.target, file.mode, Owner::ROOT, &mut content)?;
        placed.insert(real, &file.target);
    }
    Ok(())
}

/// The shared objects in a directory.
fn plug_ins(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|of| of == "so"))
        .collect()
}

fn state_dir(given: Option<PathBuf>, run_dir: Option<PathBuf>) -> PathBuf {
    let other_run_dir = run_dir.filter(|dir| dir != Path::new("/run/inco"));
    given
        .or(other_run_dir)
        .unwrap_or_else(|| PathBuf::from("/var/lib/inco"))
}

/// What the image in this directory is; `None` where there is none. One that is being replaced is there all the time.
fn read_image(dir: &Path) -> std::io::Result<Option<Image>> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    loop {
        let held = match File::open(dir) {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
            held => held?,
        };
        let opened = openat(
            &held,
            "image.json",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        match opened {
            Ok(file) => return Ok(serde_json::from_reader(BufReader::new(File::from(file))).ok()),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
        let in_place = match fs::metadata(dir) {
            Err(error) if error.kind() == NotFound => return Ok(None),
            in_place => in_place?,
        };
        if held.metadata()?.ino() == in_place.ino() {
            return Ok(None);
        }
        // Another image took its place, and its files have gone.
    }
}

/// Whether this begins as a tar archive does. Leaves the file at its beginning.
fn check_is_archive(source: &Path, file: &mut File) -> Result<(), EngineError> {
    let mut head = Vec::new();
    Read::by_ref(file)
        .take(265)
        .read_to_end(&mut head)
        .and_then(|_| file.rewind())
        .map_err(|error| EngineError::io("read", source, &error))?;
    if head.get(257..262) == Some(b"ustar") {
        return Ok(());
    }
    let reason = if head.starts_with(&[0x1f, 0x8b]) {
        "it is compressed: run gunzip first"
    } else {
        "it is no tar archive"
    };
    Err(bad(source, reason))
}

fn bad(source: &Path, reason: &str) -> EngineError {
    EngineError::BadImage {
        path: source.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Removes a directory. That another one is just doing the same is no error.
fn remove_all(dir: &Path) -> Result<(), EngineError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(EngineError::io("remove", dir, &error))
        }
        _ => Ok(()),
    }
}

fn discard(dir: &Path) -> Result<(), EngineError> {
    users::discard(dir).map_err(|error| EngineError::io("remove", dir, &error))
}

fn make_dir(path: &Path) -> Result<(), EngineError> {
    fs::create_dir_all(path).map_err(|error| EngineError::io("make directory", path, &error))
}

fn set_mode(path: &Path, mode: u32) -> Result<(), EngineError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| EngineError::io("set the permissions of", path, &error))
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// What the dynamic loader of this machine would load for a program or library; nothing for a static one.
fn shared_libraries(program: &Path) -> Result<BTreeSet<PathBuf>, EngineError> {
    fs::metadata(program).map_err(|error| EngineError::io("read", program, &error))?;
    let ldd = Path::new("ldd");
    let output = Command::new(ldd)
        .arg(program)
        .env("LC_ALL", "C")
        .output()
        .map_err(|error| EngineError::io("run", ldd, &error))?;
    libraries_in(&String::from_utf8_lossy(&output.stdout)).map_err(|missing| EngineError::BadSpec {
        what: "this program",
        reason: format!(
            "{} needs {missing}, which is not on this machine",
            program.display()
        ),
    })
}

/// The libraries in what `ldd` says; or the name of the one that it did not find.
fn libraries_in(text: &str) -> Result<BTreeSet<PathBuf>, String> {
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let line = line.trim();
        let path = match line.split_once(" => ") {
            Some((name, "not found")) => return Err(name.to_owned()),
            Some((_, path)) => path,
            None => line,
        };
        let path = path.split(" (").next().unwrap_or_default();
        if path.starts_with('/') {
            found.insert(PathBuf::from(path));
        }
    }
    Ok(found)
}

/// The drivers in DPDK's plug-in directory that an instance needs: buffers, virtual devices and memif. All of them
/// take 50 MB.
fn dpdk_drivers(eal: &Path) -> Vec<PathBuf> {
    const NEEDED: [&str; 7] = [
        "librte_bus_vdev.so",
        "librte_mempool_ring.so",
        "librte_mempool_stack.so",
        "librte_net_memif.so",
        "librte_net_null.so",
        "librte_net_ring.so",
        "librte_net_af_packet.so",
    ];
    let beside: Vec<PathBuf> = [
        eal.parent(),
        fs::canonicalize(eal).ok().as_deref().and_then(Path::parent),
    ]
    .into_iter()
    .flatten()
    .map(|dir| dir.join("dpdk"))
    .collect();
    let mut plugin_dirs: BTreeSet<PathBuf> = beside
        .iter()
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| file_name(path).starts_with("pmds-"))
        .collect();
    // DPDK loads it by its full path, which begins with /usr if /lib is a link.
    plugin_dirs = plugin_dirs
        .iter()
        .filter_map(|dir| fs::canonicalize(dir).ok())
        .collect();
    plugin_dirs
        .iter()
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| NEEDED.iter().any(|needed| file_name(path).starts_with(needed)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path().join("images"));
        (dir, store)
    }

    fn image(name: &str) -> ImageRef {
        ImageRef::from(name)
    }

    #[test]
    fn an_image_is_replaced_in_one_step() {
        let (dir, store) = store();
        let source = dir.path().join("program");
        fs::write(&source, "#!/bin/true\n").unwrap();
        let files = [ImageFile::program(&source, "/bin/program")];
        let name = image("inco/forward");
        let build = || {
            store
                .build_scratch(&name, &files, &["/bin/program".to_owned()], &[])
                .unwrap()
        };
        build();
        std::thread::scope(|scope| {
            let builders = [0, 1].map(|_| scope.spawn(|| (0..50).for_each(|_| drop(build()))));
            while !builders.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                store
                    .resolve(&name)
                    .expect("a reader finds the old one or the new one");
            }
        });
        // What a build could not remove, because the one whose image it was had not ended, goes with the next build.
        build();
        let left: Vec<_> = fs::read_dir(dir.path().join("images"))
            .unwrap()
            .flatten()
            .collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn what_is_built_can_be_listed_resolved_packed_imported_and_removed() {
        let (dir, store) = store();
        assert_eq!(store.list().unwrap(), vec![]);
        let source = dir.path().join("program");
        fs::write(&source, "#!/bin/true\n").unwrap();
        let files = [ImageFile::program(&source, "/bin/program")];
        let env = [("A".to_owned(), "b".to_owned())];
        let built = store
            .build_scratch(&image("inco/forward"), &files, &["/bin/program".to_owned()], &env)
            .unwrap();
        assert_eq!((built.name.as_str(), built.bytes), ("inco/forward:latest", 12));
        assert_eq!(store.list().unwrap(), vec![built.clone()]);

        let (rootfs, resolved) = store.resolve(&image("inco/forward:latest")).unwrap();
        assert_eq!(resolved, built);
        let mode = fs::metadata(rootfs.join("bin/program"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o755);
        assert!(rootfs.join("proc").is_dir());
        assert_eq!(fs::read_link(rootfs.join("var/run")).unwrap(), Path::new("/run"));

        let tar_path = dir.path().join("forward.tar");
        store
            .write_tar(&image("inco/forward"), File::create(&tar_path).unwrap())
            .unwrap();
        let imported = store
            .import(&image("copy:1"), &tar_path, &built.entrypoint, &env)
            .unwrap()
            .image;
        assert_eq!(
            (imported.bytes, imported.entrypoint),
            (built.bytes, built.entrypoint)
        );
        let again = store
            .import(&image("copy:2"), &rootfs, &["/program".to_owned()], &[])
            .unwrap();
        assert_eq!(again.image.bytes, built.bytes);
        let nothing_to_run = store.import(&image("copy:3"), &rootfs, &[], &[]).unwrap_err();
        assert_eq!(nothing_to_run, EngineError::NoProgram);

        // An image that cannot be read is there: here its directory is a link to itself.
        let loops = store.dir_of(&image("loops")).unwrap();
        std::os::unix::fs::symlink(&loops, &loops).unwrap();
        let unreadable = store.resolve(&image("loops")).unwrap_err();
        assert!(matches!(unreadable, EngineError::Io { .. }), "{unreadable}");

        store.remove(&image("inco/forward")).unwrap();
        let missing = store.resolve(&image("inco/forward")).unwrap_err();
        assert_eq!(
            missing,
            EngineError::ImageMissing {
                image: "inco/forward:latest".into()
            }
        );
        assert_eq!(store.remove(&image("inco/forward")).unwrap_err(), missing);
        let names: Vec<String> = store
            .list()
            .unwrap()
            .into_iter()
            .map(|image| image.name)
            .collect();
        assert_eq!(names, ["copy:1", "copy:2"]);
    }

    #[test]
    fn a_build_that_fails_leaves_the_old_image_and_nothing_else() {
        let (dir, store) = store();
        let source = dir.path().join("program");
        fs::write(&source, "1").unwrap();
        let good = [ImageFile::program(&source, "/program")];
        store.build_scratch(&image("a"), &good, &[], &[]).unwrap();
        let bad = [ImageFile::program(dir.path().join("missing"), "/program")];
        let error = store.build_scratch(&image("a"), &bad, &[], &[]).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
        let climbs = [ImageFile::program(&source, "/../program")];
        assert!(store.build_scratch(&image("a"), &climbs, &[], &[]).is_err());
        assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 1);
        assert!(store.resolve(&image("a")).is_ok());
    }

    #[test]
    fn two_names_of_one_file_stay_one_file() {
        let (dir, store) = store();
        fs::write(dir.path().join("lib.so.1"), "library").unwrap();
        std::os::unix::fs::symlink("lib.so.1", dir.path().join("lib.so")).unwrap();
        let files = ["lib.so", "lib.so.1"]
            .map(|name| ImageFile::program(dir.path().join(name), Path::new("/lib").join(name)));
        store.build_scratch(&image("a"), &files, &[], &[]).unwrap();
        let (rootfs, built) = store.resolve(&image("a")).unwrap();
        assert_eq!(
            fs::read_link(rootfs.join("lib/lib.so.1")).unwrap(),
            Path::new("/lib/lib.so")
        );
        assert_eq!(built.bytes, 7);
    }

    #[test]
    fn names_cannot_leave_the_store() {
        let (_dir, store) = store();
        for bad in ["", "../a", "/a", ".a", "a b", "a\0"] {
            assert!(
                matches!(store.resolve(&image(bad)), Err(EngineError::BadSpec { .. })),
                "{bad:?}"
            );
        }
        assert!(matches!(
            store.resolve(&image("a/../b")),
            Err(EngineError::ImageMissing { .. })
        ));
    }

    #[test]
    fn incos_with_run_directories_of_their_own_share_no_images_unawares() {
        let dir = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        for (state, run, expected) in [
            ("", "", "/var/lib/inco"),
            ("", "/run/inco", "/var/lib/inco"),
            ("", "/run/other", "/run/other"),
            ("/srv/inco", "/run/other", "/srv/inco"),
        ] {
            assert_eq!(state_dir(dir(state), dir(run)), Path::new(expected));
        }
    }

    #[test]
    fn what_is_no_archive_is_said_to_be_none() {
        let (dir, store) = store();
        let path = dir.path().join("x.tar");
        for (bytes, word) in [
            (&b"\x1f\x8b..."[..], "gunzip"),
            (b"nonsense", "no tar archive"),
            (b"", "no tar archive"),
        ] {
            fs::write(&path, bytes).unwrap();
            let error = store
                .import(&image("a"), &path, &[], &[])
                .unwrap_err()
                .to_string();
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(store.list().unwrap(), vec![]);
    }

    /// A root file system with nothing but a link in the place where the store itself makes one.
    #[test]
    fn an_archive_with_a_link_has_nothing_made_elsewhere() {
        let (dir, store) = store();
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        let archive = dir.path().join("a.tar");
        let mut builder = tar::Builder::new(File::create(&archive).unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "var", &elsewhere).unwrap();
        builder.finish().unwrap();
        let run = ["/program".to_owned()];
        store.import(&image("a"), &archive, &run, &[]).unwrap();
        let (rootfs, _) = store.resolve(&image("a")).unwrap();
        assert_eq!(fs::read_link(rootfs.join("var")).unwrap(), elsewhere);
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn broken_layers_are_not_taken_for_a_root_file_system() {
        let (dir, store) = store();
        for (number, (files, word)) in [
            (&["oci-layout", "index.json", "blobs/sha256/0"][..], "index.json"),
            (&["oci-layout"], "index.json is missing"),
            (&["index.json", "blobs/sha256/0"], "index.json"),
            (&["manifest.json", "repositories", "0/layer.tar"], "manifest.json"),
            (&["manifest.json", "0/layer.tar"], "manifest.json"),
            (
                &["manifest.json", "oci-layout", "blobs/sha256/0"],
                "manifest.json",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let folder = dir.path().join(number.to_string());
            for file in files {
                let path = folder.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "{}").unwrap();
            }
            let archive = dir.path().join("layout.tar");
            let mut builder = tar::Builder::new(File::create(&archive).unwrap());
            builder.append_dir_all(".", &folder).unwrap();
            builder.finish().unwrap();
            for source in [&folder, &archive] {
                let run = ["/program".to_owned()];
                let error = store.import(&image("a"), source, &run, &[]).unwrap_err();
                let is_bad = matches!(error, EngineError::BadImage { .. });
                assert!(is_bad && error.to_string().contains(word), "{error}");
            }
        }
        assert_eq!(store.list().unwrap(), vec![]);
    }

    #[test]
    fn arguments_take_the_place_of_an_images_own() {
        let of = |entrypoint: &[&str], arguments: &[&str]| {
            let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
            Image {
                name: "a:1".to_owned(),
                entrypoint: words(entrypoint),
                arguments: words(arguments),
                env: Vec::new(),
                directory: root(),
                user: Owner::ROOT,
                stop_signal: None,
                volumes: Vec::new(),
                digest: None,
                created_unix_ms: 0,
                bytes: 0,
            }
        };
        let given = ["-x".to_owned()];
        for (image, own, with) in [
            (of(&["/a", "run"], &["-v"]), "/a run -v", "/a run -x"),
            (of(&["/a"], &[]), "/a", "/a -x"),
            (of(&[], &["/a", "-v"]), "/a -v", "/a -x"),
            (of(&[], &[]), "", "-x"),
        ] {
            assert_eq!(image.command(&[]).join(" "), own);
            assert_eq!(image.command(&given).join(" "), with);
        }
        // As an earlier inco wrote it.
        let old = r#"{"name":"a:1","entrypoint":["/a"],"env":[],"created_unix_ms":1,"bytes":2}"#;
        let old: Image = serde_json::from_str(old).unwrap();
        assert_eq!((old.directory, old.user), (PathBuf::from("/"), Owner::ROOT));
    }

    #[test]
    fn what_a_killed_build_left_goes_with_the_next_one_and_what_is_being_built_stays() {
        let (_dir, store) = store();
        let under_way = store.work().unwrap();
        for leftover in [".new-1-0/rootfs/etc", ".old-1-1"] {
            fs::create_dir_all(store.dir.join(leftover)).unwrap();
        }
        store.build_scratch(&image("a"), &[], &[], &[]).unwrap();
        let mut names: Vec<String> = fs::read_dir(&store.dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, [file_name(&under_way.dir), "a:latest".to_owned()]);
        drop(under_way);
        store.build_scratch(&image("a"), &[], &[], &[]).unwrap();
        assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 1);
    }

    #[test]
    fn the_store_is_closed_to_others_also_where_it_was_open() {
        let (_dir, store) = store();
        let mode = || fs::metadata(&store.dir).unwrap().permissions().mode() & 0o7777;
        store.build_scratch(&image("a"), &[], &[], &[]).unwrap();
        assert_eq!(mode(), 0o700);
        set_mode(&store.dir, 0o755).unwrap();
        store.build_scratch(&image("a"), &[], &[], &[]).unwrap();
        assert_eq!(mode(), 0o700);
    }

    #[test]
    fn libraries_are_read_from_the_output_of_the_loader() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let libraries = libraries_in(text).unwrap();
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries, expected.iter().map(PathBuf::from).collect());
        assert_eq!(libraries_in("\tstatically linked\n").unwrap(), BTreeSet::new());
        assert_eq!(
            libraries_in("\tlibx.so.1 => not found\n").unwrap_err(),
            "libx.so.1"
        );
    }

    #[test]
    fn a_dynamic_program_of_this_machine_runs_from_its_image() {
        let (_dir, store) = store();
        // Every Linux has it; it is linked to the C library.
        let program = Path::new("/bin/true");
        store
            .from_host_program(&image("true"), program, &Beside::default())
            .unwrap();
        let (rootfs, image) = store.resolve(&image("true")).unwrap();
        assert_eq!(image.entrypoint, ["/bin/true"]);
        if !rustix::process::geteuid().is_root() {
            return; // changing the root takes it
        }
        let status = Command::new("chroot")
            .arg(&rootfs)
            .arg("/bin/true")
            .status()
            .unwrap();
        assert!(status.success());
    }
}
