//! The supervisor of one command.

use std::io::{BufRead, PipeReader, Read, Write, pipe, stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::statvfs;
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, WaitIdStatus, getpid, pidfd_open, set_child_subreaper, set_dumpable_behavior,
};
use thread_priority::ThreadPriority;
use thread_priority::unix::{
    RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

use super::confine::{ConfinedCommand, Started};
use super::free_space::has_too_little;
use super::{CONFINE, CommandEnd, CommandPlan, ROLE, SandboxLayer, bubblewrap, processes};

/// The time between two counts of the processes.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 15_000_000,
};
/// The number of these times between two looks at the free space of disks.
const TICKS_OF_DISKS: u32 = 4;
/// The first descriptor after those of standard input, output and errors.
const FIRST_OTHER_DESCRIPTOR: i32 = 3;
/// The most that is read of what the confined process says of its start.
const MAX_STATUS_BYTES: u64 = 64 * 1024;

/// Supervises the command of the plan on standard input.
pub(super) fn supervise() -> ExitCode {
    // Whatever started the server may have left descriptors open in it.
    close_fds::set_fds_cloexec_threadsafe(FIRST_OTHER_DESCRIPTOR, &[]);
    let mut line = String::new();
    let read = stdin().lock().read_line(&mut line);
    let plan = read.ok().and_then(|_| serde_json::from_str::<CommandPlan>(&line).ok());
    let Some(plan) = plan else {
        return ExitCode::FAILURE;
    };
    let end = run(&plan).unwrap_or_else(CommandEnd::NotStarted);
    let text = serde_json::to_string(&end).unwrap_or_default();
    // If nobody reads it, the server has ended.
    let _ = writeln!(stdout(), "{text}");
    ExitCode::SUCCESS
}

/// Runs the command to its end.
///
/// # Errors
/// The reason why it was not started.
fn run(plan: &CommandPlan) -> Result<CommandEnd, String> {
    if !processes::can_list() {
        return Err("/proc does not list the children of processes".to_owned());
    }
    // The plan may contain secrets. Processes that lose their parent become children of this one.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| error.to_string())?;
    set_child_subreaper(Some(getpid())).map_err(|error| error.to_string())?;
    let temporary = temporary_directory(plan)?;
    let temporary_path = temporary.as_ref().map(tempfile::TempDir::path);
    let workspace = (!plan.is_read_only).then_some(plan.directory.as_path());
    let disks: Vec<&Path> = workspace.into_iter().chain(temporary_path).collect();
    if is_full(&disks, plan.limits.free_bytes) {
        return Ok(CommandEnd::Disk);
    }
    let confined = ConfinedCommand::of(plan, temporary_path);
    let (started, status) = pipe().map_err(|error| format!("a pipe cannot be opened: {error}"))?;
    let mut child = spawn(plan, status)?;
    let end = watch(plan, &mut child, &confined, &disks);
    let started = what_started(started);
    drop(temporary);
    match (end, started) {
        (Ok(CommandEnd::Killed), _) => Ok(CommandEnd::Killed),
        (end, Ok(())) => end,
        (_, Err(reason)) => Err(reason),
    }
}

/// Returns the directory for temporary files of a command that has no mounts of its own.
fn temporary_directory(plan: &CommandPlan) -> Result<Option<tempfile::TempDir>, String> {
    match plan.layer {
        SandboxLayer::Bwrap => Ok(None),
        SandboxLayer::Landlock => tempfile::tempdir()
            .map(Some)
            .map_err(|error| format!("a temporary directory cannot be made: {error}")),
    }
}

/// Starts the process that will be the shell. The process reports on `status` that it has given up its rights; its
/// other output is the output of the command.
fn spawn(plan: &CommandPlan, status: impl Into<Stdio>) -> Result<Child, String> {
    let output = stderr()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| error.to_string())?;
    let mut command = match plan.layer {
        SandboxLayer::Bwrap => {
            let mut command = bubblewrap::command(plan)?;
            command.process_group(0);
            command
        }
        SandboxLayer::Landlock => Command::new("/proc/self/exe"),
    };
    command.args([ROLE, CONFINE]).env_clear().current_dir("/");
    command.stdin(Stdio::piped()).stdout(status).stderr(output);
    command.spawn().map_err(|error| match plan.layer {
        SandboxLayer::Bwrap => format!("the program bwrap cannot be started: {error}"),
        SandboxLayer::Landlock => format!("the confined process cannot be started: {error}"),
    })
}

