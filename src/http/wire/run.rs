//! Runs on the wire.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::stream_mode::StreamMode;
use super::{Object, word};
use crate::domain::account::MAX_PRIORITY;
use crate::domain::delivery::shown_address;
use crate::domain::id::{AssistantId, RunId};
use crate::domain::identity::Identity;
use crate::domain::run::{Command, Continuation, Multitask, Run, RunRequest, RunStatus};
use crate::domain::run_config::{CONFIGURABLE, ContextConflict, configurable, mirror, set_configurable};
use crate::domain::time::Timestamp;
use crate::domain::{self, Invalid};
use crate::http::error::ApiError;
use crate::runtime::{AssistantRef, NewRun, Resolution, Target};

mod command;

pub use command::CommandBody;

/// A request to create a run.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct RunCreate {
    /// The assistant: its UUID or a graph id.
    #[schema(required = true, value_type = String)]
    pub assistant_id: Option<String>,
    /// The input, usually `{"messages": [...]}`; null continues from the state of the thread.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Value>,
    /// A command instead of input. An `input` beside `resume` or `goto` is ignored; beside `update` it is refused. An
    /// object that has none of them is no command.
    pub command: Option<CommandBody>,
    /// One stream mode or a list: values, messages, messages-tuple, updates, events, debug, tasks, checkpoints, custom.
    #[schema(value_type = Option<Vec<String>>, example = json!(["values"]))]
    pub stream_mode: Option<Value>,
    /// True if streams include the events of subagents.
    pub stream_subgraphs: Option<bool>,
    /// True if stream events have ids, so that the stream can be resumed.
    pub stream_resumable: Option<bool>,
    /// The settings: `tags`, `recursion_limit`, `configurable`, `metadata`. A `checkpoint_id` in `configurable` is the
    /// checkpoint to start from, unless `checkpoint` or `checkpoint_id` names one.
    #[schema(value_type = Option<Object>)]
    pub config: Option<Object>,
    /// The context of the run, which tools can read.
    #[schema(value_type = Option<Object>)]
    pub context: Option<Object>,
    /// The metadata of the run.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// The checkpoint to start from, if not the newest: an object with `checkpoint_id`.
    #[schema(value_type = Option<Object>)]
    pub checkpoint: Option<Object>,
    /// The id of the checkpoint, as an alternative to `checkpoint`.
    #[schema(format = Uuid)]
    pub checkpoint_id: Option<String>,
    /// The nodes to pause before, or `*` for all.
    #[schema(value_type = Option<Vec<String>>)]
    pub interrupt_before: Option<Value>,
    /// The nodes to pause after, or `*` for all.
    #[schema(value_type = Option<Vec<String>>)]
    pub interrupt_after: Option<Value>,
    /// The behaviour if the thread is busy: enqueue, reject, interrupt or rollback.
    #[schema(example = "enqueue")]
    pub multitask_strategy: Option<String>,
    /// The behaviour if the thread does not exist: reject or create.
    #[schema(example = "reject")]
    pub if_not_exists: Option<String>,
    /// The behaviour if the client disconnects: continue or cancel.
    #[schema(example = "continue")]
    pub on_disconnect: Option<String>,
    /// For stateless runs: delete or keep the thread of the run.
    #[schema(example = "delete")]
    pub on_completion: Option<String>,
    /// The delay before the run starts, in seconds.
    #[schema(minimum = 0)]
    pub after_seconds: Option<f64>,
    /// The priority among the runs of the tenant that wait, from 0 to 9. Above 0 only for developers, operators and
    /// admins.
    #[schema(minimum = 0, maximum = 9, example = 0)]
    pub priority: Option<u8>,
    /// Accepted for compatibility: sync, async or exit. The server stores every step before it continues.
    #[schema(example = "async")]
    pub durability: Option<String>,
    /// The older form of `durability`.
    pub checkpoint_during: Option<bool>,
    /// The URL to which the end of the run is reported.
    pub webhook: Option<String>,
    /// Accepted for compatibility.
    pub feedback_keys: Option<Vec<String>>,
}

