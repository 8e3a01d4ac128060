use std::fs;

use secrecy::ExposeSecret;

use super::*;
use crate::definition::provider::PROVIDERS;

mod agents;
mod auth;
mod cluster;
mod environment;
mod folders;
mod layouts;
mod quotas;
mod secrets;
mod servers;
mod settings;
mod storage;
mod tenants;
mod tool_servers;

/// A working directory with files.
struct Directory(tempfile::TempDir);

impl Directory {
    fn with(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(folder)
    }

    fn load(&self) -> LoadedConfig {
        self.load_with(&self.settings()).unwrap()
    }

    fn load_with(&self, settings: &CommandLineSettings) -> Result<LoadedConfig, Problems> {
        load_from(self.0.path(), settings)
    }

    /// Settings with a provider `scripted`, unless the configuration declares it, as the demonstration does.
    fn settings(&self) -> CommandLineSettings {
        let mut settings = CommandLineSettings::default();
        let text = fs::read_to_string(self.0.path().join("adjutant.toml"));
        let is_demonstration = text.is_err() && !self.0.path().join("agents").exists();
        let has_provider = text.is_ok_and(|text| text.contains("[providers.scripted]"));
        if !is_demonstration && !has_provider {
            settings.embedded.names.providers.insert("scripted".to_owned());
        }
        settings
    }

    /// Returns all problems of the configuration.
    fn complaints(&self) -> String {
        match self.load_with(&self.settings()) {
            Ok(loaded) => loaded.warnings.to_string(),
            Err(problems) => problems.to_string(),
        }
    }
}

/// Returns the problems of an `adjutant.toml`.
fn complaints(text: &str) -> String {
    Directory::with(&[("adjutant.toml", text)]).complaints()
}

/// Returns the problems of one agent with this TOML, beside a tool `lookup`.
fn agent_complaints(lines: &str) -> String {
    let text = format!("{LOOKUP}[agents.a]\nmodel = \"scripted:x\"\n{lines}");
    complaints(&text)
}

/// Two lines that declare a tool.
const LOOKUP: &str = "[tools]\nlookup = { kind = \"builtin\", builtin = \"lookup\" }\n";

const AGENT: &str = "---\nmodel: scripted:x\n---\nDo it.";

#[test]
fn without_any_configuration_the_demonstration_runs() {
    let loaded = Directory::with(&[]).load();

    assert_eq!(loaded.warnings, Problems::default());
    assert_eq!(loaded.source, "the built-in demonstration");
    let agent = &loaded.config.agents["agent"];
    assert_eq!(agent.model, "scripted:demo".into());
    let subagents: Vec<&str> = agent.subagents.iter().map(|subagent| subagent.name.as_str()).collect();
    assert_eq!(subagents, ["researcher", "writer"]);
    assert_eq!(loaded.config.tools.keys().collect::<Vec<_>>(), ["lookup", "publish"]);
}

#[test]
fn missing_settings_have_their_defaults() {
    let config = Directory::with(&[("adjutant.toml", "")]).load().config;

    assert_eq!(config.server, Server::default());
    assert_eq!(config.server.listen, "127.0.0.1:8123");
    assert_eq!(config.server.max_body_bytes, 4_194_304);
    assert_eq!(config.storage.url.expose(), "sqlite://adjutant.db");
    assert_eq!(config.runtime.lease(), std::time::Duration::from_secs(6));
    assert_eq!(config.log, Log::default());
}

#[test]
fn a_configuration_without_agents_is_valid_with_a_warning() {
    assert_eq!(
        complaints(""),
        "adjutant.toml: warning: agents: there are none, so the server has no agent until one is defined over HTTP"
    );
}

/// Returns the problems without all but the first of the allowed keys, since that list grows with the product.
fn shortened(complaints: &str) -> String {
    let short = |line: &str| match line.split_once("unknown key; ").and(line.split_once("allowed are: ")) {
        Some((start, keys)) => format!("{start}allowed are: {}, …", keys.split(',').next().unwrap_or_default()),
        None => line.to_owned(),
    };
    complaints.lines().map(short).collect::<Vec<_>>().join("\n")
}

