//! The configuration: file, environment, command line, and folders of agents, validated as a whole before anything
//! opens.
//!
//! A loaded configuration is valid; no other room checks it again. Only this room reads environment variables.
//! [`crate::app`](crate) builds the parts of the server from it.
//!
//! Later sources override earlier ones: defaults, `adjutant.toml` (or the embedded demonstration, if there is no
//! configuration), environment (see [`environment`]), command line. Agents come from the file and from folders, see [`folder`].

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::definition::compat::deprecated;
use crate::definition::mcp::McpServerDefinition;
use crate::definition::{
    AgentDefinition, Diagnostic, FieldPath, HarnessProfile, SandboxServiceDefinition, Severity, ToolDefinition,
    ToolServerDefinition, is_repeated_finding, read,
};

mod answers;
mod arguments;
mod auth;
mod bundled_files;
mod check;
mod document;
mod embedded;
mod encryption;
mod environment;
mod folder;
mod markdown;
mod mcp;
mod peers;
mod policies;
mod problem;
mod program_output;
mod quotas;
mod referring_settings;
mod report;
mod secrets;
mod sections;
mod shared_checks;
mod store;
mod telemetry;
mod tenants;
mod watch;
mod webhooks;

pub use answers::AnswersSection;
pub use arguments::client;
pub use arguments::{
    Arguments, CheckCommand, CommandLineSettings, DataCommand, HealthCommand, InitCommand, InitTemplate, KeysCommand,
    LoginOptions, McpCommand, MigrateCommand, ProgramCommand, ServeCommand,
};
pub use auth::{AuthKeySection, AuthSection, HookSection, JwtSection, SharingSection};
pub use check::{NEEDS_AUTH, validation_context};
pub use embedded::Embedded;
pub use encryption::EncryptionSection;
pub use environment::{EnvironmentSettings, SettingOverride};
pub use mcp::inherited;
pub use peers::PeersSection;
pub use policies::PoliciesSection;
pub use problem::{Problem, Problems, TextPosition};
pub use program_output::{output_of, read_secrets};
pub use quotas::{PriceSection, QuotaSection, QuotasSection};
pub use report::report;
pub use secrets::SecretSection;
pub use sections::{
    AgentsApi, AuditSection, ClusterSection, DatabaseUrl, KeySource, Log, LogFormat, NamedEntries, ProviderSection,
    RetentionSections, Runtime, Server, ServerRole, Storage, SweepStrategy, TimeToLive,
};
pub use store::{IndexSection, ItemTtl, StoreSection};
pub use telemetry::{OtlpProtocol, TelemetrySection};
pub use tenants::TenantSection;
pub use watch::{Watch, WatchedFiles};
pub use webhooks::WebhooksSection;

use policies::PolicyFindings;
use problem::{SettingOrigin, SettingOrigins};

/// The default name of the configuration file.
const DEFAULT_FILE: &str = "adjutant.toml";

/// The default folder of agents, beside the configuration file.
const DEFAULT_AGENTS_DIR: &str = "agents";

/// The folder beside the configuration file in which coding agents keep subagents.
const PROJECT: &str = ".deepagents/agents";

/// The configuration that is used if there is none: a small team that needs neither a key nor a network.
const DEMO: &str = include_str!("../../examples/demo/adjutant.toml");

/// The name of the demonstration in messages.
const DEMO_NAME: &str = "the built-in demonstration";

