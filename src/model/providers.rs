//! The configured model providers and their models.
//!
//! `"openai:gpt-5"` names a provider and one of its models; [`Providers::model`] returns the [`Model`]. A provider's
//! key and address are checked when one of its models is first used, so that a server starts without the keys of
//! unused providers. The wire formats are below this module; no type of the underlying library leaves it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rig_core::http_client::DynHttpClient;
use secrecy::{ExposeSecret, SecretString};

use super::limits::AnswerLimits;
use super::pieces::{PieceLimits, SilenceLimit};
use super::retry::{RetryPolicy, Retrying};
use super::{Model, ModelError, structured_output, windows};
use crate::definition::provider::{PROVIDERS, PromptCaching, Protocol, ProviderKind, ProviderTraits};
use crate::domain::headers::Headers;
use crate::domain::name_patterns::NamePatterns;
use bounded::BoundedClient;
use caching::Caching;
use scripted::Scripted;

pub use listing::{ListingError, ProviderListing};

mod adapter;
mod bounded;
mod build;
mod caching;
mod chat_body;
mod chat_frames;
mod chat_markers;
mod content;
mod embedding;
mod errors;
mod file_names;
mod known_requests;
mod lean_wire;
mod listing;
mod markers;
mod native;
mod plain_chat;
mod reply;
mod request;
pub mod scripted;
mod separators;
mod transport;

/// The maximum number of cached models, since clients may name any model.
const MAX_MODELS: usize = 256;

/// The configuration of a provider.
#[derive(Debug, Clone)]
pub struct ProviderConfig {
    /// The kind of provider.
    pub kind: ProviderKind,
    /// The base URL, if not the public one. For `openai` it ends before `/chat/completions`, usually in `/v1`.
    pub base_url: Option<String>,
    /// The source of the API key.
    pub api_key: ApiKeySource,
    /// The context windows of the models, as far as they are configured.
    pub windows: ContextWindows,
    /// The settings of the requests.
    pub requests: RequestSettings,
}

/// The settings of the requests to a provider, as far as they are configured. Its models have the server's settings
/// otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestSettings {
    /// Headers of every request. They precede those of the protocol.
    pub headers: Headers,
    /// The number of attempts after the first one.
    pub max_retries: Option<usize>,
    /// The maximum time from a request to the first piece of an answer.
    pub first_token: Option<Duration>,
    /// The maximum time between two pieces of an answer.
    pub between_tokens: Option<Duration>,
    /// The use of the provider's cache.
    pub prompt_caching: Option<PromptCaching>,
}

impl RequestSettings {
    /// Returns these settings, with those of `base` where these say nothing. Headers may be credentials, so those of
    /// `base` are only used at the same server; what its cache takes is known of the same server only, too.
    fn over(self, base: &Self, is_same_server: bool) -> Self {
        let has_headers = !self.headers.is_empty() || !is_same_server;
        Self {
            headers: if has_headers {
                self.headers
            } else {
                base.headers.clone()
            },
            max_retries: self.max_retries.or(base.max_retries),
            first_token: self.first_token.or(base.first_token),
            between_tokens: self.between_tokens.or(base.between_tokens),
            prompt_caching: self.prompt_caching.or(base.prompt_caching.filter(|_| is_same_server)),
        }
    }

    /// Returns the limits of answers.
    fn limits(&self, usual: AnswerLimits) -> AnswerLimits {
        let limit = |time: Option<Duration>, setting: &'static str, usual: SilenceLimit| {
            time.map_or(usual, |time| SilenceLimit { time, setting })
        };
        AnswerLimits {
            pieces: PieceLimits {
                first: limit(self.first_token, "first_token_s of the provider", usual.pieces.first),
                between: limit(
                    self.between_tokens,
                    "between_tokens_s of the provider",
                    usual.pieces.between,
                ),
            },
            ..usual
        }
    }

    /// Returns the policy of retries.
    fn retries(&self, usual: RetryPolicy) -> RetryPolicy {
        RetryPolicy {
            max_retries: self.max_retries.unwrap_or(usual.max_retries),
            ..usual
        }
    }
}

