//! The one form of a definition, so that all other code handles one spelling of each meaning: the settings of listed
//! policies, and everything that subagents inherit, are in the fields of the same meaning.

use std::collections::BTreeMap;

use super::agent::{AgentDefinition, SubagentDefinition};
use super::builtins::{APPROVAL, ASK_USER, MEMORY, SKILLS, STORE, TODOS, UNTIL};
use super::inherit::Inherit;
use super::listed_settings::ListedSettings;
use super::policy::Policy;
use super::store::StoreRule;

impl AgentDefinition {
    /// Returns the definition in one form. The settings of listed policies, and everything that subagents inherit, are
    /// in the fields of the same meaning.
    #[must_use]
    pub fn resolved(&self) -> Self {
        let mut agent = self.clone();
        let values = ListedSettings::of(&self.middleware);
        agent.todos |= values.todos;
        agent.ask_user |= values.ask_user;
        agent.store = values.store.unwrap_or(agent.store);
        (agent.skills, agent.skill_tools) = values.skills.unwrap_or((agent.skills, agent.skill_tools));
        agent.memory = values.memory.unwrap_or(agent.memory);
        agent.interrupt_on = values.interrupt_on.unwrap_or(agent.interrupt_on);
        agent.interrupt_mode = values.interrupt_mode.unwrap_or(agent.interrupt_mode);
        agent.subagents = self
            .subagents
            .iter()
            .map(|subagent| subagent.resolved(&agent))
            .collect();
        agent
    }

    /// Returns the policies that a subagent may inherit.
    pub(super) fn inheritable(&self) -> Vec<Policy> {
        let is_listed = |name: &str| self.middleware.iter().any(|policy| policy.name == name);
        let given = [(TODOS, self.todos), (ASK_USER, self.ask_user)];
        let given = given.into_iter().filter(|(name, is_on)| *is_on && !is_listed(name));
        let given = given.map(|(name, _)| Policy::named(name));
        given.chain(self.middleware.iter().cloned()).collect()
    }
}

impl SubagentDefinition {
    /// Returns the subagent in one form; the parent has to be resolved.
    pub(super) fn resolved(&self, parent: &AgentDefinition) -> Self {
        let mut subagent = self.inheriting(parent);
        let values = ListedSettings::of(&subagent.middleware);
        subagent.todos |= values.todos;
        subagent.ask_user |= values.ask_user;
        subagent.store = values.store.or(subagent.store);
        (subagent.skills, subagent.skill_tools) = values.skills.unwrap_or((subagent.skills, subagent.skill_tools));
        subagent.memory = values.memory.unwrap_or(subagent.memory);
        subagent.interrupt_on = values.interrupt_on.or(subagent.interrupt_on);
        subagent.interrupt_mode = values.interrupt_mode.or(subagent.interrupt_mode);
        subagent.until_tool = values.until.or(subagent.until_tool);
        subagent
    }

