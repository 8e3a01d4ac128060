//! Tells when the files of the configuration have changed, and reads them again.
//!
//! Files are looked at now and then, by their times and sizes: that works on every file system, network mounts and
//! mounted secrets included. What is still being written is left alone until two looks in a row see the same.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use super::{CommandLineSettings, LoadedConfig, Problems, load_from};

/// How many files and folders are looked at.
const MOST: usize = 20_000;
/// How deep folders are followed.
const DEEPEST: usize = 16;

/// Where a configuration was read from.
#[derive(Debug, Clone, Default)]
pub struct WatchedFiles {
    /// What was taken for the working directory.
    pub directory: PathBuf,
    /// What the command line and the environment said.
    pub settings: CommandLineSettings,
    /// The files and folders that were read, whether they were there or not.
    pub roots: Vec<PathBuf>,
    /// The file or folder in which each agent is defined, by `graph_id`.
    pub definition_paths: BTreeMap<String, String>,
}

/// Looks at the files of a configuration.
#[derive(Debug)]
pub struct Watch {
    files: WatchedFiles,
    /// The files as they were last read; none before the first look, since they may have changed since they were read.
    read: Option<u64>,
    /// The files as the last look saw them, when they are not as they were read.
    changing: Option<u64>,
}

impl Watch {
    /// Watches these files.
    pub fn new(files: &WatchedFiles) -> Self {
        Self {
            files: files.clone(),
            read: None,
            changing: None,
        }
    }

    /// Reads the configuration again, if it has changed and is not being changed in this moment. The first time it always
    /// is read.
    pub fn poll(&mut self) -> Option<Result<LoadedConfig, Problems>> {
        let seen = stamp(&self.files.roots);
        if self.read == Some(seen) {
            self.changing = None;
            return None;
        }
        if self.changing.replace(seen) != Some(seen) {
            return None;
        }
        // What changes from here on is seen by the next look.
        (self.read, self.changing) = (Some(seen), None);
        let loaded = load_from(&self.files.directory, &self.files.settings);
        if let Ok(loaded) = &loaded {
            self.files = loaded.config.files.clone();
        }
        Some(loaded)
    }
}

/// A number that is another one when one of these files, or anything in one of these folders, has changed.
fn stamp(roots: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut left = MOST;
    for root in roots {
        add(&mut hasher, root, DEEPEST, &mut left);
    }
    hasher.finish()
}

fn add(hasher: &mut DefaultHasher, path: &Path, depth: usize, left: &mut usize) {
    if *left == 0 {
        return;
    }
    *left -= 1;
    path.hash(hasher);
    let Ok(about) = path.metadata() else { return };
    about.is_dir().hash(hasher);
    if !about.is_dir() {
        about.len().hash(hasher);
        about.modified().ok().hash(hasher);
    } else if depth > 0 {
        let mut entries: Vec<PathBuf> = path
            .read_dir()
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        entries.sort();
        entries.iter().for_each(|entry| add(hasher, entry, depth - 1, left));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ONE: &str = "[providers.scripted]\nkind = \"scripted\"\n[agents.a]\nmodel = \"scripted:x\"\n";

    fn agents(found: Option<Result<LoadedConfig, Problems>>) -> Option<Vec<String>> {
        found.map(|loaded| loaded.expect("a configuration").config.agents.into_keys().collect())
    }

    #[test]
    fn what_has_changed_is_read_once_it_rests() {
        let folder = tempfile::tempdir().expect("a directory");
        fs::write(folder.path().join("adjutant.toml"), ONE).expect("a file");
        let loaded = load_from(folder.path(), &CommandLineSettings::default()).expect("a configuration");
        assert_eq!(loaded.config.files.definition_paths["a"], "adjutant.toml");
        let mut watch = Watch::new(&loaded.config.files);
        assert_eq!(agents(watch.poll()), None);
        assert_eq!(agents(watch.poll()), Some(vec!["a".to_owned()]));
        assert_eq!(agents(watch.poll()), None);

        let writer = folder.path().join("agents/writer");
        fs::create_dir_all(&writer).expect("a folder");
        assert_eq!(agents(watch.poll()), None, "it may be in the middle of being written");
        fs::write(writer.join("AGENTS.md"), "---\nmodel: scripted:x\n---\nWrite.").expect("a file");
        assert_eq!(agents(watch.poll()), None);
        assert_eq!(agents(watch.poll()), Some(vec!["a".to_owned(), "writer".to_owned()]));

        fs::write(folder.path().join("adjutant.toml"), "[agents.").expect("a file");
        assert!(watch.poll().is_none());
        assert!(watch.poll().is_some_and(|loaded| loaded.is_err()));
        assert!(watch.poll().is_none(), "what is wrong is told once");
        fs::write(folder.path().join("adjutant.toml"), ONE).expect("a file");
        assert!(watch.poll().is_none());
        assert_eq!(agents(watch.poll()).map(|agents| agents.len()), Some(2));
    }
}
