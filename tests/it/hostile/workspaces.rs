//! Hostile contents of workspaces on the disk: links, pipes, huge and binary files, many files, odd patterns.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{TestServer, call, on_both_engines, script, transcript};

const AGENT: &str = r#"
[agents.digger]
model = "scripted:lab"
workspace = { kind = "disk", root = "work" }

[[agents.digger.permissions]]
operations = ["read", "write"]
paths = ["/secret/**"]
mode = "deny"

[[agents.digger.permissions]]
operations = ["write"]
paths = ["/ask/**"]
mode = "interrupt"
"#;

async fn set_up(server: &TestServer) {
    server.file_is_written("work/a.txt", "inside\n");
    server.file_is_written("work/secret/key.txt", "hidden\n");
    server.file_is_written("work/ask/b.txt", "asked\n");
    server.file_is_written("outside/passwd", "outside\n");
    server.is_configured_with(AGENT).await;
}

/// Lets the agent make these calls, and returns their results.
async fn results(server: &TestServer, calls: Vec<(&str, Value)>) -> Vec<String> {
    let numbered = calls.into_iter().enumerate();
    let asked = numbered.fold(script(), |script, (at, (tool, args))| {
        script.calls(call(&format!("c{at}"), tool, args))
    });
    let said = transcript(&server.human("digger").await.says(asked.says("done")).await);
    said.into_iter().skip(2).step_by(2).collect()
}

on_both_engines! {
    nothing_leads_out_of_a_workspace_on_the_disk,
    links_within_a_workspace_do_not_pass_by_its_rules,
    pipes_and_devices_are_never_opened,
    huge_and_binary_files_are_met_with_their_size_or_as_blocks,
    searches_of_many_files_and_with_odd_patterns_end,
}

async fn nothing_leads_out_of_a_workspace_on_the_disk(server: TestServer) {
    set_up(&server).await;
    let work = server.path_of("work");
    symlink(server.path_of("outside"), work.join("out")).expect("a link");
    symlink(server.path_of("outside/passwd"), work.join("passwd")).expect("a link");
    symlink("/etc/passwd", work.join("etc")).expect("a link");
    symlink("../outside/passwd", work.join("up")).expect("a link");
    symlink("nowhere", work.join("nowhere")).expect("a link");
    symlink(".", work.join("loop")).expect("a link");
    let mut calls = vec![];
    for path in [
        "/out/passwd",
        "/passwd",
        "/etc",
        "/up",
        "/../outside/passwd",
        "../outside/passwd",
        "~/x",
        "C:\\x",
        "/nowhere",
    ] {
        calls.push(("read_file", json!({"file_path": path})));
        calls.push(("write_file", json!({"file_path": path, "content": "broken"})));
        calls.push((
            "edit_file",
            json!({"file_path": path, "old_string": "o", "new_string": "x"}),
        ));
    }
    let count = calls.len();
    calls.push(("ls", json!({"path": "/"})));
    calls.push(("glob", json!({"pattern": "**/passwd"})));
    calls.push(("grep", json!({"pattern": "outside"})));
    calls.push(("grep", json!({"pattern": "inside"})));
    calls.push(("delete", json!({"file_path": "/passwd"})));
    calls.push(("delete", json!({"file_path": "/out"})));
    let said = results(&server, calls).await;
    for refused in &said[..count] {
        assert!(refused.contains("Error") && !refused.contains("root:"), "{refused}");
    }
    assert!(
        !said[count].contains("passwd") && !said[count].contains("/out"),
        "{}",
        said[count]
    );
    assert!(said[count + 1].contains("No files found"), "{}", said[count + 1]);
    assert!(said[count + 2].contains("No matches"), "{}", said[count + 2]);
    assert_eq!(said[count + 3], "grep: /a.txt");
    assert_eq!(
        fs::read_to_string(server.path_of("outside/passwd")).expect("a file"),
        "outside\n"
    );
    assert!(
        work.join("passwd").symlink_metadata().is_err(),
        "the link itself is deleted"
    );
}

async fn links_within_a_workspace_do_not_pass_by_its_rules(server: TestServer) {
    set_up(&server).await;
    let work = server.path_of("work");
    symlink("secret/key.txt", work.join("open.txt")).expect("a link");
    symlink("secret", work.join("dir")).expect("a link");
    symlink("ask/b.txt", work.join("free.txt")).expect("a link");
    symlink("a.txt", work.join("alias.txt")).expect("a link");
    let said = results(
        &server,
        vec![
            ("read_file", json!({"file_path": "/open.txt"})),
            ("read_file", json!({"file_path": "/dir/key.txt"})),
            ("write_file", json!({"file_path": "/dir/new.txt", "content": "x"})),
            ("write_file", json!({"file_path": "/free.txt", "content": "x"})),
            ("ls", json!({"path": "/"})),
            ("grep", json!({"pattern": "hidden", "path": "/dir"})),
            (
                "edit_file",
                json!({"file_path": "/alias.txt", "old_string": "inside", "new_string": "changed"}),
            ),
        ],
    )
    .await;
    for refused in &said[..3] {
        assert!(refused.contains("permission denied"), "{said:#?}");
    }
    assert!(said[3].contains("for which a human has to be asked"), "{}", said[3]);
    assert!(
        !said[4].contains("open.txt") && said[4].contains("alias.txt"),
        "{}",
        said[4]
    );
    assert!(!said[5].contains("key.txt"), "{}", said[5]);
    assert!(said[6].contains("Replaced 1"), "{}", said[6]);
    assert_eq!(fs::read_to_string(work.join("a.txt")).expect("a file"), "changed\n");
    assert!(work.join("alias.txt").is_symlink(), "the link is kept");
    assert_eq!(fs::read_to_string(work.join("ask/b.txt")).expect("a file"), "asked\n");
}

