//! A run is one trace, over subagents, tools, background tasks, restarts and servers.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::agents::background_tasks::{boss, start, the_task, worker};
use crate::support::client::reply;
use crate::support::collector::{CollectedSpan, Collector};
use crate::support::mcp::{McpTransport, docs};
use crate::support::provider::Turn;
use crate::support::webhook_receiver::WebhookReceiver;
use crate::support::{Human, TestServer, eventually, lookup, mail, on_both_engines, on_postgres, script, task};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT_SPAN: &str = "b7ad6b7169203331";

on_both_engines! {
    a_run_with_subagents_and_tools_is_one_trace,
    a_run_that_is_killed_and_resumed_is_one_trace,
    a_background_task_and_its_notification_belong_to_the_trace_of_the_run,
    a_failure_is_in_the_span_of_what_failed,
    a_cancelled_run_ends_the_spans_of_all_its_agents,
}

on_postgres! {
    a_run_that_another_server_finishes_is_one_trace,
}

crate::support::without_postgres! {
    a_trace_that_the_caller_does_not_record_is_not_recorded,
    an_invalid_traceparent_is_ignored,
    a_webhook_continues_the_trace_of_its_run,
    a_remote_agent_continues_the_trace,
    an_mcp_server_gets_the_trace,
    a_run_of_an_mcp_client_is_below_its_request,
    providers_get_the_trace_only_if_they_may,
    a_server_without_a_collector_passes_no_trace_on,
    traces_are_sent_in_json_too,
}

/// Starts a run with a message and this `traceparent`, and waits for its end.
async fn says_with(human: &Human, text: impl ToString, traceparent: &str) -> Value {
    let body = human.run_body(text, json!({}));
    let request = human.client().request(Method::POST, &human.path("/runs/wait"));
    reply(request.header("traceparent", traceparent).json(&body)).await.ok()
}

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT_SPAN}-{flags}")
}

/// Returns the spans of a trace whose parents are not among the spans, except the first one.
fn orphans<'a>(spans: &'a [CollectedSpan], first_parent: &str) -> Vec<&'a CollectedSpan> {
    let ids: BTreeSet<&str> = spans.iter().map(|span| span.id.as_str()).collect();
    assert_eq!(ids.len(), spans.len(), "a span was sent twice: {spans:#?}");
    spans
        .iter()
        .filter(|span| span.parent != first_parent && !ids.contains(span.parent.as_str()))
        .collect()
}

/// Checks that each span of the trace has a parent among the spans, except the first one.
fn is_connected(spans: &[CollectedSpan], first_parent: &str) {
    let lost = orphans(spans, first_parent);
    assert!(lost.is_empty(), "these have no parent: {lost:#?}");
}

fn named(spans: &[CollectedSpan], name: &str) -> Vec<CollectedSpan> {
    spans.iter().filter(|span| span.name == name).cloned().collect()
}

fn one(spans: &[CollectedSpan], name: &str) -> CollectedSpan {
    let found = named(spans, name);
    assert_eq!(found.len(), 1, "{name}: {found:#?}");
    found[0].clone()
}

async fn of_trace(collector: &Collector, trace: &str, last: &str, times: usize) -> Vec<CollectedSpan> {
    collector
        .gets(times, |span| span.name == last && span.trace == trace)
        .await;
    collector.gets(1, |span| span.trace == trace).await
}

