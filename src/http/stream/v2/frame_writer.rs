//! Numbers and encodes frames, and filters them for one reader.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;

use super::filter::{Channel, Filter};
use crate::domain::event::Origin;
use crate::domain::time::Timestamp;
use crate::http::stream::frame;

/// The number of frame numbers per entry of the log: a frame's number is its entry's number times this, plus its
/// position among the entry's frames. 2^16 leaves 2^37 entries below the largest safe integer of JavaScript.
pub const FRAMES: i64 = 1 << 16;
/// The position of the first frame that every reader gets. The positions before it are for frames about answers: only
/// readers that missed chunks get them, and the numbers of the others stay the same for everyone.
const FIRST: i64 = FRAMES / 2;

/// A frame of the v2 protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct V2Frame {
    /// The number: strictly increasing within the thread.
    pub seq: i64,
    /// The method of the frame.
    pub method: &'static str,
    /// The whole frame as JSON.
    pub data: Bytes,
}

impl V2Frame {
    /// Appends the frame as a server-sent event to `buffer`.
    pub fn write(&self, buffer: &mut BytesMut) {
        buffer.reserve(64 + self.data.len());
        buffer.put_slice(b"event: ");
        buffer.put_slice(self.method.as_bytes());
        buffer.put_slice(b"\r\ndata: ");
        buffer.put_slice(&self.data);
        buffer.put_slice(b"\r\nid: ");
        buffer.put_slice(self.seq.to_string().as_bytes());
        buffer.put_slice(b"\r\n\r\n");
    }
}

/// The filter of a reader.
#[derive(Debug, Clone, Default)]
pub struct StreamFilter {
    /// The subscriptions; a frame is sent if one of them includes it.
    pub filters: Vec<Filter>,
    /// The number of the last frame that the reader has.
    pub since: i64,
}

impl StreamFilter {
    /// Returns true if a subscription includes the channel.
    pub fn has(&self, channel: Channel) -> bool {
        self.filters.iter().any(|filter| filter.has(channel))
    }
}

/// The agent of a frame.
#[derive(Debug, Clone)]
pub(super) struct FrameSource {
    pub origin: Arc<Origin>,
    /// The segments of the namespace, `tools:<task>` for each caller.
    pub segments: Arc<[String]>,
}

impl FrameSource {
    pub(super) fn of(origin: &Arc<Origin>) -> Self {
        let segments = origin.namespace.iter().map(|task| format!("tools:{task}")).collect();
        Self {
            origin: Arc::clone(origin),
            segments,
        }
    }

    /// The namespace under which clients look for the result of one of the agent's calls.
    pub(super) fn of_call(&self, call: &str) -> Self {
        let segments = self.segments.iter().cloned().chain([format!("tools:{call}")]).collect();
        Self {
            origin: Arc::clone(&self.origin),
            segments,
        }
    }
}

/// The id of a frame, by which clients recognize a repeated one.
pub(super) enum FrameId {
    /// The position in the log.
    Numbered,
    /// A fixed id.
    Fixed(String),
}

#[derive(Serialize)]
struct Envelope<'a, T> {
    #[serde(rename = "type")]
    kind: &'static str,
    event_id: &'a str,
    seq: i64,
    method: &'static str,
    params: Params<'a, T>,
}

#[derive(Serialize)]
struct Params<'a, T> {
    namespace: &'a [String],
    timestamp: i64,
    data: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    agent_name: &'a str,
    agent_path: &'a [String],
    tool_call_id: Option<&'a str>,
}

/// Collects the frames of one event.
pub(super) struct FrameWriter<'a> {
    filter: &'a StreamFilter,
    /// The number of the event.
    entry: i64,
    at: Timestamp,
    /// The next position for frames that every reader gets, and for those about answers.
    next: i64,
    next_late: i64,
    frames: Vec<V2Frame>,
}

impl<'a> FrameWriter<'a> {
    pub(super) fn new(filter: &'a StreamFilter, entry: i64, at: Timestamp) -> Self {
        Self {
            filter,
            entry,
            at,
            next: FIRST,
            next_late: 0,
            frames: vec![],
        }
    }

