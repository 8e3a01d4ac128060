//! Questions to a provider that cost no tokens: whether it is reachable, accepts the key, and has a model.

use http::header::{AUTHORIZATION, HeaderName};
use reqwest::{Client, RequestBuilder, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::{Protocol, ProviderConfig, ProviderKind, Providers, key, split};
use crate::model::ModelError;
use crate::net;

/// The maximum size of a list of models, in bytes.
const MAX_LIST_BYTES: usize = 8 * 1024 * 1024;

/// The answer of a provider about its models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderListing {
    /// The provider needs no network.
    Local,
    /// The provider has answered with its models, by the names after the colon. The list is empty if it says nothing about
    /// models.
    Models(Vec<String>),
    /// The provider is there, but has no list of models, so that the key is not checked.
    NoList(u16),
    /// The provider does not accept the key.
    KeyRefused(u16),
    /// The provider answers with an error that is likely to pass.
    Failing(u16),
}

/// The reason why there is no answer of a provider about its models. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    /// There is no provider of this name.
    #[error("there is no provider `{0}`")]
    NoProvider(String),
    /// The key of the provider is missing or cannot be read.
    #[error(transparent)]
    NoKey(ModelError),
    /// The provider cannot be reached, for this reason.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
}

impl Providers {
    /// Returns the name of the provider of a model, if it is one of the configuration.
    pub fn provider_of<'a>(&self, model: &'a str) -> Option<&'a str> {
        let (provider, _) = split(model)?;
        let is_configured = self.configs.contains_key(provider) && !self.own.contains_key(provider);
        is_configured.then_some(provider)
    }

    /// Asks a provider for the list of its models.
    ///
    /// # Errors
    /// There is no such provider, its key is missing, or it cannot be reached.
    pub async fn list_models(&self, provider: &str, client: &Client) -> Result<ProviderListing, ListingError> {
        let config = self.configs.get(provider);
        let config = config.ok_or_else(|| ListingError::NoProvider(provider.to_owned()))?;
        if config.kind == ProviderKind::Scripted {
            return Ok(ProviderListing::Local);
        }
        let key = key(provider, config).map_err(ListingError::NoKey)?;
        let sent = request(client, config, key.as_ref()).send().await;
        let response = sent.map_err(|error| ListingError::Unreachable(net::describe_error(&error)))?;
        let status = response.status();
        let body = net::read_bounded(response, MAX_LIST_BYTES).await.unwrap_or_default();
        Ok(listing(status, &body))
    }

    /// Returns whether requests to a provider have a key. Those to a gateway need none.
    pub fn has_key(&self, provider: &str) -> bool {
        let config = self.configs.get(provider);
        config.is_some_and(|config| key(provider, config).is_ok_and(|key| key.is_some()))
    }
}

/// Returns the request for the models. OpenRouter tells its models to everybody, so it is asked about the key.
fn request(client: &Client, config: &ProviderConfig, key: Option<&SecretString>) -> RequestBuilder {
    let base = |usual: &str| config.address().unwrap_or(usual).trim_end_matches('/').to_owned();
    let secret = |name: HeaderName, request: RequestBuilder, prefix: &str| match key {
        Some(key) => request.header(name, format!("{prefix}{}", key.expose_secret())),
        None => request,
    };
    match config.kind.protocol() {
        Protocol::OpenAi | Protocol::OpenAiResponses => {
            let is_openrouter = config.kind == ProviderKind::OpenRouter && config.base_url.is_none();
            let path = if is_openrouter { "key" } else { "models" };
            let url = format!("{}/{path}", base("https://api.openai.com/v1"));
            secret(AUTHORIZATION, client.get(url), "Bearer ")
        }
        Protocol::Anthropic => {
            let base = base("https://api.anthropic.com");
            let base = base.trim_end_matches("/messages").trim_end_matches("/v1");
            let request = client
                .get(format!("{base}/v1/models?limit=1000"))
                .header("anthropic-version", "2023-06-01");
            secret(HeaderName::from_static("x-api-key"), request, "")
        }
        Protocol::GoogleGenAi => {
            let base = base("https://generativelanguage.googleapis.com");
            let base = base.trim_end_matches("/v1beta");
            let request = client.get(format!("{base}/v1beta/models?pageSize=1000"));
            secret(HeaderName::from_static("x-goog-api-key"), request, "")
        }
        Protocol::Ollama | Protocol::Scripted => {
            let base = base("http://localhost:11434");
            let base = base.trim_end_matches("/v1");
            secret(AUTHORIZATION, client.get(format!("{base}/api/tags")), "Bearer ")
        }
    }
}

fn listing(status: StatusCode, body: &[u8]) -> ProviderListing {
    let code = status.as_u16();
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    // Google answers so to a key that does not exist.
    let is_bad_key = || body.to_string().contains("API_KEY_INVALID");
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ProviderListing::KeyRefused(code),
        StatusCode::BAD_REQUEST if is_bad_key() => ProviderListing::KeyRefused(code),
        StatusCode::TOO_MANY_REQUESTS => ProviderListing::Failing(code),
        status if status.is_server_error() => ProviderListing::Failing(code),
        status if !status.is_success() => ProviderListing::NoList(code),
        _ => ProviderListing::Models(model_names(&body)),
    }
}

/// Returns the names of the models in a list of any protocol.
fn model_names(body: &Value) -> Vec<String> {
    let lists = [body.get("data"), body.get("models")];
    let entries = lists.into_iter().flatten().filter_map(Value::as_array).flatten();
    let names = entries.filter_map(|entry| {
        let name = entry.get("id").or_else(|| entry.get("name"))?.as_str()?;
        Some(name.strip_prefix("models/").unwrap_or(name).to_owned())
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(status: u16, body: &Value) -> ProviderListing {
        let status = StatusCode::from_u16(status).expect("a status");
        listing(status, body.to_string().as_bytes())
    }

    #[test]
    fn the_lists_of_all_protocols_are_read() {
        for body in [
            json!({"object": "list", "data": [{"id": "a"}, {"id": "b"}]}),
            json!({"models": [{"name": "models/a"}, {"name": "models/b"}]}),
            json!({"models": [{"name": "a", "size": 1}, {"name": "b"}]}),
        ] {
            let names = ["a", "b"].map(str::to_owned).to_vec();
            assert_eq!(told(200, &body), ProviderListing::Models(names), "{body}");
        }
        // OpenRouter's answer about a key.
        assert_eq!(
            told(200, &json!({"data": {"label": "x"}})),
            ProviderListing::Models(vec![])
        );
    }

    #[test]
    fn refused_keys_are_told_from_other_errors() {
        assert_eq!(told(401, &json!({})), ProviderListing::KeyRefused(401));
        assert_eq!(told(403, &json!({})), ProviderListing::KeyRefused(403));
        let google = json!({"error": {"details": [{"reason": "API_KEY_INVALID"}]}});
        assert_eq!(told(400, &google), ProviderListing::KeyRefused(400));
        assert_eq!(told(400, &json!({})), ProviderListing::NoList(400));
        assert_eq!(told(404, &json!({})), ProviderListing::NoList(404));
        assert_eq!(told(429, &json!({})), ProviderListing::Failing(429));
        assert_eq!(told(503, &json!({})), ProviderListing::Failing(503));
    }
}
