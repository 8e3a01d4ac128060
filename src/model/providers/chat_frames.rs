//! OpenAI's chat completions, whose frames are parsed once.
//!
//! An answer has a frame for each token. The decoder of rig-core parses each frame four times before it decodes it (it
//! looks for an error, for a key that occurs twice, and for the kind of the frame), and copies most of it then. That was
//! half of the instructions that a streamed token took. [`ChunkDecoder`] parses a frame once: a piece of text is appended to
//! the text that the decoder of rig-core has open, a piece of arguments to the call that it has open, and all other frames are
//! left to that decoder. A frame that differs from the last one in its text alone, as most do, is not even parsed.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use rig_core::completion::CompletionRequest;
use rig_core::error::{EncodeError, ProviderError};
use rig_core::operation::{CallFragment, Completion};
use rig_core::providers::openai::wire::Chat;
use rig_core::wire::{Decoder, Descriptor, Encoded, Flow, Mode, Out, Wire, WireEvent, WireFrame};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::lean_wire::LeanWire;

/// The decoder of rig-core.
type ChatDecoder<'id> = <Chat as Wire>::Decoder<'id>;
/// A frame that the decoder of rig-core has classified.
type ChatEvent<'id> = <ChatDecoder<'id> as Decoder<'id, Completion>>::Event;

/// The `object` of a chunk of an answer.
const CHUNK: &str = "chat.completion.chunk";

/// The wire format, with frames that are parsed once.
#[derive(Clone)]
pub(super) struct SingleParse(pub(super) LeanWire<Chat>);

impl Wire for SingleParse {
    type Op = Completion;
    type Payload = Encoded;
    type Frame = WireFrame;
    type Decoder<'id> = ChunkDecoder<ChatDecoder<'id>>;
    type Reassembler = <LeanWire<Chat> as Wire>::Reassembler;

    fn describe(&self) -> Descriptor<'_> {
        self.0.describe()
    }

    fn encode(&self, request: CompletionRequest, mode: Mode) -> Result<Encoded, EncodeError> {
        self.0.encode(request, mode)
    }

    fn decoder<'id>(&self) -> Self::Decoder<'id> {
        ChunkDecoder {
            chat: self.0.decoder(),
            id: None,
            model: None,
            text: OpenText::Unknown,
            last: None,
            call: None,
            appended: None,
            has_ended: false,
        }
    }

    fn reassembler(&self) -> Self::Reassembler {
        self.0.reassembler()
    }
}

/// The decoder of one answer, around that of rig-core.
pub(super) struct ChunkDecoder<D> {
    chat: D,
    /// The id of the answer that a chunk stated last.
    id: Option<String>,
    /// The model that a chunk stated last.
    model: Option<String>,
    text: OpenText,
    /// The last frame with a piece of text, if its text has no escapes.
    last: Option<TextFrame>,
    /// The index of the call that the decoder of rig-core has opened last, unless something else than its arguments has
    /// followed.
    call: Option<usize>,
    /// The index of the call of which the decoder of rig-core did not get all pieces, unless another one has followed.
    appended: Option<usize>,
    /// True if a chunk has stated why the answer has ended. Some providers send pieces after it.
    has_ended: bool,
}

/// The text to which the decoder of rig-core appends, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenText {
    /// Not known: another frame than a piece of text came last.
    Unknown,
    /// The item that the decoder may have opened for the last piece, after this index was given away.
    After(usize),
    /// The item with this index.
    At(usize),
}

impl OpenText {
    /// Returns the index of the text, if it is known.
    fn index(&mut self, out: &mut Out<'_, Completion>) -> Option<usize> {
        if let Self::After(before) = *self {
            // The items of an answer get consecutive indexes, and a piece of text opens one item at most.
            let is_opened = out.fresh_index() == before + 2;
            *self = if is_opened { Self::At(before + 1) } else { Self::Unknown };
        }
        match self {
            Self::At(index) => Some(*index),
            Self::After(_) | Self::Unknown => None,
        }
    }
}

/// A frame that was read.
pub(super) enum ReadFrame<E> {
    /// A chunk with a piece of text and nothing else.
    Text(TextPiece),
    /// A chunk with a piece of the arguments of the open call and nothing else.
    Arguments(ArgumentsPiece),
    /// Any other frame, for the decoder of rig-core.
    Other(E),
}

