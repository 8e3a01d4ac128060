//! The channel `messages`: messages of models, block by block.
//!
//! Chunks of an answer are volatile: a reader that joins late, reads slowly or replays misses some. When the finished
//! message arrives, the missing part is sent. The id of a frame consists of the message's id and its content, so a
//! client that receives a message twice, live and replayed, recognizes every frame: the whole text of a replay has the
//! id of the first chunk. An interrupted answer is completed in the same way, and its blocks are finished; only the
//! message has no end.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::frame_writer::{FrameSource, FrameWriter};
use super::values::{reasoning, without_id};
use crate::domain::event::{Chunk, Delta};
use crate::domain::message::{Content, Message, Role};
use crate::http::stream::fold::unsent_part;

/// The messages of a model that were sent to one reader.
#[derive(Default)]
pub(super) struct MessageStream {
    current: Option<Answer>,
    /// The ids of messages that were sent completely.
    finished: HashSet<String>,
}

/// An answer as one reader has received it.
struct Answer {
    id: String,
    blocks: Vec<Block>,
    started: bool,
    ended: bool,
    /// The number of the next chunk.
    next: u32,
    /// True if a chunk was missed. The rest then waits for the complete message.
    has_gap: bool,
}

struct Block {
    kind: Kind,
    sent: String,
    /// The number of chunks.
    pieces: u32,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Reasoning,
    Text,
    Call {
        index: usize,
        id: String,
        name: String,
    },
    /// Any other block, sent as a whole.
    Whole(Value),
}