    /// Returns the subagent with everything that it inherits in its own fields.
    fn inheriting(&self, parent: &AgentDefinition) -> Self {
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

    /// Adds to the subagent, which has to be resolved, those of the policies that it does not have.
    pub(super) fn add_policies(&mut self, policies: &[Policy]) {
        let values = ListedSettings::of(policies);
        self.todos |= values.todos;
        self.ask_user |= values.ask_user;
        let is_idle = self.store.as_ref().is_none_or(|store| *store == StoreRule::default());
        self.store = values.store.filter(|_| is_idle).or(self.store.take());
        if self.skills.is_empty() {
            (self.skills, self.skill_tools) = values.skills.unwrap_or_default();
        }
        if self.memory.is_empty() {
            self.memory = values.memory.unwrap_or_default();
        }
        if self.interrupt_on.as_ref().is_none_or(BTreeMap::is_empty) {
            self.interrupt_on = values.interrupt_on.or(self.interrupt_on.take());
            self.interrupt_mode = self.interrupt_mode.or(values.interrupt_mode);
        }
        let is_listed = |name: &str| self.middleware.iter().any(|policy| policy.name == name);
        let new: Vec<Policy> = policies
            .iter()
            .filter(|policy| !is_listed(&policy.name))
            .cloned()
            .collect();
        self.middleware.extend(new);
    }

    /// Removes the policies of these names from the subagent, which has to be resolved.
    pub(super) fn remove_policies(&mut self, names: &[String]) {
        self.middleware.retain(|policy| !names.contains(&policy.name));
        for name in names {
            match name.as_str() {
                TODOS => self.todos = false,
                ASK_USER => self.ask_user = false,
                STORE => self.store = Some(StoreRule::default()),
                SKILLS => (self.skills, self.skill_tools) = Default::default(),
                MEMORY => self.memory.clear(),
                APPROVAL => self.interrupt_on = Some(BTreeMap::new()),
                UNTIL => self.until_tool = None,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::definition::until_tool::UntilTool;

    fn resolved(body: Value) -> AgentDefinition {
        let agent: AgentDefinition = serde_json::from_value(body).expect("a definition");
        assert_eq!(agent.resolved().resolved(), agent.resolved(), "once is enough");
        agent.resolved()
    }

    #[test]
    fn what_a_listed_policy_is_told_is_what_a_field_says() {
        let listed = resolved(json!({"limits": {"tokens": 9}, "middleware": [
            "TodoListMiddleware", {"name": "StoreMiddleware", "namespace": ["a"]},
            {"name": "SkillsMiddleware", "sources": ["/s", {"path": "/t", "label": "T"}], "tools": ["publish"]},
            {"name": "MemoryMiddleware", "sources": ["/AGENTS.md"]},
            {"name": "HumanInTheLoopMiddleware", "interrupt_on": {"lookup": true}}]}));
        let fields = resolved(
            json!({"todos": true, "store": {"namespace": ["a"]}, "memory": ["/AGENTS.md"],
            "skills": ["/s", {"path": "/t", "label": "T"}], "skill_tools": ["publish"], "interrupt_on": {"lookup": true},
            "limits": {"tokens": 9}}),
        );
        assert_eq!(
            AgentDefinition {
                middleware: vec![],
                ..listed
            },
            fields
        );
        let until =
            resolved(json!({"subagents": [{"middleware": [{"name": "UntilToolMiddleware", "tools": ["lookup"]}]}]}));
        assert_eq!(
            until.subagents[0].until_tool,
            Some(UntilTool::Any(vec!["lookup".to_owned()]))
        );
    }

    #[test]
    fn a_subagent_has_from_its_parent_what_it_asks_for_and_is_not_blocked() {
        let parent = |subagent: Value| {
            let body = json!({"system_prompt": "Be kind.", "memory": ["/p.md"], "todos": true,
                "middleware": ["audit", {"name": "limit", "tool": "a"}, {"name": "limit", "tool": "b"}],
                "interrupt_on": {"lookup": true}, "store": true, "subagents": [subagent]});
            resolved(body).subagents.remove(0)
        };
        let plain = parent(json!({"name": "a"}));
        assert_eq!(plain.system_prompt.text().as_str(), "");
        assert!(!plain.todos);
        assert_eq!(plain.memory.len(), 0);
        assert_eq!(plain.limits, None);
        let all = parent(json!({"name": "a", "system_prompt": "Be brief.", "memory": ["/a.md"],
            "inherit": {"prompt": true, "memory": true, "middleware": true}}));
        assert_eq!(all.system_prompt.text().as_str(), "Be kind.\n\nBe brief.");
        assert!(all.todos);
        assert_eq!(all.memory, ["/p.md", "/a.md"]);
        let names: Vec<&str> = all.middleware.iter().map(|policy| policy.name.as_str()).collect();
        assert_eq!(names, ["TodoListMiddleware", "audit", "limit", "limit"]);
        let some = parent(
            json!({"name": "a", "inherit": {"middleware": ["audit", "TodoListMiddleware"]},
            "middleware": [{"name": "limit", "tool": "c"}],
            "block_middleware": ["TodoListMiddleware", "StoreMiddleware", "HumanInTheLoopMiddleware"]}),
        );
        let names: Vec<&str> = some.middleware.iter().map(|policy| policy.name.as_str()).collect();
        assert_eq!(names, vec!["audit", "limit"]);
        assert!(!some.todos);
        assert_eq!(some.store, Some(StoreRule::Switch(false)));
        assert_eq!(some.interrupt_on.map(|rules| rules.len()), Some(0));
    }

    #[test]
    fn the_general_purpose_subagent_has_what_it_asks_for() {
        let general = |settings: Value| {
            let body = json!({"system_prompt": "Be kind.", "skills": ["/s"], "skill_tools": ["publish"], "todos": true,
                "memory": ["/p.md"], "general_purpose_subagent": settings, "subagents": [{"name": "b"}]});
            resolved(body).delegates().remove(0)
        };
        let plain = general(json!({}));
        assert!(
            plain.system_prompt.text().starts_with("You work on one task") && !plain.todos && plain.memory.is_empty()
        );
        assert_eq!(plain.name.as_str(), "general-purpose");
        assert_eq!(plain.skills.len(), 1);
        assert_eq!(plain.skill_tools.len(), 1);
        let reported =
            general(json!({"inherit": {"prompt": true, "memory": true, "middleware": ["TodoListMiddleware"]}}));
        assert_eq!(reported.system_prompt.text().as_str(), "Be kind.");
        assert!(reported.todos);
        assert_eq!(reported.memory.len(), 1);
        let both =
            general(json!({"system_prompt": "Be brief.", "inherit": {"prompt": true}, "block_middleware": [SKILLS]}));
        assert_eq!(both.system_prompt.text().as_str(), "Be kind.\n\nBe brief.");
        assert_eq!(both.skills.len(), 0);
        assert_eq!(general(json!({"enabled": false})).name, "b");
        assert_eq!(general(json!({"name": "b"})).name, "b");
    }
}
