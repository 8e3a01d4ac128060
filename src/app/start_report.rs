//! The report of the server when it starts: lines for a person at a terminal, or one entry of the log.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;

use super::health::reachable;
use super::keys::MissingProviderKey;
use crate::config::LoadedConfig;
use crate::definition::AgentDefinition;

/// The maximum number of agents that are listed.
const MAX_AGENTS: usize = 20;

/// The report of a server that has started.
pub(super) struct StartReport {
    /// The base URL for a program on this machine.
    base: String,
    /// False if the server works on runs only, and other servers take the requests of clients.
    serves_clients: bool,
    /// True if browsers get the console at the base URL.
    console: bool,
    demonstration: bool,
    /// The configuration file.
    source: String,
    database: String,
    /// The agents with their models, or the programs that they are.
    agents: Vec<(String, String)>,
    tools: Vec<String>,
    mcp_servers: Vec<String>,
    missing_keys: Vec<MissingProviderKey>,
    auth: bool,
    /// True if other machines can reach the server.
    public: bool,
}

impl StartReport {
    pub(super) fn new(loaded: &LoadedConfig, missing_keys: Vec<MissingProviderKey>, address: SocketAddr) -> Self {
        let config = &loaded.config;
        let agents = config.agents.iter();
        let own_servers = config.agents.values().flat_map(servers_of);
        let servers: BTreeSet<&String> = config.mcp_servers.keys().chain(own_servers).collect();
        Self {
            base: format!("http://{}", reachable(address)),
            serves_clients: config.cluster.role.serves_clients(),
            console: config.server.console && config.cluster.role.serves_clients(),
            demonstration: loaded.is_demonstration(),
            source: loaded.source.clone(),
            database: config.storage.url.to_string(),
            agents: agents
                .map(|(graph_id, agent)| (graph_id.clone(), works_with(agent)))
                .collect(),
            tools: config.tools.keys().cloned().collect(),
            mcp_servers: servers.into_iter().cloned().collect(),
            missing_keys,
            auth: config.auth.is_some(),
            public: !address.ip().to_canonical().is_loopback(),
        }
    }

    /// Adds one entry to the log.
    pub(super) fn log(&self) {
        let agents: Vec<&str> = self.agents.iter().map(|(graph_id, _)| graph_id.as_str()).collect();
        let missing: Vec<&str> = self.missing_keys.iter().map(|key| key.source.as_str()).collect();
        tracing::info!(
            console = self.console.then(|| format!("{}/", self.base)),
            document = self.serves_clients.then(|| format!("{}/docs", self.base)),
            source = self.source,
            demonstration = self.demonstration,
            database = self.database,
            agents = name_list(&agents),
            mcp_servers = self.mcp_servers.join(", "),
            missing_keys = missing.join(", "),
            auth = self.auth,
            "ready"
        );
    }

    /// Returns the lines for a person at a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = format!("\nadjutant {}\n\n", env!("CARGO_PKG_VERSION"));
        if self.demonstration {
            text.push_str(
                "  This is the demonstration: its model is a script, it needs no key, and nothing leaves this machine.\n\n",
            );
        }
        let base = &self.base;
        let mut row = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<14} {value}");
        };
        if self.console {
            row("Console", &format!("{base}/"));
        }
        if self.serves_clients {
            row("API document", &format!("{base}/docs"));
            row("API", &format!("{base}   (for LangGraph SDKs, too)"));
        } else {
            row(
                "Role",
                "worker: it works on runs; clients use a server with the role `api`",
            );
        }
        row("Configuration", &self.source);
        row("Database", &self.database);
        for (at, (graph_id, model)) in self.agents.iter().take(MAX_AGENTS).enumerate() {
            row(if at == 0 { "Agents" } else { "" }, &format!("{graph_id}   ({model})"));
        }
        match self.agents.len().checked_sub(MAX_AGENTS).filter(|more| *more > 0) {
            Some(more) => row("", &format!("and {more} more")),
            None if self.agents.is_empty() => row("Agents", "none: `adjutant init` writes a project with one"),
            None => {}
        }
        if !self.tools.is_empty() {
            row("Tools", &self.tools.join(", "));
        }
        if !self.mcp_servers.is_empty() {
            row("MCP servers", &self.mcp_servers.join(", "));
        }
        row("Sign-in", self.sign_in());
        for key in &self.missing_keys {
            let users = key.users.join(", ");
            row(
                "Missing key",
                &format!(
                    "{} of the provider {}; without it these fail: {users}",
                    key.source, key.provider
                ),
            );
        }
        if self.serves_clients {
            self.add_next_steps(&mut text);
        } else {
            text.push('\n');
        }
        text
    }

    fn sign_in(&self) -> &'static str {
        match (self.auth, self.public) {
            (true, _) => "needed: API keys, tokens or the hook of [auth]",
            (false, false) => "off: everybody on this machine may do everything",
            (false, true) => "OFF, and other machines can reach this address: everybody may do everything",
        }
    }

    fn add_next_steps(&self, text: &mut String) {
        let base = &self.base;
        let graph_id = self.agents.first().map_or("agent", |(graph_id, _)| graph_id.as_str());
        text.push_str("\n  Try next:\n");
        let mut steps = vec![];
        if !self.missing_keys.is_empty() {
            steps.push(
                "set the missing keys, in the environment or in a file `.env` beside the configuration".to_owned(),
            );
        }
        let talk = match self.console {
            true => "open the console in a browser, or talk to the agent in a terminal: adjutant chat",
            false => "talk to the agent in a terminal: adjutant chat",
        };
        steps.push(talk.to_owned());
        let header = match self.auth {
            true => " -H \"x-api-key: $KEY\"",
            false => "",
        };
        steps.push(format!(
            "curl -s {base}/runs/wait{header} -H 'content-type: application/json' -d \
             '{{\"assistant_id\": \"{graph_id}\", \"input\": {{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello!\"}}]}}}}'"
        ));
        if self.demonstration {
            steps.push("adjutant init my-agents     # a project of your own, with a real model".to_owned());
        } else {
            steps.push("adjutant check --connect    # look at keys, the database, tools and other servers".to_owned());
        }
        for step in steps {
            let _ = writeln!(text, "    {step}");
        }
        text.push('\n');
    }
}

