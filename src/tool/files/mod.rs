//! The file tools, over any [`FileWorkspace`].
//!
//! A [`FileWorkspace`] stores files by absolute path: [`StateFiles`] in the thread's state, [`StoreFiles`] in the Store,
//! [`DiskFiles`] on the disk, [`RoutedFiles`] in several of these. The tools contain the rules for paths and patterns
//! and the texts of the results. Neighbour: [`crate::middleware::files`] adds the tools to agents and bounds large
//! results.
//!
//! Of two changes of one file, the second is refused if its agent could not know of the first: in the state by the
//! claims of calls that run at the same time (`file_claims`), elsewhere by what each agent has seen of a file (`seen`).
//!
//! [`AgentFiles`] are the files of an agent for those who read them while it works.

use std::sync::Arc;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::halt::Halt;
use super::outcome::CallOutcome;
use super::scope::Scope;
use super::toolbox::Tool;
use crate::definition::{AfterCrash, FileOperation, FileRules};
use crate::domain::call::ToolOutput;
use crate::domain::message::{Content, Message, ToolCall, ToolStatus};
use crate::domain::path;
use crate::domain::pattern::Pattern;
use crate::domain::state::{File, State, Update};
use crate::domain::text_limits::cut_after;
use crate::model::ToolSpec;

mod agent_files;
mod change;
mod disk;
mod enclosed;
mod read;
mod routes;
mod search;
mod seen;
mod state;
mod store;
mod workspace;

pub use agent_files::{AgentFiles, FileRefusal};
pub use disk::DiskFiles;
pub use enclosed::WithEnclosed;
pub use routes::{FileRoute, ReadOnlyFiles, RoutedFiles};
pub use state::StateFiles;
pub use store::StoreFiles;
pub(in crate::tool) use store::conflict;
pub use workspace::{
    DirectoryEntries, FileAccess, FileMatches, FileQuery, FileWorkspace, FoundLines, FoundPaths, SearchStop,
};
pub(in crate::tool) use workspace::{MAX_LINE_CHARS, shortened};

/// The maximum length of a file tool's result, in characters.
const MAX_RESULT_CHARS: usize = 80_000;
/// The maximum length of an argument in a result, in characters.
const MAX_SHOWN_CHARS: usize = 1_000;
/// The least length of a text that `read_file` shows at once, in characters, however short other results have to be.
const MIN_PAGE_CHARS: usize = 4_000;

/// Normalises a path from a model.
///
/// # Errors
/// The text for the model.
fn normalise(given: &str) -> Result<String, String> {
    path::normalise(given).map_err(|why| {
        format!(
            "Error: the path '{}' is not allowed: {why}",
            abbreviated(&given.replace('\\', "/"))
        )
    })
}

/// Parses a glob pattern from a model, for paths below `directory`.
///
/// # Errors
/// The text for the model.
fn pattern(given: &str, directory: &str) -> Result<Pattern, String> {
    Pattern::new(given, directory)
        .map_err(|why| format!("Error: the pattern '{}' cannot be used: {why}.", abbreviated(given)))
}

/// Returns an argument as a result repeats it: the beginning of a long one.
fn abbreviated(argument: &str) -> String {
    cut_after(argument, MAX_SHOWN_CHARS, "…")
}

/// The result of a file operation.
struct FileResult {
    content: Content,
    writes: Update,
}

impl FileResult {
    fn text(text: impl Into<String>) -> Self {
        Self {
            content: Content::Text(text.into()),
            writes: Update::none(),
        }
    }
}

/// The context of one file operation.
struct FileContext<'a> {
    workspace: &'a dyn FileWorkspace,
    rules: &'a FileRules,
    scope: &'a Scope,
    state: &'a State,
    max_file_bytes: usize,
    /// The maximum length of a text that `read_file` shows at once, in characters.
    max_page_chars: usize,
}

