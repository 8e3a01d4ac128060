//! The kinds of providers, and the one table of their properties.
//!
//! To add a kind with a protocol of the table, add a variant and a row here. A new protocol also needs an arm in
//! `model::providers`, which builds the models.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of a provider: `kind` of a section `[providers.NAME]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ProviderKind {
    /// OpenAI chat completions, also spoken by many gateways and local servers.
    #[serde(rename = "openai")]
    OpenAi,
    /// OpenAI responses.
    #[serde(rename = "openai_responses")]
    OpenAiResponses,
    /// Anthropic messages.
    #[serde(rename = "anthropic")]
    Anthropic,
    /// Google generateContent.
    #[serde(rename = "google_genai")]
    GoogleGenAi,
    /// A local Ollama daemon.
    #[serde(rename = "ollama")]
    Ollama,
    /// OpenRouter, which passes questions on to models of many providers.
    #[serde(rename = "openrouter")]
    OpenRouter,
    /// No network: plays scripts.
    #[serde(rename = "scripted")]
    Scripted,
}

/// The protocol a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// OpenAI chat completions.
    #[serde(rename = "openai")]
    OpenAi,
    /// OpenAI responses.
    #[serde(rename = "openai_responses")]
    OpenAiResponses,
    /// Anthropic messages.
    Anthropic,
    /// Google generateContent.
    #[serde(rename = "google_genai")]
    GoogleGenAi,
    /// Ollama chat.
    Ollama,
    /// None: scripts are played.
    Scripted,
}

/// The use of the cache of a provider: `prompt_caching` of a section `[providers.NAME]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PromptCaching {
    /// The choice that is known for the provider and its models.
    #[default]
    Auto,
    /// The instructions and the end of the conversation are marked with `cache_control`.
    Markers,
    /// Each conversation has a key of its own, `prompt_cache_key`.
    Key,
    /// Requests say nothing to the cache.
    Off,
}

impl PromptCaching {
    /// Returns whether requests of this protocol can use a cache in this way.
    pub fn fits(self, protocol: Protocol) -> bool {
        match self {
            Self::Auto | Self::Off => true,
            Self::Markers => matches!(protocol, Protocol::Anthropic | Protocol::OpenAi),
            Self::Key => matches!(protocol, Protocol::OpenAi | Protocol::OpenAiResponses),
        }
    }
}

/// The properties of a kind of provider.
#[derive(Debug, PartialEq, Eq)]
pub struct ProviderTraits {
    /// The kind.
    pub kind: ProviderKind,
    /// The word for it in configurations and model names.
    pub word: &'static str,
    /// The protocol.
    pub protocol: Protocol,
    /// The address, unless the protocol implies it.
    pub address: Option<&'static str>,
    /// Environment variables that may hold the provider's key, the usual one first.
    pub key_variables: &'static [&'static str],
    /// Environment variables that may hold the provider's address.
    pub address_variables: &'static [&'static str],
    /// True if the public address requires a key.
    pub needs_key: bool,
    /// True if the provider computes embeddings.
    pub has_embeddings: bool,
    /// True if the provider needs no section in the configuration.
    pub is_built_in: bool,
}

