//! Servers for tests: Debian's `docker-registry`, and one that answers as it is told.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use registry::{Options, Progress, Reference, RegistryError, Remote};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

/// Debian's registry, on a port of its own. Ends with this.
pub(crate) struct Registry {
    child: Child,
    pub(crate) address: String,
    pub(crate) directory: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    /// One with these lines more in its configuration; `None` where it is not installed.
    pub(crate) fn start(more: impl Fn(&Path) -> String) -> Option<Registry> {
        let program = Path::new("/usr/bin/docker-registry");
        let missing = (!program.exists()).then(|| "docker-registry is not installed".to_owned());
        if !real_parts::available("registry", missing) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        // Free until it listens there itself.
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let address = format!("127.0.0.1:{port}");
        let text = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: \
             {address}\n{}",
            directory.path().join("data").display(),
            more(directory.path())
        );
        let file = directory.path().join("config.yml");
        fs::write(&file, text).unwrap();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(program)
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut registry = Registry {
            child,
            address,
            directory,
        };
        let until = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(&registry.address).is_err() {
            let ended = registry.child.try_wait().unwrap();
            let log = || fs::read_to_string(registry.directory.path().join("log")).unwrap();
            assert!(
                ended.is_none() && Instant::now() < until,
                "no registry: {}",
                log()
            );
            std::thread::yield_now();
        }
        Some(registry)
    }

    /// Pushes a file; gives its descriptor.
    pub(crate) fn push_blob(&self, repository: &str, authorization: &str, bytes: &[u8]) -> Value {
        let named = sha256(bytes);
        let begun = request(
            &self.address,
            "POST",
            &format!("/v2/{repository}/blobs/uploads/"),
            authorization,
            "",
            &[],
        );
        assert_eq!(begun.status, 202, "{begun:?}");
        let location = begun.headers["location"].clone();
        let path = location
            .split_once(&self.address)
            .map_or(location.as_str(), |(_, path)| path);
        let sign = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{sign}digest={named}");
        let put = request(
            &self.address,
            "PUT",
            &path,
            authorization,
            "application/octet-stream",
            bytes,
        );
        assert_eq!(put.status, 201, "{put:?}");
        json!({ "digest": named, "size": bytes.len() })
    }

    /// Pushes a manifest or an index; gives its descriptor.
    pub(crate) fn push_manifest(
        &self,
        repository: &str,
        tag: &str,
        authorization: &str,
        kind: &str,
        value: &Value,
    ) -> Value {
        let text = value.to_string();
        let path = format!("/v2/{repository}/manifests/{tag}");
        let put = request(&self.address, "PUT", &path, authorization, kind, text.as_bytes());
        assert_eq!(put.status, 201, "{put:?}");
        json!({ "mediaType": kind, "digest": sha256(text.as_bytes()), "size": text.len() })
    }

    /// Pushes an image with these layers; gives the descriptor of its manifest.
    pub(crate) fn push(&self, repository: &str, tag: &str, authorization: &str, layers: &[&[u8]]) -> Value {
        self.push_image(repository, tag, authorization, layers, &Image::of(layers))
    }

    pub(crate) fn push_image(
        &self,
        repository: &str,
        tag: &str,
        authorization: &str,
        layers: &[&[u8]],
        image: &Image,
    ) -> Value {
        self.push_blob(repository, authorization, image.config.as_bytes());
        for layer in layers {
            self.push_blob(repository, authorization, layer);
        }
        self.push_manifest(repository, tag, authorization, MANIFEST, &image.manifest)
    }

    pub(crate) fn pull(
        &self,
        name: &str,
        options: &Options,
    ) -> Result<(tempfile::TempDir, String), RegistryError> {
        pull(&format!("{}/{name}", self.address), options)
    }
}

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// An image: its configuration and its manifest. Layers are any bytes: nothing here looks into them.
pub(crate) struct Image {
    pub(crate) config: String,
    pub(crate) manifest: Value,
}

impl Image {
    pub(crate) fn of(layers: &[&[u8]]) -> Image {
        Image::with(layers, &json!({ "Cmd": ["/program"] }))
    }

    pub(crate) fn with(layers: &[&[u8]], config: &Value) -> Image {
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": layers.iter().map(|of| sha256(of)).collect::<Vec<_>>() },
        })
        .to_string();
        let layers: Vec<Value> = layers
            .iter()
            .map(|layer| {
                let kind = "application/vnd.oci.image.layer.v1.tar";
                json!({ "mediaType": kind, "digest": sha256(layer), "size": layer.len() })
            })
            .collect();
        let kind = "application/vnd.oci.image.config.v1+json";
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": { "mediaType": kind, "digest": sha256(config.as_bytes()), "size": config.len() },
            "layers": layers,
        });
        Image { config, manifest }
    }
}

