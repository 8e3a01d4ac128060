//! Services of tools made with the packages in `python/` and `js/`: functions, and tools of LangChain, deepagents,
//! FastMCP and the MCP SDK as they are.
//!
//! They need the same as the tests of the SDKs; see [`super::sdk`].

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::sdk::{folder, node_modules};
use crate::support::client::Client;
use crate::support::script::Script;
use crate::support::server::python_with;
use crate::support::{TestServer, call, eventually, on_both_engines, script, transcript, without_postgres};

/// The token of the service.
const TOKEN: &str = "the-token-of-the-tool-service";

/// The packages of the service in JavaScript.
const PACKAGES: [&str; 3] = ["zod", "@langchain/core", "@modelcontextprotocol/sdk"];

/// The language of a service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Python,
    JavaScript,
}

/// A service of tools; dropping it kills it.
struct Service {
    language: Language,
    port: u16,
    folder: TempDir,
    /// The address of the server, if the service reads of its runs.
    server: Option<String>,
    running: Option<Child>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.dies();
    }
}

impl Service {
    /// Starts a service and an agent that uses it; `None` without the packages. `more` is added to its section.
    async fn start(language: Language, server: &TestServer, more: &str) -> Option<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let mut service = Self {
            language,
            port,
            folder: tempfile::tempdir().expect("a directory"),
            server: None,
            running: None,
        };
        service.starts().await?;
        server
            .is_configured_with(&format!(
                "[tool_servers.crm]\nurl = \"http://127.0.0.1:{port}/\"\n\
                 headers = {{ authorization = \"Bearer {TOKEN}\" }}\nrefresh_s = 1\n{more}\n{AGENTS}"
            ))
            .await;
        Some(service)
    }

    /// Starts the program, and waits until it listens.
    async fn starts(&mut self) -> Option<()> {
        let mut command = match self.language {
            Language::Python => {
                let mut command = Command::new(python_with_libraries()?);
                command.arg("-B").arg(folder().join("python/tool_service.py"));
                command
            }
            Language::JavaScript => {
                let mut command = Command::new("node");
                command.env("ADJUTANT_TEST_NODE_MODULES", node_modules(&PACKAGES)?);
                command.arg(folder().join("js/tool_service.mjs"));
                command
            }
        };
        let command = command.arg(self.port.to_string()).arg(self.folder.path()).arg(TOKEN);
        command.env_remove("ADJUTANT_URL");
        if let Some(server) = &self.server {
            command.env("ADJUTANT_URL", server);
        }
        self.running = Some(command.stdin(Stdio::null()).spawn().expect("it starts"));
        is_there(self.port).await;
        Some(())
    }

    fn dies(&mut self) {
        if let Some(mut child) = self.running.take() {
            child.kill().expect("SIGKILL");
            child.wait().expect("it is dead");
        }
    }

    /// Returns the number of lines that the tools have written into a file.
    fn lines(&self, file: &str) -> usize {
        fs::read_to_string(self.folder.path().join(file)).map_or(0, |text| text.lines().count())
    }

    fn write(&self, file: &str) {
        fs::write(self.folder.path().join(file), "").expect("a file");
    }
}

const AGENTS: &str = r#"
[agents.desk]
model = "scripted:lab"
system_prompt = "You sell."
tools = ["crm/*"]

[[agents.desk.subagents]]
name = "helper"
description = "Helps."
system_prompt = "You help."
tools = []

[agents.careful]
model = "scripted:lab"
tools = ["crm/add", "crm/note"]
interrupt_on = { "crm/add" = true }
"#;

/// Returns a call of a tool of the service.
fn crm(id: &str, tool: &str, args: Value) -> Value {
    call(id, &format!("crm__{tool}"), args)
}

fn calls(calls: impl IntoIterator<Item = Value>) -> Script {
    script().calls_all(calls).says("done")
}

/// Returns a Python that has the libraries of the service.
fn python_with_libraries() -> Option<String> {
    let modules = ["langgraph_sdk", "fastmcp", "deepagents", "uvicorn"];
    python_with(&modules, "fastmcp and deepagents")
}

/// Waits until a service listens.
async fn is_there(port: u16) {
    let client = Client::new(&format!("http://127.0.0.1:{port}"));
    eventually(async || {
        let health = client.tries(reqwest::Method::GET, "/health", None).await;
        health.is_ok_and(|reply| reply.status == 200)
    })
    .await;
}

