//! The configuration: file, environment, command line, and folders of agents; checked as a whole before anything
//! opens.
//!
//! What has been loaded is correct: no other room checks it again. It is also the only room that reads environment
//! variables. It knows the nouns of [`crate::domain`] and nothing else; [`crate::app`](crate) builds the parts from it.
//!
//! Later sources precede earlier ones: defaults, `adjutant.toml` (or, without any configuration, the embedded
//! demonstration), environment, command line. Agents come from the file and from folders, see [`folder`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::definition::compat::deprecated;
use crate::definition::mcp::McpServerDefinition;
use crate::definition::{
    AgentDefinition, Diagnostic, FieldPath, HarnessProfile, Severity, ToolDefinition, is_echo, read,
};

mod answers;
mod arguments;
mod bundled_files;
mod check;
mod document;
mod embedded;
mod folder;
mod markdown;
mod mcp;
mod peers;
mod problem;
mod report;
mod sections;
mod store;
mod watch;
mod webhooks;

pub use answers::AnswersSection;
pub use arguments::{Arguments, CommandLineSettings, ProgramCommand};
pub use check::{NEEDS_INSECURE_NO_AUTH, validation_context};
pub use embedded::Embedded;
pub use mcp::inherited;
pub use peers::PeersSection;
pub use problem::{Problem, Problems, TextPosition};
pub use report::report;
pub use sections::{
    AgentsApi, DatabaseUrl, KeySource, Log, LogFormat, NamedEntries, ProviderSection, RetentionSections, Runtime,
    Server, Storage, SweepStrategy, TimeToLive,
};
pub use store::{IndexSection, ItemTtl, StoreSection};
pub use watch::{Watch, WatchedFiles};
pub use webhooks::WebhooksSection;

use problem::{SettingOrigin, SettingOrigins};

/// The file that is looked for when none is named.
const DEFAULT_FILE: &str = "adjutant.toml";

/// The folder of agents, beside the configuration file, when none is named.
const DEFAULT_AGENTS_DIR: &str = "agents";

/// The folder, beside the configuration file, in which coding agents keep subagents.
const PROJECT: &str = ".deepagents/agents";

/// What runs when there is no configuration at all: a small team that needs neither a key nor a network.
const DEMO: &str = include_str!("../../examples/demo/adjutant.toml");

/// How the demonstration is called in messages.
const DEMO_NAME: &str = "the built-in demonstration";

/// The whole configuration.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How clients reach the server.
    pub server: Server,
    /// Where things are kept.
    pub storage: Storage,
    /// How runs are carried out.
    pub runtime: Runtime,
    /// What is remembered beyond a thread, and for how long.
    pub store: StoreSection,
    /// How long threads are kept that do not say it themselves.
    pub threads: RetentionSections,
    /// How long the histories of threads are kept.
    pub checkpointer: RetentionSections,
    /// Who may be told that a run has ended.
    pub webhooks: WebhooksSection,
    /// Which other servers may do the work of subagents.
    pub peers: PeersSection,
    /// How much models, tools and other servers may answer, and how long models may take.
    pub answers: AnswersSection,
    /// Whether clients may define agents, and what these may use.
    pub agents_api: AgentsApi,
    /// What is logged.
    pub log: Log,
    /// Where models come from, by the name before the colon.
    pub providers: NamedEntries<ProviderSection>,
    /// The declared tools, by name.
    pub tools: NamedEntries<ToolDefinition>,
    /// The MCP servers, by name. Agents name their tools as `server/tool`, or `server/*` for all.
    pub mcp_servers: NamedEntries<McpServerDefinition>,
    /// What goes for all agents with a certain model, by `provider` or `provider:model`.
    pub profiles: NamedEntries<HarnessProfile>,
    /// The agents, by `graph_id`.
    pub agents: NamedEntries<AgentDefinition>,
    /// The folder with a folder for each agent; beside the configuration file when not absolute.
    pub agents_dir: Option<PathBuf>,
    /// The files in which all that is written.
    #[serde(skip)]
    pub files: WatchedFiles,
}

