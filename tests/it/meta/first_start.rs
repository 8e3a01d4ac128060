//! The program as a new user starts it: in an empty folder, with a configuration of a few lines.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use reqwest::redirect::Policy;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, raw_sql};

use crate::support::client::Client;
use crate::support::process::port_in;
use crate::support::server::skipped;
use crate::support::{Engine, TestServer, eventually, postgres};

/// An agent that plays scripts.
const AGENT: &str = "[providers.scripted]\nkind = \"scripted\"\n\n[agents.newcomer]\nmodel = \"scripted:demo\"\n";

pub(super) fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        std::fs::write(path, text).expect("it can be written");
    }
    folder
}

/// Returns a command that runs the program in this folder, with no keys in its environment.
pub(super) fn program(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    for variable in [
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_API_BASE",
        "ADJUTANT_LOG",
        "NO_COLOR",
    ] {
        command.env_remove(variable);
    }
    command
}

/// Runs the program to its end, and returns its output.
pub(super) fn ends(folder: &Path, arguments: &[&str]) -> (Output, String) {
    let output = program(folder, arguments).output().expect("it can be called");
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    (output, String::from_utf8(said).expect("text"))
}

/// A server that runs until the test is over.
pub(super) struct Served {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
    /// The log so far.
    said: String,
    pub(super) client: Client,
}

impl Served {
    /// Starts it, and reads up to the line that says where it listens.
    pub(super) fn begins(folder: &Path, arguments: &[&str]) -> Self {
        let arguments = [&["--listen", "127.0.0.1:0"], arguments].concat();
        Self::of(program(folder, &arguments))
    }

    /// Starts a command, and reads up to the line that says where it listens.
    pub(super) fn of(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let log = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut served = Self {
            child,
            log,
            said: String::new(),
            client: Client::new(""),
        };
        let line = served.reads_until(|line| port_in(line).is_some());
        served.client = Client::new(&format!("http://127.0.0.1:{}", port_in(&line).expect("a port")));
        served
    }

    /// Reads its log up to the line that is wanted.
    fn reads_until(&mut self, is_wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.log.read_line(&mut line).expect("text"),
                0,
                "it ended:\n{}",
                self.said
            );
            self.said.push_str(&line);
            if is_wanted(&line) {
                return line;
            }
        }
    }

    /// Sends the server a signal.
    pub(super) fn gets(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status();
        assert!(sent.expect("kill can be called").success());
    }

    /// Stops the server and returns its log.
    pub(super) fn stops(self) -> String {
        self.gets("-TERM");
        self.ends()
    }

    /// Waits until the server has stopped in good order, and returns its log.
    pub(super) fn ends(mut self) -> String {
        self.log.read_to_string(&mut self.said).expect("text");
        assert!(self.child.wait().expect("an end").success(), "{}", self.said);
        std::mem::take(&mut self.said)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn memory_and_skills_are_found_beside_the_configuration() {
    let lines = format!("{AGENT}memory = [\"AGENTS.md\"]\nskills = [\"skills\"]\n");
    let skill = "---\nname: lists\ndescription: How lists are written.\n---\nShort lines.\n";
    let files = [
        ("adjutant.toml", lines.as_str()),
        ("AGENTS.md", "Be brief."),
        ("skills/lists/SKILL.md", skill),
    ];
    let folder = folder(&files);
    for arguments in [vec!["check"], vec!["check", "--config", "adjutant.toml"]] {
        let (output, said) = ends(folder.path(), &arguments);
        assert!(output.status.success(), "{arguments:?}: {said}");
        assert!(said.contains("0 errors, 0 warnings"), "{arguments:?}: {said}");
    }
    for arguments in [vec![], vec!["--config", "adjutant.toml"]] {
        Served::begins(folder.path(), &arguments).stops();
    }
}

#[test]
fn missing_keys_are_reported_by_check_and_once_at_the_start() {
    let lines = "[agents.one]\nmodel = \"openai:gpt-5\"\n[agents.two]\nmodel = \"openai:gpt-5-mini\"\n\
        [mcp_servers.docs]\ncommand = \"no-such-program-anywhere\"\n";
    let graded = "middleware = [{ name = \"RubricMiddleware\", model = \"openai:gpt-5-nano\" }]\n";
    let lines = format!("{lines}{AGENT}{graded}");
    let folder = folder(&[("adjutant.toml", lines.as_str())]);
    let (output, said) = ends(folder.path(), &["check"]);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("0 errors, 2 warnings"), "{said}");
    let key = "warning: providers.openai: provider `openai` needs a key: set OPENAI_API_KEY or its `api_key`; without it \
        these fail: agent newcomer, agent one, agent two";
    assert!(said.contains(key), "{said}");
    let program = "warning: mcp_servers.docs.command: `no-such-program-anywhere`: is not in PATH";
    assert!(said.contains(program), "{said}");

    let served = Served::begins(folder.path(), &[]);
    let said = served.stops();
    assert_eq!(said.matches("without it these fail").count(), 1, "{said}");
    assert!(said.contains("missing_keys=\"OPENAI_API_KEY\""), "{said}");
    let program = "mcp_servers.docs.command: `no-such-program-anywhere`: is not in PATH";
    assert_eq!(said.matches(program).count(), 1, "{said}");
}

