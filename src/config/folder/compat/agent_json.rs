//! The layout of `agent.json`: settings in that file, tools in `tools.json` ([`tools_json`](super::tools_json)), instructions
//! in `AGENTS.md`, and subagents in folders of the same layout, named after their folders.

use serde_json::{Map, Value};

use super::deepagents_toml::DEFAULT_MODEL;
use crate::config::folder::entry::FolderEntry;
use crate::config::folder::{FolderRole, Search};
use crate::config::problem::Positions;
use crate::definition::FieldPath;

const AGENT_KEYS: [&str; 8] = [
    "name",
    "description",
    "agent_id",
    "model",
    "runtime",
    "backend",
    "permissions",
    "extras",
];
const SUBAGENT_KEYS: [&str; 3] = ["description", "model", "model_id"];

/// Reads an `agent.json`.
pub(in crate::config::folder) fn read(
    search: &mut Search<'_>,
    folder: &FolderEntry,
    prefix: &FieldPath,
    role: FolderRole,
    into: &mut Map<String, Value>,
) -> Option<()> {
    let entry = folder.join("agent.json");
    let mut agent = search.object(&entry)?;
    let allowed: &[&str] = if role == FolderRole::Agent {
        &AGENT_KEYS
    } else {
        &SUBAGENT_KEYS
    };
    for key in agent.keys().filter(|key| !allowed.contains(&key.as_str())) {
        search.report_error(
            &entry,
            key,
            &format!("unknown key; allowed are: {}", allowed.join(", ")),
        );
    }
    agent.retain(|key, _| allowed.contains(&key.as_str()));
    match role {
        FolderRole::Agent => main_agent(search, &entry, &mut agent),
        FolderRole::Subagent => subagent(search, &entry, &mut agent, into),
    }
    // Problems below name the fields of this file, which has no positions.
    search.add(&entry, agent, &Positions::new(), into);
    search.add_origin(&entry, prefix, Positions::new());
    Some(())
}

fn main_agent(search: &mut Search<'_>, entry: &FolderEntry, agent: &mut Map<String, Value>) {
    if !agent.contains_key("name") {
        search.report_error(entry, "name", "must be given");
    }
    let runtime = agent.shift_remove("runtime");
    if let Some(runtime) = &runtime {
        match runtime.pointer("/model/model_id") {
            _ if agent.contains_key("model") => {
                search.report_error(entry, "runtime", "cannot be combined with `model`: both name the model");
            }
            Some(model) => drop(agent.insert("model".to_owned(), model.clone())),
            None => {
                search.report_error(
                    entry,
                    "runtime",
                    "must be `{\"model\": {\"model_id\": \"provider:model-name\"}}`",
                );
            }
        }
    } else if !agent.contains_key("model") {
        search.report_warning(entry, "model", &format!("is not given, so it is {DEFAULT_MODEL}"));
        agent.insert("model".to_owned(), DEFAULT_MODEL.into());
    }
    match agent.shift_remove("backend") {
        None => {}
        Some(backend) => match backend.get("type").and_then(Value::as_str) {
            Some("state") if backend.get("sandbox_config").is_none() => {}
            Some("state") => {
                search.report_error(
                    entry,
                    "backend.sandbox_config",
                    "is only allowed with `\"type\": \"sandbox\"`",
                );
            }
            Some("sandbox") => {
                let text =
                    "`sandbox` is not supported: the agent's files are kept in the thread and it runs no programs";
                search.report_warning(entry, "backend", text);
            }
            Some(_) | None => search.report_error(entry, "backend.type", "must be `state` or `sandbox`"),
        },
    }
    if agent.shift_remove("permissions").is_some() {
        let text = "is not supported: anyone who can reach the server can use the agent";
        search.report_warning(entry, "permissions", text);
    }
    // Both fields belong to the platform that hosted the agent before.
    agent.retain(|key, _| !matches!(key.as_str(), "agent_id" | "extras"));
}

fn subagent(search: &mut Search<'_>, entry: &FolderEntry, agent: &mut Map<String, Value>, text: &Map<String, Value>) {
    if let Some(model) = agent.shift_remove("model_id") {
        if agent.contains_key("model") {
            search.report_error(entry, "model_id", "is an older name of `model`, which is given, too");
        } else {
            agent.insert("model".to_owned(), model);
        }
    }
    // The layout does not require a description, but a delegating model needs one.
    if !agent.contains_key("description") && !text.contains_key("description") {
        let prompt = text.get("system_prompt").and_then(Value::as_str).unwrap_or_default();
        let line = prompt
            .lines()
            .map(|line| line.trim_start_matches(['#', ' ']))
            .find(|line| !line.trim().is_empty());
        if let Some(line) = line {
            search.report_warning(
                entry,
                "description",
                "is not given, so it is the first line of the instructions",
            );
            agent.insert("description".to_owned(), line.trim().into());
        }
    }
}
