//! The command line, and the environment variables that stand for its options.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand};

use super::Embedded;

/// A server for deep agents.
#[derive(Debug, Clone, Parser)]
#[command(name = "adjutant", version, about, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// What to do; serve when nothing is said.
    #[command(subcommand)]
    pub command: Option<ProgramCommand>,
    /// The options of `serve`, which may also stand without it.
    #[command(flatten)]
    pub settings: CommandLineSettings,
}

impl Arguments {
    /// What to do, with its options.
    pub fn into_command(self) -> ProgramCommand {
        self.command.unwrap_or(ProgramCommand::Serve(self.settings))
    }
}

/// What the program can do.
#[derive(Debug, Clone, Subcommand)]
pub enum ProgramCommand {
    /// Serves until it is told to stop.
    Serve(CommandLineSettings),
    /// Tells what the configuration says and what is wrong with it, without serving or opening the database.
    Check(CommandLineSettings),
}

/// The settings that the command line and the environment may give; they precede the file.
#[derive(Debug, Clone, Default, Args)]
pub struct CommandLineSettings {
    /// The configuration file, instead of `adjutant.toml` in the working directory.
    #[arg(long, value_name = "PATH", env = "ADJUTANT_CONFIG")]
    pub config: Option<PathBuf>,
    /// The address to listen on, as HOST:PORT.
    #[arg(long, value_name = "ADDRESS", env = "ADJUTANT_LISTEN")]
    pub listen: Option<String>,
    /// The database: sqlite://FILE or postgres://…
    #[arg(long, value_name = "URL", env = "ADJUTANT_DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// The folder with a folder for each agent.
    #[arg(long, value_name = "PATH", env = "ADJUTANT_AGENTS_DIR")]
    pub agents_dir: Option<PathBuf>,
    /// What to log, as in `info,adjutant=debug`.
    #[arg(long, value_name = "FILTER", env = "ADJUTANT_LOG")]
    pub log: Option<String>,
    /// Listen on an address that other machines reach, although this server has no authentication: whoever reaches it may
    /// do everything. For a server behind a proxy that authenticates its clients.
    #[arg(long, env = "ADJUTANT_INSECURE_NO_AUTH", value_parser = FalseyValueParser::new())]
    pub insecure_no_auth: bool,
    /// What the program brings along.
    #[arg(skip)]
    pub embedded: Embedded,
}
