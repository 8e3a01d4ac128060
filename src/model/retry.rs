//! Asking again when a provider failed before it said anything.
//!
//! Once a piece of an answer was passed on, asking again would say it twice; from then on errors go to the caller,
//! who knows what a broken-off message means.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use backon::{BackoffBuilder, ExponentialBuilder};
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::Value;

use super::{Model, ModelError, ModelEvent, ModelRequest};

/// How often and how patiently to ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts after the first one.
    pub max_retries: usize,
    /// The pause before the second attempt; it doubles from one attempt to the next, and up to as much again is
    /// added at random so that many runs do not return at the same moment.
    pub first_delay: Duration,
    /// The longest pause that is our own choice.
    pub max_delay: Duration,
    /// The longest pause a provider may ask for; a longer wish is cut to this.
    pub max_retry_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 2,
            first_delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(30),
            max_retry_after: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// Makes `attempt`s until one succeeds, or fails in a way that asking again does not mend, or it was tried often enough.
    pub(super) async fn patiently<T, F>(self, attempt: impl Fn() -> F + Send) -> Result<T, ModelError>
    where
        F: Future<Output = Result<T, ModelError>> + Send,
    {
        let delays = ExponentialBuilder::new()
            .with_min_delay(self.first_delay)
            .with_factor(2.0)
            .with_max_delay(self.max_delay)
            .with_max_times(self.max_retries)
            .with_jitter()
            .build();
        for own in delays {
            let error = match attempt().await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.may_retry() => error,
                Err(error) => return Err(error),
            };
            let pause = self.pause(own, &error);
            tracing::warn!(class = error.class(), %error, pause_ms = pause.as_millis(), "the model failed; asking again");
            tokio::time::sleep(pause).await;
        }
        attempt().await
    }

    fn pause(self, own: Duration, error: &ModelError) -> Duration {
        match error {
            ModelError::RateLimited {
                retry_after: Some(wish),
                ..
            }
            | ModelError::Unavailable {
                retry_after: Some(wish),
                ..
            } => (*wish).min(self.max_retry_after),
            ModelError::RateLimited { .. }
            | ModelError::Unavailable { .. }
            | ModelError::Refused { .. }
            | ModelError::UnsupportedContent { .. }
            | ModelError::TooLong { .. }
            | ModelError::Interrupted { .. }
            | ModelError::TimedOut { .. }
            | ModelError::TooLarge { .. }
            | ModelError::NothingToAsk
            | ModelError::Misconfigured { .. } => own,
        }
    }
}

/// A model that asks again on errors that may pass, as long as nothing of the answer was passed on.
pub struct Retrying {
    model: Arc<dyn Model>,
    policy: RetryPolicy,
}

impl Retrying {
    /// Wraps a model.
    pub fn new(model: Arc<dyn Model>, policy: RetryPolicy) -> Self {
        Self { model, policy }
    }

    /// Asks once and waits for the first event, so that an early failure is seen before anyone else sees anything.
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

    async fn ask(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError> {
        self.policy.patiently(|| self.attempt(request.clone())).await
    }
}

#[cfg(test)]
mod tests;