/// The kind of endpoint that creates a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunScope {
    /// An endpoint of a thread.
    Thread(domain::id::ThreadId),
    /// An endpoint without a thread.
    Stateless,
}

impl RunScope {
    /// The thread of the endpoint.
    pub fn thread(self) -> Option<domain::id::ThreadId> {
        match self {
            Self::Thread(thread) => Some(thread),
            Self::Stateless => None,
        }
    }
}

/// A validated request to create a run.
#[derive(Debug)]
pub struct CheckedRun {
    /// The run to create.
    pub new_run: NewRun,
    /// True if the run is cancelled when the client disconnects.
    pub cancel_on_disconnect: bool,
    /// The answers by interrupt id that a program of LangGraph was given whose node the run is; none unless the program
    /// continues after it has stopped.
    pub program_answers: Option<Object>,
}

/// Checks the priority of a run. Whether the caller may give it is decided where the run is admitted.
fn check_priority(priority: Option<u8>) -> Result<(), Invalid> {
    if priority.is_some_and(|priority| priority > MAX_PRIORITY) {
        let reason = format!("must be a whole number from 0 to {MAX_PRIORITY}");
        return Err(Invalid::new("priority", reason));
    }
    Ok(())
}

/// The longest delay of a run: a year.
const LONGEST_DELAY: Duration = Duration::from_secs(365 * 86_400);
/// The words that the types of the JavaScript SDK have for `on_completion`.
const COMPLETIONS_OF_SDK: [&str; 2] = ["complete", "continue"];

