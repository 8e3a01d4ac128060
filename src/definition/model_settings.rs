//! The settings that a definition may pass to a provider, and those that are reserved for the request itself.

use serde_json::{Map, Value};

use super::diagnostic::{Diagnostic, FieldPath};

/// The fields of requests to providers, by their names at any provider, in lower case and without `_`. The server fills
/// these fields. A setting with such a name would bypass approvals and lists of allowed models, or make the answer
/// unreadable. The names are from the references of OpenAI (chat completions, responses), Anthropic (messages), Google
/// (generateContent), Ollama (chat) and the usual gateways.
const STRUCTURAL: [&str; 29] = [
    "background",
    "batch",
    "cachedcontent",
    "container",
    "contents",
    "conversation",
    "fallbacks",
    "functioncall",
    "functiondeclarations",
    "functions",
    "input",
    "instructions",
    "mcpservers",
    "messages",
    "model",
    "models",
    "n",
    "previousresponseid",
    "prompt",
    "raw",
    "stream",
    "streamoptions",
    "system",
    "systeminstruction",
    "template",
    "toolchoice",
    "toolconfig",
    "toolresources",
    "tools",
];

/// Returns whether a setting of this name would replace a part of the request.
pub fn is_structural_setting(name: &str) -> bool {
    let plain: String = name
        .chars()
        .filter(|letter| *letter != '_')
        .map(|letter| letter.to_ascii_lowercase())
        .collect();
    STRUCTURAL.contains(&plain.as_str())
}

/// Returns whether a setting of this name is about the form of an agent's own answers. Other requests to the model, for
/// summaries and by policies, go without it.
pub fn is_about_answers(name: &str) -> bool {
    matches!(name, "response_format" | "format" | "text" | "stop")
}

/// Returns diagnostics for the settings in `field` that are not allowed.
pub(super) fn check_settings(field: &FieldPath, settings: &Map<String, Value>) -> Vec<Diagnostic> {
    let message = "is a part of the request that the server makes itself, and cannot be a setting";
    let structural = settings.keys().filter(|name| is_structural_setting(name));
    structural
        .map(|name| Diagnostic::error(field.then(name), message))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_the_request_is_told_from_what_tunes_it() {
        for name in [
            "model",
            "messages",
            "tools",
            "stream",
            "tool_choice",
            "toolConfig",
            "system_instruction",
            "Model",
        ] {
            assert!(is_structural_setting(name), "{name}");
        }
        for name in [
            "temperature",
            "max_tokens",
            "reasoning_effort",
            "options",
            "thinking",
            "response_format",
            "top_p",
        ] {
            assert!(!is_structural_setting(name), "{name}");
        }
    }
}
