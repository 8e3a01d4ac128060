//! Commands to a thread: start a run, answer an interrupt, list the active agents.

use std::collections::HashSet;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::db::{runs, threads};
use crate::domain::Invalid;
use crate::domain::access::Action;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome, StoredResponse};
use crate::domain::run::{Multitask, Run, RunStatus};
use crate::domain::thread::ThreadStatus;
use crate::http::access::Api;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::within_limits;
use crate::http::idempotency::{Idempotent, KeyHeader, Raw};
use crate::http::runs::{check_graph, continue_with_program};
use crate::http::stream::v2::{FRAMES, Filter};
use crate::http::stream::{StreamMode, v2};
use crate::http::wire::Object;
use crate::http::wire::run::{CommandBody, RunCreate, RunScope};
use crate::http::wire::thread_command::{CommandAnswer, CommandError, InvalidCommand, ThreadCommand};
use crate::runtime::{InterruptReply, ResourceRef, RespondError, StartError};

/// Executes a command on a thread.
///
/// The methods are `run.start`, which creates the thread if necessary, `input.respond`, and `agent.getTree`, which
/// lists the active agents. A command that fails returns status 200 with an error; only an invalid command is refused
/// with 400.
#[utoipa::path(post, path = "/threads/{thread_id}/commands", tag = "Thread stream",
    params(("thread_id" = String, Path, description = "The thread"), KeyHeader), request_body = ThreadCommand,
    responses((status = 200, description = "The result or the error of the command", body = CommandAnswer),
        (status = 400, description = "The body is not a command", body = InvalidCommand),
        (status = 413, description = "The body is too large", body = ErrorBody)))]
pub(in crate::http) async fn post(
    api: Api,
    Path(thread): Path<String>,
    Idempotent(key, Raw(body)): Idempotent<Raw>,
) -> Result<Response, ApiError> {
    within_limits(&body)?;
    let value: Value = serde_json::from_slice(&body).map_err(|_| ApiError::bad_command())?;
    let command = match ThreadCommand::read(&value) {
        Ok(command) => command,
        Err(answer) => return Ok((StatusCode::BAD_REQUEST, Json(answer)).into_response()),
    };
    let id = json!(command.id);
    let handler = CommandHandler {
        api: &api,
        thread: thread.parse().ok(),
        checks_namespace: false,
        key,
    };
    let answer = match handler.handle(&command).await {
        Ok((result, seq)) => CommandAnswer::success(id, result, seq),
        Err(refusal) => CommandAnswer::refusal(id, refusal),
    };
    Ok(Json(answer).into_response())
}

/// Executes commands on one thread.
pub(super) struct CommandHandler<'a> {
    pub(super) api: &'a Api,
    /// The thread; `None` if the id is malformed.
    pub(super) thread: Option<ThreadId>,
    /// True if an answer must name the namespace of the interrupt.
    pub(super) checks_namespace: bool,
    /// The idempotency key of a run.
    pub(super) key: Option<IdempotencyKey>,
}

/// The result of a command. A command that starts something also returns the sequence number that precedes its events.
type CommandResult = Result<(Value, Option<i64>), CommandError>;

