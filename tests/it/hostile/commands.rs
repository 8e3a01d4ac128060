//! Hostile commands of `execute`, with each isolation that works on this machine: they read nothing of the server,
//! change nothing outside of their workspace, and end within their limits.

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::agents::execute::{LAYERS, endless, is_refused, is_running, results, set_up, sh, with_each_layer, working};
use crate::support::{TestServer, call, on_both_engines};

on_both_engines! {
    commands_read_nothing_of_the_server,
    commands_change_nothing_outside_of_their_workspace,
    commands_reach_no_network_and_no_socket,
    commands_gain_no_rights,
    commands_see_no_process_and_no_descriptor_of_the_server,
    a_fork_bomb_is_killed,
    memory_and_files_are_bounded,
    a_command_does_not_fill_the_disk,
    endless_output_is_bounded,
    a_command_that_takes_too_long_is_killed_with_all_that_it_has_started,
    what_a_command_leaves_behind_is_killed_with_its_shell,
    only_listed_variables_reach_a_command,
}

with_each_layer! {
    commands_read_nothing_of_the_server("") => reads_nothing,
    commands_change_nothing_outside_of_their_workspace("") => changes_nothing,
    commands_reach_no_network_and_no_socket("") => reaches_nothing,
    commands_gain_no_rights("") => gains_nothing,
    commands_see_no_process_and_no_descriptor_of_the_server("") => sees_nothing,
    a_fork_bomb_is_killed(", max_processes = 40") => kills_a_fork_bomb,
    memory_and_files_are_bounded(", memory_mb = 128, max_file_mb = 4, cpu_s = 1") => bounds_memory_and_files,
    a_command_does_not_fill_the_disk(", min_free_mb = 1000000000") => leaves_space,
    endless_output_is_bounded(", max_output_bytes = 2000") => bounds_output,
    a_command_that_takes_too_long_is_killed_with_all_that_it_has_started(", timeout_s = 1") => kills_what_takes_too_long,
    what_a_command_leaves_behind_is_killed_with_its_shell("") => kills_what_is_left,
    only_listed_variables_reach_a_command(", env = [\"CARGO_MANIFEST_DIR\"]") => passes_listed_variables,
}

/// Runs one command and returns its result.
async fn said(server: &TestServer, command: &str) -> String {
    results(server, "worker", vec![sh("c1", command)]).await.remove(0)
}

async fn reads_nothing(server: &TestServer, layer: &str) {
    server.file_is_written("secrets/key.txt", "hidden-key\n");
    let outside = server.path_of("secrets/key.txt");
    let link = server.path_of(&format!("work/link-{layer}"));
    symlink(&outside, &link).expect("a link");
    let configuration = server.configuration();
    let database = server.path_of("adjutant.db");
    for place in [
        outside.display().to_string(),
        configuration.display().to_string(),
        database.display().to_string(),
        format!("link-{layer}"),
        "../adjutant.toml".to_owned(),
        "../secrets/key.txt".to_owned(),
        "/etc/shadow".to_owned(),
        "/root/.bashrc".to_owned(),
    ] {
        let result = said(
            server,
            &format!("cat '{place}' 2>&1 | head -c 3000; ls '{place}/..' 2>&1 | head -50; true"),
        )
        .await;
        for secret in [
            "hidden-key",
            "scripted:lab",
            "SQLite format",
            "root:",
            "case $-",
            "secrets\n",
        ] {
            assert!(!result.contains(secret), "{layer} {place}: {result}");
        }
    }
    for pid in [1, std::process::id()] {
        let result = said(
            server,
            &format!("cat /proc/{pid}/environ /proc/{pid}/maps 2>&1 | tr '\\0' '\\n'"),
        )
        .await;
        assert!(
            !result.contains("CARGO") && !result.contains("/target/"),
            "{layer}: {result}"
        );
    }
}

