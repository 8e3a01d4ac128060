//! HTTP tools and MCP servers with oversized results, without responses, or with processes that outlive them.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::misbehaving_server::MisbehavingServer;
use crate::support::script::Script;
use crate::support::{TestServer, call, eventually, mcp, on_both_engines, script, transcript};

/// Configures a tool for each of these ways of misbehaving.
async fn wild(server: &TestServer, ways: &[&str]) -> MisbehavingServer {
    let wild = MisbehavingServer::start().await;
    let tool = |way: &&str| {
        format!(
            "[tools.{way}]\nkind = \"http\"\ndescription = \"Wild.\"\nurl = \"{}/{way}\"\ntimeout_s = 20\n\
             parameters = {{ type = \"object\" }}\n",
            wild.base
        )
    };
    let tools: String = ways.iter().map(tool).collect();
    let agent = format!("[agents.wild]\nmodel = \"scripted:lab\"\nsystem_prompt = \"Call.\"\ntools = {ways:?}\n");
    server.is_configured_with(&format!("{tools}{agent}{HELPER}")).await;
    wild
}

/// Before the section `[runtime]`: answers that take any time are given up soon.
const HASTE: &str = "[answers]\nfirst_byte_s = 1.5\nbetween_bytes_s = 2.5\n[runtime]\n";

const HELPER: &str =
    "[[agents.wild.subagents]]\nname = \"helper\"\ndescription = \"Helps.\"\nsystem_prompt = \"Help.\"\n";

/// Calls these tools one after the other, and returns their results.
async fn results(server: &TestServer, tools: &[&str]) -> Vec<String> {
    let alice = server.human("wild").await;
    let calls = tools
        .iter()
        .enumerate()
        .map(|(at, tool)| call(&format!("c{at}"), tool, json!({})));
    let plan = calls.fold(script(), Script::calls).says("done");
    let said = transcript(&alice.says(plan).await);
    assert_eq!(said.last().map(String::as_str), Some("ai: done"), "{said:#?}");
    tools
        .iter()
        .enumerate()
        .map(|(at, _)| said[2 + 2 * at].clone())
        .collect()
}

on_both_engines! {
    answers_that_are_too_long_are_error_results_and_take_little_memory,
    a_hanging_tool_is_an_error_result_that_names_the_setting,
    a_hanging_mcp_tool_is_an_error_result_that_names_the_setting,
    the_calls_of_one_answer_share_permits_and_keep_their_order,
    an_oversized_mcp_result_is_an_error_result,
    endless_list_changed_notifications_are_rate_limited,
    endless_requests_of_an_mcp_server_are_rate_limited,
    processes_of_an_mcp_server_end_with_it,
    a_redirect_of_a_tool_is_not_followed,
    redirects_of_servers_of_tools_are_not_followed,
}

async fn a_redirect_of_a_tool_is_not_followed(server: TestServer) {
    let wild = wild(&server, &["elsewhere"]).await;
    let said = results(&server, &["elsewhere"]).await;
    assert!(said[0].contains("307"), "{}", said[0]);
    assert_eq!(wild.asked("/elsewhere"), 1);
    assert_eq!(wild.asked("/target"), 0);
}

async fn redirects_of_servers_of_tools_are_not_followed(server: TestServer) {
    let wild = MisbehavingServer::start().await;
    let base = &wild.base;
    let servers = format!(
        "[mcp_servers.away]\nurl = \"{base}/elsewhere/mcp\"\n[tool_servers.gone]\nurl = \"{base}/elsewhere/list\"\n\
         [agents.wild]\nmodel = \"scripted:lab\"\nsystem_prompt = \"Call.\"\ntools = [\"away/*\", \"gone/*\"]\n"
    );
    server.is_configured_with(&servers).await;
    let values = server.human("wild").await.says(script().says("done")).await;
    assert_eq!(values["__error__"]["error"], "McpConnectionError", "{values}");
    eventually(async || wild.asked("/elsewhere/list") > 0).await;
    eventually(async || wild.asked("/elsewhere/mcp") > 0).await;
    assert_eq!(wild.asked("/target"), 0);
}

/// An MCP server that answers until its tool is called: then it sends requests without end and reads no replies.
const ASKS_WITHOUT_END: &str = r#"
import json, sys