#[derive(Serialize)]
struct Piece<'a> {
    event: &'static str,
    index: usize,
    delta: DeltaContent<'a>,
    /// The same delta in the older form, for older clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<DeltaContent<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum DeltaContent<'a> {
    #[serde(rename = "text-delta")]
    Text { text: &'a str },
    #[serde(rename = "reasoning-delta")]
    Reasoning { reasoning: &'a str },
    #[serde(rename = "tool-call-delta")]
    Args { args: &'a str },
    #[serde(rename = "tool_call_chunk")]
    Chunk { args: &'a str },
}

impl MessageStream {
    /// Adds a chunk of an answer.
    pub(super) fn delta(&mut self, source: &FrameSource, delta: &Delta, out: &mut FrameWriter<'_>) {
        let head = &delta.answer;
        if self.finished.contains(&head.message) {
            return;
        }
        if delta.chunk == Chunk::Begin && !self.is_about(&head.message) {
            self.break_off(source, out);
            let mut answer = Answer::new(&head.message);
            answer.begin(source, &head.provider, out);
            answer.next = delta.ordinal + 1;
            self.current = Some(answer);
            return;
        }
        if !self.is_about(&head.message) {
            return;
        }
        if delta.chunk == Chunk::Void {
            return self.break_off(source, out);
        }
        if let Some(answer) = &mut self.current {
            answer.take(source, delta, out);
        }
    }

    fn is_about(&self, message: &str) -> bool {
        self.current.as_ref().is_some_and(|answer| answer.id == message)
    }

    /// Ends the current answer as interrupted, unless it is finished.
    fn break_off(&mut self, source: &FrameSource, out: &mut FrameWriter<'_>) {
        let Some(answer) = self.current.take().filter(|answer| answer.started) else {
            return;
        };
        if !answer.ended {
            let name = format!("{}:error", answer.id);
            out.put_message(
                source,
                name,
                || json!({"event": "error", "message": "The answer broke off."}),
            );
        }
        self.finished.insert(answer.id);
    }

    /// Sends the missing part of an interrupted message. It has no end, and is an error if the model failed.
    pub(super) fn broken_off(
        &mut self,
        source: &FrameSource,
        message: &Message,
        failed: bool,
        out: &mut FrameWriter<'_>,
    ) {
        let id = message.id.as_deref().unwrap_or_default();
        if self.finished.contains(id) {
            return;
        }
        if !self.is_about(id) {
            self.break_off(source, out);
        }
        let answer = self.current.get_or_insert_with(|| Answer::new(id));
        let finals = answer.catch_up(source, message, out);
        if failed {
            return self.break_off(source, out);
        }
        // A client that has the beginning of a block ignores its replay, so the end of the block contains all of it.
        for (index, content) in finals {
            answer.close(source, index, &content, out);
        }
    }

    /// Sends the missing part of a finished message.
    pub(super) fn complete(&mut self, source: &FrameSource, message: &Message, out: &mut FrameWriter<'_>) {
        let id = message.id.as_deref().unwrap_or_default();
        if !message.is_ai() || self.finished.contains(id) {
            return;
        }
        if !self.is_about(id) {
            self.break_off(source, out);
        }
        let mut answer = self.current.take().unwrap_or_else(|| Answer::new(id));
        answer.complete(source, message, out);
        self.finished.insert(id.to_owned());
    }
}

impl Answer {
    fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            blocks: vec![],
            started: false,
            ended: false,
            next: 0,
            has_gap: false,
        }
    }

    fn begin(&mut self, source: &FrameSource, provider: &str, out: &mut FrameWriter<'_>) {
        self.started = true;
        out.put_message(
            source,
            format!("{}:start", self.id),
            || json!({"event": "message-start", "role": "ai", "id": self.id, "metadata": {"provider": provider}}),
        );
    }

    fn take(&mut self, source: &FrameSource, delta: &Delta, out: &mut FrameWriter<'_>) {
        self.has_gap |= delta.ordinal != self.next;
        if self.has_gap || self.ended {
            return;
        }
        self.next += 1;
        match &delta.chunk {
            Chunk::Text(text) => self.push_text(source, &Kind::Text, text, out),
            Chunk::Reasoning(text) => self.push_text(source, &Kind::Reasoning, text, out),
            Chunk::Call { index, id, name, args } => {
                let known = self
                    .blocks
                    .iter()
                    .find(|block| matches!(&block.kind, Kind::Call { index: i, .. } if i == index));
                let new = || Kind::Call {
                    index: *index,
                    id: id.clone().unwrap_or_default(),
                    name: name.clone().unwrap_or_default(),
                };
                let kind = known.map_or_else(new, |block| block.kind.clone());
                self.push_text(source, &kind, args, out);
            }
            Chunk::End {
                response_metadata,
                usage,
            } => {
                // Incomplete arguments are left to the finished message.
                if let Some(contents) = self.blocks.iter().map(Block::content).collect::<Option<Vec<_>>>() {
                    self.end(source, &contents, response_metadata, usage.as_ref(), out);
                }
            }
            Chunk::Begin | Chunk::Void => {}
        }
    }

    /// Adds text to a block, which is created if it is new.
    fn push_text(&mut self, source: &FrameSource, kind: &Kind, more: &str, out: &mut FrameWriter<'_>) {
        let index = self.open(source, kind, out);
        if more.is_empty() {
            return;
        }
        let block = &mut self.blocks[index];
        let name = format!("{}:{}:{}", self.id, kind.word(), block.pieces);
        block.pieces += 1;
        block.sent.push_str(more);
        out.put_message(source, name, || {
            let (delta, content) = match kind {
                Kind::Reasoning => (DeltaContent::Reasoning { reasoning: more }, None),
                Kind::Text | Kind::Whole(_) => (DeltaContent::Text { text: more }, None),
                Kind::Call { .. } => (
                    DeltaContent::Args { args: more },
                    Some(DeltaContent::Chunk { args: more }),
                ),
            };
            Piece {
                event: "content-block-delta",
                index,
                delta,
                content,
            }
        });
    }

    /// The index of a block, which is created if it is new.
    fn open(&mut self, source: &FrameSource, kind: &Kind, out: &mut FrameWriter<'_>) -> usize {
        if let Some(known) = self.blocks.iter().position(|block| block.kind == *kind) {
            return known;
        }
        let index = self.blocks.len();
        self.blocks.push(Block {
            kind: kind.clone(),
            sent: String::new(),
            pieces: 0,
        });
        out.put_message(
            source,
            format!("{}:{}:start", self.id, kind.word()),
            || json!({"event": "content-block-start", "index": index, "content": kind.empty()}),
        );
        index
    }

    fn end(
        &mut self,
        source: &FrameSource,
        contents: &[Value],
        metadata: &Map<String, Value>,
        usage: Option<&Value>,
        out: &mut FrameWriter<'_>,
    ) {
        self.ended = true;
        for (index, content) in contents.iter().enumerate() {
            self.close(source, index, content, out);
        }
        out.put_message(source, format!("{}:finish", self.id), || {
            let mut finish = json!({"event": "message-finish", "metadata": without_id(metadata)});
            if let Some(Value::Object(usage)) = usage {
                let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
                let finished = usage.iter().filter(|(_, value)| !is_empty(value));
                finish["usage"] = finished
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect::<Map<_, _>>()
                    .into();
            }
            finish
        });
    }

    /// Sends the end of a block with its complete content.
    fn close(&self, source: &FrameSource, index: usize, content: &Value, out: &mut FrameWriter<'_>) {
        let Some(block) = self.blocks.get(index) else { return };
        out.put_message(
            source,
            format!("{}:{}:finish", self.id, block.kind.word()),
            || json!({"event": "content-block-finish", "index": index, "content": content}),
        );
    }

    fn complete(&mut self, source: &FrameSource, message: &Message, out: &mut FrameWriter<'_>) {
        let Role::Ai { usage_metadata, .. } = &message.role else {
            return;
        };
        if self.ended {
            return;
        }
        let finals = self.catch_up(source, message, out);
        let contents = self.blocks.iter().enumerate().map(|(at, block)| {
            let known = finals
                .iter()
                .find(|(index, _)| *index == at)
                .map(|(_, content)| content.clone());
            known.or_else(|| block.content()).unwrap_or_else(|| block.kind.empty())
        });
        let contents: Vec<Value> = contents.collect();
        self.end(
            source,
            &contents,
            &message.response_metadata,
            usage_metadata.as_ref(),
            out,
        );
    }

    /// Sends the missing parts of a message. Returns the final content of its blocks with their indexes.
    fn catch_up(&mut self, source: &FrameSource, message: &Message, out: &mut FrameWriter<'_>) -> Vec<(usize, Value)> {
        if !self.started {
            let provider = message.response_metadata.get("model_provider").and_then(Value::as_str);
            self.begin(source, provider.unwrap_or_default(), out);
        }
        let mut finals = vec![];
        for (kind, text, content) in parts(message) {
            let kind = self.known_kind(kind);
            let index = self.open(source, &kind, out);
            if let Some(rest) = unsent_part(&self.blocks[index].sent, &text).map(str::to_owned) {
                self.push_text(source, &kind, &rest, out);
            }
            finals.push((index, content));
        }
        finals
    }

    /// A call keeps its block, even if its index in the finished message differs.
    fn known_kind(&self, kind: Kind) -> Kind {
        let Kind::Call { id, .. } = &kind else { return kind };
        let same = |block: &&Block| matches!(&block.kind, Kind::Call { id: known, .. } if known == id);
        self.blocks
            .iter()
            .find(same)
            .map_or(kind.clone(), |block| block.kind.clone())
    }
}

impl Kind {
    /// The name of the block in frame ids.
    fn word(&self) -> String {
        match self {
            Self::Reasoning => "reasoning".to_owned(),
            Self::Text => "text".to_owned(),
            Self::Call { id, .. } => format!("call:{id}"),
            Self::Whole(block) => format!("block:{:x}", fnv(&block.to_string())),
        }
    }

    /// The empty block.
    fn empty(&self) -> Value {
        match self {
            Self::Reasoning => json!({"type": "reasoning", "reasoning": ""}),
            Self::Text => json!({"type": "text", "text": ""}),
            Self::Call { index, id, name } => {
                json!({"type": "tool_call_chunk", "id": id, "name": name, "args": "", "index": index})
            }
            Self::Whole(block) => block.clone(),
        }
    }
}

impl Block {
    /// The content that was sent; `None` if it is incomplete JSON.
    fn content(&self) -> Option<Value> {
        match &self.kind {
            Kind::Reasoning => Some(json!({"type": "reasoning", "reasoning": self.sent})),
            Kind::Text => Some(json!({"type": "text", "text": self.sent})),
            Kind::Call { id, name, .. } => {
                let text = if self.sent.trim().is_empty() { "{}" } else { &self.sent };
                let args: Map<String, Value> = serde_json::from_str(text).ok()?;
                Some(json!({"type": "tool_call", "id": id, "name": name, "args": args}))
            }
            Kind::Whole(block) => Some(block.clone()),
        }
    }
}

/// The blocks of a finished message: their kind, their text, and their final content.
fn parts(message: &Message) -> Vec<(Kind, String, Value)> {
    let mut parts = vec![];
    if let Some(reasoning_text) = reasoning(message) {
        parts.push((
            Kind::Reasoning,
            reasoning_text.to_owned(),
            json!({"type": "reasoning", "reasoning": reasoning_text}),
        ));
    }
    let text = message.content.text();
    if !text.is_empty() {
        let content = json!({"type": "text", "text": text});
        parts.push((Kind::Text, text, content));
    }
    if let Content::Blocks(blocks) = &message.content {
        const HANDLED_KINDS: [&str; 8] = [
            "text",
            "input_text",
            "output_text",
            "tool_use",
            "tool_call",
            "function_call",
            "reasoning",
            "thinking",
        ];
        let is_other = |block: &&Value| {
            block["type"]
                .as_str()
                .is_some_and(|kind| !HANDLED_KINDS.contains(&kind))
        };
        parts.extend(
            blocks
                .iter()
                .filter(is_other)
                .map(|block| (Kind::Whole(block.clone()), String::new(), block.clone())),
        );
    }
    for (index, call) in message.tool_calls().iter().enumerate() {
        let kind = Kind::Call {
            index,
            id: call.id.clone(),
            name: call.name.clone(),
        };
        let content = json!({"type": "tool_call", "id": call.id, "name": call.name, "args": call.args});
        parts.push((kind, json!(call.args).to_string(), content));
    }
    let readable = message.tool_calls().len();
    for (at, call) in message.invalid_tool_calls().iter().enumerate() {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let kind = Kind::Call {
            index: readable + at,
            id: text(&call.id),
            name: text(&call.name),
        };
        parts.push((kind, text(&call.args), json!(call)));
    }
    parts
}

/// FNV-1a: the same in every process.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
