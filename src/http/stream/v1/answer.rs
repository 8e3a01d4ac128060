//! One answer of a model as one reader has seen it so far, and the frames that its pieces become.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::partial::{self, CompactLength};
use super::records::TracedModelCall;
use crate::domain::event::Chunk;
use crate::domain::message::{Content, Message, Role};
use crate::domain::state::Update;
use crate::http::stream::frame::{AnswerOffset, Frame, FrameName, json};

/// Who speaks, encoded once for all pieces.
pub(super) struct AnswerHeader {
    /// The id of the message.
    pub message: String,
    /// The model's provider.
    pub provider: String,
    /// The name of frames of the mode `messages-tuple`, when that is wanted.
    pub tuple: Option<FrameName>,
    /// Whether the mode `messages` is wanted.
    pub whole: bool,
    /// The metadata object.
    pub metadata: Arc<str>,
    /// How the mode `events` records it, when that is wanted.
    pub records: Option<TracedModelCall>,
}

/// An answer as far as one reader has seen it.
pub(super) struct AnswerBuilder {
    speaker: AnswerHeader,
    /// What follows the text in a frame that brings nothing else.
    after_text: Bytes,
    begun: bool,
    ended: bool,
    text: String,
    reasoning: String,
    calls: Vec<CallSoFar>,
    response_metadata: Map<String, Value>,
    usage: Option<Value>,
    /// The number of the piece that has to come next.
    next: u32,
    /// Whether a piece was missed; the rest waits for the whole message then.
    broken: bool,
}

struct CallSoFar {
    index: usize,
    id: Option<String>,
    name: Option<String>,
    args: String,
    /// How much of `args` it is without the blanks between its parts.
    dense: CompactLength,
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

const CONTENT: &[u8] = b"[{\"content\":";
/// The length of the part of a chunk up to and with its empty text: `{"content":""`.
const UP_TO_TEXT: usize = CONTENT.len() - 1 + 2;

impl AnswerBuilder {
    pub(super) fn new(speaker: AnswerHeader) -> Self {
        let response_metadata = Map::from_iter([("model_provider".to_owned(), json!(speaker.provider))]);
        let mut answer = Self {
            speaker,
            after_text: Bytes::new(),
            begun: false,
            ended: false,
            text: String::new(),
            reasoning: String::new(),
            calls: vec![],
            response_metadata,
            usage: None,
            next: 0,
            broken: false,
        };
        if answer.speaker.tuple.is_some() {
            let empty = json(&answer.chunk());
            let mut after = BytesMut::from(&empty[UP_TO_TEXT..]);
            answer.close(&mut after);
            answer.after_text = after.freeze();
        }
        answer
    }

    /// Takes the piece of number `ordinal`; shows it unless a piece before it was missed.
    pub(super) fn take(&mut self, ordinal: u32, chunk: &Chunk, out: &mut Vec<Frame>) {
        self.broken |= ordinal != self.next;
        if !self.broken {
            self.next += 1;
            self.say(chunk, out);
        }
    }