/// The context windows of the models of a provider, in tokens, as they are configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContextWindows {
    /// The window of all models.
    pub of_all: Option<u64>,
    /// The windows of single models, by name.
    pub by_model: BTreeMap<String, u64>,
}

impl ContextWindows {
    /// Returns the window of a model of this name.
    fn of(&self, model: &str) -> Option<u64> {
        self.by_model.get(model).copied().or(self.of_all)
    }
}

/// The source of an API key.
#[derive(Debug, Clone)]
pub enum ApiKeySource {
    /// The configuration.
    Inline(SecretString),
    /// An environment variable, read by the configuration.
    Env {
        /// The variable's name, for messages.
        name: String,
        /// The value, if it was set.
        value: Option<SecretString>,
    },
    /// A file that contains only the key, read when a model of the provider is first used.
    File(PathBuf),
    /// No source: the provider needs no key, or the usual variable of its kind is used.
    None,
}

/// All providers by name, and the cached models.
pub struct Providers {
    configs: BTreeMap<String, ProviderConfig>,
    policy: RetryPolicy,
    limits: AnswerLimits,
    /// The shared connection pool; none if it could not be created.
    http: Option<BoundedClient>,
    /// The providers of the embedding program, by the name before the colon.
    own: BTreeMap<String, ModelSource>,
    models: Mutex<HashMap<String, Arc<dyn Model>>>,
    /// The models that may be used, as `provider:model`.
    allowed: NamePatterns,
    /// The providers of the server, for those that a tenant has no key for.
    shared: Option<Arc<Self>>,
}

/// The settings of a tenant for a provider, in place of those of the server.
#[derive(Debug, Clone)]
pub struct ProviderOverride {
    /// The kind, if it is another.
    pub kind: Option<ProviderKind>,
    /// The base URL, if it is another.
    pub base_url: Option<String>,
    /// The source of the API key. The key of the server is not used.
    pub api_key: ApiKeySource,
    /// The context windows of the models, if they are others.
    pub windows: ContextWindows,
    /// The settings of the requests, as far as they are others.
    pub requests: RequestSettings,
}

/// A function that creates the model for the name after the colon.
pub type ModelSource = Arc<dyn Fn(&str) -> Result<Arc<dyn Model>, ModelError> + Send + Sync>;

impl ProviderConfig {
    /// Returns the base URL, if the protocol does not imply it.
    fn address(&self) -> Option<&str> {
        self.base_url.as_deref().or(self.kind.traits().address)
    }
}

impl Providers {
    /// Creates the configured providers, and the built-in ones for names that are not configured: `openai`,
    /// `anthropic`, `google_genai` and `ollama`. `variable` reads an environment variable.
    pub fn new(configs: BTreeMap<String, ProviderConfig>, variable: impl Fn(&str) -> Option<String>) -> Self {
        let mut all: BTreeMap<String, ProviderConfig> = PROVIDERS
            .iter()
            .filter(|traits| traits.is_built_in)
            .map(|traits| (traits.word.to_owned(), built_in(traits, &variable)))
            .collect();
        for (name, mut config) in configs {
            // A custom address needs no key; the usual one is sent there if it is set.
            let fits = |usual: &&ProviderConfig| {
                let is_set = matches!(usual.api_key, ApiKeySource::Env { value: Some(_), .. });
                usual.kind == config.kind && (is_set || config.base_url.is_none())
            };
            if let Some(usual) = all.get(&name).filter(fits)
                && matches!(config.api_key, ApiKeySource::None)
            {
                config.api_key = usual.api_key.clone();
            }
            all.insert(name, config);
        }
        let policy = RetryPolicy::default();
        let own = BTreeMap::new();
        let limits = AnswerLimits::default();
        Self {
            configs: all,
            policy,
            limits,
            http: BoundedClient::new(limits).ok(),
            own,
            models: Mutex::default(),
            allowed: NamePatterns::default(),
            shared: None,
        }
    }

