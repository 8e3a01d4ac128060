//! Workspaces of the kind `sandbox`: files and commands in a sandbox of a sandbox service. The service is
//! `examples/sandbox_service.py` as a process of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use adjutant::shutdown::Shutdown;
use axum::http::header::IF_MATCH;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::execute::{endless, is_at_its_last_step, is_running, marker_of, results, sh};
use super::read_access::{Reader, peek};
use crate::support::viewer::Viewer;
use crate::support::{TestServer, call, eventually, mcp, on_both_engines, script, starts_service, task};

/// The token of the service.
const TOKEN: &str = "secret-sandbox-token";

/// A running sandbox service; dropping it kills it.
struct Service {
    child: Child,
    base: String,
    root: PathBuf,
}

impl Service {
    fn start(root: &Path) -> Option<Self> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/sandbox_service.py");
        let mut child = Command::new(mcp::python()?)
            .arg("-B")
            .arg(program)
            .args(["--port", "0", "--root"])
            .arg(root)
            .env("SANDBOX_TOKEN", TOKEN)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let base = line.split_whitespace().find(|word| word.starts_with("http://"));
        let base = base.expect("its address").trim_end_matches(';').to_owned();
        Some(Self {
            child,
            base,
            root: root.to_path_buf(),
        })
    }

    /// Returns the directories of the sandboxes.
    fn sandboxes(&self) -> Vec<PathBuf> {
        let places = fs::read_dir(&self.root).expect("the root").flatten();
        places.map(|place| place.path()).collect()
    }

    /// Returns the directory of the only sandbox.
    fn only(&self) -> PathBuf {
        let mut places = self.sandboxes();
        assert_eq!(places.len(), 1, "{places:?}");
        places.remove(0)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns the configuration of agents with a sandbox at `base`.
fn agents(base: &str, token: &str) -> String {
    format!(
        r#"
[sandboxes.lab]
url = "{base}"
headers = {{ Authorization = "Bearer {token}" }}
timeout_s = 10

[agents.worker]
model = "scripted:lab"
workspace = {{ kind = "sandbox", sandbox = "lab" }}
execute = {{ timeout_s = 60, max_timeout_s = 60 }}

[agents.each]
model = "scripted:lab"
workspace = {{ kind = "sandbox", sandbox = "lab", scope = "agent" }}
execute = true
subagents = [{{ name = "helper", description = "Helps.", system_prompt = "Help." }}]

[agents.mixed]
model = "scripted:lab"
execute = true

[agents.mixed.workspace]
kind = "composite"
default = {{ kind = "sandbox", sandbox = "lab" }}
routes."/notes" = {{ kind = "state" }}
"#
    )
}

/// Returns the configuration of agents with a sandbox at `base`, one of which has a tool that reads its files.
fn inspected(server: &TestServer, base: &str) -> String {
    let tool = format!(
        "[tools.peek]\nkind = \"http\"\ndescription = \"Looks.\"\nurl = \"{}/lookup\"\n\
         parameters = {{ type = \"object\" }}\nread_access = {{ files = [\"/reports/**\"] }}\n\n\
         [agents.inspected]\nmodel = \"scripted:lab\"\ntools = [\"peek\"]\n\
         workspace = {{ kind = \"sandbox\", sandbox = \"lab\" }}\n",
        server.tools.base
    );
    format!("{}\n{tool}", agents(base, TOKEN))
}

/// Starts a service, and the server with agents that use it.
async fn set_up(server: &TestServer) -> Option<Service> {
    let service = Service::start(&server.path_of("sandboxes"))?;
    server.is_configured_with(&agents(&service.base, TOKEN)).await;
    Some(service)
}

fn write(id: &str, path: &str, content: &str) -> Value {
    call(id, "write_file", json!({"file_path": path, "content": content}))
}

fn read(id: &str, path: &str) -> Value {
    call(id, "read_file", json!({"file_path": path}))
}

fn delete(id: &str, path: &str) -> Value {
    call(id, "delete", json!({"file_path": path}))
}

on_both_engines! {
    commands_and_file_tools_work_in_the_sandbox_of_the_thread,
    a_long_line_in_a_sandbox_is_found_and_read_to_its_end,
    a_sandbox_is_there_again_after_a_restart_of_the_server,
    each_agent_has_a_sandbox_of_its_own_where_that_is_set,
    a_route_of_a_composite_workspace_is_not_in_the_sandbox,
    a_deleted_thread_ends_its_sandboxes,
    the_end_of_a_sandbox_waits_for_its_service,
    a_sandbox_that_is_gone_is_created_anew_and_the_model_is_told,
    a_tool_reads_the_files_in_the_sandbox_of_its_agent_and_creates_none_anew,
    a_service_need_not_tell_the_sizes_of_files,
    output_of_a_command_in_a_sandbox_is_streamed,
    a_command_in_a_sandbox_that_was_running_at_a_kill_is_asked_about_and_is_dead,
    a_cancelled_run_ends_its_command_in_the_sandbox,
    a_file_that_a_command_has_changed_is_read_again_before_it_is_edited_or_deleted,
    a_file_that_changes_after_it_was_compared_is_not_deleted,
    a_service_that_cannot_be_used_is_a_clear_result,
    a_sandbox_is_for_definitions_in_files,
    a_configuration_with_sandboxes_is_checked,
}

async fn commands_and_file_tools_work_in_the_sandbox_of_the_thread(server: TestServer) {
    let Some(service) = set_up(&server).await else { return };
    let calls = vec![
        sh(
            "c1",
            "mkdir -p sub .git; echo by command > made.txt; echo x > .git/config; pwd >&2; exit 3",
        ),
        read("c2", "/made.txt"),
        write("c3", "/sub/b.txt", "größer\nby tool\n"),
        sh("c4", "cat sub/b.txt; printf 'a\\0b' > binary; kill -TERM $$"),
        call("c5", "ls", json!({"path": "/"})),
        call("c6", "glob", json!({"pattern": "**/*.txt"})),
        call("c7", "grep", json!({"pattern": "by ", "output_mode": "content"})),
        call(
            "c8",
            "edit_file",
            json!({"file_path": "/sub/b.txt", "old_string": "by tool", "new_string": "by edit"}),
        ),
        sh("c9", "cat sub/b.txt"),
        delete("c10", "/sub"),
        call("c11", "ls", json!({"path": "/sub"})),
        read("c12", "/none.txt"),
        read("c13", "/../etc/passwd"),
        sh("c14", "ln -s /etc outside; sleep 0.1"),
        read("c15", "/outside/passwd"),
        call("c16", "execute", json!({"command": "sleep 30", "timeout": 1})),
        sh("c17", "yes | head -c 300000"),
    ];
    let said = results(&server, "worker", calls).await;
    let place = service.only();
    assert_eq!(
        said[0],
        format!("execute: {}\n[Command failed with exit code 3]", place.display())
    );
    assert!(said[1].contains("by command"), "{}", said[1]);
    assert_eq!(said[2], "write_file: Updated file /sub/b.txt");
    assert!(
        said[3].contains("größer\nby tool\n[Command failed with exit code 143: ended by signal 15]"),
        "{}",
        said[3]
    );
    assert_eq!(said[4], "ls: ['/.git/', '/binary', '/made.txt', '/sub/']");
    assert_eq!(said[5], "glob: ['/made.txt', '/sub/b.txt']");
    assert_eq!(said[6], "grep: /made.txt:\n  1: by command\n/sub/b.txt:\n  2: by tool");
    assert_eq!(said[7], "edit_file: Replaced 1 occurrence in '/sub/b.txt'");
    assert!(said[8].contains("größer\nby edit"), "{}", said[8]);
    assert_eq!(said[9], "delete: Deleted /sub");
    assert_eq!(said[10], "ls failed: Error: Directory '/sub' not found");
    assert_eq!(said[11], "read_file failed: Error: File '/none.txt' not found");
    assert!(said[12].contains("is not allowed"), "{}", said[12]);
    assert!(said[14].contains("the path leads out of the sandbox"), "{}", said[14]);
    assert!(
        said[15].contains("[Command timed out after 1 s and was killed, exit code 124]"),
        "{}",
        said[15]
    );
    assert!(said[16].contains("is too long to be shown"), "{}", said[16]);
    let elsewhere = results(&server, "worker", vec![call("c1", "glob", json!({"pattern": "**"}))]).await;
    assert_eq!(elsewhere[0], "glob: No files found that match '**' in /");
    assert_eq!(service.sandboxes().len(), 2);
}

async fn a_long_line_in_a_sandbox_is_found_and_read_to_its_end(server: TestServer) {
    let Some(_service) = set_up(&server).await else { return };
    let calls = vec![
        sh(
            "c1",
            "head -c 90000 /dev/zero | tr '\\0' x > long.json; printf needle >> long.json",
        ),
        call("c2", "grep", json!({"pattern": "needle", "output_mode": "content"})),
        call(
            "c3",
            "read_file",
            json!({"file_path": "/long.json", "char_offset": 89_750}),
        ),
    ];
    let said = results(&server, "worker", calls).await;
    let part = format!("{}needle", "x".repeat(250));
    assert_eq!(
        said[1],
        format!("grep: /long.json:\n  1: [from char_offset 89750] {part}")
    );
    let header = "@@ lines 1-1 of 1 | characters 89751-90006 of 90006 in line 1 @@";
    assert_eq!(said[2], format!("read_file: {header}\n{part}"));
}

async fn a_sandbox_is_there_again_after_a_restart_of_the_server(server: TestServer) {
    let Some(service) = set_up(&server).await else { return };
    server.moves_into_a_process().await;
    let alice = server.human("worker").await;
    alice
        .says(script().calls(sh("c1", "echo kept > kept.txt")).says("ok"))
        .await;
    server.is_killed_and_started_again().await;
    alice.says(script().calls(sh("c2", "cat kept.txt")).says("ok")).await;
    let said = alice.transcript().await;
    assert!(said.iter().any(|line| line.starts_with("execute: kept\n")), "{said:#?}");
    service.only();
}

async fn each_agent_has_a_sandbox_of_its_own_where_that_is_set(server: TestServer) {
    let Some(service) = set_up(&server).await else { return };
    let alice = server.human("each").await;
    let below = script().calls(sh("c1", "ls; echo helper > helper.txt")).says("helped");
    let plan = script()
        .calls(sh("c1", "echo main > main.txt"))
        .calls(task("c2", "helper", &below))
        .calls(task(
            "c3",
            "helper",
            script().calls(sh("c1", "cat helper.txt")).says("read"),
        ))
        .calls(sh("c4", "ls"))
        .says("done");
    alice.says(plan).await;
    let said = alice.transcript().await;
    assert!(
        said.iter()
            .any(|line| line == "execute: main.txt\n[Command succeeded with exit code 0]"),
        "{said:#?}"
    );
    let mut files: Vec<Vec<String>> = vec![];
    for place in service.sandboxes() {
        let names = fs::read_dir(place).expect("a sandbox").flatten();
        files.push(
            names
                .map(|name| name.file_name().to_string_lossy().into_owned())
                .collect(),
        );
    }
    files.sort();
    assert_eq!(files, [["helper.txt"], ["main.txt"]]);
}

async fn a_route_of_a_composite_workspace_is_not_in_the_sandbox(server: TestServer) {
    let Some(service) = set_up(&server).await else { return };
    let calls = vec![
        write("c1", "/notes/a.md", "in the state"),
        write("c2", "/b.md", "in the sandbox"),
        sh("c3", "ls"),
        call("c4", "ls", json!({"path": "/"})),
    ];
    let said = results(&server, "mixed", calls).await;
    assert_eq!(said[2], "execute: b.md\n[Command succeeded with exit code 0]");
    assert_eq!(said[3], "ls: ['/b.md', '/notes/']");
    assert!(!service.only().join("notes").exists());
}

async fn a_deleted_thread_ends_its_sandboxes(server: TestServer) {
    let Some(service) = set_up(&server).await else { return };
    let alice = server.human("worker").await;
    alice.says(script().calls(sh("c1", "echo x > x")).says("ok")).await;
    let bob = server.human("worker").await;
    bob.says(script().calls(sh("c1", "echo y > y")).says("ok")).await;
    assert_eq!(service.sandboxes().len(), 2);
    let path = format!("/threads/{}", alice.thread);
    assert_eq!(server.client().delete(&path).await.status, 204);
    eventually(async || service.sandboxes().len() == 1).await;
    assert!(service.only().join("y").exists());
}

async fn the_end_of_a_sandbox_waits_for_its_service(server: TestServer) {
    let Some(mut service) = set_up(&server).await else {
        return;
    };
    let alice = server.human("worker").await;
    alice.says(script().calls(sh("c1", "echo x > x")).says("ok")).await;
    service.child.kill().expect("SIGKILL");
    service.child.wait().expect("it is dead");
    let path = format!("/threads/{}", alice.thread);
    assert_eq!(server.client().delete(&path).await.status, 204);
    service.only();
    // The server finds what is left to do when it starts, at another address, too.
    let Some(again) = Service::start(&service.root) else {
        return;
    };
    server.is_reconfigured(&service.base, &again.base).await;
    eventually(async || again.sandboxes().is_empty()).await;
}

async fn a_sandbox_that_is_gone_is_created_anew_and_the_model_is_told(server: TestServer) {
    let Some(service) = set_up(&server).await else { return };
    let alice = server.human("worker").await;
    alice.says(script().calls(sh("c1", "echo x > x")).says("ok")).await;
    let place = service.only();
    for (gone, again) in [
        (sh("c2", "touch never"), sh("c3", "ls; echo fine > f")),
        (read("c4", "/f"), read("c5", "/f")),
    ] {
        fs::remove_dir_all(&place).expect("it goes");
        alice.says(script().calls(gone).calls(again).says("ok")).await;
        assert_eq!(service.only(), place);
        assert!(!place.join("never").exists());
    }
    let said = alice.transcript().await;
    let told: Vec<&String> = said
        .iter()
        .filter(|line| line.contains("the sandbox was gone"))
        .collect();
    assert_eq!(told.len(), 2, "{said:#?}");
    assert!(
        told[0].starts_with("execute failed: ") && told[0].contains("the command was not run"),
        "{}",
        told[0]
    );
    assert!(
        said.contains(&"execute: [Command succeeded with exit code 0]".to_owned()),
        "{said:#?}"
    );
    assert!(
        said.contains(&"read_file failed: Error: File '/f' not found".to_owned()),
        "{said:#?}"
    );
}

async fn a_tool_reads_the_files_in_the_sandbox_of_its_agent_and_creates_none_anew(server: TestServer) {
    let Some(service) = Service::start(&server.path_of("sandboxes")) else {
        return;
    };
    server.is_configured_with(&inspected(&server, &service.base)).await;
    server.tools.hold("peek");
    let alice = server.human("inspected").await;
    let work = script()
        .calls(write("c1", "/reports/a.md", "in the sandbox"))
        .calls(write("c2", "/other.md", "not declared"))
        .calls(peek("p1"))
        .calls(read("c3", "/reports/a.md"));
    let run = alice.asks(work.says("done")).await;
    let reader = Reader::of_call(&server, 1).await;
    let listed = reader.get("/files").await.ok();
    assert_eq!(listed["total"], 1, "{listed:#}");
    assert_eq!(listed["files"][0]["path"], "/reports/a.md");
    assert_eq!(listed["files"][0]["size"], 14);
    assert_eq!(
        listed["files"][0]["encoding"],
        Value::Null,
        "only reading it would tell"
    );
    assert_eq!(reader.bytes("path=/reports/a.md").await.0, b"in the sandbox");
    assert_eq!(reader.get("/files/content?path=/reports/none.md").await.status, 404);
    fs::remove_dir_all(service.only()).expect("it goes");
    for path in ["/files", "/files/content?path=/reports/a.md"] {
        let refused = reader.get(path).await;
        assert_eq!(refused.body["code"], "workspace_failed");
        let text = refused.refused(424);
        assert!(text.contains("the sandbox is gone"), "{path}: {text}");
    }
    assert!(service.sandboxes().is_empty());
    server.tools.let_go("peek");
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said.iter().any(|line| line.contains("the sandbox was gone")),
        "the model is told, since the tool has not created it anew: {said:#?}"
    );
}

