//! The command line, and the environment variables for its options.

use std::path::{Path, PathBuf};

use clap::builder::{BoolishValueParser, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::environment::load_env_file;
use super::{Embedded, EnvironmentSettings, LogFormat, ServerRole};
use crate::domain::identity::Tenant;

pub mod client;
mod mcp;

use client::ClientCommand;
pub use mcp::{LoginOptions, McpCommand};

/// The text after the help of the program.
const AFTER_HELP: &str = "\
Without a command, the server starts. Without a configuration, it serves a demonstration that needs no key.

  adjutant                          serve, at http://127.0.0.1:8123
  adjutant init my-agents           write a project for a real model
  adjutant check --connect          check the configuration, and everything it refers to
  adjutant chat                     talk to an agent, here or on another machine

Every setting of the file can also be given by the environment: ADJUTANT_SERVER__LISTEN is `listen` of `[server]`.";

/// A server for deep agents.
#[derive(Debug, Clone, Parser)]
#[command(name = "adjutant", version, about, args_conflicts_with_subcommands = true, after_help = AFTER_HELP)]
pub struct Arguments {
    /// The command; `serve` if absent.
    #[command(subcommand)]
    pub command: Option<ProgramCommand>,
    /// The options of `serve`, which may be given without the command.
    #[command(flatten)]
    pub serve: ServeCommand,
}

impl Arguments {
    /// Reads the command line and the environment of the process. Variables that are not set are read from the file
    /// `.env` beside the configuration. Ends the process if an argument is wrong.
    ///
    /// It must be called before threads are started, since it sets environment variables.
    pub fn read() -> Self {
        let arguments = Self::parse_process();
        let config = arguments.command.as_ref().map_or_else(
            || arguments.serve.settings.config.as_deref(),
            |command| command.settings().and_then(|settings| settings.config.as_deref()),
        );
        let folder = config.and_then(Path::parent).unwrap_or(Path::new(""));
        let problems = load_env_file(if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        });
        // The file may have variables of options.
        let mut arguments = Self::parse_process();
        let environment = EnvironmentSettings::of_process(problems);
        match arguments.command.as_mut().map(ProgramCommand::settings_mut) {
            Some(Some(settings)) => settings.environment = environment,
            Some(None) => {}
            None => arguments.serve.settings.environment = environment,
        }
        arguments
    }

    /// Reads the command line and the environment of the process. Variables that are empty count as not set. Ends the process
    /// if an argument is wrong.
    fn parse_process() -> Self {
        let mut command = without_empty_variables(Self::command());
        let parsed = match command.try_get_matches_from_mut(std::env::args_os()) {
            Ok(mut matches) => Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command)),
            Err(error) => Err(with_order_of_options(error)),
        };
        parsed.unwrap_or_else(|error| error.exit())
    }

    /// Returns the command with its options.
    pub fn into_command(self) -> ProgramCommand {
        self.command.unwrap_or(ProgramCommand::Serve(self.serve))
    }
}

/// Leaves out the variables of options that are empty, as in `ADJUTANT_CONFIG= adjutant`.
fn without_empty_variables(command: Command) -> Command {
    let without_empty = |argument: clap::Arg| {
        if argument.get_env().is_some_and(super::is_empty_variable) {
            argument.env(None::<&'static str>)
        } else {
            argument
        }
    };
    command.mut_args(without_empty).mut_subcommands(without_empty_variables)
}

/// Adds to the error about an option before a command that options follow the command.
fn with_order_of_options(mut error: clap::Error) -> clap::Error {
    let command = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(command)) if error.kind() == ErrorKind::ArgumentConflict => command.clone(),
        Some(_) | None => return error,
    };
    let option = match error.get(ContextKind::PriorArg) {
        Some(ContextValue::String(option)) => option.clone(),
        Some(_) | None => "OPTIONS".to_owned(),
    };
    let tip = format!("options follow the command, as in `adjutant {command} {option}`");
    error.insert(
        ContextKind::Suggested,
        ContextValue::StyledStrs(vec![StyledStr::from(tip)]),
    );
    error
}

