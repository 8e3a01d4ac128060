//! The commands that talk to a server over HTTP: the chat in a terminal, and lists of runs, threads, interrupts,
//! approvals and agents. They use the API that all clients use, so the server may be anywhere.
//!
//! Texts of agents and tools are shown only through [`escape`]: they must not be able to drive the terminal.

mod address;
mod api;
mod chat;
mod decisions;
mod error;
mod escape;
mod output;
mod resources;
mod table;

use std::io::IsTerminal;

pub use address::ServerAddress;
pub use api::ApiClient;
pub use error::{ClientError, ClientResult};

use crate::config::client::ClientCommand;
use crate::domain::time::Clock;

/// The exit code of a chat whose run waits for an approval.
pub const WAITS_FOR_APPROVAL: u8 = 4;

/// Executes a command and returns its exit code.
///
/// # Errors
/// See [`ClientError`]; [`ClientError::exit_code`] is the exit code.
pub async fn run(api: &ApiClient, command: &ClientCommand, clock: &dyn Clock) -> ClientResult<u8> {
    match command {
        ClientCommand::Chat(arguments) => return Box::pin(chat::run(api, arguments)).await,
        ClientCommand::Runs(command) => resources::runs::run(api, command, clock).await?,
        ClientCommand::Threads(command) => resources::threads::run(api, command, clock).await?,
        ClientCommand::Interrupts(command) => resources::interrupts::run(api, command, clock).await?,
        ClientCommand::Approvals(command) => resources::approvals::run(api, command).await?,
        ClientCommand::Agents(command) => resources::agents::run(api, command).await?,
    }
    Ok(0)
}

/// Writes an error to standard error.
pub fn report(error: &ClientError) {
    if !error.is_silent() {
        output::inform(&format!("adjutant: {}\n", escape::text(&error.to_string())));
    }
}

/// Writes a line about the command itself to standard error.
pub fn inform(text: &str) {
    output::inform(&format!("{}\n", escape::text(text)));
}

/// Returns whether a person can be asked.
fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}
