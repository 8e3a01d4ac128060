//! Tools that read files in the workspace of the agent that calls them, with the token of the call.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use super::read_access::{Reader, peek, write};
use crate::support::actors::Run;
use crate::support::{TestServer, on_both_engines, on_postgres, script, task};

on_both_engines! {
    a_tool_reads_the_files_of_the_workspace_of_its_agent,
    files_in_the_store_are_listed_with_their_sizes_and_encodings,
    what_the_agent_may_not_read_its_tool_may_not_read_either,
    the_tool_of_a_subagent_reads_the_workspace_of_the_subagent,
    the_tool_of_a_registered_subagent_reads_the_workspace_of_its_own_definition,
    nothing_leads_a_tool_out_of_what_it_declares,
    a_huge_directory_is_listed_up_to_the_limit_in_pages,
    a_workspace_that_cannot_be_read_is_a_clear_error,
}

on_postgres! {
    another_server_reads_the_workspace_of_the_definition_that_the_run_has,
}

/// Configures the agent `reporter`, whose tool `peek` reads its files: on the disk, in the Store and in the state.
async fn set_up(server: &TestServer) {
    for (path, text) in [
        ("work/.gitignore", "build/\n"),
        ("work/other.md", "not declared"),
        ("work/reports/a.md", "on the disk"),
        ("work/reports/build/made.md", "ignored"),
    ] {
        server.file_is_written(path, text);
    }
    let base = &server.tools.base;
    let agents = format!(
        r#"
[tools.peek]
kind = "http"
description = "Looks into the run."
url = "{base}/lookup"
parameters = {{ type = "object" }}
after_crash = "repeat"
timeout_s = 120
read_access = {{ files = ["/reports/**", "/memories/**", "/scratch/*.md"] }}

[agents.reporter]
model = "scripted:lab"
tools = ["peek"]

[agents.reporter.workspace]
kind = "composite"
default = {{ kind = "disk", root = "work" }}
routes."/memories/" = {{ kind = "store", namespace = ["memories", "{{user_id}}"] }}
routes."/scratch" = {{ kind = "state" }}

[[agents.reporter.permissions]]
operations = ["read"]
paths = ["/reports/secret/**"]
mode = "deny"

[[agents.reporter.permissions]]
operations = ["read"]
paths = ["/reports/ask/**"]
mode = "interrupt"

[[agents.reporter.subagents]]
name = "helper"
description = "Works where its parent works."
system_prompt = "You help."
tools = ["peek"]

[[agents.reporter.subagents]]
name = "drafter"
description = "Works in the state of the thread."
system_prompt = "You draft."
tools = ["peek"]
permissions = []
workspace = {{ kind = "state" }}

[agents.publisher]
model = "scripted:lab"
tools = ["peek"]
max_subagent_depth = 2

[[agents.publisher.subagents]]
name = "writer"
description = "Another agent of this server."
graph_id = "reporter"
async = false
"#
    );
    server.is_configured_with(&agents).await;
}

/// Starts a run of this agent, whose call of `peek` is held back.
async fn begins(server: &TestServer, agent: &str, work: script::Script) -> Run {
    server.tools.hold("peek");
    let alice = server.human(agent).await;
    let body = alice.run_body(work.says("done"), json!({"context": {"user_id": "ann"}}));
    alice.starts(body).await
}

async fn ends(server: &TestServer, run: Run) {
    server.tools.let_go("peek");
    run.finishes().await;
}

/// Returns what the tool of the agent of this name reads with.
async fn reader_of(server: &TestServer, calls: usize, agent: &str) -> Reader {
    server.tools.called("peek", calls).await;
    let all = server.tools.calls_of("peek");
    let is_its = |call: &&Value| call["agent_path"].as_array().and_then(|path| path.last()) == Some(&json!(agent));
    Reader {
        client: server.client().with_key(""),
        access: all.iter().find(is_its).expect("its call")["read_access"].clone(),
    }
}

