//! The sources of an agent's skills and memory.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize};

use super::bundled_files::{self, FOLDER, is_relative};
use super::diagnostic::{Diagnostic, FieldPath, check_length};
use super::untagged::{self, TextOrTable};
use crate::domain::path::{below, normalise};

/// The maximum number of sources of one kind.
const MOST: usize = 32;
/// The maximum length of a path, in bytes.
const LONGEST: usize = 512;
/// The maximum length of a label, in characters.
const LONGEST_LABEL: usize = 64;

/// A folder of skills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SkillSource {
    /// The path.
    Path(String),
    /// The path, and a label for the model.
    Labelled(LabelledSource),
}

/// A folder of skills with a name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LabelledSource {
    /// The path.
    pub path: String,
    /// The label for the model.
    pub label: String,
}

impl SkillSource {
    /// Returns the path as it was written.
    pub fn path(&self) -> &str {
        match self {
            Self::Path(path) => path,
            Self::Labelled(labelled) => &labelled.path,
        }
    }

    /// Returns the path at which agents see it.
    pub fn agent_path(&self) -> String {
        bundled_files::agent_path(self.path())
    }

    /// Returns the label for the model: the given one, or the last part of the path.
    pub fn label(&self) -> String {
        match self {
            Self::Labelled(labelled) => labelled.label.clone(),
            Self::Path(path) => path
                .split('/')
                .rfind(|part| !part.is_empty() && *part != ".")
                .unwrap_or("skills")
                .to_owned(),
        }
    }
}

impl<'de> Deserialize<'de> for SkillSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a path or a table with `path` and `label`";
        Ok(match untagged::read(deserializer, expected)? {
            TextOrTable::Text(path) => Self::Path(path),
            TextOrTable::Table(labelled) => Self::Labelled(labelled),
        })
    }
}

/// Checks the sources of skills in `field`.
pub(super) fn check_skills(field: &FieldPath, sources: &[SkillSource]) -> Vec<Diagnostic> {
    let mut findings = check_paths(field, sources.iter().map(SkillSource::path));
    for (at, source) in sources.iter().enumerate() {
        let SkillSource::Labelled(LabelledSource { label, .. }) = source else {
            continue;
        };
        if label.trim().is_empty() || label.chars().count() > LONGEST_LABEL || label.chars().any(char::is_control) {
            let message = format!("must be a line of 1 to {LONGEST_LABEL} characters");
            findings.push(Diagnostic::error(field.then(at).then("label"), message));
        }
    }
    findings
}

/// Checks a list of files or folders in `field`.
pub(super) fn check_paths<'a>(field: &FieldPath, paths: impl ExactSizeIterator<Item = &'a str>) -> Vec<Diagnostic> {
    let mut findings: Vec<Diagnostic> = check_length(field, paths.len(), MOST).into_iter().collect();
    let mut seen = BTreeSet::new();
    for (at, path) in paths.enumerate() {
        let place = field.then(at);
        if let Some(problem) = source_problem(path) {
            findings.push(Diagnostic::error(place, problem));
        } else if !seen.insert(bundled_files::agent_path(path)) {
            findings.push(Diagnostic::warning(place, format!("`{path}` is listed twice")));
        }
    }
    findings
}

/// Returns the reason why a path cannot be a source of skills or memory.
pub fn source_problem(path: &str) -> Option<String> {
    if path.trim().is_empty() {
        return Some("must not be blank".to_owned());
    }
    if path.len() > LONGEST {
        return Some(format!("must have at most {LONGEST} bytes"));
    }
    let clean = match normalise(path) {
        Ok(clean) => clean,
        Err(why) => return Some(format!("`{path}` is not allowed: {why}")),
    };
    if is_relative(path) && clean == "/" {
        return Some(format!(
            "`{path}` must name something within the folder of the definition"
        ));
    }
    let reserved = !is_relative(path) && (clean == FOLDER || below(&clean, FOLDER).is_some());
    reserved.then(|| format!("`{path}` must not lie in {FOLDER}, which belongs to the server"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sources(value: serde_json::Value) -> Vec<SkillSource> {
        serde_json::from_value(value).expect("sources")
    }

    #[test]
    fn a_source_has_a_label_given_or_not() {
        let sources = sources(json!(["skills/", "/skills/team", {"path": "own", "label": "Mine"}]));
        let labels: Vec<String> = sources.iter().map(SkillSource::label).collect();
        assert_eq!(labels, ["skills", "team", "Mine"]);
        assert_eq!(sources[2].agent_path(), "/.agent/own");
    }

    #[test]
    fn paths_that_lead_out_or_mean_nothing_are_refused() {
        for path in [
            "",
            " ",
            "../x",
            "a/../../b",
            "~/skills",
            "C:\\skills",
            ".",
            "/.agent",
            "/.agent/x",
        ] {
            let findings = check_skills(&FieldPath::of(["skills"]), &[SkillSource::Path(path.to_owned())]);
            assert_eq!(findings.len(), 1, "{path}: {findings:?}");
            assert_eq!(findings[0].field.to_string(), "skills[0]");
        }
        let unlabelled = sources(json!([{"path": "/a"}]));
        assert_eq!(
            check_skills(&FieldPath::of(["skills"]), &unlabelled)[0]
                .field
                .to_string(),
            "skills[0].label"
        );
    }

    #[test]
    fn too_many_sources_are_refused_and_twins_told() {
        let many: Vec<String> = (0..=MOST).map(|at| format!("/s{at}")).collect();
        assert_eq!(
            check_paths(&FieldPath::of(["memory"]), many.iter().map(String::as_str)).len(),
            1
        );
        let twins = check_paths(&FieldPath::of(["memory"]), ["/a/", "/a"].into_iter());
        assert!(twins[0].message.contains("twice"));
    }
}
