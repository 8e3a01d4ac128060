//! The commands that talk to a server. A chat may start one in this process.

use anyhow::Context;
use futures::future::LocalBoxFuture;
use tokio::net::TcpListener;

use super::{Prepared, explain_in_use};
use crate::client::{self, ApiClient, ClientError, ClientResult, ServerAddress};
use crate::config::Problems;
use crate::config::client::{ChatArguments, ClientCommand};
use crate::domain::time::SystemClock;
use crate::shutdown::Shutdown;

/// The address of the server of a chat: any free port that only this machine can reach.
const LOCAL_ADDRESS: &str = "127.0.0.1:0";

/// The advice if the database of a chat is in use.
const IN_USE: &str = "a server works with this database: talk to it with --server URL, or name another configuration";

/// Executes a command that talks to a server, and returns the exit code. `prepared` is the configuration of the server
/// on this machine, which need not be usable unless the command starts it.
pub fn run(prepared: Result<Prepared, Problems>, command: &ClientCommand) -> LocalBoxFuture<'_, u8> {
    Box::pin(async move {
        match execute(prepared, command).await {
            Ok(code) => code,
            Err(error) => {
                client::report(&error);
                error.exit_code()
            }
        }
    })
}

async fn execute(prepared: Result<Prepared, Problems>, command: &ClientCommand) -> ClientResult<u8> {
    let options = command.server();
    let configured = prepared
        .as_ref()
        .ok()
        .map(|prepared| prepared.loaded().config.server.listen.clone());
    let listen = configured.or_else(|| options.settings.listen.clone());
    let server = ServerAddress::choose(options, listen.as_deref())?;
    let is_given = server.is_given;
    let api = ApiClient::new(server, options.api_key.as_ref())?;
    if let ClientCommand::Chat(arguments) = command
        && !is_given
        && !api.is_reachable().await?
    {
        return Box::pin(chat_with_own_server(prepared, arguments, command)).await;
    }
    Box::pin(client::run(&api, command, &SystemClock)).await
}

/// Starts a server in this process for the duration of the chat.
async fn chat_with_own_server(
    prepared: Result<Prepared, Problems>,
    arguments: &ChatArguments,
    command: &ClientCommand,
) -> ClientResult<u8> {
    let failed = |error: anyhow::Error| ClientError::Misunderstood(format!("{error:#}"));
    let prepared = prepared.map_err(|problems| {
        let error = anyhow::Error::from(problems).context("no server runs here, and none can be started");
        ClientError::Misunderstood(format!("{error:#}"))
    })?;
    let what = match prepared.loaded().is_demonstration() {
        true => "the demonstration".to_owned(),
        false => prepared.loaded().source.clone(),
    };
    let database = prepared.loaded().config.storage.url.to_string();
    client::inform(&format!(
        "No server runs here: one is started for this chat, with {what} and {database}."
    ));
    let shutdown = Shutdown::new(prepared.loaded().config.server.shutdown_deadline());
    let started = Box::pin(prepared.start(shutdown.clone())).await;
    let app = started.map_err(|error| explain_in_use(error, IN_USE)).map_err(failed)?;
    let listener = TcpListener::bind(LOCAL_ADDRESS).await.context("no port is free");
    let listener = listener.map_err(failed)?;
    let address = listener.local_addr()?;
    let api = ApiClient::new(ServerAddress::of_process(address)?, arguments.server.api_key.as_ref())?;
    let chatting = async {
        let result = Box::pin(client::run(&api, command, &SystemClock)).await;
        shutdown.begin();
        result
    };
    let (served, result) = tokio::join!(Box::pin(app.serve(listener)), chatting);
    let code = result?;
    served.map_err(failed)?;
    Ok(code)
}