def put(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()

for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "initialize":
        own = {"name": "asks", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": own}
        put({"id": request["id"], "result": result})
    elif request["method"] == "tools/list":
        put({"id": request["id"], "result": {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}})
    elif request["method"] == "tools/call":
        asked = 0
        while True:
            asked += 1
            put({"id": "ask %d" % asked, "method": "ping", "params": {"text": "x" * 10000}})
"#;

async fn answers_that_are_too_long_are_error_results_and_take_little_memory(server: TestServer) {
    let tools = ["zeros", "endless"];
    let _wild = wild(&server, &tools).await;
    server.moves_into_a_process().await;
    let before = server.peak_memory().await;
    for said in results(&server, &tools).await {
        assert!(said.contains("longer than 8388608 bytes"), "{said}");
    }
    let grown = server.peak_memory().await - before;
    assert!(grown < 128, "it grew by {grown} MiB");
}

async fn a_hanging_tool_is_an_error_result_that_names_the_setting(server: TestServer) {
    let tools = ["silent", "halfway"];
    let _wild = wild(&server, &tools).await;
    server.configuration_changes("[runtime]\n", HASTE);
    server.is_stopped_and_started_again().await;
    let said = results(&server, &tools).await;
    assert!(
        said[0].contains("nothing arrived for 1.5 s (the setting `[answers] first_byte_s`)"),
        "{}",
        said[0]
    );
    assert!(
        said[1].contains("nothing arrived for 2.5 s (the setting `[answers] between_bytes_s`)"),
        "{}",
        said[1]
    );
}

async fn a_hanging_mcp_tool_is_an_error_result_that_names_the_setting(server: TestServer) {
    let wild = MisbehavingServer::start().await;
    let servers: String = ["silent", "halfway"]
        .map(|way| format!("[mcp_servers.{way}]\nurl = \"{}/mcp-{way}\"\n", wild.base))
        .concat();
    let agent =
        "[agents.wild]\nmodel = \"scripted:lab\"\nsystem_prompt = \"Call.\"\ntools = [\"silent/*\", \"halfway/*\"]\n";
    server.is_configured_with(&format!("{servers}{agent}")).await;
    server.configuration_changes("[runtime]\n", HASTE);
    server.is_stopped_and_started_again().await;
    let said = results(&server, &["silent__good", "halfway__good"]).await;
    assert!(
        said[0].contains("nothing arrived for 1.5 s (the setting `[answers] first_byte_s`)"),
        "{}",
        said[0]
    );
    assert!(
        said[1].contains("nothing arrived for 2.5 s (the setting `[answers] between_bytes_s`)"),
        "{}",
        said[1]
    );
}

async fn the_calls_of_one_answer_share_permits_and_keep_their_order(server: TestServer) {
    server.configuration_changes("[runtime]\n", "[runtime]\nmax_calls_per_run = 3\n");
    server.is_stopped_and_started_again().await;
    server.tools.hold("slow");
    let alice = server.human("plain").await;
    let slow = (0..10).map(|at| call(&format!("c{at}"), "slow", json!({"at": at})));
    let run = alice.asks(script().calls_all(slow).says("done")).await;
    server.tools.called("slow", 3).await;
    // A whole other run comes and goes meanwhile.
    let bob = server.human("plain").await;
    bob.says(script().calls(crate::support::lookup("l1", "x")).says("done"))
        .await;
    assert_eq!(server.tools.calls_of("slow").len(), 3);
    server.tools.let_go("slow");
    run.finishes().await;
    let state = alice.state().await;
    let messages = state["values"]["messages"].as_array().unwrap();
    let answered: Vec<&Value> = messages[2..12].iter().map(|message| &message["tool_call_id"]).collect();
    assert_eq!(
        json!(answered),
        json!((0..10).map(|at| format!("c{at}")).collect::<Vec<_>>())
    );
    assert_eq!(server.tools.calls_of("slow").len(), 10);
}

async fn an_oversized_mcp_result_is_an_error_result(server: TestServer) {
    for way in [mcp::McpTransport::Stdio, mcp::McpTransport::Http] {
        let before = std::fs::read_to_string(server.configuration()).expect("a configuration");
        let Some(_docs) = mcp::docs(&server, way, "").await else {
            return;
        };
        let alice = server.human("librarian").await;
        let echo = call("c2", "docs__echo", json!({"text": "still there"}));
        let said = transcript(
            &alice
                .says(
                    script()
                        .calls(call("c1", "docs__huge", json!({})))
                        .calls(echo)
                        .says("done"),
                )
                .await,
        );
        assert!(said[2].starts_with("docs__huge failed:"), "{way:?}: {said:#?}");
        assert!(said[2].len() < 10_000, "{way:?}");
        assert_eq!(said[4..], ["docs__echo: still there", "ai: done"], "{way:?}");
        std::fs::write(server.configuration(), before).expect("it can change");
        server.is_stopped_and_started_again().await;
    }
}

async fn endless_list_changed_notifications_are_rate_limited(server: TestServer) {
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    // The one who floods ends with the program, of whose group it is.
    let floods = format!("while :; do for n in 1 2 3 4 5 6 7 8 9; do echo '{changed}'; done; sleep 0.01; done &");
    let Some(program) = mcp::program_after(&server, &floods) else {
        return;
    };
    server
        .is_configured_with(&format!(
            "{program}start_timeout_s = 60\n\
             [agents.reader]\nmodel = \"scripted:lab\"\nsystem_prompt = \"Read.\"\ntools = [\"docs/*\"]\n"
        ))
        .await;
    server.moves_into_a_process().await;
    let asked = async || {
        let alice = server.human("reader").await;
        let said = transcript(
            &alice
                .says(script().calls(call("c1", "docs__lists", json!({}))).says("done"))
                .await,
        );
        said[2]
            .strip_prefix("docs__lists: ")
            .and_then(|times| times.parse::<u64>().ok())
    };
    // On a busy machine its tools come later than the server begins.
    eventually(async || asked().await.is_some()).await;
    let begun = Instant::now();
    let first = asked().await.expect("a number");
    let memory = server.peak_memory().await;
    eventually(async || {
        server.client().get("/ok?check_db=1").await.ok();
        asked().await.is_some_and(|times| times >= first + 3)
    })
    .await;
    let more = asked().await.expect("a number") - first;
    let took = begun.elapsed().as_secs();
    // A whole list is two questions here, and the first second has begun before.
    assert!(more <= 2 * (took + 2), "it was asked {more} times in {took} s");
    let grown = server.peak_memory().await.saturating_sub(memory);
    assert!(grown < 64, "it grew by {grown} MiB");
}

async fn endless_requests_of_an_mcp_server_are_rate_limited(server: TestServer) {
    let Some(program) = mcp::program(&server) else { return };
    let command = program["command"].as_str().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    server
        .is_configured_with(&format!(
            "[mcp_servers.eager]\ncommand = {command:?}\nargs = [\"-c\", {ASKS_WITHOUT_END:?}]\nenv = {{ PATH = {path:?} }}\n\
             timeout_s = 4\n\
             [agents.wild]\nmodel = \"scripted:lab\"\nsystem_prompt = \"Call.\"\ntools = [\"eager/*\"]\n"
        ))
        .await;
    server.moves_into_a_process().await;
    let before = server.peak_memory().await;
    for said in results(&server, &["eager__ask", "eager__ask"]).await {
        assert!(said.contains("there was no answer within 4 s"), "{said}");
        server.client().get("/ok?check_db=1").await.ok();
    }
    let grown = server.peak_memory().await - before;
    assert!(grown < 48, "it grew by {grown} MiB");
}

async fn processes_of_an_mcp_server_end_with_it(server: TestServer) {
    let place = std::env::temp_dir().join(format!(
        "adjutant-grandchild-{}",
        server.client().base().replace(['/', ':'], "-")
    ));
    let begins = format!("sleep 1000 & echo $! > {};", place.display());
    let Some(program) = mcp::program_after(&server, &begins) else {
        return;
    };
    let section = format!("{program}connect_at_start = true\n");
    server.is_configured_with(&section).await;
    let pid = std::fs::read_to_string(&place).expect("it has begun").trim().to_owned();
    let is_alive = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    };
    assert!(is_alive());
    server.configuration_changes(&section, "");
    server.is_stopped_and_started_again().await;
    eventually(async || !is_alive()).await;
    std::fs::remove_file(&place).expect("it was there");
}
