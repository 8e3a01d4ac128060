//! The shapes of requests and responses. They are a promise to clients and do not change.
//!
//! Conversions to the wire always succeed; those from the wire name the invalid field.

use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::error::ApiError;
use crate::domain::Invalid;
use crate::domain::id::{CheckpointId, TaskId};
use crate::domain::machine::Failure;
use crate::domain::run_config::configurable_mut;

pub mod agent;
pub mod approval;
pub mod assistant;
pub mod call;
pub mod child_run;
pub mod compaction;
pub mod cron;
pub mod delivery;
pub mod history;
pub mod interrupt;
pub mod item;
pub mod key;
pub mod retention;
pub mod run;
pub mod server_sent_event;
pub mod state;
pub mod stream_mode;
pub mod thread;
pub mod thread_command;
pub mod user;
pub mod values;
pub mod webhook_report;

/// A JSON object.
pub type Object = Map<String, Value>;

/// An error as the SDKs expect it: `{"error": "<class>", "message": "<text>"}`.
pub fn failure(failure: &Failure) -> Value {
    serde_json::json!({"error": failure.class, "message": failure.message})
}

/// The JSON of a view. Views are plain records, so encoding cannot fail.
pub fn json(view: &impl serde::Serialize) -> Value {
    serde_json::to_value(view).unwrap_or_default()
}

/// The JSON text of a view, without the values in between.
pub fn json_text(view: &impl serde::Serialize) -> String {
    serde_json::to_string(view).unwrap_or_else(|_| "null".to_owned())
}

/// The reason why a run or a write cannot name a checkpoint of a subagent.
const MAIN_AGENT_ONLY: &str = "must be empty: only checkpoints of the main agent can be named";

/// Reads an id of this kind, such as `thread`.
///
/// # Errors
/// If it is not a UUID.
pub fn read_id<T: FromStr>(id: &str, kind: &str) -> Result<T, ApiError> {
    id.parse().map_err(|_| ApiError::bad_id(kind))
}

/// Reads a text in an object that names a checkpoint; none if it is absent or null. Without it, the newest checkpoint of the
/// main agent is meant, so another value must not count as none.
fn text_in<'a>(object: Option<&'a Object>, name: &str) -> Result<Option<&'a str>, Invalid> {
    match object.and_then(|object| object.get(name)) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(Invalid::new(format!("checkpoint.{name}"), "must be a text")),
    }
}

/// Reads a checkpoint from its id, or from an object with its id, which takes precedence.
///
/// # Errors
/// If the id is not a UUID, or the object names a checkpoint of a subagent.
pub fn checkpoint(id: Option<&str>, object: Option<&Object>) -> Result<Option<CheckpointId>, ApiError> {
    if text_in(object, "checkpoint_ns")?.is_some_and(|namespace| !namespace.is_empty()) {
        return Err(Invalid::new("checkpoint.checkpoint_ns", MAIN_AGENT_ONLY).into());
    }
    let id = text_in(object, "checkpoint_id")?.or(id);
    id.map(|id| {
        id.parse::<Uuid>()
            .map(CheckpointId)
            .map_err(|_| ApiError::bad_checkpoint_id())
    })
    .transpose()
}

/// Removes from the config of a run the checkpoint to start from, which clients of LangGraph name in `configurable`. It
/// is no setting, so it is not stored with the others: the config of a run, sent again, does not start there again.
///
/// # Errors
/// If the id is not a UUID, or the checkpoint is one of a subagent.
pub fn take_checkpoint(config: &mut Object) -> Result<Option<CheckpointId>, Invalid> {
    let Some(settings) = configurable_mut(config) else {
        return Ok(None);
    };
    let namespace = settings.shift_remove("checkpoint_ns");
    let named = settings.shift_remove("checkpoint_id");
    let Some(named) = named.filter(|named| !named.is_null() && named.as_str() != Some("")) else {
        return Ok(None);
    };
    let namespace = namespace.as_ref().and_then(Value::as_str);
    if namespace.is_some_and(|namespace| !namespace.is_empty()) {
        return Err(Invalid::new("config.configurable.checkpoint_ns", MAIN_AGENT_ONLY));
    }
    let id = named.as_str().and_then(|text| text.parse::<Uuid>().ok());
    let wrong = || {
        Invalid::new(
            "config.configurable.checkpoint_id",
            "must be the id of a checkpoint, a UUID",
        )
    };
    id.map(|id| Some(CheckpointId(id))).ok_or_else(wrong)
}

