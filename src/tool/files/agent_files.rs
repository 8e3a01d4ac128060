//! The files of an agent, for the tools that read them while it works.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::StateFiles;
use super::workspace::{FileAccess, FileQuery, FileWorkspace, FoundPaths, SearchStop};
use crate::definition::{FileOperation, FileRules};
use crate::domain::read_access::ReadableFiles;
use crate::domain::state::{File, FileFacts};

/// The maximum number of files in a list.
const MAX_LISTED: usize = 10_000;

/// The files of an agent as its own file tools see them, with its permissions. What a human has to approve is refused,
/// since nobody is asked about the reads of a tool. Cheap to clone.
#[derive(Clone)]
pub struct AgentFiles {
    workspace: Arc<dyn FileWorkspace>,
    rules: FileRules,
}

/// The reason why files of an agent cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileRefusal {
    /// The file at this path, as the workspace names it behind links, is not among those that the tool may read.
    NotReadable(String),
    /// The permissions of the agent refuse it, for this reason.
    Forbidden(String),
    /// The workspace refuses it or has failed, for this reason.
    Failed(String),
}

/// The files in the state of the thread, without rules: those of an agent that has no workspace.
impl Default for AgentFiles {
    fn default() -> Self {
        Self::new(Arc::new(StateFiles), &FileRules::default())
    }
}

/// Returns a text for the model as a reason.
fn reason(text: &str) -> String {
    let text = text.strip_prefix("Error: ").unwrap_or(text);
    text.trim_end_matches('.').to_owned()
}

fn failed(text: String) -> FileRefusal {
    FileRefusal::Failed(reason(&text))
}

impl AgentFiles {
    /// Creates the files in a workspace, for an agent with these permissions.
    pub fn new(workspace: Arc<dyn FileWorkspace>, rules: &FileRules) -> Self {
        Self {
            workspace,
            rules: rules.unattended(),
        }
    }

    /// Returns the paths of the readable files, sorted, with the sizes that the search came to know. If there are too many
    /// to be looked at, some are left out.
    ///
    /// # Errors
    /// [`FileRefusal::Failed`].
    pub async fn paths(
        &self,
        access: FileAccess<'_>,
        readable: &Arc<ReadableFiles>,
    ) -> Result<FoundPaths, FileRefusal> {
        let query = FileQuery::new("/", &self.rules).among(Arc::clone(readable));
        let mut paths = BTreeSet::new();
        let mut sizes = BTreeMap::new();
        let mut stop = None;
        for root in readable.roots() {
            if paths.len() > MAX_LISTED || query.is_over() {
                stop = Some(SearchStop::Files);
                break;
            }
            let found = self.workspace.paths(access, &query.from_path(root)).await;
            let found = found.map_err(failed)?;
            stop = stop.or(found.stop);
            paths.extend(found.paths);
            sizes.extend(found.sizes);
        }
        Ok(FoundPaths {
            sizes,
            ..FoundPaths::first(paths.into_iter().collect(), MAX_LISTED, stop)
        })
    }

    /// Returns what is known of files without reading them, by path. `sizes` are those of the search that found them.
    ///
    /// # Errors
    /// [`FileRefusal::Failed`].
    pub async fn facts(
        &self,
        access: FileAccess<'_>,
        paths: &[String],
        sizes: &BTreeMap<String, u64>,
    ) -> Result<BTreeMap<String, FileFacts>, FileRefusal> {
        let mut known = self.workspace.facts(access, paths).await.map_err(failed)?;
        for path in paths {
            if let Some(size) = sizes.get(path) {
                known.entry(path.clone()).or_default().size.get_or_insert(*size);
            }
        }
        Ok(known)
    }

    /// Returns the file at a normalised path, if there is one. A symbolic link is followed only to what is readable
    /// itself.
    ///
    /// # Errors
    /// Any [`FileRefusal`].
    pub async fn read(
        &self,
        access: FileAccess<'_>,
        path: &str,
        readable: &ReadableFiles,
    ) -> Result<Option<Arc<File>>, FileRefusal> {
        self.check(path, readable)?;
        let real = self.workspace.real_path(access, path, true).await.map_err(failed)?;
        if real != path {
            self.check(&real, readable)?;
        }
        self.workspace.read(access, path).await.map_err(failed)
    }

