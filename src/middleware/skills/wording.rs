//! The texts for the model about skills.

use serde_json::Value;

use super::catalog::Source;
use crate::definition::skill::{Skill, instructions};
use crate::domain::text_limits::cut_after;

/// The maximum number of errors that are listed.
const MAX_ERRORS: usize = 10;
/// The maximum length of a listed error, in characters.
const MAX_ERROR_CHARS: usize = 300;
/// The maximum length of a pinned skill in the conversation, in characters.
const MAX_PINNED_CHARS: usize = 80_000;

const INTRODUCTION: &str = "A skill is a folder with instructions for one kind of work. Below you see of each only what it \
    is for. When one fits the task, read its file with `read_file` before you begin, to the last line, and follow it. \
    Other files that it mentions lie in the same folder and are read in the same way. Read no skill that does not fit.";

/// Returns the section of the instructions; none if it would be empty.
pub(super) fn section(sources: &[Source], skills: &[Skill], errors: &[Value]) -> Option<String> {
    if skills.is_empty() && errors.is_empty() {
        return None;
    }
    let mut lines = vec![
        "## Skills".to_owned(),
        String::new(),
        INTRODUCTION.to_owned(),
        String::new(),
    ];
    if sources.len() > 1 {
        lines.push("They come from these folders, of which a later one precedes an earlier one:".to_owned());
        lines.extend(
            sources
                .iter()
                .map(|source| format!("- {} (`{}`)", quoted(&source.label), quoted(&source.folder))),
        );
        lines.push(String::new());
    }
    if skills.is_empty() {
        lines.push("There is none at the moment.".to_owned());
    }
    lines.extend(skills.iter().map(entry));
    if !errors.is_empty() {
        lines.extend([
            String::new(),
            "Some could not be looked for; tell the user if that matters:".to_owned(),
        ]);
        let listed = errors.iter().filter_map(Value::as_str).take(MAX_ERRORS);
        lines.extend(listed.map(|error| format!("- {}", cut_after(&quoted(error), MAX_ERROR_CHARS, "…"))));
        if errors.len() > MAX_ERRORS {
            lines.push(format!("- and {} more", errors.len() - MAX_ERRORS));
        }
    }
    Some(lines.join("\n"))
}

fn entry(skill: &Skill) -> String {
    let mut notes = vec![];
    notes.extend(skill.license.as_ref().map(|license| format!("license: {license}")));
    notes.extend(
        skill
            .compatibility
            .as_ref()
            .map(|needs| format!("compatibility: {needs}")),
    );
    if !skill.allowed_tools.is_empty() {
        notes.push(format!("allowed tools: {}", skill.allowed_tools.join(", ")));
    }
    let notes = if notes.is_empty() {
        String::new()
    } else {
        format!(" ({})", quoted(&notes.join("; ")))
    };
    let name = quoted(&skill.name);
    let about = quoted(&skill.description);
    let path = quoted(&skill.path);
    format!("- {name}: {about}{notes}\n  Read `{path}`")
}

/// Returns the message for a pinned skill.
pub(super) fn pinned(skill: &Skill, text: &str) -> String {
    let name = quoted(&skill.name);
    let path = quoted(&skill.path);
    let rest = "\n[It goes on; read the rest with `read_file`.]";
    let body = cut_after(instructions(text), MAX_PINNED_CHARS, rest);
    format!("Follow the skill `{name}` (`{path}`):\n\n{body}")
}

/// Returns a file's text on one line, without anything that looks like the end of the quotation.
fn quoted(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('`', "'")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}
