//! The trait for places where files live, and its queries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::definition::{FileOperation, FileRules};
use crate::domain::path::below;
use crate::domain::pattern::Pattern;
use crate::domain::read_access::ReadableFiles;
use crate::domain::state::{Encoding, File, FileFacts, State, Update};
use crate::tool::scope::Scope;

/// The maximum duration of a search.
pub(super) const MAX_SEARCH: Duration = Duration::from_secs(10);
/// The time after which a comparison of paths with a pattern lets other work go on.
const LONGEST_STRETCH: Duration = Duration::from_millis(1);
/// The maximum length of a line in a result of `grep`, in characters.
pub(in crate::tool) const MAX_LINE_CHARS: usize = 1_000;
/// The number of characters that are shown of a longer line before the text that was found, less one.
const CHARS_BEFORE: usize = 249;
/// The maximum number of further places in a long line that a search reports.
const MAX_PLACES: usize = 10;

/// The run and the state for which a workspace is used.
#[derive(Clone, Copy)]
pub struct FileAccess<'a> {
    /// The scope of the call or hook.
    pub scope: &'a Scope,
    /// The state at the start of the step.
    pub state: &'a State,
}

/// A store of files by absolute, normalised path.
#[async_trait]
pub trait FileWorkspace: Send + Sync {
    /// Returns whether the file at `path` is outside the state of the thread, so that others may change it meanwhile.
    fn is_shared(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Returns whether a write may have effects outside the state of the thread.
    fn has_effects(&self) -> bool {
        false
    }

    /// Returns the path to which symbolic links lead from `path`. The last name of the path is taken as it is if
    /// `follows_last` is false.
    ///
    /// # Errors
    /// The text for the model.
    async fn real_path(&self, access: FileAccess<'_>, path: &str, follows_last: bool) -> Result<String, String> {
        let _ = (access, follows_last);
        Ok(path.to_owned())
    }

    /// Returns whether certainly nothing is at `path`. Without directories of its own, a workspace cannot tell a
    /// directory that is not there from an empty one.
    ///
    /// # Errors
    /// The text for the model.
    async fn is_missing(&self, access: FileAccess<'_>, path: &str) -> Result<bool, String> {
        let _ = (access, path);
        Ok(false)
    }

    /// Returns what is directly in the directory of the query. Directories end with a slash.
    ///
    /// # Errors
    /// The text for the model.
    async fn list(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<DirectoryEntries, String> {
        let found = self.paths(access, query).await?;
        Ok(found.entries_of(&query.at))
    }

    /// Returns the paths at and below the path of the query that the query admits, sorted.
    ///
    /// # Errors
    /// The text for the model.
    async fn paths(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<FoundPaths, String>;

    /// Returns what the workspace knows of files without reading them, by path, besides the sizes that
    /// [`FileWorkspace::paths`] tells. Files of which it knows nothing are left out.
    ///
    /// # Errors
    /// The text for the model.
    async fn facts(&self, access: FileAccess<'_>, paths: &[String]) -> Result<BTreeMap<String, FileFacts>, String> {
        let _ = (access, paths);
        Ok(BTreeMap::new())
    }

    /// Returns the file at `path`, if there is one.
    ///
    /// # Errors
    /// The text for the model.
    async fn read(&self, access: FileAccess<'_>, path: &str) -> Result<Option<Arc<File>>, String>;

    /// Writes a file in the place of `before`, and returns the update of the state.
    ///
    /// # Errors
    /// The text for the model, also if there is no longer `before`. Nothing was written then.
    async fn write(
        &self,
        access: FileAccess<'_>,
        path: &str,
        file: File,
        before: Option<&File>,
    ) -> Result<Update, String>;

    /// Deletes the file or directory at `path`, with these files in it. Returns the update of the state; none if there
    /// is nothing at `path`. With `before`, there is a file at `path`, which is deleted only if it has still that content.
    ///
    /// # Errors
    /// The text for the model, also if the file is no longer `before`. Nothing was deleted then.
    async fn delete(
        &self,
        access: FileAccess<'_>,
        path: &str,
        files: Vec<String>,
        before: Option<&File>,
    ) -> Result<Option<Update>, String>;

    /// Searches the files that the query admits for lines with the text of the query.
    ///
    /// # Errors
    /// The text for the model.
    async fn grep(&self, access: FileAccess<'_>, query: &FileQuery, text: &str) -> Result<FoundLines, String> {
        let everything = FileQuery {
            max: usize::MAX,
            ..query.clone()
        };
        let found = self.paths(access, &everything).await?;
        let mut lines = FoundLines {
            stop: found.stop,
            ..FoundLines::default()
        };
        for path in found.paths {
            if query.is_over() {
                lines.stop = Some(SearchStop::Time);
                break;
            }
            let Some(file) = self.read(access, &path).await? else {
                continue;
            };
            if !lines.take(&path, &file, text, query.max) {
                break;
            }
        }
        Ok(lines)
    }
}

/// The reason why a search ended before it had seen everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchStop {
    /// The maximum number of results was found.
    Results,
    /// The time was over.
    Time,
    /// The directory has too many files.
    Files,
}

/// The entries of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DirectoryEntries {
    /// The paths. Those of directories end with a slash.
    pub entries: BTreeSet<String>,
    /// The reason why there may be more.
    pub stop: Option<SearchStop>,
}

/// The paths found by a query.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundPaths {
    /// The paths, sorted.
    pub paths: Vec<String>,
    /// The sizes of files in bytes, by path, as far as the search came to know them; others may be among them.
    pub sizes: BTreeMap<String, u64>,
    /// The reason why there may be more.
    pub stop: Option<SearchStop>,
}

impl FoundPaths {
    /// Returns the first `max` of these paths; `stop` is the reason why there may be more than these.
    pub fn first(mut paths: Vec<String>, max: usize, stop: Option<SearchStop>) -> Self {
        paths.sort();
        let is_cut = paths.len() > max;
        paths.truncate(max);
        Self {
            paths,
            sizes: BTreeMap::new(),
            stop: if is_cut { Some(SearchStop::Results) } else { stop },
        }
    }