impl FileContext<'_> {
    fn access(&self) -> FileAccess<'_> {
        FileAccess {
            scope: self.scope,
            state: self.state,
        }
    }

    /// Checks that `operation` on `path` is allowed, and on the path to which symbolic links lead from there.
    async fn check(&self, operation: FileOperation, path: &str) -> Result<(), String> {
        self.check_real(operation, path, true).await
    }

    /// Does the same for a path whose last name may be a link that is not followed.
    async fn check_real(&self, operation: FileOperation, path: &str, follows_last: bool) -> Result<(), String> {
        self.rules.check(operation, path)?;
        let real = self.workspace.real_path(self.access(), path, follows_last).await?;
        if real == path {
            return Ok(());
        }
        self.rules.check_target(operation, path, &real)
    }

    /// Returns a query for the files at and below `path` that may be read.
    async fn query(&self, path: &str) -> Result<FileQuery, String> {
        self.check(FileOperation::Read, path).await?;
        Ok(FileQuery::new(path, self.rules))
    }

    async fn read(&self, path: &str) -> Result<Option<Arc<File>>, String> {
        self.workspace.read(self.access(), path).await
    }
}

/// Returns the file tools, in the order in which the model sees them. `read_file` shows at most `max_chars` characters of
/// a text at once, within bounds.
pub fn tools(workspace: &Arc<dyn FileWorkspace>, rules: &FileRules, max_chars: usize) -> Vec<Arc<dyn Tool>> {
    Operation::ALL
        .into_iter()
        .map(|operation| operation.tool(workspace, rules, max_chars))
        .collect()
}

/// Returns `read_file` alone.
pub fn reader(workspace: &Arc<dyn FileWorkspace>) -> Arc<dyn Tool> {
    Operation::Read.tool(workspace, &FileRules::default(), MAX_RESULT_CHARS)
}

/// The names of the file tools.
pub const NAMES: [&str; 7] = ["ls", "read_file", "write_file", "edit_file", "delete", "glob", "grep"];

/// Returns the normalised path that a call would change; `None` if it changes nothing or the path is not allowed.
pub fn changed_path(call: &ToolCall) -> Option<String> {
    match call.name.as_str() {
        "write_file" | "edit_file" | "delete" => path::normalise(call.args.get("file_path")?.as_str()?).ok(),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    List,
    Read,
    Write,
    Edit,
    Delete,
    Glob,
    Grep,
}

struct FileTool {
    spec: Arc<ToolSpec>,
    operation: Operation,
    workspace: Arc<dyn FileWorkspace>,
    rules: FileRules,
    max_page_chars: usize,
}

#[async_trait]
impl Tool for FileTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    fn has_effects(&self) -> bool {
        self.operation.is_change() && self.workspace.has_effects()
    }

    fn after_crash(&self) -> AfterCrash {
        // A file that is written again has the same content; a text may be replaced twice.
        match self.operation {
            Operation::Edit | Operation::Delete if self.workspace.has_effects() => AfterCrash::Fail,
            Operation::Edit
            | Operation::Delete
            | Operation::List
            | Operation::Read
            | Operation::Write
            | Operation::Glob
            | Operation::Grep => AfterCrash::Repeat,
        }
    }

    async fn call(&self, scope: &Scope, state: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let context = FileContext {
            workspace: &*self.workspace,
            rules: &self.rules,
            scope,
            state,
            max_file_bytes: scope.sizes.file,
            max_page_chars: self.max_page_chars,
        };
        let result = self.operation.perform(&context, call).await;
        Ok(CallOutcome::Answer(match result {
            Ok(FileResult { content, writes }) => {
                let mut answer = ToolOutput::message(Message::tool(call, ToolStatus::Success, content));
                answer.writes.merge(writes);
                answer
            }
            Err(text) => ToolOutput::error(call, text),
        }))
    }
}

fn arguments<T: DeserializeOwned>(call: &ToolCall) -> Result<T, String> {
    let args = call.args.iter().map(|(name, value)| (name.clone(), whole(value)));
    serde_json::from_value(Value::Object(args.collect()))
        .map_err(|error| format!("Error: the arguments of `{}` cannot be used: {error}.", call.name))
}

/// Returns a number such as 10.0, which fits a schema for whole numbers, as a whole number.
fn whole(value: &Value) -> Value {
    let float = value
        .as_f64()
        .filter(|float| value.is_f64() && float.fract() == 0.0 && *float < 1e15);
    let number = float.and_then(|float| format!("{float:.0}").parse::<u64>().ok());
    number.map_or_else(|| value.clone(), Value::from)
}

impl Operation {
    const ALL: [Self; 7] = [
        Self::List,
        Self::Read,
        Self::Write,
        Self::Edit,
        Self::Delete,
        Self::Glob,
        Self::Grep,
    ];