async fn a_run_with_subagents_and_tools_is_one_trace(server: TestServer) {
    let collector = Collector::start().await;
    server
        .is_configured_with(&collector.section("service_name = \"editors\""))
        .await;
    let alice = server.human("agent").await;
    let research = |id: &str| script().calls(lookup(id, "otters")).says("found");
    let work = script()
        .calls_all([
            task("t1", "researcher", research("l1")),
            task("t2", "researcher", research("l2")),
        ])
        .says("done");
    says_with(&alice, work, &traceparent("01")).await;
    let spans = of_trace(&collector, TRACE, "POST /threads/{thread_id}/runs/wait", 1).await;
    is_connected(&spans, PARENT_SPAN);

    let request = one(&spans, "POST /threads/{thread_id}/runs/wait");
    assert_eq!(request.parent.as_str(), PARENT_SPAN);
    assert_eq!(request.kind, 2);
    assert_eq!(request.attribute("http.response.status_code"), 200);
    assert_eq!(request.resource["service.name"], "editors");
    let run = one(&spans, "invoke_agent main-agent");
    assert_eq!(run.parent, request.id);
    assert_eq!(run.attribute("gen_ai.operation.name"), "invoke_agent");
    assert_eq!(run.attribute("gen_ai.conversation.id"), alice.thread.as_str());
    assert_eq!(run.attribute("adjutant.run.status"), "success");

    let tasks = named(&spans, "execute_tool task");
    assert_eq!(tasks.len(), 2);
    assert!(tasks.iter().all(|task| task.parent == run.id));
    let researchers = named(&spans, "invoke_agent researcher");
    let parents: BTreeSet<&str> = researchers.iter().map(|span| span.parent.as_str()).collect();
    assert_eq!(parents, tasks.iter().map(|task| task.id.as_str()).collect());

    let lookups = named(&spans, "execute_tool lookup");
    let above: BTreeSet<&str> = lookups.iter().map(|span| span.parent.as_str()).collect();
    assert_eq!(above, researchers.iter().map(|span| span.id.as_str()).collect());
    let posts = named(&spans, "POST");
    let called: BTreeSet<String> = server
        .tools
        .calls_of("lookup")
        .iter()
        .map(|call| call["traceparent"].as_str().expect("a traceparent").to_owned())
        .collect();
    let expected = posts.iter().map(|post| format!("00-{TRACE}-{}-01", post.id)).collect();
    assert_eq!(called, expected);
    let above: BTreeSet<&str> = posts.iter().map(|span| span.parent.as_str()).collect();
    assert_eq!(above, lookups.iter().map(|span| span.id.as_str()).collect());

    let chats = named(&spans, "chat lab");
    assert_eq!(chats.len(), 6);
    assert!(chats.iter().all(|chat| chat.kind == 3));
    assert_eq!(chats.iter().filter(|chat| chat.parent == run.id).count(), 2);
    assert!(
        chats
            .iter()
            .all(|chat| chat.attribute("gen_ai.usage.input_tokens").is_u64())
    );
    assert!(chats.iter().all(|chat| chat.attribute("gen_ai.request.model") == "lab"));
    let commits = named(&spans, "COMMIT checkpoints");
    let system = match server.engine {
        crate::support::Engine::Sqlite => "sqlite",
        crate::support::Engine::Postgres => "postgresql",
    };
    assert!(!commits.is_empty());
    assert!(
        commits
            .iter()
            .all(|commit| commit.attribute("db.system.name") == system)
    );
}

async fn a_run_that_is_killed_and_resumed_is_one_trace(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&collector.section("")).await;
    server.moves_into_a_process().await;
    let alice = server.human("agent").await;
    let send = script()
        .calls(lookup("l1", "address"))
        .calls(mail("m1", "a@b.c"))
        .says("sent");
    let work = script().calls(task("t1", "mailer", send)).says("done");
    server.tools.hold("lookup");
    let run = alice.asks(work).await;
    server.tools.called("lookup", 1).await;
    // The spans before the kill have to be sent, since those that wait die with the process.
    collector.gets(2, |span| span.name == "chat lab").await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    eventually(async || !alice.questions().await.is_empty()).await;
    let first = collector.only("invoke_agent main-agent").await;
    assert_eq!(first.attribute("adjutant.waits"), true);
    assert_eq!(first.attribute("adjutant.run.attempt"), 2);
    assert_eq!(first.attribute("adjutant.run.id"), run.id.as_str());

    server.is_killed_and_started_again().await;
    let resumed = alice.approves(&alice.question().await).await;
    resumed.finishes().await;
    let roots = collector.gets(2, |span| span.name == "invoke_agent main-agent").await;
    let second = roots
        .into_iter()
        .find(|span| span.id != first.id)
        .expect("the second run");
    assert_eq!(second.trace, first.trace);
    assert_eq!(second.parent, first.id);
    assert_eq!(second.attribute("adjutant.run.id"), resumed.id.as_str());
    let [(trace, link)] = second.links.as_slice() else {
        panic!("not one link: {second:#?}")
    };
    assert_ne!(*trace, first.trace);
    let answers = collector.gets(1, |span| span.id == *link).await;
    assert_eq!(answers[0].name, "POST /threads/{thread_id}/runs");

    let spans = of_trace(&collector, &first.trace, "execute_tool task", 2).await;
    let starts = named(&spans, "POST /threads/{thread_id}/runs");
    assert_eq!(starts.len(), 1, "the request that started the first run: {starts:#?}");
    is_connected(&spans, "");
    let mailers = named(&spans, "invoke_agent mailer");
    assert_eq!(mailers.len(), 2, "one for each run that drove it");
    let mails = named(&spans, "execute_tool send_email");
    assert_eq!(mails.len(), 1);
    assert!(mailers.iter().any(|mailer| mailer.id == mails[0].parent));
}

