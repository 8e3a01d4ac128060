//! `[secrets.NAME]`: secrets from the environment, from files and from programs, and the references to them.
//!
//! A setting refers to the secret `NAME` with `${secrets.NAME}`, and to an environment variable with `${NAME}` or
//! `${NAME:-otherwise}`. Only settings of the configuration are filled in, and never what clients send.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::program_output::{output_of, read_secrets};
use super::sections::seconds;
use super::{NamedEntries, variable};
use crate::definition::words::{is_word, timeout_problem};
use crate::definition::{Diagnostic, FieldPath, Headers};

/// The longest time for a program, in seconds.
const MAX_COMMAND_S: f64 = 600.0;

/// The beginning of a reference to a secret.
const PREFIX: &str = "secrets.";

/// `[secrets.NAME]`: a secret to which other settings refer with `${secrets.NAME}`: headers, `api_key` of providers, and
/// the secrets of webhooks. It has exactly one of `env`, `file` and `command`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SecretSection {
    /// The environment variable with the secret.
    pub env: Option<String>,
    /// The file with the secret, relative to the configuration file. White space around the secret does not count.
    pub file: Option<PathBuf>,
    /// The program that prints the secret, with its arguments. It is started without a shell when the configuration is
    /// read, if a setting refers to the secret. White space around the secret does not count.
    pub command: Vec<String>,
    /// The timeout of the program, in seconds.
    pub command_s: f64,
}

impl Default for SecretSection {
    fn default() -> Self {
        Self {
            env: None,
            file: None,
            command: vec![],
            command_s: 30.0,
        }
    }
}

impl SecretSection {
    /// Returns the invalid fields, each with the reason.
    fn check(&self) -> Vec<Diagnostic> {
        let mut findings = vec![];
        let mut add = |field: &str, reason: String| findings.push(Diagnostic::error(FieldPath::of([field]), reason));
        let sources = [self.env.is_some(), self.file.is_some(), !self.command.is_empty()];
        if sources.into_iter().filter(|given| *given).count() != 1 {
            add(
                "env",
                "must be given, or `file`, or `command`, and only one of them".to_owned(),
            );
        }
        if self.env.as_deref().is_some_and(|name| !is_word(name, 256, "")) {
            add("env", "must be the name of an environment variable".to_owned());
        }
        if self.command.first().is_some_and(|program| program.trim().is_empty()) {
            add("command", "must begin with the name of a program".to_owned());
        }
        if let Some(problem) = timeout_problem(self.command_s, MAX_COMMAND_S) {
            add("command_s", problem);
        }
        findings
    }

    fn timeout(&self) -> Duration {
        seconds(self.command_s)
    }

    /// Waits for the secret. The reason of an error has no part of it.
    fn wait(&self, beside: &Path, variable: VariableReader) -> Result<SecretString, String> {
        let section = self.clone();
        let beside = beside.to_path_buf();
        wait_for(async move { section.read(&beside, variable).await })
    }

    /// Reads the secret. The reason of an error has no part of it.
    async fn read(&self, beside: &Path, variable: VariableReader) -> Result<SecretString, String> {
        if let Some(name) = &self.env {
            let value = variable(name).ok_or_else(|| format!("the environment variable {name} is not set"))?;
            return trimmed(&value);
        }
        let text = match &self.file {
            Some(path) => {
                let file = tokio::fs::File::open(beside.join(path)).await;
                read_secrets(file.map_err(|error| error.to_string())?).await
            }
            None => output_of(&self.command, self.timeout()).await,
        };
        trimmed(&text?)
    }

    /// Checks that the secret can be read; `beside` is the folder of the configuration file.
    ///
    /// # Errors
    /// The reason, without any part of the secret.
    pub async fn check_readable(&self, beside: &Path) -> Result<(), String> {
        self.read(beside, variable).await.map(drop)
    }
}

fn trimmed(text: &str) -> Result<SecretString, String> {
    match text.trim() {
        "" => Err("it is empty".to_owned()),
        text => Ok(text.into()),
    }
}

/// Waits for a future in a thread of its own, since the configuration is read by code that may itself run in a runtime.
#[expect(clippy::disallowed_methods, reason = "the thread is joined here")]
fn wait_for<T: Send + 'static>(future: impl Future<Output = Result<T, String>> + Send + 'static) -> Result<T, String> {
    let waiting = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(future)
    });
    waiting
        .join()
        .unwrap_or_else(|_| Err("it could not be read".to_owned()))
}

/// Returns the value of an environment variable.
pub(super) type VariableReader = fn(&str) -> Option<String>;

/// The values that references stand for. A secret is read when a setting first refers to it.
pub(super) struct References<'a> {
    sections: &'a NamedEntries<SecretSection>,
    /// The folder of the configuration file.
    beside: &'a Path,
    variable: VariableReader,
    known: BTreeMap<String, Result<SecretString, String>>,
}

impl<'a> References<'a> {
    /// Creates the references to secrets of these sections; `beside` is the folder of the configuration file.
    pub(super) fn new(sections: &'a NamedEntries<SecretSection>, beside: &'a Path, variable: VariableReader) -> Self {
        Self {
            sections,
            beside,
            variable,
            known: BTreeMap::new(),
        }
    }

    /// Replaces the references in a text. A text with an error stays as it is.
    pub(super) fn fill(&mut self, field: FieldPath, text: &mut String, findings: &mut Vec<Diagnostic>) {
        match self.filled(text) {
            Ok(filled) => *text = filled,
            Err(problem) => findings.push(Diagnostic::error(field, problem)),
        }
    }

