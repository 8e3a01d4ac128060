//! Agents in folders, one folder each, in any of three layouts.
//!
//! ```text
//! agents/
//! └── writer/                    the graph_id
//!     ├── AGENTS.md              settings at the top, instructions below
//!     ├── agent.toml             settings, instead of or beside those at the top of AGENTS.md
//!     ├── mcp.json               its MCP servers, see [`servers`]
//!     ├── skills/                its skills, see [`super::bundled_files`]
//!     │   └── web-research/
//!     │       └── SKILL.md
//!     ├── subagents.yaml         subagents by name
//!     ├── subagents/
//!     │   ├── critic.md          a subagent in one file, named by its file
//!     │   └── researcher/        a subagent in a folder, named by its folder
//!     │       └── AGENTS.md
//!     └── .deepagents/agents/…   subagents as coding agents keep them, see [`project`]
//! ```
//!
//! With a `deepagents.toml` ([`deploy`]) or an `agent.json` ([`managed`]) the folder has the layout that goes with it;
//! more than one of the three in a folder is a mistake. The settings are the fields of a definition. Whatever else lies
//! there is named in a problem and never passed over in silence; only names that begin with a dot are. Nothing is read
//! that lies outside the folder of all agents, wherever links lead.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::problem::{Positions, Problem, SettingOrigin};
use super::{document, markdown};
use crate::definition::enclosed::is_relative;
use crate::definition::{FieldPath, source_problem};

mod deploy;
mod entry;
mod managed;
pub(super) mod project;
mod servers;
mod tools;

use entry::FolderEntry;

/// What else such folders hold, and why it is not read.
const UNREAD: [(&str, &str); 4] = [
    (
        "memory",
        "is not read: what the agent shall know from there, its `memory` names",
    ),
    ("memories", "is not read: what outlasts a thread is kept in the Store"),
    ("user", "is not read: what outlasts a thread is kept in the Store"),
    ("tools.json", "is not read: it goes with an agent.json"),
];

/// The file with the tools of an agent of the managed layout.
const TOOLS: &str = "tools.json";
/// The folder with the skills of an agent.
const SKILLS: &str = "skills";

/// An agent that was found in a folder.
pub(super) struct FolderAgent {
    /// The name of the folder.
    pub(super) graph_id: String,
    /// The folder, as people are told of it.
    pub(super) place: String,
    /// Its definition, not yet read.
    pub(super) definition: Value,
    /// Which file holds what of the definition.
    pub(super) origins: Vec<SettingOrigin>,
}

/// Finds all agents below `folder`, which people know as `shown`, in the order of their names.
pub(super) fn load(folder: &Path, shown: &Path, problems: &mut Vec<Problem>) -> Vec<FolderAgent> {
    let root = FolderEntry::root(folder, shown);
    let mut search = Search {
        origins: Vec::new(),
        problems,
    };
    let mut agents = Vec::new();
    for place in search.entries(&root) {
        if !place.real.is_dir() {
            search
                .problems
                .push(place.warning("is not read: an agent is a folder with an AGENTS.md"));
            continue;
        }
        let already = search.problems.len();
        let definition = search.agent(&place);
        for problem in search.problems.iter_mut().skip(already) {
            problem.agent = Some(place.name().into());
        }
        let origins = std::mem::take(&mut search.origins);
        let graph_id = place.name();
        let place = place.to_string();
        agents.extend(definition.map(|definition| FolderAgent {
            graph_id,
            place,
            definition: Value::Object(definition),
            origins,
        }));
    }
    agents
}

/// Whose folder it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Agent,
    Subagent,
}

/// How a folder says what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// AGENTS.md with settings at its top, agent.toml.
    Own,
    /// deepagents.toml.
    Deploy,
    /// agent.json.
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

    fn reads(self, name: &str, role: Role) -> bool {
        matches!(name, "AGENTS.md" | SKILLS)
            || servers::FILES.contains(&name)
            || name == self.file()
            || self == Self::Managed && name == TOOLS
            || role == Role::Agent && matches!(name, "subagents" | "subagents.yaml" | "subagents.yml" | ".deepagents")
            // A subagent's own subagents are told of elsewhere.
            || name == "subagents"
    }
}

