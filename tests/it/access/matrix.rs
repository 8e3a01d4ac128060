//! Every endpoint of the API document for every kind of caller. An endpoint that this file does not know fails the
//! test, so that none is added without a decision about who may use it.

use std::collections::BTreeSet;

use futures::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::support::client::{Client, Reply, reply};
use crate::support::{Human, Keys, TestServer, mail, on_both_engines, script};

on_both_engines! {
    every_endpoint_refuses_callers_without_a_valid_credential,
    every_endpoint_hides_the_resources_of_others,
    every_endpoint_hides_the_agents_that_another_tenant_defined,
    every_endpoint_serves_the_owner_by_role,
    searches_and_counts_contain_only_what_the_caller_may_see,
    a_websocket_shows_a_thread_only_to_callers_who_may_read_it,
    a_stream_does_not_say_how_far_the_log_of_another_reaches,
    streams_of_strangers_take_no_place_on_a_thread,
}

/// A word in every resource of the owner. No response to another caller may contain it.
const MARK: &str = "belongs-to-ann";

/// The endpoints that are no searches, and yet leave the resources of the fixture as they are: they read, or are about
/// something else.
const LEAVE_FIXTURE: [[&str; 2]; 17] = [
    ["post", "/agents/validate"],
    ["put", "/agents/{graph_id}"],
    ["delete", "/agents/{graph_id}"],
    ["post", "/assistants"],
    ["post", "/assistants/{assistant_id}/versions"],
    ["post", "/auth/keys"],
    ["delete", "/auth/keys/{key_id}"],
    ["post", "/auth/keys/{key_id}/rotate"],
    ["post", "/auth/tickets"],
    ["put", "/store/items"],
    ["post", "/store/namespaces"],
    ["post", "/threads"],
    ["post", "/threads/{thread_id}/commands"],
    ["post", "/threads/{thread_id}/copy"],
    ["post", "/threads/{thread_id}/history"],
    ["post", "/threads/{thread_id}/stream/events"],
    ["delete", "/users/{user_id}"],
];

/// The callers that may use an endpoint successfully.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// Everybody, also without a credential.
    Everybody,
    /// Everybody with a valid credential, for what is their own.
    Users,
    /// Admins and operators of the tenant `default`.
    ServerOperators,
    /// Admins only.
    Admins,
    /// Tools, with the token of a call. No credential of a caller opens such an endpoint.
    Calls,
}

/// An endpoint with a request that succeeds for the owner of the fixture.
struct Endpoint {
    method: Method,
    /// The pattern in the API document.
    pattern: String,
    path: String,
    body: Option<Value>,
    audience: Audience,
    /// True if the server keeps the connection open, so that a success is only the status.
    is_stream: bool,
}

/// Resources of the owner, one of each kind.
struct Fixture {
    thread: String,
    run: String,
    finished_run: String,
    interrupt: String,
    checkpoint: String,
    assistant: String,
    cron: String,
    delivery: String,
    approval: String,
}

