//! The texts that servers send each other: who waits for chunks, and chunks. They are the same over `NOTIFY` and over NATS,
//! but for their size.
//!
//! The first line of a text is the version of its form. It has to change with any change of the form, including that of
//! the types of [`crate::domain::event`] in it: a server passes over texts of other versions.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::open_answers::ends_answers;
use super::super::slot::{Slot, SlotContent};
use crate::db::{ChunkRange, LiveAddress};
use crate::domain::event::{AgentWork, AnswerHead, Chunk, Delta, Event, EventBody, Origin};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::time::Timestamp;

/// The version of the texts.
pub(super) const VERSION: &str = "1";
/// The largest size of a text, in bytes. Postgres refuses payloads of 8,000 bytes and more.
const MAX_TEXT: usize = 7_900;
/// The largest size of the chunks in one part of such a text, in bytes. Sealed, they take a third more.
pub(super) const MAX_CHUNKS: usize = 5_600;
/// The most bytes of a text around the events of a part alone: its version, the thread, and numbers of ten digits.
const MESSAGE_OVERHEAD: usize = 64;
/// The bytes by which the events grow when they are sealed, before they are written in base64.
const SEALING: usize = 64;
/// The largest number of threads that are named in one text.
const MAX_NAMED: usize = 200;

/// The reason why a text is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unusable {
    /// The text has another version.
    OtherVersion,
    /// The text is malformed.
    Malformed,
}

/// Returns the lines of a text after the version.
fn lines_of(text: &str) -> Result<impl Iterator<Item = &str>, Unusable> {
    let mut lines = text.split('\n');
    match lines.next() {
        Some(VERSION) => Ok(lines),
        Some(_) | None => Err(Unusable::OtherVersion),
    }
}

/// The threads for whose chunks readers wait at a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interest {
    /// The server.
    pub(super) server: LiveAddress,
    /// True if the server has no chunks yet: it needs those of the answers that have begun.
    pub(super) is_new: bool,
    /// The threads.
    pub(super) threads: Vec<ThreadId>,
}

impl Interest {
    /// Writes the texts that say so.
    pub(super) fn texts(&self) -> Vec<String> {
        let kind = if self.is_new { "new" } else { "still" };
        let text = |threads: &[ThreadId]| {
            let mut text = format!("{VERSION}\n{kind} {}", self.server.0);
            for thread in threads {
                // Writing to a string cannot fail.
                let _ = write!(text, " {thread}");
            }
            text
        };
        self.threads.chunks(MAX_NAMED).map(text).collect()
    }

    /// Reads a text.
    pub(super) fn read(text: &str) -> Result<Self, Unusable> {
        let line = lines_of(text)?.next().ok_or(Unusable::Malformed)?;
        let mut words = line.split(' ');
        let is_new = match words.next() {
            Some("new") => true,
            Some("still") => false,
            Some(_) | None => return Err(Unusable::Malformed),
        };
        let server = words.next().and_then(|id| id.parse().ok()).map(LiveAddress);
        let threads: Result<Vec<ThreadId>, _> = words.map(str::parse).collect();
        Ok(Self {
            server: server.ok_or(Unusable::Malformed)?,
            is_new,
            threads: threads.map_err(|_| Unusable::Malformed)?,
        })
    }
}

/// The events of a thread in a range of numbers: the chunks, and which numbers are stored.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChunkPart {
    /// The range.
    pub(super) range: ChunkRange,
    /// The number of chunks.
    pub(super) chunks: usize,
    /// The events as text, which may be sealed.
    pub(super) text: String,
    /// True if all events that memory has follow, beginning with these.
    pub(super) is_beginning: bool,
}

impl ChunkPart {
    /// Returns the number of bytes that the part takes when it is sent. `is_sealed` is true if its events are to be sealed.
    pub(super) fn sent_bytes(&self, is_sealed: bool) -> usize {
        let events = self.text.len();
        let events = match is_sealed {
            true => (events + SEALING).div_ceil(3) * 4,
            false => events,
        };
        MESSAGE_OVERHEAD + events
    }
}

#[derive(Serialize, Deserialize)]
struct PartBody {
    run: RunId,
    origins: Vec<Arc<Origin>>,
    answers: Vec<Arc<AnswerHead>>,
    events: Vec<PartEvent>,
}

