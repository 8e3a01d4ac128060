//! The lists of the tools of a server that are offered.

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};

use super::names::model_name;
use crate::definition::diagnostic::{Diagnostic, FieldPath};

/// The longest pattern of names of tools, in bytes.
const LONGEST_PATTERN: usize = 256;

/// The filter of a server's tools.
#[derive(Debug, Clone)]
pub struct McpFilter {
    allowed: Option<GlobSet>,
    disabled: GlobSet,
}

impl McpFilter {
    /// Returns the filter of the lists of a definition. Invalid patterns were refused when the definition was read.
    pub fn of(allowed_tools: Option<&[String]>, disabled_tools: &[String]) -> Self {
        let set = |patterns: &[String]| {
            let mut set = GlobSetBuilder::new();
            for glob in patterns.iter().filter_map(|text| pattern(text).ok()) {
                set.add(glob);
            }
            set.build().unwrap_or_default()
        };
        Self {
            allowed: allowed_tools.map(set),
            disabled: set(disabled_tools),
        }
    }

    /// Returns whether the filter allows the tool of this name. Patterns may name it with its server, too.
    pub fn allows(&self, server: &str, tool: &str) -> bool {
        let names = [tool.to_owned(), format!("{server}_{tool}"), model_name(server, tool)];
        let is_in = |set: &GlobSet| names.iter().any(|name| set.is_match(name));
        self.allowed.as_ref().is_none_or(is_in) && !is_in(&self.disabled)
    }
}

/// Compiles a pattern of names: `*` is any text, `?` a character, `[…]` one of some.
fn pattern(text: &str) -> Result<Glob, String> {
    let glob = GlobBuilder::new(text)
        .backslash_escape(false)
        .build()
        .ok()
        .filter(|_| text.len() <= LONGEST_PATTERN);
    glob.filter(|_| !text.trim().is_empty())
        .ok_or_else(|| format!("`{text}` is neither a name nor a pattern"))
}

/// Checks the lists of tools of a server. The fields of the diagnostics are relative to its definition.
pub(in crate::definition) fn filter_problems(
    allowed_tools: Option<&[String]>,
    disabled_tools: &[String],
) -> Vec<Diagnostic> {
    let top = FieldPath::default();
    let mut findings = vec![];
    let allowed = allowed_tools.unwrap_or_default();
    for (field, patterns) in [("allowed_tools", allowed), ("disabled_tools", disabled_tools)] {
        let wrong = patterns
            .iter()
            .enumerate()
            .filter_map(|(at, text)| Some((at, pattern(text).err()?)));
        findings.extend(wrong.map(|(at, why)| Diagnostic::error(top.then(field).then(at), why)));
    }
    if allowed_tools.is_some() && !disabled_tools.is_empty() {
        findings.push(Diagnostic::error(
            top.then("disabled_tools"),
            "goes without `allowed_tools` only",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::mcp::McpServerDefinition;

    #[test]
    fn a_server_may_have_fewer_tools_than_it_tells() {
        let admitted = |server: McpServerDefinition| {
            let allowed = server.allowed_tools.as_deref();
            assert_eq!(filter_problems(allowed, &server.disabled_tools), []);
            let filter = McpFilter::of(allowed, &server.disabled_tools);
            ["read_file", "read_dir", "write"]
                .into_iter()
                .filter(|tool| filter.allows("fs", tool))
                .collect::<Vec<_>>()
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        assert_eq!(admitted(McpServerDefinition::default()).len(), 3);
        let allowed = |list| McpServerDefinition {
            allowed_tools: Some(names(list)),
            ..Default::default()
        };
        assert_eq!(admitted(allowed(&["read_*"])), ["read_file", "read_dir"]);
        assert_eq!(admitted(allowed(&["fs_write", "fs__read_dir"])), ["read_dir", "write"]);
        assert_eq!(admitted(allowed(&[])), [""; 0]);
        let disabled = McpServerDefinition {
            disabled_tools: names(&["read_?i*"]),
            ..Default::default()
        };
        assert_eq!(admitted(disabled), ["write"]);
        let wrong = McpServerDefinition {
            disabled_tools: names(&["[", ""]),
            ..allowed(&["a"])
        };
        let fields: Vec<String> = filter_problems(wrong.allowed_tools.as_deref(), &wrong.disabled_tools)
            .iter()
            .map(|finding| finding.field.to_string())
            .collect();
        assert_eq!(fields, ["disabled_tools[0]", "disabled_tools[1]", "disabled_tools"]);
    }
}