#[test]
fn all_problems_are_reported_with_their_positions() {
    let text = r#"extra = 1
[server]
listen = 8123
lisen = "x"
max_body_bytes = -3
[agents.a]
model = "laab:x"
tools = ["lokup", 3, "lookup"]
max_subagent_depth = 33
recursion_limit = 0
[tools.lookup]
kind = "builtin"
builtin = "lookup"
[providers.lab]
kind = "openai"
"#;
    let mut known: Vec<&str> = PROVIDERS.iter().map(|kind| kind.word).chain(["lab"]).collect();
    known.sort_unstable();
    let known = known.join(", ");
    assert_eq!(
        shortened(&complaints(text)),
        format!(
            "\
adjutant.toml:1:1: error: extra: unknown key; allowed are: server, …
adjutant.toml:3:1: error: server.listen: must be a text, not a whole number
adjutant.toml:4:1: error: server.lisen: unknown key; did you mean `listen`? allowed are: listen, …
adjutant.toml:5:1: error: server.max_body_bytes: must be a whole number from 0 up
adjutant.toml:7:1: error: agents.a.model: there is no provider `laab`; did you mean `lab`? known are: {known}; a section `[providers.laab]` with its `kind` adds one
adjutant.toml:8:10: error: agents.a.tools[0]: there is no tool `lokup`; did you mean `lookup`? declared are: lookup
adjutant.toml:8:19: error: agents.a.tools[1]: must be a text, not a whole number
adjutant.toml:9:1: error: agents.a.max_subagent_depth: must be a whole number from 0 to 32
adjutant.toml:10:1: error: agents.a.recursion_limit: must be a whole number of at least 1"
        )
    );
}

#[test]
fn invalid_limits_are_reported() {
    let text = r#"[agents.a]
model = "scripted:x"
limits = { model_calls = 0, depth = 33, wall_s = -1.0, cost = 0.0, calls = 3, tree = { tokens = 0, tree = {} } }
[[agents.a.subagents]]
name = "helper"
description = "Helps with everything there is."
system_prompt = "You help."
limits = { children_at_once = 0, tree = {} }
"#;
    let reported = complaints(text);
    for wrong in [
        "agents.a.limits.model_calls: must be a whole number of at least 1",
        "agents.a.limits.depth: must be a whole number from 0 to 32",
        "agents.a.limits.wall_s: must be a number of seconds of at least 0.01",
        "agents.a.limits.cost: must be a number of at least 0.000001",
        "agents.a.limits.calls: unknown key",
        "agents.a.limits.tree.tokens: must be a whole number of at least 1",
        "agents.a.limits.tree.tree: is for the main agent, at the top of the tree",
        "agents.a.subagents[0].limits.children_at_once: must be a whole number of at least 1",
        "agents.a.subagents[0].limits.tree: is for the main agent, at the top of the tree",
    ] {
        assert!(reported.contains(wrong), "{wrong} is not in\n{reported}");
    }
}

#[test]
fn limits_of_streams_and_the_interval_of_reloads_have_bounds() {
    let text = "[server]\nmax_streams_per_thread = 0\nmax_streams_per_client = 0\n[runtime]\nreload_s = -1.0\n";
    let problems = complaints(text);
    for part in [
        "server.max_streams_per_thread: must be a whole number of at least 1",
        "server.max_streams_per_client: must be a whole number of at least 1",
        "runtime.reload_s: must be 0, which means never, or from 0.05 to 86400 seconds",
    ] {
        assert!(problems.contains(part), "{part} is missing in\n{problems}");
    }
    assert!(!complaints("[runtime]\nreload_s = 0\n").contains("reload_s"));
}

#[test]
fn intervals_have_a_minimum() {
    let text = r#"[server]
keep_alive_s = 0.001
[runtime]
lease_s = 0.001
heartbeat_s = 0.0005
reload_s = 0.001
[threads.ttl]
default_ttl = 1.0
sweep_interval_minutes = 0.00001
[checkpointer.ttl]
default_ttl = 1.0
sweep_interval_minutes = 0.00001
[store.ttl]
sweep_interval_minutes = 0.00001
[webhooks]
retry_s = 0.001
[peers]
first_look_s = 0.001
longest_look_s = 0.001
[telemetry]
otlp_endpoint = "http://127.0.0.1:4318"
export_interval_s = 0.001
[tool_servers.crm]
url = "http://127.0.0.1:9400"
refresh_s = 0.001
"#;
    let problems = complaints(text);
    for wrong in [
        "server.keep_alive_s: must be from 0.1 to 86400 seconds",
        "runtime.lease_s: must be from 1 to 86400 seconds",
        "runtime.heartbeat_s: must be from 0.1 to 86400 seconds",
        "runtime.reload_s: must be 0, which means never, or from 0.05 to 86400 seconds",
        "threads.ttl.sweep_interval_minutes: must be from 0.002 to 52560000 minutes",
        "checkpointer.ttl.sweep_interval_minutes: must be from 0.002 to 52560000 minutes",
        "store.ttl.sweep_interval_minutes: must be from 0.002 to 1440 minutes",
        "webhooks.retry_s: must be from 0.1 to 3600 seconds",
        "peers.first_look_s: must be from 0.05 to 3600 seconds",
        "peers.longest_look_s: must be from 0.05 to 3600 seconds",
        "telemetry.export_interval_s: must be from 0.05 to 60 seconds",
        "tool_servers.crm.refresh_s: must be from 1 to 86400 seconds",
    ] {
        assert!(problems.contains(wrong), "{wrong} is not in\n{problems}");
    }
}

