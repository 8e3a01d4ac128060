//! Request bodies: only JSON, limited in size and time, one by one and all together.
//!
//! A body is read before the handler runs, so one piece of code limits all endpoints. Its share of the common budget is
//! released after the handler has answered: by then the body is parsed, admitted and stored.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Version, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::connections::ConnectionHandle;
use super::error::ApiError;
use super::user_budgets::{UserBudgets, budget_of};
use crate::domain::identity::Identity;
use crate::domain::json_limits::{VALUE_BYTES, count_values};
use crate::events::Events;

/// The unit of the budget, in bytes.
const UNIT: usize = 1024;

/// The largest cost of a body that is not counted for its user if it arrives in one piece, in bytes. Most requests are that
/// small, and save the search for their user.
const UNCOUNTED_BODY_BYTES: usize = 16 * 1024;

/// The longest time that a body waits for its share of the budget.
const BUDGET_WAIT: Duration = Duration::from_secs(1);

/// The time limit of a whole body, as a multiple of the idle timeout.
const TOTAL_TIMEOUT_FACTOR: u32 = 10;

/// The longest body of a refused request that is read and dropped, in bytes.
const MAX_DROPPED: usize = 64 * 1024;

/// The longest time in which a body is dropped.
const DROP_TIMEOUT: Duration = Duration::from_millis(100);

/// The limits of request bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimits {
    /// The largest body, in bytes.
    pub max: usize,
    /// The budget of all bodies that are being handled, in bytes of text plus [`VALUE_BYTES`] for each JSON value.
    pub total: usize,
    /// The idle timeout: the longest time without a byte.
    pub timeout: Duration,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self {
            max: 4 * 1024 * 1024,
            total: 64 * 1024 * 1024,
            timeout: Duration::from_secs(30),
        }
    }
}

/// Reads request bodies. Cloning copies a pointer.
#[derive(Clone)]
pub(super) struct BodyReader {
    limits: BodyLimits,
    budget: Arc<Semaphore>,
    /// The size of the budget in units.
    units: u32,
    /// The parts that single users may take: a half, or one body if that is more. [Small](UNCOUNTED_BODY_BYTES) bodies take
    /// no part.
    of_users: Arc<UserBudgets>,
    events: Events,
}

impl BodyReader {
    /// Creates a reader that stops reading when the server shuts down, as `events` reports.
    pub(super) fn new(limits: BodyLimits, events: Events) -> Self {
        let all = units(limits.total);
        let of_user = (all / 2).max(units(limits.max)).min(all);
        Self {
            limits,
            budget: budget_of(all),
            units: all,
            of_users: Arc::new(UserBudgets::new(of_user)),
            events,
        }
    }

    /// Reads the body and passes the request on, or refuses it.
    pub(super) async fn admit<H: Future<Output = Response>>(
        &self,
        mut request: Request,
        handle: impl FnOnce(Request) -> H,
    ) -> Response {
        let may_have_body = matches!(
            *request.method(),
            Method::POST | Method::PUT | Method::PATCH | Method::DELETE
        );
        let mut share = BudgetShare::default();
        if may_have_body && !request.body().is_end_stream() {
            let (parts, body) = request.into_parts();
            let (bytes, taken) = match self.read(&parts, body).await {
                Ok(read) => read,
                Err(error) => return close_after(parts.version, error.into_response()),
            };
            request = Request::from_parts(parts, Body::from(bytes));
            share = taken;
        }
        let response = handle(request).await;
        drop(share);
        response
    }

    /// Reserves the share of the budget for a command of a caller over a WebSocket.
    ///
    /// # Errors
    /// If the budget, or the part of the caller, is exhausted for [`BUDGET_WAIT`].
    pub(super) async fn reserve(&self, caller: &Identity, command: &[u8]) -> Result<BudgetShare, ApiError> {
        let cost = command.len() + count_values(command) * VALUE_BYTES;
        let of_user = if cost > UNCOUNTED_BODY_BYTES {
            self.of_users.of(caller)
        } else {
            None
        };
        let mut share = BudgetShare {
            of_user: of_user.map(UserShare::new),
            ..BudgetShare::default()
        };
        self.grow(&mut share, cost).await?;
        Ok(share)
    }

