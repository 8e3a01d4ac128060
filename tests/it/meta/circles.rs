//! Imports among the modules of a folder, which run one way: a reader who follows them comes to an end.

use std::collections::{BTreeMap, BTreeSet};

use super::layers::{Source, sources, without_tests};

/// A module, by the names of those that contain it, and its own.
type Module = Vec<String>;

/// The arrows among the modules of one folder: the module that imports, and the imported one.
type Arrows = BTreeSet<(String, String)>;

/// Returns the module of a file.
fn module_of_file(place: &str) -> Module {
    let path = place.trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').map(str::to_owned).collect()
}

/// Returns the text without its tests and comments.
fn code(text: &str) -> String {
    let lines = without_tests(text).lines();
    let lines = lines.map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the entries of a group of imports. `group` begins after its brace.
fn entries(group: &str) -> Vec<&str> {
    let mut depth = 0;
    let mut begin = 0;
    let mut entries = vec![];
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' => {
                entries.push(&group[begin..at]);
                break;
            }
            ',' if depth == 0 => {
                entries.push(&group[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    entries.retain(|entry| !entry.trim().is_empty());
    entries
}

/// Returns the paths that an import names, each without groups. `import` is the text between `use` and the semicolon.
fn paths_of_import(import: &str) -> Vec<String> {
    let Some((start, group)) = import.split_once('{') else {
        let path = import.split(" as ").next().unwrap_or_default();
        return vec![path.trim().to_owned()];
    };
    let paths = entries(group).into_iter().flat_map(paths_of_import);
    paths.map(|path| format!("{}{path}", start.trim())).collect()
}

/// Returns whether a text is a visibility, or nothing.
fn is_visibility(text: &str) -> bool {
    text.is_empty() || text == "pub" || text.starts_with("pub(") && text.ends_with(')')
}

/// Returns the paths that a text imports, and those below `crate` or `super` that it mentions elsewhere.
fn paths(code: &str) -> Vec<String> {
    let mut found = vec![];
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].rsplit('\n').next().unwrap_or_default();
        if is_visibility(before.trim()) {
            let import = code[at + "use ".len()..].split(';').next().unwrap_or_default();
            found.extend(paths_of_import(import));
        }
    }
    let is_part_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            if code[..at].ends_with(is_part_of_path) {
                continue;
            }
            let path: String = code[at..].chars().take_while(|c| is_part_of_path(*c)).collect();
            found.push(path);
        }
    }
    found
}

/// Returns the module that a path leads to, as seen from the module `from`; none if the path begins in another crate.
fn module_of_path(path: &str, from: &[String], modules: &BTreeSet<Module>) -> Option<Module> {
    let mut names = path.split("::").peekable();
    let mut module = match *names.peek()? {
        "crate" => vec![],
        "super" | "self" => from.to_vec(),
        name => {
            let mut below = from.to_vec();
            below.push(name.to_owned());
            return modules.contains(&below).then_some(below);
        }
    };
    for name in names {
        match name {
            "crate" | "self" => {}
            "super" => drop(module.pop()),
            name => {
                module.push(name.to_owned());
                if !modules.contains(&module) {
                    module.pop();
                    break;
                }
            }
        }
    }
    Some(module)
}

/// Returns the arrows among the modules of each folder. Those between a module and one that contains it are left out.
fn arrows(sources: &[Source]) -> BTreeMap<String, Arrows> {
    let is_module =
        |source: &&Source| !source.place.contains("tests") && !["lib", "main"].contains(&source.room.as_str());
    let with_module = |source: &Source| (module_of_file(&source.place), code(&source.text));
    let texts: BTreeMap<Module, String> = sources.iter().filter(is_module).map(with_module).collect();
    let modules: BTreeSet<Module> = texts.keys().cloned().collect();
    let mut arrows: BTreeMap<String, Arrows> = BTreeMap::new();
    for (from, text) in &texts {
        let used = paths(text);
        for to in used.iter().filter_map(|path| module_of_path(path, from, &modules)) {
            let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if let Some(arrow) = from.get(shared).cloned().zip(to.get(shared).cloned()) {
                arrows.entry(from[..shared].join("/")).or_default().insert(arrow);
            }
        }
    }
    arrows
}

