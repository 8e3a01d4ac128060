//! The language of the source: one name for one thing, few words of its own, and no phrases that say nothing to a reader.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::layers::{Source, collect, section_of_map, sources, without_tests};

/// Phrases of the past that name nothing: a reader has to guess the noun, and an operator cannot search for it.
const OLD_PHRASES: [&str; 8] = [
    "who stands in",
    "stands in for a model",
    "whom to ask",
    "whoever does is",
    "what came of",
    "what became of",
    "somebody",
    "told otherwise",
];

/// Names of types that the source once had for the terms of LangGraph, tokio, SQL and HTTP.
const OLD_NAMES: &str = "Wish Fate Errand Workshop Surroundings House Occasion Cast Desk Upset Ending Came Laid Placed \
    Speech Voice Moment Reaction Roster Referred Ring Outfit Shelf Cell Trace Asker Sight Lookout Waker News Standing \
    Teller Ledger Share Spent Pool Ancestry Happening Glance Origins Feed Lasting Handover Openings Ticket Whose \
    Beginnings Coming Ahead Growth Dense Speaker Outlet Said Wanted Spoken Glimpse Sketch Door Leave Begun Obeyed Keyed \
    Judgement Remark Finding Gaps Enclosed Knowledge Addendum Menu Gate Workplace Dismissal TakenBack Forgotten Inquiry \
    Stay Provenance Holder Known NotACursor HeldBySocket LeftPlaces DuePlace ClaimLook QueueLook HostLooks Covers StoredBy \
    Unfilled Undone AtWork";

/// Phrases that say nothing to a reader of the API document: they name no run, interrupt, assistant or thread.
const OLD_API_PHRASES: [&str; 14] = [
    "what came of",
    "what became of",
    "somebody",
    "nobody",
    "whoever",
    "anybody",
    "is told",
    "was told",
    "a wish for",
    "how it stands",
    "where it lies",
    "takes the place of",
    "told otherwise",
    "there is no such",
];

/// Words with which the comment of an item or a module must not begin: its first line names a noun, or says what a
/// function does.
const VAGUE_OPENINGS: [&str; 15] = [
    "What", "How", "Who", "Whether", "It", "Them", "Those", "These", "Whose", "Whom", "Why", "They", "Where", "Which",
    "That",
];

/// The name of the type that a line declares.
fn declared_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().peekable();
    // `pub(in crate::…)` has a second word.
    while words
        .next_if(|word| word.starts_with("pub") || word.ends_with(')'))
        .is_some()
    {}
    let kind = words.next()?;
    let name = words.next()?;
    let end = name
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(name.len());
    // The name of a macro's parameter is empty.
    let is_type = matches!(kind, "struct" | "enum" | "trait" | "type" | "union") && end > 0;
    is_type.then(|| &name[..end])
}

