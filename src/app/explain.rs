//! `adjutant check --explain AGENT`: the policies of an agent in their order, with what each of them brings.
//!
//! The agent is assembled as the server would, but nothing is connected to: the tools of MCP servers are named as the
//! definition names them.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use serde::Serialize;
use serde_json::{Map, Value};

use super::builder::Prepared;
use super::{peers, providers, tools};
use crate::agent::Agent;
use crate::agent::assemble::AgentFactory;
use crate::definition::{
    AgentDefinition, DefinitionSource, HarnessProfiles, INHERITED_FIELDS, POLICY_FIELDS, Policy, SubagentDefinition,
    suggestion,
};
use crate::domain::machine::HookPoint;
use crate::domain::text_limits::cut_after;
use crate::middleware::{Middleware, instance_name};
use crate::shutdown::Shutdown;
use crate::tool::remote;

/// The characters of a text that are shown in a line.
const SHOWN: usize = 100;

/// An agent, explained.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct AgentExplanation {
    /// The name.
    name: String,
    /// The model; none for a program, or an agent of another server.
    model: Option<String>,
    /// The program, or the agent of another server, that does the work instead of a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    /// The instructions of the definition, to which the policies add theirs.
    system_prompt: String,
    /// The tools that the definition names.
    tools: Vec<String>,
    /// The parts that each run may choose.
    #[serde(skip_serializing_if = "Value::is_null")]
    configurable: Value,
    /// The policies, outermost first.
    stack: Vec<PolicyExplanation>,
    /// The subagents that are defined with the agent.
    subagents: Vec<AgentExplanation>,
}

/// A policy of an agent, and what it brings.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct PolicyExplanation {
    /// The name.
    name: String,
    /// The places in the loop where it runs, besides those around calls.
    hooks: Vec<&'static str>,
    /// The tools.
    tools: Vec<String>,
    /// The text that it adds to the instructions.
    prompt: Option<String>,
    /// The fields of the state.
    fields: Vec<&'static str>,
    /// The settings that the definition gives.
    settings: Map<String, Value>,
}

/// Explains the agent of this `graph_id`.
///
/// # Errors
/// If there is no such agent, or it cannot be assembled.
pub(super) fn explain(prepared: &Prepared, graph_id: &str) -> anyhow::Result<AgentExplanation> {
    let config = &prepared.loaded().config;
    let registered = prepared.registered();
    let definition = config.agents.get(graph_id).ok_or_else(|| {
        let known = suggestion(graph_id, config.agents.keys().map(String::as_str), "there are");
        anyhow!("there is no agent `{graph_id}`; {known}")
    })?;
    let client = remote::client().context("could not create the HTTP client for tools")?;
    let mut all_tools = tools(config, &client)?;
    all_tools.extend(registered.tools.clone());
    let providers = providers(config).with_own(registered.sources());
    // Nothing is started that would have to be ended.
    let shutdown = Shutdown::new(std::time::Duration::ZERO);
    let factory = AgentFactory {
        tools: Arc::new(all_tools),
        runnables: Arc::new(registered.runnables.clone()),
        policies: Arc::new(registered.policies.clone()),
        profiles: Arc::new(HarnessProfiles(config.profiles.clone())),
        commands: registered.commands.clone(),
        sandboxes: super::sandboxes(config, &client)?,
        ..AgentFactory::new(providers, peers(config, &shutdown)?)
    };
    let applied = factory.profiles.applied(definition.resolved());
    let known = factory.register(graph_id, definition, &DefinitionSource::File(graph_id.to_owned()))?;
    Ok(main_agent(known.agent(), &applied))
}

fn main_agent(agent: &Agent, definition: &AgentDefinition) -> AgentExplanation {
    let given = fields_of(definition);
    let delegates = definition.delegates();
    let below = delegates.iter().filter_map(|subagent| {
        let built = agent.own_subagent(&subagent.name, 1)?;
        Some(subagent_of(&built, subagent, definition))
    });
    AgentExplanation {
        name: agent.name.clone(),
        model: (!definition.is_program()).then(|| definition.model.to_string()),
        program: definition.is_program().then(|| definition.worker()),
        system_prompt: definition.system_prompt.text(),
        tools: definition.tools.clone(),
        configurable: given.get("configurable").cloned().unwrap_or_default(),
        stack: stack(agent, &definition.middleware, &given),
        subagents: below.collect(),
    }
}

