//! The program: parses the command line, then serves or checks the configuration.

use std::io::Write;
use std::process::ExitCode;

use adjutant::Adjutant;
use adjutant::app::Prepared;
use adjutant::config::{self, Arguments, ProgramCommand};
use adjutant::logging;
use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    keep_pages_small();
    let (settings, only_check) = match Arguments::parse().into_command() {
        ProgramCommand::Serve(settings) => (settings, false),
        ProgramCommand::Check(settings) => (settings, true),
    };
    let prepared = Adjutant::builder().settings(settings).load();
    if only_check {
        let (text, is_usable) = config::report(prepared.as_ref().map(Prepared::loaded));
        // The exit code tells the result even if standard output is closed.
        let _ = std::io::stdout().write_all(text.as_bytes());
        return if is_usable {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
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
