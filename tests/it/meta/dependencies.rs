//! The dependencies keep to the policy in `deny.toml`. `cargo deny` checks the same policy and more, but takes minutes to
//! build; these are the parts that a lock file can break unseen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};

/// The registry from which every dependency comes.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Returns what a tool of Rust prints.
fn printed(program: &str, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Returns the packages of the lock file that this machine builds, as `cargo metadata` prints them. Those of other
/// platforms need not have been downloaded.
fn packages() -> Vec<Value> {
    let version = String::from_utf8(printed("rustc", &["-vV"])).expect("text");
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let arguments = "metadata --locked --offline --all-features --format-version 1 --filter-platform";
    let arguments: Vec<&str> = arguments.split(' ').chain(host).collect();
    let metadata: Value = serde_json::from_slice(&printed("cargo", &arguments)).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages").clone();
    assert!(packages.len() > 100, "{} packages", packages.len());
    packages
}

/// Returns the policy.
fn policy() -> toml::Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml");
    let text = std::fs::read_to_string(path).expect("the policy");
    text.parse().expect("TOML")
}

fn text<'a>(package: &'a Value, field: &str) -> &'a str {
    package[field].as_str().unwrap_or_default()
}

#[test]
fn every_dependency_has_a_licence_that_the_policy_allows() {
    let policy = policy();
    let allowed: Vec<Licensee> = policy["licenses"]["allow"]
        .as_array()
        .expect("licences")
        .iter()
        .map(|licence| Licensee::parse(licence.as_str().expect("a name")).expect("a licence"))
        .collect();
    for package in packages() {
        let name = text(&package, "name");
        let licence = text(&package, "license");
        let expression = Expression::parse_mode(licence, ParseMode::LAX);
        let expression = expression.unwrap_or_else(|error| panic!("{name}: `{licence}`: {error}"));
        let is_allowed = expression.evaluate(|asked| allowed.iter().any(|licensee| licensee.satisfies(asked)));
        assert!(is_allowed, "the licence of {name}, `{licence}`, is not in deny.toml");
    }
}

#[test]
fn every_dependency_comes_from_the_registry() {
    for package in packages() {
        let source = text(&package, "source");
        let name = text(&package, "name");
        let is_known = source == REGISTRY || (source.is_empty() && name == env!("CARGO_PKG_NAME"));
        assert!(is_known, "{name} comes from `{source}`");
    }
}

#[test]
fn dependencies_that_the_policy_denies_are_absent_or_exist_once() {
    let mut versions = BTreeMap::<String, BTreeSet<String>>::new();
    for package in packages() {
        let of_package = versions.entry(text(&package, "name").to_owned()).or_default();
        of_package.insert(text(&package, "version").to_owned());
    }
    let policy = policy();
    let denials = policy["bans"]["deny"].as_array().expect("a list");
    assert!(!denials.is_empty());
    for denied in denials {
        let name = denied["name"].as_str().expect("a name");
        let is_wanted = denied.get("deny-multiple-versions").is_some();
        let found = versions.get(name).map_or(0, BTreeSet::len);
        assert_eq!(
            found,
            usize::from(is_wanted),
            "versions of {name}: {:?}",
            versions.get(name)
        );
    }
}

#[test]
fn a_build_compiles_the_drivers_of_databases_once() {
    let arguments = "tree --locked --offline --edges normal,build --prefix none";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let tree = String::from_utf8(printed("cargo", &arguments)).expect("text");
    let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains("sqlx-core"), "{} packages", names.len());
    // The macros of sqlx need the drivers, and SQLite, while the compiler runs.
    assert!(!names.contains("sqlx-macros"), "a feature of sqlx needs its macros");
}
