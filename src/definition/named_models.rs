//! The models that a definition names.

use super::agent::AgentDefinition;
use super::diagnostic::FieldPath;
use super::model_names::ModelNames;
use super::policy::Policy;
use super::summarization::SummarizationRule;

/// A model that a definition names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedModel<'a> {
    /// The field that names it.
    pub field: FieldPath,
    /// The name.
    pub name: &'a str,
    /// The runs that may ask it.
    pub usage: ModelUsage,
}

/// The runs that may ask a model of their agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelUsage {
    /// Runs that choose no other model.
    Always,
    /// Runs that choose it.
    WhenChosen,
    /// No run: the general-purpose subagent that names the model is switched off or replaced.
    Never,
}

/// Returns the setting of a policy that is the name of a model; `None` if no setting is.
type SettingOf<'a> = dyn Fn(&str) -> Option<&'static str> + 'a;

impl AgentDefinition {
    /// Returns the models that the definition names, each with its field: those of the agent and its subagents, of their
    /// summaries and listed policies, and those that runs may choose. `setting_of` returns the setting of a policy that
    /// is the name of a model.
    ///
    /// A rule about models applies to all of them, so it begins here.
    pub fn named_models(&self, setting_of: impl Fn(&str) -> Option<&'static str>) -> Vec<NamedModel<'_>> {
        let setting_of: &SettingOf<'_> = &setting_of;
        let top = FieldPath::default();
        let mut all = of_fields(&top, Some(&self.model), &self.middleware, setting_of);
        all.extend(of_summaries(&top, Some(&self.summarization)));
        let list = top.then("configurable").then("models");
        for (at, name) in self.configurable.models.iter().enumerate() {
            all.push(NamedModel {
                field: list.then(at),
                name,
                usage: ModelUsage::WhenChosen,
            });
        }
        let field = top.then("general_purpose_subagent");
        let general = &self.general_purpose_subagent;
        let of_general = of_fields(&field, general.model.as_ref(), &general.middleware, setting_of);
        let usage = if self.has_general_purpose() {
            ModelUsage::Always
        } else {
            ModelUsage::Never
        };
        all.extend(of_general.into_iter().map(|model| NamedModel { usage, ..model }));
        for (field, subagent) in self.subagents_with_fields() {
            let models = subagent.model.as_ref();
            all.extend(of_fields(&field, models, &subagent.middleware, setting_of));
            all.extend(of_summaries(&field, subagent.summarization.as_ref()));
        }
        // The checks of definitions report a missing name.
        all.retain(|model| !model.name.trim().is_empty());
        all
    }
}

/// Returns the models in the fields `model` and `middleware` of the agent in `field`.
fn of_fields<'a>(
    field: &FieldPath,
    models: Option<&'a ModelNames>,
    policies: &'a [Policy],
    setting_of: &SettingOf<'_>,
) -> Vec<NamedModel<'a>> {
    let mut all = vec![];
    if let Some(models) = models {
        let field = field.then("model");
        let is_list = !models.fallbacks().is_empty();
        for (at, name) in models.all().iter().enumerate() {
            let field = if is_list { field.then(at) } else { field.clone() };
            all.push(always(field, name));
        }
    }
    let list = field.then("middleware");
    for (at, policy) in policies.iter().enumerate() {
        if let Some(setting) = setting_of(&policy.name)
            && let Some(name) = policy.text(setting)
        {
            all.push(always(list.then(at).then(setting), name));
        }
    }
    all
}

/// Returns the model that writes the summaries of the agent in `field`, if its rule names one.
fn of_summaries<'a>(field: &FieldPath, rule: Option<&'a SummarizationRule>) -> Option<NamedModel<'a>> {
    let name = rule?.model()?;
    Some(always(field.then("summarization").then("model"), name))
}

fn always(field: FieldPath, name: &str) -> NamedModel<'_> {
    NamedModel {
        field,
        name,
        usage: ModelUsage::Always,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn named(definition: Value) -> Vec<(String, String, ModelUsage)> {
        let agent: AgentDefinition = serde_json::from_value(definition).expect("a definition");
        let setting_of = |policy: &str| (policy == "Own").then_some("model");
        let models = agent.named_models(setting_of);
        models
            .into_iter()
            .map(|model| (model.field.to_string(), model.name.to_owned(), model.usage))
            .collect()
    }

    #[test]
    fn every_field_that_names_a_model_is_there_with_its_place() {
        let own = |model: &str| json!([{"name": "Other", "model": "no:model"}, {"name": "Own", "model": model}, "Own"]);
        let found = named(json!({
            "model": ["a:1", "a:2"], "summarization": {"model": "a:3"}, "middleware": own("a:4"),
            "configurable": {"models": ["a:5"]},
            "general_purpose_subagent": {"model": "a:6", "middleware": own("a:7")},
            "subagents": [
                {"name": "x"},
                {"name": "y", "model": "a:8", "summarization": {"model": "a:9"}, "middleware": own("a:10")},
                {"name": "z", "model": ["a:11", "a:12"], "summarization": false},
            ],
        }));
        let expected = [
            ("model[0]", "a:1"),
            ("model[1]", "a:2"),
            ("middleware[1].model", "a:4"),
            ("summarization.model", "a:3"),
            ("configurable.models[0]", "a:5"),
            ("general_purpose_subagent.model", "a:6"),
            ("general_purpose_subagent.middleware[1].model", "a:7"),
            ("subagents[1].model", "a:8"),
            ("subagents[1].middleware[1].model", "a:10"),
            ("subagents[1].summarization.model", "a:9"),
            ("subagents[2].model[0]", "a:11"),
            ("subagents[2].model[1]", "a:12"),
        ];
        let places: Vec<(&str, &str)> = found
            .iter()
            .map(|(field, name, _)| (field.as_str(), name.as_str()))
            .collect();
        assert_eq!(places, expected);
        let is_chosen = |usage: &ModelUsage| *usage == ModelUsage::WhenChosen;
        let chosen: Vec<&str> = found
            .iter()
            .filter(|(_, _, usage)| is_chosen(usage))
            .map(|(_, name, _)| name.as_str())
            .collect();
        assert_eq!(chosen, ["a:5"]);
    }

    #[test]
    fn the_model_of_a_general_purpose_subagent_that_is_not_there_is_asked_by_no_run() {
        for more in [
            json!({"general_purpose_subagent": {"model": "a:2", "enabled": false}}),
            json!({"general_purpose_subagent": {"model": "a:2"}, "subagents": [{"name": "general-purpose"}]}),
        ] {
            let mut definition = json!({"model": "a:1"});
            definition
                .as_object_mut()
                .expect("an object")
                .extend(more.as_object().expect("an object").clone());
            let found = named(definition);
            let usages: Vec<ModelUsage> = found.iter().map(|(_, _, usage)| *usage).collect();
            assert_eq!(usages, [ModelUsage::Always, ModelUsage::Never], "{found:?}");
        }
    }

    #[test]
    fn a_program_names_no_model() {
        for definition in [json!({"runnable": "count"}), json!({"model": "", "runnable": "count"})] {
            let found = named(definition);
            assert!(found.is_empty(), "{found:?}");
        }
    }
}
