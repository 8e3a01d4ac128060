//! Server-sent events from a projection: everything that is ready goes into one write, and idle streams send
//! heartbeats.

use std::io;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::Stream;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_util::sync::ReusableBoxFuture;

/// A projection of a log to the bytes of a stream.
pub(in crate::http) trait Projection: Send + 'static {
    /// The source of items.
    type Source: Send + 'static;
    /// The item that is read.
    type Item: Send + 'static;

    /// Waits for the next item. The source is boxed, since each item moves it into a future and out of it.
    fn read(source: Box<Self::Source>) -> impl Future<Output = (Box<Self::Source>, Self::Item)> + Send + 'static;

    /// Appends the bytes of an item to `buffer`.
    fn take(
        &mut self,
        source: &mut Self::Source,
        item: Self::Item,
        buffer: &mut BytesMut,
    ) -> impl Future<Output = Flow> + Send;
}

/// The continuation of a stream after an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Flow {
    /// The stream continues.
    Continue,
    /// The stream is complete.
    End,
    /// The stream continues after a new request, on another server perhaps: the connection is aborted, so that the client
    /// notices.
    Break,
}

/// The last words of a stream that continues after a new request, on another server perhaps: a client that follows the
/// standard connects again soon, with the id of its last event.
const RECONNECT_FRAME: &[u8] =
    b": the connection ends here; the stream goes on after the last id\r\nretry: 500\r\n\r\n";

/// The size after which no more items are added to a write, in bytes.
const MAX_WRITE: usize = 64 * 1024;

/// Responds with the server-sent events of `projection`.
pub(in crate::http) fn respond<F: Projection>(projection: F, source: F::Source, heartbeat: Duration) -> Response {
    let mut response = Body::from_stream(body(projection, source, heartbeat)).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The body of the response.
pub(super) fn body<F: Projection>(
    projection: F,
    source: F::Source,
    heartbeat: Duration,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let pump = SsePump::new(projection, source, heartbeat);
    futures::stream::unfold(pump, |mut pump| async move {
        let bytes = pump.write().await?;
        Some((bytes, pump))
    })
}

/// An interval whose first tick is one period from now.
pub(in crate::http) fn heartbeat_interval(period: Duration) -> Interval {
    let period = period.max(Duration::from_millis(1));
    let mut heartbeat_interval = interval_at(Instant::now() + period, period);
    heartbeat_interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    heartbeat_interval
}

/// Drives a projection for one client, and sends heartbeats while nothing happens.
struct SsePump<F: Projection> {
    /// The pending read. It is polled, never cancelled.
    read: ReusableBoxFuture<'static, (Box<F::Source>, F::Item)>,
    projection: F,
    buffer: BytesMut,
    heartbeat: Interval,
    flow: Flow,
    /// True once the client was told that the stream continues on another server.
    told: bool,
}

impl<F: Projection> SsePump<F> {
    fn new(projection: F, source: F::Source, heartbeat: Duration) -> Self {
        let read = ReusableBoxFuture::new(F::read(Box::new(source)));
        Self {
            read,
            projection,
            buffer: BytesMut::new(),
            heartbeat: heartbeat_interval(heartbeat),
            flow: Flow::Continue,
            told: false,
        }
    }

    /// The next bytes to send: everything that is ready, or a heartbeat. `None` at the end.
    async fn write(&mut self) -> Option<io::Result<Bytes>> {
        while self.buffer.is_empty() && self.flow == Flow::Continue {
            let (source, item) = tokio::select! {
                biased;
                read = &mut self.read => read,
                _ = self.heartbeat.tick() => return Some(Ok(Bytes::from_static(b": heartbeat\r\n\r\n"))),
            };
            self.take(source, item).await;
            self.take_ready().await;
        }
        match self.flow {
            // The buffer itself is sent, not a copy, so that an idle stream holds no memory.
            _ if !self.buffer.is_empty() => Some(Ok(std::mem::take(&mut self.buffer).freeze())),
            Flow::Continue | Flow::End => None,
            Flow::Break if !self.told => {
                self.told = true;
                Some(Ok(Bytes::from_static(RECONNECT_FRAME)))
            }
            Flow::Break => {
                self.flow = Flow::End;
                // A body that fails discards what the connection has not sent yet. While the body is pending, that is
                // sent.
                tokio::task::yield_now().await;
                Some(Err(io::Error::other("the stream continues on another server")))
            }
        }
    }

    /// Takes the items that are ready without waiting.
    async fn take_ready(&mut self) {
        while self.flow == Flow::Continue && self.buffer.len() < MAX_WRITE {
            let Poll::Ready((source, item)) = futures::poll!(&mut self.read) else {
                return;
            };
            self.take(source, item).await;
        }
    }

    async fn take(&mut self, mut source: Box<F::Source>, item: F::Item) {
        self.flow = self.projection.take(&mut source, item, &mut self.buffer).await;
        if self.flow == Flow::Continue {
            self.read.set(F::read(source));
        }
    }
}
