//! Confines the commands of agents on Linux.
//!
//! The server never starts a command itself. It starts its own program again as a *supervisor*, which reads a
//! [`CommandPlan`] from its standard input and starts the program a third time inside the sandbox, where it gives up
//! all rights but those of the plan and then becomes the shell:
//!
//! ```text
//! server ──► supervisor ──► bwrap ──► confine ──► shell       isolation `bwrap`
//! server ──► supervisor ───────────► confine ──► shell       isolation `landlock`
//! ```
//!
//! The supervisor is outside of the sandbox. It counts the processes and the memory of the command, and kills all of
//! them when the shell has ended, when a limit is exceeded, and when its standard input is closed: so a command ends
//! with the server, however the server ends. Its standard error is the output of the command; on its standard output
//! it writes one [`CommandEnd`].
//!
//! All rights are given up by safe calls of crates. Whatever fails on the way ends the process before the shell starts.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
mod bubblewrap;
#[cfg(target_os = "linux")]
mod confine;
pub mod free_space;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod supervise;
#[cfg(target_os = "linux")]
mod system_calls;

/// The first argument of the program in the two roles of this room.
const ROLE: &str = "sandbox-role";
/// The most that is read of a supervisor that tries a layer out, in bytes.
const MAX_READ: u64 = 64 * 1024;
/// The second argument of the supervisor.
const SUPERVISE: &str = "supervise";
/// The second argument of the process that becomes the shell.
#[cfg(target_os = "linux")]
const CONFINE: &str = "confine";

/// The way in which a command is kept apart from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxLayer {
    /// Namespaces by the program `bwrap`, with Landlock and seccomp inside.
    Bwrap,
    /// Landlock and seccomp alone.
    Landlock,
}

impl SandboxLayer {
    /// Returns the name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Bwrap => "bwrap",
            Self::Landlock => "landlock",
        }
    }
}

/// A command, and what it may use.
#[derive(Clone, Serialize, Deserialize)]
pub struct CommandPlan {
    /// The way in which it is kept apart.
    pub layer: SandboxLayer,
    /// The shell, which gets the command after `-c`.
    pub shell: PathBuf,
    /// The command.
    pub command: String,
    /// The directory in which the command starts: the only one of the disk that the command may change.
    pub directory: PathBuf,
    /// True if it may not change that directory either.
    pub is_read_only: bool,
    /// Further files and directories that it may read.
    pub readable: Vec<PathBuf>,
    /// Its environment beside what every command has. It may contain secrets.
    pub env: BTreeMap<String, String>,
    /// True if it may use the network of the machine.
    pub has_network: bool,
    /// Its limits.
    pub limits: CommandLimits,
}

/// The limits of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLimits {
    /// The memory of all of its processes together, and of each, in bytes.
    pub memory_bytes: u64,
    /// The number of its processes.
    pub processes: u32,
    /// The processor time of each of its processes, in seconds.
    pub cpu_s: u64,
    /// The size of a file that it writes, in bytes.
    pub file_bytes: u64,
    /// The space that has to stay free on the disks to which it can write, in bytes. Without it that depends on the size of
    /// the disk.
    pub free_bytes: Option<u64>,
}

/// The end of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandEnd {
    /// The shell ended with this exit code.
    Exited(i32),
    /// The shell was ended by this signal.
    Signalled(i32),
    /// Killed for too many processes.
    Processes,
    /// Killed for too much memory.
    Memory,
    /// Killed, or not started, since too little of a disk is free.
    Disk,
    /// Killed because the server closed the input of the supervisor.
    Killed,
    /// Not started, for this reason.
    NotStarted(String),
}

/// Returns the arguments that make the program a supervisor.
pub fn supervisor_arguments() -> [&'static str; 2] {
    [ROLE, SUPERVISE]
}

/// Plays the role of a supervisor or of a confined process, if the program was started for that; `None` otherwise. The
/// function `main` of a program that embeds the server has to call it first if the program is to start commands.
pub fn play_role() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ROLE {
        return None;
    }
    let role = arguments.next().unwrap_or_default();
    Some(role_of(role.to_str().unwrap_or_default()))
}

/// Returns whether every command can read a file, wherever its workspace is, because it lies in a directory of the
/// system.
pub fn is_readable_by_all(file: &Path) -> bool {
    #[cfg(target_os = "linux")]
    let system = bubblewrap::SYSTEM
        .iter()
        .chain(&bubblewrap::ETC)
        .chain(&bubblewrap::CERTIFICATES);
    #[cfg(not(target_os = "linux"))]
    let system = std::iter::empty::<&&str>();
    system.into_iter().any(|place| file.starts_with(place))
}

#[cfg(target_os = "linux")]
fn role_of(role: &str) -> ExitCode {
    match role {
        SUPERVISE => supervise::supervise(),
        CONFINE => confine::confine(),
        _ => ExitCode::FAILURE,
    }
}

#[cfg(not(target_os = "linux"))]
fn role_of(_: &str) -> ExitCode {
    ExitCode::FAILURE
}

/// Tries a layer out by running a command that does nothing. Blocks for about a twentieth of a second.
///
/// # Errors
/// The reason why the layer does not work on this machine.
pub fn try_layer(program: &Path, layer: SandboxLayer) -> Result<(), String> {
    let directory = tempfile::tempdir().map_err(|error| format!("a temporary directory cannot be made: {error}"))?;
    let plan = CommandPlan {
        layer,
        shell: PathBuf::from("/bin/sh"),
        command: "exit 0".to_owned(),
        directory: directory.path().to_path_buf(),
        is_read_only: false,
        readable: vec![],
        env: BTreeMap::new(),
        has_network: false,
        limits: CommandLimits {
            memory_bytes: 1 << 30,
            processes: 16,
            cpu_s: 5,
            file_bytes: 1 << 20,
            free_bytes: Some(0),
        },
    };
    let mut line = serde_json::to_string(&plan).map_err(|error| error.to_string())?;
    line.push('\n');
    let spawned = Command::new(program)
        .args(supervisor_arguments())
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut supervisor = spawned.map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
    // Its standard input is closed when both pipes have been read: the command has ended then.
    let input = supervisor.stdin.as_mut().map(|input| input.write_all(line.as_bytes()));
    input
        .transpose()
        .map_err(|error| format!("the supervisor takes no command: {error}"))?;
    let mut report = String::new();
    let mut output = String::new();
    if let (Some(stdout), Some(stderr)) = (supervisor.stdout.take(), supervisor.stderr.take()) {
        let _ = stderr.take(MAX_READ).read_to_string(&mut output);
        let _ = stdout.take(MAX_READ).read_to_string(&mut report);
    }
    let _ = supervisor.wait();
    match serde_json::from_str(report.trim()) {
        Ok(CommandEnd::Exited(0)) => Ok(()),
        Ok(CommandEnd::NotStarted(reason)) if output.trim().is_empty() => Err(reason),
        Ok(CommandEnd::NotStarted(reason)) => Err(format!("{reason}: {}", output.trim())),
        Ok(end) => Err(format!("a command that does nothing ended with {end:?}")),
        Err(_) => Err(format!(
            "{} is not a program that supervises commands",
            program.display()
        )),
    }
}