    /// Returns the providers of a tenant: these, with `overrides` for some of them, and only the models in `allowed`. A
    /// provider that does not exist is not added.
    pub fn for_tenant(self: &Arc<Self>, overrides: BTreeMap<String, ProviderOverride>, allowed: NamePatterns) -> Self {
        let with_base = |(name, own): (String, ProviderOverride)| {
            let base = self.configs.get(&name)?;
            let kind = own.kind.unwrap_or(base.kind);
            let usual = base.base_url.clone().filter(|_| kind == base.kind);
            let is_same_server = kind == base.kind && own.base_url.is_none();
            let config = ProviderConfig {
                kind,
                base_url: own.base_url.or(usual),
                api_key: own.api_key,
                windows: match own.windows == ContextWindows::default() {
                    true => base.windows.clone(),
                    false => own.windows,
                },
                requests: own.requests.over(&base.requests, is_same_server),
            };
            Some((name, config))
        };
        Self {
            configs: overrides.into_iter().filter_map(with_base).collect(),
            policy: self.policy,
            limits: self.limits,
            http: self.http.clone(),
            own: BTreeMap::new(),
            models: Mutex::default(),
            allowed,
            shared: Some(Arc::clone(self)),
        }
    }

    /// Returns the providers with another retry policy.
    pub fn with_retries(self, policy: RetryPolicy) -> Self {
        Self { policy, ..self }
    }

    /// Returns the providers with other limits of answers.
    pub fn with_limits(self, limits: AnswerLimits) -> Self {
        Self {
            limits,
            http: BoundedClient::new(limits).ok(),
            ..self
        }
    }

    /// Returns the providers with those of the embedding program, which take precedence.
    pub fn with_own(self, own: BTreeMap<String, ModelSource>) -> Self {
        Self { own, ..self }
    }