    fn check(&self, path: &str, readable: &ReadableFiles) -> Result<(), FileRefusal> {
        if !readable.has(path) {
            return Err(FileRefusal::NotReadable(path.to_owned()));
        }
        let permitted = self.rules.check(FileOperation::Read, path);
        permitted.map_err(|text| FileRefusal::Forbidden(reason(&text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Permission;
    use crate::domain::read_access::ReadAccess;
    use crate::domain::state::State;
    use crate::domain::time::Timestamp;
    use crate::tool::scope::Scope;

    fn readable(files: &[&str]) -> Arc<ReadableFiles> {
        let access = ReadAccess {
            files: files.iter().map(|file| (*file).to_owned()).collect(),
            ..ReadAccess::default()
        };
        Arc::new(access.readable_files())
    }

    fn state(paths: impl IntoIterator<Item = String>) -> State {
        let file = |path: String| (path, Arc::new(File::text("text", Timestamp(0))));
        State {
            files: paths.into_iter().map(file).collect(),
            ..State::default()
        }
    }

    #[tokio::test]
    async fn only_what_the_tool_declares_and_the_agent_may_read_is_listed_and_read() {
        let permissions: Vec<Permission> = serde_json::from_value(serde_json::json!([
            {"operations": ["read"], "paths": ["/reports/secret/**"], "mode": "deny"},
            {"operations": ["read"], "paths": ["/reports/ask/**"], "mode": "interrupt"},
        ]))
        .expect("rules");
        let files = AgentFiles::new(Arc::new(StateFiles), &FileRules::new(&permissions));
        let paths = [
            "/reports/a.md",
            "/reports/secret/b.md",
            "/reports/ask/c.md",
            "/other.md",
        ];
        let state = state(paths.map(str::to_owned));
        let scope = Scope::sample(Timestamp(0));
        let access = FileAccess {
            scope: &scope,
            state: &state,
        };
        let readable = readable(&["/reports/**", "/none.md"]);
        let listed = files.paths(access, &readable).await.expect("a list");
        assert_eq!(listed.paths, ["/reports/a.md"]);
        assert_eq!(listed.stop, None);
        let facts = files.facts(access, &listed.paths, &listed.sizes).await.expect("facts");
        assert_eq!(facts["/reports/a.md"].size, Some(4));
        assert!(
            files
                .read(access, "/reports/a.md", &readable)
                .await
                .is_ok_and(|file| file.is_some())
        );
        assert_eq!(files.read(access, "/none.md", &readable).await, Ok(None));
        let refused = files.read(access, "/other.md", &readable).await;
        assert_eq!(refused, Err(FileRefusal::NotReadable("/other.md".to_owned())));
        for (path, fact) in [
            ("/reports/secret/b.md", "you may not read"),
            ("/reports/ask/c.md", "a human has to approve"),
        ] {
            let refused = files.read(access, path, &readable).await;
            assert!(
                matches!(&refused, Err(FileRefusal::Forbidden(text)) if text.contains(fact)),
                "{refused:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_list_has_a_limit_and_says_so() {
        let all = (0..=MAX_LISTED).map(|number| format!("/many/{number:05}"));
        let state = state(all.chain(["/more".to_owned()]));
        let scope = Scope::sample(Timestamp(0));
        let access = FileAccess {
            scope: &scope,
            state: &state,
        };
        let listed = AgentFiles::default()
            .paths(access, &readable(&["/many/**", "/more"]))
            .await;
        let listed = listed.expect("a list");
        assert_eq!(listed.paths.len(), MAX_LISTED);
        assert_eq!(listed.stop, Some(SearchStop::Results));
        assert_eq!(listed.paths[0], "/many/00000");
    }
}
