//! The modes `messages` and `messages-tuple`: messages while they are generated.
//!
//! Chunks of an answer are volatile: a reader that joins late, reads slowly or replays misses some. The finished
//! message is stored; when it arrives, the missing part is sent. So the chunks of one reader always add up to the
//! message, and nothing is sent twice. An interrupted answer is stored as far as it was generated; it only has no end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use serde_json::Value;

use super::RunInfo;
use super::agent::PresentedAgent;
use super::answer::{AnswerBuilder, AnswerHeader, metadata_frame};
use super::metadata::MessageSource;
use super::modes::Modes;
use super::trace_records::TracedModelCall;
use crate::domain::event::{Chunk, Delta, Origin};
use crate::domain::machine::{MODEL, RUNNABLE};
use crate::domain::message::{Message, Role};
use crate::domain::run::namespace_text;
use crate::domain::state::{State, Update};
use crate::http::stream::MetadataDetail;
use crate::http::stream::frame::{AnswerOffset, Cursor, Frame, FrameName, json};
use crate::http::wire::stream_mode::StreamMode;

/// The messages that were sent to one reader.
pub(super) struct Messages {
    modes: Modes,
    detail: MetadataDetail,
    /// The unfinished answers by message id.
    answers: HashMap<String, AnswerBuilder>,
    /// The ids of messages that were sent completely.
    finished: HashSet<String>,
    /// The keys of the answers that have ended since they were asked for.
    ended: Vec<u32>,
    /// The offsets of unfinished answers that the reader received on an earlier connection.
    resume_offsets: HashMap<u32, AnswerOffset>,
    /// The position from which the reader resumes, if it had an earlier connection.
    seen: Option<Cursor>,
}

impl Messages {
    pub(super) fn new(modes: Modes) -> Self {
        Self {
            modes,
            detail: MetadataDetail::Full,
            answers: HashMap::new(),
            finished: HashSet::new(),
            ended: vec![],
            resume_offsets: HashMap::new(),
            seen: None,
        }
    }

    pub(super) fn set_detail(&mut self, detail: MetadataDetail) {
        self.detail = detail;
    }

    pub(super) fn resume(&mut self, seen: Cursor, progress: Vec<AnswerOffset>) {
        self.seen = Some(seen);
        self.resume_offsets = progress
            .into_iter()
            .map(|progress| (progress.answer, progress))
            .collect();
    }

