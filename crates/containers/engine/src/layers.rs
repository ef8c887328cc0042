//! Images with layers: an OCI image layout, or what `docker save` writes, as a folder or a tar archive. The layers
//! are merged into a [`Tree`], within its limits.
//!
//! The input is untrusted: the digest of each document and layer is checked against its name, the digest of a layer's
//! content against the image's configuration, and everything has a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};

use flate2::read::MultiGzDecoder;
use oci_spec::image::{
    Arch, Config, Descriptor, Digest, DigestAlgorithm, ImageConfiguration, ImageIndex, ImageManifest,
    MediaType, Os, Platform,
};
use ring::digest::{Context, SHA256};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tar::{Archive, EntryType};

use crate::EngineError;
use crate::container::signal_number;
use crate::unpack::{self, Limits, Owner, Tree};

/// Layers of an image. Docker itself makes no more than 127.
const MAX_LAYERS: usize = 128;
/// Bytes of a document: an index, a manifest, a configuration.
const MAX_DOCUMENT_BYTES: u64 = 4 << 20;
/// Files of an archive that may belong to an image. One for each layer and some are usual.
const MAX_FILES: usize = 4_096;
/// Indexes that lead from one to the next.
const MAX_INDEXES: usize = 4;
/// Links that lead from one to the next.
const MAX_LINKS: usize = 4;
/// Volumes of an image. Those of real images are fewer than ten.
const MAX_VOLUMES: usize = 64;
/// Bytes that a layer packed with zstd may have its reader keep: what the format's own tools take without an option.
const MAX_ZSTD_WINDOW_BYTES: u64 = 128 << 20;
/// Bytes of a layer's stream that are no file's content, for each member that an image may have: its headers.
const HEADER_BYTES: u64 = 2_048;

/// What an image's configuration says of how it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) entrypoint: Vec<String>,
    pub(crate) arguments: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) directory: PathBuf,
    pub(crate) user: Owner,
    pub(crate) stop_signal: Option<i32>,
    pub(crate) volumes: Vec<PathBuf>,
    /// Of its manifest, where it comes from a registry.
    pub(crate) digest: Option<String>,
}

impl Settings {
    /// Run this, with this environment, as root.
    pub(crate) fn of(entrypoint: &[String], env: &[(String, String)]) -> Settings {
        Settings {
            entrypoint: entrypoint.to_vec(),
            env: env.to_vec(),
            directory: PathBuf::from("/"),
            ..Settings::default()
        }
    }

    /// These settings with the overrides and additions of `given`.
    pub(crate) fn with(mut self, given: Settings) -> Settings {
        if !given.entrypoint.is_empty() {
            self.entrypoint = given.entrypoint;
            self.arguments.clear();
        }
        self.env.extend(given.env);
        self
    }

    /// The same, if they say what to run.
    pub(crate) fn check(self) -> Result<Settings, EngineError> {
        if self.entrypoint.is_empty() && self.arguments.is_empty() {
            return Err(EngineError::NoProgram);
        }
        Ok(self)
    }
}

/// Where the files of an image are.
#[derive(Debug)]
enum Files {
    Folder(OwnedFd),
    Archive {
        file: File,
        /// Where each is, and its length.
        places: BTreeMap<PathBuf, (u64, u64)>,
        /// Where links lead to.
        links: BTreeMap<PathBuf, PathBuf>,
    },
}

/// An image that is not laid out yet.
#[derive(Debug)]
pub(crate) struct Layered<'a> {
    source: &'a Path,
    files: Files,
}

/// A layer: its file, the digest of that where it is known, and the digest of what is in it.
#[derive(Debug)]
struct Layer {
    path: PathBuf,
    packed: Option<Digest>,
    unpacked: Digest,
}

/// An entry of `manifest.json`, as `docker save` writes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: PathBuf,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<PathBuf>,
}

impl<'a> Layered<'a> {
    /// The image in a folder; `None` where it is one of files.
    ///
    /// # Errors
    /// [`EngineError::Io`].
    pub(crate) fn in_folder(source: &'a Path) -> Result<Option<Layered<'a>>, EngineError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(source, flags, Mode::empty())
            .map_err(|errno| io_error("open", source, errno))?;
        let layered = Layered {
            source,
            files: Files::Folder(folder),
        };
        let has_layer = || {
            let folders = std::fs::read_dir(source).into_iter().flatten().flatten();
            folders
                .take(MAX_FILES)
                .any(|entry| entry.path().join("layer.tar").exists())
        };
        Ok(layered
            .is_one(|name| source.join(name).exists(), has_layer)
            .then_some(layered))
    }

