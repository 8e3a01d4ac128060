//! Requests with the header `Idempotency-Key`: the same request is executed once, and its response is repeated for a
//! day.
//!
//! An endpoint that creates something takes [`Idempotent`] around its body, passes the key on
//! ([`crate::db::Db::write_once`]), and answers with [`respond`]. The key is committed together with the created row,
//! so a crash before the response loses nothing. A key belongs to the client that sends it. A second request waits
//! while the first is being executed. Refusals are not stored: they created nothing, and a retry may succeed.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::client::ClientId;
use super::error::ApiError;
use super::extract::{self, ApiJson, ApiList};
use crate::domain::id::ThreadId;
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome, StoredResponse};

/// The request header with the key.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The response header of a repeated response.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The idempotency key as the API document shows it.
#[derive(IntoParams)]
#[expect(dead_code, reason = "only the document shows it; requests are read by `Idempotent`")]
#[into_params(parameter_in = Header)]
pub(super) struct KeyHeader {
    /// A key for the request, 1 to 255 visible ASCII characters. Repeating the request with the same key returns the
    /// same response for a day and executes it once. Another request with this key is refused with 422.
    #[param(rename = "idempotency-key")]
    key: Option<String>,
}

/// A body that is read from bytes.
pub(super) trait Body: Sized {
    /// Reads the body.
    ///
    /// # Errors
    /// Names the invalid field.
    fn read(bytes: &Bytes) -> Result<Self, ApiError>;
}

impl<T: DeserializeOwned> Body for ApiJson<T> {
    fn read(bytes: &Bytes) -> Result<Self, ApiError> {
        extract::object(bytes).map(Self)
    }
}

impl<T: DeserializeOwned> Body for ApiList<T> {
    fn read(bytes: &Bytes) -> Result<Self, ApiError> {
        extract::list(bytes).map(Self)
    }
}

/// A body as bytes, for handlers that parse it themselves or ignore it.
pub(super) struct Raw(pub(super) Bytes);

impl Body for Raw {
    fn read(bytes: &Bytes) -> Result<Self, ApiError> {
        Ok(Self(bytes.clone()))
    }
}

/// A body with its idempotency key.
pub(super) struct Idempotent<B>(pub(super) Option<IdempotencyKey>, pub(super) B);

impl<S: Send + Sync, B: Body> FromRequest<S> for Idempotent<B> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let named = request
            .headers()
            .get(KEY)
            .map(|header| (header.clone(), ClientId::of(request.extensions()).key()));
        let method = request.method().clone();
        let uri = request.uri().clone();
        let bytes = Bytes::from_request(request, state).await.map_err(extract::body_error)?;
        let body = B::read(&bytes)?;
        let Some((header, client)) = named else {
            return Ok(Self(None, body));
        };
        let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
        let parts = [method.as_str().as_bytes(), path.as_bytes(), &bytes];
        let key = IdempotencyKey::new(&client, header.to_str().unwrap_or_default(), &parts)?;
        Ok(Self(Some(key), body))
    }
}

/// Responds to the first request with `first`, and to a repeated one with the stored response.
///
/// # Errors
/// If the key belongs to another request.
pub(super) fn respond<T>(once: IdempotentOutcome<T>, first: impl FnOnce(T) -> Response) -> Result<Response, ApiError> {
    match once {
        IdempotentOutcome::First(created) => Ok(first(created)),
        IdempotentOutcome::Replayed(stored) => Ok(mark_replayed(response(stored))),
        IdempotentOutcome::KeyReused => Err(ApiError::key_reused()),
    }
}

/// A response with status 200 and this body, which is about a thread or none.
pub(super) fn stored_response(body: &impl Serialize, thread: Option<ThreadId>) -> StoredResponse {
    StoredResponse::Answer {
        status: 200,
        body: super::wire::json_text(body),
        location: None,
        thread,
    }
}

/// The HTTP response of a stored response.
pub(super) fn response(stored: StoredResponse) -> Response {
    match stored {
        StoredResponse::Answer {
            status, body, location, ..
        } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
            if let Some(location) = location.and_then(|location| HeaderValue::from_str(&location).ok()) {
                response.headers_mut().insert(header::CONTENT_LOCATION, location);
            }
            response
        }
        // Responses that are runs are replayed by the handlers in `runs`.
        StoredResponse::Run { .. } => ApiError::fault(&"a run was kept for an answer").into_response(),
    }
}

/// Adds the header of a repeated response.
pub(super) fn mark_replayed(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
