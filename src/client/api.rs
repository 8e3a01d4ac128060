//! Requests to a server. Every response is limited in size and time.

use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use reqwest::{Client, Method, RequestBuilder, Response, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use url::Url;

use super::address::ServerAddress;
use super::error::{ClientError, ClientResult, START_A_SERVER};
use crate::domain::json_limits::read_foreign;
use crate::net;

/// The time limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit of a request whose response is not a stream.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The largest response, in bytes.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The largest body of an error, in bytes.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// The header with an API key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The header by which a repeated request has one effect.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The client of a server. Cheap to clone.
#[derive(Clone)]
pub struct ApiClient {
    client: Client,
    server: ServerAddress,
    headers: HeaderMap,
}

impl ApiClient {
    /// Creates a client that sends this key.
    ///
    /// # Errors
    /// TLS is not available, or the key cannot be sent in a header.
    pub fn new(server: ServerAddress, key: Option<&SecretString>) -> ClientResult<Self> {
        // A redirect could send the key to another server.
        let client = net::client_builder()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(|error| ClientError::Misunderstood(net::describe_error(&error)))?;
        let mut headers = HeaderMap::new();
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("adjutant/", env!("CARGO_PKG_VERSION"))),
        );
        if let Some(key) = key {
            let text = key.expose_secret().trim();
            let invalid = || ClientError::Usage("the API key has letters that no API key has".to_owned());
            // A token of an identity provider has three parts; it is sent as one.
            let is_token = text.split('.').count() == 3;
            let value = if is_token {
                format!("Bearer {text}")
            } else {
                text.to_owned()
            };
            let mut value = HeaderValue::from_str(&value).map_err(|_| invalid())?;
            value.set_sensitive(true);
            let name = if is_token {
                reqwest::header::AUTHORIZATION
            } else {
                API_KEY
            };
            headers.insert(name, value);
        }
        Ok(Self {
            client,
            server,
            headers,
        })
    }

    /// Returns the address of the server for messages.
    pub fn display_server(&self) -> String {
        self.server.display()
    }

    /// Returns whether a server of this API answers. False if nothing listens there.
    ///
    /// # Errors
    /// Something else listens there, or it does not answer in time.
    pub async fn is_reachable(&self) -> ClientResult<bool> {
        let request = self.request(Method::GET, &["ok"], &[]).timeout(CONNECT_TIMEOUT);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Ok(false),
            Err(error) => return Err(self.unreachable(&error)),
        };
        let status = response.status();
        let body = self.read(response, MAX_ERROR_BYTES).await?;
        let is_server =
            status.is_success() && serde_json::from_slice::<Value>(&body).is_ok_and(|body| body["ok"] == true);
        match is_server {
            true => Ok(true),
            false => Err(ClientError::Misunderstood(format!(
                "what answers at {} is not a server of this kind (status {status}); name another one with --server or \
                 ADJUTANT_URL",
                self.display_server()
            ))),
        }
    }

    /// Reads a resource. The path is a list of segments.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(super) async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> ClientResult<Value> {
        self.send(self.request(Method::GET, path, query)).await
    }

    /// Posts a body.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(super) async fn post(&self, path: &[&str], body: &Value) -> ClientResult<Value> {
        self.send(self.request(Method::POST, path, &[]).json(body)).await
    }

    /// Posts a body that makes something. A repetition with the same key has no further effect.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(super) async fn post_once(&self, path: &[&str], body: &Value, key: &str) -> ClientResult<Value> {
        let request = self.request(Method::POST, path, &[]).header(IDEMPOTENCY_KEY, key);
        self.send(request.json(body)).await
    }

    /// Deletes a resource.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(super) async fn delete(&self, path: &[&str]) -> ClientResult<()> {
        self.send(self.request(Method::DELETE, path, &[])).await.map(drop)
    }

    /// Cancels a run without waiting for its end. The result is false if it has ended already.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(super) async fn cancel(&self, thread: &str, run: &str, action: &str) -> ClientResult<bool> {
        let path = ["threads", thread, "runs", run, "cancel"];
        let request = self.request(Method::POST, &path, &[("wait", "false"), ("action", action)]);
        match self.send(request.json(&json!({}))).await {
            Ok(_) => Ok(true),
            Err(ClientError::Refused { code, .. }) if code.as_deref() == Some("run_over") => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens the stream of a thread.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(super) async fn open_stream(&self, thread: &str, body: &Value) -> ClientResult<Response> {
        let request = self
            .client
            .post(self.address(&["threads", thread, "stream", "events"], &[]))
            .headers(self.headers.clone())
            .header(ACCEPT, "text/event-stream")
            .json(body);
        let sent = tokio::time::timeout(TIMEOUT, request.send()).await;
        let response = sent
            .map_err(|_| self.unreachable_because("it took too long".to_owned(), false))?
            .map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(self.refused(response).await)
        }
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> RequestBuilder {
        self.client
            .request(method, self.address(path, query))
            .headers(self.headers.clone())
            .timeout(TIMEOUT)
    }

    /// Returns the URL of a path of segments, which are encoded.
    fn address(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        let mut url = self.server.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url.set_query(None);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url.set_fragment(None);
        url
    }

    async fn send(&self, request: RequestBuilder) -> ClientResult<Value> {
        let request = request.header(ACCEPT, "application/json");
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let is_json = content_type(&response).is_some_and(|kind| kind.contains("json"));
        let body = self.read(response, MAX_BYTES).await?;
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Null);
        }
        let read = if is_json { read_foreign(&body).ok() } else { None };
        read.ok_or_else(|| {
            ClientError::Misunderstood(format!(
                "the response of {} is not JSON: is it the right address?",
                self.display_server()
            ))
        })
    }

    /// Reads a body up to a size.
    async fn read(&self, mut response: Response, max: usize) -> ClientResult<Vec<u8>> {
        let mut body = vec![];
        while let Some(bytes) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if body.len() + bytes.len() > max {
                return Err(ClientError::Misunderstood(format!(
                    "the response of {} is larger than {max} bytes; a smaller --limit may help",
                    self.display_server()
                )));
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body)
    }

    async fn refused(&self, response: Response) -> ClientError {
        let status = response.status().as_u16();
        let words = response.status().canonical_reason().unwrap_or("refused").to_owned();
        let is_json = content_type(&response).is_some_and(|kind| kind.contains("json"));
        let body = self.read(response, MAX_ERROR_BYTES).await.unwrap_or_default();
        let body: Value = if is_json {
            read_foreign(&body).unwrap_or_default()
        } else {
            Value::Null
        };
        let detail = body["detail"].as_str().map_or(words, str::to_owned);
        ClientError::Refused {
            status,
            detail,
            code: body["code"].as_str().map(str::to_owned),
            min_available_seq: body["min_available_seq"].as_i64(),
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        self.unreachable_because(net::describe_error(error), error.is_connect())
    }

    fn unreachable_because(&self, reason: String, is_connecting: bool) -> ClientError {
        ClientError::Unreachable {
            server: self.display_server(),
            reason,
            hint: if is_connecting { START_A_SERVER } else { "" },
        }
    }
}

fn content_type(response: &Response) -> Option<&str> {
    response.headers().get(CONTENT_TYPE)?.to_str().ok()
}
