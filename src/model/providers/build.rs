//! Creates a model from a configured provider and a model name.

use std::sync::Arc;

use rig_core::http_client::DynHttpClient;
use rig_core::providers::anthropic::wire::AnthropicConfig;
use rig_core::providers::gemini::GeminiConfig;
use rig_core::providers::ollama::OllamaConfig;
use rig_core::providers::openai::OpenAIConfig;
use secrecy::{ExposeSecret, SecretString};

use super::adapter::Adapter;
use super::caching::{CacheHint, Caching};
use super::chat_frames::SingleParse;
use super::lean_wire::LeanWire;
use super::scripted::Scripted;
use super::{Protocol, ProviderConfig, plain_chat};
use crate::model::Model;
use crate::model::limits::AnswerLimits;

/// The key for protocols that require one, when the server does not.
const NO_KEY: &str = "none";

/// The token limit for Anthropic models whose own limit is unknown; the API requires one.
const ANTHROPIC_MAX_TOKENS: u64 = 8192;

/// Creates a model of the provider; `key` is sent if given.
pub(super) fn model(
    config: &ProviderConfig,
    model: &str,
    key: Option<SecretString>,
    http: DynHttpClient,
    limits: AnswerLimits,
    caching: Caching,
) -> Arc<dyn Model> {
    let protocol = config.kind.protocol();
    match protocol {
        Protocol::OpenAi => {
            let wire = openai(config, key.as_ref()).connect(http.clone()).chat(model).wire;
            let has_plain_chat = plain_chat::is_for(&wire);
            let wire = SingleParse(LeanWire::new(wire));
            let adapter = Adapter::new(protocol, model, wire, http, limits, key).with_caching(caching);
            Arc::new(adapter.with_plain_chat(has_plain_chat))
        }
        Protocol::OpenAiResponses => {
            let wire = openai(config, key.as_ref()).connect(http.clone()).responses(model).wire;
            Arc::new(Adapter::new(protocol, model, LeanWire::new(wire), http, limits, key).with_caching(caching))
        }
        Protocol::Anthropic => {
            let mut anthropic = AnthropicConfig::new(sent(key.as_ref()));
            if let Some(url) = config.address() {
                anthropic = anthropic.with_base_url(url);
            }
            let mut wire = anthropic.connect(http.clone()).completion(model).wire;
            // An agent sends the same prefix repeatedly, so caching it saves tokens from the second request on.
            if caching.hint() == CacheHint::Markers {
                wire = wire.with_prompt_caching();
            }
            wire.default_max_tokens.get_or_insert(ANTHROPIC_MAX_TOKENS);
            Arc::new(Adapter::new(protocol, model, LeanWire::new(wire), http, limits, key).with_caching(caching))
        }
        Protocol::GoogleGenAi => {
            let wire = gemini(config, key.as_ref())
                .connect(http.clone())
                .completion(model)
                .wire;
            Arc::new(Adapter::new(protocol, model, LeanWire::new(wire), http, limits, key))
        }
        Protocol::Ollama => {
            let wire = ollama(config, key.as_ref())
                .connect(http.clone())
                .completion(model)
                .wire;
            Arc::new(Adapter::new(protocol, model, LeanWire::new(wire), http, limits, key))
        }
        Protocol::Scripted => Arc::new(Scripted::new(model)),
    }
}

fn sent(key: Option<&SecretString>) -> String {
    key.map_or(NO_KEY, |key| key.expose_secret()).to_owned()
}

/// Returns the configuration of a server with OpenAI's protocol.
pub(super) fn openai(config: &ProviderConfig, key: Option<&SecretString>) -> OpenAIConfig {
    let openai = OpenAIConfig::new(sent(key));
    match config.address() {
        Some(url) => openai.with_base_url(url.trim_end_matches('/')),
        None => openai,
    }
}

/// Returns the configuration of a server with Google's protocol.
pub(super) fn gemini(config: &ProviderConfig, key: Option<&SecretString>) -> GeminiConfig {
    let gemini = GeminiConfig::new(sent(key));
    match config.address() {
        Some(url) => gemini.with_base_url(url.trim_end_matches('/').trim_end_matches("/v1beta")),
        None => gemini,
    }
}

/// Returns the configuration of a server with Ollama's protocol.
pub(super) fn ollama(config: &ProviderConfig, key: Option<&SecretString>) -> OllamaConfig {
    let mut ollama = OllamaConfig::new();
    if let Some(url) = config.address() {
        ollama = ollama.with_base_url(url.trim_end_matches('/').trim_end_matches("/v1"));
    }
    if let Some(key) = key {
        ollama = ollama.with_api_key(key.expose_secret());
    }
    ollama
}
