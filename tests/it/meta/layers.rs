//! The modules that each module may use. A folder is a boundary because this test says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each room, and the rooms it may use besides itself. `app` and `main` know all parts and are not listed.
const MAY_USE: [(&str, &[&str]); 22] = [
    ("auth", &["domain", "net"]),
    ("cedar", &["domain"]),
    ("client", &["config", "domain", "net"]),
    ("domain", &[]),
    ("definition", &["domain"]),
    ("model", &["domain", "definition", "net"]),
    ("net", &["domain"]),
    ("peer", &["domain", "definition", "model", "net", "tool"]),
    ("sandbox", &[]),
    ("tool", &["domain", "definition", "model", "net", "sandbox"]),
    ("middleware", &["domain", "definition", "model", "tool"]),
    (
        "agent",
        &["domain", "definition", "model", "tool", "middleware", "peer"],
    ),
    ("sqlite", &[]),
    ("db", &["domain", "definition", "sqlite"]),
    ("events", &["domain", "db", "metrics", "shutdown"]),
    (
        "runtime",
        &[
            "domain",
            "definition",
            "net",
            "agent",
            "model",
            "tool",
            "db",
            "events",
            "metrics",
            "peer",
            "shutdown",
        ],
    ),
    (
        "http",
        &[
            "domain",
            "definition",
            "auth",
            "db",
            "events",
            "runtime",
            "metrics",
            "shutdown",
        ],
    ),
    ("logging", &["config"]),
    ("metrics", &["domain", "logging"]),
    ("telemetry", &["domain", "metrics", "net"]),
    ("config", &["cedar", "domain", "definition"]),
    ("shutdown", &["domain"]),
];

/// Files that know all parts.
const KNOW_ALL: [&str; 3] = ["app", "lib", "main"];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 13] = [
    "util", "utils", "helper", "helpers", "common", "misc", "manager", "service", "services", "handler", "impl",
    "core", "types",
];

/// One source file: its room, its place, and its text.
pub(super) struct Source {
    pub(super) room: String,
    pub(super) place: String,
    pub(super) text: String,
}

pub(super) fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    assert!(files.len() > 10, "the sources were not found");
    let source = |file: &PathBuf| {
        let place = file.strip_prefix(&root).expect("the file is below src");
        let room = place.iter().next().expect("a file has a name").to_string_lossy();
        Source {
            room: room.trim_end_matches(".rs").to_owned(),
            place: place.display().to_string(),
            text: fs::read_to_string(file).expect("the file can be read"),
        }
    };
    files.iter().map(source).collect()
}

/// Adds all Rust files below a folder.
pub(super) fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Returns the rooms that a text mentions as `crate::room` or in `use crate::{room::…, …}`, with the line of each
/// mention.
fn mentions(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut group_depth: Option<usize> = None;
    for (at, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        if let Some(depth) = &mut group_depth {
            if *depth == 1 {
                found.extend(first_word(code.trim_start()).map(|room| (at + 1, room)));
            }
            *depth = (*depth + code.matches('{').count()).saturating_sub(code.matches('}').count());
            if *depth == 0 {
                group_depth = None;
            }
            continue;
        }
        for (start, _) in code.match_indices("crate::") {
            let rest = &code[start + "crate::".len()..];
            match rest.strip_prefix('{') {
                None => found.extend(first_word(rest).map(|room| (at + 1, room))),
                Some(group) if group.contains('}') => {
                    found.extend(top_level(group).into_iter().map(|room| (at + 1, room)));
                }
                Some(_) => group_depth = Some(1),
            }
        }
    }
    found
}

/// Returns the entries of a group, each up to the next comma. `group` begins after its brace.
fn entries(group: &str) -> Vec<String> {
    let mut depth = 1;
    let mut entries = vec![String::new()];
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => entries.push(String::new()),
            _ => {}
        }
        if let Some(entry) = entries.last_mut().filter(|_| c != ',') {
            entry.push(c);
        }
    }
    entries
}

/// Returns the first word of each entry of a group on one line.
fn top_level(group: &str) -> Vec<String> {
    let entries = entries(group);
    entries.iter().filter_map(|entry| first_word(entry.trim())).collect()
}

fn first_word(text: &str) -> Option<String> {
    let word: String = text
        .chars()
        .take_while(|c| c.is_ascii_lowercase() || *c == '_')
        .collect();
    (!word.is_empty()).then_some(word)
}

/// Returns the text up to the tests at its end.
pub(super) fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