    /// The image in an archive; `None` where it is one of files. Leaves the file at its beginning.
    ///
    /// # Errors
    /// [`EngineError::BadImage`] and [`EngineError::Io`].
    pub(crate) fn in_archive(source: &'a Path, file: &File) -> Result<Option<Layered<'a>>, EngineError> {
        let read = |error: &io::Error| EngineError::io("read", source, error);
        let mut own = file.try_clone().map_err(|error| read(&error))?;
        let (mut places, mut links) = (BTreeMap::new(), BTreeMap::new());
        let mut archive = Archive::new(&own);
        let entries = archive.entries_with_seek().map_err(|error| read(&error))?;
        unpack::walk(source, entries, |member, _| {
            let Some(path) = plain(&member.path).filter(|path| may_belong(path)) else {
                return Ok(());
            };
            if places.len() + links.len() >= MAX_FILES {
                return Ok(());
            }
            match member.kind {
                EntryType::Regular | EntryType::Continuous => {
                    places.insert(path, (member.at, member.size));
                }
                EntryType::Symlink => {
                    let beside = path.parent().unwrap_or(Path::new("")).join(&member.target);
                    links.extend(plain(&beside).map(|target| (path, target)));
                }
                EntryType::Link => links.extend(plain(&member.target).map(|target| (path, target))),
                _ => {}
            }
            Ok(())
        })?;
        own.rewind().map_err(|error| read(&error))?;
        let names: BTreeSet<PathBuf> = places.keys().chain(links.keys()).cloned().collect();
        let files = Files::Archive {
            file: own,
            places,
            links,
        };
        let layered = Layered { source, files };
        let is_there = |name: &str| names.iter().any(|path| path.starts_with(name));
        let has_layer = || names.iter().any(|path| path.ends_with("layer.tar"));
        Ok(layered.is_one(is_there, has_layer).then_some(layered))
    }

    /// Whether what has these names is an image with layers, whole or broken.
    fn is_one(&self, is_there: impl Fn(&str) -> bool, has_layer: impl Fn() -> bool) -> bool {
        let has_blobs = is_there("blobs");
        is_there("oci-layout")
            || has_blobs && is_there("index.json")
            || is_there("manifest.json") && (has_blobs || is_there("repositories") || has_layer())
    }

    /// Lays its layers over each other.
    ///
    /// # Errors
    /// [`EngineError::BadImage`] for what is broken, not for this machine, or of a kind that is not known;
    /// [`EngineError::Io`].
    pub(crate) fn unpack(&self, tree: &mut Tree<'_>, limits: Limits) -> Result<Settings, EngineError> {
        let (configuration, layers) = if self.is_dockers_alone()? {
            self.of_docker()?
        } else {
            self.of_index()?
        };
        self.check_platform(configuration.architecture(), configuration.os())?;
        if layers.len() > MAX_LAYERS {
            let count = layers.len();
            return Err(self.refused(format!("it has {count} layers, {MAX_LAYERS} may be")));
        }
        for (number, layer) in (1..).zip(&layers) {
            let wrong = |error| match error {
                EngineError::BadImage { reason, path } => EngineError::BadImage {
                    path,
                    reason: format!("layer {number}: {reason}"),
                },
                other => other,
            };
            self.apply(tree, layer, limits).map_err(wrong)?;
        }
        let no_settings = Config::default();
        self.settings(tree, configuration.config().as_ref().unwrap_or(&no_settings))
    }

    /// The name that its writer gave it, if that is one of an image and not a tag alone.
    ///
    /// # Errors
    /// As [`Layered::unpack`].
    pub(crate) fn name(&self) -> Result<Option<String>, EngineError> {
        let name = if self.is_dockers_alone()? {
            let tags = self.saved()?.repo_tags.unwrap_or_default();
            tags.into_iter().next()
        } else {
            self.image_of_index()?.1
        };
        Ok(name.filter(|name| name.contains([':', '/'])))
    }

    /// Docker writes both: the index has a digest for everything.
    fn is_dockers_alone(&self) -> Result<bool, EngineError> {
        Ok(self.open(Path::new("index.json"))?.is_none() && self.open(Path::new("manifest.json"))?.is_some())
    }

    fn apply(&self, tree: &mut Tree<'_>, layer: &Layer, limits: Limits) -> Result<(), EngineError> {
        self.read_layer(layer, limits, |stream| {
            unpack::remove_by_layer(tree, stream.entries().map_err(|error| self.broken(&error))?)
        })?;
        self.read_layer(layer, limits, |stream| {
            unpack::add_by_layer(tree, stream.entries().map_err(|error| self.broken(&error))?)
        })
    }

    /// Reads a layer once and checks that it is what it is named by.
    fn read_layer(
        &self,
        layer: &Layer,
        limits: Limits,
        read: impl FnOnce(&mut Archive<&mut dyn Read>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let Some(file) = self.open(&layer.path)? else {
            return Err(self.missing(&layer.path));
        };
        let mut packed = Digested::new(file);
        let mut magic = [0; 4];
        let got = read_start(&mut packed, &mut magic).map_err(|error| self.broken(&error))?;
        let start = io::Cursor::new(magic).take(got as u64);
        let stream: Box<dyn Read + '_> = match magic {
            [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(start.chain(&mut packed))),
            // A frame, or one that is to be skipped.
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
                Box::new(Zstd::new(Box::new(start.chain(&mut packed))))
            }
            _ => Box::new(start.chain(&mut packed)),
        };
        let room = limits
            .bytes
            .saturating_add(limits.members.saturating_mul(HEADER_BYTES));
        let mut unpacked = Digested::new(stream.take(room.saturating_add(1)));
        let mut archive = Archive::new(&mut unpacked as &mut dyn Read);
        read(&mut archive)?;
        // What comes after the end of the archive is a part of what was digested.
        io::copy(&mut unpacked, &mut io::sink()).map_err(|error| self.broken(&error))?;
        if unpacked.bytes > room {
            return Err(self.refused(format!("it unpacks to more than {room} bytes")));
        }
        let content = unpacked.finish();
        if content != layer.unpacked.digest() {
            return Err(self.refused(format!(
                "its content has the digest sha256:{content}, and the image's configuration says {}",
                layer.unpacked
            )));
        }
        io::copy(&mut packed, &mut io::sink()).map_err(|error| self.broken(&error))?;
        match &layer.packed {
            Some(named) => self.check_digest(named, &packed.finish(), &layer.path),
            None => Ok(()),
        }
    }

    // ---- What it consists of.

    /// The image of an OCI image layout: its digest, and its name.
    fn image_of_index(&self) -> Result<(String, Option<String>), EngineError> {
        let index: ImageIndex = self.document(Path::new("index.json"), None)?;
        let mut found = BTreeMap::new();
        self.manifests(&index, MAX_INDEXES, &mut found)?;
        let mut images = found.into_iter();
        match (images.next(), images.next()) {
            (Some(one), None) => Ok(one),
            (Some(one), Some(other)) => {
                let names: Vec<String> = [one, other]
                    .into_iter()
                    .chain(images)
                    .map(|(digest, name)| name.unwrap_or(digest))
                    .collect();
                Err(self.several(&names))
            }
            (None, _) => {
                let reason = format!("it has no image for {}", own_platform());
                Err(self.refused(reason))
            }
        }
    }

    /// By the index of an OCI image layout.
    fn of_index(&self) -> Result<(ImageConfiguration, Vec<Layer>), EngineError> {
        let (digest, _) = self.image_of_index()?;
        let named: Digest = digest
            .parse()
            .map_err(|_| self.refused(format!("{digest} is no digest")))?;
        let manifest: ImageManifest = self.document(&self.blob(&named)?, Some(&named))?;
        let config = manifest.config().digest();
        let configuration: ImageConfiguration = self.document(&self.blob(config)?, Some(config))?;
        let contents = self.contents(&configuration, manifest.layers().len())?;
        let layers = manifest
            .layers()
            .iter()
            .zip(contents)
            .map(|(descriptor, unpacked)| {
                let packed = descriptor.digest().clone();
                Ok(Layer {
                    path: self.blob(&packed)?,
                    packed: Some(packed),
                    unpacked,
                })
            });
        Ok((configuration, layers.collect::<Result<_, EngineError>>()?))
    }

    /// The images for this machine that an index leads to, by digest, with their names.
    fn manifests(
        &self,
        index: &ImageIndex,
        indexes_left: usize,
        found: &mut BTreeMap<String, Option<String>>,
    ) -> Result<(), EngineError> {
        if index.manifests().len() > MAX_FILES {
            return Err(self.refused(format!("its index has more than {MAX_FILES} images")));
        }
        for descriptor in index.manifests() {
            if !descriptor.platform().as_ref().is_none_or(is_ours) {
                continue;
            }
            let digest = descriptor.digest();
            if !is_index(descriptor.media_type()) {
                found.insert(digest.to_string(), name_of(descriptor));
                continue;
            }
            if indexes_left == 0 {
                return Err(self.refused(format!("more than {MAX_INDEXES} indexes are in each other")));
            }
            let inner: ImageIndex = self.document(&self.blob(digest)?, Some(digest))?;
            self.manifests(&inner, indexes_left - 1, found)?;
        }
        Ok(())
    }

