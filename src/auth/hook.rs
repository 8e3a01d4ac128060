//! The HTTP hook: a service of the operator that gets the headers of a request and answers with an identity.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderName;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::cache::{CachedValue, ExpiringCache};
use super::{AuthError, Credentials, bounded_json};
use crate::domain::identity::{Credential, Identity, Tenant, UserId, UserRole};
use crate::domain::time::Clock;
use crate::net;

/// The largest answer of the hook, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// The most questions to the hook at the same time; more requests are refused until one is answered.
const MAX_QUESTIONS: usize = 256;
/// The number of cached identities.
const CACHED_IDENTITIES: usize = 10_000;
/// The longest time for which an answer is cached, in seconds.
const MAX_CACHED_S: f64 = 3600.0;

/// The settings of the hook.
#[derive(Debug, Clone)]
pub struct HookSettings {
    /// The address to which questions are posted.
    pub url: Url,
    /// The timeout of one question.
    pub timeout: Duration,
    /// The headers that the hook gets. A request without any of them is refused without a question.
    pub headers: Vec<HeaderName>,
    /// The tenant of identities for which the hook names none.
    pub tenant: Tenant,
}

/// The hook.
pub(super) struct Hook {
    settings: HookSettings,
    client: Client,
    clock: Arc<dyn Clock>,
    questions: Semaphore,
    cached: ExpiringCache<[u8; 32], Arc<Identity>>,
}

/// The answer of the hook, in the words of LangGraph's `authenticate`.
#[derive(Deserialize)]
struct HookAnswer {
    identity: String,
    is_authenticated: Option<bool>,
    tenant: Option<String>,
    roles: Option<Vec<String>>,
    display_name: Option<String>,
    permissions: Option<Vec<String>>,
    expires_in_s: Option<f64>,
    #[serde(flatten)]
    claims: Map<String, Value>,
}

/// The headers of a request that the hook gets, and their digest.
struct ForwardedHeaders {
    headers: Map<String, Value>,
    digest: [u8; 32],
}

impl Hook {
    /// Creates the hook.
    ///
    /// # Errors
    /// If the HTTP client cannot be created.
    pub(super) fn new(settings: HookSettings, clock: Arc<dyn Clock>) -> Result<Self, reqwest::Error> {
        let client = net::client_builder()
            .timeout(settings.timeout)
            // The headers are for the hook, and for no other address.
            .redirect(Policy::none())
            .build()?;
        Ok(Self {
            settings,
            client,
            clock,
            questions: Semaphore::new(MAX_QUESTIONS),
            cached: ExpiringCache::new(CACHED_IDENTITIES),
        })
    }

    /// Returns the headers that the hook gets.
    pub(super) fn headers(&self) -> &[HeaderName] {
        &self.settings.headers
    }

    /// Asks who sends a request with these headers, unless an answer is cached.
    ///
    /// # Errors
    /// If the hook refuses, if it must not be asked, and if it does not answer as it should.
    pub(super) async fn ask(&self, credentials: Credentials<'_>) -> Result<Arc<Identity>, AuthError> {
        let forwarded = self.forwarded(credentials)?;
        let now = self.clock.now();
        if let Some(identity) = self.cached.get(&forwarded.digest, now) {
            return Ok(identity);
        }
        if !credentials.may_ask_hook {
            return Err(AuthError::HookNotAsked);
        }
        let permit = self.questions.try_acquire();
        let _permit = permit.map_err(|_| unavailable("too many questions to it wait for an answer"))?;
        let question = json!({
            "method": credentials.method.as_str(),
            "path": credentials.path,
            "headers": forwarded.headers,
        });
        let sent = self.client.post(self.settings.url.clone()).json(&question).send().await;
        let response = sent.map_err(|error| unavailable(&net::describe_error(&error)))?;
        if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Err(AuthError::refused("the hook refuses the credentials"));
        }
        let answer: HookAnswer = bounded_json::read(response, MAX_ANSWER_BYTES)
            .await
            .map_err(|reason| unavailable(&reason))?;
        if answer.is_authenticated == Some(false) {
            return Err(AuthError::refused(
                "the hook answers that the caller is not authenticated",
            ));
        }
        let expires_in = answer.expires_in_s.filter(|seconds| *seconds > 0.0);
        let expires_in = expires_in.and_then(|seconds| Duration::try_from_secs_f64(seconds.min(MAX_CACHED_S)).ok());
        let mut identity = self.identity(answer)?;
        // The time counts from the question, so that an answer that was long under way does not live longer.
        identity.expires_at = expires_in.map(|time| now.plus(time));
        let identity = Arc::new(identity);
        if let Some(valid_until) = identity.expires_at {
            let value = Arc::clone(&identity);
            let entry = CachedValue { value, valid_until };
            self.cached.insert_if(forwarded.digest, entry, now, || true);
        }
        Ok(identity)
    }

    fn forwarded(&self, credentials: Credentials<'_>) -> Result<ForwardedHeaders, AuthError> {
        let mut headers = Map::new();
        let mut digest = Sha256::new();
        let mut add = |part: &[u8]| {
            digest.update(part.len().to_be_bytes());
            digest.update(part);
        };
        for name in &self.settings.headers {
            for value in credentials.headers.get_all(name) {
                let refusal = |_| AuthError::refused("a header with credentials is no text");
                let text = value.to_str().map_err(refusal)?;
                if headers.insert(name.as_str().to_owned(), text.into()).is_some() {
                    return Err(AuthError::refused("a header with credentials is given twice"));
                }
                add(name.as_str().as_bytes());
                add(text.as_bytes());
            }
        }
        if headers.is_empty() {
            return Err(AuthError::refused("there are no credentials"));
        }
        let digest = digest.finalize().into();
        Ok(ForwardedHeaders { headers, digest })
    }

    fn identity(&self, answer: HookAnswer) -> Result<Identity, AuthError> {
        let invalid = |error: crate::domain::Invalid| unavailable(&format!("its answer is not valid: {error}"));
        let tenant = answer.tenant.map(|tenant| Tenant::new("tenant", &tenant)).transpose();
        let roles = match &answer.roles {
            Some(words) => UserRole::read_all("roles", words).map_err(invalid)?,
            None => vec![UserRole::User],
        };
        Ok(Identity {
            tenant: tenant.map_err(invalid)?.unwrap_or_else(|| self.settings.tenant.clone()),
            user: UserId::new("identity", &answer.identity).map_err(invalid)?,
            display_name: answer.display_name,
            roles,
            scopes: answer.permissions,
            claims: answer.claims,
            credential: Credential::Hook,
            expires_at: None,
        })
    }
}

fn unavailable(reason: &str) -> AuthError {
    AuthError::Unavailable(format!("the hook of [auth.hook] failed: {reason}"))
}
