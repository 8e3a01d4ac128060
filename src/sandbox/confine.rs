//! The process that gives up its rights and becomes the shell.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write, stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{
    Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setpriority_process, setrlimit, setsid,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use serde::{Deserialize, Serialize};

use super::bubblewrap::{CERTIFICATES, ETC, SYSTEM, WORKSPACE};
use super::system_calls::{self, SocketRule};
use super::{CommandLimits, CommandPlan, SandboxLayer, processes};

/// The version of Landlock whose rights over files are used.
const FILES: ABI = ABI::V5;
/// The version of Landlock that keeps signals within the sandbox.
const SIGNALS: ABI = ABI::V6;
/// The devices that every command may use.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// The directories with programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The file with the niceness of the session of a process, see sched(7).
const AUTOGROUP: &str = "/proc/self/autogroup";
/// The niceness of a command: the server precedes it.
const NICENESS: i32 = 10;
/// The number of files that a process of a command may have open.
const MAX_OPEN_FILES: u64 = 1_024;
/// The number of threads by which the server may grow while a command runs.
const OTHER_THREADS: u64 = 500;
/// The exit code of a shell that cannot be started.
const CANNOT_START: u8 = 126;

/// The command for the process inside the sandbox.
#[derive(Serialize, Deserialize)]
pub(super) struct ConfinedCommand {
    layer: SandboxLayer,
    shell: PathBuf,
    command: String,
    directory: PathBuf,
    env: BTreeMap<String, String>,
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
    has_network: bool,
    limits: CommandLimits,
    /// The process that has to be the parent.
    supervisor: u32,
    /// The number of threads that the user of the server had before the command.
    other_threads: u64,
}

/// The report of the process before it becomes the shell.
#[derive(Serialize, Deserialize)]
pub(super) enum Started {
    Yes,
    No(String),
}

impl ConfinedCommand {
    /// Returns the command of a plan. `temporary` is the directory for temporary files, if it is not `/tmp`.
    pub(super) fn of(plan: &CommandPlan, temporary: Option<&Path>) -> Self {
        let (directory, readable, mut writable) = match plan.layer {
            // The mounts have chosen the files that are there.
            SandboxLayer::Bwrap => (
                PathBuf::from(WORKSPACE),
                vec![PathBuf::from("/")],
                vec![PathBuf::from("/tmp"), PathBuf::from("/dev")],
            ),
            SandboxLayer::Landlock => {
                let system = SYSTEM.iter().chain(&ETC).chain(&CERTIFICATES).map(PathBuf::from);
                let readable = system
                    .chain(plan.readable.iter().cloned())
                    .chain([plan.directory.clone()]);
                (
                    plan.directory.clone(),
                    readable.collect(),
                    DEVICES.iter().map(PathBuf::from).collect(),
                )
            }
        };
        let temporary = temporary.unwrap_or(Path::new("/tmp"));
        writable.push(temporary.to_path_buf());
        if !plan.is_read_only {
            writable.push(directory.clone());
        }
        let place = directory.display().to_string();
        let temporary = temporary.display().to_string();
        let standard = [
            ("HOME", place.as_str()),
            ("PWD", place.as_str()),
            ("WORKSPACE", place.as_str()),
            ("TMPDIR", temporary.as_str()),
            ("PATH", PATH),
            ("LANG", "C.UTF-8"),
        ];
        let standard = standard.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            layer: plan.layer,
            shell: plan.shell.clone(),
            command: plan.command.clone(),
            env: standard.into_iter().chain(plan.env.clone()).collect(),
            directory,
            readable,
            writable,
            has_network: plan.has_network,
            limits: plan.limits,
            supervisor: std::process::id(),
            other_threads: match plan.layer {
                // In its namespace of users there are none.
                SandboxLayer::Bwrap => 0,
                SandboxLayer::Landlock => processes::threads_of_user().saturating_add(OTHER_THREADS),
            },
        }
    }

    /// Gives up all rights but those of the command.
    ///
    /// # Errors
    /// The reason why one of them cannot be given up.
    fn give_up_rights(&self) -> Result<(), String> {
        let failed = |what: &'static str| move |error: rustix::io::Errno| format!("{what}: {error}");
        let is_alone = self.layer == SandboxLayer::Bwrap;
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("the signal at the parent's death"))?;
        if !is_alone {
            let parent = getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
            if parent != Some(self.supervisor) {
                return Err("the supervisor has ended".to_owned());
            }
            setsid().map_err(failed("a session of its own"))?;
        }
        // Less of the processor is a courtesy, no protection.
        let _ = setpriority_process(None, NICENESS);
        // On kernels that share the processor between sessions, niceness counts within one only. A command, which has a
        // session of its own, would keep its supervisor from running if it started processes all the time, and root has
        // no limit of processes.
        let _ = fs::write(AUTOGROUP, NICENESS.to_string());
        std::env::set_current_dir(&self.directory)
            .map_err(|error| format!("the directory of the workspace cannot be opened: {error}"))?;
        is_program(&self.shell)?;
        set_no_new_privs(true).map_err(failed("no new privileges"))?;
        self.restrict_files()?;
        drop_capabilities()?;
        let sockets = match (self.layer, self.has_network) {
            // The sockets that it can reach are its own.
            (SandboxLayer::Bwrap, _) => SocketRule::InternetAndUnix,
            // A socket of a file may belong to a database or a container engine.
            (SandboxLayer::Landlock, true) => SocketRule::Internet,
            (SandboxLayer::Landlock, false) => SocketRule::None,
        };
        let filters = system_calls::filters(sockets, !is_alone)?;
        // The limit of memory may be less than what this program has reserved, so that nothing large may be needed
        // after it.
        self.set_limits()?;
        system_calls::apply(&filters)
    }

    fn set_limits(&self) -> Result<(), String> {
        // The supervisor keeps the limit of processes; this one holds between two of its looks. It counts all of the
        // user's threads, and not for root.
        let processes = u64::from(self.limits.processes).saturating_mul(2);
        let limits = [
            (Resource::Core, 0),
            (Resource::Cpu, self.limits.cpu_s),
            (Resource::Data, self.limits.memory_bytes),
            (Resource::Fsize, self.limits.file_bytes),
            (Resource::Nofile, MAX_OPEN_FILES),
            (
                Resource::Nproc,
                processes.saturating_add(16).saturating_add(self.other_threads),
            ),
        ];
        for (resource, most) in limits {
            // A limit that exists already can only be lowered.
            let most = rustix::process::getrlimit(resource)
                .maximum
                .map_or(most, |given| given.min(most));
            let both = Rlimit {
                current: Some(most),
                maximum: Some(most),
            };
            setrlimit(resource, both).map_err(|error| format!("a limit of resources: {error}"))?;
        }
        Ok(())
    }

    /// Lets the process use the files of the command alone. Without namespaces every right is needed; within them the
    /// mounts hold, too, unless the command is run by root, who may change what the kernel shows in `/proc`.
    fn restrict_files(&self) -> Result<(), String> {
        let is_needed = self.layer == SandboxLayer::Landlock || rustix::process::geteuid().is_root();
        let level = if is_needed {
            CompatLevel::HardRequirement
        } else {
            CompatLevel::BestEffort
        };
        let result = self.landlock_rules(level);
        let status = result.map_err(|error| format!("Landlock: {error}"))?;
        if is_needed && status != RulesetStatus::FullyEnforced {
            return Err("the kernel has no Landlock of version 6, which Linux 6.12 has".to_owned());
        }
        Ok(())
    }

    fn landlock_rules(&self, level: CompatLevel) -> Result<RulesetStatus, landlock::RulesetError> {
        let devices = AccessFs::MakeChar | AccessFs::MakeBlock;
        let all = AccessFs::from_all(FILES);
        let read = AccessFs::from_read(FILES);
        let rules = |paths: &[PathBuf], rights: BitFlags<AccessFs>| {
            // A path that does not exist cannot be used.
            let open = paths
                .iter()
                .filter_map(|path| Some((path.clone(), PathFd::new(path).ok()?)));
            let rule = open.map(|(path, file)| {
                let is_file = fs::metadata(path).is_ok_and(|metadata| !metadata.is_dir());
                let rights = if is_file {
                    rights & AccessFs::from_file(FILES)
                } else {
                    rights
                };
                Ok(PathBeneath::new(file, rights))
            });
            rule.collect::<Vec<Result<_, landlock::RulesetError>>>()
        };
        let ruleset = Ruleset::default()
            .set_compatibility(level)
            .handle_access(all)?
            .scope(Scope::from_all(SIGNALS))?
            .create()?
            .add_rules(rules(&self.readable, read))?
            .add_rules(rules(&self.writable, all & !devices))?;
        Ok(ruleset.restrict_self()?.ruleset)
    }

    /// Returns the command that becomes the shell.
    fn shell(&self) -> Result<Command, String> {
        let output = stderr()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.shell);
        command.arg("-c").arg(&self.command).env_clear().envs(&self.env);
        command.stdin(Stdio::null()).stdout(output);
        Ok(command)
    }
}

