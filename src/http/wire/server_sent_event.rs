//! The schema of stream events in the API document.

use utoipa::ToSchema;

/// A server-sent event with the fields of `text/event-stream`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it stands in the document; events are written as text")]
pub struct ServerSentEvent {
    /// The event name.
    event: Option<String>,
    /// The data as JSON.
    data: Option<String>,
    /// The id with which the stream can be resumed (`Last-Event-ID`).
    id: Option<String>,
}