/// The beginning of the names that LangGraph reserves in `configurable` for itself.
const RESERVED: &str = "__pregel_";

/// Removes from the config of a run the entries that LangGraph reserves for itself. A program of LangGraph that has an agent of
/// this server as a node (`RemoteGraph`) sends them along; they are no settings. Returns the answers that the program was
/// given, by interrupt id, if it continues after it has stopped.
pub fn take_program_answers(config: &mut Object) -> Option<Object> {
    let settings = configurable_mut(config)?;
    let continues = settings.get("__pregel_resuming") == Some(&Value::Bool(true));
    let answers = match settings.shift_remove("__pregel_resume_map") {
        Some(Value::Object(answers)) => answers,
        Some(_) | None => Object::new(),
    };
    settings.retain(|name, _| !name.starts_with(RESERVED));
    continues.then_some(answers)
}

/// Reads a namespace (`checkpoint_ns`, empty or absent for the main agent) and a checkpoint from an object.
///
/// # Errors
/// If the namespace is invalid, or the id is not a UUID.
pub fn namespace_and_checkpoint(object: Option<&Object>) -> Result<(Vec<TaskId>, Option<CheckpointId>), ApiError> {
    let id = text_in(object, "checkpoint_id")?;
    let id = id.map(|id| id.parse().map(CheckpointId).map_err(|_| ApiError::bad_checkpoint_id()));
    Ok((namespace(text_in(object, "checkpoint_ns")?)?, id.transpose()?))
}

/// Reads the tasks of a namespace: `tools:<task>|tools:<task>`. Nodes of other names before them are those of a program of
/// LangGraph that calls the main agent (`RemoteGraph`).
///
/// # Errors
/// If the namespace is invalid.
pub fn namespace(text: Option<&str>) -> Result<Vec<TaskId>, Invalid> {
    let parts = text.filter(|text| !text.is_empty()).map(|text| text.split('|'));
    let read = |part: &str| {
        let task = part.strip_prefix(TASK).and_then(|id| id.parse().ok()).map(TaskId);
        let reason = "must be a namespace such as tools:<task>|tools:<task>";
        task.ok_or_else(|| Invalid::new("checkpoint.checkpoint_ns", reason))
    };
    let own = parts.into_iter().flatten().skip_while(|part| is_node_of_program(part));
    own.map(read).collect()
}

/// The beginning of the part of a namespace that names a task of this server.
const TASK: &str = "tools:";

/// Returns whether a part of a namespace is a task of another program: the name of a node, and the id of the task.
fn is_node_of_program(part: &str) -> bool {
    let task = part.rsplit_once(':').filter(|_| !part.starts_with(TASK));
    task.is_some_and(|(node, id)| !node.is_empty() && id.parse::<Uuid>().is_ok())
}

