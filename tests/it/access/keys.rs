//! API keys in the database: over HTTP, and with `adjutant keys`.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use futures::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::query_scalar;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::support::client::Client;
use crate::support::command::{command, refused, said};
use crate::support::process::{Log, Process, server_in};
use crate::support::sse::Sse;
use crate::support::{
    Engine, Human, Keys, TestServer, approval, continuation, eventually, mail, on_both_engines, on_postgres, postgres,
    script,
};

on_both_engines! {
    a_key_works_until_it_is_revoked,
    a_rotated_key_has_both_secrets_for_a_while,
    a_key_rotated_without_grace_loses_its_secret_at_once,
    a_key_expires,
    nobody_creates_a_key_beyond_their_own_rights,
    a_key_that_only_starts_runs_brings_no_answers_of_a_program,
    a_key_that_only_starts_runs_writes_no_state_by_a_command,
    a_key_that_only_starts_runs_writes_no_state_by_a_cron,
    only_admins_manage_keys,
    keys_of_other_tenants_do_not_exist,
    invalid_fields_are_named,
    the_last_use_is_recorded,
    secrets_are_neither_stored_nor_logged,
    the_command_line_creates_the_first_key,
    keys_of_the_database_can_be_switched_off,
    streams_end_when_their_key_is_revoked,
    streams_end_when_their_key_expires,
    streams_end_when_their_key_of_the_configuration_expires,
}

on_postgres! {
    a_revocation_reaches_other_servers_within_seconds,
    keys_can_be_revoked_while_a_server_runs,
}

/// Creates a key, and returns the response.
async fn create(admin: &Client, body: Value) -> Value {
    admin.post("/auth/keys", body).await.ok()
}

/// Returns the text of an issued key.
fn text_of(issued: &Value) -> String {
    issued["api_key"].as_str().expect("a key").to_owned()
}

fn path_of(issued: &Value) -> String {
    format!("/auth/keys/{}", issued["key_id"].as_str().expect("an id"))
}

/// Returns the path that gives a key a new secret.
fn rotation_of(issued: &Value) -> String {
    format!("{}/rotate", path_of(issued))
}

/// Gives a key a new secret. Returns a client with the old one, which worked before, and a client with the new one.
async fn rotate(keys: &Keys, issued: &Value, grace_s: u32) -> [Client; 2] {
    let old = keys.with(&text_of(issued));
    assert_eq!(old.get("/auth/me").await.status, 200);
    let admin = keys.client("root");
    let rotated = admin.post(&rotation_of(issued), json!({"grace_s": grace_s})).await.ok();
    [old, keys.with(&text_of(&rotated))]
}

async fn clock(server: &TestServer) -> ManualClock {
    let clock = ManualClock::starting_at(SystemClock.now());
    server.uses_clock(&clock).await;
    clock
}

async fn a_key_works_until_it_is_revoked(server: TestServer) {
    let keys = server.is_protected().await;
    let admin = keys.client("root");
    let issued = create(&admin, json!({"name": "ci", "user": "robot", "roles": ["developer"]})).await;
    let robot = keys.with(&text_of(&issued));
    let caller = robot.get("/auth/me").await.ok();
    assert_eq!(caller["identity"], "robot");
    assert_eq!(caller["tenant"], "acme");
    assert_eq!(caller["roles"], json!(["developer"]));
    let listed = admin.get("/auth/keys").await.ok();
    assert_eq!(listed[0]["name"], "ci");
    assert!(!listed.to_string().contains(&text_of(&issued)), "{listed}");
    // Otherwise the use of the key is stored at some time between the two answers below.
    eventually(async || admin.get(&path_of(&issued)).await.ok()["last_used_at"].is_string()).await;
    let revoked = admin.delete(&path_of(&issued)).await.ok();
    assert!(revoked["revoked_at"].is_string(), "{revoked}");
    assert_eq!(robot.get("/auth/me").await.status, 401);
    assert_eq!(admin.get(&path_of(&issued)).await.ok(), revoked);
}

