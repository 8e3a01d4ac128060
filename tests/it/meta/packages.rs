//! The packages that `deploy/packages/build.py` makes, tried as users install them: in a folder of their own, without a
//! network and with an empty environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::client::Client;
use crate::support::eventually;
use crate::support::process::Process;
use crate::support::server::skipped;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command to its end.
fn ends(command: &mut Command) -> (Output, String) {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    (output, String::from_utf8(said).expect("text"))
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let (output, said) = ends(command);
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// Returns true if the program can be called with these arguments.
fn is_there(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn python() -> Option<&'static str> {
    let found = is_there("python3", &["-c", "import tomllib, venv, ensurepip"]);
    found.then_some("python3").or_else(|| skipped("Python 3.11 with venv"))
}

/// The script that builds packages, in the repository or in a copy of its files.
fn build(root: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg("-B").arg(root.join("deploy/packages/build.py"));
    command
        .args(["--compression", "1", "--no-sbom"])
        .env_remove("SOURCE_DATE_EPOCH");
    command
}

/// The folder with the packages of the program under test, which are built once.
fn packages() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<TempDir>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        python()?;
        let folder = tempfile::tempdir().expect("a directory");
        let mut command = build(root());
        command.args(["--binary", env!("CARGO_BIN_EXE_adjutant")]);
        succeeds(command.arg("--out").arg(folder.path()));
        Some(folder)
    });
    built.as_ref().map(TempDir::path)
}

/// The names of the files in a folder, in order.
fn files_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

/// The only file in a folder whose name ends like this.
fn only(folder: &Path, begin: &str, end: &str) -> PathBuf {
    let names = files_in(folder);
    let found: Vec<&String> = names
        .iter()
        .filter(|name| name.starts_with(begin) && name.ends_with(end))
        .collect();
    let [name] = found[..] else {
        panic!("{begin}…{end} in {names:?}")
    };
    folder.join(name)
}

/// A command in a folder, with an empty environment.
fn bare(program: impl AsRef<Path>, folder: &Path) -> Command {
    let mut command = Command::new(program.as_ref());
    command.current_dir(folder).env_clear();
    command
}