/// Returns the modules that a module imports, with those that these import, and so on.
fn reached<'a>(arrows: &'a Arrows, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        let of_module = arrows.iter().filter(|arrow| arrow.0 == module);
        next.extend(
            of_module
                .map(|arrow| arrow.1.as_str())
                .filter(|used| reached.insert(*used)),
        );
    }
    reached
}

/// Returns the arrows that lie on circles.
fn on_circles(arrows: &Arrows) -> Vec<String> {
    let is_on_circle = |arrow: &&(String, String)| reached(arrows, &arrow.1).contains(arrow.0.as_str());
    let found = arrows.iter().filter(is_on_circle);
    found.map(|(user, used)| format!("{user} imports {used}")).collect()
}

#[test]
fn modules_of_a_folder_import_each_other_one_way() {
    let arrows = arrows(&sources());
    let in_runtime = arrows.get("runtime").map_or(0, BTreeSet::len);
    assert!(in_runtime > 100, "{in_runtime} arrows were found in the runtime");
    let mut wrong = vec![];
    for (folder, arrows) in &arrows {
        let found = on_circles(arrows);
        wrong.extend(found.iter().map(|arrow| format!("{folder}: {arrow}, in a circle")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the modules of the database in the order of the table of its rooms, from the lowest one up.
fn modules_in_rooms(sources: &[Source]) -> Vec<String> {
    let of_database = sources.iter().find(|source| source.place == "db/mod.rs");
    let text = of_database.map_or("", |source| source.text.as_str());
    let section = text.split("//! # The rooms\n").nth(1).unwrap_or_default();
    let section = section.split("//! # ").next().unwrap_or_default();
    let rows = section.lines().rev().filter(|line| line.starts_with("//! |"));
    let names = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

#[test]
fn modules_of_the_database_import_those_that_are_below_them_in_the_table_of_its_rooms() {
    let sources = sources();
    let modules = modules_in_rooms(&sources);
    let place_of = |module: &str| modules.iter().position(|listed| listed == module);
    let arrows = arrows(&sources);
    let arrows = &arrows["db"];
    assert!(arrows.len() > 100, "{} arrows were found in the database", arrows.len());
    let is_wrong = |arrow: &&(String, String)| {
        let places = place_of(&arrow.0).zip(place_of(&arrow.1));
        places.is_none_or(|(user, used)| user <= used)
    };
    let wrong = arrows.iter().filter(is_wrong);
    let wrong: Vec<String> = wrong.map(|(user, used)| format!("{user} imports {used}")).collect();
    assert!(
        wrong.is_empty(),
        "not as in the table of src/db/mod.rs: {}",
        wrong.join(", ")
    );
}

#[test]
fn a_circle_is_found_in_every_spelling() {
    let source = |place: &str, text: &str| Source {
        room: "a".to_owned(),
        place: place.to_owned(),
        text: text.to_owned(),
    };
    let circle_with = |text: &str| {
        let sources = [
            source("a/mod.rs", "mod b;\nmod c;\nmod d;"),
            source(
                "a/b.rs",
                "//! B.\n\nuse super::c::{\n    C, d::{self, D},\n};\nuse super::d::D;",
            ),
            source("a/c/mod.rs", text),
            source("a/c/d.rs", ""),
            source("a/d.rs", "use super::e;"),
        ];
        let arrows = arrows(&sources);
        !on_circles(&arrows["a"]).is_empty()
    };
    for text in [
        "use super::b::B;",
        "pub use crate::a::b::B;",
        "pub(super) use crate::a::{d::D, b::{B, C}};",
        "use super::b as e;",
        "fn f() { super::b::f() }",
        "mod e {\n    use crate::a::b;\n}",
    ] {
        assert!(circle_with(text), "{text}");
    }
    for text in [
        "use super::d::D;",
        "use b::B;",
        "// use super::b::B;",
        "use super::super::b::B;",
        "use d::D;",
        "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::b;\n}",
    ] {
        assert!(!circle_with(text), "{text}");
    }
}
