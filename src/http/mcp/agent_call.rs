//! One call of an agent: the run, its progress, its questions and its result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ElicitRequest, ElicitRequestParams,
    ElicitResult, ElicitationAction, InputRequest, InputRequiredResult, ProgressNotificationParam, ProgressToken,
    ProtocolVersion,
};
use rmcp::service::RequestContext;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::elicitation::QuestionForm;
use crate::db::interrupts::{self, InterruptRecord, InterruptState, VisibleInterrupts};
use crate::db::runs;
use crate::domain::Invalid;
use crate::domain::access::Action;
use crate::domain::event::{Event, EventBody, Fact, tool_progress};
use crate::domain::id::{InterruptId, RunId, ThreadId};
use crate::domain::message::{Message, Role, ToolStatus};
use crate::domain::run::{Run, RunStatus};
use crate::http::access::Api;
use crate::http::error::ApiError;
use crate::http::runs::start;
use crate::http::wait::{CancelOnDisconnect, RunOutcome, RunReader};
use crate::http::wire::Object;
use crate::http::wire::interrupt::with_agent;
use crate::http::wire::run::{RunCreate, RunScope};
use crate::runtime::{DefaultAssistant, ResourceRef};

/// The longest time for which a client is asked in the middle of a call. The interrupt stays open after it.
const ELICITATION_TIMEOUT: Duration = Duration::from_mins(10);

/// The arguments of a call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    message: String,
    thread_id: Option<ThreadId>,
    context: Option<Object>,
}

/// The state of an unfinished call, which the client returns with its answers. It is not secret, and nothing in it
/// is trusted: the caller needs the right to start runs on the thread, and to answer its interrupts.
#[derive(Serialize, Deserialize)]
struct UnfinishedCall {
    thread_id: ThreadId,
    run_id: RunId,
}

/// A call of an agent.
pub(super) struct AgentCall<'a> {
    api: &'a Api,
    context: RequestContext<RoleServer>,
    agent: DefaultAssistant,
    /// The token of notifications about the progress, if the client wants them, and their number so far.
    progress: Option<(ProgressToken, u32)>,
}

/// A run that has ended, or waits.
struct EndedRun {
    thread: ThreadId,
    id: RunId,
    outcome: RunOutcome,
}

/// The way in which the client is asked.
enum Asking {
    /// The result of the call contains the questions, and the client sends the call again with the answers.
    InResult,
    /// The server sends requests to the client.
    ByRequest,
}

impl<'a> AgentCall<'a> {
    /// Creates the call of an agent that the caller may run.
    pub(super) fn new(api: &'a Api, context: RequestContext<RoleServer>, agent: DefaultAssistant) -> Self {
        let progress = context.meta.get_progress_token().map(|token| (token, 0));
        Self {
            api,
            context,
            agent,
            progress,
        }
    }

    /// Makes the call. An error is a result that the model can read.
    pub(super) async fn answer(mut self, request: CallToolRequestParams) -> CallToolResponse {
        let made = self.make(request).await;
        made.unwrap_or_else(|error| {
            let text = format!("{} ({})", error.message(), error.code());
            CallToolResult::error(vec![ContentBlock::text(text)]).into()
        })
    }

    async fn make(&mut self, request: CallToolRequestParams) -> Result<CallToolResponse, ApiError> {
        let mut may_ask = true;
        let mut ended = match (request.input_responses, request.request_state) {
            (None, None) => {
                let run = self.start(request.arguments.unwrap_or_default()).await?;
                self.follow(run).await?
            }
            (responses, state) => {
                let call = read_state(state.as_deref())?;
                let responses = responses.unwrap_or_default();
                may_ask = !responses.is_empty() && responses.values().all(|response| accepted(response).is_some());
                self.continue_with(call, responses).await?
            }
        };
        loop {
            let pending = self.pending(&ended).await?;
            let asking = self.asking().filter(|_| may_ask);
            let (Some(asking), false) = (asking, pending.is_empty()) else {
                return Ok(self.result(&ended, &pending).into());
            };
            let questions = self.questions(ended.thread, &pending).await?;
            match asking {
                Asking::InResult if !questions.is_empty() => return Ok(in_result(&ended, questions).into()),
                Asking::InResult => return Ok(self.result(&ended, &pending).into()),
                Asking::ByRequest => {}
            }
            let answered = match questions.into_iter().next() {
                Some((id, form, params)) => self.ask(params).await.map(|content| (id, form.answer(&content))),
                None => None,
            };
            let Some((id, answer)) = answered else {
                return Ok(self.result(&ended, &pending).into());
            };
            let run = self.resolve(ended.thread, id, answer).await?;
            ended = self.follow(run).await?;
        }
    }