/// The whole configuration.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The HTTP server.
    pub server: Server,
    /// The database.
    pub storage: Storage,
    /// The keys under which values in the database are encrypted; not encrypted if absent.
    pub encryption: Option<EncryptionSection>,
    /// The execution of runs.
    pub runtime: Runtime,
    /// The work among the servers on the same Postgres, and their messages to each other.
    pub cluster: ClusterSection,
    /// The Store, which outlives threads.
    pub store: StoreSection,
    /// The default time to live of threads.
    pub threads: RetentionSections,
    /// The time to live of the histories of threads.
    pub checkpointer: RetentionSections,
    /// The webhooks for the end of runs.
    pub webhooks: WebhooksSection,
    /// The other servers that may run subagents.
    pub peers: PeersSection,
    /// The limits of responses from models, tools and other servers.
    pub answers: AnswersSection,
    /// The audit: who did what, on a server with authentication.
    pub audit: AuditSection,
    /// The API for clients that define agents.
    pub agents_api: AgentsApi,
    /// The ways in which callers prove who they are; none if absent.
    pub auth: Option<AuthSection>,
    /// The quotas of API keys, users and tenants.
    pub quotas: QuotasSection,
    /// The parts of the server that single tenants may use, and their own credentials, by name.
    pub tenants: NamedEntries<TenantSection>,
    /// The prices of models, by `provider:model`.
    pub prices: NamedEntries<PriceSection>,
    /// The log.
    pub log: Log,
    /// Traces.
    pub telemetry: TelemetrySection,
    /// The model providers, by the name before the colon.
    pub providers: NamedEntries<ProviderSection>,
    /// The secrets to which other settings refer.
    pub secrets: NamedEntries<SecretSection>,
    /// The declared tools, by name.
    pub tools: NamedEntries<ToolDefinition>,
    /// The MCP servers, by name. Agents name their tools as `server/tool`, or `server/*` for all.
    pub mcp_servers: NamedEntries<McpServerDefinition>,
    /// The services of tools, by name. Agents name their tools as `server/tool`, or `server/*` for all.
    pub tool_servers: NamedEntries<ToolServerDefinition>,
    /// The sandbox services, by name. Workspaces of the kind `sandbox` name them.
    pub sandboxes: NamedEntries<SandboxServiceDefinition>,
    /// The settings for all agents with a certain model, by `provider` or `provider:model`.
    pub profiles: NamedEntries<HarnessProfile>,
    /// The agents, by `graph_id`.
    pub agents: NamedEntries<AgentDefinition>,
    /// The folder with one folder for each agent, relative to the configuration file.
    pub agents_dir: Option<PathBuf>,
    /// The files that were read.
    #[serde(skip)]
    pub files: WatchedFiles,
}

/// A valid configuration with its warnings.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// The warnings.
    pub warnings: Problems,
    /// The source for the log: a file, or the demonstration.
    pub source: String,
    /// The settings that the command line and the environment have given.
    pub overrides: Vec<SettingOverride>,
}

impl LoadedConfig {
    /// Returns whether this is the built-in demonstration.
    pub fn is_demonstration(&self) -> bool {
        self.source == DEMO_NAME
    }
}

/// Reads the configuration from the working directory, or from the file that the settings name.
///
/// # Errors
/// All problems, in the order of the files.
pub fn load(settings: &CommandLineSettings) -> Result<LoadedConfig, Problems> {
    // Not the empty path: only some system calls take it for the working directory.
    load_from(Path::new("."), settings)
}