/// The paths in the folder of a definition that its settings name as skills and memory.
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
    fn agent(&mut self, place: &FolderEntry) -> Option<Map<String, Value>> {
        let mut agent = self.settings(place, &FieldPath::default(), Role::Agent)?;
        let list = agent.entry("subagents").or_insert_with(|| Value::Array(Vec::new()));
        // A list of the wrong shape is told when the definition is read.
        let Value::Array(list) = list else { return Some(agent) };
        for name in ["subagents.yaml", "subagents.yml"] {
            let file = place.join(name);
            if file.real.is_file() {
                self.listed(&file, list);
            }
        }
        let folder = place.join("subagents");
        if folder.real.is_dir() {
            for entry in self.entries(&folder) {
                let holds = FieldPath::of(["subagents"]).then(list.len());
                list.extend(self.subagent(&entry, &holds).map(Value::Object));
            }
        }
        let folder = place.join(".deepagents").join("agents");
        if folder.real.is_dir() {
            project::add(self, &folder, list);
        }
        self.warn_similar_names(place, list);
        Some(agent)
    }

    /// Names that differ only by the size of their letters are one on some disks, and for some models.
    fn warn_similar_names(&mut self, place: &FolderEntry, list: &[Value]) {
        let names: Vec<&str> = list
            .iter()
            .filter_map(|subagent| subagent.get("name")?.as_str())
            .collect();
        for (at, name) in names.iter().enumerate() {
            let twin = |other: &&&str| **other != *name && other.to_lowercase() == name.to_lowercase();
            if let Some(twin) = names.iter().take(at).find(twin) {
                let message = format!("the subagents `{twin}` and `{name}` have one name but for capital letters");
                self.problems.push(place.problem(message));
            }
        }
    }

    /// The subagents of a file that has them by name.
    fn listed(&mut self, file: &FolderEntry, list: &mut Vec<Value>) {
        let Some(text) = self.text(file) else { return };
        let all = match markdown::mapping(&file.to_string(), &text, "the file", 0) {
            Ok(all) => all,
            Err(problem) => return self.problems.push(problem),
        };
        let lines = markdown::places(&text, 1);
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
            let places = line.map(|line| (FieldPath::default(), line)).into_iter().collect();
            self.note(file, &FieldPath::of(["subagents"]).then(list.len()), places);
            list.push(Value::Object(settings));
        }
    }

    fn subagent(&mut self, place: &FolderEntry, holds: &FieldPath) -> Option<Map<String, Value>> {
        let (mut subagent, name) = if place.real.is_dir() {
            let nested = place.join("subagents");
            if nested.real.exists() {
                self.problems
                    .push(nested.problem("a subagent has no subagents of its own; put them beside it"));
            }
            (self.settings(place, holds, Role::Subagent)?, place.name())
        } else if place.name() == "AGENTS.md" {
            self.problems
                .push(place.problem("must be in a folder that has the subagent's name"));
            return None;
        } else if place.shown.extension().is_some_and(|extension| extension == "md") {
            let mut subagent = Map::new();
            self.markdown(place, holds, &mut subagent)?;
            (subagent, place.stem())
        } else {
            self.report_unread(place);
            return None;
        };
        subagent.entry("name").or_insert(Value::String(name));
        Some(subagent)
    }

    /// The settings in a folder, in whichever layout they are.
    fn settings(&mut self, place: &FolderEntry, holds: &FieldPath, role: Role) -> Option<Map<String, Value>> {
        let layout = self.layout(place)?;
        let mut settings = self.read_layout(place, layout, (holds, role))?;
        let home = if role == Role::Subagent {
            format!("subagents/{}", place.name())
        } else {
            ".".to_owned()
        };
        servers::read(self, place, (holds, &home), &mut settings)?;
        let tools = place.join(TOOLS);
        if layout == Layout::Managed && tools.real.exists() {
            tools::read(self, &tools, holds, &mut settings)?;
        } else {
            servers::offer(&mut settings);
        }
        let first = |path: &mut String| path.split('/').find(|part| *part != ".").map(str::to_owned);
        let named: Vec<String> = paths(&mut settings).filter_map(first).collect();
        let used = servers::used(&settings, &home);
        for entry in self.entries(place) {
            if !layout.reads(&entry.name(), role) && !named.contains(&entry.name()) && !used.contains(&entry.name()) {
                self.report_unread(&entry);
            }
        }
        if place.join(SKILLS).real.is_dir() {
            settings.entry(SKILLS).or_insert_with(|| json!([SKILLS]));
        }
        if role == Role::Subagent {
            // They are kept with the definition of the agent, whose folder lies further out.
            paths(&mut settings).for_each(|path| *path = format!("{home}/{path}"));
        }
        Some(settings)
    }

    fn read_layout(
        &mut self,
        place: &FolderEntry,
        layout: Layout,
        (holds, role): (&FieldPath, Role),
    ) -> Option<Map<String, Value>> {
        let text = place.join("AGENTS.md");
        let table = place.join(layout.file());
        if !text.real.is_file() && (layout != Layout::Own || !table.real.is_file()) {
            self.problems.push(match layout {
                Layout::Own => place.problem("has neither an AGENTS.md nor an agent.toml"),
                Layout::Deploy | Layout::Managed => {
                    place.problem(format!("has {}, but no AGENTS.md with the instructions", layout.file()))
                }
            });
            return None;
        }
        let mut settings = Map::new();
        if text.real.is_file() {
            self.markdown(&text, holds, &mut settings)?;
        }
        match layout {
            Layout::Own if table.real.is_file() => self.table(&table, holds, &mut settings)?,
            Layout::Own => {}
            Layout::Deploy => deploy::read(self, &table, (holds, role), &mut settings)?,
            Layout::Managed => managed::read(self, place, (holds, role), &mut settings)?,
        }
        Some(settings)
    }

    /// The layout of a folder. None, and a problem, if it has several.
    fn layout(&mut self, place: &FolderEntry) -> Option<Layout> {
        let all = [Layout::Own, Layout::Deploy, Layout::Managed];
        let found: Vec<Layout> = all
            .into_iter()
            .filter(|layout| place.join(layout.file()).real.exists())
            .collect();
        match found.as_slice() {
            [] => Some(Layout::Own),
            [only] => Some(*only),
            [first, second, ..] => {
                let first = first.file();
                let second = second.file();
                let message = format!("has both {first} and {second}, which are two layouts; keep one of them");
                self.problems.push(place.problem(message));
                None
            }
        }
    }

    fn markdown(&mut self, place: &FolderEntry, holds: &FieldPath, into: &mut Map<String, Value>) -> Option<()> {
        let text = self.text(place)?;
        let mut parts = match markdown::parse(&place.to_string(), &text) {
            Ok(parts) => parts,
            Err(problem) => {
                self.problems.push(problem);
                return None;
            }
        };
        if !parts.body.is_empty() {
            if let Some(position) = parts.places.get(&FieldPath::of(["system_prompt"])) {
                let twice = place.problem("must not be given, since the text of the file is the system prompt");
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
            // `name:` with nothing after it is not the same as no name.
            let value = if value.is_null() {
                Value::String(String::new())
            } else {
                value
            };
            into.insert(name, value);
        }
        self.note(place, holds, parts.places);
        Some(())
    }

    fn table(&mut self, place: &FolderEntry, holds: &FieldPath, into: &mut Map<String, Value>) -> Option<()> {
        let text = self.text(place)?;
        let document = document::parse(&place.to_string(), &text);
        if !document.problems.is_empty() {
            self.problems.extend(document.problems);
            return None;
        }
        self.add(place, document.value, &document.places, into);
        self.note(place, holds, document.places);
        Some(())
    }

    /// Adds settings to those of the AGENTS.md beside them.
    fn add(
        &mut self,
        place: &FolderEntry,
        from: Map<String, Value>,
        places: &Positions,
        into: &mut Map<String, Value>,
    ) {
        for (name, value) in from {
            if into.contains_key(&name) {
                let position = places.get(&FieldPath::of([name.as_str()])).copied();
                let twice = place.problem("is also given in the AGENTS.md beside this file");
                self.problems.push(Problem { field: name, ..twice }.at(position));
            } else {
                into.insert(name, value);
            }
        }
    }

    fn note(&mut self, place: &FolderEntry, holds: &FieldPath, places: Positions) {
        let file = place.to_string();
        let holds = holds.clone();
        self.origins.push(SettingOrigin {
            file,
            holds,
            places,
            partial: false,
        });
    }

    fn text(&mut self, place: &FolderEntry) -> Option<String> {
        place.text().map_err(|problem| self.problems.push(problem)).ok()
    }

    /// What lies in a folder, in the order of the names, without what begins with a dot.
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

    /// The JSON object in a file.
    fn object(&mut self, place: &FolderEntry) -> Option<Map<String, Value>> {
        let text = self.text(place)?;
        match serde_json::from_str(&text) {
            Ok(Value::Object(object)) => Some(object),
            Ok(_) => {
                self.problems.push(place.problem("must be a JSON object"));
                None
            }
            Err(error) => {
                let said = error.to_string();
                let said = said.split(" at line ").next().unwrap_or_default();
                let problem = place.problem(format!("is no JSON: {said}"));
                self.problems.push(problem.at(Some((error.line(), error.column()))));
                None
            }
        }
    }

    fn report_error(&mut self, place: &FolderEntry, field: &str, message: &str) {
        self.problems.push(Problem {
            field: field.to_owned(),
            ..place.problem(message)
        });
    }

    fn report_warning(&mut self, place: &FolderEntry, field: &str, message: &str) {
        self.problems.push(Problem {
            field: field.to_owned(),
            ..place.warning(message)
        });
    }

    fn report_unread(&mut self, place: &FolderEntry) {
        let name = place.name();
        let known = UNREAD.iter().find(|(known, _)| *known == name);
        self.problems
            .push(place.warning(known.map_or("is not read", |(_, reason)| reason)));
    }
}