    async fn read(&self, parts: &Parts, body: Body) -> Result<(Bytes, BudgetShare), ApiError> {
        let checked = check_content_type(&parts.headers).and_then(|()| check_content_encoding(&parts.headers));
        let refusal = checked.err();
        let size = body.size_hint();
        if let (Some(1..), Some(refusal)) = (size.exact(), &refusal) {
            return Err(refusal.clone());
        }
        if size.lower() > u64::try_from(self.limits.max).unwrap_or(u64::MAX) {
            return Err(ApiError::too_large());
        }
        // While a body is awaited, its connection may be evicted in favour of another one.
        let _receiving = parts
            .extensions
            .get::<ConnectionHandle>()
            .map(ConnectionHandle::receive);
        let caller = parts.extensions.get::<Arc<Identity>>();
        tokio::select! {
            biased;
            read = self.collect(body, refusal, caller) => read,
            () = self.events.shutdown_started() => Err(ApiError::body_aborted()),
        }
    }

    /// Reads the whole body. A body that is not empty is refused with `refusal`, if there is one.
    async fn collect(
        &self,
        body: Body,
        refusal: Option<ApiError>,
        caller: Option<&Arc<Identity>>,
    ) -> Result<(Bytes, BudgetShare), ApiError> {
        let deadline = Instant::now() + self.limits.timeout.saturating_mul(TOTAL_TIMEOUT_FACTOR);
        let whole = body.size_hint().exact();
        let mut pieces = body.into_data_stream();
        let mut share = BudgetShare::default();
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        let mut length = 0;
        let mut values = 0;
        loop {
            let idle_until = Instant::now() + self.limits.timeout;
            let next = timeout_at(idle_until.min(deadline), pieces.next()).await;
            let next = next.map_err(|_| ApiError::slow_body(&self.timeout_reason(idle_until > deadline)))?;
            let Some(piece) = next.transpose().map_err(|_| ApiError::incomplete_body())? else {
                break;
            };
            if let Some(refusal) = refusal.clone().filter(|_| !piece.is_empty()) {
                return Err(refusal);
            }
            length += piece.len();
            if length > self.limits.max {
                return Err(ApiError::too_large());
            }
            values += count_values(&piece);
            let cost = length + values * VALUE_BYTES;
            let is_quick = cost <= UNCOUNTED_BODY_BYTES && whole == u64::try_from(length).ok();
            if share.of_user.is_none() && !is_quick {
                let of_user = caller.and_then(|caller| self.of_users.of(caller));
                share.of_user = of_user.map(UserShare::new);
            }
            self.grow(&mut share, cost).await?;
            if first.is_empty() {
                // Most bodies arrive in one piece, which needs no copy.
                first = piece;
                continue;
            }
            if rest.is_empty() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&piece);
        }
        Ok((if rest.is_empty() { first } else { rest.freeze() }, share))
    }

    fn timeout_reason(&self, is_whole: bool) -> String {
        let seconds = self.limits.timeout.as_secs_f64();
        if is_whole {
            return format!(
                "it took longer than {} seconds",
                seconds * f64::from(TOTAL_TIMEOUT_FACTOR)
            );
        }
        format!("no byte arrived for {seconds} seconds")
    }

    /// Extends the share to what a body of this cost needs.
    async fn grow(&self, share: &mut BudgetShare, cost: usize) -> Result<(), ApiError> {
        let cost = units(cost);
        let Some(of_user) = &mut share.of_user else {
            // A body that needs more than the whole budget waits until it is the only one.
            return extend(&self.budget, &mut share.all, cost.min(self.units)).await;
        };
        let cost = cost.min(self.of_users.units());
        extend(&of_user.budget, &mut of_user.taken, cost).await?;
        extend(&self.budget, &mut share.all, cost).await
    }
}

