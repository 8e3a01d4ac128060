//! Harness profiles: settings for all agents with a certain model.
//!
//! The key of a profile is a provider (`openai`) or one of its models (`openai:gpt-5`). If both are given, the values
//! of the model's profile precede. Each agent, also each subagent, has the profile of its own model. Fields of a
//! definition precede the profile.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::agent::{AgentDefinition, SubagentDefinition, SubagentMode};
use super::media_inputs::MediaInputs;
use super::policy::Policy;

/// The settings for all agents with a certain model.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HarnessProfile {
    /// The text after the agent's own instructions.
    pub base_system_prompt: Option<String>,
    /// The text at the end of the instructions, after `base_system_prompt`.
    pub system_prompt_suffix: Option<String>,
    /// The descriptions of tools that replace the tools' own.
    pub tool_description_overrides: BTreeMap<String, String>,
    /// The tools that agents with this model do not have.
    pub excluded_tools: Vec<String>,
    /// The policies that agents with this model do not have.
    pub excluded_middleware: Vec<String>,
    /// Further policies of agents with this model.
    pub extra_middleware: Vec<Policy>,
    /// The changes to the general-purpose subagent of a main agent with this model.
    pub general_purpose_subagent: GeneralProfile,
    /// Provider settings (`temperature`, …) for all questions to this model.
    pub model_settings: Map<String, Value>,
    /// False if the model takes no images.
    pub image_inputs: Option<bool>,
    /// False if the model takes no audio.
    pub audio_inputs: Option<bool>,
    /// False if the model takes no PDF files.
    pub pdf_inputs: Option<bool>,
}

/// Changes to the general-purpose subagent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GeneralProfile {
    /// False to remove the general-purpose subagent.
    pub enabled: Option<bool>,
    /// The description.
    pub description: Option<String>,
    /// The instructions.
    pub system_prompt: Option<String>,
}

/// All profiles, by provider or model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HarnessProfiles(pub BTreeMap<String, HarnessProfile>);

impl HarnessProfiles {
    /// Returns the profile of this model.
    fn of(&self, model: &str) -> HarnessProfile {
        let provider = model.split_once(':').and_then(|(provider, _)| self.0.get(provider));
        match (provider, self.0.get(model)) {
            (Some(provider), Some(exact)) => provider.under(exact),
            (only, exact) => exact.or(only).cloned().unwrap_or_default(),
        }
    }

    /// Returns the settings of requests to this model for an agent with the settings `own`.
    pub fn model_settings(&self, model: &str, own: &Map<String, Value>) -> Map<String, Value> {
        merged(&self.of(model).model_settings, own)
    }

    /// Returns the media that this model takes.
    pub fn media_inputs(&self, model: &str) -> MediaInputs {
        let profile = self.of(model);
        MediaInputs {
            images: profile.image_inputs.unwrap_or(true),
            audio: profile.audio_inputs.unwrap_or(true),
            pdf: profile.pdf_inputs.unwrap_or(true),
        }
    }

    /// Applies the profiles of its models to a [resolved](AgentDefinition::resolved) definition: those of the first model
    /// of each agent. The settings of requests stay, since each model has its own; see
    /// [`HarnessProfiles::model_settings`].
    #[must_use]
    pub fn applied(&self, mut agent: AgentDefinition) -> AgentDefinition {
        if self.0.is_empty() {
            return agent;
        }
        let own = self.of(agent.model.first());
        self.apply_to_general_purpose(&mut agent, &own.general_purpose_subagent);
        let general = agent.general_subagent().map(str::to_owned);
        let model = agent.model.clone();
        for subagent in &mut agent.subagents {
            // A fork has everything from its caller, so no profile applies.
            if subagent.is_made_here() && subagent.mode == SubagentMode::Isolated {
                let profile = self.of(subagent.model.as_ref().unwrap_or(&model).first());
                // The general-purpose subagent got its instructions above.
                let has_base = general.as_deref() != Some(subagent.name.as_str());
                profile.apply_to_subagent(subagent, has_base);
            }
        }
        own.apply_to_main_agent(&mut agent);
        agent
    }

    /// Makes the general-purpose subagent the first of the declared ones, with the texts of the profiles.
    fn apply_to_general_purpose(&self, agent: &mut AgentDefinition, said: &GeneralProfile) {
        let general = &mut agent.general_purpose_subagent;
        general.enabled &= said.enabled.unwrap_or(true);
        let profile = self.of(general.model.as_ref().unwrap_or(&agent.model).first());
        let has_parents = general.inherit.prompt && !agent.system_prompt.is_blank();
        let base = profile.base_system_prompt.filter(|_| !has_parents);
        general.description = general.description.take().or_else(|| said.description.clone());
        general.system_prompt = general
            .system_prompt
            .take()
            .or_else(|| Some(said.system_prompt.clone().or(base)?.as_str().into()));
        let general = agent.general_purpose();
        agent.subagents.splice(0..0, general);
    }
}