    /// Returns the names of the providers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.own.keys().chain(self.configs.keys()).map(String::as_str)
    }

    /// Returns the model for a name like `openai:gpt-5`, always the same instance. The first use fails with
    /// [`ModelError::Misconfigured`] if the provider is unknown or its key is missing, and each use with
    /// [`ModelError::NotAllowed`] if the tenant may not use the model. Early failures of the provider are retried, see
    /// [`super::retry`].
    pub fn model(&self, name: &str) -> Result<Arc<dyn Model>, ModelError> {
        self.check_allowed(name)?;
        if let Some(shared) = &self.shared
            && split(name).is_none_or(|(provider, _)| !self.configs.contains_key(provider))
        {
            return shared.model(name);
        }
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = models.get(name) {
            return Ok(Arc::clone(model));
        }
        let built = Retrying::new(self.build(name)?, self.retries(name));
        let model: Arc<dyn Model> = Arc::new(built.with_max_input_tokens(self.max_input_tokens(name)));
        if models.len() >= MAX_MODELS {
            models.clear();
        }
        models.insert(name.to_owned(), Arc::clone(&model));
        Ok(model)
    }

    /// Checks whether a model may be used.
    ///
    /// # Errors
    /// [`ModelError::NotAllowed`].
    pub fn check_allowed(&self, name: &str) -> Result<(), ModelError> {
        let full_name = split(name).map(|(provider, model)| format!("{provider}:{model}"));
        let full_name = full_name.unwrap_or_else(|| name.to_owned());
        match self.allowed.allows(&full_name) {
            true => Ok(()),
            false => Err(ModelError::NotAllowed(full_name)),
        }
    }

    /// Returns whether the provider of this model name exists, even if it cannot be used.
    pub fn knows(&self, name: &str) -> bool {
        let is_shared = || self.shared.as_ref().is_some_and(|shared| shared.knows(name));
        split(name).is_some_and(|(provider, _)| self.own.contains_key(provider) || self.configs.contains_key(provider))
            || is_shared()
    }

    /// Returns the provider of a model name and the reason why its key is missing, if a request would fail because of
    /// that.
    pub fn missing_key<'a>(&'a self, name: &'a str) -> Option<(&'a str, String)> {
        if split(name).is_some_and(|(provider, _)| self.own.contains_key(provider)) {
            return None;
        }
        let (provider, _, config) = self
            .find(name)
            .ok()
            .filter(|(_, _, config)| config.kind != ProviderKind::Scripted)?;
        key(provider, config).err().map(|error| (provider, error.to_string()))
    }

    /// Returns the environment variable that has, or would have, the key of a provider.
    pub fn key_variable(&self, provider: &str) -> Option<&str> {
        match &self.configs.get(provider)?.api_key {
            ApiKeySource::Env { name, .. } => Some(name),
            ApiKeySource::Inline(_) | ApiKeySource::File(_) | ApiKeySource::None => None,
        }
    }

    /// Returns the context window of a model: the configured one, or the known one. An Ollama daemon decides itself how
    /// much of a request its models read, so that their windows have to be configured.
    fn max_input_tokens(&self, name: &str) -> Option<u64> {
        let (provider, model) = split(name)?;
        if self.own.contains_key(provider) {
            return None;
        }
        let config = self.configs.get(provider)?;
        let has_known = !matches!(config.kind, ProviderKind::Ollama | ProviderKind::Scripted);
        let known = || windows::known(model).filter(|_| has_known);
        config.windows.of(model).or_else(known)
    }

    /// Returns whether a model is known to keep the text of an answer to a JSON Schema while it may call tools.
    pub fn has_structured_output(&self, name: &str) -> bool {
        if split(name).is_some_and(|(provider, _)| self.own.contains_key(provider)) {
            return false;
        }
        match (self.find(name), &self.shared) {
            (Ok((_, model, config)), _) => structured_output::is_known(config.kind, model),
            (Err(_), Some(shared)) => shared.has_structured_output(name),
            (Err(_), None) => false,
        }
    }

    /// Returns the policy of retries for a model.
    fn retries(&self, name: &str) -> RetryPolicy {
        let found = self.find(name).ok();
        found.map_or(self.policy, |(_, _, config)| config.requests.retries(self.policy))
    }

    /// Returns the client for a model of a provider: the shared connection pool, with the provider's headers and limits.
    fn client(&self, config: &ProviderConfig, caching: &Caching) -> DynHttpClient {
        match &self.http {
            Some(client) => {
                let limits = config.requests.limits(self.limits);
                DynHttpClient::new(client.for_provider(limits, &config.requests.headers, caching.clone()))
            }
            // This client returns the reason with every request.
            None => rig_reqwest::shared(),
        }
    }

    fn build(&self, name: &str) -> Result<Arc<dyn Model>, ModelError> {
        if let Some((own, (_, model))) = split(name).and_then(|name| Some((self.own.get(name.0)?, name))) {
            return own(model);
        }
        let (provider, model, config) = self.find(name)?;
        if config.kind == ProviderKind::Scripted {
            return Ok(Arc::new(
                Scripted::new(model).with_max_input_tokens(config.windows.of(model)),
            ));
        }
        let key = key(provider, config)?;
        let limits = config.requests.limits(self.limits);
        let caching = Caching::new(config, model);
        let http = self.client(config, &caching);
        Ok(build::model(config, model, key, http, limits, caching))
    }

    /// Returns the provider of a model name, the model's own name, and the configuration.
    fn find<'a>(&'a self, name: &'a str) -> Result<(&'a str, &'a str, &'a ProviderConfig), ModelError> {
        let (provider, model) =
            split(name).ok_or_else(|| misconfigured(format!("`{name}` names no provider; write `provider:model`")))?;
        let config = self.configs.get(provider).ok_or_else(|| {
            let known: Vec<&str> = self.names().collect();
            misconfigured(format!(
                "model `{name}`: no provider `{provider}`; known are {}; a section `[providers.{provider}]` with its `kind` \
                 adds one",
                known.join(", ")
            ))
        })?;
        Ok((provider, model, config))
    }
}