/// The stream of a thread and a WebSocket, opened with a key.
struct OpenStreams {
    events: Sse,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl OpenStreams {
    async fn open(client: &Client) -> Self {
        let thread = client.thread().await;
        let stream = client.request(Method::GET, &format!("/threads/{thread}/stream"));
        let events = Sse::open(stream.send().await.expect("an answer")).await;
        let ticket = client.post("/auth/tickets", json!({})).await.ok();
        let base = client.base().replacen("http", "ws", 1);
        let ticket = ticket["ticket"].as_str().expect("a ticket");
        let url = format!("{base}/threads/{thread}/stream/events?ticket={ticket}");
        let connected = connect_async(url).await.expect("a socket");
        Self {
            events,
            socket: connected.0,
        }
    }

    /// Waits until the server has ended both.
    async fn ended(mut self) {
        while let Ok(Some(_)) = self.events.try_next().await {}
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Close(Some(frame)))) => {
                    assert_eq!(frame.code, CloseCode::Policy);
                    return;
                }
                Some(Ok(_)) => {}
                other => panic!("the socket was not closed with a reason: {other:?}"),
            }
        }
    }
}

async fn streams_end_when_their_key_is_revoked(server: TestServer) {
    let keys = server.is_protected().await;
    let admin = keys.client("root");
    let issued = create(&admin, json!({"name": "page"})).await;
    let streams = OpenStreams::open(&keys.with(&text_of(&issued))).await;
    admin.delete(&path_of(&issued)).await.ok();
    streams.ended().await;
}

async fn streams_end_when_their_key_expires(server: TestServer) {
    let clock = clock(&server).await;
    let keys = server.is_protected().await;
    let admin = keys.client("root");
    let end = clock.now().plus(Duration::from_secs(60)).to_string();
    let issued = create(&admin, json!({"name": "page", "expires_at": end})).await;
    let streams = OpenStreams::open(&keys.with(&text_of(&issued))).await;
    clock.advance(Duration::from_secs(60));
    // Keys are looked at again after some seconds, and at once when one has changed.
    create(&admin, json!({"name": "another"})).await;
    streams.ended().await;
}

async fn streams_end_when_their_key_of_the_configuration_expires(server: TestServer) {
    const KEY: &str = "the-secret-key-of-page-0123456789abcdef";
    let clock = clock(&server).await;
    let end = clock.now().plus(Duration::from_secs(60));
    server.file_is_written("keys/page", KEY);
    let section = format!(
        "[[auth.keys]]\nname = \"page\"\nroles = [\"user\"]\nkey_file = \"keys/page\"\nexpires_at = \"{end}\"\n"
    );
    let keys = server.is_protected_with("", &section).await;
    let streams = OpenStreams::open(&keys.with(KEY)).await;
    clock.advance(Duration::from_secs(60));
    // Keys are looked at again after some seconds, and at once when one has changed.
    create(&keys.client("root"), json!({"name": "another"})).await;
    streams.ended().await;
}

async fn a_rotated_key_has_both_secrets_for_a_while(server: TestServer) {
    let clock = clock(&server).await;
    let keys = server.is_protected().await;
    let issued = create(&keys.client("root"), json!({"name": "ci"})).await;
    let [old, new] = rotate(&keys, &issued, 3600).await;
    assert_eq!(old.get("/auth/me").await.ok(), new.get("/auth/me").await.ok());
    clock.advance(Duration::from_secs(3601));
    assert_eq!(old.get("/auth/me").await.status, 401);
    assert_eq!(new.get("/auth/me").await.status, 200);
}

async fn a_key_rotated_without_grace_loses_its_secret_at_once(server: TestServer) {
    let keys = server.is_protected().await;
    let admin = keys.client("root");
    let issued = create(&admin, json!({"name": "ci"})).await;
    let [old, new] = rotate(&keys, &issued, 0).await;
    assert_eq!(old.get("/auth/me").await.status, 401);
    assert_eq!(new.get("/auth/me").await.status, 200);
    admin.delete(&path_of(&issued)).await.ok();
    let refused = admin.post(&rotation_of(&issued), json!({})).await;
    assert_eq!(refused.status, 409);
    assert_eq!(refused.body["code"], "key_revoked");
}

async fn a_key_expires(server: TestServer) {
    let clock = clock(&server).await;
    let keys = server.is_protected().await;
    let end = clock.now().plus(Duration::from_secs(60)).to_string();
    let issued = create(&keys.client("root"), json!({"name": "ci", "expires_at": end})).await;
    let robot = keys.with(&text_of(&issued));
    assert_eq!(robot.get("/auth/me").await.ok()["expires_at"], end);
    clock.advance(Duration::from_secs(59));
    assert_eq!(robot.get("/auth/me").await.status, 200);
    clock.advance(Duration::from_secs(1));
    assert_eq!(robot.get("/auth/me").await.status, 401);
}

