//! Documents that nest too deeply, have too many values, or contain U+0000, in every request and response.

use adjutant::domain::json_limits::MAX_DEPTH;
use futures::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Map, Value, json};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;

use crate::agents::background_tasks::{boss, knows_an_outcome, start, the_task};
use crate::support::client::{Client, Reply, reply};
use crate::support::webhook_receiver::WebhookReceiver;
use crate::support::{TestServer, call, eventually, lookup, mail, on_both_engines, script};

/// Returns a value that nests this deeply.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!("x"), |inner, at| {
        if at % 2 == 0 {
            json!([inner])
        } else {
            json!({"a": inner})
        }
    })
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Returns every request of a client with a JSON body, which has `value` under a meaningless name.
async fn doors(client: &Client, value: &Value) -> Vec<(Method, String, Value)> {
    let thread = client.thread().await;
    let assistant = client
        .post("/assistants/search", json!({"graph_id": "agent"}))
        .await
        .ok()[0]["assistant_id"]
        .clone();
    let assistant = assistant.as_str().expect("an assistant").to_owned();
    let mut doors = vec![];
    for path in [
        "/threads",
        "/threads/search",
        "/threads/count",
        "/threads/prune",
        "/runs",
        "/runs/wait",
        "/runs/stream",
        "/runs/crons",
        "/runs/crons/search",
        "/runs/crons/count",
        "/runs/cancel",
        "/assistants",
        "/assistants/search",
        "/assistants/count",
        "/store/items/search",
        "/store/namespaces",
        "/agents/search",
        "/agents/validate",
    ] {
        doors.push((Method::POST, path.to_owned()));
    }
    for rest in [
        "/runs",
        "/runs/wait",
        "/runs/stream",
        "/runs/crons",
        "/state",
        "/history",
        "/state/checkpoint",
        "/commands",
        "/stream/events",
    ] {
        doors.push((Method::POST, format!("/threads/{thread}{rest}")));
    }
    doors.push((Method::PATCH, format!("/threads/{thread}")));
    doors.push((Method::PATCH, format!("/assistants/{assistant}")));
    doors.push((Method::PUT, "/agents/odd".to_owned()));
    doors.push((Method::PUT, "/store/items".to_owned()));
    doors.push((Method::DELETE, "/store/items".to_owned()));
    let body = json!({"odd": value});
    let mut doors: Vec<_> = doors
        .into_iter()
        .map(|(method, path)| (method, path, body.clone()))
        .collect();
    doors.push((Method::POST, "/runs/batch".to_owned(), json!([value])));
    doors
}

async fn send(client: &Client, method: &Method, path: &str, body: &Value) -> Reply {
    reply(client.request(method.clone(), path).json(body)).await
}

/// A source of random documents that follow from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn key(&mut self) -> String {
        let keys = [
            "",
            ".",
            "a.b",
            "\"",
            "ключ",
            "\u{10ffff}",
            "$a",
            "[0]",
            "__proto__",
            "type",
            " ",
        ];
        keys[usize::try_from(self.roll(11)).unwrap()].to_owned()
    }

    fn leaf(&mut self) -> Value {
        match self.roll(14) {
            0 => json!(1e308),
            1 => json!(-0.0),
            2 => json!(u64::MAX),
            3 => json!(i64::MIN),
            4 => json!(5e-324),
            5 => json!(0.1),
            6 => json!("\u{1f469}\u{200d}\u{1f680} \u{2028}\u{feff}\u{ffff}"),
            7 => json!("\u{1}\u{7f}\\\"/\n"),
            8 => json!(""),
            9 => json!([]),
            10 => json!({}),
            11 => Value::Null,
            12 => serde_json::from_str("123456789012345678901234567890").expect("a number"),
            _ => json!(true),
        }
    }

    /// Returns an object with random keys and values, one of which nests this deeply.
    fn object(&mut self, levels: usize) -> Map<String, Value> {
        let mut fields: Map<String, Value> = (0..6).map(|_| (self.key(), self.leaf())).collect();
        let mut inner = self.leaf();
        while depth(&inner) + 1 < levels {
            inner = if self.roll(2) == 0 {
                json!([inner, self.leaf()])
            } else {
                json!({self.key(): inner})
            };
        }
        fields.insert("deep".to_owned(), inner);
        fields
    }
}