async fn a_background_task_and_its_notification_belong_to_the_trace_of_the_run(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&boss("")).await;
    server.is_configured_with(&collector.section("")).await;
    let alice = server.human("boss").await;
    let work = script().calls(lookup("l1", "x")).says("the long text");
    let order = script().calls(start("a1", "writer", work)).says("it is under way");
    // An agent that is at work when its task ends reads the outcome itself, and is not notified.
    server.tools.hold("lookup");
    says_with(&alice, order, &traceparent("01")).await;
    server.tools.let_go("lookup");
    let scribe = collector.only("invoke_agent scribe").await;
    assert_eq!(scribe.trace, TRACE);
    let call = collector.only("execute_tool start_async_task").await;
    assert_eq!(scribe.parent, call.id);
    // The run that tells the boss about the outcome.
    let bosses = collector.gets(2, |span| span.name == "invoke_agent boss").await;
    assert!(bosses.iter().all(|boss| boss.trace == TRACE));
    let first = bosses
        .iter()
        .find(|boss| boss.id == call.parent)
        .expect("the first run");
    let second = bosses.iter().find(|boss| boss.id != first.id).expect("the second run");
    assert_eq!(second.parent, first.id);
    let spans = of_trace(&collector, TRACE, "POST /threads/{thread_id}/runs/wait", 1).await;
    is_connected(&spans, PARENT_SPAN);
}

async fn a_run_that_another_server_finishes_is_one_trace(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&boss("")).await;
    server.is_configured_with(&collector.section("")).await;
    server.moves_into_a_process().await;
    let second = server.starts_second_process().await;
    let alice = server.human("boss").await;
    let send = script()
        .calls(lookup("l1", "x"))
        .calls(mail("m1", "a@b.c"))
        .says("sent");
    let order = script()
        .calls_all([start("a1", "writer", send), lookup("l0", "more")])
        .says("it is under way");
    server.tools.hold("lookup");
    alice.asks(order).await;
    server.tools.called("lookup", 2).await;
    collector.gets(2, |span| span.name == "chat lab").await;
    let started = collector.only("execute_tool start_async_task").await;
    // A call whose result is not stored is made again, with the same span.
    let is_stored = |span: &CollectedSpan| {
        span.name == "COMMIT checkpoints" && span.parent == started.parent && span.time.0 >= started.time.1
    };
    collector.gets(1, is_stored).await;
    server.is_killed().await;
    server.tools.let_go("lookup");
    // The other server takes the runs over, and answers for both.
    collector.gets(1, |span| span.name == "invoke_agent boss").await;
    let alice = Human::at(second.client(), "boss", &alice.thread);
    let scribe = Human::at(
        second.client(),
        "scribe",
        &worker(&alice, &the_task(&alice).await).thread,
    );
    eventually(async || !scribe.questions().await.is_empty()).await;
    scribe.approves(&scribe.question().await).await.finishes().await;
    let scribes = collector.gets(2, |span| span.name == "invoke_agent scribe").await;
    let bosses = collector.gets(1, |span| span.name == "invoke_agent boss").await;
    let trace = &bosses[0].trace;
    assert!(scribes.iter().all(|scribe| scribe.trace == *trace), "{scribes:#?}");
    let waiting = scribes.iter().find(|scribe| scribe.attribute("adjutant.waits") == true);
    let waiting = waiting.expect("the run that asked");
    assert!(scribes.iter().any(|scribe| scribe.parent == waiting.id));
    // The boss is notified in further runs, whose spans have their parents once those runs have ended.
    eventually(async || {
        let spans = collector.spans().into_iter().filter(|span| span.trace == *trace);
        orphans(&spans.collect::<Vec<_>>(), "").is_empty()
    })
    .await;
    second.is_stopped().await;
}