/// An event: its number, its time, the index of its agent, and its content. A stored event has its number, and instead of
/// the index 0, or one more than the index of the agent whose answers it ends.
#[derive(Serialize, Deserialize)]
struct PartEvent(i64, i64, usize, EventContent);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EventContent {
    /// An event that is stored.
    Stored,
    /// A chunk: the index of its answer, its number in the answer, and its content.
    Delta(usize, u32, Chunk),
    Begun(AgentWork),
    Output(String, String),
}

/// Writes the parts for these events of a thread, which follow the number `after`, each of at most `max_chunks` bytes.
/// Returns them with the number of chunks that are too large for a part.
pub(super) fn parts_of(
    thread: ThreadId,
    mut after: i64,
    events: &[Arc<Event>],
    max_chunks: usize,
) -> (Vec<ChunkPart>, usize) {
    let mut parts = vec![];
    let mut too_large = 0;
    let mut open: Option<OpenPart> = None;
    let mut last = after;
    for event in events {
        let has_room = open.as_mut().is_some_and(|part| part.add(event));
        if !has_room {
            if let Some(full) = open.take() {
                parts.extend(full.finish(thread, after, last));
                after = last;
            }
            let mut part = OpenPart::new(event.run, max_chunks);
            if !part.add(event) {
                // Its number is part of the range: readers see that a chunk is missing.
                too_large += 1;
            }
            open = Some(part);
        }
        last = event.seq;
    }
    if let Some(rest) = open {
        parts.extend(rest.finish(thread, after, last));
    }
    (parts, too_large)
}

/// A part to which events are added.
struct OpenPart {
    body: PartBody,
    size: usize,
    max_size: usize,
    chunks: usize,
}

impl OpenPart {
    fn new(run: RunId, max_size: usize) -> Self {
        Self {
            body: PartBody {
                run,
                origins: vec![],
                answers: vec![],
                events: vec![],
            },
            // The id of the run, and the names of the fields.
            size: 100,
            max_size,
            chunks: 0,
        }
    }

    /// Adds an event. Returns false if it has no room, or belongs to another run.
    fn add(&mut self, event: &Event) -> bool {
        if event.run != self.body.run {
            return false;
        }
        let origins = self.body.origins.len();
        let answers = self.body.answers.len();
        let is_chunk = !event.body.is_stored();
        let origin = match (is_chunk, ends_answers(&event.body)) {
            (true, _) => index_in(&mut self.body.origins, &event.origin),
            (false, true) => 1 + index_in(&mut self.body.origins, &event.origin),
            (false, false) => 0,
        };
        let content = match &event.body {
            EventBody::Entry(_) | EventBody::Fact(_) => EventContent::Stored,
            EventBody::Delta(delta) => {
                let answer = index_in(&mut self.body.answers, &delta.answer);
                EventContent::Delta(answer, delta.ordinal, delta.chunk.clone())
            }
            EventBody::Begun(work) => EventContent::Begun(*work),
            EventBody::Output { call, text } => EventContent::Output(call.clone(), text.clone()),
        };
        let at = if is_chunk { event.at.0 } else { 0 };
        let placed = PartEvent(event.seq, at, origin, content);
        let mut added = size_of(&placed);
        added += self.body.origins.get(origins).map_or(0, size_of);
        added += self.body.answers.get(answers).map_or(0, size_of);
        if self.size + added > self.max_size {
            self.body.origins.truncate(origins);
            self.body.answers.truncate(answers);
            let is_first = self.body.events.is_empty();
            if is_first && !is_chunk {
                // Readers have to know of every stored event, if not of whose it is.
                self.body.events.push(PartEvent(event.seq, 0, 0, EventContent::Stored));
            }
            return is_first && !is_chunk;
        }
        self.size += added;
        self.chunks += usize::from(is_chunk);
        self.body.events.push(placed);
        true
    }

    fn finish(self, thread: ThreadId, after: i64, upto: i64) -> Option<ChunkPart> {
        // The types of the body have no form that cannot be written.
        let text = serde_json::to_string(&self.body).ok()?;
        Some(ChunkPart {
            range: ChunkRange { thread, after, upto },
            chunks: self.chunks,
            text,
            is_beginning: false,
        })
    }
}

