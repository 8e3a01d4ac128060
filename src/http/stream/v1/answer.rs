//! An answer of a model as one reader has received it, and the frames of its chunks.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::partial_json::{self, CompactLength};
use super::trace_records::TracedModelCall;
use crate::domain::event::Chunk;
use crate::domain::message::{Content, Message, Role};
use crate::domain::state::Update;
use crate::http::stream::fold::unsent_part;
use crate::http::stream::frame::{AnswerOffset, CutChunk, Frame, FrameName, json};

mod resume;

/// The data that all chunks of an answer share.
pub(super) struct AnswerHeader {
    /// The id of the message.
    pub message: String,
    /// The model's provider.
    pub provider: String,
    /// The name of frames of the mode `messages-tuple`, if it is requested.
    pub tuple: Option<FrameName>,
    /// True if the mode `messages` is requested.
    pub whole: bool,
    /// The metadata object of the first piece.
    pub metadata: Arc<str>,
    /// The metadata object of all further pieces.
    pub repeated_metadata: Arc<str>,
    /// The records of the mode `events`, if it is requested.
    pub records: Option<TracedModelCall>,
}

impl AnswerHeader {
    /// The metadata of the response before its end.
    fn response_metadata(&self) -> Map<String, Value> {
        Map::from_iter([("model_provider".to_owned(), json!(self.provider))])
    }
}

/// An answer as one reader has received it.
pub(super) struct AnswerBuilder {
    header: AnswerHeader,
    /// The key of the message id.
    key: u32,
    /// The encoded part after the text, for a frame that contains only text.
    after_text: Bytes,
    started: bool,
    ended: bool,
    text: String,
    reasoning: String,
    calls: Vec<PartialCall>,
    response_metadata: Map<String, Value>,
    usage: Option<Value>,
    /// The number of the next chunk.
    next: u32,
    /// True if a chunk was missed. The rest then waits for the complete message.
    has_gap: bool,
    /// True if the chunks so far lie before the position from which the reader resumes, and nothing says yet that the
    /// reader has them.
    pub is_unconfirmed: bool,
}

struct PartialCall {
    index: usize,
    id: Option<String>,
    name: Option<String>,
    args: String,
    /// The length of `args` without blanks between its parts.
    compact_length: CompactLength,
}

#[derive(Serialize)]
struct ChunkJson<'a> {
    content: ContentJson<'a>,
    additional_kwargs: Kwargs<'a>,
    response_metadata: &'a Map<String, Value>,
    #[serde(rename = "type")]
    kind: &'static str,
    name: Option<&'a str>,
    id: &'a str,
    tool_calls: [Value; 0],
    invalid_tool_calls: [Value; 0],
    usage_metadata: Option<&'a Value>,
    tool_call_chunks: &'a [CallChunk<'a>],
    chunk_position: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ContentJson<'a> {
    Text(&'a str),
    Blocks(&'a [Value]),
}

#[derive(Serialize)]
struct Kwargs<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning_content: &'a str,
}

#[derive(Serialize)]
struct CallChunk<'a> {
    name: Option<&'a str>,
    args: &'a str,
    id: Option<&'a str>,
    index: usize,
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
struct WholeJson<'a> {
    content: &'a str,
    additional_kwargs: Kwargs<'a>,
    response_metadata: &'a Map<String, Value>,
    #[serde(rename = "type")]
    kind: &'static str,
    name: Option<&'a str>,
    id: &'a str,
    tool_calls: Vec<Value>,
    invalid_tool_calls: [Value; 0],
    usage_metadata: Option<&'a Value>,
}

/// Closes the pair of chunk and metadata.
fn close(data: &mut BytesMut, metadata: &str) {
    data.reserve(metadata.len() + 2);
    data.put_u8(b',');
    data.put_slice(metadata.as_bytes());
    data.put_u8(b']');
}

const CONTENT: &[u8] = b"[{\"content\":";
/// The length of a chunk up to and including its empty text: `{"content":""`.
const UP_TO_TEXT: usize = CONTENT.len() - 1 + 2;