fn subagent_of(agent: &Agent, subagent: &SubagentDefinition, parent: &AgentDefinition) -> AgentExplanation {
    let mut given = fields_of(parent);
    let mut listed = vec![];
    let mut system_prompt = &subagent.system_prompt;
    if agent.is_fork {
        listed.extend(parent.middleware.iter().cloned());
        system_prompt = &parent.system_prompt;
    } else {
        given.retain(|name, _| INHERITED_FIELDS.contains(&name.as_str()));
    }
    given.extend(fields_of(subagent));
    listed.extend(subagent.middleware.iter().cloned());
    let program = subagent.external_worker();
    let has_model = program.is_none();
    let tools = subagent.tools.as_ref().unwrap_or(&parent.tools);
    AgentExplanation {
        name: agent.name.clone(),
        model: has_model.then(|| subagent.model.as_ref().unwrap_or(&parent.model).to_string()),
        program,
        system_prompt: system_prompt.text(),
        tools: tools.iter().filter(|_| has_model).cloned().collect(),
        configurable: Value::Null,
        stack: stack(agent, &listed, &given),
        subagents: vec![],
    }
}

/// Returns the fields that a definition gives.
fn fields_of(definition: &impl Serialize) -> Map<String, Value> {
    let Ok(Value::Object(mut given)) = serde_json::to_value(definition) else {
        return Map::new();
    };
    let is_default = |value: &Value| {
        let is_empty = value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty);
        is_empty || matches!(value, Value::Null | Value::Bool(false))
    };
    given.retain(|_, value| !is_default(value));
    given
}

fn stack(agent: &Agent, listed: &[Policy], given: &Map<String, Value>) -> Vec<PolicyExplanation> {
    let explained = agent
        .stack()
        .iter()
        .map(|policy| explain_policy(policy.as_ref(), listed, given));
    explained.collect()
}

fn explain_policy(policy: &dyn Middleware, listed: &[Policy], given: &Map<String, Value>) -> PolicyExplanation {
    let contribution = policy.contribution();
    let name = policy.name();
    let of_list = listed
        .iter()
        .find(|listed| is_instance(name, listed, policy.distinguished_by()));
    let fields = POLICY_FIELDS
        .iter()
        .find(|(other, _)| *other == name)
        .map_or(&[][..], |(_, fields)| *fields);
    let of_fields = fields
        .iter()
        .filter_map(|field| Some(((*field).to_owned(), given.get(*field)?.clone())));
    let mut settings: Map<String, Value> = of_fields.collect();
    settings.extend(of_list.map(|listed| listed.settings.clone()).unwrap_or_default());
    PolicyExplanation {
        name: name.to_owned(),
        hooks: policy
            .hook_points()
            .iter()
            .map(|point| HookPoint::word(*point))
            .collect(),
        tools: contribution.tools.iter().map(|tool| tool.spec().name.clone()).collect(),
        prompt: contribution.prompt,
        fields: contribution.fields.iter().map(|field| field.name).collect(),
        settings,
    }
}

/// Returns whether a policy of the stack is this one of a list.
fn is_instance(name: &str, listed: &Policy, distinguished_by: Option<&str>) -> bool {
    let setting = distinguished_by.and_then(|setting| listed.settings.get(setting)?.as_str());
    match setting {
        Some(setting) => name == instance_name(&listed.name, setting),
        None => name == listed.name,
    }
}

impl AgentExplanation {
    /// Returns the explanation as text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, "agent");
        text
    }

    fn write(&self, text: &mut String, kind: &str) {
        // Writing to a string cannot fail.
        let model = self.model.iter().map(|model| format!("model {model}"));
        let worker: Vec<String> = model.chain(self.program.clone()).collect();
        let _ = writeln!(text, "\n{kind} `{}`, {}", self.name, worker.join(", "));
        line(text, "instructions", &self.system_prompt);
        line(text, "tools", &self.tools.join(", "));
        for (part, choice) in self.configurable.as_object().into_iter().flatten() {
            line(text, "configurable", &format!("{part} = {choice}"));
        }
        for (at, policy) in self.stack.iter().enumerate() {
            let _ = writeln!(text, "  {}. {}", at + 1, policy.name);
            line(text, "hooks", &policy.hooks.join(", "));
            line(text, "tools", &policy.tools.join(", "));
            line(text, "prompt", policy.prompt.as_deref().unwrap_or_default());
            line(text, "fields", &policy.fields.join(", "));
            for (name, value) in &policy.settings {
                line(text, "setting", &format!("{name} = {value}"));
            }
        }
        for subagent in &self.subagents {
            subagent.write(text, "subagent");
        }
    }
}

/// Adds a line, unless there is nothing to say.
fn line(text: &mut String, name: &str, value: &str) {
    let flat = value.split_whitespace().collect::<Vec<_>>().join(" ");
    if flat.is_empty() {
        return;
    }
    let _ = writeln!(text, "       {name:<13}{}", cut_after(&flat, SHOWN, "…"));
}
