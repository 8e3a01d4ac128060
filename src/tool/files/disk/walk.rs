//! Listing directories and walking through them.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use cap_std::fs::{Dir, FileType};

use super::ignored::Ignored;
use super::place::{error_text, is_absent, resolve};
use super::{TEMPORARY, relative};
use crate::tool::files::workspace::{DirectoryEntries, FileQuery, FoundPaths, SearchStop};

/// The maximum number of entries that one operation looks at.
const MAX_ENTRIES: usize = 200_000;
/// The maximum number of paths that one search returns.
const MAX_PATHS: usize = 10_000;
/// The maximum depth of directories that a search enters.
const MAX_DEPTH: usize = 64;
/// The directory of git's own files, which searches leave out.
const GIT: &str = ".git";

/// The entries of a directory, by name.
struct Entries {
    entries: Vec<(String, FileType)>,
    is_cut: bool,
}

/// Returns the entries of the directory at `path`. Entries whose names are not text cannot be named and are left out.
fn entries(dir: &Dir, path: &str, most: usize) -> std::io::Result<Entries> {
    let mut all = Entries {
        entries: vec![],
        is_cut: false,
    };
    for entry in dir.read_dir(relative(path))? {
        if all.entries.len() >= most {
            all.is_cut = true;
            break;
        }
        let entry = entry?;
        let name = entry.file_name();
        if let (Some(name), Ok(kind)) = (name.to_str(), entry.file_type())
            && !name.starts_with(TEMPORARY)
        {
            all.entries.push((name.to_owned(), kind));
        }
    }
    all.entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(all)
}

fn join(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// Returns whether nothing is at `path`.
pub(super) fn is_missing(dir: &Dir, path: &str) -> Result<bool, String> {
    match dir.metadata(relative(&resolve(dir, path, true)?)) {
        Ok(_) => Ok(false),
        Err(error) if is_absent(&error) => Ok(true),
        Err(error) => Err(error_text(path, &error)),
    }
}

/// Returns what is directly in the directory of the query. Symbolic links out of the workspace are left out.
pub(super) fn list(dir: &Dir, query: &FileQuery) -> Result<DirectoryEntries, String> {
    let real = resolve(dir, &query.at, true)?;
    let found = match dir.metadata(relative(&real)) {
        Ok(found) => found,
        Err(error) if is_absent(&error) => return Ok(DirectoryEntries::default()),
        Err(error) => return Err(error_text(&query.at, &error)),
    };
    if !found.is_dir() {
        return Ok(DirectoryEntries {
            entries: BTreeSet::from([query.at.clone()]),
            stop: None,
        });
    }
    let found = entries(dir, &real, MAX_PATHS).map_err(|error| error_text(&query.at, &error))?;
    let mut shown = BTreeSet::new();
    for (name, kind) in found.entries {
        let real = join(&real, &name);
        let target = if kind.is_symlink() {
            match resolve(dir, &real, true) {
                Ok(target) => target,
                Err(_) => continue,
            }
        } else {
            real
        };
        let path = join(&query.at, &name);
        if !query.shows(&path) || !query.shows(&target) {
            continue;
        }
        let is_dir = kind.is_dir() || kind.is_symlink() && dir.is_dir(relative(&target));
        shown.insert(if is_dir { format!("{path}/") } else { path });
    }
    Ok(DirectoryEntries {
        entries: shown,
        stop: found.is_cut.then_some(SearchStop::Files),
    })
}

/// A walk through directories.
struct Walk<'a> {
    dir: &'a Dir,
    query: &'a FileQuery,
    uses_ignore_files: bool,
    entries: usize,
    stop: Option<SearchStop>,
}

/// Calls `visit` with the path of each file at and below the path of the query that the query admits, in order, and
/// with its real path. Symbolic links are not followed. Returns the reason if the walk ended early.
///
/// # Errors
/// The text for the model.
pub(super) fn walk(
    dir: &Dir,
    query: &FileQuery,
    uses_ignore_files: bool,
    visit: &mut dyn FnMut(&str, &str) -> ControlFlow<SearchStop>,
) -> Result<Option<SearchStop>, String> {
    let real = resolve(dir, &query.at, !query.is_complete)?;
    let found = match dir.symlink_metadata(relative(&real)) {
        Ok(found) => found,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error_text(&query.at, &error)),
    };
    if !found.is_dir() {
        let is_file = found.is_file() || query.is_complete;
        if is_file && query.admits(&query.at) && query.shows(&real) {
            return Ok(visit(&query.at, &real).break_value());
        }
        return Ok(None);
    }
    let mut walk = Walk {
        dir,
        query,
        uses_ignore_files: uses_ignore_files && !query.is_complete,
        entries: 0,
        stop: None,
    };
    let ignored = if walk.uses_ignore_files {
        Ignored::above(dir, &real)
    } else {
        Ignored::default()
    };
    let ended = walk.directory(&query.at, &real, &ignored, visit);
    Ok(ended.break_value().or(walk.stop))
}

impl Walk<'_> {
    fn directory(
        &mut self,
        seen: &str,
        real: &str,
        ignored: &Ignored,
        visit: &mut dyn FnMut(&str, &str) -> ControlFlow<SearchStop>,
    ) -> ControlFlow<SearchStop> {
        let left = MAX_ENTRIES.saturating_sub(self.entries);
        // A directory that the server may not read is like an empty one; so is one that is gone by now.
        let Ok(found) = entries(self.dir, real, left) else {
            return ControlFlow::Continue(());
        };
        if found.is_cut {
            return ControlFlow::Break(SearchStop::Files);
        }
        self.entries += found.entries.len();
        let ignored = if self.uses_ignore_files {
            ignored.with(self.dir, real)
        } else {
            Ignored::default()
        };
        for (name, kind) in found.entries {
            if self.query.is_over() {
                return ControlFlow::Break(SearchStop::Time);
            }
            let path = join(seen, &name);
            let real = join(real, &name);
            if ignored.excludes(&real, kind.is_dir()) || !self.query.is_complete && name == GIT {
                continue;
            }
            if kind.is_dir() {
                if real.split('/').count() > MAX_DEPTH {
                    self.stop = Some(SearchStop::Files);
                    continue;
                }
                self.directory(&path, &real, &ignored, visit)?;
            } else if (kind.is_file() || self.query.is_complete) && self.query.admits(&path) && self.query.shows(&real)
            {
                visit(&path, &real)?;
            }
        }
        ControlFlow::Continue(())
    }
}

/// Returns the paths that the query admits.
pub(super) fn paths(dir: &Dir, query: &FileQuery, uses_ignore_files: bool) -> Result<FoundPaths, String> {
    let most = query.max.min(MAX_PATHS);
    let mut paths = vec![];
    let stop = walk(dir, query, uses_ignore_files, &mut |path, _| {
        if paths.len() >= most {
            return ControlFlow::Break(SearchStop::Results);
        }
        paths.push(path.to_owned());
        ControlFlow::Continue(())
    })?;
    paths.sort();
    Ok(FoundPaths {
        paths,
        stop,
        ..FoundPaths::default()
    })
}
