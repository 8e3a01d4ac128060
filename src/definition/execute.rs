//! The tool `execute`: whether an agent may run commands in its workspace, and what a command may use.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize};

use super::diagnostic::{Diagnostic, FieldPath};
use super::permission::Permission;
use super::switch::SwitchOrTable;
use super::words::is_word;
use super::{AfterCrash, AgentDefinition, AgentSpec, Workspace, WorkspaceDefinition, WorkspaceKind};
use crate::domain::path::{below, normalise};
use crate::domain::pattern::trunk;

/// The longest time-out of a command, in seconds.
const LONGEST_TIMEOUT_S: u32 = 24 * 3_600;
/// The most space that may have to stay free, in MiB: a pebibyte.
const MOST_FREE_MB: u64 = 1_073_741_824;
/// The maximum number of variables and of paths.
const MOST: usize = 64;

/// The rule for the commands of an agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ExecuteRule {
    /// `true`: with the default settings; `false`: never.
    Switch(bool),
    /// The settings.
    Settings(Box<ExecuteSettings>),
}

impl Default for ExecuteRule {
    fn default() -> Self {
        Self::Switch(false)
    }
}

/// The settings of the commands of an agent: what they may use, and how much.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExecuteSettings {
    /// The way in which commands are kept apart from the server.
    pub isolation: Isolation,
    /// The network that commands may use.
    pub network: CommandNetwork,
    /// Seconds until a command is killed, if its call gives no time-out.
    pub timeout_s: u32,
    /// The longest time-out that a call may give, in seconds.
    pub max_timeout_s: u32,
    /// The output that is kept, in bytes: its beginning and its end.
    pub max_output_bytes: usize,
    /// The memory of a command with all of its processes, in MiB.
    pub memory_mb: u64,
    /// The number of processes of a command.
    pub max_processes: u32,
    /// The processor time of each process, in seconds.
    pub cpu_s: u64,
    /// The size of a file that a command writes, in MiB.
    pub max_file_mb: u64,
    /// The space of the disk that has to stay free while a command runs, in MiB; 0 for none. Without it that depends on the
    /// size of the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_free_mb: Option<u64>,
    /// The environment variables of the server that commands get, by name.
    pub env: Vec<String>,
    /// Further files and directories of the machine that commands may read.
    pub read_paths: Vec<PathBuf>,
    /// The shell.
    pub shell: PathBuf,
    /// The handling of a command that was started before a crash.
    pub after_crash: AfterCrash,
    /// The values of the variables in `env`, which are read with the configuration.
    #[serde(skip)]
    pub values: CommandEnvironment,
}

impl Default for ExecuteSettings {
    fn default() -> Self {
        Self {
            isolation: Isolation::default(),
            network: CommandNetwork::default(),
            timeout_s: 120,
            max_timeout_s: 3_600,
            max_output_bytes: 100_000,
            memory_mb: 1_024,
            max_processes: 128,
            cpu_s: 600,
            max_file_mb: 1_024,
            min_free_mb: None,
            env: vec![],
            read_paths: vec![],
            shell: PathBuf::from("/bin/sh"),
            after_crash: AfterCrash::Ask,
            values: CommandEnvironment::default(),
        }
    }
}

impl fmt::Debug for ExecuteSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecuteSettings")
            .field("isolation", &self.isolation)
            .field("network", &self.network)
            .field("env", &self.env)
            .finish_non_exhaustive()
    }
}

/// The environment variables of commands, whose values may be secrets.
#[derive(Clone, Default)]
pub struct CommandEnvironment(BTreeMap<String, SecretString>);

impl CommandEnvironment {
    /// Returns the variables with their values.
    pub fn expose(&self) -> BTreeMap<String, String> {
        let exposed = self.0.iter();
        exposed
            .map(|(name, value)| (name.clone(), value.expose_secret().to_owned()))
            .collect()
    }
}

impl PartialEq for CommandEnvironment {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

/// The way in which commands are kept apart from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// The strongest that the machine has.
    #[default]
    Auto,
    /// Namespaces, made by the program `bwrap`, with Landlock and seccomp inside.
    Bwrap,
    /// Landlock and seccomp.
    Landlock,
}

impl Isolation {
    /// Returns the word of the setting.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bwrap => "bwrap",
            Self::Landlock => "landlock",
        }
    }
}

/// The network that commands may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandNetwork {
    /// None.
    #[default]
    None,
    /// The network of the machine, with all that the server itself can reach.
    Host,
}