/// Returns the model of an agent, or the program that it is.
fn works_with(agent: &AgentDefinition) -> String {
    if agent.is_program() {
        agent.worker()
    } else {
        agent.model.to_string()
    }
}

fn servers_of(agent: &AgentDefinition) -> impl Iterator<Item = &String> {
    let below = agent.subagents.iter().flat_map(|subagent| subagent.mcp_servers.keys());
    agent.mcp_servers.keys().chain(below)
}

/// Returns the first 20 names, separated by commas, and the number of the others.
pub(super) fn name_list(names: &[&str]) -> String {
    const MAX_NAMES: usize = 20;
    let first = names.iter().take(MAX_NAMES).copied().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MAX_NAMES).filter(|more| *more > 0) {
        Some(more) => format!("{first} and {more} more"),
        None if names.is_empty() => "none".to_owned(),
        None => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> StartReport {
        StartReport {
            base: "http://127.0.0.1:8123".to_owned(),
            serves_clients: true,
            console: true,
            demonstration: false,
            source: "adjutant.toml".to_owned(),
            database: "sqlite://adjutant.db".to_owned(),
            agents: vec![("agent".to_owned(), "openai:gpt-5".to_owned())],
            tools: vec!["lookup".to_owned()],
            mcp_servers: vec!["docs".to_owned()],
            missing_keys: vec![MissingProviderKey::for_test("openai", "OPENAI_API_KEY", "agent agent")],
            auth: false,
            public: false,
        }
    }

    #[test]
    fn a_server_without_the_console_names_none() {
        let without = StartReport {
            console: false,
            ..report()
        };
        assert!(!without.text().to_lowercase().contains("console"), "{}", without.text());
    }

    #[test]
    fn a_worker_names_no_address_for_clients() {
        let worker = StartReport {
            serves_clients: false,
            console: false,
            ..report()
        };
        let text = worker.text();
        assert!(text.contains("worker: it works on runs"), "{text}");
        assert!(!text.contains("http://127.0.0.1:8123"), "{text}");
    }

    #[test]
    fn a_person_reads_where_everything_is_and_what_is_missing() {
        let text = report().text();
        for line in [
            "  Console        http://127.0.0.1:8123/",
            "  API document   http://127.0.0.1:8123/docs",
            "  Database       sqlite://adjutant.db",
            "  Agents         agent   (openai:gpt-5)",
            "  Tools          lookup",
            "  MCP servers    docs",
            "  Missing key    OPENAI_API_KEY of the provider openai; without it these fail: agent agent",
            "  Sign-in        off: everybody on this machine may do everything",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
        }
        assert!(!text.contains("demonstration"), "{text}");
        assert!(text.contains("adjutant check --connect"), "{text}");
    }

    #[test]
    fn the_demonstration_and_an_open_server_say_so_aloud() {
        let demonstration = StartReport {
            demonstration: true,
            public: true,
            ..report()
        };
        let text = demonstration.text();
        assert!(
            text.contains("This is the demonstration: its model is a script"),
            "{text}"
        );
        assert!(text.contains("adjutant init my-agents"), "{text}");
        assert!(
            text.contains("OFF, and other machines can reach this address"),
            "{text}"
        );
    }

    #[test]
    fn many_agents_are_not_all_listed() {
        let many = StartReport {
            agents: (0..30).map(|at| (format!("a{at}"), "x:y".to_owned())).collect(),
            ..report()
        };
        assert!(many.text().contains("and 10 more"), "{}", many.text());
    }
}