/// A piece of text.
pub(super) struct TextPiece {
    text: PieceText,
    /// The id of the answer, if the last chunk stated another one.
    id: Option<String>,
    /// The model, if the last chunk stated another one.
    model: Option<String>,
}

/// A piece of the arguments of a call.
pub(super) struct ArgumentsPiece {
    /// The index of the call.
    call: usize,
    text: String,
}

impl ArgumentsPiece {
    /// Appends the piece to the item that the decoder of rig-core assembles of the call.
    fn append_to(&self, item: &mut Value) {
        let arguments = item.get_mut("function").and_then(|call| call.get_mut("arguments"));
        let Some(Value::String(arguments)) = arguments else {
            return;
        };
        // Some providers send the word for none until there are arguments.
        if arguments.trim() == "null" && !self.text.trim().is_empty() {
            arguments.clear();
        }
        arguments.push_str(&self.text);
    }
}

/// The text of a piece.
enum PieceText {
    /// A text without escapes, where its frame has it.
    InFrame(TextFrame),
    /// A text that had escapes.
    Unescaped(String),
}

/// A frame with a text that has no escapes.
struct TextFrame {
    frame: String,
    /// The place of the text in the frame.
    text: Range<usize>,
}

impl TextFrame {
    /// Returns the place of the text in a frame that differs from this one in its text alone, and has no escapes either.
    fn find_text(&self, frame: &str) -> Option<Range<usize>> {
        let before = self.frame.get(..self.text.start)?;
        let after = self.frame.get(self.text.end..)?;
        let text = frame.strip_prefix(before)?.strip_suffix(after)?;
        let is_verbatim = text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\');
        is_verbatim.then(|| before.len()..before.len() + text.len())
    }
}

impl TextPiece {
    fn text(&self) -> &str {
        match &self.text {
            PieceText::InFrame(TextFrame { frame, text }) => frame.get(text.clone()).unwrap_or_default(),
            PieceText::Unescaped(text) => text,
        }
    }
}

impl<D> ChunkDecoder<D> {
    /// Reads a chunk with a piece of text, or of the arguments of the open call, if it has nothing else that the decoder of
    /// rig-core reads.
    ///
    /// # Errors
    /// Returns any other frame.
    fn read_piece<E>(&self, frame: String) -> Result<ReadFrame<E>, String> {
        if let Some(text) = self.last.as_ref().and_then(|last| last.find_text(&frame)) {
            return Ok(ReadFrame::Text(TextPiece {
                text: PieceText::InFrame(TextFrame { frame, text }),
                id: None,
                model: None,
            }));
        }
        if !may_have_piece(&frame) {
            return Err(frame);
        }
        let chunk = serde_json::from_str::<PieceChunk<'_>>(&frame).ok();
        let is_piece = |chunk: &PieceChunk<'_>| chunk.object.is_none_or(|object| object == CHUNK);
        let Some(PieceChunk {
            id,
            model,
            choices: [PieceChoice { index: 0, delta, .. }],
            ..
        }) = chunk.filter(is_piece)
        else {
            return Err(frame);
        };
        let id = news(id, self.id.as_deref());
        let model = news(model, self.model.as_deref());
        let content = match (delta.content, delta.tool_calls) {
            (Some(ChunkText(content)), None) => content,
            (None, Some([call])) if id.is_none() && model.is_none() && self.call == Some(call.index) => {
                return Ok(ReadFrame::Arguments(ArgumentsPiece {
                    call: call.index,
                    text: call.function.arguments.into_owned(),
                }));
            }
            (_, _) => return Err(frame),
        };
        let text = match content {
            Cow::Borrowed(text) => {
                let start = text.as_ptr().addr() - frame.as_ptr().addr();
                let text = start..start + text.len();
                PieceText::InFrame(TextFrame { frame, text })
            }
            Cow::Owned(text) => PieceText::Unescaped(text),
        };
        Ok(ReadFrame::Text(TextPiece { text, id, model }))
    }

