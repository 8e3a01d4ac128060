use std::collections::BTreeMap;

use serde_json::Map;

use super::*;
use crate::domain::item::template::NamespaceTemplate;
use crate::domain::message::Role;
use crate::domain::state::Encoding;
use crate::domain::time::Timestamp;

const EARLIER: Timestamp = Timestamp(1_000_000);
const NOW: Timestamp = Timestamp(2_000_000);

fn state(files: &[(&str, &str)]) -> State {
    let files = files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), Arc::new(File::text(*text, EARLIER))));
    State {
        files: files.collect(),
        ..State::default()
    }
}

async fn answer(state: &State, name: &str, args: Value) -> ToolOutput {
    let workspace: Arc<dyn FileWorkspace> = Arc::new(StateFiles);
    let tool = tools(&workspace, &FileRules::default(), MAX_RESULT_CHARS)
        .into_iter()
        .find(|tool| tool.spec().name == name)
        .expect(name);
    let args: Map<String, Value> = args.as_object().cloned().unwrap_or_default();
    match tool
        .call(&Scope::sample(NOW), state, &ToolCall::new("c1", name, args))
        .await
    {
        Ok(CallOutcome::Answer(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

/// Returns the text of the result, with a leading `!` if it is an error.
async fn text_of(state: &State, name: &str, args: Value) -> String {
    let answer = answer(state, name, args).await;
    let message = &answer.writes.messages[0];
    let mark = if matches!(
        message.role,
        Role::Tool {
            status: ToolStatus::Error,
            ..
        }
    ) {
        "!"
    } else {
        ""
    };
    format!("{mark}{}", message.content)
}

#[tokio::test]
async fn ls_shows_what_lies_directly_in_a_directory() {
    let state = state(&[("/a.txt", ""), ("/dir/b.txt", ""), ("/dir/deep/c.txt", "")]);
    assert_eq!(text_of(&state, "ls", json!({"path": "/"})).await, "['/a.txt', '/dir/']");
    assert_eq!(
        text_of(&state, "ls", json!({"path": "dir/"})).await,
        "['/dir/b.txt', '/dir/deep/']"
    );
    assert_eq!(
        text_of(&state, "ls", json!({"path": "/none"})).await,
        "No files found in /none"
    );
    assert!(text_of(&state, "ls", json!({"path": "/../x"})).await.starts_with('!'));
}

#[tokio::test]
async fn read_file_shows_lines_under_a_header() {
    let state = state(&[
        ("/two", "line one\nline two"),
        ("/five", "1\n2\n3\n4\n5\n"),
        ("/empty", ""),
    ]);
    let cases = [
        (json!({"file_path": "/two"}), "@@ lines 1-2 of 2 @@\nline one\nline two"),
        (
            json!({"file_path": "/five", "limit": 2}),
            "@@ lines 1-2 of 5 | next offset 2 @@\n1\n2",
        ),
        (
            json!({"file_path": "/five", "offset": 2, "limit": 2}),
            "@@ lines 3-4 of 5 | next offset 4 @@\n3\n4",
        ),
        (json!({"file_path": "/five", "offset": 4}), "@@ lines 5-5 of 5 @@\n5"),
        (
            json!({"file_path": "/five", "offset": 2.0, "limit": 2.0}),
            "@@ lines 3-4 of 5 | next offset 4 @@\n3\n4",
        ),
        (
            json!({"file_path": "/five", "offset": 5}),
            "!Error: offset 5 is beyond the end of '/five', which has 5 lines",
        ),
        (json!({"file_path": "/none"}), "!Error: File '/none' not found"),
        (
            json!({"file_path": "/empty"}),
            "Note: the file '/empty' exists, but is empty.",
        ),
        (
            json!({"file_path": "/five", "limit": 0}),
            "Note: no lines were asked for (limit 0). The file '/five' has 5 lines.",
        ),
    ];
    for (args, expected) in cases {
        assert_eq!(text_of(&state, "read_file", args).await, expected);
    }
}

#[tokio::test]
async fn a_page_never_exceeds_the_limit() {
    let long = format!("{}\n{}\n", "a".repeat(50_000), "b".repeat(50_000));
    let state = state(&[("/lines", &long), ("/line", &"q".repeat(100_000))]);
    let page = text_of(&state, "read_file", json!({"file_path": "/lines"})).await;
    assert!(page.starts_with("@@ lines 1-1 of 2 | next offset 1 @@\naaa"));
    assert!(!page.contains('b'));
    let page = text_of(&state, "read_file", json!({"file_path": "/line"})).await;
    assert_eq!(page.matches('q').count(), MAX_RESULT_CHARS);
}

#[tokio::test]
async fn a_binary_file_is_shown_as_a_block() {
    let file = File {
        encoding: Encoding::Base64,
        ..File::text("aGk=", EARLIER)
    };
    let files = BTreeMap::from([
        ("/p.PNG".to_owned(), Arc::new(file.clone())),
        ("/x.bin".to_owned(), Arc::new(file)),
    ]);
    let state = State {
        files,
        ..State::default()
    };
    let image = answer(&state, "read_file", json!({"file_path": "/p.PNG"})).await;
    let expected = json!({"type": "image", "base64": "aGk=", "mime_type": "image/png"});
    assert_eq!(image.writes.messages[0].content, Content::Blocks(vec![expected]));
    let other = answer(&state, "read_file", json!({"file_path": "/x.bin"})).await;
    let expected =
        json!({"type": "file", "base64": "aGk=", "mime_type": "application/octet-stream", "filename": "x.bin"});
    assert_eq!(other.writes.messages[0].content, Content::Blocks(vec![expected]));
}

#[tokio::test]
async fn write_file_creates_or_replaces_and_keeps_the_creation_time() {
    let state = state(&[("/old", "A")]);
    let replaced = answer(&state, "write_file", json!({"file_path": "old", "content": "B"})).await;
    assert_eq!(replaced.writes.messages[0].content, Content::from("Updated file /old"));
    let expected = File {
        created_at: Some(EARLIER.to_string()),
        ..File::text("B", NOW)
    };
    assert_eq!(
        replaced.writes.files,
        BTreeMap::from([("/old".to_owned(), Some(Arc::new(expected)))])
    );
    let created = answer(&state, "write_file", json!({"file_path": "/new", "content": "C"})).await;
    assert_eq!(
        created.writes.files,
        BTreeMap::from([("/new".to_owned(), Some(Arc::new(File::text("C", NOW))))])
    );
}

#[tokio::test]
async fn paths_outside_the_workspace_are_refused() {
    for path in ["../x", "~/x", "C:\\x"] {
        let text = text_of(
            &State::default(),
            "write_file",
            json!({"file_path": path, "content": ""}),
        )
        .await;
        assert!(text.starts_with("!Error: the path '"), "{text}");
    }
}

#[tokio::test]
async fn edit_file_reports_the_number_of_replacements_or_an_error() {
    let state = state(&[("/f", "a b a\nend")]);
    let edit =
        |old: &str, all: bool| json!({"file_path": "/f", "old_string": old, "new_string": "x", "replace_all": all});
    assert_eq!(
        text_of(&state, "edit_file", edit("b", false)).await,
        "Replaced 1 occurrence in '/f'"
    );
    assert_eq!(
        text_of(&state, "edit_file", edit("a", true)).await,
        "Replaced 2 occurrences in '/f'"
    );
    let cases = [
        (edit("a", false), "appears 2 times"),
        (edit("z", false), "was not found"),
        (edit("end\n", false), "without the newline"),
        (edit("", false), "is empty"),
        (
            json!({"file_path": "/none", "old_string": "a", "new_string": "b"}),
            "not found",
        ),
    ];
    for (args, fact) in cases {
        let text = text_of(&state, "edit_file", args).await;
        assert!(text.starts_with('!') && text.contains(fact), "{text}");
    }
    let edited = answer(&state, "edit_file", edit("a", true)).await;
    assert_eq!(
        edited.writes.files["/f"].as_ref().expect("a file").content,
        "x b x\nend"
    );
}

#[tokio::test]
async fn delete_removes_a_directory_with_all_files_in_it() {
    let state = state(&[("/dir/a", ""), ("/dir/b/c", ""), ("/dirt", "")]);
    let deleted = answer(&state, "delete", json!({"file_path": "/dir"})).await;
    assert_eq!(deleted.writes.messages[0].content, Content::from("Deleted /dir"));
    assert_eq!(
        deleted.writes.files,
        BTreeMap::from([("/dir/a".to_owned(), None), ("/dir/b/c".to_owned(), None)])
    );
    assert_eq!(
        text_of(&state, "delete", json!({"file_path": "/none"})).await,
        "!Error: File '/none' not found"
    );
    assert!(
        text_of(&state, "delete", json!({"file_path": "/"}))
            .await
            .starts_with('!')
    );
}

#[tokio::test]
async fn glob_lists_paths() {
    let state = state(&[("/a.md", ""), ("/src/b.md", ""), ("/src/c.rs", "")]);
    assert_eq!(
        text_of(&state, "glob", json!({"pattern": "*.md"})).await,
        "['/a.md', '/src/b.md']"
    );
    assert_eq!(
        text_of(&state, "glob", json!({"pattern": "*.md", "path": "/src"})).await,
        "['/src/b.md']"
    );
    assert!(
        text_of(&state, "glob", json!({"pattern": "*.py"}))
            .await
            .starts_with("No files found")
    );
    assert!(text_of(&state, "glob", json!({"pattern": "[a"})).await.starts_with('!'));
}

#[tokio::test]
async fn grep_finds_text_literally_in_three_forms() {
    let state = state(&[
        ("/a.md", "one a.*b\ntwo\nthree a.*b"),
        ("/src/b.rs", "a.*b"),
        ("/src/c.rs", "axxb"),
    ]);
    let cases = [
        (json!({"pattern": "a.*b"}), "/a.md\n/src/b.rs"),
        (
            json!({"pattern": "a.*b", "output_mode": "count"}),
            "/a.md: 2\n/src/b.rs: 1",
        ),
        (
            json!({"pattern": "a.*b", "output_mode": "content", "glob": "*.md"}),
            "/a.md:\n  1: one a.*b\n  3: three a.*b",
        ),
        (json!({"pattern": "a.*b", "path": "/src"}), "/src/b.rs"),
        (json!({"pattern": "two", "path": "/a.md"}), "/a.md"),
        (
            json!({"pattern": "a.*b", "output_mode": "count", "max_count": 1}),
            "/a.md: 1\n[The search stopped after 1 matching lines; there may be more.]",
        ),
        (json!({"pattern": "zzz"}), "No matches found for 'zzz'."),
    ];
    for (args, expected) in cases {
        assert_eq!(text_of(&state, "grep", args).await, expected);
    }
    let hint = text_of(&state, "grep", json!({"pattern": "z.*y"})).await;
    assert!(hint.contains("taken literally"), "{hint}");
}

/// Reads a file page by page as the headers say. Returns what was shown, and the numbers of characters of the pages.
async fn read_through(state: &State, path: &str, limit: usize) -> (String, Vec<usize>) {
    let number_after = |header: &str, name: &str| -> Option<usize> {
        let rest = header.split_once(name)?.1;
        rest.split_whitespace().next()?.parse().ok()
    };
    let mut whole = String::new();
    let mut sizes = vec![];
    let mut offset = 0;
    let mut char_offset = 0;
    loop {
        let args = json!({"file_path": path, "offset": offset, "limit": limit, "char_offset": char_offset});
        let page = text_of(state, "read_file", args).await;
        let (header, shown) = page.split_once('\n').expect("a header");
        assert!(header.starts_with("@@ lines "), "{header}");
        whole.push_str(shown);
        sizes.push(shown.chars().count());
        if let Some(next) = number_after(header, "next char_offset ") {
            assert_eq!(number_after(header, "with offset "), Some(offset), "{header}");
            char_offset = next;
        } else if let Some(next) = number_after(header, "next offset ") {
            whole.push('\n');
            offset = next;
            char_offset = 0;
        } else {
            return (whole, sizes);
        }
    }
}

#[tokio::test]
async fn a_file_with_long_lines_can_be_read_to_its_end() {
    let line: String = (0..40_000).map(|number| format!("{number:06}é")).collect();
    let texts = [
        line.clone(),
        format!("first\n{line}\r\nlast\n{line}\n\nend"),
        format!("{}\n{}", "é".repeat(MAX_RESULT_CHARS), "z".repeat(MAX_RESULT_CHARS + 1)),
    ];
    for text in &texts {
        for limit in [1, 100] {
            let (whole, sizes) = read_through(&state(&[("/long", text.as_str())]), "/long", limit).await;
            assert!(whole == *text, "{} characters of {}", whole.len(), text.len());
            assert!(sizes.iter().all(|size| *size <= MAX_RESULT_CHARS + 1), "{sizes:?}");
        }
    }
}

#[tokio::test]
async fn the_header_of_a_cut_line_says_where_it_goes_on() {
    let long = format!("{}end", "é".repeat(100_000));
    let state = state(&[("/f", &format!("one\n{long}\r\nthree"))]);
    let cases = [
        (
            json!({"file_path": "/f"}),
            "@@ lines 1-1 of 3 | next offset 1 @@",
            "one",
        ),
        (
            json!({"file_path": "/f", "offset": 1}),
            "@@ lines 2-2 of 3 | characters 1-80000 of 100003 in line 2 | next char_offset 80000 with offset 1 @@",
            "é",
        ),
        (
            json!({"file_path": "/f", "offset": 1, "char_offset": 100_000}),
            "@@ lines 2-3 of 3 | characters 100001-100003 of 100003 in line 2 @@",
            "end\r\nthree",
        ),
        (
            json!({"file_path": "/f", "offset": 1, "char_offset": 100_002, "limit": 1}),
            "@@ lines 2-2 of 3 | characters 100003-100003 of 100003 in line 2 | next offset 2 @@",
            "d\r",
        ),
    ];
    for (args, header, end) in cases {
        let page = text_of(&state, "read_file", args).await;
        assert_eq!(page.lines().next(), Some(header));
        assert!(page.ends_with(end), "{header}");
    }
    let beyond = json!({"file_path": "/f", "offset": 1, "char_offset": 100_003});
    assert_eq!(
        text_of(&state, "read_file", beyond).await,
        "!Error: char_offset 100003 is beyond the end of line 2 of '/f', which has 100003 characters"
    );
}

#[tokio::test]
async fn an_agent_with_short_results_reads_short_pages() {
    let state = state(&[("/line", &"q".repeat(10_000))]);
    let workspace: Arc<dyn FileWorkspace> = Arc::new(StateFiles);
    for (max, length) in [(1, MIN_PAGE_CHARS), (6_000, 6_000), (usize::MAX, 10_000)] {
        let tools = tools(&workspace, &FileRules::default(), max);
        let reader = tools.iter().find(|tool| tool.spec().name == "read_file").expect("it");
        let args = Map::from_iter([("file_path".to_owned(), json!("/line"))]);
        let call = ToolCall::new("c1", "read_file", args);
        let Ok(CallOutcome::Answer(answer)) = reader.call(&Scope::sample(NOW), &state, &call).await else {
            panic!("no answer")
        };
        let page = answer.writes.messages[0].content.text();
        assert_eq!(page.matches('q').count(), length);
    }
}

#[tokio::test]
async fn a_binary_file_without_content_is_told_to_be_empty() {
    let file = File {
        encoding: Encoding::Base64,
        ..File::text("", EARLIER)
    };
    let state = State {
        files: BTreeMap::from([("/p.png".to_owned(), Arc::new(file))]),
        ..State::default()
    };
    assert_eq!(
        text_of(&state, "read_file", json!({"file_path": "/p.png"})).await,
        "Note: the file '/p.png' exists, but is empty."
    );
}

#[tokio::test]
async fn grep_says_where_else_the_text_stands_in_a_long_line() {
    let field = |number: usize| format!("{number:04}needle{}", "é".repeat(1_990));
    let line: String = (0..13).map(field).collect();
    let state = state(&[("/long.json", line.as_str())]);
    let args = json!({"pattern": "needle", "output_mode": "content"});
    let said = text_of(&state, "grep", args).await;
    let others: Vec<String> = (1..11).map(|number| (number * 2_000 + 4).to_string()).collect();
    let end = format!(" [cut; also at char_offset {} and 2 more]", others.join(", "));
    assert!(said.starts_with("/long.json:\n  1: 0000needle"), "{said:.100}");
    assert!(said.ends_with(&end), "{}", said.replace('é', ""));
    let args = json!({"file_path": "/long.json", "char_offset": 2_004, "limit": 1});
    let page = text_of(&state, "read_file", args).await;
    assert!(page.contains(" @@\nneedleé"), "{page:.100}");
}

#[tokio::test]
async fn grep_says_that_a_text_with_a_line_break_is_never_found() {
    let state = state(&[("/a.md", "one\ntwo")]);
    let said = text_of(&state, "grep", json!({"pattern": "one\ntwo"})).await;
    assert!(said.starts_with("No matches found for "), "{said}");
    assert!(
        said.ends_with("Each line is searched alone, so no text with a line break is found."),
        "{said}"
    );
}

#[tokio::test]
async fn grep_shows_of_a_long_line_the_part_with_the_text() {
    let line = format!("{}needle é{}", "é".repeat(5_000), "z".repeat(5_000));
    let state = state(&[("/long.json", line.as_str()), ("/short.txt", "a needle")]);
    let args = json!({"pattern": "needle", "output_mode": "content"});
    let said = text_of(&state, "grep", args).await;
    let shown = format!(
        "  1: [from char_offset 4750] {}needle é{} [cut]",
        "é".repeat(250),
        "z".repeat(742)
    );
    assert_eq!(said, format!("/long.json:\n{shown}\n/short.txt:\n  1: a needle"));
}

/// A workspace in which someone else writes each file at once when it was read.
struct ChangedWhenRead(Arc<dyn FileWorkspace>);

#[async_trait]
impl FileWorkspace for ChangedWhenRead {
    fn is_shared(&self, path: &str) -> bool {
        self.0.is_shared(path)
    }

    async fn paths(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<FoundPaths, String> {
        self.0.paths(access, query).await
    }

    async fn read(&self, access: FileAccess<'_>, path: &str) -> Result<Option<Arc<File>>, String> {
        let file = self.0.read(access, path).await?;
        let other = File::text("theirs", NOW);
        self.0.write(access, path, other, file.as_deref()).await?;
        Ok(file)
    }

    async fn write(
        &self,
        access: FileAccess<'_>,
        path: &str,
        file: File,
        before: Option<&File>,
    ) -> Result<Update, String> {
        self.0.write(access, path, file, before).await
    }

    async fn delete(
        &self,
        access: FileAccess<'_>,
        path: &str,
        files: Vec<String>,
        before: Option<&File>,
    ) -> Result<Option<Update>, String> {
        self.0.delete(access, path, files, before).await
    }
}

/// Calls a tool of this workspace with the path `/f`. Returns its text; what it writes is a part of the state then.
async fn of_file(workspace: &Arc<dyn FileWorkspace>, scope: &Scope, state: &mut State, name: &str) -> String {
    let tools = tools(workspace, &FileRules::default(), MAX_RESULT_CHARS);
    let tool = tools.iter().find(|tool| tool.spec().name == name).expect("a tool");
    let args = Map::from_iter([("file_path".to_owned(), json!("/f"))]);
    let outcome = tool.call(scope, state, &ToolCall::new("c1", name, args)).await;
    let Ok(CallOutcome::Answer(answer)) = outcome else {
        panic!("no answer")
    };
    let said = answer.writes.messages[0].content.text();
    state.apply(&answer.writes);
    said
}

#[tokio::test]
async fn a_file_that_changes_after_it_was_compared_is_not_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let namespace = NamespaceTemplate::read(&["files".to_owned()]).expect("a template");
    let workspaces: [Arc<dyn FileWorkspace>; 2] = [
        Arc::new(DiskFiles::new(folder.path().to_owned())),
        Arc::new(StoreFiles::new(namespace)),
    ];
    for workspace in workspaces {
        let scope = Scope::sample(NOW);
        let mut state = State::default();
        let start = State::default();
        let access = FileAccess {
            scope: &scope,
            state: &start,
        };
        let mine = File::text("mine", EARLIER);
        workspace.write(access, "/f", mine, None).await.expect("a file");
        let said = of_file(&workspace, &scope, &mut state, "read_file").await;
        assert!(said.ends_with("mine"), "{said}");
        let changed: Arc<dyn FileWorkspace> = Arc::new(ChangedWhenRead(Arc::clone(&workspace)));
        let said = of_file(&changed, &scope, &mut state, "delete").await;
        assert!(said.contains("has been changed by someone else"), "{said}");
        let said = of_file(&workspace, &scope, &mut state, "read_file").await;
        assert!(said.ends_with("theirs"), "{said}");
        let said = of_file(&workspace, &scope, &mut state, "delete").await;
        assert_eq!(said, "Deleted /f");
        assert_eq!(workspace.read(access, "/f").await, Ok(None));
    }
}