async fn nobody_creates_a_key_beyond_their_own_rights(server: TestServer) {
    let keys = server.is_protected().await;
    let root = keys.client("root");
    let limited = json!({"name": "keys", "roles": ["admin"], "scopes": ["keys:*", "threads:read"]});
    let limited = keys.with(&text_of(&create(&root, limited).await));
    for body in [
        json!({"name": "more"}),
        json!({"name": "more", "scopes": ["threads:*"]}),
        json!({"name": "more", "scopes": ["*"]}),
    ] {
        assert!(
            limited
                .post("/auth/keys", body)
                .await
                .refused(422)
                .starts_with("scopes")
        );
    }
    let same = json!({"name": "same", "scopes": ["threads:read"]});
    assert_eq!(limited.post("/auth/keys", same).await.status, 200);
    // A new secret of a key with more rights would be a way around.
    let other = create(&root, json!({"name": "powerful", "roles": ["admin"]})).await;
    assert!(
        limited
            .post(&rotation_of(&other), json!({}))
            .await
            .refused(422)
            .starts_with("scopes")
    );
}

async fn a_key_that_only_starts_runs_brings_no_answers_of_a_program(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    ann.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = ann.question().await;
    let rights = json!({"name": "runs", "user": "ann", "roles": ["user"], "scopes": ["threads:*", "assistants:*"]});
    let issued = create(&keys.client("root"), rights).await;
    let program = keys.with(&text_of(&issued));
    let path = ann.path("/runs/wait");
    let continues = |answers: Value| {
        let config = continuation(&answers);
        json!({"assistant_id": "agent", "input": {"messages": []}, "config": config})
    };
    let answer = continues(json!({question.id(): approval()}));
    program.post(&path, answer).await.refused(404);
    // Without the answer the agent asks again.
    let values = program.post(&path, continues(json!({}))).await.ok();
    assert_eq!(values["__interrupt__"][0]["id"], question.id());
    assert_eq!(server.tools.calls_of("send_email").len(), 0);
    ann.approves(&question).await.finishes().await;
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn a_key_that_only_starts_runs_writes_no_state_by_a_command(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    let scopes = ["threads:read", "threads:create_run", "assistants:*"];
    let rights = json!({"name": "runs", "user": "ann", "roles": ["user"], "scopes": scopes});
    let issued = create(&keys.client("root"), rights).await;
    let program = keys.with(&text_of(&issued));
    let note = json!({"messages": [{"role": "user", "content": "a note"}]});
    let run = json!({"assistant_id": "agent", "command": {"update": note}});
    for (path, body) in [("/state", json!({"values": note})), ("/runs/wait", run.clone())] {
        let detail = program.post(&ann.path(path), body).await.refused(403);
        assert!(detail.contains("`threads:update`"), "{path}: {detail}");
    }
    let message = ann.run_body("hello", json!({}));
    program.post(&ann.path("/runs/wait"), message).await.ok();
    ann.client().post(&ann.path("/runs/wait"), run).await.ok();
}

async fn a_key_that_only_starts_runs_writes_no_state_by_a_cron(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    let scopes = ["threads:read", "threads:create_run", "assistants:*", "crons:*"];
    let rights = json!({"name": "runs", "user": "ann", "roles": ["user"], "scopes": scopes});
    let issued = create(&keys.client("root"), rights).await;
    let program = keys.with(&text_of(&issued));
    let update = json!({"update": {"messages": [{"role": "user", "content": "a note"}]}});
    let writes = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "command": update});
    let goes = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "command": {"goto": "model"}});
    for path in [ann.path("/runs/crons"), "/runs/crons".to_owned()] {
        let detail = program.post(&path, writes.clone()).await.refused(403);
        assert!(detail.contains("`threads:update`"), "{path}: {detail}");
        let cron = program.post(&path, goes.clone()).await.ok();
        let own = format!("/runs/crons/{}", cron["cron_id"].as_str().expect("an id"));
        let detail = program.patch(&own, json!({"command": update})).await.refused(403);
        assert!(detail.contains("`threads:update`"), "{path}: {detail}");
        program.patch(&own, json!({"schedule": "@daily"})).await.ok();
        // Whoever may write into the state may have a cron do so. Others may stop that cron, and start it no more.
        ann.client().patch(&own, json!({"command": update})).await.ok();
        program.patch(&own, json!({"schedule": "@yearly"})).await.refused(403);
        let stopped = program.patch(&own, json!({"enabled": false})).await.ok();
        assert_eq!(stopped["enabled"], false);
        program.patch(&own, json!({"enabled": true})).await.refused(403);
    }
}