#[test]
fn time_outs_have_a_minimum() {
    let text = r#"[server]
body_timeout_s = 0.001
request_s = 0.001
shutdown_s = 0.001
[storage]
statement_timeout_s = 0.0001
connect_timeout_s = 0.001
[runtime]
max_run_s = 0.001
[answers]
first_token_s = 0.001
between_tokens_s = 0.001
first_byte_s = 0.001
between_bytes_s = 0.001
[webhooks]
timeout_s = 0.001
[peers]
patience_s = 0.001
background_patience_s = 0.001
[encryption]
key_command_s = 0.001
[telemetry]
otlp_endpoint = "http://127.0.0.1:4318"
timeout_s = 0.001
shutdown_s = 0.001
[providers.own]
kind = "openai"
first_token_s = 0.001
between_tokens_s = 0.001
[tools.slow]
description = "Is slow."
url = "http://127.0.0.1:9400"
timeout_s = 0.001
[mcp_servers.notes]
url = "http://127.0.0.1:9400"
timeout_s = 0.001
start_timeout_s = 0.001
[tool_servers.crm]
url = "http://127.0.0.1:9400"
timeout_s = 0.001
start_timeout_s = 0.001
[sandboxes.away]
url = "http://127.0.0.1:9400"
timeout_s = 0.001
"#;
    let problems = complaints(text);
    for wrong in [
        "server.body_timeout_s",
        "server.request_s",
        "server.shutdown_s",
        "storage.statement_timeout_s",
        "storage.connect_timeout_s",
        "runtime.max_run_s",
        "answers.first_token_s",
        "answers.between_tokens_s",
        "answers.first_byte_s",
        "answers.between_bytes_s",
        "webhooks.timeout_s",
        "peers.patience_s",
        "peers.background_patience_s",
        "encryption.key_command_s",
        "telemetry.timeout_s",
        "telemetry.shutdown_s",
        "providers.own.first_token_s",
        "providers.own.between_tokens_s",
        "tools.slow.timeout_s",
        "mcp_servers.notes.timeout_s",
        "mcp_servers.notes.start_timeout_s",
        "tool_servers.crm.timeout_s",
        "tool_servers.crm.start_timeout_s",
        "sandboxes.away.timeout_s",
    ] {
        let wrong = format!("{wrong}: must be from 0.01 to ");
        assert!(problems.contains(&wrong), "{wrong} is not in\n{problems}");
    }
}

#[test]
fn cookies_need_origins_that_are_named() {
    let text =
        "[server]\ncors_credentials = true\ncors_expose_headers = [\"x-ok\", \"no header\"]\ncors_max_age_s = 0\n";
    let problems = complaints(text);
    for part in [
        "server.cors_credentials: needs `cors_origins`",
        "cors_expose_headers[1]: `no header`",
        "cors_max_age_s: must be more",
    ] {
        assert!(problems.contains(part), "{part} is missing in\n{problems}");
    }
}

#[test]
fn an_invalid_field_is_reported_once() {
    assert_eq!(
        complaints("[agents.a]\nmodel = 3\n"),
        "adjutant.toml:2:1: error: agents.a.model: must be a text or a list of texts, not a whole number"
    );
}

#[test]
fn syntax_errors_are_reported_with_their_positions() {
    assert_eq!(
        complaints("[server]\nlisten = \n[log\n"),
        "adjutant.toml:2:10: error: string values must be quoted, expected literal string\n\
         adjutant.toml:3:5: error: unclosed table, expected `]`"
    );
}