    /// Replaces the references in the values of headers.
    pub(super) fn fill_headers(&mut self, field: &FieldPath, headers: &mut Headers, findings: &mut Vec<Diagnostic>) {
        for (name, value) in &mut headers.0 {
            self.fill(field.then(name), value, findings);
        }
    }

    /// Replaces the references in a secret.
    pub(super) fn fill_secret(&mut self, field: FieldPath, secret: &mut SecretString, findings: &mut Vec<Diagnostic>) {
        let mut text = secret.expose_secret().to_owned();
        self.fill(field, &mut text, findings);
        *secret = text.into();
    }

    /// Returns the text with the values of the references in it.
    fn filled(&mut self, text: &str) -> Result<String, String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let Some((inside, after)) = after.split_once('}') else {
                break;
            };
            filled.push_str(before);
            match inside.strip_prefix(PREFIX) {
                Some(name) => filled.push_str(self.secret(name)?.expose_secret()),
                None => filled.push_str(&environment_value(inside, self.variable)?),
            }
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn secret(&mut self, name: &str) -> Result<&SecretString, String> {
        let Some(section) = self.sections.get(name) else {
            return Err(format!("there is no section `[secrets.{name}]`"));
        };
        let known = match self.known.entry(name.to_owned()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                let read = section.wait(self.beside, self.variable);
                free.insert(read.map_err(|reason| format!("the secret of `[secrets.{name}]` cannot be read: {reason}")))
            }
        };
        known.as_ref().map_err(String::clone)
    }
}

/// Returns the value of a variable, or what the reference says otherwise.
fn environment_value(reference: &str, variable: VariableReader) -> Result<String, String> {
    let (name, otherwise) = match reference.split_once(":-") {
        Some((name, otherwise)) => (name, Some(otherwise)),
        None => (reference, None),
    };
    let value = variable(name).or_else(|| otherwise.map(str::to_owned));
    value.ok_or_else(|| format!("the environment variable {name} is not set"))
}

/// Returns what is wrong with the sections of secrets.
pub(super) fn check_sections(sections: &NamedEntries<SecretSection>) -> Vec<Diagnostic> {
    let mut findings = vec![];
    for (name, section) in sections {
        let top = FieldPath::of(["secrets", name.as_str()]);
        if !is_word(name, 64, "") {
            let message = format!("the name of a secret, `{name}`, must be 1 to 64 letters, digits, `_` or `-`");
            findings.push(Diagnostic::error(top.clone(), message));
        }
        findings.extend(section.check().into_iter().map(|finding| finding.under(&top)));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_by_their_values() {
        let sections = NamedEntries::new();
        let variable = |name: &str| (name == "KEY").then(|| "s3cret".to_owned());
        let mut references = References::new(&sections, Path::new("."), variable);
        let mut fill = |text| references.filled(text);
        assert_eq!(fill("Bearer ${KEY}!"), Ok("Bearer s3cret!".to_owned()));
        assert_eq!(fill("${NONE:-x}${KEY} $KEY ${"), Ok("xs3cret $KEY ${".to_owned()));
        assert_eq!(
            fill("${NONE}"),
            Err("the environment variable NONE is not set".to_owned())
        );
    }

    #[test]
    fn a_program_is_run_once_and_only_if_its_secret_is_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let count = |name: &str| format!("echo run >> {name}; echo ' s3cret '");
        let section = |name: &str| SecretSection {
            command: ["sh", "-c", &count(&folder.path().join(name).display().to_string())]
                .map(str::to_owned)
                .to_vec(),
            ..SecretSection::default()
        };
        let names = ["used", "unused"];
        let sections = NamedEntries::from(names.map(|name| (name.to_owned(), section(name))));
        let mut references = References::new(&sections, folder.path(), |_| None);
        for _ in 0..2 {
            assert_eq!(references.filled("a ${secrets.used}"), Ok("a s3cret".to_owned()));
        }
        let runs = std::fs::read_to_string(folder.path().join("used")).expect("it has run");
        assert_eq!(runs, "run\n");
        assert!(!folder.path().join("unused").exists());
    }

    #[test]
    fn a_secret_that_cannot_be_read_is_reported_without_what_was_printed() {
        let section = |script: &str| SecretSection {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            command_s: 20.0,
            ..SecretSection::default()
        };
        let late = SecretSection {
            command_s: 0.05,
            ..section("echo s3cret; exec sleep 60")
        };
        let file = SecretSection {
            file: Some("no-such-file".into()),
            ..SecretSection::default()
        };
        let all = [
            ("fails", section("echo s3cret; exit 3"), "exit status: 3"),
            ("empty", section("echo"), "it is empty"),
            ("long", section("yes s3cret"), "more than 65536 bytes"),
            ("late", late, "did not end within 0.05 s"),
            ("file", file, "No such file"),
        ];
        let pairs = all
            .iter()
            .map(|(name, section, _)| ((*name).to_owned(), section.clone()));
        let sections = pairs.collect();
        let mut references = References::new(&sections, Path::new("."), |_| None);
        for (name, _, reason) in &all {
            let error = references.filled(&format!("${{secrets.{name}}}")).expect_err(reason);
            assert!(
                error.contains(reason) && error.contains(&format!("[secrets.{name}]")),
                "{error}"
            );
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
