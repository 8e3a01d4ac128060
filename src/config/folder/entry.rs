//! A file or folder with its path for messages.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::config::problem::Problem;
use crate::definition::Severity;

/// The maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A file or folder below the folder of all agents.
#[derive(Debug, Clone)]
pub(super) struct FolderEntry {
    pub(super) real: PathBuf,
    pub(super) display_path: PathBuf,
    /// The folder that links must not leave; none if it cannot be determined.
    root: Option<PathBuf>,
}

impl FolderEntry {
    /// Creates the entry of the folder of all agents.
    pub(super) fn root(real: &Path, display_path: &Path) -> Self {
        let root = real.canonicalize().ok();
        Self {
            real: real.to_path_buf(),
            display_path: display_path.to_path_buf(),
            root,
        }
    }

    pub(super) fn join(&self, name: &str) -> Self {
        Self {
            real: self.real.join(name),
            display_path: self.display_path.join(name),
            root: self.root.clone(),
        }
    }

    pub(super) fn name(&self) -> String {
        self.display_path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    pub(super) fn stem(&self) -> String {
        self.display_path
            .file_stem()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    pub(super) fn problem(&self, message: impl Into<String>) -> Problem {
        Problem::in_file(self.to_string(), message)
    }

    pub(super) fn warning(&self, message: impl Into<String>) -> Problem {
        Problem {
            severity: Severity::Warning,
            ..self.problem(message)
        }
    }

    fn unreadable(&self, error: &std::io::Error) -> Problem {
        self.problem(format!("cannot be read: {error}"))
    }

    /// Checks that links on the path stay within the folder of all agents.
    pub(super) fn check_within_root(&self) -> Result<(), Problem> {
        let end = match self.real.canonicalize() {
            Ok(end) => end,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(self.problem("is a link that leads nowhere"));
            }
            Err(error) => return Err(self.unreadable(&error)),
        };
        match &self.root {
            Some(root) if !end.starts_with(root) => {
                Err(self.problem("leads out of the folder of the agents and is not followed"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the entries of a folder, in the order of the names.
    pub(super) fn entries(&self) -> Result<Vec<Self>, Problem> {
        let entries = self.real.read_dir().map_err(|error| self.unreadable(&error))?;
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names.iter().map(|name| self.join(name)).collect())
    }

    /// Reads the text of a file.
    pub(super) fn text(&self) -> Result<String, Problem> {
        self.check_within_root()?;
        // Reading anything else, such as a pipe, might never end.
        if !self.real.is_file() {
            return Err(self.problem("must be a file"));
        }
        let mut text = String::new();
        let file = std::fs::File::open(&self.real).map_err(|error| self.unreadable(&error))?;
        file.take(MAX_FILE_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| self.unreadable(&error))?;
        if u64::try_from(text.len()).is_ok_and(|length| length > MAX_FILE_BYTES) {
            return Err(self.problem(format!("has more than {MAX_FILE_BYTES} bytes")));
        }
        Ok(text)
    }
}

impl std::fmt::Display for FolderEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.display_path.display().fmt(f)
    }
}
