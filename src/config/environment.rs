//! Settings from the environment: `ADJUTANT_SECTION__KEY` is the key `key` of the section `[section]`.
//!
//! Two underscores separate the levels. The value is read as TOML, and as a text if it is none. Only names of which the
//! part before the first two underscores is a section are settings; others belong to the operator, for example those
//! of secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use toml::de::DeValue;

use super::document;
use super::problem::{Positions, Problem, SettingOrigin};
use crate::definition::{Diagnostic, FieldPath, Segment, Severity};
use crate::domain::suggestion::nearest;

/// The beginning of the names of all variables of the server.
const PREFIX: &str = "ADJUTANT_";

/// The separator of levels.
const SEPARATOR: &str = "__";

/// The file with environment variables beside the configuration.
const ENV_FILE: &str = ".env";

/// The sections of the configuration, whose settings can be given by the environment.
pub(super) const SECTIONS: [&str; 27] = [
    "server",
    "storage",
    "encryption",
    "runtime",
    "cluster",
    "store",
    "threads",
    "checkpointer",
    "webhooks",
    "peers",
    "answers",
    "audit",
    "agents_api",
    "auth",
    "quotas",
    "tenants",
    "prices",
    "log",
    "telemetry",
    "providers",
    "secrets",
    "tools",
    "mcp_servers",
    "tool_servers",
    "sandboxes",
    "profiles",
    "agents",
];

/// The environment variables that may be settings, and what could not be read of the file `.env`.
#[derive(Clone, Default)]
pub struct EnvironmentSettings {
    /// The variables, by name. The values may be secret.
    variables: BTreeMap<String, String>,
    problems: Vec<Problem>,
}

/// A setting that the command line or the environment has given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingOverride {
    /// The setting, as in `server.listen`.
    pub field: String,
    /// The option or the variable.
    pub source: String,
}

impl fmt::Debug for EnvironmentSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

impl EnvironmentSettings {
    /// Returns the variables that may be settings.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_setting = |(name, value): &(String, String)| {
            name.starts_with(PREFIX) && name.contains(SEPARATOR) && !value.trim().is_empty()
        };
        Self {
            variables: variables.into_iter().filter(is_setting).collect(),
            problems: vec![],
        }
    }

    /// Reads the environment of the process.
    pub(super) fn of_process(problems: Vec<Problem>) -> Self {
        Self {
            problems,
            ..Self::new(super::variables())
        }
    }

    /// Sets the settings in a configuration.
    pub(super) fn apply(&self, document: &mut Map<String, Value>) -> AppliedEnvironment {
        let mut applied = AppliedEnvironment {
            problems: self.problems.clone(),
            ..AppliedEnvironment::default()
        };
        for (name, text) in &self.variables {
            applied.add(name, text, document);
        }
        applied
    }
}

/// The result of [`EnvironmentSettings::apply`].
#[derive(Default)]
pub(super) struct AppliedEnvironment {
    pub(super) origins: Vec<SettingOrigin>,
    pub(super) problems: Vec<Problem>,
    pub(super) overrides: Vec<SettingOverride>,
    /// The text of each variable, by the setting.
    texts: BTreeMap<FieldPath, String>,
}

impl AppliedEnvironment {
    fn add(&mut self, name: &str, text: &str, document: &mut Map<String, Value>) {
        let parts: Vec<&str> = name.strip_prefix(PREFIX).unwrap_or(name).split(SEPARATOR).collect();
        let Some((section, way)) = parts.split_first() else {
            return;
        };
        let section = section.to_lowercase();
        if !SECTIONS.contains(&section.as_str()) {
            self.problems.extend(unknown_section(name, &section));
            return;
        }
        let field = match field_of(&section, way, document) {
            Ok(field) => field,
            Err(message) => return self.problems.push(Problem::in_file(name, message)),
        };
        let mut positions = Positions::new();
        let value = read_value(text, &field, &mut positions);
        if let Err(message) = set(document, &field, value, &mut positions) {
            return self.problems.push(Problem::in_file(name, message));
        }
        self.overrides.push(SettingOverride {
            field: field.to_string(),
            source: name.to_owned(),
        });
        self.texts.insert(field, text.to_owned());
        self.origins.push(SettingOrigin {
            file: name.to_owned(),
            prefix: FieldPath::default(),
            positions,
            partial: true,
        });
    }

    /// Corrects values that were read as TOML of another type than the setting has: a text that looks like a number, or
    /// a list of words separated by commas. Returns whether any was corrected.
    pub(super) fn correct(&self, document: &mut Map<String, Value>, findings: &[Diagnostic]) -> bool {
        let mut has_corrected = false;
        for finding in findings {
            let Some(text) = self.texts.get(&finding.field) else {
                continue;
            };
            let wants = |words: &str| finding.message.starts_with(words);
            let value = if wants("must be a text, not ") || wants("must be path string, not ") {
                Value::String(text.clone())
            } else if wants("must be a list, not a text") {
                text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect()
            } else {
                continue;
            };
            has_corrected |= set(document, &finding.field, value, &mut Positions::new()).is_ok();
        }
        has_corrected
    }
}

/// Returns a warning about a variable that seems to be meant as a setting of a section that exists.
fn unknown_section(name: &str, section: &str) -> Option<Problem> {
    let meant = nearest(section, SECTIONS)?;
    let message = format!(
        "is not read as a setting: there is no section `{section}`; did you mean `{PREFIX}{}{SEPARATOR}…`?",
        meant.to_uppercase()
    );
    Some(Problem {
        severity: Severity::Warning,
        ..Problem::in_file(name, message)
    })
}

