//! Writing, editing and deleting files.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Desk, Found, file_path, normalise, text};
use crate::definition::FileOperation;
use crate::domain::message::Content;
use crate::domain::state::{Encoding, File};

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

/// The arguments of `edit_file` as the model sees them.
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

pub(super) async fn write(desk: &Desk<'_>, wish: Write) -> Result<Found, String> {
    let path = normalise(&wish.file_path)?;
    if path == "/" {
        return Err("Error: '/' is a directory, not a file".to_owned());
    }
    desk.rules.check(FileOperation::Write, &path)?;
    check_size(desk, &path, wish.content.len())?;
    let mut file = File::text(wish.content, desk.now);
    if let Some(old) = desk.workspace.read(desk.state, &path).await? {
        file.created_at = old.created_at.clone().or(file.created_at);
    }
    let writes = desk.workspace.write(&path, file).await?;
    Ok(Found {
        content: Content::Text(format!("Updated file {path}")),
        writes,
    })
}

pub(super) async fn edit(desk: &Desk<'_>, wish: Edit) -> Result<Found, String> {
    let path = normalise(&wish.file_path)?;
    desk.rules.check(FileOperation::Write, &path)?;
    let Some(old) = desk.workspace.read(desk.state, &path).await? else {
        return Err(format!("Error: File '{path}' not found"));
    };
    if old.encoding == Encoding::Base64 {
        return Err(format!("Error: '{path}' is a binary file; only text can be edited"));
    }
    let count = occurrences(&path, &old.content, &wish)?;
    // Before anything is allocated: a few edits in a row can make a file grow a thousand times.
    let kept = old.content.len() - count * wish.old_string.len();
    check_size(
        desk,
        &path,
        count.saturating_mul(wish.new_string.len()).saturating_add(kept),
    )?;
    let mut file = File::text(old.content.replace(&wish.old_string, &wish.new_string), desk.now);
    file.created_at = old.created_at.clone().or(file.created_at);
    let writes = desk.workspace.write(&path, file).await?;
    let report = format!(
        "Replaced {count} occurrence{} in '{path}'",
        if count == 1 { "" } else { "s" }
    );
    Ok(Found {
        content: Content::Text(report),
        writes,
    })
}

/// Refuses a file that would become too large.
fn check_size(desk: &Desk<'_>, path: &str, length: usize) -> Result<(), String> {
    let most = desk.max_file_bytes;
    if length <= most {
        return Ok(());
    }
    Err(format!(
        "Error: '{path}' would become {length} bytes long; at most {most} are allowed. Nothing was changed. \
         Write it in several files."
    ))
}

/// How often the old text stands in the file, when that is as often as it may.
fn occurrences(path: &str, content: &str, wish: &Edit) -> Result<usize, String> {
    if wish.old_string.is_empty() {
        return Err("Error: old_string is empty; use write_file to write a whole file".to_owned());
    }
    if wish.old_string == wish.new_string {
        return Err("Error: old_string and new_string are the same; nothing would change".to_owned());
    }
    match content.matches(&wish.old_string).count() {
        0 => {
            let shorter = wish.old_string.trim_end_matches(['\r', '\n']);
            let hint = if shorter.len() < wish.old_string.len() && !shorter.is_empty() && content.contains(shorter) {
                " It would be found without the newline at its end."
            } else {
                ""
            };
            Err(format!(
                "Error: old_string was not found in '{path}'. It must match exactly, white space included.{hint}"
            ))
        }
        several if several > 1 && !wish.replace_all => Err(format!(
            "Error: old_string appears {several} times in '{path}'. Add lines around it until it is unique, or set \
             replace_all to replace them all."
        )),
        count => Ok(count),
    }
}

pub(super) async fn delete(desk: &Desk<'_>, wish: Delete) -> Result<Found, String> {
    let path = normalise(&wish.file_path)?;
    if path == "/" {
        return Err("Error: the whole workspace cannot be deleted at once; name a file or a directory".to_owned());
    }
    desk.rules.check(FileOperation::Write, &path)?;
    let paths = desk.workspace.paths(desk.state, &path).await?;
    paths
        .iter()
        .try_for_each(|path| desk.rules.check(FileOperation::Write, path))?;
    if paths.is_empty() {
        return Err(format!("Error: File '{path}' not found"));
    }
    let writes = desk.workspace.delete(paths).await?;
    Ok(Found {
        content: Content::Text(format!("Deleted {path}")),
        writes,
    })
}
