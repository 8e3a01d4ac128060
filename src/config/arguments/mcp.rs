//! The commands about logins to MCP servers.

use clap::{Args, Subcommand};

use super::CommandLineSettings;

/// The commands about logins to MCP servers. They work on the database itself. With SQLite, the server must be stopped.
#[derive(Debug, Clone, Subcommand)]
pub enum McpCommand {
    /// Logs in to an MCP server with `grant = "authorization_code"`: prints an address to open in a browser, and waits until the
    /// user has agreed there.
    Login {
        /// The settings, for the servers and the database.
        #[command(flatten)]
        settings: CommandLineSettings,
        /// The login.
        #[command(flatten)]
        options: LoginOptions,
    },
    /// Deletes a login, and revokes its tokens if the authorization server can do so.
    Logout {
        /// The settings, for the database.
        #[command(flatten)]
        settings: CommandLineSettings,
        /// The server: NAME, or AGENT/NAME for a server of one agent.
        server: String,
        /// The tenant whose login it is; the login for all tenants if absent.
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Lists the MCP servers that require a login, and the logins, without their tokens.
    List {
        /// The settings, for the servers and the database.
        #[command(flatten)]
        settings: CommandLineSettings,
    },
}

/// The options of `adjutant mcp login`.
#[derive(Debug, Clone, Args)]
pub struct LoginOptions {
    /// The server: NAME, or AGENT/NAME for a server of one agent.
    pub server: String,
    /// The tenant whose agents use the login; those of all tenants without a login of their own if absent.
    #[arg(long)]
    pub tenant: Option<String>,
    /// The port of this machine to which the browser is redirected at the end; a free one if it is 0.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Read the address to which the browser was redirected from standard input: for a browser on another machine.
    #[arg(long)]
    pub paste: bool,
    /// The time for the user to log in, in seconds. Without an end with `--paste`.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub timeout: u16,
}

impl McpCommand {
    /// Returns the settings.
    pub fn settings(&self) -> &CommandLineSettings {
        match self {
            Self::Login { settings, .. } | Self::Logout { settings, .. } | Self::List { settings } => settings,
        }
    }

    pub(super) fn settings_mut(&mut self) -> &mut CommandLineSettings {
        match self {
            Self::Login { settings, .. } | Self::Logout { settings, .. } | Self::List { settings } => settings,
        }
    }
}