async fn every_kind_of_tool_is_learnt_and_called(language: Language, server: &TestServer) {
    let Some(_service) = Service::start(language, server, "").await else {
        return;
    };
    let alice = server.human("desk").await;
    let text = script()
        .calls_all([
            crm("c1", "add", json!({"a": 1})),
            crm("c2", "multiply", json!({"a": 3, "b": 4})),
            crm("c3", "measure", json!({"text": "four"})),
            crm("c4", "note", json!({"text": "otters"})),
            crm("c5", "add", json!({"a": "one"})),
            crm("c6", "broken", json!({})),
            crm("c7", "hand_over", json!({"work": script().says("helped").to_string()})),
            crm(
                "c9",
                "compare",
                json!({"works": [script().says("one").to_string(), script().says("two").to_string()]}),
            ),
        ])
        .calls(crm("c8", "recall", json!({})))
        .turn(json!({"echo_tools": true}));
    let values = alice.says(text).await;
    let said = transcript(&values);
    assert_eq!(said[2..4], ["crm__add: 3", "crm__multiply: 12"]);
    assert!(said[4].starts_with("crm__measure: {\"length\":"), "{}", said[4]);
    assert_eq!(said[5], "crm__note: noted");
    assert!(
        said[6].starts_with("crm__add failed:") && said[6].contains("`a`"),
        "{}",
        said[6]
    );
    assert!(said[7].starts_with("crm__broken failed:"), "{}", said[7]);
    assert!(
        said[7].contains("no such thing") && !said[7].contains("tool_service"),
        "{}",
        said[7]
    );
    assert_eq!(said[8], "crm__hand_over: helped");
    assert_eq!(said[9], "crm__compare: one / two");
    assert_eq!(
        said[11], "crm__recall: the topic is otters",
        "state reaches tools that ask for it"
    );
    assert_eq!(values["topic"], "otters");
    let messages = values["messages"].as_array().unwrap();
    assert_eq!(messages[3]["artifact"], json!({"product": 12}));
    assert_eq!(messages[4]["artifact"], json!({"length": 4}));
    assert_eq!(messages[5]["artifact"], json!({"length": 6}));
    assert!(said.last().unwrap().contains("crm__whoami"), "{said:#?}");
    let run = &alice.runs().await[0];
    let children = alice.run(run).children().await;
    let mut delegated: Vec<&str> = children
        .iter()
        .filter_map(|child| child["task_call_id"].as_str())
        .collect();
    delegated.sort_unstable();
    assert_eq!(delegated, ["c7", "c9", "c9"]);

    let bob = server.human("desk").await;
    let body = bob.run_body(
        calls([crm("c1", "whoami", json!({}))]),
        json!({"context": {"user": "u1"}}),
    );
    bob.starts(body).await.finishes().await;
    let said = bob.transcript().await;
    let told: Value = serde_json::from_str(said[2].strip_prefix("crm__whoami: ").unwrap()).unwrap();
    assert_eq!(told, json!({"agent": "desk", "thread": bob.thread, "user": "u1"}));
}

async fn pieces_are_seen_while_a_tool_works(language: Language, server: &TestServer) {
    let Some(service) = Service::start(language, server, "").await else {
        return;
    };
    let alice = server.human("desk").await;
    let text = calls([crm("c1", "tell", json!({"wait": true}))]);
    let mut stream = alice
        .streams(&text, json!({"stream_mode": ["custom", "updates"]}))
        .await;
    let seen = stream.until(|frame| frame.mode() == "custom").await;
    assert_eq!(seen.last().unwrap().data, json!({"part": 1}));
    service.write("go");
    stream.rest().await;
    assert_eq!(alice.transcript().await[2], "crm__tell: Once upon a time.");
}

async fn a_tool_asks_humans_and_goes_on_after_restarts(language: Language, server: &TestServer) {
    let Some(mut service) = Service::start(language, server, "").await else {
        return;
    };
    server.moves_into_a_process().await;
    let alice = server.human("desk").await;
    alice.says(calls([crm("c1", "book", json!({"city": "Rome"}))])).await;
    let sure = alice.question().await;
    let listed = alice.client().get("/interrupts?status=pending").await.ok();
    let listed = &listed["interrupts"][0];
    assert_eq!(listed["kind"], "question");
    assert_eq!(listed["value"], "Book Rome?");
    assert_eq!(listed["response_schema"]["type"], "boolean");
    for wrong in [json!({"decisions": [{"type": "approve"}]}), json!({"response": "yes"})] {
        alice.resolves(&sure, wrong).await.refused(422);
    }

    server.is_killed_and_started_again().await;
    alice.resolves(&sure, json!({"response": true})).await;
    eventually(async || alice.questions().await.len() == 2).await;
    let mut questions = alice.questions().await;
    questions.sort_by_key(|question| question.0["value"] == "Which meal?");
    service.dies();
    service.starts().await;
    server.is_killed_and_started_again().await;
    // One answer alone does not let the tool go on.
    alice.resolves(&questions[1], json!({"response": "fish"})).await;
    eventually(async || alice.questions().await.len() == 1).await;
    alice.resolves(&questions[0], json!({"response": "4a"})).await;
    eventually(async || alice.status().await == "idle").await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "crm__book: Rome: 4a, fish");
    assert_eq!(service.lines("book"), 3, "one run for each round of answers");
}

