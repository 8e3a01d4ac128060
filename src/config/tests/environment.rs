//! Settings from the environment.

use super::*;
use crate::config::environment::SECTIONS;

const AGENT: &str = "[providers.scripted]\nkind = \"scripted\"\n[agents.agent]\nmodel = \"scripted:x\"\n";

fn load(text: &str, variables: &[(&str, &str)]) -> Result<LoadedConfig, String> {
    let directory = Directory::with(&[("adjutant.toml", text)]);
    let mut settings = directory.settings();
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    settings.environment = EnvironmentSettings::new(variables);
    directory.load_with(&settings).map_err(|problems| problems.to_string())
}

fn config(text: &str, variables: &[(&str, &str)]) -> Config {
    load(text, variables).expect("a configuration").config
}

#[test]
fn every_section_of_the_file_can_be_given_by_the_environment() {
    let reported = load("no_such_section = 1", &[]).unwrap_err();
    let allowed = reported
        .split_once("allowed are: ")
        .and_then(|(_, names)| names.lines().next())
        .expect("a list");
    // The folder of agents has an option with a variable.
    let mut named: Vec<&str> = allowed.split(", ").filter(|name| *name != "agents_dir").collect();
    let mut sections = SECTIONS.to_vec();
    named.sort_unstable();
    sections.sort_unstable();
    assert_eq!(named, sections);
}

#[test]
fn values_are_read_as_toml_or_as_text() {
    let config = config(
        AGENT,
        &[
            ("ADJUTANT_SERVER__LISTEN", "[::1]:9000"),
            ("ADJUTANT_SERVER__SHUTDOWN_S", "2.5"),
            ("ADJUTANT_SERVER__CORS_PRIVATE_NETWORK", "true"),
            ("ADJUTANT_SERVER__HOSTS", "[\"a.example.org\", \"b.example.org\"]"),
            ("ADJUTANT_STORAGE__URL", "'sqlite://quoted.db'"),
            (
                "ADJUTANT_PROVIDERS__LAB",
                "{ kind = \"openai\", base_url = \"http://lab/v1\" }",
            ),
            ("ADJUTANT_AGENTS__AGENT__LIMITS__MODEL_CALLS", "7"),
        ],
    );
    assert_eq!(config.server.listen, "[::1]:9000");
    assert!((config.server.shutdown_s - 2.5).abs() < f64::EPSILON);
    assert!(config.server.cors_private_network);
    assert_eq!(config.server.hosts, ["a.example.org", "b.example.org"]);
    assert_eq!(config.storage.url.expose(), "sqlite://quoted.db");
    assert_eq!(config.providers["lab"].base_url.as_deref(), Some("http://lab/v1"));
}

#[test]
fn a_text_that_looks_like_a_number_or_a_list_is_read_as_the_setting_wants_it() {
    let config = config(
        AGENT,
        &[
            ("ADJUTANT_PROVIDERS__LAB__KIND", "openai"),
            ("ADJUTANT_PROVIDERS__LAB__API_KEY", "123456"),
            ("ADJUTANT_PROVIDERS__LAB__BASE_URL", "http://lab/v1"),
            ("ADJUTANT_AGENTS__AGENT__NAME", "2026"),
            ("ADJUTANT_SERVER__HOSTS", "a.example.org, b.example.org"),
        ],
    );
    let key = config.providers["lab"]
        .api_key
        .as_ref()
        .map(ExposeSecret::expose_secret);
    assert_eq!(key, Some("123456"));
    assert_eq!(config.agents["agent"].name.as_deref(), Some("2026"));
    assert_eq!(config.server.hosts, ["a.example.org", "b.example.org"]);
}

#[test]
fn the_command_line_precedes_the_environment_and_this_the_file() {
    let directory = Directory::with(&[(
        "adjutant.toml",
        &format!("[server]\nlisten = \"127.0.0.1:1\"\nkeep_alive_s = 1\n[log]\nfilter = \"warn\"\n{AGENT}"),
    )]);
    let mut settings = directory.settings();
    settings.environment = EnvironmentSettings::new([
        ("ADJUTANT_SERVER__LISTEN".to_owned(), "127.0.0.1:2".to_owned()),
        ("ADJUTANT_SERVER__KEEP_ALIVE_S".to_owned(), "2".to_owned()),
    ]);
    settings.listen = Some("127.0.0.1:3".to_owned());
    let loaded = directory.load_with(&settings).expect("a configuration");
    assert_eq!(loaded.config.server.listen, "127.0.0.1:3");
    assert!((loaded.config.server.keep_alive_s - 2.0).abs() < f64::EPSILON);
    assert_eq!(loaded.config.log.filter, "warn");
    let overrides: Vec<(&str, &str)> = loaded
        .overrides
        .iter()
        .map(|setting| (setting.field.as_str(), setting.source.as_str()))
        .collect();
    assert_eq!(
        overrides,
        [
            ("server.keep_alive_s", "ADJUTANT_SERVER__KEEP_ALIVE_S"),
            ("server.listen", "--listen or ADJUTANT_LISTEN"),
        ]
    );
}

