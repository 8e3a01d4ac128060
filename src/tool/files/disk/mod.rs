//! A workspace on the disk of the server, below one directory.
//!
//! All access goes through a handle of that directory (`cap_std`), so that neither `..` nor a symbolic link leads out
//! of it, also not while another program changes the directories. Only regular files are opened, and without blocking.
//! The work is done on the threads for blocking work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use cap_std::ambient_authority;
use cap_std::fs::Dir;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::store::fill;
use super::workspace::{DirectoryEntries, FileAccess, FileQuery, FileWorkspace, FoundLines, FoundPaths};
use crate::domain::item::Namespace;
use crate::domain::item::template::NamespaceTemplate;
use crate::domain::state::{File, FileFacts, Update};
use crate::tool::scope::Scope;
use crate::tool::store::server_value;

mod change;
mod content;
mod ignored;
mod place;
mod search;
mod walk;

/// The searches that may run at the same time in this process; each may keep a processor and a disk busy.
static SEARCHES: Semaphore = Semaphore::const_new(4);

/// The beginning of the names of temporary files, which no operation shows.
const TEMPORARY: &str = ".adjutant-";

/// The files below a directory on the disk.
#[derive(Debug, Clone)]
pub struct DiskFiles {
    root: PathBuf,
    /// The directories below the root in which a run works; none for the root itself.
    namespace: Option<NamespaceTemplate>,
    /// True if searches leave out what `.gitignore` and `.ignore` name.
    uses_ignore_files: bool,
}

impl DiskFiles {
    /// Creates the workspace at `root`.
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            namespace: None,
            uses_ignore_files: true,
        }
    }

    /// Gives each run the directory below the root that it fills into the template.
    #[must_use]
    pub fn with_namespace(self, namespace: Option<NamespaceTemplate>) -> Self {
        Self { namespace, ..self }
    }

    /// Sets whether searches leave out what `.gitignore` and `.ignore` name.
    #[must_use]
    pub fn with_ignore_files(self, uses_ignore_files: bool) -> Self {
        Self {
            uses_ignore_files,
            ..self
        }
    }

    /// Returns the real path of the directory of the run, which is there afterwards.
    ///
    /// # Errors
    /// The text for the model.
    pub async fn directory(&self, scope: &Scope) -> Result<PathBuf, String> {
        let root = self.root.clone();
        let labels = self.labels(scope)?;
        let outside = || "Error: the workspace is not there; its directory leads out of its root".to_owned();
        self.work(scope, move |_| {
            let place = labels.as_ref().map(Namespace::labels).unwrap_or_default();
            let place = place.iter().fold(root.clone(), |place, label| place.join(label));
            let real = place.canonicalize().map_err(|_| outside())?;
            let real_root = root.canonicalize().map_err(|_| outside())?;
            // Someone may have put a link in its place.
            if real.starts_with(&real_root) {
                Ok(real)
            } else {
                Err(outside())
            }
        })
        .await
    }

    /// Returns the directories below the root in which a run works.
    fn labels(&self, scope: &Scope) -> Result<Option<Namespace>, String> {
        // Only what the server knows itself is filled in: a client could name the directory of another.
        let filled = self.namespace.as_ref();
        filled
            .map(|namespace| fill(namespace, |name| server_value(scope, name)))
            .transpose()
    }

    /// Does `work` in the directory of the run, on a thread for blocking work.
    async fn work<T: Send + 'static>(
        &self,
        scope: &Scope,
        work: impl FnOnce(&Dir) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let below = self.labels(scope)?;
        let root = self.root.clone();
        let done = spawn_blocking(move || {
            let labels = below.as_ref().map(Namespace::labels).unwrap_or_default();
            let dir = open(&root, labels)?;
            work(&dir)
        });
        done.await
            .unwrap_or_else(|_| Err("Error: the workspace failed; nothing is known about the outcome".to_owned()))
    }
}

