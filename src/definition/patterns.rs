//! The patterns of permissions: names of tools, texts of arguments and paths of agents.

use globset::{GlobBuilder, GlobMatcher};

use super::mcp::model_tool_name;

/// The maximum length of a pattern, in bytes.
const LONGEST_PATTERN: usize = 1_000;

/// Compiles a pattern.
///
/// # Errors
/// Returns the reason if the pattern is invalid.
pub(super) fn glob(pattern: &str, keeps_separators: bool) -> Result<GlobMatcher, String> {
    if pattern.is_empty() || pattern.len() > LONGEST_PATTERN {
        return Err(format!("it must have from 1 to {LONGEST_PATTERN} bytes"));
    }
    let glob = GlobBuilder::new(pattern).literal_separator(keeps_separators).build();
    glob.map(|glob| glob.compile_matcher())
        .map_err(|error| error.kind().to_string())
}

/// Compiles a pattern for the names of tools. Tools of an MCP server are `server/tool`.
///
/// # Errors
/// As [`glob`].
pub(super) fn tool_glob(pattern: &str) -> Result<GlobMatcher, String> {
    let name = match pattern.split_once('/') {
        Some((server, tool)) if is_pattern(pattern) => format!("{server}__{tool}"),
        Some(_) | None => model_tool_name(pattern),
    };
    glob(&name, false)
}

/// Returns whether a text is a pattern and no name.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '{', '\\'])
}
