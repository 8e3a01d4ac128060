//! Files beside a definition that belong to it: its skills and its memory.
//!
//! The files are read with the definition and stored as a part of its content. So a run uses the files with which it
//! began, on every server, even if the files on the disk change. The work of an agent never changes the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::domain::path::below;
pub use crate::domain::path::{FOLDER, is_bundled};
use crate::domain::state::File;

/// The maximum size of a file, in bytes.
pub const LARGEST_FILE: u64 = 1024 * 1024;
/// The maximum size of all files of a definition, in bytes.
pub const LARGEST: u64 = 4 * 1024 * 1024;
/// The maximum number of files of a definition.
pub const MOST: usize = 500;

/// The files of a definition, by the absolute path at which agents see them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BundledFiles(BTreeMap<String, Arc<File>>);

impl BundledFiles {
    /// Adds the file at this path relative to the definition's folder.
    pub fn add(&mut self, relative: &str, file: File) {
        self.0.insert(agent_path(relative), Arc::new(file));
    }

    /// Returns whether there are no files.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of files.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the size of all files as they are stored, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0
            .values()
            .map(|file| u64::try_from(file.content.len()).unwrap_or(u64::MAX))
            .sum()
    }

    /// Returns whether there is a file at an absolute path.
    pub fn contains(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// Returns the absolute paths of the files, in their order.
    pub fn all_paths(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Returns the file at an absolute path.
    pub fn get(&self, path: &str) -> Option<&Arc<File>> {
        self.0.get(path)
    }

    /// Returns a hash of these absolute paths, and of the files at and below them.
    pub fn fingerprint<'a>(&self, paths: impl IntoIterator<Item = &'a str>) -> String {
        let paths: Vec<&str> = paths.into_iter().collect();
        let mut hash = Sha256::new();
        paths
            .iter()
            .for_each(|path| hash.update(format!("{}:{path}", path.len())));
        for (path, file) in self.only(paths).0 {
            let content = file.content.text();
            hash.update(format!("{}:{path}{}:{content}", path.len(), content.len()));
        }
        hex::encode(&hash.finalize()[..16])
    }

    /// Returns the files at and below these absolute paths.
    #[must_use]
    pub fn only<'a>(&self, paths: impl IntoIterator<Item = &'a str>) -> Self {
        let paths: Vec<&str> = paths.into_iter().collect();
        let wanted = |path: &String| {
            paths
                .iter()
                .any(|wanted| path == wanted || below(path, wanted).is_some())
        };
        Self(
            self.0
                .iter()
                .filter(|(path, _)| wanted(path))
                .map(|(path, file)| (path.clone(), Arc::clone(file)))
                .collect(),
        )
    }
}

/// Returns the path at which agents see a file: a path that begins with `/` is in the thread's files, any other
/// relative to the definition's folder.
pub fn agent_path(named: &str) -> String {
    let clean: Vec<&str> = named
        .split(['/', '\\'])
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    let folder = if named.starts_with('/') { "" } else { FOLDER };
    format!("{folder}/{}", clean.join("/"))
}

/// Returns whether a path in a definition is relative to its folder.
pub fn is_relative(named: &str) -> bool {
    !named.starts_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_relative_is_seen_in_the_folder_of_the_agent() {
        for (named, at) in [
            ("skills", "/.agent/skills"),
            ("./a//b/", "/.agent/a/b"),
            ("/skills/base/", "/skills/base"),
            ("/", "/"),
        ] {
            assert_eq!(agent_path(named), at);
        }
    }

    #[test]
    fn an_agent_sees_only_its_own_files() {
        let mut all = BundledFiles::default();
        for path in ["skills/a/SKILL.md", "skills-b/c/SKILL.md", "AGENTS.md"] {
            all.add(
                path,
                File {
                    content: path.into(),
                    ..File::default()
                },
            );
        }
        let own = all.only(["/.agent/skills", "/.agent/AGENTS.md"]);
        let paths: Vec<&String> = own.all_paths().collect();
        assert_eq!(paths, ["/.agent/AGENTS.md", "/.agent/skills/a/SKILL.md"]);
        assert_eq!(own.len(), 2);
        assert_eq!(own.bytes(), 26);
        assert_eq!(own.fingerprint(["/.agent/skills"]), all.fingerprint(["/.agent/skills"]));
        assert_ne!(all.fingerprint(["/.agent"]), own.fingerprint(["/.agent"]));
        assert_ne!(all.fingerprint(["/a"]), all.fingerprint(["/b"]));
    }
}
