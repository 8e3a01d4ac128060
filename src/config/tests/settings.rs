//! The page of all settings, `docs/settings.md`, generated from the types of the sections, their comments and their
//! defaults.

use std::fmt::Write as _;
use std::path::Path;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use super::*;
use crate::definition::mcp::McpOAuth;

/// The text before the tables.
const HEAD: &str = "\
# All settings

<!-- This page is written by a test: `UPDATE_DOCS=1 cargo test --lib settings`. Change the comments of the fields instead. -->

Every setting of `adjutant.toml`, section by section. A section or a key that is left out has its default; a key that does
not exist is an error. `adjutant check` reports every mistake in the file with its line, column and field. Time-outs are at
least 0.01 seconds.

The environment precedes the file, and the command line precedes both. `ADJUTANT_SECTION__KEY` is the variable of a setting, with
two underscores between the levels; each section below has an example. [Settings from the environment](command-line.md#settings-from-the-environment)
has the rules. The fields of `[agents.NAME]` are on the page [Agents](agents.md), those of `[profiles.\"…\"]` on the page
[Models and providers](models.md#profiles).

";

const MIB: u64 = 1024 * 1024;

#[test]
fn the_page_of_all_settings_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/settings.md");
    let now = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &now).unwrap();
    }
    let copy = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        copy == now,
        "docs/settings.md is out of date; run `UPDATE_DOCS=1 cargo test --lib settings`"
    );
}

#[test]
fn every_section_of_the_configuration_is_on_the_page() {
    let problems = Directory::with(&[("adjutant.toml", "no_such_section = 1")]);
    let reported = problems.load_with(&problems.settings()).unwrap_err().to_string();
    let allowed = reported
        .split_once("allowed are: ")
        .map(|(_, names)| names.lines().next().unwrap())
        .unwrap();
    let page = page();
    for name in allowed
        .split(", ")
        .filter(|name| !["agents", "profiles"].contains(name))
    {
        let headings = [
            format!("## `[{name}]`"),
            format!("## `[{name}."),
            format!("## `{name}`"),
        ];
        assert!(
            headings.iter().any(|heading| page.contains(heading.as_str())),
            "{name} is not on the page"
        );
    }
}

/// Returns the whole page.
fn page() -> String {
    let mut page = HEAD.to_owned();
    section::<Server>(&mut page, "[server]");
    section::<Storage>(&mut page, "[storage]");
    section::<Runtime>(&mut page, "[runtime]");
    section::<ClusterSection>(&mut page, "[cluster]");
    section::<AnswersSection>(&mut page, "[answers]");
    section::<ItemTtl>(&mut page, "[store.ttl]");
    section::<IndexSection>(&mut page, "[store.index]");
    section::<TimeToLive>(&mut page, "[threads.ttl]");
    page.push_str(
        "## `[checkpointer.ttl]`\n\nWhen the history of a thread goes. The keys are those of `[threads.ttl]`.\n\n",
    );
    section::<EncryptionSection>(&mut page, "[encryption]");
    section::<WebhooksSection>(&mut page, "[webhooks]");
    section::<PeersSection>(&mut page, "[peers]");
    section::<AgentsApi>(&mut page, "[agents_api]");
    section::<AuditSection>(&mut page, "[audit]");
    section::<AuthSection>(&mut page, "[auth]");
    section::<AuthKeySection>(&mut page, "[[auth.keys]]");
    section::<JwtSection>(&mut page, "[[auth.jwt]]");
    section::<HookSection>(&mut page, "[auth.hook]");
    section::<SharingSection>(&mut page, "[auth.sharing.threads], [auth.sharing.assistants]");
    section::<PoliciesSection>(&mut page, "[auth.policies]");
    section::<QuotasSection>(&mut page, "[quotas]");
    section::<QuotaSection>(
        &mut page,
        "[quotas.per_key], [quotas.per_user], [quotas.per_tenant], [quotas.tenants.NAME]",
    );
    section::<TenantSection>(&mut page, "[tenants.NAME]");
    section::<PriceSection>(&mut page, "[prices.\"PROVIDER:MODEL\"]");
    section::<Log>(&mut page, "[log]");
    section::<TelemetrySection>(&mut page, "[telemetry]");
    section::<ProviderSection>(&mut page, "[providers.NAME]");
    section::<SecretSection>(&mut page, "[secrets.NAME]");
    section::<ToolDefinition>(&mut page, "[tools.NAME]");
    section::<McpServerDefinition>(&mut page, "[mcp_servers.NAME]");
    section::<McpOAuth>(&mut page, "[mcp_servers.NAME.oauth]");
    section::<ToolServerDefinition>(&mut page, "[tool_servers.NAME]");
    section::<SandboxServiceDefinition>(&mut page, "[sandboxes.NAME]");
    page.push_str(
        "## `agents_dir`\n\nA key at the top of the file: the folder with a folder for each agent, relative to the \
         file. The default is `agents`. See [Agents in folders](definitions.md#agents-in-folders).\n",
    );
    page
}

