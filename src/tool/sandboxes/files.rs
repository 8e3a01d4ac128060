//! A workspace in a sandbox of a sandbox service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::header::{DATE, HeaderMap, HeaderName, LAST_MODIFIED};
use tokio::time::timeout_at;

use super::SandboxPlace;
use super::client::{
    EntryKind, EntryQuery, FileBody, MAX_SEARCHED, SandboxEntries, SandboxEntry, SandboxError, SandboxMatch,
};
use crate::domain::id::SandboxId;
use crate::domain::path::{below, normalise};
use crate::domain::state::{Encoding, File, Update};
use crate::domain::time::Timestamp;
use crate::tool::files::{
    DirectoryEntries, FileAccess, FileMatches, FileQuery, FileWorkspace, FoundLines, FoundPaths, MAX_LINE_CHARS,
    SearchStop, conflict, shortened,
};

/// The maximum number of entries of one list.
const MAX_ENTRIES: usize = 10_000;

/// The files in the sandbox of an agent.
#[derive(Clone)]
pub struct SandboxFiles(SandboxPlace);

impl SandboxFiles {
    /// Creates the workspace of an agent with its sandbox at this place.
    pub fn new(place: SandboxPlace) -> Self {
        Self(place)
    }

    /// Returns the sandbox, which is created if it is not there.
    async fn open(&self, access: FileAccess<'_>) -> Result<SandboxId, String> {
        self.0.open(access.scope).await.map_err(|reason| error_text(&reason))
    }

    /// Returns the text for the model why something in the sandbox failed.
    async fn explain(&self, access: FileAccess<'_>, id: SandboxId, error: SandboxError) -> String {
        error_text(&self.0.explain(access.scope, id, error).await)
    }

    /// Returns the entries at and below a path; none if there is nothing.
    async fn entries(&self, access: FileAccess<'_>, query: EntryQuery<'_>) -> Result<Option<SandboxEntries>, String> {
        let id = self.open(access).await?;
        let found = match self.0.service.entries(id, query).await {
            Ok(found) => found,
            Err(error) if error.has_code("file_not_found") => return Ok(None),
            Err(error) => return Err(self.explain(access, id, error).await),
        };
        if found.entries.len() > query.max || !found.entries.iter().all(|entry| is_inside(&entry.path, query.path)) {
            return Err(error_text(
                "the sandbox service answered with entries that were not asked for",
            ));
        }
        Ok(Some(found))
    }

    /// Returns a line with the text of a search as a result shows it. A service may cut long lines, so that neither the
    /// text nor the rest of the line is known: such a line is taken from the file. `last_read` has the lines of the file
    /// that was read last.
    async fn shown_line(
        &self,
        access: FileAccess<'_>,
        query: &FileQuery,
        found: &SandboxMatch,
        text: &str,
        last_read: &mut Option<(String, Vec<String>)>,
    ) -> String {
        let is_short = found.text.chars().nth(MAX_LINE_CHARS - 1).is_none();
        if is_short && found.text.contains(text) {
            return found.text.clone();
        }
        if last_read.as_ref().is_none_or(|(path, _)| *path != found.path) {
            let read = timeout_at(query.deadline(), self.read(access, &found.path)).await;
            let file = read.ok().and_then(Result::ok).flatten();
            *last_read = Some((found.path.clone(), file.as_deref().map_or_else(Vec::new, lines_of)));
        }
        let at = found.line.saturating_sub(1);
        let line = last_read.as_ref().and_then(|(_, lines)| lines.get(at));
        // The file may be another one by now, and the service may count lines in another way.
        let line = line.filter(|line| line.contains(text)).unwrap_or(&found.text);
        shortened(line, text)
    }
}

/// Returns the lines of a text file; none of another file.
fn lines_of(file: &File) -> Vec<String> {
    match file.encoding {
        Encoding::Utf8 => file.content.text().lines().map(str::to_owned).collect(),
        Encoding::Base64 => vec![],
    }
}

fn error_text(reason: &str) -> String {
    format!("Error: {reason}.")
}

/// Returns whether a path of the service is written as the server writes paths, and is at or below `at`.
fn is_inside(path: &str, at: &str) -> bool {
    normalise(path).is_ok_and(|clean| clean == path) && (path == at || below(path, at).is_some())
}

/// Returns the bytes of a file.
fn bytes_of(file: &File) -> Result<Vec<u8>, String> {
    file.to_bytes()
        .map_err(|_| error_text("the content of the file is no Base64"))
}

/// Returns the file of an answer.
fn file_of(body: FileBody, now: Timestamp) -> File {
    File {
        modified_at: modified(&body.headers, now).map(|at| at.to_string()),
        ..File::from_bytes(body.bytes)
    }
}

/// Returns the time of the last change of a file by the clock of this server. Both clocks may differ, so the service
/// says with its own how long ago that was.
fn modified(headers: &HeaderMap, now: Timestamp) -> Option<Timestamp> {
    let time = |name: HeaderName| Timestamp::read_http(headers.get(name)?.to_str().ok()?);
    let age = time(DATE)?.since(time(LAST_MODIFIED)?);
    Some(now.minus(age))
}

#[async_trait]
impl FileWorkspace for SandboxFiles {
    fn is_shared(&self, _: &str) -> bool {
        true
    }

    fn has_effects(&self) -> bool {
        true
    }

