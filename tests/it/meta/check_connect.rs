//! `adjutant check --connect`: a look at everything that a configuration refers to, without calling a model or a tool.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adjutant::shutdown::Shutdown;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use sqlx::{Connection, raw_sql};
use tokio::net::TcpListener;

use super::first_start::{Served, folder, program};
use crate::support::mcp;
use crate::support::postgres;
use crate::support::server::skipped;

const AGENT: &str = "[providers.scripted]\nkind = \"scripted\"\n\n[agents.newcomer]\nmodel = \"scripted:demo\"\n";

/// A provider, a tool, another server, an issuer and a hook at one address.
struct World {
    base: String,
    /// The number of calls: of the tool, of the model and of the hook.
    calls: Arc<AtomicUsize>,
    shutdown: Shutdown,
}

impl World {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let calls = Arc::new(AtomicUsize::new(0));
        let router = Router::new()
            .route("/v1/models", get(models))
            .route("/v1/chat/completions", post(called))
            .route("/tool", post(called))
            .route("/hook", post(called))
            .route("/broken", get(async || StatusCode::BAD_GATEWAY))
            .route("/info", get(async || Json(json!({"version": "1"}))))
            .route("/assistants/search", post(assistants))
            .route("/jwks", get(jwks))
            .with_state(Arc::clone(&calls));
        let shutdown = Shutdown::new(Duration::from_secs(5));
        let soft = shutdown.soft().clone();
        drop(shutdown.spawn("world", async move {
            let serving = axum::serve(listener, router).with_graceful_shutdown(soft.cancelled_owned());
            serving.await
        }));
        Self { base, calls, shutdown }
    }

    fn stops(self) -> usize {
        self.shutdown.begin();
        self.calls.load(Ordering::Relaxed)
    }
}

async fn models(headers: HeaderMap) -> Result<Json<Value>, StatusCode> {
    match headers.get("authorization").and_then(|value| value.to_str().ok()) {
        Some("Bearer g00d") => Ok(Json(json!({"data": [{"id": "small"}, {"id": "large"}]}))),
        _ => Err(StatusCode::UNAUTHORIZED),
    }
}

async fn called(State(calls): State<Arc<AtomicUsize>>) -> &'static str {
    calls.fetch_add(1, Ordering::Relaxed);
    "\"called\""
}

async fn assistants(Json(search): Json<Value>) -> Json<Value> {
    let has = search["graph_id"] == "translator";
    Json(if has {
        json!([{"graph_id": "translator"}])
    } else {
        json!([])
    })
}

/// The public key of an example in RFC 7517.
async fn jwks() -> Json<Value> {
    Json(json!({"keys": [{
        "kty": "EC", "crv": "P-256", "use": "sig", "kid": "1",
        "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
    }]}))
}

/// Runs `check --connect --json` in a folder, and returns whether it succeeded, and the report.
fn checks(folder: &Path, more: &[&str]) -> (bool, Value) {
    let arguments = [&["check", "--connect", "--json"], more].concat();
    let output = program(folder, &arguments).output().expect("it can be called");
    let said = String::from_utf8(output.stdout).expect("text");
    let report = serde_json::from_str(&said).unwrap_or_else(|error| {
        let log = String::from_utf8_lossy(&output.stderr);
        panic!("{error}:\n{said}\n{log}")
    });
    (output.status.success(), report)
}

/// Returns the first check of this kind.
fn of_kind<'r>(report: &'r Value, kind: &str) -> &'r Value {
    let checks = report["checks"].as_array().expect("a list");
    checks.iter().find(|check| check["kind"] == kind).expect("a check")
}

/// Returns the check of this kind and name.
fn check<'r>(report: &'r Value, kind: &str, name: &str) -> &'r Value {
    let checks = report["checks"].as_array().expect("a list");
    let found = checks
        .iter()
        .find(|check| check["kind"] == kind && check["name"] == name);
    found.unwrap_or_else(|| panic!("{kind} {name}: {report:#}"))
}

/// Asserts the status of a check, and that its message has a text.
fn is(report: &Value, key: [&str; 2], status: &str, text: &str) {
    let found = check(report, key[0], key[1]);
    assert_eq!(found["status"], status, "{found}");
    let message = found["message"].as_str().expect("a text");
    assert!(message.contains(text), "{text}: {found}");
    assert!(found["duration_ms"].is_u64(), "{found}");
    assert_eq!(found["advice"].is_string(), status != "ok", "{found}");
}

