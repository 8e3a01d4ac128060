//! Encryption at rest, and what remains of data that was deleted.

use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, query_scalar};

use crate::support::client::{Client, reply};
use crate::support::command::{command, refused, said};
use crate::support::process::{Log, Process, server_in};
use crate::support::{Human, TestServer, call, eventually, on_both_engines, postgres, script, without_postgres};

on_both_engines! {
    a_conversation_cannot_be_read_in_the_database,
    a_deleted_thread_leaves_nothing,
    a_user_is_exported_and_deleted,
    a_deleted_tenant_leaves_nothing,
    rekeying_seals_what_is_plain_and_retires_a_key,
    a_server_without_the_right_keys_does_not_start,
    the_store_is_searched_although_it_is_sealed,
}

without_postgres! {
    a_program_prints_the_keys,
    keys_and_conversations_are_not_logged,
    no_core_files_are_written_unless_they_are_allowed,
    commands_need_a_stopped_server,
}

/// A text that only a conversation has.
pub(super) const MARKER: &str = "xyzzy-plugh-0815";

/// Two keys for the database: 32 bytes in base64.
const OLD_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const NEW_KEY: &str = "YWJjZGVmZ2hpamFiY2RlZmdoaWphYmNkZWZnaGlqYWI=";

/// The section that names the keys.
const SECTION: &str = "[encryption]\nkey_file = \"master.keys\"\n";

fn folder(server: &TestServer) -> PathBuf {
    let configuration = server.configuration();
    configuration.parent().expect("a folder").to_owned()
}

/// Writes the keys beside the configuration.
fn write_keys(server: &TestServer, keys: &str) {
    std::fs::write(folder(server).join("master.keys"), keys).expect("the keys");
}

/// Restarts the server with encryption.
pub(super) async fn encrypts(server: &TestServer) {
    write_keys(server, &format!("old:{OLD_KEY}\n"));
    server.is_configured_with(SECTION).await;
}

/// Returns everything in the database as text: the files of SQLite, or the rows of Postgres.
pub(super) async fn everything_stored(server: &TestServer) -> String {
    let url = server.database_url();
    let Some(file) = url.strip_prefix("sqlite://") else {
        return rows(&url).await;
    };
    let files = std::fs::read_dir(Path::new(file).parent().expect("a folder")).expect("the folder");
    let paths = files.map(|entry| entry.expect("an entry").path());
    let of_database = paths.filter(|path| path.to_string_lossy().contains("adjutant.db"));
    let read = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    of_database.map(read).collect()
}

async fn rows(url: &str) -> String {
    const TABLES: &str = "select table_name::text from information_schema.tables where table_schema = 'public'";
    let mut conn = postgres::connect(url).await;
    let tables: Vec<String> = query_scalar(TABLES).fetch_all(&mut conn).await.expect("tables");
    assert!(tables.len() > 30, "{tables:?}");
    let mut all = String::new();
    for table in tables {
        let sql = format!("select coalesce(string_agg(cast(t as text), ' '), '') from {table} t");
        let text: String = query_scalar(AssertSqlSafe(sql))
            .fetch_one(&mut conn)
            .await
            .expect("rows");
        all.push_str(&text);
    }
    conn.close().await.expect("a clean close");
    all
}

pub(crate) async fn is_stored(server: &TestServer, text: &str) -> bool {
    everything_stored(server).await.contains(text)
}

async fn put_item(client: &Client, key: &str, value: Value) {
    let body = json!({"namespace": ["notes"], "key": key, "value": value});
    let put = reply(client.request(Method::PUT, "/store/items").json(&body)).await;
    assert_eq!(put.status, 204, "{}", put.body);
}

/// A conversation with a text in its messages, files, tool calls and questions, and in the Store.
pub(super) async fn converses(client: Client, text: &str) -> Human {
    let human = Human::on_new_thread(client, "agent").await;
    let write = call("w", "write_file", json!({"file_path": "/note.txt", "content": text}));
    let send = json!({"to": "ann@example.org", "body": text});
    let asks = script().calls(write).calls(call("m", "send_email", send)).says(text);
    human.says(&asks).await;
    let question = human.question().await;
    assert!(question.0.to_string().contains(text), "{:?}", question.0);
    put_item(human.client(), "k", json!({"note": text})).await;
    human
}

