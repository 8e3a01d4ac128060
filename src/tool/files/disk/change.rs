//! Writing and deleting files.

use std::io::Write;
use std::time::{Duration, Instant};

use cap_std::fs::{Dir, OpenOptions};

use super::content::read;
use super::place::{error_text, is_absent, resolve};
use super::{TEMPORARY, relative};
use crate::domain::id::TaskId;
use crate::domain::state::File;
use crate::sandbox::free_space::lacks_space;
use crate::tool::files::store::{conflict, is_same};

/// The maximum time for which a write waits for another one in the same directory.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The pause between two tries to lock a directory.
const PAUSE: Duration = Duration::from_millis(2);

/// A write of a whole file.
pub(super) struct Change {
    pub(super) path: String,
    pub(super) file: File,
    /// The file that is replaced.
    pub(super) before: Option<File>,
    /// The call that writes.
    pub(super) task: Option<TaskId>,
    pub(super) max_bytes: usize,
    /// The space that has to stay free on the disk, in bytes, if it is not the usual one.
    pub(super) least_free: Option<u64>,
}

impl Change {
    /// Writes the file: all of it or nothing, also if the server or its machine stops meanwhile. Parallel writers of
    /// files in one directory wait for each other, in all processes that use this function.
    pub(super) fn write(&self, dir: &Dir) -> Result<(), String> {
        let real = resolve(dir, &self.path, true)?;
        let (parent, name) = real.rsplit_once('/').unwrap_or(("", &real));
        let error_text = |error: std::io::Error| error_text(&self.path, &error);
        dir.create_dir_all(relative(parent)).map_err(error_text)?;
        let parent = dir.open_dir(relative(parent)).map_err(error_text)?;
        let _lock = lock(&parent, &self.path)?;
        let there = read(&parent, name, self.max_bytes)?;
        if is_same(there.as_ref(), Some(&self.file)) {
            return Ok(());
        }
        if !is_same(there.as_ref(), self.before.as_ref()) {
            return Err(conflict(&self.path));
        }
        let no_base64 = |_| format!("Error: the content of '{}' is no base64", self.path);
        let bytes = self.file.to_bytes().map_err(no_base64)?;
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if lacks_space(&parent, length, self.least_free) {
            return Err(format!(
                "Error: '{}' was not written: too little space is left on the disk.",
                self.path
            ));
        }
        // The same call uses the same name again after a crash, so at most one file is left over.
        let task = self
            .task
            .map_or_else(|| "0".to_owned(), |task| task.0.simple().to_string());
        let temporary = format!("{TEMPORARY}{task}.tmp");
        let written = self.replace(&parent, name, &temporary, &bytes);
        if written.is_err() && parent.remove_file(&temporary).is_err() {
            tracing::debug!(temporary, "a temporary file could not be removed");
        }
        written.map_err(error_text)
    }

