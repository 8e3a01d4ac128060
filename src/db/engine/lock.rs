//! The lock that limits a SQLite database to one server: on a file beside it, for as long as the database is open.
//!
//! The database file itself is not locked, since SQLite does that in its own way. The operating system releases the
//! lock when the process ends for any reason, so no stale lock stops the next server.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::cannot_open;
use super::error::{DbError, DbResult};

/// The lock on a database file, released on drop.
#[derive(Debug)]
pub(in crate::db) struct FileLock(#[expect(dead_code, reason = "it is held, not used")] File);

impl FileLock {
    /// Acquires the lock on the database in `file`, which need not exist yet.
    ///
    /// # Errors
    /// [`DbError::InUse`] when another server holds it.
    pub(in crate::db) fn take(file: &Path) -> DbResult<Self> {
        let path = lock_path(file);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let mut lock = opened.map_err(|error| cannot_open("the lock file", &path, &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(DbError::InUse {
                    file: file.to_owned(),
                    by: owner(&mut lock),
                });
            }
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(
                    file = %path.display(),
                    "the file system has no locks: use the database with one server only"
                );
            }
            Err(TryLockError::Error(error)) => return Err(cannot_open("the lock file", &path, &error)),
        }
        // The process id is for the error message of another server. Only the lock counts.
        let written = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        if let Err(error) = written {
            tracing::debug!(%error, file = %path.display(), "could not write the process id to the lock file");
        }
        Ok(Self(lock))
    }
}

/// Returns the path of the lock file beside a database file, the same for every path to that file.
fn lock_path(file: &Path) -> PathBuf {
    let mut path = std::fs::canonicalize(file)
        .unwrap_or_else(|_| file.to_owned())
        .into_os_string();
    path.push(".lock");
    path.into()
}

/// Returns the process that holds the lock, in brackets for an error message; empty if it is unknown.
fn owner(lock: &mut File) -> String {
    let mut text = String::new();
    let read = lock.rewind().and_then(|()| lock.read_to_string(&mut text));
    read.ok()
        .and_then(|_| text.trim().parse::<u32>().ok())
        .map(|id| format!(" (process {id})"))
        .unwrap_or_default()
}
