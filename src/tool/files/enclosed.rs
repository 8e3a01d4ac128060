//! The files of the thread together with those that belong to the agent's definition.

use std::sync::Arc;

use async_trait::async_trait;

use super::{StateFiles, Workspace};
use crate::definition::Enclosed;
use crate::definition::enclosed::{FOLDER, is_enclosed};
use crate::domain::path::below;
use crate::domain::state::{File, State, Update};

/// The files of the thread, and in a folder of their own those of the definition, which nobody changes.
///
/// A search that begins further out does not go into that folder: it is for what the agent is told to look up there.
#[derive(Debug, Clone)]
pub struct WithEnclosed {
    enclosed: Arc<Enclosed>,
    /// Where in the files of the thread it reaches; everywhere when none.
    within: Option<Vec<String>>,
}

impl WithEnclosed {
    /// All files of the thread, and these of the definition.
    pub fn new(enclosed: Arc<Enclosed>) -> Self {
        Self { enclosed, within: None }
    }

    /// The files of the thread at and below these absolute paths, and these of the definition.
    pub fn within(enclosed: Arc<Enclosed>, paths: Vec<String>) -> Self {
        Self {
            enclosed,
            within: Some(paths),
        }
    }

    fn reaches(&self, path: &str) -> bool {
        let inside = |folder: &String| path == folder || below(path, folder).is_some();
        self.within.as_ref().is_none_or(|folders| folders.iter().any(inside))
    }
}

/// What is said to who would change a file of the definition.
fn refusal(path: &str) -> String {
    format!("Error: '{path}' cannot be changed: what lies in {FOLDER} belongs to your definition and is read-only")
}

#[async_trait]
impl Workspace for WithEnclosed {
    async fn paths(&self, state: &State, path: &str) -> Result<Vec<String>, String> {
        let seen = self
            .enclosed
            .paths(state, path)
            .filter(|path| is_enclosed(path) || self.reaches(path));
        Ok(seen.cloned().collect())
    }

    async fn read(&self, state: &State, path: &str) -> Result<Option<Arc<File>>, String> {
        let is_seen = is_enclosed(path) || self.reaches(path);
        Ok(self.enclosed.file(state, path).filter(|_| is_seen).cloned())
    }

    async fn write(&self, path: &str, file: File) -> Result<Update, String> {
        if is_enclosed(path) {
            Err(refusal(path))
        } else {
            StateFiles.write(path, file).await
        }
    }

    async fn delete(&self, paths: Vec<String>) -> Result<Update, String> {
        match paths.iter().find(|path| is_enclosed(path)) {
            Some(path) => Err(refusal(path)),
            None => StateFiles.delete(paths).await,
        }
    }
}
