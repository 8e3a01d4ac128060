//! The tool `execute`: a shell command in a [`Sandbox`].
//!
//! [`LocalSandbox`] runs commands on this machine, in the directory of a workspace on the disk;
//! [`SandboxCommands`](super::sandboxes::SandboxCommands) in a sandbox of a sandbox service. The tool has the texts of the
//! results, the time-outs and the limit of the output; a sandbox only runs the command.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use super::halt::Halt;
use super::outcome::CallOutcome;
use super::scope::Scope;
use super::toolbox::Tool;
use crate::definition::{AfterCrash, CommandNetwork, ExecuteSettings};
use crate::domain::call::ToolOutput;
use crate::domain::machine::Failure;
use crate::domain::message::{Message, Role, ToolCall, ToolStatus};
use crate::domain::state::State;
use crate::model::ToolSpec;
use crate::sandbox::CommandEnd;

mod local;
mod output;

pub use local::{CommandLauncher, LocalSandbox};
pub use output::CommandOutput;

/// The name of the tool.
pub const EXECUTE: &str = "execute";
/// The maximum length of a command, in bytes: the kernel takes no longer arguments.
const MAX_COMMAND_BYTES: usize = 100_000;
/// The exit code of a command that took too long, as `timeout` has it.
const TIMED_OUT: i32 = 124;
/// The exit code of a command that a signal has ended, less the number of the signal.
const SIGNALLED: i32 = 128;

/// A place where commands run, apart from the server.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// Returns the network that commands can use; none if that is not known.
    fn network(&self) -> Option<CommandNetwork>;

    /// Runs a command to its end and passes its output on. A command whose future is dropped is killed with all of its
    /// processes.
    ///
    /// # Errors
    /// The reason why the command was not run.
    async fn run(
        &self,
        scope: &Scope,
        command: &SandboxCommand,
        output: &mut CommandOutput<'_>,
    ) -> Result<SandboxEnd, Failure>;
}

/// A command for a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxCommand {
    /// The command, for a shell.
    pub command: String,
    /// The time after which it is killed.
    pub timeout: Duration,
}

/// The end of a command in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxEnd {
    /// Ended by itself, or for one of its limits.
    Ended(CommandEnd),
    /// Killed because it took too long.
    TimedOut,
    /// Killed because it wrote without end.
    TooMuchOutput,
    /// Killed by the sandbox, for this reason.
    Killed(String),
}

/// The tool.
pub struct ExecuteTool {
    spec: Arc<ToolSpec>,
    sandbox: Arc<dyn Sandbox>,
    settings: ExecuteSettings,
}

/// The arguments of a call.
#[derive(Deserialize)]
struct ExecuteArguments {
    command: String,
    timeout: Option<i64>,
}