impl Fixture {
    /// Creates the resources. The thread has a remembered decision and a run that waits for an approval.
    async fn create(owner: &Client) -> Self {
        let made = owner.post("/threads", json!({"metadata": {"mark": MARK}})).await.ok();
        let thread = made["thread_id"].as_str().expect("an id").to_owned();
        let human = Human::at(owner.clone(), "agent", &thread);
        human.says(script().calls(mail("m0", "others")).says("sent")).await;
        let remembered = json!([{"type": "approve", "scope": "thread", "for": {"to": {"equals": "others"}}}]);
        human
            .decides(&human.question().await, remembered)
            .await
            .finishes()
            .await;
        let approvals = owner.get(&format!("/threads/{thread}/approvals")).await.ok();
        let webhook = json!("http://127.0.0.1:9/nobody-listens");
        let text = script().calls(mail("m1", MARK)).says("sent").to_string();
        let body = json!({"assistant_id": "agent", "webhook": webhook, "metadata": {"mark": MARK},
            "input": {"messages": [{"role": "user", "content": text}]}});
        owner.post(&format!("/threads/{thread}/runs/wait"), body).await.ok();
        let question = human.question().await;
        let state = owner.get(&format!("/threads/{thread}/state")).await.ok();
        let assistant = json!({"graph_id": "agent", "name": MARK, "metadata": {"mark": MARK}});
        let assistant = owner.post("/assistants", assistant).await.ok();
        let cron = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "metadata": {"mark": MARK},
            "input": {"messages": [{"role": "user", "content": MARK}]}});
        let cron = owner.post("/runs/crons", cron).await.ok();
        let item = json!({"namespace": ["marks"], "key": "mark", "value": {"mark": MARK}});
        owner.put("/store/items", item).await.ok();
        let deliveries = owner
            .get(&format!("/webhooks/deliveries?thread_id={thread}"))
            .await
            .ok();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let runs = owner.get(&format!("/threads/{thread}/runs")).await.ok();
        let first = runs.as_array().and_then(|runs| runs.last()).expect("a run");
        Self {
            run: text(&runs[0]["run_id"]),
            finished_run: text(&first["run_id"]),
            interrupt: question.id().to_owned(),
            checkpoint: text(&state["checkpoint"]["checkpoint_id"]),
            assistant: text(&assistant["assistant_id"]),
            cron: text(&cron["cron_id"]),
            delivery: text(&deliveries[0]["delivery_id"]),
            approval: text(&approvals["approvals"][0]["id"]),
            thread,
        }
    }

    /// Returns what the owner sees of the resources.
    async fn snapshot(&self, owner: &Client) -> Vec<Value> {
        let mut seen = vec![];
        for path in [
            format!("/threads/{}", self.thread),
            format!("/threads/{}/state", self.thread),
            format!("/threads/{}/runs", self.thread),
            format!("/threads/{}/interrupts", self.thread),
            format!("/threads/{}/approvals", self.thread),
            format!("/assistants/{}", self.assistant),
            format!("/runs/crons/{}", self.cron),
            "/store/items?namespace=marks&key=mark".to_owned(),
        ] {
            seen.push(owner.get(&path).await.ok());
        }
        seen
    }

    /// Returns the path of a pattern, with the ids of the fixture.
    fn path(&self, pattern: &str) -> String {
        pattern
            .replace("{thread_id}", &self.thread)
            .replace("{run_id}", &self.run)
            .replace("{interrupt_id}", &self.interrupt)
            .replace("{checkpoint_id}", &self.checkpoint)
            .replace("{assistant_id}", &self.assistant)
            .replace("{cron_id}", &self.cron)
            .replace("{delivery_id}", &self.delivery)
            .replace("{approval_id}", &self.approval)
            .replace("{graph_id}", "agent")
            .replace("{namespace}", "researcher")
    }

    /// Returns the request of an endpoint that succeeds for the owner.
    #[expect(
        clippy::too_many_lines,
        clippy::match_same_arms,
        reason = "one line for each endpoint"
    )]
    fn endpoint(&self, method: &str, pattern: &str) -> Endpoint {
        use Audience::{Admins, Calls, Everybody, ServerOperators, Users};
        let input = json!({"messages": [{"role": "user", "content": script().says("done").to_string()}]});
        let run = json!({"assistant_id": "agent", "input": input});
        let stateless = json!({"assistant_id": self.assistant, "input": input});
        let empty = Some(json!({}));
        let mut is_stream = false;
        let mut path = self.path(pattern);
        let mut streams = |body: Option<Value>| {
            is_stream = true;
            (Users, body)
        };
        let (audience, body) = match (method, pattern) {
            ("get", "/ok" | "/ready") => (Everybody, None),
            ("get", "/metrics") => (ServerOperators, None),
            ("get", "/audit" | "/auth/keys") => (Admins, None),
            ("post", "/auth/keys") => (Admins, Some(json!({"name": "k", "user": "u", "roles": ["user"]}))),
            ("get" | "delete", "/auth/keys/{key_id}") => (Admins, None),
            ("post", "/auth/keys/{key_id}/rotate") => (Admins, empty),
            ("get", "/users/{user_id}/export") => {
                path = "/users/new-here/export".to_owned();
                is_stream = true;
                (Admins, None)
            }
            ("delete", "/users/{user_id}") => {
                path = "/users/new-here".to_owned();
                (Admins, None)
            }
            ("post", "/auth/tickets") => (Users, empty),
            ("put", "/agents/{graph_id}") => {
                path = "/agents/matrix".to_owned();
                (Admins, Some(json!({"model": "scripted:x"})))
            }
            ("delete", "/agents/{graph_id}") => {
                path = "/agents/matrix".to_owned();
                (Admins, None)
            }
            ("post", "/agents/validate") => (Users, Some(json!({"definition": {"model": "scripted:x"}}))),
            ("post", "/assistants") => (Users, Some(json!({"graph_id": "agent"}))),
            ("post", "/assistants/{assistant_id}/latest") => (Users, Some(json!({"version": 1}))),
            ("patch", "/assistants/{assistant_id}") => (Users, Some(json!({"name": MARK}))),
            ("post", "/threads/prune") => (Users, Some(json!({"thread_ids": [self.thread]}))),
            ("patch", "/threads/{thread_id}") => (Users, Some(json!({"metadata": {"more": 1}}))),
            ("post", "/threads/{thread_id}/copy") => (Users, None),
            ("post", "/threads/{thread_id}/state/checkpoint") => {
                (Users, Some(json!({"checkpoint": {"checkpoint_id": self.checkpoint}})))
            }
            ("post", "/threads/{thread_id}/state") => (Users, Some(json!({"values": {"messages": []}}))),
            ("post", "/threads/{thread_id}/runs" | "/threads/{thread_id}/runs/wait") => (Users, Some(run)),
            ("post", "/threads/{thread_id}/runs/stream") => streams(Some(run)),
            ("post", "/runs" | "/runs/wait") => (Users, Some(stateless)),
            ("post", "/runs/stream") => streams(Some(stateless)),
            ("post", "/runs/batch") => (Users, Some(json!([stateless]))),
            ("post", "/runs/cancel") => (Users, Some(json!({"thread_id": self.thread, "run_ids": [self.run]}))),
            ("post", "/runs/crons" | "/threads/{thread_id}/runs/crons") => (
                Users,
                Some(json!({"assistant_id": self.assistant, "schedule": "0 0 1 1 *", "input": input})),
            ),
            ("patch", "/runs/crons/{cron_id}") => (Users, Some(json!({"enabled": false}))),
            ("post", "/threads/{thread_id}/commands") => {
                (Users, Some(json!({"id": 1, "method": "agent.getTree", "params": {}})))
            }
            ("post", "/threads/{thread_id}/interrupts/{interrupt_id}/resolve") => {
                (Users, Some(json!({"decisions": [{"type": "reject"}]})))
            }
            ("get", "/threads/{thread_id}/stream" | "/threads/{thread_id}/stream/events") => streams(None),
            ("post", "/threads/{thread_id}/stream/events") => streams(Some(json!({"channels": ["values"]}))),
            ("get", "/threads/{thread_id}/runs/{run_id}/stream") => streams(None),
            ("post", "/mcp") => (Users, Some(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}))),
            ("get" | "delete", "/mcp") => (Users, None),
            ("get", "/store/items") => {
                path.push_str("?namespace=marks&key=mark");
                (Users, None)
            }
            ("put", "/store/items") => (
                Users,
                Some(json!({"namespace": ["marks"], "key": "other", "value": {}})),
            ),
            // The last run waits for its interrupt.
            ("delete", "/threads/{thread_id}/runs/{run_id}") => {
                path = path.replace(&self.run, &self.finished_run);
                (Users, None)
            }
            ("delete", "/store/items") => (Users, Some(json!({"namespace": ["marks"], "key": "mark"}))),
            ("get", "/call/state" | "/call/files" | "/call/files/content" | "/call/store/items") => {
                path.push_str("?path=/a&namespace=marks&key=mark");
                (Calls, None)
            }
            ("post", "/call/store/items/search") => (Calls, Some(json!({"namespace_prefix": ["marks"]}))),
            ("post", "/store/items/search") => (Users, Some(json!({"namespace_prefix": ["marks"]}))),
            (
                "post",
                "/assistants/search"
                | "/assistants/count"
                | "/assistants/{assistant_id}/versions"
                | "/agents/search"
                | "/threads"
                | "/threads/search"
                | "/threads/count"
                | "/threads/{thread_id}/history"
                | "/threads/{thread_id}/compact"
                | "/threads/{thread_id}/runs/{run_id}/cancel"
                | "/runs/crons/search"
                | "/runs/crons/count"
                | "/webhooks/deliveries/{delivery_id}/redeliver"
                | "/store/namespaces",
            ) => (Users, empty),
            (
                "get",
                "/"
                | "/info"
                | "/auth/me"
                | "/assistants/{assistant_id}"
                | "/assistants/{assistant_id}/graph"
                | "/assistants/{assistant_id}/schemas"
                | "/assistants/{assistant_id}/subgraphs"
                | "/assistants/{assistant_id}/subgraphs/{namespace}"
                | "/agents/{graph_id}"
                | "/agents/{graph_id}/versions"
                | "/threads/{thread_id}"
                | "/threads/{thread_id}/storage"
                | "/threads/{thread_id}/state"
                | "/threads/{thread_id}/state/{checkpoint_id}"
                | "/threads/{thread_id}/history"
                | "/threads/{thread_id}/runs"
                | "/threads/{thread_id}/runs/{run_id}"
                | "/threads/{thread_id}/runs/{run_id}/join"
                | "/threads/{thread_id}/runs/{run_id}/children"
                | "/threads/{thread_id}/runs/{run_id}/tree"
                | "/threads/{thread_id}/runs/{run_id}/state"
                | "/threads/{thread_id}/interrupts"
                | "/threads/{thread_id}/interrupts/{interrupt_id}"
                | "/threads/{thread_id}/approvals"
                | "/interrupts"
                | "/webhooks/deliveries"
                | "/webhooks/deliveries/{delivery_id}"
                | "/runs/crons/{cron_id}",
            )
            | (
                "delete",
                "/assistants/{assistant_id}"
                | "/threads/{thread_id}"
                | "/threads/{thread_id}/approvals/{approval_id}"
                | "/runs/crons/{cron_id}",
            ) => (Users, None),
            _ => panic!("{method} {pattern} is new: decide who may use it, here and in src/http/access/rules.rs"),
        };
        Endpoint {
            method: method.to_uppercase().parse().expect("a method"),
            pattern: pattern.to_owned(),
            path,
            body,
            audience,
            is_stream,
        }
    }
}