impl RunCreate {
    /// Validates the request of a caller, to whom a thread that the run creates belongs.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(mut self, scope: RunScope, caller: &Arc<Identity>) -> Result<CheckedRun, ApiError> {
        let assistant = self
            .assistant_id
            .as_deref()
            .ok_or_else(|| Invalid::new("assistant_id", "is missing"))?;
        let assistant = AssistantRef::read(assistant);
        let target = self.target(scope)?;
        let on_disconnect = [("continue", false), ("cancel", true)];
        let cancel_on_disconnect = word("on_disconnect", self.on_disconnect.as_deref(), &on_disconnect)?;
        let after = Duration::try_from_secs_f64(self.after_seconds.unwrap_or(0.0))
            .map_err(|_| Invalid::new("after_seconds", "must be a number of seconds, 0 or more"))?;
        if after > LONGEST_DELAY {
            let reason = format!("must be at most {} seconds, a year", LONGEST_DELAY.as_secs());
            return Err(Invalid::new("after_seconds", reason).into());
        }
        check_priority(self.priority)?;
        if let Some(command) = &mut self.command {
            command.unwrap_ag_ui();
        }
        let resume = self.command.as_ref().and_then(CommandBody::answers).cloned();
        let program_answers = self.config.as_mut().and_then(super::take_program_answers);
        let request = self.request(scope)?;
        let mut metadata = object(&request.config, "metadata").unwrap_or_default();
        metadata.extend(self.metadata.unwrap_or_default());
        domain::metadata::check(&metadata)?;
        let new_run = NewRun {
            target,
            assistant,
            caller: Arc::clone(caller),
            request,
            resume: resume.map(Resolution::Answered),
            metadata,
            after,
        };
        Ok(CheckedRun {
            new_run,
            cancel_on_disconnect: cancel_on_disconnect.unwrap_or(false),
            program_answers,
        })
    }

    fn target(&self, scope: RunScope) -> Result<Target, Invalid> {
        let create = word(
            "if_not_exists",
            self.if_not_exists.as_deref(),
            &[("reject", false), ("create", true)],
        )?;
        // On a thread they have no effect, as on other servers of this API.
        let of_sdk = |word: &&str| scope != RunScope::Stateless && COMPLETIONS_OF_SDK.contains(word);
        let keep = word(
            "on_completion",
            self.on_completion.as_deref().filter(|word| !of_sdk(word)),
            &[("delete", false), ("keep", true)],
        )?;
        Ok(match scope {
            RunScope::Thread(thread) if create.unwrap_or(false) => Target::ThreadOrNew(thread),
            RunScope::Thread(thread) => Target::Thread(thread),
            RunScope::Stateless => Target::Stateless {
                keep: keep.unwrap_or(false),
            },
        })
    }

    fn request(&mut self, scope: RunScope) -> Result<RunRequest, ApiError> {
        let of_config = self.config.as_mut().map(super::take_checkpoint).transpose()?.flatten();
        let (config, context) = self.config_and_context()?;
        let input = self.input.take().filter(|input| !input.is_null());
        let command = self.command.as_ref().filter(|command| !command.is_empty());
        if let (Some(input), Some(command)) = (&input, command) {
            command.check_beside(input)?;
        }
        let input = input.filter(|_| command.is_none());
        let command = command.filter(|command| !command.only_continues());
        let strategies = [
            Multitask::Reject,
            Multitask::Rollback,
            Multitask::Interrupt,
            Multitask::Enqueue,
        ]
        .map(|strategy| (strategy.word(), strategy));
        let temporary = scope == RunScope::Stateless && self.on_completion.as_deref() != Some("keep");
        Ok(RunRequest {
            caller: None,
            background: None,
            input,
            command: command.map(CommandBody::read).transpose()?,
            config,
            context,
            stream_mode: self.modes()?,
            stream_subgraphs: self.stream_subgraphs.unwrap_or(false),
            stream_resumable: self.stream_resumable.unwrap_or(false),
            interrupt_before: texts("interrupt_before", self.interrupt_before.as_ref())?,
            interrupt_after: texts("interrupt_after", self.interrupt_after.as_ref())?,
            checkpoint: super::checkpoint(self.checkpoint_id.as_deref(), self.checkpoint.as_ref())?.or(of_config),
            multitask: word("multitask_strategy", self.multitask_strategy.as_deref(), &strategies)?.unwrap_or_default(),
            after_answers: false,
            temporary,
            held: false,
            followers: vec![],
            agent: None,
            trace: None,
            priority: self.priority.unwrap_or(0),
            compaction: None,
            extra: self.extra()?,
        })
    }

    /// Returns `config` and `context`, each copied into the other.
    fn config_and_context(&mut self) -> Result<(Object, Object), ApiError> {
        let mut config = self.config.take().unwrap_or_default();
        check_config(&config)?;
        let mut context = self.context.take().unwrap_or_default();
        let has_configurable = configurable(&config).is_some_and(|given| !given.is_empty());
        if has_configurable && !context.is_empty() {
            return Err(ApiError::two_contexts());
        }
        mirror(&mut config, &mut context).map_err(|ContextConflict| ApiError::two_contexts())?;
        Ok((config, context))
    }

    fn modes(&self) -> Result<Vec<String>, Invalid> {
        let modes = texts("stream_mode", self.stream_mode.as_ref())?;
        let unknown = modes
            .iter()
            .enumerate()
            .find(|(_, mode)| StreamMode::from_word(mode).is_none());
        match unknown {
            Some((at, mode)) => {
                let reason = format!(
                    "is {mode:?}, but allowed are: {}",
                    StreamMode::ALL.map(StreamMode::word).join(", ")
                );
                Err(Invalid::new(format!("stream_mode[{at}]"), reason))
            }
            None if modes.is_empty() => Ok(vec!["values".to_owned()]),
            None => Ok(modes),
        }
    }

    /// The fields that are only repeated in the response.
    fn extra(&self) -> Result<Object, Invalid> {
        let given = word(
            "durability",
            self.durability.as_deref(),
            &[("sync", "sync"), ("async", "async"), ("exit", "exit")],
        )?;
        let older = if self.checkpoint_during == Some(false) {
            "exit"
        } else {
            "async"
        };
        let durability = given.unwrap_or(older);
        let mut extra = Object::new();
        // Without it, responses say `async`.
        if durability != "async" {
            extra.insert("durability".to_owned(), json!(durability));
        }
        if let Some(webhook) = &self.webhook {
            extra.insert("webhook".to_owned(), json!(webhook));
        }
        if let Some(keys) = &self.feedback_keys {
            extra.insert("feedback_keys".to_owned(), json!(keys));
        }
        if let Some(after) = self.after_seconds {
            extra.insert("after_seconds".to_owned(), json!(after));
        }
        Ok(extra)
    }
}

