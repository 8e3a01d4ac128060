//! The stream of a thread over a WebSocket: everything on one line.

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::support::viewer::{Viewer, until_ends};
use crate::support::{TestServer, mail, on_both_engines, script, task};

/// A WebSocket of a client.
struct Line {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// The events that were received before they were read.
    events: Vec<Value>,
}

impl Line {
    async fn opens(server: &TestServer, thread: &str) -> Self {
        let opened = connect_async(server.client().socket_request(thread)).await;
        Self {
            socket: opened.expect("a line").0,
            events: vec![],
        }
    }

    async fn says(&mut self, text: impl Into<String>) {
        self.socket
            .send(Message::text(text.into()))
            .await
            .expect("the line is open");
    }

    async fn hears(&mut self) -> Value {
        loop {
            match self
                .socket
                .next()
                .await
                .expect("the line is open")
                .expect("the line works")
            {
                Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
                Message::Ping(_) | Message::Pong(_) => {}
                other @ (Message::Binary(_) | Message::Close(_) | Message::Frame(_)) => panic!("{other:?}"),
            }
        }
    }

    /// Sends a command and returns its response.
    async fn answer(&mut self) -> Value {
        loop {
            let heard = self.hears().await;
            if heard["type"] != "event" {
                return heard;
            }
            self.events.push(heard);
        }
    }

    async fn commands(&mut self, id: i64, method: &str, params: Value) -> Value {
        self.says(json!({"id": id, "method": method, "params": params}).to_string())
            .await;
        let answer = self.answer().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// Returns the events up to the end of a run.
    async fn until_ends(&mut self) -> Vec<Value> {
        loop {
            let ended = |event: &Value| {
                let word = event["params"]["data"]["event"].as_str().unwrap_or_default();
                let is_root = event["params"]["namespace"] == json!([]);
                event["method"] == "lifecycle" && is_root && ["completed", "failed", "interrupted"].contains(&word)
            };
            if let Some(at) = self.events.iter().position(ended) {
                return self.events.drain(..=at).collect();
            }
            let heard = self.hears().await;
            assert_eq!(heard["type"], "event", "{heard}");
            self.events.push(heard);
        }
    }
}

fn start(text: impl ToString) -> Value {
    json!({"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": text.to_string()}]}})
}

fn methods(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["method"].as_str().unwrap()).collect()
}

on_both_engines! {
    an_invalid_command_keeps_the_websocket_open,
    one_websocket_has_commands_responses_and_events,
    a_subscription_starts_with_past_events_without_duplicates,
    each_subscription_of_a_websocket_has_the_past_events_of_a_stream,
    a_broken_websocket_is_resumed_at_its_position,
    a_websocket_is_closed_for_a_restart_when_its_server_stops,
    a_reader_behind_the_start_of_the_log_is_refused,
    an_answer_with_the_wrong_namespace_is_refused,
    too_many_websockets_are_refused,
    a_request_that_is_no_websocket_learns_where_the_events_are,
}

async fn an_invalid_command_keeps_the_websocket_open(server: TestServer) {
    let mut line = Line::opens(&server, &Viewer::of_new(&server).thread).await;
    for (text, id, code) in [
        ("{nope", Value::Null, "invalid_argument"),
        ("7", Value::Null, "invalid_argument"),
        ("{\"id\": 1}", json!(1), "invalid_argument"),
        (
            "{\"id\": 2, \"method\": \"no.such\", \"params\": {}}",
            json!(2),
            "unknown_command",
        ),
        ("{\"id\": 3, \"method\": \"agent.getTree\"}", json!(3), "no_such_run"),
        (
            "{\"id\": 4, \"method\": \"subscription.subscribe\", \"params\": {\"channels\": [\"x\"]}}",
            json!(4),
            "invalid_argument",
        ),
        (
            "{\"id\": 5, \"method\": \"subscription.reconnect\", \"params\": {\"channels\": [\"values\"]}}",
            json!(5),
            "invalid_argument",
        ),
    ] {
        line.says(text).await;
        let answer = line.answer().await;
        assert_eq!(&answer["type"], &json!("error"), "{text}");
        assert_eq!(&answer["id"], &id, "{text}");
        assert_eq!(&answer["error"], &json!(code), "{text}");
    }
    line.socket.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    assert_eq!(line.answer().await["error"], "invalid_argument");
    let answer = line
        .commands(6, "subscription.subscribe", json!({"channels": ["lifecycle"]}))
        .await;
    assert_eq!(&answer["type"], &json!("success"));
    assert_eq!(&answer["result"]["replayed_events"], &json!(0));
}

