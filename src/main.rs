//! The program: reads the command line, then serves, or runs another command.

use std::io::Write;
use std::process::ExitCode;

use adjutant::Adjutant;
use adjutant::app::{self, Prepared};
use adjutant::config::client::ClientCommand;
use adjutant::config::{
    Arguments, CheckCommand, CommandLineSettings, DataCommand, HealthCommand, KeysCommand, McpCommand, MigrateCommand,
    Problems, ProgramCommand,
};
use adjutant::logging;
use clap::CommandFactory;
use clap_complete::Shell;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything is read: a process of a sandbox starts in the directory of an agent.
    if let Some(code) = adjutant::sandbox::play_role() {
        return code;
    }
    #[cfg(target_os = "linux")]
    keep_pages_small();
    let command = Arguments::read().into_command();
    match &command {
        ProgramCommand::Init(command) => print_result(app::init(command)),
        ProgramCommand::Health(command) => print_result(ask_health(command)),
        ProgramCommand::Completions { shell } => print_completions(*shell),
        ProgramCommand::Serve(command) => serve_until_stopped(load(&command.settings_with_role())),
        ProgramCommand::Check(command) => check(load(&command.settings), command),
        ProgramCommand::Doctor(command) => check(load(&command.settings), &command.clone().into()),
        ProgramCommand::Migrate(command) => migrate(load(&command.settings.without_listening()), command),
        ProgramCommand::Vacuum(settings) => vacuum(load(&settings.without_listening())),
        ProgramCommand::Keys(command) => manage_keys(load(&command.settings().without_listening()), command),
        ProgramCommand::Mcp(command) => manage_logins(load(&command.settings().without_listening()), command),
        ProgramCommand::Data(command) => manage_data(load(&command.settings().without_listening()), command),
        ProgramCommand::Client(command) => talk_to_server(load(&command.settings().without_listening()), command),
    }
}

/// Reads the configuration, and forbids core files unless it allows them.
fn load(settings: &CommandLineSettings) -> Result<Prepared, Problems> {
    let builder = Adjutant::builder().settings(settings.clone());
    let builder = match std::env::current_exe() {
        Ok(program) => builder.sandbox_program(program),
        Err(_) => builder,
    };
    let prepared = builder.load();
    let may_dump = prepared
        .as_ref()
        .is_ok_and(|prepared| prepared.loaded().config.server.allow_core_files);
    if !may_dump {
        forbid_core_files();
    }
    prepared
}

