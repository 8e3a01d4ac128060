//! Scopes of OAuth (RFC 6749, section 3.3).

use std::fmt;

use serde::{Deserialize, Serialize};

/// The maximum number of scopes of a set.
pub const MAX_SCOPES: usize = 32;
/// The maximum length of a scope, in bytes.
pub const MAX_SCOPE_BYTES: usize = 256;
/// The maximum number of scopes that a text for people names.
const MAX_SHOWN: usize = 8;

/// A set of scopes, in the order in which they were named. It is bounded, since servers name scopes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OAuthScopes(Vec<String>);

impl OAuthScopes {
    /// Reads scopes that are separated by spaces. Texts that are not scopes are left out, and so are scopes beyond the limits.
    pub fn read(text: &str) -> Self {
        text.split_ascii_whitespace().collect()
    }

    /// Returns whether there are no scopes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether all scopes are among `others`.
    pub fn are_among(&self, others: &Self) -> bool {
        self.0.iter().all(|scope| others.0.contains(scope))
    }

    /// Returns these scopes and those of `more`.
    #[must_use]
    pub fn with(&self, more: &Self) -> Self {
        self.iter().chain(more.iter()).collect()
    }

    /// Returns those of these scopes that are not among `others`.
    #[must_use]
    pub fn without(&self, others: &Self) -> Self {
        let remaining = self.0.iter().filter(|scope| !others.0.contains(scope));
        remaining.map(String::as_str).collect()
    }

    /// Returns the value of the parameter `scope` with these scopes behind those that `value` has.
    pub fn added_to(&self, value: &str) -> String {
        let mut scopes: Vec<&str> = value.split_ascii_whitespace().collect();
        for scope in self.iter() {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        scopes.join(" ")
    }

    /// Returns the value of the parameter `scope`.
    pub fn parameter(&self) -> String {
        self.0.join(" ")
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl<'a> FromIterator<&'a str> for OAuthScopes {
    fn from_iter<I: IntoIterator<Item = &'a str>>(scopes: I) -> Self {
        let mut found: Vec<String> = vec![];
        for scope in scopes {
            let is_known = found.iter().any(|known| known == scope);
            if is_scope(scope) && !is_known && found.len() < MAX_SCOPES {
                found.push(scope.to_owned());
            }
        }
        Self(found)
    }
}

/// The text form is for people, and names the first scopes only.
impl fmt::Display for OAuthScopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for scope in self.iter().take(MAX_SHOWN) {
            write!(f, "{separator}`{scope}`")?;
            separator = ", ";
        }
        match self.0.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Returns whether a text is a scope: not too long, and of the characters that a scope may have.
pub fn is_scope(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    (1..=MAX_SCOPE_BYTES).contains(&text.len()) && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_each_scope_once_and_nothing_else() {
        let scopes = OAuthScopes::read(" files:read  files:write files:read a\"b a\\b \u{e9} a\u{1b}[1m ");
        assert_eq!(scopes.parameter(), "files:read files:write");
        assert!(OAuthScopes::read(&"x".repeat(MAX_SCOPE_BYTES + 1)).is_empty());
        assert!(OAuthScopes::read("").is_empty());
    }

    #[test]
    fn a_set_and_its_text_are_bounded() {
        let many: Vec<String> = (0..100).map(|at| format!("s{at}")).collect();
        let scopes = OAuthScopes::read(&many.join(" "));
        assert_eq!(scopes.parameter().split(' ').count(), MAX_SCOPES);
        assert_eq!(scopes.with(&OAuthScopes::read("more")), scopes);
        let shown = scopes.to_string();
        assert!(
            shown.starts_with("`s0`, `s1`, ") && shown.ends_with("`s7` and 24 more"),
            "{shown}"
        );
    }

    #[test]
    fn sets_are_joined_and_compared() {
        let ab = OAuthScopes::read("a b");
        let bc = OAuthScopes::read("b c");
        assert_eq!(ab.with(&bc).parameter(), "a b c");
        assert_eq!(ab.without(&bc).parameter(), "a");
        assert!(ab.are_among(&ab.with(&bc)) && !ab.are_among(&bc));
        assert!(OAuthScopes::default().are_among(&ab));
        assert_eq!(bc.added_to("a b"), "a b c");
        assert_eq!(bc.added_to(""), "b c");
        assert_eq!(OAuthScopes::default().added_to("a b"), "a b");
    }
}
