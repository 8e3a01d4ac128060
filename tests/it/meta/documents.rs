//! The README and the pages in `docs/`: every example in them is played or checked, every link leads somewhere, and
//! every page is in the table of contents.
//!
//! A fenced block of one of the languages in [`LANGUAGES`] has a mark in the line before it, `<!-- test: … -->`:
//!
//! | Mark | What is tested |
//! |---|---|
//! | `check` | the block is a configuration, and `adjutant check` finds no mistake and nothing odd in it |
//! | `check with=NAME` | the same, behind the text of `tests/documents/NAME.toml` |
//! | `file=PATH in=FOLDER` | the same with the block as a file among those of `tests/documents/FOLDER` |
//! | `session` | the block is a program of a shell or of Python that works against the demonstration; no request is refused; a shell finds the program `adjutant` |
//! | `session expect=TEXT` | … and its output has these texts, in which `_` is a space |
//! | `session with=NAME` | … and the server has the configuration `tests/documents/NAME.toml` |
//! | `output` | each line of the block is in the output of the last session before it |
//! | `send POST /path` | the block is the body of a request that the demonstration takes; `THREAD` in the path is a thread |
//! | `json` | the block is JSON that a server or a tool says |
//! | `excerpt=PATH` | each line of the block is a line of that file |
//! | `not played: REASON` | nothing: it cannot be played here |

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::compat::sdk::{python, runs_to_its_end};
use crate::support::client::Client;
use crate::support::process::{Process, server_in};

/// The address of the server in the documents.
const BASE: &str = "http://127.0.0.1:8123";

/// The port of the service that a session starts beside the server.
const SERVICE_PORT: &str = "8791";

/// The environment variable with the API key of the page about authentication, and the key.
const OPS_KEY: [&str; 2] = ["ADJUTANT_OPS_KEY", "a-key-for-the-documents-0123456789abcdef"];

/// The most lines that the README has.
const LONGEST_README: usize = 150;

/// The languages of blocks that are tested. Blocks without one, and those of `text`, are pictures and output.
const LANGUAGES: [&str; 9] = [
    "toml",
    "json",
    "sh",
    "sql",
    "python",
    "rust",
    "markdown",
    "yaml",
    "javascript",
];

/// Returns a port that was free a moment ago.
fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port().to_string()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A document: its path from the root of the repository, and its text.
struct Document {
    path: String,
    text: String,
}

/// A fenced block.
struct Block {
    /// The document and the line, for messages.
    place: String,
    language: String,
    /// The text of the mark before it; empty without a mark.
    mark: String,
    text: String,
    /// The lines of the block after it that is marked as its output.
    output: Vec<String>,
}

impl Document {
    fn read(path: &str) -> Self {
        let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self {
            path: path.to_owned(),
            text,
        }
    }

    fn blocks(&self) -> Vec<Block> {
        let mut blocks = vec![];
        let mut before = "";
        let mut lines = self.text.lines().enumerate();
        while let Some((at, line)) = lines.next() {
            let indent = line.len() - line.trim_start().len();
            if let Some(language) = line.trim_start().strip_prefix("```") {
                let inside = lines
                    .by_ref()
                    .map(|(_, line)| line)
                    .take_while(|line| line.trim() != "```");
                let inside = inside.map(|line| line.get(indent..).unwrap_or_default());
                let text = inside.fold(String::new(), |text, line| text + line + "\n");
                let mark = before
                    .trim()
                    .strip_prefix("<!-- test: ")
                    .and_then(|mark| mark.strip_suffix(" -->"));
                let mark = mark.unwrap_or_default().to_owned();
                let place = format!("{}:{}", self.path, at + 1);
                if mark == "output" {
                    let session: &mut Block = blocks.last_mut().expect("a session before its output");
                    session.output = text.lines().map(str::to_owned).collect();
                    continue;
                }
                blocks.push(Block {
                    place,
                    language: language.trim().to_owned(),
                    mark,
                    text,
                    output: vec![],
                });
            }
            before = line;
        }
        blocks
    }