/// Prints the text of a command to standard output, or its error to standard error.
fn print_result(done: anyhow::Result<String>) -> ExitCode {
    let written = done.and_then(|text| Ok(std::io::stdout().write_all(text.as_bytes())?));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, too, the exit code remains.
            let _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print_completions(shell: Shell) -> ExitCode {
    let mut script = vec![];
    clap_complete::generate(shell, &mut Arguments::command(), "adjutant", &mut script);
    // A reader that closes the pipe early has what it wanted.
    let _ = std::io::stdout().write_all(&script);
    ExitCode::SUCCESS
}

/// Runs a command that talks to a server.
#[tokio::main]
async fn talk_to_server(prepared: Result<Prepared, Problems>, command: &ClientCommand) -> ExitCode {
    ExitCode::from(app::run_client_command(prepared, command).await)
}

#[tokio::main(flavor = "current_thread")]
async fn ask_health(command: &HealthCommand) -> anyhow::Result<String> {
    app::ask_health(command).await
}

fn check(prepared: Result<Prepared, Problems>, command: &CheckCommand) -> ExitCode {
    let report = run_check(prepared, command);
    // The exit code tells the result even if standard output is closed.
    let _ = std::io::stdout().write_all(report.text.as_bytes());
    if report.is_usable {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[tokio::main]
async fn run_check(prepared: Result<Prepared, Problems>, command: &CheckCommand) -> app::CheckResult {
    app::run_check(prepared, command).await
}

fn serve_until_stopped(prepared: Result<Prepared, Problems>) -> ExitCode {
    let served = prepared.map_err(anyhow::Error::from).and_then(serve);
    if let Err(error) = &served {
        logging::print_failure(&format!("{error:#}"));
    }
    logging::flush();
    if served.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Brings the tables up to date.
fn migrate(prepared: Result<Prepared, Problems>, command: &MigrateCommand) -> ExitCode {
    let done = prepared
        .map_err(anyhow::Error::from)
        .and_then(|prepared| run_migrate(&prepared, command));
    print_result(done)
}

#[tokio::main(flavor = "current_thread")]
async fn run_migrate(prepared: &Prepared, command: &MigrateCommand) -> anyhow::Result<String> {
    app::run_migrate_command(prepared, command).await
}

/// Rewrites the files of the database. Its result goes to standard output, and errors to standard error.
fn vacuum(prepared: Result<Prepared, Problems>) -> ExitCode {
    let done = prepared
        .map_err(anyhow::Error::from)
        .and_then(|prepared| run_vacuum(&prepared));
    print_result(done.map(|()| String::new()))
}

#[tokio::main(flavor = "current_thread")]
async fn run_vacuum(prepared: &Prepared) -> anyhow::Result<()> {
    app::run_vacuum_command(prepared, &mut std::io::stdout()).await
}

/// Runs a command about API keys. The text goes to standard output, and errors to standard error.
fn manage_keys(prepared: Result<Prepared, Problems>, command: &KeysCommand) -> ExitCode {
    let done = prepared
        .map_err(anyhow::Error::from)
        .and_then(|prepared| run_key_command(&prepared, command));
    print_result(done)
}

#[tokio::main(flavor = "current_thread")]
async fn run_key_command(prepared: &Prepared, command: &KeysCommand) -> anyhow::Result<String> {
    app::run_key_command(prepared, command).await
}

/// Runs a command about logins to MCP servers. Its result goes to standard output, and errors to standard error.
fn manage_logins(prepared: Result<Prepared, Problems>, command: &McpCommand) -> ExitCode {
    let done = prepared
        .map_err(anyhow::Error::from)
        .and_then(|prepared| run_mcp_command(&prepared, command));
    print_result(done.map(|()| String::new()))
}

#[tokio::main(flavor = "current_thread")]
async fn run_mcp_command(prepared: &Prepared, command: &McpCommand) -> anyhow::Result<()> {
    app::run_mcp_command(prepared, command, &mut std::io::stdout()).await
}

/// Runs a command about the data of users and tenants. Its result goes to standard output, and errors to standard error.
fn manage_data(prepared: Result<Prepared, Problems>, command: &DataCommand) -> ExitCode {
    let done = prepared
        .map_err(anyhow::Error::from)
        .and_then(|prepared| run_data_command(&prepared, command));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, too, the exit code remains.
            let _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run_data_command(prepared: &Prepared, command: &DataCommand) -> anyhow::Result<()> {
    let mut output = std::io::BufWriter::new(std::io::stdout());
    app::run_data_command(prepared, command, &mut output).await?;
    Ok(output.flush()?)
}

/// Keeps the system from writing core files of this process, and debuggers from attaching to it: its memory holds keys
/// and conversations. The limit is not enough, since systems that pass core files to a program ignore it.
#[cfg(unix)]
fn forbid_core_files() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Other systems write no core files.
#[cfg(not(unix))]
fn forbid_core_files() {}

/// Disables transparent huge pages: with them, idle memory such as that of open streams takes several times its size
/// (`benches/thread_streams.py`). The error of a kernel without huge pages is ignored.
#[cfg(target_os = "linux")]
fn keep_pages_small() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

#[tokio::main]
async fn serve(prepared: Prepared) -> anyhow::Result<()> {
    logging::start(&prepared.loaded().config.log)?;
    prepared.serve().await
}
