//! The commands of the program besides `serve` and `check --connect`, and settings from the environment.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::first_start::{Served, ends, folder, program};
use crate::support::process::port_in;
use crate::support::script::{call, script, task};
use crate::support::server::skipped;

/// An agent that plays scripts.
const AGENT: &str = "[providers.scripted]\nkind = \"scripted\"\n\n[agents.newcomer]\nmodel = \"scripted:demo\"\n";

/// Runs the program with environment variables, to its end.
fn ends_with(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> (bool, String) {
    let mut command = program(folder, arguments);
    command.envs(variables.iter().copied());
    let output = command.output().expect("it can be called");
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    (output.status.success(), String::from_utf8(said).expect("text"))
}

/// Writes a project whose model plays scripts, and returns its folder.
fn project(template: &str) -> tempfile::TempDir {
    let empty = folder(&[]);
    let arguments = ["init", "--template", template, "--model", "scripted:lab"];
    let (output, said) = ends(empty.path(), &arguments);
    assert!(output.status.success(), "{said}");
    empty
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_template_of_init_passes_the_check_and_runs() {
    for (template, agent, subagent, approval, instructions) in [
        ("minimal", "agent", "critic", Some("/final/a.md"), "careful assistant"),
        (
            "research",
            "research",
            "researcher",
            None,
            "How a research report is structured",
        ),
        (
            "support",
            "support",
            "general-purpose",
            Some("/replies/a.md"),
            "When a customer gets money back",
        ),
        (
            "coding",
            "coding",
            "reviewer",
            Some("/.env"),
            "Names say what a thing is",
        ),
    ] {
        let project = project(template);
        let (output, said) = ends(project.path(), &["check"]);
        assert!(output.status.success(), "{template}: {said}");
        assert!(said.contains("0 errors, 0 warnings"), "{template}: {said}");

        let served = Served::begins(project.path(), &[]);
        let client = served.client.clone();
        let run = async |content: String| {
            let input = json!({"messages": [{"role": "user", "content": content}]});
            let body = json!({"assistant_id": agent, "input": input});
            client.post("/runs/wait", body).await.ok()
        };
        let part = script().says("the part is done");
        let whole = script().calls(task("t1", subagent, part)).says("all is done");
        let values = run(whole.to_string()).await;
        let texts = values["messages"].to_string();
        assert!(texts.contains("the part is done"), "{template}: {texts}");
        assert!(texts.contains("all is done"), "{template}: {texts}");
        let values = run(json!({"script": [{"echo_system": true}]}).to_string()).await;
        assert!(
            values["messages"].to_string().contains(instructions),
            "{template}: {values}"
        );
        if let Some(path) = approval {
            let write = call("w1", "write_file", json!({"file_path": path, "content": "x"}));
            let values = run(script().calls(write).says("written").to_string()).await;
            let asked = &values["__interrupt__"][0]["value"]["action_requests"][0];
            assert_eq!(asked["name"], "write_file", "{template}: {values}");
        }
        served.stops();
    }
}

#[test]
fn init_names_the_key_and_the_next_commands() {
    let empty = folder(&[]);
    let arguments = [
        "init",
        "mine",
        "--template",
        "support",
        "--model",
        "anthropic:claude-sonnet-4-6",
    ];
    let (output, said) = ends(empty.path(), &arguments);
    assert!(output.status.success(), "{said}");
    for part in [
        "cd mine",
        "set ANTHROPIC_API_KEY",
        "adjutant check --connect",
        "tools/desk.py",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let example = fs::read_to_string(empty.path().join("mine/.env.example")).expect("a file");
    assert!(example.contains("\nANTHROPIC_API_KEY=\n"), "{example}");
    let ignored = fs::read_to_string(empty.path().join("mine/.gitignore")).expect("a file");
    assert!(ignored.lines().any(|line| line == ".env"), "{ignored}");

    // The key in `.env` is enough.
    let mine = empty.path().join("mine");
    let (_, said) = ends_with(&mine, &["check"], &[("ANTHROPIC_API_KEY", "")]);
    assert!(said.contains("set ANTHROPIC_API_KEY"), "{said}");
    fs::write(mine.join(".env"), example.replace("_KEY=\n", "_KEY=k\n")).expect("a file");
    let mut command = program(&mine, &["check"]);
    let output = command
        .env_remove("ANTHROPIC_API_KEY")
        .output()
        .expect("it can be called");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(said.contains("0 errors, 0 warnings"), "{said}");

    let (output, said) = ends(empty.path(), &arguments);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("Nothing was written"), "{said}");
}

#[test]
fn the_environment_precedes_the_file_of_variables_and_this_the_configuration() {
    let text = format!("[server]\nlisten = \"127.0.0.1:1\"\nkeep_alive_s = 1.5\n{AGENT}");
    let variables = "# a comment\nADJUTANT_SERVER__LISTEN=127.0.0.1:2\nexport ADJUTANT_LOG='warn'\n";
    let folder = folder(&[("conf/adjutant.toml", &text), ("conf/.env", variables)]);
    let listens = |variables: &[(&str, &str)]| {
        let (is_usable, said) = ends_with(folder.path(), &["check", "--config", "conf/adjutant.toml"], variables);
        assert!(is_usable, "{said}");
        said
    };
    let said = listens(&[]);
    assert!(said.contains("listens on 127.0.0.1:2,"), "{said}");
    assert!(
        said.contains("server.listen is set by ADJUTANT_SERVER__LISTEN"),
        "{said}"
    );
    assert!(said.contains("log.filter is set by --log or ADJUTANT_LOG"), "{said}");
    let said = listens(&[("ADJUTANT_SERVER__LISTEN", "127.0.0.1:3")]);
    assert!(said.contains("listens on 127.0.0.1:3,"), "{said}");
    let said = listens(&[
        ("ADJUTANT_SERVER__LISTEN", "127.0.0.1:3"),
        ("ADJUTANT_LISTEN", "127.0.0.1:4"),
    ]);
    assert!(said.contains("listens on 127.0.0.1:4,"), "{said}");
}

#[test]
fn a_line_of_the_file_of_variables_that_cannot_be_read_is_named_without_its_content() {
    let folder = folder(&[
        ("adjutant.toml", AGENT),
        (".env", "GOOD=1\nPASSWORD=a s3cret with spaces\n"),
    ]);
    let (output, said) = ends(folder.path(), &["check"]);
    assert!(output.status.success(), "{said}");
    assert!(said.contains(".env:2:1: warning: is not `NAME=value`"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    fs::write(folder.path().join(".env"), "GOOD=1\nPASSWORD=a s3cret # of the lab\n").expect("a file");
    let (_, said) = ends(folder.path(), &["check"]);
    assert!(said.contains(".env:2:1: warning: is not `NAME=value`"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
}

#[test]
fn a_server_takes_settings_from_the_environment() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let mut command = program(folder.path(), &[]);
    command
        .env("ADJUTANT_SERVER__LISTEN", "127.0.0.1:0")
        .env("ADJUTANT_STORAGE__URL", "sqlite://elsewhere.db")
        .env("ADJUTANT_LOG_FORMAT", "json")
        .env("ADJUTANT_OWN__SECRET", "is not a setting");
    let said = Served::of(command).stops();
    assert!(folder.path().join("elsewhere.db").exists());
    for line in said.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["fields"]["message"].is_string(), "{line}");
    }

    let misspelt = [("ADJUTANT_SERVER__LISTN", "127.0.0.1:9")];
    let (is_usable, said) = ends_with(folder.path(), &["check"], &misspelt);
    assert!(!is_usable, "{said}");
    let expected = "ADJUTANT_SERVER__LISTN: error: server.listn: unknown key; did you mean `listen`?";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn the_option_for_the_format_precedes_the_file() {
    let folder = folder(&[("adjutant.toml", &format!("{AGENT}[log]\nformat = \"json\"\n"))]);
    let said = Served::begins(folder.path(), &["--log-format", "text"]).stops();
    assert!(!said.trim().is_empty(), "the log has lines");
    assert!(said.lines().all(|line| !line.starts_with('{')), "{said}");
}

#[test]
fn an_option_before_a_command_is_told_its_place() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let (output, said) = ends(folder.path(), &["--config", "adjutant.toml", "check"]);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let expected = "options follow the command, as in `adjutant check --config <PATH>`";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn variables_of_options_that_are_empty_count_as_not_set() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let names = [
        "CONFIG",
        "LISTEN",
        "DATABASE_URL",
        "AGENTS_DIR",
        "LOG",
        "LOG_FORMAT",
        "INSECURE_NO_AUTH",
    ];
    let names = names.map(|name| format!("ADJUTANT_{name}"));
    let variables: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let (is_usable, said) = ends_with(folder.path(), &["check"], &variables);
    assert!(is_usable, "{said}");
    assert!(
        said.contains("listens on 127.0.0.1:8123, keeps its data in sqlite://adjutant.db"),
        "{said}"
    );
    let role = [("ADJUTANT_ROLE", ""), ("ADJUTANT_LISTEN", "nowhere")];
    let (_, said) = ends_with(folder.path(), &["serve"], &role);
    assert!(said.contains("`nowhere` must be `host:port`"), "{said}");
}

#[test]
fn a_server_is_not_opened_by_a_word_that_means_neither_yes_nor_no() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    for (word, is_open) in [("1", true), ("yes", true), ("0", false), ("false", false)] {
        let variables = [("ADJUTANT_LISTEN", "0.0.0.0:0"), ("ADJUTANT_INSECURE_NO_AUTH", word)];
        let (is_usable, said) = ends_with(folder.path(), &["check"], &variables);
        assert_eq!(is_usable, is_open, "{word}: {said}");
    }
    let (is_usable, said) = ends_with(folder.path(), &["check"], &[("ADJUTANT_INSECURE_NO_AUTH", "never")]);
    assert!(!is_usable && said.contains("invalid value 'never'"), "{said}");
}

#[test]
fn a_server_that_cannot_listen_says_what_to_do_also_in_a_log_of_json() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listen = taken.local_addr().expect("an address").to_string();
    let reason = format!("cannot listen on {listen}: Address already in use");
    let advice = "another program listens there";
    let (output, said) = ends(folder.path(), &["--listen", &listen]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.lines()
            .any(|line| line.starts_with(&reason) && line.contains(advice)),
        "{said}"
    );
    let (output, said) = ends(folder.path(), &["--listen", &listen, "--log-format", "json"]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let line: Value = serde_json::from_str(said.lines().last().expect("a line")).expect("JSON");
    assert_eq!(line["level"], "ERROR");
    assert_eq!(line["fields"]["message"], "the server has failed");
    let error = line["fields"]["error"].as_str().expect("a text");
    assert!(error.starts_with(&reason) && error.contains(advice), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_is_not_allowed_is_in_the_log_of_a_developer() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let served = Served::begins(folder.path(), &["--log", "info,adjutant=debug"]);
    for origin in ["https://chat.example.org", "http://localhost:3000"] {
        let asked = served
            .client
            .request(reqwest::Method::OPTIONS, "/threads")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .send();
        assert_eq!(asked.await.expect("a response").status(), 200);
    }
    let said = served.stops();
    let lines = said
        .lines()
        .filter(|line| line.contains("its origin is not in `cors_origins`"));
    let lines: Vec<&str> = lines.collect();
    assert!(lines.len() == 1 && lines[0].contains("chat.example.org"), "{said}");
}

#[test]
fn a_start_that_fails_behind_the_database_has_one_reason() {
    let text = format!("{AGENT}[webhooks]\nsecret_env = \"NO_SUCH_VARIABLE\"\n");
    let folder = folder(&[("adjutant.toml", &text)]);
    let (output, said) = ends(folder.path(), &["check"]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected = "error: webhooks: the environment variable NO_SUCH_VARIABLE is not set";
    assert!(said.contains(expected), "{said}");
    let (output, said) = ends(folder.path(), &["--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the environment variable NO_SUCH_VARIABLE is not set"),
        "{said}"
    );
    assert!(!said.contains("ERROR"), "{said}");
}

/// Starts a server by `env` of coreutils, which sets what the process does with a signal.
#[cfg(target_os = "linux")]
fn served_with(folder: &Path, option: &str) -> Served {
    let mut command = Command::new("env");
    command
        .args([option, env!("CARGO_BIN_EXE_adjutant"), "--listen", "127.0.0.1:0"])
        .current_dir(folder)
        .env_remove("ADJUTANT_LOG")
        .stdin(Stdio::null());
    Served::of(command)
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stops_in_good_order_when_its_terminal_is_closed_but_not_under_nohup() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let served = served_with(folder.path(), "--default-signal=HUP");
    // A launcher hands on what it gets, and the terminal sends the signal to both.
    served.gets("-HUP");
    served.gets("-HUP");
    let said = served.ends();
    assert!(said.contains("signal=\"SIGHUP\""), "{said}");
    assert!(
        said.lines().last().is_some_and(|line| line.ends_with("stopped")),
        "{said}"
    );

    let served = served_with(folder.path(), "--ignore-signal=HUP");
    served.gets("-HUP");
    served.client.get("/ok").await.ok();
    let said = served.stops();
    assert!(
        said.contains("signal=\"SIGTERM\"") && !said.contains("SIGHUP"),
        "{said}"
    );
}

#[test]
fn a_log_in_a_file_has_no_colours() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let path = folder.path().join("log");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listen = taken.local_addr().expect("an address").to_string();
    // The port is in use, so the server logs its start and ends.
    let mut command = program(folder.path(), &["--listen", &listen]);
    command
        .env("CLICOLOR_FORCE", "1")
        .env("TERM", "xterm-256color")
        .stderr(File::create(&path).expect("a file"));
    let status = command.status().expect("it can be called");
    assert!(!status.success());
    let log = fs::read_to_string(&path).expect("text");
    assert!(log.contains("configuration loaded"), "{log}");
    assert!(!log.contains('\u{1b}'), "{log:?}");
}

#[test]
fn a_person_at_a_terminal_reads_where_everything_is() {
    // `script` of util-linux runs a program at a terminal of its own.
    let folder = folder(&[]);
    let mut there = Command::new("script");
    there.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    if !there.status().is_ok_and(|status| status.success()) {
        skipped::<()>("the program `script`");
        return;
    }
    // The server ends with its terminal, also where the tests are started with `nohup`.
    let program = env!("CARGO_BIN_EXE_adjutant");
    let served = format!("env --default-signal=HUP {program} --listen 127.0.0.1:0");
    let mut child = Command::new("script")
        .args(["-qefc", &served, "/dev/null"])
        .current_dir(folder.path())
        .env_remove("ADJUTANT_LOG")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut said = String::new();
    let port = loop {
        let line = lines
            .next()
            .unwrap_or_else(|| panic!("it ended:\n{said}"))
            .expect("text");
        if let Some(port) = port_in(&line) {
            break port.to_owned();
        }
        said.push_str(&line);
        said.push('\n');
    };
    child.kill().expect("it can be stopped");
    child.wait().expect("an end");
    for part in [
        "This is the demonstration: its model is a script",
        &format!("Console        http://127.0.0.1:{port}/\n"),
        &format!("API document   http://127.0.0.1:{port}/docs\n"),
        "Agents         agent   (scripted:demo)",
        "adjutant init my-agents",
    ] {
        assert!(said.contains(part), "{part:?}:\n{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_tells_a_server_that_works_from_one_that_does_not() {
    let folder = folder(&[("adjutant.toml", AGENT)]);
    let served = Served::begins(folder.path(), &[]);
    let base = served.client.base();
    let listen = base.trim_start_matches("http://").to_owned();
    let (output, said) = ends(folder.path(), &["health", "--url", &base]);
    assert!(output.status.success(), "{said}");
    assert_eq!(said, format!("healthy: {base} answers\n"));
    let (output, said) = ends(folder.path(), &["health", "--url", &base, "--db"]);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said,
        format!("healthy: {base} answers, and can write to its database\n")
    );
    // The configured address, of all interfaces, is asked at the loopback address. The rest of the file is not read.
    let port = listen.rsplit_once(':').expect("a port").1;
    fs::write(folder.path().join("adjutant.toml"), "[agents.a]\nmodel = 1\n").expect("a file");
    let everywhere = format!("0.0.0.0:{port}");
    let (is_healthy, said) = ends_with(folder.path(), &["health"], &[("ADJUTANT_SERVER__LISTEN", &everywhere)]);
    assert!(is_healthy, "{said}");
    assert!(said.contains(&format!("http://127.0.0.1:{port} answers")), "{said}");
    served.stops();
    let (output, said) = ends(folder.path(), &["health", "--url", &base]);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.starts_with(&format!("unhealthy: {base} cannot be reached: Connection refused")),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn health_does_not_wait_for_a_server_that_does_not_answer() {
    let folder = folder(&[]);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let base = format!("http://{}", silent.local_addr().expect("an address"));
    let (output, said) = ends(folder.path(), &["health", "--url", &base, "--timeout", "1"]);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("it took too long"), "{said}");
    let (output, said) = ends(folder.path(), &["health", "--url", "localhost"]);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("--url"), "{said}");
}

#[test]
fn completions_know_the_commands_and_options() {
    let folder = folder(&[]);
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (output, said) = ends(folder.path(), &["completions", shell]);
        assert!(output.status.success(), "{shell}: {said}");
        for word in ["init", "check", "health", "completions", "log-format", "template"] {
            assert!(said.contains(word), "{shell}, {word}: {said}");
        }
    }
    let (output, said) = ends(folder.path(), &["completions", "tcsh"]);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("bash"), "{said}");
}

#[test]
fn the_help_of_every_command_says_what_it_does() {
    let folder = folder(&[]);
    let (output, said) = ends(folder.path(), &["--help"]);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("adjutant init my-agents"), "{said}");
    for command in [
        "serve",
        "init",
        "check",
        "health",
        "completions",
        "keys",
        "mcp",
        "migrate",
        "vacuum",
        "rekey",
    ] {
        let line = said.lines().find(|line| line.trim_start().starts_with(command));
        let about = line.map(|line| line.trim().trim_start_matches(command).trim());
        assert!(about.is_some_and(|about| about.len() > 20), "{command}: {said}");
        let (output, said) = ends(folder.path(), &[command, "--help"]);
        assert!(output.status.success(), "{command}: {said}");
    }
}