    /// Remembers what a chunk states about the answer.
    fn learn(&mut self, id: Option<&str>, model: Option<&str>) {
        if let Some(id) = news(id, self.id.as_deref()) {
            self.id = Some(id);
        }
        if let Some(model) = news(model, self.model.as_deref()) {
            self.model = Some(model);
        }
    }

    /// Returns a chunk with a piece of text, as far as the decoder of rig-core reads it.
    fn chunk_of(&self, text: &str) -> Value {
        json!({"id": self.id, "model": self.model, "choices": [{"delta": {"content": text}}]})
    }

    /// Lets a chunk state what is known about the answer, since the decoder of rig-core does not get all chunks.
    fn complete(&self, chunk: &mut Value) {
        let Some(fields) = chunk.as_object_mut() else {
            return;
        };
        for (name, known) in [("id", &self.id), ("model", &self.model)] {
            if let Some(known) = known.as_ref().filter(|_| !fields.contains_key(name)) {
                fields.insert(name.to_owned(), json!(known));
            }
        }
    }

    /// Gives a call without an index and an id the index of the call that it continues, or a new one if that has all of its
    /// arguments. The decoder of rig-core does not know, since it did not get all of their pieces.
    fn place_call(&mut self, chunk: &mut Value, out: &mut Out<'_, Completion>) -> Result<(), Box<ProviderError>> {
        let Some(open) = self.appended else {
            return Ok(());
        };
        if let Some(call) = unplaced_call(chunk) {
            let mut is_complete = false;
            out.edit(open, |item| is_complete = has_whole_arguments(item))
                .map_err(Box::new)?;
            let index = if is_complete { out.fresh_index() } else { open };
            call.insert("index".to_owned(), json!(index));
        }
        let goes_on = |call: &Value| call.get("index") == Some(&json!(open));
        self.appended = calls_in(chunk).all(goes_on).then_some(open);
        Ok(())
    }
}

/// Returns what a chunk states, unless it is known.
fn news(stated: Option<&str>, known: Option<&str>) -> Option<String> {
    stated.filter(|stated| known != Some(*stated)).map(str::to_owned)
}

impl<'id> Decoder<'id, Completion> for ChunkDecoder<ChatDecoder<'id>> {
    type Event = ReadFrame<ChatEvent<'id>>;

    fn classify(&self, frame: WireFrame) -> WireEvent<Self::Event> {
        let frame = match frame {
            WireFrame::Text(frame) => frame,
            WireFrame::Bytes(_) => return self.chat.classify(frame).map(ReadFrame::Other),
        };
        let frame = match self.read_piece(frame) {
            Ok(piece) => return WireEvent::Known(piece),
            Err(frame) => frame,
        };
        match read_chunk(&frame) {
            Some(chunk) => WireEvent::Known(ReadFrame::Other(ChatEvent::Chunk(chunk))),
            None => self.chat.classify(WireFrame::Text(frame)).map(ReadFrame::Other),
        }
    }

    fn decode(&mut self, event: Self::Event, mut out: Out<'id, Completion>) -> Result<Flow, ProviderError> {
        match event {
            ReadFrame::Text(piece) => {
                self.call = None;
                let index = self.text.index(&mut out);
                let has_news = piece.id.is_some() || piece.model.is_some();
                self.learn(piece.id.as_deref(), piece.model.as_deref());
                let flow = match index {
                    Some(index) if !has_news => out.push(index, piece.text()).map(|()| Flow::More),
                    // Most answers begin like this. It opens no text.
                    None if piece.text().is_empty() => Ok(Flow::More),
                    Some(_) | None => {
                        if index.is_none() {
                            self.text = OpenText::After(out.fresh_index());
                        }
                        let chunk = self.chunk_of(piece.text());
                        self.chat.decode(ChatEvent::Chunk(chunk), out)
                    }
                };
                self.last = match piece.text {
                    PieceText::InFrame(frame) => Some(frame),
                    PieceText::Unescaped(_) => None,
                };
                flow
            }
            ReadFrame::Arguments(piece) => {
                let fragment = CallFragment {
                    arguments: Some(&piece.text),
                    ..CallFragment::default()
                };
                out.fragment(Some(piece.call), fragment)?;
                out.edit(piece.call, |item| piece.append_to(item))?;
                self.appended = Some(piece.call);
                Ok(Flow::More)
            }
            ReadFrame::Other(mut event) => {
                self.text = OpenText::Unknown;
                self.last = None;
                self.call = None;
                if let ChatEvent::Chunk(chunk) = &mut event {
                    self.place_call(chunk, &mut out).map_err(|error| *error)?;
                    self.has_ended |= states_end(chunk);
                    // After the end of an answer, a chunk that completes the arguments of a call closes it.
                    self.call = opened_call(chunk).filter(|_| !self.has_ended);
                    name_cached_tokens(chunk);
                    let stated = |name: &str| chunk.get(name).and_then(Value::as_str);
                    self.learn(stated("id"), stated("model"));
                    self.complete(chunk);
                }
                self.chat.decode(event, out)
            }
        }
    }

    fn eof(&mut self, out: Out<'id, Completion>) -> Result<Flow, ProviderError> {
        self.chat.eof(out)
    }
}