    /// The lines outside of blocks.
    fn prose(&self) -> impl Iterator<Item = &str> {
        let mut inside = false;
        self.text.lines().filter(move |line| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        })
    }

    /// The names under which links find its headings.
    fn anchors(&self) -> BTreeSet<String> {
        let headings = self.prose().filter(|line| line.starts_with('#'));
        headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
    }

    /// Returns the targets of its links.
    fn links(&self) -> Vec<String> {
        let mut links = vec![];
        for line in self.prose() {
            let mut rest = line;
            while let Some((_, after)) = rest.split_once("](") {
                let Some((link, after)) = after.split_once(')') else {
                    break;
                };
                links.push(link.to_owned());
                rest = after;
            }
        }
        links
    }
}

impl Block {
    fn words(&self) -> impl Iterator<Item = &str> {
        self.mark.split_whitespace()
    }

    /// Returns the values of `key` in the mark.
    fn said<'b>(&'b self, key: &'b str) -> impl Iterator<Item = &'b str> {
        self.words()
            .filter_map(move |word| word.strip_prefix(key)?.strip_prefix('='))
    }

    fn is(&self, kind: &str) -> bool {
        self.words().next() == Some(kind)
    }

    /// The configuration that the mark names; empty without one.
    fn around(&self) -> String {
        let names = self.said("with");
        names
            .map(|name| Document::read(&format!("tests/documents/{name}.toml")).text + "\n")
            .collect()
    }
}

/// The name that a heading has in links: its letters, digits and hyphens, with hyphens for spaces.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().to_lowercase();
    let letters = letters
        .chars()
        .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    letters.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// The names of the pages in `docs/`.
fn pages() -> Vec<String> {
    let entries = fs::read_dir(root().join("docs")).expect("the folder of the pages");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    let mut names: Vec<String> = names
        .filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"))
        .collect();
    names.sort();
    assert!(names.len() > 10, "there are few pages: {names:?}");
    names
}

fn documents() -> Vec<Document> {
    let mut documents = vec![Document::read("README.md"), Document::read("CONTRIBUTING.md")];
    documents.extend(pages().iter().map(|name| Document::read(&format!("docs/{name}"))));
    documents
}

/// All blocks that are marked as `kind`; there are some.
fn blocks_marked(kind: &str) -> Vec<Block> {
    let all = documents().into_iter().flat_map(|document| document.blocks());
    let blocks: Vec<Block> = all.filter(|block| block.is(kind)).collect();
    assert!(!blocks.is_empty(), "no block is marked with `{kind}`");
    blocks
}

/// The files of a folder in `tests/documents`, each with its path in there.
fn files_of(name: &str) -> Vec<(String, String)> {
    let top = root().join("tests/documents").join(name);
    let mut folders = vec![top.clone()];
    let mut files = vec![];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let inside = path
                .strip_prefix(&top)
                .expect("it is inside")
                .to_str()
                .expect("a path of text")
                .to_owned();
            files.push((inside, fs::read_to_string(&path).expect("a text")));
        }
    }
    files
}

/// The variables that a configuration takes from the environment, in braces.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    text.split("${")
        .skip(1)
        .filter_map(|rest| rest.split(['}', ':']).next())
}

/// A folder with an empty program for each that an example starts.
fn programs(folder: &Path, text: &str) -> PathBuf {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).expect("a folder");
    let commands = text
        .split("command")
        .skip(1)
        .filter_map(|rest| rest.trim_start_matches(['"', ' ', '=', ':']).split('"').next());
    for name in
        commands.filter(|name| !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || letter == '-'))
    {
        let program = bin.join(name);
        fs::write(&program, "#!/bin/sh\n").expect("a program");
        fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("rights");
    }
    bin
}