/// Returns an address at which nobody listens.
fn closed_address() -> SocketAddr {
    let listener = StdListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address")
}

fn mcp_section() -> Option<String> {
    let python = mcp::python()?;
    Some(format!(
        "[mcp_servers.docs]\ncommand = {python:?}\nargs = [{:?}, \"http://127.0.0.1:1\"]\n",
        mcp::script()
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_works_is_ok_and_no_model_and_no_tool_is_called() {
    let world = World::start().await;
    let base = &world.base;
    let mut text = format!(
        r#"
[server]
listen = "127.0.0.1:0"
[providers.lab]
kind = "openai"
base_url = "{base}/v1"
api_key = "${{secrets.lab}}"
[secrets.lab]
command = ["echo", "g00d"]
[tools.search]
kind = "http"
description = "Searches."
url = "{base}/tool"
parameters = {{ type = "object" }}
[auth.hook]
url = "{base}/hook"
[[auth.jwt]]
issuer = "{base}"
audience = ["agents"]
jwks_url = "{base}/jwks"
[agents.asker]
model = "lab:small"
tools = ["search"]
[[agents.asker.subagents]]
name = "translator"
description = "Translates any text into any language."
graph_id = "translator"
url = "{base}"
"#
    );
    let docs = mcp_section();
    if let Some(docs) = &docs {
        write!(
            text,
            "{docs}\n[agents.reader]\nmodel = \"lab:large\"\ntools = [\"docs/echo\"]\n"
        )
        .expect("a text");
    }
    let folder = folder(&[("adjutant.toml", &text)]);
    let (is_usable, report) = checks(folder.path(), &[]);
    assert!(is_usable, "{report:#}");
    assert_eq!(report["ok"], true);
    let models = if docs.is_some() { "large, small" } else { "small" };
    is(
        &report,
        ["provider", "lab"],
        "ok",
        &format!("accepts the key, and has {models}"),
    );
    is(&report, ["database", "sqlite://adjutant.db"], "ok", "will be created");
    is(&report, ["secret", "lab"], "ok", "can be read");
    is(&report, ["tool", "search"], "ok", "answers (405 to HEAD)");
    is(
        &report,
        ["remote_agent", "asker/translator"],
        "ok",
        "has the agent `translator`",
    );
    is(&report, ["issuer", base], "ok", "has 1 key");
    is(&report, ["hook", "auth.hook"], "ok", "answers");
    is(&report, ["listen", "127.0.0.1:0"], "ok", "free");
    if docs.is_some() {
        is(&report, ["mcp_server", "docs"], "ok", "tools");
    }
    assert!(!report.to_string().contains("g00d"), "{report:#}");
    // Nothing was made either.
    assert!(!folder.path().join("adjutant.db").exists());
    assert!(!folder.path().join("adjutant.db.lock").exists());
    assert_eq!(world.stops(), 0);
}

/// Returns a configuration in which nothing works. `closed` is an address at which nobody listens.
fn where_nothing_works(base: &str, closed: SocketAddr, listen: &str) -> String {
    format!(
        r#"
[server]
listen = "{listen}"
[storage]
url = "sqlite:///not/there/a.db"
[providers.wrong-key]
kind = "openai"
base_url = "{base}/v1"
api_key = "b4d"
[providers.gateway]
kind = "openai"
base_url = "{base}/no-list"
[providers.closed]
kind = "ollama"
base_url = "http://{closed}"
[providers.good]
kind = "openai"
base_url = "{base}/v1"
api_key = "g00d"
[secrets.late]
command = ["sleep", "30"]
[tools.closed]
kind = "http"
description = "Is closed."
url = "http://{closed}/tool"
parameters = {{ type = "object" }}
[tools.lost]
kind = "http"
description = "Has moved."
url = "{base}/moved"
parameters = {{ type = "object" }}
[[auth.jwt]]
issuer = "{base}"
audience = ["agents"]
[agents.asker]
model = "wrong-key:a"
[agents.b]
model = "gateway:a"
[agents.c]
model = "closed:a"
[agents.d]
model = "good:smal"
[agents.e]
model = "openai:gpt-5"
[[agents.asker.subagents]]
name = "painter"
description = "Paints any picture that is described."
graph_id = "painter"
url = "{base}"
[mcp_servers.missing]
command = "no-such-program-anywhere"
[mcp_servers.spare]
command = "no-such-program-anywhere"
required = false
"#
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_does_not_work_is_named_with_the_way_out() {
    let world = World::start().await;
    let base = &world.base;
    // A port at which nobody listens.
    let closed = closed_address();
    let taken = StdListener::bind("127.0.0.1:0").expect("a free port");
    let listen = taken.local_addr().expect("an address").to_string();
    let mut text = where_nothing_works(base, closed, &listen);
    let docs = mcp_section();
    if let Some(docs) = &docs {
        write!(
            text,
            "{docs}\n[agents.reader]\nmodel = \"good:small\"\ntools = [\"docs/ecko\"]\n"
        )
        .expect("a text");
    }
    let folder = folder(&[("adjutant.toml", &text)]);
    let begun = Instant::now();
    let (is_usable, report) = checks(folder.path(), &["--timeout", "3"]);
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "the checks wait for each other"
    );
    assert!(!is_usable, "{report:#}");
    assert_eq!(report["ok"], false);
    is(
        &report,
        ["provider", "wrong-key"],
        "fail",
        "does not accept the key (status 401)",
    );
    is(
        &report,
        ["provider", "gateway"],
        "warn",
        "has no list of models (status 404)",
    );
    is(&report, ["provider", "closed"], "fail", "Connection refused");
    is(&report, ["provider", "good"], "warn", "lists no model `smal`");
    assert_eq!(
        check(&report, "provider", "good")["advice"],
        "did you mean `good:small`?"
    );
    is(&report, ["provider", "openai"], "fail", "set OPENAI_API_KEY");
    for (provider, first) in [
        ("closed", "see to it that this machine can reach it"),
        ("openai", "set the key"),
    ] {
        let advice = format!("{first}, or correct the section [providers.{provider}]");
        assert_eq!(check(&report, "provider", provider)["advice"], advice);
    }
    is(
        &report,
        ["database", "sqlite:///not/there/a.db"],
        "fail",
        "there is no folder /not/there",
    );
    is(&report, ["secret", "late"], "fail", "did not answer within 3 s");
    is(&report, ["tool", "closed"], "fail", "Connection refused");
    is(&report, ["tool", "lost"], "warn", "404 at this path");
    is(&report, ["issuer", base], "fail", "cannot be fetched");
    is(
        &report,
        ["remote_agent", "asker/painter"],
        "fail",
        "has no agent `painter`",
    );
    is(
        &report,
        ["mcp_server", "missing"],
        "fail",
        "`no-such-program-anywhere` is not in PATH",
    );
    is(
        &report,
        ["mcp_server", "spare"],
        "warn",
        "is not in PATH); runs go on without its tools",
    );
    is(&report, ["listen", &listen], "warn", "in use");
    if docs.is_some() {
        is(&report, ["mcp_server", "docs"], "fail", "`docs/ecko`");
        assert_eq!(
            check(&report, "mcp_server", "docs")["advice"],
            "did you mean `docs/echo`?"
        );
    }
    assert!(!report.to_string().contains("b4d"), "{report:#}");
    assert_eq!(world.stops(), 0);
}

#[test]
fn the_providers_of_policies_that_profiles_add_are_looked_at() {
    let graded =
        "[profiles.scripted]\nextra_middleware = [{ name = \"RubricMiddleware\", model = \"openai:gpt-5\" }]\n";
    let folder = folder(&[("adjutant.toml", &format!("{AGENT}{graded}"))]);
    let (is_usable, report) = checks(folder.path(), &["--listen", "127.0.0.1:0"]);
    assert!(!is_usable, "{report:#}");
    is(&report, ["provider", "scripted"], "ok", "is a script");
    is(&report, ["provider", "openai"], "fail", "set OPENAI_API_KEY");
}

#[test]
fn keys_and_services_of_the_operator_that_are_not_there_are_named_with_the_way_out() {
    let closed = closed_address();
    let text = format!(
        r#"
[server]
listen = "127.0.0.1:0"
[encryption]
key_file = "no-such-keys"
[webhooks]
secret_file = "no-such-secret"
[[auth.keys]]
name = "ops"
key_file = "no-such-key"
[auth.hook]
url = "http://{closed}/hook"
[sandboxes.lab]
url = "http://{closed}"
[tool_servers.desk]
url = "http://{closed}"
{AGENT}"#
    );
    let folder = folder(&[("adjutant.toml", &text)]);
    let (is_usable, report) = checks(folder.path(), &["--timeout", "3"]);
    assert!(!is_usable, "{report:#}");
    for (kind, name, text) in [
        ("encryption", "master keys", "could not get the keys of [encryption]"),
        ("secret", "webhooks", "cannot read"),
        ("api_key", "ops", "cannot read the key \"ops\""),
        ("hook", "auth.hook", "Connection refused"),
        ("sandbox", "lab", "the sandbox service"),
        ("tool_server", "desk", "the server"),
    ] {
        is(&report, [kind, name], "fail", text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_looked_at_and_left_as_it_is() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let key = ["database", "sqlite://adjutant.db"];
    let served = Served::begins(folder.path(), &[]);
    let listen = served.client.base().trim_start_matches("http://").to_owned();
    let (is_usable, report) = checks(folder.path(), &["--listen", &listen]);
    assert!(is_usable, "{report:#}");
    is(&report, key, "warn", "in use by another server");
    is(&report, ["listen", &listen], "warn", "in use");
    served.stops();
    let (_, report) = checks(folder.path(), &[]);
    is(&report, key, "ok", "can be written, and the tables are current");
    fs::write(
        folder.path().join("adjutant.db"),
        "no database, but a text of some length",
    )
    .expect("a file");
    let (is_usable, report) = checks(folder.path(), &[]);
    assert!(!is_usable, "{report:#}");
    is(&report, key, "fail", "not a database");
    // Nothing can be created in this folder, not even by the administrator.
    #[cfg(target_os = "linux")]
    {
        let url = "sqlite:///proc/adjutant.db";
        let (is_usable, report) = checks(folder.path(), &["--database-url", url]);
        assert!(!is_usable, "{report:#}");
        is(
            &report,
            ["database", url],
            "fail",
            "no file can be created in the folder /proc",
        );
    }
    let left = folder.path().read_dir().expect("a folder").flatten();
    let left: Vec<_> = left
        .filter(|entry| entry.file_name().to_string_lossy().contains(".check"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_with_encrypted_values_is_not_ok_without_its_keys() {
    let sealed = format!("{AGENT}[encryption]\nkey_file = \"keys\"\n");
    let keys = "first:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n";
    let folder = folder(&[("adjutant.toml", AGENT), ("sealed.toml", &sealed), ("keys", keys)]);
    let key = ["database", "sqlite://adjutant.db"];
    let served = Served::begins(folder.path(), &["--config", "sealed.toml"]);
    served.client.post("/threads", json!({})).await.ok();
    let item = json!({"namespace": ["notes"], "key": "k", "value": {"note": "tea"}});
    served.client.put("/store/items", item).await.ok();
    served.stops();
    let (_, report) = checks(folder.path(), &["--config", "sealed.toml"]);
    is(&report, key, "ok", "the tables are current");
    let (is_usable, report) = checks(folder.path(), &[]);
    assert!(!is_usable, "{report:#}");
    is(&report, key, "fail", "encrypted under the key `first`");
    assert_eq!(
        check(&report, key[0], key[1])["advice"],
        "add the section [encryption] with this key"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_database_is_looked_at() {
    let Some(database) = postgres::fresh_database().await else {
        skipped::<()>("Postgres");
        return;
    };
    let folder = folder(&[("adjutant.toml", AGENT)]);
    Served::begins(folder.path(), &["--database-url", &database.url]).stops();
    let (is_usable, report) = checks(folder.path(), &["--database-url", &database.url]);
    assert!(is_usable, "{report:#}");
    let message = of_kind(&report, "database")["message"].as_str().expect("a text");
    assert_eq!(message, "Postgres: can be written, and the tables are current");
    assert_eq!(of_kind(&report, "database_clock")["status"], "ok", "{report:#}");
    assert_eq!(of_kind(&report, "database_connections")["status"], "ok", "{report:#}");
    assert_eq!(
        of_kind(&report, "database_sessions")["message"],
        "a notification arrives: sessions are kept"
    );
    let gone = database.url.clone();
    database.discard().await;
    let (_, report) = checks(folder.path(), &["--database-url", &gone]);
    let message = of_kind(&report, "database")["message"].as_str().expect("a text");
    // The line in the source code of Postgres is left out.
    assert!(message.ends_with("does not exist"), "{message}");
    // Nobody listens there.
    let url = format!("postgres://u:s3cret@{}/db", closed_address());
    let (is_usable, report) = checks(folder.path(), &["--database-url", &url]);
    assert!(!is_usable, "{report:#}");
    assert!(!report.to_string().contains("s3cret"), "{report:#}");
    let found = of_kind(&report, "database");
    assert!(
        found["advice"]
            .as_str()
            .is_some_and(|advice| advice.starts_with("start Postgres there")),
        "{found}"
    );
}

/// Checks a new database of Postgres that a statement of its administrator has changed. Returns the check of this kind, which
/// warns; `None` without Postgres.
async fn warning_of_changed_postgres(kind: &str, change: &'static str) -> Option<Value> {
    let Some(database) = postgres::fresh_database().await else {
        return skipped("Postgres");
    };
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let mut admin = postgres::connect(&database.admin).await;
    raw_sql(change).execute(&mut admin).await.expect("a change");
    let (is_usable, report) = checks(folder.path(), &["--database-url", &database.url]);
    assert!(is_usable, "{report:#}");
    let found = of_kind(&report, kind);
    assert_eq!(found["status"], "warn", "{report:#}");
    admin.close().await.expect("a clean close");
    database.discard().await;
    Some(found.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_with_too_few_connections_is_reported() {
    let limit = "do $$ begin execute format('alter database %I connection limit 10', current_database()); end $$";
    let Some(found) = warning_of_changed_postgres("database_connections", limit).await else {
        return;
    };
    let message = found["message"].as_str().expect("a text");
    assert!(
        message.ends_with("of 10 are free, but this server takes up to 18"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_whose_clock_is_wrong_is_reported() {
    // In this database a function of this name precedes that of Postgres.
    let hour_ahead = "create function public.clock_timestamp() returns timestamptz language sql \
        as $$ select pg_catalog.clock_timestamp() + interval '1 hour' $$; \
        do $$ begin \
            execute format('alter database %I set search_path = public, pg_catalog', current_database()); \
        end $$";
    let Some(found) = warning_of_changed_postgres("database_clock", hour_ahead).await else {
        return;
    };
    let message = found["message"].as_str().expect("a text");
    assert!(message.contains(" s ahead of the clock of this machine"), "{message}");
    assert!(
        found["advice"].as_str().is_some_and(|advice| advice.contains("NTP")),
        "{found}"
    );
}

#[test]
fn doctor_reports_what_check_does_with_connections() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let doctor = program(folder.path(), &["doctor", "--listen", "127.0.0.1:0", "--json"]).output();
    let doctor = doctor.expect("it can be called");
    assert!(doctor.status.success(), "{doctor:?}");
    let report: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let kinds: Vec<&Value> = report["checks"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|check| &check["kind"])
        .collect();
    assert_eq!(kinds, ["listen", "database", "provider"]);
}

#[test]
fn the_text_has_one_line_for_each_check_and_a_sum() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let arguments = ["check", "--connect", "--listen", "127.0.0.1:0"];
    let output = program(folder.path(), &arguments).output().expect("it can be called");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{said}");
    for line in [
        "0 errors, 0 warnings",
        "ok    listen 127.0.0.1:0: the address is free",
        "ok    provider scripted: is a script: nothing leaves this machine",
        "3 ok, 0 to look at, 0 failed",
    ] {
        assert!(said.lines().any(|other| other == line), "{line}:\n{said}");
    }

    fs::write(folder.path().join("adjutant.toml"), "[servr]\n").expect("a file");
    let output = program(folder.path(), &arguments).output().expect("it can be called");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(!output.status.success(), "{said}");
    assert!(
        said.ends_with("nothing was connected to: correct the errors first\n"),
        "{said}"
    );
}
