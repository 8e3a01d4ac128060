//! Writing, editing and deleting files.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{FileContext, FileQuery, FileResult, SearchStop, file_path, normalise, seen, text};
use crate::definition::FileOperation;
use crate::domain::message::Content;
use crate::domain::state::{Encoding, File, Update};
use crate::domain::text_edit::{EditError, EditedText, TextEdit};

/// The arguments of `write_file`.
#[derive(Deserialize)]
pub(super) struct Write {
    file_path: String,
    content: String,
}

/// The arguments of `edit_file`.
#[derive(Deserialize)]
pub(super) struct Edit {
    file_path: String,
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

/// Returns the JSON Schema of the arguments of `edit_file`.
pub(super) fn edit_properties() -> Value {
    json!({
        "file_path": file_path(),
        "old_string": text("The text to replace, exactly as it stands in the file."),
        "new_string": text("The text that takes its place."),
        "replace_all": {
            "type": "boolean", "default": false,
            "description": "Whether to replace every occurrence; else there must be exactly one.",
        },
    })
}

/// The arguments of `delete`.
#[derive(Deserialize)]
pub(super) struct Delete {
    file_path: String,
}

pub(super) async fn write(context: &FileContext<'_>, args: Write) -> Result<FileResult, String> {
    let path = normalise(&args.file_path)?;
    if path == "/" {
        return Err("Error: '/' is a directory, not a file".to_owned());
    }
    context.check(FileOperation::Write, &path).await?;
    check_size(context, &path, args.content.len())?;
    let old = context.read(&path).await?;
    let mut file = File::text(args.content, context.scope.now());
    if let Some(old) = &old {
        file.created_at = old.created_at.clone().or(file.created_at);
    }
    // A call that is repeated after a crash finds its own content.
    let is_written = old
        .as_ref()
        .is_some_and(|old| old.encoding == file.encoding && old.content == file.content);
    if !is_written {
        seen::check(context, &path, old.as_deref(), false)?;
    }
    let writes = put(context, &path, file, old.as_deref()).await?;
    Ok(FileResult {
        content: Content::Text(format!("Updated file {path}")),
        writes,
    })
}

/// Writes a file in the place of `old`, and records that the agent knows it.
async fn put(context: &FileContext<'_>, path: &str, file: File, old: Option<&File>) -> Result<Update, String> {
    let known = seen::record(context, path, Some(&file));
    let mut writes = context.workspace.write(context.access(), path, file, old).await?;
    writes.merge(known);
    Ok(writes)
}

pub(super) async fn edit(context: &FileContext<'_>, args: Edit) -> Result<FileResult, String> {
    let path = normalise(&args.file_path)?;
    context.check(FileOperation::Write, &path).await?;
    let Some(old) = context.read(&path).await? else {
        return Err(format!("Error: File '{path}' not found"));
    };
    if old.encoding == Encoding::Base64 {
        return Err(format!("Error: '{path}' is a binary file; only text can be edited"));
    }
    seen::check(context, &path, Some(&old), true)?;
    let edit = TextEdit {
        old: &args.old_string,
        new: &args.new_string,
        replace_all: args.replace_all,
    };
    let edited = edit.apply(&old.content.text(), context.max_file_bytes);
    let EditedText { text, count } = edited.map_err(|error| edit_error(context, &path, error))?;
    let mut file = File::text(text, context.scope.now());
    file.created_at = old.created_at.clone().or(file.created_at);
    let writes = put(context, &path, file, Some(&old)).await?;
    let message = format!(
        "Replaced {count} occurrence{} in '{path}'",
        if count == 1 { "" } else { "s" }
    );
    Ok(FileResult {
        content: Content::Text(message),
        writes,
    })
}

/// Returns an error for a file that would become too large.
fn check_size(context: &FileContext<'_>, path: &str, length: usize) -> Result<(), String> {
    if length <= context.max_file_bytes {
        return Ok(());
    }
    Err(too_long(context, path, length))
}

fn too_long(context: &FileContext<'_>, path: &str, length: usize) -> String {
    let limit = context.max_file_bytes;
    format!(
        "Error: '{path}' would become {length} bytes long; at most {limit} are allowed. Nothing was changed. \
         Write it in several files."
    )
}

/// Returns what the model reads about an edit that changed nothing.
fn edit_error(context: &FileContext<'_>, path: &str, error: EditError) -> String {
    match error {
        EditError::Empty => "Error: old_string is empty; use write_file to write a whole file".to_owned(),
        EditError::Unchanged => "Error: old_string and new_string are the same; nothing would change".to_owned(),
        EditError::HasLineBreaks => format!(
            "Error: old_string and new_string differ only in their line breaks, and '{path}' has those of new_string; \
             nothing would change"
        ),
        EditError::NotFound { without_newline } => {
            let hint = if without_newline {
                " It would be found without the newline at its end."
            } else {
                ""
            };
            format!("Error: old_string was not found in '{path}'. It must match exactly, white space included.{hint}")
        }
        EditError::Ambiguous(count) => format!(
            "Error: old_string appears {count} times in '{path}'. Add lines around it until it is unique, or set \
             replace_all to replace them all."
        ),
        EditError::TooLong(length) => too_long(context, path, length),
    }
}

pub(super) async fn delete(context: &FileContext<'_>, args: Delete) -> Result<FileResult, String> {
    let path = normalise(&args.file_path)?;
    if path == "/" {
        return Err("Error: the whole workspace cannot be deleted at once; name a file or a directory".to_owned());
    }
    context.check_real(FileOperation::Write, &path, false).await?;
    let found = context
        .workspace
        .paths(context.access(), &FileQuery::complete(&path))
        .await?;
    if let Some(stop) = found.stop {
        let why = match stop {
            SearchStop::Time => "takes too long to be listed",
            SearchStop::Results | SearchStop::Files => "has too many files to be deleted at once",
        };
        return Err(format!(
            "Error: '{path}' {why}. Nothing was deleted. Delete parts of it."
        ));
    }
    for file in &found.paths {
        context.rules.check(FileOperation::Write, file)?;
    }
    let before = seen::check_deletion(context, &path).await?;
    let mut known = Update::none();
    for file in &found.paths {
        known.merge(seen::record(context, file, None));
    }
    let deleted = context
        .workspace
        .delete(context.access(), &path, found.paths, before.as_deref());
    let Some(mut writes) = deleted.await? else {
        return Err(format!("Error: File '{path}' not found"));
    };
    writes.merge(known);
    Ok(FileResult {
        content: Content::Text(format!("Deleted {path}")),
        writes,
    })
}
