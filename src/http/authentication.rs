//! Finds out who sends a request, before anything else of the request is read.
//!
//! The identity is put into the extensions of the request, from where handlers take it. With the section `[auth]` a
//! request without valid credentials ends here with 401, whatever its path is; only a few pages are public.

use std::sync::Arc;

use axum::body::HttpBody;
use axum::extract::{MatchedPath, Request};
use axum::http::{Method, header};
use axum::response::Response;

use super::body_guard::abort_when;
use super::error::ApiError;
use crate::auth::{AuthError, Authenticator, Credentials};
use crate::domain::identity::{Credential, Identity};

/// The routes that are public, for GET and HEAD.
const PUBLIC: [&str; 5] = ["/ok", "/openapi.json", "/docs", "/docs/{*file}", "/favicon.ico"];

/// The routes of streams and WebSockets that a browser opens with GET and without headers: a ticket may authenticate
/// them.
const STREAMS: [&str; 3] = [
    "/threads/{thread_id}/stream",
    "/threads/{thread_id}/stream/events",
    "/threads/{thread_id}/runs/{run_id}/stream",
];

/// The query parameter with a ticket.
const TICKET: &str = "ticket";

/// Puts the identity of the caller into the extensions of a request.
///
/// # Errors
/// 401 without valid credentials; 503 if they cannot be checked now.
pub(super) async fn identify(auth: &Authenticator, request: &mut Request) -> Result<(), ApiError> {
    if auth.is_on() && is_public(request) {
        return Ok(());
    }
    let ticket = ticket_of(request);
    let credentials = Credentials {
        method: request.method(),
        path: request.uri().path(),
        headers: request.headers(),
        ticket: ticket.as_deref(),
    };
    let identity = auth.authenticate(credentials).await.map_err(|error| match error {
        AuthError::Refused(_) => ApiError::unauthenticated(),
        AuthError::Unavailable(_) => ApiError::authentication_unavailable(),
    })?;
    request.extensions_mut().insert(identity);
    Ok(())
}

/// Aborts a response of unknown length, such as a stream, when the API key of its caller is revoked or expires. Tokens are
/// short-lived and a run may take longer than a token lives, so the end of a token aborts nothing.
pub(super) fn end_with_key(auth: &Authenticator, caller: Option<Arc<Identity>>, response: Response) -> Response {
    let has_key = |caller: &Arc<Identity>| matches!(caller.credential, Credential::ApiKey(_));
    let Some(caller) = caller.filter(has_key) else {
        return response;
    };
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let auth = auth.clone();
    abort_when(response, Box::pin(async move { auth.credential_ended(&caller).await }))
}

/// Returns whether a request needs no identity.
fn is_public(request: &Request) -> bool {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return false;
    }
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    match route {
        // Browsers are redirected to the document. Others would learn the version of the server.
        Some("/") => request
            .headers()
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .is_some_and(|accept| accept.contains("text/html")),
        Some(route) => PUBLIC.contains(&route),
        None => false,
    }
}

/// Returns the ticket of a request for a stream.
fn ticket_of(request: &Request) -> Option<String> {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    if *request.method() != Method::GET || !route.is_some_and(|route| STREAMS.contains(&route)) {
        return None;
    }
    let query = request.uri().query()?.as_bytes();
    let mut parameters = url::form_urlencoded::parse(query);
    parameters
        .find(|(name, _)| name == TICKET)
        .map(|(_, ticket)| ticket.into_owned())
}