async fn only_admins_manage_keys(server: TestServer) {
    let keys = server.is_protected().await;
    let issued = create(&keys.client("root"), json!({"name": "ci"})).await;
    for name in ["ann", "operator"] {
        let client = keys.client(name);
        assert_eq!(
            client.post("/auth/keys", json!({"name": "x"})).await.status,
            403,
            "{name}"
        );
        assert_eq!(client.get("/auth/keys").await.status, 403, "{name}");
        assert_eq!(client.get(&path_of(&issued)).await.status, 403, "{name}");
        assert_eq!(client.delete(&path_of(&issued)).await.status, 403, "{name}");
        assert_eq!(
            client.post(&rotation_of(&issued), json!({})).await.status,
            403,
            "{name}"
        );
    }
}

async fn keys_of_other_tenants_do_not_exist(server: TestServer) {
    let keys = server.is_protected().await;
    let issued = create(&keys.client("root"), json!({"name": "ci"})).await;
    let other = keys.client("root-of-other");
    assert_eq!(other.get("/auth/keys").await.ok(), json!([]));
    assert_eq!(other.get(&path_of(&issued)).await.status, 404);
    assert_eq!(other.delete(&path_of(&issued)).await.status, 404);
    assert_eq!(other.post(&rotation_of(&issued), json!({})).await.status, 404);
    assert_eq!(keys.with(&text_of(&issued)).get("/auth/me").await.status, 200);
}

async fn invalid_fields_are_named(server: TestServer) {
    let admin = server.is_protected().await.client("root");
    for (body, field) in [
        (json!({"name": ""}), "name"),
        (json!({"name": "x", "roles": ["root"]}), "roles[0]"),
        (json!({"name": "x", "roles": []}), "roles"),
        (json!({"name": "x", "scopes": ["threads:fly"]}), "scopes[0]"),
        (json!({"name": "x", "user": "a\nb"}), "user"),
        (json!({"name": "x", "expires_at": "soon"}), "expires_at"),
        (json!({"name": "x", "expires_at": "2020-01-01T00:00:00Z"}), "expires_at"),
        (json!({"name": "x", "tenant": "other"}), "tenant"),
    ] {
        let refusal = admin.post("/auth/keys", body).await.refused(422);
        assert!(refusal.starts_with(&format!("{field}:")), "{field}: {refusal}");
    }
}

async fn the_last_use_is_recorded(server: TestServer) {
    let keys = server.is_protected().await;
    let admin = keys.client("root");
    let issued = create(&admin, json!({"name": "ci"})).await;
    assert_eq!(admin.get(&path_of(&issued)).await.ok()["last_used_at"], Value::Null);
    assert_eq!(keys.with(&text_of(&issued)).get("/auth/me").await.status, 200);
    eventually(async || admin.get(&path_of(&issued)).await.ok()["last_used_at"].is_string()).await;
}

/// Returns all rows of the two tables as text, and all files of the database.
async fn everything_stored(server: &TestServer) -> String {
    let url = server.database_url();
    if server.engine == Engine::Postgres {
        let mut conn = postgres::connect(&url).await;
        let keys: Vec<String> = query_scalar("select api_keys::text from api_keys")
            .fetch_all(&mut conn)
            .await
            .expect("rows");
        let tickets: Vec<String> = query_scalar("select auth_tickets::text from auth_tickets")
            .fetch_all(&mut conn)
            .await
            .expect("rows");
        assert!(!keys.is_empty() && !tickets.is_empty());
        return [keys, tickets].concat().join("\n");
    }
    let file = url.strip_prefix("sqlite://").expect("a file");
    let folder = Path::new(file).parent().expect("a folder");
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("adjutant.db"))
        {
            text += &String::from_utf8_lossy(&std::fs::read(path).expect("the file"));
        }
    }
    assert!(text.contains("secretive"), "the file has the name of the key");
    text
}