/// A chunk of an answer with a piece of text or of arguments. It has no other keys than these, and those whose type is `()`
/// are null.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the other fields only say what a chunk may have")]
struct PieceChunk<'a> {
    #[serde(borrow)]
    id: Option<&'a str>,
    #[serde(borrow)]
    object: Option<&'a str>,
    #[serde(borrow)]
    model: Option<&'a str>,
    #[serde(borrow)]
    choices: [PieceChoice<'a>; 1],
    #[serde(default)]
    usage: (),
    #[serde(default)]
    created: IgnoredAny,
    #[serde(default)]
    system_fingerprint: IgnoredAny,
    #[serde(default)]
    service_tier: IgnoredAny,
    #[serde(default)]
    obfuscation: IgnoredAny,
    #[serde(default)]
    provider: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the other fields only say what a choice may have")]
struct PieceChoice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(borrow)]
    delta: PieceDelta<'a>,
    #[serde(default)]
    finish_reason: (),
    #[serde(default)]
    native_finish_reason: (),
    #[serde(default)]
    stop_reason: (),
    #[serde(default)]
    logprobs: IgnoredAny,
    #[serde(default)]
    content_filter_results: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the other fields only say what a delta may have")]
struct PieceDelta<'a> {
    #[serde(borrow)]
    content: Option<ChunkText<'a>>,
    #[serde(borrow)]
    tool_calls: Option<[CallPiece<'a>; 1]>,
    #[serde(default)]
    role: IgnoredAny,
    #[serde(default)]
    refusal: (),
    #[serde(default)]
    reasoning_content: (),
    #[serde(default)]
    reasoning: (),
    #[serde(default)]
    function_call: (),
}

/// A text of a chunk. It is borrowed if it has no escapes, which serde does not do in an option of a [`Cow`].
#[derive(Deserialize)]
struct ChunkText<'a>(#[serde(borrow)] Cow<'a, str>);

/// A call of a chunk with a piece of its arguments alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallPiece<'a> {
    index: usize,
    #[serde(borrow)]
    function: FunctionPiece<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionPiece<'a> {
    #[serde(borrow)]
    arguments: Cow<'a, str>,
}

