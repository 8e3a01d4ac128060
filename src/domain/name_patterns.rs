//! Lists of allowed names in the configuration.

use std::sync::Arc;

/// The names that a list of the configuration allows. A name in the list that ends in `*` stands for all names that
/// begin with the part before it. Cloning copies a pointer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamePatterns {
    /// `None` if there is no list, so that all names are allowed.
    patterns: Option<Arc<[String]>>,
}

impl NamePatterns {
    /// Returns the names of a list; all names if there is none.
    pub fn of(patterns: Option<Vec<String>>) -> Self {
        Self {
            patterns: patterns.map(Arc::from),
        }
    }

    /// Returns the list, unless all names are allowed.
    pub fn list(&self) -> Option<&[String]> {
        self.patterns.as_deref()
    }

    /// Returns whether a name is allowed.
    pub fn allows(&self, name: &str) -> bool {
        self.patterns
            .as_ref()
            .is_none_or(|patterns| patterns.iter().any(|pattern| matches(pattern, name)))
    }
}

/// Returns whether `pattern` matches `name`; a `*` at its end stands for any text.
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

/// Returns whether a text is a name, or the beginning of names with a `*` after it.
pub fn is_pattern(text: &str) -> bool {
    !text.trim().is_empty() && !text.trim_end_matches('*').contains('*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_for_one_tool_of_a_server_does_not_mean_all_of_them() {
        assert!(matches("docs/search", "docs/search") && matches("docs/*", "docs/*") && matches("*", "x"));
        assert!(!matches("docs/search", "docs/*") && !matches("docs/s*", "docs/*") && !matches("openai:*", "openai"));
    }

    #[test]
    fn an_empty_list_allows_nothing_and_no_list_allows_everything() {
        assert!(NamePatterns::default().allows("x"));
        assert!(!NamePatterns::of(Some(vec![])).allows("x"));
        let some = NamePatterns::of(Some(vec!["a".to_owned(), "b-*".to_owned()]));
        assert!(some.allows("a") && some.allows("b-1") && !some.allows("ab") && !some.allows("b"));
    }
}
