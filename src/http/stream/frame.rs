//! Frames of the v1 protocol: `event`, `data` and `id`, each on a line that ends with CRLF.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde_json::json;

/// One event of a stream. Its data is one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The event name.
    pub event: FrameName,
    /// The data.
    pub data: Bytes,
    /// The position in the log, for resumable streams.
    pub id: Option<ResumePoint>,
    /// For a chunk of an answer: how much of the answer is sent with this frame.
    pub progress: Option<AnswerOffset>,
    /// True if the frame replaces chunks that this reader missed. Readers that were there in time do not get it, so it
    /// does not count among the frames of its event.
    pub is_late: bool,
}

/// The part of an answer that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerOffset {
    /// The key of the message id, see [`AnswerOffset::key_of`].
    pub answer: u32,
    /// The length that was sent; [`AnswerOffset::END`] for a finished answer.
    pub offset: u32,
    /// The last chunk up to there, if not all of its frames were sent.
    pub cut: Option<CutChunk>,
}

/// A chunk of which a client has received some frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutChunk {
    /// The length of the answer before the chunk.
    pub from: u32,
    /// The number of frames that were sent.
    pub frames: u32,
}

impl AnswerOffset {
    /// The offset of a finished answer.
    pub const END: u32 = u32::MAX;

    /// Returns the length of the chunks of which all frames were sent.
    pub fn of_whole_chunks(self) -> u32 {
        self.cut.map_or(self.offset, |cut| cut.from)
    }

    /// Returns a hash of the name of an answer. It is the same in every process, since clients send it back.
    pub fn key_of(name: impl IntoIterator<Item = u8>) -> u32 {
        // FNV-1a.
        name.into_iter().fold(0x811c_9dc5, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
    }
}

/// The position of a client in a stream: the last frame that it has seen, and how much of each unfinished answer.
/// Chunks of answers are not stored, so the frame alone would not be enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumePoint {
    /// The frame.
    pub cursor: Cursor,
    /// The progress of unfinished answers.
    pub answers: Vec<AnswerOffset>,
}

/// The name of a frame, with the namespace of a subagent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameName {
    /// The word, for example `values` or `messages/partial`.
    pub word: &'static str,
    /// The namespace of a subagent.
    pub namespace: Option<Arc<str>>,
}

/// The position of a frame in the log: an event, and the index among its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The sequence number of the event.
    pub seq: i64,
    /// The index of the frame, from 0.
    pub frame: u32,
}

impl Cursor {
    /// The position after all frames of event `seq`.
    pub fn after(seq: i64) -> Self {
        Self { seq, frame: u32::MAX }
    }

    /// Returns true if a client that has seen everything up to `seen` lacks this frame. Late frames may repeat at their
    /// position.
    pub fn is_new(self, seen: Option<Self>, is_late: bool) -> bool {
        seen.is_none_or(|seen| self > seen || is_late && self == seen)
    }
}

/// The frames of event `seq` with their positions, without those that a client at `seen` already has.
pub fn unseen(mut frames: Vec<Frame>, seq: i64, seen: Option<Cursor>) -> impl Iterator<Item = (Frame, Cursor)> {
    // Late frames come before the frames that every reader gets.
    frames.sort_by_key(|frame| !frame.is_late);
    let mut own = 0..;
    let placed = frames.into_iter().map(move |frame| {
        let cursor = match frame.is_late {
            true => Cursor::after(seq - 1),
            false => Cursor {
                seq,
                frame: own.next().unwrap_or(u32::MAX),
            },
        };
        (frame, cursor)
    });
    placed.filter(move |(frame, cursor)| cursor.is_new(seen, frame.is_late))
}

impl fmt::Display for ResumePoint {
    /// Writes `12-0`, or `12` for a whole event, followed by `~answer.offset` for each unfinished answer, or by
    /// `~answer.offset.from.frames` if some frames of its last chunk are missing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cursor {
            Cursor { seq, frame: u32::MAX } => write!(f, "{seq}")?,
            Cursor { seq, frame } => write!(f, "{seq}-{frame}")?,
        }
        self.answers.iter().try_for_each(|progress| {
            write!(f, "~{:x}.{:x}", progress.answer, progress.offset)?;
            progress
                .cut
                .map_or(Ok(()), |cut| write!(f, ".{:x}.{:x}", cut.from, cut.frames))
        })
    }
}

/// An invalid `Last-Event-ID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be the id of an event of this stream, or -1 for all of it")]
pub struct InvalidCursor;

impl FromStr for ResumePoint {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.trim().split('~');
        let cursor = parts.next().unwrap_or_default().parse()?;
        Ok(Self {
            cursor,
            answers: parts.map(str::parse::<AnswerOffset>).collect::<Result<_, _>>()?,
        })
    }
}

impl FromStr for AnswerOffset {
    type Err = InvalidCursor;