/// Returns the paths of a list.
fn paths(list: &Value) -> Vec<String> {
    let files = list["files"].as_array().expect("a list").iter();
    files
        .map(|file| file["path"].as_str().expect("a path").to_owned())
        .collect()
}

async fn a_tool_reads_the_files_of_the_workspace_of_its_agent(server: TestServer) {
    set_up(&server).await;
    let work = script()
        .calls(write("w1", "/memories/m.md", "in the store"))
        .calls(write("w2", "/scratch/s.md", "in the state"))
        .calls(write("w3", "/reports/new.md", "written"))
        .calls(write("w4", "/scratch/deep/s.md", "not declared"))
        .calls(peek("p1"));
    let run = begins(&server, "reporter", work).await;
    let reader = Reader::of_call(&server, 1).await;
    let listed = reader.get("/files").await.ok();
    assert_eq!(
        paths(&listed),
        ["/memories/m.md", "/reports/a.md", "/reports/new.md", "/scratch/s.md"],
        "searches leave out what `.gitignore` names"
    );
    assert_eq!(listed["total"], 4);
    assert_eq!(listed.get("truncated"), None);
    assert_eq!(listed["files"][0]["size"], 12);
    assert_eq!(listed["files"][0]["encoding"], "utf-8");
    assert!(listed["files"][0]["modified_at"].is_string(), "{listed:#}");
    assert_eq!(listed["files"][1]["size"], 11);
    assert_eq!(listed["files"][1]["encoding"], Value::Null);
    assert!(listed["files"][1]["modified_at"].is_string(), "{listed:#}");
    assert_eq!(listed["files"][3]["size"], 12);
    assert_eq!(listed["files"][3]["encoding"], "utf-8");
    let page = reader.get("/files?offset=1&limit=2").await.ok();
    assert_eq!(paths(&page), ["/reports/a.md", "/reports/new.md"]);
    assert_eq!(page["total"], 4);
    for (path, text) in [
        ("/memories/m.md", "in the store"),
        ("/reports/a.md", "on the disk"),
        ("/reports/build/made.md", "ignored"),
        ("/scratch/s.md", "in the state"),
    ] {
        let read = reader.bytes(&format!("path={path}")).await;
        assert_eq!(read, (text.as_bytes().to_vec(), text.len()), "{path}");
    }
    let part = reader.bytes("path=/reports/a.md&offset=3&limit=3").await;
    assert_eq!(part, (b"the".to_vec(), 11));
    server.file_is_written("work/reports/a.md", "changed meanwhile");
    assert_eq!(reader.bytes("path=/reports/a.md").await.0, b"changed meanwhile");
    assert_eq!(reader.get("/files/content?path=/reports/none.md").await.status, 404);
    assert_eq!(reader.get("/files/content?path=/memories/none.md").await.status, 404);
    let directory = reader.get("/files/content?path=/reports/build").await;
    assert!(directory.refused(424).contains("is a directory"));
    for path in ["/other.md", "/scratch/deep/s.md"] {
        let refused = reader.get(&format!("/files/content?path={path}")).await;
        assert_eq!(refused.status, 403, "{refused:?}");
        assert_eq!(refused.body["code"], "not_declared");
    }
    ends(&server, run).await;
}