    /// Starts the run of the call, as `POST /runs` does, or `POST /threads/{thread_id}/runs`.
    async fn start(&self, arguments: Object) -> Result<Run, ApiError> {
        let arguments: Arguments = serde_json::from_value(Value::Object(arguments))
            .map_err(|error| Invalid::new("arguments", error.to_string()))?;
        let action = Action::ThreadsCreateRun;
        let checked = self
            .api
            .access
            .check(&self.api.caller, action, ResourceRef::Collection)
            .await;
        let named = || match arguments.thread_id {
            Some(thread) => ResourceRef::Thread(thread).to_string(),
            None => String::new(),
        };
        self.api.record_decision(action, named, &checked);
        checked?;
        let body = RunCreate {
            assistant_id: Some(self.agent.id.to_string()),
            input: Some(json!({"messages": [{"role": "user", "content": arguments.message}]})),
            context: arguments.context,
            on_completion: Some("keep".to_owned()),
            on_disconnect: Some("cancel".to_owned()),
            ..RunCreate::default()
        };
        let scope = arguments.thread_id.map_or(RunScope::Stateless, RunScope::Thread);
        let checked = body.check(scope, &self.api.caller)?;
        Ok(start(self.api, checked, None).await?.run)
    }

    /// Follows a run to its end. The run is cancelled if the call is.
    async fn follow(&mut self, run: Run) -> Result<EndedRun, ApiError> {
        let thread = run.thread;
        let id = run.id;
        let mut guard = CancelOnDisconnect::new(true, &self.api.runs, &run);
        let cancelled = self.context.ct.clone();
        let mut reader = RunReader::new(self.api, run);
        let reading = async {
            while let Some(event) = reader.next().await? {
                self.report(&event).await;
            }
            reader.outcome().await
        };
        let outcome = tokio::select! {
            biased;
            () = cancelled.cancelled() => return Err(ApiError::mcp_call_cancelled()),
            outcome = reading => outcome,
        };
        guard.disarm();
        Ok(EndedRun {
            thread,
            id,
            outcome: outcome?,
        })
    }

    /// Tells the client about an event, if it wants to know and the event says anything.
    async fn report(&mut self, event: &Event) {
        let Some((token, count)) = &mut self.progress else {
            return;
        };
        let Some(text) = event
            .origin
            .visibility
            .visible_part(event)
            .and_then(|event| progress_text(&event))
        else {
            return;
        };
        *count += 1;
        let notification = ProgressNotificationParam::new(token.clone(), f64::from(*count)).with_message(text);
        // A client that is gone cancels the call.
        drop(self.context.peer.notify_progress(notification).await);
    }

