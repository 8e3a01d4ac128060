//! One configured provider and a model name become a model.

use std::sync::Arc;

use rig_core::http_client::DynHttpClient;
use rig_core::providers::anthropic::wire::AnthropicConfig;
use rig_core::providers::gemini::GeminiConfig;
use rig_core::providers::ollama::OllamaConfig;
use rig_core::providers::openai::OpenAIConfig;
use secrecy::{ExposeSecret, SecretString};

use super::adapter::Adapter;
use super::{Kind, ProviderConfig};
use crate::model::Model;
use crate::model::scripted::Scripted;

/// Sent where a protocol demands a key but the server behind it wants none.
const NO_KEY: &str = "none";

/// Anthropic demands a limit on every request; this one holds for models whose own limit is not known.
const ANTHROPIC_MAX_TOKENS: u64 = 8192;

/// A model of the provider. `key` is what it is to send, if anything.
pub(super) fn model(
    config: &ProviderConfig,
    model: &str,
    key: Option<SecretString>,
    http: DynHttpClient,
) -> Arc<dyn Model> {
    let sent = key.as_ref().map_or(NO_KEY, |key| key.expose_secret()).to_owned();
    match config.kind {
        Kind::OpenAi => {
            let mut openai = OpenAIConfig::new(sent);
            if let Some(url) = &config.base_url {
                openai = openai.with_base_url(url.trim_end_matches('/'));
            }
            let wire = openai.connect(http.clone()).chat(model).wire;
            Arc::new(Adapter::new(config.kind, model, wire, http, key))
        }
        Kind::Anthropic => {
            let mut anthropic = AnthropicConfig::new(sent);
            if let Some(url) = &config.base_url {
                anthropic = anthropic.with_base_url(url);
            }
            // An agent sends the same beginning again and again; marking it costs little and is repaid at once.
            let mut wire = anthropic.connect(http.clone()).completion(model).wire.with_prompt_caching();
            wire.default_max_tokens.get_or_insert(ANTHROPIC_MAX_TOKENS);
            Arc::new(Adapter::new(config.kind, model, wire, http, key))
        }
        Kind::GoogleGenAi => {
            let mut gemini = GeminiConfig::new(sent);
            if let Some(url) = &config.base_url {
                gemini = gemini.with_base_url(url.trim_end_matches('/').trim_end_matches("/v1beta"));
            }
            let wire = gemini.connect(http.clone()).completion(model).wire;
            Arc::new(Adapter::new(config.kind, model, wire, http, key))
        }
        Kind::Ollama => {
            let mut ollama = OllamaConfig::new();
            if let Some(url) = &config.base_url {
                ollama = ollama.with_base_url(url.trim_end_matches('/').trim_end_matches("/v1"));
            }
            if let Some(key) = &key {
                ollama = ollama.with_api_key(key.expose_secret());
            }
            let wire = ollama.connect(http.clone()).completion(model).wire;
            Arc::new(Adapter::new(config.kind, model, wire, http, key))
        }
        Kind::Scripted => Arc::new(Scripted::new(model)),
    }
}
