//! Markdown with settings at its top: YAML between two `---` lines, and the text below.

use serde_json::Value;

/// Reads YAML.
///
/// # Errors
/// Returns an error when the text is not YAML.
pub fn yaml(text: &str) -> Result<Value, serde_saphyr::Error> {
    // Only `true` and `false` are truth values: a reviewer named `no` shall keep the name.
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options)
}

/// The parts of a text with front matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontMatter<'a> {
    /// The text has no settings.
    Missing {
        /// The text.
        body: &'a str,
    },
    /// The settings begin and never end.
    Open,
    /// The text has settings.
    Present {
        /// The YAML, without the lines around it. It begins on the second line.
        yaml: &'a str,
        /// The text below.
        body: &'a str,
    },
}

impl<'a> FrontMatter<'a> {
    /// Splits a text into its parts.
    pub fn of(text: &'a str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.split_inclusive('\n');
        let Some(first) = lines.next().filter(|line| line.trim_end() == "---") else {
            return Self::Missing { body: text };
        };
        let mut end = first.len();
        for line in lines {
            if line.trim_end() == "---" {
                let yaml = text.get(first.len()..end);
                let body = text.get(end + line.len()..);
                return Self::Present {
                    yaml: yaml.unwrap_or_default(),
                    body: body.unwrap_or_default(),
                };
            }
            end += line.len();
        }
        Self::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_taken_apart_at_its_two_lines() {
        assert_eq!(
            FrontMatter::of("---\na: 1\n---\nText\n"),
            FrontMatter::Present {
                yaml: "a: 1\n",
                body: "Text\n"
            }
        );
        assert_eq!(
            FrontMatter::of("\u{feff}--- \r\na: 1\r\n---"),
            FrontMatter::Present {
                yaml: "a: 1\r\n",
                body: ""
            }
        );
        assert_eq!(
            FrontMatter::of("Text\n---\n"),
            FrontMatter::Missing { body: "Text\n---\n" }
        );
        assert_eq!(FrontMatter::of("---\na: 1\n"), FrontMatter::Open);
    }

    #[test]
    fn comments_are_no_values() {
        let text = "# The skill.\nname: a # its name\nlist:\n  # the first\n  - \"#1\"\n  - b#2\n";
        let expected = serde_json::json!({"name": "a", "list": ["#1", "b#2"]});
        assert_eq!(yaml(text).ok(), Some(expected));
    }

    #[test]
    fn yaml_that_expands_without_end_is_refused() {
        let mut text = "a0: &a0 x\n".to_owned();
        for level in 1..=20 {
            let before = vec![format!("*a{}", level - 1); 8].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{before}]\n"));
        }
        assert!(yaml(&text).is_err());
    }
}