impl fmt::Debug for Providers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Providers")
            .field("configs", &self.configs)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Splits a name into provider and model. Well-known model families are recognised without the provider.
fn split(name: &str) -> Option<(&str, &str)> {
    if let Some((provider, model)) = name.split_once(':') {
        return (!provider.is_empty() && !model.is_empty()).then_some((provider, model));
    }
    let families = [
        ("gpt-", ProviderKind::OpenAi),
        ("chatgpt-", ProviderKind::OpenAi),
        ("o1", ProviderKind::OpenAi),
        ("o3", ProviderKind::OpenAi),
        ("o4", ProviderKind::OpenAi),
        ("claude", ProviderKind::Anthropic),
        ("gemini", ProviderKind::GoogleGenAi),
    ];
    families
        .into_iter()
        .find(|(start, _)| name.starts_with(start))
        .map(|(_, kind)| (kind.as_str(), name))
}

fn built_in(traits: &ProviderTraits, variable: &impl Fn(&str) -> Option<String>) -> ProviderConfig {
    let first = |names: &[&'static str]| {
        names
            .iter()
            .find_map(|name| Some((*name, variable(name).filter(|value| !value.trim().is_empty())?)))
    };
    let base_url = first(traits.address_variables).map(|(_, value)| value);
    let optional = base_url.is_some() || !traits.needs_key;
    let api_key = match (first(traits.key_variables), traits.key_variables.first()) {
        (Some((name, value)), _) => ApiKeySource::Env {
            name: name.to_owned(),
            value: Some(value.trim().to_owned().into()),
        },
        (None, Some(name)) if !optional => ApiKeySource::Env {
            name: (*name).to_owned(),
            value: None,
        },
        (None, _) => ApiKeySource::None,
    };
    ProviderConfig {
        kind: traits.kind,
        base_url,
        api_key,
        windows: ContextWindows::default(),
        requests: RequestSettings::default(),
    }
}

/// Returns the provider's key. Only public addresses require one: a gateway or a local server may work without a key,
/// unless a variable or a file is configured for it.
fn key(provider: &str, config: &ProviderConfig) -> Result<Option<SecretString>, ModelError> {
    let optional = config.base_url.is_some() || !config.kind.traits().needs_key;
    match &config.api_key {
        ApiKeySource::Inline(key) if !key.expose_secret().trim().is_empty() => {
            Ok(Some(key.expose_secret().trim().to_owned().into()))
        }
        ApiKeySource::Env { value: Some(key), .. } => Ok(Some(key.clone())),
        ApiKeySource::File(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                misconfigured(format!(
                    "the key of provider `{provider}` cannot be read from its key file: {error}"
                ))
            })?;
            match text.trim() {
                "" => Err(misconfigured(format!("the key file of provider `{provider}` is empty"))),
                key => Ok(Some(key.to_owned().into())),
            }
        }
        ApiKeySource::Inline(_) | ApiKeySource::None if optional => Ok(None),
        ApiKeySource::Env { name, value: None } => Err(misconfigured(format!(
            "provider `{provider}` needs a key: set {name} or its `api_key`"
        ))),
        ApiKeySource::Inline(_) | ApiKeySource::None => Err(misconfigured(format!(
            "provider `{provider}` needs a key: set its `api_key`"
        ))),
    }
}

fn misconfigured(message: String) -> ModelError {
    ModelError::Misconfigured { message }
}

#[cfg(test)]
mod tests;
