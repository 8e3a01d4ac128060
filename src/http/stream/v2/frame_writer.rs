//! Where frames come out: numbered, named, and only those that the reader wants.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;

use super::filter::{Channel, Filter};
use crate::domain::event::Origin;
use crate::domain::time::Timestamp;
use crate::http::stream::frame;

/// How many frames one entry of the log can become: the number of a frame is that of its entry times this, plus its place
/// among the frames of the entry. 2^16 leaves 2^37 entries below the largest whole number that JavaScript tells apart.
pub const FRAMES: i64 = 1 << 16;
/// The place of the first frame that every reader gets. The places before are for those that make up for pieces of an
/// answer: who was there in time does not get them, and yet the others have the same numbers for everybody.
const FIRST: i64 = FRAMES / 2;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct V2Frame {
    /// Its number: strictly increasing within the thread.
    pub seq: i64,
    /// What it is.
    pub method: &'static str,
    /// All of it, as JSON.
    pub data: Bytes,
}

impl V2Frame {
    /// Appends the frame's bytes to `buffer`, in the form of server-sent events.
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

/// What a reader wants.
#[derive(Debug, Clone, Default)]
pub struct StreamFilter {
    /// Frames that one of these wants.
    pub filters: Vec<Filter>,
    /// Frames with a higher number.
    pub since: i64,
}

impl StreamFilter {
    /// Whether a channel is wanted of anybody.
    pub fn has(&self, channel: Channel) -> bool {
        self.filters.iter().any(|filter| filter.has(channel))
    }
}

/// An agent as frames name it.
#[derive(Debug, Clone)]
pub(super) struct FrameSource {
    pub origin: Arc<Origin>,
    /// `tools:<task>` for each caller.
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

    /// Where clients look for the result of one of the agent's calls.
    pub(super) fn of_call(&self, call: &str) -> Self {
        let segments = self.segments.iter().cloned().chain([format!("tools:{call}")]).collect();
        Self {
            origin: Arc::clone(&self.origin),
            segments,
        }
    }
}

/// What a frame is called, so that clients which meet it twice know it again.
pub(super) enum FrameId {
    /// By its place in the log.
    Numbered,
    /// By this.
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

/// The frames of one event.
pub(super) struct FrameWriter<'a> {
    filter: &'a StreamFilter,
    /// The number of the event.
    entry: i64,
    at: Timestamp,
    /// The place of the next frame that every reader gets, and of the next that only some do.
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

    /// A frame that every reader gets.
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

    /// The same, of a node.
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

    /// A custom event, perhaps under a name of its own.
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

    /// A frame about an answer of a model: live, or making up for what this reader has not heard.
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

/// A frame that is about to be made.
struct Draft<'a> {
    channel: Channel,
    source: &'a FrameSource,
    name: FrameId,
    at: i64,
    node: Option<&'a str>,
    topic: Option<&'a str>,
}
