//! The subagents to which an agent delegates: those that it declares, and the general-purpose one.

use super::agent::{AgentDefinition, SubagentDefinition};
use super::builtins::SKILLS;
use super::general_purpose::GENERAL_PURPOSE;

impl AgentDefinition {
    /// Returns the subagents for whose results the agent waits: those that its `task` tool offers.
    pub fn synchronous(&self) -> impl Iterator<Item = &SubagentDefinition> {
        self.subagents.iter().filter(|subagent| !subagent.is_background())
    }

    /// Returns the subagents that work in the background.
    pub fn background(&self) -> impl Iterator<Item = &SubagentDefinition> {
        self.subagents.iter().filter(|subagent| subagent.is_background())
    }

    /// Returns the name of the general-purpose subagent, if there is one: the standard subagent, or a declared one with
    /// its name.
    pub fn general_subagent(&self) -> Option<&str> {
        if self.is_program() {
            return None;
        }
        let name = self.general_purpose_subagent.name.as_deref().unwrap_or(GENERAL_PURPOSE);
        let declared = self.synchronous().any(|subagent| subagent.name == name);
        (self.general_purpose_subagent.enabled || declared).then_some(name)
    }

    /// Returns the subagents for which the agent waits. The general-purpose subagent comes first, unless it is switched
    /// off or replaced by a declared one of its name. The definition has to be [resolved](Self::resolved).
    pub fn delegates(&self) -> Vec<SubagentDefinition> {
        self.general_purpose()
            .into_iter()
            .chain(self.synchronous().cloned())
            .collect()
    }

    /// Returns whether the agent has the standard subagent: it is neither switched off nor replaced.
    pub(super) fn has_general_purpose(&self) -> bool {
        let general = &self.general_purpose_subagent;
        let name = general.name.as_deref().unwrap_or(GENERAL_PURPOSE);
        let is_replaced = || self.synchronous().any(|subagent| subagent.name == name);
        !self.is_program() && general.enabled && !is_replaced()
    }

    /// Returns the general-purpose subagent, if it is not replaced. The definition has to be
    /// [resolved](Self::resolved).
    pub(super) fn general_purpose(&self) -> Option<SubagentDefinition> {
        if !self.has_general_purpose() {
            return None;
        }
        let general = &self.general_purpose_subagent;
        let name = general.name.clone().unwrap_or_else(|| GENERAL_PURPOSE.to_owned());
        let own = general.system_prompt.clone();
        // The parent's instructions replace the standard ones, and stand before the subagent's own.
        let is_told = general.inherit.prompt && !self.system_prompt.is_blank();
        let standard = if is_told { "" } else { GENERAL_PROMPT };
        let has_skills = !general.block_middleware.iter().any(|name| name == SKILLS);
        let described = SubagentDefinition {
            name,
            description: general
                .description
                .clone()
                .unwrap_or_else(|| GENERAL_DESCRIPTION.to_owned()),
            system_prompt: own.unwrap_or_else(|| standard.into()),
            model: general.model.clone(),
            tools: general.tools.clone(),
            interrupt_on: general.interrupt_on.clone(),
            visibility: general.visibility,
            skills: if has_skills { self.skills.clone() } else { vec![] },
            skill_tools: if has_skills { self.skill_tools.clone() } else { vec![] },
            excluded_tools: self.excluded_tools.clone(),
            tool_description_overrides: self.tool_description_overrides.clone(),
            middleware: general.middleware.clone(),
            inherit: general.inherit.clone(),
            block_middleware: general.block_middleware.clone(),
            ..SubagentDefinition::default()
        };
        Some(described.resolved(self))
    }
}

const GENERAL_DESCRIPTION: &str = "An all-rounder for research, searches and work in several steps. \
     It has the same tools as the delegating agent and nothing of its conversation.";

const GENERAL_PROMPT: &str = "You work on one task that another agent has handed to you. \
     It sees nothing but your last message, so let that message hold the complete result.";