/// Reads the configuration as if `directory` were the working directory.
fn load_from(directory: &Path, settings: &CommandLineSettings) -> Result<LoadedConfig, Problems> {
    let source = Source::find(directory, settings)?;
    let mut reader = ConfigReader::default();
    let mut document = document::parse(&source.name, &source.text);
    if !document.problems.is_empty() {
        // Missing or duplicate fields that follow from a syntax error would distract from it.
        return Err(Problems(document.problems));
    }
    let positions = document.positions;
    reader.origins.0.push(SettingOrigin {
        file: source.name.clone(),
        prefix: FieldPath::default(),
        positions,
        partial: false,
    });

    let beside = source.path.parent().unwrap_or(directory).to_path_buf();
    let folder = reader.load_folders(&mut document.value, settings, [directory, &beside]);
    let project = beside.join(PROJECT);
    if source.name != DEMO_NAME {
        reader.add_project(
            &mut document.value,
            &project,
            project.strip_prefix(directory).unwrap_or(&project),
        );
    }
    reader.add_embedded(&mut document.value, &settings.embedded);
    let environment = settings.environment.apply(&mut document.value);
    reader.problems.extend(environment.problems.iter().cloned());
    reader.origins.0.extend(environment.origins.iter().cloned());
    reader.overrides.clone_from(&environment.overrides);
    reader.override_with(settings, &mut document.value);
    reader.translate(&mut document.value);
    let mut reading = read::<Config>(Value::Object(document.value.clone()));
    if environment.correct(&mut document.value, &reading.findings) {
        reading = read::<Config>(Value::Object(document.value));
    }
    let mut config = reading.value.unwrap_or_default();
    config.files = WatchedFiles {
        directory: directory.to_path_buf(),
        settings: settings.clone(),
        roots: vec![source.path.clone(), folder.clone(), project],
        definition_paths: config
            .agents
            .keys()
            .map(|graph_id| (graph_id.clone(), reader.source_of(graph_id, &source.name)))
            .collect(),
    };
    config.agents_dir = Some(folder);
    for provider in config.providers.values_mut() {
        provider.api_key_file = provider.api_key_file.take().map(|path| beside.join(path));
    }
    tenants::settle_files(&mut config, &beside);
    let mut policies = PolicyFindings::default();
    if let Some(auth) = &mut config.auth {
        auth.settle_files(&beside);
        policies = auth.policies.load(&beside);
    }
    reader.problems.extend(policies.in_files);
    if let Some(encryption) = &mut config.encryption {
        encryption.settle_file(&beside);
    }
    config.cluster.settle_files(&beside);
    config.webhooks.secret_file = config.webhooks.secret_file.take().map(|path| beside.join(path));
    let unset = referring_settings::fill_in(&mut config, &beside);
    for (name, reason) in config.telemetry.take_over(&variable) {
        reader.problems.push(Problem::in_file(name.to_owned(), reason));
    }
    let invalid = check::check(&config, &reading.findings);
    let unread = reader.bundle_files(&mut config, &beside);
    for finding in unset
        .into_iter()
        .chain(policies.of_settings)
        .chain(invalid)
        .chain(unread)
    {
        let field = reading.gaps.source_of(&finding.field);
        if !is_repeated_finding(&field, &reading.findings) {
            reader.add(Diagnostic { field, ..finding });
        }
    }
    reading.findings.into_iter().for_each(|finding| reader.add(finding));
    if Problems(reader.problems.clone()).are_harmless() {
        mcp::missing_programs(&mut config)
            .into_iter()
            .for_each(|finding| reader.add(finding));
    }
    reader.finish(config, source.name)
}

/// Returns the value of an environment variable that is set and not empty.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where environment variables are read"
)]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// Returns whether an environment variable is set and empty.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where environment variables are read"
)]
fn is_empty_variable(name: &OsStr) -> bool {
    std::env::var_os(name).is_some_and(|value| value.is_empty())
}

/// Returns all environment variables whose names and values are text.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where environment variables are listed"
)]
fn variables() -> impl Iterator<Item = (String, String)> {
    let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(text)
}

/// Returns the address at which the server listens, without reading the whole configuration.
///
/// # Errors
/// The configuration file cannot be read, or is no TOML.
pub fn listen_address(settings: &CommandLineSettings) -> Result<String, Problems> {
    let source = Source::find(Path::new("."), settings)?;
    let mut document = document::parse(&source.name, &source.text);
    if !document.problems.is_empty() {
        return Err(Problems(document.problems));
    }
    settings.environment.apply(&mut document.value);
    ConfigReader::default().override_with(settings, &mut document.value);
    let server = document.value.get("server");
    let listen = server.and_then(|server| server.get("listen")).and_then(Value::as_str);
    Ok(listen.map_or_else(|| Server::default().listen, str::to_owned))
}

/// The text of the configuration file, or of its substitute.
struct Source {
    name: String,
    path: PathBuf,
    text: String,
}