fn is_program(path: &Path) -> Result<(), String> {
    let metadata = fs::metadata(path).map_err(|error| format!("the shell {}: {error}", path.display()))?;
    if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
        return Err(format!("the shell {} is no program", path.display()));
    }
    Ok(())
}

/// Drops all capabilities of a process of root for good.
fn drop_capabilities() -> Result<(), String> {
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        // Without the right to do so there are none to regain; unknown ones are no error either.
        let _ = remove_capability_from_bounding_set(one);
    }
    let _ = clear_ambient_capability_set();
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(|error| format!("the capabilities: {error}"))?;
    match capabilities(None) {
        Ok(left) if left == none => Ok(()),
        Ok(_) => Err("capabilities are left".to_owned()),
        Err(error) => Err(format!("the capabilities: {error}")),
    }
}

/// Reads the command from standard input, gives up all other rights, and becomes the shell.
pub(super) fn confine() -> ExitCode {
    let mut command = match prepared() {
        Ok(command) => command,
        Err(reason) => {
            say(&Started::No(reason));
            return ExitCode::from(CANNOT_START);
        }
    };
    say(&Started::Yes);
    let error = command.exec();
    // This is the output of the command.
    let _ = writeln!(stderr(), "the shell cannot be started: {error}");
    ExitCode::from(CANNOT_START)
}

fn prepared() -> Result<Command, String> {
    let mut text = String::new();
    stdin()
        .read_to_string(&mut text)
        .map_err(|error| format!("the command cannot be read: {error}"))?;
    let command: ConfinedCommand =
        serde_json::from_str(&text).map_err(|error| format!("the command cannot be read: {error}"))?;
    let shell = command.shell()?;
    command.give_up_rights()?;
    Ok(shell)
}

fn say(started: &Started) {
    let text = serde_json::to_string(started).unwrap_or_default();
    // A supervisor that has ended reads nothing.
    let _ = stdout().write_all(text.as_bytes());
    let _ = stdout().flush();
}