/// Extends what is taken of a budget to this number of units.
async fn extend(
    budget: &Arc<Semaphore>,
    taken: &mut Option<OwnedSemaphorePermit>,
    wanted: u32,
) -> Result<(), ApiError> {
    let held = taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    let missing = wanted.saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
    if missing == 0 {
        return Ok(());
    }
    let more = match Arc::clone(budget).try_acquire_many_owned(missing) {
        Ok(more) => more,
        Err(_) => {
            let waiting = timeout(BUDGET_WAIT, Arc::clone(budget).acquire_many_owned(missing)).await;
            waiting.ok().and_then(Result::ok).ok_or_else(ApiError::bodies_busy)?
        }
    };
    match taken {
        Some(taken) => taken.merge(more),
        None => *taken = Some(more),
    }
    Ok(())
}

/// Refuses a request before its body was read. A short body is read and dropped, so that the connection can serve the
/// next request.
pub(super) async fn refuse(request: Request, error: ApiError) -> Response {
    let version = request.version();
    let dropping = to_bytes(request.into_body(), MAX_DROPPED);
    match timeout(DROP_TIMEOUT, dropping).await {
        Ok(Ok(_)) => error.into_response(),
        Ok(Err(_)) | Err(_) => close_after(version, error.into_response()),
    }
}

/// Says in a response that the server closes the connection, since there may be more of the body that it does not read.
/// In HTTP/2 only the stream of the request ends.
fn close_after(version: Version, mut response: Response) -> Response {
    if version < Version::HTTP_2 {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// A body's share of the budget, held until it is dropped.
#[derive(Default)]
pub(super) struct BudgetShare {
    all: Option<OwnedSemaphorePermit>,
    of_user: Option<UserShare>,
}

/// A body's share of the part that its user may take.
struct UserShare {
    budget: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl UserShare {
    fn new(budget: Arc<Semaphore>) -> Self {
        Self { budget, taken: None }
    }
}

/// The number of budget units for this many bytes.
fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).max(1)
}

/// Refuses bodies that are not JSON. A web page can send forms and plain text without a CORS preflight, so they are
/// refused.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(given) = headers.get(header::CONTENT_TYPE) else {
        return Err(ApiError::not_json(None));
    };
    let given = given.to_str().unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json"
        || essence
            .strip_prefix("application/")
            .and_then(|name| name.strip_suffix("+json"))
            .is_some_and(|name| !name.is_empty());
    if is_json && headers.get_all(header::CONTENT_TYPE).iter().count() == 1 {
        return Ok(());
    }
    Err(ApiError::not_json(Some(given)))
}

/// Refuses bodies that are compressed: a small one may become a large one, and no SDK compresses what it sends.
fn check_content_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut given = headers.get_all(header::CONTENT_ENCODING).iter();
    match given.find(|given| !given.as_bytes().eq_ignore_ascii_case(b"identity")) {
        Some(given) => Err(ApiError::compressed(given.to_str().unwrap_or_default())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_json_content_types_are_accepted() {
        let accepts = |text: &str| {
            let headers =
                HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_str(text).expect("a header"))]);
            check_content_type(&headers).is_ok()
        };
        for text in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/merge-patch+json",
            "application/json ;q=1",
        ] {
            assert!(accepts(text), "{text}");
        }
        for text in [
            "text/plain",
            "text/plain; x=application/json",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/+json",
            "text/json",
            "",
        ] {
            assert!(!accepts(text), "{text}");
        }
        assert!(check_content_type(&HeaderMap::new()).is_err());
    }

    #[test]
    fn the_smallest_body_takes_one_unit() {
        assert_eq!(units(0), 1);
        assert_eq!(units(UNIT), 1);
        assert_eq!(units(UNIT + 1), 2);
        assert_eq!(count_values(br#"{"a":[1,2]}"#), 4);
    }
}