/// The maximum size of the tags of a run, in bytes of JSON: every piece of an answer is sent with them.
const MAX_TAG_BYTES: usize = 16 * 1024;

fn object(fields: &Object, name: &str) -> Option<Object> {
    fields.get(name).and_then(Value::as_object).cloned()
}

/// Checks the fields of `config` that the server uses.
///
/// # Errors
/// Names the invalid field.
pub(super) fn check_config(config: &Object) -> Result<(), Invalid> {
    for name in [CONFIGURABLE, "metadata"] {
        if config
            .get(name)
            .is_some_and(|value| !value.is_object() && !value.is_null())
        {
            return Err(Invalid::new(format!("config.{name}"), "must be an object"));
        }
    }
    if config
        .get("recursion_limit")
        .is_some_and(|limit| !limit.is_null() && limit.as_u64().is_none_or(|n| n == 0))
    {
        return Err(Invalid::new(
            "config.recursion_limit",
            "must be a whole number, 1 or more",
        ));
    }
    let tags = texts("config.tags", config.get("tags"))?;
    if tags.iter().map(|tag| tag.len() + 3).sum::<usize>() > MAX_TAG_BYTES {
        let reason = format!("are longer than {MAX_TAG_BYTES} bytes");
        return Err(Invalid::new("config.tags", reason));
    }
    Ok(())
}

/// A text or a list of texts.
fn texts(field: &str, value: Option<&Value>) -> Result<Vec<String>, Invalid> {
    let wrong = |field: String| Invalid::new(field, "must be a text");
    match value {
        None | Some(Value::Null) => Ok(vec![]),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(items)) => {
            let text = |(at, item): (usize, &Value)| {
                item.as_str()
                    .map(str::to_owned)
                    .ok_or_else(|| wrong(format!("{field}[{at}]")))
            };
            items.iter().enumerate().map(text).collect()
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            Err(Invalid::new(field, "must be a text or a list of texts"))
        }
    }
}

/// A run.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Run")]
pub struct RunView {
    /// The id of the run.
    pub run_id: Uuid,
    /// The thread of the run.
    pub thread_id: Uuid,
    /// The assistant of the run.
    pub assistant_id: Uuid,
    /// The metadata of the run, including keys that the server adds.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// The status of the run. A run that waits for a human is `success`; a cancelled one is `interrupted`.
    pub status: RunStatusWord,
    /// The parameters of the run.
    #[schema(value_type = Object)]
    pub kwargs: Value,
    /// The behaviour that was requested for a busy thread.
    pub multitask_strategy: String,
    /// The time of creation.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time of the last change.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// The version of the assistant when the run was created; its settings are in `kwargs`.
    pub assistant_version: Option<i64>,
    /// Unused; always null.
    pub langsmith_session_name: Option<String>,
}

/// The status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatusWord {
    /// The run is queued.
    Pending,
    /// The run is active.
    Running,
    /// The run has finished, or waits for a human.
    Success,
    /// The run failed.
    Error,
    /// The run exceeded its time limit.
    Timeout,
    /// The run was cancelled.
    Interrupted,
}

impl From<RunStatus> for RunStatusWord {
    fn from(status: RunStatus) -> Self {
        match status {
            RunStatus::Pending => Self::Pending,
            RunStatus::Running => Self::Running,
            RunStatus::Success => Self::Success,
            RunStatus::Error => Self::Error,
            RunStatus::Timeout => Self::Timeout,
            RunStatus::Interrupted => Self::Interrupted,
        }
    }
}

/// The columns that `select` may name.
pub const COLUMNS: [&str; 11] = [
    "run_id",
    "thread_id",
    "assistant_id",
    "metadata",
    "status",
    "kwargs",
    "multitask_strategy",
    "created_at",
    "updated_at",
    "assistant_version",
    "langsmith_session_name",
];

