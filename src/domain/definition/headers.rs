//! Headers of requests to other servers.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::check::is_word;
use super::finding::{FieldPath, Finding};

/// Headers of requests to another server, by name. Their values may be secrets: they are never printed, and clients see
/// [`Headers::MASK`] in their place.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(pub BTreeMap<String, String>);

impl Headers {
    /// What is shown instead of a value.
    pub const MASK: &str = "<not shown>";

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What cannot be sent; `field` is where the headers stand.
    pub(super) fn check(&self, field: &FieldPath) -> Vec<Finding> {
        let mut findings = vec![];
        for (name, value) in &self.0 {
            let field = field.then(name);
            if !is_word(name, 128, "!#$%&'*+.^`|~") {
                findings.push(Finding::error(field.clone(), "is no name of a header"));
            }
            if value.chars().any(char::is_control) {
                findings.push(Finding::error(field, "must be one line without control characters"));
            } else if value == Self::MASK {
                let message = "is what stands for a value that is not shown; give the value itself";
                findings.push(Finding::error(field, message));
            }
        }
        findings
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_printed_and_what_cannot_be_sent_is_told() {
        let headers = Headers(BTreeMap::from([
            ("x-key".to_owned(), "hush".to_owned()),
            ("x key".to_owned(), "a\nb".to_owned()),
            ("x-mask".to_owned(), Headers::MASK.to_owned()),
        ]));
        let printed = format!("{headers:?}");
        assert!(printed.contains("x-key") && !printed.contains("hush"), "{printed}");
        let fields: Vec<String> =
            headers.check(&FieldPath::of(["headers"])).iter().map(|finding| finding.field.to_string()).collect();
        assert_eq!(fields, [r#"headers."x key""#, r#"headers."x key""#, "headers.x-mask"]);
    }
}
