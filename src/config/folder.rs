//! Agents in folders, one folder each.
//!
//! ```text
//! agents/
//! └── writer/                    the graph_id
//!     ├── AGENTS.md              settings at the top, instructions below
//!     ├── agent.toml             settings, instead of or beside those at the top of AGENTS.md
//!     └── subagents/
//!         ├── critic.md          a subagent in one file, named by its file
//!         └── researcher/        a subagent in a folder, named by its folder
//!             └── AGENTS.md
//! ```
//!
//! The settings are the fields of a definition. Whatever else lies there is named in a problem and never passed over
//! in silence; only names that begin with a dot are.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::problem::{Origin, Problem};
use super::{document, markdown};
use crate::domain::definition::{FieldPath, Severity};

/// Parts of other layouts that say something about an agent and are not understood here.
const OTHER_LAYOUTS: [&str; 11] = [
    "deepagents.toml",
    "agent.json",
    "tools.json",
    "mcp.json",
    ".mcp.json",
    "skills",
    "memory",
    "memories",
    "user",
    "subagents.yaml",
    "subagents.yml",
];

/// An agent that was found in a folder.
pub(super) struct FolderAgent {
    /// The name of the folder.
    pub(super) graph_id: String,
    /// The folder, as people are told of it.
    pub(super) place: String,
    /// Its definition, not yet read.
    pub(super) definition: Value,
    /// Which file holds what of the definition.
    pub(super) origins: Vec<Origin>,
}

/// Finds all agents below `folder`, which people know as `shown`, in the order of their names.
pub(super) fn load(folder: &Path, shown: &Path, problems: &mut Vec<Problem>) -> Vec<FolderAgent> {
    let root = Place { real: folder.to_path_buf(), shown: shown.to_path_buf() };
    let mut search = Search { origins: Vec::new(), problems };
    let mut agents = Vec::new();
    for place in search.entries(&root) {
        if !place.real.is_dir() {
            search.problems.push(place.warning("is not read: an agent is a folder with an AGENTS.md"));
            continue;
        }
        let already = search.problems.len();
        let definition = search.agent(&place);
        for problem in search.problems.iter_mut().skip(already) {
            problem.agent = Some(place.name().into());
        }
        let origins = std::mem::take(&mut search.origins);
        let (graph_id, place) = (place.name(), place.to_string());
        agents.extend(definition.map(|definition| FolderAgent {
            graph_id,
            place,
            definition: Value::Object(definition),
            origins,
        }));
    }
    agents
}

/// A file or folder, and what people call it.
#[derive(Clone)]
struct Place {
    real: PathBuf,
    shown: PathBuf,
}

impl Place {
    fn join(&self, name: &str) -> Self {
        Self { real: self.real.join(name), shown: self.shown.join(name) }
    }

    fn name(&self) -> String {
        self.shown.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn stem(&self) -> String {
        self.shown.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn problem(&self, message: impl Into<String>) -> Problem {
        Problem::in_file(self.to_string(), message)
    }

    fn warning(&self, message: impl Into<String>) -> Problem {
        Problem { severity: Severity::Warning, ..self.problem(message) }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shown.display().fmt(f)
    }
}

struct Search<'p> {
    origins: Vec<Origin>,
    problems: &'p mut Vec<Problem>,
}

impl Search<'_> {
    fn agent(&mut self, place: &Place) -> Option<Map<String, Value>> {
        let mut agent = self.settings(place, &FieldPath::default())?;
        let folder = place.join("subagents");
        if !folder.real.is_dir() {
            return Some(agent);
        }
        let list = agent.entry("subagents").or_insert_with(|| Value::Array(Vec::new()));
        // A list of the wrong shape is told when the definition is read.
        let Value::Array(list) = list else { return Some(agent) };
        for entry in self.entries(&folder) {
            let holds = FieldPath::of(["subagents"]).then(list.len());
            list.extend(self.subagent(&entry, &holds).map(Value::Object));
        }
        Some(agent)
    }