async fn one_websocket_has_commands_responses_and_events(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let mut line = Line::opens(&server, &viewer.thread).await;
    line.commands(
        1,
        "subscription.subscribe",
        json!({"channels": ["lifecycle", "values"]}),
    )
    .await;
    let started = line.commands(2, "run.start", start("hello")).await;
    let run = started["result"]["run_id"].as_str().unwrap().to_owned();
    let events = line.until_ends().await;
    assert_eq!(methods(&events), ["lifecycle", "values", "values", "lifecycle"]);
    assert_eq!(events[0]["event_id"], format!("synth:{run}:lc||running"));
    let tree = line.commands(3, "agent.getTree", json!({})).await;
    assert_eq!(
        tree["result"]["tree"],
        json!({"namespace": [], "status": "completed", "graph_name": "agent"})
    );
    // Events of another client's run come on the same line.
    viewer.starts("agent", "again").await;
    assert_eq!(
        methods(&line.until_ends().await),
        ["lifecycle", "values", "values", "lifecycle"]
    );
    let over_http = viewer.replays(2).await;
    let same = |event: &Value| over_http.iter().any(|frame| frame.data == *event);
    assert!(events.iter().all(same), "{events:#?}");
}

async fn a_subscription_starts_with_past_events_without_duplicates(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    viewer.starts("agent", "first").await;
    viewer.replays(1).await;
    let mut line = Line::opens(&server, &viewer.thread).await;
    let first = line
        .commands(1, "subscription.subscribe", json!({"channels": ["lifecycle"]}))
        .await;
    assert_eq!(first["result"]["replayed_events"].as_u64(), Some(2));
    assert_eq!(line.events.len(), 2);
    let second = line
        .commands(
            2,
            "subscription.subscribe",
            json!({"channels": ["lifecycle", "values"]}),
        )
        .await;
    assert_eq!(second["result"]["replayed_events"].as_u64(), Some(4));
    assert_eq!(line.events.len(), 6);
    line.events.clear();
    viewer.starts("agent", "second").await;
    assert_eq!(
        methods(&line.until_ends().await),
        ["lifecycle", "values", "values", "lifecycle"]
    );
    let id = second["result"]["subscription_id"].clone();
    let params = json!({"subscription_id": id});
    assert_eq!(
        line.commands(3, "subscription.unsubscribe", params.clone()).await["result"],
        json!({})
    );
    assert_eq!(
        line.commands(4, "subscription.unsubscribe", params).await["error"],
        "no_such_subscription"
    );
    viewer.starts("agent", "third").await;
    assert_eq!(methods(&line.until_ends().await), ["lifecycle", "lifecycle"]);
}

async fn each_subscription_of_a_websocket_has_the_past_events_of_a_stream(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let filter = json!({"channels": ["values", "lifecycle"]});
    let mut live = viewer.opens(filter.clone()).await;
    for _ in 0..4 {
        viewer.starts("plain", "x".repeat(60_000)).await;
        until_ends(&mut live, 1).await;
    }
    let past = until_ends(&mut viewer.opens(filter.clone()).await, 4).await;
    let past: Vec<Value> = past.into_iter().map(|frame| frame.data).collect();
    let states = methods(&past).into_iter().filter(|method| *method == "values");
    assert_eq!(states.count(), 7, "the last but one is left out");
    let mut line = Line::opens(&server, &viewer.thread).await;
    for id in [1, 2] {
        line.commands(id, "subscription.subscribe", filter.clone()).await;
        assert!(line.events == past, "subscription {id}");
        line.events.clear();
    }
}