async fn files_in_the_store_are_listed_with_their_sizes_and_encodings(server: TestServer) {
    set_up(&server).await;
    let client = server.client();
    for (key, value) in [
        ("/bytes.bin", json!({"content": "AAEC/w==", "encoding": "base64"})),
        ("/lines.md", json!({"content": ["zwei", "größer"]})),
        ("/note", json!({"likes": "otters"})),
        ("/text.md", json!({"content": "größer=="})),
    ] {
        let item = json!({"namespace": ["memories", "ann"], "key": key, "value": value});
        client.put("/store/items", item).await.ok();
    }
    let run = begins(&server, "reporter", script().calls(peek("p1"))).await;
    let reader = Reader::of_call(&server, 1).await;
    let listed = reader.get("/files").await.ok();
    let files = listed["files"].as_array().expect("a list").iter();
    let facts: Vec<Value> = files
        .map(|file| json!([file["path"], file["size"], file["encoding"]]))
        .collect();
    assert_eq!(
        facts,
        [
            json!(["/memories/bytes.bin", 4, "base64"]),
            json!(["/memories/lines.md", 13, "utf-8"]),
            json!(["/memories/note", null, null]),
            json!(["/memories/text.md", 10, "utf-8"]),
            json!(["/reports/a.md", 11, null]),
        ]
    );
    for (path, size) in [
        ("/memories/bytes.bin", 4),
        ("/memories/lines.md", 13),
        ("/memories/text.md", 10),
    ] {
        let read = reader.bytes(&format!("path={path}")).await;
        assert_eq!(read.0.len(), size, "{path}");
        assert_eq!(read.1, size, "{path}");
    }
    let no_file = reader.get("/files/content?path=/memories/note").await;
    assert!(no_file.refused(424).contains("is no file"));
    ends(&server, run).await;
}

async fn what_the_agent_may_not_read_its_tool_may_not_read_either(server: TestServer) {
    set_up(&server).await;
    server.file_is_written("work/reports/secret/key.md", "secret");
    server.file_is_written("work/reports/ask/b.md", "asked");
    let run = begins(&server, "reporter", script().calls(peek("p1"))).await;
    let reader = Reader::of_call(&server, 1).await;
    let listed = reader.get("/files").await.ok();
    assert_eq!(paths(&listed), ["/reports/a.md"]);
    for (path, fact) in [
        (
            "/reports/secret/key.md",
            "you may not read '/reports/secret/key.md' (rule for /reports/secret/**)",
        ),
        (
            "/reports/ask/b.md",
            "a human has to approve that you read '/reports/ask/b.md' (rule for /reports/ask/**)",
        ),
    ] {
        let refused = reader.get(&format!("/files/content?path={path}")).await;
        assert_eq!(refused.body["code"], "forbidden_to_agent");
        let text = refused.refused(403);
        assert!(text.contains(fact), "{text}");
    }
    ends(&server, run).await;
}

async fn the_tool_of_a_subagent_reads_the_workspace_of_the_subagent(server: TestServer) {
    set_up(&server).await;
    server.file_is_written("work/reports/secret/key.md", "secret");
    let help = script().calls(peek("p1")).says("helped");
    let draft = script()
        .calls(write("w1", "/reports/secret/d.md", "in the state"))
        .calls(peek("p1"))
        .says("drafted");
    let tasks = [task("t1", "helper", help), task("t2", "drafter", draft)];
    let run = begins(&server, "reporter", script().calls_all(tasks)).await;
    let helper = reader_of(&server, 2, "helper").await;
    assert_eq!(paths(&helper.get("/files").await.ok()), ["/reports/a.md"]);
    assert_eq!(helper.bytes("path=/reports/a.md").await.0, b"on the disk");
    let refused = helper.get("/files/content?path=/reports/secret/key.md").await;
    assert_eq!(refused.status, 403, "it has the permissions of its parent: {refused:?}");
    let drafter = reader_of(&server, 2, "drafter").await;
    assert_eq!(paths(&drafter.get("/files").await.ok()), ["/reports/secret/d.md"]);
    assert_eq!(drafter.bytes("path=/reports/secret/d.md").await.0, b"in the state");
    assert_eq!(drafter.get("/files/content?path=/reports/a.md").await.status, 404);
    ends(&server, run).await;
}

