//! The layout of `agent.json`: the settings there, the tools in a `tools.json`, the instructions in the AGENTS.md beside
//! them, subagents in folders of the same layout, which have their names.
//!
//! The tools are named by the servers that offer them; here a tool of each name has to be declared in the configuration.

use serde_json::{Map, Value};

use super::deploy::DEFAULT_MODEL;
use super::place::Place;
use super::{Role, Search};
use crate::config::problem::{Places, Problem};
use crate::domain::definition::FieldPath;

const AGENT_KEYS: [&str; 8] =
    ["name", "description", "agent_id", "model", "runtime", "backend", "permissions", "extras"];
const SUBAGENT_KEYS: [&str; 3] = ["description", "model", "model_id"];

/// Reads an `agent.json` and the `tools.json` beside it.
pub(super) fn read(
    search: &mut Search<'_>,
    folder: &Place,
    (holds, role): (&FieldPath, Role),
    into: &mut Map<String, Value>,
) -> Option<()> {
    let place = folder.join("agent.json");
    let mut agent = object(search, &place)?;
    let allowed: &[&str] = if role == Role::Agent { &AGENT_KEYS } else { &SUBAGENT_KEYS };
    for key in agent.keys().filter(|key| !allowed.contains(&key.as_str())) {
        complain(search, &place, key, &format!("unknown key; allowed are: {}", allowed.join(", ")));
    }
    agent.retain(|key, _| allowed.contains(&key.as_str()));
    match role {
        Role::Agent => main_agent(search, &place, &mut agent),
        Role::Subagent => subagent(search, &place, &mut agent, into),
    }
    // What follows tells of fields by their names in this file, which has no places of its own.
    search.add(&place, agent, &Places::new(), into);
    search.note(&place, holds, Places::new());
    let tools = folder.join("tools.json");
    if tools.real.exists() {
        let listed = read_tools(search, &tools)?;
        search.add(&tools, listed, &Places::new(), into);
        search.note(&tools, &holds.then("tools"), Places::new());
    }
    Some(())
}

fn main_agent(search: &mut Search<'_>, place: &Place, agent: &mut Map<String, Value>) {
    if !agent.contains_key("name") {
        complain(search, place, "name", "must be given");
    }
    let runtime = agent.shift_remove("runtime");
    if let Some(runtime) = &runtime {
        match runtime.pointer("/model/model_id") {
            _ if agent.contains_key("model") => {
                complain(search, place, "runtime", "goes without `model` only: both say which model it is");
            }
            Some(model) => drop(agent.insert("model".to_owned(), model.clone())),
            None => {
                complain(search, place, "runtime", "must be `{\"model\": {\"model_id\": \"provider:model-name\"}}`");
            }
        }
    } else if !agent.contains_key("model") {
        remark(search, place, "model", &format!("is not given, so it is {DEFAULT_MODEL}"));
        agent.insert("model".to_owned(), DEFAULT_MODEL.into());
    }
    match agent.shift_remove("backend") {
        None => {}
        Some(backend) => match backend.get("type").and_then(Value::as_str) {
            Some("state") if backend.get("sandbox_config").is_none() => {}
            Some("state") => {
                complain(search, place, "backend.sandbox_config", "goes with `\"type\": \"sandbox\"` only");
            }
            Some("sandbox") => {
                let text =
                    "`sandbox` is not supported: the agent's files are kept in the thread and it runs no programs";
                remark(search, place, "backend", text);
            }
            Some(_) | None => complain(search, place, "backend.type", "must be `state` or `sandbox`"),
        },
    }
    if agent.shift_remove("permissions").is_some() {
        let text = "is not supported: whoever reaches the server may use the agent";
        remark(search, place, "permissions", text);
    }
    // These belong to the place where the agent was served before.
    agent.retain(|key, _| !matches!(key.as_str(), "agent_id" | "extras"));
}

fn subagent(search: &mut Search<'_>, place: &Place, agent: &mut Map<String, Value>, text: &Map<String, Value>) {
    if let Some(model) = agent.shift_remove("model_id") {
        if agent.contains_key("model") {
            complain(search, place, "model_id", "is an older name of `model`, which is given, too");
        } else {
            agent.insert("model".to_owned(), model);
        }
    }
    // The layout lets it be left out; a model has to choose by something.
    if !agent.contains_key("description") && !text.contains_key("description") {
        let prompt = text.get("system_prompt").and_then(Value::as_str).unwrap_or_default();
        let line = prompt.lines().map(|line| line.trim_start_matches(['#', ' '])).find(|line| !line.trim().is_empty());
        if let Some(line) = line {
            remark(search, place, "description", "is not given, so it is the first line of the instructions");
            agent.insert("description".to_owned(), line.trim().into());
        }
    }
}

/// The names of the tools, and which of them need leave.
fn read_tools(search: &mut Search<'_>, place: &Place) -> Option<Map<String, Value>> {
    let mut file = object(search, place)?;
    let mut names = vec![];
    match file.shift_remove("tools") {
        Some(Value::Array(tools)) => {
            for (at, tool) in tools.iter().enumerate() {
                let word = |key: &str| tool.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
                match (word("name"), word("mcp_server_url")) {
                    (Some(name), Some(_)) => names.push(Value::from(name)),
                    _ => complain(search, place, &format!("tools[{at}]"), "must have a `name` and an `mcp_server_url`"),
                }
            }
        }
        Some(_) | None => complain(search, place, "tools", "must be a list"),
    }
    let mut rules = Map::new();
    match file.shift_remove("interrupt_config") {
        None => {}
        Some(Value::Object(config)) => {
            for (key, rule) in config {
                match key.split("::").nth(1) {
                    // What asks for nothing may speak of tools that are not there.
                    Some(_) if rule == Value::Bool(false) => {}
                    Some(tool) => drop(rules.insert(tool.to_owned(), rule)),
                    None => {
                        complain(search, place, &format!("interrupt_config.{key}"), "must be `<server url>::<tool>`");
                    }
                }
            }
        }
        Some(_) => complain(search, place, "interrupt_config", "must be a table"),
    }
    for key in file.keys() {
        complain(search, place, key, "unknown key; allowed are: tools, interrupt_config");
    }
    let mut listed = Map::from_iter([("tools".to_owned(), Value::Array(names))]);
    if !rules.is_empty() {
        listed.insert("interrupt_on".to_owned(), Value::Object(rules));
    }
    Some(listed)
}

fn object(search: &mut Search<'_>, place: &Place) -> Option<Map<String, Value>> {
    let text = search.text(place)?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Some(object),
        Ok(_) => {
            search.problems.push(place.problem("must be a JSON object"));
            None
        }
        Err(error) => {
            let said = error.to_string();
            let said = said.split(" at line ").next().unwrap_or_default();
            let problem = place.problem(format!("is no JSON: {said}"));
            search.problems.push(problem.at(Some((error.line(), error.column()))));
            None
        }
    }
}

fn complain(search: &mut Search<'_>, place: &Place, field: &str, message: &str) {
    search.problems.push(Problem { field: field.to_owned(), ..place.problem(message) });
}

fn remark(search: &mut Search<'_>, place: &Place, field: &str, message: &str) {
    search.problems.push(Problem { field: field.to_owned(), ..place.warning(message) });
}