/// Starts a service that answers all questions about its sandboxes with these entries.
async fn service_with(entries: Value, shutdown: &Shutdown) -> String {
    let answer = move || {
        let entries = entries.clone();
        async move { Json(json!({"entries": entries})) }
    };
    let router = Router::new().fallback(answer);
    starts_service("sandbox service", router, shutdown).await
}

async fn a_service_need_not_tell_the_sizes_of_files(server: TestServer) {
    let entries = json!([
        {"path": "/reports/a", "type": "file"},
        {"path": "/reports/b", "type": "file", "size": null},
        {"path": "/reports/c", "type": "file", "size": "12 KB"},
        {"path": "/reports/d", "type": "file", "size": -1},
        {"path": "/reports/e", "type": "file", "size": 1.5},
        {"path": "/reports/f", "type": "file", "size": 12},
        {"path": "/reports/g", "type": "directory", "size": {"blocks": [8]}},
    ]);
    let shutdown = Shutdown::new(Duration::from_secs(1));
    let base = service_with(entries, &shutdown).await;
    server.is_configured_with(&inspected(&server, &base)).await;
    server.tools.hold("peek");
    let alice = server.human("inspected").await;
    let run = alice.asks(script().calls(peek("p1")).says("done")).await;
    let reader = Reader::of_call(&server, 1).await;
    let listed = reader.get("/files").await.ok();
    let files = listed["files"].as_array().expect("a list").iter();
    let sizes: Vec<Value> = files.map(|file| json!([file["path"], file["size"]])).collect();
    assert_eq!(
        sizes,
        [
            json!(["/reports/a", null]),
            json!(["/reports/b", null]),
            json!(["/reports/c", null]),
            json!(["/reports/d", null]),
            json!(["/reports/e", null]),
            json!(["/reports/f", 12]),
        ]
    );
    server.tools.let_go("peek");
    run.finishes().await;
    shutdown.force();
}

