//! Services of several tools, which describe their tools themselves.

#[cfg(test)]
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::diagnostic::{Diagnostic, FieldPath};
use super::headers::check_headers;
use super::mcp::{filter_problems, server_name_problem};
use super::read_access::check_read_access;
use super::tool::{AfterCrash, MOST_RETRIES, OnError};
use super::words::{LONGEST_TIMEOUT_S, base_address_problem, timeout_problem};
use crate::domain::headers::Headers;
use crate::domain::read_access::ReadAccess;

/// The shortest pause between two looks at the list of tools, in seconds. Each is a request.
const SHORTEST_REFRESH_S: f64 = 1.0;
/// The longest pause between two looks at the list of tools, in seconds.
const LONGEST_REFRESH_S: f64 = 86_400.0;

/// A service of tools behind HTTP. It says itself which tools it has, at `URL/tools`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ToolServerDefinition {
    /// The address of the service. Its tools are listed at `URL/tools` and called at `URL/tools/NAME`.
    pub url: String,
    /// Headers sent with every request. They may hold secrets and are never printed.
    #[serde(skip_serializing_if = "Headers::is_empty")]
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub headers: Headers,
    /// The tools that are offered, as names or patterns; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    /// The tools that are not offered, as names or patterns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled_tools: Vec<String>,
    /// Seconds to wait for the result of a call. When absent, what the service says for the tool, or 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// Seconds to wait for the list of tools.
    pub start_timeout_s: f64,
    /// Seconds between two looks at the list of tools, which is transferred only when it has changed; at least 1.
    pub refresh_s: f64,
    /// The maximum number of times that a call is repeated if the service cannot be reached or is busy (status 429, 502,
    /// 503 or 504). At most 10; all attempts together take no longer than `timeout_s`.
    pub max_retries: u32,
    /// The handling of a call that was started before a crash. When absent, what the service says for the tool, or `ask`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_crash: Option<AfterCrash>,
    /// The effect of an error on the run. When absent, what the service says for the tool, or `report`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    /// The parts of its run that each call may read, with a token of its own: fields of the state, files and namespaces of
    /// the Store. Nothing when absent.
    #[serde(skip_serializing_if = "ReadAccess::is_empty")]
    pub read_access: ReadAccess,
}

impl Default for ToolServerDefinition {
    fn default() -> Self {
        Self {
            url: String::new(),
            headers: Headers::default(),
            allowed_tools: None,
            disabled_tools: vec![],
            timeout_s: None,
            start_timeout_s: 10.0,
            refresh_s: 30.0,
            max_retries: 0,
            after_crash: None,
            on_error: None,
            read_access: ReadAccess::default(),
        }
    }
}

impl fmt::Debug for ToolServerDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolServerDefinition")
            .field("after_crash", &self.after_crash)
            .field("on_error", &self.on_error)
            .finish_non_exhaustive()
    }
}

impl ToolServerDefinition {
    /// Checks the definition. The fields of the diagnostics are relative to it.
    pub fn check(&self, name: &str) -> Vec<Diagnostic> {
        let top = FieldPath::default();
        let mut findings = vec![];
        let mut wrong = |field: FieldPath, message: String| findings.push(Diagnostic::error(field, message));
        if let Some(problem) = server_name_problem(name) {
            wrong(top.clone(), problem);
        }
        if self.url.is_empty() {
            wrong(
                top.then("url"),
                "must be given: the address of the service, below which it has `/tools`".to_owned(),
            );
        } else if let Some(problem) = base_address_problem(&self.url, "the names of tools are") {
            wrong(top.then("url"), problem);
        }
        for (field, seconds) in [
            ("timeout_s", self.timeout_s),
            ("start_timeout_s", Some(self.start_timeout_s)),
        ] {
            if let Some(problem) = seconds.and_then(|seconds| timeout_problem(seconds, LONGEST_TIMEOUT_S)) {
                wrong(top.then(field), problem);
            }
        }
        if !(SHORTEST_REFRESH_S..=LONGEST_REFRESH_S).contains(&self.refresh_s) {
            wrong(
                top.then("refresh_s"),
                format!("must be from {SHORTEST_REFRESH_S} to {LONGEST_REFRESH_S} seconds"),
            );
        }
        if self.max_retries > MOST_RETRIES {
            wrong(top.then("max_retries"), format!("must be at most {MOST_RETRIES}"));
        }
        findings.extend(check_headers(&top.then("headers"), &self.headers));
        findings.extend(check_read_access(&top.then("read_access"), &self.read_access));
        findings.extend(filter_problems(self.allowed_tools.as_deref(), &self.disabled_tools));
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_service_is_said_with_its_field() {
        let findings = |server: &ToolServerDefinition, name: &str| -> Vec<String> {
            let found = server.check(name);
            found.iter().map(|finding| finding.field.to_string()).collect()
        };
        let right = ToolServerDefinition {
            url: "http://127.0.0.1:9400".to_owned(),
            ..Default::default()
        };
        assert_eq!(findings(&right, "crm"), [""; 0]);
        let wrong = ToolServerDefinition {
            url: "http://127.0.0.1:9400/?key=1".to_owned(),
            timeout_s: Some(0.0),
            refresh_s: f64::NAN,
            max_retries: 11,
            disabled_tools: vec!["[".to_owned()],
            ..Default::default()
        };
        assert_eq!(
            findings(&wrong, "a__b"),
            ["", "url", "timeout_s", "refresh_s", "max_retries", "disabled_tools[0]"]
        );
        assert_eq!(findings(&ToolServerDefinition::default(), "crm"), ["url"]);
    }
}