impl ExecuteTool {
    /// Creates the tool for the commands of one agent. `elsewhere` are the directories of its files that commands do not
    /// see.
    pub fn new(sandbox: Arc<dyn Sandbox>, settings: ExecuteSettings, elsewhere: &[&str]) -> Self {
        let network = match sandbox.network() {
            Some(CommandNetwork::None) => " There is no network.",
            Some(CommandNetwork::Host) => " The network can be used.",
            None => "",
        };
        let description = format!(
            "Runs a shell command in a sandbox and shows what it prints and its exit code. It starts in the directory \
             of your files: what the file tools call /notes.txt is notes.txt here, so use relative paths. Only the file \
             tools see what is below {}. Each call is a shell of its own; only files stay.{network} A command is killed \
             with all that it has started after {} seconds, or after `timeout` seconds, at most {}. To read, search and \
             change files, prefer the file tools.",
            elsewhere.join(", "),
            settings.timeout_s,
            settings.max_timeout_s
        );
        let parameters = json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command, for `sh -c`."},
                "timeout": {
                    "type": ["integer", "null"],
                    "description": "Seconds until the command is killed, instead of the usual time.",
                },
            },
            "required": ["command"],
        });
        let spec = ToolSpec {
            name: EXECUTE.to_owned(),
            description,
            parameters,
        };
        Self {
            spec: Arc::new(spec),
            sandbox,
            settings,
        }
    }

    /// Reads the arguments of a call.
    ///
    /// # Errors
    /// The text for the model.
    fn command_of(&self, call: &ToolCall) -> Result<SandboxCommand, String> {
        let arguments: ExecuteArguments = serde_json::from_value(Value::Object(call.args.clone()))
            .map_err(|error| format!("Error: the arguments of `{EXECUTE}` cannot be used: {error}."))?;
        let most = i64::from(self.settings.max_timeout_s);
        let timeout = arguments.timeout.unwrap_or(i64::from(self.settings.timeout_s));
        let Some(seconds) = u64::try_from(timeout).ok().filter(|_| (1..=most).contains(&timeout)) else {
            return Err(format!(
                "Error: `timeout` must be a whole number of seconds from 1 to {most}, not {timeout}. The command was not run."
            ));
        };
        let command = arguments.command;
        if command.trim().is_empty() || command.contains('\0') {
            return Err("Error: `command` must be a command without zero characters.".to_owned());
        }
        if command.len() > MAX_COMMAND_BYTES {
            return Err(format!(
                "Error: the command has more than {MAX_COMMAND_BYTES} bytes. Write a file and run that."
            ));
        }
        Ok(SandboxCommand {
            command,
            timeout: Duration::from_secs(seconds),
        })
    }

    /// Returns the result of a command as the model reads it.
    fn answer(
        &self,
        call: &ToolCall,
        command: &SandboxCommand,
        end: &SandboxEnd,
        output: &CommandOutput<'_>,
    ) -> ToolOutput {
        let (code, notice) = self.notice(end, command);
        let mut lines = vec![];
        let text = output.text();
        if !text.is_empty() {
            lines.push(text);
        }
        lines.push(notice);
        if output.is_truncated() {
            lines.push(format!(
                "[Output was truncated: the command wrote {} bytes, of which the first and the last are shown]",
                output.total_bytes()
            ));
        }
        let status = match end {
            SandboxEnd::Ended(CommandEnd::Exited(_)) => ToolStatus::Success,
            SandboxEnd::Ended(_) | SandboxEnd::TimedOut | SandboxEnd::TooMuchOutput | SandboxEnd::Killed(_) => {
                ToolStatus::Error
            }
        };
        let message = Message::tool(call, status, lines.join("\n"));
        let artifact = json!({"exit_code": code, "truncated": output.is_truncated()});
        let role = Role::Tool {
            tool_call_id: call.id.clone(),
            artifact: Some(artifact),
            status,
        };
        ToolOutput::message(Message { role, ..message })
    }

    /// Returns the exit code of a command and the line about its end.
    fn notice(&self, end: &SandboxEnd, command: &SandboxCommand) -> (i32, String) {
        let killed = |reason: String| (SIGNALLED + 9, format!("[Command was killed: {reason}]"));
        match end {
            SandboxEnd::Ended(CommandEnd::Exited(0)) => (0, "[Command succeeded with exit code 0]".to_owned()),
            SandboxEnd::Ended(CommandEnd::Exited(code)) => (*code, format!("[Command failed with exit code {code}]")),
            SandboxEnd::Ended(CommandEnd::Signalled(signal)) => {
                let code = SIGNALLED.saturating_add(*signal);
                (
                    code,
                    format!("[Command failed with exit code {code}: ended by signal {signal}]"),
                )
            }
            SandboxEnd::Ended(CommandEnd::Processes) => {
                killed(format!("it had more than {} processes", self.settings.max_processes))
            }
            SandboxEnd::Ended(CommandEnd::Memory) => {
                killed(format!("it used more than {} MiB of memory", self.settings.memory_mb))
            }
            SandboxEnd::Ended(CommandEnd::Disk) => killed(self.settings.min_free_mb.map_or_else(
                || "too little of the disk is free".to_owned(),
                |least| format!("less than {least} MiB of the disk are free"),
            )),
            SandboxEnd::Ended(CommandEnd::Killed | CommandEnd::NotStarted(_)) => {
                killed("its sandbox was ended".to_owned())
            }
            SandboxEnd::TooMuchOutput => killed("it wrote without end".to_owned()),
            SandboxEnd::Killed(reason) => killed(reason.clone()),
            SandboxEnd::TimedOut => (
                TIMED_OUT,
                format!(
                    "[Command timed out after {} s and was killed, exit code {TIMED_OUT}]",
                    command.timeout.as_secs()
                ),
            ),
        }
    }
}

#[async_trait]
impl Tool for ExecuteTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    fn has_effects(&self) -> bool {
        true
    }

    fn after_crash(&self) -> AfterCrash {
        self.settings.after_crash
    }

    async fn call(&self, scope: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let command = match self.command_of(call) {
            Ok(command) => command,
            Err(text) => return Ok(CallOutcome::Answer(ToolOutput::error(call, text))),
        };
        let mut output = CommandOutput::new(self.settings.max_output_bytes, &scope.progress, &call.id);
        let end = self.sandbox.run(scope, &command, &mut output).await?;
        output.finish().await;
        Ok(CallOutcome::Answer(self.answer(call, &command, &end, &output)))
    }
}