    /// Takes the keys of the answers that have ended since the last call.
    pub(super) fn take_ended(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ended)
    }

    /// Adds the chunk of an answer in the event `seq`.
    pub(super) fn delta(
        &mut self,
        info: &RunInfo,
        agent: &PresentedAgent,
        seq: i64,
        delta: &Delta,
        out: &mut Vec<Frame>,
    ) {
        let head = &delta.answer;
        let is_passed = self.is_passed(seq, &head.message);
        match &delta.chunk {
            Chunk::Begin if !self.is_known(&head.message) => {
                let model = Some((head.provider.as_str(), head.model.as_str()));
                let origin = &*agent.fold.origin;
                let source = MessageSource {
                    origin,
                    node: MODEL,
                    task: head.task,
                    step: Some(head.step),
                    call: 0,
                    model,
                };
                let header = self.header(info, &source, &head.message, agent.fold.state.as_ref());
                let mut answer = AnswerBuilder::new(header);
                answer.is_unconfirmed = is_passed;
                answer.take(delta.ordinal, &delta.chunk, out);
                self.answers.insert(head.message.clone(), answer);
            }
            // The part that was sent is not completed.
            Chunk::Void => {
                self.answers.remove(&head.message);
                self.ended.push(AnswerOffset::key_of(head.message.bytes()));
                self.finished.insert(head.message.clone());
            }
            Chunk::Begin | Chunk::Text(_) | Chunk::Reasoning(_) | Chunk::Call { .. } | Chunk::End { .. } => {
                if let Some(answer) = self.answers.get_mut(&head.message) {
                    if answer.is_unconfirmed && !is_passed {
                        let received = self.resume_offsets.get(&answer.key()).copied();
                        answer.confirm(received);
                    }
                    answer.take(delta.ordinal, &delta.chunk, out);
                }
            }
        }
    }

    /// Returns true if the chunk of an answer in the event `seq` lies before the position from which the reader resumes.
    fn is_passed(&self, seq: i64, message: &str) -> bool {
        let Some(seen) = self.seen.filter(|seen| seq <= seen.seq) else {
            return false;
        };
        if seq < seen.seq || seen == Cursor::after(seq) {
            return true;
        }
        // A reader that has only what came before the chunk at the position lacks some frames of it, which follow.
        let key = AnswerOffset::key_of(message.bytes());
        let received = self.resume_offsets.get(&key).copied();
        let before = self.answers.get(message).map_or(0, AnswerBuilder::offset);
        before != received.map_or(0, AnswerOffset::of_whole_chunks)
    }

    fn is_known(&self, message: &str) -> bool {
        self.answers.contains_key(message) || self.finished.contains(message)
    }

    /// Adds the writes of a task: answers are completed, and tool results sent.
    pub(super) fn task_done(
        &mut self,
        info: &RunInfo,
        agent: &PresentedAgent,
        source: &MessageSource<'_>,
        update: &Update,
        out: &mut Vec<Frame>,
    ) {
        for message in &update.messages {
            match &message.role {
                Role::Ai { .. } if source.is_model() => {
                    let state = agent.fold.state.as_ref();
                    if let Some(mut answer) = self.complete(info, source, message, state, out) {
                        let before = out.len();
                        answer.end_with(message, out);
                        out[before..].iter_mut().for_each(|frame| frame.is_late = true);
                        answer.end_records(message, update, out);
                    }
                }
                // A program sends its message in one piece.
                Role::Ai { .. } if source.node == RUNNABLE => self.push_message(info, source, message, out),
                Role::Tool { .. } => self.push_message(info, source, message, out),
                Role::Ai { .. } | Role::Human | Role::System | Role::Remove => {}
            }
        }
    }

    /// Sends the missing part of an interrupted message, which has no end.
    pub(super) fn broken_off(
        &mut self,
        info: &RunInfo,
        agent: &PresentedAgent,
        message: &Message,
        out: &mut Vec<Frame>,
    ) {
        self.complete(info, &agent.source(MODEL, 0), message, agent.fold.state.as_ref(), out);
    }

    /// Sends the missing part of a message. Returns the answer, unless it was complete before.
    fn complete(
        &mut self,
        info: &RunInfo,
        source: &MessageSource<'_>,
        message: &Message,
        state: Option<&State>,
        out: &mut Vec<Frame>,
    ) -> Option<AnswerBuilder> {
        let id = message.id.as_deref().unwrap_or_default();
        if self.finished.contains(id) {
            return None;
        }
        let mut answer = self.answers.remove(id).unwrap_or_else(|| {
            let word = |name| {
                message
                    .response_metadata
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let model = Some((word("model_provider"), word("model_name")));
            let source = MessageSource { model, ..*source };
            AnswerBuilder::new(self.header(info, &source, id, state))
        });
        let before = out.len();
        let received = self.resume_offsets.remove(&answer.key());
        answer.confirm(received);
        if let Some(seen) = received {
            answer.resume(message, seen, out);
        }
        answer.complete(message, out);
        out[before..].iter_mut().for_each(|frame| frame.is_late = true);
        self.ended.push(answer.key());
        self.finished.insert(id.to_owned());
        Some(answer)
    }

    fn push_message(&mut self, info: &RunInfo, source: &MessageSource<'_>, message: &Message, out: &mut Vec<Frame>) {
        let id = message.id.as_deref().unwrap_or_default();
        if !self.finished.insert(id.to_owned()) {
            return;
        }
        let metadata = source.encode(info);
        let text = json(message);
        if let Some(name) = self.tuple_name(source.origin) {
            let mut data = BytesMut::with_capacity(text.len() + metadata.len() + 3);
            data.put_u8(b'[');
            data.put_slice(&text);
            data.put_u8(b',');
            data.put_slice(metadata.as_bytes());
            data.put_u8(b']');
            out.push(Frame::new(name, data.freeze()));
        }
        if self.modes.has(StreamMode::Messages) {
            out.push(metadata_frame(id, &metadata));
            let mut data = Vec::with_capacity(text.len() + 2);
            data.push(b'[');
            data.extend_from_slice(&text);
            data.push(b']');
            out.push(Frame::new("messages/complete", data));
        }
    }

    fn header(&self, info: &RunInfo, source: &MessageSource<'_>, message: &str, state: Option<&State>) -> AnswerHeader {
        let is_recorded = self.modes.has(StreamMode::Events);
        let metadata = source.encode(info);
        AnswerHeader {
            message: message.to_owned(),
            provider: source
                .model
                .map_or_else(String::new, |(provider, _)| provider.to_owned()),
            tuple: self.tuple_name(source.origin),
            whole: self.modes.has(StreamMode::Messages),
            repeated_metadata: match self.detail {
                MetadataDetail::Full => Arc::clone(&metadata),
                MetadataDetail::Lean => source.encode_lean(info),
            },
            metadata,
            records: is_recorded.then(|| TracedModelCall::new(info, source, message, state)),
        }
    }

    /// Restricts the modes.
    pub(super) fn restrict_modes(&mut self, modes: Modes) {
        self.modes = modes;
    }

    fn tuple_name(&self, origin: &Origin) -> Option<FrameName> {
        let namespace = || (!origin.namespace.is_empty()).then(|| Arc::from(namespace_text(&origin.namespace)));
        self.modes.has(StreamMode::MessagesTuple).then(|| FrameName {
            word: "messages",
            namespace: namespace(),
        })
    }
}