async fn the_tool_of_a_registered_subagent_reads_the_workspace_of_its_own_definition(server: TestServer) {
    set_up(&server).await;
    let help = script().calls(peek("p1")).says("helped");
    let below = script()
        .calls_all([peek("p1"), task("t2", "helper", help)])
        .says("written");
    let work = script()
        .calls(write("w1", "/reports/own.md", "of the publisher"))
        .calls_all([peek("p1"), task("t1", "writer", below)]);
    let run = begins(&server, "publisher", work).await;
    let publisher = reader_of(&server, 3, "publisher").await;
    assert_eq!(paths(&publisher.get("/files").await.ok()), ["/reports/own.md"]);
    for agent in ["writer", "helper"] {
        let reader = reader_of(&server, 3, agent).await;
        assert_eq!(paths(&reader.get("/files").await.ok()), ["/reports/a.md"], "{agent}");
        assert_eq!(reader.bytes("path=/reports/a.md").await.0, b"on the disk", "{agent}");
    }
    ends(&server, run).await;
}

async fn nothing_leads_a_tool_out_of_what_it_declares(server: TestServer) {
    set_up(&server).await;
    server.file_is_written("outside/passwd", "outside");
    server.file_is_written("work/reports/secret/key.md", "secret");
    let reports = server.path_of("work/reports");
    for (target, link) in [
        (server.path_of("outside").display().to_string(), "out"),
        (server.path_of("outside/passwd").display().to_string(), "passwd"),
        ("/etc/passwd".to_owned(), "etc"),
        ("../../outside/passwd".to_owned(), "up"),
        ("nowhere".to_owned(), "nowhere"),
        ("../other.md".to_owned(), "undeclared"),
        ("secret/key.md".to_owned(), "open"),
        ("a.md".to_owned(), "alias"),
        (".".to_owned(), "loop"),
    ] {
        symlink(target, reports.join(link)).expect("a link");
    }
    let made = Command::new("mkfifo")
        .arg(reports.join("pipe"))
        .status()
        .expect("mkfifo");
    assert!(made.success());
    let huge = fs::File::create(reports.join("huge.bin")).expect("a file");
    huge.set_len(8 * 1024 * 1024 * 1024).expect("a sparse file");
    let run = begins(&server, "reporter", script().calls(peek("p1"))).await;
    let reader = Reader::of_call(&server, 1).await;
    let listed = reader.get("/files").await.ok();
    assert_eq!(
        paths(&listed),
        ["/reports/a.md", "/reports/huge.bin"],
        "no links, no pipes"
    );
    assert_eq!(listed["files"][1]["size"], 8_589_934_592_u64);
    for (path, status) in [
        ("/reports/out/passwd", 424),
        ("/reports/passwd", 424),
        ("/reports/etc", 424),
        ("/reports/up", 424),
        ("/reports/nowhere", 424),
        ("/reports/pipe", 424),
        ("/reports/huge.bin", 424),
        ("/reports/undeclared", 403),
        ("/reports/open", 403),
        ("/reports/loop/secret/key.md", 403),
        ("/reports/../other.md", 422),
        ("/reports/../../outside/passwd", 422),
        ("~/reports/a.md", 422),
        ("C:\\reports\\a.md", 422),
        ("/outside/passwd", 403),
        ("/", 403),
    ] {
        let refused = reader.get(&format!("/files/content?path={path}")).await;
        assert_eq!(refused.status, status, "{path}: {refused:?}");
        let told = refused.body.to_string();
        assert!(
            !told.contains("root:") && !told.contains("\"outside\""),
            "{path}: {told}"
        );
    }
    for path in ["/reports/alias", "/reports/loop/a.md", "reports//./a.md"] {
        assert_eq!(reader.bytes(&format!("path={path}")).await.0, b"on the disk", "{path}");
    }
    ends(&server, run).await;
}

