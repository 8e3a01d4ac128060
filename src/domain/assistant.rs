//! An assistant: named, versioned settings of an agent definition.

use serde_json::{Map, Value, json};

use super::id::AssistantId;
use super::time::Timestamp;
use super::{Invalid, metadata};

/// The name of an assistant that was given none.
pub const UNTITLED: &str = "Untitled";
/// How long a name may be, in characters.
pub const LONGEST_NAME: usize = 512;
/// How long a description may be, in characters.
pub const LONGEST_DESCRIPTION: usize = 16 * 1024;
/// How large `config` and `context` may be, each for itself, in bytes of JSON. They are copied into every run.
pub const LARGEST_SETTING: usize = 128 * 1024;

/// What clients run: an agent definition with settings. The settings are those of the version in use.
#[derive(Debug, Clone, PartialEq)]
pub struct Assistant {
    /// Identifies it.
    pub id: AssistantId,
    /// The number of the version in use.
    pub version: i64,
    /// What that version says.
    pub settings: Settings,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed, or last took another version into use.
    pub updated_at: Timestamp,
}

/// One version of an assistant. Versions never change.
#[derive(Debug, Clone, PartialEq)]
pub struct Version {
    /// The assistant.
    pub assistant: AssistantId,
    /// Counts from 1 within the assistant.
    pub number: i64,
    /// What it says.
    pub settings: Settings,
    /// When it was made.
    pub created_at: Timestamp,
}

/// What a version of an assistant says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// The key of the agent definition.
    pub graph_id: String,
    /// `tags`, `recursion_limit`, `configurable` for every run.
    pub config: Map<String, Value>,
    /// What tools may know about the caller, in every run.
    pub context: Map<String, Value>,
    /// The owner's own notes, searchable. Copied to every run.
    pub metadata: Map<String, Value>,
    /// What people call it.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
}

/// What a new version of an assistant says differently. The default says nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Change {
    /// Another definition.
    pub graph_id: Option<String>,
    /// Takes the place of the old one.
    pub config: Option<Map<String, Value>>,
    /// Takes the place of the old one.
    pub context: Option<Map<String, Value>>,
    /// Keys that are set; the others stay.
    pub metadata: Option<Map<String, Value>>,
    /// Another name.
    pub name: Option<String>,
    /// Another description.
    pub description: Option<String>,
}

impl Assistant {
    /// The assistant that every definition has by itself.
    pub fn automatic(graph_id: &str, name: &str, description: Option<&str>, now: Timestamp) -> Self {
        let settings = Settings {
            graph_id: graph_id.to_owned(),
            metadata: Map::from_iter([("created_by".to_owned(), json!("system"))]),
            name: name.to_owned(),
            description: description.map(str::to_owned),
            ..Settings::default()
        };
        Self::new(AssistantId::of_graph(graph_id), settings, now)
    }

    /// An assistant in its first version.
    pub fn new(id: AssistantId, settings: Settings, now: Timestamp) -> Self {
        Self {
            id,
            version: 1,
            settings,
            created_at: now,
            updated_at: now,
        }
    }

    /// Takes another version into use.
    pub fn take(&mut self, version: Version, now: Timestamp) {
        self.version = version.number;
        self.settings = version.settings;
        self.updated_at = now;
    }
}

impl Settings {
    /// Keeps `context` and `config.configurable`, two names for one thing, alike: what is empty is filled from the other.
    ///
    /// # Errors
    /// When both hold something, and not the same.
    pub fn mirrored(mut self) -> Result<Self, Contradiction> {
        let configurable = configurable(&self.config);
        match (configurable.is_empty(), self.context.is_empty()) {
            (false, true) => self.context = configurable,
            (true, false) => drop(
                self.config
                    .insert("configurable".to_owned(), self.context.clone().into()),
            ),
            (false, false) if configurable != self.context => return Err(Contradiction),
            (false, false) | (true, true) => {}
        }
        Ok(self)
    }