impl Endpoint {
    /// Sends the request. Of a stream only the head is read.
    async fn send(&self, client: &Client) -> Reply {
        let mut request = client.request(self.method.clone(), &self.path);
        if let Some(body) = &self.body {
            request = request.json(body);
        }
        if !self.is_stream {
            return reply(request).await;
        }
        let response = request.send().await.expect("an answer");
        let status = response.status();
        if !status.is_success() {
            let body = response.json().await.unwrap_or(Value::Null);
            return Reply::of(status, body);
        }
        Reply::of(status, Value::Null)
    }

    /// Returns true if the endpoint needs a WebSocket, which this client does not open.
    fn is_socket(&self) -> bool {
        self.method == Method::GET && self.pattern.ends_with("/stream/events")
    }
}

/// Returns the method and the pattern of every endpoint of the document.
async fn patterns(client: &Client) -> Vec<[String; 2]> {
    let document = client.get("/openapi.json").await.ok();
    let paths = document["paths"].as_object().expect("paths");
    let mut found = vec![];
    for (path, item) in paths {
        for method in item.as_object().expect("an item").keys() {
            found.push([method.clone(), path.clone()]);
        }
    }
    assert!(found.len() > 70, "the document has lost endpoints");
    found
}

/// Sends the request of every endpoint for the resources of ann, as each of these other callers. The replies have the
/// status that `expected` returns, if there is one. None shows anything of the resources, which stay as they are.
async fn check_others(keys: &Keys, callers: &[(&str, Client)], expected: impl Fn(&Fixture, &Endpoint) -> Option<u16>) {
    let ann = keys.client("ann");
    let fixture = Fixture::create(&ann).await;
    let before = fixture.snapshot(&ann).await;
    for [method, pattern] in patterns(&ann).await {
        let endpoint = fixture.endpoint(&method, &pattern);
        for (name, caller) in callers {
            let reply = endpoint.send(caller).await;
            let text = format!("{name}: {method} {pattern}: {reply:?}");
            match expected(&fixture, &endpoint) {
                Some(status) => assert_eq!(reply.status, status, "{text}"),
                None => assert!(reply.status < 500, "{text}"),
            }
            assert!(!format!("{reply:?}").contains(MARK), "{text}");
        }
    }
    assert_eq!(fixture.snapshot(&ann).await, before);
}

