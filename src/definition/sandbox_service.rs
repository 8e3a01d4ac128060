//! Sandbox services, which keep files and run commands of agents apart from the server.

#[cfg(test)]
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::diagnostic::{Diagnostic, FieldPath};
use super::headers::check_headers;
use super::words::{LONGEST_TIMEOUT_S, base_address_problem, is_word, timeout_problem};
use crate::domain::headers::Headers;

/// A sandbox service behind HTTP. Workspaces of the kind `sandbox` name it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SandboxServiceDefinition {
    /// The address of the service. Its sandboxes are at `URL/sandboxes/ID`.
    pub url: String,
    /// Headers sent with every request. They may hold secrets and are never printed.
    #[serde(skip_serializing_if = "Headers::is_empty")]
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub headers: Headers,
    /// Seconds to wait for the answer to a request, except the one that runs a command.
    pub timeout_s: f64,
}

impl Default for SandboxServiceDefinition {
    fn default() -> Self {
        Self {
            url: String::new(),
            headers: Headers::default(),
            timeout_s: 30.0,
        }
    }
}

impl fmt::Debug for SandboxServiceDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxServiceDefinition")
            .field("timeout_s", &self.timeout_s)
            .finish_non_exhaustive()
    }
}

impl SandboxServiceDefinition {
    /// Checks the definition. The fields of the diagnostics are relative to it.
    pub fn check(&self, name: &str) -> Vec<Diagnostic> {
        let top = FieldPath::default();
        let mut findings = vec![];
        let mut wrong = |field: FieldPath, message: String| findings.push(Diagnostic::error(field, message));
        if !is_word(name, 64, "") {
            let message =
                format!("the name of a sandbox service, `{name}`, must be 1 to 64 letters, digits, `_` or `-`");
            wrong(top.clone(), message);
        }
        if self.url.is_empty() {
            wrong(
                top.then("url"),
                "must be given: the address of the service, below which it has `/sandboxes`".to_owned(),
            );
        } else if let Some(problem) = base_address_problem(&self.url, "the sandbox is") {
            wrong(top.then("url"), problem);
        }
        if let Some(problem) = timeout_problem(self.timeout_s, LONGEST_TIMEOUT_S) {
            wrong(top.then("timeout_s"), problem);
        }
        findings.extend(check_headers(&top.then("headers"), &self.headers));
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_service_needs_an_address_and_a_time_that_ends() {
        let findings = |service: &SandboxServiceDefinition, name: &str| -> Vec<String> {
            let found = service.check(name);
            found.iter().map(|finding| finding.field.to_string()).collect()
        };
        let right = SandboxServiceDefinition {
            url: "https://sandboxes.example.org/v1".to_owned(),
            ..SandboxServiceDefinition::default()
        };
        assert_eq!(findings(&right, "lab"), [""; 0]);
        let wrong = SandboxServiceDefinition {
            url: "https://sandboxes.example.org/?v=1".to_owned(),
            timeout_s: 0.0,
            headers: Headers([("bad name".to_owned(), "x".to_owned())].into()),
        };
        assert_eq!(
            findings(&wrong, "a b"),
            ["", "url", "timeout_s", "headers.\"bad name\""]
        );
        assert_eq!(findings(&SandboxServiceDefinition::default(), "lab"), ["url"]);
    }
}
