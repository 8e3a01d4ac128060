//! Checks of the agents that run commands: they can do so on this machine, and do not reach the server's own files.

use std::path::{Path, PathBuf};

use crate::config::{Config, LoadedConfig, Problem};
use crate::definition::{ExecuteSettings, FieldPath, WorkspaceDefinition};
use crate::sandbox::{SandboxLayer, is_readable_by_all};
use crate::tool::execute::CommandLauncher;

/// A layer of isolation, and the reason why it does not work on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerReport {
    /// The name.
    pub(super) layer: &'static str,
    /// The reason; none if the layer works.
    pub(super) problem: Option<String>,
}

/// Returns the layers of this machine, if an agent runs commands. They are tried out, which blocks for a moment.
pub(super) fn layers(config: &Config, commands: &CommandLauncher) -> Vec<LayerReport> {
    if config.agents.values().all(|agent| agent.executing().is_empty()) {
        return vec![];
    }
    let layers = [SandboxLayer::Bwrap, SandboxLayer::Landlock].into_iter();
    let report = layers.map(|layer| LayerReport {
        layer: layer.word(),
        problem: commands.problem_of(layer).map(str::to_owned),
    });
    report.collect()
}

/// Returns the agents whose commands are refused because this machine lacks the isolation that they need, each with the
/// reason. It is tried out, which blocks for a moment.
pub(super) fn refused(config: &Config, commands: &CommandLauncher) -> Vec<(String, String)> {
    let mut refused = vec![];
    for (graph_id, agent) in &config.agents {
        let mut isolations = agent.executing().into_iter().map(|(_, settings, _)| settings.isolation);
        let reason = isolations.find_map(|isolation| commands.layer_for(isolation).err());
        refused.extend(reason.map(|reason| (graph_id.clone(), reason)));
    }
    refused
}

/// Returns the errors about agents whose commands would reach files of the server.
pub(super) fn problems(loaded: &LoadedConfig) -> Vec<Problem> {
    let own = own_files(loaded);
    let mut problems = vec![];
    for (graph_id, agent) in &loaded.config.agents {
        for (field, settings, workspace) in agent.executing() {
            let field = FieldPath::of(["agents", graph_id.as_str()]).join(&field);
            let message = reached(&own, &settings, &workspace);
            problems.extend(message.map(|message| Problem {
                field: field.to_string(),
                agent: Some(graph_id.as_str().into()),
                ..Problem::in_file(loaded.source.clone(), message)
            }));
        }
    }
    problems
}

/// Returns the message about a file of the server that commands would reach.
fn reached(own: &[PathBuf], settings: &ExecuteSettings, workspace: &WorkspaceDefinition) -> Option<String> {
    let root = workspace.root.iter().map(|root| ("the workspace", root));
    let read = settings.read_paths.iter().map(|path| ("`read_paths`", path));
    for (what, place) in root.chain(read) {
        if let Some(file) = own.iter().find(|file| file.starts_with(place)) {
            return Some(format!(
                "{what} `{}` contains `{}`, which belongs to the server and which commands could read or change; choose a \
                 directory of its own",
                place.display(),
                file.display()
            ));
        }
    }
    let file = own.iter().find(|file| is_readable_by_all(file))?;
    Some(format!(
        "`{}` belongs to the server, and every command could read it there; put it into another directory",
        file.display()
    ))
}

/// Returns the files of the server that no command may reach: its configuration, database, keys and secrets.
fn own_files(loaded: &LoadedConfig) -> Vec<PathBuf> {
    let config = &loaded.config;
    let mut files = config.files.roots.clone();
    files.push(config.files.folder().join(".env"));
    files.extend(database_file(config));
    files.extend(config.secrets.values().filter_map(|secret| secret.file.clone()));
    files.extend(
        config
            .providers
            .values()
            .filter_map(|provider| provider.api_key_file.clone()),
    );
    files.extend(config.encryption.iter().filter_map(|section| section.key_file.clone()));
    let keys = config.auth.iter().flat_map(|section| &section.keys);
    files.extend(keys.filter_map(|key| key.key_file.clone()));
    files.iter().map(|file| real(file)).collect()
}

/// Returns the file of a SQLite database.
fn database_file(config: &Config) -> Option<PathBuf> {
    let path = config.storage.url.expose().strip_prefix("sqlite://")?;
    let path = path.split('?').next().unwrap_or(path);
    Some(PathBuf::from(path))
}

/// Returns the real path of a file that may not be there yet.
fn real(file: &Path) -> PathBuf {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
    if let Ok(real) = absolute.canonicalize() {
        return real;
    }
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        (_, _) => absolute,
    }
}