/// Returns a body that nests exactly as deeply as allowed, with a random document at `place`.
fn body(dice: &mut Dice, frame: Value, place: &str) -> Value {
    let mut body = frame;
    let above = place.split('/').count() - 1;
    *body.pointer_mut(place).expect("a place") = dice.object(MAX_DEPTH - above).into();
    assert_eq!(depth(&body), MAX_DEPTH, "{place}");
    body
}

/// Defines and runs an agent with random documents wherever a definition takes some. Returns the paths that show it.
async fn an_odd_agent(client: &Client, dice: &mut Dice, round: usize) -> Vec<String> {
    let agent = format!("/agents/odd-{round}");
    let frame = json!({"model": "scripted:lab", "context_schema": {"type": "object", "default": {}}});
    client
        .put(&agent, body(dice, frame, "/context_schema/default"))
        .await
        .ok();
    let frame = json!({"model": "scripted:lab", "response_format": {"title": "F", "type": "object", "examples": [{}]}});
    client
        .put(&agent, body(dice, frame, "/response_format/examples/0"))
        .await
        .ok();
    let frame = json!({"model": "scripted:lab", "model_settings": {}});
    client.put(&agent, body(dice, frame, "/model_settings")).await.ok();
    let run =
        json!({"assistant_id": format!("odd-{round}"), "input": {"messages": [{"role": "user", "content": "hi"}]}});
    client.post("/runs/wait", run).await.ok();
    ["", "/versions", "?version=1", "?version=2"]
        .map(|rest| format!("{agent}{rest}"))
        .to_vec()
}

/// Runs of a batch, each of which makes a thread. Returns where they are shown.
async fn odd_runs_without_a_thread(client: &Client, dice: &mut Dice) -> Vec<String> {
    let run_body = json!({"assistant_id": "agent", "after_seconds": 3600, "on_completion": "keep"});
    let frame = |name: &str| {
        let mut frame = json!([run_body, run_body]);
        frame[1][name] = json!({});
        frame
    };
    let mut paths = vec![];
    for name in ["input", "context", "config", "metadata"] {
        let made = client
            .post("/runs/batch", body(dice, frame(name), &format!("/1/{name}")))
            .await
            .ok();
        for run in made.as_array().expect("a list") {
            let thread = format!("/threads/{}", run["thread_id"].as_str().unwrap());
            paths.push(format!("{thread}/runs/{}", run["run_id"].as_str().unwrap()));
            paths.push(thread);
        }
    }
    paths
}

/// Executes a run with random values and metadata and a webhook. Returns the paths that show it.
async fn an_odd_report(server: &TestServer, dice: &mut Dice, receiver: &WebhookReceiver) -> Vec<String> {
    let client = server.client();
    let mut paths = vec![];
    for name in ["input", "metadata"] {
        let thread = format!("/threads/{}", client.thread().await);
        let frame = json!({"assistant_id": "agent", "webhook": receiver.base, name: {}});
        let run_body = body(dice, frame, &format!("/{name}"));
        let run = client.post(&format!("{thread}/runs"), run_body.clone()).await.ok();
        let told = format!("/webhooks/deliveries?run_id={}", run["run_id"].as_str().unwrap());
        eventually(async || client.get(&told).await.ok()[0]["status"] == "delivered").await;
        let delivery = client.get(&told).await.ok()[0]["delivery_id"]
            .as_str()
            .unwrap()
            .to_owned();
        let shown = client.get(&format!("/webhooks/deliveries/{delivery}")).await.ok();
        if name == "metadata" {
            assert_eq!(shown["payload"]["metadata"]["deep"], run_body["metadata"]["deep"]);
        }
        paths.push(format!("/webhooks/deliveries/{delivery}"));
    }
    paths
}

/// Starts a background task by a run with a random context and metadata. Returns the paths that show it.
async fn an_odd_background_task(server: &TestServer, dice: &mut Dice) -> Vec<String> {
    let parent = server.human("boss").await;
    let mut paths = vec![];
    for name in ["context", "config", "metadata"] {
        let parent = parent.on(&server.client().thread().await);
        let work = script().calls(lookup("l1", "x")).says("the long text");
        let plan = script().calls(start("a1", "writer", work)).says("under way");
        let run = parent
            .starts(body(
                dice,
                parent.run_body(plan, json!({name: {}})),
                &format!("/{name}"),
            ))
            .await;
        knows_an_outcome(&parent).await;
        let task = the_task(&parent).await["thread_id"].as_str().expect("an id").to_owned();
        paths.push(format!("{}/tree", run.path));
        for thread in [parent.path(""), format!("/threads/{task}")] {
            paths.extend(["", "/state", "/history", "/runs"].map(|rest| format!("{thread}{rest}")));
        }
    }
    paths
}