/// The key of a piece of text.
static CONTENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(r#""content""#));
/// The key of a piece of arguments.
static ARGUMENTS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(r#""arguments""#));
/// The key of the name of a call, which only the first piece of its arguments has beside it.
static NAME: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(r#""name""#));
/// The keys that state the kind of a frame.
static KINDS: LazyLock<[Finder<'static>; 2]> = LazyLock::new(|| [r#""object""#, r#""choices""#].map(Finder::new));
/// The key of an error.
static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(r#""error""#));

/// Returns whether a frame may be a chunk with a piece and nothing else. The others need not be parsed to find that out: the
/// beginning of a call, the reason for the end and the usage.
fn may_have_piece(frame: &str) -> bool {
    has_key(frame, &CONTENT) || has_key(frame, &ARGUMENTS) && !has_key(frame, &NAME)
}

fn has_key(frame: &str, key: &Finder<'_>) -> bool {
    key.find(frame.as_bytes()).is_some()
}

/// Returns the index of the call that a chunk opens, if further pieces of its arguments are appended to those in the chunk.
fn opened_call(chunk: &Value) -> Option<usize> {
    let choice = only_item(chunk.get("choices")?)?;
    let is_first = choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0;
    let call = only_item(choice.get("delta")?.get("tool_calls")?)?;
    let kind = call.get("type").and_then(Value::as_str);
    let is_function = kind.is_none_or(|kind| kind == "function");
    let function = call.get("function")?;
    let has_name = !function.get("name")?.as_str()?.is_empty();
    let has_text = function.get("arguments")?.is_string();
    let index = usize::try_from(call.get("index")?.as_u64()?).ok()?;
    (is_first && is_function && has_name && has_text).then_some(index)
}

/// Returns whether a chunk states why the answer has ended.
fn states_end(chunk: &Value) -> bool {
    let choices = chunk.get("choices").and_then(Value::as_array);
    let mut reasons = choices
        .into_iter()
        .flatten()
        .filter_map(|choice| choice.get("finish_reason"));
    reasons.any(Value::is_string)
}

/// Returns the calls of a chunk.
fn calls_in(chunk: &Value) -> impl Iterator<Item = &Value> {
    let calls = chunk.pointer("/choices/0/delta/tool_calls");
    calls.and_then(Value::as_array).into_iter().flatten()
}

/// Returns the first call of a chunk, if it has a name or arguments, but says neither by an index nor by an id which one it is.
fn unplaced_call(chunk: &mut Value) -> Option<&mut Map<String, Value>> {
    let calls = chunk.pointer_mut("/choices/0/delta/tool_calls")?;
    let call = calls.as_array_mut()?.first_mut()?.as_object_mut()?;
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let has_index = call.get("index").is_some_and(Value::is_u64);
    let id = call.get("id");
    let has_id = id.is_some_and(|id| id.is_number() || is_text(id) && id != "null");
    let function = call.get("function")?;
    let starts = function.get("name").is_some_and(is_text) || function.get("arguments").is_some_and(is_text);
    (!has_index && !has_id && starts).then_some(call)
}

/// Returns whether the arguments of a call are an object, or nothing.
fn has_whole_arguments(item: &Value) -> bool {
    let arguments = item.get("function").and_then(|call| call.get("arguments"));
    let arguments = arguments.and_then(Value::as_str).unwrap_or_default();
    arguments.trim().is_empty() || serde_json::from_str::<Map<String, Value>>(arguments).is_ok()
}

/// Returns the item of a list that has one.
fn only_item(list: &Value) -> Option<&Value> {
    match list.as_array()?.as_slice() {
        [item] => Some(item),
        _ => None,
    }
}

/// Returns a frame that is certainly a chunk of an answer: the frame has no error, and the keys that state its kind
/// occur once.
fn read_chunk(frame: &str) -> Option<Value> {
    let occurs_once = |key: &Finder<'_>| key.find_iter(frame.as_bytes()).take(2).count() == 1;
    if !KINDS.iter().all(occurs_once) || has_key(frame, &ERROR) {
        return None;
    }
    let chunk: Value = serde_json::from_str(frame).ok()?;
    let is_chunk = chunk.get("object").and_then(Value::as_str) == Some(CHUNK);
    (is_chunk && chunk.get("choices").is_some()).then_some(chunk)
}

/// The object in the usage of a chunk that has the counts of cached tokens.
const DETAILS: &str = "prompt_tokens_details";
/// The places at which providers count the tokens that were read from a cache, beside `cached_tokens` of the details.
const READ: &[&[&str]] = &[
    &["cache_read_input_tokens"],
    &["cached_tokens"],
    &["num_cached_tokens"],
    &["prompt_cache_hit_tokens"],
];
/// The places at which providers count the tokens that were written to a cache, beside `cache_write_tokens` of the
/// details.
const WRITTEN: &[&[&str]] = &[&["cache_creation_input_tokens"], &[DETAILS, "cache_creation_tokens"]];

/// Gives the counts of cached tokens in the usage of a chunk the names that the decoder of rig-core knows.
fn name_cached_tokens(chunk: &mut Value) {
    let Some(usage) = chunk.get_mut("usage").filter(|usage| usage.is_object()) else {
        return;
    };
    for (known, others) in [("cached_tokens", READ), ("cache_write_tokens", WRITTEN)] {
        let other = others.iter().filter_map(|place| count_at(usage, place)).max();
        let other = other.filter(|count| *count > 0);
        let Some(other) = other.filter(|_| count_at(usage, &[DETAILS, known]).is_none_or(|count| count == 0)) else {
            continue;
        };
        if !usage[DETAILS].is_object() {
            usage[DETAILS] = json!({});
        }
        usage[DETAILS][known] = other.into();
    }
}

/// Returns the count at a place of the usage.
fn count_at(usage: &Value, place: &[&str]) -> Option<u64> {
    let count = place.iter().try_fold(usage, |value, name| value.get(*name))?;
    count.as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: &str =
        r#"{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}"#;

    /// Returns the decoder of an answer whose chunks have stated this id and model last.
    fn decoder(id: &str, model: &str) -> ChunkDecoder<()> {
        ChunkDecoder {
            chat: (),
            id: Some(id.to_owned()),
            model: Some(model.to_owned()),
            text: OpenText::Unknown,
            last: None,
            call: None,
            appended: None,
            has_ended: false,
        }
    }

    /// Returns the piece of text in a frame.
    fn read_text(decoder: &ChunkDecoder<()>, frame: &str) -> Result<TextPiece, String> {
        match decoder.read_piece::<()>(frame.to_owned())? {
            ReadFrame::Text(piece) => Ok(piece),
            ReadFrame::Arguments(_) | ReadFrame::Other(()) => panic!("{frame} is no piece of text"),
        }
    }

    #[test]
    fn the_frames_of_an_answer_that_cannot_be_pieces_are_known_by_their_keys() {
        let frame = |choice: &str| CHUNK.replace(r#"{"index":0,"delta":{"content":"a"}}"#, choice);
        let calls = |function: &str| {
            let call = format!(r#"{{"index":0,"function":{{{function}}}}}"#);
            frame(&format!(r#"{{"index":0,"delta":{{"tool_calls":[{call}]}}}}"#))
        };
        let pieces = [
            CHUNK.to_owned(),
            calls(r#""arguments":"{\"q\":""#),
            calls(r#""arguments":"{\"name\":""#),
        ];
        for piece in pieces {
            assert!(may_have_piece(&piece), "{piece}");
        }
        let others = [
            frame(r#"{"index":0,"delta":{},"finish_reason":"stop"}"#),
            calls(r#""name":"look","arguments":"""#),
            frame("").replace('}', r#","usage":{"prompt_tokens":1}}"#),
            "[DONE]".to_owned(),
        ];
        for other in others {
            assert!(!may_have_piece(&other), "{other}");
            assert_eq!(read_chunk(&other).is_some(), other != "[DONE]", "{other}");
        }
    }

    #[test]
    fn a_chunk_with_text_alone_is_a_piece_with_what_is_new_about_the_answer() {
        let chunk = |delta: &str, more: &str| {
            format!(
                r#"{{"id":"c","model":"m","choices":[{{"index":0,"delta":{{{delta}}},"finish_reason":null}}]{more}}}"#
            )
        };
        let usual = r#","object":"chat.completion.chunk","created":1,"usage":null,"service_tier":"default""#;
        let frames = [
            chunk(r#""content":"a \"b\"""#, ""),
            chunk(r#""content":"a \"b\"""#, usual),
            chunk(
                r#""role":"assistant","content":"a \"b\"","refusal":null,"reasoning_content":null"#,
                "",
            ),
        ];
        for frame in frames {
            for (id, model, news) in [("c", "m", None), ("d", "n", Some(["c", "m"]))] {
                let piece = read_text(&decoder(id, model), &frame).expect("a piece of text");
                assert_eq!(piece.text(), r#"a "b""#, "{frame}");
                assert_eq!(piece.id.as_deref(), news.map(|[id, _]| id), "{frame}");
                assert_eq!(piece.model.as_deref(), news.map(|[_, model]| model), "{frame}");
            }
        }
    }

    #[test]
    fn a_chunk_with_anything_beside_its_text_is_no_piece_of_text() {
        let text = r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}"#;
        assert!(read_text(&decoder("c", "m"), text).is_ok());
        let others = [
            text.replace("null", r#""stop""#),
            text.replace(r#""index":0"#, r#""index":1"#),
            text.replace(r#""content":"a""#, r#""content":null"#),
            text.replace(r#""content":"a""#, r#""content":[]"#),
            text.replace(r#""content":"a""#, r#""content":"a","content":"b""#),
            text.replace(r#""content":"a""#, r#""content":"a","reasoning_content":"b""#),
            text.replace(r#""content":"a""#, r#""content":"a","annotations":[]"#),
            text.replace(r#""content":"a""#, r#""content":"a","tool_calls":[]"#),
            text.replace(r#""id":"c""#, r#""usage":{"total_tokens":1}"#),
            text.replace(r#""id":"c""#, r#""citations":["u"]"#),
            text.replace(r#""id":"c""#, r#""error":{"message":"no"}"#),
            text.replace(r#""id":"c""#, r#""object":"chat.completion""#),
            text.replace("]}", r#",{"index":1,"delta":{"content":"b"}}]}"#),
            text.replace("]}", "]"),
            "[DONE]".to_owned(),
        ];
        for frame in others {
            let read = read_text(&decoder("c", "m"), &frame).map(|piece| piece.text().to_owned());
            assert_eq!(read, Err(frame));
        }
    }

    #[test]
    fn a_frame_with_another_text_alone_is_found_without_its_escapes() {
        let frame = |text: &str| format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#);
        let piece = read_text(&decoder("c", "m"), &frame("a b")).expect("a piece of text");
        let PieceText::InFrame(last) = piece.text else {
            panic!("the text has no escapes")
        };
        for text in ["", "c", "ä€", "a b a b"] {
            let other = frame(text);
            let found = last.find_text(&other).map(|text| &other[text]);
            assert_eq!(found, Some(text));
        }
        for text in [r"\n", r#"\""#, r#"a","role":"b"#, "\n", "\u{1}"] {
            assert_eq!(last.find_text(&frame(text)), None, "{text}");
        }
        for other in [frame("c").replace("null", "1"), frame("c") + " ", String::new()] {
            assert_eq!(last.find_text(&other), None, "{other}");
        }
    }

    #[test]
    fn a_chunk_states_what_is_known_about_the_answer() {
        let decoder = decoder("c", "m");
        let mut chunk = json!({"model": "n", "choices": []});
        decoder.complete(&mut chunk);
        assert_eq!(chunk, json!({"id": "c", "model": "n", "choices": []}));
    }

    #[test]
    fn a_chunk_with_arguments_of_the_open_call_alone_is_a_piece() {
        let frame = |call: &str| format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{{"tool_calls":[{call}]}}}}]}}"#);
        let opening = frame(
            r#"{"index":1,"id":"call_1","type":"function","function":{"name":"look_up","arguments":"{\"q\": "}}"#,
        );
        let mut chunk: Value = serde_json::from_str(&opening).expect("JSON");
        assert_eq!(opened_call(&chunk), Some(1));
        let open = ChunkDecoder {
            call: Some(1),
            ..decoder("c", "m")
        };
        let piece = frame(r#"{"index":1,"function":{"arguments":"\"a\"}"}}"#);
        let Ok(ReadFrame::Arguments(read)) = open.read_piece::<()>(piece.clone()) else {
            panic!("{piece} is a piece of arguments")
        };
        let item = &mut chunk["choices"][0]["delta"]["tool_calls"][0];
        read.append_to(item);
        assert_eq!(item["function"]["arguments"], r#"{"q": "a"}"#);
        item["function"]["arguments"] = json!("null");
        read.append_to(item);
        assert_eq!(
            item["function"]["arguments"], r#""a"}"#,
            "it takes the place of the word for none"
        );
        let others = [
            piece.replace(r#""index":1"#, r#""index":2"#),
            piece.replace(r#""index":1,"#, ""),
            piece.replace(r#""index":1"#, r#""index":1,"id":"call_2""#),
            piece.replace(r#""function":{"#, r#""function":{"name":"x","#),
            piece.replace(r#""delta":{"#, r#""delta":{"content":"a","#),
            piece.replace(r#""id":"c""#, r#""id":"d""#),
            piece.replace("]}}]", r#"]},"finish_reason":"tool_calls"}]"#),
        ];
        for other in others {
            assert!(open.read_piece::<()>(other.clone()).is_err(), "{other}");
        }
        assert!(decoder("c", "m").read_piece::<()>(piece).is_err(), "no call is open");
    }

    #[test]
    fn a_chunk_opens_a_call_if_its_arguments_are_a_text_that_grows() {
        let chunk = json!({"choices": [{"index": 0, "delta": {"tool_calls": [
            {"index": 0, "type": "function", "function": {"name": "a", "arguments": ""}},
        ]}}]});
        assert_eq!(opened_call(&chunk), Some(0));
        let others = [
            ("/choices/0/index", json!(1)),
            ("/choices/0/delta/tool_calls", json!([])),
            ("/choices/0/delta/tool_calls/0/index", json!(null)),
            ("/choices/0/delta/tool_calls/0/type", json!("custom")),
            ("/choices/0/delta/tool_calls/0/function/name", json!("")),
            ("/choices/0/delta/tool_calls/0/function/arguments", json!({})),
            ("/choices/0/delta/tool_calls/0/function/arguments", json!(null)),
        ];
        for (place, value) in others {
            let mut other = chunk.clone();
            *other.pointer_mut(place).expect("a value") = value;
            assert_eq!(opened_call(&other), None, "{other}");
        }
    }

    #[test]
    fn a_call_without_an_index_and_an_id_has_no_place() {
        let chunk = |call: &Value| json!({"choices": [{"delta": {"tool_calls": [call]}}]});
        let piece = json!({"id": null, "function": {"arguments": "{"}});
        assert!(unplaced_call(&mut chunk(&piece)).is_some());
        assert!(unplaced_call(&mut chunk(&json!({"id": "", "function": {"name": "a"}}))).is_some());
        let others = [
            json!({"index": 0, "function": {"arguments": "{"}}),
            json!({"id": "call_1", "function": {"arguments": "{"}}),
            json!({"id": 1, "function": {"arguments": "{"}}),
            json!({"function": {"arguments": ""}}),
            json!({}),
        ];
        for other in others {
            assert!(unplaced_call(&mut chunk(&other)).is_none(), "{other}");
        }
        for (arguments, expected) in [("", true), ("{}", true), ("{", false), ("[]", false)] {
            let item = json!({"function": {"arguments": arguments}});
            assert_eq!(has_whole_arguments(&item), expected, "{arguments}");
        }
    }

    #[test]
    fn a_chunk_states_the_end_with_a_reason() {
        for (reason, expected) in [(json!("tool_calls"), true), (json!(null), false)] {
            let chunk = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
            assert_eq!(states_end(&chunk), expected);
        }
        assert!(!states_end(&json!({"choices": []})));
    }

    #[test]
    fn a_chunk_is_read_whole() {
        let text =
            r#"{"object":"chat.completion.chunk","choices":[{"delta":{"content":"an \"error\" in \"choices\""}}]}"#;
        for frame in [CHUNK, text] {
            let read = read_chunk(frame);
            assert_eq!(read, serde_json::from_str(frame).ok(), "{frame}");
            assert!(read.is_some(), "{frame}");
        }
    }

    #[test]
    fn frames_that_may_be_anything_else_are_left_to_the_library() {
        let others = [
            "[DONE]".to_owned(),
            String::new(),
            CHUNK[..CHUNK.len() - 1].to_owned(),
            CHUNK.replace("chat.completion.chunk", "chat.completion"),
            CHUNK.replace(r#""object":"chat.completion.chunk","#, ""),
            CHUNK.replace(r#""id":"c""#, r#""error":{"message":"no"}"#),
            CHUNK.replace(r#""id":"c""#, r#""choices":[]"#),
            CHUNK.replace(r#""id":"c""#, r#""object":"x""#),
            json!([CHUNK]).to_string(),
            json!({"data": {"object": "chat.completion.chunk", "choices": []}}).to_string(),
        ];
        for frame in others {
            assert_eq!(read_chunk(&frame), None, "{frame}");
        }
    }
}
