//! Requests with the header `Idempotency-IdempotencyKey`: whoever sends one again gets the answer of the first time, for a day.
//!
//! An endpoint that makes something takes [`Idempotent`] around its body, hands the key on to whoever makes it
//! ([`crate::db::Db::write_once`]), and answers with [`answer`]. The key is committed with what it made, so a server that
//! dies before it could answer has not lost the answer. A key belongs to the client that sends it: under the same key another
//! client has another request. A second request that comes while the first is at work waits for
//! it. Refusals are not kept: they made nothing, and may turn out otherwise.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::client::ClientId;
use super::error::ApiError;
use super::extract::{self, ApiJson, ApiList};
use crate::domain::idempotency::{IdempotencyKey, Once, StoredResponse};

/// The header with the key.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header by which an answer says that it was given before.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The key of a request, as the document shows it.
#[derive(IntoParams)]
#[expect(dead_code, reason = "only the document shows it; requests are read by `Idempotent`")]
#[into_params(parameter_in = Header)]
pub(super) struct KeyHeader {
    /// Names the request, in 1 to 255 visible ASCII characters. The same request under the same key is answered alike for a
    /// day and done once; another one under that key is refused with 422.
    #[param(rename = "idempotency-key")]
    key: Option<String>,
}

/// A body that can be read from bytes.
pub(super) trait Body: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// Names the field that is wrong.
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

/// A body as it came, for who reads it in another way, or not at all.
pub(super) struct Raw(pub(super) Bytes);

impl Body for Raw {
    fn read(bytes: &Bytes) -> Result<Self, ApiError> {
        Ok(Self(bytes.clone()))
    }
}

/// What a request says in its body, and the key under which it says so.
pub(super) struct Idempotent<B>(pub(super) Option<IdempotencyKey>, pub(super) B);

impl<S: Send + Sync, B: Body> FromRequest<S> for Idempotent<B> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let header = request.headers().get(KEY).cloned();
        let method = request.method().clone();
        let client = ClientId::of(request.extensions()).key();
        let path = request
            .uri()
            .path_and_query()
            .map(ToString::to_string)
            .unwrap_or_default();
        let bytes = Bytes::from_request(request, state).await.map_err(extract::body_error)?;
        let body = B::read(&bytes)?;
        let parts = [method.as_str().as_bytes(), path.as_bytes(), &bytes];
        let key = header
            .map(|header| IdempotencyKey::new(&client, header.to_str().unwrap_or_default(), &parts))
            .transpose()?;
        Ok(Self(key, body))
    }
}

/// Answers with what was made first, or as it was answered then.
///
/// # Errors
/// When the key belongs to another request.
pub(super) fn respond<T>(once: Once<T>, first: impl FnOnce(T) -> Response) -> Result<Response, ApiError> {
    match once {
        Once::First(created) => Ok(first(created)),
        Once::Again(stored) => Ok(mark_replayed(response(stored))),
        Once::Reused => Err(ApiError::key_reused()),
    }
}

/// The answer 200 with this body.
pub(super) fn stored_response(body: &impl Serialize) -> StoredResponse {
    StoredResponse::Answer {
        status: 200,
        body: super::wire::json(body).to_string(),
        location: None,
    }
}

/// An answer as it goes out.
pub(super) fn response(stored: StoredResponse) -> Response {
    match stored {
        StoredResponse::Answer { status, body, location } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
            if let Some(location) = location.and_then(|location| HeaderValue::from_str(&location).ok()) {
                response.headers_mut().insert(header::CONTENT_LOCATION, location);
            }
            response
        }
        // A run is followed by whoever knows how; see `runs`.
        StoredResponse::Run { .. } => ApiError::fault(&"a run was kept for an answer").into_response(),
    }
}

/// Marks an answer as one that was given before.
pub(super) fn mark_replayed(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
