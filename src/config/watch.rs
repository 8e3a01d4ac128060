//! Watches the files of the configuration and reads them again when they change.
//!
//! Files are polled by their modification times and sizes. That works on every file system, including network mounts
//! and mounted secrets. A change is read only when two polls in a row see the same files, so that files are not read
//! while they are being written.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use super::{CommandLineSettings, LoadedConfig, Problems, load_from};

/// The maximum number of files and folders that are watched.
const MAX_ENTRIES: usize = 20_000;
/// The maximum depth of watched folders.
const MAX_DEPTH: usize = 16;

/// The sources of a configuration.
#[derive(Debug, Clone, Default)]
pub struct WatchedFiles {
    /// The folder that counts as the working directory.
    pub directory: PathBuf,
    /// The settings from the command line and the environment.
    pub settings: CommandLineSettings,
    /// The files and folders that were read, whether they existed or not.
    pub roots: Vec<PathBuf>,
    /// The file or folder that defines each agent, by `graph_id`.
    pub definition_paths: BTreeMap<String, String>,
}

impl WatchedFiles {
    /// Returns the folder of the configuration file, whether the file exists or not.
    pub fn folder(&self) -> &Path {
        let file = self.roots.first();
        file.and_then(|file| file.parent()).unwrap_or(&self.directory)
    }
}

/// A watch on the files of a configuration.
#[derive(Debug)]
pub struct Watch {
    files: WatchedFiles,
    /// The fingerprint of the files when they were last read; none before the first poll, since they may have changed
    /// since they were read.
    read: Option<u64>,
    /// The fingerprint at the last poll, if it differs from `read`.
    changing: Option<u64>,
}

impl Watch {
    /// Creates a watch on these files.
    pub fn new(files: &WatchedFiles) -> Self {
        Self {
            files: files.clone(),
            read: None,
            changing: None,
        }
    }

    /// Reads the configuration again, if it has changed and is stable. The first call always reads it.
    pub fn poll(&mut self) -> Option<Result<LoadedConfig, Problems>> {
        let seen = fingerprint(&self.files.roots);
        if self.read == Some(seen) {
            self.changing = None;
            return None;
        }
        if self.changing.replace(seen) != Some(seen) {
            return None;
        }
        // A change after this point is seen by the next poll.
        self.read = Some(seen);
        self.changing = None;
        let loaded = load_from(&self.files.directory, &self.files.settings);
        if let Ok(loaded) = &loaded {
            self.files = loaded.config.files.clone();
        }
        Some(loaded)
    }

    /// Reads the configuration again as at first, whether it changes or not.
    pub fn read_again(&mut self) {
        self.read = None;
    }
}

/// Returns a fingerprint that changes when one of these files, or anything in one of these folders, changes.
fn fingerprint(roots: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut left = MAX_ENTRIES;
    for root in roots {
        add(&mut hasher, root, MAX_DEPTH, &mut left);
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
    fn changed_files_are_read_once_they_are_stable() {
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
        assert!(watch.poll().is_none());

        watch.read_again();
        assert!(watch.poll().is_none());
        assert_eq!(agents(watch.poll()).map(|agents| agents.len()), Some(2));
        assert!(watch.poll().is_none());
    }
}