    /// The image in the manifest that Docker alone writes.
    fn saved(&self) -> Result<Saved, EngineError> {
        let mut saved: Vec<Saved> = self.document(Path::new("manifest.json"), None)?;
        match (saved.len(), saved.pop()) {
            (1, Some(one)) => Ok(one),
            (_, None) => Err(self.refused("its manifest.json names no image".to_owned())),
            (_, Some(last)) => {
                let all = saved.into_iter().chain([last]);
                let names = all.map(|of| of.repo_tags.unwrap_or_default().join(" "));
                Err(self.several(&names.collect::<Vec<_>>()))
            }
        }
    }

    /// By the manifest that Docker alone writes.
    fn of_docker(&self) -> Result<(ImageConfiguration, Vec<Layer>), EngineError> {
        let saved = self.saved()?;
        // The configuration is named by its own digest.
        let name = saved.config.file_stem().and_then(|name| name.to_str());
        let named = name.and_then(|name| format!("sha256:{name}").parse().ok());
        let configuration: ImageConfiguration = self.document(&saved.config, named.as_ref())?;
        let contents = self.contents(&configuration, saved.layers.len())?;
        let layers = saved.layers.iter().zip(contents).map(|(path, unpacked)| Layer {
            path: path.clone(),
            packed: None,
            unpacked,
        });
        Ok((configuration, layers.collect()))
    }

    /// The digests of what is in the layers.
    fn contents(
        &self,
        configuration: &ImageConfiguration,
        layers: usize,
    ) -> Result<Vec<Digest>, EngineError> {
        let contents = configuration.rootfs().diff_ids();
        if contents.len() != layers {
            return Err(self.refused(format!(
                "it has {layers} layers, and its configuration names {}",
                contents.len()
            )));
        }
        let parsed = contents.iter().map(|text| {
            let digest: Result<Digest, _> = text.parse();
            digest.map_err(|_| self.refused(format!("{text:?} is no digest")))
        });
        parsed.collect()
    }

    fn check_platform(&self, architecture: &Arch, os: &Os) -> Result<(), EngineError> {
        if *architecture == Arch::default() && *os == Os::Linux {
            return Ok(());
        }
        Err(self.refused(format!(
            "it is for {os}/{architecture}, and this machine is {}",
            own_platform()
        )))
    }

    fn settings(&self, tree: &mut Tree<'_>, config: &Config) -> Result<Settings, EngineError> {
        let env = config.env().iter().flatten();
        let env = env.filter_map(|line| line.split_once('='));
        let directory = config.working_dir().clone().unwrap_or_default();
        let directory = Path::new("/").join(directory);
        // A container cannot make it: its root is read-only.
        if tree.is_free(directory.strip_prefix("/").unwrap_or(&directory)) {
            tree.add_dir(&directory, 0o755, Owner::ROOT)?;
        }
        Ok(Settings {
            entrypoint: config.entrypoint().clone().unwrap_or_default(),
            arguments: config.cmd().clone().unwrap_or_default(),
            env: env
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            directory,
            user: user(tree, config.user().as_deref().unwrap_or_default())?,
            stop_signal: self.stop_signal(config.stop_signal().as_deref().unwrap_or_default())?,
            volumes: self.volumes(tree, config.volumes().as_deref().unwrap_or_default())?,
            digest: None,
        })
    }

    /// The number of `SIGQUIT`, `QUIT`, `3` or `SIGRTMIN+3`, as Docker reads them.
    fn stop_signal(&self, text: &str) -> Result<Option<i32>, EngineError> {
        if text.is_empty() {
            return Ok(None);
        }
        match signal_number(text) {
            Some(number) => Ok(Some(number)),
            None => Err(self.refused(format!("its stop signal is {text:?}, which is none"))),
        }
    }

    /// The directories that its program writes to; they are made where they are missing.
    fn volumes(&self, tree: &mut Tree<'_>, named: &[String]) -> Result<Vec<PathBuf>, EngineError> {
        if named.len() > MAX_VOLUMES {
            return Err(self.refused(format!("it has {} volumes, {MAX_VOLUMES} may be", named.len())));
        }
        let mut volumes = Vec::new();
        for text in named {
            let Some(path) = plain(Path::new(text)).filter(|path| path.iter().next().is_some()) else {
                return Err(self.refused(format!("{text:?} can be no volume")));
            };
            if tree.is_free(&path) {
                tree.add_dir(&path, 0o755, Owner::ROOT)?;
            }
            volumes.push(Path::new("/").join(path));
        }
        volumes.sort();
        volumes.dedup();
        Ok(volumes)
    }

    // ---- Files.

    /// The path of what has that digest.
    fn blob(&self, digest: &Digest) -> Result<PathBuf, EngineError> {
        if *digest.algorithm() != DigestAlgorithm::Sha256 {
            return Err(self.refused(format!(
                "{digest} is no digest by sha256, the only one that inco reads"
            )));
        }
        Ok(Path::new("blobs/sha256").join(digest.digest()))
    }

    /// A document, of that digest where one is known.
    fn document<T: DeserializeOwned>(&self, path: &Path, named: Option<&Digest>) -> Result<T, EngineError> {
        let file = self.open(path)?.ok_or_else(|| self.missing(path))?;
        let mut bytes = Vec::new();
        let mut file = Digested::new(file.take(MAX_DOCUMENT_BYTES + 1));
        file.read_to_end(&mut bytes)
            .map_err(|error| self.broken(&error))?;
        if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
            let path = path.display();
            return Err(self.refused(format!("{path} has more than {MAX_DOCUMENT_BYTES} bytes")));
        }
        if let Some(named) = named {
            self.check_digest(named, &file.finish(), path)?;
        }
        serde_json::from_slice(&bytes).map_err(|error| self.refused(format!("{}: {error}", path.display())))
    }

    fn check_digest(&self, named: &Digest, found: &str, path: &Path) -> Result<(), EngineError> {
        if named.digest() == found {
            return Ok(());
        }
        let path = path.display();
        Err(self.refused(format!(
            "{path} has the digest sha256:{found}, and is named as {named}"
        )))
    }

    /// A file of the image; `None` where there is none.
    fn open(&self, path: &Path) -> Result<Option<Box<dyn Read + '_>>, EngineError> {
        match &self.files {
            Files::Folder(folder) => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let file = match openat2(folder, path, flags, Mode::empty(), inside) {
                    Ok(file) => File::from(file),
                    Err(Errno::NOENT) => return Ok(None),
                    Err(errno) => return Err(io_error("open", &self.source.join(path), errno)),
                };
                if !file.metadata().as_ref().is_ok_and(Metadata::is_file) {
                    return Err(self.refused(format!("{} is no file", path.display())));
                }
                Ok(Some(Box::new(file)))
            }
            Files::Archive { file, places, links } => {
                let mut path = plain(path).unwrap_or_default();
                for _ in 0..MAX_LINKS {
                    match links.get(&path) {
                        Some(target) => path.clone_from(target),
                        None => break,
                    }
                }
                let place = places.get(&path);
                Ok(place.map(|&(at, left)| Box::new(Section { file, at, left }) as Box<dyn Read>))
            }
        }
    }

    fn missing(&self, path: &Path) -> EngineError {
        self.refused(format!("it is not whole: {} is missing", path.display()))
    }

    fn several(&self, names: &[String]) -> EngineError {
        self.refused(format!(
            "it has several images ({}): save the one that is wanted, as `docker save IMAGE -o image.tar`",
            names.join(", ")
        ))
    }

    fn broken(&self, error: &io::Error) -> EngineError {
        self.refused(format!("the archive is broken: {error}"))
    }

    fn refused(&self, reason: String) -> EngineError {
        EngineError::BadImage {
            path: self.source.to_owned(),
            reason,
        }
    }
}

