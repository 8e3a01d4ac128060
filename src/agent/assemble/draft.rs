//! The draft of one agent, before it is built.

use std::sync::Arc;

use serde_json::Value;

use super::{Delegations, SharedState};
use crate::definition::bundled_files::agent_path;
use crate::definition::servers::McpOwner;
use crate::definition::{
    self, AgentSpec, BundledFiles, FileRules, SkillSource, SubagentDefinition, SystemPrompt, THREAD_FOLDERS,
    WorkspaceDefinition, WorkspaceKind,
};
use crate::domain::background::BackgroundAgent;
use crate::domain::item::template::NamespaceTemplate;
use crate::domain::path::{FOLDER, normalise};
use crate::middleware::Middleware;
use crate::middleware::memory::Memory;
use crate::middleware::skills::Skills;
use crate::tool::Tool;
use crate::tool::execute::{CommandLauncher, ExecuteTool, LocalSandbox, Sandbox};
use crate::tool::files::{
    AgentFiles, DiskFiles, FileRoute, FileWorkspace, ReadOnlyFiles, RoutedFiles, StateFiles, StoreFiles, WithEnclosed,
};
use crate::tool::sandboxes::{SandboxCommands, SandboxFiles, SandboxPlace, SandboxServices};

/// The specification of one agent, with its dependencies on this server.
#[derive(Clone)]
pub(super) struct Draft {
    pub(super) spec: AgentSpec,
    /// The owner whose MCP servers it may name.
    pub(super) servers: McpOwner,
    pub(super) shares: SharedState,
    /// True if a delegation may replace the instructions.
    pub(super) prompt_is_replaceable: bool,
    pub(super) delegations: Option<Delegations>,
    /// The text at the end of the instructions, if it is a fork.
    pub(super) fork_prompt: Option<SystemPrompt>,
    /// The agents that work for it in the background.
    pub(super) background: Vec<BackgroundAgent>,
}

impl Draft {
    /// Returns the draft of a fork of this agent.
    pub(super) fn forked(&self, fork: &SubagentDefinition) -> Self {
        Self {
            spec: fork.fork_spec(&self.spec),
            delegations: self.delegations.as_ref().map(Delegations::refusing),
            fork_prompt: Some(fork.system_prompt.clone()),
            // Its work ends with its result, so it could not be notified of the end of a task.
            background: vec![],
            ..self.clone()
        }
    }

    /// Returns the draft with this form of its result, if one is given.
    pub(super) fn in_form(mut self, format: Option<&Value>) -> Self {
        self.spec.response_format = format.cloned().or(self.spec.response_format);
        self
    }

    /// Returns the files of the definition that belong to this agent.
    fn own_files(&self) -> Arc<BundledFiles> {
        let named = self
            .spec
            .skills
            .iter()
            .map(SkillSource::agent_path)
            .chain(self.spec.memory.iter().map(|path| agent_path(path)));
        let paths: Vec<String> = named.collect();
        Arc::new(self.spec.enclosed.only(paths.iter().map(String::as_str)))
    }

    /// Returns the files on which its file tools work.
    pub(super) fn workspace(&self, sandboxes: &SandboxServices) -> Arc<dyn FileWorkspace> {
        let own = self.own_files();
        let workspace = with_thread_folders(&self.spec.workspace, sandboxes);
        if own.is_empty() {
            workspace
        } else {
            Arc::new(WithEnclosed::new(own, workspace))
        }
    }

    /// Returns the files of the agent with its permissions, for tools that read them during their calls.
    pub(super) fn files(&self, sandboxes: &SandboxServices) -> AgentFiles {
        AgentFiles::new(self.workspace(sandboxes), &FileRules::new(&self.spec.permissions))
    }

    /// Returns the tool that runs commands, if the agent may.
    pub(super) fn execute(&self, commands: &CommandLauncher, sandboxes: &SandboxServices) -> Option<Arc<dyn Tool>> {
        let settings = self.spec.execute.settings()?;
        let workspace = self.spec.workspace.of_commands()?;
        let routes = self.spec.workspace.routes.keys().map(String::as_str);
        let elsewhere: Vec<&str> = THREAD_FOLDERS.into_iter().chain([FOLDER]).chain(routes).collect();
        let sandbox: Arc<dyn Sandbox> = match sandbox_place(workspace, sandboxes) {
            Some(place) => Arc::new(SandboxCommands::new(place)),
            None => Arc::new(LocalSandbox::new(
                commands.clone(),
                disk(workspace)?,
                workspace.read_only,
                settings.clone(),
            )),
        };
        Some(Arc::new(ExecuteTool::new(sandbox, settings, &elsewhere)))
    }