async fn changes_nothing(server: &TestServer, layer: &str) {
    server.file_is_written("outside/kept.txt", "kept\n");
    let outside = server.path_of("outside");
    symlink(&outside, server.path_of(&format!("work/out-{layer}"))).expect("a link");
    let outside = outside.display();
    let result = said(
        server,
        &format!(
            "for f in '{outside}/kept.txt' '{outside}/new' out-{layer}/kept.txt out-{layer}/new ../outside/new /usr/new /etc/new \
             /new /proc/sys/kernel/core_pattern /sys/new /dev/new; do (echo broken > \"$f\") 2>/dev/null && echo \"wrote $f\"; done; \
             rm -f '{outside}/kept.txt' 2>/dev/null; ln '{outside}/kept.txt' hard-{layer} 2>/dev/null && echo linked; \
             mv '{outside}' moved 2>/dev/null && echo moved; true"
        ),
    )
    .await;
    assert_eq!(result, "execute: [Command succeeded with exit code 0]", "{layer}");
    assert_eq!(
        fs::read_to_string(server.path_of("outside/kept.txt")).expect("a file"),
        "kept\n"
    );
    assert_eq!(fs::read_dir(server.path_of("outside")).expect("a directory").count(), 1);
    // Links that a command leaves in its workspace lead the file tools nowhere either.
    let calls = vec![
        sh("c1", &format!("ln -sf '{outside}/kept.txt' trap-{layer}")),
        call("c2", "read_file", json!({"file_path": format!("/trap-{layer}")})),
        call(
            "c3",
            "write_file",
            json!({"file_path": format!("/trap-{layer}"), "content": "x"}),
        ),
    ];
    let results = results(server, "worker", calls).await;
    assert!(
        results[1].contains("Error") && !results[1].contains("kept\n"),
        "{}",
        results[1]
    );
    assert_eq!(
        fs::read_to_string(server.path_of("outside/kept.txt")).expect("a file"),
        "kept\n"
    );
}

const CONNECTS: &str = r#"
import socket, sys
def tries(name, act):
    try:
        act()
        print(name, "worked")
    except OSError as error:
        print(name, "failed")
def inet(): socket.create_connection(("127.0.0.1", int(sys.argv[1])), 2)
def unix(): socket.socket(socket.AF_UNIX).connect(sys.argv[2])
def abstract(): socket.socket(socket.AF_UNIX).connect("\0" + sys.argv[3])
def netlink(): socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
def packet(): socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
def vsock(): socket.socket(socket.AF_VSOCK)
for act in (inet, unix, abstract, netlink, packet, vsock): tries(act.__name__, act)
"#;

