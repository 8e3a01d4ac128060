//! The use of the cache of a provider: what requests say to it.
//!
//! Most providers cache the beginnings of requests by themselves. Claude caches what is marked, also behind a gateway
//! with OpenAI's protocol, and some providers find more in their caches when each conversation has a key. A provider
//! that refuses a marker or a key is asked again without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use rig_core::wire::Body;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use url::Url;

use super::markers::{self, MARKER};
use super::{Protocol, ProviderConfig, chat_markers};
use crate::definition::provider::PromptCaching;
use crate::model::ModelRequest;

/// The field with the key of a conversation.
pub(super) const KEY: &str = "prompt_cache_key";
/// The header with the key of a conversation, in chat completions of xAI.
const KEY_HEADER: &str = "x-grok-conv-id";

/// The address of OpenAI, which needs no `base_url`.
const OPENAI: &str = "api.openai.com";
/// The hosts of providers that take [`KEY`]: OpenAI, Azure and Mistral.
const TAKE_KEYS: [&str; 5] = [
    OPENAI,
    "openai.azure.com",
    "services.ai.azure.com",
    "cognitiveservices.azure.com",
    "api.mistral.ai",
];
/// The host of xAI.
const XAI: &str = "api.x.ai";
/// The host of OpenRouter.
const OPENROUTER: &str = "openrouter.ai";
/// The beginnings of the names of models at OpenRouter that cache only what is marked.
const MARKED_AT_OPENROUTER: [&str; 2] = ["anthropic/", "qwen/"];

/// The hint of a request to the cache of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum CacheHint {
    /// Nothing.
    #[default]
    Nothing,
    /// Markers where the provider is to end what it caches.
    Markers,
    /// The key of the conversation.
    Key,
    /// The key of the conversation, in a header.
    KeyInHeader,
}

/// The use of the cache of the provider by requests to a model. Clones have the same memory of a refusal.
#[derive(Debug, Clone, Default)]
pub(super) struct Caching {
    hint: CacheHint,
    /// True if the provider speaks Anthropic's protocol, of which markers are a part.
    is_anthropic: bool,
    is_refused: Arc<AtomicBool>,
}

impl Caching {
    /// Creates it for a model of a provider.
    pub(super) fn new(config: &ProviderConfig, model: &str) -> Self {
        let protocol = config.kind.protocol();
        let setting = config.requests.prompt_caching.unwrap_or_default();
        let hint = match setting {
            _ if !setting.fits(protocol) => CacheHint::Nothing,
            PromptCaching::Auto => automatic(config, model),
            PromptCaching::Markers => CacheHint::Markers,
            PromptCaching::Key => CacheHint::Key,
            PromptCaching::Off => CacheHint::Nothing,
        };
        Self {
            hint,
            is_anthropic: protocol == Protocol::Anthropic,
            is_refused: Arc::default(),
        }
    }

    /// Returns what the next request says.
    pub(super) fn hint(&self) -> CacheHint {
        match self.is_refused.load(Ordering::Relaxed) {
            true => CacheHint::Nothing,
            false => self.hint,
        }
    }

    /// Returns the body of a request without what it says to the cache, if `error` refuses that.
    pub(super) fn body_without(&self, status: StatusCode, error: &str, body: &[u8]) -> Option<Vec<u8>> {
        let field = match self.hint {
            CacheHint::Markers => MARKER,
            CacheHint::Key => KEY,
            CacheHint::Nothing | CacheHint::KeyInHeader => return None,
        };
        let is_invalid = [StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY].contains(&status);
        if !is_invalid || !error.contains(field) {
            return None;
        }
        let mut body: Value = serde_json::from_slice(body).ok()?;
        let had_some = match field {
            MARKER => markers::remove(&mut body),
            _ => body.as_object_mut()?.shift_remove(field).is_some(),
        };
        if field == MARKER && !self.is_anthropic {
            chat_markers::join_texts(&mut body);
        }
        had_some.then(|| body.to_string().into_bytes())
    }

