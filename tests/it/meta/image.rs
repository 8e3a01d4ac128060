//! The container image, the files of Compose and the Helm chart, read without an engine for containers: what the build
//! copies, and whether the program takes the settings.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::layers::{Source, sources};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The instructions of the Dockerfile, each in one line.
fn instructions() -> Vec<String> {
    let text = read("Dockerfile");
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.fold(String::new(), |text, line| match line.strip_suffix('\\') {
        Some(begun) => text + begun,
        None => text + line + "\n",
    });
    joined
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The paths that the build copies from the repository.
fn copied() -> Vec<PathBuf> {
    let all = instructions();
    let from_here = all
        .iter()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|rest| !rest.contains("--from="));
    let sources = from_here.flat_map(|rest| {
        let words: Vec<&str> = rest.split_whitespace().collect();
        words[..words.len() - 1].to_vec()
    });
    sources.map(PathBuf::from).collect()
}

/// Removes `..` from a path.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => assert!(path.pop()),
            Component::Normal(name) => path.push(name),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
        path
    })
}

/// The first text in quotes.
fn quoted(text: &str) -> Option<&str> {
    text.split('"').nth(1)
}

/// The folders that a source embeds whole.
fn embedded_folders(text: &str) -> impl Iterator<Item = PathBuf> {
    let paths = text.split("#[folder = ").skip(1).filter_map(quoted);
    paths.map(|path| plain(Path::new(path)))
}

/// The files and folders outside of `src` that the sources read when they are compiled.
fn needed_at_compile_time() -> BTreeSet<PathBuf> {
    let mut needed = BTreeSet::from([PathBuf::from("build.rs")]);
    for Source { place, text, .. } in sources() {
        let file = Path::new("src").join(place);
        let beside = file.parent().expect("a folder");
        // Relative to the file. `concat!` begins with the part that all paths share.
        for word in ["include_str!(", "include_bytes!("] {
            let paths = text.split(word).skip(1).filter_map(quoted);
            needed.extend(paths.map(|path| plain(&beside.join(path))));
        }
        needed.extend(embedded_folders(&text));
    }
    needed.retain(|path| !path.starts_with("src"));
    needed
}

#[test]
fn a_new_file_in_an_embedded_folder_has_the_program_built_again() {
    let script = read("build.rs");
    let watched: Vec<&Path> = script.split('"').skip(1).step_by(2).map(Path::new).collect();
    let all = sources();
    let folders: BTreeSet<PathBuf> = all.iter().flat_map(|source| embedded_folders(&source.text)).collect();
    assert!(folders.len() > 2, "{folders:?}");
    for folder in folders {
        let is_watched = watched.iter().any(|known| folder.starts_with(known));
        assert!(is_watched, "build.rs does not name {}", folder.display());
    }
}

#[test]
fn the_image_copies_all_that_the_sources_need_at_compile_time() {
    let needed = needed_at_compile_time();
    for known in [
        "migrations/sqlite",
        "migrations/postgres",
        "examples/demo/adjutant.toml",
    ] {
        assert!(needed.contains(Path::new(known)), "{known} is not found: {needed:?}");
    }
    let copied = copied();
    let ignored = read(".dockerignore");
    let sent: Vec<PathBuf> = ignored
        .lines()
        .filter_map(|line| line.strip_prefix('!').map(PathBuf::from))
        .collect();
    let contains = |all: &[PathBuf], path: &Path| all.iter().any(|known| path.starts_with(known));
    for path in needed.iter().chain(&copied) {
        assert!(
            contains(&copied, path),
            "the Dockerfile does not copy {}",
            path.display()
        );
        assert!(contains(&sent, path), ".dockerignore leaves out {}", path.display());
        assert!(root().join(path).exists(), "there is no {}", path.display());
    }
}

