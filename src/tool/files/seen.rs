//! The versions of files that an agent has seen, since others may change the files, too.
//!
//! The agent's state has a hash of each such file as the agent last read or wrote it. A change is refused if the file is
//! another one by now: the agent would undo what it knows nothing of.

use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::FileContext;
use super::store::conflict;
use crate::domain::field::{FieldRule, FieldVisibility, Merge};
use crate::domain::state::{File, State, Update};

/// The private field with the hashes of the files, by path.
const SEEN: &str = "_files_seen";

fn hash(file: &File) -> String {
    let hash = Sha256::digest(file.content.text().as_bytes());
    hex::encode(hash.get(..16).unwrap_or_default())
}

fn seen<'a>(state: &'a State, path: &str) -> Option<&'a str> {
    state.fields.get(SEEN)?.get(path)?.as_str()
}

/// Returns the update that records that the agent knows the content of a file, or that there is none. Nothing is
/// recorded of files in the state.
pub(super) fn record(context: &FileContext<'_>, path: &str, file: Option<&File>) -> Update {
    if !context.workspace.is_shared(path) {
        return Update::none();
    }
    let hash = file.map_or(Value::Null, |file| json!(hash(file)));
    if file.is_some() && seen(context.state, path) == hash.as_str() {
        return Update::none();
    }
    let rule = FieldRule {
        merge: Merge::ByKey,
        visibility: FieldVisibility::Private,
    };
    Update {
        rules: [(SEEN.to_owned(), rule)].into(),
        ..Update::field(SEEN, json!({path: hash}))
    }
}

/// Checks that a file which the agent is about to delete is as the agent knows it, if it has read or written it. Returns
/// that file; none if its content does not matter.
///
/// # Errors
/// The text for the model.
pub(super) async fn check_deletion(context: &FileContext<'_>, path: &str) -> Result<Option<Arc<File>>, String> {
    if seen(context.state, path).is_none() {
        return Ok(None);
    }
    // A file that cannot be read any more may be deleted.
    let current = context.read(path).await.ok().flatten();
    check(context, path, current.as_deref(), true)?;
    Ok(current)
}

/// Checks that the agent knows the file `current`, which it is about to change. A file that it has never read must not
/// have been written while it was at work, unless `is_edit`: an edit names the text that it replaces.
///
/// # Errors
/// The text for the model.
pub(super) fn check(
    context: &FileContext<'_>,
    path: &str,
    current: Option<&File>,
    is_edit: bool,
) -> Result<(), String> {
    let Some(current) = current.filter(|_| context.workspace.is_shared(path)) else {
        return Ok(());
    };
    let began = context.scope.budget.meter().since().to_string();
    let is_known = match seen(context.state, path) {
        Some(seen) => seen == hash(current),
        None => is_edit || current.modified_at.as_ref().is_none_or(|modified| *modified < began),
    };
    if is_known { Ok(()) } else { Err(conflict(path)) }
}
