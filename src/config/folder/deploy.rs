//! The layout of `deepagents.toml`: the settings in `[agent]`, the instructions in the AGENTS.md beside it, subagents in
//! folders of the same layout.
//!
//! Its other sections are about the place where such an agent was to be served: a sandbox, sign-in, a web page. They are
//! named in a warning, and keys that the layout does not have are mistakes.

use serde_json::{Map, Value};

use super::entry::FolderEntry;
use super::{Role, Search};
use crate::config::document;
use crate::config::problem::{Positions, Problem};
use crate::definition::FieldPath;

/// The model of an agent of this layout that names none.
pub(super) const DEFAULT_MODEL: &str = "anthropic:claude-sonnet-4-6";

/// A section, its keys, and what becomes of it.
struct Section {
    name: &'static str,
    keys: &'static [&'static str],
    /// The key and the values with which the section asks for nothing.
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
        instead: "whoever reaches the server may use it, so let something in front of it ask who is there",
    },
    Section {
        name: "memories",
        keys: &["backend", "identifier", "agent_writable"],
        idle: None,
        instead: "what outlasts a thread is kept in the Store",
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
pub(super) fn read(
    search: &mut Search<'_>,
    place: &FolderEntry,
    (holds, role): (&FieldPath, Role),
    into: &mut Map<String, Value>,
) -> Option<()> {
    let text = search.text(place)?;
    let mut document = document::parse(&place.to_string(), &text);
    if !document.problems.is_empty() {
        search.problems.extend(document.problems);
        return None;
    }
    let agent = document.value.shift_remove("agent").unwrap_or_default();
    for (name, section) in &document.value {
        check_section(search, place, role, (name, section), &document.places);
    }
    let Value::Object(mut agent) = agent else {
        search
            .problems
            .push(place.problem("must have a section `[agent]` with at least a `name`"));
        return None;
    };
    let position = |key: &str| document.places.get(&FieldPath::of(["agent", key])).copied();
    for key in agent.keys().filter(|key| !AGENT_KEYS.contains(&key.as_str())) {
        let problem = place.problem(format!("unknown key; allowed are: {}", AGENT_KEYS.join(", ")));
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
        let problem = place.problem("must be given");
        let at = document.places.get(&FieldPath::of(["agent"])).copied();
        search.problems.push(
            Problem {
                field: "agent.name".to_owned(),
                ..problem
            }
            .at(at),
        );
    }
    if role == Role::Agent {
        agent.entry("model").or_insert_with(|| DEFAULT_MODEL.into());
    }
    let own = |(field, at): (&FieldPath, &_)| Some((field.after(&FieldPath::of(["agent"]))?, *at));
    let places: Positions = document.places.iter().filter_map(own).collect();
    search.add(place, agent, &places, into);
    search.note(place, holds, places);
    Some(())
}

/// Says what becomes of a section that is not the agent's.
fn check_section(
    search: &mut Search<'_>,
    place: &FolderEntry,
    role: Role,
    (name, value): (&str, &Value),
    places: &Positions,
) {
    let at = places.get(&FieldPath::of([name])).copied();
    let known = SECTIONS
        .iter()
        .find(|section| section.name == name && role == Role::Agent);
    let Some(section) = known else {
        let message = match role {
            Role::Agent => "unknown section; allowed are: agent, sandbox, auth, memories, frontend",
            Role::Subagent => "a subagent has a section `[agent]` and no other",
        };
        search.problems.push(
            Problem {
                field: name.to_owned(),
                ..place.problem(message)
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
        let problem = place.problem(format!("unknown key; allowed are: {}", section.keys.join(", ")));
        let at = places.get(&FieldPath::of([name, key.as_str()])).copied();
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
        // Left out, these default to what asks for nothing.
        None => true,
    });
    if !is_idle {
        let message = format!("is not supported: {}", section.instead);
        search.problems.push(
            Problem {
                field: name.to_owned(),
                ..place.warning(message)
            }
            .at(at),
        );
    }
}