/// Returns the setting that the parts of a name stand for.
fn field_of(section: &str, way: &[&str], document: &Map<String, Value>) -> Result<FieldPath, String> {
    if way.is_empty() || way.contains(&"") {
        return Err(format!(
            "must be {PREFIX}SECTION{SEPARATOR}KEY, with two underscores between the levels and none at the end"
        ));
    }
    let mut field = FieldPath::of([section]);
    let mut current = document.get(section);
    for part in way {
        let segment = match current {
            Some(Value::Array(_)) => Segment::Index(index_in(part, &field)?),
            Some(Value::Object(fields)) => Segment::Key(key_in(Some(fields), part, &field)),
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => {
                Segment::Key(key_in(None, part, &field))
            }
        };
        current = current.and_then(|value| match &segment {
            Segment::Key(key) => value.get(key),
            Segment::Index(index) => value.get(index),
        });
        field.0.push(segment);
    }
    Ok(field)
}

fn index_in(part: &str, list: &FieldPath) -> Result<usize, String> {
    part.parse()
        .map_err(|_| format!("`{list}` is a list, so `{part}` must be the number of an entry, from 0"))
}

/// Returns the key that a part of a name stands for: a key of the table that is written alike, or else the part in lower
/// case. A part with lower-case letters is taken as it is written, and so are names of environment variables.
fn key_in(fields: Option<&Map<String, Value>>, part: &str, table: &FieldPath) -> String {
    let names = || fields.into_iter().flat_map(Map::keys);
    if let Some(exact) = names().find(|key| *key == part) {
        return exact.clone();
    }
    let mut alike = names().filter(|key| variable_form(key) == part.to_uppercase());
    if let (Some(only), None) = (alike.next(), alike.next()) {
        return only.clone();
    }
    let holds_variables = matches!(table.0.last(), Some(Segment::Key(key)) if key == "env");
    match holds_variables || part.chars().any(char::is_lowercase) {
        true => part.to_owned(),
        false => part.to_lowercase(),
    }
}

/// Returns a key as it is written in the name of a variable.
fn variable_form(key: &str) -> String {
    key.chars()
        .flat_map(char::to_uppercase)
        .map(|c| if c.is_alphanumeric() { c } else { '_' })
        .collect()
}

/// Returns the value of a variable, and adds the places in it.
fn read_value(text: &str, field: &FieldPath, positions: &mut Positions) -> Value {
    let text = text.trim();
    match DeValue::parse(text) {
        // The text of a date may differ from the given one.
        Ok(value) if !matches!(value.get_ref(), DeValue::Datetime(_)) => {
            document::value(text, field, &value, positions)
        }
        Ok(_) | Err(_) => Value::String(text.to_owned()),
    }
}

/// Sets a field. Tables on the way are created, and added to `positions` with the field itself.
fn set(
    document: &mut Map<String, Value>,
    field: &FieldPath,
    value: Value,
    positions: &mut Positions,
) -> Result<(), String> {
    let Some((Segment::Key(section), way)) = field.0.split_first() else {
        return Ok(());
    };
    let mut here = FieldPath::of([section.as_str()]);
    let mut current = document
        .entry(section.as_str())
        .or_insert_with(|| Value::Object(Map::new()));
    for segment in way {
        let table = here.clone();
        here.0.push(segment.clone());
        current = match (current, segment) {
            (Value::Object(fields), Segment::Key(key)) => {
                if !fields.contains_key(key) {
                    positions.insert(here.clone(), (1, 1));
                }
                fields.entry(key).or_insert_with(|| Value::Object(Map::new()))
            }
            (Value::Array(items), Segment::Index(index)) => {
                let length = items.len();
                let item = items.get_mut(*index);
                item.ok_or_else(|| format!("`{table}` has {length} entries, so there is no `{here}`"))?
            }
            _ => return Err(format!("`{table}` is no table, so there is no `{here}`")),
        };
    }
    positions.insert(field.clone(), (1, 1));
    *current = value;
    Ok(())
}

/// Sets the environment variables in the file `.env` of a folder that are not set yet. Returns what could not be read, as
/// warnings.
///
/// It must be called before threads are started.
pub(super) fn load_env_file(folder: &Path) -> Vec<Problem> {
    let path: PathBuf = folder.join(ENV_FILE);
    if !path.is_file() {
        return vec![];
    }
    let name = path.strip_prefix(".").unwrap_or(&path).display().to_string();
    // Lines are not repeated, since they may be secret.
    let (line, message) = match dotenvy::from_path(&path) {
        Ok(()) => return vec![],
        Err(dotenvy::Error::LineParse(line, _)) => (
            line_number(&path, &line),
            "is not `NAME=value`; values with spaces or `#` need quotes. From here on the file is not read".to_owned(),
        ),
        Err(dotenvy::Error::Io(error)) => (None, format!("cannot be read: {error}")),
        Err(_) => (None, "cannot be read".to_owned()),
    };
    vec![Problem {
        severity: Severity::Warning,
        ..Problem::in_file(name, message).at(line.map(|line| (line, 1)))
    }]
}

/// Returns the number of a line in a file.
fn line_number(path: &Path, line: &str) -> Option<usize> {
    let text = std::fs::read_to_string(path).ok()?;
    let wanted = line.lines().next().unwrap_or_default().trim();
    // The parser names the value alone, or the whole line, and leaves out a comment behind it.
    let at_end = text.lines().position(|other| other.trim().ends_with(wanted));
    let position = at_end.or_else(|| text.lines().position(|other| other.contains(wanted)));
    position.filter(|_| !wanted.is_empty()).map(|before| before + 1)
}