/// A secret that is long enough for a key of `[auth]`, and that is a line with a master key.
const SECRET: &str = "docs:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// The texts that a configuration gives to settings whose names have this ending.
fn texts_of<'t>(text: &'t str, ending: &str) -> impl Iterator<Item = &'t str> {
    let settings = text.lines().filter_map(|line| line.split_once('='));
    let settings = settings.filter(move |(name, _)| name.trim().ends_with(ending));
    settings.filter_map(|(_, value)| value.split('"').nth(1))
}

/// Runs `adjutant check` in a folder, with a secret in each variable and file that the configuration names.
fn check(folder: &Path, text: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
    command.arg("check").current_dir(folder);
    command.envs(variables(text).map(|name| (name, "value")));
    command.envs(texts_of(text, "_env").map(|name| (name, SECRET)));
    for path in texts_of(text, "_file").map(Path::new).filter(|path| path.is_relative()) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        fs::write(path, SECRET).expect("it can be written");
    }
    // The keys and programs of the examples are not on every machine.
    command.envs(["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "LAB_KEY"].map(|name| (name, "value")));
    command.env("PATH", programs(folder, text));
    command.output().expect("the program starts")
}

/// Returns the errors and warnings about the configuration that consists of these files.
fn mistakes(place: &str, files: &[(String, String)]) -> Option<String> {
    let folder = tempfile::tempdir().expect("a directory");
    let mut all = String::new();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        fs::write(path, text).expect("it can be written");
        all.push_str(text);
    }
    let output = check(folder.path(), &all);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let fine = output.status.success() && said.lines().any(|line| line == "0 errors, 0 warnings");
    (!fine).then(|| format!("{place}:\n{said}"))
}

/// The server of one session.
struct Demonstration {
    base: String,
    _process: Process,
    folder: tempfile::TempDir,
}

impl Demonstration {
    /// Starts the demonstration, or a server with this configuration.
    async fn start(configuration: &str) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let mut command = server_in(folder.path());
        command.args(["--listen", "127.0.0.1:0"]).env(OPS_KEY[0], OPS_KEY[1]);
        if !configuration.is_empty() {
            let file = folder.path().join("documents.toml");
            fs::write(&file, configuration).expect("a configuration");
            command.arg("--config").arg(file);
        }
        let process = Process::start(command).await;
        Self {
            base: process.base().await,
            _process: process,
            folder,
        }
    }
}

/// The search path of this process, behind the folder of the program.
fn path_with_the_program() -> OsString {
    let program = Path::new(env!("CARGO_BIN_EXE_adjutant"));
    let folder = program.parent().expect("a folder").to_path_buf();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).expect("a path")
}

