//! The names of the tools that an agent has: declared tools, and tools of policies.

use std::collections::BTreeSet;

use crate::definition::agent::{AgentDefinition, AgentSpec, SubagentDefinition};
use crate::definition::builtins::{ASK_USER, BACKGROUND, Builtin, FILES, SUBAGENTS, SUMMARIZATION, TODOS};
use crate::definition::workspace::Workspace;

/// Returns the tools of the main agent.
pub(super) fn of_agent(agent: &AgentDefinition) -> BTreeSet<&str> {
    let mut tools = of_policies(&agent.spec(""));
    tools.extend(agent.tools.iter().chain(&agent.skill_tools).map(String::as_str));
    tools
}

/// Returns the tools of a subagent.
pub(super) fn of_subagent<'a>(subagent: &'a SubagentDefinition, parent: &'a AgentDefinition) -> BTreeSet<&'a str> {
    let mut tools = of_policies(&subagent.spec(parent));
    let declared = subagent.tools.as_ref().unwrap_or(&parent.tools);
    tools.extend(declared.iter().chain(&subagent.skill_tools).map(String::as_str));
    tools
}

/// Returns the tools of the general-purpose subagent, or of a subagent that would be it.
pub(super) fn of_general(agent: &AgentDefinition) -> BTreeSet<&str> {
    let spec = agent
        .general_purpose()
        .map_or_else(|| agent.spec(""), |general| general.spec(agent));
    let mut tools = of_policies(&spec);
    let declared = agent.general_purpose_subagent.tools.as_ref().unwrap_or(&agent.tools);
    tools.extend(declared.iter().chain(&agent.skill_tools).map(String::as_str));
    tools
}

/// Returns the tools whose calls the rules of an agent may concern: the agent's own tools, and the tools of its
/// subagents. A subagent without rules of its own has the rules of its parent.
pub(super) fn approvable(agent: &AgentDefinition) -> BTreeSet<&str> {
    let mut tools = of_agent(agent);
    if agent.general_purpose_subagent.enabled {
        tools.extend(of_general(agent));
    }
    let here = agent.subagents.iter().filter(|subagent| subagent.graph_id.is_none());
    tools.extend(here.flat_map(|subagent| of_subagent(subagent, agent)));
    with_delegation(tools, agent)
}

/// Adds the tools with which agents of a tree delegate. How deep they may is not considered.
pub(super) fn with_delegation<'a>(mut tools: BTreeSet<&'a str>, agent: &AgentDefinition) -> BTreeSet<&'a str> {
    tools.insert("task");
    if agent
        .subagents
        .iter()
        .any(|subagent| subagent.use_instructions.is_some())
    {
        tools.extend(Builtin::tools_of(SUBAGENTS));
    }
    if agent.background().next().is_some() {
        tools.extend(Builtin::tools_of(BACKGROUND));
    }
    tools
}

/// Returns the tools of an agent's policies: of policies that a field switches on, and of listed policies without a
/// field.
fn of_policies(spec: &AgentSpec) -> BTreeSet<&'static str> {
    let mut tools: BTreeSet<&str> = spec.store.tools().iter().copied().collect();
    if spec.ask_user {
        tools.extend(Builtin::tools_of(ASK_USER));
    }
    if spec.todos {
        tools.extend(Builtin::tools_of(TODOS));
    }
    if spec.summarization.has_tool() {
        tools.extend(Builtin::tools_of(SUMMARIZATION));
    }
    if !spec.skills.is_empty() {
        tools.insert("read_file");
    }
    if spec.files != Workspace::None {
        tools.extend(Builtin::tools_of(FILES));
    }
    let listed = spec.middleware.iter().map(|policy| policy.name.as_str());
    let without_field = listed.filter(|name| Builtin::field(name).is_none());
    tools.extend(without_field.flat_map(Builtin::tools_of));
    tools
}