/// Gives the process its command, and waits until it ends, exceeds a limit, or standard input is closed. No process of
/// it is left then.
fn watch(
    plan: &CommandPlan,
    child: &mut Child,
    confined: &ConfinedCommand,
    disks: &[&Path],
) -> Result<CommandEnd, String> {
    let leader = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let leader = leader.ok_or_else(|| "the process has no id".to_owned())?;
    let text = serde_json::to_vec(confined).map_err(|error| error.to_string())?;
    // Not before: processes inherit the priority.
    precede_command();
    if let Some(mut input) = child.stdin.take() {
        // A process that ended early says why.
        let _ = input.write_all(&text);
    }
    let ended = wait(plan, leader, disks);
    let status = processes::status_of(leader);
    processes::kill_all(leader);
    match (ended, status) {
        (Waited::Ended(status), _) => Ok(end_of(&status)),
        // It ended at the same time.
        (Waited::Stopped(CommandEnd::Killed), Some(status)) if status.exited() => Ok(end_of(&status)),
        (Waited::Stopped(end), _) => Ok(end),
    }
}

/// Lets this process run as soon as it has something to do, before the processes of the command.
///
/// Root has no limit of processes. On a busy machine, with fair shares, a command that starts processes all the time would have
/// thousands of them before this process is run again. Who has no right to the priority has the limit of processes.
fn precede_command() {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin);
    let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
}

/// The reason why waiting ended.
enum Waited {
    Ended(WaitIdStatus),
    Stopped(CommandEnd),
}

fn wait(plan: &CommandPlan, leader: Pid, disks: &[&Path]) -> Waited {
    // Processes of the sandbox itself do not count.
    let own = match plan.layer {
        SandboxLayer::Bwrap => 2,
        SandboxLayer::Landlock => 0,
    };
    let most = usize::try_from(plan.limits.processes)
        .unwrap_or(usize::MAX)
        .saturating_add(own);
    let watched = pidfd_open(leader, PidfdFlags::empty()).ok();
    let input = stdin();
    let mut memory = processes::MemoryCount::new(plan.limits.memory_bytes);
    let mut ticks: u32 = 0;
    loop {
        if let Some(status) = processes::status_of(leader) {
            return Waited::Ended(status);
        }
        processes::reap_others(leader);
        let found = processes::below(getpid(), most);
        if found.len() > most {
            return Waited::Stopped(CommandEnd::Processes);
        }
        if memory.is_exceeded(&found) {
            return Waited::Stopped(CommandEnd::Memory);
        }
        ticks = ticks.wrapping_add(1);
        if ticks.is_multiple_of(TICKS_OF_DISKS) && is_full(disks, plan.limits.free_bytes) {
            return Waited::Stopped(CommandEnd::Disk);
        }
        let mut events = vec![PollFd::new(&input, PollFlags::IN)];
        events.extend(watched.as_ref().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        // An interrupted wait is followed by the next.
        let _ = poll(&mut events, Some(&TICK));
        if events.first().is_some_and(|input| !input.revents().is_empty()) {
            return Waited::Stopped(CommandEnd::Killed);
        }
    }
}

/// Returns whether less than this number of bytes is free on one of the disks with these directories.
fn is_full(disks: &[&Path], least: Option<u64>) -> bool {
    // Of a disk that does not tell it nothing is known.
    let mut found = disks.iter().filter_map(|disk| statvfs(*disk).ok());
    found.any(|disk| has_too_little(&disk, 0, least))
}

fn end_of(status: &WaitIdStatus) -> CommandEnd {
    match status.exit_status() {
        Some(code) => CommandEnd::Exited(code),
        None => CommandEnd::Signalled(status.terminating_signal().unwrap_or_default()),
    }
}

/// Reads what the confined process has said of its start.
///
/// # Errors
/// The reason why the shell was not started.
fn what_started(reader: PipeReader) -> Result<(), String> {
    let mut text = String::new();
    // No process of it is left, so the pipe is closed.
    let _ = reader.take(MAX_STATUS_BYTES).read_to_string(&mut text);
    match serde_json::from_str::<Started>(&text) {
        Ok(Started::Yes) => Ok(()),
        Ok(Started::No(reason)) => Err(reason),
        Err(_) => Err("the process ended before it was confined".to_owned()),
    }
}