/// The commands of the program.
#[derive(Debug, Clone, Subcommand)]
pub enum ProgramCommand {
    /// Serves until it receives a signal to stop.
    Serve(ServeCommand),
    /// Writes a project for a real model: a commented configuration, a file for keys, and examples.
    Init(InitCommand),
    /// Prints a summary of the configuration and its problems, without serving. With `--connect`, also checks keys,
    /// programs, the database and other servers.
    Check(CheckCommand),
    /// Checks everything that a server depends on, as `check --connect` does: keys, programs, the database and its clock,
    /// other servers.
    Doctor(DoctorCommand),
    /// Asks a running server whether it works. For the health checks of containers.
    Health(HealthCommand),
    /// Prints a script that completes commands and options in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Brings the tables of the configured database up to date, without serving. A server does so when it starts; the
    /// command is for databases whose server may not create tables.
    Migrate(MigrateCommand),
    /// Rewrites the files of the configured database, so that nothing that was deleted is left in them. On Postgres each table
    /// is locked meanwhile; with SQLite, the server must be stopped.
    Vacuum(CommandLineSettings),
    /// Creates, lists, rotates and revokes API keys in the configured database.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Logs in to MCP servers that require a user at a browser, logs out, and lists the logins.
    #[command(subcommand)]
    Mcp(McpCommand),
    /// A command about the data of users and tenants.
    #[command(flatten)]
    Data(DataCommand),
    /// A command that talks to a server.
    #[command(flatten)]
    Client(ClientCommand),
}

impl ProgramCommand {
    /// Returns the settings for the server, if the command has some.
    pub fn settings(&self) -> Option<&CommandLineSettings> {
        match self {
            Self::Serve(command) => Some(&command.settings),
            Self::Migrate(command) => Some(&command.settings),
            Self::Vacuum(settings) => Some(settings),
            Self::Check(command) => Some(&command.settings),
            Self::Doctor(command) => Some(&command.settings),
            Self::Health(command) => Some(&command.settings),
            Self::Keys(command) => Some(command.settings()),
            Self::Mcp(command) => Some(command.settings()),
            Self::Data(command) => Some(command.settings()),
            Self::Client(command) => Some(command.settings()),
            Self::Init(_) | Self::Completions { .. } => None,
        }
    }

    fn settings_mut(&mut self) -> Option<&mut CommandLineSettings> {
        match self {
            Self::Serve(command) => Some(&mut command.settings),
            Self::Migrate(command) => Some(&mut command.settings),
            Self::Vacuum(settings) => Some(settings),
            Self::Check(command) => Some(&mut command.settings),
            Self::Doctor(command) => Some(&mut command.settings),
            Self::Health(command) => Some(&mut command.settings),
            Self::Keys(command) => Some(command.settings_mut()),
            Self::Mcp(command) => Some(command.settings_mut()),
            Self::Data(command) => Some(command.settings_mut()),
            Self::Client(command) => Some(command.settings_mut()),
            Self::Init(_) | Self::Completions { .. } => None,
        }
    }
}

/// The options of `adjutant serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeCommand {
    /// The settings.
    #[command(flatten)]
    pub settings: CommandLineSettings,
    /// The work of this server among those on the same Postgres.
    #[arg(long, value_enum, value_name = "ROLE", env = "ADJUTANT_ROLE")]
    pub role: Option<ServerRole>,
}

impl ServeCommand {
    /// Returns the settings, with the role.
    pub fn settings_with_role(&self) -> CommandLineSettings {
        CommandLineSettings {
            role: self.role,
            ..self.settings.clone()
        }
    }
}

/// The options of `adjutant init`.
#[derive(Debug, Clone, Args)]
pub struct InitCommand {
    /// The folder of the project. It is created if it does not exist.
    #[arg(value_name = "DIR", default_value = ".")]
    pub directory: PathBuf,
    /// The kind of project.
    #[arg(long, value_enum, default_value_t = InitTemplate::Minimal)]
    pub template: InitTemplate,
    /// The model of all agents, as in `openai:gpt-5`, `anthropic:claude-sonnet-5`, `google_genai:gemini-3-pro` or
    /// `ollama:qwen3`.
    #[arg(long, value_name = "PROVIDER:MODEL", default_value = "openai:gpt-5")]
    pub model: String,
    /// Replace files that exist.
    #[arg(long)]
    pub force: bool,
}

/// The kind of project that `adjutant init` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InitTemplate {
    /// One agent that plans, delegates and works with files.
    Minimal,
    /// A lead that delegates questions to researchers and writes a report.
    Research,
    /// A support desk that answers from articles and asks before it promises anything.
    Support,
    /// A developer that writes code into the files of a thread, and a reviewer.
    Coding,
}

