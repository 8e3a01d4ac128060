//! The `[encryption]` section of the configuration file, and its validation.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::sections::seconds;
use crate::definition::words::timeout_problem;

/// The longest time for the command, in seconds.
const MAX_COMMAND_S: f64 = 600.0;

/// `[encryption]`: the keys under which values in the database are encrypted. Without this section they are not.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct EncryptionSection {
    /// The file with the keys, relative to the configuration file: one on each line, as `NAME:KEY`, where the key is 32
    /// random bytes in base64. The first one encrypts; all decrypt.
    pub key_file: Option<PathBuf>,
    /// The program that prints the keys in the same form, with its arguments. It is started without a shell.
    pub key_command: Vec<String>,
    /// The timeout of the program, in seconds.
    pub key_command_s: f64,
}

impl Default for EncryptionSection {
    fn default() -> Self {
        Self {
            key_file: None,
            key_command: vec![],
            key_command_s: 30.0,
        }
    }
}

impl EncryptionSection {
    /// Makes the path of the file relative to the folder of the configuration file.
    pub(super) fn settle_file(&mut self, beside: &Path) {
        self.key_file = self.key_file.take().map(|path| beside.join(path));
    }

    /// Returns [`EncryptionSection::key_command_s`] as a duration.
    pub fn timeout(&self) -> Duration {
        seconds(self.key_command_s)
    }

    /// Returns the invalid fields, each with the reason.
    pub(super) fn problems(&self) -> Vec<(Vec<&str>, String)> {
        let mut problems = vec![];
        let mut add = |field: &'static str, reason: String| problems.push((vec![field], reason));
        if self.key_file.is_some() != self.key_command.is_empty() {
            let reason =
                "needs a `key_file` or a `key_command`, and not both: the keys under which values are encrypted";
            add("key_file", reason.to_owned());
        }
        if self
            .key_command
            .first()
            .is_some_and(|program| program.trim().is_empty())
        {
            add("key_command", "must begin with the name of a program".to_owned());
        }
        if let Some(problem) = timeout_problem(self.key_command_s, MAX_COMMAND_S) {
            add("key_command_s", problem);
        }
        problems
    }
}