    /// Reads `answer.offset` or `answer.offset.from.frames`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| u32::from_str_radix(text, 16).map_err(|_| InvalidCursor);
        let numbers: Vec<u32> = text.split('.').map(number).collect::<Result<_, _>>()?;
        match numbers[..] {
            [answer, offset] => Ok(Self {
                answer,
                offset,
                cut: None,
            }),
            [answer, offset, from, frames] => Ok(Self {
                answer,
                offset,
                cut: Some(CutChunk { from, frames }),
            }),
            _ => Err(InvalidCursor),
        }
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    /// Reads `12-0`. A number alone means the whole event, so `-1` is the position before everything. So is `-`, which
    /// LangGraph reads in streams of threads.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text == "-" {
            return Ok(Self::after(-1));
        }
        if let Ok(seq) = text.parse() {
            return Ok(Self::after(seq));
        }
        let (seq, frame) = text.split_once('-').ok_or(InvalidCursor)?;
        Ok(Self {
            seq: seq.parse().map_err(|_| InvalidCursor)?,
            frame: frame.parse().map_err(|_| InvalidCursor)?,
        })
    }
}

impl From<&'static str> for FrameName {
    fn from(word: &'static str) -> Self {
        Self { word, namespace: None }
    }
}

impl fmt::Display for FrameName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word)?;
        self.namespace
            .as_ref()
            .map_or(Ok(()), |namespace| write!(f, "|{namespace}"))
    }
}

impl Frame {
    /// Creates a frame with `value` as JSON.
    pub fn of(event: impl Into<FrameName>, value: &impl Serialize) -> Self {
        Self::new(event, json(value))
    }

    /// Creates a frame with encoded data.
    pub fn new(event: impl Into<FrameName>, data: impl Into<Bytes>) -> Self {
        Self {
            event: event.into(),
            data: data.into(),
            id: None,
            progress: None,
            is_late: false,
        }
    }

    /// The last frame of a stream that ends because the server failed; the cause is in the server's log.
    pub fn fault() -> Self {
        Self::of(
            "error",
            &json!({"error": "InternalServerError", "message": "An internal error occurred"}),
        )
    }

    /// Appends the frame's bytes to `buffer`.
    pub fn write(&self, buffer: &mut BytesMut) {
        let namespace = self.event.namespace.as_deref().unwrap_or_default();
        buffer.reserve(64 + self.event.word.len() + namespace.len() + self.data.len());
        buffer.put_slice(b"event: ");
        buffer.put_slice(self.event.word.as_bytes());
        if !namespace.is_empty() {
            buffer.put_u8(b'|');
            buffer.put_slice(namespace.as_bytes());
        }
        buffer.put_slice(b"\r\ndata: ");
        buffer.put_slice(&self.data);
        if let Some(id) = &self.id {
            buffer.put_slice(b"\r\nid: ");
            buffer.put_slice(id.to_string().as_bytes());
        }
        buffer.put_slice(b"\r\n\r\n");
    }
}

/// Encodes `value` as JSON. Streamed values consist of JSON, so encoding cannot fail.
pub fn json(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    if let Err(error) = serde_json::to_writer(&mut bytes, value) {
        tracing::error!(%error, "an event could not be encoded");
        return b"null".to_vec();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_event_data_and_id_on_lines_of_their_own() {
        let mut buffer = BytesMut::new();
        let name = FrameName {
            word: "values",
            namespace: Some(Arc::from("tools:1")),
        };
        let id = Some(ResumePoint {
            cursor: Cursor { seq: 12, frame: 1 },
            answers: vec![],
        });
        Frame {
            id,
            ..Frame::new(name, "{}")
        }
        .write(&mut buffer);
        Frame::new("error", "[]").write(&mut buffer);
        let expected = "event: values|tools:1\r\ndata: {}\r\nid: 12-1\r\n\r\nevent: error\r\ndata: []\r\n\r\n";
        assert_eq!(buffer, expected.as_bytes());
    }

    #[test]
    fn a_resume_point_round_trips_and_minus_one_is_before_everything() {
        let answers = vec![
            AnswerOffset {
                answer: 0xabc,
                offset: 31,
                cut: None,
            },
            AnswerOffset {
                answer: 7,
                offset: AnswerOffset::END,
                cut: Some(CutChunk { from: 26, frames: 2 }),
            },
        ];
        let point = ResumePoint {
            cursor: Cursor { seq: 12, frame: 1 },
            answers,
        };
        assert_eq!(point.to_string(), "12-1~abc.1f~7.ffffffff.1a.2");
        assert_eq!(point.to_string().parse(), Ok(point));
        let whole = ResumePoint {
            cursor: Cursor::after(12),
            answers: vec![],
        };
        assert_eq!(whole.to_string().as_str(), "12");
        assert_eq!("12".parse(), Ok(whole));
        for before in ["-1", "-"] {
            let before = before.parse::<ResumePoint>().map(|point| point.cursor);
            assert!(before.is_ok_and(|before| before < Cursor { seq: 0, frame: 0 }));
        }
        for wrong in ["x", "--", "1-x", "1~", "1~a", "1~a.", "1~a.x", "1~a.1.2", "1~a.1.2.3.4"] {
            assert_eq!(wrong.parse::<ResumePoint>(), Err(InvalidCursor), "{wrong}");
        }
    }
}
