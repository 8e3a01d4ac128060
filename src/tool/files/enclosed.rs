//! A workspace with the files of the thread and the read-only files of the agent's definition.

use std::sync::Arc;

use async_trait::async_trait;

use super::{FileWorkspace, StateFiles};
use crate::definition::BundledFiles;
use crate::definition::enclosed::{FOLDER, is_bundled};
use crate::domain::path::below;
use crate::domain::state::{File, State, Update};

/// The files of the thread and, in a folder of their own, the read-only files of the definition.
///
/// A search from a directory above that folder does not enter it.
#[derive(Debug, Clone)]
pub struct WithEnclosed {
    enclosed: Arc<BundledFiles>,
    /// The visible paths among the files of the thread; `None` means all.
    within: Option<Vec<String>>,
}

impl WithEnclosed {
    /// Combines all files of the thread with these of the definition.
    pub fn new(enclosed: Arc<BundledFiles>) -> Self {
        Self { enclosed, within: None }
    }

    /// Combines the files of the thread at and below these absolute paths with these of the definition.
    pub fn within(enclosed: Arc<BundledFiles>, paths: Vec<String>) -> Self {
        Self {
            enclosed,
            within: Some(paths),
        }
    }

    fn is_visible(&self, path: &str) -> bool {
        let is_inside = |folder: &String| path == folder || below(path, folder).is_some();
        self.within.as_ref().is_none_or(|folders| folders.iter().any(is_inside))
    }
}

/// Returns the error for an attempt to change a file of the definition.
fn read_only_error(path: &str) -> String {
    format!("Error: '{path}' cannot be changed: what lies in {FOLDER} belongs to your definition and is read-only")
}

#[async_trait]
impl FileWorkspace for WithEnclosed {
    async fn paths(&self, state: &State, path: &str) -> Result<Vec<String>, String> {
        let visible = self
            .enclosed
            .paths(state, path)
            .filter(|path| is_bundled(path) || self.is_visible(path));
        Ok(visible.cloned().collect())
    }

    async fn read(&self, state: &State, path: &str) -> Result<Option<Arc<File>>, String> {
        let is_visible = is_bundled(path) || self.is_visible(path);
        Ok(self.enclosed.file(state, path).filter(|_| is_visible).cloned())
    }

    async fn write(&self, path: &str, file: File) -> Result<Update, String> {
        if is_bundled(path) {
            Err(read_only_error(path))
        } else {
            StateFiles.write(path, file).await
        }
    }

    async fn delete(&self, paths: Vec<String>) -> Result<Update, String> {
        match paths.iter().find(|path| is_bundled(path)) {
            Some(path) => Err(read_only_error(path)),
            None => StateFiles.delete(paths).await,
        }
    }
}