/// Runs the sessions in these languages, each against a server of its own.
async fn sessions_come_to_their_end(languages: &[&str], program: &str, options: &str) {
    let blocks = blocks_marked("session");
    let blocks: Vec<&Block> = blocks
        .iter()
        .filter(|block| languages.contains(&block.language.as_str()))
        .collect();
    assert!(!blocks.is_empty(), "no session is in {languages:?}");
    for block in blocks {
        let server = Demonstration::start(&block.around()).await;
        let mut command = Command::new(program);
        let text = block.text.replace(BASE, &server.base);
        let examples = format!("python3 {}/examples/", root().display());
        let text = text.replace("python3 examples/", &examples);
        let text = text.replace(SERVICE_PORT, &free_port());
        command.args([options, &text]).current_dir(server.folder.path());
        command
            .env("PATH", path_with_the_program())
            .env(OPS_KEY[0], OPS_KEY[1])
            .env("BASE", &server.base)
            .env("JSON", "content-type: application/json");
        println!("{}", block.place);
        let said = runs_to_its_end(command).await;
        assert!(
            !said.contains("\"detail\""),
            "{}: something was refused:\n{said}",
            block.place
        );
        for line in &block.output {
            let quoted = serde_json::to_string(line).expect("JSON");
            let found = said.contains(line.as_str()) || said.contains(quoted.trim_matches('"'));
            assert!(found, "{}: {line} is missing in:\n{said}", block.place);
        }
        for promise in block.said("expect").map(|promise| promise.replace('_', " ")) {
            // Names have underscores, too.
            let found = said.replace('_', " ").contains(&promise);
            assert!(found, "{}: {promise} is missing in:\n{said}", block.place);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sessions_with_curl_succeed() {
    sessions_come_to_their_end(&["sh"], "sh", "-euc").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sessions_with_the_python_sdk_succeed() {
    let Some(python) = python() else { return };
    sessions_come_to_their_end(&["python"], &python, "-c").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_request_bodies_are_accepted() {
    let server = Demonstration::start("").await;
    let client = Client::new(&server.base);
    for block in blocks_marked("send") {
        let words: Vec<&str> = block.words().collect();
        let [_, "POST", path] = words[..] else {
            panic!("{}: `{}` is no POST", block.place, block.mark)
        };
        let thread = client.post("/threads", json!({})).await.ok();
        let path = path.replace("THREAD", thread["thread_id"].as_str().expect("an id"));
        let body: Value = serde_json::from_str(&block.text).unwrap_or_else(|error| panic!("{}: {error}", block.place));
        let answer = client.post(&path, body).await;
        assert!(answer.status < 300, "{}: {}", block.place, answer.body);
    }
}

/// Returns what the script prints that writes the tables of measurements.
fn script_of_measurements_says(option: &str) -> String {
    let script = root().join("benches/side_by_side.py");
    let output = Command::new("python3").arg("-B").arg(script).arg(option).output();
    let output = output.expect("python3");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_tables_of_measurements_have_the_rows_of_the_script_that_writes_them() {
    let names = script_of_measurements_says("--rows");
    let page = Document::read("docs/testing-and-performance.md").text;
    for bare in ["bare", "bare, on SQLite"] {
        let heading = format!("| What | adjutant | {bare} | ratio |\n");
        let (_, table) = page.split_once(&heading).expect("the table");
        let rows = table.lines().skip(1).take_while(|line| line.starts_with("| "));
        let written: Vec<&str> = rows.filter_map(|row| row[2..].split(" | ").next()).collect();
        assert_eq!(written, names.lines().collect::<Vec<_>>(), "{bare}");
    }
}

#[test]
fn the_readme_has_the_figures_of_the_page_about_measurements() {
    let text = Document::read("README.md").text;
    let (_, table) = text.split_once("<!-- figures -->\n").expect("the first mark");
    let (table, _) = table.split_once("<!-- end of figures -->\n").expect("the second mark");
    assert_eq!(table, script_of_measurements_says("--short"));
}

#[test]
fn every_example_has_a_mark_that_says_how_it_is_tested() {
    let kinds = ["check", "session", "send", "json", "not"];
    let mut without = vec![];
    for block in documents().iter().flat_map(Document::blocks) {
        let first = block.words().next().unwrap_or_default();
        let known = kinds.contains(&first) || first.starts_with("file=") || first.starts_with("excerpt=");
        let configuration = block.language != "toml" || first == "check" || first.starts_with("file=");
        if LANGUAGES.contains(&block.language.as_str()) && !(known && configuration) {
            without.push(format!(
                "{}: a block in {} with the mark `{}`",
                block.place, block.language, block.mark
            ));
        }
        assert!(LANGUAGES.contains(&block.language.as_str()) || ["", "text"].contains(&block.language.as_str()));
    }
    assert!(without.is_empty(), "{}", without.join("\n"));
}

#[test]
fn every_configuration_is_valid() {
    let blocks = blocks_marked("check");
    let wrong = blocks.iter().filter_map(|block| {
        mistakes(
            &block.place,
            &[("adjutant.toml".to_owned(), block.around() + &block.text)],
        )
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_beside_a_configuration_is_valid() {
    let mut wrong = vec![];
    let mut found = 0;
    for block in documents().iter().flat_map(Document::blocks) {
        let paths: Vec<&str> = block.said("file").collect();
        if let [path] = paths[..] {
            found += 1;
            let mut files: Vec<(String, String)> = block.said("in").flat_map(files_of).collect();
            files.push((path.to_owned(), block.text.clone()));
            wrong.extend(mistakes(&block.place, &files));
        }
    }
    assert!(found > 0, "no block is marked with `file=`");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_shown_response_is_json() {
    for block in blocks_marked("json") {
        let read = serde_json::from_str::<Value>(&block.text);
        assert!(read.is_ok(), "{}: {read:?}", block.place);
    }
}

#[test]
fn every_excerpt_is_in_its_file() {
    for block in documents().iter().flat_map(Document::blocks) {
        for path in block.said("excerpt") {
            let whole = Document::read(path);
            let lines: BTreeSet<&str> = whole.text.lines().map(str::trim).collect();
            for line in block
                .text
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty() && *line != "// …")
            {
                assert!(lines.contains(line), "{}: `{line}` is not in {path}", block.place);
            }
        }
    }
}

#[test]
fn every_link_leads_to_a_document_and_a_heading() {
    let mut broken = vec![];
    for document in documents() {
        let folder = Path::new(&document.path).parent().expect("a folder").to_path_buf();
        for link in document.links().into_iter().filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link.as_str(), ""));
            let path = if file.is_empty() {
                PathBuf::from(&document.path)
            } else {
                folder.join(file)
            };
            if !root().join(&path).exists() {
                broken.push(format!("{}: {link}: there is no such file", document.path));
            } else if !heading.is_empty() {
                let there = Document::read(path.to_str().expect("a path of text"));
                if !there.anchors().contains(heading) {
                    broken.push(format!("{}: {link}: there is no such heading", document.path));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The folders of the repository whose files the documents name.
const FOLDERS: [&str; 7] = [
    "benches/",
    "deploy/",
    "examples/",
    "migrations/",
    "openapi/",
    "src/",
    "tests/",
];

/// Returns the texts that a line has as code.
fn code_in(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Returns the files and folders of the repository that a line names as code.
fn named_files(line: &str) -> impl Iterator<Item = &str> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/_.-".contains(letter);
    code_in(line)
        .filter(move |name| FOLDERS.iter().any(|folder| name.starts_with(folder)) && name.chars().all(is_plain))
}

#[test]
fn every_file_that_a_document_names_exists() {
    let mut count = 0;
    let mut missing = vec![];
    for document in documents() {
        for name in document.prose().flat_map(named_files) {
            count += 1;
            if !root().join(name).exists() {
                missing.push(format!("{}: {name}", document.path));
            }
        }
    }
    assert!(count > 20, "{count} files are named");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// Returns the script of the repository that a command runs, and the options that it gives to it.
fn script_with_options(command: &str) -> Option<(&str, Vec<&str>)> {
    let is_script = |word: &&str| {
        let is_python = Path::new(word).extension().is_some_and(|end| end == "py");
        is_python && FOLDERS.iter().any(|folder| word.starts_with(folder))
    };
    let mut words = command.split_whitespace().take_while(|word| *word != "#");
    let script = words.find(is_script)?;
    let options = words.filter(|word| word.starts_with("--"));
    Some((script, options.collect()))
}

#[test]
fn every_option_that_a_document_gives_to_a_script_exists() {
    let mut count = 0;
    let mut unknown = vec![];
    for document in documents() {
        let blocks = document.blocks();
        let shell = blocks.iter().filter(|block| block.language == "sh");
        let shell = shell.flat_map(|block| block.text.lines());
        let quoted = document.prose().flat_map(code_in);
        for (script, options) in shell.chain(quoted).filter_map(script_with_options) {
            let text = Document::read(script).text;
            count += options.len();
            let missing = options.iter().filter(|option| !text.contains(&format!("\"{option}\"")));
            unknown.extend(missing.map(|option| format!("{}: {script} {option}", document.path)));
        }
    }
    assert!(count > 10, "{count} options are given");
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

#[test]
fn every_test_that_a_promise_names_exists() {
    let mut files = vec![];
    for folder in ["src", "tests"] {
        super::layers::collect(&root().join(folder), &mut files);
    }
    let source: String = files
        .iter()
        .map(|file| fs::read_to_string(file).expect("text"))
        .collect();
    let document = Document::read("docs/security.md");
    let rows = document.text.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let named: Vec<&str> = cells
        .flat_map(|cell| cell.split(|letter| !is_part(letter)))
        .filter(|word| word.matches('_').count() > 2)
        .collect();
    assert!(named.len() > 50, "{named:?}");
    let missing: Vec<&&str> = named
        .iter()
        .filter(|name| {
            // Macros make functions of such lines.
            let forms = [format!("fn {name}("), format!("\n    {name}(\"")];
            !forms.iter().any(|form| source.contains(form))
        })
        .collect();
    assert!(
        missing.is_empty(),
        "docs/security.md names tests that do not exist: {missing:#?}"
    );
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let contents = Document::read("docs/SUMMARY.md").links();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for link in &contents {
        *counts.entry(link).or_default() += 1;
    }
    assert!(contents.len() > 10, "{contents:?}");
    for page in pages().iter().filter(|page| *page != "SUMMARY.md") {
        assert_eq!(counts.get(page.as_str()), Some(&1), "docs/SUMMARY.md, {page}");
    }
}

#[test]
fn the_readme_is_short() {
    let lines = Document::read("README.md").text.lines().count();
    assert!(lines <= LONGEST_README, "the README has {lines} lines");
}

/// Returns the fields that a table of a configuration may have, from the error about an unknown field.
fn fields_of(configuration: &str) -> Vec<String> {
    let text = format!("{configuration}\nno_such_field = 1\n");
    let told = mistakes("", &[("adjutant.toml".to_owned(), text)]).expect("a mistake");
    let allowed = told
        .split_once("allowed are: ")
        .and_then(|(_, names)| names.lines().next());
    let allowed = allowed.unwrap_or_else(|| panic!("{configuration}: no fields are told in {told}"));
    allowed.split(", ").map(str::to_owned).collect()
}

#[test]
fn every_field_of_a_definition_is_in_a_table_of_its_page() {
    let agent = "[agents.described]\nmodel = \"openai:gpt-5\"";
    let subagent = format!("{agent}\n[[agents.described.subagents]]\nname = \"a\"\ndescription = \"d\"");
    let parts = [
        ("docs/agents.md", agent.to_owned()),
        (
            "docs/agents.md",
            format!("{agent}\n[agents.described.general_purpose_subagent]"),
        ),
        ("docs/agents.md", format!("{agent}\n[agents.described.limits]")),
        ("docs/agents.md", format!("{agent}\n[agents.described.state.x]")),
        ("docs/agents.md", format!("{agent}\n[[agents.described.permissions]]")),
        ("docs/subagents.md", subagent.clone()),
        (
            "docs/subagents.md",
            format!("{subagent}\n[agents.described.subagents.inherit]"),
        ),
        ("docs/models.md", "[profiles.openai]".to_owned()),
    ];
    for (path, configuration) in parts {
        let page = Document::read(path);
        for field in fields_of(&configuration) {
            let rows = page.prose().filter(|line| line.starts_with('|'));
            let mut cells = rows.filter_map(|row| row.split('|').nth(1));
            assert!(
                cells.any(|cell| cell.contains(&format!("`{field}`"))),
                "{path} has no row for `{field}`"
            );
        }
    }
}
