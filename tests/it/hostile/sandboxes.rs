//! Sandbox services that answer with nonsense, without an end, too much, or not at all.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use adjutant::shutdown::Shutdown;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use crate::support::script::Script;
use crate::support::{TestServer, call, on_both_engines, script, starts_service, transcript};

/// Starts a service that misbehaves in the way that the first part of the path names. Creating a sandbox works.
async fn service(shutdown: &Shutdown) -> String {
    let router = Router::new().fallback(serve);
    starts_service("sandbox service", router, shutdown).await
}

fn events(pieces: impl futures::Stream<Item = String> + Send + 'static) -> Response {
    let body = Body::from_stream(pieces.map(|piece| Ok::<_, Infallible>(Bytes::from(piece))));
    ([("content-type", "text/event-stream")], body).into_response()
}

fn event(name: &str, data: &str) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

async fn serve(method: Method, uri: Uri) -> Response {
    let parts: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
    let part = parts.get(3).copied().unwrap_or_default();
    let way = parts[0];
    if method == Method::PUT && part.is_empty() && way != "uncreated" {
        return StatusCode::CREATED.into_response();
    }
    let deep = "[".repeat(100_000);
    let once = |text: String| events(stream::iter([text]));
    match (way, part) {
        ("silent" | "uncreated", _) => std::future::pending().await,
        ("dripping", "entries") => {
            let ticks = tokio::time::interval(Duration::from_millis(100));
            let drops = stream::unfold(ticks, |mut ticks| async move {
                ticks.tick().await;
                Some((" ".to_owned(), ticks))
            });
            events(drops)
        }
        ("nonsense", "commands") => once(event("end", "nonsense")),
        ("nonsense", _) => "nonsense".into_response(),
        ("deep", "commands") => once(event("output", &deep)),
        ("deep", _) => deep.into_response(),
        ("early", "commands") => once(event("output", "{\"text\": \"half\"}")),
        ("halfway", "commands") => {
            let first = stream::iter([event("output", "{\"text\": \"half\"}")]);
            events(first.chain(stream::pending()))
        }
        ("endless", "commands") => {
            let piece = event("output", &json!({"text": "x".repeat(500_000)}).to_string());
            events(stream::repeat(piece))
        }
        ("endless", _) | ("line", "commands") => events(stream::repeat("x".repeat(100_000))),
        ("vague", "commands") => once(event("end", "{}")),
        ("reason", "commands") => {
            let reason = "\u{1b}[31mbecause\n".repeat(100_000 / 13);
            once(event("end", &json!({"killed": reason}).to_string()))
        }
        ("elsewhere", _) => (StatusCode::TEMPORARY_REDIRECT, [("location", "http://127.0.0.1:9/")]).into_response(),
        ("gone", _) => {
            let body = json!({"code": "sandbox_not_found"}).to_string();
            (StatusCode::NOT_FOUND, body).into_response()
        }
        ("outside", "entries") => {
            let entry = |path: &str| json!({"path": path, "type": "file"});
            let entries: Vec<Value> = ["/../etc/passwd", "relative", "/a//b"].map(entry).to_vec();
            json!({"entries": entries}).to_string().into_response()
        }
        ("many", "entries") => {
            let entry = |at: usize| json!({"path": format!("/{at}"), "type": "file"});
            let entries: Vec<Value> = (0..20_000).map(entry).collect();
            json!({"entries": entries}).to_string().into_response()
        }
        (_, _) => (StatusCode::INTERNAL_SERVER_ERROR, "x".repeat(100_000)).into_response(),
    }
}

/// The limits that a test need not wait long for.
const HASTE: &str = "[answers]\nfirst_byte_s = 1.0\nbetween_bytes_s = 1.5\nmax_tool_bytes = 2000000\n[runtime]\n";

/// The words of a result about a command whose outcome is unknown.
const UNKNOWN: &str = "The command may have run";
/// The words of a result about a command that was not run.
const NOT_RUN: &str = "the command was not run";

