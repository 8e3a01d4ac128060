//! The definitions that come from files, and how their changes reach the running server.

use std::time::Duration;

use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Problems, Watch};
use crate::definition::Remark;
use crate::runtime::{FileAgent, FileAgents, Runs};

/// What the files of a configuration define, and what is odd about it.
pub(super) fn of_files(config: &Config, oddities: Problems) -> FileAgents {
    let agent = |(graph_id, definition): (&String, &_)| FileAgent {
        graph_id: graph_id.clone(),
        place: config
            .files
            .places
            .get(graph_id)
            .cloned()
            .unwrap_or_else(|| "the configuration".to_owned()),
        definition: Clone::clone(definition),
    };
    FileAgents {
        agents: config.agents.iter().map(agent).collect(),
        remarks: remarks(oddities),
        servers: config.mcp_servers.clone(),
    }
}

/// Oddities and mistakes, each with the agent that it is about, when it is about one.
fn remarks(problems: Problems) -> Vec<(Option<String>, Remark)> {
    problems
        .0
        .into_iter()
        .map(|problem| (problem.agent.as_deref().map(str::to_owned), problem.into()))
        .collect()
}

/// Takes over what files define whenever they change. Ends with the server.
///
/// # Errors
/// When the look at the files panicked.
pub(super) async fn follow(
    mut watch: Watch,
    runs: Runs,
    pause: Duration,
    soft: CancellationToken,
) -> Result<(), JoinError> {
    while soft.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        let looking = tokio::task::spawn_blocking(move || {
            let found = watch.look();
            (watch, found)
        });
        let (back, found) = looking.await?;
        watch = back;
        match found {
            None => {}
            Some(Err(problems)) => runs.refuse_files(remarks(problems)).await,
            Some(Ok(loaded)) => {
                let files = of_files(&loaded.config, loaded.warnings);
                if let Err(error) = runs.replace_files(files).await {
                    tracing::error!(%error, "could not store a change of the definitions; it is not in use");
                }
            }
        }
    }
    Ok(())
}
