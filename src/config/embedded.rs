//! The parts of the configuration that an embedding program brings along: names that definitions may use,
//! definitions, and optionally the text of the configuration.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::problem::SettingOrigin;
use super::{Config, ConfigReader};
use crate::definition::{AgentDefinition, Diagnostic, FieldPath, ValidationContext};

/// The name of the program as a source, in messages.
pub(super) const PROGRAM: &str = "the program";

/// The parts of the configuration that an embedding program brings along.
#[derive(Debug, Clone, Default)]
pub struct Embedded {
    /// The text of the configuration, instead of a file.
    pub text: Option<String>,
    /// The names of the registered parts.
    pub names: ValidationContext,
    /// The agents that the program defines, by `graph_id`.
    pub agents: BTreeMap<String, AgentDefinition>,
}

impl Embedded {
    /// Checks the program's names against those that files declare.
    pub(super) fn check(&self, config: &Config) -> Vec<Diagnostic> {
        let ValidationContext { tools, providers, .. } = &self.names;
        let tools = tools
            .iter()
            .filter(|name| config.tools.contains_key(*name))
            .map(|name| ["tools", name]);
        let providers = providers
            .iter()
            .filter(|name| config.providers.contains_key(*name))
            .map(|name| ["providers", name]);
        let message = "is also registered by the program; one of them needs another name";
        tools
            .chain(providers)
            .map(|path| Diagnostic::error(FieldPath::of(path), message))
            .collect()
    }
}

impl ConfigReader {
    /// Adds the agents that the program defines to those of the file.
    pub(super) fn add_embedded(&mut self, file: &mut Map<String, Value>, embedded: &Embedded) {
        if embedded.agents.is_empty() {
            return;
        }
        let agents = file.entry("agents").or_insert_with(|| Value::Object(Map::new()));
        // A section of the wrong type is reported when the whole configuration is read.
        let Value::Object(agents) = agents else { return };
        for (graph_id, definition) in &embedded.agents {
            let field = FieldPath::of(["agents", graph_id.as_str()]);
            if agents.contains_key(graph_id) {
                self.add(Diagnostic::error(field, "is also defined by the program"));
                continue;
            }
            let Ok(definition) = serde_json::to_value(definition) else {
                continue;
            };
            let file = PROGRAM.to_owned();
            self.origins.0.push(SettingOrigin {
                file,
                prefix: field,
                positions: BTreeMap::new(),
                partial: false,
            });
            self.folders.insert(graph_id.clone(), PROGRAM.to_owned());
            agents.insert(graph_id.clone(), definition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CommandLineSettings, load_from};

    fn settings(text: &str) -> CommandLineSettings {
        let definition: AgentDefinition = serde_json::from_value(serde_json::json!({
            "model": "own:small", "tools": ["dig"],
            "subagents": [{"name": "counter", "description": "Counts the words of a text.", "runnable": "count"}],
        }))
        .expect("a definition");
        let set = |name: &str| [name.to_owned()].into_iter().collect();
        let names = ValidationContext {
            tools: set("dig"),
            providers: set("own"),
            runnables: set("count"),
            ..Default::default()
        };
        let agents = BTreeMap::from([("coded".to_owned(), definition)]);
        CommandLineSettings {
            embedded: Embedded {
                text: Some(text.to_owned()),
                names,
                agents,
            },
            ..CommandLineSettings::default()
        }
    }

    fn load(text: &str) -> Result<Config, String> {
        let folder = tempfile::tempdir().expect("a directory");
        let loaded = load_from(folder.path(), &settings(text));
        loaded
            .map(|loaded| loaded.config)
            .map_err(|problems| problems.to_string())
    }

    #[test]
    fn definitions_in_files_and_code_may_name_registered_parts() {
        let config = load("[agents.written]\nmodel = \"own:large\"\ntools = [\"dig\"]\n").expect("a configuration");
        assert_eq!(config.agents.keys().collect::<Vec<_>>(), ["coded", "written"]);
        assert_eq!(config.files.definition_paths["coded"], "the program");
        assert_eq!(config.agents["coded"].subagents[0].runnable.as_deref(), Some("count"));
    }

    #[test]
    fn a_duplicate_name_is_reported_with_its_position() {
        let tool =
            "kind = \"http\"\ndescription = \"Digs.\"\nurl = \"http://x/dig\"\nparameters = { type = \"object\" }\n";
        let text = format!("[agents.coded]\nmodel = \"own:x\"\n[tools.dig]\n{tool}");
        let told = load(&text).unwrap_err();
        assert_eq!(
            told,
            "the program:1:9: error: agents.coded: is also defined by the program\n\
             the program:3:8: error: tools.dig: is also registered by the program; one of them needs another name"
        );
    }
}