    /// Remembers that the provider took a request only without what it said to the cache. Anthropic's protocol has
    /// markers, so there it was about one request alone.
    pub(super) fn note_refusal(&self, host: Option<&str>) {
        let host = host.unwrap_or_default();
        tracing::warn!(host, hint = ?self.hint, "a provider refused prompt caching, and took the request without it");
        if !self.is_anthropic {
            self.is_refused.store(true, Ordering::Relaxed);
        }
    }
}

/// Returns what is known for a provider and one of its models.
fn automatic(config: &ProviderConfig, model: &str) -> CacheHint {
    let host = match config.address() {
        None => Some(OPENAI.to_owned()),
        Some(address) => host(address),
    };
    let is_at = |name: &str| host.as_deref().is_some_and(|host| is_below(host, name));
    match config.kind.protocol() {
        Protocol::Anthropic => CacheHint::Markers,
        Protocol::OpenAi if is_at(OPENROUTER) => {
            match MARKED_AT_OPENROUTER.iter().any(|family| model.starts_with(family)) {
                true => CacheHint::Markers,
                false => CacheHint::Nothing,
            }
        }
        Protocol::OpenAi if is_at(XAI) => CacheHint::KeyInHeader,
        Protocol::OpenAiResponses if is_at(XAI) => CacheHint::Key,
        Protocol::OpenAi | Protocol::OpenAiResponses if TAKE_KEYS.into_iter().any(is_at) => CacheHint::Key,
        Protocol::OpenAi
        | Protocol::OpenAiResponses
        | Protocol::GoogleGenAi
        | Protocol::Ollama
        | Protocol::Scripted => CacheHint::Nothing,
    }
}

/// Returns the host of an address.
fn host(address: &str) -> Option<String> {
    Url::parse(address).ok()?.host_str().map(str::to_owned)
}

