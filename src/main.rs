//! The program: reads the command line, then serves or checks.

use std::process::ExitCode;

use adjutant::app::App;
use adjutant::config::{self, Arguments, Command, Loaded, Log, LogFormat};
use adjutant::shutdown::Shutdown;
use anyhow::Context;
use clap::Parser;
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let (settings, only_check) = match Arguments::parse().into_command() {
        Command::Serve(settings) => (settings, false),
        Command::Check(settings) => (settings, true),
    };
    let loaded = config::load(&settings);
    if only_check {
        let (text, is_usable) = config::verdict(&loaded);
        print!("{text}");
        return if is_usable { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    match loaded.map_err(anyhow::Error::from).and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn serve(loaded: Loaded) -> anyhow::Result<()> {
    start_logging(&loaded.config.log)?;
    for warning in &loaded.warnings.0 {
        tracing::warn!(%warning, "odd configuration");
    }
    tracing::info!(source = loaded.source, agents = loaded.config.agents.len(), "configuration loaded");
    let listen = &loaded.config.server.listen;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let shutdown = Shutdown::new(loaded.config.server.shutdown_deadline());
    shutdown.listen_for_signals();
    App::start(loaded.config, shutdown).await?.serve(listener).await
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