#[test]
fn missing_keys_of_policies_that_profiles_add_and_of_tenants_are_reported_too() {
    let lines = r#"
[profiles.scripted]
extra_middleware = [{ name = "RubricMiddleware", model = "openai:gpt-5-nano" }]
[providers.lab]
kind = "openai"
base_url = "http://127.0.0.1:1/v1"
api_key = "of-the-server"
[agents.one]
model = "lab:m"
general_purpose_subagent = { enabled = false, model = "openai:gpt-5" }
[agents.two]
model = "lab:m"
[agents.three]
model = "lab:large"
[auth]
[tenants.acme]
agents = ["newcomer", "one", "three"]
models = ["lab:m", "scripted:*"]
providers.lab.api_key_env = "NO_SUCH_KEY_OF_ACME"
"#;
    let folder = folder(&[("adjutant.toml", format!("{AGENT}{lines}").as_str())]);
    let (output, said) = ends(folder.path(), &["check"]);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("0 errors, 2 warnings"), "{said}");
    for warning in [
        "warning: providers.openai: provider `openai` needs a key: set OPENAI_API_KEY or its `api_key`; without it \
            these fail: agent newcomer",
        "warning: tenants.acme.providers.lab: provider `lab` needs a key: set NO_SUCH_KEY_OF_ACME or its `api_key`; \
            without it these fail: agent one for the tenant acme",
    ] {
        assert!(said.lines().any(|line| line.ends_with(warning)), "{warning}: {said}");
    }
    let said = Served::begins(folder.path(), &[]).stops();
    assert_eq!(said.matches("without it these fail").count(), 2, "{said}");
    assert!(
        said.contains("missing_keys=\"OPENAI_API_KEY, NO_SUCH_KEY_OF_ACME\""),
        "{said}"
    );
}

#[test]
fn an_unusable_database_is_reported_before_the_port_is_bound() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listen = taken.local_addr().expect("an address").to_string();
    // The port is closed again, so that connections are refused.
    let nobody = TcpListener::bind("127.0.0.1:0")
        .expect("a free port")
        .local_addr()
        .expect("an address");
    let url = format!("postgres://somebody:s3cret@{nobody}/db");
    let (output, said) = ends(folder.path(), &["--listen", &listen, "--database-url", &url]);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains(&nobody.to_string()), "{said}");
    assert!(said.contains("Connection refused"), "{said}");
    assert!(!said.contains("cannot listen"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
}

#[test]
fn the_folder_of_a_database_is_created_below_the_working_directory_only() {
    let elsewhere = folder(&[]);
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let missing = elsewhere.path().join("not/there");
    let url = format!("sqlite://{}/a.db", missing.display());
    let (output, said) = ends(folder.path(), &["--listen", "127.0.0.1:0", "--database-url", &url]);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains(&format!("there is no folder {}", missing.display())),
        "{said}"
    );
    assert!(!elsewhere.path().join("not").exists(), "it was made");
    for up in ["sqlite://../not-there/a.db", "sqlite://data/../../not-there/a.db"] {
        let (output, said) = ends(folder.path(), &["--listen", "127.0.0.1:0", "--database-url", up]);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("there is no folder"), "{said}");
    }

    std::fs::create_dir(folder.path().join("a-folder")).expect("it can be made");
    let (_, said) = ends(
        folder.path(),
        &["--listen", "127.0.0.1:0", "--database-url", "sqlite://a-folder"],
    );
    assert!(
        said.contains("the file a-folder cannot be opened for writing: Is a directory"),
        "{said}"
    );

    Served::begins(folder.path(), &["--database-url", "sqlite://data/of/mine/a.db"]).stops();
    let absolute = format!(
        "sqlite://{}/b.db",
        folder
            .path()
            .canonicalize()
            .expect("it is there")
            .join("more")
            .display()
    );
    Served::begins(folder.path(), &["--database-url", &absolute]).stops();
    assert!(folder.path().join("data/of/mine/a.db").exists());
    assert!(folder.path().join("more/b.db").exists());
}

#[test]
fn a_duplicate_key_is_named() {
    let folder = folder(&[(
        "adjutant.toml",
        "[server]\nlisten = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:2\"\n",
    )]);
    let (_, said) = ends(folder.path(), &["check"]);
    assert!(
        said.contains("adjutant.toml:3:1: error: the key `listen` is given twice"),
        "{said}"
    );
}

