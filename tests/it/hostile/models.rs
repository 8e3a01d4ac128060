//! Models that hang, stream without end, or answer too much.

use serde_json::{Value, json};

use crate::support::misbehaving_server::MisbehavingServer;
use crate::support::{TestServer, eventually, on_both_engines, script, transcript};

/// Bounds that a test reaches soon.
const SMALL: &str = "[answers]\nmax_model_bytes = 100000\nmax_line_bytes = 200000\nmax_error_bytes = 10000\n\
    first_token_s = 0.5\nbetween_tokens_s = 0.5\n";

/// Configures models that misbehave in these ways.
async fn wild(server: &TestServer, ways: &[&str], answers: &str) -> MisbehavingServer {
    let wild = MisbehavingServer::start().await;
    server
        .is_configured_with(&format!("{answers}\n{}", wild.models(ways)))
        .await;
    wild
}

/// Returns the error of a run of this agent.
async fn error_of(server: &TestServer, agent: &str) -> Value {
    server.human(agent).await.says("hello").await["__error__"].clone()
}

/// Checks that the server works.
async fn others_work(server: &TestServer) {
    let bob = server.human("plain").await;
    assert_eq!(
        transcript(&bob.says(script().says("fine")).await),
        ["human: …", "ai: fine"]
    );
}

on_both_engines! {
    an_endless_answer_is_an_error_without_a_retry,
    a_model_that_hangs_times_out_without_a_retry,
    a_provider_can_have_a_time_limit_of_its_own,
    a_run_can_be_cancelled_during_any_model_call,
    endless_answers_and_endless_errors_take_little_memory,
    a_redirect_of_a_model_is_not_followed,
    subagents_of_one_run_share_permits_without_a_deadlock,
}

async fn an_endless_answer_is_an_error_without_a_retry(server: TestServer) {
    let ways = ["words", "arguments", "line"];
    let wild = wild(&server, &ways, SMALL).await;
    for way in ways {
        let error = error_of(&server, way).await;
        assert_eq!(error["error"], "ModelAnswerTooLargeError", "{way}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains("00000 bytes"),
            "{way}: {error}"
        );
        assert_eq!(wild.asked(&format!("/{way}")), 1, "{way}");
    }
    others_work(&server).await;
}

async fn a_model_that_hangs_times_out_without_a_retry(server: TestServer) {
    let ways = ["silent", "halfway", "signs"];
    let wild = wild(&server, &ways, SMALL).await;
    for way in ways {
        let error = error_of(&server, way).await;
        assert_eq!(error["error"], "ModelTimeoutError", "{way}: {error}");
        assert!(error["message"].as_str().unwrap().contains("0.5 s"), "{way}: {error}");
        assert_eq!(wild.asked(&format!("/{way}")), 1, "{way}");
    }
    others_work(&server).await;
}

async fn a_provider_can_have_a_time_limit_of_its_own(server: TestServer) {
    let wild = MisbehavingServer::start().await;
    let limit = "kind = \"openai\"\nfirst_token_s = 0.4\nbetween_tokens_s = 0.4";
    let models = wild.models(&["silent", "halfway"]).replace("kind = \"openai\"", limit);
    server.is_configured_with(&models).await;
    for (way, setting) in [("silent", "`first_token_s"), ("halfway", "`between_tokens_s")] {
        let error = error_of(&server, way).await;
        assert_eq!(error["error"], "ModelTimeoutError", "{way}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("0.4 s") && message.contains(setting), "{way}: {error}");
    }
}

async fn a_run_can_be_cancelled_during_any_model_call(server: TestServer) {
    let ways = ["words", "line", "silent", "error"];
    let bounds =
        "[answers]\nmax_model_bytes = 100000000000\nmax_line_bytes = 1000000000\nmax_error_bytes = 1000000000\n";
    let wild = wild(&server, &ways, bounds).await;
    for way in ways {
        let run = server.human(way).await.asks("hello").await;
        eventually(async || wild.asked(&format!("/{way}")) > 0).await;
        run.is_cancelled("interrupt").await.ok();
        assert_eq!(run.status().await, "interrupted", "{way}");
    }
    others_work(&server).await;
}

async fn endless_answers_and_endless_errors_take_little_memory(server: TestServer) {
    let ways = ["words", "arguments", "line", "error"];
    let _wild = wild(
        &server,
        &ways,
        "[answers]\nmax_model_bytes = 1000000\nfirst_token_s = 20\n",
    )
    .await;
    server.moves_into_a_process().await;
    others_work(&server).await;
    let before = server.peak_memory().await;
    for way in ways {
        let error = error_of(&server, way).await;
        assert!(error.is_object(), "{way}");
    }
    let grown = server.peak_memory().await - before;
    assert!(grown < 128, "it grew by {grown} MiB");
    others_work(&server).await;
}

async fn a_redirect_of_a_model_is_not_followed(server: TestServer) {
    let wild = wild(&server, &["elsewhere"], SMALL).await;
    let error = error_of(&server, "elsewhere").await;
    assert_eq!(error["error"], "ModelRefusedError", "{error}");
    assert!(error["message"].as_str().unwrap().contains("307"), "{error}");
    assert_eq!(wild.asked("/elsewhere"), 1);
    assert_eq!(wild.asked("/target"), 0);
}

async fn subagents_of_one_run_share_permits_without_a_deadlock(server: TestServer) {
    server.configuration_changes("[runtime]\n", "[runtime]\nmax_calls_per_run = 1\nmax_calls = 1\n");
    server.is_stopped_and_started_again().await;
    let alice = server.human("agent").await;
    let work = |at: usize| {
        let looks = crate::support::lookup(&format!("l{at}"), "x");
        crate::support::task(
            &format!("t{at}"),
            "researcher",
            script().calls(looks).says(&format!("found {at}")),
        )
    };
    let said = transcript(&alice.says(script().calls_all((0..5).map(work)).says("done")).await);
    let results: Vec<String> = (0..5).map(|at| format!("task: found {at}")).collect();
    assert_eq!(said[2..7], results[..], "{said:#?}");
    assert_eq!(said[7], "ai: done");
    assert_eq!(json!(server.tools.calls_of("lookup").len()), json!(5));
}