impl AnswerBuilder {
    pub(super) fn new(header: AnswerHeader) -> Self {
        let mut answer = Self {
            key: AnswerOffset::key_of(header.message.bytes()),
            response_metadata: header.response_metadata(),
            header,
            after_text: Bytes::new(),
            started: false,
            ended: false,
            text: String::new(),
            reasoning: String::new(),
            calls: vec![],
            usage: None,
            next: 0,
            has_gap: false,
            is_unconfirmed: false,
        };
        if answer.header.tuple.is_some() {
            let empty = json(&answer.chunk());
            let mut after = BytesMut::from(&empty[UP_TO_TEXT..]);
            close(&mut after, &answer.header.repeated_metadata);
            answer.after_text = after.freeze();
        }
        answer
    }

    /// Adds the chunk of number `ordinal`, and sends it unless an earlier one was missed.
    pub(super) fn take(&mut self, ordinal: u32, chunk: &Chunk, out: &mut Vec<Frame>) {
        if *chunk == Chunk::Begin && !self.started {
            // The pieces of a beginning that were joined have the last of their numbers.
            self.next = ordinal;
        }
        self.has_gap |= ordinal != self.next;
        if !self.has_gap {
            self.next += 1;
            self.push_chunk(chunk, out);
        }
    }

    /// The key of the message id.
    pub(super) fn key(&self) -> u32 {
        self.key
    }

    /// The length that was sent; 0 if nothing was.
    pub(super) fn offset(&self) -> u32 {
        self.progress().map_or(0, |progress| progress.offset)
    }

    /// The part that was sent; `None` if nothing was.
    pub(super) fn progress(&self) -> Option<AnswerOffset> {
        let calls: usize = self.calls.iter().map(|call| 1 + call.compact_length.length()).sum();
        let offset = u32::try_from(1 + self.reasoning.len() + self.text.len() + calls).unwrap_or(AnswerOffset::END - 1);
        let offset = if self.ended { AnswerOffset::END } else { offset };
        let sent = AnswerOffset {
            answer: self.key,
            offset,
            cut: None,
        };
        self.started.then_some(sent)
    }

    /// Sends the missing part of the message.
    pub(super) fn complete(&mut self, message: &Message, out: &mut Vec<Frame>) {
        if !self.started {
            self.push_chunk(&Chunk::Begin, out);
        }
        if let Some(whole) = message
            .additional_kwargs
            .get("reasoning_content")
            .and_then(Value::as_str)
            && let Some(rest) = unsent_part(&self.reasoning, whole)
        {
            self.push_chunk(&Chunk::Reasoning(rest.to_owned()), out);
        }
        self.complete_text(message, out);
        self.complete_calls(message, out);
    }

    /// Sends the end of the message, unless it was sent.
    pub(super) fn end_with(&mut self, message: &Message, out: &mut Vec<Frame>) {
        if let (Role::Ai { usage_metadata, .. }, false) = (&message.role, self.ended) {
            let response_metadata = message.response_metadata.clone();
            self.push_chunk(
                &Chunk::End {
                    response_metadata,
                    usage: usage_metadata.clone(),
                },
                out,
            );
        }
    }

    fn complete_text(&mut self, message: &Message, out: &mut Vec<Frame>) {
        self.push_text(message, &message.content.text(), out);
    }

    /// Sends the text up to `upto`. Blocks are sent as they are if nothing of them was sent before.
    fn push_text(&mut self, message: &Message, upto: &str, out: &mut Vec<Frame>) {
        match &message.content {
            Content::Blocks(blocks) if self.text.is_empty() && !blocks.is_empty() && message.content.text() == upto => {
                let first = out.len();
                let from = self.offset();
                upto.clone_into(&mut self.text);
                self.push_tuple(
                    &ChunkJson {
                        content: ContentJson::Blocks(blocks),
                        ..self.chunk()
                    },
                    out,
                );
                self.push_whole(out);
                self.mark(&mut out[first..], from);
            }
            Content::Text(_) | Content::Blocks(_) => {
                if let Some(rest) = unsent_part(&self.text, upto) {
                    self.push_chunk(&Chunk::Text(rest.to_owned()), out);
                }
            }
        }
    }

