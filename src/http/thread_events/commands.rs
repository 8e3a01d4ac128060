//! Commands to a thread: start a run, answer a question, look at the agents at work.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::db::{runs, threads};
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, Once, StoredResponse};
use crate::domain::run::{Multitask, Run, RunStatus};
use crate::domain::thread::ThreadStatus;
use crate::http::Api;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::within_limits;
use crate::http::idempotency::{Idempotent, KeyHeader, Raw};
use crate::http::runs::check_graph;
use crate::http::stream::v2::{FRAMES, Filter};
use crate::http::stream::{StreamMode, v2};
use crate::http::wire::Object;
use crate::http::wire::command::{CommandAnswer, NoCommand, Refusal, ThreadCommand};
use crate::http::wire::run::{CommandBody, RunCreate, RunScope};
use crate::runtime::{InterruptReply, RespondError, StartError};

/// Gives a thread a command.
///
/// Methods are `run.start` (makes the thread if there is none) and `input.respond`; `agent.getTree` shows who is at work.
/// What cannot be done is told with status 200, too: only what is no command at all is refused with 400.
#[utoipa::path(post, path = "/threads/{thread_id}/commands", tag = "Thread stream",
    params(("thread_id" = String, Path, description = "The thread"), KeyHeader), request_body = ThreadCommand,
    responses((status = 200, description = "The result of the command, or why it failed", body = CommandAnswer),
        (status = 400, description = "The body is not a command", body = NoCommand),
        (status = 413, description = "The body is larger than allowed", body = ErrorBody)))]
pub(in crate::http) async fn post(
    State(api): State<Api>,
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
        checks_places: false,
        key,
    };
    let answer = match handler.handle(&command).await {
        Ok((result, seq)) => CommandAnswer::success(id, result, seq),
        Err(refusal) => CommandAnswer::refusal(id, refusal),
    };
    Ok(Json(answer).into_response())
}

/// Carries out the commands to one thread.
pub(super) struct CommandHandler<'a> {
    pub(super) api: &'a Api,
    /// The thread; none if what was named is none.
    pub(super) thread: Option<ThreadId>,
    /// Whether answers have to name the place where the question was asked.
    pub(super) checks_places: bool,
    /// The key under which a run is started once.
    pub(super) key: Option<IdempotencyKey>,
}

/// The result of a command; and for one that started something, the number that all its events are above.
type CommandResult = Result<(Value, Option<i64>), Refusal>;

impl CommandHandler<'_> {
    /// Carries out a command. Those about subscriptions are for sockets; here they are heard and have no effect.
    pub(super) async fn handle(&self, command: &ThreadCommand) -> CommandResult {
        let params = &command.params;
        match command.method.as_str() {
            "run.start" => self.start(params).await,
            "input.respond" => self.respond(params).await,
            "agent.getTree" => self.tree().await,
            "subscription.subscribe" | "subscription.reconnect" => {
                Filter::read(params).map_err(Refusal::argument)?;
                let id = crate::domain::id::RunId::mint();
                Ok((json!({"subscription_id": id.to_string(), "replayed_events": 0}), None))
            }
            "subscription.unsubscribe" => Err(no_subscription(params)),
            other => Err(Refusal::new(
                "unknown_command",
                format!("Unknown protocol command: {other}"),
            )),
        }
    }

    /// The number of the newest frame that can come of what is stored by now.
    async fn applied(&self) -> Result<i64, Refusal> {
        let Some(thread) = self.thread else { return Ok(0) };
        let bounds = self
            .api
            .events
            .bounds(thread)
            .await
            .map_err(|error| refused(ApiError::from(error)))?;
        Ok(bounds.map_or(0, |(_, last)| last * FRAMES + FRAMES - 1))
    }

    async fn start(&self, params: &Value) -> CommandResult {
        let assistant = params
            .get("assistant_id")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty());
        let assistant = assistant.ok_or_else(|| Refusal::argument("run.start requires an assistant_id."))?;
        let thread = self
            .thread
            .ok_or_else(|| Refusal::new("unknown_error", "422: Invalid thread ID"))?;
        let mut config = object(params, "config")?;
        let checkpoint = checkpoint_of(config.as_mut())?;
        let strategy = params.get("multitaskStrategy").and_then(Value::as_str);
        let wish = RunCreate {
            assistant_id: Some(assistant.to_owned()),
            input: params.get("input").filter(|input| !input.is_null()).cloned(),
            config,
            metadata: object(params, "metadata")?,
            checkpoint_id: checkpoint.map(|id| id.to_string()),
            multitask_strategy: Some(
                strategy
                    .and_then(Multitask::from_word)
                    .unwrap_or_default()
                    .word()
                    .to_owned(),
            ),
            if_not_exists: Some("create".to_owned()),
            ..all_seen()
        };
        let wish = wish.check(RunScope::Thread(thread)).map_err(refused)?.wish;
        check_graph(self.api, &wish.assistant).map_err(refused)?;
        let seq = self.applied().await?;
        let once = self.api.interrupts.start_or_answer(wish, self.key.clone()).await;
        let run = match once.map_err(|error| refused(error.into()))? {
            Once::First(run) => run.id,
            Once::Again(StoredResponse::Run { run, .. }) => run,
            Once::Again(StoredResponse::Answer { .. }) | Once::Reused => return Err(refused(ApiError::key_reused())),
        };
        Ok((json!({"run_id": run}), Some(seq)))
    }

    async fn respond(&self, params: &Value) -> CommandResult {
        let replies = self.replies(params)?;
        let none = || Refusal::new("no_such_run", "No interrupted run is bound to this thread.");
        let thread = self.thread.ok_or_else(none)?;
        let present = |name: &str| params.get(name).filter(|value| !value.is_null()).cloned();
        let command = CommandBody {
            resume: Some(json!({})),
            update: present("update"),
            goto: present("goto"),
        };
        let wish = RunCreate {
            // Filled in with the one who asks.
            assistant_id: Some(String::new()),
            command: Some(command),
            config: object(params, "config")?,
            metadata: object(params, "metadata")?,
            ..all_seen()
        };
        let wish = wish.check(RunScope::Thread(thread)).map_err(refused)?.wish;
        let seq = self.applied().await?;
        match self.api.interrupts.respond(thread, wish, &replies).await {
            Ok(_) => Ok((json!({}), Some(seq))),
            Err(RespondError::NoRun) => Err(none()),
            Err(RespondError::NoInterrupt(id)) => Err(Refusal::new(
                "no_such_interrupt",
                format!("Unknown or already resolved interrupt: {id}"),
            )),
            Err(RespondError::Start(StartError::Invalid(invalid))) => Err(Refusal::argument(invalid.to_string())),
            Err(RespondError::Start(error)) => Err(refused(error.into())),
        }
    }

    /// One answer, or a list of them.
    fn replies(&self, params: &Value) -> Result<Vec<InterruptReply>, Refusal> {
        let Some(many) = params.get("responses").filter(|many| !many.is_null()) else {
            return Ok(vec![self.reply(params)?]);
        };
        let many = many.as_array().filter(|many| !many.is_empty());
        let many = many.ok_or_else(|| Refusal::argument("input.respond requires at least one response."))?;
        many.iter().map(|one| self.reply(one)).collect()
    }

    fn reply(&self, one: &Value) -> Result<InterruptReply, Refusal> {
        let interrupt = one
            .get("interrupt_id")
            .and_then(Value::as_str)
            .filter(|id| !id.is_empty());
        let interrupt = interrupt.ok_or_else(|| Refusal::argument("input.respond requires an interrupt_id."))?;
        let segments = one.get("namespace").and_then(Value::as_array).into_iter().flatten();
        let place = segments.filter_map(Value::as_str).collect::<Vec<_>>().join("|");
        let answer = one.get("response").cloned().unwrap_or_default();
        // A page that was loaded anew may know a question by its id alone.
        let namespace = Some(place).filter(|place| self.checks_places && !place.is_empty());
        Ok(InterruptReply {
            interrupt: interrupt.to_owned(),
            namespace,
            answer,
        })
    }

    /// The newest run of the thread and the runs of its subagents.
    async fn tree(&self) -> CommandResult {
        let none = || Refusal::new("no_such_run", "No active run is bound to this thread.");
        let thread = self.thread.ok_or_else(none)?;
        let read = self.api.db.read(move |tx| {
            Box::pin(async move {
                let newest = runs::newest(tx, thread).await?;
                let Some(root) = newest else { return Ok(None) };
                let below = runs::descendants(tx, root.id).await?;
                Ok(Some((root, below, threads::find(tx, thread).await?)))
            })
        });
        let found = read.await.map_err(|error| refused(ApiError::from(error)))?;
        let (root, below, thread) = found.ok_or_else(none)?;
        let waits = thread.is_some_and(|thread| thread.status == ThreadStatus::Interrupted);
        Ok((json!({"tree": node(&root, &below, waits)}), None))
    }
}