#[test]
fn names_with_other_letters_than_those_of_variables_are_found_in_the_file() {
    let text = format!(
        "{AGENT}[providers.my-Lab]\nkind = \"openai\"\nbase_url = \"http://old/v1\"\n\
         [prices.\"scripted:x\"]\ninput = 1.0\noutput = 1.0\n\
         [mcp_servers.docs]\ncommand = \"sh\"\n"
    );
    let config = config(
        &text,
        &[
            ("ADJUTANT_PROVIDERS__MY_LAB__BASE_URL", "http://new/v1"),
            ("ADJUTANT_PRICES__SCRIPTED_X__INPUT", "3"),
            ("ADJUTANT_MCP_SERVERS__DOCS__ENV__TOKEN", "t"),
            ("ADJUTANT_PROVIDERS__newLab__KIND", "openai"),
        ],
    );
    assert_eq!(config.providers["my-Lab"].base_url.as_deref(), Some("http://new/v1"));
    assert!(config.providers.contains_key("newLab"));
    assert_eq!(config.mcp_servers["docs"].env["TOKEN"], "t");
}

#[test]
fn entries_of_lists_are_named_by_their_number() {
    let text = format!(
        "{AGENT}[[agents.agent.subagents]]\nname = \"helper\"\ndescription = \"Helps with everything there is.\"\n"
    );
    let with = |name: &str| load(&text, &[(name, "scripted:y")]);
    let loaded = with("ADJUTANT_AGENTS__AGENT__SUBAGENTS__0__MODEL").expect("a configuration");
    assert_eq!(
        loaded.config.agents["agent"].subagents[0].model,
        Some("scripted:y".into())
    );
    let reported = with("ADJUTANT_AGENTS__AGENT__SUBAGENTS__1__MODEL").unwrap_err();
    assert!(reported.contains("has 1 entries, so there is no"), "{reported}");
    let reported = with("ADJUTANT_AGENTS__AGENT__SUBAGENTS__HELPER__MODEL").unwrap_err();
    assert!(reported.contains("must be the number of an entry"), "{reported}");
}

#[test]
fn mistakes_name_the_variable_and_a_suggestion_and_never_the_value() {
    for (variable, value, expected) in [
        (
            "ADJUTANT_SERVER__LISTN",
            "s3cret",
            "ADJUTANT_SERVER__LISTN: error: server.listn: unknown key; did you mean `listen`?",
        ),
        (
            "ADJUTANT_SERVER__KEEP_ALIVE_S",
            "s3cret",
            "ADJUTANT_SERVER__KEEP_ALIVE_S: error: server.keep_alive_s: must be a number, not a text",
        ),
        (
            "ADJUTANT_PROVIDERS__LAB__API_KEY",
            "s3cret",
            "ADJUTANT_PROVIDERS__LAB__API_KEY: error: providers.lab.kind: must be given",
        ),
        (
            "ADJUTANT_SERVER__LISTEN__",
            "s3cret",
            "ADJUTANT_SERVER__LISTEN__: error: must be ADJUTANT_SECTION__KEY",
        ),
        (
            "ADJUTANT_PROVIDERS__SCRIPTED__KIND__X",
            "s3cret",
            "ADJUTANT_PROVIDERS__SCRIPTED__KIND__X: error: `providers.scripted.kind` is no table",
        ),
    ] {
        let reported = load(AGENT, &[(variable, value)]).unwrap_err();
        assert!(reported.starts_with(expected), "{variable}: {reported}");
        assert!(!reported.contains("s3cret"), "{variable}: {reported}");
    }
}

#[test]
fn variables_that_are_no_settings_are_left_alone() {
    let loaded = load(
        AGENT,
        &[
            ("ADJUTANT_TEST_PYTHON", "x"),
            ("ADJUTANT_OPS_KEY", "x"),
            ("ADJUTANT_MY__OWN_SECRET", "x"),
            ("ADJUTANT_SERVER__LISTEN", "   "),
        ],
    )
    .expect("a configuration");
    assert!(loaded.warnings.0.is_empty(), "{}", loaded.warnings);
    assert!(loaded.overrides.is_empty());
    assert_eq!(loaded.config.server.listen, "127.0.0.1:8123");

    let loaded = load(AGENT, &[("ADJUTANT_SERVR__LISTEN", "127.0.0.1:1")]).expect("a configuration");
    let warning = loaded.warnings.to_string();
    assert!(warning.contains("did you mean `ADJUTANT_SERVER__…`?"), "{warning}");
}

#[test]
fn agents_in_folders_can_be_changed_by_the_environment() {
    let directory = Directory::with(&[
        ("adjutant.toml", "[providers.scripted]\nkind = \"scripted\"\n"),
        ("agents/writer/AGENTS.md", "---\nmodel: scripted:x\n---\nWrite."),
    ]);
    let mut settings = directory.settings();
    let variable = ("ADJUTANT_AGENTS__WRITER__MODEL".to_owned(), "scripted:y".to_owned());
    settings.environment = EnvironmentSettings::new([variable]);
    let loaded = directory.load_with(&settings).expect("a configuration");
    assert_eq!(loaded.config.agents["writer"].model, "scripted:y".into());
}

#[test]
fn the_address_is_read_without_the_rest_of_the_configuration() {
    let mut settings = CommandLineSettings {
        environment: EnvironmentSettings::new([("ADJUTANT_SERVER__LISTEN".to_owned(), "127.0.0.1:7".to_owned())]),
        ..Default::default()
    };
    settings.embedded.text = Some("[server]\nlisten = \"127.0.0.1:6\"\n[agents.a]\nmodel = 5\n".to_owned());
    assert_eq!(listen_address(&settings).expect("an address"), "127.0.0.1:7");
    settings.listen = Some("127.0.0.1:8".to_owned());
    assert_eq!(listen_address(&settings).expect("an address"), "127.0.0.1:8");
}