/// The names of the types that a text declares for others: `pub`, `pub(crate)` and `pub(super)`. Those that a macro
/// declares are indented.
fn public_types(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim_start);
    lines.filter(|line| line.starts_with("pub")).filter_map(declared_type)
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
fn no_type_has_a_name_of_the_former_language() {
    let old: Vec<&str> = OLD_NAMES.split_whitespace().collect();
    let files = sources();
    let mut found = vec![];
    for Source { place, text, .. } in &files {
        let declared = text.lines().filter_map(declared_type);
        found.extend(
            declared
                .filter(|name| old.contains(name))
                .map(|name| format!("{place}: {name}")),
        );
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_declaration_of_a_type_is_found_with_every_visibility() {
    for line in [
        "struct Wish;",
        "    pub enum Wish {",
        "pub(crate) type Wish = u8;",
        "pub(in crate::db) trait Wish {",
    ] {
        assert_eq!(declared_type(line), Some("Wish"), "{line}");
    }
    assert_eq!(declared_type("let wish = Wish;"), None);
}

/// The functions of a text that are named like a question, as `is_ready`, and return no answer, with the numbers of their lines.
fn questions_without_answer(text: &str) -> Vec<(usize, &str)> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let functions = lines.filter(|(_, line)| line.ends_with('{') && !line.contains("->"));
    let named = functions.filter_map(|(at, line)| {
        let (before, name) = line.split_once("fn ")?;
        let is_function = before.is_empty() || before.ends_with(' ');
        is_function.then_some((at, name))
    });
    named
        .filter(|(_, name)| {
            ["is_", "has_", "are_", "was_"]
                .iter()
                .any(|start| name.starts_with(start))
        })
        .collect()
}

#[test]
fn functions_that_are_named_like_a_question_return_an_answer() {
    let mut found = vec![];
    // The names of tests are sentences.
    for Source { place, text, .. } in sources().iter().filter(|file| !file.place.contains("tests")) {
        for (line, name) in questions_without_answer(without_tests(text)) {
            found.push(format!("{place}:{line}: {name}"));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_function_is_named_like_a_question_by_its_first_word() {
    let text = "fn is_out(&self) {\n}\npub async fn has_left(self) -> bool {\n}\nfn this() {\n}\npub fn was_read() {";
    assert_eq!(
        questions_without_answer(text),
        [(1, "is_out(&self) {"), (7, "was_read() {")]
    );
}

/// The words of the glossary in the lines of its section.
fn glossary(section: &[String]) -> Vec<&str> {
    let rows = section.iter().filter_map(|line| line.strip_prefix("| "));
    // The first row is the head of the table.
    rows.skip(1).filter_map(|row| Some(row.split_once(" | ")?.0)).collect()
}

#[test]
fn the_glossary_has_at_most_thirty_words() {
    let section = section_of_map("Glossary");
    let words = glossary(&section);
    assert!(words.contains(&"lease"), "{words:?}");
    assert!(words.len() <= 30, "{} words: {words:?}", words.len());
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

/// The vague phrases of a text, with the numbers of their lines.
fn phrases_in<'a>(text: &str, phrases: &[&'a str]) -> Vec<(usize, &'a str)> {
    let mut found = vec![];
    for (at, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        for phrase in phrases.iter().filter(|phrase| line.contains(**phrase)) {
            found.push((at + 1, *phrase));
        }
    }
    found
}

#[test]
fn the_api_document_uses_plain_language() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/openapi.json");
    let document = fs::read_to_string(path).expect("the document can be read");
    assert!(
        document.contains("\"/threads/{thread_id}/runs\""),
        "the document is empty"
    );
    let found = phrases_in(&document, &OLD_API_PHRASES);
    assert!(found.is_empty(), "{found:#?}");
}

/// The first lines of doc comments that begin vaguely, with the numbers of the lines.
fn vague_openings(text: &str) -> Vec<(usize, &str)> {
    let mut found = vec![];
    let mut is_inside = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let comment = comment.map(str::trim);
        if let Some(comment) = comment.filter(|_| !is_inside) {
            let word = comment.split(' ').next().unwrap_or_default();
            if VAGUE_OPENINGS.contains(&word) {
                found.push((at + 1, comment));
            }
        }
        is_inside = comment.is_some();
    }
    found
}

#[test]
fn comments_of_items_begin_with_what_they_name() {
    let mut files: Vec<(String, String)> = sources().into_iter().map(|file| (file.place, file.text)).collect();
    let mut tests = vec![];
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it"), &mut tests);
    for path in tests {
        let text = fs::read_to_string(&path).expect("the file can be read");
        files.push((path.display().to_string(), text));
    }
    assert!(files.len() > 800, "the sources were not found");
    let mut found = vec![];
    for (place, text) in &files {
        for (line, comment) in vague_openings(text) {
            found.push(format!("{place}:{line}: {comment}"));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_vague_opening_is_found_in_the_first_line_of_a_comment() {
    let text = "/// What it is.\n/// More.\npub struct A;\n/// A noun.\n/// What else.\npub struct B;\n    /// How it is.\n    x: C,";
    assert_eq!(vague_openings(text), [(1, "What it is."), (7, "How it is.")]);
    assert_eq!(
        vague_openings("//! Who calls.\n//!\n//! What it gets.\n"),
        [(1, "Who calls.")]
    );
}

/// The lines of a text that declare a parameter which is a tuple taken apart, with their numbers.
fn tuple_parameters(text: &str) -> Vec<(usize, &str)> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    lines.filter(|(_, line)| is_tuple_parameter(line)).collect()
}

/// True for a line such as `(a, b): (A, B),` and for `fn f((a, b): (A, B))`. The parameters of closures and `let` take
/// apart what an iterator or a function returns.
fn is_tuple_parameter(line: &str) -> bool {
    let Some((before, _)) = line.split_once("): (") else {
        return false;
    };
    let Some((outside, names)) = before.rsplit_once('(') else {
        return false;
    };
    let are_names = names.contains(", ") && names.chars().all(|c| c.is_alphanumeric() || "_, ".contains(c));
    are_names && (outside.is_empty() || outside.contains("fn "))
}

#[test]
fn functions_take_no_tuples_apart() {
    let mut found = vec![];
    for Source { place, text, .. } in &sources() {
        for (line, parameter) in tuple_parameters(text) {
            found.push(format!("{place}:{line}: {parameter}"));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_tuple_parameter_is_found_in_functions_only() {
    let text = "fn a((b, c): (B, C)) {}\n    (stop, budget): (Stop, Budget),\nlet (a, b): (A, B) = f();\nmap(|(a, b): (A, B)| a)";
    let found: Vec<usize> = tuple_parameters(text).into_iter().map(|(line, _)| line).collect();
    assert_eq!(found, [1, 2]);
}