/// A configuration that can be used, and what is nevertheless odd about it.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// Only warnings.
    pub warnings: Problems,
    /// Where it came from, for the log: a file, or the demonstration.
    pub source: String,
}

impl LoadedConfig {
    /// Whether it is the built-in demonstration, since there was no configuration.
    pub fn is_demonstration(&self) -> bool {
        self.source == DEMO_NAME
    }
}

/// Reads the configuration from the working directory, or from the file that the settings name.
///
/// # Errors
/// Everything that is wrong, in the order of the files.
pub fn load(settings: &CommandLineSettings) -> Result<LoadedConfig, Problems> {
    // Not the empty path, which is the working directory for some calls and nothing for others.
    load_from(Path::new("."), settings)
}

/// Reads the configuration as if `directory` were the working directory.
fn load_from(directory: &Path, settings: &CommandLineSettings) -> Result<LoadedConfig, Problems> {
    let source = Source::find(directory, settings)?;
    let mut sheet = ConfigReader::default();
    let mut document = document::parse(&source.name, &source.text);
    if !document.problems.is_empty() {
        // What is missing or twice there because of a broken line would only distract from it.
        return Err(Problems(document.problems));
    }
    let places = document.places;
    sheet.origins.0.push(SettingOrigin {
        file: source.name.clone(),
        holds: FieldPath::default(),
        places,
        partial: false,
    });
    override_with(settings, &mut document.value, &mut sheet.origins);

    let beside = source.path.parent().unwrap_or(directory).to_path_buf();
    let folder = sheet.load_folders(&mut document.value, settings, [directory, &beside]);
    let project = beside.join(PROJECT);
    if source.name != DEMO_NAME {
        sheet.add_project(
            &mut document.value,
            &project,
            project.strip_prefix(directory).unwrap_or(&project),
        );
    }
    sheet.add_embedded(&mut document.value, &settings.embedded);
    sheet.translate(&mut document.value);
    let reading = read::<Config>(Value::Object(document.value));
    let mut config = reading.value.unwrap_or_default();
    config.files = WatchedFiles {
        directory: directory.to_path_buf(),
        settings: settings.clone(),
        roots: vec![source.path.clone(), folder.clone(), project],
        places: config
            .agents
            .keys()
            .map(|graph_id| (graph_id.clone(), sheet.place_of(graph_id, &source.name)))
            .collect(),
    };
    config.agents_dir = Some(folder);
    for provider in config.providers.values_mut() {
        provider.api_key_file = provider.api_key_file.take().map(|path| beside.join(path));
    }
    config.webhooks.secret_file = config.webhooks.secret_file.take().map(|path| beside.join(path));
    let unset = mcp::fill_in(&mut config);
    let nonsense = check::check(&config, &reading.findings);
    let unread = sheet.bundle_files(&mut config, &beside);
    for finding in unset.into_iter().chain(nonsense).chain(unread) {
        let field = reading.gaps.source_of(&finding.field);
        if !is_echo(&field, &reading.findings) {
            sheet.add(Diagnostic { field, ..finding });
        }
    }
    reading.findings.into_iter().for_each(|finding| sheet.add(finding));
    if Problems(sheet.problems.clone()).are_harmless() {
        mcp::missing_programs(&mut config)
            .into_iter()
            .for_each(|finding| sheet.add(finding));
    }
    sheet.close(config, source.name)
}

/// The value of an environment variable, when it is set to something.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where environment variables are read"
)]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// The text of the configuration file, or what stands for it.
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

