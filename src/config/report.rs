//! The report of `adjutant check`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{LoadedConfig, Problems, SettingOverride};
use crate::definition::mcp::McpServerDefinition;
use crate::definition::{
    AgentDefinition, Location, ModelNames, SubagentDefinition, SummarizationRule, WorkspaceDefinition,
};

/// Returns the report about a configuration, with `problems`: all that are known of it.
pub fn report(loaded: Option<&LoadedConfig>, problems: &Problems) -> String {
    let mut text = String::new();
    if let Some(loaded) = loaded {
        describe(&mut text, loaded);
    }
    if !problems.0.is_empty() {
        push(&mut text, &problems.to_string());
    }
    let errors = problems
        .0
        .iter()
        .filter(|problem| problem.severity == crate::definition::Severity::Error);
    let errors = errors.count();
    let all = problems.0.len();
    push(
        &mut text,
        &format!("{}, {}", counted(errors, "error"), counted(all - errors, "warning")),
    );
    text
}

fn describe(text: &mut String, loaded: &LoadedConfig) {
    let config = &loaded.config;
    push(text, &format!("configuration: {}", loaded.source));
    push(
        text,
        &format!(
            "listens on {}, keeps its data in {}",
            config.server.listen, config.storage.url
        ),
    );
    for SettingOverride { field, source } in &loaded.overrides {
        push(text, &format!("{field} is set by {source}"));
    }
    describe_servers(text, "", &config.mcp_servers);
    for name in config.tool_servers.keys() {
        push(text, &format!("tool server {name}: behind HTTP"));
    }
    for name in config.sandboxes.keys() {
        push(text, &format!("sandbox service {name}: behind HTTP"));
    }
    for (graph_id, agent) in &config.agents {
        describe_agent(text, graph_id, agent);
    }
}

fn describe_servers(text: &mut String, indent: &str, servers: &BTreeMap<String, McpServerDefinition>) {
    for (name, server) in servers {
        // Arguments and URLs may contain secrets.
        let kind = server
            .command
            .as_ref()
            .map_or("behind HTTP", |command| command.as_str());
        push(text, &format!("{indent}MCP server {name}: {kind}"));
    }
}

fn describe_agent(text: &mut String, graph_id: &str, agent: &AgentDefinition) {
    let name = agent.name.as_deref().unwrap_or(graph_id);
    if agent.is_program() {
        return push(text, &format!("agent {graph_id} ({name}): {}", agent.worker()));
    }
    push(
        text,
        &format!(
            "agent {graph_id} ({name}): model {}, tools {}",
            agent.model,
            list(&agent.tools)
        ),
    );
    for (field, workspace) in agent.workspaces() {
        // Defaults, and fields that a subagent has from its parent, go without saying.
        if *workspace != WorkspaceDefinition::default() {
            push(text, &format!("  {field}: {}", workspace.summary()));
        }
    }
    if let Some(commands) = agent.execute.summary(&agent.workspace) {
        push(text, &format!("  runs commands: {commands}"));
    }
    describe_servers(text, "  ", &agent.mcp_servers);
    let gated: Vec<&String> = agent
        .interrupt_on
        .iter()
        .filter(|(_, rule)| !rule.allowed().is_empty())
        .map(|(tool, _)| tool)
        .collect();
    if !gated.is_empty() {
        push(text, &format!("  asks before {}", list(&gated)));
    }
    describe_summarization(text, "  ", &agent.summarization);
    let general = &agent.general_purpose_subagent;
    let general_name = general.name.as_deref().unwrap_or("general-purpose");
    if general.enabled && agent.synchronous().all(|subagent| subagent.name != general_name) {
        push(text, &format!("  subagent {general_name}: built in"));
    }
    for subagent in &agent.subagents {
        describe_subagent(text, agent, subagent);
    }
}

fn describe_subagent(text: &mut String, parent: &AgentDefinition, subagent: &SubagentDefinition) {
    let way = if subagent.is_background() {
        "in the background"
    } else {
        "as a delegate"
    };
    let name = &subagent.name;
    match subagent.location() {
        Location::Inside => {}
        Location::Local(graph_id) => return push(text, &format!("  subagent {name}: agent {graph_id}, {way}")),
        Location::Remote { graph_id, url } => {
            return push(text, &format!("  subagent {name}: agent {graph_id} at {url}, {way}"));
        }
    }
    let model = subagent.model.as_ref();
    let model = model.map_or_else(|| "as its parent".to_owned(), ModelNames::to_string);
    if let Some(runnable) = &subagent.runnable {
        return push(text, &format!("  subagent {}: the program {runnable}", subagent.name));
    }
    let tools = subagent
        .tools
        .as_ref()
        .map_or_else(|| "as its parent".to_owned(), |tools| list(tools));
    push(text, &format!("  subagent {name}: model {model}, tools {tools}"));
    let workspace = subagent.workspace.as_ref().unwrap_or(&parent.workspace);
    let commands = subagent.execute.as_ref();
    if let Some(commands) = commands.and_then(|rule| rule.summary(workspace)) {
        push(text, &format!("    runs commands: {commands}"));
    }
    if let Some(rule) = &subagent.summarization {
        describe_summarization(text, "    ", rule);
    }
    describe_servers(text, "    ", &subagent.mcp_servers);
}

/// Describes summarisation where it is not as it is by default.
fn describe_summarization(text: &mut String, indent: &str, rule: &SummarizationRule) {
    match rule {
        SummarizationRule::Switch(true) => {}
        SummarizationRule::Switch(false) => push(text, &format!("{indent}summarization: off")),
        SummarizationRule::Settings(settings) => {
            let settings = serde_json::json!(settings);
            let given = settings.as_object().into_iter().flatten();
            // The instructions may be long.
            let given = given.map(|(name, value)| match name.as_str() {
                "summary_prompt" => "summary_prompt".to_owned(),
                name => format!("{name} {value}"),
            });
            let given: Vec<String> = given.collect();
            push(text, &format!("{indent}summarization: {}", list(&given)));
        }
    }
}

fn push(text: &mut String, line: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

fn list<T: AsRef<str>>(words: &[T]) -> String {
    if words.is_empty() {
        return "none".to_owned();
    }
    words.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(", ")
}

fn counted(number: usize, word: &str) -> String {
    if number == 1 {
        format!("1 {word}")
    } else {
        format!("{number} {word}s")
    }
}
