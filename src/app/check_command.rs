//! `adjutant check`: the report about the configuration, with `--connect` about what it refers to, and with
//! `--explain` about the policies of an agent, as text or JSON.

use std::fmt::Write as _;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use serde_json::{Value, json};

use super::builder::Prepared;
use super::connect::{self, CheckStatus, ConnectionCheck};
use super::execution::{self, LayerReport};
use super::explain::explain;
use super::own_secrets;
use crate::config::{self, CheckCommand, LoadedConfig, Problem, Problems};

/// The result of `adjutant check`.
#[derive(Debug, Clone)]
pub struct CheckResult {
    /// The report, with the end of its last line.
    pub text: String,
    /// True if the configuration can be used and no check has failed.
    pub is_usable: bool,
}

/// Checks a configuration, and with `--connect` what it refers to, unless the configuration has errors.
pub fn run(prepared: Result<Prepared, Problems>, command: &CheckCommand) -> LocalBoxFuture<'_, CheckResult> {
    Box::pin(async move {
        let checks = match &prepared {
            Ok(prepared) if command.connect => Some(connections(prepared, command).await),
            Ok(_) | Err(_) => None,
        };
        let has_failed = |checks: &Vec<ConnectionCheck>| checks.iter().any(|check| check.status == CheckStatus::Fail);
        let explained = command.explain.as_ref().zip(prepared.as_ref().ok());
        let explained =
            explained.map(|(agent, prepared)| explain(prepared, agent).map_err(|error| format!("{error:#}")));
        let is_explained = explained.as_ref().is_none_or(Result::is_ok);
        let problems = problems_of(&prepared, command).await;
        let loaded = prepared.as_ref().ok().map(Prepared::loaded);
        let is_valid = prepared.is_ok() && problems.are_harmless();
        let is_usable = is_valid && is_explained && !checks.as_ref().is_some_and(has_failed);
        let layers = prepared.as_ref().map(sandbox_layers).unwrap_or_default();
        let refused = prepared.as_ref().map(refused_commands).unwrap_or_default();
        let text = if command.json {
            let mut report = json_report(loaded, &problems, checks.as_deref(), is_usable);
            report["sandbox_layers"] = layers.iter().map(layer_json).collect();
            let refused = refused
                .iter()
                .map(|(agent, reason)| json!({"agent": agent, "problem": reason}));
            report["refused_commands"] = refused.collect();
            match &explained {
                Some(Ok(agent)) => report["explanation"] = json!(agent),
                Some(Err(problem)) => report["explanation"] = json!({"error": problem}),
                None => {}
            }
            format!("{report:#}\n")
        } else {
            let mut text = text_report(loaded, &problems, checks.as_deref(), command.connect);
            layers.iter().for_each(|layer| text.push_str(&layer_line(layer)));
            for (agent, reason) in &refused {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "the commands of agent {agent} will be refused: {reason}");
            }
            match &explained {
                Some(Ok(agent)) => text.push_str(&agent.text()),
                Some(Err(problem)) => text.push_str(&format!("\nnothing is explained: {problem}\n")),
                None => {}
            }
            text
        };
        CheckResult { text, is_usable }
    })
}

/// Returns the errors and warnings about a configuration. With `--connect`, the secrets of the server are among the checks
/// instead.
async fn problems_of(prepared: &Result<Prepared, Problems>, command: &CheckCommand) -> Problems {
    let loaded = match prepared {
        Ok(prepared) => prepared.loaded(),
        Err(problems) => return problems.clone(),
    };
    let mut problems = loaded.warnings.clone();
    if !command.connect {
        problems.0.extend(own_secrets::unreadable(loaded).await);
    }
    problems
}

/// Returns the layers of isolation that commands can have on this machine, if an agent runs commands.
fn sandbox_layers(prepared: &Prepared) -> Vec<LayerReport> {
    execution::layers(&prepared.loaded().config, &prepared.registered().commands)
}

fn refused_commands(prepared: &Prepared) -> Vec<(String, String)> {
    execution::refused(&prepared.loaded().config, &prepared.registered().commands)
}