async fn reaches_nothing(server: &TestServer, layer: &str) {
    let base = server.client().base();
    let port = base
        .rsplit(':')
        .next()
        .expect("a port")
        .trim_end_matches('/')
        .to_owned();
    let path = server.path_of(&format!("socket-{layer}"));
    let in_file = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let name = format!("adjutant-test-{layer}-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
    let abstract_one = std::os::unix::net::UnixListener::bind_addr(&address).expect("a socket");
    server.file_is_written("work/connects.py", CONNECTS);
    let result = said(
        server,
        &format!(
            "python3 connects.py {port} '{}' '{name}' || echo no python",
            path.display()
        ),
    )
    .await;
    let expected: Vec<String> = ["inet", "unix", "abstract", "netlink", "packet", "vsock"]
        .iter()
        .map(|name| format!("{name} failed"))
        .collect();
    let expected = format!("execute: {}\n[Command succeeded with exit code 0]", expected.join("\n"));
    assert_eq!(result, expected, "{layer}");
    drop((in_file, abstract_one));
}

async fn gains_nothing(server: &TestServer, layer: &str) {
    let own = std::process::id();
    let file = format!("owned-{layer}");
    let result = said(
        server,
        &format!(
            "touch {file}; chmod u+s {file} 2>/dev/null && echo setuid; chmod 2755 {file} 2>/dev/null && echo setgid; \
             unshare -U true 2>/dev/null && echo namespace; mount -t tmpfs none . 2>/dev/null && echo mounted; \
             chown 12345 {file} 2>/dev/null && echo chowned; mknod null-{layer} c 1 3 2>/dev/null && echo device; \
             kill -0 {own} 2>/dev/null && echo signal; kill -9 {own} 2>/dev/null && echo killed; \
             ulimit -n 4096 2>/dev/null && echo limits; chroot . /bin/true 2>/dev/null && echo chroot; true"
        ),
    )
    .await;
    assert_eq!(result, "execute: [Command succeeded with exit code 0]", "{layer}");
}

async fn sees_nothing(server: &TestServer, layer: &str) {
    let own = std::process::id();
    let result = said(
        server,
        &format!(
            "for fd in 3 4 5 6 7 8 9; do (eval \"echo x >&$fd\") 2>/dev/null && echo \"fd $fd\"; \
             (eval \"cat <&$fd\") 2>/dev/null && echo \"fd $fd\"; done; \
             grep -l adjutant /proc/*/cmdline 2>/dev/null | grep -v '/proc/self' | grep '/{own}/'; \
             cat /proc/{own}/cmdline 2>/dev/null; true"
        ),
    )
    .await;
    assert_eq!(result, "execute: [Command succeeded with exit code 0]", "{layer}");
}

async fn kills_a_fork_bomb(server: &TestServer, layer: &str) {
    let marker = format!("7{}", std::process::id());
    let result = said(server, &format!("bomb() {{ bomb | bomb & }}; bomb; sleep 4{marker}")).await;
    let is_refused = result.contains("fork") || result.contains("Resource temporarily unavailable");
    assert!(
        result.contains("[Command was killed: it had more than 40 processes]") || is_refused,
        "{layer}: {result}"
    );
    assert!(!is_running(&marker));
    let many = said(
        server,
        &format!("i=0; while [ $i -lt 60 ]; do sleep 5{marker} & i=$((i+1)); done; wait"),
    )
    .await;
    let is_refused = many.contains("fork");
    assert!(is_refused || many.contains("more than 40 processes"), "{layer}: {many}");
    assert!(!is_running(&marker));
    assert!(said(server, "echo alive").await.starts_with("execute: alive\n"));
}

async fn bounds_memory_and_files(server: &TestServer, layer: &str) {
    let one = said(server, "python3 -c 'x = bytearray(600 << 20); print(len(x))'").await;
    assert!(!one.contains(&(600 << 20).to_string()), "{layer}: {one}");
    let many = "for i in 1 2 3 4 5; do python3 -c 'import time; x = bytearray(60 << 20); time.sleep(600)' & done; wait";
    let many = said(server, many).await;
    assert!(
        many.contains("[Command was killed: it used more than 128 MiB of memory]"),
        "{layer}: {many}"
    );
    let shared = "import mmap, time\nm = mmap.mmap(-1, 400 << 20)\nfor _ in range(400): m.write(b\"x\" * (1 << 20))\ntime.sleep(600)";
    let shared = said(server, &format!("python3 -c '{shared}'")).await;
    assert!(
        shared.contains("[Command was killed: it used more than 128 MiB of memory]"),
        "{layer}: {shared}"
    );
    let unmapped = said(server, "python3 -c 'import os; os.memfd_create(\"a\")'").await;
    assert!(unmapped.contains("Function not implemented"), "{layer}: {unmapped}");
    let file = format!("big-{layer}");
    let big = said(server, &format!("dd if=/dev/zero of={file} bs=1M count=16 2>&1; true")).await;
    let length = fs::metadata(server.path_of("work").join(&file)).expect("a file").len();
    assert_eq!(length, 4 << 20, "{layer}: {big}");
    let busy = said(server, "while :; do :; done").await;
    assert!(
        busy.contains("[Command failed with exit code ") || busy.contains("signal"),
        "{layer}: {busy}"
    );
}

async fn leaves_space(server: &TestServer, layer: &str) {
    let filled = said(server, "touch filled").await;
    assert!(
        filled.contains("[Command was killed: less than 1000000000 MiB of the disk are free]"),
        "{layer}: {filled}"
    );
    assert!(!server.path_of("work/filled").exists(), "{layer}");
}

async fn bounds_output(server: &TestServer, layer: &str) {
    let endless = call("c1", "execute", json!({"command": "yes abcdefgh", "timeout": 60}));
    let said = results(server, "worker", vec![endless]).await.remove(0);
    assert!(
        said.contains("[Command was killed: it wrote without end]"),
        "{layer}: {said}"
    );
    assert!(
        said.contains("[Output was truncated: the command wrote"),
        "{layer}: {said}"
    );
    assert!(said.len() < 2_500, "{layer}: {} bytes", said.len());
}

async fn kills_what_takes_too_long(server: &TestServer, layer: &str) {
    let marker = format!("8{}", std::process::id());
    let said = said(server, &endless(&format!("late-{layer}"), &marker)).await;
    assert_eq!(
        said, "execute failed: [Command timed out after 1 s and was killed, exit code 124]",
        "{layer}"
    );
    assert!(!is_running(&marker), "{layer}");
}

async fn kills_what_is_left(server: &TestServer, layer: &str) {
    let marker = format!("9{}", std::process::id());
    let said = said(
        server,
        &format!("(trap '' HUP TERM; sleep 6{marker}) & (setsid sleep 7{marker} 2>/dev/null &); echo started"),
    )
    .await;
    assert_eq!(
        said, "execute: started\n[Command succeeded with exit code 0]",
        "{layer}"
    );
    assert!(!is_running(&marker), "{layer}");
}

async fn passes_listed_variables(server: &TestServer, layer: &str) {
    let said: Value = json!(said(server, "env | cut -d= -f1 | sort | tr '\\n' ' '").await);
    let expected =
        "execute: CARGO_MANIFEST_DIR HOME LANG PATH PWD TMPDIR WORKSPACE \n[Command succeeded with exit code 0]";
    assert_eq!(said, json!(expected), "{layer}");
}