    /// Returns how the client is asked; `None` if it cannot be.
    fn asking(&self) -> Option<Asking> {
        let capability = self.context.client_capabilities()?.elicitation?;
        // A capability that names no mode is that of forms.
        if capability.form.is_none() && capability.url.is_some() {
            return None;
        }
        let version = self.context.protocol_version();
        match version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28) {
            true => Some(Asking::InResult),
            false => Some(Asking::ByRequest),
        }
    }

    /// Returns the interrupts for which a run waits.
    async fn pending(&self, ended: &EndedRun) -> Result<Vec<InterruptRecord>, ApiError> {
        let waits = match &ended.outcome.end {
            Some((status, _)) => *status == RunStatus::Success,
            None => false,
        };
        if !waits {
            return Ok(vec![]);
        }
        self.visible(
            ended.thread,
            Action::InterruptsRead,
            None,
            Some(InterruptState::Pending),
        )
        .await
    }

    /// Returns the interrupts of a thread to which the caller may do this.
    async fn visible(
        &self,
        thread: ThreadId,
        action: Action,
        id: Option<InterruptId>,
        status: Option<InterruptState>,
    ) -> Result<Vec<InterruptRecord>, ApiError> {
        let wanted = VisibleInterrupts {
            thread,
            scope: self.api.interrupt_scope(action),
            id,
            status,
        };
        let read = self
            .api
            .db
            .read(move |tx| Box::pin(async move { interrupts::visible(tx, &wanted).await }));
        Ok(read.await?)
    }

    /// Returns the questions that the caller may answer and a form can ask.
    async fn questions(
        &self,
        thread: ThreadId,
        pending: &[InterruptRecord],
    ) -> Result<Vec<(InterruptId, QuestionForm, ElicitRequestParams)>, ApiError> {
        let status = Some(InterruptState::Pending);
        let answerable = self.visible(thread, Action::InterruptsResolve, None, status).await?;
        let mut questions = vec![];
        for record in pending {
            let id = &record.interrupt.id;
            if !answerable.iter().any(|other| other.interrupt.id == *id) {
                continue;
            }
            let form = QuestionForm::of(&record.interrupt.question);
            let asked = form.and_then(|form| form.params().map(|params| (id.clone(), form, params)));
            questions.extend(asked);
        }
        Ok(questions)
    }

    /// Asks the client. Returns the filled form; `None` if it is not filled.
    async fn ask(&self, params: ElicitRequestParams) -> Option<Value> {
        let asking = self
            .context
            .peer
            .create_elicitation_with_timeout(params, Some(ELICITATION_TIMEOUT));
        let answered = tokio::select! {
            biased;
            () = self.context.ct.cancelled() => return None,
            answered = asking => answered.ok()?,
        };
        content_of(answered)
    }

    /// Answers an interrupt, as its endpoint does, and returns the run that continues.
    async fn resolve(&self, thread: ThreadId, id: InterruptId, answer: Value) -> Result<Run, ApiError> {
        let action = Action::InterruptsResolve;
        self.api
            .check_and_record(action, ResourceRef::Thread(thread), thread)
            .await?;
        let caller = Arc::clone(&self.api.caller);
        let run = self.api.interrupts.resolve(thread, id, answer, caller).await?;
        self.find_run(thread, run).await
    }

    async fn find_run(&self, thread: ThreadId, run: RunId) -> Result<Run, ApiError> {
        let read = self.api.db.read(move |tx| Box::pin(runs::find(tx, thread, run)));
        read.await?.ok_or_else(|| ApiError::not_found("run_not_found"))
    }

    /// Continues a call with the answers that the client gives to its questions.
    async fn continue_with(
        &mut self,
        call: UnfinishedCall,
        responses: BTreeMap<String, Value>,
    ) -> Result<EndedRun, ApiError> {
        let thread = call.thread_id;
        // The result shows the thread, and a client that leaves cancels the run. Approvers of a question may do neither.
        self.api
            .check(Action::ThreadsCreateRun, ResourceRef::Thread(thread))
            .await?;
        let mut ended = EndedRun {
            thread,
            id: call.run_id,
            outcome: RunOutcome {
                state: Default::default(),
                interrupts: vec![],
                end: Some((RunStatus::Success, None)),
            },
        };
        for (id, response) in responses {
            let Some(content) = accepted(&response) else { continue };
            let id = InterruptId(id);
            let found = self
                .visible(thread, Action::InterruptsResolve, Some(id.clone()), None)
                .await?;
            let record = found.first().ok_or_else(ApiError::no_interrupt)?;
            let form = QuestionForm::of(&record.interrupt.question).ok_or_else(ApiError::no_interrupt)?;
            let run = self.resolve(thread, id, form.answer(&content)).await?;
            ended = self.follow(run).await?;
        }
        Ok(ended)
    }

    /// Returns the result of a run.
    fn result(&self, ended: &EndedRun, pending: &[InterruptRecord]) -> CallToolResult {
        let mut structured = json!({"thread_id": ended.thread, "run_id": ended.id});
        let ids = structured.to_string();
        let (status, error) = match &ended.outcome.end {
            Some((status, error)) => (*status, error.as_ref()),
            None => (RunStatus::Interrupted, None),
        };
        let is_done = status == RunStatus::Success && pending.is_empty();
        let text = match (status, error) {
            (RunStatus::Success, _) if is_done => ended.outcome.state.conclusion().unwrap_or_default(),
            (RunStatus::Success, _) => waiting_text(pending),
            (_, Some(error)) => format!("{}: {}", error.class, error.message),
            (_, None) => "The run was cancelled.".to_owned(),
        };
        let waits = status == RunStatus::Success && !is_done;
        let status = if waits { RunStatus::Interrupted } else { status };
        structured["status"] = json!(status.word());
        if is_done {
            let answer = ended.outcome.state.fields.get("structured_response");
            let answer = answer.filter(|answer| !answer.is_null()).cloned();
            structured["answer"] = answer.unwrap_or_else(|| json!(text));
        }
        if !pending.is_empty() {
            structured["interrupts"] = pending.iter().map(interrupt_json).collect();
        }
        let content = vec![ContentBlock::text(text), ContentBlock::text(ids)];
        let mut result = match is_done || !pending.is_empty() {
            true => CallToolResult::success(content),
            false => CallToolResult::error(content),
        };
        result.structured_content = Some(structured);
        result
    }
}

/// Reads what the client returns of an unfinished call.
fn read_state(state: Option<&str>) -> Result<UnfinishedCall, Invalid> {
    let state = state.ok_or_else(|| Invalid::new("requestState", "is missing beside inputResponses"))?;
    serde_json::from_str(state).map_err(|_| Invalid::new("requestState", "is not the one that the server gave"))
}

