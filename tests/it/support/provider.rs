//! A fake model provider: one server that speaks the protocols of several providers and follows instructions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use adjutant::shutdown::Shutdown;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::starts_service;

/// The reaction to the next request.
#[derive(Debug, Clone)]
pub(crate) enum Turn {
    /// Answers with this text, in two pieces.
    Says(&'static str),
    /// Calls `lookup` with these queries in parallel.
    LooksUp(Vec<&'static str>),
    /// Fails with this status and this `retry-after`.
    Refuses(u16, Option<&'static str>),
    /// Fails with the status 400 and this reason.
    Objects(&'static str),
    /// Closes the connection after half a word.
    BreaksOff,
    /// Returns these embeddings.
    Points(Vec<[f32; 2]>),
    /// Answers with the pieces of a dictation, as they are dictated. Only the protocol of OpenAI has it.
    Dictated(DictatedPieces),
}

/// The pieces of a dictation, which one answer takes.
pub(crate) type DictatedPieces = Arc<Mutex<Option<mpsc::UnboundedReceiver<String>>>>;

/// An answer that the test says piece by piece. It ends when this is dropped.
pub(crate) struct Dictation(mpsc::UnboundedSender<String>);

impl Dictation {
    /// Returns whether the server reads the answer no more.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.0.is_closed()
    }

    /// Says the next piece.
    pub(crate) fn says(&self, piece: &str) {
        self.0.send(piece.to_owned()).expect("the server listens");
    }

    /// Ends the answer.
    pub(crate) fn ends(self) {
        drop(self);
    }
}

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct ModelCall {
    /// The path.
    pub(crate) path: String,
    /// The key, in whichever place the protocol has it.
    pub(crate) key: Option<String>,
    /// The context of the trace, if the request has one.
    pub(crate) traceparent: Option<String>,
    /// All headers, with lower-case names.
    pub(crate) headers: HeaderMap,
    /// The body as text.
    pub(crate) body: String,
}

impl ModelCall {
    /// Returns the body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

/// A fake provider.
#[derive(Debug, Clone)]
pub(crate) struct Provider {
    /// The address of the provider.
    pub(crate) base: String,
    state: Arc<Mutex<ProviderState>>,
}

#[derive(Debug, Default)]
struct ProviderState {
    turns: VecDeque<Turn>,
    asked: Vec<ModelCall>,
}

impl Provider {
    /// Starts a provider.
    pub(crate) async fn start(shutdown: &Shutdown) -> Self {
        let state = Arc::new(Mutex::new(ProviderState::default()));
        let router = Router::new().fallback(serve).with_state(Arc::clone(&state));
        let base = starts_service("models", router, shutdown).await;
        Self { base, state }
    }

    /// Queues reactions to the next requests.
    pub(crate) fn will(&self, turns: impl IntoIterator<Item = Turn>) {
        self.state.lock().unwrap().turns.extend(turns);
    }

    /// Answers the next request with what the test says.
    pub(crate) fn will_be_dictated(&self) -> Dictation {
        let (pieces, dictated) = mpsc::unbounded_channel();
        self.will([Turn::Dictated(Arc::new(Mutex::new(Some(dictated))))]);
        Dictation(pieces)
    }

    /// Returns the requests so far.
    pub(crate) fn asked(&self) -> Vec<ModelCall> {
        self.state.lock().unwrap().asked.clone()
    }
}

async fn serve(State(state): State<Arc<Mutex<ProviderState>>>, uri: Uri, headers: HeaderMap, body: String) -> Response {
    let header = |name: &str| headers.get(name)?.to_str().ok().map(str::to_owned);
    let in_query = uri
        .query()
        .and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("key=")));
    let key = header("authorization")
        .map(|key| key.trim_start_matches("Bearer ").to_owned())
        .or_else(|| header("x-api-key"))
        .or_else(|| header("x-goog-api-key"))
        .or_else(|| in_query.map(str::to_owned));
    let path = uri.path().to_owned();
    let turn = {
        let mut state = state.lock().unwrap();
        state.asked.push(ModelCall {
            path: path.clone(),
            key,
            traceparent: header("traceparent"),
            headers: headers.clone(),
            body,
        });
        state.turns.pop_front()
    };
    let frames = match turn {
        Some(Turn::Refuses(status, again)) => return refusal(status, again, "no"),
        Some(Turn::Objects(reason)) => return refusal(400, None, reason),
        None => return refusal(418, None, "no"),
        Some(Turn::Dictated(pieces)) => return dictated(&pieces),
        Some(Turn::Points(vectors)) if path.ends_with("/embeddings") => return embeddings(&vectors),
        Some(turn) => match path.as_str() {
            path if path.ends_with("/chat/completions") => openai(&turn),
            path if path.ends_with("/responses") => responses(&turn),
            path if path.ends_with("/messages") => anthropic(&turn),
            path if path.contains(":streamGenerateContent") => google(&turn),
            _ => return refusal(404, None, "no"),
        },
    };
    ([("content-type", "text/event-stream")], Body::from(frames.concat())).into_response()
}

/// Returns the response of an embeddings endpoint.
fn embeddings(vectors: &[[f32; 2]]) -> Response {
    let one = |(at, vector): (usize, &[f32; 2])| json!({"object": "embedding", "index": at, "embedding": vector});
    let data: Vec<Value> = vectors.iter().enumerate().map(one).collect();
    let usage = json!({"prompt_tokens": 3, "total_tokens": 3});
    axum::Json(json!({"object": "list", "model": "e-1", "data": data, "usage": usage})).into_response()
}

fn refusal(status: u16, again: Option<&str>, reason: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    let body = json!({"error": {"message": reason, "type": "refused", "code": status.as_u16(), "status": "REFUSED"}});
    let mut response = (status, axum::Json(body)).into_response();
    if let Some(again) = again {
        response.headers_mut().insert("retry-after", again.parse().unwrap());
    }
    response
}

/// Splits the text into two pieces.
fn halves(text: &str) -> [&str; 2] {
    text.split_at(text.len() / 2).into()
}

/// Streams the pieces of a dictation as they come.
fn dictated(pieces: &DictatedPieces) -> Response {
    let pieces = pieces.lock().unwrap().take().expect("a dictation is answered once");
    let frames = stream::unfold(Some(pieces), |pieces| async {
        let mut pieces = pieces?;
        Some(match pieces.recv().await {
            Some(piece) => (openai_chunk(json!({"content": piece}), Value::Null), Some(pieces)),
            None => (openai_chunk(json!({}), json!("stop")) + &openai_end().concat(), None),
        })
    });
    let frames = futures::StreamExt::map(frames, Ok::<_, std::convert::Infallible>);
    ([("content-type", "text/event-stream")], Body::from_stream(frames)).into_response()
}

fn openai_chunk(delta: Value, end: Value) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": end});
    let chunk =
        json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-1", "choices": [choice]});
    format!("data: {chunk}\n\n")
}

/// Returns the events at the end of an answer.
fn openai_end() -> [String; 2] {
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13});
    let last = json!({"id": "c", "model": "m-1", "choices": [], "usage": usage});
    [format!("data: {last}\n\n"), "data: [DONE]\n\n".to_owned()]
}