/// Checks that each of these paths answers with status 200.
async fn all_is_shown(client: &Client, paths: &[String]) {
    for path in paths {
        let shown = client.get(path).await;
        assert_eq!(shown.status, 200, "{path}: {:?}", shown.body);
    }
    for (path, body) in [
        ("/threads/search", json!({"limit": 1000})),
        ("/threads/search", json!({"limit": 1000, "values": {"nothing": 1}})),
        ("/assistants/search", json!({"limit": 1000})),
        ("/runs/crons/search", json!({"limit": 1000})),
        (
            "/store/items/search",
            json!({"namespace_prefix": ["odd"], "limit": 1000}),
        ),
        ("/agents/search", json!({})),
    ] {
        let shown = client.post(path, body.clone()).await;
        assert_eq!(shown.status, 200, "{path} {body}: {:?}", shown.body);
    }
}

on_both_engines! {
    documents_that_nest_too_deeply_are_refused_by_every_endpoint,
    documents_with_too_many_values_are_refused_by_every_endpoint,
    the_null_character_is_refused_by_every_endpoint,
    commands_over_a_websocket_have_the_same_limits,
    numbers_and_texts_that_json_cannot_represent_are_refused,
    what_was_accepted_can_be_read_back,
    arguments_of_a_model_that_nest_too_deeply_are_an_invalid_call,
    an_answer_of_a_tool_that_nests_too_deeply_is_an_error_result,
}

async fn documents_that_nest_too_deeply_are_refused_by_every_endpoint(server: TestServer) {
    let client = server.client();
    for (method, path, body) in doors(&client, &nested(MAX_DEPTH)).await {
        let refused = send(&client, &method, &path, &body).await.refused(422);
        assert_eq!(refused, "body: nests deeper than 64 levels", "{method} {path}");
    }
    let definition = json!({"definition": {"model": "scripted:lab", "response_format": nested(MAX_DEPTH)}});
    assert_eq!(
        client.post("/agents/validate", definition).await.refused(422),
        "body: nests deeper than 64 levels"
    );
    assert_eq!(
        client.post("/runs/crons/search", json!({})).await.ok(),
        json!([]),
        "nothing is stored"
    );
}

async fn documents_with_too_many_values_are_refused_by_every_endpoint(server: TestServer) {
    let client = server.client();
    for (method, path, body) in doors(&client, &json!(vec![0; 200_001])).await {
        let refused = send(&client, &method, &path, &body).await.refused(422);
        assert_eq!(refused, "body: holds more than 200000 values", "{method} {path}");
    }
}

async fn the_null_character_is_refused_by_every_endpoint(server: TestServer) {
    let client = server.client();
    for (method, path, body) in doors(&client, &json!({"inner": ["fine", "a\u{0}b"]})).await {
        // Definitions name the field in their own way.
        if path.starts_with("/agents/validate") || method == Method::PUT && path == "/agents/odd" {
            continue;
        }
        let refused = send(&client, &method, &path, &body).await.refused(422);
        let place = if path == "/runs/batch" {
            "[0].inner[1]"
        } else {
            "odd.inner[1]"
        };
        assert_eq!(
            refused,
            format!("{place}: contains the character U+0000, which cannot be stored"),
            "{method} {path}"
        );
    }
    let odd = json!({"model": "scripted:lab", "system_prompt": "a\u{0}b"});
    let refused = client.put("/agents/odd", odd).await.refused(422);
    assert!(
        refused.contains("system_prompt: contains the character U+0000"),
        "{refused}"
    );
    let thread = client.thread().await;
    for path in [
        "/store/items?namespace=a%00&key=k".to_owned(),
        format!("/threads/{thread}/runs?status=a%00b"),
        format!("/threads/{thread}/interrupts/a%00b"),
        "/assistants/a%00b/schemas".to_owned(),
    ] {
        let refused = client.get(&path).await.refused(422);
        assert!(refused.contains("U+0000"), "{path}: {refused}");
    }
}

