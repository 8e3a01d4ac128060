//! Notices for results of one step that write the same data: the later call wins, and its result says so.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::domain::field::Merge;
use crate::domain::message::Content;
use crate::domain::state::{Update, is_private};

/// Adds a notice to each result that overwrites an earlier result's data.
pub(super) fn report(writes: &mut [Update]) {
    let mut written = BTreeSet::new();
    for update in writes {
        let own = targets(update);
        let twice: Vec<&String> = own.iter().filter(|name| written.contains(*name)).collect();
        if !twice.is_empty() {
            let names: Vec<String> = twice.into_iter().map(|name| format!("`{name}`")).collect();
            let notice = format!(
                "Note: another call of the same message also wrote {}. This one's version stands.",
                names.join(", ")
            );
            add(update, &notice);
        }
        written.extend(own);
    }
}

/// Returns the names of the data that an update replaces rather than appends to.
fn targets(update: &Update) -> BTreeSet<String> {
    let replaced =
        |name: &&String| !is_private(name) && update.rules.get(*name).is_none_or(|rule| rule.merge == Merge::Last);
    let fields = update.fields.keys().filter(replaced).cloned();
    update.files.keys().cloned().chain(fields).collect()
}

fn add(update: &mut Update, notice: &str) {
    let Some(result) = update.messages.iter_mut().find(|message| message.answers().is_some()) else {
        return;
    };
    match &mut Arc::make_mut(result).content {
        Content::Text(text) if text.is_empty() => notice.clone_into(text),
        Content::Text(text) => *text = format!("{text}\n\n{notice}"),
        Content::Blocks(blocks) => blocks.push(serde_json::json!({"type": "text", "text": notice})),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::domain::field::{FieldRule, FieldVisibility};
    use crate::domain::message::{Message, ToolCall, ToolStatus};

    fn result(id: &str, field: &str, merge: Merge) -> Update {
        let call = ToolCall::new(id, "task", Map::new());
        let mut update = Update::messages([Message::tool(&call, ToolStatus::Success, "done")]);
        update.fields.insert(field.to_owned(), json!([id]));
        update.rules.insert(
            field.to_owned(),
            FieldRule {
                merge,
                visibility: FieldVisibility::Public,
            },
        );
        update
    }

    fn texts(mut writes: Vec<Update>) -> Vec<String> {
        report(&mut writes);
        writes.iter().map(|update| update.messages[0].content.text()).collect()
    }

    #[test]
    fn the_later_of_two_writes_to_one_field_has_a_notice() {
        let results = texts(vec![
            result("a", "x", Merge::Last),
            result("b", "y", Merge::Last),
            result("c", "x", Merge::Last),
        ]);
        assert_eq!(results[..2], ["done", "done"]);
        assert_eq!(
            results[2],
            "done\n\nNote: another call of the same message also wrote `x`. This one's version stands."
        );
    }

    #[test]
    fn writes_that_are_appended_need_no_notice() {
        assert_eq!(
            texts(vec![result("a", "x", Merge::Append), result("b", "x", Merge::Append)]),
            ["done", "done"]
        );
    }
}