async fn output_of_a_command_in_a_sandbox_is_streamed(server: TestServer) {
    let Some(service) = set_up(&server).await else { return };
    let alice = server.human("worker").await;
    let command = "echo first; while [ ! -e go-on ]; do sleep 0.05; done; echo second";
    let viewer = Viewer::of(&server, &alice.thread);
    let mut events = viewer.opens(json!({"channels": ["tools", "lifecycle"]})).await;
    let run = alice.asks(script().calls(sh("c1", command)).says("done")).await;
    let delta = |data: &Value| data["params"]["data"]["event"] == json!("tool-output-delta");
    let seen = events.until(|frame| delta(&frame.data)).await;
    assert_eq!(
        seen.last().expect("a frame").data["params"]["data"]["delta"],
        json!("first\n")
    );
    fs::write(service.only().join("go-on"), "").expect("a file");
    run.finishes().await;
    assert_eq!(
        alice.transcript().await[2],
        "execute: first\nsecond\n[Command succeeded with exit code 0]"
    );
}

async fn a_command_in_a_sandbox_that_was_running_at_a_kill_is_asked_about_and_is_dead(server: TestServer) {
    let Some(service) = set_up(&server).await else { return };
    server.moves_into_a_process().await;
    let alice = server.human("worker").await;
    let marker = marker_of("4", &alice.thread);
    let run = alice
        .asks(script().calls(sh("c1", &endless("started", &marker))).says("done"))
        .await;
    eventually(async || is_at_its_last_step(&marker)).await;
    server.is_killed_and_started_again().await;
    run.finishes().await;
    eventually(async || !is_running(&marker)).await;
    let question = alice.question().await;
    let decision = json!([{"type": "respond", "message": "it was killed"}]);
    alice.decides(&question, decision).await.finishes().await;
    let lines = fs::read_to_string(service.only().join("started")).expect("a file");
    assert_eq!(lines, "x\n", "it ran once");
    assert_eq!(alice.transcript().await[2], "execute: it was killed");
}

