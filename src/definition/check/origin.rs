//! Checks what only the owner of the server may give: definitions of clients name no files on its disk, define no MCP
//! servers and run no commands.

use crate::definition::agent::AgentDefinition;
use crate::definition::bundled_files::is_relative;
use crate::definition::diagnostic::Diagnostic;
use crate::definition::named_sources::NamedSource;

/// Checks that the definition of a client names no files on the server's disk, defines no MCP servers and runs no
/// commands.
pub(in crate::definition) fn check_origin(agent: &AgentDefinition) -> Vec<Diagnostic> {
    let on_disk = agent
        .named_sources()
        .into_iter()
        .filter(|named| is_relative(&named.path) && !named.path.trim().is_empty());
    let reported = on_disk.map(|NamedSource { field, path, .. }| {
        let message = format!(
            "`{path}` is relative, as in definitions that lie in files; one that comes over HTTP names places in the \
             thread's files, which begin with /"
        );
        Diagnostic::error(field, message)
    });
    let message = "is for definitions in files; one that comes over HTTP names servers of the configuration in `tools`";
    let servers = agent
        .clone()
        .servers_mut()
        .map(|(field, _)| Diagnostic::error(field, message))
        .collect::<Vec<_>>();
    let of_owner = agent
        .workspaces()
        .into_iter()
        .flat_map(|(field, workspace)| workspace.of_owner(&field));
    let commands = agent.check_execution_of_client();
    reported.chain(servers).chain(of_owner).chain(commands).collect()
}