#[test]
fn the_command_line_overrides_the_file() {
    let directory = Directory::with(&[("adjutant.toml", "[server]\nlisten = \"127.0.0.1:1\"\n")]);
    let settings = CommandLineSettings {
        listen: Some("127.0.0.2:2".to_owned()),
        database_url: Some("sqlite::memory:".to_owned()),
        log: Some("debug".to_owned()),
        ..CommandLineSettings::default()
    };

    let config = directory.load_with(&settings).unwrap().config;

    assert_eq!(config.server.listen.as_str(), "127.0.0.2:2");
    assert_eq!(config.storage.url.expose(), "sqlite::memory:");
    assert_eq!(config.log.filter.as_str(), "debug");
}

#[test]
fn an_invalid_argument_is_reported_for_the_command_line() {
    let settings = CommandLineSettings {
        listen: Some("nowhere".to_owned()),
        ..CommandLineSettings::default()
    };
    let problems = Directory::with(&[("adjutant.toml", "")])
        .load_with(&settings)
        .unwrap_err();
    assert_eq!(
        problems.0[0].to_string(),
        "--listen or ADJUTANT_LISTEN: error: server.listen: `nowhere` must be `host:port`, as in `127.0.0.1:8123`"
    );
}

#[test]
fn a_named_file_must_exist() {
    let settings = CommandLineSettings {
        config: Some("other.toml".into()),
        ..CommandLineSettings::default()
    };
    let problems = Directory::with(&[]).load_with(&settings).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "other.toml: error: cannot be read: No such file or directory (os error 2)"
    );
}

