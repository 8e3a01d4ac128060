//! The setting of the tool `execute`: whether an agent may run commands in its workspace, and what a command may use.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize};

use super::diagnostic::{Diagnostic, FieldPath, errors_of_given};
use super::tool::AfterCrash;
use super::untagged::{self, SwitchOrTable};
use super::words::is_word;
use super::workspace::WorkspaceDefinition;

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

    pub(super) fn check(&self, field: &FieldPath) -> Vec<Diagnostic> {
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
    pub(super) fn check_for_service(&self, field: &FieldPath) -> Vec<Diagnostic> {
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
        errors_of_given(field, changed, message)
    }

    /// Reads the values of variables, and makes paths absolute. Returns the problems, with their fields.
    pub(super) fn settle(
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

impl<'de> Deserialize<'de> for ExecuteRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "true, false or a table of settings";
        Ok(match untagged::read(deserializer, expected)? {
            SwitchOrTable::Switch(on) => Self::Switch(on),
            SwitchOrTable::Table(settings) => Self::Settings(Box::new(settings)),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(settings: Value) -> Vec<String> {
        let rule: ExecuteRule = serde_json::from_value(settings).expect("a rule");
        let found = rule.check(&FieldPath::of(["execute"]));
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_setting_has_a_limit() {
        assert_eq!(
            problems(json!({"timeout_s": 5, "network": "host", "env": ["LANG"]})),
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
            let found = problems(settings.clone());
            assert!(found.len() == 1 && found[0].starts_with(field), "{settings}: {found:?}");
        }
    }
}
