//! A workspace in the state of the thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::workspace::{FileAccess, FileQuery, FileWorkspace, FoundPaths};
use crate::domain::path::below;
use crate::domain::state::{File, FileFacts, Update};

/// The files in the state of the thread, shared with subagents. Directories exist only through the files in them.
#[derive(Debug, Clone, Copy, Default)]
pub struct StateFiles;

#[async_trait]
impl FileWorkspace for StateFiles {
    async fn paths(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<FoundPaths, String> {
        let is_inside = |file: &&String| **file == query.at || below(file, &query.at).is_some();
        let files = access.state.files.keys().filter(is_inside);
        Ok(query.admitted(files.cloned().collect(), None).await)
    }

    async fn facts(&self, access: FileAccess<'_>, paths: &[String]) -> Result<BTreeMap<String, FileFacts>, String> {
        let known = |path: &String| Some((path.clone(), access.state.files.get(path)?.facts()));
        Ok(paths.iter().filter_map(known).collect())
    }

    async fn read(&self, access: FileAccess<'_>, path: &str) -> Result<Option<Arc<File>>, String> {
        Ok(access.state.files.get(path).cloned())
    }

    async fn write(&self, access: FileAccess<'_>, path: &str, file: File, _: Option<&File>) -> Result<Update, String> {
        access.scope.files.claim(path)?;
        Ok(Update {
            files: [(path.to_owned(), Some(Arc::new(file)))].into(),
            ..Update::none()
        })
    }

    async fn delete(
        &self,
        access: FileAccess<'_>,
        path: &str,
        files: Vec<String>,
        _: Option<&File>,
    ) -> Result<Option<Update>, String> {
        if files.is_empty() {
            return Ok(None);
        }
        access.scope.files.claim(path)?;
        Ok(Some(Update {
            files: files.into_iter().map(|path| (path, None)).collect(),
            ..Update::none()
        }))
    }
}