/// Opens the directory below the root that these labels name.
fn open(root: &Path, labels: &[String]) -> Result<Dir, String> {
    let failed = |error: std::io::Error| {
        tracing::error!(%error, root = %root.display(), "the root of a workspace cannot be opened");
        "Error: the workspace is not there; its directory cannot be opened".to_owned()
    };
    let dir = Dir::open_ambient_dir(root, ambient_authority()).map_err(failed)?;
    if labels.is_empty() {
        return Ok(dir);
    }
    let path = labels.join("/");
    dir.create_dir_all(&path).map_err(failed)?;
    dir.open_dir(&path).map_err(failed)
}

/// Returns the name of a path for the handle of the root.
fn relative(path: &str) -> &str {
    match path.trim_start_matches('/') {
        "" => ".",
        rest => rest,
    }
}

#[async_trait]
impl FileWorkspace for DiskFiles {
    fn is_shared(&self, _: &str) -> bool {
        true
    }

    fn has_effects(&self) -> bool {
        true
    }

    async fn real_path(&self, access: FileAccess<'_>, path: &str, follows_last: bool) -> Result<String, String> {
        let path = path.to_owned();
        self.work(access.scope, move |dir| place::resolve(dir, &path, follows_last))
            .await
    }

    async fn is_missing(&self, access: FileAccess<'_>, path: &str) -> Result<bool, String> {
        let path = path.to_owned();
        self.work(access.scope, move |dir| walk::is_missing(dir, &path)).await
    }

    async fn list(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<DirectoryEntries, String> {
        let query = query.clone();
        self.work(access.scope, move |dir| walk::list(dir, &query)).await
    }

    async fn paths(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<FoundPaths, String> {
        let turn = turn(query).await?;
        let query = query.clone();
        let uses_ignore_files = self.uses_ignore_files;
        self.work(access.scope, move |dir| {
            // Held until the search has ended, also when its caller has gone.
            let _turn = turn;
            walk::paths(dir, &query, uses_ignore_files)
        })
        .await
    }

    async fn facts(&self, access: FileAccess<'_>, paths: &[String]) -> Result<BTreeMap<String, FileFacts>, String> {
        let paths = paths.to_vec();
        self.work(access.scope, move |dir| Ok(content::facts(dir, &paths)))
            .await
    }

    async fn read(&self, access: FileAccess<'_>, path: &str) -> Result<Option<Arc<File>>, String> {
        let path = path.to_owned();
        let max = access.scope.sizes.file;
        let file = self
            .work(access.scope, move |dir| content::read(dir, &path, max))
            .await?;
        Ok(file.map(Arc::new))
    }

    async fn write(
        &self,
        access: FileAccess<'_>,
        path: &str,
        file: File,
        before: Option<&File>,
    ) -> Result<Update, String> {
        let change = change::Change {
            path: path.to_owned(),
            file,
            before: before.cloned(),
            task: access.scope.task,
            max_bytes: access.scope.sizes.file,
            least_free: None,
        };
        self.work(access.scope, move |dir| change.write(dir)).await?;
        Ok(Update::none())
    }

    async fn delete(
        &self,
        access: FileAccess<'_>,
        path: &str,
        files: Vec<String>,
        before: Option<&File>,
    ) -> Result<Option<Update>, String> {
        let deletion = change::Deletion {
            path: path.to_owned(),
            files,
            before: before.cloned(),
            max_bytes: access.scope.sizes.file,
        };
        let was_there = self.work(access.scope, move |dir| deletion.delete(dir)).await?;
        Ok(was_there.then(Update::none))
    }

    async fn grep(&self, access: FileAccess<'_>, query: &FileQuery, text: &str) -> Result<FoundLines, String> {
        let turn = turn(query).await?;
        let query = query.clone();
        let text = text.to_owned();
        let uses_ignore_files = self.uses_ignore_files;
        self.work(access.scope, move |dir| {
            let _turn = turn;
            search::grep(dir, &query, &text, uses_ignore_files)
        })
        .await
    }
}

/// Waits until fewer searches are running, but not longer than the search may take.
async fn turn(query: &FileQuery) -> Result<tokio::sync::SemaphorePermit<'static>, String> {
    let busy = "Error: too many searches are running at the moment; try again later".to_owned();
    match tokio::time::timeout_at(query.deadline(), SEARCHES.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => Err(busy),
    }
}
