//! Response and request bodies that are observed, or that hold a guard until they end.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;

/// Holds `guard` until the response body ends or is dropped.
pub(super) fn hold_until_sent<G: Send + Unpin + 'static>(response: Response, guard: G) -> Response {
    response.map(|body| {
        observe(body, move || {
            let _held = &guard;
        })
    })
}

/// Calls `on_frame` for each frame of the body and at its end.
pub(super) fn observe(body: Body, on_frame: impl Fn() + Send + Unpin + 'static) -> Body {
    Body::new(ObservedBody { body, on_frame })
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
