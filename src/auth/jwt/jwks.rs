//! The key sets of issuers (RFC 7517): fetched when they are needed, and kept while the issuer is unreachable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, IntoUrl, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex as AsyncMutex;

use super::verification_key::{JwksKey, WrittenKey};
use crate::auth::{AuthError, bounded_json};
use crate::domain::jwt::JwtAlgorithm;
use crate::domain::time::{Clock, Timestamp};
use crate::net;

/// The timeout of one request to an issuer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer of an issuer, in bytes.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// The most keys of a set that are used.
const MAX_KEYS: usize = 64;
/// The age at which a key set is fetched again.
const REFRESH_AFTER: Duration = Duration::from_mins(10);
/// The shortest time between two attempts to fetch a key set, also for tokens with an unknown key id.
const MIN_PAUSE: Duration = Duration::from_secs(30);
/// The age from which a key set is not used, although the issuer is unreachable: a key that the issuer has withdrawn
/// must end at some time.
const MAX_AGE: Duration = Duration::from_hours(24);

/// The keys of an issuer.
pub(super) struct IssuerKeys {
    issuer: String,
    jwks_url: Option<Url>,
    client: Client,
    clock: Arc<dyn Clock>,
    state: Mutex<KeySetState>,
    /// Held by the one request that fetches.
    fetching: AsyncMutex<()>,
}

/// The last key set, and the attempts to fetch one.
#[derive(Default)]
struct KeySetState {
    keys: Vec<JwksKey>,
    fetched_at: Option<Timestamp>,
    tried_at: Option<Timestamp>,
}

/// A key set. Keys of unknown kinds are allowed in it.
#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// The parts of an issuer's description that are needed here (OpenID Connect Discovery 1.0).
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl IssuerKeys {
    /// Creates the keys, which are not fetched yet.
    ///
    /// # Errors
    /// If the HTTP client cannot be created.
    pub(super) fn new(issuer: &str, jwks_url: Option<Url>, clock: Arc<dyn Clock>) -> Result<Self, reqwest::Error> {
        let client = net::client_builder()
            .timeout(TIMEOUT)
            // Keys come from the configured address only.
            .redirect(Policy::none())
            .build()?;
        Ok(Self {
            issuer: issuer.to_owned(),
            jwks_url,
            client,
            clock,
            state: Mutex::default(),
            fetching: AsyncMutex::new(()),
        })
    }

    /// Returns the keys that may have signed a token with this key id and algorithm.
    ///
    /// # Errors
    /// If there is no such key, or if the keys cannot be fetched.
    pub(super) async fn of(&self, kid: Option<&str>, algorithm: JwtAlgorithm) -> Result<Vec<JwksKey>, AuthError> {
        let found = self.cached(kid, algorithm);
        if !found.is_empty() {
            // One request fetches the keys again; the others go on with the old ones meanwhile.
            if self.is_old()
                && let Ok(_alone) = self.fetching.try_lock()
            {
                self.fetch_unless_just_tried().await;
                return self.find_keys(kid, algorithm);
            }
            return Ok(found);
        }
        let _alone = self.fetching.lock().await;
        if self.cached(kid, algorithm).is_empty() {
            self.fetch_unless_just_tried().await;
        }
        self.find_keys(kid, algorithm)
    }

    /// Returns the keys of the last set, unless it is too old.
    fn cached(&self, kid: Option<&str>, algorithm: JwtAlgorithm) -> Vec<JwksKey> {
        let now = self.clock.now();
        let state = self.state();
        if state.fetched_at.is_none_or(|at| at.plus(MAX_AGE) <= now) {
            return vec![];
        }
        let suitable = state.keys.iter().filter(|key| key.suits(kid, algorithm));
        suitable.cloned().collect()
    }

    /// Returns the keys after an attempt to fetch them.
    fn find_keys(&self, kid: Option<&str>, algorithm: JwtAlgorithm) -> Result<Vec<JwksKey>, AuthError> {
        let found = self.cached(kid, algorithm);
        if !found.is_empty() {
            return Ok(found);
        }
        let state = self.state();
        match (state.fetched_at, state.tried_at) {
            // The last attempt succeeded, and the issuer has no such key.
            (Some(fetched), Some(tried)) if fetched >= tried => {
                Err(AuthError::refused("the issuer has no key with this id and algorithm"))
            }
            _ => Err(AuthError::Unavailable(format!(
                "the keys of the issuer {} cannot be fetched",
                self.issuer
            ))),
        }
    }

    fn is_old(&self) -> bool {
        let now = self.clock.now();
        self.state().fetched_at.is_none_or(|at| at.plus(REFRESH_AFTER) <= now)
    }

    /// Fetches the key set, unless that was tried a moment ago. If it fails, the old keys stay.
    async fn fetch_unless_just_tried(&self) {
        let now = self.clock.now();
        {
            let mut state = self.state();
            if state.tried_at.is_some_and(|at| now < at.plus(MIN_PAUSE)) {
                return;
            }
            state.tried_at = Some(now);
        }
        match self.fetch().await {
            Ok(keys) => {
                let mut state = self.state();
                state.keys = keys;
                state.fetched_at = Some(now);
            }
            Err(reason) => {
                tracing::warn!(issuer = self.issuer, reason, "could not fetch the keys of an issuer");
            }
        }
    }

    /// Fetches the key set and returns the number of its keys.
    ///
    /// # Errors
    /// A text for the operator.
    pub(super) async fn count(&self) -> Result<usize, String> {
        self.fetch().await.map(|keys| keys.len())
    }

    async fn fetch(&self) -> Result<Vec<JwksKey>, String> {
        let url = match &self.jwks_url {
            Some(url) => url.clone(),
            None => self.discover().await?,
        };
        let set: KeySet = self.get(url).await?;
        let written = set
            .keys
            .into_iter()
            .filter_map(|key| serde_json::from_value::<WrittenKey>(key).ok());
        let keys: Vec<JwksKey> = written.filter_map(WrittenKey::read).take(MAX_KEYS).collect();
        match keys.is_empty() {
            true => Err("the key set has no key for signatures that is known here".to_owned()),
            false => Ok(keys),
        }
    }

    /// Returns the address of the key set from the description of the issuer.
    async fn discover(&self) -> Result<Url, String> {
        let address = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let found: Discovery = self.get(address).await?;
        if found.issuer != self.issuer {
            return Err("the description is of another issuer".to_owned());
        }
        let address = Url::parse(&found.jwks_uri).map_err(|error| format!("the key set has no address: {error}"))?;
        let is_plain = address.scheme() == "http" && self.issuer.starts_with("http://");
        if address.scheme() != "https" && !is_plain {
            return Err("the key set has no address with https".to_owned());
        }
        Ok(address)
    }

    async fn get<T: DeserializeOwned>(&self, address: impl IntoUrl) -> Result<T, String> {
        let sent = self.client.get(address).send().await;
        let response = sent.map_err(|error| net::describe_error(&error))?;
        bounded_json::read(response, MAX_ANSWER_BYTES).await
    }

    fn state(&self) -> MutexGuard<'_, KeySetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