    /// Returns what is directly in `directory`, if these are the paths at and below it.
    pub(super) fn entries_of(&self, directory: &str) -> DirectoryEntries {
        let entry = |path: &String| match below(path, directory).and_then(|rest| rest.split_once('/')) {
            Some((name, _)) => format!("{}/{name}/", directory.trim_end_matches('/')),
            None => path.clone(),
        };
        DirectoryEntries {
            entries: self.paths.iter().map(entry).collect(),
            stop: self.stop,
        }
    }
}

/// The matching lines of one file, with their line numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileMatches {
    /// The path of the file.
    pub path: String,
    /// The lines.
    pub lines: Vec<(usize, String)>,
}

/// The lines found by a search.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundLines {
    /// The matches, by file.
    pub files: Vec<FileMatches>,
    /// The paths of files that were not searched to their end, because a line is too long.
    pub cut_short: Vec<String>,
    /// The reason why there may be more.
    pub stop: Option<SearchStop>,
}

impl FoundLines {
    /// Returns the number of lines.
    pub fn count(&self) -> usize {
        self.files.iter().map(|file| file.lines.len()).sum()
    }

    /// Adds the lines of a text file that contain `text`, up to `max` lines in all. Returns whether the search goes on.
    pub(super) fn take(&mut self, path: &str, file: &File, text: &str, max: usize) -> bool {
        if file.encoding == Encoding::Base64 {
            return true;
        }
        let left = max.saturating_sub(self.count());
        let content = file.content.text();
        let matching = content.lines().enumerate().filter(|(_, line)| line.contains(text));
        let lines = matching.map(|(at, line)| (at + 1, shortened(line, text)));
        let mut lines: Vec<(usize, String)> = lines.take(left.saturating_add(1)).collect();
        if lines.len() > left {
            lines.truncate(left);
            self.stop = Some(SearchStop::Results);
        }
        let path = path.to_owned();
        self.files
            .extend((!lines.is_empty()).then_some(FileMatches { path, lines }));
        self.stop != Some(SearchStop::Results)
    }
}

/// Returns a line of a result of a search for `text`; of a long one the part around the first place where the text stands.
/// Places are told as `read_file` takes them: as numbers of characters before them in the line.
pub(in crate::tool) fn shortened(line: &str, text: &str) -> String {
    if line.char_indices().nth(MAX_LINE_CHARS).is_none() {
        return line.to_owned();
    }
    let found = line.find(text).unwrap_or(0);
    let before = line[..found].char_indices().rev().nth(CHARS_BEFORE);
    let start = before.map_or(0, |(start, _)| start);
    let skipped = line[..start].chars().count();
    let rest = &line[start..];
    let end = rest
        .char_indices()
        .nth(MAX_LINE_CHARS)
        .map_or(rest.len(), |(end, _)| end);
    let (shown, later) = rest.split_at(end);
    let head = if start > 0 {
        format!("[from char_offset {skipped}] ")
    } else {
        String::new()
    };
    let tail = if later.is_empty() {
        String::new()
    } else {
        format!(" [cut{}]", places(later, text, skipped + MAX_LINE_CHARS))
    };
    format!("{head}{shown}{tail}")
}