async fn every_endpoint_refuses_callers_without_a_valid_credential(server: TestServer) {
    let keys = server.is_protected().await;
    let callers = [
        ("nobody", keys.nobody()),
        ("unknown", keys.with("adj_unknown_key")),
        ("expired", keys.client("expired")),
    ];
    let expected = |_: &Fixture, endpoint: &Endpoint| match endpoint.audience {
        Audience::Everybody => Some(200),
        Audience::Users | Audience::Admins | Audience::ServerOperators | Audience::Calls => Some(401),
    };
    check_others(&keys, &callers, expected).await;
}

async fn every_endpoint_hides_the_resources_of_others(server: TestServer) {
    let keys = server.is_protected().await;
    let callers = ["bob", "root-of-other"].map(|name| (name, keys.client(name)));
    let expected = |fixture: &Fixture, endpoint: &Endpoint| {
        let pattern = endpoint.pattern.as_str();
        let names_resource = fixture.path(pattern) != pattern && !pattern.starts_with("/agents/");
        // Both answer without the thread: the stream waits for one, and a command has an error of its own.
        let needs_thread = !pattern.ends_with("/commands") && !pattern.ends_with("/stream/events");
        match endpoint.audience {
            Audience::Calls => Some(401),
            Audience::Everybody | Audience::Users | Audience::ServerOperators | Audience::Admins => {
                (names_resource && needs_thread).then_some(404)
            }
        }
    };
    check_others(&keys, &callers, expected).await;
}

