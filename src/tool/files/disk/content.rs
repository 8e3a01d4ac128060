//! Reading files.

use std::collections::BTreeMap;
use std::io::Read;

use cap_std::fs::{Dir, File as DiskFile, Metadata, OpenOptions};

use super::place::{error_text, is_absent};
use super::relative;
use crate::domain::state::{File, FileFacts};
use crate::domain::time::Timestamp;

/// Opens the regular file at `path`; none if there is nothing.
///
/// # Errors
/// The text for the model, if it is anything else.
pub(super) fn open(dir: &Dir, path: &str) -> Result<Option<(DiskFile, Metadata)>, String> {
    // Looked at first: to open a pipe or a device may already have effects.
    match dir.metadata(relative(path)) {
        Ok(found) => regular(path, &found)?,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error_text(path, &error)),
    }
    let file = dir
        .open_with(relative(path), &options())
        .map_err(|error| error_text(path, &error))?;
    let found = file.metadata().map_err(|error| error_text(path, &error))?;
    regular(path, &found)?;
    Ok(Some((file, found)))
}

/// Returns options to open a file without waiting, should it have become a pipe in the meantime.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use cap_std::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        options.custom_flags(i32::try_from(flags.bits()).unwrap_or_default());
    }
    options
}

fn regular(path: &str, found: &Metadata) -> Result<(), String> {
    if found.is_file() {
        Ok(())
    } else if found.is_dir() {
        Err(format!("Error: '{path}' is a directory, not a file"))
    } else {
        Err(format!(
            "Error: '{path}' is a pipe, a socket or a device, which is never opened"
        ))
    }
}

/// Reads the file at `path`.
///
/// # Errors
/// The text for the model.
pub(super) fn read(dir: &Dir, path: &str, max: usize) -> Result<Option<File>, String> {
    let Some((file, found)) = open(dir, path)? else {
        return Ok(None);
    };
    let max = u64::try_from(max).unwrap_or(u64::MAX);
    let too_large = || {
        format!(
            "Error: '{path}' has {} bytes; files of more than {max} bytes are not read. grep finds text in it.",
            found.len()
        )
    };
    if found.len() > max {
        return Err(too_large());
    }
    let mut bytes = vec![];
    file.take(max.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| error_text(path, &error))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > max) {
        return Err(too_large());
    }
    Ok(Some(File {
        created_at: found.created().ok().and_then(time),
        modified_at: found.modified().ok().and_then(time),
        ..File::from_bytes(bytes)
    }))
}

/// Returns what the directory entries of these files say, by path. What is no regular file is left out.
pub(super) fn facts(dir: &Dir, paths: &[String]) -> BTreeMap<String, FileFacts> {
    let known = |path: &String| {
        let found = dir.symlink_metadata(relative(path)).ok().filter(Metadata::is_file)?;
        let facts = FileFacts {
            size: Some(found.len()),
            encoding: None,
            created_at: found.created().ok().and_then(time),
            modified_at: found.modified().ok().and_then(time),
        };
        Some((path.clone(), facts))
    };
    paths.iter().filter_map(known).collect()
}

fn time(at: cap_std::time::SystemTime) -> Option<String> {
    let since = at.into_std().duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Timestamp(i64::try_from(since.as_micros()).ok()?).to_string())
}