async fn secrets_are_neither_stored_nor_logged(server: TestServer) {
    let keys = server.is_protected().await;
    server.is_stopped().await;
    let configuration = server.configuration();
    let mut command = server_in(configuration.parent().expect("a folder"));
    command.arg("--config").arg(&configuration);
    // On the command line, since the harness sets the variable.
    command.args(["--log", "debug,adjutant=trace"]);
    let written = Log::default();
    let process = Process::spawn(command, &written);
    server.client().moved_to(&process.base().await);
    let admin = keys.client("root");
    let issued = create(&admin, json!({"name": "secretive"})).await;
    let rotated = admin.post(&rotation_of(&issued), json!({})).await.ok();
    let robot = keys.with(&text_of(&rotated));
    let ticket = robot.post("/auth/tickets", json!({})).await.ok();
    let ticket = ticket["ticket"].as_str().expect("a ticket");
    let wrong = text_of(&issued).replace("adj_", "adj_0");
    assert_eq!(keys.with(&wrong).get("/auth/me").await.status, 401);
    let stream = format!(
        "/threads/{}/stream?ticket={ticket}0",
        "00000000-0000-0000-0000-000000000000"
    );
    assert_eq!(keys.nobody().get(&stream).await.status, 401);
    let stored = everything_stored(&server).await;
    eventually(async || written.text().matches("request refused").count() == 2).await;
    drop(process);
    let log = written.text();
    for text in [
        text_of(&issued).as_str(),
        text_of(&rotated).as_str(),
        ticket,
        "the-secret-key-of-root-0123456789abcdef",
    ] {
        let secret = text.rsplit('_').next().expect("a secret");
        assert!(!stored.contains(secret), "the secret {secret} is stored");
        assert!(!log.contains(secret), "the secret {secret} is in the log");
    }
}

/// Runs `adjutant keys` with these arguments on the server's database.
fn keys_command(server: &TestServer, arguments: &[&str]) -> Output {
    command(server, &[&["keys"][..], arguments].concat())
}

async fn the_command_line_creates_the_first_key(server: TestServer) {
    let keys = server.is_protected().await;
    if server.engine == Engine::Sqlite {
        let reason = refused(&keys_command(&server, &["list"]));
        assert!(reason.contains("POST /auth/keys"), "{reason}");
    }
    server.is_stopped().await;
    let arguments = ["create", "--name", "first", "--tenant", "acme", "--role", "admin"];
    let created = said(&keys_command(&server, &arguments));
    let text = created.lines().next().expect("a key").to_owned();
    let listed = said(&keys_command(&server, &["list", "--tenant", "acme"]));
    assert!(listed.contains("first") && !listed.contains(&text), "{listed}");
    assert!(!said(&keys_command(&server, &["list", "--tenant", "other"])).contains("first"));
    let wrong = keys_command(&server, &["create", "--name", "x", "--role", "root"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("`root` is not a role"));
    let id = text.split('_').nth(1).expect("an id");
    let rotated = said(&keys_command(&server, &["rotate", id, "--grace-hours", "0"]));
    let new = rotated.lines().next().expect("a key").to_owned();
    server.is_stopped_and_started_again().await;
    assert_eq!(keys.with(&text).get("/auth/me").await.status, 401);
    let caller = keys.with(&new).get("/auth/me").await.ok();
    assert_eq!(caller["identity"], "first");
    assert_eq!(caller["roles"], json!(["admin"]));
}

async fn keys_of_the_database_can_be_switched_off(server: TestServer) {
    let keys = server.is_protected().await;
    let issued = create(&keys.client("root"), json!({"name": "ci"})).await;
    let robot = keys.with(&text_of(&issued));
    assert_eq!(robot.get("/auth/me").await.status, 200);
    server.is_reconfigured("[auth]\n", "[auth]\napi_keys = false\n").await;
    assert_eq!(robot.get("/auth/me").await.status, 401);
    assert_eq!(keys.client("ann").get("/auth/me").await.status, 200);
}

async fn a_revocation_reaches_other_servers_within_seconds(server: TestServer) {
    let clock = clock(&server).await;
    let keys = server.is_protected().await;
    let admin = keys.client("root");
    let issued = create(&admin, json!({"name": "ci"})).await;
    let twin = server.starts_twin().await;
    let there = twin.client.with_key(&text_of(&issued));
    assert_eq!(there.get("/auth/me").await.status, 200);
    admin.delete(&path_of(&issued)).await.ok();
    assert_eq!(keys.with(&text_of(&issued)).get("/auth/me").await.status, 401);
    clock.advance(Duration::from_secs(5));
    assert_eq!(there.get("/auth/me").await.status, 401);
    twin.stops().await;
}

async fn keys_can_be_revoked_while_a_server_runs(server: TestServer) {
    let clock = clock(&server).await;
    let keys = server.is_protected().await;
    let issued = create(&keys.client("root"), json!({"name": "ci"})).await;
    let robot = keys.with(&text_of(&issued));
    assert_eq!(robot.get("/auth/me").await.status, 200);
    let id = issued["key_id"].as_str().expect("an id");
    assert!(said(&keys_command(&server, &["revoke", id])).contains("is revoked"));
    clock.advance(Duration::from_secs(5));
    assert_eq!(robot.get("/auth/me").await.status, 401);
}