async fn every_endpoint_hides_the_agents_that_another_tenant_defined(server: TestServer) {
    let keys = server.is_protected().await;
    let root = keys.client("root");
    let definition = json!({"model": "scripted:x", "name": MARK, "system_prompt": MARK});
    let made = root.put("/agents/of-acme", definition).await.ok();
    let assistant = made["assistant_id"].as_str().expect("an id");
    let fixture = Fixture::create(&keys.client("ann")).await;
    let mut checked = 0;
    for [method, pattern] in patterns(&root).await {
        let endpoint = fixture.endpoint(&method, &pattern);
        let is_about_agent = pattern.contains("{graph_id}") || pattern.contains("{assistant_id}");
        let path = match is_about_agent {
            true => pattern
                .replace("{graph_id}", "of-acme")
                .replace("{assistant_id}", assistant)
                .replace("{namespace}", "general-purpose"),
            false => endpoint.path.clone(),
        };
        let expected = match (method.as_str(), is_about_agent) {
            ("put", true) => Some(409),
            (_, true) => Some(404),
            (_, false) => None,
        };
        let endpoint = Endpoint { path, ..endpoint };
        for caller in ["root-of-other", "harness"] {
            let reply = endpoint.send(&keys.client(caller)).await;
            let text = format!("{caller}: {method} {pattern}: {reply:?}");
            assert!(expected.is_none_or(|status| reply.status == status), "{text}");
            assert!(!format!("{reply:?}").contains(MARK), "{text}");
            checked += u32::from(is_about_agent);
        }
    }
    assert!(checked >= 24, "{checked} requests");
    assert_eq!(root.get("/agents/of-acme").await.ok(), made);
}