impl HarnessProfile {
    /// Returns the profile of a provider, overridden by `exact`, the profile of one of its models.
    fn under(&self, exact: &Self) -> Self {
        let or = |one: &Option<String>, other: &Option<String>| one.clone().or_else(|| other.clone());
        let union = |one: &[String], other: &[String]| {
            let all: BTreeSet<&String> = one.iter().chain(other).collect();
            all.into_iter().cloned().collect()
        };
        let mut extra = self.extra_middleware.clone();
        for policy in &exact.extra_middleware {
            match extra.iter_mut().find(|other| other.name == policy.name) {
                Some(place) => *place = policy.clone(),
                None => extra.push(policy.clone()),
            }
        }
        let general = &self.general_purpose_subagent;
        let over = &exact.general_purpose_subagent;
        Self {
            base_system_prompt: or(&exact.base_system_prompt, &self.base_system_prompt),
            system_prompt_suffix: or(&exact.system_prompt_suffix, &self.system_prompt_suffix),
            tool_description_overrides: merged(&self.tool_description_overrides, &exact.tool_description_overrides),
            excluded_tools: union(&self.excluded_tools, &exact.excluded_tools),
            excluded_middleware: union(&self.excluded_middleware, &exact.excluded_middleware),
            extra_middleware: extra,
            general_purpose_subagent: GeneralProfile {
                enabled: over.enabled.or(general.enabled),
                description: or(&over.description, &general.description),
                system_prompt: or(&over.system_prompt, &general.system_prompt),
            },
            model_settings: merged(&self.model_settings, &exact.model_settings),
            image_inputs: exact.image_inputs.or(self.image_inputs),
            audio_inputs: exact.audio_inputs.or(self.audio_inputs),
            pdf_inputs: exact.pdf_inputs.or(self.pdf_inputs),
        }
    }

    /// Applies the profile of its model to a subagent.
    fn apply_to_subagent(&self, subagent: &mut SubagentDefinition, has_base: bool) {
        let base = self.base_system_prompt.as_deref().filter(|_| has_base);
        let added = [base, self.system_prompt_suffix.as_deref()];
        added
            .into_iter()
            .flatten()
            .for_each(|text| subagent.system_prompt.add(text));
        subagent.excluded_tools.extend(self.excluded_tools.iter().cloned());
        subagent.tool_description_overrides =
            merged(&self.tool_description_overrides, &subagent.tool_description_overrides);
        subagent.remove_policies(&self.excluded_middleware);
        let wanted = |policy: &&Policy| !self.excluded_middleware.contains(&policy.name);
        let extra: Vec<Policy> = self.extra_middleware.iter().filter(wanted).cloned().collect();
        subagent.add_policies(&extra);
    }

    /// Applies the profile to a main agent.
    fn apply_to_main_agent(&self, agent: &mut AgentDefinition) {
        let mut own = SubagentDefinition {
            system_prompt: std::mem::take(&mut agent.system_prompt),
            excluded_tools: std::mem::take(&mut agent.excluded_tools),
            tool_description_overrides: std::mem::take(&mut agent.tool_description_overrides),
            todos: agent.todos,
            ask_user: agent.ask_user,
            store: Some(std::mem::take(&mut agent.store)),
            skills: std::mem::take(&mut agent.skills),
            skill_tools: std::mem::take(&mut agent.skill_tools),
            memory: std::mem::take(&mut agent.memory),
            interrupt_on: Some(std::mem::take(&mut agent.interrupt_on)),
            limits: agent.limits.take(),
            middleware: std::mem::take(&mut agent.middleware),
            ..SubagentDefinition::default()
        };
        self.apply_to_subagent(&mut own, true);
        agent.system_prompt = own.system_prompt;
        agent.excluded_tools = own.excluded_tools;
        agent.tool_description_overrides = own.tool_description_overrides;
        agent.todos = own.todos;
        agent.ask_user = own.ask_user;
        agent.store = own.store.unwrap_or_default();
        (agent.skills, agent.skill_tools, agent.memory) = (own.skills, own.skill_tools, own.memory);
        agent.interrupt_on = own.interrupt_on.unwrap_or_default();
        (agent.limits, agent.middleware) = (own.limits, own.middleware);
    }
}