fn openai(turn: &Turn) -> Vec<String> {
    let chunk = openai_chunk;
    let end = openai_end();
    match turn {
        Turn::Says(text) => {
            let pieces = halves(text).map(|piece| chunk(json!({"content": piece}), Value::Null));
            pieces
                .into_iter()
                .chain([chunk(json!({}), json!("stop"))])
                .chain(end)
                .collect()
        }
        Turn::LooksUp(queries) => {
            let call = |(at, query): (usize, &&str)| {
                let function = json!({"name": "lookup", "arguments": json!({"query": query}).to_string()});
                let call =
                    json!({"index": at, "id": format!("call_{query}"), "type": "function", "function": function});
                chunk(json!({"tool_calls": [call]}), Value::Null)
            };
            let calls = queries.iter().enumerate().map(call);
            calls
                .chain([chunk(json!({}), json!("tool_calls"))])
                .chain(end)
                .collect()
        }
        Turn::BreaksOff | Turn::Refuses(..) | Turn::Objects(_) | Turn::Points(_) | Turn::Dictated(_) => {
            vec![chunk(json!({"content": "hal"}), Value::Null)]
        }
    }
}

/// Returns the events of OpenAI's responses. Before calls there is reasoning about the first query.
fn responses(turn: &Turn) -> Vec<String> {
    let event = |value: Value| format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap());
    let response = |status: &str, output: Value| {
        let usage = json!({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 5}, "output_tokens": 4,
            "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 13});
        json!({"id": "resp_1", "object": "response", "status": status, "model": "m-1", "output": output, "usage": usage})
    };
    let mut events = vec![event(
        json!({"type": "response.created", "response": response("in_progress", json!([]))}),
    )];
    let mut items = vec![];
    let mut item = |begin: Value, deltas: Vec<Value>, end: Value| {
        let at = items.len();
        events.push(event(
            json!({"type": "response.output_item.added", "output_index": at, "item": begin}),
        ));
        for mut delta in deltas {
            delta["output_index"] = json!(at);
            delta["item_id"] = end["id"].clone();
            events.push(event(delta));
        }
        events.push(event(
            json!({"type": "response.output_item.done", "output_index": at, "item": end}),
        ));
        items.push(end);
    };
    match turn {
        Turn::Says(text) => {
            let delta = |piece: &str| json!({"type": "response.output_text.delta", "content_index": 0, "delta": piece});
            let message = |status: &str, content: Value| json!({"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": content});
            let content = json!([{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]);
            item(
                message("in_progress", json!([])),
                halves(text).map(delta).into(),
                message("completed", content),
            );
        }
        Turn::LooksUp(queries) => {
            let thought = format!("thinking of {}", queries[0]);
            let delta = json!({"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": thought});
            let reasoning = |summary: Value| {
                json!({"id": "rs_1", "type": "reasoning", "summary": summary,
                    "encrypted_content": format!("sealed-{}", queries[0])})
            };
            let summary = json!([{"type": "summary_text", "text": thought}]);
            item(reasoning(json!([])), vec![delta], reasoning(summary));
            for query in queries {
                let call = |status: &str, args: &str| {
                    json!({"id": format!("fc_{query}"), "type": "function_call", "status": status,
                        "call_id": format!("call_{query}"), "name": "lookup", "arguments": args})
                };
                let args = json!({"query": query}).to_string();
                let delta = json!({"type": "response.function_call_arguments.delta", "delta": args});
                item(call("in_progress", ""), vec![delta], call("completed", &args));
            }
        }
        Turn::BreaksOff | Turn::Refuses(..) | Turn::Objects(_) | Turn::Points(_) | Turn::Dictated(_) => {
            let delta = json!({"type": "response.output_text.delta", "content_index": 0, "delta": "hal"});
            item(
                json!({"id": "msg_1", "type": "message"}),
                vec![delta],
                json!({"id": "msg_1"}),
            );
            events.pop();
            return events;
        }
    }
    events.push(event(
        json!({"type": "response.completed", "response": response("completed", Value::Array(items))}),
    ));
    events
}

fn anthropic(turn: &Turn) -> Vec<String> {
    let frame = |value: Value| format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap());
    let usage = json!({"input_tokens": 9, "output_tokens": 1});
    let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m-1", "content": [],
        "stop_reason": null, "usage": usage});
    let mut frames = vec![frame(json!({"type": "message_start", "message": message}))];
    let mut block = |at: usize, begin: Value, deltas: Vec<Value>| {
        frames.push(frame(
            json!({"type": "content_block_start", "index": at, "content_block": begin}),
        ));
        let delta = |delta| frame(json!({"type": "content_block_delta", "index": at, "delta": delta}));
        frames.extend(deltas.into_iter().map(delta));
        frames.push(frame(json!({"type": "content_block_stop", "index": at})));
    };
    let reason = match turn {
        Turn::Says(text) => {
            let deltas = halves(text).map(|piece| json!({"type": "text_delta", "text": piece}));
            block(0, json!({"type": "text", "text": ""}), deltas.into());
            "end_turn"
        }
        Turn::LooksUp(queries) => {
            for (at, query) in queries.iter().enumerate() {
                let begin = json!({"type": "tool_use", "id": format!("call_{query}"), "name": "lookup", "input": {}});
                let args = json!({"query": query}).to_string();
                block(
                    at,
                    begin,
                    vec![json!({"type": "input_json_delta", "partial_json": args})],
                );
            }
            "tool_use"
        }
        Turn::BreaksOff | Turn::Refuses(..) | Turn::Objects(_) | Turn::Points(_) | Turn::Dictated(_) => {
            block(
                0,
                json!({"type": "text", "text": ""}),
                vec![json!({"type": "text_delta", "text": "hal"})],
            );
            frames.pop();
            return frames;
        }
    };
    let delta = json!({"stop_reason": reason, "stop_sequence": null});
    frames.push(frame(
        json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 4}}),
    ));
    frames.push(frame(json!({"type": "message_stop"})));
    frames
}

fn google(turn: &Turn) -> Vec<String> {
    let usage = json!({"promptTokenCount": 9, "candidatesTokenCount": 4, "totalTokenCount": 13});
    let frame = |parts: Value, end: Option<&str>| {
        let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
        let mut answer = json!({"modelVersion": "m-1"});
        if let Some(reason) = end {
            candidate["finishReason"] = json!(reason);
            answer["usageMetadata"] = usage.clone();
        }
        answer["candidates"] = json!([candidate]);
        format!("data: {answer}\n\n")
    };
    match turn {
        Turn::Says(text) => {
            let [first, second] = halves(text);
            vec![
                frame(json!([{"text": first}]), None),
                frame(json!([{"text": second}]), Some("STOP")),
            ]
        }
        Turn::LooksUp(queries) => {
            let call = |query| json!({"functionCall": {"name": "lookup", "args": {"query": query}}});
            vec![frame(queries.iter().map(call).collect(), Some("STOP"))]
        }
        Turn::BreaksOff | Turn::Refuses(..) | Turn::Objects(_) | Turn::Points(_) | Turn::Dictated(_) => {
            vec![frame(json!([{"text": "hal"}]), None)]
        }
    }
}