/// Returns the filled form of a response; `None` if the human has declined or cancelled.
fn accepted(response: &Value) -> Option<Value> {
    content_of(serde_json::from_value(response.clone()).ok()?)
}

fn content_of(result: ElicitResult) -> Option<Value> {
    let is_accepted = matches!(result.action, ElicitationAction::Accept);
    is_accepted.then(|| result.content.unwrap_or_else(|| json!({})))
}

/// Returns the result that asks the client, for protocol versions in which the server sends no requests.
fn in_result(
    ended: &EndedRun,
    questions: Vec<(InterruptId, QuestionForm, ElicitRequestParams)>,
) -> InputRequiredResult {
    let requests = questions
        .into_iter()
        .map(|(id, _, params)| (id.to_string(), InputRequest::Elicitation(ElicitRequest::new(params))));
    let state = UnfinishedCall {
        thread_id: ended.thread,
        run_id: ended.id,
    };
    // Two ids are always JSON.
    let state = serde_json::to_string(&state).unwrap_or_default();
    InputRequiredResult::new(Some(requests.collect()), Some(state))
}

/// Returns an interrupt as the structured content of a result shows it.
fn interrupt_json(record: &InterruptRecord) -> Value {
    let question = &record.interrupt.question;
    let shown = json!({"id": record.interrupt.id, "value": question.value, "response_schema": question.schema.parse(),
        "resolve_url": resolve_path(record)});
    with_agent(shown, &record.interrupt)
}

/// Returns the path of the endpoint that takes the answer to an interrupt.
fn resolve_path(record: &InterruptRecord) -> String {
    format!("/threads/{}/interrupts/{}/resolve", record.thread, record.interrupt.id)
}

/// Returns what a model reads if the agent waits for a human.
fn waiting_text(pending: &[InterruptRecord]) -> String {
    let paths: Vec<String> = pending.iter().map(resolve_path).collect();
    format!(
        "The agent waits for a human, who has to answer by POST {}, in the console, or in another client of this server. \
         The agent continues then by itself; do not call it again for the same work.",
        paths.join(" and POST ")
    )
}

/// Returns the text of a notification about an event; `None` if the event says nothing of interest.
fn progress_text(event: &Event) -> Option<String> {
    let agent = &event.origin.agent;
    let texts: Vec<String> = match &event.body {
        EventBody::Entry(entry) => {
            let writes = entry.writes.iter().enumerate();
            let new = writes.filter(|(at, _)| !entry.logged_writes.contains(at));
            new.flat_map(|(_, update)| &update.messages)
                .filter_map(|message| message_text(message))
                .collect()
        }
        EventBody::Fact(Fact::Answered { writes, .. }) => writes
            .messages
            .iter()
            .filter_map(|message| message_text(message))
            .collect(),
        EventBody::Fact(Fact::Started { .. }) => vec!["starts".to_owned()],
        EventBody::Fact(Fact::Custom { value }) => tool_progress_text(value).into_iter().collect(),
        EventBody::Fact(_) | EventBody::Delta(_) | EventBody::Begun(_) | EventBody::Output { .. } => vec![],
    };
    (!texts.is_empty()).then(|| format!("{agent}: {}", texts.join("; ")))
}

/// Returns what a custom event says about the progress of a tool call; `None` if it is about something else.
fn tool_progress_text(value: &Value) -> Option<String> {
    let payload = tool_progress(value)?;
    let name = payload.get("tool_name")?.as_str()?;
    let number = |name: &str| payload.get(name).and_then(Value::as_number);
    let progress = number("progress")?;
    let total = number("total");
    let mut text = format!("{name} is at {progress}");
    if let Some(total) = total {
        text += &format!(" of {total}");
    }
    if let Some(message) = payload.get("message").and_then(Value::as_str) {
        text += &format!(" ({message})");
    }
    Some(text)
}

/// Returns what a message says about the progress.
fn message_text(message: &Message) -> Option<String> {
    let name = message.name.as_deref().unwrap_or("a tool");
    match &message.role {
        Role::Ai { tool_calls, .. } if tool_calls.is_empty() => Some("answers".to_owned()),
        Role::Ai { tool_calls, .. } => {
            let names: Vec<&str> = tool_calls.iter().map(|call| call.name.as_str()).collect();
            Some(format!("calls {}", names.join(", ")))
        }
        Role::Tool {
            status: ToolStatus::Error,
            ..
        } => Some(format!("{name} has failed")),
        Role::Tool { .. } => Some(format!("{name} has answered")),
        Role::Human | Role::System | Role::Remove => None,
    }
}
