//! Files of an image: downloaded some at a time, checked while they arrive, and continued after a broken connection.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use hyper::StatusCode;
use ring::digest::{Context, SHA256};

use crate::client::{Answer, Client};
use crate::manifest::Blob;
use crate::{Progress, RegistryError};

/// Files that are downloaded at a time, as Docker does.
const AT_A_TIME: usize = 3;
/// How often a file is asked for where connections break.
const ATTEMPTS: u32 = 5;
/// The pause before the second attempt; it doubles.
const PAUSE: Duration = Duration::from_millis(200);

/// Downloads what is not in the directory yet.
pub(crate) async fn all(
    client: &Client,
    blobs: &[Blob],
    into: &Path,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(), RegistryError> {
    let counted = Counted {
        done: AtomicU64::new(0),
        bytes: blobs.iter().map(|blob| blob.bytes).sum(),
        progress,
    };
    counted.add(0);
    stream::iter(blobs)
        .map(|blob| one(client, blob, into, &counted))
        .buffer_unordered(AT_A_TIME)
        .try_collect()
        .await
}

struct Counted<'a> {
    done: AtomicU64,
    bytes: u64,
    progress: &'a (dyn Fn(Progress) + Sync),
}

impl Counted<'_> {
    fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.progress)(Progress {
            done,
            bytes: self.bytes,
        });
    }
}

async fn one(client: &Client, blob: &Blob, into: &Path, counted: &Counted<'_>) -> Result<(), RegistryError> {
    let whole = into.join(&blob.digest);
    // It was checked before it got this name, and is checked again on import.
    if std::fs::metadata(&whole).is_ok_and(|file| file.len() == blob.bytes) {
        counted.add(blob.bytes);
        return Ok(());
    }
    let part = into.join(format!("{}.part", blob.digest));
    let mut kept = Part::open(&part, blob.bytes)?;
    counted.add(kept.bytes);
    let mut pause = PAUSE;
    let mut attempts = 1;
    loop {
        match kept.go_on(client, blob, counted).await {
            Ok(host) => {
                let found = kept.finish();
                if found != blob.digest {
                    // The next attempt must not begin with it.
                    let _ = std::fs::remove_file(&part);
                    return Err(RegistryError::Digest {
                        host,
                        what: "a layer".to_owned(),
                        expected: format!("sha256:{}", blob.digest),
                        found: format!("sha256:{found}"),
                    });
                }
                return std::fs::rename(&part, &whole)
                    .map_err(|error| RegistryError::io("rename", &part, &error));
            }
            Err(error) if error.is_transient() && attempts < ATTEMPTS => {
                attempts += 1;
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What there is of a file.
struct Part<'a> {
    path: &'a Path,
    file: File,
    bytes: u64,
    context: Context,
}

impl<'a> Part<'a> {
    fn open(path: &'a Path, limit: u64) -> Result<Part<'a>, RegistryError> {
        let failed = |error: &std::io::Error| RegistryError::io("open", path, error);
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(|error| failed(&error))?;
        let mut part = Part {
            path,
            file: file.try_clone().map_err(|error| failed(&error))?,
            bytes: 0,
            context: Context::new(&SHA256),
        };
        let mut buffer = vec![0; 1 << 16];
        loop {
            let got = file.read(&mut buffer).map_err(|error| failed(&error))?;
            if got == 0 {
                break;
            }
            part.context.update(buffer.get(..got).unwrap_or_default());
            part.bytes += got as u64;
        }
        if part.bytes > limit {
            part.begin_again()?;
        }
        Ok(part)
    }

    fn begin_again(&mut self) -> Result<(), RegistryError> {
        self.file
            .set_len(0)
            .map_err(|error| RegistryError::io("empty", self.path, &error))?;
        self.bytes = 0;
        self.context = Context::new(&SHA256);
        Ok(())
    }

    /// Downloads what is missing; gives who sent it.
    async fn go_on(
        &mut self,
        client: &Client,
        blob: &Blob,
        counted: &Counted<'_>,
    ) -> Result<String, RegistryError> {
        if self.bytes == blob.bytes {
            return Ok(String::new());
        }
        let path = format!("blobs/sha256:{}", blob.digest);
        let mut answer = client.get(&path, "*/*", self.bytes).await?;
        if self.bytes > 0 && answer.response.status() != StatusCode::PARTIAL_CONTENT {
            // The server sends all of it again.
            self.begin_again()?;
        }
        let left = blob.bytes - self.bytes;
        if let Some(bytes) = answer.declared_bytes().filter(|&bytes| bytes > left) {
            return Err(too_much(client, blob, self.bytes.saturating_add(bytes)));
        }
        answer.allow(left);
        self.receive(client, blob, &mut answer, counted).await?;
        Ok(answer.host)
    }

    async fn receive(
        &mut self,
        client: &Client,
        blob: &Blob,
        answer: &mut Answer,
        counted: &Counted<'_>,
    ) -> Result<(), RegistryError> {
        loop {
            let more = match answer.next().await {
                Ok(Some(more)) => more,
                Ok(None) if self.bytes == blob.bytes => return Ok(()),
                Err(Some(silence)) => return Err(silence),
                Ok(None) | Err(None) => {
                    return Err(RegistryError::Truncated {
                        host: answer.host.clone(),
                        what: format!("sha256:{}", blob.digest),
                        got: self.bytes,
                        bytes: blob.bytes,
                    });
                }
            };
            let bytes = self.bytes.saturating_add(more.len() as u64);
            if bytes > blob.bytes {
                return Err(too_much(client, blob, bytes));
            }
            self.file
                .write_all(&more)
                .map_err(|error| RegistryError::io("write", self.path, &error))?;
            self.context.update(&more);
            self.bytes = bytes;
            counted.add(more.len() as u64);
        }
    }

    fn finish(&self) -> String {
        hexadecimal(self.context.clone().finish().as_ref())
    }
}

/// The server sends more than the manifest says.
fn too_much(client: &Client, blob: &Blob, bytes: u64) -> RegistryError {
    RegistryError::TooLarge {
        image: client.image(),
        what: format!("what is sent as sha256:{}", blob.digest),
        bytes,
        limit: blob.bytes,
    }
}

/// As `sha256:…`.
pub(crate) fn digest_of(text: &[u8]) -> String {
    format!(
        "sha256:{}",
        hexadecimal(ring::digest::digest(&SHA256, text).as_ref())
    )
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