async fn commands_over_a_websocket_have_the_same_limits(server: TestServer) {
    let client = server.client();
    let thread = server.client().thread().await;
    let opened = connect_async(client.socket_request(&thread)).await;
    let mut socket = opened.expect("a line").0;
    for (odd, expected) in [
        (nested(MAX_DEPTH), "nests deeper than 64 levels"),
        (json!(vec![0; 200_001]), "holds more than 200000 values"),
        (json!("a\u{0}"), "odd: contains the character U+0000"),
    ] {
        let said = json!({"id": 1, "method": "run.start", "params": {}, "odd": odd});
        socket
            .send(Message::text(said.to_string()))
            .await
            .expect("the line is open");
        let heard = loop {
            if let Message::Text(text) = socket.next().await.expect("the line is open").expect("it works") {
                break text.to_string();
            }
        };
        assert!(heard.contains(expected), "{heard}");
    }
    assert_eq!(client.get(&format!("/threads/{thread}/runs")).await.ok(), json!([]));
}

async fn numbers_and_texts_that_json_cannot_represent_are_refused(server: TestServer) {
    let client = server.client();
    for odd in ["1e400", "-1e999", "\"\\ud800\"", "NaN", "01", "\"\u{0}\""] {
        let request = client
            .request(Method::POST, "/threads")
            .header("content-type", "application/json");
        let refused = reply(request.body(format!("{{\"metadata\": {{\"a\": {odd}}}}}"))).await;
        assert!(matches!(refused.status, 400 | 422), "{odd}: {refused:?}");
    }
}

async fn what_was_accepted_can_be_read_back(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let client = server.client();
    let mut dice = Dice(11);
    let receiver = WebhookReceiver::start().await;
    let mut paths = vec![];
    for round in 0..8 {
        let made = client
            .post("/threads", body(&mut dice, json!({"metadata": {}}), "/metadata"))
            .await
            .ok();
        let thread = format!("/threads/{}", made["thread_id"].as_str().unwrap());
        let frame = json!({"supersteps": [{"updates": [{"as_node": "__start__", "values": {}}]}]});
        let place = "/supersteps/0/updates/0/values";
        let copied = client.post("/threads", body(&mut dice, frame, place)).await.ok();
        client
            .patch(&thread, body(&mut dice, json!({"metadata": {}}), "/metadata"))
            .await
            .ok();
        let run_body = |name: &str| json!({"assistant_id": "agent", name: {}, "after_seconds": 3600});
        for name in ["input", "context", "config", "metadata"] {
            let run = client
                .post(
                    &format!("{thread}/runs"),
                    body(&mut dice, run_body(name), &format!("/{name}")),
                )
                .await
                .ok();
            paths.push(format!("{thread}/runs/{}", run["run_id"].as_str().unwrap()));
        }
        let frame = json!({"assistant_id": "agent", "command": {"update": {}}});
        let settled = client
            .post(&format!("{thread}/runs"), body(&mut dice, frame, "/command/update"))
            .await
            .ok();
        paths.push(format!("{thread}/runs/{}", settled["run_id"].as_str().unwrap()));
        let other = client.thread().await;
        let input = body(&mut dice, json!({"assistant_id": "agent", "input": {}}), "/input");
        assert_eq!(
            client.post(&format!("/threads/{other}/runs/wait"), input).await.status,
            200
        );
        client
            .post(
                &format!("/threads/{other}/state"),
                body(&mut dice, json!({"values": {}}), "/values"),
            )
            .await
            .ok();
        for name in ["metadata", "context", "config"] {
            let frame = json!({"graph_id": "agent", "name": format!("odd {round} {name}"), name: {}});
            let made = client
                .post("/assistants", body(&mut dice, frame, &format!("/{name}")))
                .await
                .ok();
            paths.push(format!("/assistants/{}", made["assistant_id"].as_str().unwrap()));
            let frame = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", name: {}});
            let made = client
                .post("/runs/crons", body(&mut dice, frame, &format!("/{name}")))
                .await
                .ok();
            paths.push(format!("/runs/crons/{}", made["cron_id"].as_str().unwrap()));
        }
        let frame = json!({"namespace": ["odd"], "key": format!("k{round}"), "value": {}});
        client.put("/store/items", body(&mut dice, frame, "/value")).await.ok();
        paths.push(format!("/store/items?namespace=odd&key=k{round}"));
        paths.extend(an_odd_agent(&client, &mut dice, round).await);
        paths.extend(odd_runs_without_a_thread(&client, &mut dice).await);
        paths.extend(an_odd_report(&server, &mut dice, &receiver).await);
        paths.extend(an_odd_background_task(&server, &mut dice).await);
        for thread in [
            thread,
            format!("/threads/{}", copied["thread_id"].as_str().unwrap()),
            format!("/threads/{other}"),
        ] {
            paths.extend(["", "/state", "/history", "/runs", "/interrupts"].map(|rest| format!("{thread}{rest}")));
        }
    }
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let args = json!({"to": "bob", "body": "x", "odd": nested(MAX_DEPTH - 12)});
    let edits = json!([{"type": "edit", "edited_action": {"name": "send_email", "args": args}}]);
    alice.decides(&alice.question().await, edits).await.finishes().await;
    assert_eq!(
        server.tools.calls_of("send_email")[0]["args"]["odd"],
        nested(MAX_DEPTH - 12)
    );
    paths.extend(["", "/state", "/history", "/runs", "/interrupts"].map(|rest| alice.path(rest)));
    all_is_shown(&client, &paths).await;
    server.is_stopped_and_started_again().await;
    all_is_shown(&client, &paths).await;
    assert_eq!(client.post("/runs/cancel", json!({"status": "all"})).await.status, 204);
}