async fn a_conversation_cannot_be_read_in_the_database(server: TestServer) {
    encrypts(&server).await;
    let human = converses(server.client(), MARKER).await;
    let question = human.question().await;
    assert!(!is_stored(&server, MARKER).await, "while it waits for an answer");
    human.approves(&question).await.finishes().await;
    let state = human.state().await.to_string();
    assert!(state.matches(MARKER).count() > 3, "{state}");
    assert!(!is_stored(&server, MARKER).await, "at the end");
    server.is_stopped().await;
    assert!(!is_stored(&server, MARKER).await, "when the server is stopped");
    server.is_stopped_and_started_again().await;
    assert_eq!(human.state().await.to_string(), state);
    human.says(script().says("more")).await;
}

async fn a_deleted_thread_leaves_nothing(server: TestServer) {
    let human = converses(server.client(), MARKER).await;
    let copied = human.client().post(&human.path("/copy"), json!({})).await.ok();
    let copy = copied["thread_id"].as_str().expect("an id").to_owned();
    assert!(is_stored(&server, MARKER).await, "a plain database shows it");
    human.client().delete(&human.path("")).await.ok();
    human.client().delete(&format!("/threads/{copy}")).await.ok();
    let item = json!({"namespace": ["notes"], "key": "k"});
    reply(human.client().request(Method::DELETE, "/store/items").json(&item)).await;
    eventually(async || !is_stored(&server, MARKER).await).await;
    server.is_stopped().await;
    assert!(!is_stored(&server, MARKER).await);
}

/// Returns the lines of an export, by type.
pub(super) fn of_type<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let of_kind = lines.iter().filter(|line| line["type"] == kind);
    of_kind.map(|line| &line["data"]).collect()
}

async fn a_user_is_exported_and_deleted(server: TestServer) {
    encrypts(&server).await;
    let keys = server.is_protected().await;
    let ann = converses(keys.client("ann"), MARKER).await;
    let bob = converses(keys.client("bob"), "said-by-bob").await;
    let assistant = json!({"graph_id": "agent", "name": "mine", "context": {"note": MARKER}});
    let assistant = keys.client("ann").post("/assistants", assistant).await.ok();
    let cron = json!({"assistant_id": "agent", "schedule": "0 9 * * *", "input": {"messages": [MARKER]}});
    keys.client("ann").post("/runs/crons", cron).await.ok();
    server.is_stopped().await;
    let exported = said(&command(&server, &["export-user", "ann", "--tenant", "acme"]));
    let lines: Vec<Value> = exported
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(of_type(&lines, "user"), [&json!({"user": "ann", "tenant": "acme"})]);
    let threads = of_type(&lines, "thread");
    assert_eq!(threads.len(), 1);
    assert_eq!(threads[0]["thread_id"], json!(ann.thread));
    assert!(threads[0]["values"].to_string().contains(MARKER), "{}", threads[0]);
    assert_eq!(
        of_type(&lines, "assistant")[0]["assistant_id"],
        assistant["assistant_id"]
    );
    assert_eq!(of_type(&lines, "item")[0]["value"], json!({"note": MARKER}));
    for kind in ["assistant_version", "cron", "run", "interrupt", "checkpoint"] {
        let text = json!(of_type(&lines, kind)).to_string();
        assert!(text.contains(MARKER), "{kind}: {text}");
    }
    assert!(!of_type(&lines, "event").is_empty());
    assert!(
        of_type(&lines, "audit_entry")
            .iter()
            .any(|entry| entry["action"] == "threads:create")
    );
    assert!(!exported.contains("said-by-bob") && !exported.contains(bob.thread.as_str()));

    let deleted = said(&command(
        &server,
        &["delete-user", "ann", "--tenant", "acme", "--audit"],
    ));
    assert!(
        deleted.contains("threads deleted: 1\n") && deleted.contains("items deleted: 1\n"),
        "{deleted}"
    );
    let again = said(&command(&server, &["export-user", "ann", "--tenant", "acme"]));
    assert_eq!(again.lines().count(), 1, "{again}");
    assert!(!is_stored(&server, ann.thread.as_str()).await);
    server.is_stopped_and_started_again().await;
    assert_eq!(keys.client("root").get(&ann.path("")).await.status, 404);
    assert!(bob.state().await.to_string().contains("said-by-bob"));
}

/// Defines agents with the marker in their prompts and descriptions, changes one, and deletes the other.
async fn defines_and_changes_agents(client: &Client) {
    for (name, number) in [("ours", 1), ("ours", 2), ("gone", 3)] {
        let text = format!("{MARKER} {number}");
        let definition = json!({"model": "scripted:lab", "system_prompt": text, "description": text});
        client.put(&format!("/agents/{name}"), definition).await.ok();
    }
    client.delete("/agents/gone").await.ok();
}

