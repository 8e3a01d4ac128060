//! Assistants: named, versioned settings of an agent definition.

use serde_json::{Map, Value, json};

use super::access::Ownership;
use super::id::AssistantId;
use super::run_config::{CONFIGURABLE, ContextConflict, configurable, mirror, set_configurable};
use super::time::Timestamp;
use super::{Invalid, metadata};

/// The name of an assistant whose request gave none.
pub const UNTITLED: &str = "Untitled";
/// The maximum length of a name, in characters.
pub const MAX_NAME_CHARS: usize = 512;
/// The maximum length of a description, in characters.
pub const MAX_DESCRIPTION_CHARS: usize = 16 * 1024;
/// The maximum size of `config` and of `context`, each in bytes of JSON. Both are copied into every run.
pub const MAX_SETTING_BYTES: usize = 128 * 1024;

/// An assistant: an agent definition with settings, the target of a run. The settings are those of the version in use.
#[derive(Debug, Clone, PartialEq)]
pub struct Assistant {
    /// The id.
    pub id: AssistantId,
    /// The owner and the tenant.
    pub ownership: Ownership,
    /// The number of the version in use.
    pub version: i64,
    /// The settings of the version in use.
    pub settings: AssistantSettings,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The time of the last change, including a switch to another version.
    pub updated_at: Timestamp,
}

/// One version of an assistant. Versions never change.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantVersion {
    /// The assistant.
    pub assistant: AssistantId,
    /// The number of the version, counted from 1 within the assistant.
    pub number: i64,
    /// The settings of the version.
    pub settings: AssistantSettings,
    /// The time of creation.
    pub created_at: Timestamp,
}

/// The settings of one version of an assistant.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AssistantSettings {
    /// The key of the agent definition.
    pub graph_id: String,
    /// `tags`, `recursion_limit` and `configurable` for every run.
    pub config: Map<String, Value>,
    /// The context of every run, readable by tools and policies.
    pub context: Map<String, Value>,
    /// The client's metadata, searchable and copied to every run.
    pub metadata: Map<String, Value>,
    /// The display name.
    pub name: String,
    /// The description.
    pub description: Option<String>,
}

/// A change of an assistant's settings. The default changes nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AssistantChange {
    /// The key of another definition.
    pub graph_id: Option<String>,
    /// A value that replaces the old one.
    pub config: Option<Map<String, Value>>,
    /// A value that replaces the old one.
    pub context: Option<Map<String, Value>>,
    /// Keys to set; the others stay.
    pub metadata: Option<Map<String, Value>>,
    /// A new name.
    pub name: Option<String>,
    /// A new description.
    pub description: Option<String>,
}

impl Assistant {
    /// Creates the default assistant of a definition, which belongs to the server.
    pub fn automatic(graph_id: &str, name: &str, description: Option<&str>, now: Timestamp) -> Self {
        let settings = AssistantSettings {
            graph_id: graph_id.to_owned(),
            metadata: Map::from_iter([("created_by".to_owned(), json!("system"))]),
            name: name.to_owned(),
            description: description.map(str::to_owned),
            ..AssistantSettings::default()
        };
        Self::new(AssistantId::of_graph(graph_id), Ownership::of_server(), settings, now)
    }

    /// Creates an assistant with version 1.
    pub fn new(id: AssistantId, ownership: Ownership, settings: AssistantSettings, now: Timestamp) -> Self {
        Self {
            id,
            ownership,
            version: 1,
            settings,
            created_at: now,
            updated_at: now,
        }
    }

    /// Switches to another version.
    pub fn take(&mut self, version: AssistantVersion, now: Timestamp) {
        self.version = version.number;
        self.settings = version.settings;
        self.updated_at = now;
    }
}

impl AssistantSettings {
    /// Returns the settings with `context` and `config.configurable`, two names for one value, made equal: an empty one
    /// is filled from the other.
    ///
    /// # Errors
    /// Returns [`ContextConflict`] if both are given and differ.
    pub fn mirrored(mut self) -> Result<Self, ContextConflict> {
        mirror(&mut self.config, &mut self.context)?;
        Ok(self)
    }