impl Source {
    fn find(directory: &Path, settings: &CommandLineSettings) -> Result<Self, Problems> {
        if let Some(text) = &settings.embedded.text {
            let path = directory.join(DEFAULT_FILE);
            return Ok(Self {
                name: embedded::PROGRAM.to_owned(),
                path,
                text: text.clone(),
            });
        }
        let (path, named) = match &settings.config {
            Some(path) => (directory.join(path), true),
            None => (directory.join(DEFAULT_FILE), false),
        };
        let name = path.strip_prefix(directory).unwrap_or(&path).display().to_string();
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Self { name, path, text }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => {
                let agents = settings.agents_dir.as_deref().unwrap_or(Path::new(DEFAULT_AGENTS_DIR));
                let is_empty = settings.embedded.agents.is_empty();
                let (name, text) = match directory.join(agents).is_dir() || settings.agents_dir.is_some() || !is_empty {
                    true => (DEFAULT_FILE, ""),
                    false => (DEMO_NAME, DEMO),
                };
                Ok(Self {
                    name: name.to_owned(),
                    path,
                    text: text.to_owned(),
                })
            }
            Err(error) => Err(Problems(vec![Problem::in_file(
                name,
                format!("cannot be read: {error}"),
            )])),
        }
    }
}

/// The state of reading a configuration.
#[derive(Default)]
struct ConfigReader {
    origins: SettingOrigins,
    problems: Vec<Problem>,
    /// The folders of agents that are defined in one.
    folders: BTreeMap<String, String>,
    /// The settings that the command line and the environment have given.
    overrides: Vec<SettingOverride>,
}

impl ConfigReader {
    fn add(&mut self, finding: Diagnostic) {
        self.problems.push(self.origins.locate(finding));
    }

    /// Overrides the file with the options of the command line and their variables.
    fn override_with(&mut self, settings: &CommandLineSettings, value: &mut Map<String, Value>) {
        for (field, text, source) in settings.overrides() {
            let [section, key] = field;
            let fields = value.entry(section).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(fields) = fields else { continue };
            fields.insert(key.to_owned(), Value::String(text));
            if field == ["storage", "url"] && !self.overrides.iter().any(|given| given.field == "storage.direct_url") {
                // The file has it for its own URL.
                fields.remove("direct_url");
            }
            let field = FieldPath::of([section, key]);
            self.overrides.retain(|earlier| earlier.field != field.to_string());
            self.overrides.push(SettingOverride {
                field: field.to_string(),
                source: source.to_owned(),
            });
            self.origins.0.push(SettingOrigin {
                file: source.to_owned(),
                prefix: FieldPath::default(),
                positions: BTreeMap::from([(field, (1, 1))]),
                partial: true,
            });
        }
    }

    /// Returns the path at which an agent is defined: its folder, or the configuration file.
    fn source_of(&self, graph_id: &str, file: &str) -> String {
        self.folders.get(graph_id).cloned().unwrap_or_else(|| file.to_owned())
    }

    /// Adds the files beside the definitions to the agents, and resolves the working directories of servers.
    fn bundle_files(&self, config: &mut Config, beside: &Path) -> Vec<Diagnostic> {
        let agents_dir = config.agents_dir.clone().unwrap_or_default();
        let mut findings = vec![];
        for (name, server) in &mut config.mcp_servers {
            let field = FieldPath::of(["mcp_servers", name.as_str()]);
            findings.extend(mcp::settle(&field, server, beside));
        }
        for (graph_id, agent) in &mut config.agents {
            let has_folder = self
                .folders
                .get(graph_id)
                .is_some_and(|place| place != embedded::PROGRAM);
            let folder = if has_folder {
                agents_dir.join(graph_id)
            } else {
                beside.to_path_buf()
            };
            let field = FieldPath::of(["agents", graph_id.as_str()]);
            findings.extend(
                bundled_files::bundle_files(agent, &folder)
                    .into_iter()
                    .map(|finding| finding.under(&field)),
            );
            let unsettled = agent.settle_workspaces(&folder).into_iter();
            findings.extend(unsettled.map(|finding| finding.under(&field)));
            let commands = agent.settle_execution(&folder, &variable).into_iter();
            findings.extend(commands.map(|finding| finding.under(&field)));
            for (at, server) in agent.servers_mut() {
                let field = field.join(&at);
                findings.extend(mcp::settle(&field, server, &folder));
            }
            config.files.roots.extend(bundled_files::paths(agent, &folder));
        }
        findings
    }