async fn a_deleted_tenant_leaves_nothing(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = converses(keys.client("ann"), MARKER).await;
    let other = converses(keys.client("root-of-other"), "said-by-others").await;
    defines_and_changes_agents(&keys.client("root")).await;
    let theirs = json!({"model": "scripted:lab", "system_prompt": "prompt-of-others"});
    keys.client("root-of-other").put("/agents/theirs", theirs).await.ok();
    // Bob owns nothing any more, but an answer to him is kept.
    let bob = keys.client("bob");
    let body = json!({"graph_id": "agent", "name": MARKER});
    let creation = bob
        .request(Method::POST, "/assistants")
        .header("Idempotency-Key", "once");
    let made = reply(creation.json(&body)).await.ok();
    let path = format!("/assistants/{}", made["assistant_id"].as_str().expect("an id"));
    bob.delete(&path).await.ok();
    assert!(is_stored(&server, MARKER).await, "a plain database shows it");
    server.is_stopped().await;
    let deleted = said(&command(&server, &["delete-tenant", "acme"]));
    assert!(deleted.contains("threads deleted: 1\n"), "{deleted}");
    assert!(deleted.contains("agents deleted: 1\n"), "{deleted}");
    assert!(!is_stored(&server, MARKER).await);
    assert!(is_stored(&server, "prompt-of-others").await);
    server.is_stopped_and_started_again().await;
    assert_eq!(keys.client("root").get(&ann.path("")).await.status, 404);
    assert!(other.state().await.to_string().contains("said-by-others"));
}

async fn rekeying_seals_what_is_plain_and_retires_a_key(server: TestServer) {
    let human = converses(server.client(), MARKER).await;
    let question = human.question().await;
    encrypts(&server).await;
    assert!(is_stored(&server, MARKER).await, "what was plain stays so for now");
    human.approves(&question).await.finishes().await;
    let state = human.state().await;
    server.is_stopped().await;
    said(&command(&server, &["rekey"]));
    assert!(!is_stored(&server, MARKER).await, "rekeying has sealed it");
    write_keys(&server, &format!("new:{NEW_KEY}\nold:{OLD_KEY}\n"));
    let rekeyed = said(&command(&server, &["rekey", "--new-data-keys"]));
    assert!(!rekeyed.contains("\n0 data keys wrapped anew"), "{rekeyed}");
    write_keys(&server, &format!("old:{OLD_KEY}\n"));
    let reason = refused(&command(&server, &["rekey"]));
    assert!(reason.contains("encrypted under the key `new`"), "{reason}");
    write_keys(&server, &format!("new:{NEW_KEY}\n"));
    server.is_stopped_and_started_again().await;
    assert_eq!(human.state().await, state);
    server.is_stopped().await;
    said(&command(&server, &["rekey", "--plain"]));
    server.is_reconfigured(SECTION, "").await;
    server.is_stopped_and_started_again().await;
    assert_eq!(human.state().await, state);
}

/// Starts a server that ends with an error, and returns what it logs.
async fn refuses_to_start(server: &TestServer) -> String {
    let mut command = server_in(&folder(server));
    command.arg("--config").arg(server.configuration());
    let written = Log::default();
    let process = Process::spawn(command, &written);
    assert!(!process.ends().await.success());
    eventually(async || written.text().contains("[encryption]")).await;
    let log = written.text();
    assert!(!log.contains(OLD_KEY) && !log.contains(NEW_KEY), "{log}");
    log
}

async fn a_server_without_the_right_keys_does_not_start(server: TestServer) {
    encrypts(&server).await;
    let human = converses(server.client(), MARKER).await;
    server.is_stopped().await;
    for (keys, reason) in [
        (format!("new:{NEW_KEY}\n"), "encrypted under the key `old`"),
        (format!("old:{NEW_KEY}\n"), "it is another key"),
        (
            "old:c2hvcnQ=\n".to_owned(),
            "line 1: must hold a key of 32 random bytes",
        ),
        (String::new(), "there must be at least one line with a key"),
    ] {
        write_keys(&server, &keys);
        let log = refuses_to_start(&server).await;
        assert!(log.contains(reason), "{reason}: {log}");
    }
    std::fs::remove_file(folder(&server).join("master.keys")).expect("it is removed");
    let log = refuses_to_start(&server).await;
    assert!(log.contains("could not get the keys of [encryption] from"), "{log}");
    server.configuration_changes(SECTION, "");
    let log = refuses_to_start(&server).await;
    assert!(log.contains("add the section [encryption]"), "{log}");
    server.configuration_changes("[storage]\n", &format!("{SECTION}[storage]\n"));
    write_keys(&server, &format!("new:{NEW_KEY}\nold:{OLD_KEY}\n"));
    server.is_stopped_and_started_again().await;
    human.state().await;
}