#[test]
fn check_as_json_has_the_configuration_and_every_diagnostic() {
    let text = format!("{AGENT}tools = [\"nothing\"]\n[agents.other]\nmodel = \"openai:gpt-5\"\n");
    let folder = folder(&[("adjutant.toml", &text)]);
    let (output, said) = ends(folder.path(), &["check", "--json"]);
    assert!(!output.status.success(), "{said}");
    let report: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(report["ok"], false);
    assert_eq!(report["configuration"], Value::Null);
    assert_eq!(report["checks"], Value::Null);
    let diagnostic = &report["diagnostics"][0];
    assert_eq!(diagnostic["severity"], "error", "{said}");
    assert_eq!(diagnostic["file"], "adjutant.toml");
    assert_eq!(diagnostic["line"], 6);
    assert_eq!(diagnostic["field"], "agents.newcomer.tools[0]");
    assert_eq!(diagnostic["agent"], "newcomer");

    fs::write(folder.path().join("adjutant.toml"), text.replace("\"nothing\"", "")).expect("a file");
    let (is_usable, said) = ends_with(
        folder.path(),
        &["check", "--json"],
        &[("ADJUTANT_LISTEN", "127.0.0.1:9")],
    );
    assert!(is_usable, "{said}");
    let report: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(report["ok"], true);
    let configuration = &report["configuration"];
    assert_eq!(configuration["source"], "adjutant.toml");
    assert_eq!(configuration["listen"], "127.0.0.1:9");
    assert_eq!(configuration["overrides"][0]["field"], "server.listen");
    assert_eq!(configuration["agents"][0]["graph_id"], "newcomer");
    assert_eq!(report["diagnostics"][0]["severity"], "warning");
}

