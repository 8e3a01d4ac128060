//! That a SQLite file has one server: a lock on a file beside it, for as long as it is open.
//!
//! Not on the file itself, which SQLite locks in its own way. The operating system gives the lock back when the process ends,
//! however that happens, so that nothing is left in the way of the next one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::cannot_open;
use crate::db::error::{DbError, DbResult};

/// The lock on a database file. It is given back when this is dropped.
#[derive(Debug)]
pub(in crate::db) struct FileLock(#[expect(dead_code, reason = "it is held, not used")] File);

impl FileLock {
    /// Takes the lock on the database in `file`, which need not exist yet.
    ///
    /// # Errors
    /// [`DbError::InUse`] when another server has it.
    pub(super) fn take(file: &Path) -> DbResult<Self> {
        let place = place_of(file);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&place);
        let mut lock = opened.map_err(|error| cannot_open("the lock file", &place, &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(DbError::InUse {
                    file: file.to_owned(),
                    by: owner(&mut lock),
                });
            }
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(file = %place.display(), "this file system has no locks: see to it that one server uses it");
            }
            Err(TryLockError::Error(error)) => return Err(cannot_open("the lock file", &place, &error)),
        }
        // For people and for the message of who comes second. The lock is what counts.
        let named = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        if let Err(error) = named {
            tracing::debug!(%error, file = %place.display(), "the lock does not say who has it");
        }
        Ok(Self(lock))
    }
}

/// The lock beside a database file, the same by whatever name the file is called.
fn place_of(file: &Path) -> PathBuf {
    let mut place = std::fs::canonicalize(file)
        .unwrap_or_else(|_| file.to_owned())
        .into_os_string();
    place.push(".lock");
    place.into()
}

/// Who has the lock, as a message says it.
fn owner(lock: &mut File) -> String {
    let mut text = String::new();
    let read = lock.rewind().and_then(|()| lock.read_to_string(&mut text));
    read.ok()
        .and_then(|_| text.trim().parse::<u32>().ok())
        .map(|id| format!(" (process {id})"))
        .unwrap_or_default()
}
