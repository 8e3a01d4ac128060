//! The language of the source: one name for one thing, and no phrases that say nothing to a reader.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::layers::{Source, sources};

/// Phrases of the past that name nothing: a reader has to guess the noun, and an operator cannot search for it.
const OLD_PHRASES: [&str; 4] = [
    "who stands in",
    "stands in for a model",
    "whom to ask",
    "whoever does is",
];

/// The names of the types that a text declares for others: `pub`, `pub(crate)` and `pub(super)`.
fn public_types(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with("pub")).filter_map(|line| {
        let mut words = line.split_whitespace().skip(1).peekable();
        // `pub(in crate::…)` has a second word.
        words.next_if(|word| word.ends_with(')'));
        let kind = words.next()?;
        let name = words.next()?;
        let end = name
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(name.len());
        matches!(kind, "struct" | "enum" | "trait" | "type" | "union").then(|| &name[..end])
    })
}

#[test]
fn no_two_public_types_have_one_name() {
    let files = sources();
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // Helpers of unit tests are not public.
    for Source { place, text, .. } in files.iter().filter(|file| !file.place.contains("tests")) {
        for name in public_types(text) {
            places.entry(name).or_default().push(place);
        }
    }
    assert!(places.len() > 300, "the types were not found");
    places.retain(|_, declared| declared.len() > 1);
    assert!(places.is_empty(), "{places:#?}");
}

#[test]
fn old_phrases_are_not_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts: Vec<(String, String)> = sources().into_iter().map(|file| (file.place, file.text)).collect();
    for entry in fs::read_dir(root.join("docs")).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        if path.extension().is_some_and(|extension| extension == "md") {
            texts.push((
                path.display().to_string(),
                fs::read_to_string(&path).expect("the page can be read"),
            ));
        }
    }
    for file in ["README.md", "CONTRIBUTING.md", "openapi/openapi.json"] {
        texts.push((
            file.to_owned(),
            fs::read_to_string(root.join(file)).expect("the file can be read"),
        ));
    }
    let found: Vec<String> = texts
        .iter()
        .flat_map(|(place, text)| {
            text.lines().enumerate().filter_map(move |(at, line)| {
                let line = line.to_lowercase();
                let phrase = OLD_PHRASES.iter().find(|phrase| line.contains(**phrase))?;
                Some(format!("{place}:{}: {phrase}", at + 1))
            })
        })
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}
