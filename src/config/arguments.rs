//! The command line, and the environment variables for its options.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand};

use super::Embedded;
use crate::domain::identity::Tenant;

pub mod client;

use client::ClientCommand;

/// A server for deep agents.
#[derive(Debug, Clone, Parser)]
#[command(name = "adjutant", version, about, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// The command; `serve` if absent.
    #[command(subcommand)]
    pub command: Option<ProgramCommand>,
    /// The options of `serve`, which may be given without the command.
    #[command(flatten)]
    pub settings: CommandLineSettings,
}

impl Arguments {
    /// Returns the command with its options.
    pub fn into_command(self) -> ProgramCommand {
        self.command.unwrap_or(ProgramCommand::Serve(self.settings))
    }
}

/// The commands of the program.
#[derive(Debug, Clone, Subcommand)]
pub enum ProgramCommand {
    /// Serves until it receives a signal to stop.
    Serve(CommandLineSettings),
    /// Prints a summary of the configuration and its problems, without serving or opening the database.
    Check(CommandLineSettings),
    /// Creates, lists, rotates and revokes API keys in the configured database.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// A command about the data of users and tenants.
    #[command(flatten)]
    Data(DataCommand),
    /// A command that talks to a server.
    #[command(flatten)]
    Client(ClientCommand),
}

impl ProgramCommand {
    /// Returns the settings.
    pub fn settings(&self) -> &CommandLineSettings {
        match self {
            Self::Serve(settings) | Self::Check(settings) => settings,
            Self::Keys(command) => command.settings(),
            Self::Data(command) => command.settings(),
            Self::Client(command) => command.settings(),
        }
    }
}

/// The commands about the data of users and tenants, which work on the database itself. With SQLite, the server must be
/// stopped.
#[derive(Debug, Clone, Subcommand)]
pub enum DataCommand {
    /// Wraps all data keys under the first key of `[encryption]`, and encrypts what is not yet. May be repeated after an
    /// interruption.
    Rekey {
        /// The settings, for the database.
        #[command(flatten)]
        settings: CommandLineSettings,
        /// Encrypt everything anew, under new data keys.
        #[arg(long, conflicts_with = "plain")]
        new_data_keys: bool,
        /// Decrypt everything, so that the section `[encryption]` can be removed. No server may be running.
        #[arg(long)]
        plain: bool,
    },
    /// Prints everything that belongs to a user, as JSON lines.
    ExportUser {
        /// The settings, for the database.
        #[command(flatten)]
        settings: CommandLineSettings,
        /// The user.
        user: String,
        /// The tenant of the user.
        #[arg(long, default_value = Tenant::DEFAULT)]
        tenant: String,
    },
    /// Deletes everything that belongs to a user, with the user's API keys.
    DeleteUser {
        /// The settings, for the database.
        #[command(flatten)]
        settings: CommandLineSettings,
        /// The user.
        user: String,
        /// The tenant of the user.
        #[arg(long, default_value = Tenant::DEFAULT)]
        tenant: String,
        /// Delete the user's entries of the audit, too.
        #[arg(long)]
        audit: bool,
    },
    /// Deletes everything that belongs to a tenant, and destroys its data keys.
    DeleteTenant {
        /// The settings, for the database.
        #[command(flatten)]
        settings: CommandLineSettings,
        /// The tenant.
        tenant: String,
        /// Delete the tenant's entries of the audit, too.
        #[arg(long)]
        audit: bool,
    },
}

impl DataCommand {
    /// Returns the settings.
    pub fn settings(&self) -> &CommandLineSettings {
        match self {
            Self::Rekey { settings, .. }
            | Self::ExportUser { settings, .. }
            | Self::DeleteUser { settings, .. }
            | Self::DeleteTenant { settings, .. } => settings,
        }
    }
}

/// The commands about API keys. They work on the database itself, so they need no API key.
#[derive(Debug, Clone, Subcommand)]
pub enum KeysCommand {
    /// Creates a key and prints it. It cannot be printed again.
    Create {
        /// The settings, for the database.
        #[command(flatten)]
        settings: CommandLineSettings,
        /// The name of the key, for people.
        #[arg(long)]
        name: String,
        /// The tenant.
        #[arg(long, default_value = Tenant::DEFAULT)]
        tenant: String,
        /// The user; the name of the key if absent.
        #[arg(long)]
        user: Option<String>,
        /// A role: admin, developer, operator, user or approver. May be repeated.
        #[arg(long = "role", default_value = "user")]
        roles: Vec<String>,
        /// A permission that limits what the roles allow, such as threads:read. May be repeated.
        #[arg(long = "scope")]
        scopes: Vec<String>,
        /// The number of days after which the key expires; never if absent.
        #[arg(long)]
        expires_in_days: Option<u32>,
    },
    /// Lists the keys of all tenants, newest first, without their secrets.
    List {
        /// The settings, for the database.
        #[command(flatten)]
        settings: CommandLineSettings,
        /// Only keys of this tenant.
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Gives a key a new secret and prints it.
    Rotate {
        /// The settings, for the database.
        #[command(flatten)]
        settings: CommandLineSettings,
        /// The id of the key: the 16 digits after `adj_`.
        key_id: String,
        /// The number of hours for which the old secret is still accepted.
        #[arg(long, default_value_t = 24)]
        grace_hours: u32,
    },
    /// Revokes a key with all its secrets.
    Revoke {
        /// The settings, for the database.
        #[command(flatten)]
        settings: CommandLineSettings,
        /// The id of the key: the 16 digits after `adj_`.
        key_id: String,
    },
}

impl KeysCommand {
    /// Returns the settings.
    pub fn settings(&self) -> &CommandLineSettings {
        match self {
            Self::Create { settings, .. }
            | Self::List { settings, .. }
            | Self::Rotate { settings, .. }
            | Self::Revoke { settings, .. } => settings,
        }
    }
}

/// The settings from the command line and the environment. They override the file.
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
    /// The folder with one folder for each agent.
    #[arg(long, value_name = "PATH", env = "ADJUTANT_AGENTS_DIR")]
    pub agents_dir: Option<PathBuf>,
    /// The log filter, as in `info,adjutant=debug`.
    #[arg(long, value_name = "FILTER", env = "ADJUTANT_LOG")]
    pub log: Option<String>,
    /// Listen on an address that other machines can reach, although this server has no authentication: anyone who can
    /// reach it can do everything. For a server behind a proxy that authenticates clients.
    #[arg(long, env = "ADJUTANT_INSECURE_NO_AUTH", value_parser = FalseyValueParser::new())]
    pub insecure_no_auth: bool,
    /// The parts that an embedding program brings along.
    #[arg(skip)]
    pub embedded: Embedded,
}
