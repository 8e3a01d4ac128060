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
use super::client::ClientId;
use super::error::ApiError;
use super::rate_limits::RateLimits;
use crate::auth::{AuthError, Authenticator, Credentials, bearer_of, may_end};
use crate::domain::call_token::CALL_PATH;
use crate::domain::identity::{Credential, Identity};
use crate::runtime::StoredCallTokens;

/// The routes that are public, for GET and HEAD.
const PUBLIC: [&str; 9] = [
    "/ok",
    "/ready",
    "/openapi.json",
    "/docs",
    "/docs/{*file}",
    "/favicon.ico",
    "/console",
    "/console/",
    "/console/{*file}",
];

/// The routes of streams and WebSockets that a browser opens with GET and without headers: a ticket may authenticate
/// them.
const STREAMS: [&str; 3] = [
    "/threads/{thread_id}/stream",
    "/threads/{thread_id}/stream/events",
    "/threads/{thread_id}/runs/{run_id}/stream",
];

/// The query parameter with a ticket.
const TICKET: &str = "ticket";

/// Puts the identity of the caller into the extensions of a request, and counts the request for the caller's quotas.
///
/// # Errors
/// 401 without valid credentials; 429 after too many requests, or too many credentials that were not valid; 503 if the
/// credentials cannot be checked now.
pub(super) async fn identify(auth: &Authenticator, rates: &RateLimits, request: &mut Request) -> Result<(), ApiError> {
    let is_public = is_public(request);
    if auth.is_on() && is_public {
        return Ok(());
    }
    let ticket = ticket_of(request);
    // The identity is not known yet, so this is the address of the client.
    let address = ClientId::of(request.extensions());
    // Only the hook is not asked after failures.
    let wait = auth.has_hook().then(|| rates.wait_after_failures(address)).flatten();
    let credentials = Credentials {
        method: request.method(),
        path: request.uri().path(),
        headers: request.headers(),
        ticket: ticket.as_deref(),
        may_ask_hook: wait.is_none(),
    };
    let identity = match auth.authenticate(credentials).await {
        Ok(identity) => identity,
        Err(AuthError::Refused(_)) => {
            // A request without credentials is no attempt to guess any.
            if auth.has_credentials(credentials) {
                rates.count_failure(address)?;
            }
            return Err(ApiError::unauthenticated());
        }
        Err(AuthError::HookNotAsked) => {
            return Err(ApiError::too_many_failed_authentications(wait.unwrap_or_default()));
        }
        Err(AuthError::Unavailable(_)) => return Err(ApiError::authentication_unavailable()),
    };
    let counted = match is_public {
        true => Ok(()),
        false => rates.count_request(&identity),
    };
    // The access log names the caller of a refused request, too.
    request.extensions_mut().insert(identity);
    counted
}

/// Aborts a response of unknown length, such as a stream, when the API key of its caller is revoked or expires. Tokens are
/// short-lived and a run may take longer than a token lives, so the end of a token aborts nothing.
pub(super) fn end_with_key(auth: &Authenticator, caller: Option<Arc<Identity>>, response: Response) -> Response {
    let may_abort = |caller: &Arc<Identity>| matches!(caller.credential, Credential::ApiKey(_)) && may_end(caller);
    let Some(caller) = caller.filter(may_abort) else {
        return response;
    };
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let auth = auth.clone();
    abort_when(response, Box::pin(async move { auth.credential_ended(&caller).await }))
}

/// Returns whether a request is for an endpoint that tools read their run from, during a call.
pub(super) fn is_of_call(request: &Request) -> bool {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let below = route.and_then(|route| route.strip_prefix(CALL_PATH));
    below.is_some_and(|below| below.starts_with('/'))
}

/// Puts the call whose token a request has into its extensions, and the identity of the owner of the call's thread. These
/// endpoints take no other credential, and no other endpoint takes such a token.
///
/// # Errors
/// 401 without the token of a call that is being made; 429 after too many requests, or too many wrong tokens; an error
/// when the database fails.
pub(super) async fn identify_call(
    tokens: &StoredCallTokens,
    rates: &RateLimits,
    request: &mut Request,
) -> Result<(), ApiError> {
    let token = bearer_of(request.headers()).map_err(|_| ApiError::no_call())?;
    let token = token.ok_or_else(ApiError::no_call)?;
    let Some(call) = tokens.find(token).await? else {
        rates.count_failure(ClientId::of(request.extensions()))?;
        return Err(ApiError::no_call());
    };
    let identity = Identity::of_call(&call.ownership);
    rates.count_request(&identity)?;
    request.extensions_mut().insert(Arc::new(identity));
    request.extensions_mut().insert(Arc::new(call));
    Ok(())
}

/// Returns whether a request needs no identity.
fn is_public(request: &Request) -> bool {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return false;
    }
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    match route {
        // Browsers get the console, or are redirected to the document. Others would learn the version of the server.
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