/// Starts the server by `command`, which is how users start it, and has a run end successfully. The server is then stopped
/// with SIGTERM, and its exit code is that of success.
async fn serves_and_ends_gracefully(mut command: Command) {
    command.args(["--listen", "127.0.0.1:0"]);
    let process = Process::start(command).await;
    let client = Client::new(&process.base().await);
    client.get("/ok?check_db=1").await.ok();
    let thread = client.thread().await;
    let body = json!({"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "hello"}]}});
    let values = client.post(&format!("/threads/{thread}/runs/wait"), body).await.ok();
    assert!(
        values["messages"].as_array().is_some_and(|all| all.len() > 1),
        "{values}"
    );
    process.terminates().await;
}

/// The exit code of `adjutant check` for a configuration that does not exist reaches who called it.
#[track_caller]
fn hands_exit_codes_on(mut command: Command) {
    let (output, said) = ends(command.args(["check", "--config", "missing.toml"]));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("missing.toml"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wheel_runs_in_an_environment_without_anything_else() {
    let (Some(packages), Some(python)) = (packages(), python()) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a directory");
    let environment = folder.path().join("environment");
    succeeds(Command::new(python).args(["-m", "venv"]).arg(&environment));
    let wheel = only(packages, "adjutant-", ".whl");
    let mut pip = bare(environment.join("bin/python"), folder.path());
    pip.args(["-m", "pip", "install", "--no-index", "--disable-pip-version-check"]);
    succeeds(pip.arg(wheel));

    let program = environment.join("bin/adjutant");
    let call = || bare(&program, folder.path());
    assert_eq!(succeeds(call().arg("--version")), format!("adjutant {VERSION}\n"));
    let mut module = bare(environment.join("bin/python"), folder.path());
    module.args(["-m", "adjutant", "--version"]);
    assert_eq!(succeeds(&mut module), format!("adjutant {VERSION}\n"));
    hands_exit_codes_on(call());
    serves_and_ends_gracefully(call()).await;
    let mut module = bare(environment.join("bin/python"), folder.path());
    module.args(["-m", "adjutant"]);
    serves_and_ends_gracefully(module).await;
    // pip compares what it installed with the list in the package.
    let mut check = bare(environment.join("bin/python"), folder.path());
    let script = "import base64, hashlib, importlib.metadata as m\n\
                  for f in m.distribution('adjutant').files:\n\
                  \x20   if f.hash: assert base64.urlsafe_b64encode(hashlib.sha256(f.locate().read_bytes()).digest()).rstrip(b'=').decode() == f.hash.value, f\n";
    succeeds(check.args(["-c", script]));
    let mut gone = bare(environment.join("bin/python"), folder.path());
    succeeds(gone.args(["-m", "pip", "uninstall", "--yes", "adjutant"]));
    assert!(!program.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_npm_packages_run_without_a_network() {
    let Some(packages) = packages() else { return };
    if !is_there("npm", &["--version"]) {
        skipped::<()>("npm");
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    fs::write(folder.path().join("package.json"), "{\"private\": true}").expect("a file");
    let node = |program: &str| {
        let mut command = bare(program, folder.path());
        command.env("PATH", std::env::var_os("PATH").expect("a PATH"));
        command.env("HOME", folder.path());
        command
    };
    let mut install = node("npm");
    install.args(["install", "--offline", "--no-audit", "--no-fund", "--loglevel=error"]);
    install.arg(only(packages, "adjutant-linux-", ".tgz"));
    succeeds(install.arg(packages.join(format!("adjutant-{VERSION}.tgz"))));

    let launcher = folder.path().join("node_modules/.bin/adjutant");
    let launcher = launcher.to_str().expect("a path of text");
    let mut version = node("npx");
    version.args(["--no-install", "adjutant", "--version"]);
    assert_eq!(succeeds(&mut version), format!("adjutant {VERSION}\n"));
    let mut npx = node("npx");
    npx.args(["--no-install", "adjutant"]);
    hands_exit_codes_on(npx);
    hands_exit_codes_on(node(launcher));
    serves_and_ends_gracefully(node(launcher)).await;

    // npx ends by the signal and hands it to nobody; the server notices.
    let mut npx = node("npx");
    npx.args(["--no-install", "adjutant", "--listen", "127.0.0.1:0"]);
    let process = Process::start(npx).await;
    let address = process.base().await.replace("http://", "");
    process.signal("TERM");
    process.ends().await;
    eventually(async || tokio::net::TcpStream::connect(&address).await.is_err()).await;
}

#[test]
fn a_launcher_without_its_program_says_which_package_is_missing() {
    let Some(packages) = packages() else { return };
    if !is_there("node", &["--version"]) {
        skipped::<()>("node");
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(packages.join(format!("adjutant-{VERSION}.tgz")));
    succeeds(tar.arg("-C").arg(folder.path()));
    let (output, said) = ends(Command::new("node").arg(folder.path().join("package/bin/adjutant.js")));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the package adjutant-linux-"), "{said}");
}

/// Fills in the placeholders of `cargo binstall` in a template of Cargo.toml.
fn binstall(template: &str, target: &str) -> String {
    let values = [
        ("{ name }", "adjutant"),
        ("{ bin }", "adjutant"),
        ("{ version }", VERSION),
        ("{ target }", target),
        ("{ archive-suffix }", ".tar.gz"),
        ("{ binary-ext }", ""),
    ];
    values
        .iter()
        .fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
}

#[test]
fn the_archive_has_the_layout_that_binstall_expects_and_the_sums_are_right() {
    let Some(packages) = packages() else { return };
    let said = succeeds(
        Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(packages),
    );
    assert_eq!(said.lines().filter(|line| line.ends_with(": OK")).count(), 4, "{said}");
    let archive = only(packages, "adjutant-", ".tar.gz");
    let name = archive.file_name().and_then(|name| name.to_str()).expect("a name");
    let target = name
        .strip_prefix(&format!("adjutant-{VERSION}-"))
        .and_then(|rest| rest.strip_suffix(".tar.gz"))
        .expect("a target");

    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let manifest: toml::Value = toml::from_str(&manifest).expect("TOML");
    let metadata = &manifest["package"]["metadata"]["binstall"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_else(|| panic!("{key}")).to_owned();
    assert_eq!(text("pkg-fmt"), "tgz");
    let url = binstall(&text("pkg-url"), target);
    assert!(url.ends_with(&format!("/{name}")), "{url}");

    let folder = tempfile::tempdir().expect("a directory");
    succeeds(
        Command::new("tar")
            .arg("-xzf")
            .arg(&archive)
            .arg("-C")
            .arg(folder.path()),
    );
    let program = folder.path().join(binstall(&text("bin-dir"), target));
    assert_eq!(
        succeeds(bare(&program, folder.path()).arg("--version")),
        format!("adjutant {VERSION}\n")
    );
    let beside = files_in(program.parent().expect("a folder"));
    assert_eq!(beside, ["CHANGELOG.md", "LICENSE", "README.md", "adjutant"]);
}

/// The first bytes of a program for Linux on this processor, and more that cannot be run.
fn program_for(machine: u8) -> Vec<u8> {
    let mut program = b"\x7fELF\x02\x01\x01".to_vec();
    program.resize(18, 0);
    program.extend([machine, 0]);
    program.extend(b"\0GLIBC_2.4\0GLIBC_2.17\0GLIBC_2.9\0");
    program
}

const AARCH64: u8 = 0xb7;

#[test]
fn the_same_program_makes_the_same_files() {
    if python().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let binary = folder.path().join("program");
    fs::write(&binary, program_for(AARCH64)).expect("a file");
    let build = |name: &str| {
        let out = folder.path().join(name);
        let mut command = build(root());
        command
            .args(["--target", "aarch64-unknown-linux-gnu", "--binary"])
            .arg(&binary);
        let said = succeeds(command.arg("--out").arg(&out));
        (out, said)
    };
    let (first, said) = build("first");
    let (second, _) = build("second");
    for part in ["not built: x86_64-unknown-linux-gnu", "needs glibc 2.17"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS")).expect("the sums");
    assert_eq!(sums(&first), sums(&second));
    only(
        &first,
        "adjutant-",
        "-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
    );
    only(&first, "adjutant-linux-arm64-", ".tgz");

    // Both npm packages say the same version, and the one that carries the program names its platform.
    let manifest = |path: PathBuf| -> Value {
        let mut tar = Command::new("tar");
        let text = succeeds(tar.arg("-xzOf").arg(path).arg("package/package.json"));
        serde_json::from_str(&text).expect("JSON")
    };
    let main = manifest(first.join(format!("adjutant-{VERSION}.tgz")));
    assert_eq!(main["optionalDependencies"], json!({"adjutant-linux-arm64": VERSION}));
    let carrier = manifest(first.join(format!("adjutant-linux-arm64-{VERSION}.tgz")));
    assert_eq!(carrier["cpu"], json!(["arm64"]));
    assert_eq!(carrier["libc"], json!(["glibc"]));
}

#[test]
fn what_cannot_be_packed_is_refused_with_a_reason() {
    if python().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let binary = folder.path().join("program");
    fs::write(&binary, program_for(AARCH64)).expect("a file");
    let refused = |arguments: &[&str], reason: &str| {
        let mut command = build(root());
        command.args(arguments).arg("--out").arg(folder.path().join("out"));
        let (output, said) = ends(&mut command);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains(reason), "{said}");
    };
    let program = binary.to_str().expect("a path of text");
    let wrong = ["--target", "x86_64-unknown-linux-gnu", "--binary", program];
    refused(&wrong, "is no program for x86_64-unknown-linux-gnu");
    let strange = ["--target", "riscv64gc-unknown-linux-gnu", "--binary", program];
    refused(&strange, "known are: x86_64-unknown-linux-gnu");
    refused(
        &["--target", "riscv64gc-unknown-linux-gnu"],
        "rustup target add riscv64gc-unknown-linux-gnu",
    );
}

#[test]
fn the_release_notes_are_the_section_of_the_version() {
    if python().is_none() {
        return;
    }
    let copy = tempfile::tempdir().expect("a directory");
    let copied = copy.path();
    let mut cp = Command::new("cp");
    cp.arg("-r").arg(root().join("deploy")).arg(copied);
    succeeds(&mut cp);
    for name in ["Cargo.toml", "LICENSE", "README.md"] {
        fs::copy(root().join(name), copied.join(name)).expect("a copy");
    }
    let binary = copied.join("program");
    fs::write(&binary, program_for(AARCH64)).expect("a file");
    let build = || {
        let mut command = build(copied);
        command
            .args(["--target", "aarch64-unknown-linux-gnu", "--binary"])
            .arg(&binary);
        command.arg("--out").arg(copied.join("out"));
        command
    };
    let notes = || fs::read_to_string(copied.join("out/RELEASE-NOTES.md")).expect("the notes");

    let log = format!(
        "# Changelog\n\n## Unreleased\n\n- To come.\n\n## {VERSION} (2026-11-25)\n\n- New.\n\n## 0.0.1\n\n- Old.\n"
    );
    fs::write(copied.join("CHANGELOG.md"), log).expect("a file");
    succeeds(&mut build());
    assert_eq!(notes(), format!("# adjutant {VERSION}\n\n- New.\n"));

    fs::write(
        copied.join("CHANGELOG.md"),
        "# Changelog\n\n## Unreleased\n\n- To come.\n",
    )
    .expect("a file");
    succeeds(&mut build());
    assert_eq!(notes(), format!("# adjutant {VERSION} (not released)\n\n- To come.\n"));
    let (output, said) = ends(build().arg("--release"));
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains(&format!("CHANGELOG.md has no heading `## {VERSION}`")),
        "{said}"
    );
}