async fn a_broken_websocket_is_resumed_at_its_position(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    viewer.starts("agent", "hello").await;
    let past = viewer.replays(1).await;
    let channels = ["lifecycle", "values", "checkpoints"];
    let known: Vec<_> = past
        .iter()
        .filter(|frame| channels.contains(&frame.event.as_str()))
        .collect();
    let mut line = Line::opens(&server, &viewer.thread).await;
    let params = json!({"channels": channels, "since": known[1].data["seq"], "subscription_id": "mine"});
    let answer = line.commands(1, "subscription.reconnect", params).await;
    assert_eq!(answer["result"]["subscription_id"], "mine");
    let rest: Vec<Value> = known[2..].iter().map(|frame| frame.data.clone()).collect();
    assert_eq!(line.events, rest);
}

async fn a_reader_behind_the_start_of_the_log_is_refused(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    viewer.starts("agent", "hello").await;
    let since = viewer.replays(1).await[0].data["seq"].as_i64().unwrap();
    let prune = json!({"thread_ids": [viewer.thread], "strategy": "keep_latest"});
    assert_eq!(
        server.client().post("/threads/prune", prune).await.ok()["pruned_count"],
        1
    );
    let mut line = Line::opens(&server, &viewer.thread).await;
    let params = |since: i64| json!({"channels": ["lifecycle"], "since": since});
    let gap = line.commands(1, "subscription.reconnect", params(since)).await;
    assert_eq!(&gap["error"], &json!("resume_gap"));
    assert_eq!(&gap["since"], &json!(since));
    let available = gap["min_available_seq"].as_i64().unwrap();
    assert!(available > since, "{gap}");
    let answer = line.commands(2, "subscription.reconnect", params(available)).await;
    assert_eq!(answer["type"], "success", "{answer}");
    assert_eq!(line.events.last().unwrap()["params"]["data"]["event"], "completed");
}

async fn an_answer_with_the_wrong_namespace_is_refused(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let mut line = Line::opens(&server, &viewer.thread).await;
    line.commands(1, "subscription.subscribe", json!({"channels": ["lifecycle", "input"]}))
        .await;
    let mailer = script().calls(mail("m1", "bob")).says("sent");
    line.commands(
        2,
        "run.start",
        start(script().calls(task("t1", "mailer", mailer)).says("done")),
    )
    .await;
    let events = line.until_ends().await;
    let asked = events
        .iter()
        .find(|event| event["method"] == "input.requested")
        .unwrap();
    let reply = |namespace: &Value| {
        let id = &asked["params"]["data"]["interrupt_id"];
        json!({"interrupt_id": id, "namespace": namespace, "response": {"decisions": [{"type": "approve"}]}})
    };
    assert_eq!(
        line.commands(3, "input.respond", reply(&json!(["tools:elsewhere"])))
            .await["error"],
        "no_such_interrupt"
    );
    let place = &asked["params"]["namespace"];
    assert_eq!(
        line.commands(4, "input.respond", reply(place)).await["result"],
        json!({})
    );
    let events = line.until_ends().await;
    assert_eq!(events.last().unwrap()["params"]["data"]["event"], "completed");
    assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
}

async fn too_many_websockets_are_refused(server: TestServer) {
    server.is_configured("max_streams_per_thread = 1").await;
    let viewer = Viewer::of_new(&server);
    let _line = Line::opens(&server, &viewer.thread).await;
    let refused = connect_async(server.client().socket_request(&viewer.thread))
        .await
        .unwrap_err();
    let tokio_tungstenite::tungstenite::Error::Http(response) = refused else {
        panic!("{refused}")
    };
    assert_eq!(response.status(), 429);
}

async fn a_request_that_is_no_websocket_learns_where_the_events_are(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let path = format!("/threads/{}/stream/events", viewer.thread);
    let reply = server.client().get(&path).await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.body["code"], "no_web_socket");
    let detail = reply.body["detail"].as_str().unwrap();
    assert!(
        detail.contains("send a POST to this path, or GET /threads/{thread_id}/stream"),
        "{detail}"
    );
}

async fn a_websocket_is_closed_for_a_restart_when_its_server_stops(server: TestServer) {
    let mut line = Line::opens(&server, &Viewer::of_new(&server).thread).await;
    let code = async {
        loop {
            match line.socket.next().await {
                Some(Ok(Message::Close(Some(frame)))) => return Some(u16::from(frame.code)),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return None,
            }
        }
    };
    let (code, ()) = tokio::join!(code, server.is_stopped_and_started_again());
    assert_eq!(code, Some(1012), "clients come back after this code");
}