async fn a_call_runs_once_though_the_server_dies(language: Language, server: &TestServer) {
    let Some(service) = Service::start(language, server, "").await else {
        return;
    };
    server.moves_into_a_process().await;
    let alice = server.human("desk").await;
    let run = alice.asks(calls([crm("c1", "pay", json!({"sum": 7}))])).await;
    eventually(async || service.lines("pay") == 1).await;
    server.is_killed_and_started_again().await;
    service.write("go");
    run.finishes().await;
    assert_eq!(alice.transcript().await[2], "crm__pay: paid 7");
    assert_eq!(service.lines("pay"), 1);
}

async fn a_tool_reads_of_its_run(language: Language, server: &TestServer) {
    let access = "read_access = { state = [\"messages\"], files = [\"/reports/**\"], store = [[\"memories\"]] }";
    let Some(mut service) = Service::start(language, server, access).await else {
        return;
    };
    let client = server.client();
    service.dies();
    service.server = Some(client.base());
    service.starts().await;
    let item = json!({"namespace": ["memories"], "key": "k", "value": {"likes": "otters"}});
    client.put("/store/items", item).await.ok();
    let alice = server.human("desk").await;
    let files = json!({"/reports/a.md": {"content": "Größe"}, "/secret.md": {"content": "secret"}});
    let values = json!({"values": {"messages": [], "files": files}});
    client.post(&alice.path("/state"), values).await.ok();
    alice.says(calls([crm("c1", "study", json!({}))])).await;
    let said = alice.transcript().await;
    let read = said[2]
        .strip_prefix("crm__study: ")
        .and_then(|text| serde_json::from_str::<Value>(text).ok());
    let expected = json!({"messages": 2, "reports": {"/reports/a.md": "Größe"}, "likes": [{"likes": "otters"}]});
    assert_eq!(read, Some(expected), "{said:?}");
}

async fn a_python_tool_reads_of_its_run(server: TestServer) {
    a_tool_reads_of_its_run(Language::Python, &server).await;
}

async fn a_javascript_tool_reads_of_its_run(server: TestServer) {
    a_tool_reads_of_its_run(Language::JavaScript, &server).await;
}

async fn python_tools_are_learnt_and_called(server: TestServer) {
    every_kind_of_tool_is_learnt_and_called(Language::Python, &server).await;
}

async fn javascript_tools_are_learnt_and_called(server: TestServer) {
    every_kind_of_tool_is_learnt_and_called(Language::JavaScript, &server).await;
}

async fn pieces_of_python_tools_are_seen_while_they_work(server: TestServer) {
    pieces_are_seen_while_a_tool_works(Language::Python, &server).await;
}

async fn pieces_of_javascript_tools_are_seen_while_they_work(server: TestServer) {
    pieces_are_seen_while_a_tool_works(Language::JavaScript, &server).await;
}

async fn a_python_tool_asks_humans_and_goes_on_after_restarts(server: TestServer) {
    a_tool_asks_humans_and_goes_on_after_restarts(Language::Python, &server).await;
}

async fn a_javascript_tool_asks_humans_and_goes_on_after_restarts(server: TestServer) {
    a_tool_asks_humans_and_goes_on_after_restarts(Language::JavaScript, &server).await;
}

async fn a_call_of_a_python_tool_runs_once_though_the_server_dies(server: TestServer) {
    a_call_runs_once_though_the_server_dies(Language::Python, &server).await;
}

async fn a_call_of_a_javascript_tool_runs_once_though_the_server_dies(server: TestServer) {
    a_call_runs_once_though_the_server_dies(Language::JavaScript, &server).await;
}

async fn tools_of_langchain_and_deepagents_write_ask_and_plan(server: TestServer) {
    let Some(service) = Service::start(Language::Python, &server, "").await else {
        return;
    };
    let alice = server.human("desk").await;
    let plan = json!([{"content": "look", "status": "pending"}]);
    let text = script()
        .calls(crm("c1", "remember", json!({"what": "otters"})))
        .calls(crm("c2", "write_todos", json!({"todos": plan})))
        .calls(crm(
            "f1",
            "write_file",
            json!({"file_path": "/a.txt", "content": "otters"}),
        ))
        .calls(crm("c3", "confirm", json!({"what": "otters"})))
        .says("done");
    alice.says(text).await;
    let question = alice.question().await;
    alice.resolves(&question, json!({"response": "yes"})).await;
    eventually(async || alice.status().await == "idle").await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "crm__remember: remembered");
    assert!(
        said[4].starts_with("crm__write_todos: Updated todo list"),
        "{}",
        said[4]
    );
    assert!(said[6].starts_with("crm__write_file:"), "{}", said[6]);
    assert_eq!(said[8], "crm__confirm: otters: yes");
    assert_eq!(
        fs::read_to_string(service.folder.path().join("a.txt")).unwrap(),
        "otters"
    );
    let values = alice.state().await["values"].clone();
    assert_eq!(values["topic"], "otters");
    assert_eq!(values["todos"], plan);
}