    fn subagent(&mut self, place: &Place, holds: &FieldPath) -> Option<Map<String, Value>> {
        let (mut subagent, name) = if place.real.is_dir() {
            let nested = place.join("subagents");
            if nested.real.exists() {
                self.problems.push(nested.problem("a subagent has no subagents of its own; put them beside it"));
            }
            (self.settings(place, holds)?, place.name())
        } else if place.name() == "AGENTS.md" {
            self.problems.push(place.problem("must be in a folder that has the subagent's name"));
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

    /// The settings in a folder: those of its AGENTS.md and those of its agent.toml.
    fn settings(&mut self, place: &Place, holds: &FieldPath) -> Option<Map<String, Value>> {
        for entry in self.entries(place) {
            if !matches!(entry.name().as_str(), "AGENTS.md" | "agent.toml" | "subagents") {
                self.report_unread(&entry);
            }
        }
        let (text, table) = (place.join("AGENTS.md"), place.join("agent.toml"));
        if !text.real.is_file() && !table.real.is_file() {
            self.problems.push(place.problem("has neither an AGENTS.md nor an agent.toml"));
            return None;
        }
        let mut settings = Map::new();
        if text.real.is_file() {
            self.markdown(&text, holds, &mut settings)?;
        }
        if table.real.is_file() {
            self.table(&table, holds, &mut settings)?;
        }
        Some(settings)
    }

    fn markdown(&mut self, place: &Place, holds: &FieldPath, into: &mut Map<String, Value>) -> Option<()> {
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
                let twice = Problem { field: "system_prompt".to_owned(), ..twice };
                self.problems.push(twice.at(Some(*position)));
            }
            parts.settings.insert("system_prompt".to_owned(), Value::String(parts.body));
        }
        for (name, value) in parts.settings {
            // `name:` with nothing after it is not the same as no name.
            let value = if value.is_null() { Value::String(String::new()) } else { value };
            into.insert(name, value);
        }
        self.note(place, holds, parts.places);
        Some(())
    }

    fn table(&mut self, place: &Place, holds: &FieldPath, into: &mut Map<String, Value>) -> Option<()> {
        let text = self.text(place)?;
        let document = document::parse(&place.to_string(), &text);
        if !document.problems.is_empty() {
            self.problems.extend(document.problems);
            return None;
        }
        for (name, value) in document.value {
            if into.contains_key(&name) {
                let position = document.places.get(&FieldPath::of([name.as_str()])).copied();
                let twice = place.problem("is also given in the AGENTS.md beside this file");
                self.problems.push(Problem { field: name, ..twice }.at(position));
            } else {
                into.insert(name, value);
            }
        }
        self.note(place, holds, document.places);
        Some(())
    }

    fn note(&mut self, place: &Place, holds: &FieldPath, places: super::problem::Places) {
        let (file, holds) = (place.to_string(), holds.clone());
        self.origins.push(Origin { file, holds, places, partial: false });
    }

    fn text(&mut self, place: &Place) -> Option<String> {
        match std::fs::read_to_string(&place.real) {
            Ok(text) => Some(text),
            Err(error) => {
                self.problems.push(place.problem(format!("cannot be read: {error}")));
                None
            }
        }
    }

    /// What lies in a folder, in the order of the names; those that begin with a dot are left out.
    fn entries(&mut self, folder: &Place) -> Vec<Place> {
        let entries = match std::fs::read_dir(&folder.real) {
            Ok(entries) => entries,
            Err(error) => {
                self.problems.push(folder.problem(format!("cannot be read: {error}")));
                return Vec::new();
            }
        };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let is_read = |name: &String| !name.starts_with('.') || OTHER_LAYOUTS.contains(&name.as_str());
        let mut names: Vec<String> = names.filter(is_read).collect();
        names.sort();
        names.iter().map(|name| folder.join(name)).collect()
    }

    fn report_unread(&mut self, place: &Place) {
        self.problems.push(if OTHER_LAYOUTS.contains(&place.name().as_str()) {
            place.problem("this layout is not read yet; put the settings into AGENTS.md or agent.toml")
        } else {
            place.warning("is not read")
        });
    }
}