impl ExecuteRule {
    /// Returns the settings, unless the agent runs no commands.
    pub fn settings(&self) -> Option<ExecuteSettings> {
        match self {
            Self::Switch(on) => on.then(ExecuteSettings::default),
            Self::Settings(settings) => Some((**settings).clone()),
        }
    }

    /// Returns the rule in a few words, for people; `None` if it is off. The commands run in this workspace.
    pub fn summary(&self, workspace: &WorkspaceDefinition) -> Option<String> {
        let settings = self.settings()?;
        if let Some(service) = workspace.of_commands().and_then(|own| own.sandbox.as_ref()) {
            return Some(format!("in the sandbox service {service}, {} s", settings.timeout_s));
        }
        let network = match settings.network {
            CommandNetwork::None => "no network",
            CommandNetwork::Host => "the network of the machine",
        };
        Some(format!(
            "isolation {}, {network}, {} s, {} MiB, {} processes",
            settings.isolation.word(),
            settings.timeout_s,
            settings.memory_mb,
            settings.max_processes
        ))
    }

    fn check(&self, field: &FieldPath) -> Vec<Diagnostic> {
        match self {
            Self::Switch(_) => vec![],
            Self::Settings(settings) => settings.check(field),
        }
    }
}

impl ExecuteSettings {
    fn check(&self, field: &FieldPath) -> Vec<Diagnostic> {
        let mut findings = vec![];
        let mut error = |name: &str, message: String| findings.push(Diagnostic::error(field.then(name), message));
        let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let numbers = [
            ("timeout_s", u64::from(self.timeout_s), 1, u64::from(self.max_timeout_s)),
            (
                "max_timeout_s",
                u64::from(self.max_timeout_s),
                1,
                u64::from(LONGEST_TIMEOUT_S),
            ),
            ("max_output_bytes", wide(self.max_output_bytes), 1_000, 4_000_000),
            ("memory_mb", self.memory_mb, 16, 1_048_576),
            ("max_processes", u64::from(self.max_processes), 1, 10_000),
            ("cpu_s", self.cpu_s, 1, u64::from(LONGEST_TIMEOUT_S)),
            ("max_file_mb", self.max_file_mb, 1, 1_048_576),
            ("min_free_mb", self.min_free_mb.unwrap_or(0), 0, MOST_FREE_MB),
        ];
        for (name, number, least, most) in numbers {
            if !(least..=most).contains(&number) {
                let limit = if name == "timeout_s" { " (`max_timeout_s`)" } else { "" };
                error(name, format!("must be a whole number from {least} to {most}{limit}"));
            }
        }
        if !self.shell.is_absolute() {
            error("shell", "must be the absolute path of a program".to_owned());
        }
        if self.env.len() > MOST || self.read_paths.len() > MOST {
            let name = if self.env.len() > MOST { "env" } else { "read_paths" };
            error(name, format!("must have at most {MOST} entries"));
        }
        for (at, name) in self.env.iter().enumerate() {
            if !is_word(name, 256, "") || name.contains('-') {
                let message = "is no name of an environment variable";
                findings.push(Diagnostic::error(field.then("env").then(at), message));
            }
        }
        for (at, path) in self.read_paths.iter().enumerate() {
            let is_top = path.parent().is_none() && path.is_absolute();
            let is_of_kernel = ["/proc", "/sys", "/dev", "/run"]
                .iter()
                .any(|top| path.starts_with(top));
            if path.as_os_str().is_empty() || is_top || is_of_kernel {
                let message =
                    "must name a file or directory, and not the root or what is below /proc, /sys, /dev or /run";
                findings.push(Diagnostic::error(field.then("read_paths").then(at), message));
            }
        }
        if self.after_crash == AfterCrash::Repeat {
            let message = "is `repeat`: a command that was running in a crash is run a second time";
            findings.push(Diagnostic::warning(field.then("after_crash"), message));
        }
        findings
    }

