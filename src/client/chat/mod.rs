//! `adjutant chat`: a conversation with an agent, with its approvals.
//!
//! A chat follows the stream of one thread from run to run. So it shows also what other clients of the thread do, and
//! an answered question continues on the same stream.

mod approval;
mod conversation;
mod event;
mod input;
mod questions;
mod reply;
mod session;
mod slash;
mod subscription;
mod values;
mod view;

use std::io::{IsTerminal, Read};

use serde_json::{Value, json};

use self::event::{Outcome, RunSummary};
use self::input::MAX_MESSAGE_BYTES;
use self::session::{Screen, Session};
use super::api::ApiClient;
use super::error::{ClientError, ClientResult};
use super::resources::{agents, content_text, find};
use super::{WAITS_FOR_APPROVAL, escape, is_interactive, output};
use crate::config::client::ChatArguments;

/// The exit code of a run that failed.
const FAILED: u8 = 1;

/// The exit code of a run that was cancelled.
const CANCELLED: u8 = 130;

/// Executes the command and returns its exit code.
pub(super) async fn run(api: &ApiClient, arguments: &ChatArguments) -> ClientResult<u8> {
    let context = arguments.context.as_deref().map(read_context).transpose()?;
    let message = message(arguments)?;
    let agent = match &arguments.agent {
        Some(agent) => agent.clone(),
        None => agents::default_agent(api).await?,
    };
    let screen = match (arguments.json, std::io::stdout().is_terminal()) {
        (true, _) => Screen::Json,
        (false, true) => Screen::Terminal,
        (false, false) => Screen::Progress,
    };
    let mut session = Session::new(api.clone(), agent, context, screen);
    if let Some(given) = &arguments.thread {
        session.join(find::thread(api, given).await?).await?;
    }
    match message {
        Some(message) => once(&mut session, &message, is_interactive() && !arguments.json).await,
        None => Box::pin(session.run()).await.map(|()| 0),
    }
}

/// Returns the message of a chat of one message; `None` for a conversation.
fn message(arguments: &ChatArguments) -> ClientResult<Option<String>> {
    if let Some(message) = &arguments.message {
        return checked(message.clone()).map(Some);
    }
    if std::io::stdin().is_terminal() {
        return match is_interactive() && !arguments.json {
            true => Ok(None),
            false => Err(ClientError::Usage(
                "give a message with --message or on standard input".to_owned(),
            )),
        };
    }
    let limit = u64::try_from(MAX_MESSAGE_BYTES).unwrap_or(u64::MAX);
    let mut text = String::new();
    let read = std::io::stdin().lock().take(limit + 1).read_to_string(&mut text);
    read.map_err(|error| ClientError::Usage(format!("standard input cannot be read: {error}")))?;
    checked(text).map(Some)
}

fn checked(message: String) -> ClientResult<String> {
    if message.trim().is_empty() {
        return Err(ClientError::Usage("the message is empty".to_owned()));
    }
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(ClientError::Usage(format!(
            "the message is larger than {MAX_MESSAGE_BYTES} bytes"
        )));
    }
    Ok(message.trim_end_matches(['\r', '\n']).to_owned())
}

fn read_context(text: &str) -> ClientResult<Value> {
    let read: Option<Value> = serde_json::from_str(text).ok();
    let object = read.filter(Value::is_object);
    object.ok_or_else(|| ClientError::Usage("--context must be a JSON object".to_owned()))
}

/// Sends one message and returns the exit code for its outcome.
async fn once(session: &mut Session, message: &str, can_ask: bool) -> ClientResult<u8> {
    if can_ask {
        session.open_reader()?;
    }
    let sent = session.send(message).await?;
    let pending = match sent.outcome {
        Outcome::Interrupted => session.pending().await?,
        Outcome::Completed | Outcome::Failed => vec![],
    };
    session.settle()?;
    let result = ChatResult::of(session, &sent, pending).await?;
    match session.screen() {
        Screen::Json => output::print(&(escape::json(&result.to_json(session).to_string()) + "\n"))?,
        Screen::Progress => output::print(&result.answer_text())?,
        Screen::Terminal => {}
    }
    if session.screen() != Screen::Json {
        output::inform(&result.hints(session));
    }
    Ok(result.exit_code())
}

/// The result of a chat of one message.
struct ChatResult {
    outcome: Outcome,
    reason: String,
    usage: Value,
    answer: String,
    structured: Value,
    pending: Vec<Value>,
}

impl ChatResult {
    async fn of(session: &Session, end: &RunSummary, pending: Vec<Value>) -> ClientResult<Self> {
        let values = match end.outcome {
            Outcome::Completed => session.values().await?,
            Outcome::Failed | Outcome::Interrupted => Value::Null,
        };
        let messages = values["messages"].as_array();
        let last = messages.and_then(|all| all.iter().rev().find(|message| message["type"] == "ai"));
        Ok(Self {
            outcome: end.outcome,
            reason: end.reason.clone(),
            usage: end.usage.clone(),
            answer: last
                .map(|message| content_text(&message["content"]))
                .unwrap_or_default(),
            structured: values["structured_response"].clone(),
            pending,
        })
    }

    /// Returns the answer for standard output: a structured one as JSON.
    fn answer_text(&self) -> String {
        if self.outcome != Outcome::Completed {
            return String::new();
        }
        let text = match &self.structured {
            Value::Null => escape::text(&self.answer),
            structured
            @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
                escape::json(&structured.to_string())
            }
        };
        format!("{}\n", text.trim_end_matches('\n'))
    }

    fn word(&self) -> &'static str {
        match (self.outcome, self.pending.is_empty()) {
            (Outcome::Completed, _) => "completed",
            (Outcome::Failed, _) => "failed",
            (Outcome::Interrupted, false) => "interrupted",
            (Outcome::Interrupted, true) => "cancelled",
        }
    }

    fn exit_code(&self) -> u8 {
        match (self.outcome, self.pending.is_empty()) {
            (Outcome::Completed, _) => 0,
            (Outcome::Failed, _) => FAILED,
            (Outcome::Interrupted, false) => WAITS_FOR_APPROVAL,
            (Outcome::Interrupted, true) => CANCELLED,
        }
    }

    fn to_json(&self, session: &Session) -> Value {
        json!({
            "type": "result",
            "status": self.word(),
            "thread_id": session.thread(),
            "answer": self.answer,
            "structured_response": self.structured,
            "error": (!self.reason.is_empty()).then_some(&self.reason),
            "usage": self.usage,
            "interrupts": self.pending,
        })
    }

    /// Returns how to go on, for standard error.
    fn hints(&self, session: &Session) -> String {
        let thread = session.thread().unwrap_or_default();
        let questions = self.pending.iter().map(|interrupt| {
            let id = super::resources::text(interrupt, "id");
            let agent = super::resources::text(interrupt, "agent_name");
            let what = super::resources::interrupts::question(interrupt);
            let about = escape::line(&format!("{agent} waits for an answer: {what}"));
            format!("{about}\n  adjutant interrupts show {id}\n  adjutant interrupts resolve {id} --approve\n")
        });
        let questions: String = questions.collect();
        format!("{questions}The thread is {thread}; go on with --thread {thread}\n")
    }
}
