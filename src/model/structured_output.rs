//! Well-known models that keep the text of an answer to a JSON Schema while they may call tools as well.
//!
//! The list has what the providers publish. A model that is not listed answers in a form by a tool, which every model
//! can.

use crate::definition::provider::{Protocol, ProviderKind};

/// The beginnings of model names of each protocol, and whether these models keep to a schema. The first one that
/// fits counts.
const OPENAI: [(&str, bool); 12] = [
    ("gpt-4o-audio", false),
    ("gpt-4o-realtime", false),
    ("gpt-5.2-pro", false),
    ("gpt-5.4-pro", false),
    ("gpt-5", true),
    ("gpt-6", true),
    ("gpt-4.1", true),
    ("gpt-4o", true),
    ("o1-mini", false),
    ("o1-preview", false),
    ("o3", true),
    ("o4-mini", true),
];
const ANTHROPIC: [(&str, bool); 10] = [
    ("claude-sonnet-4-5", true),
    ("claude-sonnet-4-6", true),
    ("claude-sonnet-5", true),
    ("claude-haiku-4-5", true),
    ("claude-opus-4-1", true),
    ("claude-opus-4-5", true),
    ("claude-opus-4-6", true),
    ("claude-opus-4-7", true),
    ("claude-opus-4-8", true),
    ("claude-opus-5", true),
];
const GOOGLE: [(&str, bool); 1] = [("gemini-3", true)];

/// Returns whether a model of this kind of provider keeps to a JSON Schema beside its tools.
pub fn is_known(kind: ProviderKind, model: &str) -> bool {
    // A kind with an address speaks the protocol of another one: it is a gateway, or has models of its own.
    let is_another = kind.traits().address.is_some();
    let rows: &[(&str, bool)] = match kind.protocol() {
        Protocol::OpenAi | Protocol::OpenAiResponses if !is_another => &OPENAI,
        Protocol::Anthropic if !is_another => &ANTHROPIC,
        Protocol::GoogleGenAi if !is_another => &GOOGLE,
        // The models behind a gateway or a daemon are unknown.
        Protocol::OpenAi
        | Protocol::OpenAiResponses
        | Protocol::Anthropic
        | Protocol::GoogleGenAi
        | Protocol::Ollama
        | Protocol::Scripted => &[],
    };
    let name = model.to_ascii_lowercase();
    let row = rows.iter().find(|(start, _)| name.starts_with(start));
    row.is_some_and(|(_, keeps)| *keeps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_known_by_their_provider_and_the_beginning_of_their_names() {
        for (kind, model, keeps) in [
            (ProviderKind::OpenAi, "gpt-5-mini", true),
            (ProviderKind::OpenAiResponses, "GPT-5", true),
            (ProviderKind::OpenAi, "gpt-4o-audio-preview", false),
            (ProviderKind::OpenAi, "gpt-3.5-turbo", false),
            (ProviderKind::OpenAi, "gpt-5.4-mini", true),
            (ProviderKind::OpenAi, "gpt-5.4-pro", false),
            (ProviderKind::OpenAi, "gpt-6-sol", true),
            (ProviderKind::Anthropic, "claude-opus-4-8", true),
            (ProviderKind::Anthropic, "claude-opus-4-0", false),
            (ProviderKind::OpenAi, "claude-sonnet-4-6", false),
            (ProviderKind::Anthropic, "claude-sonnet-4-6", true),
            (ProviderKind::Anthropic, "claude-3-5-sonnet", false),
            (ProviderKind::GoogleGenAi, "gemini-2.5-pro", false),
            (ProviderKind::OpenRouter, "openai/gpt-5", false),
        ] {
            assert_eq!(is_known(kind, model), keeps, "{model}");
        }
    }
}
