//! A workspace with the read-only files of the agent's definition.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::workspace::{DirectoryEntries, FileAccess, FileQuery, FileWorkspace, FoundLines, FoundPaths};
use crate::definition::BundledFiles;
use crate::definition::bundled_files::{FOLDER, is_bundled};
use crate::domain::path::below;
use crate::domain::state::{File, FileFacts, Update};

/// The files of a workspace and, in a folder of their own, the read-only files of the definition.
///
/// A search from a directory above that folder does not enter it.
#[derive(Clone)]
pub struct WithEnclosed {
    enclosed: Arc<BundledFiles>,
    workspace: Arc<dyn FileWorkspace>,
    /// The visible paths among the files of the workspace; `None` means all.
    within: Option<Vec<String>>,
}

impl WithEnclosed {
    /// Combines all files of the workspace with these of the definition.
    pub fn new(enclosed: Arc<BundledFiles>, workspace: Arc<dyn FileWorkspace>) -> Self {
        Self {
            enclosed,
            workspace,
            within: None,
        }
    }

    /// Shows the files of the workspace at and below these absolute paths only.
    #[must_use]
    pub fn within(self, paths: Vec<String>) -> Self {
        Self {
            within: Some(paths),
            ..self
        }
    }

    fn is_visible(&self, path: &str) -> bool {
        let is_inside = |folder: &String| path == folder || below(path, folder).is_some();
        self.within.as_ref().is_none_or(|folders| folders.iter().any(is_inside))
    }

    fn shows(&self, path: &str) -> bool {
        !is_bundled(path) && self.is_visible(path)
    }
}

/// Returns the error for an attempt to change a file of the definition.
fn read_only_error(path: &str) -> String {
    format!("Error: '{path}' cannot be changed: what lies in {FOLDER} belongs to your definition and is read-only")
}

#[async_trait]
impl FileWorkspace for WithEnclosed {
    fn is_shared(&self, path: &str) -> bool {
        !is_bundled(path) && self.workspace.is_shared(path)
    }

    fn has_effects(&self) -> bool {
        self.workspace.has_effects()
    }

    async fn real_path(&self, access: FileAccess<'_>, path: &str, follows_last: bool) -> Result<String, String> {
        if is_bundled(path) {
            return Ok(path.to_owned());
        }
        self.workspace.real_path(access, path, follows_last).await
    }

    async fn is_missing(&self, access: FileAccess<'_>, path: &str) -> Result<bool, String> {
        // What the agent may not see is not told apart from what is not there.
        if is_bundled(path) || !self.is_visible(path) {
            return Ok(false);
        }
        self.workspace.is_missing(access, path).await
    }

    async fn list(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<DirectoryEntries, String> {
        if !is_bundled(&query.at) {
            let mut found = self.workspace.list(access, query).await?;
            found.entries.retain(|entry| self.shows(entry.trim_end_matches('/')));
            return Ok(found);
        }
        let found = self.paths(access, query).await?;
        Ok(found.entries_of(&query.at))
    }

    async fn paths(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<FoundPaths, String> {
        if !is_bundled(&query.at) {
            let mut found = self.workspace.paths(access, query).await?;
            found.paths.retain(|path| self.shows(path));
            return Ok(found);
        }
        let is_inside = |path: &&String| **path == query.at || below(path, &query.at).is_some();
        let files = self.enclosed.all_paths().filter(is_inside);
        Ok(FoundPaths {
            paths: files.filter(|path| query.admits(path)).cloned().collect(),
            ..FoundPaths::default()
        })
    }

    async fn facts(&self, access: FileAccess<'_>, paths: &[String]) -> Result<BTreeMap<String, FileFacts>, String> {
        let others: Vec<String> = paths.iter().filter(|path| self.shows(path)).cloned().collect();
        let mut all = self.workspace.facts(access, &others).await?;
        let enclosed = paths.iter().filter(|path| is_bundled(path));
        all.extend(enclosed.filter_map(|path| Some((path.clone(), self.enclosed.get(path)?.facts()))));
        Ok(all)
    }

    async fn read(&self, access: FileAccess<'_>, path: &str) -> Result<Option<Arc<File>>, String> {
        if is_bundled(path) {
            return Ok(self.enclosed.get(path).cloned());
        }
        if self.is_visible(path) {
            self.workspace.read(access, path).await
        } else {
            Ok(None)
        }
    }

    async fn write(
        &self,
        access: FileAccess<'_>,
        path: &str,
        file: File,
        before: Option<&File>,
    ) -> Result<Update, String> {
        if is_bundled(path) {
            return Err(read_only_error(path));
        }
        self.workspace.write(access, path, file, before).await
    }

    async fn delete(
        &self,
        access: FileAccess<'_>,
        path: &str,
        files: Vec<String>,
        before: Option<&File>,
    ) -> Result<Option<Update>, String> {
        match files.iter().find(|path| is_bundled(path)) {
            Some(path) => Err(read_only_error(path)),
            None => self.workspace.delete(access, path, files, before).await,
        }
    }

    async fn grep(&self, access: FileAccess<'_>, query: &FileQuery, text: &str) -> Result<FoundLines, String> {
        if is_bundled(&query.at) {
            return self.grep_enclosed(access, query, text).await;
        }
        let mut found = self.workspace.grep(access, query, text).await?;
        found.files.retain(|file| self.shows(&file.path));
        found.cut_short.retain(|path| self.shows(path));
        Ok(found)
    }
}

impl WithEnclosed {
    /// Searches the files of the definition.
    async fn grep_enclosed(&self, access: FileAccess<'_>, query: &FileQuery, text: &str) -> Result<FoundLines, String> {
        let mut lines = FoundLines::default();
        for path in self.paths(access, query).await?.paths {
            let Some(file) = self.enclosed.get(&path) else { continue };
            if !lines.take(&path, file, text, query.max) {
                break;
            }
        }
        Ok(lines)
    }
}
