//! Agents in folders, one folder for each agent, in one of three layouts.
//!
//! ```text
//! agents/
//! └── writer/                    the graph_id
//!     ├── AGENTS.md              settings at the top, instructions below
//!     ├── agent.toml             settings, instead of or beside those at the top of AGENTS.md
//!     ├── mcp.json               MCP servers, see [`servers`]
//!     ├── skills/                skills, see [`super::bundled_files`]
//!     │   └── web-research/
//!     │       └── SKILL.md
//!     ├── subagents.yaml         subagents by name
//!     ├── subagents/
//!     │   ├── critic.md          a subagent in one file, named by its file
//!     │   └── researcher/        a subagent in a folder, named by its folder
//!     │       └── AGENTS.md
//!     └── .deepagents/agents/…   subagents as coding agents keep them, see [`coding_agents`]
//! ```
//!
//! A folder with a `deepagents.toml` ([`deepagents_toml`]) or an `agent.json` ([`agent_json`]) has the layout of that file; a
//! folder with several of the three layouts is an error. The settings are the fields of a definition. Other entries of
//! a folder are reported, except for names that begin with a dot. Nothing outside the folder of all agents is read,
//! wherever links lead.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::problem::{Positions, Problem, SettingOrigin};
use super::{document, markdown};
use crate::definition::bundled_files::is_relative;
use crate::definition::{FieldPath, source_problem};

pub(super) mod compat;
mod entry;
mod servers;

use compat::{agent_json, coding_agents, deepagents_toml, tools_json};
use entry::FolderEntry;

/// Other contents of such folders, and why they are not read.
const UNREAD: [(&str, &str); 4] = [
    ("memory", "is not read: list its files in the agent's `memory`"),
    (
        "memories",
        "is not read: data that outlives a thread is kept in the Store",
    ),
    ("user", "is not read: data that outlives a thread is kept in the Store"),
    ("tools.json", "is not read: it belongs to an agent.json"),
];

/// The file with the tools of an agent beside an `agent.json`.
const TOOLS: &str = "tools.json";
/// The folder with the skills of an agent.
const SKILLS: &str = "skills";

/// An agent that was found in a folder.
pub(super) struct FolderAgent {
    /// The name of the folder.
    pub(super) graph_id: String,
    /// The path of the folder, for messages.
    pub(super) path: String,
    /// The definition, not yet validated.
    pub(super) definition: Value,
    /// The files that hold the parts of the definition.
    pub(super) origins: Vec<SettingOrigin>,
}

/// Finds all agents below `folder`, in the order of their names. `display_path` is the folder's path in messages.
pub(super) fn load(folder: &Path, display_path: &Path, problems: &mut Vec<Problem>) -> Vec<FolderAgent> {
    let root = FolderEntry::root(folder, display_path);
    let mut search = Search {
        origins: Vec::new(),
        problems,
    };
    let mut agents = Vec::new();
    for entry in search.entries(&root) {
        if !entry.real.is_dir() {
            search
                .problems
                .push(entry.warning("is not read: an agent is a folder with an AGENTS.md"));
            continue;
        }
        let already = search.problems.len();
        let definition = search.agent(&entry);
        for problem in search.problems.iter_mut().skip(already) {
            problem.agent = Some(entry.name().into());
        }
        let origins = std::mem::take(&mut search.origins);
        let graph_id = entry.name();
        let path = entry.to_string();
        agents.extend(definition.map(|definition| FolderAgent {
            graph_id,
            path,
            definition: Value::Object(definition),
            origins,
        }));
    }
    agents
}

/// The owner of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FolderRole {
    Agent,
    Subagent,
}

/// The layouts of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// `AGENTS.md` with settings at its top, `agent.toml`.
    Own,
    /// `deepagents.toml`.
    Deploy,
    /// `agent.json`.
    Managed,
}

impl Layout {
    fn file(self) -> &'static str {
        match self {
            Self::Own => "agent.toml",
            Self::Deploy => "deepagents.toml",
            Self::Managed => "agent.json",
        }
    }

    fn reads(self, name: &str, role: FolderRole) -> bool {
        matches!(name, "AGENTS.md" | SKILLS)
            || servers::FILES.contains(&name)
            || name == self.file()
            || self == Self::Managed && name == TOOLS
            || role == FolderRole::Agent && matches!(name, "subagents" | "subagents.yaml" | "subagents.yml" | ".deepagents")
            // The subagents of a subagent are reported separately.
            || name == "subagents"
    }
}