    /// Returns these settings with a change applied. As in [`AssistantSettings::mirrored`], a new `context` or
    /// `configurable` changes both; a new `config` without `configurable` leaves the context as it is.
    ///
    /// # Errors
    /// Returns [`ContextConflict`] if the change gives both and they differ.
    pub fn changed(mut self, change: AssistantChange) -> Result<Self, ContextConflict> {
        let given = change.config.as_ref().map(own_configurable).unwrap_or_default();
        match change.context {
            Some(context) if !given.is_empty() && !context.is_empty() && given != context => {
                return Err(ContextConflict);
            }
            Some(context) if given.is_empty() => {
                self.config = change.config.unwrap_or(self.config);
                self.config.remove(CONFIGURABLE);
                if !context.is_empty() {
                    set_configurable(&mut self.config, context.clone());
                }
                self.context = context;
            }
            Some(_) | None => {
                if !given.is_empty() {
                    self.context = given;
                }
                self.config = change.config.unwrap_or(self.config);
            }
        }
        self.metadata.extend(change.metadata.unwrap_or_default());
        self.graph_id = change.graph_id.unwrap_or(self.graph_id);
        self.name = change.name.unwrap_or(self.name);
        self.description = change.description.or(self.description);
        Ok(self)
    }

    /// Checks every field against its maximum size.
    ///
    /// # Errors
    /// Returns the first field that is too large.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.name.is_empty() || self.name.chars().count() > MAX_NAME_CHARS {
            return Err(Invalid::new(
                "name",
                format!("must have 1 to {MAX_NAME_CHARS} characters"),
            ));
        }
        if self
            .description
            .as_ref()
            .is_some_and(|text| text.chars().count() > MAX_DESCRIPTION_CHARS)
        {
            return Err(Invalid::new(
                "description",
                format!("has more than {MAX_DESCRIPTION_CHARS} characters"),
            ));
        }
        // `context` comes first: one that is too large is part of `config`, too, and the error shall name `context`.
        for (field, value) in [("context", &self.context), ("config", &self.config)] {
            let size = serde_json::to_vec(value).map_or(usize::MAX, |json| json.len());
            if size > MAX_SETTING_BYTES {
                let reason = format!("has {size} bytes of JSON; at most {MAX_SETTING_BYTES} are allowed");
                return Err(Invalid::new(field, reason));
            }
        }
        metadata::check(&self.metadata)
    }

    /// Returns the settings of one run: those of the request, with these as defaults. Objects are merged by their
    /// top-level keys, and so is `configurable`.
    pub fn as_defaults_for(&self, config: &Map<String, Value>, context: &Map<String, Value>) -> RunSettings {
        let mut own = own_configurable(&self.config);
        own.extend(own_configurable(config));
        let mut merged = self.context.clone();
        merged.extend(context.clone());
        let mut settings = RunSettings {
            config: self.config.clone(),
            context: merged,
        };
        settings.config.extend(config.clone());
        if own.is_empty() {
            own = settings.context.clone();
        }
        settings.config.remove(CONFIGURABLE);
        if !own.is_empty() {
            set_configurable(&mut settings.config, own);
        }
        settings
    }
}

/// The settings of one run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunSettings {
    /// `tags`, `recursion_limit` and `configurable`.
    pub config: Map<String, Value>,
    /// The context, readable by tools and policies.
    pub context: Map<String, Value>,
}

impl RunSettings {
    /// Puts an entry into the context, or removes it.
    pub fn put(&mut self, name: &str, value: Option<&Value>) {
        let mut configurable = own_configurable(&self.config);
        for context in [&mut self.context, &mut configurable] {
            match value {
                Some(value) => drop(context.insert(name.to_owned(), value.clone())),
                None => drop(context.remove(name)),
            }
        }
        set_configurable(&mut self.config, configurable);
    }
}

