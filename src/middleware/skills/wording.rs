//! What a model reads about skills.

use serde_json::Value;

use super::catalog::Source;
use crate::definition::skill::{Skill, instructions};

/// How many things that went wrong are told.
const MOST_ERRORS: usize = 10;
/// How many characters of one are told.
const LONGEST_ERROR: usize = 300;
/// How many characters of a pinned skill come into the conversation.
const LONGEST_PINNED: usize = 80_000;

const INTRODUCTION: &str = "A skill is a folder with instructions for one kind of work. Below you see of each only what it \
    is for. When one fits the task, read its file with `read_file` before you begin, to the last line, and follow it. \
    Other files that it mentions lie in the same folder and are read in the same way. Read no skill that does not fit.";

/// The section of the instructions; none when there is nothing to tell.
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
                .map(|source| format!("- {} (`{}`)", plain(&source.label), plain(&source.folder))),
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
        let told = errors.iter().filter_map(Value::as_str).take(MOST_ERRORS);
        lines.extend(told.map(|error| format!("- {}", cut(&plain(error), LONGEST_ERROR))));
        if errors.len() > MOST_ERRORS {
            lines.push(format!("- and {} more", errors.len() - MOST_ERRORS));
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
        format!(" ({})", plain(&notes.join("; ")))
    };
    let name = plain(&skill.name);
    let about = plain(&skill.description);
    let path = plain(&skill.path);
    format!("- {name}: {about}{notes}\n  Read `{path}`")
}

/// The message that a pinned skill becomes.
pub(super) fn pinned(skill: &Skill, text: &str) -> String {
    let name = plain(&skill.name);
    let path = plain(&skill.path);
    let body = instructions(text);
    let head = format!("Follow the skill `{name}` (`{path}`):");
    match body.char_indices().nth(LONGEST_PINNED) {
        None => format!("{head}\n\n{body}"),
        Some((end, _)) => format!(
            "{head}\n\n{}\n[It goes on; read the rest with `read_file`.]",
            &body[..end]
        ),
    }
}

/// A text from a file on one line and without what could be taken for the end of a quotation.
fn plain(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('`', "'")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
