//! Subagents of coding agents: `.deepagents/agents/<name>/AGENTS.md`, with `description` and optionally `name` and
//! `model` in the front matter, and the instructions below.
//!
//! Such folders are shared with other programs that ignore what they cannot use; so does this one, with a warning.

use std::path::Path;

use serde_json::{Map, Value};

use crate::config::folder::Search;
use crate::config::folder::entry::FolderEntry;
use crate::config::markdown;
use crate::config::problem::{Problem, SettingOrigin};
use crate::definition::{FieldPath, SubagentDefinition, read};

/// Adds the subagents of a project's folder to `list`, the subagents of an agent. Returns the files that hold the
/// parts of the agent.
pub(in crate::config) fn load(
    folder: &Path,
    display_path: &Path,
    list: &mut Vec<Value>,
    problems: &mut Vec<Problem>,
) -> Vec<SettingOrigin> {
    let mut search = Search {
        origins: vec![],
        problems,
    };
    add(&mut search, &FolderEntry::root(folder, display_path), list);
    search.origins
}

/// Adds the subagents within the folder of an agent.
pub(in crate::config::folder) fn add(search: &mut Search<'_>, folder: &FolderEntry, list: &mut Vec<Value>) {
    let declared = list.len();
    for entry in search.entries(folder) {
        let Some(subagent) = subagent(search, &entry) else {
            continue;
        };
        let name = subagent.get("name").cloned();
        let twin = list.iter().position(|other| other.get("name") == name.as_ref());
        let at = match twin {
            Some(twin) if twin < declared => {
                search
                    .problems
                    .push(entry.warning("is ignored: the agent declares a subagent of this name"));
                continue;
            }
            Some(twin) => {
                search
                    .problems
                    .push(entry.warning("overrides another subagent of the same name"));
                twin
            }
            None => list.len(),
        };
        let subagent = Value::Object(subagent);
        match list.get_mut(at) {
            Some(old) => *old = subagent,
            None => list.push(subagent),
        }
        let file = entry.join("AGENTS.md");
        search.add_origin(&file, &FieldPath::of(["subagents"]).then(at), Default::default());
    }
}

fn subagent(search: &mut Search<'_>, entry: &FolderEntry) -> Option<Map<String, Value>> {
    let mut pass_over = |entry: &FolderEntry, reason: String| {
        search.problems.push(entry.warning(format!("is ignored: {reason}")));
        None
    };
    let file = entry.join("AGENTS.md");
    if !entry.real.is_dir() {
        return pass_over(entry, "a subagent is a folder with an AGENTS.md".to_owned());
    }
    if !file.real.is_file() {
        return pass_over(entry, "it has no AGENTS.md".to_owned());
    }
    let text = match file.text() {
        Ok(text) => text,
        Err(problem) => return pass_over(&file, problem.message),
    };
    let parts = match markdown::parse(&file.to_string(), &text) {
        Ok(parts) => parts,
        Err(problem) => return pass_over(&file, problem.message),
    };
    let mut settings = parts.settings;
    settings.insert("system_prompt".to_owned(), Value::String(parts.body));
    settings.entry("name").or_insert_with(|| Value::String(entry.name()));
    let is_blank = |key: &str| {
        settings
            .get(key)
            .is_none_or(|value| value.as_str().is_none_or(|text| text.trim().is_empty()))
    };
    if let Some(key) = ["name", "description"].into_iter().find(|key| is_blank(key)) {
        return pass_over(&file, format!("`{key}` must be a text that is not blank"));
    }
    let reading = read::<SubagentDefinition>(Value::Object(settings.clone()));
    match reading.findings.first() {
        Some(finding) => pass_over(&file, finding.to_string()),
        None => Some(settings),
    }
}