async fn every_endpoint_serves_the_owner_by_role(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let mut wrong = vec![];
    // Resources serve until a request has changed them.
    let mut unchanged = None;
    for [method, pattern] in patterns(&ann).await {
        for caller in ["ann", "root"] {
            let client = keys.client(caller);
            let fixture = match unchanged.take() {
                Some(fixture) => fixture,
                None => Fixture::create(&ann).await,
            };
            if pattern == "/agents/{graph_id}" && method == "delete" {
                let put = fixture.endpoint("put", &pattern);
                put.send(&keys.client("root")).await.ok();
            }
            let mut endpoint = fixture.endpoint(&method, &pattern);
            if pattern.contains("{key_id}") {
                let made = fixture
                    .endpoint("post", "/auth/keys")
                    .send(&keys.client("root"))
                    .await
                    .ok();
                endpoint.path = endpoint
                    .path
                    .replace("{key_id}", made["key_id"].as_str().expect("an id"));
            }
            if endpoint.is_socket() {
                // A request that is no upgrade is refused after the gate.
                assert_eq!(endpoint.send(&client).await.status, 400, "{caller}: {pattern}");
                unchanged = Some(fixture);
                continue;
            }
            if pattern == "/mcp" {
                // Without the headers of the protocol it is refused after the gate.
                let status = endpoint.send(&client).await.status;
                assert!(matches!(status, 400 | 406), "{caller}: {method} {pattern}: {status}");
                unchanged = Some(fixture);
                continue;
            }
            if pattern.ends_with("/cancel") {
                // The run of the fixture is over: there is nothing to cancel, but it is found.
                assert!(
                    matches!(endpoint.send(&client).await.status, 404 | 409),
                    "{caller}: {pattern}"
                );
                unchanged = Some(fixture);
                continue;
            }
            let reply = endpoint.send(&client).await;
            let is_allowed = match endpoint.audience {
                Audience::Everybody | Audience::Users => true,
                Audience::Admins => caller == "root",
                Audience::ServerOperators | Audience::Calls => false,
            };
            let refusal = match endpoint.audience {
                Audience::Calls => 401,
                Audience::Everybody | Audience::Users | Audience::Admins | Audience::ServerOperators => 403,
            };
            let is_expected = match is_allowed {
                true => (200..300).contains(&reply.status),
                false => reply.status == refusal,
            };
            if !is_expected {
                wrong.push(format!("{caller}: {method} {pattern}: {reply:?}"));
            }
            let only_reads = method == "get" || pattern.ends_with("/search") || pattern.ends_with("/count");
            let leaves_fixture = LEAVE_FIXTURE.contains(&[method.as_str(), pattern.as_str()]);
            unchanged = Some(fixture).filter(|_| only_reads || leaves_fixture || !is_allowed);
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(keys.client("harness").get("/metrics").await.status, 200);
}

async fn searches_and_counts_contain_only_what_the_caller_may_see(server: TestServer) {
    let keys = server.is_protected().await;
    let owners = ["ann", "bob", "root-of-other"];
    for owner in owners {
        Fixture::create(&keys.client(owner)).await;
    }
    for owner in owners {
        let client = keys.client(owner);
        assert_eq!(count(&client, "/threads/count").await, 1, "{owner}");
        assert_eq!(found(&client, "/threads/search").await.len(), 1, "{owner}");
        assert_eq!(count(&client, "/runs/crons/count").await, 1, "{owner}");
        assert_eq!(found(&client, "/runs/crons/search").await.len(), 1, "{owner}");
        assert_eq!(
            client.get("/webhooks/deliveries").await.ok().as_array().map(Vec::len),
            Some(1),
            "{owner}"
        );
        let interrupts = client.get("/interrupts").await.ok();
        assert_eq!(interrupts["interrupts"].as_array().map(Vec::len), Some(1), "{owner}");
        let marked = json!({"metadata": {"mark": MARK}});
        let assistants = client.post("/assistants/search", marked).await.ok();
        assert_eq!(assistants.as_array().map(Vec::len), Some(1), "{owner}");
    }
    let operator = keys.client("operator");
    assert_eq!(count(&operator, "/threads/count").await, 2);
    assert_eq!(count(&operator, "/runs/crons/count").await, 2);
    let ids: BTreeSet<_> = found(&operator, "/threads/search").await.into_iter().collect();
    assert_eq!(ids.len(), 2);
}

/// A WebSocket to a thread.
struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    /// Opens the WebSocket of a thread with this key, or with none.
    ///
    /// # Errors
    /// The status with which the server refuses it.
    async fn open(client: &Client, key: Option<&str>, thread: &str) -> Result<Self, u16> {
        let client = client.with_key(key.unwrap_or_default());
        match connect_async(client.socket_request(thread)).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a command.
    async fn sends(&mut self, id: u32, method: &str, params: Value) {
        let command = json!({"id": id, "method": method, "params": params}).to_string();
        self.0.send(Message::text(command)).await.expect("it is open");
    }

    /// Returns the next text.
    async fn next(&mut self) -> String {
        loop {
            match self.0.next().await.expect("it is open").expect("it works") {
                Message::Text(text) => return text.to_string(),
                Message::Ping(_) | Message::Pong(_) => {}
                other @ (Message::Binary(_) | Message::Close(_) | Message::Frame(_)) => panic!("{other:?}"),
            }
        }
    }

    /// Returns all texts up to the response to the command `id`.
    async fn until_response(&mut self, id: u32) -> Vec<String> {
        let mut texts = vec![];
        loop {
            let text = self.next().await;
            let value: Value = serde_json::from_str(&text).expect("JSON");
            texts.push(text);
            if value["type"] != "event" && value["id"] == id {
                return texts;
            }
        }
    }
}

async fn a_websocket_shows_a_thread_only_to_callers_who_may_read_it(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    let open = async |key: Option<&str>| Socket::open(&keys.nobody(), key, &ann.thread).await;
    assert_eq!(open(None).await.err(), Some(401));
    assert_eq!(open(Some("adj_unknown_key")).await.err(), Some(401));
    assert_eq!(open(Some(&keys.text("expired"))).await.err(), Some(401));
    let subscription = json!({"channels": ["values", "messages", "updates", "lifecycle"]});
    for (caller, may_read) in [("bob", false), ("root-of-other", false), ("ann", true), ("root", true)] {
        let mut socket = open(Some(&keys.text(caller))).await.expect("a socket");
        socket.sends(1, "subscription.subscribe", subscription.clone()).await;
        let mut texts = socket.until_response(1).await;
        for command in [2, 3] {
            ann.says(script().says(MARK)).await;
            socket.sends(command, "agent.getTree", json!({})).await;
            texts.extend(socket.until_response(command).await);
        }
        if may_read {
            while !texts.iter().any(|text| text.contains(MARK)) {
                texts.push(socket.next().await);
            }
        }
        assert_eq!(
            texts.iter().any(|text| text.contains(MARK)),
            may_read,
            "{caller}: {texts:#?}"
        );
    }
}

async fn a_stream_does_not_say_how_far_the_log_of_another_reaches(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    ann.says(script().says("hello")).await;
    let prune = json!({"thread_ids": [ann.thread], "strategy": "keep_latest"});
    assert_eq!(ann.client().post("/threads/prune", prune).await.ok()["pruned_count"], 1);
    let since = json!({"channels": ["lifecycle"], "since": 1});
    let path = ann.path("/stream/events");
    for (caller, may_read) in [("ann", true), ("bob", false), ("root-of-other", false)] {
        let request = keys.client(caller).request(Method::POST, &path).json(&since);
        let status = request.send().await.expect("an answer").status().as_u16();
        assert_eq!(status, if may_read { 409 } else { 200 }, "{caller}");
        let key = keys.text(caller);
        let socket = Socket::open(&keys.nobody(), Some(&key), &ann.thread).await;
        let mut socket = socket.expect("a socket");
        socket.sends(1, "subscription.reconnect", since.clone()).await;
        let answer = socket.until_response(1).await.pop().expect("a response");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(
            answer["type"],
            if may_read { "error" } else { "success" },
            "{caller}: {answer}"
        );
    }
}

async fn streams_of_strangers_take_no_place_on_a_thread(server: TestServer) {
    server.is_configured("max_streams_per_thread = 1").await;
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let path = format!("/threads/{}/stream/events", ann.thread().await);
    let body = json!({"channels": ["lifecycle"]});
    let mut open = vec![];
    for caller in ["bob", "root-of-other", "ann"] {
        open.push(keys.client(caller).post_stream(&path, body.clone()).await);
    }
    ann.post(&path, body).await.refused(429);
    assert_eq!(open.len(), 3);
}

async fn count(client: &Client, path: &str) -> i64 {
    client.post(path, json!({})).await.ok().as_i64().expect("a number")
}

/// Returns the ids of what a search finds.
async fn found(client: &Client, path: &str) -> Vec<String> {
    let found = client.post(path, json!({"limit": 100})).await.ok();
    let found = found.as_array().expect("a list");
    let id = |item: &Value| item.get("thread_id").or(item.get("cron_id")).map(ToString::to_string);
    found.iter().filter_map(id).collect()
}