#[test]
fn the_image_checks_its_health_as_an_ordinary_user_and_says_what_it_is() {
    let all = instructions();
    let last = all.iter().rposition(|line| line.starts_with("FROM ")).expect("a stage");
    let stage = &all[last..];
    let of = |word: &str| {
        stage
            .iter()
            .find_map(|line| line.strip_prefix(word))
            .unwrap_or_else(|| panic!("the image has no {word}"))
    };
    assert_eq!(of("USER "), "10001:10001");
    assert!(of("HEALTHCHECK ").ends_with("CMD [\"adjutant\", \"health\"]"));
    for label in ["title", "licenses", "version", "revision", "source"] {
        assert!(
            of("LABEL ").contains(&format!("org.opencontainers.image.{label}=")),
            "{label}"
        );
    }
    assert!(of("ARG VERSION=").starts_with(env!("CARGO_PKG_VERSION")));
    // An image for another processor is put together without emulation.
    assert!(!stage.iter().any(|line| line.starts_with("RUN ")), "{stage:?}");
    assert!(all[0].starts_with("FROM --platform=$BUILDPLATFORM "), "{}", all[0]);
    let help = Command::new(env!("CARGO_BIN_EXE_adjutant"))
        .arg("--help")
        .output()
        .expect("help");
    let help = String::from_utf8(help.stdout).expect("text");
    for variable in of("ENV ").split_whitespace().filter_map(|word| word.split('=').next()) {
        assert!(
            help.contains(&format!("env: {variable}")),
            "{variable} is no setting:\n{help}"
        );
    }
}

/// The files of Compose, and their services.
const COMPOSE_FILES: [(&str, &[&str]); 2] = [
    ("deploy/compose.yaml", &["adjutant", "postgres", "adjutant-sqlite"]),
    (
        "deploy/compose.cluster.yaml",
        &["haproxy", "adjutant-1", "adjutant-2", "nats", "postgres"],
    ),
];

/// Reads a file of Compose, with the services that it takes from another one.
fn compose(path: &str) -> Value {
    let mut compose: Value = serde_saphyr::from_str(&read(path)).expect("YAML");
    for service in compose["services"].as_object_mut().expect("services").values_mut() {
        if let Some(file) = service["extends"]["file"].as_str() {
            let other: Value = serde_saphyr::from_str(&read(&format!("deploy/{file}"))).expect("YAML");
            let name = service["extends"]["service"].as_str().expect("a name").to_owned();
            *service = other["services"][&name].clone();
        }
    }
    compose
}

#[test]
fn every_service_of_compose_is_confined_and_healthy() {
    for (path, names) in COMPOSE_FILES {
        is_confined_and_healthy(&compose(path), names);
    }
}

fn is_confined_and_healthy(compose: &Value, names: &[&str]) {
    let services = compose["services"].as_object().expect("services");
    assert_eq!(services.keys().collect::<Vec<_>>(), names);
    let declared =
        |kind: &str| -> BTreeSet<String> { compose[kind].as_object().expect(kind).keys().cloned().collect() };
    for (name, service) in services {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["cap_drop"], serde_json::json!(["ALL"]), "{name}");
        assert!(
            service["user"]
                .as_str()
                .is_some_and(|user| !user.starts_with("root") && !user.starts_with('0'))
        );
        assert!(service["healthcheck"]["test"][1].is_string(), "{name}");
        for secret in service["secrets"].as_array().into_iter().flatten() {
            assert!(
                declared("secrets").contains(secret.as_str().expect("a name")),
                "{name}: {secret}"
            );
        }
        for volume in service["volumes"].as_array().expect("volumes") {
            let source = volume
                .as_str()
                .and_then(|text| text.split(':').next())
                .expect("a source");
            match source.strip_prefix("./") {
                Some(file) => assert!(root().join("deploy").join(file).exists(), "{name}: {source}"),
                None => assert!(declared("volumes").contains(source), "{name}: {source}"),
            }
        }
        for other in service["depends_on"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(other, _)| other)
        {
            assert!(services[other]["healthcheck"].is_object(), "{other}");
        }
    }
    // The script makes each secret that is a file.
    let script = read("deploy/make-secrets.sh");
    for secret in declared("secrets") {
        assert_eq!(compose["secrets"][&secret]["file"], format!("./secrets/{secret}"));
        assert!(script.contains(&secret), "{secret}");
    }
}

