//! Bodies that are watched, or that hold something until they are over: a permit, a count, a measurement.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;

/// Keeps `guard` until the body of the answer is over, or given up.
pub(super) fn hold_until_sent<G: Send + Unpin + 'static>(response: Response, guard: G) -> Response {
    response.map(|body| {
        observe(body, move || {
            let _held = &guard;
        })
    })
}

/// Calls `on_frame` whenever a piece of the body, or its end, is there.
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