/// What an answer to a question with an unknown subscription says.
pub(super) fn no_subscription(params: &Value) -> Refusal {
    let id = params
        .get("subscription_id")
        .and_then(Value::as_str)
        .unwrap_or_default();
    Refusal::new("no_such_subscription", format!("Unknown subscription: {id}"))
}

/// A run whose events other clients of the thread can see in every form.
fn all_seen() -> RunCreate {
    let modes = StreamMode::ALL.map(StreamMode::word);
    RunCreate {
        stream_mode: Some(json!(modes)),
        stream_subgraphs: Some(true),
        stream_resumable: Some(true),
        ..RunCreate::default()
    }
}

fn object(params: &Value, name: &str) -> Result<Option<Object>, Refusal> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(fields)) => Ok(Some(fields.clone())),
        Some(_) => Err(Refusal::argument(format!("{name} must be an object."))),
    }
}

/// The checkpoint to begin from, which clients name among the settings.
fn checkpoint_of(config: Option<&mut Object>) -> Result<Option<CheckpointId>, Refusal> {
    let configurable = config
        .and_then(|config| config.get_mut("configurable"))
        .and_then(Value::as_object_mut);
    let named = configurable.and_then(|settings| settings.shift_remove("checkpoint_id"));
    match named {
        None | Some(Value::Null) => Ok(None),
        Some(named) => {
            let id = named.as_str().and_then(|text| text.parse().ok());
            let shown = named
                .as_str()
                .map_or_else(|| named.to_string(), |text| format!("'{text}'"));
            id.map(Some)
                .ok_or_else(|| Refusal::argument(format!("Invalid config.configurable.checkpoint_id: {shown}.")))
        }
    }
}

/// A refusal by the rest of the server.
pub(super) fn refused(error: ApiError) -> Refusal {
    if error.code() == "invalid" {
        return Refusal::argument(error.message());
    }
    Refusal::new(
        "unknown_error",
        format!("{}: {}", error.status().as_u16(), error.message()),
    )
}

fn node(run: &Run, all: &[Run], waits: bool) -> Value {
    let below: Vec<Value> = all
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
        json!(if waits && run.status == RunStatus::Success {
            "interrupted"
        } else {
            status(run.status)
        }),
    );
    node.insert("graph_name".to_owned(), json!(graph));
    if !below.is_empty() {
        node.insert("children".to_owned(), json!(below));
    }
    Value::Object(node)
}

fn status(status: RunStatus) -> &'static str {
    if status.is_final() {
        v2::ending(status)
    } else {
        "running"
    }
}