#[test]
fn the_program_takes_the_settings_of_each_service() {
    let folder = tempfile::tempdir().expect("a directory");
    let secrets = folder.path().join("secrets");
    fs::create_dir(&secrets).expect("a folder");
    for name in ["ops_key", "openai_api_key", "database_password"] {
        fs::write(secrets.join(name), "0123456789abcdef0123456789abcdef").expect("a secret");
    }
    let inside = |text: &str| text.replace("/run/secrets", secrets.to_str().expect("a path of text"));
    let configuration = folder.path().join("adjutant.toml");
    fs::write(&configuration, inside(&read("deploy/adjutant.toml"))).expect("a file");
    let help = Command::new(env!("CARGO_BIN_EXE_adjutant"))
        .arg("--help")
        .output()
        .expect("help");
    let help = String::from_utf8(help.stdout).expect("text");
    for (path, name) in [
        ("deploy/compose.yaml", "adjutant"),
        ("deploy/compose.yaml", "adjutant-sqlite"),
        ("deploy/compose.cluster.yaml", "adjutant-1"),
        ("deploy/compose.cluster.yaml", "adjutant-2"),
    ] {
        let service = &compose(path)["services"][name];
        let mut command = match service["entrypoint"].as_array() {
            // The words of the container, with the program of this test and the argument of the check.
            Some(words) => {
                let words: Vec<String> = words
                    .iter()
                    .map(|word| inside(&word.as_str().expect("a word").replace("$$", "$")))
                    .collect();
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                command
            }
            None => Command::new(env!("CARGO_BIN_EXE_adjutant")),
        };
        let program = Path::new(env!("CARGO_BIN_EXE_adjutant")).parent().expect("a folder");
        command.env_clear().current_dir(folder.path()).arg("check");
        command.env("PATH", format!("{}:/usr/bin:/bin", program.display()));
        for (variable, value) in service["environment"].as_object().expect("variables") {
            // One with two underscores is a setting of the configuration: the program refuses one that it does not know.
            assert!(
                variable.contains("__") || help.contains(&format!("env: {variable}")),
                "{variable} is no setting:\n{help}"
            );
            // `${NAME:-otherwise}` is what stands after `:-`.
            let value = value.as_str().expect("text");
            let value = value
                .split_once(":-")
                .map_or(value, |(_, other)| other.trim_end_matches('}'));
            command.env(
                variable,
                value.replace("/etc/adjutant/adjutant.toml", configuration.to_str().expect("text")),
            );
        }
        let output = command.output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        assert!(said.contains("0 errors, 0 warnings"), "{name}: {said}");
        let database = if name == "adjutant-sqlite" {
            "sqlite:///data/adjutant.db"
        } else {
            "postgres://"
        };
        assert!(said.contains(database), "{name}: {said}");
        assert!(!said.contains("0123456789abcdef"), "{name} shows a secret: {said}");
    }
}

#[test]
fn the_secrets_of_compose_are_made_once() {
    let folder = tempfile::tempdir().expect("a directory");
    let script = folder.path().join("make-secrets.sh");
    fs::copy(root().join("deploy/make-secrets.sh"), &script).expect("a copy");
    let secrets = folder.path().join("secrets");
    fs::create_dir(&secrets).expect("a folder");
    fs::write(secrets.join("openai_api_key"), "a-key").expect("a file");
    let make = || {
        let output = Command::new("sh").arg(&script).output().expect("a shell");
        assert!(output.status.success(), "{output:?}");
        ["postgres_password", "database_password", "ops_key"]
            .map(|name| fs::read_to_string(secrets.join(name)).expect("a secret"))
    };
    let first = make();
    for secret in &first {
        assert_eq!(secret.len(), 64);
        assert!(secret.chars().all(|digit| digit.is_ascii_hexdigit()), "{secret}");
    }
    assert_ne!(first[0], first[1]);
    assert_eq!(first, make());
    let key = fs::read_to_string(secrets.join("openai_api_key")).expect("a secret");
    assert_eq!(key, "a-key");
}

#[test]
fn the_service_of_systemd_lets_the_server_stop_in_good_order() {
    let unit = read("deploy/adjutant.service");
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    // Commands and MCP servers are stopped by the server itself.
    assert_eq!(value("KillMode"), Some("mixed"));
    let seconds = value("TimeoutStopSec").and_then(|seconds| seconds.parse::<u64>().ok());
    // `[server] shutdown_s` is 30.
    assert!(seconds.is_some_and(|seconds| seconds > 30), "{unit}");
    let program = value("ExecStart").expect("a program");
    assert_eq!(value("ExecStartPre"), Some(format!("{program} check").as_str()));
    for user in ["User", "Group", "StateDirectory"] {
        assert_eq!(value(user), Some("adjutant"), "{user}");
    }
}

/// The folder of the Helm chart.
const CHART: &str = "deploy/helm/adjutant";