#[test]
fn secrets_are_never_printed() {
    let text = "\
[storage]
url = \"postgres://user:hunter2@db/adjutant?password=hunter2\"
[providers.lab]
kind = \"openai\"
api_key = \"hunter2\"
[tools.mine]
description = \"Does all that I need.\"
url = \"http://127.0.0.1/\"
parameters = { type = \"object\" }
headers = { Authorization = \"Bearer hunter2\" }
[agents.a]
model = \"lab:x\"
";
    let loaded = Directory::with(&[("adjutant.toml", text)]).load();

    assert!(!format!("{loaded:?}").contains("hunter2"));
    assert!(!report(Some(&loaded), &loaded.warnings).contains("hunter2"));
    assert_eq!(loaded.config.storage.url.to_string(), "postgres://user:***@db/adjutant");
    let KeySource::Inline(key) = loaded.config.providers["lab"].key() else {
        panic!("the key is given")
    };
    assert_eq!(key.expose_secret(), "hunter2");
}

#[test]
fn a_secret_of_the_wrong_type_is_not_repeated() {
    assert_eq!(
        complaints("[providers.lab]\nkind = \"openai\"\napi_key = 4711\n[agents.a]\nmodel = \"lab:x\"\n"),
        "adjutant.toml:3:1: error: providers.lab.api_key: must be a text, not a whole number"
    );
}

#[test]
fn a_missing_key_is_not_an_error_of_the_configuration() {
    let text = "[providers.lab]\nkind = \"openai\"\napi_key_env = \"ADJUTANT_TEST_NO_SUCH_KEY\"\n[agents.a]\nmodel = \"lab:x\"";
    let config = Directory::with(&[("adjutant.toml", text)]).load().config;
    let KeySource::Variable { name, value } = config.providers["lab"].key() else {
        panic!("a variable is named")
    };
    assert_eq!(name.as_str(), "ADJUTANT_TEST_NO_SUCH_KEY");
    assert!(value.is_none());
}

#[test]
fn a_key_file_is_relative_to_the_configuration() {
    let text = "[providers.lab]\nkind = \"openai\"\napi_key_file = \"lab.key\"\n";
    let directory = Directory::with(&[("conf/adjutant.toml", text)]);
    let settings = CommandLineSettings {
        config: Some("conf/adjutant.toml".into()),
        ..CommandLineSettings::default()
    };
    let config = directory.load_with(&settings).unwrap().config;
    let KeySource::File(path) = config.providers["lab"].key() else {
        panic!("a file is named")
    };
    assert_eq!(path, directory.0.path().join("conf/lab.key"));
}

#[test]
fn a_provider_has_a_way_of_caching_that_its_protocol_has_a_place_for() {
    let reported = |kind: &str, caching: &str| {
        complaints(&format!(
            "[providers.lab]\nkind = \"{kind}\"\nprompt_caching = \"{caching}\"\n[agents.a]\nmodel = \"lab:x\"\n"
        ))
    };
    let message = "adjutant.toml:3:1: error: providers.lab.prompt_caching: does not fit `kind = ";
    for (kind, caching) in [
        ("google_genai", "markers"),
        ("openai_responses", "markers"),
        ("anthropic", "key"),
    ] {
        let reported = reported(kind, caching);
        assert!(reported.starts_with(&format!("{message}\"{kind}\"`")), "{reported}");
    }
    for (kind, caching) in [
        ("openai", "markers"),
        ("openrouter", "key"),
        ("openai_responses", "key"),
        ("anthropic", "markers"),
        ("ollama", "off"),
        ("google_genai", "auto"),
    ] {
        let reported = reported(kind, caching);
        assert!(!reported.contains("prompt_caching"), "{reported}");
    }
    assert!(reported("openai", "sometimes").contains("allowed are: auto, markers, key, off"));
}

#[test]
fn a_provider_has_one_kind_and_one_source_of_its_key() {
    let kinds = PROVIDERS.map(|kind| kind.word).join(", ");
    assert_eq!(
        complaints("[providers.lab]\napi_key = \"x\"\napi_key_env = \"X\"\n[agents.a]\nmodel = \"lab:x\"\n"),
        format!(
            "adjutant.toml:1:12: error: providers.lab.kind: must be given: one of {kinds}\n\
             adjutant.toml:1:12: error: providers.lab: only one of `api_key_env`, `api_key_file` and `api_key` may be given"
        )
    );
}

#[test]
fn the_report_names_the_server_of_an_agent_and_never_its_headers() {
    let lines = "[agents.far]\nname = \"front\"\ngraph_id = \"writer\"\nurl = \"https://a.b\"\nheaders = { x-key = \"${SECRET:-hush}\" }\n";
    let loaded = Directory::with(&[("adjutant.toml", lines)]).load();
    assert_eq!(loaded.config.agents["far"].headers.0["x-key"], "hush");
    let text = report(Some(&loaded), &loaded.warnings);
    assert!(
        text.contains("agent far (front): agent writer at https://a.b\n"),
        "{text}"
    );
    assert!(!text.contains("hush") && !text.contains("subagent"), "{text}");
    assert_eq!(
        complaints("[agents.a]\nrunnable = \"count\"\n"),
        "adjutant.toml:2:1: error: agents.a.runnable: there is no program `count`; registered are: none"
    );
}

#[test]
fn the_report_lists_agents_and_counts_problems() {
    let loaded = Directory::with(&[]).load();
    assert_eq!(
        report(Some(&loaded), &loaded.warnings),
        "\
configuration: the built-in demonstration
listens on 127.0.0.1:8123, keeps its data in sqlite://adjutant.db
agent agent (editor): model scripted:demo, tools none
  subagent general-purpose: built in
  subagent researcher: model as its parent, tools lookup
  subagent writer: model as its parent, tools publish
0 errors, 0 warnings
"
    );
    let directory = Directory::with(&[("adjutant.toml", "x = 1\n[agents.a]\nmodel = \"scripted:x\"")]);
    let problems = directory.load_with(&directory.settings()).expect_err("an unknown key");
    let text = report(None, &problems);
    assert!(text.ends_with("\n1 error, 0 warnings\n"), "{text}");
}

#[test]
fn times_to_live_are_read_and_checked() {
    let text =
        "[threads.ttl]\ndefault_ttl = 90\n[checkpointer]\nttl = { strategy = \"keep_latest\", default_ttl = 0.5 }\n";
    let config = Directory::with(&[("adjutant.toml", text)]).load().config;
    let threads = config.threads.ttl.unwrap();
    let checkpointer = config.checkpointer.ttl.unwrap();
    assert_eq!(threads.strategy, SweepStrategy::Delete);
    assert_eq!(threads.after().as_secs(), 5400);
    assert_eq!(checkpointer.strategy, SweepStrategy::KeepLatest);
    assert_eq!(checkpointer.after().as_secs(), 30);
    assert_eq!(threads.interval().as_secs(), 60);
    let problems =
        complaints("[threads.ttl]\ndefault_ttl = 0\n[checkpointer.ttl]\nstrategy = \"burn\"\ndefault_ttl = 1\n");
    assert!(problems.contains("checkpointer.ttl.strategy"), "{problems}");
    assert!(complaints("[threads.ttl]\ndefault_ttl = 0\n").contains("threads.ttl.default_ttl"));
}