/// Deserializes a field that may be null, so that null differs from a field that is absent: with serde's `default`, the
/// latter is none.
fn read_nullable<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// Reads a field that holds one of several words.
///
/// # Errors
/// Names the field and the allowed words.
pub fn word<T>(field: &str, word: Option<&str>, all: &[(&str, T)]) -> Result<Option<T>, Invalid>
where
    T: Copy,
{
    let Some(word) = word else { return Ok(None) };
    let found = all.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
    found.map(Some).ok_or_else(|| {
        let allowed = all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        Invalid::new(field, format!("is {word:?}, but allowed are: {allowed}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_checkpoint_is_named_by_id_or_object() {
        let id = CheckpointId::mint();
        let object = json!({"checkpoint_id": id.0, "checkpoint_ns": ""});
        assert_eq!(checkpoint(Some(&id.to_string()), None), Ok(Some(id)));
        assert_eq!(checkpoint(None, object.as_object()), Ok(Some(id)));
        assert_eq!(checkpoint(None, None), Ok(None));
        assert_eq!(
            checkpoint(Some("nope"), None).map_err(|e| e.message().to_owned()),
            Err("Invalid checkpoint ID".into())
        );
        let inner = json!({"checkpoint_id": id.0, "checkpoint_ns": "tools:x"});
        assert!(checkpoint(None, inner.as_object()).is_err());
    }

    #[test]
    fn a_checkpoint_is_taken_out_of_the_settings_of_a_config() {
        let id = CheckpointId::mint();
        let taken = |configurable: Value| {
            let mut config = Object::from_iter([("configurable".to_owned(), configurable)]);
            let taken = take_checkpoint(&mut config).map_err(|invalid| invalid.field);
            (taken, config["configurable"].clone())
        };
        let named = json!({"thread_id": "t", "checkpoint_id": id.0, "checkpoint_ns": "", "tone": "stern"});
        let settings = json!({"thread_id": "t", "tone": "stern"});
        assert_eq!(taken(named), (Ok(Some(id)), settings));
        for none in [json!({}), json!({"checkpoint_id": null}), json!({"checkpoint_id": ""})] {
            assert_eq!(taken(none), (Ok(None), json!({})));
        }
        for wrong in [json!("x"), json!(7)] {
            let refused = Err("config.configurable.checkpoint_id".to_owned());
            assert_eq!(taken(json!({"checkpoint_id": wrong})).0, refused);
        }
        let inner = json!({"checkpoint_id": id.0, "checkpoint_ns": "tools:x"});
        assert_eq!(taken(inner).0, Err("config.configurable.checkpoint_ns".to_owned()));
        assert_eq!(take_checkpoint(&mut Object::new()), Ok(None));
    }

    #[test]
    fn a_namespace_names_the_tasks_down_to_a_subagent() {
        let one = TaskId(Uuid::from_u128(1));
        let two = TaskId(Uuid::from_u128(2));
        assert_eq!(namespace(None), Ok(vec![]));
        assert_eq!(namespace(Some("")), Ok(vec![]));
        assert_eq!(namespace(Some(&format!("tools:{one}|tools:{two}"))), Ok(vec![one, two]));
        for wrong in [
            "tools",
            "tools:x",
            "model:x",
            &format!(":{one}"),
            &format!("tools:{one}|"),
        ] {
            assert!(namespace(Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_namespace_may_begin_with_the_nodes_of_a_program_that_calls_the_main_agent() {
        let one = TaskId(Uuid::from_u128(1));
        assert_eq!(namespace(Some(&format!("remote:{one}"))), Ok(vec![]));
        assert_eq!(namespace(Some(&format!("outer:{one}|re:mote:{one}"))), Ok(vec![]));
        assert_eq!(namespace(Some(&format!("remote:{one}|tools:{one}"))), Ok(vec![one]));
        assert!(namespace(Some(&format!("tools:{one}|remote:{one}"))).is_err());
    }

    #[test]
    fn what_langgraph_reserves_for_itself_is_no_setting() {
        let taken = |configurable: Value| {
            let mut config = Object::from_iter([("configurable".to_owned(), configurable)]);
            let taken = take_program_answers(&mut config).map(Value::Object);
            (taken, config["configurable"].clone())
        };
        let answers = json!({"q": {"x": 1}});
        let continued = json!({"a": 1, "__pregel_resuming": true, "__pregel_resume_map": answers});
        assert_eq!(taken(continued), (Some(answers.clone()), json!({"a": 1})));
        let again = json!({"__pregel_resuming": true, "__pregel_resume_map": null});
        assert_eq!(taken(again), (Some(json!({})), json!({})));
        let begun = json!({"a": 1, "__pregel_resuming": false, "__pregel_resume_map": answers});
        assert_eq!(taken(begun), (None, json!({"a": 1})));
        assert_eq!(take_program_answers(&mut Object::new()), None);
    }
}
