//! What one agent is to be, before it is put together.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Delegating, Shares};
use crate::definition::enclosed::seen;
use crate::definition::mcp::McpOwner;
use crate::definition::{
    self, ApprovalRule, Enclosed, Permission, Policy, SkillSource, StoreRule, SubagentDefinition, SystemPrompt,
    UntilTool,
};
use crate::domain::background::BackgroundAgent;
use crate::domain::field::FieldDefinition;
use crate::domain::limits::Limits;
use crate::middleware::Middleware;
use crate::middleware::memory::Memory;
use crate::middleware::skills::Skills;
use crate::tool::files::{StateFiles, WithEnclosed, Workspace};

/// What one agent is to be, whether main agent or subagent.
#[derive(Clone)]
pub(super) struct Draft {
    pub(super) name: String,
    /// Whose MCP servers it may name.
    pub(super) servers: McpOwner,
    pub(super) model: String,
    pub(super) settings: Map<String, Value>,
    pub(super) system_prompt: SystemPrompt,
    pub(super) tools: Vec<String>,
    pub(super) policies: Vec<Policy>,
    pub(super) interrupt_on: BTreeMap<String, ApprovalRule>,
    pub(super) response_format: Option<Value>,
    pub(super) context_schema: Option<Value>,
    pub(super) state: BTreeMap<String, FieldDefinition>,
    pub(super) todos: bool,
    pub(super) files: definition::Workspace,
    pub(super) store: StoreRule,
    pub(super) skills: Vec<SkillSource>,
    pub(super) skill_tools: Vec<String>,
    pub(super) memory: Vec<String>,
    /// The tools that it does not have although it would.
    pub(super) excluded: Vec<String>,
    /// Descriptions of tools in the place of their own.
    pub(super) described: BTreeMap<String, String>,
    pub(super) shares: Shares,
    /// Which files it may read and change.
    pub(super) permissions: Vec<Permission>,
    pub(super) enclosed: Arc<Enclosed>,
    pub(super) step_limit: u32,
    pub(super) limits: Limits,
    /// The tools that end its work.
    pub(super) until: Option<UntilTool>,
    /// Whether who delegates may write the instructions.
    pub(super) ordered_prompt: bool,
    pub(super) delegations: Option<Delegating>,
    /// What stands at the end of the instructions, if it is a fork.
    pub(super) addendum: Option<SystemPrompt>,
    /// What a user interface shows while it works.
    pub(super) display_text: Option<String>,
    /// Who works for it in the background.
    pub(super) background: Vec<BackgroundAgent>,
}

impl Draft {
    /// What a fork of this agent is to be: the same but for what its description says of it.
    pub(super) fn forked(&self, fork: &SubagentDefinition) -> Self {
        let is_there = |name: &str| self.policies.iter().any(|policy| policy.name == name);
        let own = fork.middleware.iter().filter(|policy| !is_there(&policy.name)).cloned();
        Self {
            name: fork.name.clone(),
            model: fork.model.clone().unwrap_or_else(|| self.model.clone()),
            settings: fork.model_settings.clone().unwrap_or_else(|| self.settings.clone()),
            tools: fork.tools.clone().unwrap_or_else(|| self.tools.clone()),
            policies: self.policies.iter().cloned().chain(own).collect(),
            interrupt_on: fork.interrupt_on.clone().unwrap_or_else(|| self.interrupt_on.clone()),
            permissions: fork.permissions.clone().unwrap_or_else(|| self.permissions.clone()),
            response_format: fork.response_format.clone(),
            context_schema: None,
            todos: self.todos || fork.todos,
            store: fork.store.clone().unwrap_or_else(|| self.store.clone()),
            step_limit: fork.recursion_limit.unwrap_or(self.step_limit),
            limits: fork.limits.clone().unwrap_or_default(),
            until: fork.until_tool.clone(),
            delegations: self.delegations.as_ref().map(Delegating::refusing),
            addendum: Some(fork.system_prompt.clone()),
            // Its work ends with its result: nobody would be left to be told what comes of a task.
            background: vec![],
            display_text: fork.display_text.clone(),
            ..self.clone()
        }
    }

    /// The same with this form of its result, if one is given.
    pub(super) fn in_form(mut self, format: Option<&Value>) -> Self {
        self.response_format = format.cloned().or(self.response_format);
        self
    }

    /// The files of the definition that are this agent's own.
    fn own_files(&self) -> Arc<Enclosed> {
        let named = self
            .skills
            .iter()
            .map(SkillSource::seen)
            .chain(self.memory.iter().map(|path| seen(path)));
        let paths: Vec<String> = named.collect();
        Arc::new(self.enclosed.only(paths.iter().map(String::as_str)))
    }

    /// Where its file tools work.
    pub(super) fn workspace(&self) -> Arc<dyn Workspace> {
        let own = self.own_files();
        if own.is_empty() {
            Arc::new(StateFiles)
        } else {
            Arc::new(WithEnclosed::new(own))
        }
    }

    /// The policies of what it knows: its skills and its memory.
    pub(super) fn knowledge(&self) -> Vec<Arc<dyn Middleware>> {
        let own = self.own_files();
        let has_files = self.files == definition::Workspace::State;
        let mut policies: Vec<Arc<dyn Middleware>> = vec![];
        if !self.skills.is_empty() {
            let skills = Skills::new(&self.skills, Arc::clone(&own), &self.skill_tools);
            let folders = self.skills.iter().map(SkillSource::seen).collect();
            let alone: Arc<dyn Workspace> = Arc::new(WithEnclosed::within(Arc::clone(&own), folders));
            policies.push(Arc::new(if has_files { skills } else { skills.with_reader(&alone) }));
        }
        if !self.memory.is_empty() {
            policies.push(Arc::new(Memory::new(&self.memory, own, has_files)));
        }
        policies
    }
}