    /// Returns an error for each setting that is for commands on this machine: a sandbox service has its own.
    fn check_for_service(&self, field: &FieldPath) -> Vec<Diagnostic> {
        let usual = Self::default();
        let changed = [
            ("isolation", self.isolation != usual.isolation),
            ("network", self.network != usual.network),
            ("memory_mb", self.memory_mb != usual.memory_mb),
            ("max_processes", self.max_processes != usual.max_processes),
            ("cpu_s", self.cpu_s != usual.cpu_s),
            ("max_file_mb", self.max_file_mb != usual.max_file_mb),
            ("min_free_mb", self.min_free_mb != usual.min_free_mb),
            ("env", self.env != usual.env),
            ("read_paths", self.read_paths != usual.read_paths),
            ("shell", self.shell != usual.shell),
        ];
        let message = "is for commands on this machine; a sandbox service has limits and an environment of its own";
        let given = changed.into_iter().filter(|(_, is_changed)| *is_changed);
        given
            .map(|(name, _)| Diagnostic::error(field.then(name), message))
            .collect()
    }

    /// Reads the values of variables, and makes paths absolute. Returns the problems, with their fields.
    fn settle(
        &mut self,
        field: &FieldPath,
        folder: &Path,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Vec<Diagnostic> {
        let mut findings = vec![];
        let mut values = BTreeMap::new();
        for (at, name) in self.env.iter().enumerate() {
            match variable(name) {
                Some(value) => drop(values.insert(name.clone(), SecretString::from(value))),
                None => findings.push(Diagnostic::warning(
                    field.then("env").then(at),
                    format!("the environment variable {name} is not set"),
                )),
            }
        }
        self.values = CommandEnvironment(values);
        for (at, path) in self.read_paths.iter_mut().enumerate() {
            let place = folder.join(&*path);
            match place.canonicalize() {
                Ok(real) => *path = real,
                Err(error) => findings.push(Diagnostic::error(
                    field.then("read_paths").then(at),
                    format!("`{}` cannot be opened: {error}", place.display()),
                )),
            }
        }
        findings
    }
}

impl WorkspaceDefinition {
    /// Returns the workspace in which commands run, on the disk or in a sandbox: this one, or the default of a composite
    /// one.
    pub fn of_commands(&self) -> Option<&Self> {
        let own = match self.kind {
            WorkspaceKind::Composite => self.default.as_deref()?,
            WorkspaceKind::Disk | WorkspaceKind::Sandbox | WorkspaceKind::State | WorkspaceKind::Store => self,
        };
        let is_place = match own.kind {
            WorkspaceKind::Disk => own.root.is_some(),
            WorkspaceKind::Sandbox => own.sandbox.is_some(),
            WorkspaceKind::State | WorkspaceKind::Store | WorkspaceKind::Composite => false,
        };
        is_place.then_some(own)
    }

    /// Returns whether all paths that match a pattern are in routes, where no command runs.
    fn is_in_routes(&self, pattern: &str) -> bool {
        let trunk = trunk(pattern);
        let is_route =
            |route: &String| normalise(route).is_ok_and(|route| trunk == route || below(&trunk, &route).is_some());
        self.kind == WorkspaceKind::Composite && self.routes.keys().any(is_route)
    }
}

/// Checks that an agent with this specification can run commands, for the rule in `field`.
fn check_agent(spec: &AgentSpec, field: &FieldPath) -> Vec<Diagnostic> {
    let mut findings = vec![];
    let Some(settings) = spec.execute.settings() else {
        return findings;
    };
    if spec.files == Workspace::None {
        let message = "is not possible with `files = \"none\"`: the tool comes with the file tools";
        findings.push(Diagnostic::error(field.clone(), message));
    }
    match spec.workspace.of_commands() {
        Some(workspace) if workspace.kind == WorkspaceKind::Sandbox => {
            findings.extend(settings.check_for_service(field));
        }
        Some(_) => {}
        None => {
            let message = "needs a workspace of the kind `disk` or `sandbox`, or a composite one whose `default` is of \
                such a kind";
            findings.push(Diagnostic::error(field.clone(), message));
        }
    }
    let restricts = |rule: &&Permission| rule.tools.is_empty() && rule.mode.restricts();
    for rule in spec.permissions.iter().filter(restricts) {
        let mut seen = rule.paths.iter().filter(|path| !spec.workspace.is_in_routes(path));
        if let Some(path) = seen.next() {
            let message = format!(
                "would pass by the rule of `permissions` for `{path}`, which binds the file tools only; put such files \
                 into a route of the workspace, or take the rule away"
            );
            findings.push(Diagnostic::error(field.clone(), message));
        }
    }
    findings
}

impl AgentDefinition {
    /// Returns the rules for commands that the agent and its subagents give, with their fields.
    fn execute_rules(&self) -> Vec<(FieldPath, &ExecuteRule)> {
        let below = self.subagents.iter().enumerate().filter_map(|(at, subagent)| {
            let field = FieldPath::of(["subagents"]).then(at).then("execute");
            Some((field, subagent.execute.as_ref()?))
        });
        std::iter::once((FieldPath::of(["execute"]), &self.execute))
            .chain(below)
            .collect()
    }

