//! The names of the tools of servers: in definitions, and under which models know them.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use crate::definition::diagnostic::suggestion;
use crate::domain::text_limits::first_chars;

/// The longest name of a tool that every provider takes.
pub(in crate::definition) const LONGEST_NAME: usize = 64;
/// The part of a digest that is in the name of a tool, in bytes.
const DIGEST_BYTES: usize = 4;

/// A reference to one tool of a server, or to all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct McpReference<'a> {
    /// The server.
    pub server: &'a str,
    /// The tool; `None` for all.
    pub tool: Option<&'a str>,
}

impl<'a> McpReference<'a> {
    /// Reads `server/tool` and `server/*`; `None` for the name of another tool.
    pub fn read(name: &'a str) -> Option<Self> {
        let (server, tool) = name.split_once('/')?;
        Some(Self {
            server,
            tool: (tool != "*").then_some(tool),
        })
    }

    /// Returns the name under which models know the tool; for all tools of a server the prefix of their names, and `*`.
    pub fn model_name(self) -> String {
        match self.tool {
            Some(tool) => model_name(self.server, tool),
            None => format!("{}__*", self.server),
        }
    }

    /// Returns the problem of a reference, given the servers that exist.
    pub(in crate::definition) fn problem(self, servers: &BTreeSet<String>) -> Option<String> {
        if self.tool == Some("") {
            return Some(format!(
                "must be `{0}/tool`, or `{0}/*` for all tools of the server",
                self.server
            ));
        }
        let known = || suggestion(self.server, servers.iter().map(String::as_str), "there are");
        (!servers.contains(self.server)).then(|| format!("there is no server `{}` of tools; {}", self.server, known()))
    }
}

/// Returns the name under which models know a tool of an MCP server: `server__tool`. Characters that providers refuse
/// become `_`, and then, or if it is too long, a part of a digest of the full name tells it from others.
pub fn model_name(server: &str, tool: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') {
            c
        } else {
            '_'
        }
    };
    let name = format!("{server}__{}", tool.chars().map(plain).collect::<String>());
    if name.len() <= LONGEST_NAME && name.ends_with(tool) {
        return name;
    }
    let digest = Sha256::digest(format!("{server}/{tool}"));
    let mark = hex::encode(&digest[..DIGEST_BYTES]);
    let kept = first_chars(&name, LONGEST_NAME - mark.len() - 1);
    format!("{kept}_{mark}")
}

/// Returns the beginning of a [`model_name`] that ends with a part of a digest, which is without some characters of the name
/// that the server gave, and without its end if the whole has [`LONGEST_NAME`]; `None` for another name.
pub(in crate::definition) fn before_digest(name: &str) -> Option<&str> {
    let (kept, mark) = name.rsplit_once('_')?;
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let has_mark = mark.len() == 2 * DIGEST_BYTES && mark.bytes().all(is_hex);
    (has_mark && kept.contains("__")).then_some(kept)
}

/// Returns the name under which models know the tool of this name in a definition.
pub fn model_tool_name(name: &str) -> String {
    McpReference::read(name).map_or_else(|| name.to_owned(), McpReference::model_name)
}

/// Tools by the names under which models know them: single ones, and all of a server.
#[derive(Debug, Clone, Default)]
pub struct ToolNames {
    single: BTreeSet<String>,
    /// The prefixes of the names of all tools of a server.
    starts: BTreeSet<String>,
}

impl ToolNames {
    /// Collects the tools of these names in a definition.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a String>) -> Self {
        let mut all = Self::default();
        for name in names {
            match McpReference::read(name) {
                Some(McpReference { server, tool: None }) => all.starts.insert(format!("{server}__")),
                Some(_) | None => all.single.insert(model_tool_name(name)),
            };
        }
        all
    }

    /// Returns whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.single.is_empty() && self.starts.is_empty()
    }

    /// Returns whether it contains the tool that models know under this name.
    pub fn contains(&self, name: &str) -> bool {
        self.single.contains(name) || self.starts.iter().any(|start| name.starts_with(start))
    }

    /// Returns whether a tool may be in both sets.
    pub fn overlaps(&self, others: &Self) -> bool {
        self.single.iter().any(|name| others.contains(name))
            || others.single.iter().any(|name| self.contains(name))
            || !self.starts.is_disjoint(&others.starts)
    }
}

/// Returns rules about tools by the names that models use.
pub fn by_model_name<T: Clone>(rules: &BTreeMap<String, T>) -> BTreeMap<String, T> {
    rules
        .iter()
        .map(|(name, rule)| (model_tool_name(name), rule.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::words::is_word;

    #[test]
    fn models_get_names_that_every_provider_takes() {
        assert_eq!(model_name("docs", "search_all"), "docs__search_all");
        let odd = [
            model_name("docs", "read.file"),
            model_name("docs", "read/file"),
            model_name("docs", &"x".repeat(90)),
        ];
        for name in &odd {
            assert!(is_word(name, LONGEST_NAME, "") && name.starts_with("docs__"), "{name}");
        }
        assert_ne!(odd[0], odd[1], "two tools never get one name");
    }

    #[test]
    fn references_name_one_tool_or_all() {
        assert_eq!(
            McpReference::read("docs/a/b"),
            Some(McpReference {
                server: "docs",
                tool: Some("a/b")
            })
        );
        assert_eq!(
            McpReference::read("docs/*").map(McpReference::model_name),
            Some("docs__*".to_owned())
        );
        assert_eq!(McpReference::read("lookup"), None);
        let servers = ["docs".to_owned()].into_iter().collect();
        let problem = |name| McpReference::read(name).and_then(|reference| reference.problem(&servers));
        assert_eq!(problem("docs/*"), None);
        assert_eq!(
            problem("doc/*"),
            Some("there is no server `doc` of tools; did you mean `docs`? there are: docs".to_owned())
        );
        assert!(problem("docs/").is_some_and(|problem| problem.starts_with("must be `docs/tool`")));
    }

    #[test]
    fn tools_are_among_those_that_are_named_singly_or_with_their_server() {
        let names = |names: &[&str]| ToolNames::of(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let some = names(&["docs/read", "web/*", "lookup"]);
        for (name, is_one) in [
            ("docs__read", true),
            ("docs__write", false),
            ("web__any", true),
            ("lookup", true),
            ("read", false),
        ] {
            assert_eq!(some.contains(name), is_one, "{name}");
        }
        for (other, meets) in [
            ("docs/*", true),
            ("docs/read", true),
            ("docs/write", false),
            ("web/x", true),
            ("web/*", true),
            ("dig", false),
        ] {
            assert_eq!(some.overlaps(&names(&[other])), meets, "{other}");
            assert_eq!(names(&[other]).overlaps(&some), meets, "{other}");
        }
        assert!(ToolNames::default().is_empty() && !some.is_empty());
    }
}