    fn is_change(self) -> bool {
        matches!(self, Self::Write | Self::Edit | Self::Delete)
    }

    fn tool(self, workspace: &Arc<dyn FileWorkspace>, rules: &FileRules, max_chars: usize) -> Arc<dyn Tool> {
        let workspace = Arc::clone(workspace);
        let rules = rules.clone();
        Arc::new(FileTool {
            spec: Arc::new(self.spec()),
            operation: self,
            workspace,
            rules,
            max_page_chars: max_chars.clamp(MIN_PAGE_CHARS, MAX_RESULT_CHARS),
        })
    }

    async fn perform(self, context: &FileContext<'_>, call: &ToolCall) -> Result<FileResult, String> {
        match self {
            Self::List => search::list(context, arguments(call)?).await,
            Self::Read => read::read(context, arguments(call)?).await,
            Self::Write => change::write(context, arguments(call)?).await,
            Self::Edit => change::edit(context, arguments(call)?).await,
            Self::Delete => change::delete(context, arguments(call)?).await,
            Self::Glob => search::glob(context, arguments(call)?).await,
            Self::Grep => search::grep(context, arguments(call)?).await,
        }
    }

    fn spec(self) -> ToolSpec {
        let (name, description, properties, required) = match self {
            Self::List => (
                "ls",
                LS,
                json!({"path": text("Absolute path of the directory.")}),
                json!(["path"]),
            ),
            Self::Read => ("read_file", READ, read::properties(), json!(["file_path"])),
            Self::Write => {
                let properties = json!({"file_path": file_path(), "content": text("The whole new content.")});
                ("write_file", WRITE, properties, json!(["file_path", "content"]))
            }
            Self::Edit => (
                "edit_file",
                EDIT,
                change::edit_properties(),
                json!(["file_path", "old_string", "new_string"]),
            ),
            Self::Delete => (
                "delete",
                DELETE,
                json!({"file_path": file_path()}),
                json!(["file_path"]),
            ),
            Self::Glob => {
                let properties = json!({"pattern": text("The glob pattern."), "path": search::path_schema()});
                ("glob", GLOB, properties, json!(["pattern"]))
            }
            Self::Grep => ("grep", GREP, search::grep_properties(), json!(["pattern"])),
        };
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        ToolSpec {
            name: name.to_owned(),
            description: description.to_owned(),
            parameters,
        }
    }
}

/// Returns the JSON Schema of a text argument.
fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

/// Returns the JSON Schema of the argument `file_path`.
fn file_path() -> Value {
    text("Absolute path of the file, beginning with /.")
}

const LS: &str = "Lists what lies directly in a directory, as absolute paths. Directories end with a slash.";
const READ: &str = "Shows lines of a text file, unchanged, under a header that tells which lines they are, how many \
    there are, and the offset of the next ones. Long files come in parts: ask again with that offset. A line that is too \
    long comes in parts, too: ask again with the char_offset that the header names. Images, sound, video and other binary \
    files are shown as such. Read a file before you change it.";
const WRITE: &str = "Writes a whole file. A file that exists is replaced; to change part of one, use edit_file.";
const EDIT: &str = "Replaces text in a file. The old text must stand there exactly once, white space included; add \
    lines around it until it does, or set replace_all.";
const DELETE: &str = "Deletes a file, or a directory with everything in it. There is no way back.";
const GLOB: &str = "Finds files by their paths. `*` and `?` stay within a name, `**` spans directories, `{a,b}` are \
    alternatives. A pattern without a slash matches names at any depth; names with a leading dot need a dot in the pattern.";
const GREP: &str = "Finds lines that contain a text. The text is taken literally, it is no regular expression. Shows \
    the files, the lines with their numbers (output_mode content), or how many there are in each file (count). Of a long \
    line it shows the part around the text, with its char_offset for read_file.";

/// Returns `text`, truncated after [`MAX_RESULT_CHARS`] characters with a hint on how to see the rest.
fn truncated(text: String, hint: &str) -> String {
    match text.char_indices().nth(MAX_RESULT_CHARS) {
        None => text,
        Some((end, _)) => format!("{}\n[The result was cut here, it is too long. {hint}]", &text[..end]),
    }
}

#[cfg(test)]
mod tests;