    async fn is_missing(&self, access: FileAccess<'_>, path: &str) -> Result<bool, String> {
        let query = EntryQuery {
            path,
            is_recursive: false,
            is_complete: true,
            max: MAX_ENTRIES,
        };
        Ok(self.entries(access, query).await?.is_none())
    }

    async fn list(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<DirectoryEntries, String> {
        let own = EntryQuery {
            path: &query.at,
            is_recursive: false,
            is_complete: true,
            max: MAX_ENTRIES,
        };
        let Some(found) = self.entries(access, own).await? else {
            return Ok(DirectoryEntries::default());
        };
        let seen = found.entries.into_iter().filter(|entry| query.shows(&entry.path));
        let name = |entry: SandboxEntry| match entry.kind {
            EntryKind::File => entry.path,
            EntryKind::Directory => format!("{}/", entry.path),
        };
        Ok(DirectoryEntries {
            entries: seen.map(name).collect(),
            stop: found.truncated.then_some(SearchStop::Files),
        })
    }

    async fn paths(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<FoundPaths, String> {
        let own = EntryQuery {
            path: &query.at,
            is_recursive: true,
            is_complete: query.is_complete,
            max: MAX_ENTRIES,
        };
        let Ok(found) = timeout_at(query.deadline(), self.entries(access, own)).await else {
            return Ok(FoundPaths {
                stop: Some(SearchStop::Time),
                ..FoundPaths::default()
            });
        };
        let Some(found) = found? else {
            return Ok(FoundPaths::default());
        };
        let stop = found.truncated.then_some(SearchStop::Files);
        let mut paths = vec![];
        let mut sizes = BTreeMap::new();
        for entry in found.entries {
            if entry.kind == EntryKind::File {
                sizes.extend(entry.size.map(|size| (entry.path.clone(), size)));
                paths.push(entry.path);
            }
        }
        Ok(FoundPaths {
            sizes,
            ..query.admitted(paths, stop).await
        })
    }

    async fn read(&self, access: FileAccess<'_>, path: &str) -> Result<Option<Arc<File>>, String> {
        let most = access.scope.sizes.file;
        let id = self.open(access).await?;
        match self.0.service.read(id, path, most).await {
            Ok(body) => Ok(Some(Arc::new(file_of(body, access.scope.now())))),
            Err(error) if error.has_code("file_not_found") => Ok(None),
            Err(SandboxError::TooLarge(most)) => Err(error_text(&format!(
                "'{path}' has more than {most} bytes; such files are not read. grep finds text in it"
            ))),
            Err(error) => Err(self.explain(access, id, error).await),
        }
    }

    async fn write(
        &self,
        access: FileAccess<'_>,
        path: &str,
        file: File,
        before: Option<&File>,
    ) -> Result<Update, String> {
        let content = bytes_of(&file)?;
        let before = before.map(bytes_of).transpose()?;
        let id = self.open(access).await?;
        match self.0.service.write(id, path, content, before.as_deref()).await {
            Ok(()) => Ok(Update::none()),
            Err(error) if error.has_code("changed") => Err(conflict(path)),
            Err(error) => Err(self.explain(access, id, error).await),
        }
    }

    async fn delete(
        &self,
        access: FileAccess<'_>,
        path: &str,
        _: Vec<String>,
        before: Option<&File>,
    ) -> Result<Option<Update>, String> {
        let before = before.map(bytes_of).transpose()?;
        let id = self.open(access).await?;
        match self.0.service.delete(id, path, before.as_deref()).await {
            Ok(()) => Ok(Some(Update::none())),
            Err(error) if error.has_code("changed") => Err(conflict(path)),
            Err(error) if error.has_code("file_not_found") => Ok(None),
            Err(error) => Err(self.explain(access, id, error).await),
        }
    }

    async fn grep(&self, access: FileAccess<'_>, query: &FileQuery, text: &str) -> Result<FoundLines, String> {
        let everything = query.clone().at_most(usize::MAX);
        let found = self.paths(access, &everything).await?;
        let mut lines = FoundLines {
            stop: found.stop,
            ..FoundLines::default()
        };
        if found.paths.is_empty() {
            return Ok(lines);
        }
        let id = self.open(access).await?;
        let mut last_read = None;
        for part in found.paths.chunks(MAX_SEARCHED) {
            let left = query.max.saturating_sub(lines.count());
            let search = self.0.service.search(id, text, part, left.saturating_add(1));
            let Ok(searched) = timeout_at(query.deadline(), search).await else {
                lines.stop = Some(SearchStop::Time);
                break;
            };
            let searched = match searched {
                Ok(searched) => searched,
                Err(error) => return Err(self.explain(access, id, error).await),
            };
            let wanted: BTreeSet<&String> = part.iter().collect();
            if !searched.matches.iter().all(|found| wanted.contains(&found.path)) {
                return Err(error_text(
                    "the sandbox service answered with lines that were not asked for",
                ));
            }
            let is_over = searched.matches.len() > left;
            for found in searched.matches.into_iter().take(left) {
                let shown = self.shown_line(access, query, &found, text, &mut last_read).await;
                let line = (found.line, shown);
                match lines.files.last_mut().filter(|file| file.path == found.path) {
                    Some(file) => file.lines.push(line),
                    None => lines.files.push(FileMatches {
                        path: found.path,
                        lines: vec![line],
                    }),
                }
            }
            if is_over || searched.truncated {
                lines.stop = Some(SearchStop::Results);
                break;
            }
        }
        Ok(lines)
    }
}
