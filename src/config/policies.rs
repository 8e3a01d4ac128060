//! The files of access policies that `[auth.policies]` names.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::Glob;
use serde::Deserialize;

use super::document::position;
use super::problem::Problem;
use crate::cedar::{self, MAX_FILE_BYTES, PolicyFile, PolicyMistake};
use crate::definition::{Diagnostic, FieldPath, Severity};
use crate::domain::ruling::AccessPolicies;

/// The maximum number of files of policies.
const MAX_FILES: usize = 64;

/// The error of a program that was built without the cargo feature.
const NOT_BUILT_IN: &str = "need the cargo feature `policies`, without which this program was built: build it with \
    `--features policies`, or remove the setting";

/// `[auth.policies]`: access policies in the language Cedar, which are read when the server starts. They need a build with
/// the cargo feature `policies`, which builds have by default.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PoliciesSection {
    /// The files, relative to the configuration file. `*` in the name of a file stands for any characters.
    pub files: Vec<String>,
    /// The policies in them.
    #[serde(skip)]
    #[cfg_attr(test, schemars(skip))]
    pub loaded: Option<Arc<dyn AccessPolicies>>,
}

impl PoliciesSection {
    /// Reads the files. The section is not used if there are errors.
    pub(super) fn load(&mut self, beside: &Path) -> PolicyFindings {
        self.load_if(beside, cedar::IS_BUILT_IN)
    }

    /// Reads the files if this build has access policies.
    pub(super) fn load_if(&mut self, beside: &Path, is_built_in: bool) -> PolicyFindings {
        let field = FieldPath::of(["auth", "policies", "files"]);
        let mut findings = PolicyFindings::default();
        if self.files.is_empty() {
            return findings;
        }
        if !is_built_in {
            findings.of_settings.push(Diagnostic::error(field, NOT_BUILT_IN));
            return findings;
        }
        let mut paths = vec![];
        for (at, pattern) in self.files.iter().enumerate() {
            match find(beside, pattern) {
                Ok(found) => paths.extend(found.into_iter().map(|path| FoundFile { at, path })),
                Err(reason) => findings.of_settings.push(Diagnostic::error(field.then(at), reason)),
            }
        }
        if paths.len() > MAX_FILES {
            let message = format!("name {} files; at most {MAX_FILES} are allowed", paths.len());
            findings.of_settings.push(Diagnostic::error(field, message));
            return findings;
        }
        let mut files = vec![];
        for found in paths {
            match read_file(beside, &found.path) {
                Ok(file) => files.push(file),
                Err(reason) => findings
                    .of_settings
                    .push(Diagnostic::error(field.then(found.at), reason)),
            }
        }
        if !findings.of_settings.is_empty() {
            return findings;
        }
        let mistakes = match cedar::read(&files) {
            Ok(read) => {
                self.loaded = Some(read.policies);
                read.warnings
            }
            Err(mistakes) => mistakes,
        };
        findings.in_files = mistakes.into_iter().map(|mistake| problem(mistake, &files)).collect();
        findings
    }
}

/// A file that a pattern names.
struct FoundFile {
    /// The position of the pattern.
    at: usize,
    path: PathBuf,
}

/// The mistakes in the policies.
#[derive(Default)]
pub(super) struct PolicyFindings {
    /// In the section.
    pub(super) of_settings: Vec<Diagnostic>,
    /// In the files.
    pub(super) in_files: Vec<Problem>,
}

/// Returns the files that a pattern names, in the order of their names.
fn find(beside: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let path = beside.join(pattern);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !name.contains('*') {
        return Ok(vec![path]);
    }
    let matcher = Glob::new(name)
        .map_err(|error| format!("is no pattern: {error}"))?
        .compile_matcher();
    let folder = path.parent().unwrap_or(beside);
    let entries = std::fs::read_dir(folder).map_err(|error| format!("the folder cannot be read: {error}"))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| matcher.is_match(name)))
        .collect();
    found.sort();
    if found.is_empty() {
        return Err("matches no file".to_owned());
    }
    Ok(found)
}

fn read_file(beside: &Path, path: &Path) -> Result<PolicyFile, String> {
    let name = path.strip_prefix(beside).unwrap_or(path).display().to_string();
    let unreadable = |error: std::io::Error| format!("`{name}` cannot be read: {error}");
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(format!("`{name}` is not a file"));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    // The file may grow meanwhile.
    let most = MAX_FILE_BYTES as u64 + 1;
    file.take(most).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() > MAX_FILE_BYTES {
        return Err(format!("`{name}` is larger than {MAX_FILE_BYTES} bytes"));
    }
    Ok(PolicyFile { name, text })
}

fn problem(mistake: PolicyMistake, files: &[PolicyFile]) -> Problem {
    let text = files
        .iter()
        .find(|file| file.name == mistake.file)
        .map(|file| file.text.as_str());
    let place = text.zip(mistake.offset).map(|(text, offset)| position(text, offset));
    let severity = if mistake.is_warning {
        Severity::Warning
    } else {
        Severity::Error
    };
    Problem {
        severity,
        ..Problem::in_file(mistake.file, mistake.message).at(place)
    }
}