/// Returns the index of a value in a list, to which it is added if it is new.
fn index_in<T: PartialEq>(list: &mut Vec<Arc<T>>, value: &Arc<T>) -> usize {
    let found = list
        .iter()
        .position(|known| Arc::ptr_eq(known, value) || known == value);
    found.unwrap_or_else(|| {
        list.push(Arc::clone(value));
        list.len() - 1
    })
}

/// Returns the size of a value as text, with the comma after it.
fn size_of<T: Serialize>(value: &T) -> usize {
    // A value that cannot be written has no room anywhere.
    serde_json::to_string(value).map_or(usize::MAX / 8, |text| text.len() + 1)
}

/// Returns the line of a part.
fn line_of(part: &ChunkPart) -> String {
    let ChunkRange { thread, after, upto } = part.range;
    format!("\n{thread} {after} {upto} {}", part.text)
}

/// Writes a text with this part alone.
#[cfg(feature = "nats")]
pub(super) fn text_of(part: &ChunkPart) -> String {
    format!("{VERSION}{}", line_of(part))
}

/// Puts parts into as few texts as possible.
pub(super) fn pack(parts: &[ChunkPart]) -> Vec<String> {
    let mut texts: Vec<String> = vec![];
    for part in parts {
        let line = line_of(part);
        match texts.last_mut() {
            Some(text) if text.len() + line.len() <= MAX_TEXT => text.push_str(&line),
            Some(_) | None => texts.push(format!("{VERSION}{line}")),
        }
    }
    texts
}

/// Reads a text into the ranges of its parts, each with its events as text, which may be sealed.
pub(super) fn unpack(text: &str) -> Result<Vec<(ChunkRange, &str)>, Unusable> {
    fn part(line: &str) -> Option<(ChunkRange, &str)> {
        let mut words = line.splitn(4, ' ');
        let thread = words.next()?.parse().ok()?;
        let after: i64 = words.next()?.parse().ok()?;
        let upto: i64 = words.next()?.parse().ok()?;
        let is_range = 0 <= after && after < upto && upto < i64::MAX;
        let range = is_range.then_some(ChunkRange { thread, after, upto })?;
        Some((range, words.next()?))
    }
    let read = |line| part(line).ok_or(Unusable::Malformed);
    lines_of(text)?.map(read).collect()
}

/// Reads the events of a part. Returns them with the number of chunks.
pub(super) fn read_slots(range: ChunkRange, text: &str) -> Result<(Vec<Slot>, usize), Unusable> {
    let body: PartBody = serde_json::from_str(text).map_err(|_| Unusable::Malformed)?;
    let PartBody {
        run,
        origins,
        answers,
        events,
    } = body;
    let mut before = range.after;
    let mut slots = Vec::with_capacity(events.len());
    let mut chunks = 0;
    for PartEvent(seq, at, origin, content) in events {
        if seq <= before || seq > range.upto {
            return Err(Unusable::Malformed);
        }
        before = seq;
        let body = match content {
            EventContent::Stored => None,
            EventContent::Delta(answer, ordinal, chunk) => Some(EventBody::Delta(Delta {
                answer: Arc::clone(answers.get(answer).ok_or(Unusable::Malformed)?),
                ordinal,
                chunk,
            })),
            EventContent::Begun(work) => Some(EventBody::Begun(work)),
            EventContent::Output(call, text) => Some(EventBody::Output { call, text }),
        };
        let content = match body {
            None => {
                let ends = origin
                    .checked_sub(1)
                    .map(|at| origins.get(at).ok_or(Unusable::Malformed));
                SlotContent::Stored(ends.transpose()?.map(|origin| origin.lane))
            }
            Some(body) => {
                chunks += 1;
                let origin = Arc::clone(origins.get(origin).ok_or(Unusable::Malformed)?);
                let at = Timestamp(at);
                SlotContent::Visible(Arc::new(Event {
                    seq,
                    run,
                    at,
                    origin,
                    body,
                }))
            }
        };
        slots.push(Slot { seq, content });
    }
    Ok((slots, chunks))
}

#[cfg(test)]
mod tests;