    /// Writes to a temporary file and renames it.
    fn replace(&self, parent: &Dir, name: &str, temporary: &str, bytes: &[u8]) -> std::io::Result<()> {
        match parent.remove_file(temporary) {
            Ok(()) => {}
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
        let mut file = parent.open_with(temporary, OpenOptions::new().write(true).create_new(true))?;
        file.write_all(bytes)?;
        if let Ok(found) = parent.metadata(name) {
            file.set_permissions(found.permissions())?;
        }
        file.sync_all()?;
        drop(file);
        parent.rename(temporary, parent, name)?;
        parent.open(".")?.sync_all()
    }
}

/// Locks a directory until the result is dropped.
fn lock(directory: &Dir, path: &str) -> Result<std::fs::File, String> {
    let handle = directory
        .open(".")
        .map_err(|error| error_text(path, &error))?
        .into_std();
    let end = Instant::now() + MAX_WAIT;
    loop {
        match handle.try_lock() {
            Ok(()) => return Ok(handle),
            Err(std::fs::TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(PAUSE),
            Err(std::fs::TryLockError::WouldBlock) => return Err(conflict(path)),
            Err(std::fs::TryLockError::Error(error)) => return Err(error_text(path, &error)),
        }
    }
}

/// The deletion of a file, or of a directory.
pub(super) struct Deletion {
    pub(super) path: String,
    /// The files at and below the path.
    pub(super) files: Vec<String>,
    /// The file at the path, as it has to be still; none if its content does not matter.
    pub(super) before: Option<File>,
    pub(super) max_bytes: usize,
}

impl Deletion {
    /// Deletes the files, and then the directories at and below the path that are empty. Symbolic links are deleted, not
    /// what they lead to. Returns whether there was anything.
    pub(super) fn delete(&self, dir: &Dir) -> Result<bool, String> {
        let Self { path, files, .. } = self;
        for file in files {
            let real = resolve(dir, file, false)?;
            let before = self.before.as_ref().filter(|_| file == path);
            // Held until the file is deleted.
            let _lock = before.map(|before| self.lock(dir, &real, before)).transpose()?;
            match dir.remove_file(relative(&real)) {
                Ok(()) => {}
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error_text(file, &error)),
            }
        }
        let real = resolve(dir, path, false)?;
        let is_dir = dir.symlink_metadata(relative(&real)).is_ok_and(|found| found.is_dir());
        if is_dir {
            remove_directories(dir, &real);
            if real != "/" && dir.symlink_metadata(relative(&real)).is_ok() {
                return Err(format!(
                    "Error: '{path}' still has files: some were written in the meantime or cannot be deleted"
                ));
            }
        }
        Ok(is_dir || !files.is_empty())
    }

    /// Locks the directory of the file at `real`, and checks that the file is still `before` unless it has gone.
    /// [`Change::write`] waits for the lock, so no such write comes in between.
    fn lock(&self, dir: &Dir, real: &str, before: &File) -> Result<std::fs::File, String> {
        let (parent, _) = real.rsplit_once('/').unwrap_or(("", real));
        let parent = dir
            .open_dir(relative(parent))
            .map_err(|error| error_text(&self.path, &error))?;
        let lock = lock(&parent, &self.path)?;
        match read(dir, real, self.max_bytes) {
            Ok(None) => Ok(lock),
            Ok(there) if is_same(there.as_ref(), Some(before)) => Ok(lock),
            Ok(Some(_)) | Err(_) => Err(conflict(&self.path)),
        }
    }
}

/// Removes the directory at `path` and those below it, as far as they are empty.
fn remove_directories(dir: &Dir, path: &str) {
    let entries = dir.read_dir(relative(path)).into_iter().flatten().flatten();
    let below: Vec<String> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| {
            Some(format!(
                "{}/{}",
                path.trim_end_matches('/'),
                entry.file_name().to_str()?
            ))
        })
        .collect();
    below.iter().for_each(|below| remove_directories(dir, below));
    if path != "/"
        && let Err(error) = dir.remove_dir(relative(path))
    {
        tracing::debug!(%error, path, "a directory was not removed");
    }
}

#[cfg(test)]
mod tests {
    use cap_std::ambient_authority;

    use super::*;
    use crate::domain::time::Timestamp;

    #[test]
    fn a_disk_with_too_little_space_is_not_written_to() {
        let folder = tempfile::tempdir().expect("a directory");
        let dir = Dir::open_ambient_dir(folder.path(), ambient_authority()).expect("it can be opened");
        let change = |least_free| Change {
            path: "/a.txt".to_owned(),
            file: File::text("a", Timestamp(0)),
            before: None,
            task: None,
            max_bytes: 1_000,
            least_free,
        };
        let refused = change(Some(u64::MAX)).write(&dir).expect_err("no disk is so large");
        assert!(refused.contains("too little space is left"), "{refused}");
        assert!(!folder.path().join("a.txt").exists());
        change(Some(0)).write(&dir).expect("there is space");
        assert!(folder.path().join("a.txt").exists());
    }
}