/// Returns every forbidden arrow as `place:line: room uses other`.
fn forbidden_arrows(sources: &[Source]) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    let mut wrong = Vec::new();
    for source in sources
        .iter()
        .filter(|source| !KNOW_ALL.contains(&source.room.as_str()))
    {
        let Some(may_use) = allowed.get(source.room.as_str()) else {
            wrong.push(format!(
                "{}: there is no room `{}` in the plan",
                source.place, source.room
            ));
            continue;
        };
        if source.place.ends_with("tests.rs") {
            continue;
        }
        for (line, other) in mentions(without_tests(&source.text)) {
            let is_room = allowed.contains_key(other.as_str()) || KNOW_ALL.contains(&other.as_str());
            if is_room && other != source.room && !may_use.contains(&other.as_str()) {
                wrong.push(format!(
                    "{}:{line}: `{}` must not use `{other}`",
                    source.place, source.room
                ));
            }
        }
    }
    wrong
}

#[test]
fn no_module_uses_a_forbidden_module() {
    let wrong = forbidden_arrows(&sources());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_forbidden_use_is_found_in_every_spelling() {
    let find = |room: &str, text: &str| {
        let source = Source {
            room: room.to_owned(),
            place: format!("{room}/mod.rs"),
            text: text.to_owned(),
        };
        forbidden_arrows(&[source])
    };
    assert_eq!(
        find("db", "use crate::http::Server;"),
        ["db/mod.rs:1: `db` must not use `http`"]
    );
    assert_eq!(
        find("db", "use crate::{domain::id::RunId, http};"),
        ["db/mod.rs:1: `db` must not use `http`"]
    );
    assert_eq!(
        find("db", "use crate::{\n    domain,\n    agent::{a, b},\n};"),
        ["db/mod.rs:3: `db` must not use `agent`"]
    );
    assert_eq!(
        find("domain", "fn f() { crate::config::load() }"),
        ["domain/mod.rs:1: `domain` must not use `config`"]
    );
    assert_eq!(
        find("config", "use crate::app::App;"),
        ["config/mod.rs:1: `config` must not use `app`"]
    );
    assert_eq!(
        find("attic", ""),
        ["attic/mod.rs: there is no room `attic` in the plan"]
    );
    assert_eq!(find("db", "// see crate::http\nuse crate::domain::id;"), [""; 0]);
}

/// Returns the lines of a section of the map in `src/lib.rs`, without the marks of the comment.
pub(super) fn section_of_map(title: &str) -> Vec<String> {
    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let text = fs::read_to_string(map).expect("the map can be read");
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let after = lines.skip_while(|line| line.strip_prefix("# ") != Some(title)).skip(1);
    let section = after.take_while(|line| !line.starts_with("# "));
    section.map(str::to_owned).collect()
}

/// Returns the rooms that the table of `src/lib.rs` lists, each with the rooms that it may use.
fn listed_arrows() -> BTreeMap<String, BTreeSet<String>> {
    let section = section_of_map("The rooms");
    let mut arrows = BTreeMap::new();
    for row in section.iter().filter_map(|line| line.strip_prefix("| [`")) {
        let cells: Vec<&str> = row.split('|').collect();
        let [room, _, may_use, _] = cells[..] else {
            panic!("a row with other cells: {row}")
        };
        let room = room.trim().trim_end_matches("`]").to_owned();
        let names = may_use.split('`').skip(1).step_by(2).map(str::to_owned);
        arrows.insert(room, names.collect());
    }
    arrows
}

#[test]
fn the_table_of_rooms_lists_the_arrows_that_are_allowed() {
    let mut listed = listed_arrows();
    assert_eq!(listed.remove("app"), Some(BTreeSet::new()), "`app` may use everything");
    let mut allowed = BTreeMap::new();
    for (room, may_use) in MAY_USE {
        let names: BTreeSet<String> = may_use.iter().map(|name| (*name).to_owned()).collect();
        allowed.insert(room.to_owned(), names);
    }
    assert_eq!(listed, allowed);
}

/// A task that is started elsewhere would not know for which tenant it works.
#[test]
fn tasks_of_the_runtime_are_started_in_one_place() {
    let sources = sources();
    let starts = |source: &&Source| source.room == "runtime" && source.text.contains("shutdown.spawn(");
    let places: Vec<&str> = sources
        .iter()
        .filter(starts)
        .map(|source| source.place.as_str())
        .collect();
    assert_eq!(places, ["runtime/shared.rs"], "use `Core::spawn`");
}

/// Files outside of `runtime/shared` and `runtime/registry` with what `Core` has.
const SHARED_PARTS: [&str; 4] = [
    "runtime/registry.rs",
    "runtime/trace.rs",
    "runtime/turns.rs",
    "runtime/webhooks.rs",
];

/// If they knew it, all modules of the runtime would import each other.
#[test]
fn what_the_core_of_the_runtime_has_does_not_import_it() {
    let sources = sources();
    let is_below = |place: &str| place.starts_with("runtime/shared/") || place.starts_with("runtime/registry/");
    let is_part = |source: &&Source| is_below(&source.place) || SHARED_PARTS.contains(&source.place.as_str());
    let parts: Vec<&Source> = sources.iter().filter(is_part).collect();
    assert!(parts.len() > SHARED_PARTS.len(), "the parts were not found");
    let imports_core = |source: &&&Source| source.text.contains("shared::Core") || source.text.contains("super::Core");
    let wrong: Vec<&str> = parts
        .iter()
        .filter(imports_core)
        .map(|source| source.place.as_str())
        .collect();
    assert_eq!(wrong, [""; 0]);
}

/// Rooms whose modules import each other by their names, and not through the face of the room.
const IMPORTED_BY_NAME: [&str; 3] = ["definition", "runtime", "tool"];

/// Returns the items that a text imports from the face of a room with these modules. `is_below` is true for a module
/// directly below it.
fn imports_of_face(text: &str, room: &str, modules: &BTreeSet<&str>, is_below: bool) -> Vec<String> {
    let path = format!("crate::{room}::");
    let mut found = vec![];
    for statement in text.split("\nuse ").skip(1) {
        let below = statement.strip_prefix("super::").filter(|_| is_below);
        let Some(named) = statement.strip_prefix(path.as_str()).or(below) else {
            continue;
        };
        let named = named.split(';').next().unwrap_or_default();
        let all = match named.strip_prefix('{') {
            Some(group) => entries(group),
            None => vec![named.to_owned()],
        };
        let names = all.iter().map(|entry| entry.trim().trim_end_matches('}'));
        let is_module = |name: &str| modules.contains(name.split([':', ' ']).next().unwrap_or_default());
        let items = names.filter(|name| !name.is_empty() && !is_module(name));
        found.extend(items.map(str::to_owned));
    }
    found
}

/// Modules that import from the face of their room would import each other through it.
#[test]
fn no_module_imports_the_face_of_its_room() {
    let sources = sources();
    let mut wrong = vec![];
    for room in IMPORTED_BY_NAME {
        let of_room: Vec<&Source> = sources.iter().filter(|source| source.room == room).collect();
        let names = of_room.iter().filter_map(|source| source.place.split('/').nth(1));
        let modules: BTreeSet<&str> = names.map(|name| name.trim_end_matches(".rs")).collect();
        assert!(modules.len() > 10, "the modules of `{room}` were not found");
        for source in of_room {
            let module = source.place.trim_end_matches("/mod.rs");
            let is_below = module.matches('/').count() == 1;
            let found = imports_of_face(&source.text, room, &modules, is_below);
            wrong.extend(found.iter().map(|name| format!("{}: {name}", source.place)));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn an_import_of_the_face_is_found_in_every_spelling() {
    let text = "//! A.\n\nuse super::Runs;\nuse super::{NewRun, audit};\nuse super::runs::Runs;\nuse super::start;\n\
        use crate::runtime::{\n    StartError, trace,\n};\nuse crate::runtime::jobs::{A, B};\nuse super::trace as t;\n";
    let modules = BTreeSet::from(["audit", "jobs", "runs", "trace"]);
    let imports = |is_below| imports_of_face(text, "runtime", &modules, is_below);
    assert_eq!(imports(true), ["Runs", "NewRun", "start", "StartError"]);
    assert_eq!(imports(false), ["StartError"]);
}

/// Pauses that are described elsewhere would have other words, and other random parts.
#[test]
fn pauses_between_attempts_are_described_in_one_place() {
    let sources = sources();
    let describes = |source: &&Source| source.text.contains("ExponentialBuilder");
    let places: Vec<&str> = sources
        .iter()
        .filter(describes)
        .map(|source| source.place.as_str())
        .collect();
    assert_eq!(places, ["domain/backoff.rs"], "use `Backoff`");
}

/// Returns the files outside of tests, in the rooms below HTTP, that have this text.
fn inner_places(text: &str) -> Vec<String> {
    const INNER: [&str; 6] = ["agent", "domain", "middleware", "peer", "runtime", "tool"];
    let has_text = |source: &Source| {
        let is_inner = INNER.contains(&source.room.as_str()) && !source.place.contains("tests");
        is_inner && without_tests(&source.text).contains(text)
    };
    let found = sources().into_iter().filter(has_text);
    found.map(|source| source.place).collect()
}

/// The server works with the context, whichever of the two names a client uses.
#[test]
fn the_configurable_of_langgraph_is_known_in_one_place() {
    assert_eq!(inner_places("\"configurable\""), ["domain/run_config.rs"]);
}

#[test]
fn the_source_of_a_message_has_its_key_in_one_place() {
    assert_eq!(
        inner_places("\"lc_source\""),
        ["domain/message.rs"],
        "use `Message::set_source`"
    );
}

#[test]
fn every_file_has_a_module_comment() {
    let is_silent = |source: &&Source| {
        let is_test = source.place.contains("/tests/") || source.place.ends_with("tests.rs");
        !is_test && !source.text.starts_with("//! ")
    };
    let silent: Vec<String> = sources()
        .iter()
        .filter(is_silent)
        .map(|source| source.place.clone())
        .collect();
    assert!(
        silent.is_empty(),
        "these files do not say what they are: {}",
        silent.join(", ")
    );
}

#[test]
fn no_module_has_a_meaningless_name() {
    let is_empty = |source: &&Source| {
        Path::new(&source.place)
            .with_extension("")
            .iter()
            .any(|part| EMPTY_NAMES.iter().any(|name| part == *name))
    };
    let empty: Vec<String> = sources()
        .iter()
        .filter(is_empty)
        .map(|source| source.place.clone())
        .collect();
    assert!(empty.is_empty(), "these names say nothing: {}", empty.join(", "));
}

/// Returns the agents that a configuration, or the text of a program that writes one, defines.
fn agents_in(text: &str) -> Vec<&str> {
    let heads = text
        .match_indices("[agents.")
        .filter(|(at, _)| !text[..*at].ends_with('['));
    let names = heads.filter_map(|(at, head)| text[at + head.len()..].split(']').next());
    names.filter(|name| !name.contains(['.', '{', '"', '\n'])).collect()
}

/// A second agent of one name would break every test that uses the configuration.
#[test]
fn agents_of_the_tests_have_unique_names() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let standard = fs::read_to_string(folder.join("support/agents.toml")).expect("the configuration of the tests");
    let known = agents_in(&standard);
    assert!(known.len() > 10, "the agents were not found");
    let mut wrong: Vec<String> = known
        .iter()
        .enumerate()
        .filter(|(at, name)| known[..*at].contains(*name))
        .map(|(_, name)| format!("support/agents.toml has two agents `{name}`"))
        .collect();
    let mut files = Vec::new();
    collect(&folder, &mut files);
    for file in files.iter().filter(|file| !file.ends_with("layers.rs")) {
        let text = fs::read_to_string(file).expect("the file can be read");
        let place = file
            .strip_prefix(&folder)
            .expect("the file is below the tests")
            .display()
            .to_string();
        let taken = agents_in(&text)
            .into_iter()
            .filter(|name| known.contains(name))
            .map(str::to_owned);
        wrong.extend(taken.map(|name| format!("{place} adds an agent `{name}`, which support/agents.toml has")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_name_of_an_agent_is_read_from_its_section() {
    let text = "[agents.a]\n[[agents.a.subagents]]\n[agents.b.state.x]\n[agents.c]\n[agents.{name}]";
    assert_eq!(agents_in(text), ["a", "c"]);
}

/// The calls that search or count for a client, within a job of the database.
const SEARCHES: [&str; 5] = [
    "::search(tx",
    "::count(tx",
    "::count_versions(tx",
    "::list_namespaces(tx",
    "::nearest(tx",
];

/// Returns the arguments of each call that ends with `name`.
fn arguments<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let calls = text.match_indices(name).map(|(start, _)| &text[start + name.len()..]);
    let up_to_the_end = |rest: &'a str| {
        let mut depth = 1_usize;
        let end = rest.find(|letter: char| {
            match letter {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        &rest[..end.unwrap_or(rest.len())]
    };
    calls.map(up_to_the_end).collect()
}

#[test]
fn searches_of_clients_run_on_connections_for_searches() {
    let is_search = |job: &&str| SEARCHES.iter().any(|call| job.contains(call));
    let mut searches = 0;
    let mut reads = vec![];
    for source in sources() {
        if source.room != "http" && source.place != "runtime/store.rs" {
            continue;
        }
        let counted = arguments(&source.text, ".search(").into_iter().filter(is_search);
        searches += counted.count();
        let found = arguments(&source.text, ".read(").into_iter().filter(is_search).count();
        if found > 0 {
            reads.push(source.place);
        }
    }
    assert!(searches >= 10, "{searches} searches");
    assert!(reads.is_empty(), "searches among reads: {reads:?}");
}

#[test]
fn the_arguments_of_a_call_are_found() {
    let text = "db.read(move |tx| pin(find(tx, id))).await; db.search(tx)";
    assert_eq!(arguments(text, ".read("), ["move |tx| pin(find(tx, id))"]);
    assert_eq!(arguments(text, ".search("), ["tx"]);
}
