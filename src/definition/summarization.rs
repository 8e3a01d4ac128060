//! Summarisation: when the older part of a conversation is replaced by a summary in requests to the model.

use serde::{Deserialize, Deserializer, Serialize};

use super::diagnostic::{Diagnostic, FieldPath};
use super::untagged::{self, SwitchOrTable};

/// The rule for the summarisation of an agent's conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SummarizationRule {
    /// `true`: with the default settings; `false`: never.
    Switch(bool),
    /// The settings.
    Settings(Box<SummarizationSettings>),
}

impl Default for SummarizationRule {
    fn default() -> Self {
        Self::Switch(true)
    }
}

/// The settings of summarisation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SummarizationSettings {
    /// The length of the request from which the conversation is summarised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<ContextTrigger>,
    /// The newest part of the conversation that is kept as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<ContextLength>,
    /// The context window of the agent's model, in tokens, if it is not the known one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u64>,
    /// The model that writes the summary; the agent's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The instructions for the summary; a standard text when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_prompt: Option<String>,
    /// The length from which a text in the arguments of an older call is shortened, in characters; 0 for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_argument_chars: Option<u32>,
    /// True if the agent has the tool `compact_conversation`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tool: bool,
}

/// One length, or several of which any is enough.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "must be a table with `fraction`, `tokens` or `messages`, or a list of such tables"
)]
pub enum ContextTrigger {
    /// One length.
    One(ContextLength),
    /// The first of these lengths that is reached.
    Any(Vec<ContextLength>),
}

/// A length of a request or of a part of it. With several units, all of them have to be reached.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContextLength {
    /// A fraction of the model's context window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// A number of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// A number of messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<u64>,
}

impl ContextTrigger {
    /// Returns the lengths.
    pub fn lengths(&self) -> &[ContextLength] {
        match self {
            Self::One(length) => std::slice::from_ref(length),
            Self::Any(lengths) => lengths,
        }
    }
}

impl ContextLength {
    fn units(&self) -> usize {
        let given = [self.fraction.is_some(), self.tokens.is_some(), self.messages.is_some()];
        given.into_iter().filter(|given| *given).count()
    }

    fn check(&self, field: &FieldPath) -> Vec<Diagnostic> {
        let mut findings = vec![];
        if self.units() == 0 {
            let message = "must give `fraction`, `tokens` or `messages`";
            findings.push(Diagnostic::error(field.clone(), message));
        }
        if self
            .fraction
            .is_some_and(|fraction| !(fraction > 0.0 && fraction <= 1.0))
        {
            let message = "must be a number above 0, and at most 1";
            findings.push(Diagnostic::error(field.then("fraction"), message));
        }
        for (name, _) in [("tokens", self.tokens), ("messages", self.messages)]
            .into_iter()
            .filter(|(_, number)| *number == Some(0))
        {
            findings.push(Diagnostic::error(
                field.then(name),
                "must be a whole number of at least 1",
            ));
        }
        findings
    }

    /// Returns the unit in which this length is not below `trigger`.
    fn exceeds(&self, trigger: &Self) -> Option<&'static str> {
        let is_above = |own: Option<u64>, other: Option<u64>| own.zip(other).is_some_and(|(own, other)| own >= other);
        if self
            .fraction
            .zip(trigger.fraction)
            .is_some_and(|(own, other)| own >= other)
        {
            return Some("fraction");
        }
        if is_above(self.tokens, trigger.tokens) {
            return Some("tokens");
        }
        is_above(self.messages, trigger.messages).then_some("messages")
    }
}

impl SummarizationRule {
    /// Returns the settings, unless summarisation is off.
    pub fn settings(&self) -> Option<SummarizationSettings> {
        match self {
            Self::Switch(on) => on.then(SummarizationSettings::default),
            Self::Settings(settings) => Some((**settings).clone()),
        }
    }

    /// Returns the rule for an agent with another model, whose context window is another one.
    #[must_use]
    pub fn for_another_model(self) -> Self {
        match self {
            Self::Settings(settings) => Self::Settings(Box::new(SummarizationSettings {
                max_input_tokens: None,
                ..*settings
            })),
            Self::Switch(on) => Self::Switch(on),
        }
    }