    /// Replaces deprecated keys of agents.
    fn translate(&mut self, file: &mut Map<String, Value>) {
        let Some(Value::Object(agents)) = file.get_mut("agents") else {
            return;
        };
        for (graph_id, agent) in agents {
            let warning = agent.as_object_mut().and_then(deprecated::translate);
            if let Some(warning) = warning {
                self.add(warning.under(&FieldPath::of(["agents", graph_id.as_str()])));
            }
        }
    }

    /// Adds the subagents of a project's folder to the project's agent: the one called `agent`, or the only one.
    fn add_project(&mut self, file: &mut Map<String, Value>, folder: &Path, display_path: &Path) {
        if !folder.is_dir() {
            return;
        }
        let agents = file.get_mut("agents").and_then(Value::as_object_mut);
        let only = agents
            .as_ref()
            .filter(|agents| agents.len() == 1)
            .and_then(|agents| agents.keys().next().cloned());
        let graph_id = only.unwrap_or_else(|| "agent".to_owned());
        let agent = agents
            .and_then(|agents| agents.get_mut(&graph_id))
            .and_then(Value::as_object_mut);
        let Some(agent) = agent else {
            let message = "is not read: its subagents belong to the only agent, or to the one called `agent`";
            let problem = Problem::in_file(display_path.display().to_string(), message);
            return self.problems.push(Problem {
                severity: Severity::Warning,
                ..problem
            });
        };
        let list = agent.entry("subagents").or_insert_with(|| Value::Array(Vec::new()));
        // A list of the wrong type is reported when the whole configuration is read.
        let Value::Array(list) = list else { return };
        let field = FieldPath::of(["agents", graph_id.as_str()]);
        let origins = folder::compat::coding_agents::load(folder, display_path, list, &mut self.problems).into_iter();
        self.origins.0.extend(origins.map(|origin| SettingOrigin {
            prefix: field.join(&origin.prefix),
            ..origin
        }));
    }

    /// Adds the agents of the folders to those of the file, and returns the folder. It is given by the settings,
    /// relative to the working directory, or by the file, relative to the file.
    fn load_folders(
        &mut self,
        file: &mut Map<String, Value>,
        settings: &CommandLineSettings,
        [directory, beside]: [&Path; 2],
    ) -> PathBuf {
        let path = match (&settings.agents_dir, file.get("agents_dir").and_then(Value::as_str)) {
            (Some(path), _) => directory.join(path),
            (None, Some(path)) => beside.join(path),
            (None, None) if !beside.join(DEFAULT_AGENTS_DIR).is_dir() => return beside.join(DEFAULT_AGENTS_DIR),
            (None, None) => beside.join(DEFAULT_AGENTS_DIR),
        };
        let display_path = path.strip_prefix(directory).unwrap_or(&path).to_path_buf();
        let found = folder::load(&path, &display_path, &mut self.problems);
        let agents = file.entry("agents").or_insert_with(|| Value::Object(Map::new()));
        // A section of the wrong type is reported when the whole configuration is read.
        let Value::Object(agents) = agents else { return path };
        for agent in found {
            let field = FieldPath::of(["agents", agent.graph_id.as_str()]);
            if agents.contains_key(&agent.graph_id) {
                self.add(Diagnostic::error(field, format!("is also defined in {}", agent.path)));
                continue;
            }
            self.folders.insert(agent.graph_id.clone(), agent.path);
            let origins = agent.origins.into_iter();
            self.origins.0.extend(origins.map(|origin| SettingOrigin {
                prefix: field.join(&origin.prefix),
                ..origin
            }));
            agents.insert(agent.graph_id, agent.definition);
        }
        path
    }

    fn finish(mut self, config: Config, source: String) -> Result<LoadedConfig, Problems> {
        self.problems
            .sort_by(|one, other| (&one.file, one.position).cmp(&(&other.file, other.position)));
        // A problem of one file may be found twice.
        self.problems.dedup();
        let problems = Problems(self.problems);
        if problems.are_harmless() {
            Ok(LoadedConfig {
                config,
                warnings: problems,
                source,
                overrides: self.overrides,
            })
        } else {
            Err(problems)
        }
    }
}

#[cfg(test)]
mod tests;
