//! Response bodies that are observed, or that hold a guard until they end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use futures::future::BoxFuture;

use crate::db::RowAccess;

/// Holds `guard` until the response body ends or is dropped.
pub(super) fn hold_until_sent<G: Send + Unpin + 'static>(response: Response, guard: G) -> Response {
    response.map(|body| {
        observe(body, move || {
            let _held = &guard;
        })
    })
}

/// Aborts the response body when `end` completes: the connection fails, so that the client does not take for the whole
/// what it has received.
pub(super) fn abort_when(response: Response, end: BoxFuture<'static, ()>) -> Response {
    response.map(|body| Body::new(AbortableBody { body, end: Some(end) }))
}

/// Gives a response body this access to the database: a stream is read after its request has been handled.
pub(super) fn bind(response: Response, access: RowAccess) -> Response {
    // A body of known length is in memory.
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| {
        let body = Some(body);
        Body::new(BoundBody { body, access })
    })
}

/// Calls `on_frame` for each frame of the body and at its end.
fn observe(body: Body, on_frame: impl Fn() + Send + Unpin + 'static) -> Body {
    Body::new(ObservedBody { body, on_frame })
}

/// Learns how much of a response body has been sent. It is dropped when the body ends or is dropped.
pub(super) trait SentBody: Send + Unpin + 'static {
    /// Counts bytes that were sent.
    fn sent(&mut self, bytes: u64);
}

/// Counts the bytes of the response body in `counter`.
pub(super) fn count_sent(response: Response, counter: impl SentBody) -> Response {
    response.map(|body| Body::new(CountedBody { body, counter }))
}

struct CountedBody<C> {
    body: Body,
    counter: C,
}

impl<C: SentBody> HttpBody for CountedBody<C> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            self.counter.sent(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

struct ObservedBody<W> {
    body: Body,
    on_frame: W,
}

impl<W: Fn() + Unpin> HttpBody for ObservedBody<W> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            (self.on_frame)();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

struct BoundBody {
    /// `None` only while it is dropped.
    body: Option<Body>,
    access: RowAccess,
}

impl HttpBody for BoundBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        this.access.clone().sync_scope(|| Pin::new(body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body
            .as_ref()
            .map_or_else(http_body::SizeHint::default, Body::size_hint)
    }
}

impl Drop for BoundBody {
    /// A body that is dropped early may cancel its run.
    fn drop(&mut self) {
        let body = self.body.take();
        self.access.clone().sync_scope(|| drop(body));
    }
}

struct AbortableBody {
    body: Body,
    /// `None` after it has completed.
    end: Option<BoxFuture<'static, ()>>,
}

impl HttpBody for AbortableBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let Some(end) = &mut self.end else {
            return Poll::Ready(None);
        };
        if end.as_mut().poll(context).is_ready() {
            self.end = None;
            let reason = io::Error::other("the credential of the caller is no longer valid");
            return Poll::Ready(Some(Err(axum::Error::new(reason))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