/// The ways of services, each with two parts of the result of a command and a part of that of a search.
const CASES: [(&str, &str, &str, &str); 16] = [
    ("silent", "nothing arrived for 1 s", UNKNOWN, "nothing arrived for 1 s"),
    (
        "uncreated",
        "the sandbox cannot be created",
        NOT_RUN,
        "the sandbox cannot be created",
    ),
    (
        "nonsense",
        "an event that cannot be used",
        UNKNOWN,
        "something that cannot be used",
    ),
    ("deep", "nests deeper than", UNKNOWN, "nests deeper than"),
    (
        "early",
        "ended its answer before the command had ended",
        UNKNOWN,
        "answered with status 500",
    ),
    (
        "halfway",
        "nothing arrived for 1.5 s",
        UNKNOWN,
        "answered with status 500",
    ),
    (
        "endless",
        "it wrote without end",
        "[Command was killed",
        "larger than 2000000 bytes",
    ),
    ("line", "", UNKNOWN, "answered with status 500"),
    (
        "vague",
        "does not say how the command ended",
        UNKNOWN,
        "answered with status 500",
    ),
    ("reason", "because", "[Command was killed", "answered with status 500"),
    (
        "elsewhere",
        "answered with status 307",
        UNKNOWN,
        "answered with status 307",
    ),
    ("gone", "the sandbox was gone", NOT_RUN, "the sandbox was gone"),
    (
        "outside",
        "answered with status 500",
        UNKNOWN,
        "entries that were not asked for",
    ),
    (
        "many",
        "answered with status 500",
        UNKNOWN,
        "entries that were not asked for",
    ),
    (
        "dripping",
        "answered with status 500",
        UNKNOWN,
        "did not answer within 2 s",
    ),
    (
        "broken",
        "answered with status 500",
        UNKNOWN,
        "answered with status 500",
    ),
];

on_both_engines! {
    a_sandbox_service_that_misbehaves_is_a_clear_result,
}

async fn a_sandbox_service_that_misbehaves_is_a_clear_result(server: TestServer) {
    let shutdown = Shutdown::new(Duration::from_secs(1));
    let base = service(&shutdown).await;
    let agents: String = CASES
        .iter()
        .map(|(way, ..)| {
            let time = if *way == "dripping" { 2 } else { 20 };
            format!(
                "[sandboxes.{way}]\nurl = \"{base}/{way}\"\ntimeout_s = {time}\n\
                 [agents.{way}_lab]\nmodel = \"scripted:lab\"\nexecute = true\n\
                 workspace = {{ kind = \"sandbox\", sandbox = \"{way}\" }}\n"
            )
        })
        .collect();
    server.is_configured_with(&agents).await;
    server.is_reconfigured("[runtime]\n", HASTE).await;
    for (way, of_command, about_command, of_search) in CASES {
        // A line without end is left out, and the answer goes on until the time of the command is over.
        let command = if way == "line" {
            json!({"command": "x", "timeout": 1})
        } else {
            json!({"command": "x"})
        };
        let calls = [
            call("c1", "execute", command),
            call("c2", "glob", json!({"pattern": "**"})),
            call("c3", "ls", json!({"path": "/"})),
        ];
        let plan = calls.into_iter().fold(script(), Script::calls).says("done");
        let begun = Instant::now();
        let said = transcript(&server.human(&format!("{way}_lab")).await.says(plan).await);
        assert!(begun.elapsed() < Duration::from_secs(60), "{way}");
        assert_eq!(said.last().map(String::as_str), Some("ai: done"), "{way}: {said:#?}");
        for expected in [of_command, about_command] {
            assert!(said[2].contains(expected), "{way}: {expected}: {}", said[2]);
        }
        for listed in [&said[4], &said[6]] {
            assert!(listed.contains(of_search), "{way}: {of_search}: {listed}");
        }
        assert!(said[2].len() < 110_000 && said[4].len() < 2_000, "{way}");
        assert!(!said[2].contains('\u{1b}'), "{way}");
    }
    shutdown.force();
}