impl From<Run> for RunView {
    fn from(run: Run) -> Self {
        Self {
            run_id: run.id.0,
            thread_id: run.thread.0,
            assistant_id: run.assistant.0,
            kwargs: kwargs(&run),
            status: run.status.into(),
            multitask_strategy: run.request.multitask.word().to_owned(),
            created_at: run.created_at.to_string(),
            updated_at: run.updated_at.to_string(),
            assistant_version: run.request.agent.as_ref().map(|agent| agent.version),
            metadata: run.metadata,
            langsmith_session_name: None,
        }
    }
}

impl RunView {
    /// The view of a run at its creation. The run may be active by the time the client reads it.
    pub fn created(run: Run) -> Self {
        Self::from(Run {
            status: RunStatus::Pending,
            ..run
        })
    }
}

/// Returns the keys that the LangGraph Platform adds to `configurable` of a run that begins at once.
pub fn platform_settings(
    run: RunId,
    assistant: AssistantId,
    graph_id: Value,
    created_at: Timestamp,
) -> impl Iterator<Item = (String, Value)> {
    let settings = [
        ("langgraph_auth_user", Value::Null),
        ("langgraph_auth_permissions", json!([])),
        ("__request_start_time_ms__", json!(created_at.millis())),
        ("__after_seconds__", json!(0)),
        ("run_id", json!(run)),
        ("graph_id", graph_id),
        ("assistant_id", json!(assistant)),
        ("user_id", json!("")),
    ];
    settings.into_iter().map(|(name, value)| (name.to_owned(), value))
}

/// Returns a command without the part that the server has added.
fn command_of_client(command: &Command) -> Command {
    Command {
        continuation: Continuation::default(),
        ..command.clone()
    }
}

/// The parameters of a run in the shape of the LangGraph Platform.
fn kwargs(run: &Run) -> Value {
    let request = &run.request;
    let extra = |name: &str| request.extra.get(name).cloned().unwrap_or_default();
    let durability = request
        .extra
        .get("durability")
        .and_then(Value::as_str)
        .unwrap_or("async");
    let mut config = request.config.clone();
    // The config of an assistant may name a checkpoint. Shown here, it would start the next run of a client that sends
    // the settings of this one again.
    drop(super::take_checkpoint(&mut config));
    let mut configurable = configurable(&config).cloned().unwrap_or_default();
    let graph_id = run.metadata.get("graph_id").cloned().unwrap_or_default();
    configurable.extend(platform_settings(run.id, run.assistant, graph_id, run.created_at));
    let after = run.due_at.since(run.created_at).as_secs();
    configurable.insert("__after_seconds__".to_owned(), json!(after));
    configurable.insert("thread_id".to_owned(), json!(run.thread));
    set_configurable(&mut config, configurable);
    config.insert("metadata".to_owned(), run.metadata.clone().into());
    let mut kwargs = json!({
        "input": request.input,
        "command": request.command.as_ref().map(command_of_client),
        "config": config,
        "context": request.context,
        "stream_mode": request.stream_mode,
        "interrupt_before": nodes_json(&request.interrupt_before),
        "interrupt_after": nodes_json(&request.interrupt_after),
        "webhook": request.webhook().map(shown_address),
        "feedback_keys": extra("feedback_keys"),
        "temporary": request.temporary,
        "subgraphs": request.stream_subgraphs,
        "resumable": request.stream_resumable,
        "checkpoint_during": durability != "exit",
        "durability": durability,
    });
    if request.priority > 0 {
        kwargs["priority"] = json!(request.priority);
    }
    kwargs
}

fn nodes_json(nodes: &[String]) -> Value {
    match nodes {
        [] => Value::Null,
        [all] if all == "*" => json!("*"),
        nodes => json!(nodes),
    }
}

/// The maximum number of runs in a batch.
pub const MAX_BATCH: usize = 500;

/// A request to cancel runs: some of one thread, or all of a status.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct RunsCancel {
    /// The thread of `run_ids`.
    #[schema(format = Uuid)]
    pub thread_id: Option<String>,
    /// The runs.
    #[schema(value_type = Option<Vec<Uuid>>)]
    pub run_ids: Option<Vec<String>>,
    /// The status of the runs to cancel: pending, running or all.
    pub status: Option<String>,
}

#[cfg(test)]
mod tests;
