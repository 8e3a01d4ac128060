//! OpenAI's chat completions, whose frames are parsed once.
//!
//! An answer has a frame for each token. The decoder of rig-core parses each frame four times before it decodes it: it
//! looks for an error, for a key that occurs twice, and for the kind of the frame. That was a fifth of what a streamed
//! token costs the server. [`SingleParse`] parses a frame once, and leaves those that may be anything but a chunk to
//! the decoder of rig-core.

use rig_core::completion::CompletionRequest;
use rig_core::error::{EncodeError, ProviderError};
use rig_core::operation::Completion;
use rig_core::providers::openai::wire::Chat;
use rig_core::wire::{Decoder, Descriptor, Encoded, Flow, Mode, Out, Wire, WireEvent, WireFrame};
use serde_json::Value;

use super::trimmed::Trimmed;

/// The decoder of rig-core.
type ChatDecoder<'id> = <Chat as Wire>::Decoder<'id>;
/// A frame that the decoder of rig-core has classified.
type ChatEvent<'id> = <ChatDecoder<'id> as Decoder<'id, Completion>>::Event;

/// The wire format, or its decoder, with frames that are parsed once.
#[derive(Clone)]
pub(super) struct SingleParse<T>(pub(super) T);

impl Wire for SingleParse<Trimmed<Chat>> {
    type Op = Completion;
    type Payload = Encoded;
    type Frame = WireFrame;
    type Decoder<'id> = SingleParse<ChatDecoder<'id>>;
    type Reassembler = <Trimmed<Chat> as Wire>::Reassembler;

    fn describe(&self) -> Descriptor<'_> {
        self.0.describe()
    }

    fn encode(&self, request: CompletionRequest, mode: Mode) -> Result<Encoded, EncodeError> {
        self.0.encode(request, mode)
    }

    fn decoder<'id>(&self) -> Self::Decoder<'id> {
        SingleParse(self.0.decoder())
    }

    fn reassembler(&self) -> Self::Reassembler {
        self.0.reassembler()
    }
}

impl<'id> Decoder<'id, Completion> for SingleParse<ChatDecoder<'id>> {
    type Event = ChatEvent<'id>;

    fn classify(&self, frame: WireFrame) -> WireEvent<Self::Event> {
        match read_chunk(&frame.as_str()) {
            Some(chunk) => WireEvent::Known(ChatEvent::Chunk(chunk)),
            None => self.0.classify(frame),
        }
    }

    fn decode(&mut self, event: Self::Event, out: Out<'id, Completion>) -> Result<Flow, ProviderError> {
        self.0.decode(event, out)
    }

    fn eof(&mut self, out: Out<'id, Completion>) -> Result<Flow, ProviderError> {
        self.0.eof(out)
    }
}

/// Returns a frame that says that it is a chunk of an answer, if it can be nothing else: it has no error, and the keys
/// that say what it is occur once.
fn read_chunk(frame: &str) -> Option<Value> {
    let occurs_once = |key: &str| frame.matches(key).take(2).count() == 1;
    if !occurs_once(r#""object""#) || !occurs_once(r#""choices""#) || frame.contains(r#""error""#) {
        return None;
    }
    let chunk: Value = serde_json::from_str(frame).ok()?;
    let is_chunk = chunk.get("object").and_then(Value::as_str) == Some("chat.completion.chunk");
    (is_chunk && chunk.get("choices").is_some()).then_some(chunk)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CHUNK: &str =
        r#"{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}"#;

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