fn io_error(action: &'static str, path: &Path, errno: Errno) -> EngineError {
    EngineError::Io {
        action,
        path: path.to_owned(),
        errno,
    }
}

/// A path without `.`, `..` and a `/` before it; none where it leads out.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => plain.push(name),
            Component::ParentDir if plain.pop() => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

/// Whether a file of that path may be one of an image with layers.
fn may_belong(path: &Path) -> bool {
    path.components().count() == 1 || path.starts_with("blobs/sha256") || path.ends_with("layer.tar")
}

fn own_platform() -> String {
    format!("{}/{}", Os::Linux, Arch::default())
}

fn is_ours(platform: &Platform) -> bool {
    *platform.os() == Os::Linux && *platform.architecture() == Arch::default()
}

fn is_index(kind: &MediaType) -> bool {
    let is_dockers = |kind: &str| kind == "application/vnd.docker.distribution.manifest.list.v2+json";
    *kind == MediaType::ImageIndex || is_dockers(kind.as_ref())
}

fn name_of(descriptor: &Descriptor) -> Option<String> {
    let annotations = descriptor.annotations().as_ref()?;
    let names = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
    names.iter().find_map(|name| annotations.get(*name)).cloned()
}

/// Who `user` of an image's configuration is: `app`, `1000`, `app:staff`, `1000:1000`.
fn user(tree: &Tree<'_>, text: &str) -> Result<Owner, EngineError> {
    if text.is_empty() {
        return Ok(Owner::ROOT);
    }
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let line_of = |file: &str, column: usize, wanted: &str| -> Result<Option<Vec<u32>>, EngineError> {
        let text = tree.text(Path::new(file))?.unwrap_or_default();
        let found = text.lines().find_map(|line| {
            let columns: Vec<&str> = line.split(':').collect();
            if columns.get(column) != Some(&wanted) {
                return None;
            }
            let ids = columns.get(2..4)?.iter().map(|id| id.parse().unwrap_or_default());
            Some(ids.collect())
        });
        Ok(found)
    };
    let unknown = |what: &str, name: &str, file: &str| {
        tree.refused(format!("its {what} is {name:?}, who is not in its {file}"))
    };
    let number: Option<u32> = user.parse().ok();
    let entry = line_of("etc/passwd", if number.is_some() { 2 } else { 0 }, user)?;
    let (uid, own_group) = match (number, entry.as_deref()) {
        (_, Some(&[uid, gid])) => (uid, gid),
        (Some(uid), _) => (uid, 0),
        (None, _) => return Err(unknown("user", user, "etc/passwd")),
    };
    let gid = match group {
        None => own_group,
        Some(group) => match group.parse() {
            Ok(gid) => gid,
            Err(_) => line_of("etc/group", 0, group)?
                .and_then(|ids| ids.first().copied())
                .ok_or_else(|| unknown("group", group, "etc/group"))?,
        },
    };
    let user = Owner { uid, gid };
    if !user.is_mapped() {
        return Err(tree.refused(format!(
            "its user is {uid}:{gid}, and a container has ids below 65536"
        )));
    }
    Ok(user)
}

/// A part of a file.
struct Section<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let wanted = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = self
            .file
            .read_at(bytes.get_mut(..wanted).unwrap_or_default(), self.at)?;
        self.at += got as u64;
        self.left -= got as u64;
        Ok(got)
    }
}

/// Unpacks a stream of zstd frames, one after the other: the library's decoder reads one.
struct Zstd<'a> {
    decoder: FrameDecoder,
    from: Box<dyn Read + 'a>,
    is_in_frame: bool,
}

impl<'a> Zstd<'a> {
    fn new(from: Box<dyn Read + 'a>) -> Zstd<'a> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_ZSTD_WINDOW_BYTES);
        Zstd {
            decoder,
            from,
            is_in_frame: false,
        }
    }

    /// Goes to the next frame; false at the end.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            let mut magic = [0; 4];
            match read_start(&mut self.from, &mut magic)? {
                0 => return Ok(false),
                4 => {}
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            match self.decoder.init(io::Cursor::new(magic).chain(&mut self.from)) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = io::copy(&mut self.from.by_ref().take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

impl Read for Zstd<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_in_frame {
                if !self.begin()? {
                    return Ok(0);
                }
                self.is_in_frame = true;
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(bytes);
            }
            if self.decoder.is_finished() {
                self.is_in_frame = false;
                continue;
            }
            self.decoder
                .decode_blocks(&mut self.from, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(io::Error::other)?;
        }
    }
}

/// Reads, and digests what it reads.
struct Digested<R> {
    from: R,
    context: Context,
    bytes: u64,
}

impl<R: Read> Digested<R> {
    fn new(from: R) -> Digested<R> {
        Digested {
            from,
            context: Context::new(&SHA256),
            bytes: 0,
        }
    }

    /// In hexadecimal digits.
    fn finish(self) -> String {
        let digest = self.context.finish();
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl<R: Read> Read for Digested<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let got = self.from.read(bytes)?;
        self.context.update(bytes.get(..got).unwrap_or_default());
        self.bytes += got as u64;
        Ok(got)
    }
}