    /// Returns the policies of its skills and its memory.
    pub(super) fn skill_and_memory_policies(&self, sandboxes: &SandboxServices) -> Vec<Arc<dyn Middleware>> {
        let own = self.own_files();
        let workspace = self.workspace(sandboxes);
        let has_files = self.spec.files == definition::Workspace::State;
        let mut policies: Vec<Arc<dyn Middleware>> = vec![];
        if !self.spec.skills.is_empty() {
            let skills = Skills::new(&self.spec.skills, &own, Arc::clone(&workspace), &self.spec.skill_tools);
            let folders = self.spec.skills.iter().map(SkillSource::agent_path).collect();
            let alone = WithEnclosed::new(Arc::clone(&own), Arc::clone(&workspace)).within(folders);
            let alone: Arc<dyn FileWorkspace> = Arc::new(alone);
            policies.push(Arc::new(if has_files { skills } else { skills.with_reader(&alone) }));
        }
        if !self.spec.memory.is_empty() {
            policies.push(Arc::new(Memory::new(&self.spec.memory, &own, workspace, has_files)));
        }
        policies
    }
}

/// Returns the workspace of a definition. The files that the server itself writes for a thread are always in the state
/// of the thread, so that no other thread sees them.
fn with_thread_folders(definition: &WorkspaceDefinition, sandboxes: &SandboxServices) -> Arc<dyn FileWorkspace> {
    if definition.kind == WorkspaceKind::State {
        return Arc::new(StateFiles);
    }
    let own = THREAD_FOLDERS.iter().map(|folder| FileRoute {
        prefix: (*folder).to_owned(),
        workspace: Arc::new(StateFiles),
        is_relative: false,
        is_listed: false,
    });
    let routes = definition.routes.iter().filter_map(|(path, route)| {
        // Invalid paths were refused when the definition was read.
        Some(FileRoute {
            prefix: normalise(path).ok()?,
            workspace: plain_workspace(route, sandboxes),
            is_relative: route.kind != WorkspaceKind::State,
            is_listed: true,
        })
    });
    let default = match definition.kind {
        WorkspaceKind::Composite => definition
            .default
            .as_deref()
            .map_or_else(|| Arc::new(StateFiles) as Arc<_>, |own| plain_workspace(own, sandboxes)),
        WorkspaceKind::State | WorkspaceKind::Disk | WorkspaceKind::Store | WorkspaceKind::Sandbox => {
            plain_workspace(definition, sandboxes)
        }
    };
    Arc::new(RoutedFiles::new(default, own.chain(routes).collect()))
}

/// Returns the files of a workspace on the disk; none of another kind.
fn disk(definition: &WorkspaceDefinition) -> Option<DiskFiles> {
    let root = definition
        .root
        .clone()
        .filter(|_| definition.kind == WorkspaceKind::Disk)?;
    let namespace = definition.namespace.as_ref();
    let namespace = namespace.and_then(|labels| NamespaceTemplate::read(labels).ok());
    let files = DiskFiles::new(root).with_namespace(namespace);
    Some(files.with_ignore_files(definition.ignore_files.unwrap_or(true)))
}

/// Returns the place of the sandbox of a workspace; none of another kind.
fn sandbox_place(definition: &WorkspaceDefinition, sandboxes: &SandboxServices) -> Option<SandboxPlace> {
    let service = definition.sandbox.as_deref()?;
    sandboxes.place(service, definition.scope.unwrap_or_default())
}

/// Returns a workspace without routes to others.
fn plain_workspace(definition: &WorkspaceDefinition, sandboxes: &SandboxServices) -> Arc<dyn FileWorkspace> {
    if let Some(place) = sandbox_place(definition, sandboxes) {
        return Arc::new(SandboxFiles::new(place));
    }
    // Missing roots and invalid templates were refused when the definition was read.
    let namespace = definition.namespace.as_ref();
    let namespace = namespace.and_then(|labels| NamespaceTemplate::read(labels).ok());
    let workspace: Arc<dyn FileWorkspace> = match (disk(definition), namespace) {
        (Some(files), _) => Arc::new(files),
        (None, Some(namespace)) if definition.kind == WorkspaceKind::Store => Arc::new(StoreFiles::new(namespace)),
        (None, _) => Arc::new(StateFiles),
    };
    if definition.read_only {
        Arc::new(ReadOnlyFiles::new(workspace))
    } else {
        workspace
    }
}
