//! The parts of its run that a call of a tool may read, as the definition of the tool declares them. Nothing else is
//! readable.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::item::Namespace;
use super::path::below;
use super::pattern::{Pattern, fixed_folder};

/// The parts of its run that each call of a tool may read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ReadAccess {
    /// The fields of the state, such as `messages`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<String>,
    /// The files of the agent that makes the call: absolute patterns, in which `**` spans folders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The namespaces of the Store, each with all below it. `{name}` in a label is replaced by the entry `name` of the
    /// run's context, as for the Store tools of agents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub store: Vec<Vec<String>>,
}

impl ReadAccess {
    /// Returns whether nothing can be read.
    pub fn is_empty(&self) -> bool {
        self.state.is_empty() && self.files.is_empty() && self.store.is_empty()
    }

    /// Returns whether the field of the state of this name can be read.
    pub fn has_field(&self, name: &str) -> bool {
        self.state.iter().any(|field| field == name)
    }

    /// Returns the files that can be read.
    pub fn readable_files(&self) -> ReadableFiles {
        let mut patterns = vec![];
        let mut fixed_folders = BTreeSet::new();
        for text in &self.files {
            // A pattern that cannot be used was refused when the definition was read; it would match nothing.
            if let Ok(pattern) = Pattern::with_dots(text) {
                patterns.push(pattern);
                fixed_folders.insert(fixed_folder(text));
            }
        }
        let is_inside = |path: &String, folder: &String| folder != path && below(path, folder).is_some();
        let is_outermost = |path: &&String| !fixed_folders.iter().any(|folder| is_inside(path, folder));
        let roots = fixed_folders.iter().filter(is_outermost).cloned().collect();
        ReadableFiles { patterns, roots }
    }

    /// Returns whether all namespaces at and below this one can be read. The labels of the declared ones are taken as they
    /// are: a token has them without placeholders.
    pub fn has_namespace(&self, namespace: &Namespace) -> bool {
        let labels = namespace.labels();
        self.store
            .iter()
            .any(|declared| !declared.is_empty() && labels.starts_with(declared))
    }
}

/// The files that can be read.
#[derive(Debug)]
pub struct ReadableFiles {
    patterns: Vec<Pattern>,
    roots: Vec<String>,
}

impl ReadableFiles {
    /// Returns whether the file at this normalised path can be read.
    pub fn has(&self, path: &str) -> bool {
        let relative = path.trim_start_matches('/');
        self.patterns.iter().any(|pattern| pattern.matches(relative))
    }

    /// Returns the folders and files at and below which all files lie that can be read. None is below another.
    pub fn roots(&self) -> &[String] {
        &self.roots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roots_of_patterns_hold_all_that_they_match_and_are_not_inside_each_other() {
        let roots = |files: &[&str]| {
            let access = ReadAccess {
                files: files.iter().map(|file| (*file).to_owned()).collect(),
                ..ReadAccess::default()
            };
            access.readable_files().roots().to_vec()
        };
        assert_eq!(
            roots(&["/a/b/**", "/a.md", "/a/*.md", "/a/b/c.md", "/a/**"]),
            ["/a", "/a.md"]
        );
        assert_eq!(roots(&["/{a,b}/**", "/a/x.md"]), ["/"]);
        assert_eq!(roots(&["/**", "/**/*.md"]), ["/"]);
        assert_eq!(roots(&["/ab/x", "/a/**"]), ["/a", "/ab/x"]);
        assert_eq!(roots(&["/a\\b/x"]), ["/"]);
        assert_eq!(roots(&[]), [""; 0]);
    }

    #[test]
    fn only_what_is_declared_can_be_read() {
        let access = ReadAccess {
            state: vec!["messages".to_owned()],
            files: vec!["/reports/**".to_owned(), "/plan.md".to_owned()],
            store: vec![vec!["memories".to_owned(), "ann".to_owned()]],
        };
        assert!(access.has_field("messages") && !access.has_field("todos") && !access.has_field(""));
        let files = access.readable_files();
        for path in ["/reports/a.md", "/reports/deep/.b", "/plan.md"] {
            assert!(files.has(path), "{path}");
        }
        for path in [
            "/report/a.md",
            "/reports.md",
            "/deep/plan.md",
            "/deep/reports/a.md",
            "/",
        ] {
            assert!(!files.has(path), "{path}");
        }
        let namespace = |labels: &[&str]| Namespace::stored(labels.iter().map(|label| (*label).to_owned()).collect());
        assert!(access.has_namespace(&namespace(&["memories", "ann"])));
        assert!(access.has_namespace(&namespace(&["memories", "ann", "deep"])));
        for labels in [&["memories"][..], &["memories", "bob"], &["ann"], &[]] {
            assert!(!access.has_namespace(&namespace(labels)), "{labels:?}");
        }
        let nothing = ReadAccess::default();
        assert!(nothing.is_empty() && !access.is_empty());
        assert!(!nothing.readable_files().has("/a") && !nothing.has_namespace(&namespace(&["a"])));
    }
}