#[cfg(feature = "policies")]
#[test]
fn mistakes_in_policies_are_named_with_their_place_and_prevent_the_start() {
    let text =
        format!("[server]\nlisten = \"127.0.0.1:0\"\n{AGENT}\n[auth.policies]\nfiles = [\"policies/*.cedar\"]\n");
    let folder = folder(&[
        ("adjutant.toml", &text),
        (
            "policies/a.cedar",
            "permit(principal, action == Action::\"threads:read\", resource);\n",
        ),
        (
            "policies/b.cedar",
            "permit(principal, action, resource)\n  when { principal.salary > 3 };\n",
        ),
        ("policies/c.cedar", "permit(principal action, resource);\n"),
    ]);
    for arguments in [&["check"][..], &[]] {
        let (output, said) = ends(folder.path(), arguments);
        assert!(!output.status.success(), "{arguments:?}: {said}");
        for mistake in [
            "policies/b.cedar:2:10: error: ",
            "salary",
            "policies/c.cedar:1:18: error: ",
        ] {
            assert!(said.contains(mistake), "{arguments:?}: {mistake}: {said}");
        }
    }
}

#[test]
fn the_start_log_names_the_agents_the_console_and_the_api_document() {
    let empty = folder(&[]);
    let served = Served::begins(empty.path(), &[]);
    let base = served.client.base();
    let said = served.stops();
    let [ready] = said.lines().filter(|line| line.contains(" ready ")).collect::<Vec<_>>()[..] else {
        panic!("one line says that the server is ready: {said}")
    };
    for part in [
        format!("console=\"{base}/\""),
        format!("document=\"{base}/docs\""),
        "source=\"the built-in demonstration\"".to_owned(),
        "demonstration=true".to_owned(),
        "agents=\"agent\"".to_owned(),
        "auth=false".to_owned(),
    ] {
        assert!(ready.contains(&part), "{part}: {ready}");
    }
    assert!(!said.contains('\u{1b}'), "colours in a pipe: {said:?}");

    let own = folder(&[("adjutant.toml", &format!("{AGENT}[log]\nformat = \"json\"\n"))]);
    let said = Served::begins(own.path(), &[]).stops();
    let lines: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    let document = lines.iter().find_map(|line| line["fields"]["document"].as_str());
    assert!(document.is_some_and(|document| document.ends_with("/docs")), "{said}");
    let ready = lines.iter().find(|line| line["fields"]["message"] == "ready");
    let ready = &ready.expect("one line says that the server is ready")["fields"];
    assert_eq!(ready["demonstration"], false);
    assert_eq!(ready["agents"], "newcomer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_has_each_outcome_and_no_content_of_messages() {
    let folder = folder(&[]);
    let served = Served::begins(folder.path(), &["--log", "info,adjutant=debug"]);
    let client = served.client.clone();
    let thread = client.thread().await;
    let input = json!({"messages": [{"role": "user", "content": "A piece about otters, please."}]});
    let run_body = json!({"assistant_id": "agent", "input": input});
    client
        .post(&format!("/threads/{thread}/runs/wait"), run_body)
        .await
        .ok();
    let answer = json!({"decisions": [{"type": "approve"}]});
    let run_body = json!({"assistant_id": "agent", "command": {"resume": answer}});
    client
        .post(&format!("/threads/{thread}/runs/wait"), run_body)
        .await
        .ok();
    let runs = client.get(&format!("/threads/{thread}/runs")).await.ok();
    let ids: Vec<&str> = runs
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|run| run["run_id"].as_str())
        .collect();
    let said = served.stops();
    let lines = |what: &str| said.lines().filter(|line| line.contains(what)).collect::<Vec<_>>();
    let ended = lines("run ended");
    assert_eq!(ended.len(), 2, "{said}");
    assert_eq!(ids.len(), 2, "{said}");
    for (line, id) in ended.iter().zip(ids.iter().rev()) {
        let figures = [
            "agent=\"editor\"",
            "status=\"success\"",
            "duration_ms=",
            "tool_calls=",
            "output_tokens=",
        ];
        assert!(figures.iter().all(|figure| line.contains(figure)), "{line}");
        assert!(line.contains("INFO"), "{line}");
        assert!(line.contains(&format!("run={id}")), "{line}");
        assert!(line.contains(&thread), "{line}");
    }
    assert!(ended[0].contains("waits=true"), "{said}");
    assert!(ended[1].contains("waits=false"), "{said}");
    assert!(!ended[0].contains("model_calls=0"), "{said}");
    let [asked] = lines("interrupt asked")[..] else {
        panic!("one was asked: {said}")
    };
    let [answered] = lines("interrupt answered")[..] else {
        panic!("one was answered: {said}")
    };
    assert!(asked.contains("agent=\"writer\""), "{asked}");
    assert!(asked.contains("kind=\"tool_approval\""), "{asked}");
    let interrupt = asked
        .split("interrupt=")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .expect("an id");
    assert!(answered.contains(interrupt), "{answered}");
    assert!(answered.contains(ids[0]), "{answered}");
    let subagents = lines("subagent ended");
    for (agent, waits) in [
        ("researcher", "waits=false"),
        ("writer", "waits=true"),
        ("writer", "waits=false"),
    ] {
        let found = subagents
            .iter()
            .filter(|line| line.contains(&format!("agent=\"{agent}\"")) && line.contains(waits));
        let found: Vec<_> = found.collect();
        assert_eq!(found.len(), 1, "{agent}, {waits}: {subagents:?}");
        for part in [
            "INFO",
            "duration_ms=",
            "main_run=",
            "model_calls=",
            &format!("path=\"editor/{agent}\""),
        ] {
            assert!(found[0].contains(part), "{part}: {}", found[0]);
        }
        assert!(found[0].contains(&thread), "{}", found[0]);
    }
    // Steps are for whoever asks for them.
    for (message, agent, part) in [
        ("agent started", "editor", "attempt=1"),
        ("model call ended", "writer", "model=\"scripted:demo\""),
        ("tool call ended", "researcher", "tool=lookup"),
    ] {
        let found = lines(message)
            .into_iter()
            .any(|line| line.contains("DEBUG") && line.contains(&format!("agent=\"{agent}\"")) && line.contains(part));
        assert!(found, "{message}: {said}");
    }
    let timed = lines("call ended").iter().all(|line| line.contains("duration_ms="));
    assert!(timed, "{said}");
    assert!(!said.contains("otter"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_has_a_line_for_cancelled_and_rolled_back_runs() {
    let folder = folder(&[]);
    let served = Served::begins(folder.path(), &[]);
    let client = served.client.clone();
    let thread = client.thread().await;
    let run_body = json!({"assistant_id": "agent", "input": {"messages": []}, "after_seconds": 600});
    let run = client.post(&format!("/threads/{thread}/runs"), run_body).await.ok();
    let path = format!("/threads/{thread}/runs/{}", run["run_id"].as_str().expect("an id"));
    client.post(&format!("{path}/cancel?wait=true"), json!({})).await;
    eventually(async || client.get(&path).await.body["status"] == "interrupted").await;
    let said = served.stops();
    let line = said
        .lines()
        .find(|line| line.contains("run ended"))
        .unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("status=\"interrupted\""), "{line}");
    assert!(!line.contains("duration_ms"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_root_path_shows_browsers_the_console_and_others_the_addresses_of_the_parts() {
    let server = TestServer::start(Engine::Sqlite).await.expect("SQLite is always there");
    let base = server.client().base();
    let http = adjutant::net::client_builder()
        .redirect(Policy::none())
        .build()
        .expect("a client");
    let accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let page = http
        .get(&base)
        .header("accept", accept)
        .send()
        .await
        .expect("an answer");
    assert_eq!(page.status().as_u16(), 200);
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    let places = server.client().get("/").await.ok();
    assert_eq!(&places["docs"], &json!("/docs"));
    assert_eq!(&places["openapi"], &json!("/openapi.json"));
    for place in ["console", "docs", "openapi", "health", "info", "metrics"] {
        server.client().get(places[place].as_str().expect("a path")).await.ok();
    }
    assert_eq!(server.client().get("/favicon.ico").await.status, 204);
    let document = server.client().get("/openapi.json").await.ok();
    assert!(document["paths"]["/"]["get"].is_object());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_postgres_database_gets_its_tables() {
    let Some(database) = postgres::fresh_database().await else {
        skipped::<()>("Postgres");
        return;
    };
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let emptied = raw_sql("drop schema public cascade; create schema public")
        .execute(&mut conn)
        .await;
    emptied.expect("the tables are dropped");
    conn.close().await.expect("a clean close");
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let served = Served::begins(folder.path(), &["--database-url", &database.url]);
    served.client.post("/threads", json!({})).await.ok();
    served.stops();
    database.discard().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_superuser_of_postgres_is_warned_once_that_there_is_no_second_fence() {
    const WARNING: &str = "row-level security has no effect";
    let Some(database) = postgres::fresh_database().await else {
        skipped::<()>("Postgres");
        return;
    };
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let said_to = |url: &str| {
        let served = Served::begins(folder.path(), &["--database-url", url]);
        served.stops()
    };
    let said = said_to(&database.url);
    assert!(!said.contains(WARNING), "{said}");
    if database.admin != database.url {
        let said = said_to(&database.admin);
        assert_eq!(said.matches(WARNING).count(), 1, "{said}");
        assert!(said.contains("nosuperuser nobypassrls"), "{said}");
    }
    database.discard().await;
}
