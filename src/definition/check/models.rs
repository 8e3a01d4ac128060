//! Checks the names of models.

use std::collections::BTreeSet;

use super::Check;
use crate::definition::diagnostic::{Diagnostic, FieldPath, suggestion};
use crate::definition::model_names::{MAX_MODEL_NAMES, ModelNames};
use crate::definition::summarization::SummarizationRule;
use crate::definition::validation_context::ValidationContext;

/// Checks the name of a model in `field`.
pub fn check_model(field: &FieldPath, model: &str, context: &ValidationContext) -> Vec<Diagnostic> {
    let mut check = Check::new(context);
    check.model(field, model);
    check.findings
}

impl Check<'_> {
    pub(super) fn models(&mut self, field: &FieldPath, models: &ModelNames) {
        if models.fallbacks().is_empty() {
            return self.model(field, models.first());
        }
        let names = models.all();
        if names.len() > MAX_MODEL_NAMES {
            self.error(
                field,
                format!("must have at most {MAX_MODEL_NAMES} models, not {}", names.len()),
            );
        }
        let mut seen = BTreeSet::new();
        for (at, name) in names.iter().enumerate() {
            let field = field.then(at);
            self.model(&field, name);
            if !seen.insert(name) {
                self.error(&field, format!("`{name}` is listed twice; each model is asked once"));
            }
        }
    }

    pub(super) fn model(&mut self, field: &FieldPath, model: &str) {
        if model.trim().is_empty() {
            return self.error(field, "must be given, as `provider:model-name`");
        }
        match model.split_once(':') {
            Some((provider, name)) if !provider.is_empty() && !name.is_empty() => {
                if !self.context.providers.contains(provider) {
                    let known = self.context.providers.iter().map(String::as_str);
                    let known = suggestion(provider, known, "known are");
                    let way_out = format!("a section `[providers.{provider}]` with its `kind` adds one");
                    self.error(field, format!("there is no provider `{provider}`; {known}; {way_out}"));
                }
            }
            Some(_) | None => self.error(field, format!("`{model}` must be `provider:model-name`")),
        }
    }

    pub(super) fn summarization(&mut self, field: &FieldPath, rule: &SummarizationRule) {
        self.findings.extend(rule.check(field));
        if let Some(model) = rule.model() {
            self.model(&field.then("model"), model);
        }
    }
}