async fn approvals_and_lists_of_tools_name_those_of_services(server: TestServer) {
    let Some(_service) = Service::start(Language::JavaScript, &server, "disabled_tools = [\"note\"]").await else {
        return;
    };
    let alice = server.human("careful").await;
    alice
        .says(calls([
            crm("c1", "add", json!({"a": 1})),
            crm("c2", "note", json!({"text": "x"})),
        ]))
        .await;
    let question = alice.question().await;
    alice.resolves(&question, json!({"response": true})).await.refused(422);
    alice.approves(&question).await.finishes().await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "crm__add: 3");
    assert!(said[3].contains("crm__note is not a valid tool"), "{}", said[3]);
}

async fn tools_come_and_go_with_their_service(server: TestServer) {
    let Some(mut service) = Service::start(Language::JavaScript, &server, "").await else {
        return;
    };
    let alice = server.human("desk").await;
    let late = || calls([crm("c1", "late", json!({}))]);
    assert!(transcript(&alice.says(late()).await)[2].contains("is not a valid tool"));
    service.dies();
    let bob = server.human("desk").await;
    let said = transcript(&bob.says(calls([crm("c1", "add", json!({"a": 1}))])).await);
    assert_eq!(
        said[2],
        "crm__add failed: The call to `crm__add` failed: the tool `crm__add` could not be reached"
    );
    service.write("late");
    service.starts().await;
    eventually(async || {
        let carol = server.human("desk").await;
        transcript(&carol.says(late()).await)[2] == "crm__late: better"
    })
    .await;
}

/// Plays the service of an example, which needs no package of others.
async fn an_example_works(mut command: Command, server: &TestServer) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let running = command
        .arg(port.to_string())
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    let _service = Service {
        language: Language::Python,
        port,
        folder: tempfile::tempdir().expect("a directory"),
        server: None,
        running: Some(running),
    };
    is_there(port).await;
    server
        .is_configured_with(&format!(
            "[tool_servers.crm]\nurl = \"http://127.0.0.1:{port}\"\n\
             [agents.desk]\nmodel = \"scripted:lab\"\ntools = [\"crm/search\", \"crm/send_email\"]\n"
        ))
        .await;
    let alice = server.human("desk").await;
    let text = calls([
        crm("c1", "search", json!({"name": "a"})),
        crm("c2", "send_email", json!({"to": "Ada", "body": "Hello."})),
    ]);
    alice.says(text).await;
    let question = alice.question().await;
    alice.resolves(&question, json!({"response": true})).await;
    eventually(async || alice.status().await == "idle").await;
    let said = alice.transcript().await;
    let found: Value = serde_json::from_str(said[2].strip_prefix("crm__search: ").unwrap()).unwrap();
    assert_eq!(found, json!(["Ada", "Grace"]));
    assert_eq!(said[3], "crm__send_email: Sent to ada@example.org.");
    let values = alice.state().await["values"].clone();
    assert_eq!(values["last_email"], json!({"to": "Ada", "by": "desk"}));
}

async fn the_example_in_python_works(server: TestServer) {
    let Some(python) = python_with_libraries() else {
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python);
    command.arg("-B").arg(root.join("examples/tool_service.py"));
    command.env("PYTHONPATH", root.join("python/src"));
    an_example_works(command, &server).await;
}

async fn the_example_in_javascript_works(server: TestServer) {
    if node_modules(&PACKAGES).is_none() {
        return;
    }
    let mut command = Command::new("node");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tool_service.mjs"));
    an_example_works(command, &server).await;
}

on_both_engines! {
    python_tools_are_learnt_and_called,
    a_python_tool_reads_of_its_run,
    a_python_tool_asks_humans_and_goes_on_after_restarts,
    a_javascript_tool_asks_humans_and_goes_on_after_restarts,
    a_call_of_a_python_tool_runs_once_though_the_server_dies,
}

without_postgres! {
    javascript_tools_are_learnt_and_called,
    a_javascript_tool_reads_of_its_run,
    pieces_of_python_tools_are_seen_while_they_work,
    pieces_of_javascript_tools_are_seen_while_they_work,
    a_call_of_a_javascript_tool_runs_once_though_the_server_dies,
    tools_of_langchain_and_deepagents_write_ask_and_plan,
    approvals_and_lists_of_tools_name_those_of_services,
    tools_come_and_go_with_their_service,
    the_example_in_python_works,
    the_example_in_javascript_works,
}