    pub(super) fn into_frames(self) -> Vec<V2Frame> {
        self.frames
    }

    /// The number of the event.
    pub(super) fn event(&self) -> i64 {
        self.entry
    }

    /// The size of the frames so far, in bytes.
    pub(super) fn size(&self) -> usize {
        self.frames.iter().map(|frame| frame.data.len()).sum()
    }

    /// Leaves out a frame that other readers get. The numbers of the frames after it stay the same.
    pub(super) fn skip(&mut self) {
        self.next = (self.next + 1).min(FRAMES - 1);
    }

    /// Adds a frame that every reader gets.
    pub(super) fn put<T: Serialize>(
        &mut self,
        channel: Channel,
        source: &FrameSource,
        name: FrameId,
        data: impl FnOnce() -> T,
    ) {
        let at = self.next;
        self.next = (at + 1).min(FRAMES - 1);
        self.emit(
            Draft {
                channel,
                source,
                name,
                at,
                node: None,
                topic: None,
            },
            data,
        );
    }

    /// Adds a frame about a node.
    pub(super) fn put_of_node<T: Serialize>(
        &mut self,
        channel: Channel,
        source: &FrameSource,
        node: &str,
        data: impl FnOnce() -> T,
    ) {
        let at = self.next;
        self.next = (at + 1).min(FRAMES - 1);
        self.emit(
            Draft {
                channel,
                source,
                name: FrameId::Numbered,
                at,
                node: Some(node),
                topic: None,
            },
            data,
        );
    }

    /// Adds a custom event, which may have a name.
    pub(super) fn put_custom<T: Serialize>(
        &mut self,
        source: &FrameSource,
        topic: Option<&str>,
        data: impl FnOnce() -> T,
    ) {
        let at = self.next;
        self.next = (at + 1).min(FRAMES - 1);
        self.emit(
            Draft {
                channel: Channel::Custom,
                source,
                name: FrameId::Numbered,
                at,
                node: None,
                topic,
            },
            data,
        );
    }

    /// Adds a frame about an answer: live, or to replace missed chunks.
    pub(super) fn put_message<T: Serialize>(&mut self, source: &FrameSource, name: String, data: impl FnOnce() -> T) {
        let at = self.next_late;
        self.next_late = (at + 1).min(FIRST - 1);
        let draft = Draft {
            channel: Channel::Messages,
            source,
            name: FrameId::Fixed(name),
            at,
            node: None,
            topic: None,
        };
        self.emit(draft, data);
    }

    fn emit<T: Serialize>(&mut self, draft: Draft<'_>, data: impl FnOnce() -> T) {
        let Draft {
            channel,
            source,
            name,
            at,
            node,
            topic,
        } = draft;
        let seq = self.entry * FRAMES + at;
        let is_wanted = |filter: &Filter| filter.wants(channel, &source.segments, topic);
        let is_visible = channel.shows(source.origin.visibility);
        if !is_visible || seq <= self.filter.since || !self.filter.filters.iter().any(is_wanted) {
            return;
        }
        let name = match name {
            FrameId::Numbered => format!("{}-{}", self.entry, at - FIRST),
            FrameId::Fixed(name) => name,
        };
        let origin = &source.origin;
        let params = Params {
            namespace: &source.segments,
            timestamp: self.at.millis(),
            data: data(),
            node,
            agent_name: &origin.agent,
            agent_path: &origin.path,
            tool_call_id: origin.cause.as_deref(),
        };
        let method = channel.method();
        let envelope = Envelope {
            kind: "event",
            event_id: &name,
            seq,
            method,
            params,
        };
        self.frames.push(V2Frame {
            seq,
            method,
            data: frame::json(&envelope).into(),
        });
    }
}

/// A frame before it is encoded.
struct Draft<'a> {
    channel: Channel,
    source: &'a FrameSource,
    name: FrameId,
    at: i64,
    node: Option<&'a str>,
    topic: Option<&'a str>,
}