impl CommandHandler<'_> {
    /// Executes a command. Subscriptions need a WebSocket; over HTTP they are accepted without effect.
    pub(super) async fn handle(&self, command: &ThreadCommand) -> CommandResult {
        let params = &command.params;
        match command.method.as_str() {
            "run.start" => self.start(params).await,
            "input.respond" => self.respond(params).await,
            "agent.getTree" => self.tree().await,
            "subscription.subscribe" | "subscription.reconnect" => {
                Filter::read(params).map_err(CommandError::argument)?;
                let id = RunId::mint();
                Ok((json!({"subscription_id": id.to_string(), "replayed_events": 0}), None))
            }
            "subscription.unsubscribe" => Err(no_subscription(params)),
            other => Err(CommandError::new(
                "unknown_command",
                format!("Unknown protocol command: {other}"),
            )),
        }
    }

    /// The largest frame number that stored events can have now.
    async fn newest_seq(&self) -> Result<i64, CommandError> {
        let Some(thread) = self.thread else { return Ok(0) };
        let bounds = self
            .api
            .events
            .bounds(thread)
            .await
            .map_err(|error| command_error(ApiError::from(error)))?;
        Ok(bounds.map_or(0, |(_, last)| last * FRAMES + FRAMES - 1))
    }

    /// The largest frame number before the events of a run that an earlier request has started; `newest` if it has none yet.
    async fn seq_before(&self, run: RunId, newest: i64) -> Result<i64, CommandError> {
        let read = self
            .api
            .db
            .read(move |tx| Box::pin(async move { runs::first_seq(tx, run).await }));
        let first = read.await.map_err(|error| command_error(ApiError::from(error)))?;
        let before = |first: i64| if first > 1 { first * FRAMES - 1 } else { 0 };
        Ok(first.map_or(newest, |first| newest.min(before(first))))
    }

    /// Checks whether the caller may do this to the thread.
    async fn check(&self, action: Action) -> Result<(), CommandError> {
        let Some(thread) = self.thread else { return Ok(()) };
        let resource = ResourceRef::Thread(thread);
        let checked = self.api.check_and_record(action, resource, thread).await;
        checked.map_err(command_error)
    }

    async fn start(&self, params: &Value) -> CommandResult {
        let assistant = params
            .get("assistant_id")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty());
        let assistant = assistant.ok_or_else(|| CommandError::argument("run.start requires an assistant_id."))?;
        let thread = self
            .thread
            .ok_or_else(|| CommandError::new("unknown_error", "422: Invalid thread ID"))?;
        // The thread and the assistant are checked at the admission of the run.
        self.api
            .check_and_record(Action::ThreadsCreateRun, ResourceRef::Collection, thread)
            .await
            .map_err(command_error)?;
        let strategy = params.get("multitaskStrategy").and_then(Value::as_str);
        let new_run = RunCreate {
            assistant_id: Some(assistant.to_owned()),
            input: params.get("input").filter(|input| !input.is_null()).cloned(),
            config: object_param(params, "config")?,
            metadata: object_param(params, "metadata")?,
            multitask_strategy: Some(
                strategy
                    .and_then(Multitask::from_word)
                    .unwrap_or_default()
                    .word()
                    .to_owned(),
            ),
            if_not_exists: Some("create".to_owned()),
            ..fully_streamed()
        };
        let mut checked = new_run
            .check(RunScope::Thread(thread), &self.api.caller)
            .map_err(command_error)?;
        check_graph(self.api, &checked.new_run.assistant).map_err(command_error)?;
        continue_with_program(self.api, &mut checked)
            .await
            .map_err(command_error)?;
        let seq = self.newest_seq().await?;
        let once = self
            .api
            .interrupts
            .start_or_answer(checked.new_run, self.key.clone())
            .await;
        let (run, seq) = match once.map_err(|error| command_error(error.into()))? {
            IdempotentOutcome::First(run) => (run.id, seq),
            IdempotentOutcome::Replayed(StoredResponse::Run { run, .. }) => (run, self.seq_before(run, seq).await?),
            IdempotentOutcome::Replayed(StoredResponse::Answer { .. }) | IdempotentOutcome::KeyReused => {
                return Err(command_error(ApiError::key_reused()));
            }
        };
        Ok((json!({"run_id": run}), Some(seq)))
    }

    async fn respond(&self, params: &Value) -> CommandResult {
        let replies = self.replies(params)?;
        let none = || CommandError::new("no_such_run", "No interrupted run is bound to this thread.");
        let thread = self.thread.ok_or_else(none)?;
        self.check(Action::InterruptsResolve).await?;
        let present = |name: &str| params.get(name).filter(|value| !value.is_null()).cloned();
        let command = CommandBody {
            resume: Some(json!({})),
            update: present("update"),
            goto: present("goto"),
        };
        let new_run = RunCreate {
            // Replaced by the assistant of the interrupted run.
            assistant_id: Some(String::new()),
            command: Some(command),
            config: object_param(params, "config")?,
            metadata: object_param(params, "metadata")?,
            ..fully_streamed()
        };
        let new_run = new_run
            .check(RunScope::Thread(thread), &self.api.caller)
            .map_err(command_error)?
            .new_run;
        let seq = self.newest_seq().await?;
        match self.api.interrupts.respond(thread, new_run, &replies).await {
            Ok(_) => Ok((json!({}), Some(seq))),
            Err(RespondError::NoRun) => Err(none()),
            Err(RespondError::NoInterrupt(id)) => Err(CommandError::new(
                "no_such_interrupt",
                format!("Unknown or already resolved interrupt: {id}"),
            )),
            Err(RespondError::Start(StartError::Invalid(invalid))) => {
                let is_list = params.get("responses").is_some_and(Value::is_array);
                let refusal = in_responses(invalid, &replies, is_list);
                Err(CommandError::argument(refusal.to_string()))
            }
            Err(RespondError::Start(error)) => Err(command_error(error.into())),
        }
    }

    /// The replies of a command: one, or a list.
    fn replies(&self, params: &Value) -> Result<Vec<InterruptReply>, CommandError> {
        let Some(responses) = params.get("responses").filter(|responses| !responses.is_null()) else {
            return Ok(vec![self.reply(params)?]);
        };
        let responses = responses.as_array().filter(|responses| !responses.is_empty());
        let responses =
            responses.ok_or_else(|| CommandError::argument("input.respond requires at least one response."))?;
        let mut replies: Vec<InterruptReply> = vec![];
        let mut answered = HashSet::new();
        for (at, response) in responses.iter().enumerate() {
            let reply = self.reply(response)?;
            // Only one of the answers could count.
            if !answered.insert(reply.interrupt.clone()) {
                let refusal = format!(
                    "responses[{at}]: answers the interrupt {} a second time",
                    reply.interrupt
                );
                return Err(CommandError::argument(refusal));
            }
            replies.push(reply);
        }
        Ok(replies)
    }

    fn reply(&self, response: &Value) -> Result<InterruptReply, CommandError> {
        let interrupt = response
            .get("interrupt_id")
            .and_then(Value::as_str)
            .filter(|id| !id.is_empty());
        let interrupt = interrupt.ok_or_else(|| CommandError::argument("input.respond requires an interrupt_id."))?;
        let segments = response
            .get("namespace")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let namespace = segments.filter_map(Value::as_str).collect::<Vec<_>>().join("|");
        let answer = response.get("response").cloned().unwrap_or_default();
        // A page that was reloaded may know only the id of the interrupt.
        let namespace = Some(namespace).filter(|namespace| self.checks_namespace && !namespace.is_empty());
        Ok(InterruptReply {
            interrupt: interrupt.to_owned(),
            namespace,
            answer,
        })
    }

    /// Returns the active run of the thread, or else the latest one, with its child runs.
    async fn tree(&self) -> CommandResult {
        let none = || CommandError::new("no_such_run", "No active run is bound to this thread.");
        let thread = self.thread.ok_or_else(none)?;
        self.check(Action::ThreadsRead).await?;
        let read = self.api.db.read(move |tx| {
            Box::pin(async move {
                let root = match runs::at_work(tx, thread).await? {
                    Some(run) => runs::get_by_id(tx, run).await?,
                    None => runs::latest(tx, thread).await?,
                };
                let Some(root) = root else { return Ok(None) };
                let descendants = runs::descendants(tx, root.id).await?;
                Ok(Some((root, descendants, threads::find(tx, thread).await?)))
            })
        });
        let found = read.await.map_err(|error| command_error(ApiError::from(error)))?;
        let (root, descendants, thread) = found.ok_or_else(none)?;
        let is_interrupted = thread.is_some_and(|thread| thread.status == ThreadStatus::Interrupted);
        Ok((json!({"tree": node(&root, &descendants, is_interrupted)}), None))
    }
}

