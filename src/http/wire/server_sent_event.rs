//! Events of streams, as the API document describes them.

use utoipa::ToSchema;

/// One event of a stream, by the fields of `text/event-stream`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it stands in the document; events are written as text")]
pub struct ServerSentEvent {
    /// The kind of the event.
    event: Option<String>,
    /// The content, as JSON.
    data: Option<String>,
    /// Where a client goes on that sends it as `Last-Event-ID`.
    id: Option<String>,
}
