//! The recipes of `src/lib.rs`: each names files that exist, and no more of them than its kind of change may touch.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::layers::section_of_map;

/// The kinds of changes, with the most files that each may touch, its test included.
const KINDS: [(&str, usize); 6] = [
    ("a middleware with settings", 4),
    ("a built-in tool with settings", 5),
    ("a setting of tools", 5),
    ("a field of agents and subagents", 5),
    ("a provider", 4),
    ("a kind of job", 3),
];

/// A name of a file that stands for a new one.
const NEW_FILE: &str = "middleware/x.rs";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the text of the section "How to add …", without the marks of the comment.
fn section() -> String {
    section_of_map("How to add …").join("\n")
}

/// Returns the recipes: the kind of each, and its text in one line.
fn recipes(section: &str) -> Vec<(String, String)> {
    let paragraphs = section.split("\n\n").filter_map(|text| text.trim().strip_prefix("**"));
    let parts = paragraphs.filter_map(|text| text.split_once("**"));
    parts
        .map(|(kind, text)| (kind.to_owned(), text.replace('\n', " ")))
        .collect()
}

/// Returns the files and folders that a text names.
fn places(text: &str) -> BTreeSet<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter(|name| name.contains('/') && !name.contains(' '))
        .collect()
}

/// Returns the part of a recipe that says what to change; the rest names an example.
fn steps(text: &str) -> &str {
    text.split_once("a test").map_or(text, |(steps, _)| steps)
}

/// True if a place of a recipe exists: from the root, or in `src`.
fn exists(place: &str) -> bool {
    let found = |base: &Path| base.join(place).exists();
    place == NEW_FILE || found(&root()) || found(&root().join("src"))
}

#[test]
fn recipes_name_files_that_exist() {
    let section = section();
    let recipes = recipes(&section);
    assert!(recipes.len() >= 8, "{recipes:?}");
    let mut missing = vec![];
    for (kind, text) in &recipes {
        let places = places(text);
        assert!(!places.is_empty(), "the recipe for {kind} names no file");
        missing.extend(
            places
                .into_iter()
                .filter(|place| !exists(place))
                .map(|place| format!("{kind}: {place}")),
        );
    }
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn a_change_touches_no_more_files_than_its_recipe_allows() {
    let section = section();
    let recipes = recipes(&section);
    for (kind, most) in KINDS {
        let (_, text) = recipes
            .iter()
            .find(|(name, _)| name == kind)
            .unwrap_or_else(|| panic!("there is no recipe for {kind}"));
        let steps = steps(text);
        let names = |words: &str| usize::from(text.contains(words));
        // The new file of a job, the two of a middleware, the use of a field, and the test have no names in the recipe.
        let unnamed = names("its file beside") + 2 * names("as above") + names("its use in [") + names("a test");
        let files = places(steps).into_iter().filter(|place| place.contains('.')).count() + unnamed;
        assert!(
            files > 1 && files <= most,
            "{kind}: {files} files, at most {most}: {steps}"
        );
    }
}