    /// Checks the rules for commands; `resolved` is the definition in its resolved form.
    pub(super) fn check_execution(&self, resolved: &Self) -> Vec<Diagnostic> {
        let rules = self.execute_rules();
        let mut findings: Vec<Diagnostic> = rules.iter().flat_map(|(field, rule)| rule.check(field)).collect();
        findings.extend(check_agent(&resolved.spec(""), &FieldPath::of(["execute"])));
        for (at, subagent) in self.subagents.iter().enumerate() {
            // A subagent that has the rule from its parent and another workspace has no such tool.
            let own = resolved.subagents.get(at).filter(|_| subagent.execute.is_some());
            let field = FieldPath::of(["subagents"]).then(at).then("execute");
            findings.extend(own.into_iter().flat_map(|own| check_agent(&own.spec(resolved), &field)));
        }
        findings
    }

    /// Returns an error for each rule that lets an agent run commands. Only the configuration may have one.
    pub(super) fn check_execution_of_client(&self) -> Vec<Diagnostic> {
        let message = "is for definitions in files; one that comes over HTTP runs no commands";
        let rules = self.execute_rules().into_iter();
        rules
            .filter(|(_, rule)| rule.settings().is_some())
            .map(|(field, _)| Diagnostic::error(field, message))
            .collect()
    }