/// Every kind, in the order in which they are listed to people.
pub const PROVIDERS: [ProviderTraits; 7] = [
    ProviderTraits {
        kind: ProviderKind::OpenAi,
        word: "openai",
        protocol: Protocol::OpenAi,
        address: None,
        key_variables: &["OPENAI_API_KEY"],
        address_variables: &["OPENAI_BASE_URL", "OPENAI_API_BASE"],
        needs_key: true,
        has_embeddings: true,
        is_built_in: true,
    },
    ProviderTraits {
        kind: ProviderKind::OpenAiResponses,
        word: "openai_responses",
        protocol: Protocol::OpenAiResponses,
        address: None,
        key_variables: &["OPENAI_API_KEY"],
        address_variables: &["OPENAI_BASE_URL", "OPENAI_API_BASE"],
        needs_key: true,
        has_embeddings: true,
        is_built_in: true,
    },
    ProviderTraits {
        kind: ProviderKind::Anthropic,
        word: "anthropic",
        protocol: Protocol::Anthropic,
        address: None,
        key_variables: &["ANTHROPIC_API_KEY"],
        address_variables: &["ANTHROPIC_BASE_URL"],
        needs_key: true,
        has_embeddings: false,
        is_built_in: true,
    },
    ProviderTraits {
        kind: ProviderKind::GoogleGenAi,
        word: "google_genai",
        protocol: Protocol::GoogleGenAi,
        address: None,
        key_variables: &["GOOGLE_API_KEY", "GEMINI_API_KEY"],
        address_variables: &["GOOGLE_GEMINI_BASE_URL"],
        needs_key: true,
        has_embeddings: true,
        is_built_in: true,
    },
    ProviderTraits {
        kind: ProviderKind::Ollama,
        word: "ollama",
        protocol: Protocol::Ollama,
        address: None,
        key_variables: &["OLLAMA_API_KEY"],
        address_variables: &["OLLAMA_API_BASE_URL"],
        needs_key: false,
        has_embeddings: true,
        is_built_in: true,
    },
    ProviderTraits {
        kind: ProviderKind::OpenRouter,
        word: "openrouter",
        protocol: Protocol::OpenAi,
        address: Some("https://openrouter.ai/api/v1"),
        key_variables: &["OPENROUTER_API_KEY"],
        address_variables: &[],
        needs_key: true,
        has_embeddings: true,
        is_built_in: true,
    },
    // The provider needs a section in the configuration, since the client decides what a scripted model says, and so
    // which tools it calls.
    ProviderTraits {
        kind: ProviderKind::Scripted,
        word: "scripted",
        protocol: Protocol::Scripted,
        address: None,
        key_variables: &[],
        address_variables: &[],
        needs_key: true,
        has_embeddings: true,
        is_built_in: false,
    },
];

impl ProviderKind {
    /// Returns the properties of the kind.
    pub fn traits(self) -> &'static ProviderTraits {
        PROVIDERS
            .iter()
            .find(|traits| traits.kind == self)
            .unwrap_or(&PROVIDERS[0])
    }

    /// Returns the word for the kind in configurations and model names.
    pub fn as_str(self) -> &'static str {
        self.traits().word
    }

    /// Returns the protocol of the kind.
    pub fn protocol(self) -> Protocol {
        self.traits().protocol
    }

    /// Returns the kind of a provider that needs no section in the configuration, by its name.
    pub fn built_in(name: &str) -> Option<Self> {
        let known = PROVIDERS
            .iter()
            .find(|traits| traits.is_built_in && traits.word == name);
        known.map(|traits| traits.kind)
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Protocol {
    /// Returns the word for the protocol: that of the first kind which speaks it.
    pub fn as_str(self) -> &'static str {
        let speaks = PROVIDERS.iter().find(|traits| traits.protocol == self);
        speaks.map_or("", |traits| traits.word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read_by_its_word_and_has_a_row() {
        for traits in &PROVIDERS {
            let read: ProviderKind = serde_json::from_value(traits.word.into()).expect("a kind");
            assert_eq!(read, traits.kind);
            assert_eq!(read.traits(), traits);
        }
        let unknown = serde_json::from_value::<ProviderKind>("?".into()).expect_err("no kind");
        let words: Vec<&str> = PROVIDERS.iter().map(|traits| traits.word).collect();
        let listed = unknown.to_string();
        assert!(
            words.iter().all(|word| listed.contains(&format!("`{word}`"))),
            "{listed}"
        );
        assert_eq!(
            listed.matches('`').count(),
            2 * (words.len() + 1),
            "a kind without a row: {listed}"
        );
    }
}