/// Adds the table of one section.
fn section<T: JsonSchema>(page: &mut String, name: &str) {
    let settings = SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    let schema = SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value();
    let about = text(&schema["description"]);
    let about = about.split_once("]`: ").map_or(about.as_str(), |(_, about)| about);
    let mut letters = about.chars();
    let about: String = letters
        .next()
        .into_iter()
        .flat_map(char::to_uppercase)
        .chain(letters)
        .collect();
    let first = schema["properties"].as_object().and_then(|fields| fields.keys().next());
    let variable = variable_of(name, first.unwrap());
    writeln!(
        page,
        "## `{name}`\n\n{about}\n\nIn the environment: `{variable}`, and likewise the other keys.\n\n| Key | Type | Default | Meaning |\n|---|---|---|---|"
    )
    .unwrap();
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (key, field) in schema["properties"].as_object().unwrap() {
        let default = match required.contains(&key.as_str()) {
            true => "needed".to_owned(),
            false => default_of(key, &field["default"]),
        };
        let about = text(&field["description"]);
        writeln!(page, "| `{key}` | {} | {default} | {about} |", type_of(field)).unwrap();
    }
    page.push('\n');
}

/// Returns the environment variable of a key in a section, whose name is that of the first if there are several.
fn variable_of(section: &str, key: &str) -> String {
    let first = section.split(", ").next().unwrap();
    // The entries of a list are counted from 0.
    let index = if first.starts_with("[[") { "__0" } else { "" };
    let name = first.trim_matches(['[', ']']).replace('.', "__").replace('"', "");
    let name = name.replace("PROVIDER:MODEL", "PROVIDER_MODEL");
    format!("ADJUTANT_{}{index}__{}", name.to_uppercase(), key.to_uppercase())
}

/// Returns a comment on one line, as a table cell.
fn text(description: &Value) -> String {
    description
        .as_str()
        .unwrap_or_default()
        .replace('\n', " ")
        .replace('|', "\\|")
}

/// Returns the type of a field.
fn type_of(field: &Value) -> String {
    let mut words = vec![];
    constants(field, &mut words);
    if !words.is_empty() {
        return words
            .iter()
            .map(|word| format!("`\"{word}\"`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let kinds = match &field["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
        kind => kind.as_str(),
    };
    match kinds {
        Some("array") => "list".to_owned(),
        Some("object") | None => "table".to_owned(),
        Some("string") => "text".to_owned(),
        Some("integer") => "whole number".to_owned(),
        Some("boolean") => "true or false".to_owned(),
        Some(kind) => kind.to_owned(),
    }
}

/// Collects the allowed words of a field, if it has only those.
fn constants(schema: &Value, words: &mut Vec<String>) {
    words.extend(schema["const"].as_str().map(str::to_owned));
    words.extend(
        schema["enum"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned),
    );
    for key in ["oneOf", "anyOf"] {
        schema[key]
            .as_array()
            .into_iter()
            .flatten()
            .for_each(|schema| constants(schema, words));
    }
}

/// Returns the default of a field.
fn default_of(key: &str, default: &Value) -> String {
    match default {
        Value::Null => String::new(),
        Value::Number(number) => {
            let bytes = number
                .as_u64()
                .filter(|bytes| key.contains("_bytes") && bytes % MIB == 0);
            let whole = number.to_string();
            let whole = whole.strip_suffix(".0").unwrap_or(&whole);
            bytes.map_or_else(
                || format!("`{whole}`"),
                |bytes| format!("`{whole}` ({} MiB)", bytes / MIB),
            )
        }
        Value::Object(fields) if fields.is_empty() => "`{}`".to_owned(),
        Value::String(word) if word.is_empty() => String::new(),
        default => format!("`{default}`"),
    }
}