/// The options of `adjutant migrate`.
#[derive(Debug, Clone, Args)]
pub struct MigrateCommand {
    /// The settings.
    #[command(flatten)]
    pub settings: CommandLineSettings,
    /// Also finish the upgrade of a database on Postgres: servers store shorter rows, and each question once, from their next
    /// start on, and those of the former release can work no longer. Fails if one of them is at work.
    #[arg(long)]
    pub finish: bool,
}

/// The options of `adjutant check`.
#[derive(Debug, Clone, Args)]
pub struct CheckCommand {
    /// The settings.
    #[command(flatten)]
    pub settings: CommandLineSettings,
    /// Also check what the configuration refers to: keys, providers, programs, the database, MCP servers, tools behind
    /// HTTP, other servers. No model and no tool is called.
    #[arg(long)]
    pub connect: bool,
    /// The time limit of each of these checks, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub timeout: u16,
    /// Also print the policies of this agent and of its subagents in their order, with the tools, texts, fields and
    /// settings that each of them brings.
    #[arg(long, value_name = "AGENT")]
    pub explain: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The options of `adjutant doctor`.
#[derive(Debug, Clone, Args)]
pub struct DoctorCommand {
    /// The settings.
    #[command(flatten)]
    pub settings: CommandLineSettings,
    /// The time limit of each check, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub timeout: u16,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl From<DoctorCommand> for CheckCommand {
    fn from(command: DoctorCommand) -> Self {
        Self {
            settings: command.settings,
            connect: true,
            timeout: command.timeout,
            explain: None,
            json: command.json,
        }
    }
}

/// The options of `adjutant health`.
#[derive(Debug, Clone, Args)]
pub struct HealthCommand {
    /// The settings, for the address.
    #[command(flatten)]
    pub settings: CommandLineSettings,
    /// The base URL of the server, instead of the configured address.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Also check that the server can write to its database.
    #[arg(long)]
    pub db: bool,
    /// The time limit, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub timeout: u16,
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
        /// Delete the user's entries of the audit, too, except those about users whom this user has deleted and about API keys.
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

    fn settings_mut(&mut self) -> &mut CommandLineSettings {
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

    fn settings_mut(&mut self) -> &mut CommandLineSettings {
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
    /// The format of the log.
    #[arg(long, value_enum, value_name = "FORMAT", env = "ADJUTANT_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Listen on an address that other machines can reach, although this server has no authentication: anyone who can
    /// reach it can do everything. For a server behind a proxy that authenticates clients.
    #[arg(long, env = "ADJUTANT_INSECURE_NO_AUTH", value_parser = BoolishValueParser::new())]
    pub insecure_no_auth: bool,
    /// The work of a server. Only `serve` has an option for it.
    #[arg(skip)]
    pub role: Option<ServerRole>,
    /// True if the command does not listen, so that the configured address may be any.
    #[arg(skip)]
    pub does_not_listen: bool,
    /// The settings from the environment, `ADJUTANT_SECTION__KEY`.
    #[arg(skip)]
    pub environment: EnvironmentSettings,
    /// The parts that an embedding program brings along.
    #[arg(skip)]
    pub embedded: Embedded,
}

impl CommandLineSettings {
    /// Returns the settings for a command that does not listen at the configured address.
    #[must_use]
    pub fn without_listening(&self) -> Self {
        Self {
            does_not_listen: true,
            ..self.clone()
        }
    }

    /// Returns the settings of the file that are overridden: the section and the key, the value, and the option.
    pub(super) fn overrides(&self) -> impl Iterator<Item = ([&'static str; 2], String, &'static str)> {
        let format = self.log_format.map(|format| format.word().to_owned());
        let role = self.role.map(|role| role.word().to_owned());
        let given = [
            (["server", "listen"], self.listen.clone(), "--listen or ADJUTANT_LISTEN"),
            (
                ["storage", "url"],
                self.database_url.clone(),
                "--database-url or ADJUTANT_DATABASE_URL",
            ),
            (["cluster", "role"], role, "--role or ADJUTANT_ROLE"),
            (["log", "filter"], self.log.clone(), "--log or ADJUTANT_LOG"),
            (["log", "format"], format, "--log-format or ADJUTANT_LOG_FORMAT"),
        ];
        given
            .into_iter()
            .filter_map(|(field, value, source)| Some((field, value?, source)))
    }
}