/// Returns where else a text stands in the rest of a line, which has `before` characters before it.
fn places(rest: &str, text: &str, before: usize) -> String {
    let mut places: Vec<String> = vec![];
    let mut counted = 0;
    let mut chars = before;
    let mut more = 0_usize;
    for (at, _) in rest.match_indices(text) {
        if places.len() == MAX_PLACES {
            more += 1;
            continue;
        }
        chars += rest[counted..at].chars().count();
        counted = at;
        places.push(chars.to_string());
    }
    let named = places.join(", ");
    match more {
        0 if places.is_empty() => String::new(),
        0 => format!("; also at char_offset {named}"),
        more => format!("; also at char_offset {named} and {more} more"),
    }
}

/// A query for files at and below a path.
#[derive(Clone)]
pub struct FileQuery {
    /// The path of the directory or file, as the workspace names it.
    pub at: String,
    /// The path of the workspace itself, as the agent sees it; empty if both name files alike.
    mount: String,
    /// The path of the query, as the agent sees it.
    base: String,
    filter: Option<Arc<Pattern>>,
    rules: FileRules,
    /// The files that may be results, whatever the rules say; all if none are given.
    readable: Option<Arc<ReadableFiles>>,
    /// The maximum number of results.
    pub max: usize,
    deadline: Instant,
    /// True for all files, also for those that ignore files exclude from searches.
    pub is_complete: bool,
}

impl FileQuery {
    /// Creates a query for the files at and below `path` that these rules let the agent read.
    pub fn new(path: &str, rules: &FileRules) -> Self {
        Self {
            at: path.to_owned(),
            mount: String::new(),
            base: path.to_owned(),
            filter: None,
            rules: rules.clone(),
            readable: None,
            max: usize::MAX,
            deadline: Instant::now() + MAX_SEARCH,
            is_complete: false,
        }
    }

    /// Creates a query for all files at and below `path`.
    pub fn complete(path: &str) -> Self {
        Self {
            is_complete: true,
            ..Self::new(path, &FileRules::default())
        }
    }

    /// Admits only files whose path, relative to that of the query, matches `filter`. Of a query for one file the name
    /// is compared.
    #[must_use]
    pub fn with_filter(self, filter: Option<Pattern>) -> Self {
        Self {
            filter: filter.map(Arc::new),
            ..self
        }
    }

    /// Admits only files that are among these.
    #[must_use]
    pub fn among(self, readable: Arc<ReadableFiles>) -> Self {
        Self {
            readable: Some(readable),
            ..self
        }
    }

    /// Returns the query for the files at and below `path`, within the same time.
    #[must_use]
    pub fn from_path(&self, path: &str) -> Self {
        Self {
            at: path.to_owned(),
            base: path.to_owned(),
            ..self.clone()
        }
    }

    /// Returns the query for at most this number of results.
    #[must_use]
    pub fn at_most(self, max: usize) -> Self {
        Self { max, ..self }
    }

    /// Returns the query as the workspace at `mount` has to answer it, for the files at and below its own path `at`.
    pub(super) fn inside(&self, mount: &str, at: &str) -> Self {
        Self {
            at: at.to_owned(),
            mount: format!("{}{mount}", self.mount),
            ..self.clone()
        }
    }

    /// Returns whether the agent may see `path` of this workspace, whatever the filter.
    pub fn shows(&self, path: &str) -> bool {
        self.permits(&format!("{}{path}", self.mount))
    }

    /// Returns whether the file at `path`, as the agent sees it, may be read.
    fn permits(&self, path: &str) -> bool {
        self.readable.as_ref().is_none_or(|readable| readable.has(path))
            && self.rules.check(FileOperation::Read, path).is_ok()
    }

    /// Returns whether `path` of this workspace is a result.
    pub fn admits(&self, path: &str) -> bool {
        let path = format!("{}{path}", self.mount);
        let name = || path.rsplit('/').next().unwrap_or(&path);
        let relative = below(&path, &self.base).unwrap_or_else(name);
        self.filter.as_ref().is_none_or(|filter| filter.matches(relative)) && self.permits(&path)
    }

    /// Returns those of these paths that are results, as far as the time suffices. `stop` is the reason why there may be
    /// others.
    pub(in crate::tool) async fn admitted(&self, paths: Vec<String>, mut stop: Option<SearchStop>) -> FoundPaths {
        let mut admitted = vec![];
        let mut stretch_ends = Instant::now() + LONGEST_STRETCH;
        for path in paths {
            let now = Instant::now();
            if now >= self.deadline {
                stop = Some(SearchStop::Time);
                break;
            }
            if now >= stretch_ends {
                // A pattern of many parts may take long with a single path, and the thread has other work.
                tokio::task::yield_now().await;
                stretch_ends = Instant::now() + LONGEST_STRETCH;
            }
            if self.admits(&path) {
                admitted.push(path);
            }
        }
        FoundPaths::first(admitted, self.max, stop)
    }

    /// Returns whether the time for the query is over.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Returns the time at which the query has to end.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}
