//! Where numbers of the store and segments of the log of transactions are kept.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Why a file cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The file system said so.
    #[error("file {number}: {error}")]
    Io {
        /// Its number.
        number: u64,
        /// What it said.
        error: io::Error,
    },
    /// The bytes are not those that were written: a checksum differs, or the end is missing.
    #[error("file {0} is damaged")]
    Damaged(u64),
}

impl StorageError {
    /// Whether there is no such file.
    pub fn is_missing(&self) -> bool {
        matches!(self, StorageError::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Files by number. Each is written as a whole. Several actors can share them.
pub trait Storage: Send {
    /// Writes a file: afterwards it is there as a whole, also after a crash. One with that number is replaced.
    ///
    /// # Errors
    /// It cannot be written; then there is none, or the one before.
    fn write(&mut self, number: u64, bytes: &[u8]) -> Result<(), StorageError>;

    /// Bytes of a file.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    fn bytes(&self, number: u64) -> Result<u64, StorageError>;

    /// A part of a file.
    ///
    /// # Errors
    /// There is no such file, or it does not have these bytes.
    fn read(&self, number: u64, at: u64, bytes: usize) -> Result<Vec<u8>, StorageError>;

    /// Removes a file, if there is one.
    ///
    /// # Errors
    /// It cannot be removed.
    fn remove(&mut self, number: u64) -> Result<(), StorageError>;
}

/// Files of one folder: `NUMBER.data`. No other program writes there.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The files of a folder, which is made if it does not exist. Each replica, and each coordinator, has its own.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(path: &Path) -> io::Result<Folder> {
        fs::create_dir_all(path)?;
        Ok(Folder(path.to_owned()))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.0.join(format!("{number}.data"))
    }
}

impl Storage for Folder {
    fn write(&mut self, number: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let part = self.0.join(format!("{number}.part"));
        let write = || {
            let mut file = File::create(&part)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&part, self.path(number))?;
            // The new name is on the disk when the folder is.
            File::open(&self.0)?.sync_all()
        };
        write().map_err(|error| StorageError::Io { number, error })
    }

    fn bytes(&self, number: u64) -> Result<u64, StorageError> {
        let metadata = fs::metadata(self.path(number));
        Ok(metadata
            .map_err(|error| StorageError::Io { number, error })?
            .len())
    }

    fn read(&self, number: u64, at: u64, bytes: usize) -> Result<Vec<u8>, StorageError> {
        let mut read = vec![0; bytes];
        let file = File::open(self.path(number));
        file.and_then(|file| file.read_exact_at(&mut read, at))
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => StorageError::Damaged(number),
                _ => StorageError::Io { number, error },
            })?;
        Ok(read)
    }

    fn remove(&mut self, number: u64) -> Result<(), StorageError> {
        match fs::remove_file(self.path(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StorageError::Io { number, error }),
            _ => Ok(()),
        }
    }
}
