//! Definitions from files, and the task that reloads them.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use super::execution;
use crate::config::{Config, Problems, Watch};
use crate::db::warn_of;
use crate::definition::StoredDiagnostic;
use crate::definition::servers::ServerDefinition;
use crate::runtime::{Definitions, FileAgent, FileAgents};

/// Returns the agents that the files of a configuration define, without remarks.
pub(super) fn of_files(config: &Config) -> FileAgents {
    let agent = |(graph_id, definition): (&String, &_)| FileAgent {
        graph_id: graph_id.clone(),
        place: config
            .files
            .definition_paths
            .get(graph_id)
            .cloned()
            .unwrap_or_else(|| "the configuration".to_owned()),
        definition: Clone::clone(definition),
    };
    FileAgents {
        agents: config.agents.iter().map(agent).collect(),
        remarks: vec![],
        servers: servers(config),
    }
}

/// Returns the servers of tools that all agents may use.
fn servers(config: &Config) -> BTreeMap<String, ServerDefinition> {
    let mcp = config.mcp_servers.iter();
    let mcp = mcp.map(|(name, server)| (name.clone(), server.clone().into()));
    let http = config.tool_servers.iter();
    let http = http.map(|(name, server)| (name.clone(), server.clone().into()));
    mcp.chain(http).collect()
}

/// Returns diagnostics, each with its agent, if it is about one.
pub(super) fn remarks(problems: Problems) -> Vec<(Option<String>, StoredDiagnostic)> {
    problems
        .0
        .into_iter()
        .map(|problem| (problem.agent.as_deref().map(str::to_owned), problem.into()))
        .collect()
}

/// Reloads definitions whenever their files change, until the shutdown.
///
/// # Errors
/// Returns an error if reading the files panicked.
pub(super) async fn reload_on_change(
    mut watch: Watch,
    definitions: Definitions,
    pause: Duration,
    soft: CancellationToken,
) -> Result<(), JoinError> {
    while soft.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        let reading = tokio::task::spawn_blocking(move || {
            let found = watch.poll();
            (watch, found)
        });
        let (returned, found) = reading.await?;
        watch = returned;
        match found {
            None => {}
            Some(Err(problems)) => definitions.refuse_files(remarks(problems)).await,
            Some(Ok(loaded)) => {
                let reached = execution::problems(&loaded);
                if !reached.is_empty() {
                    definitions.refuse_files(remarks(Problems(reached))).await;
                    continue;
                }
                let files = FileAgents {
                    remarks: remarks(loaded.warnings),
                    ..of_files(&loaded.config)
                };
                match definitions.replace_files(files).await {
                    Ok(()) => {}
                    Err(error) if error.is_resumable() => {
                        warn_of!(
                            error,
                            "could not store changed definitions yet; the previous ones stay in use"
                        );
                        watch.read_again();
                    }
                    Err(error) => {
                        tracing::error!(%error, "could not store changed definitions; the previous ones stay in use");
                    }
                }
            }
        }
    }
    Ok(())
}
