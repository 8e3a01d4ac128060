//! The layout of `deepagents.toml`: settings in `[agent]`, instructions in the `AGENTS.md` beside it, and subagents
//! in folders of the same layout.
//!
//! The other sections configure a hosting platform: a sandbox, authentication, a web page. They are reported as
//! warnings; unknown keys are errors.

use serde_json::{Map, Value};

use crate::config::document;
use crate::config::folder::entry::FolderEntry;
use crate::config::folder::{FolderRole, Search};
use crate::config::problem::{Positions, Problem};
use crate::definition::FieldPath;

/// The model of an agent in this layout that names none.
pub(super) const DEFAULT_MODEL: &str = "anthropic:claude-sonnet-4-6";

/// A section with its keys, and the advice about it.
struct Section {
    name: &'static str,
    keys: &'static [&'static str],
    /// A key, and the values that disable the section.
    idle: Option<(&'static str, &'static [&'static str])>,
    instead: &'static str,
}

const SECTIONS: [Section; 4] = [
    Section {
        name: "sandbox",
        keys: &["provider", "template", "image", "scope"],
        idle: Some(("provider", &["none"])),
        instead: "the agent has none; its files are kept in the thread and it runs no programs",
    },
    Section {
        name: "auth",
        keys: &["provider"],
        idle: Some(("provider", &["anonymous"])),
        instead: "anyone who can reach the server can use it, so authenticate clients in a proxy in front of it",
    },
    Section {
        name: "memories",
        keys: &["backend", "identifier", "agent_writable"],
        idle: None,
        instead: "data that outlives a thread is kept in the Store",
    },
    Section {
        name: "frontend",
        keys: &["enabled", "app_name", "subtitle", "prompts"],
        idle: Some(("enabled", &["false"])),
        instead: "a page of your own can use the API",
    },
];

const AGENT_KEYS: [&str; 3] = ["name", "description", "model"];

/// Reads a `deepagents.toml`.
pub(in crate::config::folder) fn read(
    search: &mut Search<'_>,
    entry: &FolderEntry,
    prefix: &FieldPath,
    role: FolderRole,
    into: &mut Map<String, Value>,
) -> Option<()> {
    let text = search.text(entry)?;
    let mut document = document::parse(&entry.to_string(), &text);
    if !document.problems.is_empty() {
        search.problems.extend(document.problems);
        return None;
    }
    let agent = document.value.shift_remove("agent").unwrap_or_default();
    for (name, section) in &document.value {
        check_section(search, entry, role, name, section, &document.positions);
    }
    let Value::Object(mut agent) = agent else {
        search
            .problems
            .push(entry.problem("must have a section `[agent]` with at least a `name`"));
        return None;
    };
    let position = |key: &str| document.positions.get(&FieldPath::of(["agent", key])).copied();
    for key in agent.keys().filter(|key| !AGENT_KEYS.contains(&key.as_str())) {
        let problem = entry.problem(format!("unknown key; allowed are: {}", AGENT_KEYS.join(", ")));
        search.problems.push(
            Problem {
                field: format!("agent.{key}"),
                ..problem
            }
            .at(position(key)),
        );
    }
    agent.retain(|key, _| AGENT_KEYS.contains(&key.as_str()));
    if !agent.contains_key("name") {
        let problem = entry.problem("must be given");
        let at = document.positions.get(&FieldPath::of(["agent"])).copied();
        search.problems.push(
            Problem {
                field: "agent.name".to_owned(),
                ..problem
            }
            .at(at),
        );
    }
    if role == FolderRole::Agent {
        agent.entry("model").or_insert_with(|| DEFAULT_MODEL.into());
    }
    let own = |(field, at): (&FieldPath, &_)| Some((field.after(&FieldPath::of(["agent"]))?, *at));
    let positions: Positions = document.positions.iter().filter_map(own).collect();
    search.add(entry, agent, &positions, into);
    search.add_origin(entry, prefix, positions);
    Some(())
}

/// Warns about a section other than `[agent]`.
fn check_section(
    search: &mut Search<'_>,
    entry: &FolderEntry,
    role: FolderRole,
    name: &str,
    value: &Value,
    positions: &Positions,
) {
    let at = positions.get(&FieldPath::of([name])).copied();
    let known = SECTIONS
        .iter()
        .find(|section| section.name == name && role == FolderRole::Agent);
    let Some(section) = known else {
        let message = match role {
            FolderRole::Agent => "unknown section; allowed are: agent, sandbox, auth, memories, frontend",
            FolderRole::Subagent => "a subagent has a section `[agent]` and no other",
        };
        search.problems.push(
            Problem {
                field: name.to_owned(),
                ..entry.problem(message)
            }
            .at(at),
        );
        return;
    };
    for key in value
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
        .filter(|key| !section.keys.contains(&key.as_str()))
    {
        let problem = entry.problem(format!("unknown key; allowed are: {}", section.keys.join(", ")));
        let at = positions.get(&FieldPath::of([name, key.as_str()])).copied();
        search.problems.push(
            Problem {
                field: format!("{name}.{key}"),
                ..problem
            }
            .at(at),
        );
    }
    let is_idle = section.idle.is_some_and(|(key, values)| match value.get(key) {
        Some(Value::String(word)) => values.contains(&word.as_str()),
        Some(Value::Bool(truth)) => values.contains(&truth.to_string().as_str()),
        Some(_) => false,
        // Without a value, the section is disabled.
        None => true,
    });
    if !is_idle {
        let message = format!("is not supported: {}", section.instead);
        search.problems.push(
            Problem {
                field: name.to_owned(),
                ..entry.warning(message)
            }
            .at(at),
        );
    }
}