/// Returns the entries of both; those of the second precede.
fn merged<M, K, V>(below: &M, above: &M) -> M
where
    M: Clone + IntoIterator<Item = (K, V)> + Extend<(K, V)>,
{
    let mut all = below.clone();
    all.extend(above.clone());
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn profiles(value: Value) -> HarnessProfiles {
        HarnessProfiles(serde_json::from_value(value).expect("profiles"))
    }

    fn agent(value: Value) -> AgentDefinition {
        let agent: AgentDefinition = serde_json::from_value(value).expect("a definition");
        agent.resolved()
    }

    #[test]
    fn a_models_profile_stands_over_its_providers() {
        let all = profiles(json!({
            "lab": {"base_system_prompt": "base", "system_prompt_suffix": "provider", "excluded_tools": ["ls"],
                "model_settings": {"a": 1, "b": 1}, "image_inputs": false, "pdf_inputs": false, "extra_middleware": [{"name": "ToolCallLimitMiddleware", "run_limit": 1}]},
            "lab:big": {"system_prompt_suffix": "exact", "excluded_tools": ["grep"], "model_settings": {"b": 2}, "pdf_inputs": true,
                "extra_middleware": [{"name": "ToolCallLimitMiddleware", "run_limit": 2}]},
        }));
        let big = all.applied(agent(
            json!({"model": "lab:big", "system_prompt": "own", "model_settings": {"a": 3}}),
        ));
        assert_eq!(big.system_prompt.text(), "own\n\nbase\n\nexact");
        assert_eq!(big.excluded_tools, ["grep", "ls"]);
        let settings = all.model_settings("lab:big", &big.model_settings);
        assert_eq!(Value::Object(settings), json!({"a": 3, "b": 2}));
        let inputs = all.media_inputs("lab:big");
        assert_eq!((inputs.images, inputs.audio, inputs.pdf), (false, true, true));
        let limits: Vec<&Value> = big
            .middleware
            .iter()
            .map(|policy| &policy.settings["run_limit"])
            .collect();
        assert_eq!(limits, [&json!(2)]);
        let small = all.applied(agent(json!({"model": "lab:small"})));
        assert_eq!(small.system_prompt.text(), "base\n\nprovider");
        let other = agent(json!({"model": "other:x", "system_prompt": "own",
            "general_purpose_subagent": {"enabled": false}}));
        assert_eq!(all.applied(other.clone()), other);
    }

    #[test]
    fn each_subagent_has_the_profile_of_its_own_model() {
        let all = profiles(
            json!({"lab:big": {"system_prompt_suffix": "big", "excluded_middleware": ["TodoListMiddleware"]},
            "lab:small": {"system_prompt_suffix": "small", "extra_middleware": ["TodoListMiddleware"]}}),
        );
        let agent = all.applied(agent(json!({"model": "lab:big", "todos": true, "subagents": [
            {"name": "a", "description": "Does this.", "system_prompt": "a", "model": "lab:small"},
            {"name": "b", "description": "Does that.", "system_prompt": "b", "todos": true},
            {"name": "c", "description": "Goes on.", "system_prompt": "c", "mode": "fork"}]})));
        let reported: Vec<(String, bool)> = agent
            .subagents
            .iter()
            .map(|one| (one.system_prompt.text(), one.todos))
            .collect();
        let expected =
            [("a\n\nsmall", true), ("b\n\nbig", false), ("c", false)].map(|(text, todos)| (text.to_owned(), todos));
        assert_eq!(reported[1..], expected);
        assert!(!agent.todos);
        let list: Vec<&str> = agent.subagents[1]
            .middleware
            .iter()
            .map(|policy| policy.name.as_str())
            .collect();
        assert_eq!(list, ["TodoListMiddleware"]);
    }

    #[test]
    fn the_general_purpose_subagent_is_described_told_or_switched_off() {
        let all = profiles(
            json!({"lab": {"base_system_prompt": "base", "system_prompt_suffix": "end",
            "general_purpose_subagent": {"description": "Everything.", "system_prompt": "You do everything."}}}),
        );
        let dressed = all.applied(agent(json!({"model": "lab:x", "system_prompt": "own"})));
        let delegates = dressed.delegates();
        assert_eq!(delegates.len(), 1);
        assert_eq!(delegates[0].name.as_str(), "general-purpose");
        assert_eq!(delegates[0].description.as_str(), "Everything.");
        assert_eq!(delegates[0].system_prompt.text(), "You do everything.\n\nend");
        assert_eq!(dressed.general_subagent(), Some("general-purpose"));

        let own =
            json!({"model": "lab:x", "general_purpose_subagent": {"system_prompt": "Mine.", "description": "My own."}});
        assert_eq!(
            all.applied(agent(own)).delegates()[0].system_prompt.text(),
            "Mine.\n\nend"
        );
        let reported = json!({"model": "lab:x", "system_prompt": "own", "general_purpose_subagent": {"inherit": {"prompt": true}}});
        let base = profiles(json!({"lab": {"base_system_prompt": "base"}}));
        assert_eq!(base.applied(agent(reported)).delegates()[0].system_prompt.text(), "own");
        assert_eq!(
            base.applied(agent(json!({"model": "lab:x"}))).delegates()[0]
                .system_prompt
                .text(),
            "base"
        );
        let off = profiles(json!({"lab": {"general_purpose_subagent": {"enabled": false}}}));
        assert_eq!(off.applied(agent(json!({"model": "lab:x"}))).delegates(), []);
    }
}
