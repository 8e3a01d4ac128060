//! Inheritance: the parts of its parent that a subagent has, beyond those that every subagent has.

use serde::{Deserialize, Serialize};

use super::builtins::{APPROVAL, ASK_USER, MEMORY, SKILLS, STORE, TODOS};
use super::check::ValidationContext;
use super::diagnostic::{Diagnostic, FieldPath, suggestion};
use super::policy::name_problem;
use super::{AgentDefinition, Policy, StoreRule, SubagentDefinition};

/// The parts of its parent that a subagent has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Inherit {
    /// True if the parent's instructions stand before its own.
    pub prompt: bool,
    /// True if it has its parent's memory, before its own.
    pub memory: bool,
    /// The policies of its parent that it has, before its own.
    pub middleware: InheritedPolicies,
    /// True if the subagent has the tools of its parent besides the tools that its definition names.
    pub tools: bool,
    /// True if its parent's approvals hold for tools without a rule of its own, even if it has rules for other tools.
    pub interrupt_on: bool,
    /// True if it shares its parent's files.
    #[serde(skip_serializing_if = "is_true")]
    pub files: bool,
    /// True if it shares the fields of its parent's state.
    #[serde(skip_serializing_if = "is_true")]
    pub state: bool,
}

impl Default for Inherit {
    fn default() -> Self {
        Self {
            prompt: false,
            memory: false,
            middleware: InheritedPolicies::default(),
            tools: false,
            interrupt_on: false,
            files: true,
            state: true,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_true(truth: &bool) -> bool {
    *truth
}

/// The policies of its parent that a subagent has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "must be true, false or a list of names of policies")]
pub enum InheritedPolicies {
    /// All, or none.
    Switch(bool),
    /// The policies with these names.
    Named(Vec<String>),
}

impl Default for InheritedPolicies {
    fn default() -> Self {
        Self::Switch(false)
    }
}

impl InheritedPolicies {
    fn includes(&self, name: &str) -> bool {
        match self {
            Self::Switch(all) => *all,
            Self::Named(names) => names.iter().any(|included| included == name),
        }
    }
}

impl AgentDefinition {
    /// Returns the policies that a subagent may inherit.
    fn inheritable(&self) -> Vec<Policy> {
        let is_listed = |name: &str| self.middleware.iter().any(|policy| policy.name == name);
        let given = [(TODOS, self.todos), (ASK_USER, self.ask_user)];
        let given = given.into_iter().filter(|(name, is_on)| *is_on && !is_listed(name));
        let given = given.map(|(name, _)| Policy::named(name));
        given.chain(self.middleware.iter().cloned()).collect()
    }
}

impl SubagentDefinition {
    /// Returns the subagent with everything that it inherits in its own fields.
    pub(super) fn inheriting(&self, parent: &AgentDefinition) -> Self {
        let mut subagent = self.clone();
        let blocked = std::mem::take(&mut subagent.block_middleware);
        let inherit = subagent.inherit.clone();
        // Shared parts stay in `inherit`; all else is put into its own fields.
        subagent.inherit = Inherit {
            files: inherit.files,
            state: inherit.state,
            ..Inherit::default()
        };
        let is_blocked = |name: &str| blocked.iter().any(|blocked| blocked == name);
        if inherit.prompt {
            subagent.system_prompt = parent.system_prompt.clone();
            subagent.system_prompt.append(&self.system_prompt);
        }
        // The field has the settings of the policy. A blocked policy is not inherited, whether by its field or by name.
        if inherit.memory && !is_blocked(MEMORY) {
            subagent.memory = parent.memory.iter().chain(&self.memory).cloned().collect();
        }
        if is_blocked(STORE) && subagent.store.is_none() {
            subagent.store = Some(StoreRule::default());
        }
        if inherit.tools
            && let Some(own) = &mut subagent.tools
        {
            let missing: Vec<String> = parent
                .tools
                .iter()
                .filter(|tool| !own.contains(tool))
                .cloned()
                .collect();
            own.splice(0..0, missing);
        }
        if inherit.interrupt_on
            && !is_blocked(APPROVAL)
            && let Some(own) = &mut subagent.interrupt_on
        {
            let rules = parent
                .interrupt_on
                .iter()
                .map(|(tool, rule)| (tool.clone(), rule.clone()));
            let missing: Vec<_> = rules.filter(|(tool, _)| !own.contains_key(tool)).collect();
            own.extend(missing);
        }
        if is_blocked(APPROVAL) && subagent.interrupt_on.is_none() {
            subagent.interrupt_on = Some(Default::default());
        }
        let is_own = |name: &str| self.middleware.iter().any(|policy| policy.name == name) || self.sets(name);
        let wanted = |policy: &Policy| {
            inherit.middleware.includes(&policy.name) && !is_blocked(&policy.name) && !is_own(&policy.name)
        };
        let inherited = parent.inheritable().into_iter().filter(wanted);
        subagent.middleware = inherited.chain(self.middleware.iter().cloned()).collect();
        subagent
    }

    /// Returns whether a field of the subagent has the same meaning as this policy.
    fn sets(&self, policy: &str) -> bool {
        match policy {
            STORE => self.store.is_some(),
            SKILLS => !self.skills.is_empty(),
            MEMORY => !self.memory.is_empty(),
            APPROVAL => self.interrupt_on.is_some(),
            _ => false,
        }
    }
}

/// Checks what the agent in `field` inherits and blocks.
pub(super) fn check(
    field: &FieldPath,
    inherit: &Inherit,
    blocked: &[String],
    parent: &AgentDefinition,
    context: &ValidationContext,
) -> Vec<Diagnostic> {
    let mut findings = vec![];
    if let InheritedPolicies::Named(names) = &inherit.middleware {
        let known: Vec<String> = parent.inheritable().into_iter().map(|policy| policy.name).collect();
        for (at, name) in names.iter().enumerate().filter(|(_, name)| !known.contains(name)) {
            let known = suggestion(name, known.iter().map(String::as_str), "it has");
            let place = field.then("inherit").then("middleware").then(at);
            findings.push(Diagnostic::error(
                place,
                format!("the agent has no policy `{name}` to hand down; {known}"),
            ));
        }
    }
    for (at, name) in blocked.iter().enumerate() {
        let problem = name_problem(name, context).map(|problem| problem.replace("is not listed", "cannot be blocked"));
        findings.extend(problem.map(|problem| Diagnostic::error(field.then("block_middleware").then(at), problem)));
    }
    findings
}