async fn a_huge_directory_is_listed_up_to_the_limit_in_pages(server: TestServer) {
    set_up(&server).await;
    for folder in 0..26 {
        let folder = server.path_of(&format!("work/reports/many/d{folder:02}"));
        fs::create_dir_all(&folder).expect("a folder");
        for file in 0..400 {
            fs::write(folder.join(format!("f{file:03}.md")), "").expect("a file");
        }
    }
    let run = begins(&server, "reporter", script().calls(peek("p1"))).await;
    let reader = Reader::of_call(&server, 1).await;
    let first = reader.get("/files?limit=1000").await.ok();
    assert_eq!(first["total"], 10_000);
    assert_eq!(first["truncated"], true);
    assert_eq!(paths(&first)[..2], ["/reports/a.md", "/reports/many/d00/f000.md"]);
    let last = reader.get("/files?limit=1000&offset=9500").await.ok();
    let mut seen = paths(&first);
    seen.extend(paths(&last));
    assert_eq!(seen.len(), 1500);
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(paths(&reader.get("/files?offset=10000").await.ok()), [""; 0]);
    // Fewer files are listed as a whole, in the order of their paths.
    fs::remove_dir_all(server.path_of("work/reports/many/d00")).expect("it goes");
    fs::remove_dir_all(server.path_of("work/reports/many/d01")).expect("it goes");
    let mut seen = vec![];
    for offset in [0, 1000, 9000] {
        let page = reader.get(&format!("/files?limit=1000&offset={offset}")).await.ok();
        assert_eq!(page["total"], 9601);
        assert_eq!(page.get("truncated"), None);
        seen.extend(paths(&page));
    }
    assert!(seen.len() == 2601 && seen.is_sorted(), "{}", seen.len());
    assert_eq!(seen[2600], "/reports/many/d25/f399.md");
    ends(&server, run).await;
}

async fn a_workspace_that_cannot_be_read_is_a_clear_error(server: TestServer) {
    set_up(&server).await;
    let work = script()
        .calls(write("w1", "/memories/m.md", "in the store"))
        .calls(peek("p1"));
    let run = begins(&server, "reporter", work).await;
    let reader = Reader::of_call(&server, 1).await;
    fs::rename(server.path_of("work"), server.path_of("away")).expect("it moves");
    for path in ["/files", "/files/content?path=/reports/a.md"] {
        let refused = reader.get(path).await;
        assert_eq!(refused.body["code"], "workspace_failed", "{path}");
        let text = refused.refused(424);
        assert!(text.contains("its directory cannot be opened"), "{path}: {text}");
    }
    assert_eq!(reader.bytes("path=/memories/m.md").await.0, b"in the store");
    fs::rename(server.path_of("away"), server.path_of("work")).expect("it moves back");
    assert_eq!(reader.bytes("path=/reports/a.md").await.0, b"on the disk");
    ends(&server, run).await;
}

async fn another_server_reads_the_workspace_of_the_definition_that_the_run_has(server: TestServer) {
    set_up(&server).await;
    server.file_is_written("elsewhere/reports/a.md", "elsewhere");
    let help = script().calls(peek("p1")).says("helped");
    let work = script()
        .calls(write("w1", "/memories/m.md", "in the store"))
        .calls(write("w2", "/scratch/s.md", "in the state"))
        .calls_all([peek("p1"), task("t1", "helper", help)]);
    let run = begins(&server, "reporter", work).await;
    let here = [
        reader_of(&server, 2, "reporter").await,
        reader_of(&server, 2, "helper").await,
    ];
    // The other server knows another definition, with which new runs would work.
    server.configuration_changes("root = \"work\"", "root = \"elsewhere\"");
    let twin = server.starts_twin().await;
    for reader in here {
        let there = Reader {
            client: twin.client.with_key(""),
            access: reader.access.clone(),
        };
        let listed = there.get("/files").await.ok();
        assert_eq!(paths(&listed), ["/memories/m.md", "/reports/a.md", "/scratch/s.md"]);
        assert_eq!(listed, reader.get("/files").await.ok());
        for (path, text) in [
            ("/memories/m.md", "in the store"),
            ("/reports/a.md", "on the disk"),
            ("/scratch/s.md", "in the state"),
        ] {
            assert_eq!(there.bytes(&format!("path={path}")).await.0, text.as_bytes(), "{path}");
        }
    }
    ends(&server, run).await;
    twin.stops().await;
}