#[test]
fn check_names_the_secrets_without_which_the_server_does_not_start() {
    let text = format!(
        r#"{AGENT}
[auth]
[[auth.keys]]
name = "ops"
key_env = "NO_SUCH_KEY_OF_OPS"
roles = ["admin"]
[[auth.keys]]
name = "page"
key_file = "page.key"
[[auth.jwt]]
issuer = "https://login.example.org"
audience = ["agents"]
algorithms = ["HS256"]
secret_file = "no-such-secret"
[webhooks]
secret_file = "hook.key"
[encryption]
key_file = "no-such-keys"
"#
    );
    let folder = folder(&[("adjutant.toml", &text), ("page.key", "short"), ("hook.key", "whsec_?")]);
    let (is_usable, said) = ends_with(folder.path(), &["check"], &[]);
    assert!(!is_usable, "{said}");
    assert!(said.contains("5 errors, 0 warnings"), "{said}");
    for error in [
        "error: auth.keys[0]: cannot read the key \"ops\" of [[auth.keys]]: the environment variable NO_SUCH_KEY_OF_OPS is",
        "error: auth.keys[1]: the key \"page\" of [[auth.keys]] is too short",
        "error: auth.jwt[0]: cannot read the secret of the issuer https://login.example.org",
        "error: webhooks: the secret is empty or not Base64",
        "error: encryption: could not get the keys of [encryption] from ",
    ] {
        assert!(said.contains(error), "{error}: {said}");
    }
    let (is_usable, said) = ends_with(folder.path(), &["check", "--json"], &[]);
    assert!(!is_usable, "{said}");
    let report: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(report["ok"], false);
    assert_eq!(report["checks"], Value::Null);
    assert_eq!(report["configuration"]["source"], "adjutant.toml");
    assert_eq!(report["diagnostics"][0]["field"], "auth.keys[0]");
    assert_eq!(report["diagnostics"][0]["severity"], "error");

    let long = "0123456789abcdef0123456789abcdef";
    for file in ["page.key", "no-such-secret", "hook.key"] {
        fs::write(folder.path().join(file), long).expect("a file");
    }
    let master = "first:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n";
    fs::write(folder.path().join("no-such-keys"), master).expect("a file");
    let (is_usable, said) = ends_with(folder.path(), &["check"], &[("NO_SUCH_KEY_OF_OPS", long)]);
    assert!(is_usable, "{said}");
    assert!(said.contains("0 errors, 0 warnings"), "{said}");
    assert!(!said.contains(long), "{said}");
}

