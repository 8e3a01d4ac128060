//! The program: parses the command line, then serves, checks the configuration, or manages API keys.

use std::io::Write;
use std::process::ExitCode;

use adjutant::Adjutant;
use adjutant::app::{self, Prepared};
use adjutant::config::{self, Arguments, KeysCommand, Problems, ProgramCommand};
use adjutant::logging;
use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    keep_pages_small();
    let command = Arguments::parse().into_command();
    let prepared = Adjutant::builder().settings(command.settings().clone()).load();
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
    }
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