async fn a_failure_is_in_the_span_of_what_failed(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&collector.section("")).await;
    let alice = server.human("plain").await;
    let broken = crate::support::call("f1", "fail", json!({"why": "no luck"}));
    alice.asks(script().calls(broken).fails(400)).await;
    let call = collector.only("execute_tool fail").await;
    assert!(call.is_error);
    assert_eq!(call.attribute("error.type"), "tool_error");
    let post = collector.only("POST").await;
    assert_eq!(post.attribute("error.type"), "ToolHttpError");
    assert_eq!(post.attribute("http.response.status_code"), 500);
    let run = collector.only("invoke_agent plain-agent").await;
    assert!(run.is_error);
    assert_eq!(run.attribute("error.type"), "ModelRefusedError");
    let chats = collector.gets(2, |span| span.name == "chat lab").await;
    assert_eq!(chats.iter().filter(|chat| chat.is_error).count(), 1);
}

async fn a_cancelled_run_ends_the_spans_of_all_its_agents(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&collector.section("")).await;
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let work = script().calls(task("t1", "researcher", script().calls(lookup("l1", "x"))));
    let run = alice.asks(work).await;
    server.tools.called("lookup", 1).await;
    run.is_cancelled("interrupt").await.ok();
    server.tools.let_go("lookup");
    for name in [
        "invoke_agent main-agent",
        "execute_tool task",
        "invoke_agent researcher",
        "execute_tool lookup",
    ] {
        assert!(collector.only(name).await.is_error, "{name}");
    }
}

async fn a_trace_that_the_caller_does_not_record_is_not_recorded(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&collector.section("")).await;
    let alice = server.human("plain").await;
    let work = script().calls(lookup("l1", "x")).says("done");
    says_with(&alice, work, &traceparent("00")).await;
    let passed_on = server.tools.calls_of("lookup")[0]["traceparent"].clone();
    let passed_on = passed_on.as_str().expect("a traceparent");
    assert!(
        passed_on.starts_with(&format!("00-{TRACE}-")) && passed_on.ends_with("-00"),
        "{passed_on}"
    );
    // A later run, whose spans come after those that must not come.
    alice.says(script().says("again")).await;
    collector.only("invoke_agent plain-agent").await;
    assert!(collector.spans().iter().all(|span| span.trace != TRACE));
}

async fn an_invalid_traceparent_is_ignored(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&collector.section("")).await;
    let alice = server.human("plain").await;
    says_with(&alice, script().says("done"), "00-zz-zz-01").await;
    let request = collector.only("POST /threads/{thread_id}/runs/wait").await;
    assert_eq!(request.parent, "");
    let run = collector.only("invoke_agent plain-agent").await;
    assert_eq!(run.trace, request.trace);
    assert_eq!(run.parent, request.id);
}

async fn a_webhook_continues_the_trace_of_its_run(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&collector.section("")).await;
    let receiver = WebhookReceiver::start().await;
    let alice = server.human("plain").await;
    let body = alice.run_body(
        script().says("done"),
        json!({"webhook": format!("{}/hook", receiver.base)}),
    );
    alice.client().post(&alice.path("/runs/wait"), body).await.ok();
    let run = collector.only("invoke_agent plain-agent").await;
    let post = collector.only("POST").await;
    assert_eq!(&post.trace, &run.trace);
    assert_eq!(&post.parent, &run.id);
    assert_eq!(post.attribute("http.response.status_code"), 200);
    let report = receiver.receives(1).await.remove(0);
    assert_eq!(
        report.header("traceparent"),
        format!("00-{}-{}-01", post.trace, post.id)
    );
}