    /// Returns whether the agent has the tool that compacts its conversation.
    pub fn has_tool(&self) -> bool {
        matches!(self, Self::Settings(settings) if settings.tool)
    }

    /// Returns the model that writes the summary, if the rule names one.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Settings(settings) => settings.model.as_deref(),
            Self::Switch(_) => None,
        }
    }

    /// Checks the rule in `field`, but for the name of the model.
    pub(super) fn check(&self, field: &FieldPath) -> Vec<Diagnostic> {
        let Self::Settings(settings) = self else { return vec![] };
        let mut findings = vec![];
        let triggers = settings.trigger.as_ref().map_or(&[][..], ContextTrigger::lengths);
        if settings.trigger.is_some() && triggers.is_empty() {
            let message = "must have at least one length; leave it out for the default";
            findings.push(Diagnostic::error(field.then("trigger"), message));
        }
        for (at, length) in triggers.iter().enumerate() {
            let place = match settings.trigger {
                Some(ContextTrigger::Any(_)) => field.then("trigger").then(at),
                Some(ContextTrigger::One(_)) | None => field.then("trigger"),
            };
            findings.extend(length.check(&place));
        }
        if let Some(keep) = &settings.keep {
            let place = field.then("keep");
            findings.extend(keep.check(&place));
            if keep.units() > 1 {
                let message = "must give only one of `fraction`, `tokens` and `messages`";
                findings.push(Diagnostic::error(place.clone(), message));
            }
            if let Some(unit) = triggers.iter().find_map(|trigger| keep.exceeds(trigger)) {
                let message = "must be less than in `trigger`, so that there is something to summarise";
                findings.push(Diagnostic::error(place.then(unit), message));
            }
        }
        if settings.max_input_tokens == Some(0) {
            findings.push(Diagnostic::error(
                field.then("max_input_tokens"),
                "must be a whole number of at least 1",
            ));
        }
        if settings
            .summary_prompt
            .as_deref()
            .is_some_and(|text| text.trim().is_empty())
        {
            let message = "must not be blank; leave it out for the default";
            findings.push(Diagnostic::error(field.then("summary_prompt"), message));
        }
        findings
    }
}

impl<'de> Deserialize<'de> for SummarizationRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "true, false or a table with `trigger`, `keep` and other settings";
        Ok(match untagged::read(deserializer, expected)? {
            SwitchOrTable::Switch(on) => Self::Switch(on),
            SwitchOrTable::Table(settings) => Self::Settings(Box::new(settings)),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::definition::read;

    fn findings(rule: Value) -> Vec<String> {
        let read = read::<SummarizationRule>(rule);
        let checked = read.value.map(|rule| rule.check(&FieldPath::default()));
        let all = read.findings.into_iter().chain(checked.unwrap_or_default());
        all.map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn lengths_that_cannot_work_are_refused_with_their_place() {
        assert_eq!(
            findings(json!({"trigger": {"fraction": 1.5}})),
            ["trigger.fraction: must be a number above 0, and at most 1"]
        );
        assert_eq!(
            findings(json!({"trigger": [{"tokens": 10}, {}]})),
            ["trigger[1]: must give `fraction`, `tokens` or `messages`"]
        );
        assert_eq!(
            findings(json!({"trigger": {"messages": 5}, "keep": {"messages": 5}})),
            ["keep.messages: must be less than in `trigger`, so that there is something to summarise"]
        );
        assert_eq!(
            findings(json!({"keep": {"messages": 5, "tokens": 5}})),
            ["keep: must give only one of `fraction`, `tokens` and `messages`"]
        );
        assert_eq!(findings(json!({"trigger": {"tokens": 100, "messages": 10}})), [""; 0]);
    }

    #[test]
    fn a_switch_and_settings_are_read() {
        let rule: SummarizationRule = serde_json::from_value(json!(false)).expect("a rule");
        assert_eq!(rule.settings(), None);
        let rule: SummarizationRule = serde_json::from_value(json!({"tool": true})).expect("a rule");
        assert!(rule.has_tool());
        let refused = findings(json!({"trigered": 1}));
        assert!(refused[0].starts_with("trigered: unknown key"), "{refused:?}");
        assert!(findings(json!("on"))[0].contains("true, false or a table"));
    }
}
