//! The HTTP client of rig-core, which bounds what a provider sends before rig-core collects it.
//!
//! rig-core reads the bodies of errors to their end, and scans an incomplete event again with each piece. So the body
//! of an error is truncated, and a stream is passed on in whole events, which are bounded in size, number and time.
//! Redirects are not followed, since a request carries the provider's key.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::request::Parts;
use http::{Request, Response, Uri};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use rig_core::http_client::multipart::MultipartForm;
use rig_core::http_client::{Error, HttpClientExt, LazyBody, Result, StreamingResponse};
use rig_core::wasm_compat::WasmCompatSend;
use rig_reqwest::ReqwestClient;
use url::Url;

use super::caching::Caching;
use crate::domain::headers::Headers;
use crate::model::limits::AnswerLimits;
use crate::model::pieces::{PieceError, PieceReader, SilenceLimit};

/// The timeout of establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An HTTP client with bounded responses.
#[derive(Clone)]
pub(super) struct BoundedClient {
    http: reqwest::Client,
    limits: AnswerLimits,
    /// Headers that precede those of a request.
    headers: HeaderMap,
    /// The use of the cache of the provider.
    caching: Caching,
    address: KnownAddress,
}

/// The address of the last request, parsed. All requests to a model have the same.
#[derive(Debug, Clone, Default)]
struct KnownAddress(Arc<Mutex<Option<(Uri, Url)>>>);

impl KnownAddress {
    /// Returns the parsed form of an address; none if it has none.
    fn parse(&self, address: &Uri) -> Option<Url> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, url)) = known.as_ref().filter(|(uri, _)| uri == address) {
            return Some(url.clone());
        }
        let url = Url::parse(&address.to_string()).ok()?;
        *known = Some((address.clone(), url.clone()));
        Some(url)
    }
}

/// The limit that a response exceeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SizeExceeded {
    /// No data arrived within this limit.
    TimedOut(SilenceLimit),
    /// The response is too large.
    TooLarge(String),
}

