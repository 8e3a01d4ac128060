//! The implementation of [`Embedder`] for the providers of rig-core.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rig_core::driver::{self, DynModel};
use rig_core::http_client::DynHttpClient;
use rig_core::operation::Embedding;
use rig_core::wire::{Encoded, Wire, WireFrame};
use secrecy::SecretString;

use super::build::{gemini, ollama, openai};
use super::caching::{CacheHint, Caching};
use super::file_names::FileNames;
use super::transport::{AdjustedTransport, CallIds};
use super::{Protocol, ProviderConfig, ProviderKind, Providers, errors, key, misconfigured};
use crate::model::ModelError;
use crate::model::embedding::{Embedder, ScriptedEmbedder, normalise};
use crate::model::retry::RetryPolicy;

/// The timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The prefix of OpenAI's models that accept the parameter `dimensions`. Other servers of that protocol may reject it.
const ANY_DIMENSIONS_PREFIX: &str = "text-embedding-3-";

impl Providers {
    /// Returns the embedder of a name like `openai:text-embedding-3-small`, with `dims` dimensions. If the provider is
    /// misconfigured, every request returns that error.
    pub fn embedder(&self, name: &str, dims: usize) -> Arc<dyn Embedder> {
        match self.find_embedder(name, dims) {
            Ok(embedder) => embedder,
            Err(error) => Arc::new(Unusable(error)),
        }
    }

    fn find_embedder(&self, name: &str, dims: usize) -> Result<Arc<dyn Embedder>, ModelError> {
        let (provider, model, config) = self.find(name)?;
        if config.kind == ProviderKind::Scripted {
            return Ok(Arc::new(ScriptedEmbedder::new(dims)));
        }
        let key = key(provider, config)?;
        let dimensions = model.starts_with(ANY_DIMENSIONS_PREFIX).then_some(dims);
        let embeddings = connect(
            config,
            model,
            dimensions,
            key.as_ref(),
            self.client(config, &Caching::default()),
        )
        .ok_or_else(|| misconfigured(format!("provider `{provider}` ({}) has no embeddings", config.kind)))?;
        Ok(Arc::new(Remote {
            name: name.to_owned(),
            embeddings,
            dims,
            key,
            policy: config.requests.retries(self.policy),
        }))
    }
}

fn connect(
    config: &ProviderConfig,
    model: &str,
    dims: Option<usize>,
    key: Option<&SecretString>,
    http: DynHttpClient,
) -> Option<DynModel<Embedding>> {
    let kind = config.kind.protocol();
    Some(match kind {
        Protocol::OpenAi | Protocol::OpenAiResponses => adjusted(
            kind,
            openai(config, key).connect(http.clone()).embedding(model, dims).wire,
            http,
        ),
        Protocol::GoogleGenAi => adjusted(
            kind,
            gemini(config, key).connect(http.clone()).embedding(model, dims).wire,
            http,
        ),
        Protocol::Ollama => adjusted(
            kind,
            ollama(config, key).connect(http.clone()).embedding(model, dims).wire,
            http,
        ),
        Protocol::Anthropic | Protocol::Scripted => return None,
    })
}

fn adjusted<W>(kind: Protocol, wire: W, http: DynHttpClient) -> DynModel<Embedding>
where
    W: Wire<Op = Embedding, Payload = Encoded, Frame = WireFrame>,
{
    let transport = AdjustedTransport {
        http,
        kind,
        ids: CallIds::default(),
        file_names: FileNames::default(),
        omitted: None,
        known: None,
        blocks: [].into(),
        separator: None,
        cache: CacheHint::Nothing,
        conversation: None,
        trace: None,
    };
    driver::Model::new(wire, transport).erase()
}

/// An embedder over the network.
struct Remote {
    name: String,
    embeddings: DynModel<Embedding>,
    dims: usize,
    key: Option<SecretString>,
    policy: RetryPolicy,
}

impl Remote {
    async fn attempt(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, ModelError> {
        let count = texts.len();
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, self.embeddings.call(texts))
            .await
            .map_err(|_| {
                let message = format!("no embeddings arrived for {} s", REQUEST_TIMEOUT.as_secs());
                ModelError::Unavailable {
                    retry_after: None,
                    message,
                }
            })?;
        let answer = answer.map_err(|error| errors::map(&error, false, self.key.as_ref()))?;
        if answer.embeddings.len() != count {
            let message = format!("{} vectors were returned for {count} texts", answer.embeddings.len());
            return Err(ModelError::Unavailable {
                retry_after: None,
                message,
            });
        }
        answer
            .embeddings
            .into_iter()
            .map(|embedding| self.vector(embedding.vec))
            .collect()
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "providers send more digits than their vectors have"
    )]
    fn vector(&self, numbers: Vec<f64>) -> Result<Vec<f32>, ModelError> {
        if numbers.len() != self.dims {
            let name = &self.name;
            let dims = self.dims;
            let text = format!(
                "`{name}` makes vectors of {} numbers, but dims is {dims}",
                numbers.len()
            );
            return Err(misconfigured(text));
        }
        Ok(normalise(numbers.into_iter().map(|number| number as f32).collect()))
    }
}

#[async_trait]
impl Embedder for Remote {
    async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, ModelError> {
        self.policy
            .with_retries(&self.name, || self.attempt(texts.clone()))
            .await
    }
}

/// The embedder of a misconfigured provider; every request returns its error.
struct Unusable(ModelError);

#[async_trait]
impl Embedder for Unusable {
    async fn embed(&self, _: Vec<String>) -> Result<Vec<Vec<f32>>, ModelError> {
        Err(self.0.clone())
    }
}