    /// Stands for the id of the message.
    pub(super) fn key(&self) -> u32 {
        // FNV-1a: the same in every process, since clients bring it back.
        self.speaker.message.bytes().fold(0x811c_9dc5, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
    }

    /// How much was said; none if that is nothing yet.
    pub(super) fn said(&self) -> Option<AnswerOffset> {
        let calls: usize = self.calls.iter().map(|call| 1 + call.dense.length()).sum();
        let offset = u32::try_from(1 + self.reasoning.len() + self.text.len() + calls).unwrap_or(AnswerOffset::END - 1);
        let offset = if self.ended { AnswerOffset::END } else { offset };
        self.begun.then(|| AnswerOffset {
            answer: self.key(),
            offset,
        })
    }

    /// The reader heard `much` of the finished message when he was here before, which may be more than he heard now.
    pub(super) fn recall(&mut self, message: &Message, offset: u32) {
        if offset == 0 || self.said().is_some_and(|said| said.offset >= offset) {
            return;
        }
        let mut left = usize::try_from(offset).unwrap_or(usize::MAX).saturating_sub(1);
        let mut heard = |whole: &str| {
            let end = (0..=left.min(whole.len()))
                .rev()
                .find(|end| whole.is_char_boundary(*end))
                .unwrap_or(0);
            left -= end;
            whole[..end].to_owned()
        };
        self.begun = true;
        let reasoning = message
            .additional_kwargs
            .get("reasoning_content")
            .and_then(Value::as_str);
        self.reasoning = heard(reasoning.unwrap_or_default());
        self.text = heard(&message.content.text());
        self.calls.clear();
        let readable = message.tool_calls().iter().map(|call| {
            (
                call.id.clone(),
                call.name.clone(),
                String::from_utf8(json(&call.args)).unwrap_or_default(),
            )
        });
        let unreadable = message.invalid_tool_calls().iter().map(|call| {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            (text(&call.id), text(&call.name), text(&call.args))
        });
        for (index, (id, name, args)) in readable.chain(unreadable).enumerate() {
            // Each call counts one more than its arguments.
            if heard("+").is_empty() {
                break;
            }
            let args = heard(&args);
            self.take_call(index, Some(&id), Some(&name), &args);
        }
        self.ended = offset == AnswerOffset::END;
    }

    /// Says what is still missing of what the message says.
    pub(super) fn complete(&mut self, message: &Message, out: &mut Vec<Frame>) {
        if !self.begun {
            self.say(&Chunk::Begin, out);
        }
        if let Some(whole) = message
            .additional_kwargs
            .get("reasoning_content")
            .and_then(Value::as_str)
            && let Some(rest) = rest_of(&self.reasoning, whole)
        {
            self.say(&Chunk::Reasoning(rest.to_owned()), out);
        }
        self.complete_text(message, out);
        self.complete_calls(message, out);
    }

    /// Says how the finished message ended, unless that was said.
    pub(super) fn end_with(&mut self, message: &Message, out: &mut Vec<Frame>) {
        if let (Role::Ai { usage_metadata, .. }, false) = (&message.role, self.ended) {
            let response_metadata = message.response_metadata.clone();
            self.say(
                &Chunk::End {
                    response_metadata,
                    usage: usage_metadata.clone(),
                },
                out,
            );
        }
    }

    fn complete_text(&mut self, message: &Message, out: &mut Vec<Frame>) {
        match &message.content {
            Content::Blocks(blocks) if self.text.is_empty() && !blocks.is_empty() => {
                self.text = message.content.text();
                self.tuple(
                    &ChunkJson {
                        content: ContentJson::Blocks(blocks),
                        ..self.chunk()
                    },
                    out,
                );
                self.show_whole(out);
            }
            Content::Text(_) | Content::Blocks(_) => {
                if let Some(rest) = rest_of(&self.text, &message.content.text()) {
                    self.say(&Chunk::Text(rest.to_owned()), out);
                }
            }
        }
    }

    fn complete_calls(&mut self, message: &Message, out: &mut Vec<Frame>) {
        for call in message.tool_calls() {
            let whole = String::from_utf8(json(&call.args)).unwrap_or_default();
            let said = self.args_of(&call.id);
            if let Some(rest) = partial::remainder(said.unwrap_or_default(), &whole) {
                let said = said.is_some();
                let rest = rest.to_owned();
                self.complete_call(&call.id, &call.name, said, rest, out);
            }
        }
        for call in message.invalid_tool_calls() {
            let id = call.id.as_deref().unwrap_or_default();
            let said = self.args_of(id);
            let whole = call.args.as_deref().unwrap_or_default();
            if let Some(rest) = whole.strip_prefix(said.unwrap_or_default()) {
                let said = said.is_some();
                let rest = rest.to_owned();
                self.complete_call(id, call.name.as_deref().unwrap_or_default(), said, rest, out);
            }
        }
    }

    fn args_of(&self, id: &str) -> Option<&str> {
        self.calls
            .iter()
            .find(|call| call.id.as_deref() == Some(id))
            .map(|call| call.args.as_str())
    }

    fn complete_call(&mut self, id: &str, name: &str, said: bool, args: String, out: &mut Vec<Frame>) {
        let known = self
            .calls
            .iter()
            .find(|call| call.id.as_deref() == Some(id))
            .map(|call| call.index);
        let free = self.calls.iter().map(|call| call.index + 1).max().unwrap_or(0);
        let index = known.unwrap_or(free);
        if !said {
            self.say(
                &Chunk::Call {
                    index,
                    id: Some(id.to_owned()),
                    name: Some(name.to_owned()),
                    args,
                },
                out,
            );
        } else if !args.is_empty() {
            self.say(
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

    /// Records that the message is complete, with what the step `wrote`.
    pub(super) fn close_records(&self, message: &Message, wrote: &Update, out: &mut Vec<Frame>) {
        if let Some(records) = &self.speaker.records {
            records.end(message, wrote, out);
        }
    }

    /// Takes in a piece and shows it.
    fn say(&mut self, chunk: &Chunk, out: &mut Vec<Frame>) {
        let first = out.len();
        let before = AnswerOffset {
            answer: self.key(),
            offset: self.said().map_or(0, |said| said.offset),
        };
        match chunk {
            Chunk::Begin => {
                self.begun = true;
                if let Some(records) = &self.speaker.records {
                    records.begin(out);
                }
                self.tuple_text("", out);
                self.show_metadata(out);
            }
            Chunk::Text(text) => {
                self.text.push_str(text);
                self.tuple_text(text, out);
            }
            Chunk::Reasoning(text) => {
                self.reasoning.push_str(text);
                let additional_kwargs = Kwargs {
                    reasoning_content: text,
                };
                self.tuple(
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
                self.tuple(
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
        self.show_whole(out);
        // Only with the last of several frames all of the piece is said.
        let after = self.said();
        let mut frames = out[first..].iter_mut();
        if let Some(last) = frames.next_back() {
            last.said = after;
        }
        frames.for_each(|frame| frame.said = Some(before));
    }

    fn take_call(&mut self, index: usize, id: Option<&String>, name: Option<&String>, args: &str) {
        let at = self
            .calls
            .iter()
            .position(|call| call.index == index)
            .unwrap_or_else(|| {
                self.calls.push(CallSoFar {
                    index,
                    id: None,
                    name: None,
                    args: String::new(),
                    dense: CompactLength::default(),
                });
                self.calls.len() - 1
            });
        let call = &mut self.calls[at];
        call.id = id.cloned().or(call.id.take());
        call.name = name.cloned().or(call.name.take());
        call.args.push_str(args);
        call.dense.take(args);
    }

    fn end(&mut self, response_metadata: &Map<String, Value>, usage: Option<&Value>, out: &mut Vec<Frame>) {
        self.ended = true;
        self.usage = usage.cloned();
        for (name, value) in response_metadata {
            self.response_metadata.insert(name.clone(), value.clone());
        }
        self.tuple(&self.chunk(), out);
        let nothing = Map::new();
        if usage.is_some() {
            let chunk = ChunkJson {
                response_metadata: &nothing,
                usage_metadata: usage,
                ..self.chunk()
            };
            self.tuple(&chunk, out);
        }
        let last = ChunkJson {
            response_metadata: &nothing,
            chunk_position: Some("last"),
            ..self.chunk()
        };
        self.tuple(&last, out);
    }

    /// A chunk that says nothing yet.
    fn chunk(&self) -> ChunkJson<'_> {
        ChunkJson {
            content: ContentJson::Text(""),
            additional_kwargs: Kwargs { reasoning_content: "" },
            response_metadata: &self.response_metadata,
            kind: "AIMessageChunk",
            name: None,
            id: &self.speaker.message,
            tool_calls: [],
            invalid_tool_calls: [],
            usage_metadata: None,
            tool_call_chunks: &[],
            chunk_position: None,
        }
    }

    /// Ends the pair of chunk and metadata.
    fn close(&self, data: &mut BytesMut) {
        data.reserve(self.speaker.metadata.len() + 2);
        data.put_u8(b',');
        data.put_slice(self.speaker.metadata.as_bytes());
        data.put_u8(b']');
    }

    fn tuple(&self, chunk: &ChunkJson<'_>, out: &mut Vec<Frame>) {
        if let Some(name) = &self.speaker.tuple {
            let mut data = BytesMut::with_capacity(512 + self.speaker.metadata.len());
            data.put_u8(b'[');
            data.put_slice(&json(chunk));
            self.close(&mut data);
            out.push(Frame::new(name.clone(), data.freeze()));
        }
        if let Some(records) = &self.speaker.records {
            out.push(records.say(chunk));
        }
    }

    /// The same for a chunk that brings text only: all but the text is there already.
    fn tuple_text(&self, text: &str, out: &mut Vec<Frame>) {
        if self.speaker.records.is_some() {
            return self.tuple(
                &ChunkJson {
                    content: ContentJson::Text(text),
                    ..self.chunk()
                },
                out,
            );
        }
        if let Some(name) = &self.speaker.tuple {
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

    fn show_metadata(&self, out: &mut Vec<Frame>) {
        if self.speaker.whole {
            out.push(metadata_frame(&self.speaker.message, &self.speaker.metadata));
        }
    }

    /// The mode `messages`: everything said so far.
    fn show_whole(&self, out: &mut Vec<Frame>) {
        if !self.speaker.whole {
            return;
        }
        let tool_calls = self.calls.iter().filter(|call| call.name.is_some()).map(|call| {
            let args = partial::arguments(&call.args);
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
            id: &self.speaker.message,
            tool_calls: tool_calls.collect(),
            invalid_tool_calls: [],
            usage_metadata: self.usage.as_ref(),
        };
        out.push(Frame::of("messages/partial", &[whole]));
    }
}

/// `messages/metadata`: where the message `id` comes from.
pub(super) fn metadata_frame(id: &str, metadata: &str) -> Frame {
    let mut data = b"{".to_vec();
    data.extend_from_slice(&json(&id));
    data.extend_from_slice(b":{\"metadata\":");
    data.extend_from_slice(metadata.as_bytes());
    data.extend_from_slice(b"}}");
    Frame::new("messages/metadata", data)
}

/// What of `whole` comes after `said`; none if that is nothing, or if `said` is no beginning of it.
fn rest_of<'a>(said: &str, whole: &'a str) -> Option<&'a str> {
    whole.strip_prefix(said).filter(|rest| !rest.is_empty())
}