async fn the_store_is_searched_although_it_is_sealed(server: TestServer) {
    encrypts(&server).await;
    let client = server.client();
    for number in 0..5 {
        put_item(
            &client,
            &format!("k{number}"),
            json!({"number": number, "note": MARKER}),
        )
        .await;
    }
    let search = json!({"namespace_prefix": ["notes"], "filter": {"number": {"$gte": 3}, "note": MARKER}});
    let found = client.post("/store/items/search", search).await.ok();
    let keys: Vec<&Value> = found["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| &item["key"])
        .collect();
    assert_eq!(keys, ["k3", "k4"]);
    assert!(!is_stored(&server, MARKER).await);
}

async fn a_program_prints_the_keys(server: TestServer) {
    write_keys(&server, &format!("kms:{OLD_KEY}\n"));
    let keys = folder(&server).join("master.keys");
    let section = format!("[encryption]\nkey_command = [\"cat\", \"{}\"]\n", keys.display());
    server.is_configured_with(&section).await;
    let human = converses(server.client(), MARKER).await;
    assert!(!is_stored(&server, MARKER).await);
    server.is_stopped_and_started_again().await;
    assert!(human.state().await.to_string().contains(MARKER));
    server.is_stopped().await;
    std::fs::remove_file(keys).expect("it is removed");
    let reason = refused(&command(&server, &["rekey"]));
    assert!(
        reason.contains("could not get the keys of [encryption] from cat"),
        "{reason}"
    );
}

async fn keys_and_conversations_are_not_logged(server: TestServer) {
    encrypts(&server).await;
    server.is_stopped().await;
    let mut command = server_in(&folder(&server));
    command.arg("--config").arg(server.configuration());
    // On the command line, since the harness sets the variable.
    command.args(["--log", "debug,adjutant=trace"]);
    let written = Log::default();
    let process = Process::spawn(command, &written);
    server.client().moved_to(&process.base().await);
    converses(server.client(), MARKER).await;
    assert!(!is_stored(&server, MARKER).await);
    eventually(async || written.text().contains("interrupt asked")).await;
    drop(process);
    let log = written.text();
    assert!(!log.contains(&OLD_KEY[..40]), "the key is in the log");
    assert!(!log.contains(MARKER), "the conversation is in the log");
    server.is_stopped_and_started_again().await;
    let human = Human::on_new_thread(server.client(), "plain").await;
    human.says(script().says("ok")).await;
}

/// Returns the limits of a process for core files: the current one and the highest.
fn core_limits(process: &str) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).expect("the limits");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
    line.expect("the limit of core files")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

async fn no_core_files_are_written_unless_they_are_allowed(server: TestServer) {
    let start = async || {
        let mut command = server_in(&folder(&server));
        command.arg("--config").arg(server.configuration());
        let process = Process::spawn(command, &Log::default());
        process.base().await;
        process
    };
    let process = start().await;
    assert_eq!(core_limits(&process.id().to_string()), "0 0 bytes");
    process.terminates().await;
    server.is_configured("allow_core_files = true").await;
    let process = start().await;
    assert_eq!(core_limits(&process.id().to_string()), core_limits("self"));
    process.terminates().await;
}

async fn commands_need_a_stopped_server(server: TestServer) {
    encrypts(&server).await;
    server.client().get("/ok").await.ok();
    for arguments in [
        vec!["rekey"],
        vec!["vacuum"],
        vec!["export-user", "ann"],
        vec!["delete-user", "ann"],
        vec!["delete-tenant", "acme"],
    ] {
        let reason = refused(&command(&server, &arguments));
        assert!(reason.contains("stop it first"), "{arguments:?}: {reason}");
    }
    server.is_stopped().await;
    let reason = refused(&command(&server, &["delete-user", "ann", "--tenant", "No Tenant"]));
    assert!(reason.contains("--tenant: must be the name of a tenant"), "{reason}");
}