/// Fills the buffer as far as there is something; gives how far.
fn read_start(from: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while let Some(rest) = bytes.get_mut(got..).filter(|rest| !rest.is_empty()) {
        match from.read(rest)? {
            0 => break,
            more => got += more,
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tar::{Builder, EntryType, Header};

    use super::*;

    /// A member of a layer: what it is, its path, its mode, its owner, and its content or what it points to.
    type Member<'a> = (EntryType, &'a str, u32, u32, &'a str);

    fn file<'a>(path: &'a str, text: &'a str) -> Member<'a> {
        (EntryType::Regular, path, 0o644, 0, text)
    }

    fn folder(path: &str) -> Member<'_> {
        (EntryType::Directory, path, 0o755, 0, "")
    }

    fn tar_of(members: &[Member<'_>]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for &(kind, path, mode, owner, text) in members {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_uid(owner.into());
            header.set_gid(owner.into());
            let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
            let content = if is_link { "" } else { text };
            header.set_size(content.len() as u64);
            // Raw, so that it holds what `set_path` refuses.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            if is_link {
                header.as_old_mut().linkname[..text.len()].copy_from_slice(text.as_bytes());
            }
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    fn digest(bytes: &[u8]) -> String {
        let mut all = Digested::new(bytes);
        io::copy(&mut all, &mut io::sink()).unwrap();
        all.finish()
    }

    /// A layout that is being written: its files.
    #[derive(Default)]
    struct Layout(BTreeMap<String, Vec<u8>>);

    impl Layout {
        fn blob(&mut self, bytes: Vec<u8>) -> Value {
            let (name, size) = (digest(&bytes), bytes.len());
            self.0.insert(format!("blobs/sha256/{name}"), bytes);
            json!({ "digest": format!("sha256:{name}"), "size": size })
        }

        fn document(&mut self, kind: &str, value: &Value) -> Value {
            let mut named = self.blob(value.to_string().into_bytes());
            named["mediaType"] = format!("application/vnd.oci.image.{kind}.v1+json").into();
            named
        }

        fn image(&mut self, layers: &[Vec<u8>], config: Value) -> Value {
            self.image_for(&Arch::default().to_string(), layers, config)
        }

        /// An image with these layers, packed in turn or not.
        fn image_for(&mut self, architecture: &str, layers: &[Vec<u8>], config: Value) -> Value {
            let ids: Vec<String> = layers.iter().map(|of| format!("sha256:{}", digest(of))).collect();
            let packed: Vec<Value> = (0..)
                .zip(layers)
                .map(|(number, layer)| {
                    let is_packed = number % 2 == 0;
                    let mut named = self.blob(if is_packed { gzip(layer) } else { layer.clone() });
                    let kind = if is_packed { "tar+gzip" } else { "tar" };
                    named["mediaType"] = format!("application/vnd.oci.image.layer.v1.{kind}").into();
                    named
                })
                .collect();
            let config = json!({
                "architecture": architecture, "os": "linux", "config": config,
                "rootfs": { "type": "layers", "diff_ids": ids },
            });
            let config = self.document("config", &config);
            let manifest = json!({ "schemaVersion": 2, "config": config, "layers": packed });
            self.document("manifest", &manifest)
        }

        fn index(&mut self, manifests: &[Value]) {
            let index = json!({ "schemaVersion": 2, "manifests": manifests });
            self.0
                .insert("index.json".to_owned(), index.to_string().into_bytes());
            let version = json!({ "imageLayoutVersion": "1.0.0" }).to_string();
            self.0.insert("oci-layout".to_owned(), version.into_bytes());
        }

        /// One image alone.
        fn of(layers: &[Vec<u8>], config: Value) -> Layout {
            let mut layout = Layout::default();
            let manifest = layout.image(layers, config);
            layout.index(&[manifest]);
            layout
        }

        /// Lays it out: from a folder, and from an archive.
        fn unpack_both(&self, limits: Limits) -> [(tempfile::TempDir, Result<Settings, EngineError>); 2] {
            let from = tempfile::tempdir().unwrap();
            let archive_path = from.path().join("image.tar");
            let mut archive = Builder::new(File::create(&archive_path).unwrap());
            let folder = from.path().join("layout");
            for (path, bytes) in &self.0 {
                let at = folder.join(path);
                fs::create_dir_all(at.parent().unwrap()).unwrap();
                fs::write(&at, bytes).unwrap();
                archive
                    .append_path_with_name(&at, Path::new("./").join(path))
                    .unwrap();
            }
            archive.finish().unwrap();
            drop(archive);
            let laid_out = |layered: Option<Layered<'_>>, source: &Path| {
                let to = tempfile::tempdir().unwrap();
                let mut tree = Tree::open(to.path(), source, limits).unwrap();
                let settings = layered.expect("an image with layers").unpack(&mut tree, limits);
                (to, settings)
            };
            let opened = File::open(&archive_path).unwrap();
            [
                laid_out(Layered::in_folder(&folder).unwrap(), &folder),
                laid_out(
                    Layered::in_archive(&archive_path, &opened).unwrap(),
                    &archive_path,
                ),
            ]
        }

        /// What is laid out, from whichever.
        fn unpack(&self) -> [(tempfile::TempDir, Settings); 2] {
            self.unpack_both(Limits::default())
                .map(|(dir, settings)| (dir, settings.unwrap()))
        }

        /// Why it is not, which is the same from either.
        fn refused(&self) -> String {
            self.refused_with(Limits::default())
        }

        fn refused_with(&self, limits: Limits) -> String {
            let [folder, archive] = self
                .unpack_both(limits)
                .map(|(_, settings)| settings.unwrap_err().to_string());
            let words = |text: &str| text.split_once(": ").map(|(_, words)| words.to_owned()).unwrap();
            assert_eq!(words(&folder), words(&archive));
            folder
        }
    }

    /// Every path below a folder, sorted; folders end with a `/`.
    fn paths(root: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                let mut name = path.strip_prefix(root).unwrap().display().to_string();
                if entry.file_type().unwrap().is_dir() {
                    folders.push(path);
                    name.push('/');
                }
                found.push(name);
            }
        }
        found.sort();
        found
    }

    #[test]
    fn layers_are_laid_over_each_other_in_their_order() {
        let base = tar_of(&[
            folder("./"),
            folder("etc/"),
            file("etc/a", "lower"),
            file("etc/b", "stays"),
            folder("cache/"),
            file("cache/old", "old"),
            folder("cache/deep/"),
            file("cache/deep/old", "old"),
            folder("gone/"),
            file("gone/x", "x"),
            folder("was-folder/"),
            file("was-folder/x", "x"),
            file("was-file", "x"),
            (EntryType::Symlink, "was-link", 0o777, 0, "etc"),
        ]);
        let upper = tar_of(&[
            file("etc/a", "upper"),
            file(".wh.gone", ""),
            // What a layer brings itself stays, wherever its whiteouts stand.
            file("cache/new", "new"),
            file("cache/.wh..wh..opq", ""),
            file("etc/.wh.never-was", ""),
            file(".wh..wh.plnk", ""),
            file("was-folder", "file"),
            folder("was-file/"),
            file("was-file/x", "x"),
            folder("was-link/"),
            file("was-link/x", "x"),
            (EntryType::Link, "etc/again", 0o644, 0, "etc/b"),
        ]);
        let top = tar_of(&[file("etc/.wh.a", ""), file("nowhere/.wh.a", "")]);
        for (dir, _) in Layout::of(&[base, upper, top], json!({ "Cmd": ["/a"] })).unpack() {
            let expected = [
                "cache/",
                "cache/new",
                "etc/",
                "etc/again",
                "etc/b",
                "was-file/",
                "was-file/x",
                "was-folder",
                "was-link/",
                "was-link/x",
            ];
            assert_eq!(paths(dir.path()), expected);
            assert_eq!(fs::read_to_string(dir.path().join("etc/again")).unwrap(), "stays");
        }
    }

    #[test]
    fn the_configuration_gives_command_directory_and_user() {
        let passwd = "root:x:0:0::/:/bin/sh\nbroken\napp:x:1000:1001::/home/app:/bin/sh\n";
        let base = tar_of(&[
            file("etc/passwd", passwd),
            file("etc/group", "staff:x:50:\n"),
            (EntryType::Regular, "etc/secret", 0o600, 1000, "x"),
            (EntryType::Regular, "etc/far", 0o600, 70_000, "x"),
        ]);
        let user = |uid, gid| Owner { uid, gid };
        for (text, expected) in [
            ("", user(0, 0)),
            ("app", user(1000, 1001)),
            ("1000", user(1000, 1001)),
            ("app:staff", user(1000, 50)),
            ("7", user(7, 0)),
            ("7:8", user(7, 8)),
        ] {
            let config = json!({
                "Entrypoint": ["/app"], "Cmd": ["-v"], "Env": ["A=b=c", "no value"], "WorkingDir": "/work/here",
                "User": text, "StopSignal": "SIGQUIT", "Volumes": { "/etc": {}, "data/": {}, "//data": {} },
            });
            for (dir, settings) in Layout::of(std::slice::from_ref(&base), config).unpack() {
                let expected = Settings {
                    entrypoint: vec!["/app".to_owned()],
                    arguments: vec!["-v".to_owned()],
                    env: vec![("A".to_owned(), "b=c".to_owned())],
                    directory: "/work/here".into(),
                    user: expected,
                    stop_signal: Some(libc::SIGQUIT),
                    volumes: vec!["/data".into(), "/etc".into()],
                    digest: None,
                };
                assert_eq!(settings, expected);
                for made in ["work/here", "data"] {
                    assert!(dir.path().join(made).is_dir(), "a container could not make it");
                }
                let of = |path| fs::metadata(dir.path().join(path)).unwrap();
                if rustix::process::geteuid().is_root() {
                    let secret = of("etc/secret");
                    assert_eq!(
                        (secret.uid(), secret.gid(), secret.mode() & 0o777),
                        (1000, 1000, 0o600)
                    );
                    assert_eq!(of("etc/far").uid(), 0, "no container has that id");
                }
            }
        }
        for (text, word) in [
            ("nobody", "is not in its etc/passwd"),
            ("app:wheel", "is not in its etc/group"),
            ("65536", "ids below 65536"),
        ] {
            let said = Layout::of(std::slice::from_ref(&base), json!({ "User": text })).refused();
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn stop_signals_and_volumes_are_read_as_docker_reads_them() {
        let base = tar_of(&[file("a", "1"), (EntryType::Symlink, "out", 0o777, 0, "/etc")]);
        let signal = |text: &str| Layout::of(std::slice::from_ref(&base), json!({ "StopSignal": text }));
        for (text, number) in [
            ("", None),
            ("SIGTERM", Some(15)),
            ("usr1", Some(10)),
            ("3", Some(3)),
            ("SIGRTMIN+3", Some(libc::SIGRTMIN() + 3)),
            ("RTMAX", Some(libc::SIGRTMAX())),
        ] {
            for (_, settings) in signal(text).unpack() {
                assert_eq!(settings.stop_signal, number, "{text}");
            }
        }
        for text in ["SIGNOTHING", "0", "-3", "65", "SIGRTMIN+99", "RTMAX+1", "SIG"] {
            assert!(signal(text).refused().contains("stop signal"), "{text}");
        }
        let volume = |path: &str| {
            Layout::of(std::slice::from_ref(&base), json!({ "Volumes": { path: {} } })).refused()
        };
        for path in ["/", "../..", "a/../../b", ""] {
            assert!(volume(path).contains("no volume"), "{path}: {}", volume(path));
        }
        // Below a link, nothing is made.
        for (dir, settings) in Layout::of(
            std::slice::from_ref(&base),
            json!({ "Volumes": { "/out/x": {} } }),
        )
        .unpack()
        {
            assert_eq!(settings.volumes, [Path::new("/out/x")]);
            assert_eq!(paths(dir.path()), ["a", "out"]);
        }
        let many: serde_json::Map<String, Value> =
            (0..65).map(|number| (format!("/{number}"), json!({}))).collect();
        let many = Layout::of(&[base], json!({ "Volumes": many }));
        assert!(many.refused().contains("65 volumes, 64 may be"));
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    /// An image with a layer that is packed in this way.
    fn packed_as(layer: &[u8], packed: Vec<u8>) -> Layout {
        let mut layout = Layout::default();
        let mut image = layout.image(&[layer.to_vec()], json!({ "Cmd": ["/a"] }));
        let manifest = format!("blobs/{}", image["digest"].as_str().unwrap().replace(':', "/"));
        let mut manifest: Value = serde_json::from_slice(&layout.0[&manifest]).unwrap();
        let mut named = layout.blob(packed);
        named["mediaType"] = "application/vnd.oci.image.layer.v1.tar+zstd".into();
        manifest["layers"] = json!([named]);
        image = layout.document("manifest", &manifest);
        layout.index(&[image]);
        layout
    }

    #[test]
    fn layers_packed_with_zstd_may_have_several_frames() {
        let text = "some text, ".repeat(40_000);
        let layer = tar_of(&[file("a", &text), file("b", "2")]);
        let (first, second) = layer.split_at(100_000);
        let skipped = [&[0x5a, 0x2a, 0x4d, 0x18, 5, 0, 0, 0][..], b"notes"].concat();
        let frames = [
            zstd(first),
            skipped.clone(),
            zstd(b""),
            zstd(second),
            skipped.clone(),
        ]
        .concat();
        let led = [skipped, zstd(&layer)].concat();
        for packed in [zstd(&layer), frames.clone(), led] {
            for (dir, _) in packed_as(&layer, packed).unpack() {
                assert_eq!(paths(dir.path()), ["a", "b"]);
                assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), text);
            }
        }
        let cut = frames.get(..frames.len() - 3).unwrap().to_vec();
        // A window of a terabyte, which a reader would have to keep.
        let window = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf0, 0, 0, 0, 0];
        let bomb = zstd(&vec![0; 1 << 20]);
        for (packed, word) in [
            (cut, "is broken"),
            ([zstd(&layer), b"rest".to_vec()].concat(), "is broken"),
            (window, "is broken"),
            (zstd(&tar_of(&[file("a", "other")])), "has the digest"),
        ] {
            let said = packed_as(&layer, packed).refused();
            assert!(said.contains(word), "{said}");
        }
        let small = Limits {
            members: 4,
            bytes: 16,
        };
        let said = packed_as(&layer, bomb).refused_with(small);
        assert!(said.contains("unpacks to more than"), "{said}");
    }

    #[test]
    fn an_archive_says_how_its_image_is_named() {
        let layer = [tar_of(&[file("a", "1")])];
        let named = |annotations: Value| {
            let mut layout = Layout::default();
            let mut image = layout.image(&layer, json!({}));
            image["annotations"] = annotations;
            layout.index(&[image]);
            let from = tempfile::tempdir().unwrap();
            for (path, bytes) in &layout.0 {
                let at = from.path().join(path);
                fs::create_dir_all(at.parent().unwrap()).unwrap();
                fs::write(&at, bytes).unwrap();
            }
            let layered = Layered::in_folder(from.path()).unwrap().unwrap();
            layered.name().unwrap()
        };
        let (full, tag) = ("io.containerd.image.name", "org.opencontainers.image.ref.name");
        let name = "docker.io/library/nginx:1.27";
        assert_eq!(named(json!({ full: name, tag: "1.27" })).as_deref(), Some(name));
        assert_eq!(named(json!({ tag: "lab/ids:2" })).as_deref(), Some("lab/ids:2"));
        assert_eq!(named(json!({ tag: "latest" })), None);
        assert_eq!(named(json!({})), None);
    }

    #[test]
    fn content_that_does_not_match_its_digest_is_refused() {
        let layers = [tar_of(&[file("a", "1")]), tar_of(&[file("b", "2")])];
        let whole = Layout::of(&layers, json!({}));
        let blobs: Vec<String> = whole
            .0
            .keys()
            .filter(|name| name.starts_with("blobs"))
            .cloned()
            .collect();
        assert_eq!(blobs.len(), 4);
        for blob in &blobs {
            // Changed at its end, so that it can still be read, and cut off there.
            for change in [&b"\n"[..], b""] {
                let mut layout = Layout(whole.0.clone());
                let bytes = layout.0.get_mut(blob).unwrap();
                if change.is_empty() {
                    bytes.pop();
                } else {
                    bytes.extend_from_slice(change);
                }
                let said = layout.refused();
                let words = ["has the digest", "is broken", "its content has"];
                assert!(words.iter().any(|word| said.contains(word)), "{said}");
            }
            let mut layout = Layout(whole.0.clone());
            layout.0.remove(blob);
            assert!(layout.refused().contains("is missing"));
        }
        // A layer that is itself, and not the one that the configuration means.
        let mut layout = Layout::default();
        let mut other = layout.image(&layers, json!({}));
        let manifest = layout.0.get(&format!(
            "blobs/{}",
            other["digest"].as_str().unwrap().replace(':', "/")
        ));
        let mut manifest: Value = serde_json::from_slice(manifest.unwrap()).unwrap();
        manifest["layers"].as_array_mut().unwrap().reverse();
        other = layout.document("manifest", &manifest);
        layout.index(&[other]);
        let said = layout.refused();
        assert!(said.contains("layer 1: its content has the digest"), "{said}");
    }

    #[test]
    fn what_is_not_for_this_machine_or_not_one_image_is_refused_by_name() {
        let layer = [tar_of(&[file("a", "1")])];
        let mut layout = Layout::default();
        let other = if Arch::default() == Arch::ARM64 {
            "amd64"
        } else {
            "arm64"
        };
        let foreign = layout.image_for(other, &layer, json!({}));
        layout.index(std::slice::from_ref(&foreign));
        assert!(layout.refused().contains(&format!("it is for linux/{other}")));
        // Of several, the one for this machine; what its index says is for others is not read.
        let mut named = foreign;
        named["platform"] = json!({ "architecture": other, "os": "linux" });
        let mut ours = layout.image(&layer, json!({ "Cmd": ["/ours"] }));
        ours["annotations"] = json!({ "org.opencontainers.image.ref.name": "ours:1" });
        let again = ours.clone();
        let inner = layout.document(
            "index",
            &json!({ "schemaVersion": 2, "manifests": [named, ours] }),
        );
        layout.index(&[inner.clone(), again]);
        for (_, settings) in layout.unpack() {
            assert_eq!(settings.arguments, ["/ours"]);
        }
        let another = layout.image(&layer, json!({ "Cmd": ["/another"] }));
        layout.index(&[inner, another]);
        let said = layout.refused();
        assert!(
            said.contains("several images") && said.contains("ours:1"),
            "{said}"
        );
        layout.index(&[]);
        assert!(layout.refused().contains("no image for linux/"));
    }

    #[test]
    fn what_docker_alone_writes_is_read_too() {
        let layers = [
            tar_of(&[file("a", "1"), file("b", "1")]),
            tar_of(&[file(".wh.b", "")]),
        ];
        let ids: Vec<String> = layers.iter().map(|of| format!("sha256:{}", digest(of))).collect();
        let config = json!({
            "architecture": Arch::default().to_string(), "os": "linux", "config": { "Cmd": ["/a"] },
            "rootfs": { "type": "layers", "diff_ids": ids },
        });
        let config = config.to_string().into_bytes();
        let name = format!("{}.json", digest(&config));
        let saved = |count: usize| {
            let one =
                json!({ "Config": name, "RepoTags": ["a:1"], "Layers": ["1/layer.tar", "2/layer.tar"] });
            json!(vec![one; count]).to_string().into_bytes()
        };
        let mut layout = Layout::default();
        layout.0.insert(name.clone(), config);
        layout.0.insert("1/layer.tar".to_owned(), layers[0].clone());
        layout.0.insert("2/layer.tar".to_owned(), layers[1].clone());
        layout.0.insert("manifest.json".to_owned(), saved(1));
        for (dir, settings) in layout.unpack() {
            assert_eq!(
                (paths(dir.path()), settings.arguments),
                (vec!["a".to_owned()], vec!["/a".to_owned()])
            );
        }
        layout.0.insert("manifest.json".to_owned(), saved(2));
        assert!(layout.refused().contains("several images (a:1, a:1)"));
        layout.0.insert("manifest.json".to_owned(), saved(1));
        layout.0.get_mut(&name).unwrap().push(b' ');
        assert!(layout.refused().contains("has the digest"));
    }

    #[test]
    fn layers_in_a_folder_are_not_read_from_elsewhere() {
        let elsewhere = tempfile::tempdir().unwrap();
        let layout = Layout::of(&[tar_of(&[file("a", "1")])], json!({}));
        for (path, bytes) in &layout.0 {
            let at = elsewhere.path().join(path);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, bytes).unwrap();
        }
        let inside = tempfile::tempdir().unwrap();
        for name in ["index.json", "oci-layout", "blobs"] {
            std::os::unix::fs::symlink(elsewhere.path().join(name), inside.path().join(name)).unwrap();
        }
        let to = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(to.path(), inside.path(), Limits::default()).unwrap();
        let layered = Layered::in_folder(inside.path()).unwrap().unwrap();
        assert!(layered.unpack(&mut tree, Limits::default()).is_err());
        assert_eq!(paths(to.path()), Vec::<String>::new());
    }

    #[test]
    fn a_hostile_layer_reaches_nothing_outside() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let there = outside.path().to_str().unwrap();
        let base = tar_of(&[
            (EntryType::Symlink, "link", 0o777, 0, there),
            (EntryType::Symlink, "up", 0o777, 0, "../../../.."),
            file("a", "1"),
        ]);
        let secret = format!("link/{}", "secret");
        let whiteout = "link/.wh.secret";
        let climbing = format!("../../../../../../..{there}/.wh.secret");
        for (members, word) in [
            (vec![file(&secret, "x")], "in the way"),
            (vec![file(whiteout, "")], "in the way"),
            (vec![file("link/.wh..wh..opq", "")], "in the way"),
            (vec![folder("link/new")], "in the way"),
            (vec![file(&climbing, "")], "\"..\""),
            (vec![file("up/tmp/.wh.x", "")], "in the way"),
            (vec![file(".wh.", "")], "removes nothing"),
            (vec![file(".wh..", "")], "removes nothing"),
            (vec![file(".wh...", "")], "removes nothing"),
            (vec![(EntryType::Link, "b", 0o644, 0, &secret)], "in the way"),
            (
                vec![(EntryType::Regular, "a", 0o644, 0, "x"), file("a/b", "x")],
                "in the way",
            ),
        ] {
            let said = Layout::of(&[base.clone(), tar_of(&members)], json!({})).refused();
            assert!(
                said.contains(word) && said.contains("layer 2"),
                "{members:?}: {said}"
            );
        }
        // Links themselves are replaced and removed, and not what they lead to.
        let upper = tar_of(&[folder("link/"), file("link/secret", "x"), file(".wh.up", "")]);
        for (dir, _) in Layout::of(&[base, upper], json!({})).unpack() {
            assert_eq!(paths(dir.path()), ["a", "link/", "link/secret"]);
        }
        assert_eq!(
            fs::read_to_string(outside.path().join("secret")).unwrap(),
            "secret"
        );
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        let privileged = tar_of(&[(EntryType::Regular, "su", 0o4755, 0, "x")]);
        for (dir, _) in Layout::of(&[privileged], json!({})).unpack() {
            let mode = fs::metadata(dir.path().join("su")).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o755);
        }
    }

    #[test]
    fn what_is_too_much_is_refused_with_its_limit() {
        let small = Limits {
            members: 4,
            bytes: 16,
        };
        let layer = |name: &str| tar_of(&[file(name, "12345678")]);
        let room = 16 + 4 * HEADER_BYTES;
        let mut padded = layer("a");
        padded.resize(room as usize + 512, 0);
        for (layers, word) in [
            (vec![layer("a"), layer("b"), layer("c")], "more than 16 bytes"),
            (
                vec![tar_of(&[folder("a"); 3]), tar_of(&[folder("b"); 3])],
                "more than 4 members",
            ),
            (vec![tar_of(&[file(".wh.a", ""); 5])], "more than 4 members"),
            // What a small file unpacks to.
            (vec![padded], "unpacks to more than"),
            (vec![tar_of(&[]); MAX_LAYERS + 1], "128 may be"),
        ] {
            let said = Layout::of(&layers, json!({})).refused_with(small);
            assert!(said.contains(word), "{said}");
        }
        let mut layout = Layout::of(&[layer("a")], json!({}));
        layout.0.insert(
            "index.json".to_owned(),
            vec![b' '; MAX_DOCUMENT_BYTES as usize + 1],
        );
        assert!(layout.refused().contains("4194304 bytes"));
        let mut layout = Layout::default();
        let mut index = layout.image(&[layer("a")], json!({}));
        for _ in 0..=MAX_INDEXES {
            index = layout.document("index", &json!({ "schemaVersion": 2, "manifests": [index] }));
        }
        layout.index(&[index]);
        assert!(layout.refused().contains("indexes are in each other"));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let mut layout = Layout::of(&[tar_of(&[file("a", "1")])], json!({}));
        layout.0.insert("index.json".to_owned(), b"{}".to_vec());
        assert!(layout.refused().contains("index.json: missing field"));
        layout.0.remove("index.json");
        assert!(layout.refused().contains("index.json is missing"));
        for files in [
            &["manifest.json", "etc/passwd"][..],
            &["index.json", "etc/passwd"],
            &["repositories"],
        ] {
            let plain = tempfile::tempdir().unwrap();
            for name in files {
                let path = plain.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "{}").unwrap();
            }
            assert!(
                Layered::in_folder(plain.path()).unwrap().is_none(),
                "{files:?} is a root file system"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Whatever layers hold, nothing is made or removed beside the folder.
        #[test]
        fn any_layers_stay_in_their_folder(
            layers in prop::collection::vec(
                prop::collection::vec((0_usize..5, 0_usize..9, 0_usize..6), 0..8), 1..4),
        ) {
            let place = tempfile::tempdir().unwrap();
            fs::create_dir_all(place.path().join("out")).unwrap();
            fs::write(place.path().join("out/x"), "x").unwrap();
            fs::create_dir(place.path().join("in")).unwrap();
            let paths = [
                "a", "a/b", "../out/x", "a/../../out/x", "b/a", "./a/b/c", "a/.wh.x", ".wh.a", "b/.wh..wh..opq",
            ];
            let targets = ["../out", "/", "a", "../../out", "b", "."];
            let kinds = [
                EntryType::Regular, EntryType::Directory, EntryType::Symlink, EntryType::Link, EntryType::Char,
            ];
            let layers: Vec<Vec<u8>> = layers
                .iter()
                .map(|members| {
                    let members: Vec<Member<'_>> = members
                        .iter()
                        .map(|&(kind, path, target)| (kinds[kind], paths[path], 0o777, 0, targets[target]))
                        .collect();
                    tar_of(&members)
                })
                .collect();
            let layout = Layout::of(&layers, json!({}));
            let from = place.path().join("image.tar");
            let mut archive = Builder::new(File::create(&from).unwrap());
            for (path, bytes) in &layout.0 {
                let mut header = Header::new_gnu();
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, path, bytes.as_slice()).unwrap();
            }
            archive.finish().unwrap();
            let mut tree = Tree::open(&place.path().join("in"), &from, Limits::default()).unwrap();
            let opened = File::open(&from).unwrap();
            let layered = Layered::in_archive(&from, &opened).unwrap().unwrap();
            let _ = layered.unpack(&mut tree, Limits::default());
            prop_assert_eq!(fs::read_to_string(place.path().join("out/x")).unwrap(), "x");
            prop_assert_eq!(fs::read_dir(place.path().join("out")).unwrap().count(), 1);
            prop_assert_eq!(fs::read_dir(place.path()).unwrap().count(), 3);
        }
    }
}
