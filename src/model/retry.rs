//! Retries of model requests that failed before the first piece of the answer.
//!
//! Once a piece of an answer has been passed on, a retry would repeat it; later errors are returned to the caller.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::Value;

use super::{Model, ModelError, ModelEvent, ModelRequest};
use crate::domain::backoff::Backoff;

/// The number of retries and the pauses between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryPolicy {
    /// The number of attempts after the first one.
    pub max_retries: usize,
    /// The pauses when the provider does not ask for one. A random part is added to each, see
    /// [`Backoff::pauses_with_jitter`].
    pub backoff: Backoff,
    /// The maximum pause that a provider may ask for (`retry-after`); a longer one is reduced to this.
    pub max_retry_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 2,
            backoff: Backoff::doubling(Duration::from_millis(500), Duration::from_secs(30)),
            max_retry_after: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// Repeats `attempt` until it succeeds, fails with an error that a retry cannot fix, or the retries are used up. `model`
    /// is for the log.
    pub(super) async fn with_retries<T, F>(self, model: &str, attempt: impl Fn() -> F + Send) -> Result<T, ModelError>
    where
        F: Future<Output = Result<T, ModelError>> + Send,
    {
        for delay in self.backoff.pauses_with_jitter().take(self.max_retries) {
            let error = match attempt().await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.may_retry() => error,
                Err(error) => return Err(error),
            };
            let pause = self.pause(delay, &error);
            tracing::warn!(
                model,
                class = error.class(),
                %error,
                pause_ms = pause.as_millis(),
                "the model request failed; retrying"
            );
            tokio::time::sleep(pause).await;
        }
        attempt().await
    }

    fn pause(self, delay: Duration, error: &ModelError) -> Duration {
        match error {
            ModelError::RateLimited {
                retry_after: Some(requested),
                ..
            }
            | ModelError::Unavailable {
                retry_after: Some(requested),
                ..
            } => (*requested).min(self.max_retry_after),
            ModelError::RateLimited { .. }
            | ModelError::Unavailable { .. }
            | ModelError::Refused { .. }
            | ModelError::UnsupportedContent { .. }
            | ModelError::TooLong { .. }
            | ModelError::Interrupted { .. }
            | ModelError::TimedOut { .. }
            | ModelError::TooLarge { .. }
            | ModelError::NothingToAsk
            | ModelError::NotAllowed(_)
            | ModelError::Misconfigured { .. } => delay,
        }
    }
}

/// A model that retries temporary errors as long as no piece of the answer has been passed on.
pub struct Retrying {
    model: Arc<dyn Model>,
    policy: RetryPolicy,
    max_input_tokens: Option<u64>,
}

impl Retrying {
    /// Wraps a model.
    pub fn new(model: Arc<dyn Model>, policy: RetryPolicy) -> Self {
        let max_input_tokens = model.max_input_tokens();
        Self {
            model,
            policy,
            max_input_tokens,
        }
    }

    /// Sets the context window of the model, unless the model itself knows it.
    #[must_use]
    pub fn with_max_input_tokens(self, max_input_tokens: Option<u64>) -> Self {
        Self {
            max_input_tokens: self.max_input_tokens.or(max_input_tokens),
            ..self
        }
    }

    /// Asks once and waits for the first event, so that an early error is known before anything is passed on.
    async fn attempt(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError> {
        let mut answer = self.model.ask(request).await?;
        match answer.next().await {
            Some(Ok(first)) => Ok(stream::once(async { Ok(first) }).chain(answer).boxed()),
            Some(Err(error)) => Err(error),
            None => Err(ModelError::Interrupted {
                message: "the answer was empty".to_owned(),
            }),
        }
    }
}

#[async_trait]
impl Model for Retrying {
    fn identity(&self) -> (&str, &str) {
        self.model.identity()
    }

    fn refusal(&self, block: &Value) -> Option<String> {
        self.model.refusal(block)
    }

    fn max_input_tokens(&self) -> Option<u64> {
        self.max_input_tokens
    }

    async fn ask(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError> {
        let identity = self.model.identity();
        let model = format!("{}:{}", identity.0, identity.1);
        self.policy.with_retries(&model, || self.attempt(request.clone())).await
    }
}

#[cfg(test)]
mod tests;