/// Returns a copy of the `configurable` of a config, which may be empty.
fn own_configurable(config: &Map<String, Value>) -> Map<String, Value> {
    configurable(config).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    fn settings(config: Value, context: Value) -> AssistantSettings {
        AssistantSettings {
            config: object(config),
            context: object(context),
            name: "n".to_owned(),
            ..AssistantSettings::default()
        }
    }

    fn both(settings: &AssistantSettings) -> Value {
        json!([settings.config, settings.context])
    }

    #[test]
    fn a_change_replaces_config_and_context_and_extends_metadata() {
        let old = settings(
            json!({"tags": ["x"], "configurable": {"who": "me"}}),
            json!({"who": "me"}),
        );
        let change = |change: AssistantChange| old.clone().changed(change);
        let config = change(AssistantChange {
            config: Some(object(json!({"recursion_limit": 60}))),
            ..AssistantChange::default()
        });
        assert_eq!(
            config.map(|new| both(&new)),
            Ok(json!([{"recursion_limit": 60}, {"who": "me"}]))
        );
        let context = change(AssistantChange {
            context: Some(object(json!({"b": 2}))),
            ..AssistantChange::default()
        });
        assert_eq!(
            context.map(|new| both(&new)),
            Ok(json!([{"tags": ["x"], "configurable": {"b": 2}}, {"b": 2}]))
        );
        let none = change(AssistantChange {
            context: Some(Map::new()),
            ..AssistantChange::default()
        });
        assert_eq!(none.map(|new| both(&new)), Ok(json!([{"tags": ["x"]}, {}])));
        let configurable = AssistantChange {
            config: Some(object(json!({"configurable": {"c": 3}}))),
            ..AssistantChange::default()
        };
        assert_eq!(
            change(configurable).map(|new| both(&new)),
            Ok(json!([{"configurable": {"c": 3}}, {"c": 3}]))
        );
        let two = AssistantChange {
            config: Some(object(json!({"configurable": {"c": 3}}))),
            context: Some(object(json!({"d": 4}))),
            ..AssistantChange::default()
        };
        assert_eq!(change(two), Err(ContextConflict));
        let notes = AssistantChange {
            metadata: Some(object(json!({"more": 1}))),
            ..AssistantChange::default()
        };
        let noted = AssistantSettings {
            metadata: object(json!({"tag": "t"})),
            ..old.clone()
        }
        .changed(notes);
        assert_eq!(
            noted.map(|new| new.metadata),
            Ok(object(json!({"tag": "t", "more": 1})))
        );
        assert_eq!(change(AssistantChange::default()), Ok(old.clone()));
    }

    #[test]
    fn settings_of_a_request_override_the_assistant_key_by_key() {
        let ours = settings(
            json!({"recursion_limit": 5, "configurable": {"a": 1, "b": 1}}),
            json!({"a": 1, "b": 1}),
        );
        let run = ours.as_defaults_for(&object(json!({"configurable": {"b": 2}})), &object(json!({"b": 2})));
        assert_eq!(
            json!([run.config, run.context]),
            json!([{"recursion_limit": 5, "configurable": {"a": 1, "b": 2}}, {"a": 1, "b": 2}])
        );
        let without = settings(json!({}), json!({"a": 1})).as_defaults_for(&Map::new(), &Map::new());
        assert_eq!(without.config, object(json!({"configurable": {"a": 1}})));
        let plain = AssistantSettings::default().as_defaults_for(&Map::new(), &Map::new());
        assert_eq!(plain, RunSettings::default());
    }

    #[test]
    fn a_field_that_is_too_large_is_refused_by_name() {
        let field = |settings: AssistantSettings| settings.check().map_err(|invalid| invalid.field);
        assert_eq!(field(settings(json!({}), json!({}))), Ok(()));
        assert_eq!(field(AssistantSettings::default()), Err("name".to_owned()));
        assert_eq!(
            field(settings(json!({}), json!({"x": "y".repeat(MAX_SETTING_BYTES)}))),
            Err("context".to_owned())
        );
        let long = AssistantSettings {
            name: "é".repeat(MAX_NAME_CHARS + 1),
            ..AssistantSettings::default()
        };
        assert_eq!(field(long), Err("name".to_owned()));
    }
}
