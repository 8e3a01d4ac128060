//! Which tools an agent has, declared ones and those of policies.

use std::collections::BTreeSet;

use super::super::builtins::{BACKGROUND, Builtin, FILES, TODOS};
use super::super::{AgentDefinition, StoreRule, SubagentDefinition, Workspace};

/// The tools of the main agent.
pub(super) fn of_agent(agent: &AgentDefinition) -> BTreeSet<&str> {
    let mut tools = of_policies(agent.todos, agent.files, &agent.store, !agent.skills.is_empty());
    tools.extend(agent.tools.iter().chain(&agent.skill_tools).map(String::as_str));
    tools
}

/// The tools of a subagent.
pub(super) fn of_subagent<'a>(subagent: &'a SubagentDefinition, parent: &'a AgentDefinition) -> BTreeSet<&'a str> {
    let store = subagent.store.as_ref().unwrap_or(&parent.store);
    let mut tools = of_policies(subagent.todos, parent.files, store, !subagent.skills.is_empty());
    let declared = subagent.tools.as_ref().unwrap_or(&parent.tools);
    tools.extend(declared.iter().chain(&subagent.skill_tools).map(String::as_str));
    tools
}

/// The tools of the general-purpose subagent, or of one that would be it.
pub(super) fn of_general(agent: &AgentDefinition) -> BTreeSet<&str> {
    let mut tools = match agent.general() {
        Some(general) => {
            let store = general.store.as_ref().unwrap_or(&agent.store);
            of_policies(general.todos, agent.files, store, !general.skills.is_empty())
        }
        None => of_policies(agent.todos, agent.files, &agent.store, !agent.skills.is_empty()),
    };
    let declared = agent.general_purpose_subagent.tools.as_ref().unwrap_or(&agent.tools);
    tools.extend(declared.iter().chain(&agent.skill_tools).map(String::as_str));
    tools
}

/// The tools whose calls the rules of an agent may concern: its own, and those of its subagents, which have its rules
/// unless they have some of their own.
pub(super) fn approvable(agent: &AgentDefinition) -> BTreeSet<&str> {
    let mut tools = of_agent(agent);
    if agent.general_purpose_subagent.enabled {
        tools.extend(of_general(agent));
    }
    let here = agent.subagents.iter().filter(|subagent| subagent.graph_id.is_none());
    tools.extend(here.flat_map(|subagent| of_subagent(subagent, agent)));
    tools.insert("task");
    if agent.background().next().is_some() {
        tools.extend(Builtin::tools_of(BACKGROUND));
    }
    tools
}

fn of_policies(todos: bool, files: Workspace, store: &StoreRule, skills: bool) -> BTreeSet<&'static str> {
    let mut tools: BTreeSet<&str> = store.tools().iter().copied().collect();
    if todos {
        tools.extend(Builtin::tools_of(TODOS));
    }
    if skills {
        tools.insert("read_file");
    }
    if files != Workspace::None {
        tools.extend(Builtin::tools_of(FILES));
    }
    tools
}
