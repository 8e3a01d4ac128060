//! Commands on this machine, each under a supervisor; see [`crate::sandbox`].

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, Command};
use tokio::time::{Instant, timeout, timeout_at};

use super::{CommandOutput, Sandbox, SandboxCommand, SandboxEnd};
use crate::definition::{CommandNetwork, ExecuteSettings, Isolation};
use crate::domain::machine::Failure;
use crate::sandbox::{self, CommandEnd, CommandLimits, CommandPlan, SandboxLayer};
use crate::tool::files::DiskFiles;
use crate::tool::scope::Scope;

/// The number of bytes that are read at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// The most that a command may write, in bytes, kept or not.
const MAX_WRITTEN_BYTES: u64 = 256 * 1024 * 1024;
/// The time that a supervisor has to kill a command.
const KILL_TIME: Duration = Duration::from_secs(15);
/// The most that is read of a supervisor's report, in bytes.
const MAX_REPORT_BYTES: u64 = 64 * 1024;
/// A mebibyte, in bytes.
const MIB: u64 = 1024 * 1024;

/// Starts supervisors, and knows which isolation works on this machine. Cheap to clone; clones share what was found.
#[derive(Debug, Clone, Default)]
pub struct CommandLauncher {
    program: Option<PathBuf>,
    layers: Arc<OnceLock<Layers>>,
}

/// The reasons why layers do not work here; none for one that works.
#[derive(Debug)]
struct Layers {
    bwrap: Option<String>,
    landlock: Option<String>,
}

impl CommandLauncher {
    /// Creates a launcher that starts `program` as the supervisor; without a program no command can be run.
    pub fn new(program: Option<PathBuf>) -> Self {
        Self {
            program,
            layers: Arc::default(),
        }
    }

    /// Returns the reason why a layer does not work on this machine; none if it works. It is tried out once, which
    /// blocks for about a tenth of a second.
    pub fn problem_of(&self, layer: SandboxLayer) -> Option<&str> {
        let layers = self.layers.get_or_init(|| {
            let attempt = |layer| {
                let program = self.program.as_deref();
                let program = program.ok_or_else(|| "no program that supervises commands is set".to_owned());
                program.and_then(|program| sandbox::try_layer(program, layer)).err()
            };
            Layers {
                bwrap: attempt(SandboxLayer::Bwrap),
                landlock: attempt(SandboxLayer::Landlock),
            }
        });
        match layer {
            SandboxLayer::Bwrap => layers.bwrap.as_deref(),
            SandboxLayer::Landlock => layers.landlock.as_deref(),
        }
    }

    /// Returns the layer for commands with this isolation. May block, as [`Self::problem_of`].
    ///
    /// # Errors
    /// The reasons why the machine has none.
    pub fn layer_for(&self, isolation: Isolation) -> Result<SandboxLayer, String> {
        let wanted: &[SandboxLayer] = match isolation {
            Isolation::Auto => &[SandboxLayer::Bwrap, SandboxLayer::Landlock],
            Isolation::Bwrap => &[SandboxLayer::Bwrap],
            Isolation::Landlock => &[SandboxLayer::Landlock],
        };
        let mut reasons = vec![];
        for layer in wanted {
            match self.problem_of(*layer) {
                None => return Ok(*layer),
                Some(reason) => reasons.push(format!("{}: {reason}", layer.word())),
            }
        }
        Err(format!("this machine cannot confine commands: {}", reasons.join("; ")))
    }
}

/// Runs commands in the directory of a workspace on the disk.
pub struct LocalSandbox {
    launcher: CommandLauncher,
    files: DiskFiles,
    is_read_only: bool,
    settings: ExecuteSettings,
}

impl LocalSandbox {
    /// Creates the sandbox of an agent with this workspace.
    pub fn new(launcher: CommandLauncher, files: DiskFiles, is_read_only: bool, settings: ExecuteSettings) -> Self {
        Self {
            launcher,
            files,
            is_read_only,
            settings,
        }
    }

    async fn plan(&self, scope: &Scope, command: &SandboxCommand) -> Result<CommandPlan, Failure> {
        let directory = self.files.directory(scope).await.map_err(|text| failed(&text))?;
        let launcher = self.launcher.clone();
        let isolation = self.settings.isolation;
        let layer = tokio::task::spawn_blocking(move || launcher.layer_for(isolation)).await;
        let layer = layer.unwrap_or_else(|_| Err("the machine could not be looked at".to_owned()));
        Ok(CommandPlan {
            layer: layer.map_err(|reason| failed(&reason))?,
            shell: self.settings.shell.clone(),
            command: command.command.clone(),
            directory,
            is_read_only: self.is_read_only,
            readable: self.settings.read_paths.clone(),
            env: self.settings.values.expose(),
            has_network: self.settings.network == CommandNetwork::Host,
            limits: CommandLimits {
                memory_bytes: self.settings.memory_mb.saturating_mul(MIB),
                processes: self.settings.max_processes,
                cpu_s: self.settings.cpu_s,
                file_bytes: self.settings.max_file_mb.saturating_mul(MIB),
                free_bytes: self.settings.min_free_mb.map(|space| space.saturating_mul(MIB)),
            },
        })
    }
}