/// Puts what the command line and the environment say over what the file says.
fn override_with(settings: &CommandLineSettings, value: &mut Map<String, Value>, origins: &mut SettingOrigins) {
    let given = [
        (["server", "listen"], &settings.listen, "--listen or ADJUTANT_LISTEN"),
        (
            ["storage", "url"],
            &settings.database_url,
            "--database-url or ADJUTANT_DATABASE_URL",
        ),
        (["log", "filter"], &settings.log, "--log or ADJUTANT_LOG"),
    ];
    for ([section, key], text, source) in given {
        let Some(text) = text else { continue };
        let fields = value.entry(section).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(fields) = fields {
            fields.insert(key.to_owned(), Value::String(text.clone()));
            let places = BTreeMap::from([(FieldPath::of([section, key]), (1, 1))]);
            origins.0.push(SettingOrigin {
                file: source.to_owned(),
                holds: FieldPath::default(),
                places,
                partial: true,
            });
        }
    }
}

/// What is known while the configuration is being read.
#[derive(Default)]
struct ConfigReader {
    origins: SettingOrigins,
    problems: Vec<Problem>,
    /// The folders of the agents that have one.
    folders: BTreeMap<String, String>,
}

impl ConfigReader {
    fn add(&mut self, finding: Diagnostic) {
        self.problems.push(self.origins.locate(finding));
    }

    /// Where an agent is defined: in its folder, or in the configuration file.
    fn place_of(&self, graph_id: &str, file: &str) -> String {
        self.folders.get(graph_id).cloned().unwrap_or_else(|| file.to_owned())
    }

    /// Adds to the agents the files beside their definitions that these name, and finds the folders of servers.
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
            for (at, server) in agent.servers_mut() {
                let field = field.join(&at);
                findings.extend(mcp::settle(&field, server, &folder));
            }
            config.files.roots.extend(bundled_files::paths(agent, &folder));
        }
        findings
    }

    /// Replaces what agents say in words of an older time.
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

    /// Gives the subagents of a project's folder to the project's agent: the one called `agent`, or the only one.
    fn add_project(&mut self, file: &mut Map<String, Value>, folder: &Path, shown: &Path) {
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
            let problem = Problem::in_file(shown.display().to_string(), message);
            return self.problems.push(Problem {
                severity: Severity::Warning,
                ..problem
            });
        };
        let list = agent.entry("subagents").or_insert_with(|| Value::Array(Vec::new()));
        // A list of the wrong shape is told when the whole is read.
        let Value::Array(list) = list else { return };
        let field = FieldPath::of(["agents", graph_id.as_str()]);
        let origins = folder::project::load(folder, shown, list, &mut self.problems).into_iter();
        self.origins.0.extend(origins.map(|origin| SettingOrigin {
            holds: field.join(&origin.holds),
            ..origin
        }));
    }

    /// Adds the agents of the folders to those of the file, and tells which folder it was. It is the one that the
    /// settings name, seen from the working directory, or the one that the file names, seen from the file.
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
        let shown = path.strip_prefix(directory).unwrap_or(&path).to_path_buf();
        let found = folder::load(&path, &shown, &mut self.problems);
        let agents = file.entry("agents").or_insert_with(|| Value::Object(Map::new()));
        // A section of the wrong shape is told when the whole is read.
        let Value::Object(agents) = agents else { return path };
        for agent in found {
            let field = FieldPath::of(["agents", agent.graph_id.as_str()]);
            if agents.contains_key(&agent.graph_id) {
                self.add(Diagnostic::error(field, format!("is also defined in {}", agent.place)));
                continue;
            }
            self.folders.insert(agent.graph_id.clone(), agent.place);
            let origins = agent.origins.into_iter();
            self.origins.0.extend(origins.map(|origin| SettingOrigin {
                holds: field.join(&origin.holds),
                ..origin
            }));
            agents.insert(agent.graph_id, agent.definition);
        }
        path
    }

    fn close(mut self, config: Config, source: String) -> Result<LoadedConfig, Problems> {
        self.problems
            .sort_by(|one, other| (&one.file, one.position).cmp(&(&other.file, other.position)));
        // What is wrong with one file may be met twice.
        self.problems.dedup();
        let problems = Problems(self.problems);
        if problems.are_harmless() {
            Ok(LoadedConfig {
                config,
                warnings: problems,
                source,
            })
        } else {
            Err(problems)
        }
    }
}

#[cfg(test)]
mod tests;