/// The templates of the chart, as one text.
fn templates() -> String {
    let mut paths: Vec<PathBuf> = fs::read_dir(root().join(CHART).join("templates"))
        .expect("a folder")
        .map(|entry| entry.expect("a file").path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| fs::read_to_string(path).expect("text"))
        .collect()
}

/// Returns the paths of the values, such as `ingress.host`, that a text between braces names.
fn used_values(templates: &str) -> BTreeSet<String> {
    let after = templates.split(".Values.").skip(1);
    after
        .map(|rest| {
            let is_part = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '.';
            rest.chars().take_while(is_part).collect()
        })
        .collect()
}

/// Returns the paths below a value that templates may name. What is copied as a whole has no parts.
fn paths_of(value: &Value, schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let parts = value.as_object().filter(|_| schema["properties"].is_object());
    match parts {
        Some(parts) => {
            for (name, part) in parts {
                let below = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                assert!(
                    schema["properties"][name].is_object(),
                    "the schema of the chart has no {below}"
                );
                paths_of(part, &schema["properties"][name], &below, found);
            }
        }
        None => _ = found.insert(path.to_owned()),
    }
}

#[test]
fn the_values_of_the_chart_are_those_of_its_schema_and_its_templates() {
    let values: Value = serde_saphyr::from_str(&read(&format!("{CHART}/values.yaml"))).expect("YAML");
    let schema: Value = serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).expect("JSON");
    let valid = jsonschema::validate(&schema, &values);
    assert!(valid.is_ok(), "{valid:?}");
    let mut known = BTreeSet::new();
    paths_of(&values, &schema, "", &mut known);
    let used = used_values(&templates());
    // The values of the roles are handed over as a whole.
    let is_used = |path: &String| {
        let is_below = |other: &String| path == other || path.starts_with(&format!("{other}."));
        used.iter().any(is_below)
    };
    assert!(known.len() > 10, "{known:?}");
    for path in &known {
        assert!(is_used(path), "no template uses {path}: {used:?}");
    }
    for path in used.iter().filter(|path| *path != "nameOverride") {
        let is_known = known
            .iter()
            .any(|other| other == path || other.starts_with(&format!("{path}.")));
        assert!(is_known, "there is no value {path}");
    }
}

#[test]
fn the_program_takes_the_configuration_of_the_chart() {
    let values: Value = serde_saphyr::from_str(&read(&format!("{CHART}/values.yaml"))).expect("YAML");
    let chart: Value = serde_saphyr::from_str(&read(&format!("{CHART}/Chart.yaml"))).expect("YAML");
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let folder = tempfile::tempdir().expect("a directory");
    let secrets = folder.path().join("secrets");
    fs::create_dir_all(secrets.join("adjutant")).expect("a folder");
    for name in ["ops_key", "openai_api_key"] {
        fs::write(secrets.join("adjutant").join(name), "0123456789abcdef0123456789abcdef").expect("a secret");
    }
    let text = values["config"].as_str().expect("a configuration");
    let text = text.replace("/run/secrets", secrets.to_str().expect("a path of text"));
    fs::write(folder.path().join("adjutant.toml"), text).expect("a file");
    // The variables that the templates set, with values as they set them.
    let templates = templates();
    let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
    command.env_clear().current_dir(folder.path()).arg("check");
    for (name, value) in [
        ("ADJUTANT_ROLE", "worker"),
        ("ADJUTANT_SERVER__DRAIN_S", "10"),
        ("ADJUTANT_SERVER__SHUTDOWN_S", "30"),
        ("ADJUTANT_SERVER__HOSTS", "[\"adjutant\",\"adjutant.agents.svc\"]"),
        ("ADJUTANT_LOG_FORMAT", "json"),
        ("ADJUTANT_DATABASE_URL", "postgres://adjutant@db.internal/adjutant"),
        ("ADJUTANT_CLUSTER__NATS", "tls://nats:4222"),
        ("ADJUTANT_CLUSTER__NATS_SSLROOTCERT", "/run/secrets/nats/ca.crt"),
        ("ADJUTANT_CLUSTER__NATS_SSLCERT", "/run/secrets/nats/tls.crt"),
        ("ADJUTANT_CLUSTER__NATS_SSLKEY", "/run/secrets/nats/tls.key"),
    ] {
        assert!(templates.contains(&format!("- name: {name}\n")), "{name}");
        command.env(name, value);
    }
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("0 errors, 0 warnings"), "{said}");
}
