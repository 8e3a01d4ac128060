//! The state fields of an agent, and the validation of updates against their schemas.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::Invalid;
use super::field::{FieldDefinition, FieldVisibility, Merge, Rules};
use super::schema::Schema;
use super::state::Update;

/// The declared fields of an agent, with compiled schemas.
#[derive(Default)]
pub struct DeclaredFields(BTreeMap<String, (FieldDefinition, Option<Schema>)>);

impl DeclaredFields {
    /// Compiles the schemas. An invalid schema is refused when the definition is read; here it accepts every value.
    pub fn new(fields: &BTreeMap<String, FieldDefinition>) -> Self {
        let ready = |field: &FieldDefinition| {
            (
                field.clone(),
                field.schema.as_ref().and_then(|schema| Schema::compile(schema).ok()),
            )
        };
        Self(
            fields
                .iter()
                .map(|(name, field)| (name.clone(), ready(field)))
                .collect(),
        )
    }

    /// Returns the rules of the fields.
    pub fn rules(&self) -> Rules {
        Arc::new(
            self.0
                .iter()
                .map(|(name, (field, _))| (name.clone(), field.rule()))
                .collect(),
        )
    }

    /// Returns whether a field with this name is declared.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Iterates over the names and definitions.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &FieldDefinition)> {
        self.0.iter().map(|(name, (field, _))| (name.as_str(), field))
    }

    /// Validates an update by a tool or a client.
    ///
    /// # Errors
    /// Returns the first field that does not match its schema.
    pub fn check(&self, update: &Update) -> Result<(), Invalid> {
        for (name, value) in &update.fields {
            let Some((field, schema)) = self.0.get(name) else {
                continue;
            };
            if value.is_null() {
                continue;
            }
            match field.merge {
                Merge::Append if !value.is_array() => {
                    return Err(Invalid::new(name, "must be a list: its items are appended"));
                }
                Merge::ByKey if !value.is_object() => {
                    return Err(Invalid::new(name, "must be an object: its keys are set"));
                }
                Merge::Append | Merge::ByKey | Merge::Last => {}
            }
            if let Some(schema) = schema {
                schema.check(name, value)?;
            }
        }
        Ok(())
    }

    /// Returns whether the validation is so expensive that it belongs on a blocking thread.
    pub fn takes_long(&self, update: &Update) -> bool {
        update.fields.iter().any(|(name, value)| {
            let schema = self.0.get(name).and_then(|(_, schema)| schema.as_ref());
            schema.is_some_and(|schema| schema.takes_long(value))
        })
    }

    /// Validates the input of a run.
    ///
    /// # Errors
    /// Returns the first field that does not match its schema, or that an input cannot write.
    pub fn check_input(&self, input: &Update) -> Result<(), Invalid> {
        let given = |name: &String| {
            self.0.get(name).is_some_and(|(field, _)| {
                matches!(field.visibility, FieldVisibility::Output | FieldVisibility::Private)
            })
        };
        if let Some(name) = input.fields.keys().find(|name| given(name)) {
            return Err(Invalid::new(name, "cannot be written by an input; leave it out"));
        }
        self.check(input)
    }
}

impl fmt::Debug for DeclaredFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_error_names_the_invalid_field() {
        let field = |merge, visibility, schema: Option<Value>| FieldDefinition {
            merge,
            visibility,
            schema,
        };
        let numbers = json!({"type": "array", "items": {"type": "integer"}});
        let declared = DeclaredFields::new(&BTreeMap::from([
            (
                "log".to_owned(),
                field(Merge::Append, FieldVisibility::Public, Some(numbers)),
            ),
            ("map".to_owned(), field(Merge::ByKey, FieldVisibility::Public, None)),
            ("score".to_owned(), field(Merge::Last, FieldVisibility::Output, None)),
        ]));
        let wrong = |name: &str, value: Value| declared.check(&Update::field(name, value)).map_err(|error| error.field);
        assert_eq!(wrong("log", json!([1, "x"])), Err("log.1".to_owned()));
        assert_eq!(wrong("log", json!(7)), Err("log".to_owned()));
        assert_eq!(wrong("map", json!([])), Err("map".to_owned()));
        assert_eq!(wrong("other", json!([])), Ok(()));
        assert_eq!(wrong("score", json!(1)), Ok(()));
        assert!(declared.check_input(&Update::field("score", json!(1))).is_err());
    }
}