async fn arguments_of_a_model_that_nest_too_deeply_are_an_invalid_call(server: TestServer) {
    let alice = server.human("agent").await;
    let calls = [
        call("c1", "lookup", json!({"query": "x", "more": nested(MAX_DEPTH)})),
        call("c\u{0}2", "lookup", json!({"query": "a\u{0}b"})),
    ];
    alice.says(script().calls_all(calls).says("sorry")).await;
    let said = alice.transcript().await;
    assert!(
        said.iter().any(|line| line.contains("nests deeper than 64 levels")),
        "{said:#?}"
    );
    assert!(said.contains(&"lookup: found a\u{fffd}b".to_owned()), "{said:#?}");
    assert_eq!(said.last().unwrap(), "ai: sorry");
    server.is_stopped_and_started_again().await;
    let paths = ["", "/state", "/history", "/runs"].map(|rest| alice.path(rest));
    all_is_shown(&server.client(), &paths).await;
    assert_eq!(
        alice.says("hello").await["messages"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()["content"],
        "echo: hello"
    );
}

async fn an_answer_of_a_tool_that_nests_too_deeply_is_an_error_result(server: TestServer) {
    let tool = format!(
        "[tools.nested]\nkind = \"http\"\ndescription = \"Nests.\"\nurl = \"{}/nested\"\n\
                parameters = {{ type = \"object\", properties = {{ levels = {{ type = \"integer\" }} }} }}\n",
        server.tools.base
    );
    let agent = "[agents.nester]\nmodel = \"scripted:lab\"\nsystem_prompt = \"You nest.\"\ntools = [\"nested\"]\n";
    server.is_configured_with(&format!("{tool}{agent}")).await;
    let alice = server.human("nester").await;
    let nest = |id: &str, levels: usize| call(id, "nested", json!({"levels": levels}));
    let text = script()
        .calls(nest("c1", MAX_DEPTH))
        .calls(nest("c2", MAX_DEPTH + 1))
        .calls(nest("c3", 125))
        .calls(nest("c4", 5000))
        .says("done");
    alice.says(text).await;
    let said = alice.transcript().await;
    let results: Vec<_> = said.iter().filter(|line| line.starts_with("nested")).collect();
    assert_eq!(results[0], "nested: made\u{fffd}", "{said:#?}");
    assert!(
        results[1..]
            .iter()
            .all(|line| line.contains("nests deeper than 64 levels")),
        "{said:#?}"
    );
    assert_eq!(results.len(), 4);
    assert_eq!(said.last().unwrap().as_str(), "ai: done");
    server.is_stopped_and_started_again().await;
    let paths = ["", "/state", "/history", "/runs"].map(|rest| alice.path(rest));
    all_is_shown(&server.client(), &paths).await;
}