    fn complete_calls(&mut self, message: &Message, out: &mut Vec<Frame>) {
        for call in message.tool_calls() {
            let whole = String::from_utf8(json(&call.args)).unwrap_or_default();
            let sent = self.args_of(&call.id);
            if let Some(rest) = partial_json::remainder(sent.unwrap_or_default(), &whole) {
                let sent = sent.is_some();
                let rest = rest.to_owned();
                self.complete_call(&call.id, &call.name, sent, rest, out);
            }
        }
        for call in message.invalid_tool_calls() {
            let id = call.id.as_deref().unwrap_or_default();
            let sent = self.args_of(id);
            let whole = call.args.as_deref().unwrap_or_default();
            if let Some(rest) = whole.strip_prefix(sent.unwrap_or_default()) {
                let sent = sent.is_some();
                let rest = rest.to_owned();
                self.complete_call(id, call.name.as_deref().unwrap_or_default(), sent, rest, out);
            }
        }
    }

    fn args_of(&self, id: &str) -> Option<&str> {
        self.calls
            .iter()
            .find(|call| call.id.as_deref() == Some(id))
            .map(|call| call.args.as_str())
    }

    fn complete_call(&mut self, id: &str, name: &str, sent: bool, args: String, out: &mut Vec<Frame>) {
        let known = self
            .calls
            .iter()
            .find(|call| call.id.as_deref() == Some(id))
            .map(|call| call.index);
        let free = self.calls.iter().map(|call| call.index + 1).max().unwrap_or(0);
        let index = known.unwrap_or(free);
        if !sent {
            self.push_chunk(
                &Chunk::Call {
                    index,
                    id: Some(id.to_owned()),
                    name: Some(name.to_owned()),
                    args,
                },
                out,
            );
        } else if !args.is_empty() {
            self.push_chunk(
                &Chunk::Call {
                    index,
                    id: None,
                    name: None,
                    args,
                },
                out,
            );
        }
    }

    /// Records the end of the message with the writes of its step.
    pub(super) fn end_records(&self, message: &Message, update: &Update, out: &mut Vec<Frame>) {
        if let Some(records) = &self.header.records {
            records.end(message, update, out);
        }
    }

    /// Adds a chunk and sends it.
    fn push_chunk(&mut self, chunk: &Chunk, out: &mut Vec<Frame>) {
        let first = out.len();
        let from = self.offset();
        match chunk {
            Chunk::Begin => {
                self.started = true;
                if let Some(records) = &self.header.records {
                    records.begin(out);
                }
                self.push_tuple_with(&self.chunk(), &self.header.metadata, out);
                self.push_metadata(out);
            }
            Chunk::Text(text) => {
                self.text.push_str(text);
                self.push_text_tuple(text, out);
            }
            Chunk::Reasoning(text) => {
                self.reasoning.push_str(text);
                let additional_kwargs = Kwargs {
                    reasoning_content: text,
                };
                self.push_tuple(
                    &ChunkJson {
                        additional_kwargs,
                        ..self.chunk()
                    },
                    out,
                );
            }
            Chunk::Call { index, id, name, args } => {
                self.take_call(*index, id.as_ref(), name.as_ref(), args);
                let name = name.as_deref();
                let id = id.as_deref();
                let chunks = [CallChunk {
                    name,
                    args,
                    id,
                    index: *index,
                    kind: "tool_call_chunk",
                }];
                self.push_tuple(
                    &ChunkJson {
                        tool_call_chunks: &chunks,
                        ..self.chunk()
                    },
                    out,
                );
            }
            Chunk::End {
                response_metadata,
                usage,
            } => self.end(response_metadata, usage.as_ref(), out),
            Chunk::Void => return,
        }
        self.push_whole(out);
        self.mark(&mut out[first..], from);
    }

    /// Sets the progress of the frames of a chunk that was added to the answer at the length `from`.
    fn mark(&self, frames: &mut [Frame], from: u32) {
        let whole = self.progress();
        let count = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        for (sent, frame) in (1..).zip(frames) {
            let cut = (sent < count).then_some(CutChunk { from, frames: sent });
            frame.progress = whole.map(|progress| AnswerOffset { cut, ..progress });
        }
    }

    fn take_call(&mut self, index: usize, id: Option<&String>, name: Option<&String>, args: &str) {
        let at = self
            .calls
            .iter()
            .position(|call| call.index == index)
            .unwrap_or_else(|| {
                self.calls.push(PartialCall {
                    index,
                    id: None,
                    name: None,
                    args: String::new(),
                    compact_length: CompactLength::default(),
                });
                self.calls.len() - 1
            });
        let call = &mut self.calls[at];
        call.id = id.cloned().or(call.id.take());
        call.name = name.cloned().or(call.name.take());
        call.args.push_str(args);
        call.compact_length.take(args);
    }

