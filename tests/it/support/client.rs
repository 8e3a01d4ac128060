//! A plain HTTP client for JSON.

use std::sync::Arc;

use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request as SocketRequest;

use super::sse::Sse;

/// A client of one server, whose address may change. Clones share the address.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    address: Arc<watch::Sender<Address>>,
    /// The API key that it sends, unless it uses that of the server.
    key: Option<String>,
}

/// The address of a server.
#[derive(Debug)]
struct Address {
    base: String,
    /// True if the test has stopped the server.
    is_down: bool,
    /// The API key of clients that have none of their own.
    key: Option<String>,
}

/// The connection to the server was refused or broke.
#[derive(Debug)]
pub(crate) struct Disconnected;

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The status.
    pub(crate) status: u16,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The JSON body; a string if it is not JSON, null if it is empty.
    pub(crate) body: Value,
}

impl Client {
    /// Creates a client of the server at `base`.
    pub(crate) fn new(base: &str) -> Self {
        // Each request has a connection of its own: the server closes one whose body it refused to read, and a client that
        // does not know yet would send the next request there.
        let http = adjutant::net::client_builder()
            .no_proxy()
            .pool_max_idle_per_host(0)
            .build()
            .expect("a client");
        let address = Address {
            base: base.to_owned(),
            is_down: false,
            key: None,
        };
        Self {
            http,
            address: Arc::new(watch::Sender::new(address)),
            key: None,
        }
    }

    /// Returns the address of the server.
    pub(crate) fn base(&self) -> String {
        self.address.borrow().base.clone()
    }

    /// Returns whether the test has stopped the server, whose port another one may have taken since.
    pub(crate) fn is_down(&self) -> bool {
        self.address.borrow().is_down
    }

    /// Sets the new address of the server.
    pub(crate) fn moved_to(&self, base: &str) {
        self.address.send_modify(|address| {
            base.clone_into(&mut address.base);
            address.is_down = false;
        });
    }

    /// Returns a client of the same server that sends this API key; none if it is empty.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self {
            key: Some(key.to_owned()),
            ..self.clone()
        }
    }

    /// Sets the API key of all clients of the server that have none of their own.
    pub(crate) fn uses_key(&self, key: &str) {
        self.address.send_modify(|address| address.key = Some(key.to_owned()));
    }

    /// Lets the requests that wait for a server wait until it has a new address.
    pub(crate) fn server_is_down(&self) {
        self.address.send_modify(|address| address.is_down = true);
    }

    /// Waits until the server runs.
    async fn server_runs(&self) {
        let mut address = self.address.subscribe();
        let running = address.wait_for(|address| !address.is_down).await;
        running.expect("the client owns the sender");
    }

    /// Waits until the server runs, sends a request and reads the response.
    pub(crate) async fn tries(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply, Disconnected> {
        self.server_runs().await;
        let request = self.request(method, path);
        try_reply(match body {
            Some(body) => request.json(body),
            None => request,
        })
        .await
    }

    /// Waits until the server runs and opens a stream, which starts after this event.
    pub(crate) async fn tries_stream(&self, path: &str, last_event_id: &str) -> Result<Sse, Disconnected> {
        self.server_runs().await;
        let request = self.request(Method::GET, path).header("Last-Event-ID", last_event_id);
        let response = request.send().await.map_err(|_| Disconnected)?;
        Ok(Sse::open(response).await)
    }

    /// Builds a request.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base()));
        match self.sent_key() {
            Some(key) => request.header("x-api-key", key),
            None => request,
        }
    }

    /// Builds the request for the WebSocket of a thread.
    pub(crate) fn socket_request(&self, thread: &str) -> SocketRequest {
        let base = self.base().replacen("http", "ws", 1);
        let url = format!("{base}/threads/{thread}/stream/events");
        let mut request = url.into_client_request().expect("a request");
        if let Some(key) = self.sent_key() {
            let key = key.parse().expect("a header");
            request.headers_mut().insert("x-api-key", key);
        }
        request
    }

    /// Returns the API key that the client sends, if it sends one.
    fn sent_key(&self) -> Option<String> {
        let key = self.key.clone().or_else(|| self.address.borrow().key.clone());
        key.filter(|key| !key.is_empty())
    }

    /// Sends a GET request.
    pub(crate) async fn get(&self, path: &str) -> Reply {
        reply(self.request(Method::GET, path)).await
    }

    /// Sends a POST request with a JSON body.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        reply(self.request(Method::POST, path).json(&body)).await
    }

    /// Sends a PATCH request with a JSON body.
    pub(crate) async fn patch(&self, path: &str, body: Value) -> Reply {
        reply(self.request(Method::PATCH, path).json(&body)).await
    }

    /// Sends a PUT request with a JSON body.
    pub(crate) async fn put(&self, path: &str, body: Value) -> Reply {
        reply(self.request(Method::PUT, path).json(&body)).await
    }

    /// Sends a DELETE request.
    pub(crate) async fn delete(&self, path: &str) -> Reply {
        reply(self.request(Method::DELETE, path)).await
    }

    /// Sends a POST request whose response is an SSE stream.
    pub(crate) async fn post_stream(&self, path: &str, body: Value) -> Sse {
        Sse::open(
            self.request(Method::POST, path)
                .json(&body)
                .send()
                .await
                .expect("an answer"),
        )
        .await
    }

    /// Sends a GET request whose response is an SSE stream, which starts after this event.
    pub(crate) async fn get_stream(&self, path: &str, last_event_id: Option<&str>) -> Sse {
        let mut request = self.request(Method::GET, path);
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        Sse::open(request.send().await.expect("an answer")).await
    }

    /// Creates a thread and returns its id.
    pub(crate) async fn thread(&self) -> String {
        let thread = self.post("/threads", json!({})).await.ok();
        thread["thread_id"].as_str().expect("an id").to_owned()
    }
}

/// Sends the request and reads the whole response.
pub(crate) async fn reply(request: RequestBuilder) -> Reply {
    let response = request.send().await.expect("an answer");
    read(response).await.expect("a whole answer")
}

/// Sends the request and reads the whole response, unless the connection breaks.
async fn try_reply(request: RequestBuilder) -> Result<Reply, Disconnected> {
    let response = request.send().await.map_err(|_| Disconnected)?;
    read(response).await.map_err(|_| Disconnected)
}

async fn read(response: Response) -> reqwest::Result<Reply> {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let text = response.text().await?;
    let body = match text.trim() {
        "" => Value::Null,
        json => serde_json::from_str(json).unwrap_or(Value::String(text)),
    };
    Ok(Reply { status, headers, body })
}

impl Reply {
    /// Creates a response without headers.
    pub(crate) fn of(status: StatusCode, body: Value) -> Self {
        Self {
            status: status.as_u16(),
            headers: HeaderMap::new(),
            body,
        }
    }

    /// Returns the body of a successful response; panics otherwise.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(matches!(self.status, 200 | 202 | 204), "{self:?}");
        self.body
    }

    /// Returns the detail of an error with this status; panics otherwise.
    #[track_caller]
    pub(crate) fn refused(self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        self.body["detail"]
            .as_str()
            .unwrap_or_else(|| panic!("an error has a detail: {self:?}"))
            .to_owned()
    }

    /// Returns a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}
