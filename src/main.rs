//! The program: parses the command line, then serves, checks the configuration, or manages API keys and data.

use std::io::Write;
use std::process::ExitCode;

use adjutant::Adjutant;
use adjutant::app::{self, Prepared};
use adjutant::config::client::ClientCommand;
use adjutant::config::{self, Arguments, DataCommand, KeysCommand, Problems, ProgramCommand};
use adjutant::logging;
use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    keep_pages_small();
    let command = Arguments::parse().into_command();
    let prepared = Adjutant::builder().settings(command.settings().clone()).load();
    let may_dump = prepared
        .as_ref()
        .is_ok_and(|prepared| prepared.loaded().config.server.allow_core_files);
    if !may_dump {
        forbid_core_files();
    }
    match &command {
        ProgramCommand::Serve(_) => serve_until_stopped(prepared),
        ProgramCommand::Check(_) => {
            let (text, is_usable) = config::report(prepared.as_ref().map(Prepared::loaded));
            // The exit code tells the result even if standard output is closed.
            let _ = std::io::stdout().write_all(text.as_bytes());
            if is_usable {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        ProgramCommand::Keys(command) => manage_keys(prepared, command),
        ProgramCommand::Data(command) => manage_data(prepared, command),
        ProgramCommand::Client(command) => talk_to_server(prepared, command),
    }
}

/// Runs a command that talks to a server.
#[tokio::main]
async fn talk_to_server(prepared: Result<Prepared, Problems>, command: &ClientCommand) -> ExitCode {
    ExitCode::from(app::run_client_command(prepared, command).await)
}

fn serve_until_stopped(prepared: Result<Prepared, Problems>) -> ExitCode {
    let served = prepared.map_err(anyhow::Error::from).and_then(serve);
    if let Err(error) = &served {
        logging::print(&format!("{error:#}"));
    }
    logging::flush();
    if served.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a command about API keys. The text goes to standard output, and errors to standard error.
fn manage_keys(prepared: Result<Prepared, Problems>, command: &KeysCommand) -> ExitCode {
    let done = prepared
        .map_err(anyhow::Error::from)
        .and_then(|prepared| run_key_command(&prepared, command));
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

#[tokio::main(flavor = "current_thread")]
async fn run_key_command(prepared: &Prepared, command: &KeysCommand) -> anyhow::Result<String> {
    app::run_key_command(prepared, command).await
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
