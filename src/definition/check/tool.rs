//! Checks the definition of a tool.

use super::{Check, ValidationContext};
use crate::definition::builtins::is_policy_tool;
use crate::definition::diagnostic::{Diagnostic, FieldPath, suggestion};
use crate::definition::read_access::check_read_access;
use crate::definition::words::{address_problem, is_word, timeout_problem};
use crate::definition::{BUILT_IN, ToolDefinition, ToolKind, check_headers};

/// The maximum of `max_retries`.
pub const MOST_RETRIES: u32 = 10;

/// The longest time-out of a tool, in seconds.
const LONGEST_TIMEOUT_S: f64 = 86_400.0;

/// Checks the definition of a tool. The fields of the findings are relative to it.
pub fn check_tool(name: &str, tool: &ToolDefinition) -> Vec<Diagnostic> {
    let context = ValidationContext::default();
    let mut check = Check::new(&context);
    let top = FieldPath::default();
    check
        .findings
        .extend(tool_name_problem(name).map(|message| Diagnostic::error(top.clone(), message)));
    match tool.kind {
        ToolKind::Http => check.remote_tool(tool),
        ToolKind::Builtin => check.built_in_tool(tool),
    }
    if tool.max_retries > MOST_RETRIES {
        check.error(&top.then("max_retries"), format!("must be at most {MOST_RETRIES}"));
    } else if tool.max_retries > 0 && tool.kind != ToolKind::Http {
        check.error(&top.then("max_retries"), "goes with `kind = \"http\"` only");
    }
    if !tool.read_access.is_empty() && tool.kind != ToolKind::Http {
        check.error(&top.then("read_access"), "goes with `kind = \"http\"` only");
    }
    check
        .findings
        .extend(check_read_access(&top.then("read_access"), &tool.read_access));
    if let Some(problem) = timeout_problem(tool.timeout_s, LONGEST_TIMEOUT_S) {
        check.error(&top.then("timeout_s"), problem);
    }
    check.findings
}

/// Returns the reason why no declared tool can have this name.
pub fn tool_name_problem(name: &str) -> Option<String> {
    if !is_word(name, 64, "") {
        return Some(format!(
            "the tool name `{name}` must be 1 to 64 of A-Z, a-z, 0-9, `_` and `-`"
        ));
    }
    is_policy_tool(name).then(|| format!("the name `{name}` belongs to a tool of the server; choose another"))
}

impl Check<'_> {
    fn remote_tool(&mut self, tool: &ToolDefinition) {
        let top = FieldPath::default();
        self.required(&top.then("description"), &tool.description, "the model chooses by it");
        if tool.url.is_empty() {
            self.error(&top.then("url"), "must be given: the address that is called");
        } else if let Some(problem) = address_problem(&tool.url) {
            self.error(&top.then("url"), problem);
        }
        if tool.builtin.is_some() {
            self.error(&top.then("builtin"), "goes with `kind = \"builtin\"` only");
        }
        if tool.parameters.is_null() {
            self.error(
                &top.then("parameters"),
                "must be given: the JSON Schema of the arguments",
            );
        } else {
            self.schema(&top.then("parameters"), &tool.parameters);
        }
        self.findings.extend(check_headers(&top.then("headers"), &tool.headers));
    }

    fn built_in_tool(&mut self, tool: &ToolDefinition) {
        let top = FieldPath::default();
        match tool.builtin.as_deref() {
            None => self.error(
                &top.then("builtin"),
                format!("must be given: one of {}", BUILT_IN.join(", ")),
            ),
            Some(name) if !BUILT_IN.contains(&name) => {
                let known = suggestion(name, BUILT_IN, "there are");
                self.error(
                    &top.then("builtin"),
                    format!("there is no built-in tool `{name}`; {known}"),
                );
            }
            Some(_) => {}
        }
        if !tool.url.is_empty() {
            self.error(&top.then("url"), "goes with `kind = \"http\"` only");
        }
        if !tool.headers.is_empty() {
            self.error(&top.then("headers"), "goes with `kind = \"http\"` only");
        }
        if !tool.parameters.is_null() {
            self.schema(&top.then("parameters"), &tool.parameters);
        }
    }
}