    fn end(&mut self, response_metadata: &Map<String, Value>, usage: Option<&Value>, out: &mut Vec<Frame>) {
        self.ended = true;
        self.usage = usage.cloned();
        for (name, value) in response_metadata {
            self.response_metadata.insert(name.clone(), value.clone());
        }
        self.push_tuple(&self.chunk(), out);
        let nothing = Map::new();
        if usage.is_some() {
            let chunk = ChunkJson {
                response_metadata: &nothing,
                usage_metadata: usage,
                ..self.chunk()
            };
            self.push_tuple(&chunk, out);
        }
        let last = ChunkJson {
            response_metadata: &nothing,
            chunk_position: Some("last"),
            ..self.chunk()
        };
        self.push_tuple(&last, out);
    }

    /// An empty chunk.
    fn chunk(&self) -> ChunkJson<'_> {
        ChunkJson {
            content: ContentJson::Text(""),
            additional_kwargs: Kwargs { reasoning_content: "" },
            response_metadata: &self.response_metadata,
            kind: "AIMessageChunk",
            name: None,
            id: &self.header.message,
            tool_calls: [],
            invalid_tool_calls: [],
            usage_metadata: None,
            tool_call_chunks: &[],
            chunk_position: None,
        }
    }

    fn push_tuple(&self, chunk: &ChunkJson<'_>, out: &mut Vec<Frame>) {
        self.push_tuple_with(chunk, &self.header.repeated_metadata, out);
    }

    fn push_tuple_with(&self, chunk: &ChunkJson<'_>, metadata: &str, out: &mut Vec<Frame>) {
        if let Some(name) = &self.header.tuple {
            let mut data = BytesMut::with_capacity(512 + metadata.len());
            data.put_u8(b'[');
            data.put_slice(&json(chunk));
            close(&mut data, metadata);
            out.push(Frame::new(name.clone(), data.freeze()));
        }
        if let Some(records) = &self.header.records {
            out.push(records.stream_chunk(chunk));
        }
    }

    /// Sends a chunk with text only, for which everything else is already encoded.
    fn push_text_tuple(&self, text: &str, out: &mut Vec<Frame>) {
        if self.header.records.is_some() {
            return self.push_tuple(
                &ChunkJson {
                    content: ContentJson::Text(text),
                    ..self.chunk()
                },
                out,
            );
        }
        if let Some(name) = &self.header.tuple {
            let mut data = Vec::with_capacity(CONTENT.len() + text.len() + 16 + self.after_text.len());
            data.extend_from_slice(CONTENT);
            if let Err(error) = serde_json::to_writer(&mut data, text) {
                tracing::error!(%error, "a text could not be encoded");
                return;
            }
            data.extend_from_slice(&self.after_text);
            out.push(Frame::new(name.clone(), data));
        }
    }

    fn push_metadata(&self, out: &mut Vec<Frame>) {
        if self.header.whole {
            out.push(metadata_frame(&self.header.message, &self.header.metadata));
        }
    }

    /// The mode `messages`: the answer so far.
    fn push_whole(&self, out: &mut Vec<Frame>) {
        if !self.header.whole {
            return;
        }
        let tool_calls = self.calls.iter().filter(|call| call.name.is_some()).map(|call| {
            let args = partial_json::arguments(&call.args);
            json!({"name": call.name, "args": args, "id": call.id, "type": "tool_call"})
        });
        let whole = WholeJson {
            content: &self.text,
            additional_kwargs: Kwargs {
                reasoning_content: &self.reasoning,
            },
            response_metadata: &self.response_metadata,
            kind: "ai",
            name: None,
            id: &self.header.message,
            tool_calls: tool_calls.collect(),
            invalid_tool_calls: [],
            usage_metadata: self.usage.as_ref(),
        };
        out.push(Frame::of("messages/partial", &[whole]));
    }
}

/// `messages/metadata`: the source of the message `id`.
pub(super) fn metadata_frame(id: &str, metadata: &str) -> Frame {
    let mut data = b"{".to_vec();
    data.extend_from_slice(&json(&id));
    data.extend_from_slice(b":{\"metadata\":");
    data.extend_from_slice(metadata.as_bytes());
    data.extend_from_slice(b"}}");
    Frame::new("messages/metadata", data)
}
