//! The program: reads the command line, then serves or checks.

use std::process::ExitCode;

use adjutant::Adjutant;
use adjutant::app::Prepared;
use adjutant::config::{self, Arguments, Command, Log, LogFormat};
use clap::Parser;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let (settings, only_check) = match Arguments::parse().into_command() {
        Command::Serve(settings) => (settings, false),
        Command::Check(settings) => (settings, true),
    };
    let prepared = Adjutant::builder().settings(settings).load();
    if only_check {
        let (text, is_usable) = config::verdict(prepared.as_ref().map(Prepared::loaded));
        print!("{text}");
        return if is_usable { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    match prepared.map_err(anyhow::Error::from).and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn serve(prepared: Prepared) -> anyhow::Result<()> {
    start_logging(&prepared.loaded().config.log)?;
    prepared.serve().await
}

fn start_logging(log: &Log) -> anyhow::Result<()> {
    let lines =
        tracing_subscriber::fmt().with_env_filter(EnvFilter::try_new(&log.filter)?).with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}