#[test]
fn commands_that_do_not_listen_work_with_any_address() {
    let folder = folder(&[]);
    let everywhere = [("ADJUTANT_LISTEN", "0.0.0.0:0")];
    for arguments in [
        ["migrate"].as_slice(),
        &["vacuum"],
        &["keys", "list"],
        &["mcp", "list"],
        &["export-user", "ada"],
    ] {
        let (is_done, said) = ends_with(folder.path(), arguments, &everywhere);
        assert!(is_done, "{arguments:?}: {said}");
    }
    for command in ["serve", "check", "doctor"] {
        let (is_done, said) = ends_with(folder.path(), &[command], &everywhere);
        assert!(!is_done && said.contains("--insecure-no-auth"), "{command}: {said}");
    }
}

#[test]
fn the_policies_of_an_agent_are_explained_in_their_order() {
    let configuration = format!(
        "{AGENT}todos = true\nask_user = true\ninterrupt_mode = \"per_call\"\n\
         summarization = {{ trigger = {{ messages = 90 }} }}\nconfigurable = {{ prompt_slots = {{ tone = \"calm\" }} }}\n\
         permissions = [{{ tools = [\"task\"], mode = \"ask\" }}]\n\
         middleware = [{{ name = \"PIIMiddleware\", type = \"email\" }}, {{ name = \"ToolCallLimitMiddleware\", run_limit = 3 }}]\n\
         [[agents.newcomer.subagents]]\nname = \"helper\"\ndescription = \"Helps with one piece of work.\"\n\
         middleware = [{{ name = \"ModelCallLimitMiddleware\", run_limit = 9 }}]\n\
         [[agents.newcomer.subagents]]\nname = \"twin\"\ndescription = \"Goes on as its caller would.\"\nmode = \"fork\"\n\
         [[agents.newcomer.subagents]]\nname = \"far\"\ndescription = \"Works on another server.\"\n\
         graph_id = \"writer\"\nurl = \"http://127.0.0.1:9\"\nasync = false\n"
    );
    let folder = folder(&[("adjutant.toml", &configuration)]);
    let (succeeds, said) = ends_with(folder.path(), &["check", "--explain", "newcomer", "--json"], &[]);
    assert!(succeeds, "{said}");
    let report: Value = serde_json::from_str(&said).expect("JSON");
    let explained = &report["explanation"];
    let names = |agent: &Value| -> Vec<String> {
        let stack = agent["stack"].as_array().expect("a stack");
        stack
            .iter()
            .filter_map(|policy| policy["name"].as_str().map(str::to_owned))
            .collect()
    };
    let stack = names(explained);
    let place = |name: &str| {
        stack
            .iter()
            .position(|other| other == name)
            .unwrap_or_else(|| panic!("{name}: {stack:?}"))
    };
    let order = [
        "FilesystemMiddleware",
        "TodoListMiddleware",
        "PIIMiddleware[email]",
        "ToolCallLimitMiddleware",
        "HumanInTheLoopMiddleware",
        "PermissionsMiddleware",
        "LimitsMiddleware",
    ];
    assert!(order.map(place).is_sorted(), "{stack:?}");
    let policy = |name: &str| explained["stack"][place(name)].clone();
    assert_eq!(policy("TodoListMiddleware")["tools"], json!(["write_todos"]));
    assert!(policy("TodoListMiddleware")["prompt"].is_string());
    assert_eq!(policy("PIIMiddleware[email]")["settings"], json!({"type": "email"}));
    assert_eq!(policy("AskUserMiddleware")["settings"], json!({"ask_user": true}));
    assert_eq!(
        policy("HumanInTheLoopMiddleware")["settings"]["interrupt_mode"],
        "per_call"
    );
    let trigger = &policy("SummarizationMiddleware")["settings"]["summarization"]["trigger"];
    assert_eq!(trigger, &json!({"messages": 90}));
    assert_eq!(explained["configurable"]["prompt_slots"], json!({"tone": "calm"}));
    assert_eq!(
        policy("PermissionsMiddleware")["settings"]["permissions"][0]["tools"],
        json!(["task"])
    );
    let subagents = explained["subagents"].as_array().expect("a list");
    let subagent = |name: &str| {
        let found = subagents.iter().find(|agent| agent["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {subagents:#?}"))
    };
    assert!(names(subagent("helper")).contains(&"ModelCallLimitMiddleware".to_owned()));
    let of_fork = names(subagent("twin"));
    for name in ["TodoListMiddleware", "PIIMiddleware[email]", "ToolCallLimitMiddleware"] {
        assert!(of_fork.iter().any(|other| other == name), "{name}: {of_fork:?}");
    }
    let far = subagent("far");
    assert_eq!(far["program"], "agent writer at http://127.0.0.1:9");
    assert_eq!(far["model"], Value::Null, "{far:#}");
    let (succeeds, said) = ends_with(folder.path(), &["check", "--explain", "newcomer"], &[]);
    assert!(
        succeeds && said.contains("1. FilesystemMiddleware") && said.contains("subagent `helper`"),
        "{said}"
    );
    let (succeeds, said) = ends_with(folder.path(), &["check", "--explain", "newcommer"], &[]);
    assert!(!succeeds && said.contains("did you mean `newcomer`?"), "{said}");
}
