//! The real places of paths, behind symbolic links.

use std::io::ErrorKind;
use std::path::{Component, Path};

use cap_std::fs::Dir;

use super::relative;

/// Returns the text for the model about a path that cannot be reached.
pub(super) fn error_text(path: &str, error: &std::io::Error) -> String {
    let kind = error.kind();
    if kind == ErrorKind::PermissionDenied {
        return format!(
            "Error: '{path}' cannot be reached: it leads out of the workspace, or the server has no access to it"
        );
    }
    if kind == ErrorKind::NotADirectory {
        return format!("Error: '{path}' cannot be reached: a part of it is a file");
    }
    if [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&kind) {
        return format!("Error: '{path}' was not written: there is no space left. Nothing was changed.");
    }
    if kind == ErrorKind::InvalidFilename {
        return format!("Error: '{path}' is too long for a path");
    }
    format!("Error: '{path}' cannot be reached: {kind}")
}

/// Returns whether an error says that nothing is at a path.
pub(super) fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns the path as agents see it, of a path that is relative to the root. None if its name is not text.
fn outer(path: &Path) -> Option<String> {
    let mut outer = String::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => {
                outer.push('/');
                outer.push_str(name.to_str()?);
            }
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(if outer.is_empty() { "/".to_owned() } else { outer })
}

/// Returns the path to which symbolic links lead. What does not exist is where its directory is.
///
/// # Errors
/// The text for the model, if a link leads out of the workspace or nowhere.
pub(super) fn resolve(dir: &Dir, path: &str, follows_last: bool) -> Result<String, String> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    if name.is_empty() {
        return Ok("/".to_owned());
    }
    if follows_last {
        match dir.canonicalize(relative(path)) {
            Ok(real) => {
                return outer(&real).ok_or_else(|| format!("Error: '{path}' leads to a name that is not text"));
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error_text(path, &error)),
        }
        let is_link = dir
            .symlink_metadata(relative(path))
            .is_ok_and(|found| found.is_symlink());
        if is_link {
            return Err(format!("Error: '{path}' is a symbolic link that leads nowhere"));
        }
    }
    let parent = if parent.is_empty() { "/" } else { parent };
    let real = resolve(dir, parent, true)?;
    Ok(format!("{}/{name}", real.trim_end_matches('/')))
}