async fn a_cancelled_run_ends_its_command_in_the_sandbox(server: TestServer) {
    let Some(service) = set_up(&server).await else { return };
    let alice = server.human("worker").await;
    let marker = marker_of("5", &alice.thread);
    let run = alice
        .asks(script().calls(sh("c1", &endless("started", &marker))).says("done"))
        .await;
    eventually(async || is_at_its_last_step(&marker)).await;
    run.is_cancelled("interrupt").await.ok();
    run.finishes().await;
    eventually(async || !is_running(&marker)).await;
    let lines = fs::read_to_string(service.only().join("started")).expect("a file");
    assert_eq!(lines, "x\n");
}

async fn a_file_that_a_command_has_changed_is_read_again_before_it_is_edited_or_deleted(server: TestServer) {
    let Some(_service) = set_up(&server).await else { return };
    let edit = |id: &str| {
        call(
            id,
            "edit_file",
            json!({"file_path": "/a.txt", "old_string": "one", "new_string": "two"}),
        )
    };
    let calls = vec![
        write("c1", "/a.txt", "one\n"),
        sh("c2", "echo one more >> a.txt"),
        edit("c3"),
        read("c4", "/a.txt"),
        call(
            "c5",
            "edit_file",
            json!({"file_path": "/a.txt", "old_string": "one\n", "new_string": "two\n"}),
        ),
        sh("c6", "cat a.txt; echo more >> a.txt"),
        delete("c7", "/a.txt"),
        read("c8", "/a.txt"),
        delete("c9", "/a.txt"),
        call("c10", "ls", json!({"path": "/"})),
    ];
    let said = results(&server, "worker", calls).await;
    assert!(said[2].contains("has been changed by someone else"), "{}", said[2]);
    assert_eq!(said[5], "execute: two\none more\n[Command succeeded with exit code 0]");
    assert!(said[6].contains("has been changed by someone else"), "{}", said[6]);
    assert_eq!(said[8], "delete: Deleted /a.txt");
    assert!(!said[9].contains("a.txt"), "{}", said[9]);
}