async fn a_remote_agent_continues_the_trace(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&collector.section("")).await;
    let remote = server.client().base();
    let other = TestServer::start(crate::support::Engine::Sqlite)
        .await
        .expect("SQLite is built in");
    let caller = format!(
        "[agents.caller]\nmodel = \"scripted:lab\"\nsystem_prompt = \"You call.\"\n\
         [[agents.caller.subagents]]\nname = \"far\"\ndescription = \"Works elsewhere.\"\n\
         url = \"{remote}\"\nasync = false\ngraph_id = \"plain\"\n{}",
        collector.section("service_name = \"caller\"")
    );
    other.is_configured_with(&caller).await;
    let alice = other.human("caller").await;
    alice
        .says(
            script()
                .calls(task("t1", "far", script().says("from afar")))
                .says("done"),
        )
        .await;
    let far = collector.only("invoke_agent far").await;
    let plain = collector.only("invoke_agent plain-agent").await;
    assert_eq!(plain.trace, far.trace);
    assert_eq!(plain.resource["service.name"], "adjutant");
    assert_eq!(far.resource["service.name"], "caller");
    let requests = collector.gets(1, |span| span.id == plain.parent).await;
    assert_eq!(requests[0].parent, far.id);
    other.finish().await;
}

async fn an_mcp_server_gets_the_trace(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&collector.section("")).await;
    let Some(_docs) = docs(&server, McpTransport::Http, "").await else {
        return;
    };
    let call = crate::support::call("c1", "docs__trace", json!({}));
    let values = server
        .human("librarian")
        .await
        .says(script().calls(call).says("done"))
        .await;
    let span = collector.only("tools/call trace").await;
    assert_eq!(span.attribute("mcp.method.name"), "tools/call");
    assert_eq!(span.parent, collector.only("execute_tool docs__trace").await.id);
    let told = values["messages"][2]["content"].to_string();
    assert!(told.contains(&format!("00-{}-{}-01", span.trace, span.id)), "{told}");
}

async fn a_run_of_an_mcp_client_is_below_its_request(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&collector.section("")).await;
    let version = "2026-07-28";
    let meta = json!({"io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {}});
    let arguments = json!({"message": script().says("done").to_string()});
    let params = json!({"name": "plain", "arguments": arguments, "_meta": meta});
    let request = server.client().request(Method::POST, "/mcp");
    let request = request
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", version)
        .header("mcp-method", "tools/call")
        .header("mcp-name", "plain")
        .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}));
    assert_eq!(reply(request).await.status, 200);
    let sent = collector.only("POST /mcp").await;
    let agent = collector.gets(1, |span| span.name.starts_with("invoke_agent")).await;
    assert_eq!(agent[0].trace, sent.trace);
}

async fn providers_get_the_trace_only_if_they_may(server: TestServer) {
    let collector = Collector::start().await;
    server.is_configured_with(&collector.section("")).await;
    server.models.will([Turn::Says("one"), Turn::Says("two")]);
    server.human("openai").await.says("hello").await;
    assert_eq!(server.models.asked()[0].traceparent, None);
    let with = "[telemetry]\npropagate_to_models = true\n";
    server.is_reconfigured("[telemetry]\n", with).await;
    server.human("openai").await.says("hello").await;
    let chats = collector.gets(2, |span| span.name.starts_with("chat ")).await;
    let expected = format!("00-{}-{}-01", chats[1].trace, chats[1].id);
    assert_eq!(server.models.asked()[1].traceparent, Some(expected));
    assert_eq!(chats[1].attribute("gen_ai.provider.name"), "openai");
}

async fn a_server_without_a_collector_passes_no_trace_on(server: TestServer) {
    let alice = server.human("plain").await;
    says_with(
        &alice,
        script().calls(lookup("l1", "x")).says("done"),
        &traceparent("01"),
    )
    .await;
    assert_eq!(server.tools.calls_of("lookup")[0]["traceparent"], Value::Null);
}

async fn traces_are_sent_in_json_too(server: TestServer) {
    let collector = Collector::start().await;
    server
        .is_configured_with(&collector.section("protocol = \"http/json\""))
        .await;
    server.human("plain").await.says(script().says("done")).await;
    let run = collector.only("invoke_agent plain-agent").await;
    assert!(run.time.0 > 1_500_000_000_000_000_000 && run.time.0 <= run.time.1);
}