/// Returns the refusal of the run that brings replies, with the field of `input.respond` in place of that of a run.
fn in_responses(refusal: Invalid, replies: &[InterruptReply], is_list: bool) -> Invalid {
    let Some(part) = refusal.field.strip_prefix("command.") else {
        return refusal;
    };
    let in_reply = |(at, reply): (usize, &InterruptReply)| {
        let place = part.strip_prefix("resume.")?.strip_prefix(reply.interrupt.as_str())?;
        Some(match is_list {
            true => format!("responses[{at}].response{place}"),
            false => format!("response{place}"),
        })
    };
    let of_all = match (part, is_list) {
        ("resume", true) => "responses",
        ("resume", false) => "response",
        (part, _) => part,
    };
    let field = replies.iter().enumerate().find_map(in_reply);
    Invalid::new(field.unwrap_or_else(|| of_all.to_owned()), refusal.reason)
}

/// The error for an unknown subscription.
pub(super) fn no_subscription(params: &Value) -> CommandError {
    let id = params
        .get("subscription_id")
        .and_then(Value::as_str)
        .unwrap_or_default();
    CommandError::new("no_such_subscription", format!("Unknown subscription: {id}"))
}

/// A run whose events can be streamed in every mode to other clients of the thread.
fn fully_streamed() -> RunCreate {
    let modes = StreamMode::ALL.map(StreamMode::word);
    RunCreate {
        stream_mode: Some(json!(modes)),
        stream_subgraphs: Some(true),
        stream_resumable: Some(true),
        ..RunCreate::default()
    }
}

fn object_param(params: &Value, name: &str) -> Result<Option<Object>, CommandError> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(fields)) => Ok(Some(fields.clone())),
        Some(_) => Err(CommandError::argument(format!("{name} must be an object."))),
    }
}

/// The command error of an HTTP error.
pub(super) fn command_error(error: ApiError) -> CommandError {
    if error.code() == "invalid" {
        return CommandError::argument(error.message());
    }
    CommandError::new(
        "unknown_error",
        format!("{}: {}", error.status().as_u16(), error.message()),
    )
}

fn node(run: &Run, all: &[Run], is_interrupted: bool) -> Value {
    let children: Vec<Value> = all
        .iter()
        .filter(|child| child.lineage.parent == Some(run.id))
        .map(|child| node(child, all, false))
        .collect();
    let namespace: Vec<String> = run
        .lineage
        .namespace
        .iter()
        .map(|task| format!("tools:{task}"))
        .collect();
    let graph = run
        .metadata
        .get("graph_id")
        .and_then(Value::as_str)
        .unwrap_or(run.lineage.agent());
    let mut node = Map::new();
    node.insert("namespace".to_owned(), json!(namespace));
    node.insert(
        "status".to_owned(),
        json!(if is_interrupted && run.status == RunStatus::Success {
            "interrupted"
        } else {
            status(run.status)
        }),
    );
    node.insert("graph_name".to_owned(), json!(graph));
    if !children.is_empty() {
        node.insert("children".to_owned(), json!(children));
    }
    Value::Object(node)
}

fn status(status: RunStatus) -> &'static str {
    if status.is_final() {
        v2::lifecycle_word(status)
    } else {
        "running"
    }
}