/// Answers as a service that has one file, which another program changes after each request that reads it.
async fn serve_a_changing_file(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    // The `ETag` of the content `mine`.
    let known = "\"3fd30542fe3f61b14bd4a4b2dc0b6fb30fa6f63ebce52dd1778aaa8c4dc02cff\"";
    let part = uri.path().split('/').nth(3);
    match (&method, part) {
        (&Method::GET, Some("entries")) => {
            Json(json!({"entries": [{"path": "/a.txt", "type": "file"}]})).into_response()
        }
        (&Method::GET, Some("files")) => "mine".into_response(),
        (&Method::DELETE, Some("files")) if headers.get(IF_MATCH).is_some_and(|tag| tag == known) => {
            (StatusCode::PRECONDITION_FAILED, Json(json!({"code": "changed"}))).into_response()
        }
        _ => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn a_file_that_changes_after_it_was_compared_is_not_deleted(server: TestServer) {
    let shutdown = Shutdown::new(Duration::from_secs(1));
    let router = Router::new().fallback(serve_a_changing_file);
    let base = starts_service("sandbox service", router, &shutdown).await;
    server.is_configured_with(&agents(&base, TOKEN)).await;
    let calls = vec![read("c1", "/a.txt"), delete("c2", "/a.txt")];
    let said = results(&server, "worker", calls).await;
    assert!(said[0].ends_with("mine"), "{}", said[0]);
    assert!(said[1].contains("has been changed by someone else"), "{}", said[1]);
    shutdown.force();
}

async fn a_service_that_cannot_be_used_is_a_clear_result(server: TestServer) {
    let Some(service) = Service::start(&server.path_of("sandboxes")) else {
        return;
    };
    server.is_configured_with(&agents(&service.base, "wrong")).await;
    let calls = || vec![sh("c1", "touch never"), read("c2", "/a.txt")];
    let said = results(&server, "worker", calls()).await;
    assert!(
        said[0].starts_with("execute failed: ") && said[0].contains("the command was not run"),
        "{}",
        said[0]
    );
    for told in &said {
        assert!(told.contains("the token is missing or wrong"), "{told}");
        assert!(!told.contains("Bearer"), "{told}");
    }
    drop(service);
    let said = results(&server, "worker", calls()).await;
    for told in &said {
        assert!(told.contains("the sandbox service cannot be reached"), "{told}");
    }
}

async fn a_sandbox_is_for_definitions_in_files(server: TestServer) {
    let Some(_service) = set_up(&server).await else { return };
    let workspace = json!({"kind": "sandbox", "sandbox": "lab"});
    let composite = json!({"kind": "composite", "routes": {"/x": workspace}});
    for workspace in [workspace, composite] {
        let definition = json!({"model": "scripted:lab", "workspace": workspace});
        let refused = server.client().put("/agents/spy", definition).await;
        assert!(refused.refused(422).contains("is for definitions in files"));
    }
}

async fn a_configuration_with_sandboxes_is_checked(server: TestServer) {
    let Some(service) = Service::start(&server.path_of("sandboxes")) else {
        return;
    };
    let check = |text: &str, more: &[&str]| -> String {
        let provider = "[providers.scripted]\nkind = \"scripted\"\n";
        server.file_is_written("look/adjutant.toml", &format!("{provider}{text}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
        command.arg("check").args(more).current_dir(server.path_of("look"));
        String::from_utf8(command.output().expect("it runs").stdout).expect("text")
    };
    let said = check(&agents(&service.base, TOKEN), &["--connect"]);
    for expected in [
        "sandbox service lab: behind HTTP",
        "  workspace: sandbox lab\n",
        "  workspace: sandbox lab, one for each agent\n",
        "runs commands: in the sandbox service lab, 120 s",
        "ok    sandbox lab: answers as a sandbox service; no sandbox was created",
        "0 errors",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(!said.contains(TOKEN), "{said}");
    assert!(service.sandboxes().is_empty());
    let said = check(&agents(&service.base, "wrong"), &["--connect"]);
    assert!(
        said.contains("fail  sandbox lab: the sandbox service has refused it: the token is missing"),
        "{said}"
    );
    let agent = |rest: &str| format!("[agents.looker]\nmodel = \"scripted:lab\"\n{rest}\n");
    let lab = format!("[sandboxes.lab]\nurl = \"{}\"\n", service.base);
    for (text, expected) in [
        (
            agent("workspace = { kind = \"sandbox\", sandbox = \"lab\" }"),
            "agents.looker.workspace.sandbox: there is no section `[sandboxes.lab]`",
        ),
        (
            format!(
                "{lab}{}",
                agent("workspace = { kind = \"sandbox\", sandbox = \"lab\" }\nexecute = { network = \"host\" }")
            ),
            "agents.looker.execute.network: is for commands on this machine",
        ),
        (
            format!("[sandboxes.lab]\nurl = \"ftp://x\"\n{}", agent("")),
            "sandboxes.lab.url: ",
        ),
    ] {
        let said = check(&text, &[]);
        assert!(said.contains(expected), "{text}: {said}");
    }
}