    /// Reads the environment variables that commands get, and makes paths absolute: they are relative to `folder`.
    pub fn settle_execution(&mut self, folder: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Vec<Diagnostic> {
        let mut findings = vec![];
        if let ExecuteRule::Settings(settings) = &mut self.execute {
            findings.extend(settings.settle(&FieldPath::of(["execute"]), folder, variable));
        }
        for (at, subagent) in self.subagents.iter_mut().enumerate() {
            let field = FieldPath::of(["subagents"]).then(at).then("execute");
            if let Some(ExecuteRule::Settings(settings)) = &mut subagent.execute {
                findings.extend(settings.settle(&field, folder, variable));
            }
        }
        findings
    }

    /// Returns the agents of the definition that run commands on this machine, each with the field of its rule, its settings and its
    /// workspace on the disk.
    pub fn executing(&self) -> Vec<(FieldPath, ExecuteSettings, WorkspaceDefinition)> {
        let resolved = self.resolved();
        let below = resolved.subagents.iter().enumerate().map(|(at, subagent)| {
            let field = FieldPath::of(["subagents"]).then(at).then("execute");
            (field, subagent.spec(&resolved))
        });
        let all = std::iter::once((FieldPath::of(["execute"]), resolved.spec(""))).chain(below);
        all.filter_map(|(field, spec)| {
            let workspace = spec.workspace.of_commands()?.clone();
            let workspace = Some(workspace).filter(|own| own.kind == WorkspaceKind::Disk)?;
            Some((field, spec.execute.settings()?, workspace))
        })
        .collect()
    }
}

impl<'de> Deserialize<'de> for ExecuteRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "true, false or a table of settings";
        Ok(match SwitchOrTable::read(deserializer, expected)? {
            SwitchOrTable::Switch(on) => Self::Switch(on),
            SwitchOrTable::Table(settings) => Self::Settings(Box::new(settings)),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(agent: Value) -> Vec<String> {
        let agent: AgentDefinition = serde_json::from_value(agent).expect("a definition");
        let found = agent.check_execution(&agent.resolved());
        found.iter().map(ToString::to_string).collect()
    }

    fn with(execute: Value) -> Value {
        json!({"model": "a:b", "workspace": {"kind": "disk", "root": "/srv/files"}, "execute": execute})
    }

    #[test]
    fn commands_need_a_directory_of_the_disk_and_file_tools() {
        let composite = |default: Value| json!({"kind": "composite", "default": default, "routes": {"/m": {}}});
        let disk = json!({"kind": "disk", "root": "/srv/files"});
        for (workspace, is_possible) in [
            (json!({}), false),
            (json!({"kind": "store", "namespace": ["a"]}), false),
            (composite(json!({})), false),
            (composite(disk.clone()), true),
            (disk.clone(), true),
        ] {
            let found = problems(json!({"execute": true, "workspace": workspace}));
            assert_eq!(found.is_empty(), is_possible, "{workspace}: {found:?}");
            assert_eq!(problems(json!({"execute": false, "workspace": workspace})), [""; 0]);
        }
        assert_eq!(
            problems(json!({"execute": true, "files": "none", "workspace": disk})).len(),
            1
        );
    }

    #[test]
    fn every_setting_has_a_limit() {
        assert_eq!(
            problems(with(json!({"timeout_s": 5, "network": "host", "env": ["LANG"]}))),
            [""; 0]
        );
        for (settings, field) in [
            (json!({"timeout_s": 0}), "execute.timeout_s"),
            (json!({"timeout_s": 10, "max_timeout_s": 5}), "execute.timeout_s"),
            (json!({"max_timeout_s": 1_000_000}), "execute.max_timeout_s"),
            (json!({"max_output_bytes": 10}), "execute.max_output_bytes"),
            (json!({"memory_mb": 1}), "execute.memory_mb"),
            (json!({"max_processes": 0}), "execute.max_processes"),
            (json!({"cpu_s": 0}), "execute.cpu_s"),
            (json!({"max_file_mb": 0}), "execute.max_file_mb"),
            (json!({"min_free_mb": MOST_FREE_MB + 1}), "execute.min_free_mb"),
            (json!({"shell": "sh"}), "execute.shell"),
            (json!({"env": ["A=B"]}), "execute.env[0]"),
            (json!({"read_paths": ["/"]}), "execute.read_paths[0]"),
            (json!({"read_paths": ["/proc/1"]}), "execute.read_paths[0]"),
            (json!({"after_crash": "repeat"}), "execute.after_crash"),
        ] {
            let found = problems(with(settings.clone()));
            assert!(found.len() == 1 && found[0].starts_with(field), "{settings}: {found:?}");
        }
    }

    #[test]
    fn rules_for_files_that_commands_would_pass_by_are_refused() {
        let agent = |paths: Value, mode: &str| {
            json!({"execute": true, "permissions": [{"operations": ["read"], "paths": paths, "mode": mode}],
                "workspace": {"kind": "composite", "default": {"kind": "disk", "root": "/srv"}, "routes": {"/skills": {}}}})
        };
        assert_eq!(problems(agent(json!(["/secret/**"]), "allow")), [""; 0]);
        assert_eq!(problems(agent(json!(["/skills/**"]), "deny")), [""; 0]);
        for mode in ["deny", "interrupt"] {
            assert_eq!(problems(agent(json!(["/skills/**", "/secret/**"]), mode)).len(), 1);
            assert_eq!(problems(agent(json!(["/**"]), mode)).len(), 1);
        }
    }

    #[test]
    fn a_subagent_has_the_rule_of_its_parent_where_its_workspace_allows_it() {
        let agent: AgentDefinition = serde_json::from_value(json!({
            "model": "a:b", "execute": {"timeout_s": 7}, "workspace": {"kind": "disk", "root": "/srv"},
            "general_purpose_subagent": {"enabled": false},
            "subagents": [{"name": "same"}, {"name": "never", "execute": false}, {"name": "state", "workspace": {}}]
        }))
        .expect("a definition");
        assert_eq!(agent.check_execution(&agent.resolved()), []);
        let executing = agent.executing();
        let fields: Vec<String> = executing.iter().map(|(field, ..)| field.to_string()).collect();
        assert_eq!(fields, ["execute", "subagents[0].execute"]);
        assert!(executing.iter().all(|(_, settings, _)| settings.timeout_s == 7));
        let over_http: Vec<String> = agent
            .check_execution_of_client()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(over_http.len() == 1 && over_http[0].starts_with("execute: is for definitions in files"));
    }

    #[test]
    fn values_of_variables_are_read_with_the_configuration_and_never_shown() {
        let mut agent: AgentDefinition =
            serde_json::from_value(with(json!({"env": ["TOKEN", "NONE"]}))).expect("a definition");
        let variable = |name: &str| (name == "TOKEN").then(|| "hush".to_owned());
        let found = agent.settle_execution(Path::new("/"), &variable);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].field.to_string(), "execute.env[1]");
        let settings = agent.execute.settings().expect("settings");
        assert_eq!(settings.values.expose()["TOKEN"], "hush");
        assert!(!format!("{agent:?}").contains("hush"));
        assert!(!serde_json::to_string(&agent).expect("JSON").contains("hush"));
    }
}