fn failed(reason: &str) -> Failure {
    let reason = reason.trim_start_matches("Error: ").trim_end_matches('.');
    Failure::new("SandboxError", format!("the command was not run: {reason}."))
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn network(&self) -> Option<CommandNetwork> {
        Some(self.settings.network)
    }

    async fn run(
        &self,
        scope: &Scope,
        command: &SandboxCommand,
        output: &mut CommandOutput<'_>,
    ) -> Result<SandboxEnd, Failure> {
        let plan = self.plan(scope, command).await?;
        let program = self.launcher.program.as_deref().unwrap_or(Path::new(""));
        let deadline = Instant::now() + command.timeout;
        let mut supervisor = Supervisor::start(program, &plan).await?;
        let stopped = supervisor.pass_on(output, deadline).await;
        let end = supervisor.end(output, stopped.is_some()).await;
        match (end, stopped) {
            (CommandEnd::NotStarted(reason), _) => Err(failed(&with_output(&reason, &output.text()))),
            (end @ CommandEnd::Exited(_), _) | (end, None) => Ok(SandboxEnd::Ended(end)),
            (_, Some(stopped)) => Ok(stopped),
        }
    }
}

/// Returns the reason why a command was not started, with what the programs of the sandbox have said about it.
fn with_output(reason: &str, output: &str) -> String {
    match output.trim() {
        "" => reason.to_owned(),
        said => format!("{reason}: {said}"),
    }
}

/// A running supervisor. It kills its command when this is dropped.
struct Supervisor {
    child: Child,
    /// Closed to have the command killed.
    input: Option<ChildStdin>,
    output: ChildStderr,
}

impl Supervisor {
    async fn start(program: &Path, plan: &CommandPlan) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command
            .args(sandbox::supervisor_arguments())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A signal for the server's group is none for the supervisor.
        #[cfg(unix)]
        command.process_group(0);
        let spawned = command.spawn();
        let mut child = spawned.map_err(|error| failed(&format!("the supervisor cannot be started: {error}")))?;
        let mut input = child.stdin.take();
        let output = child.stderr.take();
        let output = output.ok_or_else(|| failed("the supervisor has no output"))?;
        let mut line = serde_json::to_string(plan).map_err(|error| failed(&error.to_string()))?;
        line.push('\n');
        if let Some(input) = &mut input {
            let written = async {
                input.write_all(line.as_bytes()).await?;
                input.flush().await
            };
            written
                .await
                .map_err(|error| failed(&format!("the supervisor takes no command: {error}")))?;
        }
        Ok(Self { child, input, output })
    }

    /// Passes the output of the command on until it ends. Returns the reason if it has to be killed before.
    async fn pass_on(&mut self, output: &mut CommandOutput<'_>, deadline: Instant) -> Option<SandboxEnd> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let Ok(read) = timeout_at(deadline, self.output.read(&mut chunk)).await else {
                return Some(SandboxEnd::TimedOut);
            };
            match read {
                Ok(0) | Err(_) => return None,
                Ok(length) => output.push(&chunk[..length]).await,
            }
            if output.total_bytes() > MAX_WRITTEN_BYTES {
                return Some(SandboxEnd::TooMuchOutput);
            }
            if Instant::now() >= deadline {
                return Some(SandboxEnd::TimedOut);
            }
        }
    }

    /// Waits for the report of the supervisor; if the command has to be killed, has that done first.
    async fn end(mut self, output: &mut CommandOutput<'_>, is_killed: bool) -> CommandEnd {
        if is_killed {
            drop(self.input.take());
            // What is in the pipe belongs to the output, but no more than that.
            let _ = self.pass_on(output, Instant::now() + KILL_TIME).await;
        }
        let mut report = String::new();
        if let Some(stdout) = self.child.stdout.take() {
            let mut limited = stdout.take(MAX_REPORT_BYTES);
            let _ = timeout(KILL_TIME, limited.read_to_string(&mut report)).await;
        }
        // A supervisor that does not answer is killed; `bwrap` and the confined process end with it.
        if !matches!(timeout(KILL_TIME, self.child.wait()).await, Ok(Ok(_))) {
            let _ = self.child.start_kill();
        }
        let no_report = "the supervisor ended without a report".to_owned();
        serde_json::from_str(report.trim()).unwrap_or(CommandEnd::NotStarted(no_report))
    }
}