/// Returns the paths of skills and memory in the settings of a folder.
fn paths(settings: &mut Map<String, Value>) -> impl Iterator<Item = &mut String> {
    let lists = settings.iter_mut().flat_map(|(field, list)| match field.as_str() {
        SKILLS | "memory" => vec![list],
        "middleware" => {
            let policies = list.as_array_mut().into_iter().flatten();
            policies.filter_map(|policy| policy.get_mut("sources")).collect()
        }
        _ => vec![],
    });
    let entries = lists.filter_map(Value::as_array_mut).flatten();
    let paths = entries.filter_map(|entry| match entry {
        Value::String(path) => Some(path),
        Value::Object(fields) => match fields.get_mut("path") {
            Some(Value::String(path)) => Some(path),
            Some(_) | None => None,
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    });
    paths.filter(|path| is_relative(path) && source_problem(path).is_none())
}

struct Search<'p> {
    origins: Vec<SettingOrigin>,
    problems: &'p mut Vec<Problem>,
}

impl Search<'_> {
    fn agent(&mut self, entry: &FolderEntry) -> Option<Map<String, Value>> {
        let mut agent = self.settings(entry, &FieldPath::default(), FolderRole::Agent)?;
        let list = agent.entry("subagents").or_insert_with(|| Value::Array(Vec::new()));
        // A list of the wrong type is reported when the definition is read.
        let Value::Array(list) = list else { return Some(agent) };
        for name in ["subagents.yaml", "subagents.yml"] {
            let file = entry.join(name);
            if file.real.is_file() {
                self.listed_subagents(&file, list);
            }
        }
        let folder = entry.join("subagents");
        if folder.real.is_dir() {
            for entry in self.entries(&folder) {
                let prefix = FieldPath::of(["subagents"]).then(list.len());
                list.extend(self.subagent(&entry, &prefix).map(Value::Object));
            }
        }
        let folder = entry.join(".deepagents").join("agents");
        if folder.real.is_dir() {
            coding_agents::add(self, &folder, list);
        }
        self.warn_similar_names(entry, list);
        Some(agent)
    }

    /// Warns of names that differ only in case: some disks and some models treat them as equal.
    fn warn_similar_names(&mut self, entry: &FolderEntry, list: &[Value]) {
        let names: Vec<&str> = list
            .iter()
            .filter_map(|subagent| subagent.get("name")?.as_str())
            .collect();
        for (at, name) in names.iter().enumerate() {
            let twin = |other: &&&str| **other != *name && other.to_lowercase() == name.to_lowercase();
            if let Some(twin) = names.iter().take(at).find(twin) {
                let message = format!("the subagents `{twin}` and `{name}` differ only in case");
                self.problems.push(entry.problem(message));
            }
        }
    }

    /// Adds the subagents of a file that lists them by name.
    fn listed_subagents(&mut self, file: &FolderEntry, list: &mut Vec<Value>) {
        let Some(text) = self.text(file) else { return };
        let all = match markdown::mapping(&file.to_string(), &text, "the file", 0) {
            Ok(all) => all,
            Err(problem) => return self.problems.push(problem),
        };
        let lines = markdown::positions(&text, 1);
        for (name, settings) in all {
            let line = lines.get(&FieldPath::of([name.as_str()])).copied();
            let Value::Object(mut settings) = settings else {
                let problem = file.problem("must be a table with `description`, `system_prompt`, `model` and `tools`");
                self.problems.push(Problem { field: name, ..problem }.at(line));
                continue;
            };
            if settings
                .get("name")
                .is_some_and(|own| own.as_str() != Some(name.as_str()))
            {
                let problem = file.problem(format!("must not be given, or be `{name}`"));
                self.problems.push(
                    Problem {
                        field: format!("{name}.name"),
                        ..problem
                    }
                    .at(line),
                );
            }
            settings.insert("name".to_owned(), Value::String(name));
            let positions = line.map(|line| (FieldPath::default(), line)).into_iter().collect();
            self.add_origin(file, &FieldPath::of(["subagents"]).then(list.len()), positions);
            list.push(Value::Object(settings));
        }
    }

    fn subagent(&mut self, entry: &FolderEntry, prefix: &FieldPath) -> Option<Map<String, Value>> {
        let (mut subagent, name) = if entry.real.is_dir() {
            let nested = entry.join("subagents");
            if nested.real.exists() {
                self.problems
                    .push(nested.problem("a subagent has no subagents of its own; put them beside it"));
            }
            (self.settings(entry, prefix, FolderRole::Subagent)?, entry.name())
        } else if entry.name() == "AGENTS.md" {
            self.problems
                .push(entry.problem("must be in a folder that has the subagent's name"));
            return None;
        } else if entry
            .display_path
            .extension()
            .is_some_and(|extension| extension == "md")
        {
            let mut subagent = Map::new();
            self.markdown(entry, prefix, &mut subagent)?;
            (subagent, entry.stem())
        } else {
            self.report_unread(entry);
            return None;
        };
        subagent.entry("name").or_insert(Value::String(name));
        Some(subagent)
    }

    /// Reads the settings in a folder, in any layout.
    fn settings(&mut self, entry: &FolderEntry, prefix: &FieldPath, role: FolderRole) -> Option<Map<String, Value>> {
        let layout = self.layout(entry)?;
        let mut settings = self.read_layout(entry, layout, prefix, role)?;
        let home = if role == FolderRole::Subagent {
            format!("subagents/{}", entry.name())
        } else {
            ".".to_owned()
        };
        servers::read(self, entry, prefix, &home, &mut settings)?;
        let tools = entry.join(TOOLS);
        if layout == Layout::Managed && tools.real.exists() {
            tools_json::read(self, &tools, prefix, &mut settings)?;
        } else {
            servers::offer_all_tools(&mut settings);
        }
        let first = |path: &mut String| path.split('/').find(|part| *part != ".").map(str::to_owned);
        let named: Vec<String> = paths(&mut settings).filter_map(first).collect();
        let used = servers::used_entries(&settings, &home);
        for entry in self.entries(entry) {
            if !layout.reads(&entry.name(), role) && !named.contains(&entry.name()) && !used.contains(&entry.name()) {
                self.report_unread(&entry);
            }
        }
        if entry.join(SKILLS).real.is_dir() {
            settings.entry(SKILLS).or_insert_with(|| json!([SKILLS]));
        }
        if role == FolderRole::Subagent {
            // Paths are stored with the definition of the agent, whose folder is the parent.
            paths(&mut settings).for_each(|path| *path = format!("{home}/{path}"));
        }
        Some(settings)
    }

    fn read_layout(
        &mut self,
        entry: &FolderEntry,
        layout: Layout,
        prefix: &FieldPath,
        role: FolderRole,
    ) -> Option<Map<String, Value>> {
        let text = entry.join("AGENTS.md");
        let table = entry.join(layout.file());
        if !text.real.is_file() && (layout != Layout::Own || !table.real.is_file()) {
            self.problems.push(match layout {
                Layout::Own => entry.problem("has neither an AGENTS.md nor an agent.toml"),
                Layout::Deploy | Layout::Managed => {
                    entry.problem(format!("has {}, but no AGENTS.md with the instructions", layout.file()))
                }
            });
            return None;
        }
        let mut settings = Map::new();
        if text.real.is_file() {
            self.markdown(&text, prefix, &mut settings)?;
        }
        match layout {
            Layout::Own if table.real.is_file() => self.table(&table, prefix, &mut settings)?,
            Layout::Own => {}
            Layout::Deploy => deepagents_toml::read(self, &table, prefix, role, &mut settings)?,
            Layout::Managed => agent_json::read(self, entry, prefix, role, &mut settings)?,
        }
        Some(settings)
    }

    /// Returns the layout of a folder; none, with a problem, if it has several.
    fn layout(&mut self, entry: &FolderEntry) -> Option<Layout> {
        let all = [Layout::Own, Layout::Deploy, Layout::Managed];
        let found: Vec<Layout> = all
            .into_iter()
            .filter(|layout| entry.join(layout.file()).real.exists())
            .collect();
        match found.as_slice() {
            [] => Some(Layout::Own),
            [only] => Some(*only),
            [first, second, ..] => {
                let first = first.file();
                let second = second.file();
                let message = format!("has both {first} and {second}, which are two layouts; keep one of them");
                self.problems.push(entry.problem(message));
                None
            }
        }
    }

    fn markdown(&mut self, entry: &FolderEntry, prefix: &FieldPath, into: &mut Map<String, Value>) -> Option<()> {
        let text = self.text(entry)?;
        let mut parts = match markdown::parse(&entry.to_string(), &text) {
            Ok(parts) => parts,
            Err(problem) => {
                self.problems.push(problem);
                return None;
            }
        };
        if !parts.body.is_empty() {
            if let Some(position) = parts.positions.get(&FieldPath::of(["system_prompt"])) {
                let twice = entry.problem("must not be given, since the text of the file is the system prompt");
                let twice = Problem {
                    field: "system_prompt".to_owned(),
                    ..twice
                };
                self.problems.push(twice.at(Some(*position)));
            }
            parts
                .settings
                .insert("system_prompt".to_owned(), Value::String(parts.body));
        }
        for (name, value) in parts.settings {
            // `name:` without a value is not the same as no name.
            let value = if value.is_null() {
                Value::String(String::new())
            } else {
                value
            };
            into.insert(name, value);
        }
        self.add_origin(entry, prefix, parts.positions);
        Some(())
    }

    fn table(&mut self, entry: &FolderEntry, prefix: &FieldPath, into: &mut Map<String, Value>) -> Option<()> {
        let text = self.text(entry)?;
        let document = document::parse(&entry.to_string(), &text);
        if !document.problems.is_empty() {
            self.problems.extend(document.problems);
            return None;
        }
        self.add(entry, document.value, &document.positions, into);
        self.add_origin(entry, prefix, document.positions);
        Some(())
    }

    /// Adds settings to those of the `AGENTS.md` beside them.
    fn add(
        &mut self,
        entry: &FolderEntry,
        from: Map<String, Value>,
        positions: &Positions,
        into: &mut Map<String, Value>,
    ) {
        for (name, value) in from {
            if into.contains_key(&name) {
                let position = positions.get(&FieldPath::of([name.as_str()])).copied();
                let twice = entry.problem("is also given in the AGENTS.md beside this file");
                self.problems.push(Problem { field: name, ..twice }.at(position));
            } else {
                into.insert(name, value);
            }
        }
    }

    fn add_origin(&mut self, entry: &FolderEntry, prefix: &FieldPath, positions: Positions) {
        let file = entry.to_string();
        let prefix = prefix.clone();
        self.origins.push(SettingOrigin {
            file,
            prefix,
            positions,
            partial: false,
        });
    }

    fn text(&mut self, entry: &FolderEntry) -> Option<String> {
        entry.text().map_err(|problem| self.problems.push(problem)).ok()
    }

    /// Returns the entries of a folder, in the order of the names, without those that begin with a dot.
    fn entries(&mut self, folder: &FolderEntry) -> Vec<FolderEntry> {
        let mut entries = match folder.entries() {
            Ok(entries) => entries,
            Err(problem) => {
                self.problems.push(problem);
                return Vec::new();
            }
        };
        entries.retain(|entry| !entry.name().starts_with('.'));
        entries.retain(|entry| {
            entry
                .check_within_root()
                .map_err(|problem| self.problems.push(problem))
                .is_ok()
        });
        entries
    }

    /// Reads the JSON object in a file.
    fn object(&mut self, entry: &FolderEntry) -> Option<Map<String, Value>> {
        let text = self.text(entry)?;
        match serde_json::from_str(&text) {
            Ok(Value::Object(object)) => Some(object),
            Ok(_) => {
                self.problems.push(entry.problem("must be a JSON object"));
                None
            }
            Err(error) => {
                let message = error.to_string();
                let message = message.split(" at line ").next().unwrap_or_default();
                let problem = entry.problem(format!("is not JSON: {message}"));
                self.problems.push(problem.at(Some((error.line(), error.column()))));
                None
            }
        }
    }

    fn report_error(&mut self, entry: &FolderEntry, field: &str, message: &str) {
        self.problems.push(Problem {
            field: field.to_owned(),
            ..entry.problem(message)
        });
    }

    fn report_warning(&mut self, entry: &FolderEntry, field: &str, message: &str) {
        self.problems.push(Problem {
            field: field.to_owned(),
            ..entry.warning(message)
        });
    }

    fn report_unread(&mut self, entry: &FolderEntry) {
        let name = entry.name();
        let known = UNREAD.iter().find(|(known, _)| *known == name);
        self.problems
            .push(entry.warning(known.map_or("is not read", |(_, reason)| reason)));
    }
}