fn layer_line(layer: &LayerReport) -> String {
    match &layer.problem {
        None => format!("isolation {} of commands: works\n", layer.layer),
        Some(problem) => format!("isolation {} of commands: does not work here: {problem}\n", layer.layer),
    }
}

fn layer_json(layer: &LayerReport) -> Value {
    json!({"layer": layer.layer, "works": layer.problem.is_none(), "problem": layer.problem})
}

async fn connections(prepared: &Prepared, command: &CheckCommand) -> Vec<ConnectionCheck> {
    let limit = Duration::from_secs(command.timeout.into());
    connect::run(prepared, limit).await.unwrap_or_else(|error| {
        vec![ConnectionCheck {
            kind: "client",
            name: "HTTP".to_owned(),
            status: CheckStatus::Fail,
            message: format!("{error:#}"),
            advice: None,
            duration_ms: 0,
        }]
    })
}

fn text_report(
    loaded: Option<&LoadedConfig>,
    problems: &Problems,
    checks: Option<&[ConnectionCheck]>,
    is_wanted: bool,
) -> String {
    let mut text = config::report(loaded, problems);
    let Some(checks) = checks else {
        if is_wanted {
            text.push_str("nothing was connected to: correct the errors first\n");
        }
        return text;
    };
    text.push('\n');
    for check in checks {
        let kind = check.kind.replace('_', " ");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<5} {kind} {}: {}",
            check.status.word(),
            check.name,
            check.message
        );
        if let Some(advice) = &check.advice {
            let _ = writeln!(text, "      {advice}");
        }
    }
    let count = |status: CheckStatus| checks.iter().filter(|check| check.status == status).count();
    let _ = writeln!(
        text,
        "\n{} ok, {} to look at, {} failed",
        count(CheckStatus::Ok),
        count(CheckStatus::Warn),
        count(CheckStatus::Fail)
    );
    text
}

/// Returns the report as JSON. `docs/command-line.md` describes it.
fn json_report(
    loaded: Option<&LoadedConfig>,
    problems: &Problems,
    checks: Option<&[ConnectionCheck]>,
    is_usable: bool,
) -> Value {
    let diagnostics: Vec<Value> = problems.0.iter().map(diagnostic).collect();
    json!({
        "ok": is_usable,
        "configuration": loaded.map(summary),
        "diagnostics": diagnostics,
        "checks": checks,
    })
}

fn diagnostic(problem: &Problem) -> Value {
    json!({
        "severity": problem.severity.to_string(),
        "file": problem.file,
        "line": problem.position.map(|(line, _)| line),
        "column": problem.position.map(|(_, column)| column),
        "field": problem.field,
        "message": problem.message,
        "agent": problem.agent,
    })
}

fn summary(loaded: &LoadedConfig) -> Value {
    let config = &loaded.config;
    let overrides = loaded
        .overrides
        .iter()
        .map(|setting| json!({"field": setting.field, "source": setting.source}));
    let agents = config.agents.iter().map(|(graph_id, agent)| {
        let subagents = agent.subagents.iter().map(|subagent| subagent.name.as_str());
        let name = agent.name.as_deref().unwrap_or(graph_id);
        if let Some(runnable) = &agent.runnable {
            return json!({"graph_id": graph_id, "name": name, "runnable": runnable});
        }
        if let Some((remote, url)) = agent.remote() {
            return json!({"graph_id": graph_id, "name": name, "remote": {"graph_id": remote, "url": url}});
        }
        json!({
            "graph_id": graph_id,
            "name": name,
            "model": agent.model,
            "tools": agent.tools,
            "subagents": subagents.collect::<Vec<_>>(),
            "workspace": agent.workspace.summary(),
        })
    });
    json!({
        "source": loaded.source,
        "is_demonstration": loaded.is_demonstration(),
        "listen": config.server.listen,
        "database": config.storage.url.to_string(),
        "auth": config.auth.is_some(),
        "overrides": overrides.collect::<Vec<_>>(),
        "agents": agents.collect::<Vec<_>>(),
        "mcp_servers": config.mcp_servers.keys().collect::<Vec<_>>(),
        "sandboxes": config.sandboxes.keys().collect::<Vec<_>>(),
    })
}