    /// These settings with a change. Like [`Settings::mirrored`], a new `context` or `configurable` changes both; a new
    /// `config` that does not speak of it leaves the context as it is.
    ///
    /// # Errors
    /// When the change itself holds both, and not the same.
    pub fn changed(mut self, change: Change) -> Result<Self, Contradiction> {
        let given = change.config.as_ref().map(configurable).unwrap_or_default();
        match change.context {
            Some(context) if !given.is_empty() && !context.is_empty() && given != context => return Err(Contradiction),
            Some(context) if given.is_empty() => {
                self.config = change.config.unwrap_or(self.config);
                self.config.remove("configurable");
                if !context.is_empty() {
                    self.config.insert("configurable".to_owned(), context.clone().into());
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

    /// Whether everything is within its bounds.
    ///
    /// # Errors
    /// Names the field that is not.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.name.is_empty() || self.name.chars().count() > LONGEST_NAME {
            return Err(Invalid::new(
                "name",
                format!("must have 1 to {LONGEST_NAME} characters"),
            ));
        }
        if self
            .description
            .as_ref()
            .is_some_and(|text| text.chars().count() > LONGEST_DESCRIPTION)
        {
            return Err(Invalid::new(
                "description",
                format!("has more than {LONGEST_DESCRIPTION} characters"),
            ));
        }
        // A context that is too large stands in `config`, too, and shall be named as what it is.
        for (field, value) in [("context", &self.context), ("config", &self.config)] {
            let size = serde_json::to_vec(value).map_or(usize::MAX, |json| json.len());
            if size > LARGEST_SETTING {
                let reason = format!("has {size} bytes of JSON; more than {LARGEST_SETTING} are not kept");
                return Err(Invalid::new(field, reason));
            }
        }
        metadata::check(&self.metadata)
    }

    /// The settings of one run: those of the request, and these where the request says nothing. Objects are merged key by
    /// key at their top, and so is `configurable`.
    pub fn laid_under(&self, config: &Map<String, Value>, context: &Map<String, Value>) -> RunSettings {
        let mut own = configurable(&self.config);
        own.extend(configurable(config));
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
        settings.config.remove("configurable");
        if !own.is_empty() {
            settings.config.insert("configurable".to_owned(), own.into());
        }
        settings
    }
}

/// The settings of one run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunSettings {
    /// `tags`, `recursion_limit`, `configurable`.
    pub config: Map<String, Value>,
    /// What tools may know about the caller.
    pub context: Map<String, Value>,
}

/// Both `config.configurable` and `context` were given, and they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("config.configurable and context differ")]
pub struct Contradiction;

fn configurable(config: &Map<String, Value>) -> Map<String, Value> {
    config
        .get("configurable")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    fn settings(config: Value, context: Value) -> Settings {
        Settings {
            config: object(config),
            context: object(context),
            name: "n".to_owned(),
            ..Settings::default()
        }
    }

    fn both(settings: &Settings) -> Value {
        json!([settings.config, settings.context])
    }

    #[test]
    fn context_and_configurable_are_kept_alike() {
        let given = settings(json!({"tags": ["x"]}), json!({"who": "me"}))
            .mirrored()
            .expect("no contradiction");
        assert_eq!(
            both(&given),
            json!([{"tags": ["x"], "configurable": {"who": "me"}}, {"who": "me"}])
        );
        let given = settings(json!({"configurable": {"a": 1}}), json!({}))
            .mirrored()
            .expect("no contradiction");
        assert_eq!(both(&given), json!([{"configurable": {"a": 1}}, {"a": 1}]));
        let same = settings(json!({"configurable": {"a": 1}}), json!({"a": 1})).mirrored();
        assert!(same.is_ok());
        assert_eq!(
            settings(json!({"configurable": {"a": 1}}), json!({"b": 1})).mirrored(),
            Err(Contradiction)
        );
    }

    #[test]
    fn a_change_replaces_config_and_context_and_extends_metadata() {
        let old = settings(
            json!({"tags": ["x"], "configurable": {"who": "me"}}),
            json!({"who": "me"}),
        );
        let change = |change: Change| old.clone().changed(change);
        let config = change(Change {
            config: Some(object(json!({"recursion_limit": 60}))),
            ..Change::default()
        });
        assert_eq!(
            config.map(|new| both(&new)),
            Ok(json!([{"recursion_limit": 60}, {"who": "me"}]))
        );
        let context = change(Change {
            context: Some(object(json!({"b": 2}))),
            ..Change::default()
        });
        assert_eq!(
            context.map(|new| both(&new)),
            Ok(json!([{"tags": ["x"], "configurable": {"b": 2}}, {"b": 2}]))
        );
        let none = change(Change {
            context: Some(Map::new()),
            ..Change::default()
        });
        assert_eq!(none.map(|new| both(&new)), Ok(json!([{"tags": ["x"]}, {}])));
        let configurable = Change {
            config: Some(object(json!({"configurable": {"c": 3}}))),
            ..Change::default()
        };
        assert_eq!(
            change(configurable).map(|new| both(&new)),
            Ok(json!([{"configurable": {"c": 3}}, {"c": 3}]))
        );
        let two = Change {
            config: Some(object(json!({"configurable": {"c": 3}}))),
            context: Some(object(json!({"d": 4}))),
            ..Change::default()
        };
        assert_eq!(change(two), Err(Contradiction));
        let notes = Change {
            metadata: Some(object(json!({"more": 1}))),
            ..Change::default()
        };
        let noted = Settings {
            metadata: object(json!({"tag": "t"})),
            ..old.clone()
        }
        .changed(notes);
        assert_eq!(
            noted.map(|new| new.metadata),
            Ok(object(json!({"tag": "t", "more": 1})))
        );
        assert_eq!(change(Change::default()), Ok(old.clone()));
    }

    #[test]
    fn what_a_request_says_wins_over_the_assistant_key_by_key() {
        let ours = settings(
            json!({"recursion_limit": 5, "configurable": {"a": 1, "b": 1}}),
            json!({"a": 1, "b": 1}),
        );
        let run = ours.laid_under(&object(json!({"configurable": {"b": 2}})), &object(json!({"b": 2})));
        assert_eq!(
            json!([run.config, run.context]),
            json!([{"recursion_limit": 5, "configurable": {"a": 1, "b": 2}}, {"a": 1, "b": 2}])
        );
        let without = settings(json!({}), json!({"a": 1})).laid_under(&Map::new(), &Map::new());
        assert_eq!(without.config, object(json!({"configurable": {"a": 1}})));
        let plain = Settings::default().laid_under(&Map::new(), &Map::new());
        assert_eq!(plain, RunSettings::default());
    }

    #[test]
    fn what_is_too_large_is_refused_by_name() {
        let field = |settings: Settings| settings.check().map_err(|invalid| invalid.field);
        assert_eq!(field(settings(json!({}), json!({}))), Ok(()));
        assert_eq!(field(Settings::default()), Err("name".to_owned()));
        assert_eq!(
            field(settings(json!({}), json!({"x": "y".repeat(LARGEST_SETTING)}))),
            Err("context".to_owned())
        );
        let long = Settings {
            name: "é".repeat(LONGEST_NAME + 1),
            ..Settings::default()
        };
        assert_eq!(field(long), Err("name".to_owned()));
    }
}