/// Returns whether a host is `name`, or is below it.
fn is_below(host: &str, name: &str) -> bool {
    host.strip_suffix(name)
        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Returns the key of the conversation that a request goes on with, if the provider takes one: the same for all its
/// requests, and another one for each conversation.
pub(super) fn conversation_key(request: &ModelRequest, hint: CacheHint) -> Option<String> {
    match hint {
        CacheHint::Nothing | CacheHint::Markers => return None,
        CacheHint::Key | CacheHint::KeyInHeader => {}
    }
    let first = request.messages.first()?;
    // A digest, since ids can come from clients, and may be long or say something about a user.
    let digest = match first.id.as_deref() {
        Some(id) => Sha256::digest(id),
        None => Sha256::digest(first.content.text()),
    };
    Some(hex::encode(&digest[..16]))
}

/// Sets the header with the key of a conversation.
pub(super) fn set_header(request: &mut http::Request<Body>, key: &str) {
    if let Ok(value) = http::HeaderValue::from_str(key) {
        request.headers_mut().insert(KEY_HEADER, value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::definition::provider::ProviderKind;
    use crate::domain::message::Message;
    use crate::model::providers::{ApiKeySource, ContextWindows, RequestSettings};

    fn config(kind: ProviderKind, base_url: Option<&str>, setting: Option<PromptCaching>) -> ProviderConfig {
        ProviderConfig {
            kind,
            base_url: base_url.map(str::to_owned),
            api_key: ApiKeySource::None,
            windows: ContextWindows::default(),
            requests: RequestSettings {
                prompt_caching: setting,
                ..RequestSettings::default()
            },
        }
    }

    fn hint(kind: ProviderKind, base_url: Option<&str>, model: &str) -> CacheHint {
        Caching::new(&config(kind, base_url, None), model).hint()
    }

    #[test]
    fn the_cache_of_a_known_provider_is_used_as_the_provider_takes_it() {
        let chat = |base_url: &str, model: &str| hint(ProviderKind::OpenAi, Some(base_url), model);
        assert_eq!(hint(ProviderKind::Anthropic, None, "claude-x"), CacheHint::Markers);
        let proxy = Some("http://127.0.0.1:9");
        assert_eq!(hint(ProviderKind::Anthropic, proxy, "claude-x"), CacheHint::Markers);
        assert_eq!(
            hint(ProviderKind::OpenRouter, None, "anthropic/claude-x"),
            CacheHint::Markers
        );
        assert_eq!(
            chat("https://openrouter.ai/api/v1", "qwen/qwen-max"),
            CacheHint::Markers
        );
        assert_eq!(hint(ProviderKind::OpenRouter, None, "openai/gpt-x"), CacheHint::Nothing);
        assert_eq!(hint(ProviderKind::OpenAi, None, "gpt-x"), CacheHint::Key);
        assert_eq!(hint(ProviderKind::OpenAiResponses, None, "gpt-x"), CacheHint::Key);
        assert_eq!(
            chat("https://eu.api.openai.com/v1", "anthropic/x"),
            CacheHint::Key,
            "a region"
        );
        assert_eq!(chat("https://mine.openai.azure.com/openai/v1", "mine"), CacheHint::Key);
        assert_eq!(chat("https://api.mistral.ai/v1", "mistral-x"), CacheHint::Key);
        assert_eq!(chat("https://api.x.ai/v1", "grok-x"), CacheHint::KeyInHeader);
        let xai = Some("https://api.x.ai/v1");
        assert_eq!(hint(ProviderKind::OpenAiResponses, xai, "grok-x"), CacheHint::Key);
        for other in [
            "https://api.deepseek.com",
            "https://gateway.example.org/v1",
            "http://127.0.0.1:9100/v1",
            "https://notopenrouter.ai/v1",
            "nonsense",
        ] {
            assert_eq!(chat(other, "anthropic/claude-x"), CacheHint::Nothing, "{other}");
        }
        assert_eq!(hint(ProviderKind::GoogleGenAi, None, "gemini-x"), CacheHint::Nothing);
        assert_eq!(hint(ProviderKind::Ollama, None, "llama"), CacheHint::Nothing);
    }

    #[test]
    fn a_setting_precedes_what_is_known_where_the_protocol_has_a_place_for_it() {
        let set = |kind, setting| Caching::new(&config(kind, None, Some(setting)), "m").hint();
        assert_eq!(set(ProviderKind::OpenAi, PromptCaching::Markers), CacheHint::Markers);
        assert_eq!(set(ProviderKind::OpenAi, PromptCaching::Off), CacheHint::Nothing);
        assert_eq!(set(ProviderKind::Anthropic, PromptCaching::Off), CacheHint::Nothing);
        assert_eq!(set(ProviderKind::Anthropic, PromptCaching::Key), CacheHint::Nothing);
        assert_eq!(
            set(ProviderKind::GoogleGenAi, PromptCaching::Markers),
            CacheHint::Nothing
        );
    }

    #[test]
    fn only_an_error_that_names_the_field_takes_it_out_of_a_request() {
        let caching = Caching::new(&config(ProviderKind::OpenAi, None, None), "gpt-x");
        let body = json!({"model": "gpt-x", KEY: "k"}).to_string();
        let error = r#"{"error": {"message": "Unrecognized request argument: prompt_cache_key"}}"#;
        let without = |status, error: &str, body: &str| caching.body_without(status, error, body.as_bytes());
        let plain = without(StatusCode::BAD_REQUEST, error, &body).expect("a body");
        assert_eq!(plain, json!({"model": "gpt-x"}).to_string().into_bytes());
        assert_eq!(without(StatusCode::TOO_MANY_REQUESTS, error, &body), None);
        assert_eq!(without(StatusCode::BAD_REQUEST, "no", &body), None);
        let had_none = json!({"model": "gpt-x"}).to_string();
        assert_eq!(without(StatusCode::BAD_REQUEST, error, &had_none), None);
    }

    #[test]
    fn a_conversation_has_one_key_however_long_it_gets() {
        let asked = |ids: &[&str]| ModelRequest {
            messages: ids
                .iter()
                .map(|id| Arc::new(Message::human("hello").with_id(*id)))
                .collect(),
            ..ModelRequest::default()
        };
        let key = |ids: &[&str]| conversation_key(&asked(ids), CacheHint::Key).expect("a key");
        assert_eq!(key(&["a"]), key(&["a", "b"]));
        assert_ne!(key(&["a"]), key(&["b"]));
        assert_eq!(key(&["a"]).len(), 32);
        assert_eq!(conversation_key(&asked(&["a"]), CacheHint::Markers), None);
    }
}
