//! Commands in a sandbox of a sandbox service.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::ACCEPT;
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::SandboxPlace;
use super::client::{SandboxError, plain, refusal, unanswered};
use crate::definition::CommandNetwork;
use crate::domain::id::SandboxId;
use crate::domain::json_limits::read_foreign;
use crate::domain::machine::Failure;
use crate::model::pieces::PieceReader;
use crate::net::sse::{Frames, PeerFrame};
use crate::sandbox::CommandEnd;
use crate::tool::execute::{CommandOutput, Sandbox, SandboxCommand, SandboxEnd};
use crate::tool::request_span::RequestSpan;
use crate::tool::scope::Scope;

/// The time that a service has to kill a command that takes too long, and to say so.
const KILL_TIME: Duration = Duration::from_secs(15);
/// The most that a command may write, in bytes, kept or not.
const MAX_WRITTEN_BYTES: u64 = 32 * 1024 * 1024;
/// The maximum size of an event, in bytes. Larger ones are left out.
const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// A piece of a command's output.
#[derive(Deserialize)]
struct Output {
    text: String,
}

/// The end of a command. The first member that is there counts.
#[derive(Deserialize)]
struct End {
    exit_code: Option<i32>,
    signal: Option<i32>,
    #[serde(default)]
    timed_out: bool,
    killed: Option<String>,
}

/// Runs commands in the sandbox of an agent.
pub struct SandboxCommands(SandboxPlace);

impl SandboxCommands {
    /// Creates the commands of an agent with its sandbox at this place.
    pub fn new(place: SandboxPlace) -> Self {
        Self(place)
    }

    async fn not_run(&self, scope: &Scope, id: SandboxId, error: SandboxError) -> Failure {
        match error {
            // The service may have begun.
            SandboxError::Failed(_) | SandboxError::TooLarge(_) => unknown("ToolConnectionError", &error.to_string()),
            SandboxError::Gone | SandboxError::Refused { .. } | SandboxError::Unreachable(_) => {
                failed(&self.0.explain(scope, id, error).await)
            }
        }
    }
}

fn failed(reason: &str) -> Failure {
    Failure::new("SandboxError", format!("the command was not run: {reason}."))
}

/// Returns the failure of a command whose end is not known.
fn unknown(class: &str, reason: &str) -> Failure {
    let text = format!("{reason}. The command may have run, and may have had effects; look before you repeat it.");
    Failure::new(class, text)
}

#[async_trait]
impl Sandbox for SandboxCommands {
    fn network(&self) -> Option<CommandNetwork> {
        None
    }

    async fn run(
        &self,
        scope: &Scope,
        command: &SandboxCommand,
        output: &mut CommandOutput<'_>,
    ) -> Result<SandboxEnd, Failure> {
        let id = self.0.open(scope).await.map_err(|reason| failed(&reason))?;
        let url = self.0.service.address(id, Some("commands"));
        let mut span = RequestSpan::begin(&scope.trace, &url);
        let body = json!({"command": command.command, "timeout_s": command.timeout.as_secs()});
        let request = self.0.service.request(Method::POST, url).json(&body);
        let request = span.pass_on(request.header(ACCEPT, "text/event-stream"));
        let deadline = Instant::now() + command.timeout + KILL_TIME;
        let ended = match timeout_at(deadline, self.follow(request, &mut span, output)).await {
            Ok(Ok(end)) => Ok(end),
            Ok(Err(error)) => Err(self.not_run(scope, id, error).await),
            Err(_) => Err(unknown(
                "ToolTimeoutError",
                "the sandbox service did not end the command after its time",
            )),
        };
        span.end(&scope.trace, ended.as_ref().err().map(|failure| failure.class.as_str()));
        ended
    }
}

impl SandboxCommands {
    /// Sends a command, and passes its output on until its end.
    async fn follow(
        &self,
        request: RequestBuilder,
        span: &mut RequestSpan,
        output: &mut CommandOutput<'_>,
    ) -> Result<SandboxEnd, SandboxError> {
        let opened = PieceReader::open(request, self.0.service.limits.pieces).await;
        let mut reader = opened.map_err(unanswered)?;
        span.set_status(reader.head().status());
        if !reader.head().status().is_success() {
            return Err(refusal(&mut reader).await);
        }
        let mut frames = Frames::up_to(MAX_EVENT_BYTES);
        while let Some(piece) = reader.next().await.map_err(unanswered)? {
            for frame in frames.take(&piece) {
                if let Some(end) = take(&frame, output).await? {
                    return Ok(end);
                }
            }
            if output.total_bytes() > MAX_WRITTEN_BYTES {
                return Ok(SandboxEnd::TooMuchOutput);
            }
        }
        let reason = "ended its answer before the command had ended";
        Err(SandboxError::Failed(reason.to_owned()))
    }
}

/// Takes an event. Returns the end of the command, if it is that.
async fn take(frame: &PeerFrame, output: &mut CommandOutput<'_>) -> Result<Option<SandboxEnd>, SandboxError> {
    let invalid = |error: &dyn std::fmt::Display| {
        SandboxError::Failed(format!("answered with an event that cannot be used: it {error}"))
    };
    match frame.event.as_str() {
        "output" => {
            let piece: Output = read_foreign(frame.data.as_bytes()).map_err(|error| invalid(&error))?;
            output.push(piece.text.as_bytes()).await;
            Ok(None)
        }
        "end" => {
            let end: End = read_foreign(frame.data.as_bytes()).map_err(|error| invalid(&error))?;
            let end = end.into_sandbox_end();
            end.map(Some)
                .ok_or_else(|| invalid(&"does not say how the command ended"))
        }
        // Events of newer services.
        _ => Ok(None),
    }
}

impl End {
    fn into_sandbox_end(self) -> Option<SandboxEnd> {
        if let Some(code) = self.exit_code {
            return Some(SandboxEnd::Ended(CommandEnd::Exited(code)));
        }
        if let Some(signal) = self.signal {
            return Some(SandboxEnd::Ended(CommandEnd::Signalled(signal)));
        }
        if self.timed_out {
            return Some(SandboxEnd::TimedOut);
        }
        self.killed.map(|reason| SandboxEnd::Killed(plain(&reason)))
    }
}