impl fmt::Display for SizeExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(limit) => write!(f, "{limit}"),
            Self::TooLarge(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for SizeExceeded {}

/// Converts a read error into one of rig-core.
fn into_rig_error(error: PieceError) -> Error {
    match error {
        PieceError::Silent(limit) => Error::instance(SizeExceeded::TimedOut(limit)),
        PieceError::Broken(error) => Error::instance(error),
    }
}

impl BoundedClient {
    /// Creates a client with a connection pool of its own.
    ///
    /// # Errors
    /// When TLS cannot be initialised.
    pub(super) fn new(limits: AnswerLimits) -> reqwest::Result<Self> {
        let redirects = reqwest::redirect::Policy::none();
        let http = crate::net::client_builder()
            .redirect(redirects)
            .connect_timeout(CONNECT_TIMEOUT)
            .build()?;
        Ok(Self {
            http,
            limits,
            headers: HeaderMap::new(),
            caching: Caching::default(),
            address: KnownAddress::default(),
        })
    }

    /// Returns the client for a model of a provider with these limits and headers, with the same connection pool. Headers
    /// that cannot be sent were refused when the configuration was read.
    pub(super) fn for_provider(&self, limits: AnswerLimits, headers: &Headers, caching: Caching) -> Self {
        let header = |(name, value): (&String, &String)| {
            let mut value = HeaderValue::from_str(value).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
        };
        Self {
            http: self.http.clone(),
            limits,
            headers: headers.0.iter().filter_map(header).collect(),
            caching,
            address: KnownAddress::default(),
        }
    }

    /// Sends a request and waits for the head of the response. An error status becomes an error with the response's
    /// body. A provider that refuses what the request says to its cache is asked once more without that.
    async fn open(&self, request: Request<Bytes>) -> Result<PieceReader> {
        let (parts, body) = request.into_parts();
        let reader = self.send_once(&parts, body.clone()).await?;
        let status = reader.head().status();
        if status.is_success() {
            return Ok(reader);
        }
        let headers = reader.head().headers().clone();
        let error = self.error_body(reader).await;
        let Some(plain) = self.caching.body_without(status, &error, &body) else {
            return Err(Error::non_success_with_details(status, headers, error));
        };
        let reader = self.send_once(&parts, plain.into()).await?;
        let status = reader.head().status();
        if status.is_success() {
            self.caching.note_refusal(parts.uri.host());
            return Ok(reader);
        }
        let headers = reader.head().headers().clone();
        let error = self.error_body(reader).await;
        Err(Error::non_success_with_details(status, headers, error))
    }

    /// Sends a request once and waits for the head of the response.
    async fn send_once(&self, parts: &Parts, body: Bytes) -> Result<PieceReader> {
        let method = parts.method.clone();
        let request = match self.address.parse(&parts.uri) {
            Some(url) => self.http.request(method, url),
            // The client says what is wrong with the address.
            None => self.http.request(method, parts.uri.to_string()),
        };
        let request = request
            .headers(parts.headers.clone())
            .headers(self.headers.clone())
            .body(body);
        PieceReader::open(request, self.limits.pieces)
            .await
            .map_err(into_rig_error)
    }

    /// Reads the body of an error up to the limits of size and time.
    async fn error_body(&self, mut reader: PieceReader) -> String {
        let mut body = vec![];
        while let Ok(Some(chunk)) = reader.next().await {
            let room = self.limits.max_error_bytes - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == self.limits.max_error_bytes {
                break;
            }
        }
        String::from_utf8_lossy(&body).into_owned()
    }

    /// Reads the whole body of a response that is not streamed.
    async fn read_body(&self, mut reader: PieceReader) -> Result<Bytes> {
        let max_bytes = self.limits.max_answer_bytes.saturating_mul(2);
        let mut body = vec![];
        loop {
            let Some(chunk) = reader.next().await.map_err(into_rig_error)? else {
                return Ok(body.into());
            };
            if body.len() + chunk.len() > max_bytes {
                return Err(too_large(format!("the answer is longer than {max_bytes} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
    }
}

fn too_large(what: String) -> Error {
    Error::instance(SizeExceeded::TooLarge(what))
}

impl HttpClientExt for BoundedClient {
    fn send<T, U>(
        &self,
        request: Request<T>,
    ) -> impl Future<Output = Result<Response<LazyBody<U>>>> + WasmCompatSend + 'static
    where
        T: Into<Bytes>,
        T: WasmCompatSend,
        U: From<Bytes>,
        U: WasmCompatSend + 'static,
    {
        let client = self.clone();
        let request = request.map(Into::into);
        async move {
            let reader = client.open(request).await?;
            let head = head(reader.head());
            let body: LazyBody<U> = Box::pin(async move { client.read_body(reader).await.map(U::from) });
            head.body(body).map_err(Error::Protocol)
        }
    }

    fn send_multipart<U>(
        &self,
        request: Request<MultipartForm>,
    ) -> impl Future<Output = Result<Response<LazyBody<U>>>> + WasmCompatSend + 'static
    where
        U: From<Bytes>,
        U: WasmCompatSend + 'static,
    {
        // Chats and embeddings send no multipart requests.
        let client = ReqwestClient::from(self.http.clone());
        async move { client.send_multipart(request).await }
    }

    fn send_streaming<T>(&self, request: Request<T>) -> impl Future<Output = Result<StreamingResponse>> + WasmCompatSend
    where
        T: Into<Bytes> + WasmCompatSend,
    {
        let client = self.clone();
        let request = request.map(Into::into);
        async move {
            let reader = client.open(request).await?;
            let head = head(reader.head());
            let pieces = UnitStream {
                unit: Unit::of(reader.head().headers()),
                reader: Some(reader),
                held: vec![],
                received: 0,
                limits: client.limits,
            };
            let pieces = stream::try_unfold(pieces, |mut pieces| async move {
                let next = pieces.next().await?;
                Ok(next.map(|piece| (piece, pieces)))
            });
            head.body(Box::pin(pieces) as _).map_err(Error::Protocol)
        }
    }
}

fn head(response: &reqwest::Response) -> http::response::Builder {
    let mut head = Response::builder()
        .status(response.status())
        .version(response.version());
    if let Some(headers) = head.headers_mut() {
        headers.clone_from(response.headers());
    }
    head
}

/// The units in which a stream is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// An event of an SSE stream, up to an empty line.
    Event,
    /// A line.
    Line,
}

impl Unit {
    fn of(headers: &HeaderMap) -> Self {
        let kind = headers
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default();
        if kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream") {
            Self::Event
        } else {
            Self::Line
        }
    }

    /// Returns the end of the last whole unit in `held`. The bytes before `from` have been searched already.
    fn end_of_last(self, held: &[u8], from: usize) -> Option<usize> {
        let mut end = held.len();
        while let Some(at) = held.get(from..end)?.iter().rposition(|byte| *byte == b'\n') {
            let newline = from + at;
            let before = &held[..newline];
            if self == Self::Line || before.ends_with(b"\n") || before.ends_with(b"\n\r") {
                return Some(newline + 1);
            }
            end = newline;
        }
        None
    }
}

/// The stream of a response in whole units.
struct UnitStream {
    unit: Unit,
    /// The source; `None` after its end.
    reader: Option<PieceReader>,
    /// The bytes of the incomplete unit.
    held: Vec<u8>,
    received: usize,
    limits: AnswerLimits,
}

impl UnitStream {
    /// Returns the next whole units, and at the end the rest.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            let Some(reader) = &mut self.reader else {
                return Ok(None);
            };
            let Some(mut chunk) = reader.next().await.map_err(into_rig_error)? else {
                self.reader = None;
                return Ok((!self.held.is_empty()).then(|| std::mem::take(&mut self.held).into()));
            };
            self.received += chunk.len();
            if self.received > self.limits.max_received_bytes() {
                let limit = self.limits.max_received_bytes();
                return Err(too_large(format!("more than {limit} bytes arrived for one answer")));
            }
            // Most pieces are whole units, which are not copied.
            if self.held.is_empty()
                && let Some(end) = self.unit.end_of_last(&chunk, 0)
            {
                self.held.extend_from_slice(&chunk.split_off(end));
                return Ok(Some(chunk));
            }
            let from = self.held.len();
            self.held.extend_from_slice(&chunk);
            if let Some(end) = self.unit.end_of_last(&self.held, from) {
                let rest = self.held.split_off(end);
                return Ok(Some(std::mem::replace(&mut self.held, rest).into()));
            }
            if self.held.len() > self.limits.max_line_bytes {
                let limit = self.limits.max_line_bytes;
                return Err(too_large(format!("a line of the answer is longer than {limit} bytes")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_passed_on_whole_however_they_arrive() {
        let text = b"data: 1\n\ndata: 2\r\n\r\ndata: 3\ndata: 4";
        for size in 1..text.len() {
            let mut held = vec![];
            let mut whole = vec![];
            for chunk in text.chunks(size) {
                let from = held.len();
                held.extend_from_slice(chunk);
                if let Some(end) = Unit::Event.end_of_last(&held, from) {
                    let rest = held.split_off(end);
                    whole.extend(std::mem::replace(&mut held, rest));
                }
            }
            assert_eq!(whole, b"data: 1\n\ndata: 2\r\n\r\n", "in pieces of {size}");
            assert_eq!(held, b"data: 3\ndata: 4");
        }
        assert_eq!(Unit::Line.end_of_last(b"{}\n{", 0), Some(3));
        assert_eq!(Unit::Line.end_of_last(b"{}\n{", 3), None);
    }
}