async fn pipes_and_devices_are_never_opened(server: TestServer) {
    set_up(&server).await;
    let work = server.path_of("work");
    let made = Command::new("mkfifo").arg(work.join("pipe")).status().expect("mkfifo");
    assert!(made.success());
    let socket = std::os::unix::net::UnixListener::bind(work.join("socket")).expect("a socket");
    let said = results(
        &server,
        vec![
            ("read_file", json!({"file_path": "/pipe"})),
            ("write_file", json!({"file_path": "/pipe", "content": "x"})),
            (
                "edit_file",
                json!({"file_path": "/pipe", "old_string": "x", "new_string": "y"}),
            ),
            ("read_file", json!({"file_path": "/socket"})),
            ("grep", json!({"pattern": "inside"})),
            ("read_file", json!({"file_path": "/secret/.."})),
            ("read_file", json!({"file_path": "/ask"})),
        ],
    )
    .await;
    for refused in &said[..4] {
        assert!(refused.contains("a pipe, a socket or a device"), "{said:#?}");
    }
    assert_eq!(said[4], "grep: /a.txt");
    assert!(said[6].contains("is a directory"), "{}", said[6]);
    drop(socket);
}

async fn huge_and_binary_files_are_met_with_their_size_or_as_blocks(server: TestServer) {
    set_up(&server).await;
    let work = server.path_of("work");
    let huge = fs::File::create(work.join("huge.bin")).expect("a file");
    huge.set_len(8 * 1024 * 1024 * 1024).expect("a sparse file");
    fs::write(
        work.join("long.txt"),
        format!("{}needle\n", "x".repeat(5 * 1024 * 1024)),
    )
    .expect("a file");
    fs::write(work.join("zero.txt"), "needle\0").expect("a file");
    fs::write(work.join("latin.txt"), b"caf\xe9 needle\n").expect("a file");
    let said = results(
        &server,
        vec![
            ("read_file", json!({"file_path": "/huge.bin"})),
            (
                "edit_file",
                json!({"file_path": "/huge.bin", "old_string": "x", "new_string": "y"}),
            ),
            ("write_file", json!({"file_path": "/huge.bin", "content": "y"})),
            ("grep", json!({"pattern": "needle", "output_mode": "count"})),
            (
                "edit_file",
                json!({"file_path": "/zero.txt", "old_string": "needle", "new_string": "y"}),
            ),
            (
                "grep",
                json!({"pattern": "needle", "path": "/long.txt", "output_mode": "content"}),
            ),
        ],
    )
    .await;
    for refused in &said[..3] {
        assert!(refused.contains("has 8589934592 bytes"), "{said:#?}");
    }
    assert!(
        said[3].contains("/long.txt: 1") && !said[3].contains("zero.txt"),
        "{}",
        said[3]
    );
    assert!(said[4].contains("is a binary file"), "{}", said[4]);
    assert!(said[5].contains("xneedle") && said[5].len() < 2_000, "{}", said[5]);
}

async fn searches_of_many_files_and_with_odd_patterns_end(server: TestServer) {
    set_up(&server).await;
    let many = server.path_of("work/many");
    for folder in 0..30 {
        let folder = many.join(format!("d{folder}"));
        fs::create_dir_all(&folder).expect("a folder");
        for file in 0..400 {
            fs::write(folder.join(format!("f{file}.txt")), "needle\n").expect("a file");
        }
    }
    let flat = server.path_of("work/flat");
    fs::create_dir_all(&flat).expect("a folder");
    for file in 0..=10_000 {
        fs::write(flat.join(format!("f{file}")), "").expect("a file");
    }
    let deep = (0..80).fold(many.clone(), |path, _| path.join("d"));
    fs::create_dir_all(&deep).expect("folders");
    fs::write(deep.join("end.txt"), "needle").expect("a file");
    fs::write(
        server.path_of("work/.gitignore"),
        format!("{}zzz\n[\n{}", "**/".repeat(2000), "{a,b}".repeat(500)),
    )
    .expect("a file");
    let explosive = "**/a".repeat(200);
    let braces = "{a,b}".repeat(40);
    let said = results(
        &server,
        vec![
            ("glob", json!({"pattern": "**/*.txt"})),
            ("grep", json!({"pattern": "needle"})),
            ("glob", json!({"pattern": explosive})),
            ("glob", json!({"pattern": braces})),
            ("glob", json!({"pattern": "x".repeat(2000)})),
            ("delete", json!({"file_path": "/many"})),
            ("glob", json!({"pattern": "a.txt"})),
            ("ls", json!({"path": "/flat"})),
            ("ls", json!({"path": "/many"})),
        ],
    )
    .await;
    assert!(
        said[0].contains("Only the first 1000 of 10000 paths") && said[0].contains("search stopped"),
        "{}",
        said[0]
    );
    assert!(
        said[1].contains("search stopped after 1000 matching lines"),
        "{}",
        said[1]
    );
    assert!(
        said[2].contains("No files found") || said[2].contains("search stopped"),
        "{}",
        said[2]
    );
    assert!(said[3].contains("cannot be used"), "{}", said[3]);
    assert!(said[4].contains("longer than 1000 bytes"), "{}", said[4]);
    assert!(said[5].contains("too many files to be deleted at once"), "{}", said[5]);
    assert!(
        said[6].starts_with("glob: ['/a.txt']\n[The search stopped"),
        "{}",
        said[6]
    );
    assert!(
        said[7].ends_with("[The list is not complete: there are too many files. List a directory further down.]"),
        "{}",
        said[7]
    );
    assert!(said[8].ends_with("'/many/d9/']"), "{}", said[8]);
    assert!(many.join("d0/f0.txt").exists());
}