/// As `sha256:…`.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    let digits: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// Options without anything of this machine.
pub(crate) fn options(directory: &Path) -> Options {
    Options {
        docker_config: directory.join("config.json"),
        certificates: directory.join("certs.d"),
        plain_http: Vec::new(),
    }
}

pub(crate) fn pull(name: &str, options: &Options) -> Result<(tempfile::TempDir, String), RegistryError> {
    let into = tempfile::tempdir().unwrap();
    let digest = pull_to(name, options, into.path(), &|_| ())?;
    Ok((into, digest))
}

pub(crate) fn pull_to(
    name: &str,
    options: &Options,
    into: &Path,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<String, RegistryError> {
    let remote = Remote::find(&Reference::parse(name).unwrap(), options)?;
    remote.download(into, progress)?;
    Ok(remote.digest().to_owned())
}

pub(crate) fn blob(into: &Path, bytes: &[u8]) -> PathBuf {
    into.join("blobs/sha256")
        .join(sha256(bytes).trim_start_matches("sha256:"))
}

/// A request, as it was received; or an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) path: String,
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn request(
    address: &str,
    method: &str,
    path: &str,
    authorization: &str,
    kind: &str,
    body: &[u8],
) -> Message {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    if !authorization.is_empty() {
        head += &format!("Authorization: {authorization}\r\n");
    }
    if !kind.is_empty() {
        head += &format!("Content-Type: {kind}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut reader = BufReader::new(stream);
    let (first, headers) = read_head(&mut reader).unwrap();
    let mut body = Vec::new();
    let _ = reader.read_to_end(&mut body);
    Message {
        path: path.to_owned(),
        status: first.split(' ').nth(1).unwrap().parse().unwrap(),
        headers,
        body,
    }
}

fn read_head(reader: &mut impl std::io::BufRead) -> Option<(String, BTreeMap<String, String>)> {
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    (!first.is_empty()).then_some((first, headers))
}

/// What a server sends: head and body, as bytes.
pub(crate) type Answer = Vec<u8>;

pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut bytes = format!("HTTP/1.1 {status} X\r\nConnection: close\r\n").into_bytes();
    if !headers.iter().any(|(name, _)| *name == "Content-Length") {
        bytes.extend(format!("Content-Length: {}\r\n", body.len()).bytes());
    }
    for (name, value) in headers {
        bytes.extend(format!("{name}: {value}\r\n").bytes());
    }
    bytes.extend(b"\r\n");
    bytes.extend(body);
    bytes
}

/// A server that answers each request by a function, and remembers them. A connection has one request.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) seen: Arc<Mutex<Vec<Message>>>,
}

impl Server {
    pub(crate) fn start(answers: impl Fn(&Message) -> Answer + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (noted, answers) = (Arc::clone(&seen), Arc::new(answers));
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let (noted, answers) = (Arc::clone(&noted), Arc::clone(&answers));
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    let Some((first, headers)) = read_head(&mut reader) else {
                        return;
                    };
                    let message = Message {
                        path: first.split(' ').nth(1).unwrap_or_default().to_owned(),
                        headers,
                        ..Message::default()
                    };
                    noted.lock().unwrap().push(message.clone());
                    // The client may have had enough.
                    let _ = stream.write_all(&answers(&message));
                });
            }
        });
        Server { address, seen }
    }

    /// One that has this image, with `other` answering first where it has an answer.
    pub(crate) fn with(
        image: Image,
        layers: &[&[u8]],
        other: impl Fn(&Message) -> Option<Answer> + Send + Sync + 'static,
    ) -> Server {
        let mut files: BTreeMap<String, (Vec<u8>, &'static str)> = BTreeMap::new();
        let mut add = |path: String, bytes: &[u8], kind| files.insert(path, (bytes.to_vec(), kind));
        add(
            "/v2/a/manifests/latest".to_owned(),
            image.manifest.to_string().as_bytes(),
            MANIFEST,
        );
        let octets = "application/octet-stream";
        add(
            format!("/v2/a/blobs/{}", sha256(image.config.as_bytes())),
            image.config.as_bytes(),
            octets,
        );
        for layer in layers {
            add(format!("/v2/a/blobs/{}", sha256(layer)), layer, octets);
        }
        Server::start(move |message| {
            other(message).unwrap_or_else(|| match files.get(&message.path) {
                Some((bytes, kind)) => answer(200, &[("Content-Type", kind)], bytes),
                None => answer(404, &[], b"{}"),
            })
        })
    }

    pub(crate) fn pull(&self) -> Result<(tempfile::TempDir, String), RegistryError> {
        let directory = tempfile::tempdir().unwrap();
        pull(&format!("{}/a", self.address), &options(directory.path()))
    }

    /// The headers of requests whose path has this in it.
    pub(crate) fn asked(&self, part: &str) -> Vec<BTreeMap<String, String>> {
        let seen = self.seen.lock().unwrap();
        let asked = seen.iter().filter(|message| message.path.contains(part));
        asked.map(|message| message.headers.clone()).collect()
    }
}
